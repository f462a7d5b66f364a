"""Cost and gain of a KV cache in 8 bits: `python -m pageant.scripts.bench.kernels.kv_8_bits`.

Attention of decodes over long contexts is timed in turns with the cache in bfloat16. The layers together have more keys
and values than caches keep. With `--model`, the perplexity of a text is measured with each cache: of `--text`, or of
Python's documentation.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pageant import kernels
from pageant.kernels.base import AttentionBatch, Kernels
from pageant.kernels.quantized_kv import KVFormat, kv_dtype
from pageant.models.kv_cache import KVLayout
from pageant.scripts.bench.kernels.pairs import Pair, in_turn
from pageant.scripts.bench.quantized.smollm2 import documentation
from pageant.scripts.report import publish

FORMATS: tuple[KVFormat, ...] = ("int8", "fp8")
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 16, 8, 128, 16
LAYERS = 12
WINDOW = 512
"""Tokens of a text that are scored at a time."""


def decode_pairs(kernels_: Kernels, turns: int, context: int) -> Iterator[Pair]:
    """Yield attention of one layer, 1 and 4 sequences of `context` tokens each: bfloat16, then 8 bits."""
    for sequences in (1, 4):
        num_blocks = sequences * -(-context // BLOCK)
        caches = {
            name: _layers(name, num_blocks // (2 if sequences > 1 else 1)) for name in ("auto", *FORMATS)
        }
        batch = _decodes(sequences, context, len(caches["auto"][0][0]))
        query = torch.randn(sequences, HEADS, HEAD_DIM).bfloat16()

        def attend(name: KVFormat, turn: int) -> Tensor:
            keys, values = caches[name][turn // 2 % LAYERS]  # noqa: B023
            return kernels_.paged_attention(query, keys, values, batch, HEAD_DIM**-0.5)  # noqa: B023

        for name in FORMATS:
            what = f"{sequences} of {context} tokens, {name}"
            yield in_turn(what, partial(attend, "auto"), partial(attend, name), turns)


def _layers(name: KVFormat, num_blocks: int) -> list[tuple[Tensor, Tensor]]:
    """Caches that hold normal numbers."""
    layout = KVLayout(LAYERS, KV_HEADS, HEAD_DIM, kv_dtype(name, torch.bfloat16))
    caches = layout.allocate(num_blocks, BLOCK, torch.device("cpu"))
    reference = kernels.load("reference")
    slots = torch.arange(num_blocks * BLOCK)
    heads = torch.randn(len(slots), KV_HEADS, HEAD_DIM).bfloat16()
    for keys, values in caches:
        reference.write_kv(heads, heads, keys, values, slots)
    return caches


def _decodes(sequences: int, context: int, num_blocks: int) -> AttentionBatch:
    each = -(-context // BLOCK)
    tables = torch.arange(sequences * each, dtype=torch.int32).view(sequences, each) % num_blocks
    return AttentionBatch(
        query_starts=torch.arange(sequences + 1, dtype=torch.int32),
        context_lengths=torch.full((sequences,), context, dtype=torch.int32),
        block_tables=tables,
        slots=torch.zeros(sequences, dtype=torch.int64),
        positions=torch.full((sequences,), context - 1),
        max_query_length=1,
        max_context_length=context,
    )


def perplexity(model: str, text: str, name: KVFormat, windows: int, dtype: str) -> float:
    """Return the perplexity of the text's first windows, each scored from its second token on."""
    import pageant

    settings: dict[str, Any] = {"max_model_len": WINDOW + 1, "kv_cache_dtype": name, "dtype": dtype}
    with pageant.LLM(model, placement="one", progress=False, enable_prefix_caching=False, **settings) as llm:
        ids = llm.get_tokenizer().encode(text)
        prompts = [ids[at : at + WINDOW] for at in range(0, len(ids) - WINDOW, WINDOW)][:windows]
        params = pageant.SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        outputs = llm.generate(prompts, params, progress=False)
    logprobs = [
        place[token].logprob
        for prompt, output in zip(prompts, outputs, strict=True)
        for token, place in zip(prompt[1:], (output.prompt_logprobs or [])[1:], strict=True)
        if place is not None
    ]
    return math.exp(-sum(logprobs) / len(logprobs))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print figures, and write them as JSON where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--context", type=int, default=4000)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--text", type=Path, nargs="+", default=[])
    parser.add_argument("--windows", type=int, default=12, help=f"of {WINDOW} tokens")
    parser.add_argument("--dtype", default="float32", help="of the models")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    pairs: list[Pair] = []
    with torch.inference_mode():
        if options.turns:
            pairs = list(decode_pairs(kernels.load("cpu"), options.turns, options.context))
    lines = [
        f"{pair.name}: {pair.first_us} us in bfloat16, {pair.second_us}, {pair.ratio:.2f} times as fast"
        for pair in pairs
    ]
    text = "\n".join(path.read_text() for path in options.text) or documentation()[1]
    perplexities: dict[str, dict[KVFormat, float]] = {}
    for model in options.model:
        each = {
            name: perplexity(model, text, name, options.windows, options.dtype) for name in ("auto", *FORMATS)
        }
        perplexities[Path(model).name] = each
        more = ", ".join(f"{name} {each[name] / each['auto'] - 1:+.3%}" for name in FORMATS)
        lines.append(f"{model}: {each['auto']:.4f}; {more}")
    publish({"pairs": [asdict(pair) for pair in pairs], "perplexity": perplexities}, lines, options.json)


if __name__ == "__main__":
    main()
