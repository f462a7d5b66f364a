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

// W cells of a row from its number d on.
template <class Cells>
inline vu cells(const float* p) { return (vu)read(p); }
template <class Cells>
inline vu cells(const bf16* p) {
    if constexpr (Cells::PER_CELL == 2) return load<vu>(p);
    return (vu)read(p);
}
template <class Cells>
inline vu cells(const f16* p) { return (vu)read(p); }
template <class Cells, class T>
inline vu cells_part(const T* p, int64_t n) {
    T part[W * Cells::PER_CELL] = {};
    std::memcpy(part, p, n * sizeof(T));
    return cells<Cells>(part);
}

// Cells that pair the values of two tokens, which is how a product along tokens wants them.
template <class Cells>
inline vu two_rows(const bf16* a, const bf16* b) {
    return halves(a) | (halves(b) << 16);
}

// Asks for the cache lines of `count` numbers. Far enough ahead that they belong in the second cache.
template <class T>
inline void fetch(const T* p, int64_t count) {
    constexpr int64_t LINE = 64 / sizeof(T);
    for (int64_t d = 0; d < count; d += LINE) __builtin_prefetch(p + d, 0, 2);
}

}  // namespace packing


// panel[cell of the head][token], `tokens` of them (a multiple of W) with `head_dim` numbers each.
template <class Cells, class T>
void pack_keys(const T* const* rows, const T* const* next, int64_t tokens, int64_t head_dim, Cell* panel) {
    constexpr int SPAN = W * Cells::PER_CELL;
    for (int64_t t = 0; t < tokens; t += W) {
        for (int64_t d = 0; d < head_dim; d += SPAN) {
            vu square[W];
            int64_t left = head_dim - d;
            for (int i = 0; i < W; i++)
                square[i] = left >= SPAN ? packing::cells<Cells>(rows[t + i] + d)
                                         : packing::cells_part<Cells>(rows[t + i] + d, left);
            packing::transpose(square);
            int64_t depth = std::min<int64_t>(W, (left + Cells::PER_CELL - 1) / Cells::PER_CELL);
            for (int i = 0; i < W; i++) packing::fetch(next[t + i] + d, std::min<int64_t>(SPAN, left));
            for (int64_t k = 0; k < depth; k++) store(panel + (d / Cells::PER_CELL + k) * tokens + t, square[k]);
        }
    }
}

// panel[cell of tokens][number of the head], rows of `width` (head_dim rounded up to a multiple of W).
template <class Cells, class T>
void pack_values(const T* const* rows, const T* const* next, int64_t tokens, int64_t head_dim, int64_t width,
                 Cell* panel) {
    for (int64_t t = 0; t < tokens; t += Cells::PER_CELL, panel += width) {
        for (int i = 0; i < Cells::PER_CELL; i++) packing::fetch(next[t + i], head_dim);
        for (int64_t d = 0; d < head_dim; d += W) {
            int64_t left = head_dim - d;
            if constexpr (Cells::PER_CELL == 2) {
                if (left >= W) {
                    store(panel + d, packing::two_rows<Cells>(rows[t] + d, rows[t + 1] + d));
                } else {
                    T a[W] = {}, b[W] = {};
                    std::memcpy(a, rows[t] + d, left * sizeof(T));
                    std::memcpy(b, rows[t + 1] + d, left * sizeof(T));
                    store(panel + d, packing::two_rows<Cells>(a, b));
                }
            } else {
                store(panel + d, left >= W ? packing::cells<Cells>(rows[t] + d)
                                           : packing::cells_part<Cells>(rows[t] + d, left));
            }
        }
    }
}
