"""frontend ──CompileGrammar──▶ grammar, and executor ◀──GuideStep, TokenMasks──▶ grammar: which tokens may be drawn.

    executor ──GuideStep──▶ grammar    which sequences are new and which are gone, and what was drawn
    grammar ──TokenMasks──▶ executor   what may be drawn next
    grammar ──GuidesLost──▶ executor   open these again, with their whole output

A mask is a function of a sequence's output and of nothing else, so it is asked for by what was drawn, not by
a plan: it is computed while the next step's forward pass runs, whichever step that is. A guided sequence has a
number, its guide, that an executor never uses twice. A grammar that was restarted is told of every guide again.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import Int32Matrix, Int32Vector, Int64Vector, int32, int64
from pageant.protocol.message import Message, Request
from pageant.protocol.structured_outputs import StructuredOutputsParams


class GrammarCompiled(Message, frozen=True, kw_only=True):
    """It can be followed."""


class GrammarRefused(Message, frozen=True, kw_only=True):
    """It cannot, for a reason that is the request's."""

    reason: str


class CompileGrammar(Request[GrammarCompiled | GrammarRefused], frozen=True, kw_only=True):
    """Asked at the edge, before a request is submitted, so that what is wrong fails there and nothing waits."""

    structured_outputs: StructuredOutputsParams


class OpenGuide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sequence whose next token is at `position`, after the output `token_ids`.

    With `ignore_eos`, it does not end where it could go on.
    """

    guide: int
    structured_outputs: StructuredOutputsParams
    position: int
    token_ids: Int32Vector
    ignore_eos: bool = False


class GuideStep(Message, frozen=True, kw_only=True):
    """What a step brought: guide `guides[i]` has `token_ids[i]` at `positions[i]`, and wants the next mask.

    Those in `closed` are over, then those in `opened` begin. Then `draft_counts[i]` of `draft_ids` are a guess at what
    guide `drafting[i]` has from `draft_positions[i]` on: it wants a mask for each place along it, and stays where it
    is. `epoch` is the executor's incarnation.
    """

    epoch: int
    opened: tuple[OpenGuide, ...] = ()
    closed: Int64Vector = msgspec.field(default_factory=int64)
    guides: Int64Vector = msgspec.field(default_factory=int64)
    positions: Int64Vector = msgspec.field(default_factory=int64)
    token_ids: Int32Vector = msgspec.field(default_factory=int32)
    drafting: Int64Vector = msgspec.field(default_factory=int64)
    draft_positions: Int64Vector = msgspec.field(default_factory=int64)
    draft_counts: Int32Vector = msgspec.field(default_factory=int32)
    draft_ids: Int32Vector = msgspec.field(default_factory=int32)


class TokenMasks(Message, frozen=True, kw_only=True):
    """For the token of guide `guides[i]` at `positions[i]`, after `ahead[i]` drafts: token t may be drawn if bit t % 32
    of `bits[i, t // 32]` is 1. After a draft that may not be drawn, all may. `failed` says why some guides have no mask
    and never will."""

    epoch: int
    guides: Int64Vector
    positions: Int64Vector
    ahead: Int64Vector
    bits: Int32Matrix
    failed: dict[int, str] = msgspec.field(default_factory=dict)


class GuidesLost(Message, frozen=True, kw_only=True):
    """A message was missed: these guides are not known here as they are there."""

    epoch: int
    guides: Int64Vector
