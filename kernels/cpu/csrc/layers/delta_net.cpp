// Gated DeltaNets (Yang et al., 2024): the short convolution, and the delta rule on states in pages (kernels/base.py,
// gated_delta_net). A sequence's tokens follow one another, so that a token's bits do not depend on which are computed with it.
//
// The chunked matrix form was turned down: its rounding depends on where chunks begin, and one pass over a state for each token
// takes about a tenth of the time of the projections around it.
#include <cmath>
#include <iterator>

#include "base/activations.h"
#include "layers/states.h"

namespace {

constexpr int COLUMN_VECTORS = W == 16 ? 4 : 2;  // of a panel: columns of a state that stay in registers and the first cache

// What a key and a query find in N vectors of columns of a state.
template <int N>
struct Found {
    vf by_key[N], by_query[N];
};

template <int N>
inline void look(const float* state, int64_t rows, const float* key, const float* query, Found<N>& found) {
    UNROLL for (int n = 0; n < N; n++) found.by_key[n] = found.by_query[n] = vf{};
    for (int64_t i = 0; i < rows; i++) {
        const vf k = splat(key[i]), q = splat(query[i]);
        UNROLL for (int n = 0; n < N; n++) {
            const vf s = load<vf>(state + (i * N + n) * W);
            found.by_key[n] = fma(k, s, found.by_key[n]);
            found.by_query[n] = fma(q, s, found.by_query[n]);
        }
    }
}

// state = factor state + key change. With LOOK, the next token's key and query look at it in the same pass.
template <int N, bool LOOK>
inline void change_state(float* state, int64_t rows, vf factor, const float* key, const vf (&change)[N], const float* next_key,
                         const float* next_query, Found<N>& found) {
    if (LOOK) UNROLL for (int n = 0; n < N; n++) found.by_key[n] = found.by_query[n] = vf{};
    for (int64_t i = 0; i < rows; i++) {
        const vf k = splat(key[i]);
        vf next_k, next_q;
        if (LOOK) next_k = splat(next_key[i]), next_q = splat(next_query[i]);
        UNROLL for (int n = 0; n < N; n++) {
            float* place = state + (i * N + n) * W;
            const vf s = fma(k, change[n], factor * load<vf>(place));
            store(place, s);
            if (LOOK) {
                found.by_key[n] = fma(next_k, s, found.by_key[n]);
                found.by_query[n] = fma(next_q, s, found.by_query[n]);
            }
        }
    }
}

// Tokens of one value head. All rows are padded to whole vectors.
struct Tile {
    int64_t count, key_dim, stride;  // numbers from a token to the next, in keys, queries and values
    const float *keys, *queries, *values;
    const float *factors, *strengths;  // [count]
    const float* products;             // [count], of each key and query
    float* read;                       // [count, read_stride]
    int64_t read_stride;
};

// Takes the tokens into N vectors of columns of a state, [key_dim, N * W], beginning with `column`.
template <int N>
void through_panel(const Tile& p, float* state, int64_t column) {
    Found<N> found;
    look<N>(state, p.key_dim, p.keys, p.queries, found);
    for (int64_t t = 0; t < p.count; t++) {
        const float *key = p.keys + t * p.stride, *next_query = p.queries + (t + 1) * p.stride;
        const vf factor = splat(p.factors[t]), strength = splat(p.strengths[t]), product = splat(p.products[t]);
        vf change[N];
        UNROLL for (int n = 0; n < N; n++) {
            const int64_t at = column + n * W;
            change[n] = fma(-factor, found.by_key[n], load<vf>(p.values + t * p.stride + at)) * strength;
            store(p.read + t * p.read_stride + at, fma(product, change[n], factor * found.by_query[n]));
        }
        if (t + 1 < p.count)
            change_state<N, true>(state, p.key_dim, factor, key, change, key + p.stride, next_query, found);
        else
            change_state<N, false>(state, p.key_dim, factor, key, change, key, key, found);
    }
}

// Neighbouring channels, and where they lie in a row of a task's own.
struct Slice {
    int64_t from, to, size;
};

template <class T>
struct DeltaNet {
    States states;
    const T* channels;  // [tokens, C]: queries, keys, values
    int64_t stride;
    const T* taps;                     // [C, kernel]
    const float *decays, *strengths;  // [tokens, value_heads]
    float* read;                       // [tokens, value_heads, value_dim]
    int64_t key_heads, value_heads, key_dim, value_dim, kernel;

    int64_t share() const { return value_heads / key_heads; }
    int64_t num_channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

// A key head of a sequence, with the value heads that share it: their states, and a tile of tokens.
template <class T>
struct Head {
    const DeltaNet<T>& p;
    const Panels<COLUMN_VECTORS> matrix;
    const int64_t head, keys_width, values_width, width;  // of rows, padded
    float *states, *flat, *inputs, *mixed, *taps, *read, *factors, *strengths, *products;

    Head(const DeltaNet<T>& p, int64_t head)
        : p(p), matrix{p.key_dim, p.value_dim}, head(head), keys_width(padded(p.key_dim)), values_width(padded(p.value_dim)),
          width(2 * keys_width + p.share() * values_width) {
        static thread_local Scratch<float> scratch;
        const int64_t rows = TOKENS_MAX + p.kernel - 1;
        const int64_t sizes[] = {p.share() * p.key_dim * values_width, padded(p.key_dim * p.value_dim), rows * width,
                                 TOKENS_MAX * width, p.kernel * width, TOKENS_MAX * values_width, TOKENS_MAX, TOKENS_MAX,
                                 TOKENS_MAX};
        float** const places[] = {&states, &flat, &inputs, &mixed, &taps, &read, &factors, &strengths, &products};
        int64_t all = 0;
        for (int64_t size : sizes) all += size;
        float* next = scratch.take(all);
        for (size_t i = 0; i < std::size(sizes); i++) *places[i] = next, next += sizes[i];
        if (width > 2 * p.key_dim + p.share() * p.value_dim) {  // what rows are padded with counts as zero
            std::fill(inputs, inputs + rows * width, 0.0f);
            std::fill(taps, taps + p.kernel * width, 0.0f);
        }
        for_slices([&](const Slice& s) {
            for (int64_t c = 0; c < s.size; c++)
                for (int64_t j = 0; j < p.kernel; j++) taps[j * width + s.to + c] = to_float(p.taps[(s.from + c) * p.kernel + j]);
        });
    }

    template <class Body>
    void for_slices(const Body& body) const {
        const int64_t keys = p.key_heads * p.key_dim;
        body(Slice{head * p.key_dim, 0, p.key_dim});
        body(Slice{keys + head * p.key_dim, keys_width, p.key_dim});
        for (int64_t i = 0; i < p.share(); i++)
            body(Slice{2 * keys + (head * p.share() + i) * p.value_dim, 2 * keys_width + i * values_width, p.value_dim});
    }

    void compute(const int64_t* sequence) {
        if (sequence[2]) {
            std::fill(states, states + p.share() * p.key_dim * values_width, 0.0f);
            std::fill(inputs, inputs + (p.kernel - 1) * width, 0.0f);
        } else {
            restore(sequence + 3);
        }
        for (int64_t r = sequence[0]; r < sequence[1]; r++) {
            const int64_t* run = p.states.run(r);
            for (int64_t first = run[0]; first < run[1]; first += TOKENS_MAX)
                take_in(p.states.tokens + first, std::min(TOKENS_MAX, run[1] - first));
            if (run[2]) save(run + 3);
        }
    }

    void take_in(const int64_t* tokens, int64_t count) {
        convolve(tokens, count);
        normalise(count);
        for (int64_t i = 0; i < p.share(); i++) {
            const int64_t own = head * p.share() + i;
            for (int64_t t = 0; t < count; t++) {
                factors[t] = p.decays[tokens[t] * p.value_heads + own];
                strengths[t] = p.strengths[tokens[t] * p.value_heads + own];
            }
            along(count, [&](int64_t t, int n) { put(factors + t, exponential(get(factors + t, n)), n); });
            const float* values = mixed + 2 * keys_width + i * values_width;
            const Tile tile{count, p.key_dim, width, mixed + keys_width, mixed, values, factors, strengths, products, read,
                            values_width};
            matrix.each(state_of(i), [&](float* panel, int64_t column, auto n) { through_panel<n>(tile, panel, column); });
            for (int64_t t = 0; t < count; t++)
                std::copy_n(read + t * values_width, p.value_dim, p.read + (tokens[t] * p.value_heads + own) * p.value_dim);
        }
    }

    float* state_of(int64_t i) const { return states + i * matrix.size(); }

    // The SiLU of a causal convolution of each channel. Leaves the last inputs before the first.
    void convolve(const int64_t* tokens, int64_t count) {
        float* own = inputs + (p.kernel - 1) * width;
        for (int64_t t = 0; t < count; t++)
            for_slices([&](const Slice& s) {
                const T* from = p.channels + tokens[t] * p.stride + s.from;
                along(s.size, [&](int64_t c, int n) { put(own + t * width + s.to + c, get(from + c, n), n); });
            });
        for (int64_t t = 0; t < count; t++)
            for (int64_t c = 0; c < width; c += W) {
                vf sum = load<vf>(inputs + t * width + c) * load<vf>(taps + c);
                for (int64_t j = 1; j < p.kernel; j++)
                    sum = fma(load<vf>(inputs + (t + j) * width + c), load<vf>(taps + j * width + c), sum);
                store(mixed + t * width + c, rounded<T>(Silu::of<T>(sum)));
            }
        std::copy_n(inputs + count * width, (p.kernel - 1) * width, inputs);
    }

    // Gives queries and keys length one, and divides queries by the root of their size.
    void normalise(int64_t count) {
        const float root = 1.0f / std::sqrt(float(p.key_dim));
        for (int64_t t = 0; t < count; t++) {
            float *query = mixed + t * width, *key = query + keys_width;
            scale(query, root / std::sqrt(dot(query, query) + 1e-6f));
            scale(key, 1.0f / std::sqrt(dot(key, key) + 1e-6f));
            products[t] = dot(query, key);
        }
    }
    float dot(const float* a, const float* b) const {
        vf sums{};
        for (int64_t i = 0; i < keys_width; i += W) sums = fma(load<vf>(a + i), load<vf>(b + i), sums);
        return sum(sums);
    }
    void scale(float* x, float by) const {
        for (int64_t i = 0; i < keys_width; i += W) store(x + i, load<vf>(x + i) * by);
    }

    // Where a value head's matrix begins in a state, and where an input of the convolution is.
    int64_t matrix_at(int64_t i) const { return (head * p.share() + i) * matrix.bytes(); }
    int64_t input_at(int64_t row, int64_t channel) const {
        return p.value_heads * matrix.bytes() + (row * p.num_channels() + channel) * int64_t(sizeof(T));
    }

    void restore(const int64_t* blocks) {
        for (int64_t i = 0; i < p.share(); i++) matrix.restore(p.states, blocks, matrix_at(i), state_of(i), flat);
        T* row = (T*)flat;
        for (int64_t j = 0; j + 1 < p.kernel; j++)
            for_slices([&](const Slice& s) {
                p.states.load_bytes(blocks, input_at(j, s.from), s.size * sizeof(T), row);
                along(s.size, [&](int64_t c, int n) { put(inputs + j * width + s.to + c, get(row + c, n), n); });
            });
    }

    void save(const int64_t* blocks) {
        for (int64_t i = 0; i < p.share(); i++) matrix.save(p.states, blocks, matrix_at(i), state_of(i), flat);
        T* row = (T*)flat;
        for (int64_t j = 0; j + 1 < p.kernel; j++)
            for_slices([&](const Slice& s) {
                along(s.size, [&](int64_t c, int n) { put(row + c, get(inputs + j * width + s.to + c, n), n); });
                p.states.store_bytes(blocks, input_at(j, s.from), s.size * sizeof(T), row);
            });
    }
};

template <class T>
void gated_delta_net(const DeltaNet<T>& p, int64_t sequences) {
    parallel_for(sequences * p.key_heads, [&](int64_t task) {
        Head<T>(p, task % p.key_heads).compute(p.states.sequence(task / p.key_heads));
    });
}

}  // namespace

#define GATED_DELTA_NET(NAME, T)                                                                                      \
    EXPORT void NAME(const T* channels, int64_t stride, const T* taps, const float* decays, const float* strengths,   \
                     float* read, const int64_t* pages, int64_t page_bytes, const int64_t* tokens,                    \
                     const int64_t* sequences, int64_t num_sequences, const int64_t* runs, int64_t groups,            \
                     int64_t key_heads, int64_t value_heads, int64_t key_dim, int64_t value_dim, int64_t kernel) {    \
        gated_delta_net<T>({{(const Page*)pages, page_bytes, tokens, sequences, runs, groups},                        \
                            channels, stride, taps, decays, strengths, read, key_heads, value_heads, key_dim,         \
                            value_dim, kernel},                                                                       \
                           num_sequences);                                                                            \
    }
GATED_DELTA_NET(pageant_gated_delta_net_f32, float)
GATED_DELTA_NET(pageant_gated_delta_net_bf16, bf16)
GATED_DELTA_NET(pageant_gated_delta_net_f16, f16)
