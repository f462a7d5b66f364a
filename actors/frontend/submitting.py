"""The messages that submit a prepared request to its scheduler: one for each of its samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from pageant.actors.frontend.preparing import Prepared
from pageant.actors.frontend.requests import OpenRequest
from pageant.protocol.sampling import GREEDY_TEMPERATURE
from pageant.protocol.serving import Submit

__all__ = ["submits"]

_KEPT_HERE = ("traceparent", "reasoning_marks")
"""Settings that a frontend acts on itself."""


def submits(
    request: OpenRequest,
    prepared: Prepared,
    *,
    frontend: str,
    draw_seed: Callable[[], int],
    now: float,
    detailed_traces: bool,
) -> list[Submit]:
    """Return the submission of each sample of a request.

    Args:
        frontend: the frontend's name, for answers.
        draw_seed: called where the request has no seed.
        now: seconds, by which a deadline has come closer.
        detailed_traces: let every actor tell of a traced request.
    """
    params = prepared.params
    if params.seed is None and params.temperature >= GREEDY_TEMPERATURE:
        params = msgspec.structs.replace(params, seed=draw_seed())
    if params.num_sequences > params.n and params.logprobs is None:
        # The best samples are known by their log-probabilities.
        params = msgspec.structs.replace(params, logprobs=0)
    settings = _settings(request, now, detailed_traces)
    found = []
    for sample, wire_id in enumerate(request.wire_ids):
        if sample == 1 and params.prompt_logprobs is not None:
            # Once is enough.
            params = msgspec.structs.replace(params, prompt_logprobs=None)
        found.append(
            Submit(
                request_id=wire_id,
                frontend=frontend,
                prompt_token_ids=prepared.token_ids,
                params=params,
                sample=sample,
                bad_words=prepared.bad_words,
                thinking=prepared.thinking,
                speech=prepared.speech,
                is_probe=request.opening.is_probe,
                prompt_embeds=prepared.embeds,
                pooling=prepared.pooling,
                **settings,
            )
        )
    return found


def _settings(request: OpenRequest, now: float, detailed_traces: bool) -> dict[str, Any]:
    # A copy: others of a batch have the same settings.
    settings: dict[str, Any] = {**request.opening.settings}
    for name in _KEPT_HERE:
        settings.pop(name, None)
    if settings.get("adapter") is not None:
        settings["adapter"] = request.peers.adapters[settings["adapter"]]
    if request.trace is not None:
        settings["trace"] = str(request.trace.context) if detailed_traces else None
    if settings.get("deadline") is not None:
        settings["deadline"] += request.arrived_at - now
    return settings
