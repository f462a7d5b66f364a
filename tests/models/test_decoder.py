"""Decoder against transformers' own, on the same random weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from pageant import kernels
from pageant.models import Checkpoint

PROMPT = torch.randint(6, 331, (50,), generator=torch.Generator().manual_seed(1)).tolist()


def expected_logits(family: Any, tokens: list[int]) -> Tensor:
    """Return what transformers computes, once for all tests of a family."""
    return _expected(family, tuple(tokens))


@cache
def _expected(family: Any, tokens: tuple[int, ...]) -> Tensor:
    return _logits(family.model, torch.tensor([tokens]))[0]


@torch.inference_mode()
def _logits(model: Any, prompts: Tensor) -> Tensor:
    """Return the logits of prompts of one length, float32 [prompts, tokens, vocab_size]."""
    logits: Tensor = model(prompts).logits
    return logits.float()


def test_logits_of_a_whole_prompt_are_those_of_transformers(any_model: Any, pages: Any) -> None:
    logits = pages(any_model.load()).step({"a": PROMPT})["a"]
    torch.testing.assert_close(logits, expected_logits(any_model, PROMPT), atol=1e-4, rtol=0)


def test_chunks_of_a_prompt_give_the_logits_of_the_whole(any_model: Any, pages: Any) -> None:
    run = pages(any_model.load())
    chunks = [PROMPT[:7], PROMPT[7:8], PROMPT[8:20], PROMPT[20:44], PROMPT[44:]]
    logits = torch.cat([run.step({"a": chunk})["a"] for chunk in chunks])
    assert run.tables["a"] != sorted(run.tables["a"]), "the blocks are meant to be scattered"
    torch.testing.assert_close(logits, expected_logits(any_model, PROMPT), atol=1e-4, rtol=0)


def test_embeddings_in_place_of_tokens_give_the_logits_of_inputs_embeds(any_model: Any, pages: Any) -> None:
    """Scales, and vectors for positions, are those that transformers adds to embeddings that it is given."""
    size = Checkpoint(any_model.path).embedding_size
    if any_model.model.config.model_type.startswith("gemma4"):  # whose layers read token ids, too
        assert size is None
        return
    weight = any_model.model.get_input_embeddings().weight
    assert size == weight.shape[1]
    noise = torch.randn(20, size, generator=torch.Generator().manual_seed(2))
    rows = noise * weight.std().item()
    run = pages(any_model.load())
    logits = torch.cat([run.step_of_rows("a", rows[:13]), run.step_of_rows("a", rows[13:])])
    after = run.step({"a": PROMPT[:1]})["a"]
    with torch.inference_mode():
        embedding = any_model.model.get_input_embeddings()(torch.tensor(PROMPT[:1]))
        if any_model.model.config.model_type == "falcon_h1":  # which multiplies only what it looks up itself
            embedding = embedding * any_model.model.config.embedding_multiplier
        expected = any_model.model(inputs_embeds=torch.cat([rows, embedding])[None]).logits[0]
    torch.testing.assert_close(torch.cat([logits, after]), expected, atol=1e-4, rtol=0)


def test_decodes_and_prefills_of_a_mixed_batch_do_not_disturb_one_another(any_model: Any, pages: Any) -> None:
    run = pages(any_model.load())
    texts = {"a": PROMPT[:30], "b": PROMPT[20:40], "c": PROMPT[5:], "d": PROMPT[3:12]}
    logits: dict[str, list[Tensor]] = {name: [] for name in texts}
    lengths = [{"a": 12, "b": 1}, {"a": 1, "b": 9, "c": 3}, {"d": 1, "a": 1, "c": 1}]
    while any(run.computed.get(name, 0) < len(text) for name, text in texts.items()):
        wanted = lengths.pop(0) if lengths else {"b": 1, "a": 1, "d": 1, "c": 1}
        step = {name: texts[name][run.computed.get(name, 0) :][:count] for name, count in wanted.items()}
        for name, rows in run.step({name: new for name, new in step.items() if new}).items():
            logits[name].append(rows)
    for name, text in texts.items():
        torch.testing.assert_close(
            torch.cat(logits[name]), expected_logits(any_model, text), atol=1e-4, rtol=0
        )


def test_greedy_tokens_are_those_of_generate(any_model: Any, pages: Any) -> None:
    prompts = {"a": PROMPT[:9], "b": PROMPT[9:10], "c": PROMPT[10:37]}
    run = pages(any_model.load())
    outputs: dict[str, list[int]] = {name: [] for name in prompts}
    step = prompts
    for _ in range(20):
        logits = run.step(step)
        step = {name: [int(rows[-1].argmax())] for name, rows in logits.items()}
        for name, tokens in step.items():
            outputs[name] += tokens
    for name, prompt in prompts.items():
        generated = any_model.model.generate(
            torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        assert outputs[name] == generated[0, len(prompt) :].tolist()


def test_bfloat16_is_as_near_to_float32_as_transformers_is(any_model: Any, pages: Any) -> None:
    """Over tokens of several prompts, in the median: where rounding chooses other experts, few errors outweigh all."""
    has_experts = any("expert" in name for name, _ in any_model.model.named_modules())
    draws = [
        random.Random(seed).choices(PROMPT, k=len(PROMPT)) for seed in range(1, 24 if has_experts else 6)
    ]
    prompts = torch.tensor([PROMPT, *draws])
    run = pages(any_model.load("bfloat16"), num_blocks=prompts.numel())
    chunks = [
        torch.stack(list(run.step(dict(enumerate(chunk.tolist()))).values()))
        for chunk in prompts.split((31, 1, 18), dim=1)
    ]
    exact = _logits(any_model.model, prompts)
    ours = torch.cat(chunks, dim=1) - exact
    theirs = _logits(deepcopy(any_model.model).to(torch.bfloat16), prompts) - exact
    our_error, their_error = (error.square().mean(dim=-1).sqrt().median() for error in (ours, theirs))
    assert our_error <= 1.2 * their_error


@pytest.mark.parametrize(
    "backend", [name for name in kernels.BACKENDS if name not in ("reference", "triton")]
)
def test_faster_kernels_give_the_same_logits(any_model: Any, pages: Any, backend: str) -> None:
    run = pages(any_model.load(backend=backend))
    chunks = [PROMPT[:11], PROMPT[11:12], PROMPT[12:]]
    logits = torch.cat([run.step({"a": chunk, "b": chunk[:3]})["a"] for chunk in chunks])
    torch.testing.assert_close(logits, expected_logits(any_model, PROMPT), atol=1e-4, rtol=0)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_what_nobody_reads_is_missing_nowhere(any_model: Any, pages: Any, backend: str) -> None:
    run = pages(any_model.load(backend=backend))
    texts = {"a": PROMPT[:30], "b": PROMPT[20:45], "c": PROMPT[5:]}
    assert run.last_of([], {name: text[:5] for name, text in texts.items()}) == {}
    steps = [
        (["a", "c"], (12, 9, 2)),
        (["b"], (1, 8, 20)),
        (["c", "a"], (11, 1, 17)),
        (["b", "c"], (1, 2, 1)),
    ]
    for names, counts in steps:
        found = run.last_of(
            names,
            {
                name: text[run.computed[name] :][:count]
                for (name, text), count in zip(texts.items(), counts, strict=True)
            },
        )
        for name in names:
            expected = expected_logits(any_model, texts[name])[run.computed[name] - 1]
            torch.testing.assert_close(found[name][0], expected, atol=1e-4, rtol=0)
    assert all(run.computed[name] == len(text) for name, text in texts.items())


@pytest.mark.parametrize(("served", "length"), [(512, 50), (49, 49), (48, 48), (48, 20)])
def test_long_rotation_is_chosen_by_what_is_served(
    family: Callable[[str], Any], pages: Any, served: int, length: int
) -> None:
    """Serve up to 48 positions, for which transformers uses the short factors, and beyond, with the long ones."""
    model = family("phi3_long")
    run = pages(model.load(max_model_len=served))
    logits = torch.cat([run.step({"a": chunk})["a"] for chunk in (PROMPT[:13], PROMPT[13:length])])
    torch.testing.assert_close(logits, expected_logits(model, PROMPT[:length]), atol=1e-4, rtol=0)


def test_an_engine_for_long_texts_rotates_short_ones_the_same(
    family: Callable[[str], Any], pages: Any
) -> None:
    """Rotate the same, so that a text that grows past the original context goes on as it began."""
    run = pages(family("phi3_long").load())
    short = run.step({"a": PROMPT[:20]})["a"]
    whole = run.step({"b": PROMPT})["b"]
    torch.testing.assert_close(short, whole[:20], atol=1e-4, rtol=0)
    assert (short - expected_logits(family("phi3_long"), PROMPT[:20])).abs().max() > 0.01


def test_logits_are_made_for_the_rows_asked_for(family: Callable[[str], Any]) -> None:
    decoder = family("qwen2").load()
    hidden = torch.randn(5, decoder.spec.hidden_size)
    some = decoder.logits(hidden[[1, 4]])
    assert some.shape == (2, 331) and some.dtype == torch.float32
    torch.testing.assert_close(some, decoder.logits(hidden)[[1, 4]])


def test_cache_sizes_add_up(family: Callable[[str], Any]) -> None:
    decoder = family("llama").load("bfloat16")
    caches = decoder.allocate_kv_caches(num_blocks=7, block_size=4)
    assert [keys.shape for keys, _ in caches] == [decoder.kv_layout.shape(7, 4)] * 3
    assert sum(keys.nbytes + values.nbytes for keys, values in caches) == 7 * decoder.kv_bytes_per_block(4)
    assert not any(keys.any() or values.any() for keys, values in caches)


def test_weights_take_what_they_take_in_transformers(any_model: Any) -> None:
    theirs = {p.data_ptr(): p.numel() * p.element_size() for p in any_model.model.state_dict().values()}
    assert any_model.load().num_bytes == sum(theirs.values())
