"""The topology that a tune writes: YAML with the chosen settings, and what was found as comments above them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from pageant.actors.client.vllm_names.translating import translated
from pageant.scripts.tuning.space import Candidate


def topology_text(settings: Mapping[str, Any], candidate: Candidate, comments: Iterable[str] = ()) -> str:
    """Return a topology's file.

    Args:
        settings: that all candidates share, with the model; the candidate's go before them.
    """
    shared = {name: value for name, value in translated(settings).items() if value is not None}
    model = {"model": str(shared.pop("model"))}
    keys = {**model, **shared, **candidate.settings()}
    lines = [f"# {line}".rstrip() for line in comments]
    return "\n".join([*lines, yaml.safe_dump(keys, sort_keys=False)])
