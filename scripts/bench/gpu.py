"""The GPU's kernels and models beside the GPU itself: `python -m pageant.scripts.bench.gpu --write gpu.json`.

Everything is put in proportion to what this very device was measured to do in the same run: the bandwidth of a
copy, the rate of a large bfloat16 product, torch's own attention backends, and, with `--model PATH`,
transformers' generation. Kernels are timed as CUDA graphs, so that launches do not count; a time is the median of
several turns. `--tune` times other tiles for attention and prints lines for `kernels/triton/tuning.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from pageant import kernels
from pageant.actors.executor.batch import UNKNOWN, SamplingColumns, StepInputs
from pageant.actors.executor.graphs import CudaCapture, DecodeGraphs
from pageant.actors.executor.shaping import NOTHING
from pageant.actors.executor.staging import Staging
from pageant.kernels.base import AttentionBatch, HeadNorms, Kernels, SamplingTensors
from pageant.kernels.triton.tuning import Attention
from pageant.models.checkpoint import Checkpoint
from pageant.models.native import NativeDecoder
from pageant.scripts.bench.report import machine

BF16 = torch.bfloat16
BLOCK = 16
BARS = {
    "decode attention, 64 x 8000": ("bandwidth", 0.8),
    "prefill attention, 1 x 8192": ("flash", 0.8),
    "8B shape, decode, batch 1": ("bandwidth", 0.8),
    "8B shape, prefill of 4096": ("matrix", 0.55),
}
"""Of the cases with a bar, the ratio that it is on, and where it is."""


@dataclass(frozen=True)
class Sizes:
    """How large the cases are. `TINY` is for finding out on any device whether this script runs at all."""

    scale: int = 1
    turns: int = 7
    turn_seconds: float = 0.05

    def of(self, size: int, least: int = 1) -> int:
        """A size that falls with the scale."""
        return max(least, size // self.scale)


FULL, TINY = Sizes(), Sizes(scale=256, turns=1, turn_seconds=0.0)


@dataclass(frozen=True)
class Case:
    """Something to time, what it moves and multiplies at the least, and what else does the same."""

    name: str
    run: Callable[[], Any]
    num_bytes: float | None = None
    flops: float | None = None
    rivals: tuple[tuple[str, Callable[[], Any]], ...] = ()
    as_graph: bool = True


@dataclass(frozen=True)
class Result:
    """Microseconds, and shares of what the device or a rival does: 1 is as good."""

    name: str
    microseconds: float
    bandwidth: float | None = None
    matrix: float | None = None
    flash: float | None = None
    cudnn: float | None = None
    transformers: float | None = None


class Bench:
    """One device, its measured limits, and the timing."""

    def __init__(self, device: torch.device, dtype: torch.dtype, sizes: Sizes) -> None:
        self.device, self.dtype, self.sizes = device, dtype, sizes
        self.on_gpu = device.type == "cuda"
        self.bytes_per_second = self._copy_rate(sizes.of(1 << 30, 1024))
        self.flops_per_second = self._product_rate(sizes.of(8192, 32))

    def _copy_rate(self, size: int) -> float:
        source, target = torch.empty((2, size), dtype=torch.uint8, device=self.device).unbind()
        return 2 * size / self.seconds(lambda: target.copy_(source))

    def _product_rate(self, side: int) -> float:
        left, right = self.numbers(side, side), self.numbers(side, side)
        return 2 * side**3 / self.seconds(lambda: left @ right)

    def numbers(self, *shape: int) -> Tensor:
        """Normal numbers; the power that products take, and so the clock, depends on them."""
        return torch.randn(shape, dtype=torch.float32, device=self.device).to(self.dtype)

    def integers(self, *shape: int, below: int) -> Tensor:
        return torch.randint(below, shape, device=self.device)

    def seconds(self, run: Callable[[], Any], as_graph: bool = True) -> float:
        """The median turn."""
        run()  # compiles
        if self.on_gpu and as_graph:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            run = graph.replay
        once = self._turn(run, 1)
        repeats = max(1, round(self.sizes.turn_seconds / max(once, 1e-6)))
        return statistics.median(self._turn(run, repeats) for _ in range(self.sizes.turns))

    def _turn(self, run: Callable[[], Any], repeats: int) -> float:
        if not self.on_gpu:
            began = time.perf_counter()
            for _ in range(repeats):
                run()
            return (time.perf_counter() - began) / repeats
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        for _ in range(repeats):
            run()
        last.record()
        last.synchronize()
        milliseconds: float = first.elapsed_time(last)
        return milliseconds / 1000 / repeats

    def measure(self, case: Case) -> Result:
        """Times a case and its rivals."""
        seconds = self.seconds(case.run, case.as_graph)
        shares = {}
        if case.num_bytes is not None:
            shares["bandwidth"] = case.num_bytes / seconds / self.bytes_per_second
        if case.flops is not None:
            shares["matrix"] = case.flops / seconds / self.flops_per_second
        for name, rival in case.rivals:
            with contextlib.suppress(RuntimeError):  # not for these shapes, or not on this device
                shares[name] = self.seconds(rival, case.as_graph) / seconds
        rounded = {name: round(share, 3) for name, share in shares.items()}
        return Result(case.name, round(seconds * 1e6, 1), **rounded)


def attention_batch(bench: Bench, sequences: list[tuple[int, int]]) -> AttentionBatch:
    """Sequences of (new tokens, context), their blocks scattered."""
    blocks = [-(-context // BLOCK) for _, context in sequences]
    order = torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(0)).int()
    tables = torch.nn.utils.rnn.pad_sequence(list(torch.split_with_sizes(order, blocks)), batch_first=True)
    positions = torch.cat([torch.arange(context - new, context) for new, context in sequences])
    return AttentionBatch(
        query_starts=torch.tensor([0, *(new for new, _ in sequences)]).cumsum(0).int().to(bench.device),
        context_lengths=torch.tensor([context for _, context in sequences]).int().to(bench.device),
        block_tables=tables.to(bench.device),
        slots=torch.zeros_like(positions).to(bench.device),
        positions=positions.to(bench.device),
        max_query_length=max(new for new, _ in sequences),
        max_context_length=max(context for _, context in sequences),
    )


def attention_case(
    bench: Bench, ours: Kernels, name: str, sequences: list[tuple[int, int]], heads: tuple[int, int, int]
) -> Case:
    """Heads are (query heads, key heads, head size)."""
    num_heads, kv_heads, head_dim = heads
    batch = attention_batch(bench, sequences)
    query = bench.numbers(len(batch.positions), num_heads, head_dim)
    num_blocks = sum(-(-context // BLOCK) for _, context in sequences)
    keys, values = (bench.numbers(num_blocks, kv_heads, BLOCK, head_dim) for _ in range(2))
    entries = sum(context for _, context in sequences)
    pairs = sum(new * context - new * (new - 1) // 2 for new, context in sequences)
    new, context = sequences[0]
    rivals: tuple[tuple[str, Callable[[], Any]], ...] = ()
    if new == context and all(pair == (new, context) for pair in sequences):
        q, k, v = (
            bench.numbers(len(sequences), count, new, head_dim) for count in (num_heads, kv_heads, kv_heads)
        )

        def torchs(backend: SDPBackend) -> Callable[[], Any]:
            def run() -> None:
                with sdpa_kernel(backend):
                    F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=num_heads != kv_heads)

            return run

        rivals = (
            ("flash", torchs(SDPBackend.FLASH_ATTENTION)),
            ("cudnn", torchs(SDPBackend.CUDNN_ATTENTION)),
        )
    itemsize = bench.dtype.itemsize
    return Case(
        name,
        lambda: ours.paged_attention(query, keys, values, batch, head_dim**-0.5),
        (2 * entries * kv_heads * head_dim + 2 * query.numel()) * itemsize if new == 1 else None,
        4 * pairs * num_heads * head_dim if new > 1 else None,
        rivals,
    )


def attention_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """Llama 3's heads."""
    of, heads = bench.sizes.of, (32, 8, 128) if bench.on_gpu else (4, 2, 32)
    for count, context in ((64, 8000), (256, 1000), (1, 8000), (1, 100_000)):
        name = f"decode attention, {count} x {context}"
        yield attention_case(bench, ours, name, [(1, of(context, 20))] * of(count), heads)
    for count, length in ((1, 8192), (8, 1024)):
        sequences = [(of(length, 24), of(length, 24))] * count
        yield attention_case(bench, ours, f"prefill attention, {count} x {length}", sequences, heads)
    mixed = [(of(2048, 20), of(8192, 40)), *[(1, of(4000, 30))] * of(32, 2)]
    yield attention_case(bench, ours, "a chunk of 2048 after 6144, and 32 decodes", mixed, heads)


def row_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """What is a matter of bandwidth alone, over the rows of a prefill."""
    rows, hidden, inner = (bench.sizes.of(size, 32) for size in (8192, 4096, 14336))
    x, residual, weight = bench.numbers(rows, hidden), bench.numbers(rows, hidden), bench.numbers(hidden)
    yield Case("add_rms_norm", lambda: ours.add_rms_norm(x, residual, weight, 1e-6), 4 * x.nbytes)
    gate_up = bench.numbers(rows, 2 * inner)
    yield Case("silu_and_mul", lambda: ours.silu_and_mul(gate_up), 1.5 * gate_up.nbytes)
    query, key, value = (bench.numbers(rows, heads, 128) for heads in (32, 8, 8))
    norms = HeadNorms(query=bench.numbers(128), key=bench.numbers(128), eps=1e-6, wide=False)
    table = torch.randn(rows, 128, device=bench.device)
    places = torch.randperm(rows, device=bench.device)
    keys, values = (bench.numbers(rows // BLOCK, 8, BLOCK, 128) for _ in range(2))
    yield Case(
        "rope_and_write_kv, with norms",
        lambda: ours.rope_and_write_kv(query, key, value, table, places, keys, values, places, norms),
        2 * (query.nbytes + key.nbytes + value.nbytes) + table.nbytes,
    )


def product_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """Products with whole weights, and Qwen3-30B-A3B's experts."""
    of = bench.sizes.of
    weight = bench.numbers(of(28672, 32), of(4096, 32))
    for rows in (1, 64, 4096):
        x = bench.numbers(of(rows), weight.shape[1])
        few = rows <= 64
        yield Case(
            f"linear, {rows} rows",
            lambda x=x: ours.linear(x, weight),  # type: ignore[misc]
            weight.nbytes if few else None,
            None if few else 2 * weight.numel() * len(x),
        )
    num_experts, top_k, hidden, inner = of(128, 4), of(8, 2), of(2048, 32), of(768, 32)
    gate_up, down = bench.numbers(num_experts, 2 * inner, hidden), bench.numbers(num_experts, hidden, inner)
    for tokens in (1, 32, 8192):
        x = bench.numbers(of(tokens), hidden)
        weights, experts = ours.route(bench.numbers(len(x), num_experts), top_k, True)
        used = len(set(experts.flatten().tolist())) / num_experts * (gate_up.nbytes + down.nbytes)
        few = tokens <= 32
        yield Case(
            f"moe, {tokens} tokens",
            lambda x=x, weights=weights, experts=experts: ours.moe(  # type: ignore[misc]
                x, gate_up, down, weights, experts, "silu"
            ),
            used if few else None,
            None if few else 2 * 3 * experts.numel() * hidden * inner,
        )


def sampling_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """Over Qwen's vocabulary."""
    for rows in (1, 64):
        logits = 3 * torch.randn(rows, bench.sizes.of(151936, 300), device=bench.device)
        for name, temperature, top_k, top_p in (
            ("greedy", 0.0, 0, 1.0),
            ("plain", 1.0, 0, 1.0),
            ("top_k 50, top_p 0.9", 1.0, 50, 0.9),
        ):
            params = sampling(bench, rows, temperature, top_k, top_p)
            yield Case(
                f"sample {name}, {rows} rows",
                lambda logits=logits, params=params: ours.sample(logits, params),  # type: ignore[misc]
                logits.nbytes,
            )


def sampling(bench: Bench, rows: int, temperature: float, top_k: int, top_p: float) -> SamplingTensors:
    """The same for all rows, but for the seed."""
    device = bench.device
    return SamplingTensors(
        temperature=torch.full((rows,), temperature, device=device),
        top_k=torch.full((rows,), top_k, dtype=torch.int32, device=device),
        top_p=torch.full((rows,), top_p, device=device),
        min_p=torch.zeros(rows, device=device),
        seed=torch.arange(rows, device=device),
        sample=torch.zeros(rows, dtype=torch.int32, device=device),
        position=torch.arange(rows, device=device),
    )


def model_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """Llama 3 8B's shape with weights of nothing: its prefill, and its decode as the executor runs it."""
    of = bench.sizes.of
    decoder = random_decoder(bench, ours)
    embedded = decoder.spec.vocab_size * decoder.spec.hidden_size  # looked up, not multiplied with
    matrices = sum(tensor.numel() for tensor in weights_of(decoder) if tensor.dim() == 2) - embedded
    length = of(4096, 32)
    num_blocks = of(64 * 1024, 128) // BLOCK + 1
    caches = decoder.allocate_kv_caches(num_blocks, BLOCK)
    batch = attention_batch(bench, [(length, length)])
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
    """All of them."""
    groups = (decoder._weights, *decoder._layer_weights)
    return [weight for group in groups for weight in group.values() if isinstance(weight, Tensor)]


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


TRIED = {
    "decode": [
        Attention(16, entries, warps, stages)
        for entries in (16, 32, 64, 128)
        for warps in (2, 4, 8)
        for stages in (5, 7, 9)
    ],
    "prefill": [
        Attention(rows, entries, warps, stages)
        for rows in (64, 128)
        for entries in (32, 64, 128)
        for warps in (4, 8)
        for stages in (3, 5, 7)
    ],
}


def tune(bench: Bench, ours: Kernels) -> None:
    """Prints the fastest tiles for each head size."""
    from triton.runtime.errors import OutOfResources, PTXASError

    for kernel, tried in TRIED.items():
        sequences = [(1, 8000)] * 64 if kernel == "decode" else [(4096, 4096)] * 2
        for head_dim in (64, 128, 256):
            case = attention_case(bench, ours, kernel, sequences, (32, 8, head_dim))
            times: dict[Attention, float] = {}
            for tiles in tried:
                with (
                    patch("pageant.kernels.triton.attention.attention_tiles", return_value=tiles),
                    contextlib.suppress(OutOfResources, PTXASError),
                ):
                    times[tiles] = bench.seconds(case.run)
            best = sorted(times, key=lambda tiles: times[tiles])[:3]
            for tiles in best:
                print(f"{kernel:8} {head_dim:4}: {tiles}  # {times[tiles] * 1e6:.1f} us", flush=True)


def report(bench: Bench) -> dict[str, Any]:
    """When, on what, and how fast that is."""
    facts: dict[str, Any] = {
        "machine": machine(),
        "device": torch.cuda.get_device_name(bench.device) if bench.on_gpu else "cpu",
        "cuda": torch.version.cuda,
        "dtype": str(bench.dtype).removeprefix("torch."),
        "copy_gigabytes_per_second": round(bench.bytes_per_second / 1e9, 1),
        "matrix_teraflops": round(bench.flops_per_second / 1e12, 1),
    }
    with contextlib.suppress(ImportError):
        import triton

        facts["triton"] = triton.__version__
    return facts


@torch.inference_mode()
def main() -> None:
    """Prints a line for each case, and writes all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--write", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--model", help="a checkpoint to generate with, beside transformers")
    parser.add_argument("--tune", action="store_true", help="time other tiles for attention")
    parser.add_argument("--tiny", action="store_true", help="small shapes: whether all of this runs")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    # The interpreter's bfloat16 is wrong.
    bench = Bench(device, BF16 if device.type == "cuda" else torch.float32, TINY if options.tiny else FULL)
    ours = kernels.load("triton", options.device)
    facts = report(bench)
    print(json.dumps(facts, indent=1), flush=True)
    if options.tune:
        tune(bench, ours)
        return
    results = []
    for cases in (attention_cases, row_cases, product_cases, sampling_cases, model_cases):
        for case in cases(bench, ours):
            if options.only in case.name:
                results.append(bench.measure(case))
                print(line(results[-1]), flush=True)
    if options.model:
        results += end_to_end(bench, options.model)
    bars = {
        result.name: getattr(result, BARS[result.name][0]) >= BARS[result.name][1]
        for result in results
        if result.name in BARS and getattr(result, BARS[result.name][0]) is not None
    }
    print("bars:", ", ".join(f"{name}: {'met' if met else 'MISSED'}" for name, met in bars.items()))
    if options.write:
        written = {**facts, "bars_met": bars, "results": [asdict(result) for result in results]}
        options.write.write_text(json.dumps(written, indent=1) + "\n")


def line(result: Result) -> str:
    """One result in words."""
    shares = {name: share for name, share in asdict(result).items() if isinstance(share, float)}
    microseconds = shares.pop("microseconds")
    said = ", ".join(f"{share:.0%} of {name}" for name, share in shares.items())
    return f"{result.name:48} {microseconds:12.1f} us  {said}"


if __name__ == "__main__":
    main()
