"""What one step brought, on its way to the detokenizer: one numbered `TokenBatch` per step."""

from __future__ import annotations

from typing import TypeVar

from pageant.actors.runtime.streams import Outgoing
from pageant.actors.scheduler.request import ScheduledRequest
from pageant.protocol.arrays import int32, int64
from pageant.protocol.outputs import OpenOutput, RowFacts, TokenBatch
from pageant.protocol.serving import Finished

T = TypeVar("T")

PROMPT_TAIL = 16  # tokens of the prompt that give the output's text its context


class TokenOutputs:
    """Collects openings, tokens and endings until the next batch is taken."""

    def __init__(self) -> None:
        self.stream: Outgoing[TokenBatch] = Outgoing("tokens")
        self._opened: list[OpenOutput] = []
        self._rows: dict[int, list[int]] = {}
        self._finished: dict[int, Finished] = {}
        self._facts: dict[int, RowFacts] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def open(self, request: ScheduledRequest) -> None:
        """A request's tokens will come."""
        params = request.params
        self._opened.append(
            OpenOutput(
                serial=request.serial,
                request_id=request.request_id,
                frontend=request.frontend,
                prompt_tail=request.prompt[-PROMPT_TAIL:].copy(),
                stop=params.stop,
                min_tokens=params.min_tokens,
                include_stop_str_in_output=params.include_stop_str_in_output,
                skip_special_tokens=params.skip_special_tokens,
            )
        )

    def admitted(self, request: ScheduledRequest) -> None:
        """A request got its memory, for the first time or again after a preemption."""
        self._facts[request.serial] = RowFacts(
            num_cached_tokens=request.num_cached, num_preemptions=request.num_preemptions
        )

    def token(self, request: ScheduledRequest, token: int) -> None:
        """A request's next token."""
        self._rows.setdefault(request.serial, []).append(token)

    def finish(self, request: ScheduledRequest, finished: Finished) -> None:
        """A request ended, after the tokens that it has been given."""
        self._rows.setdefault(request.serial, [])
        self._finished[request.serial] = finished

    def take(self) -> TokenBatch:
        """The batch of everything collected, numbered and kept until it is acknowledged."""
        serials = list(self._rows)
        batch = TokenBatch(
            number=0,
            opened=tuple(self._opened),
            serials=int64(serials),
            counts=int32([len(tokens) for tokens in self._rows.values()]),
            token_ids=int32([token for tokens in self._rows.values() for token in tokens]),
            finished=_by_row(serials, self._finished),
            facts=_by_row(serials, self._facts),
        )
        facts = {serial: facts for serial, facts in self._facts.items() if serial not in self._rows}
        self.clear()
        self._facts = facts  # of those that have no token yet
        return self.stream.number(batch)

    def clear(self) -> None:
        """Drops what was collected."""
        self._opened, self._rows, self._finished, self._facts = [], {}, {}, {}


def _by_row(serials: list[int], values: dict[int, T]) -> dict[int, T]:
    """What is known of some rows, by row index instead of serial."""
    return {index: values[serial] for index, serial in enumerate(serials) if serial in values}
