"""Replicas of a model: how requests move between them.

    frontend ──Move──▶ scheduler ──Moved──▶ frontend ──Submit──▶ scheduler of another replica

A frontend moves its requests when their replica lacks an actor while another replica is complete, or when the
replica is drained. The scheduler ends a moved request without a word to its user. The frontend then submits it
elsewhere, with its output so far (see `Resumption`). A scheduler that died cannot answer: its requests are submitted
elsewhere at once.

    anybody ──MoveRequests──▶ frontend                       some of its requests change places while they run

    anybody ──AddReplica / DrainReplica / RemoveReplica / GetReplicas──▶ lifecycle ──GetPlaceUse──▶ frontends
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pageant.protocol.arrays import Int32Vector
from pageant.protocol.message import Message, Request

# Fact of a scheduler that answers `Move`.
MOVES = "moves"
# Fact of a scheduler: what its replica is for.
ROLE = "role"
ReplicaRole = Literal["prefill", "decode", "both"]
"""A replica of role `prefill` computes prompts up to the first token, and hands requests over to one that is not."""
# Fact of every actor of a replica that is being drained.
DRAINING = "draining"
# Values of that fact: the replica gets no new requests; its open requests move, too.
CLOSED, MOVING = 1, 2


class Move(Message, frozen=True, kw_only=True):
    """End these requests of `frontend`, which go on at another replica."""

    frontend: str
    request_ids: tuple[str, ...]
    epoch: int = 0
    """The incarnation of the executor whose death is the cause; 0 for another cause."""


class Moved(Message, frozen=True, kw_only=True):
    """The requests are not computed here any more. By columns over N requests."""

    request_ids: tuple[str, ...]
    """N names, of those that were open."""
    deaths: Int32Vector
    """int32 [N]: the deaths of executors that each is suspected of (see `Resumption`)."""
    died_at: Int32Vector
    """int32 [N]: the position up to which each was computed at the last of them."""
    unknown: tuple[str, ...] = ()
    """Names of those that had ended before. Their ends are on the way, by the detokenizer."""


class RequestsMoved(Message, frozen=True, kw_only=True):
    """The sequences that a frontend has begun to move."""

    num_sequences: int
    num_tokens: int
    """Tokens of their prompts and of their outputs so far."""


class MoveRequests(Request[RequestsMoved], frozen=True, kw_only=True):
    """Ask a frontend to move open sequences from one replica to another. Those that were submitted last go first.

    Where replicas share a store, the sequences find their full blocks there. Sequences that are moving already, or
    that are handed over after their first tokens, are left alone.
    """

    source: str
    """The prefix of the replica where they are: `replica-0/`."""
    target: str
    """The prefix of the replica where they go on."""
    num_tokens: int
    """The most tokens that all of them have."""


class PlaceUse(Message, frozen=True, kw_only=True):
    """The number of a frontend's open sequences at a replica."""

    num_open: int


class GetPlaceUse(Request[PlaceUse], frozen=True, kw_only=True):
    """Ask a frontend how many sequences it has at the replica with this prefix."""

    prefix: str


class ReplicaEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A replica of a model."""

    name: str
    """`replica-0`."""
    state: Literal["up", "starting", "down", "draining"]
    """`up` takes requests; `down` has an actor that is down, and that may be started again."""
    actors: int
    """How many actors it has."""
    num_open: int = 0
    """Open sequences of all frontends there."""


class Replicas(Message, frozen=True, kw_only=True):
    """The replicas of a model, by number."""

    replicas: tuple[ReplicaEntry, ...]
    name: str = ""
    """The one that was added, drained or removed."""


class GetReplicas(Request[Replicas], frozen=True, kw_only=True):
    """Ask the lifecycle actor for a model's replicas; `model` is the model's prefix."""

    model: str = ""


class AddReplica(Request[Replicas], frozen=True, kw_only=True):
    """Ask the lifecycle actor to start another replica. It is answered when that takes requests."""

    model: str = ""
    name: str = ""
    """`replica-1`: nothing is started if it is there already. Empty is the lowest number that is free."""
    wait: bool = True
    """Answer when it takes requests; false answers as soon as it is being started."""


class DrainReplica(Request[Replicas], frozen=True, kw_only=True):
    """Ask the lifecycle actor to let a replica finish, and to remove it then.

    It gets no new requests. Those that are open after `patience` seconds go on at other replicas.
    """

    name: str
    """`replica-0`."""
    model: str = ""
    patience: float = 30.0
    force: bool = False
    """Also the last replica, on which requests then wait for another."""


class RemoveReplica(Request[Replicas], frozen=True, kw_only=True):
    """Ask the lifecycle actor to remove a replica at once. Its requests go on at other replicas."""

    name: str
    model: str = ""
    force: bool = False
    """Also the last replica."""
