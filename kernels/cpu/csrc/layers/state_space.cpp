// The recurrence of Mamba-2 (Dao, Gu, 2024) on states in pages (kernels/base.py, state_space). A sequence's tokens follow one
// another, so that a token's bits do not depend on which are computed with it. The chunked matrix form was turned down for
// that reason, as it is for gated DeltaNets.
#include "base/exponential.h"
#include "layers/states.h"

namespace {

constexpr int COLUMN_VECTORS = 4;  // of a panel: columns of a state that stay in registers and the first cache

// Tokens of one head. All rows are padded to whole vectors.
struct Tile {
    int64_t count, state_dim;
    const float *keys, *queries;  // [count, state_dim]
    const float* values;          // [count, width]
    int64_t width;
    const float *factors, *steps;  // [count]
    float skip;
    float* read;  // [count, width]
};

// Takes the tokens into N vectors of columns of a state, [state_dim, N * W], beginning with `column`.
template <int N>
void through_panel(const Tile& p, float* state, int64_t column) {
    const vf skip = splat(p.skip);
    for (int64_t t = 0; t < p.count; t++) {
        const vf factor = splat(p.factors[t]), step = splat(p.steps[t]);
        const float *key = p.keys + t * p.state_dim, *query = p.queries + t * p.state_dim;
        const float* values = p.values + t * p.width + column;
        vf change[N], found[N];
        UNROLL for (int n = 0; n < N; n++) change[n] = load<vf>(values + n * W) * step, found[n] = vf{};
        for (int64_t i = 0; i < p.state_dim; i++) {
            const vf k = splat(key[i]), q = splat(query[i]);
            UNROLL for (int n = 0; n < N; n++) {
                float* place = state + (i * N + n) * W;
                const vf s = fma(k, change[n], factor * load<vf>(place));
                store(place, s);
                found[n] = fma(q, s, found[n]);
            }
        }
        UNROLL for (int n = 0; n < N; n++)
            store(p.read + t * p.width + column + n * W, fma(skip, load<vf>(values + n * W), found[n]));
    }
}

template <class T>
struct StateSpace {
    States states;
    const T* mixed;  // [tokens, C]: values, keys, queries
    int64_t stride;
    const float *decays, *steps;  // [tokens, heads]
    const float* skips;           // [heads]
    float* read;                  // [tokens, heads, value_dim]
    int64_t key_heads, heads, key_dim, value_dim;

    // The task of one head of a sequence.
    void head(const int64_t* sequence, int64_t head) const {
        const Panels<COLUMN_VECTORS> matrix{key_dim, value_dim};
        const int64_t width = matrix.width(), first = head * matrix.bytes();
        static thread_local Scratch<float> scratch;
        float* state = scratch.take(2 * matrix.size() + TOKENS_MAX * 2 * (width + padded(key_dim)) + 2 * TOKENS_MAX);
        float* flat = state + matrix.size();
        float *values = flat + matrix.size(), *out = values + TOKENS_MAX * width;
        float *keys = out + TOKENS_MAX * width, *queries = keys + TOKENS_MAX * padded(key_dim);
        float *factors = queries + TOKENS_MAX * padded(key_dim), *own_steps = factors + TOKENS_MAX;
        if (width > value_dim) std::fill_n(values, TOKENS_MAX * width, 0.0f);  // what rows are padded with counts as zero
        if (sequence[2]) std::fill_n(state, matrix.size(), 0.0f);
        else matrix.restore(states, sequence + 3, first, state, flat);
        for (int64_t r = sequence[0]; r < sequence[1]; r++) {
            const int64_t* run = states.run(r);
            for (int64_t at = run[0]; at < run[1]; at += TOKENS_MAX) {
                const int64_t* tokens = states.tokens + at;
                const int64_t count = std::min(TOKENS_MAX, run[1] - at);
                gather(tokens, count, head, {values, width, keys, queries, factors, own_steps});
                const Tile tile{count, key_dim, keys, queries, values, width, factors, own_steps, skips[head], out};
                matrix.each(state, [&](float* panel, int64_t column, auto n) { through_panel<n>(tile, panel, column); });
                for (int64_t t = 0; t < count; t++)
                    std::copy_n(out + t * width, value_dim, read + (tokens[t] * heads + head) * value_dim);
            }
            if (run[2]) matrix.save(states, run + 3, first, state, flat);
        }
    }

    struct Room {
        float* values;
        int64_t width;
        float *keys, *queries, *factors, *steps;
    };

    void gather(const int64_t* tokens, int64_t count, int64_t head, const Room& to) const {
        const int64_t group = head / (heads / key_heads);
        for (int64_t t = 0; t < count; t++) {
            const T* row = mixed + tokens[t] * stride;
            const T* key = row + heads * value_dim + group * key_dim;
            const T* query = key + key_heads * key_dim;
            along(value_dim, [&](int64_t c, int n) { put(to.values + t * to.width + c, get(row + head * value_dim + c, n), n); });
            along(key_dim, [&](int64_t c, int n) {
                put(to.keys + t * key_dim + c, get(key + c, n), n);
                put(to.queries + t * key_dim + c, get(query + c, n), n);
            });
            to.factors[t] = decays[tokens[t] * heads + head];
            to.steps[t] = steps[tokens[t] * heads + head];
        }
        along(count, [&](int64_t t, int n) { put(to.factors + t, exponential(get(to.factors + t, n)), n); });
    }
};

template <class T>
void state_space(const StateSpace<T>& p, int64_t sequences) {
    parallel_for(sequences * p.heads,
                 [&](int64_t task) { p.head(p.states.sequence(task / p.heads), task % p.heads); });
}

}  // namespace

#define STATE_SPACE(NAME, T)                                                                                            \
    EXPORT void NAME(const T* mixed, int64_t stride, const float* decays, const float* steps, const float* skips,       \
                     float* read, const int64_t* pages, int64_t page_bytes, const int64_t* tokens,                      \
                     const int64_t* sequences, int64_t num_sequences, const int64_t* runs, int64_t groups,              \
                     int64_t key_heads, int64_t heads, int64_t key_dim, int64_t value_dim) {                            \
        state_space<T>({{(const Page*)pages, page_bytes, tokens, sequences, runs, groups},                              \
                        mixed, stride, decays, steps, skips, read, key_heads, heads, key_dim, value_dim},               \
                       num_sequences);                                                                                  \
    }
STATE_SPACE(pageant_state_space_f32, float)
STATE_SPACE(pageant_state_space_bf16, bf16)
STATE_SPACE(pageant_state_space_f16, f16)
