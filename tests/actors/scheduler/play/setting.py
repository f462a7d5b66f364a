"""Names of the actors of a play, its vocabulary, and the sizes that a play may have."""

from __future__ import annotations

from dataclasses import dataclass

from pageant.protocol.drafting import Speculation

VOCABULARY = 32
END_TOKEN = 0
SUPERVISOR, SCHEDULER, BLOCKS, EXECUTOR, DETOKENIZER = [
    "supervisor",
    "scheduler",
    "blocks",
    "executor/0",
    "detokenizer",
]
CAST = (SCHEDULER, BLOCKS, EXECUTOR, DETOKENIZER)
FRONTENDS = ("frontend", "other-frontend")
KEEPERS = (SCHEDULER, DETOKENIZER)


@dataclass(frozen=True)
class Setting:
    """Sizes and options of the actors of one play."""

    num_blocks: int = 16
    block_size: int = 4
    max_num_seqs: int = 6
    max_num_batched_tokens: int = 24
    max_model_len: int = 56
    credit: int = 4
    enable_prefix_caching: bool = True
    policy: str = "fcfs"
    async_scheduling: bool = True
    short_step_seconds: float = 0.005
    max_steps_per_plan: int = 8
    share_final: float = 0.0  # of the requests, those whose tokens nobody awaits but at their end
    host_blocks: int = 0
    disk_blocks: int = 0
    clock_ticks: float = 0.0  # at random, up to this, whenever somebody looks
    windows: tuple[int | None, ...] = (None,)
    long_prefill_token_threshold: int | None = None
    speculation: Speculation | None = None
