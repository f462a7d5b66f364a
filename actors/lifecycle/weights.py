"""A model goes on with the weights of another checkpoint of the same shape.

Weights never change under an executor. They are loaded beside the present ones where there is memory for both; then the
scheduler stands still, another executor begins in the present one's place, and takes them over. Its KV cache is empty,
since it is of another epoch: what was computed with the former weights is not used with these.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from pageant.actors.lifecycle.control import EXECUTOR, ModelControl
from pageant.actors.lifecycle.sleep import still
from pageant.models.checkpoint import Checkpoint
from pageant.models.config import read_json
from pageant.models.errors import CheckpointError
from pageant.models.gguf.folder import as_folder
from pageant.protocol.errors import BadRequest, PageantError, RemoteError, Unsupported
from pageant.protocol.lifecycle import DropPrepared, PauseMode, PrepareWeights

log = logging.getLogger("pageant.lifecycle")

LOAD_SECONDS = 1800.0
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class CheckedWeights:
    """A checkpoint that can take the place of the present one: its folder, and what its weights are to be called."""

    folder: str
    version: str


def check(options: dict[str, Any], folder: str, version: str | None) -> CheckedWeights:
    """Find out whether a checkpoint can take the place of the one that an executor of these options computes with.

    Args:
        version: what its weights are to be called; None takes the folder's name.

    Raises:
        BadRequest: it has another shape or other tokens, or cannot be computed; says which.
        Unsupported: the executor computes with no checkpoint.
    """
    if not options.get("model"):
        raise Unsupported("this topology's executor has no option 'model', which names its checkpoint")
    path = Path(folder).absolute()
    try:
        path = as_folder(path)
        present, other = Checkpoint(Path(options["model"])), Checkpoint(path)
        other.check()
        _check_shape(present, other)
        _check_tokens(present.path, path)
    except CheckpointError as error:
        raise BadRequest(str(error), "folder") from None
    return CheckedWeights(str(path), _version(str(options.get("weight_version", "")), path.name, version))


def _check_shape(present: Checkpoint, other: Checkpoint) -> None:
    if type(present.spec()) is not type(other.spec()) or (
        present.config.get("architectures") != other.config.get("architectures")
    ):
        names = [(one.config.get("architectures") or ["none"])[0] for one in (other, present)]
        raise BadRequest(f"{other.path} is a {names[0]}; expected a {names[1]}, as is served", "folder")
    different = _difference("", other.spec(), present.spec())
    if different is not None:
        place, found, expected = different
        raise BadRequest(
            f"{other.path} has {place} {found!r:.200}; expected {expected!r:.200}, as is served", "folder"
        )


def _difference(place: str, found: Any, expected: Any) -> tuple[str, Any, Any] | None:
    """Return the first place at which two specifications differ, and what each has there."""
    if found == expected:
        return None
    pairs: list[tuple[str, Any, Any]] = []
    if is_dataclass(found) and type(found) is type(expected):
        names = [field.name for field in fields(found)]
        pairs = [
            (f"{place}.{name}" if place else name, getattr(found, name), getattr(expected, name))
            for name in names
        ]
    elif isinstance(found, tuple) and isinstance(expected, tuple) and len(found) == len(expected):
        pairs = [(f"{place}[{index}]", *both) for index, both in enumerate(zip(found, expected, strict=True))]
    inside = (_difference(*pair) for pair in pairs)
    return next((one for one in inside if one is not None), (place, found, expected))


def _check_tokens(present: Path, other: Path) -> None:
    """Refuse a checkpoint that has a tokenizer with other tokens. One without any goes with the present one's."""
    if not ((present / TOKENIZER).is_file() and (other / TOKENIZER).is_file()):
        return
    if (present / TOKENIZER).read_bytes() == (other / TOKENIZER).read_bytes():
        return
    tokens = [_tokens(read_json(folder / TOKENIZER)) for folder in (present, other)]
    if tokens[0] != tokens[1]:
        raise BadRequest(f"{other / TOKENIZER} has other tokens than the one that is served", "folder")


def _tokens(tokenizer: Any) -> tuple[Any, Any]:
    added = tokenizer.get("added_tokens") or ()
    return tokenizer.get("model", {}).get("vocab"), sorted(
        (one.get("id"), one.get("content")) for one in added
    )


def _version(present: str, name: str, wanted: str | None) -> str:
    if wanted is not None and wanted == present:
        raise BadRequest(
            f"version is {wanted!r}, which the present weights are called; expected another", "version"
        )
    if wanted is not None:
        return wanted
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(one for one in names if one != present)


async def replace(model: ModelControl, weights: CheckedWeights, mode: PauseMode, *, beside: bool) -> None:
    """Have another executor begin with these weights in the present one's place. One that sleeps wakes with them.

    Args:
        mode: what becomes of the open requests.
        beside: load them before anything stands still, if there is memory for both.

    Raises:
        BadRequest: what is wrong with the checkpoint; nothing has changed.
        StartupError: no executor could begin with them; the present one's weights are computed with.
    """
    changes = {"model": weights.folder, "weight_version": weights.version}
    if (await model.executor()).sleeping is not None:
        await model.amend_executor(**changes)
        return
    if beside:
        await _prepare(model, weights)
    try:
        async with still(model, mode):
            plan = await model.executor()
            await model.become(plan.cls, {**plan.options, **changes})
    except BaseException:
        if beside:
            with contextlib.suppress(PageantError):
                await model.ask(EXECUTOR, DropPrepared())
        raise


async def _prepare(model: ModelControl, weights: CheckedWeights) -> None:
    order = PrepareWeights(folder=weights.folder, version=weights.version)
    try:
        prepared = await model.ask(EXECUTOR, order, LOAD_SECONDS)
        if not prepared.loaded:
            log.info("%s: weights %r are loaded in a pause: %s", model.name, weights.version, prepared.why)
    except RemoteError as error:
        if error.cause != "TypeError":  # an executor of somebody's own may not take this message
            raise
