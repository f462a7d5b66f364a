"""Shape of a planned replica, from a recording of a real one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pageant.actors.client.vllm_names.translating import translated
from pageant.protocol.errors import BadRequest
from pageant.scripts.planning.replica import ReplicaShape
from pageant.scripts.replay.load import Load

CHANGEABLE = ("policy", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
"""Settings of a replica that may differ from those of the recording."""
SETTINGS = (*CHANGEABLE, "async_scheduling", "short_step_seconds")
"""Settings of a replica that a recording has."""


def shape_of(load: Load, changes: Mapping[str, Any]) -> ReplicaShape:
    """Return a replica as it was recorded, with the settings among `changes` that it has.

    Raises:
        BadRequest: the recording does not say how large the KV memory was.
        TopologyError: a setting whose value is refused.
    """
    header, changes = load.header, translated(changes)
    if header.num_blocks is None or header.block_size is None:
        raise BadRequest("the recording does not say how large the KV memory was", "recording")
    settings = load.settings()
    own = {name: settings[name] for name in SETTINGS if name in settings}
    own |= {name: changes[name] for name in CHANGEABLE if changes.get(name) is not None}
    own.setdefault("max_model_len", header.num_blocks * header.block_size)
    return ReplicaShape(header.num_blocks, header.block_size, windows=header.windows, **own)
