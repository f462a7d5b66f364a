// Attention's two products for few rows, with keys and values as they lie: what is read once is not worth packing.
//
// Each result has the bits that the panels give (panel.h), so that a row may go either way. A score is W chains,
// one in each lane, which are then added up while their vectors are transposed: each lane with its neighbour,
// then pairs, then fours. Sums of values are the same chains in both, along the tokens.
#pragma once

#include "packing.h"

// Up to this many rows are computed directly. Measured on a Zen 4: up to there it takes 0.6 to 0.95 of the time.
template <class Cells>
constexpr int64_t FEW_ROWS = Cells::PER_CELL == 2 ? 8 : 4;

namespace direct {

// Vectors a and b, of S tokens each, as one: in lane i the sum of two lanes of the token that bit S of i says.
template <int S, int... I>
inline vf join(vf a, vf b, std::integer_sequence<int, I...>) {
    return shuffle<(I & S ? W + I - S : I)...>(a, b) + shuffle<(I & S ? W + I : I + S)...>(a, b);
}

// The scores of R rows by S tokens, each in W / S lanes.
template <class Cells, int R, int S, class T>
__attribute__((always_inline)) inline void scores(const Cell* query, int64_t query_stride, const T* const* rows,
                                                  int64_t head_dim, vf (&sums)[R]) {
    if constexpr (S == 2) {
        constexpr int SPAN = W * Cells::PER_CELL;
        vf other[R];
        for (int r = 0; r < R; r++) sums[r] = other[r] = vf{};
        auto add = [&](int64_t d, vu one, vu two) __attribute__((always_inline)) {
            for (int r = 0; r < R; r++) {
                vu q = load<vu>(query + r * query_stride + d / Cells::PER_CELL);
                sums[r] = Cells::add(sums[r], q, one);
                other[r] = Cells::add(other[r], q, two);
            }
        };
        int64_t d = 0;
        for (; d + SPAN <= head_dim; d += SPAN)
            add(d, packing::cells<Cells>(rows[0] + d), packing::cells<Cells>(rows[1] + d));
        if (d < head_dim) {
            int64_t left = head_dim - d;
            add(d, packing::cells<Cells>(rows[0] + d, left), packing::cells<Cells>(rows[1] + d, left));
        }
        for (int r = 0; r < R; r++) sums[r] = join<1>(sums[r], other[r], std::make_integer_sequence<int, W>{});
    } else {
        vf other[R];
        scores<Cells, R, S / 2>(query, query_stride, rows, head_dim, sums);
        scores<Cells, R, S / 2>(query, query_stride, rows + S / 2, head_dim, other);
        for (int r = 0; r < R; r++) sums[r] = join<S / 2>(sums[r], other[r], std::make_integer_sequence<int, W>{});
    }
}

template <class Cells, int R, class T>
void scores_rows(const Cell* query, int64_t query_stride, const T* const* rows, int64_t head_dim, float* to) {
    vf sums[R];
    scores<Cells, R, W>(query, query_stride, rows, head_dim, sums);
    for (int r = 0; r < R; r++) store(to + r * TILE, sums[r]);
}

// Adds to R rows of sums, from number d on, V vectors of weighted values.
template <class Cells, int R, int V, class T>
void sums_tile(const Cell* weights, const T* const* rows, const T* const* next, int64_t head_dim, int64_t d,
               float* to, int64_t width) {
    constexpr int PER_CELL = Cells::PER_CELL, CELLS = TILE / PER_CELL;
    vf sums[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) sums[r][v] = load<vf>(to + r * width + d + v * W);
    bool whole = d + V * W <= head_dim;
    for (int64_t k = 0; k < CELLS; k++) {
        if (next)
            for (int i = 0; i < PER_CELL; i++) packing::fetch(next[packing::in_turn(k * PER_CELL + i)], head_dim);
        vu values[V];
        for (int v = 0; v < V; v += PER_CELL)
            packing::value_cells<Cells>(rows + k * PER_CELL, d + v * W,
                                        whole ? PER_CELL * W : head_dim - d - v * W, values + v);
        for (int r = 0; r < R; r++) {
            vu weight = broadcast(weights + r * CELLS + k);
            for (int v = 0; v < V; v++) sums[r][v] = Cells::add(sums[r][v], weight, values[v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store(to + r * width + d + v * W, sums[r][v]);
}

template <class Cells, int R, class T>
void sums_rows(const Cell* weights, const T* const* rows, const T* const* next, int64_t head_dim, float* to,
               int64_t width) {
    // Sums and values fit the registers: 32 with AVX-512, else 16.
    constexpr int WIDE = W == 16 ? (R <= 2 ? 8 : 4) : (R <= 2 ? 4 : 2);
    int64_t d = 0;
    for (; d + WIDE * W <= width; d += WIDE * W, next = nullptr)
        sums_tile<Cells, R, WIDE>(weights, rows, next, head_dim, d, to, width);
    for (; d < width; d += Cells::PER_CELL * W, next = nullptr)
        sums_tile<Cells, R, Cells::PER_CELL>(weights, rows, next, head_dim, d, to, width);
}

// Calls body(first row, their number as a constant) for up to four rows at a time.
template <class Body>
void by_four(int64_t count, const Body& body) {
    for (int64_t r = 0; r < count; r += 4) {
        switch (count - r) {
            case 1: body(r, std::integral_constant<int, 1>{}); break;
            case 2: body(r, std::integral_constant<int, 2>{}); break;
            case 3: body(r, std::integral_constant<int, 3>{}); break;
            default: body(r, std::integral_constant<int, 4>{});
        }
    }
}

}  // namespace direct

// Scores [count, TILE] of queries [count, cells] and the keys at `rows`; fetches those at `next`.
template <class Cells, class T>
void direct_scores(const Cell* query, int64_t query_stride, const T* const* rows, const T* const* next,
                   int64_t head_dim, float* scores, int64_t count) {
    for (int64_t t = 0; t < TILE; t += W) {
        for (int i = 0; i < W; i++) packing::fetch(next[packing::in_turn(t + i)], head_dim);
        direct::by_four(count, [&](int64_t r, auto R) {
            direct::scores_rows<Cells, R>(query + r * query_stride, query_stride, rows + t, head_dim,
                                          scores + r * TILE + t);
        });
    }
}

// Adds values, at `rows`, times weights [count, TILE] to sums [count, width]; fetches those at `next`.
template <class Cells, class T>
void direct_sums(const Cell* weights, const T* const* rows, const T* const* next, int64_t head_dim, float* sums,
                 int64_t width, int64_t count) {
    direct::by_four(count, [&](int64_t r, auto R) {
        direct::sums_rows<Cells, R>(weights + r * (TILE / Cells::PER_CELL), rows, r ? nullptr : next, head_dim,
                                    sums + r * width, width);
    });
}
