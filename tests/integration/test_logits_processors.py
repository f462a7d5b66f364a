"""Logits processors of a user's own: what they see, and whom their failures concern."""

from __future__ import annotations

import pytest
import torch

import pageant
from pageant import BadRequest, RequestFailed, SamplingParams

MODULE = """
import torch
from pageant.v1.sample.logits_processor import AdapterLogitsProcessor

class Sums:
    '''Draws the sum of the tokens so far, modulo what the request says; fails where that is 0.'''

    def wants(self, params):
        modulus = (params.extra_args or {}).get("modulus")
        if modulus == "unheard of":
            raise KeyError(modulus)
        return modulus is not None

    def apply(self, logits, rows):
        assert len(logits) == len(rows)
        for logit, row in zip(logits, rows):
            logit[:] = 0.0
            total = int(row.prompt_token_ids.sum() + row.output_token_ids.sum())
            logit[total % row.params.extra_args["modulus"]] = 1.0
        return logits

class SumsInVllmsForm(AdapterLogitsProcessor):
    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        modulus = (params.extra_args or {}).get("vllm_modulus")

        def process(prompt, output, logits):
            logits[:] = 0.0
            logits[(sum(prompt) + sum(output)) % modulus] = 1.0
            return logits

        return None if modulus is None else process
"""


@pytest.fixture(params=["auto", "always"])
def llm(request, checkpoint, tmp_path, monkeypatch):
    (tmp_path / "sums_processor.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    options = {
        "logits_processors": ["sums_processor:Sums", f"{tmp_path / 'sums_processor.py'}:SumsInVllmsForm"]
    }
    with pageant.LLM(
        checkpoint.path,
        progress=False,
        threads=1,
        num_blocks=128,
        wire=request.param,
        actors={"executor": {"options": options}},
    ) as llm:
        yield llm


def params(modulus=None, tokens=6, name="modulus"):
    extra = None if modulus is None else {name: modulus}
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, extra_args=extra)


@pytest.mark.parametrize("name", ["modulus", "vllm_modulus"])
def test_a_processor_sees_the_tokens_of_the_rows_that_want_it(llm, checkpoint, mixed_prompts, name):
    prompts = mixed_prompts[:6]
    asked = [params(None if index % 3 == 0 else 50 + index, name=name) for index in range(6)]
    for index, output in enumerate(llm.generate(prompts, asked)):
        right = checkpoint.greedy(prompts[index], 6)
        if index % 3:
            tokens = list(prompts[index])
            for _ in range(6):
                tokens.append(sum(tokens) % (50 + index))
            right = tokens[len(prompts[index]) :]
        assert output.outputs[0].token_ids == right


@pytest.mark.parametrize("bad", [0, "unheard of"])
def test_what_raises_fails_its_own_request_only(llm, checkpoint, mixed_prompts, bad):
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor() as pool:
        good = pool.submit(llm.generate, mixed_prompts[:4], params(77, 40))
        with pytest.raises(RequestFailed, match="the logits processor Sums failed"):
            llm.generate([mixed_prompts[5]], params(bad))
        outputs = good.result()
    for prompt, output in zip(mixed_prompts, outputs, strict=False):
        assert output.outputs[0].token_ids[0] == sum(prompt) % 77
        assert len(output.outputs[0].token_ids) == 40
    assert llm.generate([mixed_prompts[1]], params())[0].outputs[0].token_ids == checkpoint.greedy(
        mixed_prompts[1], 6
    )


@pytest.mark.parametrize("extra", [{"a": {"b": 1}}, [1], {"a": "x" * 70_000}, {3: 1}])
def test_arguments_are_plain_and_bounded(extra):
    with pytest.raises(BadRequest, match="extra_args"):
        SamplingParams(extra_args=extra)


def test_a_row_of_a_batch_that_raises_is_found(checkpoint):
    from pageant.actors.executor.batch.processors import ProcessedRow, Processing, process_logits

    class Odd:
        def wants(self, params):
            return True

        def apply(self, logits, rows):
            logits += 1
            if any(len(row.output_token_ids) % 2 for row in rows):
                raise ValueError("odd")
            return logits

    rows = [ProcessedRow(params(), torch.arange(0).numpy(), torch.arange(n).numpy()) for n in (2, 3, 4)]
    logits = torch.zeros(4, 5)
    failed = process_logits(logits, Processing([(Odd(), [0, 1, 3], rows)], {}))
    assert failed == {1: "the logits processor Odd failed: ValueError: odd"}
    assert logits.mean(1).tolist() == [1, 0, 0, 1]
