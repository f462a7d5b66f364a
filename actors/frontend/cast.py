"""The default cast, and what a model's folder says about it. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pageant.actors.runtime.topology import Cast, Topology
from pageant.models.checkpoint import Checkpoint, resolve
from pageant.protocol.errors import TopologyError

FRONTEND = "frontend"
HTTP = "http"

# In the order in which they are started: what takes long comes first.
DEFAULT_CAST = Cast(
    classes={
        "executor": "pageant.actors.executor.actor:Executor",
        "tokenizer": "pageant.actors.tokenizer:Tokenizer",
        "detokenizer": "pageant.actors.detokenizer.actor:Detokenizer",
        "scheduler": "pageant.actors.scheduler.actor:Scheduler",
        "blocks": "pageant.actors.blocks.actor:BlockManager",
        FRONTEND: "pageant.actors.frontend.frontend:Frontend",
    },
    groups=frozenset({"executor"}),
    root_actors=frozenset({FRONTEND}),
    # Only a tokenizer's work can be shared out; more executors need tensors that cross between them.
    single=frozenset({"executor", "detokenizer", "scheduler", "blocks", FRONTEND}),
    extra_settings=frozenset({"served_model_name"}),
    optional={HTTP: "pageant.actors.frontend.http.server:HttpServer"},
)


def model_settings(topology: Topology) -> dict[str, Any]:
    """What the checkpoint says that the actors need to know: paths, sizes, end tokens.

    Raises:
        TopologyError: no model is named, or `max_model_len` is beyond it.
        CheckpointError: the checkpoint cannot be served.
    """
    if not topology.model:
        raise TopologyError("model", "no model is named; expected a checkpoint's folder or a hub id")
    served = topology.settings.get("served_model_name")
    if served is not None and not isinstance(served, str):
        raise TopologyError("served_model_name", f"found {served!r}; expected a name")
    path = resolve(topology.model)
    checkpoint = Checkpoint(path)
    checkpoint.check()
    spec = checkpoint.spec()
    return {
        "model": str(path),
        "max_model_len": _max_model_len(topology.settings, spec.max_model_len),
        "vocab_size": spec.vocab_size,
        "eos_token_ids": checkpoint.eos_token_ids,
        "has_chat_template": checkpoint.has_chat_template,
    }


def _max_model_len(settings: Mapping[str, Any], longest: int) -> int:
    wanted = settings.get("max_model_len")
    if wanted is None:
        return longest
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 1 <= wanted <= longest:
        raise TopologyError(
            "max_model_len", f"found {wanted!r}; expected 1 to {longest}, which the model was made for"
        )
    return wanted
