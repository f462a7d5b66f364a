// Attention's two products, of rows by a panel that was packed for many of them: scores from queries and keys,
// and outputs from weights and values. (direct.h has the same results, bit by bit, without packing.)
//
// A panel is packed so that the lanes of a vector are columns: panel[k][column], a cell holding one float, or,
// where the machine multiplies bfloat16 in pairs, the two bfloat16 of rows 2k and 2k + 1. The other side's cells
// are broadcast, so that no sum runs across lanes.
#pragma once

#include <algorithm>

#include "vec.h"

using Cell = uint32_t;  // in memory: a float's bits, or a pair

// How cells of T are computed with. `Number` is what a row is made of, PER_CELL of them to a cell.
struct FloatCells {
    using Number = float;
    static constexpr int PER_CELL = 1;
    static vf add(vf sums, vu a, vu b) { return fma((vf)a, (vf)b, sums); }
};

#if defined(__AVX512BF16__)
struct PairCells {
    using Number = bf16;
    static constexpr int PER_CELL = 2;
    static vf add(vf sums, vu a, vu b) { return (vf)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b); }
};
#endif

// Keys and values of T are computed with as:
template <class T>
struct CellsOf {
    using Type = FloatCells;
};
#if defined(__AVX512BF16__)
template <>
struct CellsOf<bf16> {
    using Type = PairCells;
};
#endif

constexpr int64_t TILE = 64;  // tokens that are gone through together
// Scores are computed for this many tokens at a time, whose panel of keys then stays in the nearest cache.
constexpr int SCORES_WIDE = 2 * W;

inline vu broadcast(const Cell* cell) { return vu{} + *cell; }

template <class Cells, int R, int V>
void panel_tile(const Cell* a, int64_t a_stride, const Cell* b, int64_t b_stride, float* c, int64_t c_stride,
                int64_t depth) {
    vf sums[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) sums[r][v] = load<vf>(c + r * c_stride + v * W);
    for (int64_t k = 0; k < depth; k++) {
        vu lanes[V];
        for (int v = 0; v < V; v++) lanes[v] = load<vu>(b + k * b_stride + v * W);
        for (int r = 0; r < R; r++) {
            vu cell = broadcast(a + r * a_stride + k);
            for (int v = 0; v < V; v++) sums[r][v] = Cells::add(sums[r][v], cell, lanes[v]);
        }
    }
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

// C [rows, columns] += A [rows, depth cells] B [depth cells, columns]; columns is a multiple of W.
template <class Cells>
void panel_product(const Cell* a, int64_t a_stride, const Cell* b, int64_t b_stride, float* c,
                   int64_t c_stride, int64_t rows, int64_t columns, int64_t depth) {
    constexpr int WIDE = W == 16 ? 4 : 2;
    int64_t column = 0;
    for (; column + WIDE * W <= columns; column += WIDE * W)
        panel_rows<Cells, WIDE>(a, a_stride, b + column, b_stride, c + column, c_stride, rows, depth);
    for (; column < columns; column += W)
        panel_rows<Cells, 1>(a, a_stride, b + column, b_stride, c + column, c_stride, rows, depth);
}

// The part of R by V vectors of scores that cells l, l + W, l + 2W, ... of the head add up to.
template <class Cells, int R, int V>
inline void panel_chain(const Cell* a, int64_t a_stride, const Cell* b, int64_t l, int64_t depth, vf (&sums)[R][V]) {
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) sums[r][v] = vf{};
    for (int64_t k = l; k < depth; k += W) {
        vu lanes[V];
        for (int v = 0; v < V; v++) lanes[v] = load<vu>(b + k * SCORES_WIDE + v * W);
        for (int r = 0; r < R; r++) {
            vu cell = broadcast(a + r * a_stride + k);
            for (int v = 0; v < V; v++) sums[r][v] = Cells::add(sums[r][v], cell, lanes[v]);
        }
    }
}

// R by V vectors of scores. A score is the sum of W chains, added up as direct.h's lanes are: each with its
// neighbour, then pairs, then fours. Sums that wait for their other half are kept by their level.
template <class Cells, int R, int V>
void panel_scores_tile(const Cell* a, int64_t a_stride, const Cell* b, float* c, int64_t depth) {
    vf waiting[4][R][V], sums[R][V], other[R][V];
    for (int l = 0; l < W; l += 2) {
        panel_chain<Cells>(a, a_stride, b, l, depth, sums);
        panel_chain<Cells>(a, a_stride, b, l + 1, depth, other);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) sums[r][v] += other[r][v];
        int level = 0;
        for (int pairs = l / 2; pairs & 1; pairs >>= 1, level++)
            for (int r = 0; r < R; r++)
                for (int v = 0; v < V; v++) sums[r][v] += waiting[level][r][v];
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) waiting[level][r][v] = sums[r][v];
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(c + r * TILE + v * W, sums[r][v]);
}

// Scores [rows, TILE] of queries [rows, depth cells] and panels of keys [TILE / SCORES_WIDE, depth cells, SCORES_WIDE].
template <class Cells>
void panel_scores(const Cell* a, int64_t a_stride, const Cell* b, float* c, int64_t rows, int64_t depth) {
    constexpr int V = SCORES_WIDE / W;
    for (int64_t t = 0; t < TILE; t += SCORES_WIDE, b += depth * SCORES_WIDE) {
        for (int64_t r = 0; r < rows; r += PANEL_ROWS) {
            const Cell* from = a + r * a_stride;
            float* to = c + r * TILE + t;
            switch (std::min<int64_t>(rows - r, PANEL_ROWS)) {
                case 1: panel_scores_tile<Cells, 1, V>(from, a_stride, b, to, depth); break;
                case 2: panel_scores_tile<Cells, 2, V>(from, a_stride, b, to, depth); break;
                case 3: panel_scores_tile<Cells, 3, V>(from, a_stride, b, to, depth); break;
                case 4: panel_scores_tile<Cells, 4, V>(from, a_stride, b, to, depth); break;
                case 5: panel_scores_tile<Cells, 5, V>(from, a_stride, b, to, depth); break;
                default: panel_scores_tile<Cells, 6, V>(from, a_stride, b, to, depth);
            }
        }
    }
}
