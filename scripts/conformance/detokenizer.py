"""The rules of a detokenizer, told tokens as the scheduler tells them, on the packaged demo model."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from pageant.actors.runtime import Actor
from pageant.models.tokenization import Tokenization
from pageant.protocol.arrays import int32, int64
from pageant.protocol.outputs import OpenOutput, Stopped, TokenBatch
from pageant.protocol.roles import DETOKENIZER as ROLE
from pageant.protocol.serving import Finished, OutputBatch
from pageant.protocol.streams import Acknowledge
from pageant.scripts.conformance.rules import Rules, explain_role
from pageant.scripts.conformance.stage import Stage
from pageant.scripts.engine_options import DEMO_MODEL

TAKES_ROLE = "it takes the role of detokenizer"
NUMBERED = "OutputBatches are numbered 1, 2, 3, ... without gaps"
TOKENS = "each request's tokens come once and in order"
TEXTS = "each piece of a text begins where the one before ended"
ENDS = "each request ends exactly once, and nothing of it comes after"
CHUNKS = "a text is the same, however its tokens were spread over steps"
STOPS = "a stop string ends a request, whose scheduler is told how many tokens count"
ACKNOWLEDGED = "each TokenBatch is acknowledged, and one that comes twice counts once"

SCHEDULER, FRONTEND, DETOKENIZER = "scheduler", "frontend", "detokenizer"
TEXT = "Lists are mutable sequences; a naïve café ☕ costs 3 €.\nTuples are not."
STOP = "Tuples"


@dataclass
class _Request:
    """Outputs of one request, as its frontend got them."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    ends: list[Finished] = field(default_factory=list)


def check_detokenizer(cls: type[Actor], **options: Any) -> tuple[str, ...]:
    """Hold a detokenizer against the rules; return those that it kept.

    Its Options have the default one's `model`; the demo model's folder is given.

    Raises:
        BrokenRule: names the rule, and what happened.
    """
    rules = Rules()
    rules.must(TAKES_ROLE, getattr(cls, "role", None) is ROLE, explain_role(cls, ROLE))
    given = {"model": str(DEMO_MODEL), **options}
    texts = [asyncio.run(_Trial(cls, given, rules, size).run()) for size in (1, 2, 7, 1000)]
    rules.must(CHUNKS, len(set(texts)) == 1, f"there are {sorted(set(texts))!r:.300}")
    return rules.kept


class _Trial:
    """Two requests whose tokens come `size` a step; one has a stop string in its text."""

    def __init__(self, cls: type[Actor], options: dict[str, Any], rules: Rules, size: int) -> None:
        self._cls, self._options, self._rules, self._size = cls, options, rules, size
        self._found = {"plain": _Request(), "stopped": _Request()}
        self._number = self._batches = 0
        self._tokens = Tokenization.from_checkpoint(DEMO_MODEL).encode(TEXT, add_special_tokens=False)

    async def run(self) -> str:
        """Return the text of the request that has no stop string."""
        async with Stage() as stage:
            for name in (SCHEDULER, FRONTEND):
                await stage.enter(name)
            await stage.enter(DETOKENIZER, self._cls(self._cls.Options(**self._options)))
            stopped = await self._serve(stage)
        self._check(stopped)
        return self._found["plain"].text

    async def _serve(self, stage: Stage) -> list[Stopped]:
        said: list[Stopped] = []
        for place in range(0, len(self._tokens), self._size):
            batch = self._batch(place)
            stage.tell(SCHEDULER, DETOKENIZER, batch)
            if place == 0:
                stage.tell(SCHEDULER, DETOKENIZER, batch)
            await self._listen(stage, said)
        return said

    def _batch(self, place: int) -> TokenBatch:
        part = self._tokens[place : place + self._size]
        is_last = place + self._size >= len(self._tokens)
        self._number += 1
        names = ("plain", "stopped")
        end = Finished(reason="length", num_output_tokens=len(self._tokens))
        return TokenBatch(
            number=self._number,
            opened=tuple(self._opened(serial, name) for serial, name in enumerate(names, 1))
            if place == 0
            else (),
            serials=int64([1, 2]),
            counts=int32([len(part)] * 2),
            token_ids=int32(part * 2),
            finished={0: end, 1: end} if is_last else {},
            facts={},
        )

    def _opened(self, serial: int, name: str) -> OpenOutput:
        return OpenOutput(
            serial=serial,
            request_id=name,
            frontend=FRONTEND,
            prompt_tail=int32([]),
            stop=(STOP,) if name == "stopped" else (),
        )

    async def _listen(self, stage: Stage, said: list[Stopped]) -> None:
        await stage.settle()
        acknowledged = []
        for message in stage.take(SCHEDULER):
            if isinstance(message, Stopped):
                said.append(message)
            elif isinstance(message, Acknowledge):
                acknowledged.append(message.up_to)
        is_told = bool(acknowledged) and max(acknowledged) == self._number
        self._rules.must(ACKNOWLEDGED, is_told, f"batch {self._number}: acknowledged {acknowledged}")
        for message in stage.take(FRONTEND):
            if isinstance(message, OutputBatch):
                self._take(message)
                up_to = Acknowledge(stream="outputs", up_to=message.number)
                stage.tell(FRONTEND, DETOKENIZER, up_to)
        await stage.settle()

    def _take(self, batch: OutputBatch) -> None:
        if batch.number <= self._batches:
            return  # sent again, as to a frontend of which it is not known what it has
        self._batches += 1
        numbers = f"{batch.number} came as number {self._batches}"
        self._rules.must(NUMBERED, batch.number == self._batches, numbers)
        end = 0
        for row, name in enumerate(batch.request_ids):
            found, begin, end = self._found[name], end, end + int(batch.counts[row])
            self._rules.must(ENDS, not found.ends, f"{name} has ended, and more came of it")
            starts = int(batch.token_starts[row]), int(batch.text_starts[row])
            self._rules.must(TOKENS, starts[0] == len(found.tokens), f"{name}: token {starts[0]} comes next")
            self._rules.must(TEXTS, starts[1] == len(found.text), f"{name}: character {starts[1]} comes next")
            found.tokens += batch.token_ids[begin:end].tolist()
            found.text += batch.texts[row]
            if row in batch.finished:
                found.ends.append(batch.finished[row])

    def _check(self, said: list[Stopped]) -> None:
        plain, stopped = self._found["plain"], self._found["stopped"]
        self._rules.must(TOKENS, plain.tokens == self._tokens, f"{plain.tokens}, not {self._tokens}")
        for name, found in self._found.items():
            self._rules.must(ENDS, len(found.ends) == 1, f"{name} ended {len(found.ends)} times")
        counts = {
            int(serial): int(count)
            for message in said
            for serial, count in zip(message.serials, message.num_output_tokens, strict=True)
        }
        by_stop = stopped.ends[0].reason == "stop" and counts == {2: len(stopped.tokens)}
        detail = f"it ended by {stopped.ends[0].reason}, and the scheduler was told {counts}"
        self._rules.must(STOPS, by_stop and len(stopped.tokens) < len(self._tokens), detail)
