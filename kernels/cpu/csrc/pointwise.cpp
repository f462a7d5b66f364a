// Rotary embedding, activations and writes into the cache, a row at a time. Rounding is the reference's.
#include <algorithm>
#include <vector>

#include "activations.h"

namespace {

template <class T>
void rotate(T* x, const float* cos, const float* sin, int64_t half) {
    along(half, [&](int64_t i, int count) {
        vf a = get(x + i, count), b = get(x + half + i, count);
        vf c = get(cos + i, count), s = get(sin + i, count);
        put(x + i, a * c - b * s, count);
        put(x + half + i, b * c + a * s, count);
    });
}

template <class T>
void rope(T* query, int64_t query_stride, T* key, int64_t key_stride, const float* table,
          const int64_t* positions, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t rotary_dim) {
    for_rows(tokens, (heads + kv_heads) * head_dim, [&](int64_t t) {
        const float* cos = table + positions[t] * rotary_dim;
        const float* sin = cos + rotary_dim / 2;
        for (int64_t h = 0; h < heads; h++)
            rotate(query + t * query_stride + h * head_dim, cos, sin, rotary_dim / 2);
        for (int64_t h = 0; h < kv_heads; h++)
            rotate(key + t * key_stride + h * head_dim, cos, sin, rotary_dim / 2);
    });
}

template <class Activation, class T>
void act(const T* x, int64_t stride, T* y, int64_t rows, int64_t n) {
    for_rows(rows, n, [&](int64_t row) {
        along(n, [&](int64_t i, int count) {
            put(y + row * n + i, Activation::of(get(x + row * stride + i, count)), count);
        });
    });
}

template <class Activation, class T>
void act_and_mul(const T* gate_up, int64_t stride, T* y, int64_t rows, int64_t n) {
    for_rows(rows, 2 * n,
             [&](int64_t row) { act_and_mul_row<Activation>(gate_up + row * stride, y + row * n, n); });
}

// A number is only moved here, so its size is all that counts.
template <class T>
void write_kv(const T* key, int64_t key_stride, const T* value, int64_t value_stride, T* keys, T* values,
              const int64_t* slots, int64_t tokens, int64_t kv_heads, int64_t block_size, int64_t head_dim) {
    for_rows(tokens, 2 * kv_heads * head_dim, [&](int64_t t) {
        int64_t block = slots[t] / block_size, offset = slots[t] - block * block_size;
        for (int64_t h = 0; h < kv_heads; h++) {
            int64_t to = ((block * kv_heads + h) * block_size + offset) * head_dim;
            std::memcpy(keys + to, key + t * key_stride + h * head_dim, head_dim * sizeof(T));
            std::memcpy(values + to, value + t * value_stride + h * head_dim, head_dim * sizeof(T));
        }
    });
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

}  // namespace

EXPORT void pageant_move_blocks(char* const* tensors, int64_t count, int64_t block_bytes, const int64_t* sources,
                                const int64_t* destinations, int64_t blocks) {
    if (blocks > 0) move_blocks(tensors, count, block_bytes, sources, destinations, blocks);
}

#define ACTIVATION(NAME, KIND, SUFFIX, T)                                                                   \
    EXPORT void pageant_##NAME##_##SUFFIX(const T* x, int64_t stride, T* y, int64_t rows, int64_t n) {      \
        act<KIND>(x, stride, y, rows, n);                                                                   \
    }                                                                                                       \
    EXPORT void pageant_##NAME##_and_mul_##SUFFIX(const T* gate_up, int64_t stride, T* y, int64_t rows,     \
                                                  int64_t n) {                                              \
        act_and_mul<KIND>(gate_up, stride, y, rows, n);                                                     \
    }
#define POINTWISE(SUFFIX, T)                                                                                \
    EXPORT void pageant_rope_##SUFFIX(T* query, int64_t query_stride, T* key, int64_t key_stride,           \
                                      const float* table, const int64_t* positions, int64_t tokens,         \
                                      int64_t heads, int64_t kv_heads, int64_t head_dim,                    \
                                      int64_t rotary_dim) {                                                 \
        rope(query, query_stride, key, key_stride, table, positions, tokens, heads, kv_heads, head_dim,     \
             rotary_dim);                                                                                   \
    }                                                                                                       \
    EXPORT void pageant_write_kv_##SUFFIX(const T* key, int64_t key_stride, const T* value,                 \
                                          int64_t value_stride, T* keys, T* values, const int64_t* slots,   \
                                          int64_t tokens, int64_t kv_heads, int64_t block_size,             \
                                          int64_t head_dim) {                                               \
        write_kv(key, key_stride, value, value_stride, keys, values, slots, tokens, kv_heads, block_size,   \
                 head_dim);                                                                                 \
    }                                                                                                       \
    ACTIVATION(silu, Silu, SUFFIX, T)                                                                       \
    ACTIVATION(gelu, Gelu, SUFFIX, T)                                                                       \
    ACTIVATION(gelu_tanh, GeluTanh, SUFFIX, T)
POINTWISE(f32, float)
POINTWISE(bf16, bf16)
POINTWISE(f16, f16)
