"""The demo model on a GPU: logits and greedy tokens beside transformers, graphs, and the engine as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pageant import kernels
from pageant.kernels.base import AttentionBatch
from pageant.models.checkpoint import Checkpoint
from pageant.models.loading import load_decoder

PROMPT = torch.randint(6, 300, (90,), generator=torch.Generator().manual_seed(1)).tolist()


def transformers_model(path: Path, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to("cuda").eval()


@torch.inference_mode()
def our_logits(path: Path, dtype: torch.dtype) -> torch.Tensor:
    """Return the logits of the prompt, in two chunks and a single token between them."""
    name = str(dtype).removeprefix("torch.")
    decoder = load_decoder(Checkpoint(path), name, "cuda", kernels=kernels.load("auto", "cuda"))
    caches = decoder.allocate_kv_caches(8, 16)
    table = torch.tensor([[5, 0, 3, 7, 1, 6]], dtype=torch.int32, device="cuda")
    parts = []
    for start, stop in ((0, 50), (50, 51), (51, len(PROMPT))):
        positions = torch.arange(start, stop, device="cuda")
        batch = AttentionBatch(
            query_starts=torch.tensor([0, stop - start], dtype=torch.int32, device="cuda"),
            context_lengths=torch.tensor([stop], dtype=torch.int32, device="cuda"),
            block_tables=table,
            slots=table[0, positions // 16].long() * 16 + positions % 16,
            positions=positions,
            max_query_length=stop - start,
            max_context_length=stop,
        )
        tokens = torch.tensor(PROMPT[start:stop], device="cuda")
        parts.append(decoder.logits(decoder.forward(tokens, positions, batch, caches)))
    return torch.cat(parts)


def test_auto_is_triton_where_there_is_a_gpu() -> None:
    assert kernels.load("auto", "cuda").name == "triton"


@torch.inference_mode()
def test_logits_are_as_near_to_float32_as_those_of_transformers(demo: Path, dtype: torch.dtype) -> None:
    ids = torch.tensor([PROMPT], device="cuda")
    exact = transformers_model(demo, torch.float32)(ids).logits[0].float()
    theirs = transformers_model(demo, dtype)(ids).logits[0].float()
    our_error = (our_logits(demo, dtype) - exact).square().mean().sqrt()
    their_error = (theirs - exact).square().mean().sqrt()
    assert our_error <= 1.5 * their_error + 1e-4


def test_the_engine_generates_what_transformers_does(demo: Path) -> None:
    import pageant

    prompts = [PROMPT[:20], PROMPT[20:25], PROMPT[25:]]
    params = pageant.SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with pageant.LLM(demo, device="cuda:0", dtype="float32", kv_cache_memory="256MiB") as llm:
        found = [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]
    model = transformers_model(demo, torch.float32)
    for prompt, tokens in zip(prompts, found, strict=True):
        ids = torch.tensor([prompt], device="cuda")
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert tokens == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("rows", [1, 3])
def test_decode_steps_are_replayed_and_draw_what_they_would_without(demo: Path, rows: int) -> None:
    from pageant.actors.executor.runners.config import RunnerConfig
    from pageant.actors.executor.runners.cuda import CudaRunner
    from pageant.scripts.samples.steps import step_inputs

    def drawn(capture: Any) -> tuple[list[list[int]], int]:
        runner = CudaRunner(
            RunnerConfig(
                model=demo,
                dtype="bfloat16",
                device="cuda:0",
                backend="triton",
                block_size=16,
                max_model_len=256,
                max_num_seqs=8,
                budget_bytes=None,
                num_blocks=64,
                threads=None,
                gpu_memory_utilization=0.5,
                max_num_batched_tokens=256,
            ),
            capture=capture,
        )
        tokens = [runner.launch(step_inputs([(1, context)] * rows)) for context in range(1, 40)]
        captured = runner._graphs.num_captured if runner._graphs else 0
        return [step.token_ids().tolist() for step in tokens], captured

    def refuse(run: Any) -> Any:
        raise RuntimeError("no graphs")

    with_graphs, captured = drawn(None)
    without, none = drawn(refuse)
    assert (captured, none) == (1, 0)
    assert with_graphs == without and np.shape(with_graphs) == (39, rows)


def test_the_kv_cache_takes_what_is_left_of_the_share(demo: Path) -> None:
    from pageant.actors.executor.runners.config import RunnerConfig
    from pageant.actors.executor.runners.cuda import CudaRunner

    runner = CudaRunner(
        RunnerConfig(
            model=demo,
            dtype="bfloat16",
            device="cuda:0",
            backend="auto",
            block_size=16,
            max_model_len=512,
            max_num_seqs=1 << 13,  # sequences of full length could use more than the share
            budget_bytes=None,
            num_blocks=None,
            threads=None,
            gpu_memory_utilization=0.06,
            max_num_batched_tokens=512,
        ),
    )
    free, total = torch.cuda.mem_get_info()
    assert runner.num_blocks > 0
    assert abs(free / total - 0.94) < 0.03  # tests in other processes take some too


@torch.inference_mode()
def test_gpt_oss_is_as_near_to_float32_as_transformers_is(tmp_path: Path, dtype: torch.dtype) -> None:
    """Sinks, windows of 16 tokens, biased experts and their gating."""
    from transformers import GptOssConfig, GptOssForCausalLM

    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=300,
        hidden_size=128,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        sliding_window=16,
        num_local_experts=8,
        num_experts_per_tok=4,
        max_position_embeddings=512,
        initializer_range=0.1,
        rope_parameters={"rope_type": "default", "rope_theta": 150_000.0},
        pad_token_id=0,
    )
    model = GptOssForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "sinks" in name:
            parameter.data.normal_()
    model.save_pretrained(tmp_path)
    ids = torch.tensor([PROMPT], device="cuda")
    exact = transformers_model(tmp_path, torch.float32)(ids).logits[0].float()
    theirs = transformers_model(tmp_path, dtype)(ids).logits[0].float()
    # Where rounding makes a token choose another expert, its logits are far off: tokens in the middle are compared.
    our_error = (our_logits(tmp_path, dtype) - exact).square().mean(-1).sqrt().median()
    their_error = (theirs - exact).square().mean(-1).sqrt().median()
    assert our_error <= 1.5 * their_error + 1e-4
