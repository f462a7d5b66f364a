// Packing keys and values of a tile of the cache into panels (see panel.h), with a pointer for each token.
// Meanwhile the memory of the tile after it is asked for, line by line: in one burst it would only queue.
#pragma once

#include "panel.h"

namespace packing {

template <int S, int... I>
inline void exchange(vu& a, vu& b, std::integer_sequence<int, I...>) {
    vu low = shuffle<(I & S ? W + I - S : I)...>(a, b);
    b = shuffle<(I & S ? W + I : I + S)...>(a, b);
    a = low;
}
template <int S>
inline void transpose_from(vu* rows) {
    if constexpr (S < W) {
        for (int i = 0; i < W; i++)
            if (!(i & S)) exchange<S>(rows[i], rows[i + S], std::make_integer_sequence<int, W>{});
        transpose_from<2 * S>(rows);
    }
}
// W vectors of W lanes: lane j of row i goes to lane i of row j.
inline void transpose(vu* rows) { transpose_from<1>(rows); }

// W cells of a row of numbers.
template <class Cells>
inline vu cells(const float* p) { return (vu)read(p); }
template <class Cells>
inline vu cells(const bf16* p) {
    if constexpr (Cells::PER_CELL == 2) return load<vu>(p);
    return (vu)read(p);
}
template <class Cells>
inline vu cells(const f16* p) { return (vu)read(p); }
// The same where there are only n numbers, the rest zero.
template <class Cells, class T>
inline vu cells(const T* p, int64_t n) {
    if (n >= W * Cells::PER_CELL) return cells<Cells>(p);
    T part[W * Cells::PER_CELL] = {};
    std::memcpy(part, p, n * sizeof(T));
    return cells<Cells>(part);
}

// The values of PER_CELL tokens as cells, PER_CELL vectors of them. Pairs come as the machine interleaves them
// at one instruction each: within quarters of a vector. Sums stay in that order until `in_order`.
template <class Cells, class T>
inline void value_cells(const T* const* rows, int64_t d, int64_t left, vu* to) {
    vu a = cells<Cells>(rows[0] + d, left);
    to[0] = a;
#if defined(__AVX512BF16__)
    if constexpr (Cells::PER_CELL == 2) {
        __m512i b = (__m512i)cells<Cells>(rows[1] + d, left);
        to[0] = (vu)_mm512_unpacklo_epi16((__m512i)a, b);
        to[1] = (vu)_mm512_unpackhi_epi16((__m512i)a, b);
    }
#endif
}

// Asks for the cache lines of `count` numbers. Far enough ahead that they belong in the second cache.
template <class T>
inline void fetch(const T* p, int64_t count) {
    constexpr int64_t LINE = 64 / sizeof(T);
    for (int64_t d = 0; d < count; d += LINE) __builtin_prefetch(p + d, 0, 2);
}
// The order in which a tile's tokens are fetched: its four quarters side by side. They are mostly blocks of the
// cache, which lie apart, and memory answers twice as fast when several places are read at once.
inline int64_t in_turn(int64_t t) { return t % 4 * (TILE / 4) + t / 4; }

}  // namespace packing

// Sums of values as [width] numbers: head_dim rounded up to whole vectors of cells.
template <class Cells>
inline int64_t values_width(int64_t head_dim) {
    constexpr int64_t SPAN = W * Cells::PER_CELL;
    return (head_dim + SPAN - 1) / SPAN * SPAN;
}

// Undoes the order of `value_cells`.
template <class Cells>
void in_order(float* values, int64_t width) {
#if defined(__AVX512BF16__)
    if constexpr (Cells::PER_CELL == 2) {
        for (int64_t d = 0; d < width; d += 2 * W) {
            vf low = load<vf>(values + d), high = load<vf>(values + d + W);
            store(values + d, shuffle<0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23>(low, high));
            store(values + d + W,
                  shuffle<8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31>(low, high));
        }
    }
#endif
}

// panel[tokens / SCORES_WIDE][cell of the head][SCORES_WIDE tokens], TILE tokens with `head_dim` numbers each.
template <class Cells, class T>
void pack_keys(const T* const* rows, const T* const* next, int64_t head_dim, Cell* panel) {
    constexpr int SPAN = W * Cells::PER_CELL;
    int64_t depth = (head_dim + Cells::PER_CELL - 1) / Cells::PER_CELL;
    for (int64_t t = 0; t < TILE; t += W) {
        for (int i = 0; i < W; i++) packing::fetch(next[packing::in_turn(t + i)], head_dim);
        Cell* to = panel + t / SCORES_WIDE * depth * SCORES_WIDE + t % SCORES_WIDE;
        for (int64_t d = 0; d < head_dim; d += SPAN) {
            vu square[W];
            int64_t left = head_dim - d;
            for (int i = 0; i < W; i++) square[i] = packing::cells<Cells>(rows[t + i] + d, left);
            packing::transpose(square);
            int64_t first = d / Cells::PER_CELL, stop = std::min(depth, first + W);
            for (int64_t k = first; k < stop; k++) store(to + k * SCORES_WIDE, square[k - first]);
        }
    }
}

// panel[cell of tokens][number of the head], in the order of `value_cells`.
template <class Cells, class T>
void pack_values(const T* const* rows, const T* const* next, int64_t head_dim, int64_t width, Cell* panel) {
    for (int64_t t = 0; t < TILE; t += Cells::PER_CELL, panel += width) {
        for (int i = 0; i < Cells::PER_CELL; i++) packing::fetch(next[packing::in_turn(t + i)], head_dim);
        for (int64_t d = 0; d < head_dim; d += W * Cells::PER_CELL) {
            vu made[Cells::PER_CELL];
            packing::value_cells<Cells>(rows + t, d, head_dim - d, made);
            for (int i = 0; i < Cells::PER_CELL; i++) store(panel + d + i * W, made[i]);
        }
    }
}
