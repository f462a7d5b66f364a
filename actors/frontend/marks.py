"""The marks around what a model thinks, by its chat template."""

from __future__ import annotations

from pathlib import Path

from pageant.actors.parsers.formats import formats_of
from pageant.models.tokenizer_files import read_chat_templates


def reasoning_marks(tokenizer: str, chat_template: str | None) -> tuple[str, str] | None:
    """Return the marks that a model writes before and after its thoughts; None where it has none.

    Args:
        tokenizer: the folder of its tokenizer.
        chat_template: the template, where it is not the tokenizer's own.
    """
    templates = (
        [chat_template] if chat_template is not None else read_chat_templates(Path(tokenizer)).values()
    )
    found = formats_of([*templates]).reasoning
    return None if found is None else (found.begin, found.end)
