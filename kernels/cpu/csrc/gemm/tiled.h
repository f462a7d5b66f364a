// Products of bfloat16 by tiles, for machines that have them: one kernel for any number of rows of x, so that a row's
// bits do not depend on how many there are. x is packed, pairs of inputs by rows; W is taken as it lies, or as
// unpacked_tiles.h unpacks it.
//
// Rows of W lie far apart, and tiles take 64 bytes of each of 16: read like that, memory gives a quarter of what it can.
// So tiles find their 16 rows in a near cache, to which the 16 before have brought them in the order of memory.
#pragma once

#include "gemm/tile_block.h"
#include "base/transpose.h"

#if defined(PAGEANT_TILES)

// Results of 16 outputs by some rows of x, [16][16] as tiles have them, to y.
inline void finish_tile(const Product<bf16>& p, const float* sums, int64_t r, int64_t count, int64_t o) {
#if defined(__AVX512F__)
    vu lines[TILE];
    for (int i = 0; i < TILE; i++) lines[i] = load<vu>(sums + i * TILE);
    transpose(lines);
    for (int64_t a = 0; a < count; a++) p.put((vf)lines[a], r + a, o);
#else
    for (int64_t a = 0; a < count; a++) {
        float line[TILE];
        for (int b = 0; b < TILE; b++) line[b] = sums[b * TILE + a];
        for (int b = 0; b < TILE; b += W) p.put(load<vf>(line + b), r + a, o + b);
    }
#endif
}

// The same of 32 outputs, in two tiles: a line of y for each row of x; `past_caches`, if lines are whole.
inline void finish_two(const Product<bf16>& p, const float* upper, const float* lower, int64_t r, int64_t count, int64_t o,
                       bool past_caches) {
#if defined(__AVX512BF16__)
    if (!p.unrounded && o + 2 * TILE <= p.outputs) {
        vu lines[TILE];  // of two outputs each
        UNROLL for (int i = 0; i < TILE; i++) {
            const float* sums = (i < TILE / 2 ? upper : lower) + i % (TILE / 2) * 2 * TILE;
            vf even = load<vf>(sums), odd = load<vf>(sums + TILE);
            if (p.bias) even += splat(to_float(p.bias[o + 2 * i])), odd += splat(to_float(p.bias[o + 2 * i + 1]));
            lines[i] = interleaved(even, odd);
        }
        transpose(lines);
        for (int64_t a = 0; a < count; a++) store_line(p.at(r + a, o), lines[a], past_caches);
        return;
    }
#endif
    finish_tile(p, upper, r, count, o);
    finish_tile(p, lower, r, count, o + TILE);
}

// A block of rows of x as B takes them: for each 16 rows and each 32 inputs a tile of [16 pairs][columns].
struct PackedRows {
    int64_t rows, inputs;

    int columns() const { return int(std::min<int64_t>(rows, TILE)); }
    int64_t tiles_down() const { return (rows + TILE - 1) / TILE; }
    int64_t tiles_along() const { return (inputs + TILE_INPUTS - 1) / TILE_INPUTS; }
    int64_t tile_size() const { return int64_t(TILE) * columns(); }  // in pairs
    int64_t size() const { return tiles_down() * tiles_along() * tile_size(); }

    // 16 rows that begin at x, the block's last perhaps fewer. What is past the last row or input is zero.
    void pack(const bf16* x, int64_t x_stride, int64_t down, uint32_t* to) const {
        uint32_t* panel = to + down * tiles_along() * tile_size();
        int64_t count = std::min<int64_t>(columns(), rows - down * TILE), i = 0;
#if defined(__AVX512F__)
        if (count == TILE)
            for (; i + TILE_INPUTS <= inputs; i += TILE_INPUTS, panel += tile_size()) {
                vu lines[TILE];
                UNROLL for (int a = 0; a < TILE; a++) {
                    lines[a] = load<vu>(x + a * x_stride + i);
                    __builtin_prefetch(x + a * x_stride + i + PACKED_AHEAD * TILE_INPUTS, 0, 3);
                }
                transpose(lines);
                for (int pair = 0; pair < TILE; pair++) store(panel + pair * TILE, lines[pair]);
            }
#endif
        if (i < inputs) pack_some(x + i, x_stride, count, inputs - i, panel);
    }

  private:
    static constexpr int PACKED_AHEAD = 8;  // tiles that are fetched before their rows are read

    void pack_some(const bf16* x, int64_t x_stride, int64_t count, int64_t left, uint32_t* to) const {
        const int columns = this->columns();
        if (columns == 1 && left % TILE_INPUTS == 0) return void(std::memcpy(to, x, left * sizeof *x));
        std::memset(to, 0, (left + TILE_INPUTS - 1) / TILE_INPUTS * tile_size() * sizeof *to);
        for (int64_t column = 0; column < count; column++) {
            const bf16* row = x + column * x_stride;
            for (int64_t pair = 0; pair < left / 2; pair++) std::memcpy(to + pair * columns + column, row + 2 * pair, 4);
            if (left % 2) std::memcpy(to + left / 2 * columns + column, row + left - 1, 2);
        }
    }
};

// 16 rows of W side by side, up to whole tiles: the rows of one lie `stride` bytes apart, and tiles `step`.
struct TileRows {
    const char* at;
    int64_t stride, step;
};

// W as it lies, [outputs][inputs].
struct Lying {
    const bf16* weight;
    int64_t weight_stride, inputs, outputs;

    const bf16* at(int64_t o) const { return weight + o * weight_stride; }
    int64_t row_bytes() const { return inputs * sizeof(bf16); }

    // Rows from o on where they lie, or, where tiles would reach past the end of W or of its rows, a copy with zeros. Of
    // different rooms there may be two.
    template <int WORKSPACE>
    TileRows rows(int64_t o, int64_t) const {
        if (o + TILE <= outputs && inputs % TILE_INPUTS == 0) return {(const char*)at(o), 2 * weight_stride, TILE_LINE};
        thread_local std::vector<bf16> workspace;
        const int64_t stride = (inputs + TILE_INPUTS - 1) / TILE_INPUTS * TILE_INPUTS;
        workspace.assign(TILE * stride, bf16{});
        for (int64_t row = 0; row < std::min<int64_t>(TILE, outputs - o); row++)
            std::memcpy(workspace.data() + row * stride, at(o + row), inputs * sizeof(bf16));
        return {(const char*)workspace.data(), 2 * stride, TILE_LINE};
    }

    struct Ahead : LinesAhead {
        Ahead(const Lying& w, int64_t next, int64_t lines)
            : LinesAhead{(const char*)w.at(std::min(next, w.outputs - 1)), lines} {}
    };
    // While 16 rows are gone through once, the nearest cache gets the 16 that come `then`, a tile's lines at a time.
    struct Near : Ahead {
        Near(const Lying& w, int64_t, int64_t then, int64_t) : Ahead(w, then, TILE) {}
        void fetch() { LinesAhead::fetch<NEAREST>(); }
    };
};

// A block of rows of x, packed, by rows of W.
template <class Weights>
class TiledBlock : TileBlock {
    template <int TILES>
    using Sums = TileBlock::Sums<TILES>;

  public:
    TiledBlock(const Product<bf16>& p, const Weights& w, const uint8_t* packed, bool past_caches)
        : TileBlock(p, past_caches), w_(w), shape_{p.rows, p.inputs}, packed_((const char*)packed),
          b_stride_(4 * shape_.columns()), b_bytes_(4 * shape_.tile_size()), down_bytes_(along_ * b_bytes_) {}

    // Outputs start to stop; `next` is what this thread comes to then.
    void multiply(int64_t start, int64_t stop, int64_t next) const {
        by_size([&](auto down) { few<down()>(start, stop, next); }, [&] { many(start, stop, next); });
    }

  private:
    const Weights& w_;
    const PackedRows shape_;
    const char* packed_;
    const int64_t b_stride_, b_bytes_, down_bytes_;  // of a tile of x, and of all along

    // Calls few(how many) with as many tiles of x as there are, up to 4; or many().
    template <class Few, class Many>
    void by_size(const Few& few, const Many& many) const {
        use_tiles(TILE, shape_.columns());
        switch (down_) {
            case 1: few(std::integral_constant<int, 1>()); break;
            case 2: few(std::integral_constant<int, 2>()); break;
            case 3: few(std::integral_constant<int, 3>()); break;
            case 4: few(std::integral_constant<int, 4>()); break;
            default: many();
        }
        leave_tiles();
    }

    // Results of 16 outputs, from o on, by up to 64 rows of x; `then` is the output that comes next.
    template <int DOWN>
    void add_up(int64_t o, int64_t then, Sums<DOWN>& sums) const {
        const TileRows rows = w_.template rows<0>(o, then);
        typename Weights::Near near(w_, o, then, along_);
        const char *a = rows.at, *b = packed_;
        zero<DOWN>();
        for (int64_t k = 0; k < along_; k++, a += rows.step, b += b_bytes_) {
            near.fetch();
            TILE_LOAD(6, a, rows.stride);
            TILE_LOAD(4, b, b_stride_);
            TILE_MULTIPLY(0, 6, 4);
            TILE_FREE(4);
            if constexpr (DOWN > 1) {
                TILE_LOAD(5, b + down_bytes_, b_stride_);
                TILE_MULTIPLY(1, 6, 5);
                TILE_FREE(5);
            }
            if constexpr (DOWN > 2) {
                TILE_LOAD(4, b + 2 * down_bytes_, b_stride_);
                TILE_MULTIPLY(2, 6, 4);
                TILE_FREE(4);
            }
            if constexpr (DOWN > 3) {
                TILE_LOAD(5, b + 3 * down_bytes_, b_stride_);
                TILE_MULTIPLY(3, 6, 5);
                TILE_FREE(5);
            }
            TILE_FREE(6);
        }
        store_tiles<DOWN>(sums);
    }

    // Results of two tiles of W by two of x: by the first of x, then by the second. Meanwhile some lines at a time of what
    // comes then are brought nearer: all at once would hold up what is wanted now. So are the tiles of the next step: loads
    // of tiles wait for one another, and so each for the second cache.
    template <class Ahead>
    void two_by_two(const TileRows& upper, const TileRows& lower, int64_t down, Ahead& ahead, Sums<4>& sums) const {
        const char *first = upper.at, *second = lower.at, *b = packed_ + down * down_bytes_;
        const int64_t below = down + 1 < down_ ? down_bytes_ : 0;
        zero<4>();
        for (int64_t k = 0; k < along_; k++, first += upper.step, second += lower.step, b += b_bytes_) {
            ahead.template fetch<SECOND>();
            TILE_LOAD(6, first, upper.stride);
            fetch_tile(b + b_bytes_, b_stride_);
            TILE_LOAD(4, b, b_stride_);
            TILE_MULTIPLY(0, 6, 4);
            fetch_tile(first + upper.step, upper.stride);
            TILE_LOAD(7, second, lower.stride);
            TILE_MULTIPLY(1, 7, 4);
            TILE_FREE(4);
            fetch_tile(b + below + b_bytes_, b_stride_);
            TILE_LOAD(5, b + below, b_stride_);
            TILE_MULTIPLY(2, 6, 5);
            TILE_FREE(6);
            fetch_tile(second + lower.step, lower.stride);
            TILE_MULTIPLY(3, 7, 5);
            TILE_FREE(7);
            TILE_FREE(5);
        }
        store_tiles<4>(sums);
    }

    int64_t rows_of_tile(int64_t down) const { return std::min<int64_t>(TILE, p_.rows - down * TILE); }

    // With sums of all rows of x in tiles, W is gone through once.
    template <int DOWN>
    void few(int64_t start, int64_t stop, int64_t next) const {
        for (int64_t o = start; o < stop; o += TILE) {
            alignas(TILE_LINE) Sums<DOWN> sums;
            add_up(o, o + TILE < stop ? o + TILE : next, sums);
            for (int64_t d = 0; d < DOWN; d++) finish_tile(p_, sums[d], d * TILE, rows_of_tile(d), o);
        }
    }

    // Two tiles of W by two of x at a time. The last of W is multiplied twice where it is alone.
    void many(int64_t start, int64_t stop, int64_t next) const {
        for (int64_t o = start; o < stop; o += 2 * TILE) {
            const bool wide = o + TILE < stop;
            const int64_t then = o + 2 * TILE < stop ? o + 2 * TILE : next;
            const TileRows upper = w_.template rows<0>(o, then);
            const TileRows lower = wide ? w_.template rows<1>(o + TILE, then + TILE) : upper;
            typename Weights::Ahead ahead(w_, then, lines_each());
            for (int64_t d = 0; d < down_; d += 2) {
                alignas(TILE_LINE) Sums<4> sums;
                two_by_two(upper, lower, d, ahead, sums);
                for (int64_t i = 0; i < std::min<int64_t>(2, down_ - d); i++) {
                    const int64_t r = (d + i) * TILE, count = rows_of_tile(d + i);
                    if (wide) finish_two(p_, sums[2 * i], sums[2 * i + 1], r, count, o, past_caches_);
                    else finish_tile(p_, sums[2 * i], r, count, o);
                }
            }
        }
    }
};

// The kernel: see product.h.
template <class Weights>
struct Tiled : ByTiles {
    Weights w;

    const void* weights() const { return w.at(0); }
    int64_t row_bytes() const { return w.row_bytes(); }
    int64_t packed_size(int64_t count) const { return PackedRows{count, p.inputs}.size() * sizeof(uint32_t); }
    void pack(int64_t first, int64_t last, int64_t r, int64_t, uint8_t* workspace) const {
        PackedRows{last - first, p.inputs}.pack(p.x + r * p.x_stride, p.x_stride, (r - first) / TILE, (uint32_t*)workspace);
    }
    void block(const uint8_t* workspace, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        p.with_results([&](bool past_caches) {
            TiledBlock<Weights>(p.of_rows(r, end), w, workspace, past_caches).multiply(start, stop, next_piece(start, stop));
        });
    }
};
#endif
