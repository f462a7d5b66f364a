"""Search space: the settings of a topology that a tune chooses, and the values that each may have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pageant.protocol.errors import BadRequest

MAX_NUM_SEQS = (4, 8, 16, 32, 64, 128, 256)
MAX_NUM_BATCHED_TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
POLICIES = ("fcfs", "shortest")
"""Those that order requests of one tenant, without priorities or deadlines, differently."""
SPECULATION_TOKENS = (0, 2, 4)
QUANTIZATIONS = ("int8", "int4")


@dataclass(frozen=True, order=True)
class Layout:
    """Division of the machine's cores."""

    replicas: int
    threads: int
    """Of each replica."""

    def __str__(self) -> str:
        return f"{self.replicas}x{self.threads}"


@dataclass(frozen=True)
class Candidate:
    """Settings of a topology. Their defaults are the engine's, but for the layout's, which are all cores."""

    layout: Layout
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    policy: str = "fcfs"
    quantization: str | None = None
    speculation_tokens: int = 0
    """N-gram drafts of a request in each step; 0 for no speculation."""

    def settings(self) -> dict[str, Any]:
        """Return the keys of a topology."""
        found: dict[str, Any] = {
            "replicas": self.layout.replicas,
            "threads": self.layout.threads,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "policy": self.policy,
        }
        if self.quantization is not None:
            found["quantization"] = self.quantization
        if self.speculation_tokens:
            found["speculation"] = {"method": "ngram", "tokens": self.speculation_tokens}
        return found

    def __str__(self) -> str:
        words = [
            f"{self.layout.replicas} x {self.layout.threads} thread{'s' * (self.layout.threads > 1)}",
            f"seqs {self.max_num_seqs}",
            f"tokens {self.max_num_batched_tokens}",
            self.policy,
        ]
        words += [self.quantization] if self.quantization else []
        words += [f"ngram {self.speculation_tokens}"] if self.speculation_tokens else []
        return ", ".join(words)


@dataclass(frozen=True)
class Space:
    """Values that each setting may have.

    Attributes:
        defaults: the candidate that says nothing but what the user has fixed.
        choices: by the name of a candidate's field. Each holds the default.
    """

    defaults: Candidate
    choices: Mapping[str, Sequence[Any]]

    @classmethod
    def of(
        cls,
        fixed: Mapping[str, Any],
        cores: int,
        *,
        replicas_max: int,
        quantizations: Sequence[str] = (),
        speculates: bool = False,
    ) -> Space:
        """Return the space on a machine of so many cores.

        Args:
            fixed: settings that the user has chosen, which are not searched.
            quantizations: that are allowed beside weights as they come.

        Raises:
            BadRequest: `fixed` asks for more cores than there are, or a quantisation is none.
        """
        for one in quantizations:
            if one not in QUANTIZATIONS:
                raise BadRequest(
                    f"no quantisation {one!r}; expected {' or '.join(QUANTIZATIONS)}", "allow_quantization"
                )
        layouts = _layouts(fixed.get("replicas"), fixed.get("threads"), cores, replicas_max)
        quantization = fixed.get("quantization")
        if quantization is not None and quantizations:
            raise BadRequest(
                f"quantization is {quantization} already; expected no --allow-quantization beside it",
                "allow_quantization",
            )
        defaults = Candidate(layouts[0], quantization=quantization)
        choices: dict[str, Sequence[Any]] = {
            "layout": layouts,
            "max_num_seqs": MAX_NUM_SEQS,
            "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS,
            "policy": POLICIES,
            "quantization": (quantization, *dict.fromkeys(quantizations)),
            "speculation_tokens": SPECULATION_TOKENS if speculates else (0,),
        }
        for name in ("max_num_seqs", "max_num_batched_tokens", "policy"):
            if fixed.get(name) is not None:
                defaults = replace(defaults, **{name: fixed[name]})
                choices[name] = (fixed[name],)
        return cls(defaults, choices)

    def __len__(self) -> int:
        size = 1
        for values in self.choices.values():
            size *= len(values)
        return size

    def candidates(self) -> Iterator[Candidate]:
        """Yield every candidate."""
        for values in itertools.product(*self.choices.values()):
            yield Candidate(**dict(zip(self.choices, values, strict=True)))

    def without(self, layout: Layout, quantization: str | None) -> Space:
        """Return the space without a quantisation, or without a layout if that fails as the weights come."""
        name, value = ("layout", layout) if quantization is None else ("quantization", quantization)
        left = tuple(one for one in self.choices[name] if one != value)
        return Space(self.defaults, {**self.choices, name: left})

    def changes(self, candidate: Candidate) -> int:
        """Return how many settings are not the defaults."""
        return sum(
            getattr(candidate, one.name) != getattr(self.defaults, one.name) for one in fields(candidate)
        )


def _layouts(replicas: int | None, threads: int | None, cores: int, replicas_max: int) -> list[Layout]:
    """Return the divisions of so many cores, the default first."""
    if replicas is None:
        numbers = [2**power for power in range(cores.bit_length()) if 2**power <= min(cores, replicas_max)]
    else:
        numbers = [replicas]
    found = [Layout(number, threads or max(1, cores // number)) for number in numbers]
    if threads is None and numbers[0] == 1 and cores > 1:
        found.append(Layout(1, cores - 1))  # leaves a core to the host
    fitting = [one for one in found if one.replicas * one.threads <= cores]
    if not fitting:
        raise BadRequest(
            f"{found[0].replicas} replicas with {found[0].threads} threads each were asked for; expected at most "
            f"the {cores} cores of this machine",
            "threads" if threads is not None else "replicas",
        )
    return fitting
