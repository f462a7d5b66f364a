// What products of bfloat16 by tiles have in common, whether W lies in rows (tiled.h) or in tiles (panels.h): one kernel for
// any number of rows of x, so that a row's bits do not depend on how many there are.
#pragma once

#include "gemm/product.h"
#include "base/tiles.h"

#if defined(PAGEANT_TILES)

constexpr int NEAREST = 3, SECOND = 2;  // caches

#if defined(__AVX512BF16__)
// Of 16 pairs, as bfloat16.
inline vu interleaved(vf even, vf odd) {
    static constexpr uint16_t ORDER[32] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                                           8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (vu)_mm512_permutexvar_epi16(load<__m512i>(ORDER), (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even));
}
#endif

// What comes next, brought nearer, so many lines at a time.
struct LinesAhead {
    const char* at;
    const int64_t lines;

    template <int CACHE>
    void fetch() {
        for (int64_t i = 0; i < lines; i++, at += TILE_LINE) __builtin_prefetch(at, 0, CACHE);
    }
};

// A block of rows of x, whose product p is, by rows of W.
class TileBlock {
  public:
    TileBlock(const Product<bf16>& p, bool past_caches)
        : p_(p), along_((p.inputs + TILE_INPUTS - 1) / TILE_INPUTS), down_((p.rows + TILE - 1) / TILE),
          past_caches_(past_caches) {}

  protected:
    template <int TILES>
    using Sums = float[TILES][TILE * TILE];

    const Product<bf16>& p_;
    const int64_t along_, down_;  // tiles along the inputs, and down the rows of x
    const bool past_caches_;

    // Lines of W to ask for with each step along the inputs, so that the next two panels are near when these are done.
    int64_t lines_each() const {
        const int64_t turns = (down_ + 1) / 2;
        return (2 * TILE + turns - 1) / turns;
    }

    template <int CACHE = NEAREST>
    static void fetch_tile(const char* at, int64_t stride) {
        UNROLL for (int i = 0; i < TILE; i++) __builtin_prefetch(at + i * stride, 0, CACHE);
    }
    template <int TILES>
    static void zero() {
        TILE_ZERO(0);
        if constexpr (TILES > 1) TILE_ZERO(1);
        if constexpr (TILES > 2) TILE_ZERO(2);
        if constexpr (TILES > 3) TILE_ZERO(3);
    }
    template <int TILES>
    static void load_tiles(const float (*sums)[TILE * TILE]) {
        TILE_LOAD(0, sums[0], TILE_LINE);
        if constexpr (TILES > 1) TILE_LOAD(1, sums[1], TILE_LINE);
        if constexpr (TILES > 2) TILE_LOAD(2, sums[2], TILE_LINE);
        if constexpr (TILES > 3) TILE_LOAD(3, sums[3], TILE_LINE);
    }
    template <int TILES>
    static void store_tiles(float (*sums)[TILE * TILE]) {
        TILE_STORE(0, sums[0], TILE_LINE);
        if constexpr (TILES > 1) TILE_STORE(1, sums[1], TILE_LINE);
        if constexpr (TILES > 2) TILE_STORE(2, sums[2], TILE_LINE);
        if constexpr (TILES > 3) TILE_STORE(3, sums[3], TILE_LINE);
    }
};

// What kernels that multiply by tiles (see product.h) have in common.
struct ByTiles {
    Product<bf16> p;

    static constexpr int64_t PACKED_TOGETHER = TILE;
    // As many as take half of the second cache, and then evenly.
    int64_t block_rows() const {
        const int64_t row_bytes = p.inputs * sizeof(bf16);
        return even_blocks(p.rows, std::clamp<int64_t>(BLOCK_BYTES / row_bytes, 8 * TILE, 32 * TILE));
    }

  private:
    static constexpr int64_t BLOCK_BYTES = 1 << 20;
};
#endif
