"""Docstrings are read from the source of the standard library."""

from functools import cache

from pageant.scripts.demo_model.docstrings import Docstring, clean, docstrings


@cache
def _found() -> dict[str, Docstring]:
    return {documented.name: documented for documented in docstrings()}


def test_functions_modules_and_classes_are_found() -> None:
    assert _found()["os.path.join"].text.startswith("Join two or more pathname components")
    assert _found()["json"].kind == "module"
    assert _found()["collections.Counter"].kind == "class"


def test_builtins_are_found_although_they_have_no_source() -> None:
    assert "number of items" in _found()["len"].text


def test_nothing_private_is_found() -> None:
    assert not [name for name in _found() if any(part.startswith("_") for part in name.split("."))]


def test_examples_are_left_out_of_a_docstring() -> None:
    assert clean("Return the sum\n\n>>> add(1, 2)\n3\n\nOf two numbers.") == "Return the sum. Of two numbers."
