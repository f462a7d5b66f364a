"""Steps of a model of Llama 3 8B's shape: decodes, a prefill, a mixed step and a verification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pageant import kernels
from pageant.models.native import NativeDecoder
from pageant.scripts.bench.gpu_check.cases import Recorder
from pageant.scripts.bench.gpu_check.measuring import BLOCK, Bench, bench_here
from pageant.scripts.bench.gpu_check.models import Stepper, random_decoder, read_spec, weights_of
from pageant.scripts.samples.steps import step_inputs

__all__ = ["config_8b", "run", "shape_steps"]

Lengths = Sequence[tuple[int, int]]

_SEQUENCES_MAX = 256
_STEP_SECONDS = 2.5
_PROFILED = ("decode 64 x 1000", "prefill 4096")  # with a graph and without


@torch.inference_mode()
def run(recorder: Recorder, tiny: bool) -> None:
    """Measure each kind of step."""
    bench = bench_here(tiny=tiny)
    torch.manual_seed(0)
    ours = kernels.load("triton", bench.device.type)
    decoder = random_decoder(bench, ours, read_spec(config_8b(bench)))
    steps = shape_steps(bench)
    needed = [sum(-(-context // BLOCK) for _, context in lengths) for _, lengths, _ in steps]
    stepper = Stepper(bench, decoder, max(needed), _SEQUENCES_MAX)
    for name, lengths, draws_after_each in steps:
        if recorder.seconds_left < _STEP_SECONDS:
            recorder.add(name, error="not reached: the section's time is over")
            continue
        with recorder.contain(name):
            figures = stepper.measure(step_inputs(lengths, draws_after_each=draws_after_each))
            recorder.add(name, **figures, **_least(decoder, lengths))
            if name in (_PROFILED[:1] if bench.tiny else _PROFILED):
                stepper.profile(step_inputs(lengths, draws_after_each=draws_after_each))
        bench.synchronize()


def shape_steps(bench: Bench) -> list[tuple[str, Lengths, bool]]:
    """Return names, (new tokens, context) of the sequences, and whether a token is drawn after every token."""
    of = bench.of

    def decode(count: int, context: int) -> tuple[str, Lengths, bool]:
        return f"decode {count} x {context}", [(1, of(context, 20))] * of(count), False

    prompt, chunk = of(4096, 24), of(512, 20)
    return [
        decode(1, 1000),
        decode(64, 1000),
        ("prefill 4096", [(prompt, prompt)], False),
        decode(16, 1000),
        ("verify 16 x 5", [(5, of(1000, 20))] * of(16, 2), True),
        ("mixed 512 and 32 decodes", [(chunk, chunk), *[(1, of(1000, 20))] * of(32, 2)], False),
        decode(256, 1000),
        decode(8, 8000),
    ]


def config_8b(bench: Bench) -> dict[str, Any]:
    """Return Llama 3 8B's configuration, or one of two small layers in a rehearsal."""
    of, tiny = bench.of, bench.tiny
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": of(4096, 64),
        "intermediate_size": of(14336, 96),
        "num_hidden_layers": of(32, 2),
        "num_attention_heads": 4 if tiny else 32,
        "num_key_value_heads": 2 if tiny else 8,
        "head_dim": 16 if tiny else 128,
        "vocab_size": of(128256, 300),
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
    }


def _least(decoder: NativeDecoder, lengths: Lengths) -> dict[str, float]:
    """Return the bytes that a step must read, and the operations of its products and its attention."""
    spec = decoder.spec
    embedding = spec.vocab_size * spec.hidden_size  # looked up, not multiplied with
    matrices = sum(weight.numel() for weight in weights_of(decoder) if weight.dim() == 2) - embedding
    tokens = sum(new for new, _ in lengths)
    pairs = sum(new * context - new * (new - 1) // 2 for new, context in lengths)
    kv_bytes = sum(context for _, context in lengths) * decoder.kv_bytes_per_block(BLOCK) // BLOCK
    head = (
        embedding * (tokens - len(lengths)) if max(new for new, _ in lengths) > 8 else 0
    )  # it draws once a sequence
    return {
        "bytes": float(matrices * decoder.dtype.itemsize + kv_bytes),
        "flops": float(
            2 * (matrices * tokens - head) + 4 * pairs * spec.attention.query_size * spec.num_layers
        ),
    }
