"""Rules of language that a program can check: openings of docstrings, long sentences, units of arrays and times.

Each check takes source text and returns its findings, so that `test_language` runs it on the tree and on bad examples.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

SENTENCE_WORDS_MAX = 40

# A docstring begins with a verb or a noun. These words begin a clause that leans on something the reader has not seen.
_OPENINGS = """
    what who whom whose which that those these this such same he she it its they them their we us our you your i my
    one's anyone anybody anything someone somebody something everyone everybody everything nobody nothing none itself
    of by from with without within for to into onto in on at over under upon between among through throughout during
    before after as than like per until till since about around against beside besides beyond near off out up down
    along across behind toward towards inside outside
    when where while whether how why if because although though so there here
"""
BAD_OPENINGS = frozenset(_OPENINGS.split())
_BAD_PHRASES = re.compile(
    r"(one of (them|those|these)|the same (as|of|for|but|with|in)|all of (it|them|those))\b", re.IGNORECASE
)
_FIRST_WORD = re.compile(r"[^A-Za-z`]*([A-Za-z']+)")

# An array's annotation. Those of `protocol.arrays` and `NDArray[np.x]` declare the dtype; `Tensor` does not.
_ARRAY = re.compile(r"\b(Tensor|NDArray|ndarray|\w*(?:Vector|Matrix))\b")
_DECLARES_DTYPE = re.compile(r"NDArray\[np\.\w+\]|\b(Bool|UInt8|Int32|Int64|Float32)(Vector|Matrix)\b")
_SHAPE = re.compile(r"\[[A-Za-z0-9_ ,+*/().>=<:…-]*\]|\bscalars?\b")
_DTYPE = re.compile(r"\b(u?int(8|16|32|64)|b?float(8|16|32|64)?|bfloat16|bools?|boolean|dtypes?|bits?)\b")
_TIME_NAME = re.compile(
    r"(^|_)(now|timeout|deadline|delay|interval|until|since|at|elapsed|duration|age|grace|period|time|started|backoff)$"
)
_TIME_UNIT_IN_NAME = re.compile(r"(^|_)(seconds|ms|us|ns)(_|$)")
_TIME_UNIT = re.compile(r"\b(seconds?|milliseconds?|microseconds?|nanoseconds?|monotonic)\b")


@dataclass(frozen=True)
class Documented:
    """A module, class or function, with its docstring."""

    name: str
    line: int
    docstring: str
    node: ast.AST


@dataclass
class Classes:
    """Base classes and method docstrings by class name, so that an override may rely on the contract it implements."""

    bases: dict[str, set[str]] = field(default_factory=dict)
    methods: dict[tuple[str, str], str] = field(default_factory=dict)
    docstrings: dict[str, str] = field(default_factory=dict)

    def add(self, source: str) -> None:
        """Add every class of a module."""
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.ClassDef):
                continue
            names = {_last_name(base) for base in node.bases}
            self.bases.setdefault(node.name, set()).update(name for name in names if name != node.name)
            self.docstrings[node.name] = self.docstrings.get(node.name, "") + (ast.get_docstring(node) or "")
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    key = (node.name, method.name)
                    self.methods[key] = self.methods.get(key, "") + (ast.get_docstring(method) or "")

    def inherited(self, class_name: str, method: str) -> str:
        """Return the docstrings of the methods of that name in all base classes.

        A class that a docstring names in backticks, as in "implements `Kernels`", counts as a base.
        """
        found, pending, seen = "", [class_name], {class_name}
        while pending:
            name = pending.pop()
            for base in sorted(self.bases.get(name, set()) | self.named(self.docstrings.get(name, ""))):
                if base not in seen:
                    seen.add(base)
                    pending.append(base)
                    found += " " + self.methods.get((base, method), "")
        return found

    def named(self, docstring: str) -> set[str]:
        """Return the classes that a docstring names in backticks."""
        names = re.findall(r"`(?:[\w.]+\.)?([A-Z]\w*)`", docstring)
        return {name for name in names if name in self.docstrings}

    def referred(self, docstring: str) -> str:
        """Return the docstrings of the methods that a docstring names, as in "See `Kernels.sample`"."""
        names = re.findall(r"`(?:[\w.]+\.)?([A-Z]\w*)\.(\w+)`", docstring)
        return " ".join(self.methods.get(name) or self.inherited(*name) for name in names)


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def documented(source: str) -> Iterator[Documented]:
    """Yield every module, class and function of a source text that has a docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield Documented(getattr(node, "name", "module"), getattr(node, "lineno", 1), text, node)


def begins_badly(docstring: str) -> bool:
    """Tell whether a docstring begins with a pronoun, a preposition or a relative word."""
    first = _FIRST_WORD.match(docstring)
    if first is None:
        return False
    return first[1].lower() in BAD_OPENINGS or _BAD_PHRASES.match(docstring) is not None


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of running text. Code blocks, tables and headings of Markdown are left out."""
    paragraph: list[str] = []
    is_fenced = is_section = False
    for line in [*text.splitlines(), ""]:
        bare = line.strip()
        if bare.startswith(("```", "~~~")):
            is_fenced = not is_fenced
            bare = ""
        is_indented = line.startswith("    ")
        if bare and not is_indented:
            is_section = re.fullmatch(r"\w+:", bare) is not None
        # Four blanks begin code, except under a heading such as `Args:` or within a list.
        is_code = is_fenced or (is_indented and not is_section and not paragraph)
        is_skipped = is_code or bare.startswith(("|", "#", "<")) or _is_diagram(bare)
        pattern = r"([-*]|\d+[.)])\s" if not is_section else r"[\w, `]+:\s"
        if not bare or is_skipped or re.match(pattern, bare):
            yield from _split(" ".join(paragraph))
            paragraph = []
        if bare and not is_skipped:
            paragraph.append(bare)


def _is_diagram(line: str) -> bool:
    return re.search("[│┌└├▼▶◀─]", line) is not None


def _split(paragraph: str) -> list[str]:
    return [part for part in re.split(r"(?<=[.!?])[\"')`*]*\s+", paragraph) if part]


def long_sentences(text: str) -> list[str]:
    """Return the sentences of running text that have more than `SENTENCE_WORDS_MAX` words."""
    return [one for one in sentences(text) if len(one.split()) > SENTENCE_WORDS_MAX]


def unsaid_units(source: str, classes: Classes) -> list[tuple[int, str, str]]:
    """Return line, name and fault of each public function that takes or returns arrays or times and does not say which.

    An array needs a shape in brackets (or the word scalar), and a dtype unless its annotation declares one. A time
    needs its unit in its name or in the docstring. The docstrings of the class, of overridden methods and of methods
    that the docstring refers to count.
    """
    found: list[tuple[int, str, str]] = []
    for owner, node in _public_functions(ast.parse(source)):
        text = ast.get_docstring(node) or ""
        text += " " + classes.referred(text)
        if owner is not None:
            text += " " + classes.docstrings.get(owner, "") + classes.inherited(owner, node.name)
            if node.name == "__init__":
                continue  # a constructor's arguments are documented by the class
        fault = _fault(node, text)
        if fault is not None:
            found.append((node.lineno, node.name if owner is None else f"{owner}.{node.name}", fault))
    return found


def _public_functions(
    module: ast.Module,
) -> Iterator[tuple[str | None, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield None, node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.name.startswith(
                    "_"
                ):
                    yield node.name, method


def _fault(node: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> str | None:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    annotated = {one.arg: ast.unparse(one.annotation) for one in arguments if one.annotation is not None}
    annotations = [*annotated.values(), *([ast.unparse(node.returns)] if node.returns is not None else [])]
    arrays = [one for one in annotations if _ARRAY.search(one) and "Callable" not in one]
    if arrays and not _SHAPE.search(text):
        return "has arrays and says no shape"
    if any(not _DECLARES_DTYPE.search(one) for one in arrays) and not _DTYPE.search(text):
        return "has arrays and says no dtype"
    for name, annotation in annotated.items():
        is_time = "float" in annotation and _TIME_NAME.search(name) and not _TIME_UNIT_IN_NAME.search(name)
        if is_time and not _TIME_UNIT.search(text):
            return f"says no unit of {name}"
    return None


def function_lengths(source: str) -> list[tuple[str, int, int]]:
    """Return each function's name, first line, and lines of its body without the docstring."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            found.append(
                (node.name, node.lineno, node.body[-1].end_lineno - body[0].lineno + 1 if body else 0)
            )
    return found
