"""A model whose next token and KV cache are known functions of the prefix.

The runner checks the KV that each step reads, position by position."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np

from pageant.actors.executor.batch.inputs import UNKNOWN
from pageant.actors.executor.runners.proposers.base import Verified
from pageant.actors.executor.tiers.moving import Way
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.verification import NO_DRAFTS, Drafts
from pageant.scripts.conformance.shadow import first_read
from tests.actors.scheduler.play.setting import END_TOKEN, VOCABULARY, Setting

ROOT = 0x9E3779B97F4A7C15


def follow(prefix: int, token: int) -> int:
    """Return the hash of a prefix with one more token."""
    prefix = (prefix ^ (token + 1)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    return prefix ^ (prefix >> 29)


def next_token(prefix: int, forbidden: tuple[int, ...] = ()) -> int:
    """Return the token that the model draws after a prefix."""
    token = (prefix >> 17) % VOCABULARY
    while token in forbidden:
        token = (token + 1) % VOCABULARY
    return token


def letter(token: int) -> str:
    """Return the text of a token."""
    return chr(64 + token)


def answer(prompt: list[int], params: SamplingParams, max_model_len: int) -> tuple[list[int], str]:
    """Return the right output tokens of a request, and why they end."""
    prefix = ROOT
    for token in prompt:
        prefix = follow(prefix, token)
    room = max_model_len - len(prompt)
    if room < 1 or not prompt:
        return [], "error"
    longest = room if params.max_tokens is None else min(room, params.max_tokens)
    ends = () if params.ignore_eos else (END_TOKEN,)
    output: list[int] = []
    text = ""
    while True:
        forbidden = (*ends, *params.stop_token_ids) if len(output) < params.min_tokens else ()
        token = next_token(prefix, forbidden)
        prefix = follow(prefix, token)
        output.append(token)
        text += letter(token)
        if len(output) > params.min_tokens and any(text.endswith(stop) for stop in params.stop):
            return output, "stop"
        if len(output) >= params.min_tokens and token in (*ends, *params.stop_token_ids):
            return output, "stop"
        if len(output) >= longest:
            return output, "length"


class ShadowHost:
    """Host memory whose slots hold the hashes of saved KV blocks."""

    block_bytes = 1000

    def __init__(self, runner: ShadowRunner) -> None:
        self.runner, self.slots = runner, {}
        self.moved: Counter[str] = Counter()

    def move(self, move: Any) -> None:
        kv, size, slots = self.runner.kv, self.runner.size, self.slots
        for source, to in zip(move.sources.tolist(), move.destinations.tolist(), strict=True):
            if move.way is Way.SAVE:
                slots[to] = kv[source * size : source * size + size]
            elif move.way is Way.WRITE:
                slots[to] = slots[source]
            else:
                kv[to * size : to * size + size] = slots[source]
        self.moved[move.way.value] += len(move.sources)


class ShadowRunner:
    """A model whose KV at each position is a hash of the prefix. Checks every position that a step reads."""

    dtype = "float32"
    kernels = ""
    num_states = 0
    whole_prompts = False

    def __init__(self, setting: Setting) -> None:
        self.num_blocks, self.size = setting.num_blocks, setting.block_size
        self.max_model_len = setting.max_model_len
        self.kv: list[int | None] = [None] * (setting.num_blocks * setting.block_size)
        self.packed: dict[int, list[tuple[int, list[int]]]] = {}  # by step: its rows and their tokens
        self.last_drawn: dict[int, int] = {}
        self.drawn: dict[tuple[int, int], int] = {}  # by row and position, the last time
        self.tokens_computed = self.tokens_unknown = self.blocks_copied = 0
        self.host, self.windows, self.max_model_len = (
            ShadowHost(self),
            setting.windows,
            setting.max_model_len,
        )

    def launch(self, inputs: Any) -> Any:
        slots, tokens, positions = inputs.slots.tolist(), inputs.token_ids.tolist(), inputs.positions.tolist()
        every = [slot for of_group in slots for slot in of_group]
        for at, row in zip(inputs.unknown.tolist(), inputs.unknown_rows.tolist(), strict=True):
            tokens[at] = self.last_drawn[row]
            self.tokens_unknown += 1
        assert len(set(every)) == len(every), "two tokens of one step are written to the same slot"
        self.copy(inputs.copy_sources.tolist(), inputs.copy_destinations.tolist())
        self.tokens_computed += len(tokens)
        starts, contexts = inputs.query_starts.tolist(), inputs.context_lengths.tolist()
        packed, tables = self.packed.pop(id(inputs)), inputs.block_tables.tolist()
        known = []
        for index, (row, context) in enumerate(packed):
            computed = tokens[starts[index] : starts[index + 1]]
            read_only = [
                self.drawn[row, at] if token == UNKNOWN else token
                for at, token in enumerate(context[: len(context) - len(computed)])
            ]
            chain, prefix = [], ROOT
            for token in read_only + computed:
                prefix = follow(prefix, token)
                chain.append(prefix)
            known.append(chain)
            for at in range(starts[index], starts[index + 1]):
                for group, of_group in enumerate(slots):
                    before = chain[positions[at] - 1] if positions[at] else ROOT
                    self.kv[of_group[at]] = follow(before, tokens[at]) + group
        for index, chain in enumerate(known):
            first = contexts[index] - (starts[index + 1] - starts[index])
            for group, window in enumerate(self.windows):
                table, size = tables[group][index], self.size
                reach = first_read(window, first)
                read = [self.kv[table[at // size] * size + at % size] for at in range(reach, contexts[index])]
                right = [link + group for link in chain[reach:]]
                assert read == right, (
                    f"row {packed[index][0]} reads wrong KV at {_differs(read, right)} of {len(right)}"
                )
        drawn = []
        for index, at in enumerate(inputs.last_tokens.tolist()):
            forbidden = inputs.sampling.shaping.forbidden.of_row(index)
            drawn.append(next_token(self.kv[slots[0][at]] or 0, tuple(forbidden)))
            self.drawn[int(inputs.rows[index]), positions[at] + 1] = drawn[-1]
        self.last_drawn.update(zip(inputs.rows.tolist(), drawn, strict=True))
        token_ids = np.array(drawn, np.int64)
        return SimpleNamespace(
            ready=self.tokens_computed % 2 == 0,
            token_ids=lambda: token_ids,
            logprobs=lambda: (None, None),
            pooled=lambda: None,
            failed={},
            drafting_seconds=0.0,
            proposed=NO_DRAFTS if inputs.proposing is None else self.propose(inputs, token_ids),
        )

    def propose(self, inputs: Any, token_ids: Any) -> Drafts:
        """Propose drafts that are right for a while, and then may be wrong."""
        step: Any = Verified(inputs, None, None, token_ids, None)  # type: ignore[arg-type]
        counts = step.wanted_within(self.size, 10**6)
        drafts = []
        for at, token, count in zip(
            step.last_hidden, step.next_tokens.tolist(), counts.tolist(), strict=True
        ):
            prefix = self.kv[int(inputs.slots[0, at])]
            for _ in range(count):
                prefix = follow(prefix or 0, token)
                right = next_token(prefix, ())
                token = right if self.tokens_computed % 5 else 7
                drafts.append(token)
        return Drafts(counts, np.array(drafts, np.int32), np.empty(0, np.int32))

    def copy(self, sources: list[int], destinations: list[int]) -> None:
        size = self.size
        read = [self.kv[source * size : source * size + size] for source in sources]
        for destination, content in zip(destinations, read, strict=True):
            self.kv[destination * size : destination * size + size] = content
        self.blocks_copied += len(sources)


def _differs(read: list[Any], chain: list[int]) -> list[int]:
    return [at for at, (one, other) in enumerate(zip(read, chain, strict=True)) if one != other]
