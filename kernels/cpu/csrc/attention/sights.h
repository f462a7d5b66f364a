// What a row of attention sees of a context, and the weights that its scores become.
#pragma once

#include "attention/attending.h"

// Entries [begin, stop), and from `own` on those whose bit is set.
struct Sight {
    int64_t begin, stop, own;
    uint64_t chosen;

    // Bit i: whether entry first + i is seen.
    uint64_t bits(int64_t first) const {
        auto below = [](int64_t n) { return n >= CHUNK ? ~0ull : n <= 0 ? 0 : (1ull << n) - 1; };
        uint64_t seen = below(stop - first) & ~below(begin - first);
        int64_t shift = own - first;
        if (chosen && shift > -CHUNK && shift < CHUNK) seen |= shift >= 0 ? chosen << shift : chosen >> -shift;
        return seen;
    }
};

// What a token sees, and from which entry to which.
template <class T>
Span look(const Problem<T>& p, int64_t sequence, int64_t token, Sight& sight) {
    int64_t length = p.lengths[sequence], position = p.positions[token];
    int64_t first = p.starts[sequence], count = p.starts[sequence + 1] - first;
    sight.begin = p.window ? std::max<int64_t>(0, position + 1 - p.window) : 0;
    sight.stop = std::min(length, position + 1);
    sight.own = length - count;
    sight.chosen = p.ancestors ? uint64_t(p.ancestors[token]) : 0;
    if (!sight.chosen) return {sight.begin, sight.stop};
    sight.stop = sight.own;
    for (int64_t i = 0; i < std::min(count, CHUNK); i++)
        if (p.window && p.positions[first + i] <= position - p.window) sight.chosen &= ~(1ull << i);
    return Span{sight.begin, sight.stop}.with({sight.own, sight.chosen ? length : sight.own});
}

namespace weighing {

inline float largest_of(const float* scores, int64_t count) {
    vf largest[2] = {splat(NOTHING), splat(NOTHING)};
    for (int64_t t = 0; t < count; t += 2 * W)
        for (int i = 0; i < 2; i++) largest[i] = max(load<vf>(scores + t + i * W), largest[i]);
    return maximum(max(largest[0], largest[1]));
}

// Writes the weights 2**(scale * score - largest) of scores, of which there may be none, and returns their sum. They
// may be written where the scores are, or before.
template <class Cells>
__attribute__((noinline)) float make_weights(const float* scores, int64_t count, float scale, float largest,
                                             typename Cells::Number* to) {
    vf base = splat(largest == NOTHING ? 0 : -largest), total = {};
    for (int64_t t = 0; t < count; t += 2 * W) {
        vf a = fma(load<vf>(scores + t), splat(scale), base);
        vf b = fma(load<vf>(scores + t + W), splat(scale), base);
        total = Cells::weights(a, b, to + t, total);
    }
    return sum(total);
}
// The same of weights times the scales of values, without which they are summed.
template <class Cells>
__attribute__((noinline)) float make_weights(const float* scores, int64_t count, float scale, float largest,
                                             typename Cells::Number* to, const float* scales) {
    vf base = splat(largest == NOTHING ? 0 : -largest), total = {};
    for (int64_t t = 0; t < count; t += 2 * W) {
        vf a = fma(load<vf>(scores + t), splat(scale), base);
        vf b = fma(load<vf>(scores + t + W), splat(scale), base);
        total = Cells::scaled_weights(a, b, scales + t, to + t, total);
    }
    return sum(total);
}

template <class T>
void cap(const Problem<T>& p, float* at) {
    for (int t = 0; t < CHUNK; t += W)
        store(at + t, p.softcap * hyperbolic_tangent(load<vf>(at + t) * (p.scale / p.softcap)));
}

inline void multiply(float* at, const float* by) {
    for (int t = 0; t < CHUNK; t += W) store(at + t, load<vf>(at + t) * load<vf>(by + t));
}

inline void hide(float* at, uint64_t bits) {
    vi lanes;
    for (int i = 0; i < W; i++) lanes[i] = i;
    for (int t = 0; t < CHUNK; t += W) {
        vi seen = (vi{} + int32_t(bits >> t)) >> lanes & 1;
        store(at + t, seen != 0 ? load<vf>(at + t) : splat(NOTHING));
    }
}

}  // namespace weighing

// What the numbers of keys and of values in 8 bits are multiplied by, of one key head, by their places in a split.
struct SplitScales {
    const float *keys, *values;
};
struct NoScales {};  // of numbers as they are

// Turns a row's scores of a split, of which it has those of `chunks`, into weights, in place; what it does not see has
// none. `row` is told of the largest and of the sum.
template <class T, class Scales>
void weigh(const Problem<T>& p, const Sight& sight, Span chunks, float* scores, Rows row, const Scales& scales) {
    using Cells = typename CellsOf<T>::Type;
    constexpr bool SCALED = std::is_same_v<Scales, SplitScales>;
    for (int64_t chunk = chunks.start; chunk < chunks.stop; chunk++) {
        float* at = scores + chunk % CHUNKS * CHUNK;
        if constexpr (SCALED) weighing::multiply(at, scales.keys + chunk % CHUNKS * CHUNK);
        if (p.softcap != 0) weighing::cap(p, at);
        uint64_t bits = sight.bits(chunk * CHUNK);
        if (~bits) weighing::hide(at, bits);
    }
    const int64_t first = chunks.start % CHUNKS * CHUNK, count = (chunks.stop - chunks.start) * CHUNK;
    const float scale = p.softcap != 0 ? LOG2_E : p.scale * LOG2_E;
    *row.largest = weighing::largest_of(scores + first, count) * scale;
    auto* to = reinterpret_cast<typename Cells::Number*>(scores) + first;
    if constexpr (SCALED) *row.total = weighing::make_weights<Cells>(scores + first, count, scale, *row.largest, to, scales.values + first);
    else *row.total = weighing::make_weights<Cells>(scores + first, count, scale, *row.largest, to);
}
