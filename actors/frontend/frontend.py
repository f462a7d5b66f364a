"""The frontend actor: carries a user's requests into the topology, and their outputs out of it.

It lives on the root node. The user's side hands it requests by `open`, on this node's loop; what comes back
goes to each request's sink, and each sink's hub is told once per step, so that a user's own loop wakes up
once per step and not once per token.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from pageant.actors.frontend.prompts import check_length
from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.actors.runtime.streams import Arrival, Incoming
from pageant.protocol.errors import BadRequest, Overloaded, PageantError, PeerGone, Unsupported
from pageant.protocol.roles import FRONTEND, ROLES, features_needed
from pageant.protocol.sampling import SEED_MAX, SamplingParams
from pageant.protocol.serving import Abort, Finished, OutputBatch, Submit
from pageant.protocol.streams import Acknowledge, Resume
from pageant.protocol.supervision import ActorDown, ActorUp
from pageant.protocol.tokenizing import Tokenize, TokenizeChat, Tokenized

log = logging.getLogger("pageant.frontend")

TOKENIZE_SECONDS = 60.0
OPEN_MAX = 16_384  # requests at a time; the scheduler's mailbox holds them all, with their aborts
CAST = ("tokenizer", "scheduler", "blocks", "executor", "detokenizer")


class Hub(Protocol):
    """Where sinks' outputs leave this loop."""

    def flush(self) -> None:
        """Everything of this step has been given to the sinks."""


class Sink(Protocol):
    """Takes one request's outputs, on this node's loop."""

    @property
    def hub(self) -> Hub:
        """Where its outputs leave."""

    def accepted(self, prompt: str | None, prompt_token_ids: list[int]) -> None:
        """The request is on its way."""

    def output(self, text: str, token_ids: list[int], finished: Finished | None) -> None:
        """The next piece; `finished` on the last."""

    def failed(self, error: PageantError) -> None:
        """There will be no (more) output."""


@dataclass(eq=False)
class Opening:
    """A request as the user's side hands it over, checked as far as it could be there."""

    request_id: str
    prompt: Tokenize | TokenizeChat | npt.NDArray[np.int32]
    params: SamplingParams
    sink: Sink


@dataclass
class _Peers:
    """Which actors are up, with their features, and who waits for all of them."""

    up: dict[str, tuple[str, ...]] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)  # for good, and why
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def role(self, role: str) -> list[tuple[str, ...]]:
        """The features of every actor of a role that is up."""
        return [features for name, features in self.up.items() if name.partition("/")[0] == role]


class Frontend(Actor):
    """Speaks for the users in this process."""

    role = FRONTEND

    class Options(ActorOptions, frozen=True, kw_only=True):
        """`max_model_len` and `vocab_size` of the model."""

        max_model_len: int
        vocab_size: int

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._open: dict[str, Opening] = {}  # by wire id: a user may reuse a name, and late news is not its
        self._wire_ids: dict[str, str] = {}  # of the user's own names
        self._numbers = itertools.count(1)
        self._submitted: set[str] = set()
        self._incoming = Incoming("outputs")
        self._peers = _Peers()

    async def on_start(self) -> None:
        for address in CAST:
            self.watch(address)

    async def on_stop(self) -> None:
        self._fail_all(PeerGone("the engine was closed while this request was open"))

    # From the user's side, on this node's loop.

    def open(self, opening: Opening) -> None:
        """Takes a request. Its outcome goes to its sink, whatever happens."""
        name = opening.request_id
        if name in self._wire_ids or len(self._open) >= OPEN_MAX:
            used = BadRequest(f"request_id {name!r} is in use", "request_id")
            full = Overloaded(f"{len(self._open)} requests are open in this process; try again later")
            opening.sink.failed(used if name in self._wire_ids else full)
            opening.sink.hub.flush()
            return
        wire_id = str(next(self._numbers))
        self._open[wire_id], self._wire_ids[name] = opening, wire_id
        self.spawn(self._start(wire_id, opening))

    def open_all(self, openings: list[Opening]) -> None:
        """Takes several requests."""
        for opening in openings:
            self.open(opening)

    def abort_all(self, request_ids: list[str]) -> None:
        """Ends requests, wherever they are. Their sinks hear no more of them."""
        wire_ids = [self._wire_ids[name] for name in request_ids if name in self._wire_ids]
        submitted = tuple(wire_id for wire_id in wire_ids if wire_id in self._submitted)
        for wire_id in wire_ids:
            self._forget(wire_id)
        if submitted:
            self.tell("scheduler", Abort(frontend=self.name, request_ids=submitted))

    def _forget(self, wire_id: str) -> Opening:
        """Takes a request out of the books."""
        opening = self._open.pop(wire_id)
        del self._wire_ids[opening.request_id]
        self._submitted.discard(wire_id)
        return opening

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    async def _start(self, wire_id: str, opening: Opening) -> None:
        try:
            await self._wait_for_cast()
            self._check_features(opening)
            text, token_ids = await self._tokenize(opening.prompt)
            check_length(len(token_ids), self.options.max_model_len)
            await self._wait_for_cast()
        except PageantError as error:
            self._fail(wire_id, error)
            return
        if wire_id not in self._open:
            return  # aborted meanwhile
        params = opening.params
        if params.seed is None:
            params = msgspec.structs.replace(params, seed=self.random.randint(0, SEED_MAX))
        opening.sink.accepted(text, token_ids.tolist())
        self._submitted.add(wire_id)
        self.tell(
            "scheduler",
            Submit(request_id=wire_id, frontend=self.name, prompt_token_ids=token_ids, params=params),
        )

    async def _tokenize(
        self, prompt: Tokenize | TokenizeChat | npt.NDArray[np.int32]
    ) -> tuple[str | None, npt.NDArray[np.int32]]:
        if not isinstance(prompt, Tokenize | TokenizeChat):
            return None, prompt
        answer = await self.ask("tokenizer", prompt, timeout=TOKENIZE_SECONDS)
        if isinstance(answer, Tokenized):
            return answer.text, answer.token_ids
        raise BadRequest(answer.reason, answer.parameter)

    async def _wait_for_cast(self) -> None:
        """Returns when every role has an actor that is up.

        Raises:
            PeerGone: one of them will not come back.
        """
        while True:
            for name, reason in self._peers.gone.items():
                raise PeerGone(f"{name} is down and will not be restarted: {reason}")
            if all(self._peers.role(role) for role in CAST):
                return
            self._peers.changed.clear()
            await self._peers.changed.wait()

    def _check_features(self, opening: Opening) -> None:
        """Refuses by name what an actor of this topology does not honour."""
        needed = set(features_needed(opening.params))
        if isinstance(opening.prompt, TokenizeChat):
            needed |= ROLES["tokenizer"].features
        for role in CAST:
            for feature in sorted(needed & ROLES[role].features):
                if not all(feature in features for features in self._peers.role(role)):
                    raise Unsupported(
                        f"this request needs {feature}, which this topology's {role} does not honour"
                    )

    # From the topology.

    @receives
    def outputs(self, batch: OutputBatch) -> None:
        """One step's outputs."""
        match self._incoming.arrive(batch.number, self.sender_incarnation):
            case Arrival.GAP:
                if self._incoming.should_ask():
                    self.tell(self.sender, Resume(stream="outputs", after=self._incoming.last))
                return
            case Arrival.NEXT:
                self._spread(batch)
        self.tell(self.sender, Acknowledge(stream="outputs", up_to=self._incoming.last))

    def _spread(self, batch: OutputBatch) -> None:
        token_ids = batch.token_ids.tolist()
        position = 0
        hubs: dict[Hub, None] = {}
        for index, (wire_id, count) in enumerate(zip(batch.request_ids, batch.counts.tolist(), strict=True)):
            tokens = token_ids[position : position + count]
            position += count
            opening = self._open.get(wire_id)
            if opening is None:
                continue
            finished = batch.finished.get(index)
            if finished is not None:
                self._forget(wire_id)
            opening.sink.output(batch.texts[index], tokens, finished)
            hubs[opening.sink.hub] = None
        for hub in hubs:
            hub.flush()

    @receives
    def peer_up(self, event: ActorUp) -> None:
        self._peers.up[event.address] = event.features
        self._peers.changed.set()

    @receives
    def peer_down(self, event: ActorDown) -> None:
        """Requests that only the dead actor knew end with a clear error."""
        self._peers.up.pop(event.address, None)
        if event.final:
            self._peers.gone[event.address] = event.reason
            self._fail_all(PeerGone(f"{event.address} is down and will not be restarted: {event.reason}"))
        elif event.address in ("scheduler", "detokenizer"):
            self._fail_submitted(PeerGone(f"{event.address} died while it had this request: {event.reason}"))
        self._peers.changed.set()

    # Ends.

    def _fail(self, wire_id: str, error: PageantError) -> None:
        if wire_id in self._open:
            opening = self._forget(wire_id)
            opening.sink.failed(error)
            opening.sink.hub.flush()

    def _fail_submitted(self, error: PageantError) -> None:
        for wire_id in list(self._submitted):
            self._fail(wire_id, error)

    def _fail_all(self, error: PageantError) -> None:
        for wire_id in list(self._open):
            self._fail(wire_id, error)
