"""Replicas of a model: how requests move between them.

    frontend ──Move──▶ scheduler ──Moved──▶ frontend ──Submit──▶ scheduler of another replica

A frontend moves its requests when their replica lacks an actor while another replica is complete, or when the
replica is drained. The scheduler ends a moved request without a word to its user. The frontend then submits it
elsewhere, with its output so far (see `Resumption`). A scheduler that died cannot answer: its requests are submitted
elsewhere at once.
"""

from __future__ import annotations

from pageant.protocol.arrays import Int32Vector
from pageant.protocol.message import Message

# Fact of a scheduler that answers `Move`.
MOVES = "moves"
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
