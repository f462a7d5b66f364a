"""Settings of a topology that say where the tokenizer and the chat template come from. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pageant.models.checkpoint import has_chat_template
from pageant.models.gguf.folder import refuse_without_tokenizer
from pageant.models.hub import resolve
from pageant.protocol.errors import TopologyError

TEMPLATE_BYTES_MAX = 4 << 20


def tokenizer_settings(settings: Mapping[str, Any], model: Path) -> dict[str, Any]:
    """Return what the actors that read a tokenizer are told.

    Args:
        settings: of the topology: `tokenizer` (a folder or a hub id), `tokenizer_revision`, `skip_tokenizer_init` and
            `chat_template` (a file or the template itself).
        model: the folder of the model, whose own tokenizer is the default.

    Raises:
        TopologyError: a setting is malformed, or contradicts another.
        CheckpointError: there is no such tokenizer.
    """
    wanted, skip = _text(settings, "tokenizer"), settings.get("skip_tokenizer_init", False)
    if not isinstance(skip, bool):
        raise TopologyError("skip_tokenizer_init", f"found {skip!r:.100}; expected true or false")
    template = template_text(_text(settings, "chat_template"))
    for name, value in (("tokenizer", wanted), ("chat_template", template)):
        if skip and value is not None:
            raise TopologyError(name, "found one beside skip_tokenizer_init: true; expected one of the two")
    revision = _text(settings, "tokenizer_revision")
    if revision is not None and wanted is None:
        raise TopologyError(
            "tokenizer_revision", "found it without `tokenizer`; expected both, or `revision`"
        )
    folder = model if wanted is None else resolve(wanted, revision)
    if not skip:
        refuse_without_tokenizer(folder)
    return {
        "tokenizer": str(folder.absolute()),
        "skip_tokenizer_init": skip,
        "chat_template": template,
        "has_chat_template": not skip and (template is not None or has_chat_template(folder)),
    }


def revision_of(settings: Mapping[str, Any]) -> str | None:
    """Return the revision of the model on the hub: a branch, a tag or a commit; None is the hub's default.

    Raises:
        TopologyError: not a text.
    """
    return _text(settings, "revision")


def _text(settings: Mapping[str, Any], name: str) -> str | None:
    value = settings.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise TopologyError(name, f"found {value!r:.100}; expected a text that is not empty")
    return value


def template_text(written: str | None) -> str | None:
    """Return the template that is written, or is in the file that is named.

    Raises:
        TopologyError: it is no template, and there is no such file.
    """
    if written is None or "{" in written or "\n" in written:
        return written
    file = Path(written).expanduser()
    if not file.is_file():
        raise TopologyError(
            "chat_template", f"found {written!r:.200}, which is no file; expected a file, or a Jinja template"
        )
    try:
        if file.stat().st_size > TEMPLATE_BYTES_MAX:
            raise TopologyError("chat_template", f"{file} has more than {TEMPLATE_BYTES_MAX} bytes")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError("chat_template", f"{file} cannot be read: {error}") from None
