"""The proof that a foreign model is right in pages: two sequences in three steps, beside plain attention."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from pageant.kernels.base import AttentionBatch
from pageant.models.checkpoint import Checkpoint
from pageant.models.decoder import Decoder
from pageant.models.errors import CheckpointError

__all__ = ["prove", "reference_logits"]

_LENGTHS = (11, 6)
_STEPS = ((7, 4), (3, 1), (1, 1))  # tokens of each sequence: chunks, a chunk beside a decode, decodes
_BLOCK_SIZE = 4
_TABLES = ((4, 1, 3), (0, 2, 5))
_ERRORS_MAX = {torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
"""Of the logits' root mean square. A token that attends to what it must not errs by about 1."""


def reference_logits(model: PreTrainedModel) -> Tensor:
    """Return float32 [11 + 6, vocab_size]: what transformers makes of the sequences with its own attention."""
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    texts = [_tokens(index, model.config.get_text_config().vocab_size) for index in range(2)]
    logits = [model(input_ids=text[None].to(model.device), use_cache=False).logits[0] for text in texts]
    model.set_attn_implementation(implementation)
    return torch.cat(logits).float()


def prove(decoder: Decoder, expected: Tensor, checkpoint: Checkpoint) -> None:
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


def _compare(found: Tensor, expected: Tensor, dtype: torch.dtype, checkpoint: Checkpoint) -> None:
    error = (found - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    if not error <= _ERRORS_MAX[dtype]:
        name = checkpoint.config["architectures"][0]
        raise CheckpointError(
            checkpoint.path,
            f"{name} computes something else in pages (its logits are off by {float(error):.2g})",
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
