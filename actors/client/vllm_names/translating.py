"""Settings as vLLM's users write them, turned into ours: keyword arguments and the keys of a topology."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pageant.actors.client.vllm_names.engine import ENGINE
from pageant.actors.client.vllm_names.rows import Kind, Row
from pageant.actors.client.vllm_names.server import SERVER
from pageant.actors.runtime.yaml import merge
from pageant.protocol.errors import TopologyError

ACTORS = "actors"
"""The setting that several rows may each say a part of."""
OF_SERVERS = frozenset({"reasoning_parser"})
"""Rows of the engine that only an HTTP server has a use for."""
_SPECULATION = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}


def translated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under our names, with our values. Those that are in no row stay as they are.

    Raises:
        TopologyError: a value that is refused, or two names for one setting; names the key as it is written.
    """
    found: dict[str, Any] = {}
    written: dict[str, str] = {}  # by our names, the name that was given
    speculative: dict[str, Any] = {}
    for name, value in settings.items():
        row = ENGINE.get(name)
        if row is None or value is None:
            ours = {name: value}
        elif name in _SPECULATION:
            speculative[_SPECULATION[name]] = value
            continue
        elif name == "speculative_config" and isinstance(value, Mapping):
            speculative = {**value, **speculative}
            continue
        else:
            ours = read(row, value)
        for key, one in ours.items():
            if key == ACTORS:
                found[key] = merge(found.get(key) or {}, one)
                continue
            _note(written, key, name)
            found[key] = one
    if speculative:
        _note(written, "speculation", "speculative_config")
        found |= read(ENGINE["speculative_config"], speculative)
    return found


def as_written(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return, by the name of each setting of ours, the name under which it is given."""
    rows = {name: ENGINE.get(name) for name in settings}
    return {(row.here if row is not None else None) or name: name for name, row in rows.items()}


def _note(written: dict[str, str], key: str, name: str) -> None:
    if key in written:
        raise TopologyError(
            name, f"the same setting as {written[key]}, which is given too; expected one of them"
        )
    written[key] = name


def read(row: Row, value: Any) -> dict[str, Any]:
    """Return what a value of one row is in our settings; nothing where it asks for nothing.

    Raises:
        TopologyError: it is refused.
    """
    if row.kind is Kind.NOT_YET or (row.kind is Kind.NO_EFFECT and row.neutral):
        if not row.is_neutral(value):
            raise TopologyError(row.name, row.refusal(value))
        return {}
    if row.kind is Kind.NO_EFFECT or row.name in OF_SERVERS or _is_empty(value):
        return {}
    try:
        value = row.read(value) if row.read is not None else value
    except ValueError as error:
        raise TopologyError(row.name, str(error)) from None
    return {row.here or row.name: str(value) if isinstance(value, Path) else value}


def _is_empty(value: Any) -> bool:
    """Mappings and lists that hold nothing, texts without a letter: vLLM's way to say none."""
    return isinstance(value, dict | list | tuple | set | str) and not value


def server_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what flags of a server say as options of ours. Flags of the engine are left out.

    Raises:
        TopologyError: a value that is refused; names it as it is written.
    """
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in SERVER:
            found |= read(SERVER[name], value)
    return found
