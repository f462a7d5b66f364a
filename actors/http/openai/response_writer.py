"""A response as it is told: whole, or event by event; and what it leaves in the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pageant.actors.http.answers import Answers, Piece
from pageant.actors.http.blocks import Block, Blocks, Step
from pageant.actors.http.errors import Disconnected, ErrorBody, told
from pageant.actors.http.openai.output_logprobs import OutputLogprobs
from pageant.actors.http.openai.response_requests import ENCRYPTED, LOGPROBS, ResponseRequest
from pageant.actors.http.openai.response_shapes import (
    ItemShapes,
    ResponseObject,
    turns_of,
    usage_of,
)
from pageant.actors.http.openai.response_store import ResponseStore, Stored
from pageant.actors.http.openai.response_tools import call_forms
from pageant.actors.http.streams import encode
from pageant.protocol.serving import Finished

_TEXTS = {"text": "output_text", "reasoning": "reasoning_text"}
"""What the text of a block is called in events, by the block's kind."""
_CALL_TEXTS = {
    "function_call": "function_call_arguments",
    "custom_tool_call": "custom_tool_call_input",
}
"""The same of a call, by its item's type. Calls of tools that clients run are told when they are whole."""


class ResponseWriter:
    """Writes a response. See `StreamWriter`.

    Args:
        answers: what it is written of.
        keep: what the store has of it, which is kept up to date.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        asked: ResponseRequest,
        answers: Answers,
        keep: Stored,
        store: ResponseStore,
        clock: Callable[[], int],
    ) -> None:
        self._response, self._answers, self._keep, self._store = keep.response, answers, keep, store
        self._clock = clock
        self._blocks = Blocks()
        self._shapes = ItemShapes(
            keep.response.id, encrypts=asked.includes(ENCRYPTED), forms=call_forms(asked.tools)
        )
        self._logprobs = OutputLogprobs(asked.top_logprobs or 0) if asked.includes(LOGPROBS) else None
        self._finished: Finished | None = None
        self._number = 0
        answers.on_accepted, answers.on_close = self.accepted, self.closed

    # What becomes of the request.

    def accepted(self) -> None:
        """Mark the response as in progress; until then it was queued."""
        if self._response.status == "queued":
            self._response.status = "in_progress"

    def closed(self) -> None:
        """Finish the stored response when its stream ends. If it is incomplete, it failed, or its client has
        gone.
        """
        if self._keep.answers is not None and self._answers.error is not None:
            if isinstance(self._answers.error, Disconnected):
                self._response.status = "cancelled"
                self._settle()
            else:
                self.fail(told(self._answers.error))

    def fail(self, error: ErrorBody) -> None:
        """Mark the response as failed."""
        response = self._response
        response.status = "failed"
        response.error = {"code": str(error.error.code or "server_error"), "message": error.error.message}
        self._settle()

    # As a stream of events.

    def first(self) -> Sequence[bytes]:
        """See `StreamWriter`."""
        kinds = ["created", "queued"] if self._response.background else ["created"]
        events = [self._event(kind, response=self._response) for kind in kinds]
        self.accepted()
        return [*events, self._event("in_progress", response=self._response)]

    def next(self, piece: Piece) -> Sequence[bytes]:
        """See `StreamWriter`."""
        return [
            event for step, block, text in self._steps(piece) for event in self._events(step, block, text)
        ]

    def last(self) -> Sequence[bytes]:
        """See `StreamWriter`."""
        events = [event for step in self._blocks.end() for event in self._events(*step)]
        self._end()
        kind = "incomplete" if self._response.status != "completed" else "completed"
        return [*events, self._event(kind, response=self._response)]

    def failed(self, error: ErrorBody) -> Sequence[bytes]:
        """See `StreamWriter`."""
        self.fail(error)
        return [self._event("failed", response=self._response)]

    # Whole.

    async def whole(self, pieces: list[Piece]) -> ResponseObject:
        """Return the whole response."""
        for step, block, text in self._steps(pieces[0]):
            self._tokens_of(step, block, text)
        for _ in self._blocks.end():
            pass
        self._end()
        return self._response

    def _steps(self, piece: Piece) -> Iterator[tuple[Step, Block, str]]:
        self._finished = piece.finished
        if self._logprobs is not None:
            self._logprobs.add(piece)
        return self._blocks.feed(piece.said)

    def _tokens_of(self, step: Step, block: Block, text: str) -> list[Any]:
        """Return the log-probabilities of a new text's tokens, and note those of a text block."""
        if self._logprobs is None or step != "goes on":
            return []
        found = self._logprobs.take(text)
        if block.kind == "text":
            self._shapes.logprobs.setdefault(block.place, []).extend(found)
        return found

    def _end(self) -> None:
        response, finished = self._response, self._finished
        response.output = [self._shapes.item(block, whole=True) for block in self._blocks.all]
        response.usage = usage_of(self._answers)
        response.system_fingerprint = self._answers.fingerprint
        response.status = "completed"
        if finished is not None and finished.reason == "length":
            response.status = "incomplete"
            response.incomplete_details = {"reason": "max_output_tokens"}
        elif finished is not None and finished.reason == "abort":
            response.status = "cancelled"
        if response.status == "completed":
            response.completed_at = self._clock()
        self._keep.turns += turns_of(self._blocks.all)
        self._settle()

    def _settle(self) -> None:
        self._keep.answers = None
        if self._response.store:
            self._store.put(self._keep)

    def _event(self, kind: str, **fields: Any) -> bytes:
        kind = f"response.{kind}"
        body = encode({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + body + b"\n\n"

    def _events(self, step: Step, block: Block, text: str) -> Iterator[bytes]:
        shapes, is_call = self._shapes, block.kind == "call"
        name = _CALL_TEXTS.get(shapes.type_of(block)) if is_call else _TEXTS[block.kind]
        logprobs = self._tokens_of(step, block, text)
        shown = shapes.item(block, whole=step == "ends")
        place: dict[str, Any] = {"output_index": block.place}
        within = {**place, "item_id": shown["id"], **({} if is_call else {"content_index": 0})}
        if step == "begins":
            yield self._event("output_item.added", **place, item=shown)
            if not is_call:
                yield self._event("content_part.added", **within, part=shapes.part(block, whole=False))
        elif name is None:
            if step == "ends":
                yield self._event("output_item.done", **place, item=shown)
        elif step == "goes on":
            extra = {"logprobs": logprobs} if block.kind == "text" else {}
            yield self._event(f"{name}.delta", **within, **extra, delta=text)
        else:
            if block.is_custom:
                yield self._event(f"{name}.done", **within, input=block.text)
            elif is_call:
                yield self._event(f"{name}.done", **within, arguments=block.text, name=shown["name"])
            else:
                part = shapes.part(block, whole=True)
                extra = {"logprobs": part["logprobs"]} if block.kind == "text" else {}
                yield self._event(f"{name}.done", **within, **extra, text=block.text)
                yield self._event("content_part.done", **within, part=part)
            yield self._event("output_item.done", **place, item=shown)
