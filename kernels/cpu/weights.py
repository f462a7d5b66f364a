"""Products with weights: plain ones, quantised ones, and both in tiles.

Weights in tiles are for dtypes whose products take them; other dtypes get a row-major copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pageant.kernels.base import NO_BIASES, ExpertBiases, NeededLogits
from pageant.kernels.cpu.compiled import ACTIVATIONS
from pageant.kernels.cpu.layers import LayerKernels
from pageant.kernels.cpu.products import (
    expert_weights,
    low_rank_products,
    product,
    quantized_gated_product,
    quantized_product,
    tiled_gated_product,
    tiled_product,
)
from pageant.kernels.low_rank import Addition
from pageant.kernels.quantized import QuantizedWeight, Weight, empty_quantized, in_parts
from pageant.kernels.tiled import LinearWeight, TiledWeight

__all__ = ["WeightKernels"]

# Numbers that are quantised at a time.
_QUANTIZED_TOGETHER = 8 << 20


class WeightKernels(LayerKernels):
    """The `Kernels` that multiply, embed and quantise."""

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None = None) -> Tensor:
        """See `Kernels.linear`."""
        weight = self._tiled_or_plain(weight, x.dtype)
        functions, rows = self._functions.get(x.dtype), x.shape[0]
        if isinstance(weight, QuantizedWeight):
            if functions is None:
                return self._fall_back("linear").linear(x, weight, bias)
            weight = self._as_taken(weight, x.dtype)
            y = self._empty(x.dtype, rows, weight.shape[0])
            quantized_product(functions, x, weight, bias, y.data_ptr(), None, self.rows_alike)
            return y
        if isinstance(weight, TiledWeight):
            y = self._empty(x.dtype, rows, weight.shape[0])
            tiled_product(self._library, x, weight, bias, y.data_ptr(), None)
            return y
        if functions is None or rows > self.rows_own_max[x.dtype]:
            return F.linear(x, weight, bias)
        y = self._empty(x.dtype, rows, weight.shape[0])
        product(functions, x, weight, bias, y.data_ptr(), None)
        return y

    def gated_linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None, activation: str) -> Tensor:
        """See `Kernels.gated_linear`."""
        rows, number = x.shape[0], ACTIVATIONS[activation]
        of_gate_alone = activation != "clamped_swiglu"  # which no product is fused with
        if x.dtype == torch.bfloat16 and of_gate_alone and self._gates_at_once(weight, rows):
            y = self._empty_padded(x.dtype, rows, weight.shape[0] // 2)
            if isinstance(weight, TiledWeight):
                tiled_gated_product(self._library, x, weight, bias, y, number)
            elif isinstance(weight, QuantizedWeight):
                quantized_gated_product(self._library, x, weight, bias, y, number)
            return y
        return self.act_and_mul(self.linear(x, weight, bias), activation)

    def _gates_at_once(self, weight: LinearWeight, rows: int) -> bool:
        """Tell whether `gated_linear` of `rows` rows of bfloat16 never has the product in memory."""
        if isinstance(weight, TiledWeight):
            return rows > self.gated_more
        return isinstance(weight, QuantizedWeight) and weight.in_tiles and rows > self.quantized_gated_more

    def add_low_rank(self, x: Tensor, y: Tensor, additions: Sequence[Addition]) -> None:
        """See `Kernels.add_low_rank`."""
        functions = self._functions.get(x.dtype)
        if functions is None:
            self._fall_back("add_low_rank").add_low_rank(x, y, additions)
        else:
            low_rank_products(functions, x, y, additions)

    def logits(self, hidden: Tensor, weight: LinearWeight, needed: NeededLogits | None = None) -> Tensor:
        """Compute logits; see `Kernels.logits`. Those that are not needed (`narrowing`) stay as they are in
        memory.
        """
        weight = self._tiled_or_plain(weight, hidden.dtype)
        functions, rows = self._functions.get(hidden.dtype), hidden.shape[0]
        whole = isinstance(weight, Tensor)
        if functions is None or (whole and rows > self.rows_own_max[hidden.dtype]):
            return self._fall_back("logits").logits(hidden, weight)
        which, logits = (None, None) if needed is None else (needed.which, needed.into)
        if logits is None:
            logits = self._empty(torch.float32, rows, weight.shape[0])
        if isinstance(weight, QuantizedWeight):
            weight = self._as_taken(weight, hidden.dtype)
            quantized_product(
                functions, hidden, weight, None, None, logits.data_ptr(), self.rows_alike, which
            )
        elif isinstance(weight, TiledWeight):
            tiled_product(self._library, hidden, weight, None, None, logits.data_ptr(), which)
        else:
            product(functions, hidden, weight, None, None, logits.data_ptr(), which)
        return logits

    def embed(self, token_ids: Tensor, weight: LinearWeight, dtype: torch.dtype) -> Tensor:
        """See `Kernels.embed`."""
        weight = self._tiled_or_plain(weight, dtype)
        functions = self._functions.get(dtype)
        if functions is None or (isinstance(weight, Tensor) and weight.dtype != dtype):
            return self._fall_back("embed").embed(token_ids, weight, dtype)
        rows, inputs = len(token_ids), weight.shape[1]
        embedded = self._empty(dtype, rows, inputs)
        if isinstance(weight, TiledWeight):
            self._library.gather_tiled_rows(
                weight.tiles.data_ptr(), inputs // 2, token_ids.data_ptr(), rows, embedded.data_ptr()
            )
            return embedded
        if isinstance(weight, Tensor):
            self._library.gather_rows(
                weight.data_ptr(), inputs * dtype.itemsize, token_ids.data_ptr(), rows, embedded.data_ptr()
            )
            return embedded
        functions.embed(
            token_ids.data_ptr(),
            rows,
            weight.values.data_ptr(),
            0 if weight.lower is None else weight.lower.data_ptr(),
            weight.scales.data_ptr(),
            weight.bits,
            weight.in_tiles,
            embedded.data_ptr(),
            inputs,
        )
        return embedded

    def embed_share(self, token_ids: Tensor, weight: LinearWeight, first: int, dtype: torch.dtype) -> Tensor:
        """See `Kernels.embed_share`."""
        functions = self._functions.get(dtype)
        if functions is None:
            return self._fall_back("embed_share").embed_share(token_ids, weight, first, dtype)
        tokens, (rows, columns) = len(token_ids), weight.shape
        local = token_ids.new_empty(tokens)
        self._library.rows_here(token_ids.data_ptr(), tokens, first, rows, local.data_ptr())
        embedded = self.embed(local, weight, dtype)
        part = self._empty(torch.float32, tokens, columns)
        functions.widen_here(
            *(embedded.data_ptr(), token_ids.data_ptr(), tokens, columns, first, rows, part.data_ptr())
        )
        return part

    def quantize(self, weight: Tensor, into: QuantizedWeight) -> None:
        """See `Kernels.quantize`."""
        functions = self._functions.get(weight.dtype)
        if functions is None:
            return self._fall_back("quantize").quantize(weight, into)
        weight = weight if weight.stride(1) == 1 else weight.contiguous()
        for part, destination in in_parts(weight, into, _QUANTIZED_TOGETHER):
            rows = empty_quantized(destination.shape, into.bits, "cpu") if into.in_tiles else destination
            functions.quantize(
                part.data_ptr(),
                part.stride(0),
                *part.shape,
                into.bits,
                into.in_halves,
                rows.values.data_ptr(),
                rows.scales.data_ptr(),
            )
            if into.in_tiles:
                destination.fill(rows)

    def route(self, logits: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
        """See `Kernels.route`."""
        functions = self._functions.get(logits.dtype)
        if functions is None:
            return self._fall_back("route").route(logits, top_k, normalise)
        tokens, num_experts = logits.shape
        weights = torch.empty(tokens, top_k, dtype=torch.float32)
        experts = torch.empty(tokens, top_k, dtype=torch.int64)
        functions.route(
            logits.data_ptr(),
            logits.stride(0),
            tokens,
            num_experts,
            top_k,
            normalise,
            weights.data_ptr(),
            experts.data_ptr(),
        )
        return weights, experts

    def route_in_groups(
        self, logits: Tensor, top_k: int, normalise: bool, *, scale: float, groups: int, groups_kept: int
    ) -> tuple[Tensor, Tensor]:
        """See `Kernels.route_in_groups`. The reference's, which is little beside the experts."""
        return self._fall_back("route_in_groups").route_in_groups(
            logits, top_k, normalise, scale=scale, groups=groups, groups_kept=groups_kept
        )

    def route_by_sigmoid(
        self,
        logits: Tensor,
        bias: Tensor,
        top_k: int,
        normalise: bool,
        *,
        scale: float = 1.0,
        groups: int = 1,
        groups_kept: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """See `Kernels.route_by_sigmoid`. The reference's, which is little beside the experts."""
        return self._fall_back("route_by_sigmoid").route_by_sigmoid(
            logits, bias, top_k, normalise, scale=scale, groups=groups, groups_kept=groups_kept
        )

    def moe(
        self,
        x: Tensor,
        gate_up: Weight,
        down: Weight,
        weights: Tensor,
        experts: Tensor,
        activation: str,
        *,
        biases: ExpertBiases = NO_BIASES,
        unrounded: bool = False,
    ) -> Tensor:
        """See `Kernels.moe`."""
        functions = self._functions.get(x.dtype)
        if isinstance(gate_up, QuantizedWeight) and isinstance(down, QuantizedWeight):
            gate_up, down = self._as_taken(gate_up, x.dtype), self._as_taken(down, x.dtype)
            if gate_up.in_tiles != down.in_tiles:
                gate_up, down = gate_up.in_rows(), down.in_rows()
        ours = expert_weights(gate_up, down)
        if functions is None or ours is None or activation not in ACTIVATIONS:
            return self._fall_back("moe").moe(
                x, gate_up, down, weights, experts, activation, biases=biases, unrounded=unrounded
            )
        tokens, hidden = x.shape
        y = self._empty(torch.float32 if unrounded else x.dtype, tokens, hidden)
        functions.moe(
            x.data_ptr(),
            x.stride(0),
            *ours,
            self.rows_alike,
            *(None if bias is None else bias.data_ptr() for bias in biases),
            weights.data_ptr(),
            experts.data_ptr(),
            *((None, y.data_ptr()) if unrounded else (y.data_ptr(), None)),
            tokens,
            experts.shape[1],
            gate_up.shape[0],
            hidden,
            down.shape[2],
            ACTIVATIONS[activation],
        )
        return y

    def weigh_experts(self, made: Tensor, weights: Tensor) -> Tensor:
        """See `Kernels.weigh_experts`."""
        functions = self._functions.get(made.dtype)
        if functions is None:
            return self._fall_back("weigh_experts").weigh_experts(made, weights)
        tokens, top_k, hidden = made.shape
        y = self._empty(made.dtype, tokens, hidden)
        functions.weigh_experts(made.data_ptr(), weights.data_ptr(), y.data_ptr(), tokens, top_k, hidden)
        return y

    def _tiled_or_plain(self, weight: LinearWeight, dtype: torch.dtype) -> LinearWeight:
        """Return the weight, row-major if it is in tiles that products of this dtype do not take."""
        return (
            weight.plain() if isinstance(weight, TiledWeight) and dtype not in self.tiled_dtypes else weight
        )

    def _as_taken(self, weight: QuantizedWeight, dtype: torch.dtype) -> QuantizedWeight:
        """Return the weight, row-major where products of this dtype do not take tiles."""
        return weight if dtype in self.quantized_tiles else weight.in_rows()
