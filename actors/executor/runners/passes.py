"""A decoder's passes over packed tokens: from arrays of the host to hidden states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageant.actors.executor.batch.inputs import (
    AdaptedTokens,
    EmbeddedTokens,
    EncodedStep,
    Packed,
    StepInputs,
)
from pageant.actors.executor.on_device import to_device
from pageant.actors.executor.runners.programs import Awaiting, StepPrograms
from pageant.kernels.base import AttentionBatch, KVCache, Span, StateRows
from pageant.kernels.collectives.group_operations import GroupOperations
from pageant.kernels.recording import RecordingKernels
from pageant.models.adapters.loading import Adapters
from pageant.models.decoder import Decoder, Embedded, Wanted
from pageant.models.encoder_attention import Encoded
from pageant.models.hearing_decoder import HearingDecoder

__all__ = ["Passes", "attention_batch", "decodes"]


class Passes:
    """Forward passes of one decoder. On a CPU, small ones are recorded, if nobody reads between its layers.

    Those with adapters are not: which tokens have which is as much part of a recording as addresses are. Nor are those
    with embeddings of their own.

    Args:
        last_drawn: int64 [rows of the batch], on the device: the token that each drew last.
        operations: this rank's operations with others that compute the model with it; None where it is alone. With
            others, passes are recorded if all that they exchange can be recorded too, and logits never are.
        records: whether passes may be recorded.
    """

    def __init__(
        self,
        decoder: Decoder,
        kv_caches: Sequence[KVCache],
        last_drawn: Tensor,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        clock: Callable[[], float] = lambda: 0.0,
        adapters: Adapters | None = None,
        operations: GroupOperations | None = None,
        records: bool = True,
    ) -> None:
        self.decoder = decoder
        self._adapters = adapters
        self._kv_caches = kv_caches
        self._last_drawn = last_drawn
        self._programs: StepPrograms | None = None
        self._is_alone = operations is None
        if (
            records
            and (operations is None or _may_record(operations))
            and isinstance(decoder.kernels, RecordingKernels)
            and not decoder.taps
            and decodes(decoder)
        ):
            self._programs = StepPrograms(
                self.forward,
                decoder.logits,
                decoder.head,
                decoder.kernels,
                num_groups=len(decoder.groups.windows),
                max_num_seqs=max_num_seqs,
                max_model_len=max_model_len,
                block_size=block_size,
                last_drawn=last_drawn,
                clock=clock,
                check=None if operations is None else operations.stage.check,
                taken_in=kv_caches if decoder.spec.is_recurrent else (),
            )

    def run(
        self,
        packed: Packed,
        ancestors: npt.NDArray[np.int64] | None = None,
        adapted: Sequence[AdaptedTokens] = (),
        wanted: npt.NDArray[np.int64] | None = None,
        embedded: Sequence[EmbeddedTokens] = (),
        token_types: npt.NDArray[np.int64] | None = None,
        rotary: npt.NDArray[np.int64] | None = None,
        encoded: EncodedStep | None = None,
    ) -> Tensor:
        """Return hidden states [T, hidden_size], or [D, hidden_size], good until the next call.

        Args:
            ancestors: see `AttentionBatch`.
            wanted: [D], which of the tokens to return, at most one of each sequence; None is all.
            token_types: see `Decoder.forward`.
            rotary: [3, T], positions that tokens are rotated by, where these are not their own.
            encoded: what encoders made, to which tokens attend as well.
        """
        some = wanted if wanted is not None and len(wanted) < len(packed.positions) else None
        if self._programs is not None and not adapted and not embedded and rotary is None and encoded is None:
            hidden = self._programs.run(packed, ancestors)
            if hidden is not None:
                return hidden if some is None else hidden[to_device(some, hidden.device)]
        device = self.decoder.device
        token_ids = to_device(packed.token_ids, device)
        if len(packed.unknown):
            token_ids[to_device(packed.unknown, device)] = self._last_drawn[
                to_device(packed.unknown_rows, device)
            ]
        positions = to_device(packed.positions if rotary is None else rotary, device)
        types = None if token_types is None else to_device(token_types, device)
        batch, given = attention_batch(packed, device, ancestors), self._on_device(embedded, packed)
        if encoded is not None:
            with self.attending(encoded, batch):
                hidden = self.forward(token_ids, positions, batch)
        elif some is not None and not adapted:
            sequences = packed.query_starts.searchsorted(some, side="right") - 1
            of_last = batch.groups[self.decoder.groups.of_layer[-1]]
            only = Wanted.of(to_device(some, device), to_device(sequences, device), of_last)
            return self.forward(token_ids, positions, batch, only, given, types)
        else:
            with self.adapting(adapted, len(packed.positions)):  # in every layer, by their places among all
                hidden = self.forward(token_ids, positions, batch, embedded=given, token_types=types)
        return hidden if some is None else hidden[to_device(some, device)]

    def draw(self, inputs: StepInputs) -> npt.NDArray[np.int64] | Awaiting | None:
        """Return the tokens [T] of a step that `only_draws`, if it is recorded, or what it draws from when its masks
        come."""
        return self._programs.draw(inputs) if self._programs is not None and self._is_alone else None

    def logits(self, inputs: StepInputs) -> Tensor | None:
        """Return the logits [T, V] of a step that `draws_after_each`, good until the next call, if it is recorded."""
        return self._programs.logits(inputs) if self._programs is not None and self._is_alone else None

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        batch: AttentionBatch,
        wanted: Wanted | None = None,
        embedded: Embedded | None = None,
        token_types: Tensor | None = None,
    ) -> Tensor:
        """See `Decoder.forward`."""
        return self.decoder.forward(
            token_ids, positions, batch, self._kv_caches, wanted, embedded, token_types
        )

    def embedded(self, inputs: StepInputs) -> Embedded | None:
        """Return what stands in for the embeddings of a step's tokens, on the device."""
        return self._on_device(inputs.embedded, inputs)

    def _on_device(self, embedded: Sequence[EmbeddedTokens], packed: Packed) -> Embedded | None:
        if not embedded:
            return None
        tokens = np.concatenate([one.tokens for one in embedded])
        rows = np.concatenate([one.rows for one in embedded])
        device = self.decoder.device
        images = _images(embedded, packed) if self.decoder.spec.sees_whole_images else ()
        return Embedded(to_device(tokens, device), to_device(rows, device).to(self.decoder.dtype), images)

    @contextmanager
    def attending(self, encoded: EncodedStep | None, batch: AttentionBatch) -> Iterator[None]:
        """Let the tokens of a step attend to what their encoders made within the context."""
        if encoded is None:
            yield
            return
        decoder, device = self.decoder, self.decoder.device
        assert isinstance(decoder, HearingDecoder), "others have no encoders"
        # Copies: what came in messages cannot be written to, and torch wants it so.
        new = [(row, to_device(made.copy(), device).to(decoder.dtype)) for row, made in encoded.new]
        with decoder.attending(Encoded(to_device(encoded.rows.astype(np.int64), device), new), batch):
            yield

    @contextmanager
    def adapting(self, adapted: Sequence[AdaptedTokens], num_tokens: int) -> Iterator[None]:
        """Give tokens of a step of so many their adapters within the context."""
        if not adapted:
            yield
            return
        assert self._adapters is not None, "a batch without adapters has no such tokens"
        device = self.decoder.device
        tokens_of = [
            (name, None if len(tokens) == num_tokens else to_device(tokens, device))
            for name, tokens in adapted
        ]
        with self._adapters.applied(tokens_of):
            yield


def _may_record(operations: GroupOperations) -> bool:
    """Tell whether passes of a group's rank can be recorded.

    A recording that fails half-way is computed again from its beginning. Ranks of a stage do so together, since they
    make the same calls; another stage would wait for what has been received already.
    """
    return operations.stage.is_recordable and operations.links is None


def _images(embedded: Sequence[EmbeddedTokens], packed: Packed) -> tuple[Span, ...]:
    """Return the spans of images among a step's tokens."""
    found = []
    for tokens in (one.tokens for one in embedded if one.are_images):
        for run in np.split(tokens, np.flatnonzero(np.diff(tokens) != 1) + 1):
            first, last = int(run[0]), int(run[-1])
            sequence = int(packed.query_starts.searchsorted(first, side="right")) - 1
            found.append(Span(first, last + 1, sequence, int(packed.positions[last]) + 1))
    return tuple(found)


def decodes(decoder: Decoder) -> bool:
    """Tell whether it computes one token of a sequence after another, in steps that are alike, and attends to nothing
    else. Steps of whole texts never are."""
    spec = decoder.spec
    return spec.is_causal and spec.has_head and not isinstance(decoder, HearingDecoder)


def attention_batch(
    packed: Packed, device: torch.device, ancestors: npt.NDArray[np.int64] | None = None
) -> AttentionBatch:
    """Return the layout of packed tokens for attention, on the device.

    ancestors: int64 [T, depth], where tokens are in a tree.
    """
    return AttentionBatch.of_groups(
        to_device(packed.block_tables, device),
        to_device(packed.slots, device),
        query_starts=to_device(packed.query_starts, device),
        context_lengths=to_device(packed.context_lengths, device),
        positions=to_device(packed.positions, device),
        max_query_length=packed.max_query_length,
        max_context_length=packed.max_context_length,
        ancestors=None if ancestors is None else to_device(ancestors, device),
        states=None if packed.states is None else StateRows(*packed.states),
    )
