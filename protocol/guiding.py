"""frontend ──CompileGrammar──▶ grammar, and executor ◀──GuideStep, TokenMasks──▶ grammar: which tokens may be
sampled.

    executor ──GuideStep──▶ grammar    sequences that begin and end, and the tokens that were sampled
    grammar ──TokenMasks──▶ executor   the tokens that may come next
    grammar ──GuidesLost──▶ executor   open these again, with their whole output

A mask is a function of a sequence's output and of nothing else. The executor therefore asks for it with the
sampled token, not with a plan, and the grammar computes it while the next step's forward pass runs. A guided
sequence has a number, its guide, that an executor never uses twice. An executor opens all of its guides again
at a grammar that was restarted.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import Int32Matrix, Int32Vector, Int64Vector, int32, int64
from pageant.protocol.message import Message, Request
from pageant.protocol.structured_outputs import StructuredOutputsParams


class GrammarCompiled(Message, frozen=True, kw_only=True):
    """Answer of a grammar that was compiled."""


class GrammarRefused(Message, frozen=True, kw_only=True):
    """Answer for a grammar that cannot be compiled, with a reason for the client."""

    reason: str


class CompileGrammar(Request[GrammarCompiled | GrammarRefused], frozen=True, kw_only=True):
    """Compile a grammar before its request is submitted, so that a faulty one fails at the edge and no step
    waits for it.
    """

    structured_outputs: StructuredOutputsParams


class OpenGuide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sequence that a grammar is to guide."""

    guide: int
    """The number of the guide."""
    structured_outputs: StructuredOutputsParams
    """The constraint."""
    position: int
    """The position of the next token in the sequence."""
    token_ids: Int32Vector
    """int32 [tokens]: the output so far."""
    ignore_eos: bool = False
    """The sequence does not end where it could go on."""


class GuideStep(Message, frozen=True, kw_only=True):
    """Tell the grammar which tokens a step sampled, and ask for the next masks.

    The grammar closes guides first, opens new ones, and then advances the others. Drafts do not advance a
    guide.
    """

    epoch: int
    """The executor's incarnation."""
    opened: tuple[OpenGuide, ...] = ()
    """Guides that begin."""
    closed: Int64Vector = msgspec.field(default_factory=int64)
    """int64 [C]: guides that end."""
    guides: Int64Vector = msgspec.field(default_factory=int64)
    """int64 [N]: guides with a new token, which want the mask of the next."""
    positions: Int64Vector = msgspec.field(default_factory=int64)
    """int64 [N]: the position of each new token."""
    token_ids: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [N]: the new tokens."""
    drafting: Int64Vector = msgspec.field(default_factory=int64)
    """int64 [D]: guides that want a mask at each place along their drafts."""
    draft_positions: Int64Vector = msgspec.field(default_factory=int64)
    """int64 [D]: the position of each guide's first draft."""
    draft_counts: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [D]: the number of drafts of each guide."""
    draft_ids: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [sum of draft_counts]: the drafts, guide by guide."""


class TokenMasks(Message, frozen=True, kw_only=True):
    """Masks of the tokens that may be sampled: token t is allowed in mask i if bit t % 32 of `bits[i, t //
    32]` is 1.
    """

    epoch: int
    """The executor's incarnation."""
    guides: Int64Vector
    """int64 [N]: the guide of each mask."""
    positions: Int64Vector
    """int64 [N]: the position of the token that each mask is for."""
    ahead: Int64Vector
    """int64 [N]: the number of drafts before that token. After a draft that is not allowed, a mask allows
    all.
    """
    bits: Int32Matrix
    """int32 [N, ceil(vocab_size / 32)]."""
    failed: dict[int, str] = msgspec.field(default_factory=dict)
    """Guides without a mask, now and later, with the reason."""


class GuidesLost(Message, frozen=True, kw_only=True):
    """Tell an executor that a message was lost: open these guides again."""

    epoch: int
    guides: Int64Vector
