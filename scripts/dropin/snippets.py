"""The Python snippets of vLLM's documentation that make an `LLM` or call one."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^( *)```(?:python|py)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_MAKES = re.compile(r"^(\w+\.)*LLM(\.from_engine_args)?$")
_CALLS = re.compile(r"^llm\.\w+$")
_IMPORTS = "from vllm import LLM, EngineArgs, SamplingParams\nfrom vllm.lora.request import LoRARequest\n"


@dataclass(frozen=True)
class Snippet:
    """A snippet as a script: with what its page's snippets before it made, and the imports that they leave out."""

    name: str
    source: str


def read_snippets(sources: Path) -> list[Snippet]:
    """Return the snippets of the documentation in an unpacked source distribution that use an `LLM`, in order."""
    docs = sources / "docs"
    return [
        snippet
        for page in sorted(docs.rglob("*.md"))
        for snippet in _of_page(page, str(page.relative_to(docs)))
    ]


def _of_page(page: Path, name: str) -> Iterator[Snippet]:
    text = page.read_text()
    before = ""  # the last snippet that made an LLM, and those after it
    for match in _BLOCK.finditer(text):
        source = textwrap.dedent(match[2])
        called = _called(source)
        if called is None:
            continue
        makes = any(map(_MAKES.match, called))
        if makes or any(map(_CALLS.match, called)):
            line = text.count("\n", 0, match.start()) + 1
            yield Snippet(f"{name}:{line}", _IMPORTS + ("" if makes else before) + source)
        before = source if makes else before + source


def _called(source: str) -> list[str] | None:
    """The names that a snippet calls; None where it is no Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    return [ast.unparse(one.func) for one in ast.walk(tree) if isinstance(one, ast.Call)]
