// Products with W in tiles (kernels/tiled.py says how they lie), which are what tiles take second: so x is taken as it lies,
// results come in rows, and nothing is packed or transposed. Bits are those of tiled.h.
//
// Rows of x that lie an even number of lines apart share few sets of the caches, and 32 of them do not fit. So kernels write
// rows of results further apart (`rows_apart` in kernels/cpu), and where x is not such a result, and large, it is copied.
#pragma once

#include "base/scratch.h"
#include "gemm/tile_block.h"

#if defined(PAGEANT_TILES)

// Panels of 16 outputs after one another, whole ones alone.
struct Panels {
    const bf16* weight;
    int64_t inputs, outputs;

    const bf16* at(int64_t o) const { return weight + o * inputs; }
    int64_t row_bytes() const { return inputs * sizeof(bf16); }

    // The tiles of outputs o to o + 16. Of different rooms there may be two, where they are made for whoever asks.
    template <int WORKSPACE>
    const char* panel(int64_t o, int64_t) const { return (const char*)at(o); }

    struct Ahead : LinesAhead {
        Ahead(const Panels& w, int64_t next, int64_t lines)
            : LinesAhead{(const char*)w.at(std::min(next, w.outputs - TILE)), lines} {}
    };
};

// Results of 16 outputs by some rows, [rows][16], to y.
template <class T>
inline void finish_rows(const Product<T>& p, const float* sums, int64_t r, int64_t count, int64_t o) {
    for (int64_t a = 0; a < count; a++)
        for (int b = 0; b < TILE; b += W) p.put(load<vf>(sums + a * TILE + b), r + a, o + b);
}

// The same of 32 outputs, in two tiles: a line of y for each row; `past_caches`, if lines are whole.
inline void finish_lines(const Product<bf16>& p, const float* left, const float* right, int64_t r, int64_t count, int64_t o,
                         bool past_caches) {
#if defined(__AVX512F__)
    if (!p.unrounded) {
        vf first = {}, second = {};
        if (p.bias) first = read(p.bias + o), second = read(p.bias + o + TILE);
        for (int64_t a = 0; a < count; a++, left += TILE, right += TILE) {
            const vf lower = load<vf>(left) + first, upper = load<vf>(right) + second;
            store_line(p.at(r + a, o), line_of<bf16>(lower, upper), past_caches);
        }
        return;
    }
#endif
    finish_rows(p, left, r, count, o);
    finish_rows(p, right, r, count, o + TILE);
}

// A block of rows of x by panels of W.
template <class Weights>
class PanelBlock : protected TileBlock {
  public:
    PanelBlock(const Product<bf16>& p, const Weights& w, bool past_caches)
        : TileBlock(p, past_caches), w_(w), rows_(std::min<int64_t>(TILE, p.rows)), x_stride_(p.x_stride * sizeof(bf16)) {}

    // Outputs start to stop; `next` is what this thread comes to then. Panels go two at a time; the last is multiplied twice
    // where it is alone.
    void multiply(int64_t start, int64_t stop, int64_t next) const {
        use_tiles(rows_, TILE);
        Sums<4>* sums = workspace<0>();
        for (int64_t o = start; o < stop; o += 2 * TILE) {
            const bool wide = o + TILE < stop;
            const int64_t then = o + 2 * TILE < stop ? o + 2 * TILE : next;
            const char* left = w_.template panel<0>(o, then);
            const Pair pair{left, wide ? w_.template panel<1>(o + TILE, then + TILE) : left, o == start && begins(start, stop)};
            typename Weights::Ahead ahead(w_, then, lines_each());
            by_two_panels(pair, ahead, sums, [] {}, [&](int64_t d) {
                const Sums<4>& made = sums[d / 2];
                for (int64_t i = 0; i < std::min<int64_t>(2, down_ - d); i++) {
                    const int64_t r = first_row(d + i);
                    if (wide) finish_lines(p_, made[2 * i], made[2 * i + 1], r, rows_, o, past_caches_);
                    else finish_rows(p_, made[2 * i], r, rows_, o);
                }
            });
        }
        leave_tiles();
    }

  protected:
    template <int TILES>
    using Sums = TileBlock::Sums<TILES>;

    const Weights& w_;
    const int64_t rows_, x_stride_;  // of each tile of x, whose last begins before the end of the one before it; in bytes

    int64_t first_row(int64_t down) const { return std::min(down * TILE, p_.rows - rows_); }
    int64_t steps() const { return std::min(PIECE, along_); }  // with two tiles of x at a time
    // Whether outputs start to stop are the first that this thread comes to with these rows of x. (See parallel_turns.)
    static bool begins(int64_t start, int64_t stop) { return start < (stop - start) * thread_count(); }

    // Two panels; `first` if x was not gone through before, and is far away.
    struct Pair {
        const char *left, *right;
        bool first;
    };

    // Memory of this thread's for the sums of two panels by all of x, one of several.
    template <int WHICH>
    Sums<4>* workspace() const {
        thread_local Scratch<float> memory;
        return (Sums<4>*)memory.take((down_ + 1) / 2 * 4 * TILE * TILE);
    }

    // Two panels by all of x. Of each two of its tiles, or of the last, the results are in `sums`: first those of the upper
    // one. done(down) is told when they are, and meanwhile() is called now and then, or not.
    template <class Meanwhile, class Done>
    void by_two_panels(const Pair& panels, typename Weights::Ahead& ahead, Sums<4>* sums, const Meanwhile& meanwhile,
                       const Done& done) const {
        if (down_ <= FROM_MEMORY) {
            for (int64_t d = 0; d < down_; d += 2) {
                if (down_ == 1) from_memory<1>(panels, d, sums[d / 2]);
                else from_memory<2>(panels, d, sums[d / 2]);
                done(d);
            }
            return;
        }
        for (int64_t k = 0; k < along_; k += PIECE)
            for (int64_t d = 0; d < down_; d += 2) {
                if (k == 0) two_by_two<false>(panels, d, k, ahead, sums[d / 2], meanwhile);
                else two_by_two<true>(panels, d, k, ahead, sums[d / 2], meanwhile);
                if (k + PIECE >= along_) done(d);
            }
    }

  private:
    static constexpr int64_t FROM_MEMORY = 8;  // tiles of x, up to which W takes longer to come than to be multiplied
    static constexpr int64_t PIECE = 8;        // tiles of two panels that stay in the nearest cache while x comes past them

    // Lines of W are asked for just before their tile is loaded, and of two panels in turn: so memory is read faster than by
    // one, and than where lines are asked for some tiles sooner. (docs/kernels.md has figures.)
    template <int DOWN>
    void from_memory(const Pair& panels, int64_t down, Sums<4>& sums) const {
        const char *left = panels.left, *right = panels.right;
        const char *upper = x_of(down), *lower = x_of(std::min(down + 1, down_ - 1));
        zero<2 * DOWN>();
        for (int64_t k = 0; k < along_; k++, upper += TILE_LINE, lower += TILE_LINE, left += TILE_BYTES, right += TILE_BYTES) {
            TILE_LOAD(6, upper, x_stride_);
            if constexpr (DOWN > 1) TILE_LOAD(7, lower, x_stride_);
            fetch_tile(left, TILE_LINE);
            TILE_LOAD(4, left, TILE_LINE);
            TILE_MULTIPLY(0, 6, 4);
            if constexpr (DOWN > 1) TILE_MULTIPLY(2, 7, 4);
            TILE_FREE(4);
            fetch_tile(right, TILE_LINE);
            TILE_LOAD(5, right, TILE_LINE);
            TILE_MULTIPLY(1, 6, 5);
            TILE_FREE(6);
            if constexpr (DOWN > 1) {
                TILE_MULTIPLY(3, 7, 5);
                TILE_FREE(7);
            }
            TILE_FREE(5);
        }
        store_tiles<2 * DOWN>(sums);
    }

    // What a piece along the inputs, from tile `first` on, adds to sums, or begins them with. Meanwhile some lines at a time of
    // what comes then are brought nearer: all at once would hold up what is wanted now.
    template <bool ADDS, class Meanwhile>
    void two_by_two(const Pair& panels, int64_t down, int64_t first, typename Weights::Ahead& ahead, Sums<4>& sums,
                    const Meanwhile& meanwhile) const {
        const char *upper = x_of(down) + first * TILE_LINE, *lower = x_of(std::min(down + 1, down_ - 1)) + first * TILE_LINE;
        const char *left = panels.left + first * TILE_BYTES, *right = panels.right + first * TILE_BYTES;
        const int64_t stop = std::min(first + PIECE, along_);
        if constexpr (ADDS) load_tiles<4>(sums);
        else zero<4>();
        for (int64_t k = first; k < stop; k++, upper += TILE_LINE, lower += TILE_LINE, left += TILE_BYTES, right += TILE_BYTES) {
            ahead.template fetch<SECOND>();
            if (panels.first) fetch_x(k, down + 2);
            TILE_LOAD(6, upper, x_stride_);
            TILE_LOAD(4, left, TILE_LINE);
            TILE_MULTIPLY(0, 6, 4);
            TILE_LOAD(5, right, TILE_LINE);
            TILE_MULTIPLY(1, 6, 5);
            TILE_FREE(6);
            TILE_LOAD(7, lower, x_stride_);
            TILE_MULTIPLY(2, 7, 4);
            TILE_FREE(4);
            TILE_MULTIPLY(3, 7, 5);
            TILE_FREE(7);
            TILE_FREE(5);
            meanwhile();
        }
        store_tiles<4>(sums);
    }

    // Asks for a step's two tiles of x.
    void fetch_x(int64_t k, int64_t down) const {
        for (int i = 0; i < 2 && down + i < down_; i++) fetch_tile<SECOND>(x_of(down + i) + k * TILE_LINE, x_stride_);
    }
    const char* x_of(int64_t down) const { return (const char*)(p_.x + first_row(down) * p_.x_stride); }
};

// The kernel: see product.h.
template <class Weights>
struct ByPanels : ByTiles {
    Weights w;
    bool copied = p.rows > 4 * TILE && p.x_stride / TILE_INPUTS % 2 == 0;  // to where rows do not share sets

    const void* weights() const { return w.at(0); }
    int64_t row_bytes() const { return w.row_bytes(); }
    int64_t packed_size(int64_t count) const { return copied ? count * copy_stride() * sizeof(bf16) : 0; }
    void pack(int64_t first, int64_t, int64_t r, int64_t end, uint8_t* workspace) const {
        for (int64_t a = r; a < end; a++)
            std::memcpy((bf16*)workspace + (a - first) * copy_stride(), p.x + a * p.x_stride, p.inputs * sizeof(bf16));
    }
    void block(const uint8_t* workspace, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        whole_block<PanelBlock<Weights>>(workspace, r, end, start, stop);
    }

  protected:
    template <class Block>
    void whole_block(const uint8_t* workspace, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        Product<bf16> part = p.of_rows(r, end);
        if (copied) part.x = (const bf16*)workspace, part.x_stride = copy_stride();
        p.with_results([&](bool past_caches) { Block(part, w, past_caches).multiply(start, stop, next_piece(start, stop)); });
    }

  private:
    int64_t copy_stride() const { return (p.inputs / TILE_INPUTS | 1) * TILE_INPUTS; }
};
#endif
