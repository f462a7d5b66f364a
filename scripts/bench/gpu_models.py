"""The GPU benchmark's cases of whole models: a shape of 8B parameters, and a checkpoint beside transformers."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pageant.actors.executor.graphs import CudaCapture, DecodeGraphs
from pageant.actors.executor.inputs import UNKNOWN, SamplingColumns, StepInputs
from pageant.actors.executor.shaping import NOTHING
from pageant.actors.executor.staging import Staging
from pageant.kernels.base import Kernels
from pageant.models.checkpoint import Checkpoint
from pageant.models.native import NativeDecoder
from pageant.scripts.bench.batches import scattered_batch
from pageant.scripts.bench.gpu_kernels import (
    sampling,
)
from pageant.scripts.bench.gpu_measuring import BF16, BLOCK, Bench, Case, Result


def model_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """Llama 3 8B's shape with weights of nothing: its prefill, and its decode as the executor runs it."""
    of = bench.sizes.of
    decoder = random_decoder(bench, ours)
    embedded = decoder.spec.vocab_size * decoder.spec.hidden_size  # looked up, not multiplied with
    matrices = sum(tensor.numel() for tensor in weights_of(decoder) if tensor.dim() == 2) - embedded
    length = of(4096, 32)
    num_blocks = of(64 * 1024, 128) // BLOCK + 1
    caches = decoder.allocate_kv_caches(num_blocks, BLOCK)
    batch = scattered_batch([(length, length)], BLOCK, bench.device)
    tokens = bench.integers(length, below=decoder.spec.vocab_size)
    attention = 2 * length**2 * decoder.spec.attention.query_size * decoder.spec.num_layers

    def prefill() -> Tensor:
        return decoder.logits(decoder.forward(tokens, batch.positions, batch, caches)[-1:])

    yield Case("8B shape, prefill of 4096", prefill, None, 2 * matrices * length + attention, as_graph=False)
    for count, context in ((1, 1000), (64, 1000)):
        step = decode_inputs(of(count), of(context, 20))
        read = step.block_tables.size * decoder.kv_bytes_per_block(BLOCK) + matrices * decoder.dtype.itemsize
        run = decode_step(bench, decoder, caches, step, num_blocks - 1)
        yield Case(f"8B shape, decode, batch {count}", run, read, as_graph=False)


def random_decoder(bench: Bench, ours: Kernels) -> NativeDecoder:
    """A decoder that no file holds."""
    of = bench.sizes.of
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": of(4096, 64),
        "intermediate_size": of(14336, 96),
        "num_hidden_layers": of(32, 2),
        "num_attention_heads": 32 if bench.on_gpu else 4,
        "num_key_value_heads": 8 if bench.on_gpu else 2,
        "head_dim": 128 if bench.on_gpu else 16,
        "vocab_size": of(128256, 300),
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        spec = Checkpoint(Path(folder)).decoder()[0]
    decoder = NativeDecoder(spec, bench.dtype, bench.device, ours)
    for tensor in weights_of(decoder):
        tensor.normal_(std=0.02)
    return decoder


def weights_of(decoder: NativeDecoder) -> list[Tensor]:
    """All of them that are tensors."""
    return [weight for weight in decoder.weights() if isinstance(weight, Tensor)]


def decode_inputs(count: int, context: int) -> StepInputs:
    """The step of so many sequences of that length."""
    width = -(-context // BLOCK)
    tables = np.arange(count * width, dtype=np.int32).reshape(count, width)
    positions = np.full(count, context - 1)
    rows = np.arange(count)
    floats, ints = np.zeros(count, np.float32), np.zeros(count, np.int32)
    columns = SamplingColumns(floats, ints, floats + 1, floats, rows, ints, positions + 1, NOTHING)
    return StepInputs(
        token_ids=np.full(count, UNKNOWN),
        unknown=rows,
        unknown_rows=rows,
        positions=positions,
        slots=tables[None, :, -1].astype(np.int64) * BLOCK + (context - 1) % BLOCK,
        query_starts=np.arange(count + 1, dtype=np.int32),
        context_lengths=np.full(count, context, np.int32),
        block_tables=tables[None],
        max_query_length=1,
        max_context_length=context,
        last_tokens=rows,
        rows=rows.astype(np.int32),
        tenures=rows,
        sampling=columns,
        scores=None,
        copy_sources=ints[:0],
        copy_destinations=ints[:0],
    )


def decode_step(
    bench: Bench, decoder: NativeDecoder, caches: list[Any], inputs: StepInputs, spare: int
) -> Callable[[], Any]:
    """A step as the executor computes it, its copies and launches included, but for the wait for its tokens."""
    count = len(inputs.rows)
    drawn = torch.zeros(count, dtype=torch.int64, device=bench.device)
    graphs = DecodeGraphs(
        lambda tokens, positions, batch: decoder.forward(tokens, positions, batch, caches),
        CudaCapture() if bench.on_gpu else lambda run: run,
        Staging(bench.device),
        last_drawn=drawn,
        max_num_seqs=count,
        max_model_len=8192,
        block_size=BLOCK,
        spare_block=spare,
    )
    params = sampling(bench, count, 0.0, 0, 1.0)

    def run() -> None:
        drawn.copy_(decoder.kernels.sample(decoder.logits(graphs.run(inputs)), params))

    return run


def end_to_end(bench: Bench, model: str) -> list[Result]:
    """Generation by the engine beside transformers' own, on a checkpoint."""
    results = []
    for count, length, output in ((1, 128, 128), (16, 512, 128)):
        generator = torch.Generator().manual_seed(count)
        prompts = torch.randint(10, 10_000, (count, length), generator=generator)
        ours = _engine_seconds(bench, model, prompts, output)
        theirs = _transformers_seconds(bench, model, prompts, output)
        name = f"generate {output} tokens after {length}, batch {count}"
        results.append(Result(name, round(ours * 1e6, 1), transformers=round(theirs / ours, 3)))
    return results


def _engine_seconds(bench: Bench, model: str, prompts: Tensor, output: int) -> float:
    from pageant.actors.frontend.llm import LLM
    from pageant.protocol.sampling import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    with LLM(model, device=str(bench.device), enable_prefix_caching=False, progress=False) as llm:
        return _second_run(lambda: llm.generate(prompts.tolist(), params, progress=False))


def _transformers_seconds(bench: Bench, model: str, prompts: Tensor, output: int) -> float:
    from transformers import AutoModelForCausalLM

    theirs: Any = AutoModelForCausalLM.from_pretrained(model, dtype=BF16)
    theirs.to(bench.device)
    ids = prompts.to(bench.device)
    lengths = {"max_new_tokens": output, "min_new_tokens": output}
    mask = torch.ones_like(ids)
    # The tokens are fetched, so that the device is waited for.
    return _second_run(
        lambda: theirs.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=0, **lengths).cpu()
    )


def _second_run(run: Callable[[], Any]) -> float:
    run()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
