// Attention's two products for few rows, with keys and values as they lie: what is read once is not worth packing.
//
// Each result has the bits that the panels give (panel.h), so that a row may go either way. Keys are exchanged within
// quarters of vectors only, four tokens by four cells, which takes half of what a whole transposition does: a lane
// then has a token's cells of one quarter. Sums of values are the same chains in both, along the tokens.
#pragma once

#include "attention/attending.h"
#include "attention/packing.h"

// Up to this many rows of a key head are computed directly. Measured on a Zen 4: up to there it takes 0.6 to 0.95 of the time.
// Tiles take as many as one has, and have their own order of adding up (direct_tiles.h).
template <class Cells>
constexpr int64_t FEW_ROWS = Cells::TILED ? TILE : Cells::PER_CELL == 2 ? 8 : 4;

constexpr int64_t RUN = 16;  // tokens whose keys, or values, lie one after another
static_assert(RUN % W == 0 && CHUNK % RUN == 0);

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

// Lanes of a and b in turns: of each quarter the first two (HALF 0) or the last two, singly or both together.
template <int HALF, int... I>
inline vu singly(vu a, vu b, std::integer_sequence<int, I...>) {
    return shuffle<(I % 2 * W + I / 4 * 4 + HALF * 2 + I % 4 / 2)...>(a, b);
}
template <int HALF, int... I>
inline vu together(vu a, vu b, std::integer_sequence<int, I...>) {
#if defined(__AVX512F__)  // by one instruction that GCC does not find
    return (vu)(HALF ? _mm512_unpackhi_epi64((__m512i)a, (__m512i)b) : _mm512_unpacklo_epi64((__m512i)a, (__m512i)b));
#else
    return shuffle<(I / 2 % 2 * W + I / 4 * 4 + HALF * 2 + I % 2)...>(a, b);
#endif
}
// Four vectors of four tokens: lane i of quarter q of vector t goes to lane t of quarter q of vector i.
inline void exchange_quarters(vu (&rows)[4]) {
    constexpr auto LANES = std::make_integer_sequence<int, W>{};
    vu a = singly<0>(rows[0], rows[1], LANES), b = singly<1>(rows[0], rows[1], LANES);
    vu c = singly<0>(rows[2], rows[3], LANES), d = singly<1>(rows[2], rows[3], LANES);
    rows[0] = together<0>(a, c, LANES);
    rows[1] = together<1>(a, c, LANES);
    rows[2] = together<0>(b, d, LANES);
    rows[3] = together<1>(b, d, LANES);
}

// Asks for so many bytes, or the line of fewer, and goes on by as many.
template <int64_t BYTES>
__attribute__((always_inline)) inline void fetch_on(const char*& ahead) {
    UNROLL for (int64_t i = 0; i < BYTES; i += LINE) fetch_here(ahead + i);
    ahead += BYTES;
}

// Scores of R rows by a run's tokens, four of which share a vector of sums. As much as is read is asked for `ahead`.
template <class Cells, int R, class T>
void scores_of_run(const Cell* spread, const T* run, const char* ahead, int64_t head_dim, float* to) {
    constexpr int64_t SPAN = W * Cells::PER_CELL;
    for (int64_t t = 0; t < RUN; t += W) {
        vf sums[R][W / 4];
#pragma GCC unroll 4
        for (int part = 0; part < W / 4; part++, run += 4 * head_dim) {
            vf of_part[R];
            UNROLL for (int r = 0; r < R; r++) of_part[r] = vf{};
            auto add = [&](const Cell* query, const auto& cells_of) __attribute__((always_inline)) {
                vu square[4];
                UNROLL for (int i = 0; i < 4; i++) square[i] = cells_of(run + i * head_dim);
                fetch_on<4 * SPAN * sizeof(T)>(ahead);
                exchange_quarters(square);
                UNROLL for (int r = 0; r < R; r++)
                    UNROLL for (int i = 0; i < 4; i++)
                        of_part[r] = Cells::add(of_part[r], square[i], load<vu>(query + (r * 4 + i) * W));
            };
            const Cell* query = spread;
            int64_t d = 0;
            for (; d + SPAN <= head_dim; d += SPAN, query += R * 4 * W)
                add(query, [d](const T* row) { return packing::cells<Cells>(row + d); });
            if (d < head_dim) add(query, [d, head_dim](const T* row) { return packing::cells<Cells>(row + d, head_dim - d); });
            UNROLL for (int r = 0; r < R; r++) sums[r][part] = of_part[r];
        }
        UNROLL for (int r = 0; r < R; r++) store(to + r * SCORES_STRIDE + t, join_all(sums[r]));
    }
}

// Adds to R rows of sums, from number d on, V vectors of a run's weighted values, whose rows are `stride` apart. As much as is
// read is asked for `ahead`.
template <class Cells, int R, int V, bool WHOLE, class T>
void sums_tile(const Cell* weights, const T* run, const char* ahead, int64_t stride, int64_t value_dim, int64_t d, float* to,
               int64_t width) {
    constexpr int PER_CELL = Cells::PER_CELL;
    vf sums[R][V];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < V; v++) sums[r][v] = load<vf>(to + r * width + d + v * W);
    for (int64_t k = 0; k < RUN / PER_CELL; k++, run += PER_CELL * stride) {
        vu values[V];
        UNROLL for (int v = 0; v < V; v += PER_CELL)
            packing::value_cells<Cells>(run + d + v * W, run + stride + d + v * W,
                                        WHOLE ? PER_CELL * W : value_dim - d - v * W, values + v);
        fetch_on<PER_CELL * V * W * sizeof(T)>(ahead);
        UNROLL for (int r = 0; r < R; r++) {
            vu weight = broadcast(weights + r * SCORES_STRIDE + k);
            made_here(weight);
            UNROLL for (int v = 0; v < V; v++) sums[r][v] = Cells::add(sums[r][v], weight, values[v]);
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < V; v++) store(to + r * width + d + v * W, sums[r][v]);
}

// The same of all numbers.
template <class Cells, int R, class T>
void sums_of_run(const Cell* weights, const T* run, const char* ahead, int64_t stride, int64_t value_dim, float* to,
                 int64_t width) {
    // Sums and values fit the registers: 32 with AVX-512, else 16.
    constexpr int WIDE = W == 16 ? (R <= 2 ? 8 : R <= 6 ? 4 : 2) : (R <= 2 ? 4 : 2);
    int64_t d = 0;
    for (; d + WIDE * W <= value_dim; d += WIDE * W)
        sums_tile<Cells, R, WIDE, true>(weights, run, ahead + d * RUN * sizeof(T), stride, value_dim, d, to, width);
    for (; d < width; d += Cells::PER_CELL * W)
        sums_tile<Cells, R, Cells::PER_CELL, false>(weights, run, ahead + d * RUN * sizeof(T), stride, value_dim, d, to, width);
}

// Vector i of the four to which a vector of a query is spread.
template <int I, int... L>
inline vu spread_one(vu query, std::integer_sequence<int, L...>) {
    return shuffle<(L / 4 * 4 + I)...>(query, query);
}

// Spreads query `row` of `count`, cells [depth], as scores are made with them: [depth / W, count, 4 W] of all. Each vector
// becomes four, the i-th of which has cell i of each quarter all over that quarter.
inline void spread_query(const Cell* query, int64_t depth, int64_t row, int64_t count, Cell* spread) {
    constexpr auto LANES = std::make_integer_sequence<int, W>{};
    spread += row * 4 * W;
    for (int64_t k = 0; k < depth; k += W, spread += count * 4 * W) {
        const vu cells = load<vu>(query + k);
        store(spread, spread_one<0>(cells, LANES));
        store(spread + W, spread_one<1>(cells, LANES));
        store(spread + 2 * W, spread_one<2>(cells, LANES));
        store(spread + 3 * W, spread_one<3>(cells, LANES));
    }
}

}  // namespace direct

// Of each of some key heads so many rows, and what they are computed with: cells of a query, and numbers of a sum of values.
struct FewRows {
    int64_t heads, count, depth, width, head_dim, value_dim;

    int64_t rows() const { return heads * count; }
};

// The two products of few rows by vectors. A walk goes through a context's runs, TOGETHER at a time, and calls
// each(runs, asked, h, i) with where they lie, what is to be asked for meanwhile, their key head, and the first one's place
// in its split.
template <class Cells>
class VectorProducts {
  public:
    static constexpr int TOGETHER = 1;
    static int64_t key_stride(int64_t head_dim, int64_t) { return head_dim; }

    // Before anything else; then each query is taken, cells [depth].
    void start(const FewRows& its) { of = its, spread_ = memory_.take(of.rows() * of.depth * 4); }
    void take_query(const Cell* cells, int64_t row) {
        direct::spread_query(cells, of.depth, row % of.count, of.count, spread_of(row / of.count));
    }

    // Scores of the runs that are walked through, SCORES_STRIDE apart for each row.
    template <class Walk>
    void scores(Span, const Walk& walk, float* to) const {
        with_count<FEW_ROWS<Cells>>(of.count, [&](auto R) {
            walk([&](const auto& runs, const auto& asked, int64_t h, int64_t i) {
                float* at = to + h * R * SCORES_STRIDE + i * RUN;
                direct::scores_of_run<Cells, R>(spread_of(h), runs[0], asked[0], of.head_dim, at);
            });
        });
    }
    // Adds to sums [rows, width] what the runs' values are by weights, which lie where the scores were.
    template <class Walk>
    void sums(const Walk& walk, const Cell* weights, float* to) const {
        with_count<FEW_ROWS<Cells>>(of.count, [&](auto R) {
            walk([&](const auto& runs, const auto& asked, int64_t h, int64_t i) {
                const Cell* by = weights + h * R * SCORES_STRIDE + i * (RUN / Cells::PER_CELL);
                direct::sums_of_run<Cells, R>(by, runs[0], asked[0], of.head_dim, of.value_dim, to + h * R * of.width, of.width);
            });
        });
    }

  private:
    FewRows of;
    Cell* spread_;
    Scratch<Cell> memory_;

    Cell* spread_of(int64_t head) const { return spread_ + head * of.count * of.depth * 4; }
};
