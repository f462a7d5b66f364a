"""Small actors that take the places of the detokenizer and of frontends."""

from __future__ import annotations

from typing import Any

import msgspec

from pageant.actors.runtime.streams import Arrival, Incoming
from pageant.protocol.arrays import int32, int64
from pageant.protocol.outputs import OpenOutput, Stopped, TokenBatch
from pageant.protocol.serving import Abort, Finished, OutputBatch, Resumption
from pageant.protocol.supervision import ActorUp
from tests.actors.scheduler.play.request import Request
from tests.actors.scheduler.play.setting import DETOKENIZER, SCHEDULER
from tests.actors.scheduler.play.shadow_model import letter
from tests.actors.scheduler.play.stage import Cell, Stage


class Reader:
    """A detokenizer that writes a letter per token: finds stop strings and answers numbered batches."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.incoming = Incoming("tokens")
        self.open: dict[int, tuple[OpenOutput, Request, list[int]]] = {}
        self.closed: set[int] = set()
        self.stopped: set[int] = set()

    def receive(self, message: Any, cell: Cell) -> None:
        if not isinstance(message, TokenBatch):
            return
        life = self.incoming.incarnation
        arrival = self.incoming.arrive(message.number, cell.sender_incarnation, message.start)
        if arrival is Arrival.NEXT:
            if self.incoming.incarnation != life:
                self.open, self.closed, self.stopped = {}, set(), set()
            self._take(message, cell)
        if (reply := self.incoming.reply(arrival)) is not None:
            self.stage.tell(cell.sender, reply, cell)

    def _take(self, batch: TokenBatch, cell: Cell) -> None:
        for opened in batch.opened:
            assert opened.serial not in self.open, "a request is opened twice"
            request = self.stage.requests[(opened.frontend, opened.request_id)]
            self.open[opened.serial] = (opened, request, opened.token_ids.tolist())
        token_ids, position, stopped = batch.token_ids.tolist(), 0, {}
        serials = batch.serials.tolist()
        assert len(set(serials)) == len(serials), "a request has two rows in one batch"
        for index, (serial, count) in enumerate(zip(serials, batch.counts.tolist(), strict=True)):
            tokens, position = token_ids[position : position + count], position + count
            if serial not in self.open:
                assert serial in self.closed, "tokens of a request that was never opened"
                assert serial in self.stopped, "something comes of a request that the scheduler has ended"
                continue
            opened, _, text = self.open[serial]
            finished, start = batch.finished.get(index), len(text)
            for token in tokens:
                text.append(token)
                written = "".join(map(letter, text))
                if len(text) > opened.min_tokens and any(written.endswith(stop) for stop in opened.stop):
                    finished = Finished(reason="stop", num_output_tokens=len(text))
                    stopped[serial] = len(text)
                    self.stopped.add(serial)
                    break
            self._pass_on(opened, start, text[start:], finished, cell)
            if finished is not None:
                del self.open[serial]
                self.closed.add(serial)
        if stopped:
            counts = int32(list(stopped.values()))
            self.stage.tell(
                cell.sender, Stopped(serials=int64(list(stopped)), num_output_tokens=counts), cell
            )

    def _pass_on(
        self, opened: OpenOutput, start: int, tokens: list[int], finished: Finished | None, cell: Cell
    ) -> None:
        batch = OutputBatch(
            number=0,
            request_ids=(opened.request_id,),
            texts=("",),
            text_starts=int32([0]),
            token_starts=int32([start]),
            counts=int32([len(tokens)]),
            token_ids=int32(tokens),
            finished={0: finished} if finished is not None else {},
        )
        self.stage.tell(opened.frontend, batch, cell)


class FrontendStub:
    """A frontend that takes each token once, and submits its open requests again to actors that start anew."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def receive(self, message: Any, cell: Cell) -> None:
        if isinstance(message, ActorUp):
            for request in self.stage.requests.values():
                if request.submit.frontend == cell.name and not (request.ended or request.aborted):
                    self._submit_again(request, cell)
        elif isinstance(message, OutputBatch):
            request = self.stage.requests[(cell.name, message.request_ids[0])]
            if not request.ended:
                self._take(request, message, cell)

    def _submit_again(self, request: Request, cell: Cell) -> None:
        request.resumed = True
        known = self.stage.views.get((cell.name, DETOKENIZER), 0)
        behind = Resumption(token_ids=int32(request.tokens), age=0.0, detokenizer=known)
        self.stage.tell(SCHEDULER, msgspec.structs.replace(request.submit, resume=behind), cell)

    def _take(self, request: Request, batch: OutputBatch, cell: Cell) -> None:
        start, tokens = int(batch.token_starts[0]), batch.token_ids.tolist()
        have = len(request.tokens) - start
        assert have >= 0, f"tokens {len(request.tokens)} to {start} never came"
        assert tokens[:have] == request.tokens[start : start + len(tokens)], "a token changed"
        request.tokens += tokens[have:]
        self.stage.seen["tokens dropped"] += len(tokens[:have])
        if 0 in batch.finished:
            finished = batch.finished[0]
            self.stage.seen["ended by " + finished.reason] += 1
            request.end(finished)
            if request.resumed:
                name = request.submit.request_id
                self.stage.tell(SCHEDULER, Abort(frontend=cell.name, request_ids=(name,)), cell)
