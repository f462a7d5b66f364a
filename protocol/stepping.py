"""scheduler ──StepPlan, CutShort──▶ executor/* ──StepResult, LateTokens──▶ scheduler: one step of computation, or some.

Plans are deltas. The executor keeps each sequence's tokens, block table and sampling state in a row of its
batch, and a plan carries only what is new. Plans are numbered from 1 by each incarnation of the scheduler
within each epoch (the executor's incarnation). A plan of a new incarnation finds the batch empty; an
executor that missed a plan crashes and comes back with a new epoch, rather than guess.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import BoolVector, Int32Vector, int32
from pageant.protocol.logprobs import Logprobs
from pageant.protocol.message import Message
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.thinking import Thinking
from pageant.protocol.tiers import BlockMoves


class NewSequence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sequence that takes a row: all its tokens so far (a resumed one brings its output along).

    `num_prompt_tokens` of `token_ids` are the prompt's; the noise of a draw is a function of the position
    in the sequence, so a resumed sequence draws what it would have drawn. For `sample`, `bad_words`, `trace`, `adapter`
    and `thinking` see `Submit`.
    """

    row: int
    token_ids: Int32Vector
    num_prompt_tokens: int
    blocks: Int32Vector
    params: SamplingParams
    sample: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    trace: str | None = None
    adapter: str | None = None
    thinking: Thinking | None = None


class StepPlan(Message, frozen=True, kw_only=True):
    """What to compute in step `number`, by columns over the scheduled rows.

    Row `rows[i]` computes `num_tokens[i]` tokens from position `starts[i]`; where `draws[i]`, a token is
    drawn after the last of them. Where there are drafts, `draft_counts[i]` of `draft_ids` follow these tokens as if
    they had been drawn, and a token is drawn after each of them too; with `draft_parents` they are a tree (see
    `verification`), else a chain. `grown_rows[i]` gets `grown_counts[i]` more of
    `grown_blocks` at the end of its table first. Before anything is computed, blocks `copy_sources` are copied to
    `copy_destinations`: all reads come before all writes. `wanted[i]` drafts are asked of the executor's own
    proposer, if it has one, for the i-th row that draws. `freed_rows` are empty from this plan on; a new sequence
    may take one at once.

    A plan of several steps, for an executor that says `multi_step`, goes on after that: each row has one token, and in
    each step after the first computes the one that it drew in the step before. It may stop short after any of them:
    when all rows have drawn a token that ends them, or when it is told to (`CutShort`). A plan that `continues` the
    one before is of rows that were there; if that one stopped short, nothing of it is computed.
    """

    number: int
    epoch: int
    freed_rows: Int32Vector
    new: tuple[NewSequence, ...]
    grown_rows: Int32Vector
    grown_counts: Int32Vector
    grown_blocks: Int32Vector
    copy_sources: Int32Vector = msgspec.field(default_factory=int32)
    copy_destinations: Int32Vector = msgspec.field(default_factory=int32)
    rows: Int32Vector
    starts: Int32Vector
    num_tokens: Int32Vector
    draws: BoolVector
    moves: BlockMoves | None = None
    draft_counts: Int32Vector = msgspec.field(default_factory=int32)
    draft_ids: Int32Vector = msgspec.field(default_factory=int32)
    draft_parents: Int32Vector = msgspec.field(default_factory=int32)
    wanted: Int32Vector = msgspec.field(default_factory=int32)
    num_steps: int = 1
    continues: bool = False


class CutShort(Message, frozen=True, kw_only=True):
    """Plans up to `number` are to begin no step but their first: somebody waits for the next, or nobody for these."""

    number: int
    epoch: int


class StepResult(Message, frozen=True, kw_only=True):
    """The tokens drawn in step `number`: `token_ids[i]` for `rows[i]`, the plan's drawing rows, in order. A row with
    drafts comes once for each token that was drawn: the first that follows no wrong draft is its last.

    `seconds` is what the step took on the device. `logprobs` are of the tokens drawn, for those of `rows` that
    ask; `prompt_logprobs` of the prompt's tokens that follow those computed, for those of the plan's rows.
    `failed` says why some of `rows`, by index, have no right token. Those at the indices `deferred` get theirs
    later (`LateTokens`); until then they cannot be computed further, and those at the indices `void` were not,
    since the token before had been deferred. Neither has a token here, nor need there be one after every draft: what
    is not there is MISSING. `draft_counts[i]` of `draft_ids` are what the executor's own proposer guesses to come
    next, for the i-th of the plan's drawing rows; with `draft_parents` they are trees. Making them took
    `drafting_seconds` of the `seconds`.

    Of a plan of several steps there are the tokens of `num_steps`, those of all `rows` one step after another. 0 says
    that nothing was computed of it.
    """

    number: int
    epoch: int
    rows: Int32Vector
    token_ids: Int32Vector
    seconds: float
    drafting_seconds: float = 0.0
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    failed: dict[int, str] = msgspec.field(default_factory=dict)
    draft_counts: Int32Vector = msgspec.field(default_factory=int32)
    draft_ids: Int32Vector = msgspec.field(default_factory=int32)
    draft_parents: Int32Vector = msgspec.field(default_factory=int32)
    deferred: tuple[int, ...] = ()
    void: tuple[int, ...] = ()
    num_steps: int = 1


class LateTokens(Message, frozen=True, kw_only=True):
    """The tokens of rows that step `number` deferred, because what guides them was late."""

    number: int
    epoch: int
    rows: Int32Vector
    token_ids: Int32Vector
    logprobs: Logprobs | None = None
    failed: dict[int, str] = msgspec.field(default_factory=dict)


MAX_MODEL_LEN = "max_model_len"
"""Name of an executor's fact (see `ActorStarted`): the tokens of the longest request that its memory holds."""


class ExecutorReady(Message, frozen=True, kw_only=True):
    """An executor introduces itself to the scheduler and to the block manager, whenever either (re)starts.

    Its KV memory holds `num_blocks` blocks of `block_size` tokens, each of `block_bytes` bytes; 0 says that it
    cannot move any to the host's memory, of which `host_bytes` can be had, or to its disk, of which `disk_bytes` can.
    Its layers are in groups, and a block holds what is of one of them: for every `block_size` tokens a sequence's table
    has a block of each, in their order. In group i a token attends over no more than the last `windows[i]` tokens,
    itself included; None is over all. The first group reaches furthest. `epoch` is its incarnation. With `multi_step`
    it takes plans of several steps.
    """

    epoch: int
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_model_len: int
    device: str
    dtype: str
    block_bytes: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0
    windows: tuple[int | None, ...] = (None,)
    multi_step: bool = False
