// Attention's two products, of rows by a panel that was packed for many of them: scores from queries and keys,
// and outputs from weights and values. (direct.h has the same results, bit by bit, without packing.)
//
// A panel is packed so that the lanes of a vector are columns: panel[k][column], a cell holding one float, or,
// where the machine multiplies bfloat16 in pairs, the two bfloat16 of rows 2k and 2k + 1. The other side's cells
// are broadcast, so that no sum runs across lanes.
#pragma once

#include <algorithm>

#include "base/exponential.h"
#include "base/tiles.h"
#include "base/vec.h"

using Cell = uint32_t;  // in memory: a float's bits, or a pair

// Weights times scales; what has no weight may have any scale.
inline vf scaled(vf weights, const float* scales) { return weights == 0 ? vf{} : weights * load<vf>(scales); }

// How cells of T are computed with. `Number` is what a row is made of, PER_CELL of them to a cell; `weights` makes
// W times two weights of the powers of two that they are, and adds them to a total as they are rounded, so that what
// is divided by is the sum of what was weighed with. `scaled_weights` makes them times the scales of values, which the total
// is without.
struct FloatCells {
    using Number = float;
    static constexpr int PER_CELL = 1;
    static constexpr bool TILED = false;
    static vf add(vf sums, vu a, vu b) { return fma((vf)a, (vf)b, sums); }
    static vf weights(vf a, vf b, float* to, vf total) {
        a = power_of_two<6>(a), b = power_of_two<6>(b);
        store(to, a);
        store(to + W, b);
        return total + a + b;
    }
    static vf scaled_weights(vf a, vf b, const float* scales, float* to, vf total) {
        a = power_of_two<6>(a), b = power_of_two<6>(b);
        store(to, scaled(a, scales));
        store(to + W, scaled(b, scales + W));
        return total + a + b;
    }
};

#if defined(__AVX512BF16__) || defined(PAGEANT_TILES)
struct PairCells {
    using Number = bf16;
    static constexpr int PER_CELL = 2;
#if defined(PAGEANT_TILES)
    static constexpr bool TILED = true;
#else
    static constexpr bool TILED = false;
#endif
    static vf weights(vf a, vf b, bf16* to, vf total) {
        a = power_of_two<3>(a), b = power_of_two<3>(b);
#if defined(__AVX512BF16__)
        __m512bh pairs = _mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
        store(to, pairs);
        return add(total, (vu)pairs, vu{} + 0x3f803f80u);  // times one
#else
        write(to, a);
        write(to + W, b);
        return total + rounded<bf16>(a) + rounded<bf16>(b);
#endif
    }
    static vf scaled_weights(vf a, vf b, const float* scales, bf16* to, vf total) {
        a = power_of_two<3>(a), b = power_of_two<3>(b);
        write(to, scaled(a, scales));
        write(to + W, scaled(b, scales + W));
        return total + a + b;
    }
#if defined(__AVX512BF16__)
    static vf add(vf sums, vu a, vu b) { return (vf)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b); }
#endif
};
#endif

// Keys and values of T are computed with as:
template <class T>
struct CellsOf {
    using Type = FloatCells;
};
#if defined(__AVX512BF16__) || defined(PAGEANT_TILES)
template <>
struct CellsOf<bf16> {
    using Type = PairCells;
};
#endif

constexpr int64_t CHUNK = 64;              // tokens that are gone through together
constexpr int64_t SPLIT = 512;             // tokens whose weights are made together
constexpr int64_t CHUNKS = SPLIT / CHUNK;  // of a split
// Scores of a row, and in their place its weights, stand apart by this much: not by a power of two, whose lines
// would have to share a few places in the nearest cache.
constexpr int64_t SCORES_STRIDE = SPLIT + 16;

// A panel of keys is [token / SCORES_WIDE][cell of the head][SCORES_WIDE tokens], one of values
// [number of the head / VALUES_WIDE][cell of tokens of a split][VALUES_WIDE numbers]: what is computed with at a time
// stays in the nearest cache.
template <class Cells>
constexpr int SCORES_WIDE = Cells::TILED ? 32 : 2 * W;
template <class Cells>
constexpr int VALUES_WIDE = Cells::TILED ? 64 : W == 16 ? 4 * W : 2 * W;
template <class Cells>
constexpr int64_t VALUES_DEEP = SPLIT / Cells::PER_CELL;

// Cells of a query or key, with zeros up to whole vectors or tiles.
template <class Cells>
inline int64_t padded_depth(int64_t head_dim) {
    constexpr int64_t UNIT = Cells::TILED ? 16 : W;
    return (head_dim + UNIT * Cells::PER_CELL - 1) / (UNIT * Cells::PER_CELL) * UNIT;
}
// Sums of values, as numbers: head_dim rounded up to whole vectors or tiles.
template <class Cells>
inline int64_t padded_width(int64_t head_dim) {
    constexpr int64_t SPAN = Cells::TILED ? 32 : W * Cells::PER_CELL;
    return (head_dim + SPAN - 1) / SPAN * SPAN;
}

inline vu broadcast(const Cell* cell) { return vu{} + *cell; }

// Adds to sums [R, V vectors] a column of A times a row of B.
template <class Cells, int R, int V>
inline void panel_step(const Cell* a, int64_t a_stride, const Cell* b, vf (&sums)[R][V]) {
    vu lanes[V];
    for (int v = 0; v < V; v++) lanes[v] = load<vu>(b + v * W);
    for (int r = 0; r < R; r++) {
        vu cell = broadcast(a + r * a_stride);
        for (int v = 0; v < V; v++) sums[r][v] = Cells::add(sums[r][v], cell, lanes[v]);
    }
}

template <class Cells, int R, int V>
void panel_tile(const Cell* a, int64_t a_stride, const Cell* b, int64_t b_stride, float* c, int64_t c_stride,
                int64_t depth) {
    vf sums[R][V] = {};
    for (int64_t k = 0; k < depth; k++) panel_step<Cells>(a + k, a_stride, b + k * b_stride, sums);
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(c + r * c_stride + v * W, sums[r][v]);
}

constexpr int PANEL_ROWS = W == 16 ? 6 : 3;

template <class Cells, int V>
void panel_rows(const Cell* a, int64_t a_stride, const Cell* b, int64_t b_stride, float* c, int64_t c_stride,
                int64_t rows, int64_t depth) {
    for (int64_t r = 0; r < rows; r += PANEL_ROWS, a += PANEL_ROWS * a_stride, c += PANEL_ROWS * c_stride) {
        switch (std::min<int64_t>(rows - r, PANEL_ROWS)) {
            case 1: panel_tile<Cells, 1, V>(a, a_stride, b, b_stride, c, c_stride, depth); break;
            case 2: panel_tile<Cells, 2, V>(a, a_stride, b, b_stride, c, c_stride, depth); break;
            case 3: panel_tile<Cells, 3, V>(a, a_stride, b, b_stride, c, c_stride, depth); break;
            case 4: panel_tile<Cells, 4, V>(a, a_stride, b, b_stride, c, c_stride, depth); break;
            case 5: panel_tile<Cells, 5, V>(a, a_stride, b, b_stride, c, c_stride, depth); break;
            default: panel_tile<Cells, 6, V>(a, a_stride, b, b_stride, c, c_stride, depth);
        }
    }
}

// C [rows, width] = A [rows, depth cells] B, part of a panel of values.
template <class Cells>
void panel_sums(const Cell* a, const Cell* b, float* c, int64_t rows, int64_t width, int64_t depth) {
    constexpr int WIDE = VALUES_WIDE<Cells>;
    for (int64_t d = 0; d < width; d += WIDE, b += VALUES_DEEP<Cells> * WIDE) {
        if (d + WIDE <= width) {
            panel_rows<Cells, WIDE / W>(a, SCORES_STRIDE, b, WIDE, c + d, width, rows, depth);
            continue;
        }
        for (int64_t i = 0; d + i < width; i += W)
            panel_rows<Cells, 1>(a, SCORES_STRIDE, b + i, WIDE, c + d + i, width, rows, depth);
    }
}

// R by V vectors of scores. A score is the sum of as many chains as a vector has quarters (direct.h's lanes): chain q
// is of the cells that lie there. Sums that wait for their other half are kept by their level. `ahead` is called meanwhile.
template <class Cells, int R, int V, class Ahead>
void panel_scores_tile(const Cell* a, int64_t a_stride, const Cell* b, float* c, int64_t depth, Ahead& ahead) {
    vf sums[R][V], waiting[2][R][V];
    for (int q = 0; q < W / 4; q++) {
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) sums[r][v] = vf{};
        for (int64_t k = 4 * q; k < depth; k += W) {
            ahead();
            for (int64_t i = k; i < k + 4; i++) panel_step<Cells>(a + i, a_stride, b + i * V * W, sums);
        }
        int level = 0;
        for (int done = q; done & 1; done >>= 1, level++)
            for (int r = 0; r < R; r++)
                for (int v = 0; v < V; v++) sums[r][v] += waiting[level][r][v];
        for (int r = 0; r < R && q + 1 < W / 4; r++)
            for (int v = 0; v < V; v++) waiting[level][r][v] = sums[r][v];
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(c + r * SCORES_STRIDE + v * W, sums[r][v]);
}

// Scores of queries [rows, depth cells] and a chunk's panel of keys, SCORES_STRIDE apart. `ahead` is called meanwhile.
template <class Cells, class Ahead>
void panel_scores(const Cell* a, const Cell* b, float* c, int64_t rows, int64_t depth, Ahead ahead) {
    constexpr int WIDE = SCORES_WIDE<Cells>, V = WIDE / W;
    for (int64_t t = 0; t < CHUNK; t += WIDE, b += depth * WIDE) {
        for (int64_t r = 0; r < rows; r += PANEL_ROWS) {
            const Cell* from = a + r * depth;
            float* to = c + r * SCORES_STRIDE + t;
            switch (std::min<int64_t>(rows - r, PANEL_ROWS)) {
                case 1: panel_scores_tile<Cells, 1, V>(from, depth, b, to, depth, ahead); break;
                case 2: panel_scores_tile<Cells, 2, V>(from, depth, b, to, depth, ahead); break;
                case 3: panel_scores_tile<Cells, 3, V>(from, depth, b, to, depth, ahead); break;
                case 4: panel_scores_tile<Cells, 4, V>(from, depth, b, to, depth, ahead); break;
                case 5: panel_scores_tile<Cells, 5, V>(from, depth, b, to, depth, ahead); break;
                default: panel_scores_tile<Cells, 6, V>(from, depth, b, to, depth, ahead);
            }
        }
    }
}
