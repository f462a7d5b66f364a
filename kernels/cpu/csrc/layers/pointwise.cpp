// Rotary embedding, activations, and writes and moves in the cache. Rounding is the reference's.
#include <algorithm>
#include <vector>

#include "base/activations.h"
#include "base/kv_codes.h"
#include "layers/norms.h"
#include "layers/rotary.h"
#include "base/scratch.h"

namespace {

template <class Activation, class T>
void act(const T* x, int64_t stride, T* y, int64_t y_stride, int64_t rows, int64_t n) {
    for_rows(rows, n, [&](int64_t row) {
        along(n, [&](int64_t i, int count) {
            put(y + row * y_stride + i, Activation::template of<T>(get(x + row * stride + i, count)), count);
        });
    });
}

template <class Gate, class T>
void act_and_mul(const T* gate_up, int64_t stride, T* y, int64_t y_stride, int64_t rows, int64_t n) {
    for_rows(rows, 2 * n,
             [&](int64_t row) { act_and_mul_row<Gate>(gate_up + row * stride, y + row * y_stride, n); });
}

// Bytes of all blocks that a task moves: they stay in the second cache between reading and writing.
constexpr int64_t MOVE_BYTES = 256 << 10;

// A task has the same piece of every block of one tensor, which no other task touches: so reading all before
// writing any is for each of them alone.
void move_blocks(char* const* tensors, int64_t count, int64_t block_bytes, const int64_t* sources,
                 const int64_t* destinations, int64_t blocks) {
    int64_t each = std::max<int64_t>(64, MOVE_BYTES / blocks / 64 * 64);
    int64_t pieces = (block_bytes + each - 1) / each;
    parallel_for(count * pieces, [&](int64_t i) {
        int64_t start = i % pieces * each, size = std::min(each, block_bytes - start);
        char* piece = tensors[i / pieces] + start;
        static thread_local std::vector<char> memory;
        memory.resize(blocks * size);
        for (int64_t b = 0; b < blocks; b++)
            std::memcpy(memory.data() + b * size, piece + sources[b] * block_bytes, size);
        for (int64_t b = 0; b < blocks; b++)
            std::memcpy(piece + destinations[b] * block_bytes, memory.data() + b * size, size);
    });
}

constexpr int64_t GATHER_BYTES = 64 << 10;  // of rows that a task copies

// y[i][j] = x[i][order[j]].
template <class T>
void gather_columns(const T* x, int64_t stride, const int64_t* order, int64_t rows, int64_t columns, T* y) {
    int64_t each = std::max<int64_t>(1, GATHER_BYTES / (columns * int64_t(sizeof(T))));
    parallel_ranges(rows, each, [&](int64_t start, int64_t stop) {
        for (int64_t i = start; i < stop; i++)
            for (int64_t j = 0; j < columns; j++) y[i * columns + j] = x[i * stride + order[j]];
    });
}

struct Nothing {
    template <class T>
    void operator()(const T* x, T* y, int64_t n) const {
        if (x != y) std::memcpy(y, x, n * sizeof(T));
    }
};

// A step's new heads, each token's in rows of any stride, and where its keys and values go.
template <class T>
struct Heads {
    T* query;
    int64_t query_stride;
    const T* key;
    int64_t key_stride;
    const T* value;
    int64_t value_stride;
    const float* table;  // of cosines and sines, or null
    const int64_t* positions;
    char* keys;
    char* values;
    const int64_t* slots;
    int64_t tokens, heads, kv_heads, head_dim, rotary_dim, block_size;
    KvFormat format;  // of the caches

    KvLayout layout() const { return {format, kv_heads, block_size, head_dim, sizeof(T)}; }
};

// Keys are normalised and turned where they end up, queries where they are. Those that end up in 8 bits are first rounded to T,
// as others are.
template <class Norm, class T>
void rope_and_write_kv(const Heads<T>& p, const Norm& query_norm, const Norm& key_norm) {
    const int64_t size = p.head_dim, half = p.rotary_dim / 2;
    const KvLayout layout = p.layout();
    for_rows(p.tokens, (p.heads + 2 * p.kv_heads) * size, [&](int64_t t) {
        const float* cos = p.table ? p.table + p.positions[t] * p.rotary_dim : nullptr;
        for (int64_t h = 0; h < p.heads; h++) {
            T* head = p.query + t * p.query_stride + h * size;
            query_norm(head, head, size);
            if (cos) rotate(head, cos, cos + half, half);
        }
        int64_t block = p.slots[t] / p.block_size, offset = p.slots[t] - block * p.block_size;
        for (int64_t h = 0; h < p.kv_heads; h++) {
            static thread_local Scratch<T> memory;
            const int64_t to = layout.row(block, h, offset), scale = layout.scale(block, h, offset);
            const T* value = p.value + t * p.value_stride + h * size;
            T* key = layout.coded() ? memory.take(size) : (T*)(p.keys + to);
            key_norm(p.key + t * p.key_stride + h * size, key, size);
            if (cos) rotate(key, cos, cos + half, half);
            if (layout.coded()) {
                encode_head(p.format, key, size, p.keys + to, p.keys + scale);
                encode_head(p.format, value, size, p.values + to, p.values + scale);
            } else {
                std::memcpy(p.values + to, value, size * sizeof(T));
            }
        }
    });
}

// With no weights, nothing is normalised.
template <class T>
void rope_and_write_kv(const Heads<T>& p, const void* query_weight, const void* key_weight, float eps, bool wide) {
    if (!query_weight) {
        rope_and_write_kv(p, Nothing{}, Nothing{});
    } else if (wide) {
        rope_and_write_kv(p, WideRmsNorm<T>{(const float*)query_weight, eps},
                          WideRmsNorm<T>{(const float*)key_weight, eps});
    } else {
        rope_and_write_kv(p, RmsNorm<T>{(const T*)query_weight, eps}, RmsNorm<T>{(const T*)key_weight, eps});
    }
}

}  // namespace

EXPORT void pageant_move_blocks(char* const* tensors, int64_t count, int64_t block_bytes, const int64_t* sources,
                                const int64_t* destinations, int64_t blocks) {
    if (blocks > 0) move_blocks(tensors, count, block_bytes, sources, destinations, blocks);
}

EXPORT void pageant_gather_rows(const char* table, int64_t row_bytes, const int64_t* ids, int64_t rows, char* y) {
    parallel_ranges(rows, std::max<int64_t>(1, GATHER_BYTES / row_bytes), [&](int64_t start, int64_t stop) {
        for (int64_t i = start; i < stop; i++)
            std::memcpy(y + i * row_bytes, table + ids[i] * row_bytes, row_bytes);
    });
}

// The same of a table in tiles of bfloat16 (kernels/tiled.py), where each pair of a row lies 16 pairs after the one before.
EXPORT void pageant_gather_tiled_rows(const uint32_t* tiles, int64_t pairs, const int64_t* ids, int64_t rows, uint32_t* y) {
    parallel_ranges(rows, std::max<int64_t>(1, GATHER_BYTES / (64 * pairs)), [&](int64_t start, int64_t stop) {
        for (int64_t i = start; i < stop; i++) {
            const uint32_t* from = tiles + ids[i] / PANEL * PANEL * pairs + ids[i] % PANEL;
            for (int64_t p = 0; p < pairs; p++) y[i * pairs + p] = from[p * PANEL];
        }
    });
}

// Rows of a share of a vocabulary, which begins with token `first`: 0 for tokens that are not in it.
EXPORT void pageant_rows_here(const int64_t* ids, int64_t tokens, int64_t first, int64_t rows, int64_t* y) {
    for (int64_t t = 0; t < tokens; t++) {
        const int64_t row = ids[t] - first;
        y[t] = row >= 0 && row < rows ? row : 0;
    }
}

// Rows x [tokens, columns] as float32, zeros for tokens that are not in the share.
template <class T>
void widen_here(const T* x, const int64_t* ids, int64_t tokens, int64_t columns, int64_t first, int64_t rows, float* y) {
    for_rows(tokens, columns, [&](int64_t t) {
        const int64_t row = ids[t] - first;
        const bool is_here = row >= 0 && row < rows;
        for (int64_t c = 0; c < columns; c++) y[t * columns + c] = is_here ? to_float(x[t * columns + c]) : 0;
    });
}

#define ACTIVATION(NAME, KIND, SUFFIX, T)                                                                   \
    EXPORT void pageant_##NAME##_##SUFFIX(const T* x, int64_t stride, T* y, int64_t y_stride, int64_t rows, \
                                          int64_t n) {                                                      \
        act<KIND>(x, stride, y, y_stride, rows, n);                                                         \
    }                                                                                                       \
    EXPORT void pageant_##NAME##_and_mul_##SUFFIX(const T* gate_up, int64_t stride, T* y, int64_t y_stride, \
                                                  int64_t rows, int64_t n) {                                \
        act_and_mul<Gating<KIND>>(gate_up, stride, y, y_stride, rows, n);                                   \
    }
#define POINTWISE(SUFFIX, T)                                                                                \
    EXPORT void pageant_rope_and_write_kv_##SUFFIX(                                                         \
        T* query, int64_t query_stride, const T* key, int64_t key_stride, const T* value,                   \
        int64_t value_stride, const float* table, const int64_t* positions, char* keys, char* values,       \
        const int64_t* slots, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim,            \
        int64_t rotary_dim, int64_t block_size, int64_t format, const void* query_weight,                   \
        const void* key_weight, int64_t wide, double eps) {                                                 \
        Heads<T> p{query, query_stride, key, key_stride, value, value_stride, table, positions, keys, values,\
                   slots, tokens, heads, kv_heads, head_dim, rotary_dim, block_size, KvFormat(format)};     \
        rope_and_write_kv(p, query_weight, key_weight, float(eps), wide != 0);                              \
    }                                                                                                       \
    EXPORT void pageant_gather_columns_##SUFFIX(const T* x, int64_t stride, const int64_t* order,           \
                                                int64_t rows, int64_t columns, T* y) {                      \
        gather_columns(x, stride, order, rows, columns, y);                                                 \
    }                                                                                                       \
    EXPORT void pageant_widen_here_##SUFFIX(const T* x, const int64_t* ids, int64_t tokens, int64_t columns, \
                                            int64_t first, int64_t rows, float* y) {                        \
        widen_here(x, ids, tokens, columns, first, rows, y);                                                \
    }                                                                                                       \
    ACTIVATION(silu, Silu, SUFFIX, T)                                                                       \
    ACTIVATION(gelu, Gelu, SUFFIX, T)                                                                       \
    ACTIVATION(gelu_tanh, GeluTanh, SUFFIX, T)                                                              \
    EXPORT void pageant_clamped_swiglu_##SUFFIX(const T* gate_up, int64_t stride, T* y, int64_t y_stride,   \
                                                int64_t rows, int64_t n) {                                  \
        act_and_mul<ClampedSwiglu>(gate_up, stride, y, y_stride, rows, n);                                  \
    }
POINTWISE(f32, float)
POINTWISE(bf16, bf16)
POINTWISE(f16, f16)
