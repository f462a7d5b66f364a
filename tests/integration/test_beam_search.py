"""Beam search: transformers' own, in float32; and that beams share the blocks of what they have in common."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch

import pageant
from pageant import BadRequest, BeamSearchParams

END = 0


def right_beams(checkpoint, prompt, params):
    """transformers' beams, best first, with their scores."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        found = checkpoint.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=params.beam_width,
            num_return_sequences=params.beam_width,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            max_new_tokens=params.max_tokens,
            do_sample=False,
            eos_token_id=None if params.ignore_eos else END,
            pad_token_id=1,
            return_dict_in_generate=True,
            output_scores=True,
        )
    beams = [beam[len(prompt) :].tolist() for beam in found.sequences]
    return [up_to_end(beam) for beam in beams], found.sequences_scores.tolist()


def up_to_end(tokens):
    return tokens[: tokens.index(END) + 1] if END in tokens else tokens


@pytest.fixture(scope="module", params=["auto", "always"])
def llm(request, ending, checkpoint):
    with pageant.LLM(
        ending.path, progress=False, threads=1, num_blocks=256, wire=request.param, dtype="float32"
    ) as llm:
        yield llm


@pytest.fixture(scope="module")
def ending(make_checkpoint, tmp_path_factory):
    """A model that likes to end."""

    plain = make_checkpoint("qwen2")
    path = tmp_path_factory.mktemp("ending")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(plain.path, dtype=torch.float32).eval()
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        model.config.tie_word_embeddings = False
        model.lm_head.weight[END] += model.lm_head.weight[[9, 40, 77, 130, 201, 250]].sum(0) * 0.7
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(plain.path).save_pretrained(path)
    model.generation_config.eos_token_id = None
    return dataclasses.replace(plain, path=path, model=model)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -0.7, 2.0])
@pytest.mark.parametrize("width", [1, 3, 5])
def test_beams_are_those_of_transformers(llm, ending, mixed_prompts, width, length_penalty, early_stopping):
    if width == 1 and early_stopping:
        pytest.skip("transformers searches greedily with one beam")
    params = BeamSearchParams(
        beam_width=width, max_tokens=12, length_penalty=length_penalty, early_stopping=early_stopping
    )
    prompts = mixed_prompts[:5]
    ended = 0
    for prompt, output in zip(prompts, llm.beam_search(prompts, params), strict=True):
        if width == 1:
            (beam,) = output.sequences
            assert beam.token_ids == up_to_end(ending.greedy(prompt, 12))
            continue
        beams, scores = right_beams(ending, prompt, params)
        assert [beam.token_ids for beam in output.sequences] == beams
        assert [beam.score for beam in output.sequences] == pytest.approx(scores, abs=2e-3)
        ended += sum(beam.finish_reason == "stop" for beam in output.sequences)
    assert ended or width == 1 or length_penalty > 1, "no beam met an end token"


def test_beams_share_the_blocks_of_what_they_have_in_common(llm, mixed_prompts):
    prompt = max(mixed_prompts, key=len)[:100]
    before = llm.pool_statistics()
    params = BeamSearchParams(beam_width=4, max_tokens=8, ignore_eos=True)
    (output,) = llm.beam_search([prompt], params, cache_salt="beams")
    assert len(output.sequences) == 4 and all(len(beam.token_ids) == 8 for beam in output.sequences)
    after = llm.pool_statistics()
    # All requests but the first find the prompt's full blocks.
    assert after.tokens_hit - before.tokens_hit >= 7 * 4 * (len(prompt) // 16) * 16
    assert after.blocks_held == 0


def test_the_async_face_finds_the_same(llm, ending):
    params = BeamSearchParams(beam_width=3, max_tokens=9)

    async def main():
        async with pageant.Engine(ending.path, threads=1, num_blocks=64, dtype="float32") as engine:
            return await engine.beam_search("Hello", params)

    (right,) = llm.beam_search("Hello", params)
    found = asyncio.run(main())
    assert found.prompt_token_ids == right.prompt_token_ids
    assert [dataclasses.replace(beam, cumulative_logprob=0.0, score=0.0) for beam in found.sequences] == [
        dataclasses.replace(beam, cumulative_logprob=0.0, score=0.0) for beam in right.sequences
    ]
    for beam, other in zip(found.sequences, right.sequences, strict=True):
        assert beam.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-4)
        assert beam.score == pytest.approx(other.score, abs=1e-4)
    assert all(isinstance(beam.text, str) for beam in right.sequences)
    assert any(beam.text for beam in right.sequences)


@pytest.mark.parametrize(
    "params",
    [
        {"beam_width": 0},
        {"beam_width": 65},
        {"max_tokens": 0},
        {"length_penalty": float("nan")},
        {"early_stopping": "always"},
        {"ignore_eos": 1},
    ],
)
def test_what_is_out_of_range_is_refused_by_name(params):
    with pytest.raises(BadRequest, match=next(iter(params))):
        BeamSearchParams(**{"beam_width": 2, **params})
