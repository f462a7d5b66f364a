"""Requests with parameters of every kind that stream all the time, each held against what it is undisturbed."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pageant.actors.client.engine import Engine
from pageant.actors.client.outputs import RequestOutput
from pageant.protocol.errors import PageantError
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.structured_outputs import StructuredOutputsParams

GAP_SECONDS = 0.25  # shorter waits between two outputs are not kept, unless they are asked for
LOGPROB_TOLERANCE = 1e-4  # a prompt that is computed in one piece rounds otherwise than token by token

KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.9},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 50},
    {"temperature": 0.8, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"logprobs": 3},
    {"logprobs": 1, "prompt_logprobs": 2},
    {"n": 3},
    {"n": 2, "best_of": 3},
    {"temperature": 1.1, "stop": ("qx", "zz", "0 1"), "min_tokens": 40, "ignore_eos": False},
    {"stop": ("e",), "min_tokens": 60, "include_stop_str_in_output": True},
    {"stop_token_ids": tuple(range(70, 80)), "min_tokens": 50},
    {"temperature": 1.2, "bad_words": ("a", "the")},
    {"temperature": 0.6, "detokenize": False},
    {"logit_bias": {50: 3.0}, "min_p": 0.01},
    {"structured_outputs": StructuredOutputsParams(regex="([a-z]{1,8} ){20,60}end")},
    {"temperature": 0.8, "thinking_token_budget": 25},
)


@dataclass(frozen=True)
class Asked:
    """A request: its prompt, a text or ids, and how it is to be served."""

    prompt: str | list[int]
    params: SamplingParams
    settings: dict[str, Any] = field(default_factory=dict)


def mixed_requests(count: int, output_tokens: int, seed: int = 0) -> list[Asked]:
    """Make so many requests of every kind in turn, with about that many tokens each. Some prompts begin alike."""
    rng = random.Random(seed)
    shared = [rng.randrange(10, 200) for _ in range(64)]
    asked = []
    for number in range(count):
        kind = {"temperature": 1.0, "ignore_eos": True} | KINDS[number % len(KINDS)]
        tokens = rng.randint(output_tokens * 2 // 3, output_tokens * 4 // 3)
        kind["min_tokens"] = min(kind.get("min_tokens", 0), tokens // 2)
        if "structured_outputs" in kind:
            kind["ignore_eos"] = False
        own = [rng.randrange(10, 200) for _ in range(rng.randint(1, 24))]
        ids = [*shared[: rng.choice((0, 16, 40, 64))], *own]
        prompt: str | list[int] = f"Once upon a time there were {number}" if number % 3 == 2 else ids
        settings: dict[str, Any] = {"deadline": 3600.0} if number % 5 == 0 else {"priority": number % 2}
        if "thinking_token_budget" in kind:  # its prompt ends where its thoughts begin
            prompt = f"Once upon a time there were {number}"
            settings["reasoning_marks"] = (str(number), "~~")
        asked.append(Asked(prompt, SamplingParams(seed=number, max_tokens=tokens, **kind), settings))
    return asked


class Stream:
    """Outputs of a request as its user sees them.

    Args:
        on_output: called at each output.
        gap_seconds: shorter waits between two outputs are not kept.
    """

    def __init__(
        self,
        engine: Engine,
        asked: Asked,
        on_output: Callable[[], None] = lambda: None,
        request_id: str | None = None,
        gap_seconds: float = GAP_SECONDS,
    ) -> None:
        self._on_output, self._gap_seconds = on_output, gap_seconds
        self.request_id = request_id
        self._outputs = engine.generate(asked.prompt, asked.params, request_id=request_id, **asked.settings)
        self.is_shown = not asked.params.best_of  # the best of several are known at the end only
        self.begun = asyncio.Event()
        self.texts: dict[int, str] = {}
        self.token_ids: dict[int, list[int]] = {}
        self.last_at = time.monotonic()
        self.gaps: list[tuple[float, float]] = []  # times between which nothing came

    async def read(self) -> RequestOutput:
        """The last output. The pieces before add up to it.

        Raises:
            PageantError: the request ended with an error.
            AssertionError: something came twice, or is missing.
        """
        async for output in self._outputs:
            self._came()
            for sample in output.outputs if self.is_shown else ():
                self.texts[sample.index] = self.texts.get(sample.index, "") + sample.new_text
                self.token_ids.setdefault(sample.index, []).extend(sample.new_token_ids)
            self.begun.set()
        for sample in output.outputs if self.is_shown else ():
            assert self.texts[sample.index] == sample.text, "the pieces add up"
            assert self.token_ids[sample.index] == sample.token_ids, "the pieces add up"
        return output

    def _came(self) -> None:
        now = time.monotonic()
        if self.is_shown and now - self.last_at > self._gap_seconds:
            self.gaps.append((self.last_at, now))
        self.last_at = now
        self._on_output()


def difference(found: RequestOutput, right: RequestOutput) -> str | None:
    """Return where a request's output is another than it should be, or None."""
    for one, other in zip(found.outputs, right.outputs, strict=True):
        for name in ("token_ids", "text", "finish_reason", "stop_reason"):
            if getattr(one, name) != getattr(other, name):
                return f"sample {one.index}: {name} is {_around(getattr(one, name), getattr(other, name))}"
    for places, expected in zip(_scores(found), _scores(right), strict=True):
        if len(places) != len(expected):
            return f"{len(places)} tokens have log-probabilities, not {len(expected)}"
        for place, wanted in zip(places, expected, strict=True):
            if place.keys() != wanted.keys():
                return f"log-probabilities are of tokens {list(place)}, not {list(wanted)}"
            if any(abs(place[token] - wanted[token]) > LOGPROB_TOLERANCE for token in place):
                return f"log-probabilities are {place}, not {wanted}"
    return None


def _around(found: Any, right: Any) -> str:
    """The first place where two differ."""
    if not isinstance(found, list | str) or not isinstance(right, list | str):
        return f"{found!r}, not {right!r}"
    place = next((i for i, (one, other) in enumerate(zip(found, right, strict=False)) if one != other), None)
    if place is None:
        return f"{len(found)} long, not {len(right)}"
    return f"{found[place : place + 4]!r}, not {right[place : place + 4]!r}, at {place}"


def _scores(output: RequestOutput) -> list[list[dict[int, float]]]:
    """Every log-probability, by token."""
    places = [one.logprobs or [] for one in output.outputs]
    places.append([place for place in output.prompt_logprobs or [] if place is not None])
    return [[{token: one.logprob for token, one in place.items()} for place in some] for some in places]


async def undisturbed(engine: Engine, asked: Sequence[Asked]) -> list[RequestOutput]:
    """Return the output of every request when nothing happens."""
    return await asyncio.gather(*(Stream(engine, one).read() for one in asked))


class Waits(NamedTuple):
    """Waits of a stream that has ended."""

    request_id: str | None
    last_at: float
    """When its last output came."""
    gaps: list[tuple[float, float]]
    """See `Stream`."""


class Load:
    """Requests that stream side by side, each begun again when it has ended.

    Args:
        right: what each of them is undisturbed.
        gap_seconds: shorter waits between two outputs are not kept.
    """

    def __init__(
        self,
        engine: Engine,
        asked: Sequence[Asked],
        right: Sequence[RequestOutput],
        gap_seconds: float = GAP_SECONDS,
    ) -> None:
        self._engine, self._asked, self._right = engine, asked, right
        self._gap_seconds = gap_seconds
        self._streams: dict[int, Stream] = {}  # that are open, by the request's place
        self._stopping = False
        self._news = asyncio.Event()  # something came
        self._ended: list[Waits] = []
        self._names = (f"stream-{number}" for number in itertools.count())
        self.requests = self.tokens = 0
        self.lost: list[str] = []
        self.changed: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """All requests are begun."""
        self._tasks = [asyncio.create_task(self._serve(place)) for place in range(len(self._asked))]

    async def end(self) -> None:
        """Lets the open ones finish."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _serve(self, place: int) -> None:
        while not self._stopping:
            stream = self._streams[place] = Stream(
                self._engine, self._asked[place], self._news.set, next(self._names), self._gap_seconds
            )
            try:
                output = await stream.read()
            except PageantError as error:
                self.lost.append(f"request {place}: {type(error).__name__}: {error}")
                await asyncio.sleep(1.0)  # rather than fail a thousand times
            except AssertionError as error:
                self.changed.append(f"request {place}: {error}")
            else:
                self.tokens += sum(len(sample.token_ids) for sample in output.outputs)
                if (found := difference(output, self._right[place])) is not None:
                    self.changed.append(f"request {place}: {found}")
            self.requests += 1
            self._ended.append(Waits(stream.request_id, stream.last_at, stream.gaps))
            del self._streams[place]
            self._news.set()

    def waiting_since(self, time: float) -> list[int]:
        """The places of those that are open, and have brought nothing after that time."""
        return [place for place, one in self._streams.items() if one.is_shown and one.last_at < time]

    async def all_have_moved(self, since: float) -> None:
        """Returns when every stream that is open has brought something after that time."""
        while self.waiting_since(since):
            self._news.clear()
            await self._news.wait()

    def pause(self, since: float) -> float:
        """The longest that any stream brought nothing for, of such times that ended after `since`: seconds."""
        return max(self.pauses(since), default=0.0)

    def pauses(self, since: float) -> list[float]:
        """Return the longest pause of each stream that was open after `since`, of those that ended after it: seconds, 0
        for what is shorter than `GAP_SECONDS`."""
        streams = [one.gaps for one in self._ended if one.last_at > since]
        streams += [stream.gaps for stream in self._streams.values() if stream.is_shown]
        return [max((end - begin for begin, end in gaps if end > since), default=0.0) for gaps in streams]

    def gaps(self, request_ids: Collection[str], since: float, until: float) -> list[float]:
        """Return the kept waits of some requests, open or ended, of those that ended in a span of time: seconds."""
        streams: list[Waits | Stream] = [*self._ended, *self._streams.values()]
        return [
            end - begin
            for one in streams
            if one.request_id in request_ids
            for begin, end in one.gaps
            if since < end <= until
        ]


def verdict(figures: dict[str, Any]) -> list[str]:
    """Return what became of a load's requests, in words."""
    lost, changed = figures["lost"], figures["changed"]
    said = f"{figures['requests']} requests with {figures['tokens']} tokens: {len(lost)} lost, {len(changed)} changed"
    return [said, *lost[:10], *changed[:10]]


def losses(figures: Mapping[str, Any]) -> list[str]:
    """Return what no run may have: requests that were lost or changed, in words."""
    return [f"{len(figures[what])} requests were {what}" for what in ("lost", "changed") if figures[what]]
