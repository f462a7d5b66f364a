"""executor/0 ──Order──▶ executor/1..: the steps of a group of executors, of which the first leads.

    executor/0 ──DescribeRank──▶ executor/N ──RankReady──▶ executor/0      when the weights are loaded
    executor/0 ──FormGroup──▶ executor/N ──GroupFormed──▶ executor/0       once, before the group is up
    executor/0 ──FollowKeys──▶ executor/N ──MeetingKey──▶ executor/0       while they meet: keys of torch.distributed
    executor/0 ──TakeKeys──▶ executor/N ──KeysTaken──▶ executor/0
    executor/0 ──Order──▶ executor/N                                       once per launch, ahead of it
    executor/0 ──MoveSlots──▶ executor/N                                   accepted drafts of a tree
    executor/0 ──MoveBlocks──▶ executor/N ──BlocksMoved──▶ executor/0      each move between tiers
    executor/0 ──AddShare──▶ executor/N ──ShareAdded──▶ executor/0         an adapter that is loaded while serving
    executor/0 ──ForgetShare──▶ executor/N                                 one that no step has any more

A group computes one model together. The leader alone receives plans, samples and answers. It numbers its launches
and orders each from the others, which compute them in that order and decide nothing. What depends on time, the
leader says within the group's own operations when it begins a step: whether the step is computed, and its tokens.
Members have one incarnation, so that a message of an earlier life of the group is dropped.
"""

from __future__ import annotations

import msgspec

from pageant.protocol.arrays import Float32Matrix, Int32Vector, Int64Vector, int32, int64
from pageant.protocol.message import Message, Request

__all__ = [
    "AddShare",
    "BlocksMoved",
    "DescribeRank",
    "Fingerprint",
    "FollowKeys",
    "ForgetShare",
    "FormGroup",
    "GroupFormed",
    "KeysTaken",
    "MeetingKey",
    "MoveBlocks",
    "MoveSlots",
    "Order",
    "RankReady",
    "RankStep",
    "ShareAdded",
    "TakeKeys",
    "TokensAdapted",
    "TokensEmbedded",
]


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Properties that must be equal on all members, or they would compute different models or different sums."""

    pageant: str
    """The version of this package."""
    torch: str
    """The version of torch."""
    kernels: str
    """The backend of the kernels, with its level: which instructions it was compiled for."""
    dtype: str
    """The type of the weights."""
    quantization: str
    """How weights, and then the head, are quantised while they are loaded; "" if they are not."""
    checkpoint: str
    """A digest of the checkpoint's configuration, and of the headers and samples of its weights."""
    members: int
    """How many members the group has."""


class RankReady(Message, frozen=True, kw_only=True):
    """A member has its share of the weights."""

    rank: int
    fingerprint: Fingerprint
    host: str
    """Names the host: equal for members whose processes can share memory."""
    address: str = "127.0.0.1"
    """Address at which members on other hosts reach this one; 127.0.0.1 where the topology is on one host."""
    weight_bytes: int
    """Bytes of the share."""


class DescribeRank(Request[RankReady], frozen=True, kw_only=True):
    """Ask a member for what it computes with."""


class GroupFormed(Message, frozen=True, kw_only=True):
    """A member has met the others, and has its KV cache."""

    block_bytes: int = 0
    """Bytes of a KV block on this member."""


class FormGroup(Request[GroupFormed], frozen=True, kw_only=True):
    """Meet the other members for the group's operations, and agree on the size of the KV cache."""

    collectives: str
    """How operations are carried out: `shm` or `gloo`."""
    meeting: str
    """Where members meet, as `collectives` has it."""
    num_near: int
    """How many members share this member's host, itself included, and thus its memory."""
    stage_meeting: str = ""
    """Where the members of this member's stage meet; "" where there is one stage, or one member in each."""
    address: str = "127.0.0.1"
    """Address of this member at which the others reach it, for `gloo`."""


class MeetingKey(Message, frozen=True, kw_only=True):
    """A member has put a key where all members find one another. The leader passes on those of the others."""

    key: str
    value: bytes


class KeysTaken(Message, frozen=True, kw_only=True):
    """A member has taken keys."""


class TakeKeys(Request[KeysTaken], frozen=True, kw_only=True):
    """Give a member keys that others have put."""

    keys: tuple[MeetingKey, ...]


class FollowKeys(Request[MeetingKey], frozen=True, kw_only=True):
    """Ask a member for a stream of the keys that it puts, until it has met the others."""


class TokensAdapted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens of a step that are computed with an adapter."""

    adapter: str
    tokens: Int32Vector
    """int32 [n]: indices among the step's tokens."""


class TokensEmbedded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens of a step that have embeddings of their own."""

    tokens: Int32Vector
    """int32 [n]: indices among the step's tokens."""
    rows: Float32Matrix
    """float32 [n, hidden_size]."""


class RankStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step as members compute it: T tokens of S sequences, in each of G groups of layers; their ids come later.

    It is whole: members keep nothing of earlier steps but the KV cache.
    """

    positions: Int32Vector
    """int32 [T]."""
    slots: Int32Vector
    """int32 [G * T]: where keys and values go, layer group by layer group."""
    query_starts: Int32Vector
    """int32 [S + 1]."""
    context_lengths: Int32Vector
    """int32 [S]."""
    block_tables: Int32Vector
    """int32 [G * S * blocks of the longest]."""
    last_tokens: Int32Vector
    """int32 [D]: indices of the tokens after which one is sampled."""
    reads_all: bool = False
    """Whether hidden states are read of other tokens too."""
    scored: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [P]: indices of the tokens whose logits are needed for the log-probabilities of prompts."""
    copy_sources: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [C]: blocks to copy before anything is computed. All are read before any is written."""
    copy_destinations: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [C]: the blocks that receive the copies."""
    ancestors: Int64Vector = msgspec.field(default_factory=int64)
    """int64 [T], where there are trees of drafts; empty where not."""
    adapted: tuple[TokensAdapted, ...] = ()
    embedded_tokens: tuple[TokensEmbedded, ...] = ()
    token_ids: Int32Vector = msgspec.field(default_factory=int32)
    """int32 [T], in a group in stages, if they are known; else the leader sends them to the first stage later."""


class Order(Message, frozen=True, kw_only=True):
    """Compute launch `number` with the leader: some steps, one after another, as far as it goes on."""

    number: int
    """From 1, without gaps."""
    steps: tuple[RankStep, ...]


class BlocksMoved(Message, frozen=True, kw_only=True):
    """A member has made a move of blocks."""


class MoveBlocks(Request[BlocksMoved], frozen=True, kw_only=True):
    """Move a member's shards of blocks between tiers; the leader moves its own."""

    way: str
    """`save`, `restore`, `read` or `write`; see `tiers`."""
    sources: Int32Vector
    """int32 [N]: blocks or slots to copy from."""
    destinations: Int32Vector
    """int32 [N]: blocks or slots to copy to."""


class MoveSlots(Message, frozen=True, kw_only=True):
    """Copy keys and values of accepted drafts, after the launches that were ordered before; the leader has its own."""

    sources: Int64Vector
    """int64 [S]: slots of tokens to copy from."""
    destinations: Int64Vector
    """int64 [S]: slots of tokens to copy to."""


class ShareAdded(Message, frozen=True, kw_only=True):
    """A member has its share of an adapter."""


class AddShare(Request[ShareAdded], frozen=True, kw_only=True):
    """Load a member's share of an adapter, while steps are computed that do not have it."""

    key: str
    folder: str


class ForgetShare(Message, frozen=True, kw_only=True):
    """Forget an adapter, once the launches that were ordered before are computed."""

    key: str
