// Latents of keys and values into the cache (kernels/base.py, rope_and_write_latents). Rounding is the reference's.
#include <cstring>

#include "layers/norms.h"
#include "layers/rotary.h"

namespace {

// A step's queries and latents, and where they go: a key is what is turned, then the latent.
template <class T>
struct Latents {
    const T* query;  // [tokens, heads, query_dim], of which the last `rotary` numbers are turned
    int64_t query_stride, query_dim;
    const T* latents;  // [tokens, rank + rotary]
    int64_t latents_stride;
    const T* weight;     // of the latents' norm
    const float* table;  // of cosines and sines, or null
    const int64_t* positions;
    T* keys;  // rows of the cache, one for each slot
    const int64_t* slots;
    T* turned;  // [tokens, heads, rotary + rank], whose latent parts are left alone
    int64_t tokens, heads, rank, rotary;
    float eps;
};

template <class T>
void rope_and_write_latents(const Latents<T>& p) {
    const int64_t size = p.rotary + p.rank, half = p.rotary / 2;
    const RmsNorm<T> norm{p.weight, p.eps};
    for_rows(p.tokens, p.heads * p.rotary + 2 * size, [&](int64_t t) {
        const float* cos = p.table ? p.table + p.positions[t] * p.rotary : nullptr;
        auto turn = [&](const T* from, T* to) {
            std::memcpy(to, from, p.rotary * sizeof(T));
            if (cos) rotate(to, cos, cos + half, half);
        };
        const T* latent = p.latents + t * p.latents_stride;
        T* key = p.keys + p.slots[t] * size;
        turn(latent + p.rank, key);
        norm(latent, key + p.rotary, p.rank);
        for (int64_t h = 0; h < p.heads; h++)
            turn(p.query + t * p.query_stride + (h + 1) * p.query_dim - p.rotary, p.turned + (t * p.heads + h) * size);
    });
}

}  // namespace

#define LATENTS(NAME, T)                                                                                      \
    EXPORT void NAME(const T* query, int64_t query_stride, int64_t query_dim, const T* latents,               \
                     int64_t latents_stride, const T* weight, const float* table, const int64_t* positions,   \
                     T* keys, const int64_t* slots, T* turned, int64_t tokens, int64_t heads, int64_t rank,   \
                     int64_t rotary, double eps) {                                                            \
        rope_and_write_latents<T>({query, query_stride, query_dim, latents, latents_stride, weight, table,    \
                                   positions, keys, slots, turned, tokens, heads, rank, rotary, float(eps)}); \
    }
LATENTS(pageant_rope_and_write_latents_f32, float)
LATENTS(pageant_rope_and_write_latents_bf16, bf16)
LATENTS(pageant_rope_and_write_latents_f16, f16)
