// Where the paged KV cache holds what, plain or in 8 bits (kernels/quantized_kv.py).
#pragma once

#include <cstdint>

enum class KvFormat : int64_t { PLAIN, INT8, FP8 };

constexpr int64_t KV_SCALE_BYTES = 4;  // of a float

// Keys, or values, are [blocks, key heads], in each of which are rows of `block_size` tokens: of numbers, or of codes, which
// their scales follow. All places are in bytes.
struct KvLayout {
    KvFormat format;
    int64_t kv_heads, block_size, head_dim, number_bytes;

    bool coded() const { return format != KvFormat::PLAIN; }
    int64_t row_bytes() const { return coded() ? head_dim : head_dim * number_bytes; }
    int64_t block_bytes() const { return block_size * (row_bytes() + (coded() ? KV_SCALE_BYTES : 0)); }
    int64_t row(int64_t block, int64_t kv_head, int64_t offset) const {
        return (block * kv_heads + kv_head) * block_bytes() + offset * row_bytes();
    }
    int64_t scale(int64_t block, int64_t kv_head, int64_t offset) const {
        return row(block, kv_head, block_size) + offset * KV_SCALE_BYTES;
    }
};
