"""Replicas as routing policies see them: one by one, or by columns where there are many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import overload

import msgspec
import numpy as np
import numpy.typing as npt

OUTPUT_TOKENS = 64
"""Tokens of an output, where none has ended yet."""

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Candidate(msgspec.Struct, frozen=True):
    """A replica that takes requests."""

    name: str
    """Its prefix, such as `replica-0/`."""
    cached_tokens: int
    """Tokens from the beginning of the prompt that it has, or is about to compute for another request."""
    waiting_tokens: int
    """Tokens that it is to compute before those that it has now are served; with what is on its way there."""
    running: int
    """Requests that hold memory there."""
    requests: int
    """Requests that were sent there so far."""
    seconds_per_token: float
    """Seconds that a token takes it."""
    output_tokens: float = OUTPUT_TOKENS
    """Mean tokens of the outputs there."""
    busy: float = 0.0
    """Share of the last seconds that the requests sent there take; above 1 where more came than it can compute."""

    @property
    def wait(self) -> float:
        """Return the seconds that a request waits there for others.

        It waits before it is computed, and in each of its own steps for those that run beside it.
        """
        return (self.waiting_tokens + self.output_tokens * self.running) * self.seconds_per_token


@dataclass(frozen=True, eq=False)
class Candidates(Sequence[Candidate]):
    """N replicas that take requests, by columns. Each is built only when it is asked for.

    Fields are those of `Candidate`: a decision over a thousand replicas is a few operations on arrays.
    """

    name: Sequence[str]
    cached_tokens: Numbers
    waiting_tokens: Numbers
    running: Numbers
    requests: Numbers
    seconds_per_token: Floats
    output_tokens: Floats
    busy: Floats

    @classmethod
    def of(cls, replicas: Sequence[Candidate]) -> Candidates:
        """Return replicas by columns, which they may be already."""
        if isinstance(replicas, Candidates):
            return replicas

        def whole(name: str) -> Numbers:
            return np.array([getattr(one, name) for one in replicas], np.int64)

        def real(name: str) -> Floats:
            return np.array([getattr(one, name) for one in replicas], np.float64)

        return cls(
            name=[one.name for one in replicas],
            cached_tokens=whole("cached_tokens"),
            waiting_tokens=whole("waiting_tokens"),
            running=whole("running"),
            requests=whole("requests"),
            seconds_per_token=real("seconds_per_token"),
            output_tokens=real("output_tokens"),
            busy=real("busy"),
        )

    def where(self, some: npt.NDArray[np.bool_]) -> Candidates:
        """Return some of the replicas. some: bool [N]."""
        names = [name for name, taken in zip(self.name, some.tolist(), strict=True) if taken]
        columns = (getattr(self, field.name)[some] for field in fields(self)[1:])
        return Candidates(names, *columns)

    def __len__(self) -> int:
        return len(self.name)

    @overload
    def __getitem__(self, index: int) -> Candidate: ...

    @overload
    def __getitem__(self, index: slice) -> list[Candidate]: ...

    def __getitem__(self, index: int | slice) -> Candidate | list[Candidate]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return Candidate(
            name=self.name[index],
            cached_tokens=int(self.cached_tokens[index]),
            waiting_tokens=int(self.waiting_tokens[index]),
            running=int(self.running[index]),
            requests=int(self.requests[index]),
            seconds_per_token=float(self.seconds_per_token[index]),
            output_tokens=float(self.output_tokens[index]),
            busy=float(self.busy[index]),
        )

    @property
    def wait(self) -> Floats:
        """Return the seconds that a request waits at each replica: float64 [N]; see `Candidate.wait`."""
        waits: Floats = (self.waiting_tokens + self.output_tokens * self.running) * self.seconds_per_token
        return waits
