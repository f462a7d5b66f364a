"""scheduler ──StepPlan, CutShort──▶ executor/* ──StepResult, LateTokens──▶ scheduler: computation of steps.

Plans are deltas. The executor keeps each sequence's tokens, block table and sampling state in a row of its
batch, and a plan carries only what is new. Each incarnation of the scheduler numbers its plans from 1 within
each epoch (the executor's incarnation). The batch is empty at the first plan of a new incarnation. An
executor that missed a plan crashes and comes back with a new epoch, rather than guess.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import BoolVector, Int32Vector, int32
from pageant.protocol.embedding import EmbeddedRows
from pageant.protocol.hearing import SpeechRules
from pageant.protocol.logprobs import Logprobs
from pageant.protocol.message import Message
from pageant.protocol.pooling import PooledRows, PoolingParams
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.storing import StoredLayout
from pageant.protocol.thinking import Thinking
from pageant.protocol.tiers import BlockMoves


class NewSequence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sequence that takes a row. A resumed sequence brings its output along."""

    row: int
    """The row of the batch, free until now."""
    token_ids: Int32Vector
    """int32 [tokens]: all tokens so far. The sampling noise is a function of the position, so that a resumed
    sequence samples what it would have sampled.
    """
    num_prompt_tokens: int
    """How many of `token_ids` are the prompt's."""
    blocks: Int32Vector
    """int32 [blocks]: the block table."""
    params: SamplingParams
    """Sampling parameters, with a seed unless the request is greedy."""
    sample: int = 0
    """See `Submit`."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """See `Submit`."""
    trace: str | None = None
    """See `Submit`."""
    adapter: str | None = None
    """See `Submit`."""
    thinking: Thinking | None = None
    """See `Submit`."""
    embedded: EmbeddedRows | None = None
    """Embeddings of the prompt, less those that are cached; their token ids are placeholders then."""
    pooling: PoolingParams | None = None
    """See `Submit`."""
    speech: SpeechRules | None = None
    """See `Submit`."""


class StepPlan(Message, frozen=True, kw_only=True):
    """Compute step `number`, by columns over the R scheduled rows.

    A multi-step plan, for an executor that declares `multi_step`, has one token per row. Each step after the
    first computes the token that the row sampled in the step before. The executor may end the plan after any
    step: when all rows have sampled a token that ends them, or on `CutShort`.
    """

    number: int
    """From 1, without gaps, for each scheduler and epoch."""
    epoch: int
    """The executor's incarnation."""
    freed_rows: Int32Vector
    """int32 [F]: rows that are empty from this plan on. A new sequence may take one at once."""
    new: tuple[NewSequence, ...]
    """Sequences that take a row."""
    grown_rows: Int32Vector
    """int32 [G]: rows whose block tables grow before anything is computed."""
    grown_counts: Int32Vector
    """int32 [G]: the number of new blocks of each."""
    grown_blocks: Int32Vector
    """int32 [sum of grown_counts]: blocks to append to the tables, row by row."""
    copy_sources: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [C]: blocks to copy before anything is computed. All are read before any is written."""
    copy_destinations: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [C]: the blocks that receive the copies."""
    rows: Int32Vector
    """int32 [R]: the rows to compute."""
    starts: Int32Vector
    """int32 [R]: the position of each row's first token to compute."""
    num_tokens: Int32Vector
    """int32 [R]: the number of tokens that each row computes, drafts not included."""
    draws: BoolVector
    """bool [R]: whether a token is sampled after the last of them. D rows sample."""
    moves: BlockMoves | None = None
    """Blocks to move between tiers beside this step."""
    draft_counts: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [R], or empty for no drafts: drafts follow the row's tokens as if they had been sampled, and a
    token is sampled after each of them too.
    """
    draft_ids: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [sum of draft_counts]: the drafts, row by row."""
    draft_parents: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [sum of draft_counts]: makes the drafts of a row a tree (see `verification`); empty for chains.
    """
    wanted: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [D], or empty for none: the most drafts that the executor's own proposer makes for each sampling
    row.
    """
    num_steps: int = 1
    """The number of steps of a multi-step plan; else 1."""
    continues: bool = False
    """The rows of the plan before go on. If that plan ended early, nothing of this one is computed."""
    exchange: int = 0
    """The number of the exchange with the block manager that granted it."""


class CutShort(Message, frozen=True, kw_only=True):
    """Begin no step of the plans up to `number` but their first: a request waits for the next plan, or none
    wants these.
    """

    number: int
    epoch: int


class StepResult(Message, frozen=True, kw_only=True):
    """Return the tokens sampled in step `number`, for the plan's sampling rows, in order.

    A row with drafts has one entry for each token that was sampled: the first that follows no wrong draft is
    its last. A multi-step plan has the tokens of `num_steps` steps, all `rows` of a step before those of the
    next. An entry without a token is `NO_TOKEN`: that of a deferred or void row, and of places after some
    drafts.
    """

    number: int
    """The number of the plan."""
    epoch: int
    """The executor's incarnation."""
    rows: Int32Vector
    """int32 [N]: the row of each entry."""
    token_ids: Int32Vector
    """int32 [N * num_steps]: the sampled tokens."""
    seconds: float
    """The time that the step took on the device."""
    drafting_seconds: float = 0.0
    """The part of `seconds` that the proposer took."""
    logprobs: Logprobs | None = None
    """Log-probabilities of the sampled tokens, for the rows that ask; by entry."""
    prompt_logprobs: Logprobs | None = None
    """Log-probabilities of the prompt tokens that follow the computed ones; by row of the plan."""
    failed: dict[int, str] = msgspec.field(default_factory=dict)
    """Entries without a right token, by index, with the reason."""
    draft_counts: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [D], or empty: the number of drafts that the executor's proposer made for each sampling row."""
    draft_ids: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [sum of draft_counts]: those drafts, row by row."""
    draft_parents: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [sum of draft_counts], or empty for chains: makes them trees."""
    deferred: tuple[int, ...] = ()
    """Indices of entries whose token comes later (`LateTokens`). Until then the row cannot be computed
    further.
    """
    void: tuple[int, ...] = ()
    """Indices of entries that were not computed, since the token before them had been deferred."""
    num_steps: int = 1
    """The number of steps that were computed of a multi-step plan. 0 says that nothing of the plan was
    computed.
    """
    pooled: PooledRows | None = None
    """The results of sequences that are pooled, whose entries have no token."""


class LateTokens(Message, frozen=True, kw_only=True):
    """The tokens that step `number` deferred because their masks were late."""

    number: int
    """The number of the step."""
    epoch: int
    """The executor's incarnation."""
    rows: Int32Vector
    """int32 [N]: the rows whose tokens these are."""
    token_ids: Int32Vector
    """int32 [N]."""
    logprobs: Logprobs | None = None
    """Log-probabilities of the tokens, for the rows that ask."""
    failed: dict[int, str] = msgspec.field(default_factory=dict)
    """Rows without a right token, by index, with the reason."""


MAX_MODEL_LEN = "max_model_len"
"""Name of an executor's fact (see `ActorStarted`): the tokens of the longest request that its memory holds."""


class ExecutorReady(Message, frozen=True, kw_only=True):
    """An executor introduces itself to the scheduler and to the block manager, whenever either (re)starts."""

    epoch: int
    """The executor's incarnation."""
    num_blocks: int
    """Blocks of KV memory."""
    block_size: int
    """Tokens in a block."""
    max_num_seqs: int
    """Rows of the batch."""
    max_model_len: int
    """Tokens of the longest sequence."""
    device: str
    """The device's name."""
    dtype: str
    """The type of the weights."""
    block_bytes: int = 0
    """Bytes of a block; 0 if the executor cannot move blocks to lower tiers."""
    host_bytes: int = 0
    """Bytes of the host's memory that blocks may take."""
    disk_bytes: int = 0
    """Bytes of the disk that blocks may take."""
    windows: tuple[int | None, ...] = (None,)
    """The attention window of each layer group, in tokens, the token itself included; None is unlimited. A
    block holds KV of one group, and a block table has one block of each group, in this order, for every
    `block_size` tokens. The first group reaches furthest.
    """
    multi_step: bool = False
    """The executor takes multi-step plans."""
    weight_version: str = ""
    """What the weights are called that it computes with, all its life."""
    whole_prompts: bool = False
    """Each sequence is computed whole, in one step, and nothing of it is kept: tokens attend to those that follow."""
    stages: int = 1
    """Stages of layers, each of which can compute another plan at the same time."""
    stored: StoredLayout | None = None
    """How a store keeps its blocks; None if it cannot."""
    num_states: int = 0
    """How many of the layer groups, the last ones, hold states of recurrent layers: a block has the states after
    the last of its tokens. Such a block is of use to others only when it is full, and its step was computed before.
    """
