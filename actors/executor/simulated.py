"""An executor without a model: tokens are a known function of what came before them, of seed and of position.

Everything above `ModelRunner` is the real executor. The stand-in keeps a number in each slot of its KV memory and
reads them all back at each draw, as attention does: a block that two sequences own, a copy that was not made, or a
prefix that is not what the index says, gives a wrong token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pageant.actors.executor.actor import Executor
from pageant.actors.executor.batch import SamplingColumns, StepInputs
from pageant.actors.executor.moving import Move, Way
from pageant.actors.executor.scoring import Scored
from pageant.protocol.logprobs import Logprobs
from pageant.protocol.roles import Feature
from pageant.protocol.verification import NO_DRAFTS

if TYPE_CHECKING:
    from pageant.actors.executor.runner import Drawn, ModelRunner
    from pageant.actors.executor.undrawn import Undrawn

UInt64 = npt.NDArray[np.uint64]

FIRST_TOKEN, NUM_TOKENS = 259, 64  # what is drawn: words that end in no half of a character
HOST_BYTES = 2**20
TOP_MAX = 20
_WORD = 2**64 - 1


class SimulatedExecutor(Executor):
    """The real shell and batch, over a `SimulatedRunner`."""

    features = frozenset(
        {Feature.SAMPLING, Feature.PARALLEL_SAMPLES, Feature.LOGPROBS, Feature.PROMPT_LOGPROBS}
    )

    class Options(Executor.Options, frozen=True, kw_only=True):
        """Those of `Executor`, with `alphabet` different tokens to be said; `model` is not looked at. Tokens of
        a `device` other than the CPU are on their way for a while."""

        model: str = ""
        alphabet: int = NUM_TOKENS

    def _make_runner(self) -> ModelRunner:
        options = self.options
        blocks_per_sequence = -(-options.max_model_len // options.block_size)
        return SimulatedRunner(
            options.num_blocks or 4 * blocks_per_sequence,
            options.block_size,
            options.max_num_seqs,
            options.alphabet,
            ready=options.device == "cpu",
        )

    def _host_bytes(self) -> int:
        return HOST_BYTES


def mix(*values: npt.NDArray[np.generic]) -> UInt64:
    """64 bits that depend on all bits of all values (after SplitMix64)."""
    mixed = np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        for value in values:
            mixed = (mixed ^ value.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed ^= mixed >> np.uint64(27)
    return mixed


def written(token_ids: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> UInt64:
    """What a token leaves in the slot of its position."""
    return mix(token_ids, positions)


def drawn_token(
    seen: UInt64,
    temperature: npt.NDArray[np.float32],
    seed: npt.NDArray[np.int64],
    sample: npt.NDArray[np.int32],
    position: npt.NDArray[np.int64],
    alphabet: int,
) -> npt.NDArray[np.int64]:
    """The token at `position`, after slots whose sum is `seen`. Greedy ones have no seed."""
    random = temperature > 0
    noise = mix(seen, np.where(random, seed, 0), np.where(random, sample, 0), position)
    return FIRST_TOKEN + (noise % np.uint64(alphabet)).astype(np.int64)


def logprob_of(seen: UInt64, token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Of a token after slots whose sum is `seen`."""
    found: npt.NDArray[np.float32] = (mix(seen, token_ids) % np.uint64(4096)).astype(np.float32)
    return -found / np.float32(256)


def continuation(
    prompt: Sequence[int], count: int, *, temperature: float, seed: int, sample: int, alphabet: int
) -> tuple[list[int], list[float]]:
    """The right output of a request: its tokens, and the log-probability of each."""
    noise = (seed, sample) if temperature > 0 else (0, 0)
    seen, tokens, logprobs = 0, [], []
    for position, token in enumerate(prompt):
        seen += _mixed(token, position)
    for position in range(len(prompt), len(prompt) + count):
        token = FIRST_TOKEN + _mixed(seen, *noise, position) % alphabet
        tokens.append(token)
        logprobs.append(-(_mixed(seen, token) % 4096) / 256)
        seen += _mixed(token, position)
    return tokens, logprobs


def _mixed(*values: int) -> int:
    """`mix`, of integers: the oracle shares no arithmetic with what it judges."""
    mixed = 0
    for value in values:
        mixed = (mixed ^ value) * 0x9E3779B97F4A7C15 & _WORD
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        mixed ^= mixed >> 27
    return mixed


class SimulatedHost:
    """Blocks in a host's memory, and on its disk, that are not there."""

    def __init__(self, kv: UInt64) -> None:
        self._kv = kv
        self._slots: dict[int, UInt64] = {}
        self._disk: dict[int, UInt64] = {}
        self.block_bytes = int(kv[0].nbytes)

    def move(self, move: Move) -> None:
        """See `runner.Host`."""
        for source, destination in zip(move.sources.tolist(), move.destinations.tolist(), strict=True):
            match move.way:
                case Way.SAVE:
                    self._slots[destination] = self._kv[source].copy()
                case Way.RESTORE:
                    self._kv[destination] = self._slots[source]
                case Way.READ:
                    self._kv[destination] = self._disk[source]
                case Way.WRITE:
                    self._disk[destination] = self._slots[source]


class SimulatedRunner:
    """See `runner.ModelRunner`."""

    dtype = "float32"
    window: int | None = None

    def __init__(
        self, num_blocks: int, block_size: int, max_num_seqs: int, alphabet: int, *, ready: bool
    ) -> None:
        self.num_blocks, self._alphabet, self._ready = num_blocks, alphabet, ready
        self._kv = np.zeros((num_blocks, block_size), np.uint64)
        self._last_drawn = np.zeros(max_num_seqs, np.int64)  # by row
        self.host = SimulatedHost(self._kv)

    @property
    def memory_bytes(self) -> dict[str, int]:
        """See `runner.ModelRunner`."""
        return {"kv": self._kv.nbytes}

    def draw(self, undrawn: Undrawn) -> Drawn:
        """See `runner.ModelRunner`."""
        raise AssertionError("no step here waits for masks")

    def launch(self, inputs: StepInputs) -> Drawn:
        """See `runner.ModelRunner`."""
        self._kv[inputs.copy_destinations] = self._kv[inputs.copy_sources]
        token_ids = inputs.token_ids.copy()
        token_ids[inputs.unknown] = self._last_drawn[inputs.unknown_rows]
        self._kv.reshape(-1)[inputs.slots] = written(token_ids, inputs.positions)
        seen = self._seen(inputs)
        tokens = self.drawn(seen[inputs.last_tokens], inputs.sampling)
        self._last_drawn[inputs.rows] = tokens
        scores = inputs.scores
        drawn = prompts = None
        if scores is not None and scores.drawn is not None:
            places = scores.drawn.places
            drawn = _columns(scores.drawn, seen[inputs.last_tokens][places], tokens[places])
        if scores is not None and scores.prompt is not None:
            prompts = _columns(scores.prompt, seen[scores.prompt.places], scores.prompt.token_ids)
        return SimulatedDraw(tokens, drawn, prompts, self._ready)

    def drawn(self, seen: UInt64, sampling: SamplingColumns) -> npt.NDArray[np.int64]:
        """The token of each drawing row, after slots whose sums are `seen`."""
        return drawn_token(
            *(seen, sampling.temperature, sampling.seed),
            *(sampling.sample, sampling.position, self._alphabet),
        )

    def _seen(self, inputs: StepInputs) -> UInt64:
        """For each of the step's tokens, the sum of its sequence's slots up to its own."""
        sequences = np.repeat(np.arange(len(inputs.context_lengths)), np.diff(inputs.query_starts))
        slots = self._kv[inputs.block_tables].reshape(len(inputs.block_tables), -1)
        with np.errstate(over="ignore"):
            sums = np.cumsum(slots, axis=1, dtype=np.uint64)
        found: UInt64 = sums[sequences, inputs.positions]
        return found


def _columns(scored: Scored, seen: UInt64, token_ids: npt.NDArray[np.int64]) -> Logprobs:
    """The token itself is always the likeliest here, then those after it."""
    counts = np.minimum(np.where(scored.counts < 0, TOP_MAX, scored.counts), TOP_MAX).astype(np.int32)
    owners = np.repeat(np.arange(len(token_ids)), counts)
    ahead = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    logprobs = logprob_of(seen, token_ids)
    return Logprobs(
        rows=scored.rows,
        token_ids=token_ids.astype(np.int32),
        logprobs=logprobs,
        ranks=np.ones(len(token_ids), np.int32),
        counts=counts,
        top_ids=(token_ids[owners] + ahead).astype(np.int32),
        top=(logprobs[owners] - ahead).astype(np.float32),
    )


class SimulatedDraw:
    """See `runner.Drawn`. Nothing here has masks or a proposer."""

    late: Undrawn | None = None
    proposed = NO_DRAFTS
    drafting_seconds = 0.0

    def __init__(
        self,
        token_ids: npt.NDArray[np.int64],
        drawn: Logprobs | None,
        prompts: Logprobs | None,
        ready: bool,
    ) -> None:
        self.ready = ready
        self.failed: dict[int, str] = {}
        self.missing = np.empty(0, np.int64)
        self._token_ids, self._logprobs = token_ids, (drawn, prompts)

    def token_ids(self) -> npt.NDArray[np.int64]:
        return self._token_ids

    def logprobs(self) -> tuple[Logprobs | None, Logprobs | None]:
        return self._logprobs
