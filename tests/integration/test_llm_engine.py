"""`LLMEngine`: steps, aborts and ends; and what the checkpoint says of parameters."""

from __future__ import annotations

import json
import shutil

import pytest

import pageant
from pageant import BadRequest, CheckpointError, LLMEngine, RequestOutputKind, SamplingParams, TopologyError

GREEDY = {"temperature": 0, "max_tokens": 10, "ignore_eos": True}


@pytest.fixture(scope="module", params=["auto", "always"])
def engine(request, checkpoint):
    with LLMEngine(checkpoint.path, threads=1, num_blocks=128, wire=request.param) as engine:
        yield engine


def test_steps_bring_every_request_to_its_right_end(engine, checkpoint, mixed_prompts):
    for index, prompt in enumerate(mixed_prompts):
        engine.add_request(str(index), prompt, SamplingParams(**GREEDY, output_kind=RequestOutputKind.DELTA))
    tokens = {str(index): [] for index in range(len(mixed_prompts))}
    ends, steps = [], 0
    assert engine.get_num_unfinished_requests() == len(mixed_prompts)
    while engine.has_unfinished_requests():
        steps += 1
        for output in engine.step():
            tokens[output.request_id] += output.outputs[0].token_ids
            ends += [output.request_id] if output.finished else []
    assert sorted(ends) == sorted(tokens) and steps >= 10
    assert list(tokens.values()) == [checkpoint.greedy(prompt, 10) for prompt in mixed_prompts]
    assert engine.step() == []


def test_an_aborted_request_is_not_heard_of_again(engine):
    engine.add_request("gone", "Hello", SamplingParams(temperature=0, max_tokens=200, ignore_eos=True))
    engine.add_request("stays", "Hello", SamplingParams(**GREEDY))
    first = engine.step()
    assert first
    engine.abort_request(["gone", "unknown"])
    seen = []
    while engine.has_unfinished_requests():
        seen += engine.step()
    assert {output.request_id for output in seen} == {"stays"} and seen[-1].finished


def test_names_and_parameters_are_checked_when_added(engine):
    engine.add_request("name", "Hello", SamplingParams(**GREEDY))
    with pytest.raises(BadRequest, match="in use"):
        engine.add_request("name", "Hello")
    for bad in ("", 3, "x" * 257):
        with pytest.raises(BadRequest, match="request_id"):
            engine.add_request(bad, "Hello")
    with pytest.raises(BadRequest, match="priority"):
        engine.add_request("other", "Hello", priority="high")
    with pytest.raises(BadRequest, match="tenants"):
        engine.add_request("other", "Hello", tenants="a")
    engine.abort_request("name")
    assert not engine.has_unfinished_requests()


def test_a_request_that_fails_late_raises_from_step_and_leaves_the_others(engine):
    engine.add_request("bad", "x" * 300, SamplingParams(**GREEDY))  # too long, once it is tokenized
    engine.add_request("good", "Hello", SamplingParams(**GREEDY))
    seen, errors = [], []
    while engine.has_unfinished_requests():
        try:
            seen += engine.step()
        except BadRequest as error:
            errors.append(str(error))
    assert len(errors) == 1 and "300 tokens" in errors[0]
    assert seen[-1].request_id == "good" and seen[-1].finished


def _with_generation_config(checkpoint, folder, config):
    shutil.copytree(checkpoint.path, folder)
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


def test_the_checkpoints_own_parameters_are_the_default(checkpoint, tmp_path):
    config = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "max_new_tokens": 5, "repetition_penalty": 1.1}
    path = _with_generation_config(
        checkpoint, tmp_path / "model", {**config, "min_p": None, "do_sample": True}
    )
    right = SamplingParams(temperature=0.6, top_k=20, top_p=0.95, max_tokens=5, repetition_penalty=1.1)
    with pageant.LLM(path, progress=False, threads=1, num_blocks=64) as llm:
        assert llm.default_params == right
        (output,) = llm.generate("Hello")
        assert len(output.outputs[0].token_ids) <= 5
    with LLMEngine(path, threads=1, num_blocks=64, generation_config="none") as engine:
        assert engine.default_params == SamplingParams()


def test_parameters_of_a_checkpoint_that_cannot_be_served_are_named(checkpoint, tmp_path):
    path = _with_generation_config(checkpoint, tmp_path / "model", {"temperature": -1})
    with pytest.raises(CheckpointError, match=r"generation_config.json: temperature is -1"):
        pageant.LLM(path, progress=False)
    with pytest.raises(TopologyError, match="generation_config"):
        pageant.LLM(path, progress=False, generation_config="elsewhere")
    with pytest.raises(TopologyError, match="max_logprobs"):
        pageant.LLM(path, progress=False, generation_config="none", max_logprobs=-2)
