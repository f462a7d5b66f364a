"""The page of troubles quotes messages as the sources have them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pageant

ROOT = Path(pageant.__file__).parent
PAGE = ROOT / "docs" / "troubleshooting.md"
FOLDERS = ("actors", "kernels", "models", "protocol", "scripts")
OF_THE_SYSTEM = "Address already in use"


@cache
def _texts() -> str:
    """Return all texts of the sources that are no docstrings' own, one after another.

    What an f-string or a logging call puts into a text is `...`, as on the page.
    """
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(re.sub(r"%[sd]", "...", node.value))
    return "\n".join(found)


def _is_said(message: str, texts: str) -> bool:
    """Tell whether a message is in the texts, whole or in parts: between `...`, or as sentences put together."""
    message = message.strip(" ;:,.()'").removeprefix("expected ")
    if message in texts or message == OF_THE_SYSTEM:
        return True
    for joint in re.finditer(r"\.\.\.|[:;.,] ", message):
        if message[: joint.start()] in texts:
            return _is_said(message[joint.end() :], texts)
    return False


def test_every_message_on_the_page_is_one_of_the_sources():
    messages = re.findall(r"^    (.+)$", PAGE.read_text(), re.MULTILINE)
    assert len(messages) > 25
    texts = _texts()
    assert [message for message in messages if not _is_said(message, texts)] == []


def test_a_message_that_nobody_says_is_found():
    assert not _is_said("...: no such folder; expected a miracle", _texts())
