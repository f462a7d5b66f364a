"""Speculation of every kind gives the tokens that there would be without, whatever else is asked for."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM

import pageant
from pageant import SamplingParams
from pageant.models.checkpoint import CheckpointError
from pageant.protocol.errors import TopologyError
from pageant.protocol.structured_outputs import StructuredOutputsParams
from pageant.scripts.engine_options import DEMO_MODEL

DRAFTERS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram"},
    "draft model": {"method": "draft", "model": str(DEMO_MODEL / "draft")},
    "EAGLE": {"method": "eagle", "model": str(DEMO_MODEL / "eagle")},
    "Medusa": {"method": "medusa", "model": str(DEMO_MODEL / "medusa"), "tokens": 7},
    "Medusa, adaptive": {"method": "medusa", "model": str(DEMO_MODEL / "medusa"), "adaptive": True},
    "EAGLE, adaptive": {"method": "eagle", "model": str(DEMO_MODEL / "eagle"), "adaptive": True},
    "one's own": {"method": "wild_drafter:Wild"},
}
ROOMY: dict[str, Any] = {"num_blocks": 400}
CROWDED: dict[str, Any] = {
    "num_blocks": 16,
    "max_model_len": 240,
    "max_num_batched_tokens": 16,
    "max_num_seqs": 8,
}
QUESTIONS = (
    "What is a lambda?",
    "What does the with statement do?",
    "What are decorators?",
    "Explain slices.",
)
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40}
PARAMS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.9},
    {"repetition_penalty": 1.3},
    {"temperature": 0.7, "top_k": 5, "presence_penalty": 0.4},
    {"frequency_penalty": 0.5, "min_tokens": 30},
    {"temperature": 1.1, "top_p": 0.8, "min_p": 0.02},
    {"logit_bias": {300: 2.0, 301: -100.0}},
    {"bad_words": ["the", "of a"]},
    {"stop": ["is a", "that"], "max_tokens": 60},
    {"logprobs": 3},
    {"temperature": 0.8, "logprobs": 2, "prompt_logprobs": 1},
    {"temperature": 0.9, "n": 3},
    {"structured_outputs": StructuredOutputsParams(regex="(A|The) [a-z ]{3,60}[.]")},
    {"ignore_eos": True, "max_tokens": 70},
    {"allowed_token_ids": [260, 261, 262], "ignore_eos": True},
    {"allowed_token_ids": [260, 261], "temperature": 1.0, "ignore_eos": True, "logprobs": 1},
    {"thinking_token_budget": 5},
    {"thinking_token_budget": 9, "temperature": 0.8, "ignore_eos": True},
)
MARKS = {"reasoning_marks": ("<|im_start|>assistant", ".")}  # of whoever's thoughts are bounded


# Of eight tokens, each pair once: whatever is drawn, the n-gram drafter has seen it.
EVERY_PAIR = [token for one in range(8) for other in range(one, 8) for token in (one, other)[other == one :]]

WILD = """
from pageant.actors.drafter.base import SequenceDrafter

class Wild(SequenceDrafter):  # right, wrong, too much, and no tokens at all
    def guess(self, token_ids, wanted):
        if len(token_ids) % 11 == 0:
            return [-3, 10**6]
        before = [place for place in range(len(token_ids) - 1) if token_ids[place] == token_ids[-1]]
        guess = list(token_ids[before[-1] + 1 :][:wanted]) if before else [7] * wanted
        return guess * 3 if len(token_ids) % 7 == 0 else guess
"""


FAILS = """
class Fails:  # at its third step, for whoever it follows
    def __init__(self, settings):
        self.steps = 0

    def open(self, serial, token_ids):
        pass

    def close(self, serial):
        pass

    def propose(self, serials, counts, token_ids, wanted):
        self.steps += 1
        if self.steps == 3:
            raise RuntimeError("no more ideas")
        return 0 * counts, token_ids[:0]
"""


@pytest.fixture(autouse=True, scope="module")
def _wild(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("wild")
    (folder / "wild_drafter.py").write_text(WILD)
    (folder / "failing_drafter.py").write_text(FAILS)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


def _prompt(index: int) -> str:
    start = f"<|im_start|>user\n{QUESTIONS[index % len(QUESTIONS)]}<|im_end|>\n<|im_start|>assistant\n"
    return start + "A lambda is a lambda is a lambda is " * (index % 3 == 0)


def _answers(speculation: dict[str, Any] | None, settings: dict[str, Any]) -> tuple[list[Any], Counter[str]]:
    params = [SamplingParams(**{**GREEDY, "seed": index} | some) for index, some in enumerate(PARAMS)]
    prompts = [_prompt(index) for index in range(len(params))]
    if speculation is not None:
        speculation = {"adaptive": False, "patience": 60.0} | speculation
    with pageant.LLM(
        DEMO_MODEL,
        placement="one",
        progress=False,
        threads=1,
        dtype="float32",
        speculation=speculation,
        **settings,
    ) as llm:
        found = llm.generate(prompts, params, **MARKS) + llm.generate(prompts[::-1], params[::-1], **MARKS)
        counters = llm.scheduler_statistics().counters
    answers = []
    for output in found:
        for one in output.outputs:
            places = [{token: entry.logprob for token, entry in of.items()} for of in one.logprobs or ()]
            answers.append((one.token_ids, one.text, one.finish_reason, one.stop_reason, places))
    return answers, Counter(counters)


def _assert_same(found: list[Any], right: list[Any]) -> None:
    """All but log-probabilities to the last bit: a tree's tokens are added up in another order."""
    assert [one[:-1] for one in found] == [one[:-1] for one in right]
    for one, other in zip(found, right, strict=True):
        assert one[-1] == [pytest.approx(place, abs=1e-4) for place in other[-1]]


@pytest.fixture(scope="module")
def without() -> list[Any]:
    return _answers(None, ROOMY)[0]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_tokens_are_those_without_speculation(drafter, without):
    answers, counters = _answers(DRAFTERS[drafter], ROOMY)
    _assert_same(answers, without)
    assert counters["drafts_accepted"] > 20 and counters["drafts_proposed"] > counters["drafts_accepted"]
    assert (counters["drafts_ignored"] > 0) == (drafter == "one's own")


@pytest.mark.parametrize("drafter", ["ngram", "draft model", "EAGLE", "Medusa"])
def test_also_where_prompts_are_cut_and_requests_give_way(drafter, without):
    room = CROWDED | (
        {"num_blocks": 15, "max_num_batched_tokens": 44} if drafter == "Medusa" else {}
    )  # its trees
    answers, counters = _answers(DRAFTERS[drafter], room)
    _assert_same(answers, without)
    for what in ("drafts_accepted", "chunk_splits", "tokens_cached", "preemptions"):
        assert counters[what] > 0, what


def test_a_drafter_that_fails_costs_nobody_a_token(without, caplog):
    answers, counters = _answers({"method": "failing_drafter:Fails"}, ROOMY)
    _assert_same(answers, without)
    assert counters["proposals"] > 20 and not counters["drafts_proposed"]
    assert "the drafter failing_drafter:Fails failed" in caplog.text and "no more ideas" in caplog.text


async def test_a_drafter_whose_process_stops_or_dies_costs_nobody_a_token():
    """The others go on without; its successor follows whom it is told of."""
    settings = {"dtype": "float32", "threads": 1, **ROOMY}
    speculation = {"method": "ngram", "adaptive": False, "patience": 0.2}
    asked = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True, allowed_token_ids=[260, 261, 262])
    outputs = []
    for placement, signals in (("one", ()), ("each", (signal.SIGSTOP, signal.SIGKILL))):
        engine = pageant.Engine(
            DEMO_MODEL, placement=placement, **{**settings, "speculation": speculation if signals else None}
        )
        async with engine:
            tokens: list[int] = []
            pids = [one.pid for one in await engine.statistics() if one.node == "drafter"]
            async for output in engine.generate("A lambda is", asked):
                tokens += output.outputs[0].new_token_ids
                if signals and len(tokens) >= 20 * (3 - len(signals)):
                    number, *rest = signals
                    signals = tuple(rest)
                    os.kill(pids[0], number)
            outputs.append(tokens)
            counters = (await engine.scheduler_statistics()).counters
    assert outputs[0] == outputs[1]
    assert counters["drafts_accepted"] > 0


@pytest.mark.parametrize("budget", [2048, 24])
def test_a_draft_model_knows_prompts_that_come_in_chunks(budget):
    """The target itself, which guesses everything right that it has been shown."""
    prompts = [f"{_prompt(index)}{text}" for index, text in enumerate(("A list. " * 30, "Two sets. " * 25))]
    with pageant.LLM(
        DEMO_MODEL,
        **dict(placement="one", progress=False, threads=1, dtype="float32", max_num_seqs=1, num_blocks=64),
        max_num_batched_tokens=budget,
        speculation={"method": "draft", "model": str(DEMO_MODEL), "adaptive": False},
    ) as llm:
        llm.generate(prompts, SamplingParams(**GREEDY, ignore_eos=True))
        counters = llm.scheduler_statistics().counters
    assert (counters["chunk_splits"] > 0) == (budget == 24)
    assert counters["drafts_accepted"] >= 0.95 * counters["drafts_proposed"] > 0


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model with eight tokens, and a smaller one."""
    folders = []
    for size in (32, 16):
        torch.manual_seed(size)
        config = LlamaConfig(
            **dict(vocab_size=8, hidden_size=size, intermediate_size=2 * size, num_hidden_layers=2),
            **dict(num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=96),
            **dict(bos_token_id=None, eos_token_id=None, pad_token_id=None, initializer_range=0.6),
        )
        folders.append(tmp_path_factory.mktemp("small") / "model")
        LlamaForCausalLM(config).save_pretrained(folders[-1])
        words = Tokenizer(
            models.WordLevel({letter: place for place, letter in enumerate("abcdefgh")}, unk_token="a")
        )
        words.save(str(folders[-1] / "tokenizer.json"))
    return folders[0], folders[1]


def _joint(model: LlamaForCausalLM, prompt: list[int], length: int) -> dict[tuple[int, ...], float]:
    """The probability of each continuation of that length."""
    found = {(): 1.0}
    for _ in range(length):
        longer = {}
        for path, chance in found.items():
            with torch.inference_mode():
                logits = model(torch.tensor([[*prompt, *path]])).logits[0, -1]
            for token, share in enumerate(logits.softmax(-1).tolist()):
                longer[(*path, token)] = chance * share
        found = longer
    return found


@pytest.mark.parametrize("method", ["ngram", "draft"])
def test_what_is_sampled_has_the_targets_distribution(small, method):
    target, draft = small
    prompt, count = EVERY_PAIR, 5000
    speculation = {"method": method, "tokens": 2, "adaptive": False}
    if method == "draft":
        speculation["model"] = str(draft)
    params = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=6, ignore_eos=True, detokenize=False)
        for seed in range(count)
    ]
    with pageant.LLM(
        target,
        **dict(placement="one", progress=False, threads=1, dtype="float32", num_blocks=600, max_num_seqs=256),
        speculation=speculation,
    ) as llm:
        outputs = llm.generate([prompt] * count, params)
        counters = llm.scheduler_statistics().counters
    assert counters["drafts_accepted"] > 500, {k: v for k, v in counters.items() if v}
    seen = Counter(tuple(output.outputs[0].token_ids[:3]) for output in outputs)
    expected = _joint(LlamaForCausalLM.from_pretrained(target, dtype=torch.float32), prompt, 3)
    often = {path: share * count for path, share in expected.items() if share * count >= 5}
    rest = count - sum(often.values())
    statistic = sum((seen[path] - mean) ** 2 / mean for path, mean in often.items())
    statistic += (count - sum(seen[path] for path in often) - rest) ** 2 / max(rest, 1e-9)
    freedom = len(often)  # and the rest, less one
    # Wilson and Hilferty's approximation: its cube root is nearly normal.
    score = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert score < 3.5, f"chi-squared {statistic:.0f} with {freedom} degrees of freedom"


def _refusal(target: Path, **speculation: Any) -> str:
    with pytest.raises((TopologyError, CheckpointError, ValueError, pageant.PageantError)) as error:
        pageant.LLM(
            target,
            placement="one",
            progress=False,
            threads=1,
            num_blocks=64,
            max_model_len=64,
            speculation=speculation,
        )
    return str(error.value)


def test_what_does_not_go_together_is_refused_with_what_was_expected(small, tmp_path):
    target, _ = small
    demo = str(DEMO_MODEL)
    assert "a vocabulary of 4096 tokens; expected the 8" in _refusal(target, method="draft", model=demo)
    assert "hidden_size is 256; expected 32" in _refusal(
        target, method="eagle", model=str(DEMO_MODEL / "eagle")
    )
    assert "shape [256, 256]; expected shape [32, 32]" in _refusal(
        target, method="medusa", model=str(DEMO_MODEL / "medusa")
    )
    assert "no such folder" in _refusal(target, method="draft", model=str(tmp_path / "nowhere"))
    assert "method eagle needs a model" in _refusal(target, method="eagle")
    assert "expected ngram, draft, eagle, medusa, mtp, auto or module:Class" in _refusal(
        target, method="guess"
    )
    assert "tokens is 63; expected 1 to 62" in _refusal(target, method="ngram", tokens=63)
    assert "has no method 'open'" in _refusal(target, method="collections:Counter")
    assert "no such folder" in _refusal(target, method="auto", model=str(tmp_path / "nowhere"))
