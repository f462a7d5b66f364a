"""Purposes of checkpoints: text is generated, or hidden states are pooled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from pageant.models.config import Config

__all__ = ["CONVERTS", "MODULES", "RUNNERS", "Convert", "Purpose", "Runner", "read_purpose"]

Runner = Literal["auto", "generate", "pooling"]
Convert = Literal["auto", "none", "embed", "classify"]
RUNNERS: tuple[Runner, ...] = ("auto", "generate", "pooling")
CONVERTS: tuple[Convert, ...] = ("auto", "none", "embed", "classify")

MODULES = "modules.json"
"""The file by which sentence-transformers knows its models."""

_GENERATING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_CLASSIFYING = ("ForSequenceClassification", "ForTokenClassification")


@dataclass(frozen=True, slots=True)
class Purpose:
    """The uses that a checkpoint is served for."""

    generates: bool
    pools: Literal["embed", "classify"] | None


def read_purpose(config: Config, folder: Path) -> Purpose:
    """Return what a checkpoint is for, by the keys `runner` and `convert` of its configuration and by what it is.

    On its own, a checkpoint generates if its architecture does and it is no model of sentence-transformers. An
    architecture that classifies does that; others embed.

    Raises:
        CheckpointError: the keys say what is not possible.
    """
    runner = config.text("runner", "auto")
    convert = config.text("convert", "auto")
    for key, value, known in (("runner", runner, RUNNERS), ("convert", convert, CONVERTS)):
        if value not in known:
            raise config.wrong(key, value, f"one of {', '.join(known)}")
    names = config.texts("architectures")
    name = names[0] if names else ""
    may_generate = not names or name.endswith(_GENERATING)
    if runner == "generate" and not may_generate:
        raise config.wrong("runner", runner, f"pooling: {name} does not generate", "Leave it out.")
    if runner == "auto":
        runner = "generate" if may_generate and not (folder / MODULES).is_file() else "pooling"
    if runner == "generate":
        return Purpose(
            True, cast(Literal["embed", "classify"], convert) if convert in ("embed", "classify") else None
        )
    if convert == "none" and may_generate:
        raise config.wrong(
            "convert", convert, f"embed or classify: {name} has nothing else that is pooled", "Leave it out."
        )
    if convert in ("auto", "none"):
        convert = "classify" if name.endswith(_CLASSIFYING) or "classifier_from_token" in config else "embed"
    return Purpose(False, cast(Literal["embed", "classify"], convert))
