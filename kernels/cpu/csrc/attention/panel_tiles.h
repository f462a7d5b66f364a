// panel.h's two products by matrix registers, for queries and weights of up to 32 rows at once: the panels are what
// tiles are loaded from as they lie. A sum goes along pairs of inputs in tiles of 32, the same for any number of rows.
// Rows past the last are computed too, from whatever is there.
#pragma once

#include "attention/panel.h"

#if defined(PAGEANT_TILES)

namespace panel_tiles {

// Memory for this many rows is wanted of all that rows are in.
inline int64_t padded_rows(int64_t rows) { return (rows + TILE - 1) / TILE * TILE; }

// C [2 tiles, 2 tiles] = A [2 tiles, depth cells] B [depth cells, 2 tiles]. Strides are in cells.
inline void two_by_two(const Cell* a, int64_t a_stride, const Cell* b, int64_t b_stride, float* c, int64_t c_stride,
                       int64_t depth) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int64_t k = 0; k < depth; k += TILE) {
        TILE_LOAD(6, a + k, a_stride * 4);
        TILE_LOAD(4, b + k * b_stride, b_stride * 4);
        TILE_MULTIPLY(0, 6, 4);
        TILE_LOAD(5, b + k * b_stride + TILE, b_stride * 4);
        TILE_MULTIPLY(1, 6, 5);
        TILE_FREE(6);
        TILE_LOAD(7, a + TILE * a_stride + k, a_stride * 4);
        TILE_MULTIPLY(2, 7, 4);
        TILE_FREE(4);
        TILE_MULTIPLY(3, 7, 5);
        TILE_FREE(5);
        TILE_FREE(7);
    }
    TILE_STORE(0, c, c_stride * 4);
    TILE_STORE(1, c + TILE, c_stride * 4);
    TILE_STORE(2, c + TILE * c_stride, c_stride * 4);
    TILE_STORE(3, c + TILE * c_stride + TILE, c_stride * 4);
}

// C [1 tile, 4 tiles] = A [1 tile, depth cells] B: two tiles at b, and two at `other`.
inline void one_by_four(const Cell* a, int64_t a_stride, const Cell* b, const Cell* other, int64_t b_stride, float* c,
                        int64_t c_stride, int64_t depth) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int64_t k = 0; k < depth; k += TILE) {
        TILE_LOAD(6, a + k, a_stride * 4);
        TILE_LOAD(4, b + k * b_stride, b_stride * 4);
        TILE_MULTIPLY(0, 6, 4);
        TILE_FREE(4);
        TILE_LOAD(5, b + k * b_stride + TILE, b_stride * 4);
        TILE_MULTIPLY(1, 6, 5);
        TILE_FREE(5);
        TILE_LOAD(4, other + k * b_stride, b_stride * 4);
        TILE_MULTIPLY(2, 6, 4);
        TILE_FREE(4);
        TILE_LOAD(5, other + k * b_stride + TILE, b_stride * 4);
        TILE_MULTIPLY(3, 6, 5);
        TILE_FREE(5);
        TILE_FREE(6);
    }
    TILE_STORE(0, c, c_stride * 4);
    TILE_STORE(1, c + TILE, c_stride * 4);
    TILE_STORE(2, c + 2 * TILE, c_stride * 4);
    TILE_STORE(3, c + 3 * TILE, c_stride * 4);
}

// C [1 tile, 2 tiles].
inline void one_by_two(const Cell* a, int64_t a_stride, const Cell* b, int64_t b_stride, float* c, int64_t c_stride,
                       int64_t depth) {
    TILE_ZERO(0);
    TILE_ZERO(1);
    for (int64_t k = 0; k < depth; k += TILE) {
        TILE_LOAD(6, a + k, a_stride * 4);
        TILE_LOAD(4, b + k * b_stride, b_stride * 4);
        TILE_MULTIPLY(0, 6, 4);
        TILE_FREE(4);
        TILE_LOAD(5, b + k * b_stride + TILE, b_stride * 4);
        TILE_MULTIPLY(1, 6, 5);
        TILE_FREE(5);
        TILE_FREE(6);
    }
    TILE_STORE(0, c, c_stride * 4);
    TILE_STORE(1, c + TILE, c_stride * 4);
}

}  // namespace panel_tiles

// As panel_scores.
inline void tile_scores(const Cell* a, const Cell* b, float* c, int64_t rows, int64_t depth) {
    constexpr int WIDE = SCORES_WIDE<PairCells>;
    static_assert(WIDE == 2 * TILE && CHUNK == 2 * WIDE);
    if (rows <= TILE) return panel_tiles::one_by_four(a, depth, b, b + depth * WIDE, WIDE, c, SCORES_STRIDE, depth);
    for (int64_t t = 0; t < CHUNK; t += WIDE, b += depth * WIDE)
        panel_tiles::two_by_two(a, depth, b, WIDE, c + t, SCORES_STRIDE, depth);
}

// C [rows, width] = A [rows, depth cells] B, part of a panel of values.
inline void tile_sums(const Cell* a, const Cell* b, float* c, int64_t rows, int64_t width, int64_t depth) {
    constexpr int WIDE = VALUES_WIDE<PairCells>, HALF = WIDE / 2;
    static_assert(HALF == 2 * TILE);
    for (int64_t d = 0; d < width; d += WIDE, b += VALUES_DEEP<PairCells> * WIDE) {
        bool whole = d + WIDE <= width;
        if (rows > TILE) {
            panel_tiles::two_by_two(a, SCORES_STRIDE, b, WIDE, c + d, width, depth);
            if (whole) panel_tiles::two_by_two(a, SCORES_STRIDE, b + HALF, WIDE, c + d + HALF, width, depth);
        } else if (whole) {
            panel_tiles::one_by_four(a, SCORES_STRIDE, b, b + HALF, WIDE, c + d, width, depth);
        } else {
            panel_tiles::one_by_two(a, SCORES_STRIDE, b, WIDE, c + d, width, depth);
        }
    }
}

#endif
