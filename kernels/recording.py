"""The contract of kernels whose calls can be recorded: for steps that are made again without Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor

from pageant.kernels.base import Kernels, Narrowed, NeededLogits, NeededRest, SamplingTensors
from pageant.kernels.quantized import QuantizedWeight

__all__ = ["RecordingKernels"]


@runtime_checkable
class RecordingKernels(Kernels, Protocol):
    """Kernels whose calls can be recorded and made again without Python, masks being awaited in between.

    A row's mask is in a slot of a table, which another thread writes to. Slots of rows without a mask are
    `UNMASKED`, those of void rows `VOID`.
    """

    def capture(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Call `run` and record its kernel calls. Return the function that repeats them in the same memory.

        All recordings share memory for intermediate results, and so does what each returns, [...] of any dtype:
        valid until the next call. Not to be called while another thread uses these kernels.

        Raises RuntimeError if something is computed that cannot be recorded.
        """
        ...

    def gate(
        self, table: Tensor, slots: Tensor, expected: Tensor, patience: Tensor, *, ends: bool = True
    ) -> Tensor:
        """Wait until each table[slots[i]] is expected[i], except where slots[i] is negative.

        table: int64 [S]. slots, expected: int64 [n]. patience: int64 [n + 1], the most nanoseconds to wait, by how
        many are missing. If that passes at a replay and `ends` is set, the recording ends with this call.

        Returns int64 [3]: 1 if all came, else 0; the nanoseconds waited; the time of a steady clock at the beginning.
        """
        ...

    def narrow(
        self,
        hidden: Tensor,
        slots: Tensor,
        bits: Tensor,
        table: Tensor,
        expected: Tensor,
        patience: Tensor,
    ) -> Narrowed:
        """Put hidden states [R, N] in the order in which their logits are needed, by the masks in the table.

        slots: int64 [R]. bits: int32 [S, V / 32 rounded up]. table, expected, patience: see `gate`.
        """
        ...

    def narrow_rest(
        self,
        hidden: Tensor,
        slots: Tensor,
        bits: Tensor,
        table: Tensor,
        expected: Tensor,
        narrowed: Narrowed,
    ) -> NeededRest:
        """Return the further logits that are needed after `narrow` with the same arguments (hidden [R, N], slots int64
        [R]). Mutates `narrowed`, whose order then goes by the masks that have come.
        """
        ...

    def screen(self, hidden: Tensor, head: QuantizedWeight, params: SamplingTensors) -> NeededLogits:
        """Return the logits of one hidden state [1, N] that are needed to sample its token.

        head: [V, N] in halves, for a dtype of `halves`. Logits that are not needed are -inf in `into`, float32 [1, V].
        """
        ...

    def sample_by_table(
        self,
        logits: Tensor,
        params: SamplingTensors,
        slots: Tensor | None = None,
        bits: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """Sample as `sample` does, with masks in a table. Returns int64 [R].

        logits: float32 [R, V]. slots: int64 [R], `UNMASKED` without the argument. bits: int32 [S, V / 32 rounded up].
        places: int64 [R], the row of `logits` that each row samples from; None is its own.
        """
        ...
