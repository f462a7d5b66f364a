"""Docstrings of the standard library, read from its source so that none of it is run.

Functions written in C have no source here; those of `builtins` and a few other modules that are compiled
in are read off the objects.
"""

import ast
import builtins
import inspect
import itertools
import math
import os
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pageant.scripts.demo_model.cleaning import is_prose, paragraphs, plain

_SKIPPED = ("idlelib", "lib2to3", "test", "tests", "turtledemo", "site-packages", "ensurepip", "__pycache__")
_COMPILED = (("", builtins), ("itertools.", itertools), ("math.", math), ("os.", os), ("time.", time))


@dataclass(frozen=True)
class Docstring:
    """A public name (`os.path.join`), what it is (`module`, `class` or `function`) and its cleaned text."""

    name: str
    kind: str
    text: str


@cache
def docstrings() -> tuple[Docstring, ...]:
    """Every public docstring with some prose in it, sorted by module, then in the order of the source."""
    return (*_compiled_docstrings(), *_source_docstrings())


def _compiled_docstrings() -> Iterator[Docstring]:
    """The docstrings of functions and classes that exist only in compiled form."""
    for prefix, module in _COMPILED:
        for name in sorted(vars(module)):
            value = getattr(module, name)
            if name.startswith("_") or not callable(value) or inspect.isfunction(value):
                continue
            text = clean(inspect.getdoc(value) or "")
            if text:
                yield Docstring(prefix + name, "class" if isinstance(value, type) else "function", text)


def _source_docstrings() -> Iterator[Docstring]:
    """The docstrings of the pure Python part of the standard library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if any(part in _SKIPPED or "-" in part for part in parts) or any(_is_private(part) for part in parts):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        yield from _tree_docstrings(tree, _public_module(parts))


def _is_private(part: str) -> bool:
    return part.startswith("_") and part != "__init__"


def _public_module(parts: tuple[str, ...]) -> str:
    """The name under which people know a source file: `os.path` for posixpath.py."""
    name = ".".join(part for part in parts if part != "__init__")
    return "os.path" if name in ("posixpath", "genericpath") else name


def _tree_docstrings(tree: ast.Module, module: str) -> Iterator[Docstring]:
    """A module's own docstring, then those of its public definitions, methods included."""
    yield from _documented(tree, module, "module")
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _documented(node, f"{module}.{node.name}", "class")
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.name.startswith(
                    "_"
                ):
                    yield from _documented(method, f"{module}.{node.name}.{method.name}", "function")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield from _documented(node, f"{module}.{node.name}", "function")


Documentable = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _documented(node: Documentable, name: str, kind: str) -> Iterator[Docstring]:
    text = clean(ast.get_docstring(node) or "")
    if text:
        yield Docstring(name, kind, text)


def clean(docstring: str) -> str:
    """The prose of a docstring; a first line that only lacks its full stop gets one."""
    kept: list[str] = []
    for position, block in enumerate(paragraphs(docstring)):
        if position == 0 and len(block.split()) >= 3 and block[-1].isalnum():
            block += "."
        if is_prose(block):
            kept.append(plain(block))
    return " ".join(kept)
