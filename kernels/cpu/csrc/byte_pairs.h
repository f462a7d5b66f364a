// Quantised weights in tiles, of 8 bits, by a few rows of x: the bits of lanes_quantized.h, which would have to go through a
// strip's columns once for each row. A row of x is two of a tile, its first group and zeros, and zeros and its second group: so
// whole tiles of W are loaded, and groups have sums of their own.
#pragma once

#include "lanes_quantized.h"
#include "scratch.h"
#include "strips.h"

#if defined(__AVX512VNNI__) && defined(__AMX_INT8__)

// A strip of W: units of 64 inputs by 16 outputs, and their scales.
struct ByteUnits {
    const char* values;
    const bf16* scales;

    ByteUnits(const Quantized& w, int64_t o)
        : values((const char*)w.values + o * w.row_bytes<8>()), scales(w.scales + o * w.groups()) {}
    const char* unit(int64_t u) const { return values + u * TILE * UNIT; }
    vu scale_pairs(int64_t u) const { return load<vu>(scales + u * 2 * TILE); }
    void fetch(int64_t u) const {
        UNROLL for (int i = 0; i < TILE; i++) fetch_here(unit(u) + i * LINE);
    }
    void fetch_scales(int64_t u) const { __builtin_prefetch(scales + (u + AHEAD) * 2 * TILE, 0, 3); }

  private:
    static constexpr int64_t AHEAD = 4;  // units, whose scales are asked for before they are read
};

template <class T>
struct ByPairTiles {
    Product<T> p;
    Quantized w;

    static constexpr int MOST = TILE / 2;  // rows
    int64_t units() const { return w.groups() / 2; }
    static int64_t unit_bytes(int64_t count) { return (2 * count + 1) * LINE; }  // the last line has scales
    int64_t packed_size(int64_t count) const { return units() * unit_bytes(count); }

    void pack(int64_t first, int64_t last, int64_t r, int64_t end, uint8_t* room) const {
        const int64_t count = last - first;
        for (int64_t u = 0; u < units(); u++, room += unit_bytes(count))
            for (int64_t a = r; a < end; a++) {
                typename Bytes<8>::Packed packed;
                const int64_t i = u * UNIT;
                packed.set(p.x + a * p.x_stride + i, std::min<int64_t>(UNIT, p.inputs - i));
                uint8_t* const lines = room + (a - first) * 2 * LINE;
                std::memset(lines, 0, 2 * LINE);
                std::memcpy(lines, packed.fours, GROUP);
                std::memcpy(lines + LINE + GROUP, packed.fours + 8, GROUP);
                std::memcpy(room + 2 * count * LINE + (a - first) * sizeof packed.scales, packed.scales, sizeof packed.scales);
            }
    }

    void block(const uint8_t* room, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        const int rows = int(2 * (end - r));
        configure_tiles([=](int tile) { return TileShape{tile == 4 || tile == 5 ? TILE : rows, TILE_LINE}; });
        with_count<MOST>(end - r, [&](auto N) {
            for (int64_t o = start; o < stop; o += 2 * TILE) two_strips<N>(room, r, o, std::min(o + TILE, stop - TILE));
        });
        leave_tiles();
    }

  private:
    template <int N>
    using Whole = int32_t[2 * N][TILE];

    // Those of outputs o and `other` on, in turn: memory is read faster than by one. A unit's sums go from their tile to memory
    // while the next ones are made, and are scaled then.
    template <int N>
    void two_strips(const uint8_t* x, int64_t r, int64_t o, int64_t other) const {
        const ByteUnits left(w, o), right(w, other);
        alignas(TILE_LINE) Whole<N> whole[2][2];
        vf sums[2][N] = {};
        for (int64_t u = 0; u < units(); u++, x += unit_bytes(N)) {
            auto& now = whole[u % 2];
            const auto& before = whole[(u + 1) % 2];
            TILE_LOAD_A(6, x, TILE_LINE);
            left.fetch_scales(u);
            left.fetch(u);
            TILE_ZERO(0);
            TILE_LOAD_B(4, left.unit(u), TILE_LINE);
            _tile_dpbssd(0, 6, 4);
            TILE_FREE(4);
            TILE_STORE(0, now[0], TILE_LINE);
            if (u > 0) add_scaled<N>(before[0], left.scale_pairs(u - 1), x - unit_bytes(N), sums[0]);
            right.fetch_scales(u);
            right.fetch(u);
            TILE_ZERO(1);
            TILE_LOAD_B(5, right.unit(u), TILE_LINE);
            _tile_dpbssd(1, 6, 5);
            TILE_FREE(5);
            TILE_FREE(6);
            TILE_STORE(1, now[1], TILE_LINE);
            if (u > 0) add_scaled<N>(before[1], right.scale_pairs(u - 1), x - unit_bytes(N), sums[1]);
        }
        if (const int64_t u = units() - 1; u >= 0) {
            add_scaled<N>(whole[u % 2][0], left.scale_pairs(u), x - unit_bytes(N), sums[0]);
            add_scaled<N>(whole[u % 2][1], right.scale_pairs(u), x - unit_bytes(N), sums[1]);
        }
        for (int a = 0; a < N; a++) p.put(sums[0][a], r + a, o), p.put(sums[1][a], r + a, other);
    }
    // Of a unit, whose scales of x lie after its N rows.
    template <int N>
    static void add_scaled(const Whole<N>& whole, vu scale_pairs, const uint8_t* x, vf (&sums)[N]) {
        const float* of_x = (const float*)(x + 2 * N * LINE);
        UNROLL for (int g = 0; g < 2; g++) {
            const vf of_w = group_scales(scale_pairs, g);
            UNROLL for (int a = 0; a < N; a++) {
                const vf exact = (vf)_mm512_cvtepi32_ps(load<__m512i>(whole[2 * a + g]));
                sums[a] = fma(exact * of_w, splat(of_x[2 * a + g]), sums[a]);
            }
        }
    }
};
#endif
