// Small products C += A B of rows by a packed panel, for attention's two: scores from queries and keys, and
// outputs from weights and values.
//
// B is packed so that the lanes of a vector are columns: B[k][column], a cell holding one float, or, where
// the machine multiplies bfloat16 in pairs, the two bfloat16 of rows 2k and 2k + 1. A's cells are broadcast.
// So no sum runs across lanes, and each (row, column) is added up along k in order, the same in any tile.
#pragma once

#include <algorithm>

#include "vec.h"

// How cells of T are computed with. `Number` is what a row of A is made of, PER_CELL of them to a cell.
struct FloatCells {
    using Number = float;
    using Lanes = vf;
    using Scalar = float;
    static constexpr int PER_CELL = 1;
    static vf add(vf sums, float a, vf b) { return fma(splat(a), b, sums); }
};

#if defined(__AVX512BF16__)
struct PairCells {
    using Number = bf16;
    using Lanes = vu;
    using Scalar = uint32_t;
    static constexpr int PER_CELL = 2;
    static vf add(vf sums, uint32_t a, vu b) {
        return (vf)_mm512_dpbf16_ps((__m512)sums, (__m512bh)_mm512_set1_epi32(int(a)), (__m512bh)b);
    }
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

using Cell = uint32_t;  // in memory: a float's bits, or a pair

template <class Cells, int R, int V>
void panel_tile(const Cell* a, int64_t a_stride, const Cell* b, int64_t b_stride, float* c, int64_t c_stride,
                int64_t depth) {
    vf sums[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) sums[r][v] = load<vf>(c + r * c_stride + v * W);
    for (int64_t k = 0; k < depth; k++) {
        typename Cells::Lanes lanes[V];
        for (int v = 0; v < V; v++) lanes[v] = load<typename Cells::Lanes>(b + k * b_stride + v * W);
        for (int r = 0; r < R; r++) {
            typename Cells::Scalar cell;
            std::memcpy(&cell, a + r * a_stride + k, sizeof(Cell));
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
