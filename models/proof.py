"""The proof that a foreign model is right in pages: two sequences in three steps, beside plain attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pageant.kernels.base import AttentionBatch
from pageant.models.checkpoint import Checkpoint
from pageant.models.decoder import Decoder
from pageant.models.errors import CheckpointError

__all__ = ["Reference", "prove", "reference_logits"]

_LENGTHS = (11, 6)
_STEPS = ((7, 4), (3, 1), (1, 1))  # tokens of each sequence: chunks, a chunk beside a decode, decodes
_BLOCK_SIZE = 4
_TABLES = ((4, 1, 3), (0, 2, 5))
_ERRORS_MAX = {torch.float32: 1e-3, torch.bfloat16: 0.04, torch.float16: 0.01}
"""Of the logits' root mean square; what rounding does is about 1e-6, 0.01 and 0.001. On random weights, a
window that is left out errs by 0.08 and more, positions off by one by 0.06, keys of a wrong layer by 0.6."""
_NOISE_MULTIPLE_MAX = 4.0
"""A model that rounding disturbs more (one whose experts are nearly tied, say) may err by so many times
what two attentions of transformers differ by, but never by more than `_ERROR_LIMIT`."""
_ERROR_LIMIT = 0.2


@dataclass(frozen=True, slots=True)
class Reference:
    """Reference for sequences, by transformers. Their logits follow one another."""

    logits: Tensor
    """float32 [11 + 6, vocab_size], by its plain attention."""
    noise: float
    """How far another of its attentions is off, of the logits' root mean square; 0 where there is none."""


def reference_logits(model: PreTrainedModel) -> Reference:
    """Run the sequences whole with transformers' own attention. Leaves the model as it was."""
    implementation = model.config._attn_implementation
    texts = [_tokens(index, model.config.get_text_config().vocab_size) for index in range(2)]
    found = []
    for name in ("eager", "sdpa") if model._supports_sdpa else ("eager",):
        model.set_attn_implementation(name)
        logits = [model(input_ids=text[None].to(model.device), use_cache=False).logits[0] for text in texts]
        found.append(torch.cat(logits).float())
    model.set_attn_implementation(implementation)
    return Reference(found[0], _error(found[-1], found[0]))


def prove(decoder: Decoder, expected: Reference, checkpoint: Checkpoint) -> None:
    """Raise CheckpointError when the decoder's logits are not those expected."""
    caches = decoder.allocate_kv_caches(num_blocks=6, block_size=_BLOCK_SIZE)
    texts = [_tokens(index, decoder.spec.vocab_size) for index in range(2)]
    found: tuple[list[Tensor], list[Tensor]] = ([], [])
    starts = [0, 0]
    for step in _STEPS:
        stops = [start + count for start, count in zip(starts, step, strict=True)]
        batch = _batch(starts, stops, decoder.device)
        tokens = torch.cat([text[a:b] for text, a, b in zip(texts, starts, stops, strict=True)])
        hidden = decoder.forward(tokens.to(decoder.device), batch.positions, batch, caches)
        for rows, logits in zip(found, torch.split_with_sizes(decoder.logits(hidden), step), strict=True):
            rows.append(logits)
        starts = stops
    _compare(torch.cat([*found[0], *found[1]]), expected, decoder.dtype, checkpoint)


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())


def _compare(found: Tensor, expected: Reference, dtype: torch.dtype, checkpoint: Checkpoint) -> None:
    error = _error(found, expected.logits)
    of_noise = min(_NOISE_MULTIPLE_MAX * expected.noise, _ERROR_LIMIT)
    if not error <= max(_ERRORS_MAX[dtype], of_noise):
        name = checkpoint.config["architectures"][0]
        raise CheckpointError(
            checkpoint.path,
            f"{name} computes something else in pages (its logits are off by {error:.2g})",
            "the logits that it has with transformers' own attention",
            "Use another model, or add a file to models/architectures.",
        )


def _tokens(sequence: int, vocab_size: int) -> Tensor:
    """Return int64 [length]: some tokens, always the same."""
    return (torch.arange(_LENGTHS[sequence]) * 7919 + 101 * sequence + 17) % vocab_size


def _batch(starts: list[int], stops: list[int], device: torch.device) -> AttentionBatch:
    """The step that takes each sequence from its start to its stop."""
    positions = [torch.arange(start, stop) for start, stop in zip(starts, stops, strict=True)]
    slots = [
        torch.tensor(table)[places // _BLOCK_SIZE] * _BLOCK_SIZE + places % _BLOCK_SIZE
        for table, places in zip(_TABLES, positions, strict=True)
    ]
    counts = [len(places) for places in positions]
    return AttentionBatch(
        query_starts=torch.tensor([0, counts[0], sum(counts)], dtype=torch.int32, device=device),
        context_lengths=torch.tensor(stops, dtype=torch.int32, device=device),
        block_tables=torch.tensor(_TABLES, dtype=torch.int32, device=device),
        slots=torch.cat(slots).to(device),
        positions=torch.cat(positions).to(device),
        max_query_length=max(counts),
        max_context_length=max(stops),
    )
