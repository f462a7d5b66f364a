"""The sounds that a topology's model takes, by its checkpoint and the settings."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from pageant.actors.client.tokenizers import revision_of
from pageant.actors.runtime.topology import Topology
from pageant.models.audio.families import read_audio
from pageant.models.checkpoint import Checkpoint, CheckpointError, resolve
from pageant.protocol.drafting import DEVICE_METHODS
from pageant.protocol.errors import TopologyError
from pageant.protocol.hearing import AudioInputs

__all__ = ["SEQUENCES", "audio_inputs", "takes_audio"]

SEQUENCES = 32
"""Requests that run at a time where nobody said how many: each holds keys and values of a whole window."""
_ALONE = ("tensor_parallel", "pipeline_parallel", "tensor_segments")
_MODULES = ("soundfile", "soxr")


def takes_audio(topology: Topology) -> bool:
    """Tell whether a topology's model takes sounds. What is wrong with it is told where it is read."""
    try:
        if not topology.model:
            return False
        return read_audio(Checkpoint(resolve(topology.model, revision_of(topology.settings)))) is not None
    except (TopologyError, CheckpointError):
        return False


def audio_inputs(topology: Topology, checkpoint: Checkpoint) -> AudioInputs | None:
    """Return the sounds that a model takes in a topology; None where it takes none.

    Raises:
        TopologyError: a setting is not served with sounds, or what reads files is missing.
        CheckpointError: the model's configuration makes no sense.
    """
    inputs = read_audio(checkpoint)
    if inputs is None:
        return None
    _refuse_others(topology)
    if missing := [name for name in _MODULES if find_spec(name) is None]:
        raise TopologyError(
            "model",
            f"it takes sounds, and {' and '.join(missing)} are not installed; expected pip install 'pageant[audio]'",
        )
    return inputs


def _refuse_others(topology: Topology) -> None:
    """Refuse by name what is not served together with sounds.

    Raises:
        TopologyError: names the setting.
    """
    for name in _ALONE:
        if (count := _option(topology, name)) not in (None, 1):
            raise TopologyError(name, f"found {count!r:.80}; expected 1 for a model that hears")
    speculation = topology.settings.get("speculation")
    method = speculation.get("method") if isinstance(speculation, Mapping) else None
    if method in DEVICE_METHODS:
        raise TopologyError(
            "speculation.method", f"found {method!r:.80}; expected ngram for a model that hears"
        )
    for name in ("adapters", "enable_prompt_embeds", "store_memory"):
        if found := _option(topology, name):
            raise TopologyError(name, f"found {found!r:.80}; expected none for a model that hears")


def _option(topology: Topology, name: str, actor: str = "executor") -> Any:
    """Return an option of an actor as it is written, or None."""
    entry = topology.actors.get(actor)
    found = None if entry is None else entry.options.get(name)
    return topology.settings.get(name) if found is None else found
