"""The seam to C++: every exported function, with the names and types of its arguments, by the source that has it.

ctypes' argument types are made from this table. So are checks that the compiler holds against the sources
(`checks_of`): a declaration here that differs from a definition there does not compile.

A name that ends with `_T` stands for one function for each type of numbers, such as `linear_bf16`.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

__all__ = ["OPTIONAL", "SIGNATURES", "TYPES", "Signature", "checks_of"]

TYPES = {"f32": "float", "bf16": "bf16", "f16": "f16"}
"""C++ types of numbers, by the suffixes of functions."""
OPTIONAL = frozenset({"tiled_linear", "gated_linear", "quantized_gated_linear", "screen_T"})
"""Functions that only some instruction sets have."""
_ONLY = {"screen_T": ("bf16", "f16")}
# Arguments that are texts, not memory.
_TEXTS = frozenset({"reason"})

_DECLARED: dict[str, tuple[str, ...]] = {
    "gemm/linear.cpp": (
        "int64_t allowed()",
        "void linear_T(const T* x, int64_t x_stride, const T* weight, int64_t weight_stride, const T* bias, "
        "T* y, float* unrounded, int64_t rows, int64_t inputs, int64_t outputs, const Needed* needed)",
        "void tiled_linear(const bf16* x, int64_t x_stride, const bf16* tiles, const bf16* bias, bf16* y, "
        "float* unrounded, int64_t rows, int64_t inputs, int64_t outputs, const Needed* needed)",
        "int64_t by_unit()",
        "void gated_linear(const bf16* x, int64_t x_stride, const bf16* tiles, const bf16* bias, bf16* y, "
        "int64_t y_stride, int64_t activation, int64_t rows, int64_t inputs, int64_t outputs)",
    ),
    "gemm/quantized.cpp": (
        "void quantized_linear_T(const T* x, int64_t x_stride, const uint8_t* values, const uint8_t* lower, "
        "const bf16* scales, int64_t bits, int64_t in_tiles, const T* bias, T* y, float* unrounded, int64_t "
        "rows, int64_t inputs, int64_t outputs, const Needed* needed, int64_t alike)",
        "void embed_T(const int64_t* ids, int64_t rows, const uint8_t* values, const uint8_t* lower, const "
        "bf16* scales, int64_t bits, int64_t in_tiles, T* y, int64_t inputs)",
        "int64_t takes_tiles_T()",
        "void quantize_T(const T* weight, int64_t stride, int64_t rows, int64_t inputs, int64_t bits, int64_t "
        "for_halves, uint8_t* values, bf16* scales)",
        "void quantized_gated_linear(const bf16* x, int64_t x_stride, const uint8_t* values, const bf16* "
        "scales, int64_t bits, const bf16* bias, bf16* y, int64_t y_stride, int64_t activation, int64_t rows, "
        "int64_t inputs, int64_t outputs)",
    ),
    "gemm/experts.cpp": (
        "void moe_T(const T* x, int64_t x_stride, const void* gate_up, const bf16* gate_up_scales, const "
        "void* down, const bf16* down_scales, int64_t bits, int64_t in_tiles, int64_t alike, const T* "
        "gate_up_bias, const T* down_bias, const float* weights, const int64_t* chosen, T* y, float* "
        "unrounded, int64_t tokens, int64_t top_k, int64_t experts, int64_t hidden, int64_t inner, int64_t "
        "activation)",
        "void weigh_experts_T(const T* made, const float* weights, T* y, int64_t tokens, int64_t top_k, "
        "int64_t hidden)",
        "void route_T(const T* logits, int64_t stride, int64_t tokens, int64_t experts, int64_t top_k, "
        "int64_t normalise, float* weights, int64_t* chosen)",
    ),
    "gemm/low_rank.cpp": (
        "void add_low_rank_T(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t inputs, const "
        "Addition<T>* additions, int64_t count)",
    ),
    "attention/attention.cpp": (
        "void attention_T(const T* query, int64_t query_stride, const char* keys, const char* values, T* "
        "output, int64_t output_stride, const int32_t* starts, const int32_t* lengths, const int32_t* tables, "
        "int64_t table_stride, const int64_t* positions, const int64_t* ancestors, int64_t sequences, int64_t "
        "heads, int64_t kv_heads, int64_t head_dim, int64_t value_dim, int64_t block_size, int64_t window, "
        "int64_t format, const float* sinks, double scale, double softcap)",
    ),
    "gemm/heads.cpp": (
        "void multiply_heads_T(const T* x, int64_t x_stride, int64_t x_head_stride, const T* weight, int64_t "
        "head_stride, int64_t in_stride, int64_t out_stride, T* y, int64_t y_stride, int64_t y_head_stride, "
        "int64_t tokens, int64_t heads, int64_t inputs, int64_t outputs)",
    ),
    "layers/delta_net.cpp": (
        "void gated_delta_net_T(const T* channels, int64_t stride, const T* taps, const float* decays, const "
        "float* strengths, float* read, const int64_t* pages, int64_t page_bytes, const int64_t* tokens, const "
        "int64_t* sequences, int64_t num_sequences, const int64_t* runs, int64_t groups, int64_t key_heads, "
        "int64_t value_heads, int64_t key_dim, int64_t value_dim, int64_t kernel)",
    ),
    "layers/convolution.cpp": (
        "void causal_conv_T(const T* channels, int64_t stride, const T* taps, const T* bias, int64_t activated, T* y, "
        "const int64_t* pages, int64_t page_bytes, int64_t first_byte, const int64_t* tokens, const int64_t* "
        "sequences, int64_t num_sequences, const int64_t* runs, int64_t groups, int64_t num_channels, int64_t "
        "kernel)",
    ),
    "layers/state_space.cpp": (
        "void state_space_T(const T* mixed, int64_t stride, const float* decays, const float* steps, const float* "
        "skips, float* read, const int64_t* pages, int64_t page_bytes, const int64_t* tokens, const int64_t* "
        "sequences, int64_t num_sequences, const int64_t* runs, int64_t groups, int64_t key_heads, int64_t heads, "
        "int64_t key_dim, int64_t value_dim)",
    ),
    "layers/strands.cpp": (
        "void strands(const int32_t* starts, const int32_t* lengths, int64_t count, const int32_t* tables, int64_t "
        "group_stride, int64_t sequence_stride, int64_t groups, int64_t block_size, const int32_t* replays, const "
        "int32_t* unsure, int64_t* tokens, int64_t* sequences, int64_t* runs)",
    ),
    "layers/latents.cpp": (
        "void rope_and_write_latents_T(const T* query, int64_t query_stride, int64_t query_dim, const T* "
        "latents, int64_t latents_stride, const T* weight, const float* table, const int64_t* positions, T* "
        "keys, const int64_t* slots, T* turned, int64_t tokens, int64_t heads, int64_t rank, int64_t rotary, "
        "double eps)",
    ),
    "layers/norms.cpp": (
        "void rms_norm_T(const T* x, int64_t stride, T* y, int64_t y_stride, int64_t rows, int64_t n, const "
        "T* weight, const T* bias, double eps)",
        "void wide_rms_norm_T(const T* x, int64_t stride, T* y, int64_t y_stride, int64_t rows, int64_t n, "
        "const float* weight, const T* bias, double eps)",
        "void layer_norm_T(const T* x, int64_t stride, T* y, int64_t y_stride, int64_t rows, int64_t n, const "
        "T* weight, const T* bias, double eps)",
        "void add_rms_norm_T(const T* x, int64_t x_stride, const T* residual, int64_t residual_stride, T* y, "
        "int64_t y_stride, T* total, int64_t rows, int64_t n, const T* weight, const T* bias, double eps)",
        "void add_wide_rms_norm_T(const T* x, int64_t x_stride, const T* residual, int64_t residual_stride, "
        "T* y, int64_t y_stride, T* total, int64_t rows, int64_t n, const float* weight, const T* bias, "
        "double eps)",
        "void add_layer_norm_T(const T* x, int64_t x_stride, const T* residual, int64_t residual_stride, T* "
        "y, int64_t y_stride, T* total, int64_t rows, int64_t n, const T* weight, const T* bias, double eps)",
    ),
    "layers/pointwise.cpp": (
        "void rows_here(const int64_t* ids, int64_t tokens, int64_t first, int64_t rows, int64_t* y)",
        "void widen_here_T(const T* x, const int64_t* ids, int64_t tokens, int64_t columns, int64_t first, "
        "int64_t rows, float* y)",
        "void move_blocks(char* const* tensors, int64_t count, int64_t block_bytes, const int64_t* sources, "
        "const int64_t* destinations, int64_t blocks)",
        "void gather_rows(const char* table, int64_t row_bytes, const int64_t* ids, int64_t rows, char* y)",
        "void gather_tiled_rows(const uint32_t* tiles, int64_t pairs, const int64_t* ids, int64_t rows, "
        "uint32_t* y)",
        "void silu_T(const T* x, int64_t stride, T* y, int64_t y_stride, int64_t rows, int64_t n)",
        "void gelu_T(const T* x, int64_t stride, T* y, int64_t y_stride, int64_t rows, int64_t n)",
        "void gelu_tanh_T(const T* x, int64_t stride, T* y, int64_t y_stride, int64_t rows, int64_t n)",
        "void silu_and_mul_T(const T* gate_up, int64_t stride, T* y, int64_t y_stride, int64_t rows, int64_t "
        "n)",
        "void gelu_and_mul_T(const T* gate_up, int64_t stride, T* y, int64_t y_stride, int64_t rows, int64_t "
        "n)",
        "void gelu_tanh_and_mul_T(const T* gate_up, int64_t stride, T* y, int64_t y_stride, int64_t rows, "
        "int64_t n)",
        "void rope_and_write_kv_T(T* query, int64_t query_stride, const T* key, int64_t key_stride, const T* "
        "value, int64_t value_stride, const float* table, const int64_t* positions, char* keys, char* values, "
        "const int64_t* slots, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t "
        "rotary_dim, int64_t block_size, int64_t format, const void* query_weight, const void* key_weight, "
        "int64_t wide, double eps)",
        "void gather_columns_T(const T* x, int64_t stride, const int64_t* order, int64_t rows, int64_t "
        "columns, T* y)",
        "void clamped_swiglu_T(const T* gate_up, int64_t stride, T* y, int64_t y_stride, int64_t rows, "
        "int64_t n)",
    ),
    "sampling/sampling.cpp": (
        "void sample(const float* logits, int64_t stride, const int64_t* places, int64_t rows, int64_t "
        "vocab_size, const float* temperature, const int32_t* top_k, const float* top_p, const float* min_p, "
        "const int64_t* seed, const int32_t* sample, const int64_t* position, const int64_t* slots, const "
        "uint32_t* bits, int64_t words, int64_t* tokens)",
    ),
    "sampling/masks.cpp": (
        "void mask_logits(float* logits, int64_t stride, int64_t vocab_size, const int64_t* rows, int64_t "
        "count, const uint32_t* bits, int64_t words)",
    ),
    "sampling/narrowing.cpp": (
        "void narrow(const uint8_t* hidden, int64_t stride, int64_t row_bytes, int64_t count, const int64_t* "
        "slots, const uint32_t* bits, int64_t words, const int64_t* table, const int64_t* expected, const "
        "int64_t* patience, uint8_t* ordered, int64_t* order, Needed* needed, int64_t* waiting, int64_t* "
        "came, int64_t* spared, int64_t* began)",
        "void narrow_rest(const uint8_t* hidden, int64_t stride, int64_t row_bytes, int64_t count, const "
        "int64_t* slots, const uint32_t* bits, int64_t words, const int64_t* table, const int64_t* expected, "
        "uint8_t* ordered, int64_t* order, const Needed* before, int64_t* places, Needed* needed, int64_t* "
        "narrow)",
    ),
    "sampling/screening.cpp": (
        "void screen_T(const T* x, const uint8_t* upper, const uint8_t* lower, const bf16* scales, int64_t "
        "inputs, int64_t outputs, const float* temperature, const int32_t* top_k, const float* top_p, const "
        "float* min_p, const int64_t* seed, const int32_t* sample, const int64_t* position, float* logits, "
        "Needed* needed)",
    ),
    "sampling/logprobs.cpp": (
        "void top_logprobs(const float* logits, int64_t stride, int64_t rows, int64_t vocab_size, const "
        "int64_t* tokens, int64_t k, float* chosen, int32_t* ranks, int32_t* top_tokens, float* top)",
    ),
    "base/replay.cpp": (
        "void replay(Call* calls, int64_t count)",
        "void stop_replay()",
        "void gate(const int64_t* table, const int64_t* slots, const int64_t* expected, int64_t count, const "
        "int64_t* patience, int64_t ends, int64_t* outcome)",
    ),
    "base/copies.cpp": (
        "void copy_parts(int64_t runs, uint8_t* const* sources, uint8_t* const* destinations, const int64_t* counts, "
        "const int64_t* part_bytes, const int64_t* in_words, uint64_t* sums)",
    ),
    "base/threads.cpp": (
        "void use_threads(void* count_function)",
        "int64_t threads()",
    ),
    "collectives/group.cpp": (
        "int64_t group_bytes(int64_t size, int64_t slot_bytes, int64_t edge_bytes)",
        "int64_t group_lay_out(int64_t file, int64_t size, int64_t slot_bytes, int64_t edge_bytes, uint64_t "
        "nonce)",
        "Group* group_join(int64_t file, int64_t bytes, int64_t rank, int64_t size, uint64_t nonce, int64_t "
        "deadline, int64_t* why)",
        "void group_watch(Group* group, int64_t deadline)",
        "void group_abort(Group* group, int64_t culprit, const char* reason)",
        "void group_close(Group* group, const char* reason)",
        "const char* group_reason(Group* group, int64_t* culprit)",
    ),
    "collectives/collectives.cpp": (
        "int64_t group_all_reduce(Group* group, const float* parts, int64_t segments, int64_t rows, int64_t "
        "columns, void* out, int64_t type, const void* bias, int64_t bias_type)",
        "int64_t group_broadcast(Group* group, void* data, int64_t bytes, int64_t root)",
        "int64_t group_gather(Group* group, const void* part, void* out, int64_t bytes, int64_t root)",
        "int64_t group_all_to_all(Group* group, const void* rows, void* out, const int64_t* counts, int64_t "
        "width)",
        "int64_t group_barrier(Group* group)",
        "int64_t group_send(Group* group, const void* data, int64_t bytes, int64_t peer)",
        "int64_t group_receive(Group* group, void* data, int64_t bytes, int64_t peer)",
    ),
}


@dataclass(frozen=True)
class Signature:
    """Exported function, or one for each type of numbers."""

    source: str
    name: str
    returned: str
    """The C++ type of its result."""
    arguments: tuple[tuple[str, str], ...]
    """The C++ type and the name of each argument."""

    @classmethod
    def parse(cls, source: str, declared: str) -> Signature:
        """Return the signature of a C++ declaration."""
        found = re.fullmatch(r"(.+?) (\w+)\((.*)\)", declared)
        assert found is not None, f"{declared} is no declaration"
        each = [one.strip().rpartition(" ") for one in found[3].split(",") if one.strip()]
        return cls(source, found[2], found[1], tuple((kind, name) for kind, _, name in each))

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of `TYPES` that it is there for; none where it is one function."""
        return _ONLY.get(self.name, tuple(TYPES)) if self.name.endswith("_T") else ()

    def argtypes(self) -> list[Any]:
        """Return ctypes' types of the arguments.

        Integers are passed as pointers, which ctypes converts in half the time. The supported ABIs pass both in the
        same kernel.
        """
        return [
            ctypes.c_double if kind == "double" else ctypes.c_char_p if name in _TEXTS else ctypes.c_void_p
            for kind, name in self.arguments
        ]

    def restype(self) -> Any:
        """Return ctypes' type of the result."""
        known = {"void": None, "int64_t": ctypes.c_int64, "const char*": ctypes.c_char_p}
        return known.get(self.returned, ctypes.c_void_p)

    def checks(self) -> list[str]:
        """Return C++ that does not compile after a source whose definition differs."""
        kinds = ", ".join(kind for kind, _ in self.arguments)
        checked = f"static_assert(std::is_same_v<decltype(pageant_{self.name}), {self.returned}({kinds})>);"
        if not self.suffixes:
            return [checked]
        return [
            re.sub(
                r"\bT\b",
                TYPES[suffix],
                checked.replace(f"pageant_{self.name}", f"pageant_{self.name[:-1]}{suffix}"),
            )
            for suffix in self.suffixes
        ]


SIGNATURES = {
    signature.name: signature
    for signature in (
        Signature.parse(source, declared) for source, each in _DECLARED.items() for declared in each
    )
}
"""All functions, by their names without `pageant_`."""


def checks_of(source: str) -> str:
    """Return C++ that includes a source and checks each of its exported functions against the table."""
    own = [signature for signature in SIGNATURES.values() if signature.source == source]
    lines = [
        f'#include "{source}"',
        "#include <type_traits>",
        *(line for one in own for line in one.checks()),
    ]
    return "\n".join(lines) + "\n"
