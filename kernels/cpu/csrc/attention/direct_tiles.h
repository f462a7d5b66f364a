// The same as direct.h by AMX's tiles, which take 16 tokens' keys as they lie; queries are what is packed. Values are
// interleaved in pairs, 32 tokens of a key head at a time, in the nearest cache.
//
// Each result has the bits that panel_tiles.h gives: the same chains, along pairs of inputs in tiles of 32, whichever
// side is whose. So values go by two runs together.
#pragma once

#include "attention/direct.h"
#include "attention/panel_tiles.h"

#if defined(PAGEANT_TILES)

namespace direct_tiles {

#if defined(__AVX512F__)
template <int... I>
inline vf every_second(vf a, vf b, int first, std::integer_sequence<int, I...>) {
    return first ? shuffle<(2 * I + 1)...>(a, b) : shuffle<(2 * I)...>(a, b);
}
// Of vectors with COUNT rows' numbers in turn, a power of two, each row's to where it has its own.
template <int COUNT>
inline void part(const vf (&together)[COUNT], float* to, int64_t apart) {
    if constexpr (COUNT == 1) {
        store(to, together[0]);
    } else {
        UNROLL for (int first = 0; first < 2; first++) {
            vf half[COUNT / 2];
            UNROLL for (int i = 0; i < COUNT / 2; i++)
                half[i] = every_second(together[2 * i], together[2 * i + 1], first, std::make_integer_sequence<int, W>{});
            part(half, to + first * apart, 2 * apart);
        }
    }
}
#endif

// Scores of 16 tokens as a tile gives them, [16, COUNT], to SCORES_STRIDE apart for each row.
template <int COUNT>
inline void part_scores(const float* from, float* to) {
#if defined(__AVX512F__)
    if constexpr ((COUNT & (COUNT - 1)) == 0) {
        vf together[COUNT];
        UNROLL for (int i = 0; i < COUNT; i++) together[i] = load<vf>(from + i * W);
        return part(together, to, SCORES_STRIDE);
    }
#endif
    for (int t = 0; t < TILE; t++)
        for (int r = 0; r < COUNT; r++) to[r * SCORES_STRIDE + t] = from[t * COUNT + r];
}

}  // namespace direct_tiles

// The two products of up to 16 rows by tiles. (See VectorProducts.)
template <class Cells>
class TileProducts {
  public:
    static constexpr int TOGETHER = 2;
    static int64_t key_stride(int64_t head_dim, int64_t depth) { return std::max(head_dim, depth * Cells::PER_CELL); }

    void start(const FewRows& its) {
        of = its;
        queries_ = queries_memory_.take(of.rows() * of.depth);
        scores_ = scores_memory_.take(of.rows() * SPLIT);
        panels_ = panels_memory_.take(2 * of.width * TILE);
    }
    void take_query(const Cell* cells, int64_t row) {
        Cell* to = queries_of(row / of.count) + row % of.count;
        for (int64_t k = 0; k < of.depth; k++) to[k * of.count] = cells[k];
    }

    template <class Walk>
    void scores(Span runs, const Walk& walk, float* to) const {
        use_tiles();
        walk([&](const auto& keys, const auto& asked, int64_t h, int64_t i) { scores_of(keys, asked, h, i); });
        leave_tiles();
        // Not at once: what a tile has stored takes long to be there.
        with_count<TILE>(of.count, [&](auto R) {
            for (int64_t h = 0; h < of.heads; h++)
                for (int64_t run = runs.start / TOGETHER * TOGETHER; run < runs.stop; run++) {
                    const int64_t i = run % (SPLIT / RUN);
                    direct_tiles::part_scores<R>(scores_of(h, i), to + h * R * SCORES_STRIDE + i * RUN);
                }
        });
    }
    template <class Walk>
    void sums(const Walk& walk, const Cell* weights, float* to) {
        use_tiles();
        Packed before{};
        walk([&](const auto& values, const auto& asked, int64_t h, int64_t i) {
            const Cell* by = weights + h * of.count * SCORES_STRIDE + i * (RUN / Cells::PER_CELL);
            const Packed now{before.panel == panels_ ? panels_ + of.width * TILE : panels_, by, to + h * of.count * of.width};
            sums_of(values, asked, now, before);
            before = now;
        });
        if (before.panel)
            for (int64_t d = 0; d < of.width; d += TILE) multiply(before, d);
        leave_tiles();
    }

  private:
    static_assert(RUN == TILE && Cells::PER_CELL == TOGETHER);

    FewRows of;
    Cell *queries_, *panels_;  // [heads, depth, count], and two of [width / 16, 16 pairs of tokens, 16]
    float* scores_;           // [heads, SPLIT, count]
    Scratch<Cell> queries_memory_, panels_memory_;
    Scratch<float> scores_memory_;

    Cell* queries_of(int64_t head) const { return queries_ + head * of.count * of.depth; }
    float* scores_of(int64_t head, int64_t run) const { return scores_ + (head * SPLIT + run * RUN) * of.count; }

    // Scores are made in 0 and 1 by queries in 2 and keys in 3, and sums in 4 by weights in 5 and values in 6.
    void use_tiles() const {
        const int rows = int(of.count);
        configure_tiles([=](int tile) {
            if (tile <= 2) return TileShape{TILE, 4 * rows};
            return TileShape{tile == 4 || tile == 5 ? rows : TILE, TILE_LINE};
        });
    }

    template <class Runs, class Asked>
    void scores_of(const Runs& keys, Asked asked, int64_t h, int64_t i) const {
        const int64_t steps = of.depth / TILE, stride = key_stride(of.head_dim, of.depth) * sizeof(bf16);
        const int64_t row = of.count * sizeof(Cell);
        TILE_ZERO(0);
        TILE_ZERO(1);
        for (int64_t k = 0; k < steps; k++) {
            TILE_LOAD(2, queries_of(h) + k * TILE * of.count, row);
            direct::fetch_on<TILE_BYTES>(asked[0]);
            TILE_LOAD(3, (const char*)keys[0] + k * TILE_LINE, stride);
            TILE_MULTIPLY(0, 3, 2);
            TILE_FREE(3);
            direct::fetch_on<TILE_BYTES>(asked[1]);
            TILE_LOAD(3, (const char*)keys[1] + k * TILE_LINE, stride);
            TILE_MULTIPLY(1, 3, 2);
            TILE_FREE(3);
            TILE_FREE(2);
        }
        TILE_STORE(0, scores_of(h, i), row);
        TILE_STORE(1, scores_of(h, i + 1), row);
    }

    // Two runs' values of a key head as they were packed, their weights, and the sums that they are added to.
    struct Packed {
        Cell* panel;
        const Cell* weights;
        float* to;
    };
    // Packs values, while those that were packed before are multiplied: what has just been stored takes long to be there.
    template <class Runs, class Asked>
    void sums_of(const Runs& values, Asked asked, const Packed& now, const Packed& before) const {
        for (int64_t turn = 0, d = 0; turn < TILE; turn++) {
            const int64_t run = turn % TOGETHER, i = turn / TOGETHER;
            const bf16* first = values[run] + i * 2 * of.head_dim;
            pack_pair(first, asked[run], now.panel + (run * TILE / TOGETHER + i) * TILE);
            if (before.panel)
                for (; d < of.width * (turn + 1) / TILE; d += TILE) multiply(before, d);
        }
    }
    void pack_pair(const bf16* first, const char*& ahead, Cell* panel) const {
        auto column = [=](uint64_t d) { return panel + d / TILE * TILE * TILE + d % TILE; };
        for (int64_t d = 0; d < of.width; d += 2 * W) {
            vu made[2];
            packing::value_cells<Cells>(first + d, first + of.head_dim + d, of.value_dim - d, made);
            UNROLL for (int i = 0; i < 2; i++) store(column(d + i * W), made[i]);
            direct::fetch_on<2 * 2 * W * sizeof(bf16)>(ahead);
        }
    }
    void multiply(const Packed& of_runs, int64_t d) const {
        TILE_LOAD(5, of_runs.weights, SCORES_STRIDE * sizeof(Cell));
        TILE_LOAD(4, of_runs.to + d, of.width * sizeof(float));
        TILE_LOAD(6, of_runs.panel + d * TILE, TILE_LINE);
        TILE_MULTIPLY(4, 5, 6);
        TILE_FREE(6);
        TILE_STORE(4, of_runs.to + d, of.width * sizeof(float));
    }
};

#endif
