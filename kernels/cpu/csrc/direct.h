// Attention's two products for few rows, with keys and values as they lie: what is read once is not worth packing.
//
// Each result has the bits that the panels give (panel.h), so that a row may go either way. Keys are exchanged within
// quarters of vectors only, four tokens by four cells, which takes half of what a whole transposition does: a lane
// then has a token's cells of one quarter. Sums of values are the same chains in both, along the tokens.
#pragma once

#include "packing.h"

// Up to this many rows are computed directly. Measured on a Zen 4: up to there it takes 0.6 to 0.95 of the time. Tiles,
// which have their own order of adding up, take 16 (direct_tiles.h).
template <class Cells>
constexpr int64_t FEW_ROWS = Cells::TILED ? TILE : Cells::PER_CELL == 2 ? 8 : 4;

namespace direct {

// Vectors a and b, of S tokens each, as one: in lane i the sum of two lanes of the token that bit S of i says.
template <int S, int... I>
inline vf join(vf a, vf b, std::integer_sequence<int, I...>) {
    return shuffle<(I & S ? W + I - S : I)...>(a, b) + shuffle<(I & S ? W + I : I + S)...>(a, b);
}
// Vectors of 4 tokens each, as one of all.
inline vf join_all(const vf (&parts)[W / 4]) {
    constexpr auto LANES = std::make_integer_sequence<int, W>{};
    if constexpr (W == 4) return parts[0];
    else if constexpr (W == 8) return join<4>(parts[0], parts[1], LANES);
    else return join<8>(join<4>(parts[0], parts[1], LANES), join<4>(parts[2], parts[3], LANES), LANES);
}

// Lanes of a and b in turns: of each quarter the first two (HALF 0) or the last two, in groups of SPAN.
template <int SPAN, int HALF, int... I>
inline vu in_turns(vu a, vu b, std::integer_sequence<int, I...>) {
    return shuffle<(I / SPAN % 2 * W + I / 4 * 4 + HALF * 2 + I % 4 / (2 * SPAN) * SPAN + I % SPAN)...>(a, b);
}
// Four vectors of four tokens: lane i of quarter q of vector t goes to lane t of quarter q of vector i.
inline void exchange_quarters(vu (&rows)[4]) {
    constexpr auto LANES = std::make_integer_sequence<int, W>{};
    vu a = in_turns<1, 0>(rows[0], rows[1], LANES), b = in_turns<1, 1>(rows[0], rows[1], LANES);
    vu c = in_turns<1, 0>(rows[2], rows[3], LANES), d = in_turns<1, 1>(rows[2], rows[3], LANES);
    rows[0] = in_turns<2, 0>(a, c, LANES);
    rows[1] = in_turns<2, 1>(a, c, LANES);
    rows[2] = in_turns<2, 0>(b, d, LANES);
    rows[3] = in_turns<2, 1>(b, d, LANES);
}

// What makes up the scores of R rows by 4 * PARTS tokens, four of which share a vector of sums; W / 4
// vectors to a row. With each line that is read one of `next` is asked for, of four places in turn.
template <class Cells, int R, int PARTS, class T>
inline void scores_parts(const Cell* spread, int64_t depth, const T* const* rows, const T* const* next, int64_t head_dim,
                         vf* to) {
    vf sums[R][PARTS];
    for (int r = 0; r < R; r++)
        for (int part = 0; part < PARTS; part++) sums[r][part] = vf{};
    int64_t d = 0;
    auto add = [&](const Cell* query, const auto& cells_of) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++) {
            vu square[4];
            for (int t = 0; t < 4; t++) {
                square[t] = cells_of(rows[part * 4 + t]);
                fetch_here(next[part * 4 + t] + d);
            }
            exchange_quarters(square);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
                for (int i = 0; i < 4; i++)
                    sums[r][part] = Cells::add(sums[r][part], load<vu>(query + r * depth * 4 + i * W), square[i]);
        }
    };
    constexpr int64_t SPAN = W * Cells::PER_CELL;
    for (; d + SPAN <= head_dim; d += SPAN, spread += 4 * W)
        add(spread, [d](const T* row) { return packing::cells<Cells>(row + d); });
    if (d < head_dim) add(spread, [d, head_dim](const T* row) { return packing::cells<Cells>(row + d, head_dim - d); });
    for (int r = 0; r < R; r++)
        for (int part = 0; part < PARTS; part++) to[r * (W / 4) + part] = sums[r][part];
}

// Scores of R rows by W tokens. Fetches what is at `next`.
template <class Cells, int R, class T>
void scores_rows(const Cell* spread, int64_t depth, const T* const* rows, const T* const (&next)[W], int64_t head_dim,
                 float* to) {
    constexpr int TOGETHER = R > 4 ? 1 : W / 4;  // whose sums fit the registers
    vf sums[R][W / 4];
#pragma GCC unroll 4
    for (int part = 0; part < W / 4; part += TOGETHER) {
        scores_parts<Cells, R, TOGETHER>(spread, depth, rows + part * 4, next + part * 4, head_dim, &sums[0][part]);
    }
    for (int r = 0; r < R; r++) store(to + r * SCORES_STRIDE, join_all(sums[r]));
}

// Adds to R rows of sums, from number d on, V vectors of weighted values. Fetches as much of what is at `next`.
template <class Cells, int R, int V, class T>
void sums_tile(const Cell* weights, const T* const* rows, const T* const* next, int64_t head_dim, int64_t d,
               float* to, int64_t width) {
    constexpr int PER_CELL = Cells::PER_CELL;
    vf sums[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) sums[r][v] = load<vf>(to + r * width + d + v * W);
    bool whole = d + V * W <= head_dim;
    for (int64_t k = 0; k < CHUNK / PER_CELL; k++) {
        vu values[V];
        for (int v = 0; v < V; v += PER_CELL) {
            packing::value_cells<Cells>(rows + k * PER_CELL, d + v * W,
                                        whole ? PER_CELL * W : head_dim - d - v * W, values + v);
            for (int i = 0; i < PER_CELL; i++) fetch_here(next[packing::in_turn(k * PER_CELL + i)] + d + v * W);
        }
        for (int r = 0; r < R; r++) {
            vu weight = broadcast(weights + r * SCORES_STRIDE + k);
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
    constexpr int WIDE = W == 16 ? (R <= 2 ? 8 : R <= 6 ? 4 : 2) : (R <= 2 ? 4 : 2);
    int64_t d = 0;
    for (; d + WIDE * W <= width; d += WIDE * W)
        sums_tile<Cells, R, WIDE>(weights, rows, next, head_dim, d, to, width);
    for (; d < width; d += Cells::PER_CELL * W)
        sums_tile<Cells, R, Cells::PER_CELL>(weights, rows, next, head_dim, d, to, width);
}

}  // namespace direct

// Spreads a query's cells [depth] to [4 * depth], as scores are made with them: each vector to four, the i-th of which
// has cell i of each quarter all over that quarter.
inline void spread_query(const Cell* query, int64_t depth, Cell* spread) {
    for (int64_t k = 0; k < depth; k += W)
        for (int i = 0; i < 4; i++)
            for (int lane = 0; lane < W; lane++) *spread++ = query[k + lane / 4 * 4 + i];
}

// Scores of queries [count, 4 * depth cells], spread, and a chunk of keys at `rows`, SCORES_STRIDE apart; fetches what
// is at `next`.
template <class Cells, class T>
void direct_scores(const Cell* spread, int64_t depth, const T* const* rows, const T* const* next, int64_t head_dim,
                   float* scores, int64_t count) {
    with_count<FEW_ROWS<Cells>>(count, [&](auto R) {
        for (int64_t t = 0; t < CHUNK; t += W) {
            const T* fetched[W];
            for (int i = 0; i < W; i++) fetched[i] = next[packing::in_turn(t + i)];
            direct::scores_rows<Cells, R>(spread, depth, rows + t, fetched, head_dim, scores + t);
        }
    });
}

// Adds a chunk of values, at `rows`, times weights to sums [count, width]; fetches what is at `next`.
template <class Cells, class T>
void direct_sums(const Cell* weights, const T* const* rows, const T* const* next, int64_t head_dim, float* sums,
                 int64_t width, int64_t count) {
    with_count<FEW_ROWS<Cells>>(
        count, [&](auto R) { direct::sums_rows<Cells, R>(weights, rows, next, head_dim, sums, width); });
}
