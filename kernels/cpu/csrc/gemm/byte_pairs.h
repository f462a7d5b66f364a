// Quantised weights in tiles, of 8 bits, by a few rows of x: the bits of lanes_quantized.h, which would have to go through a
// panel's columns once for each row. A row of x is two of a tile, its first group and zeros, and zeros and its second group: so
// whole tiles of W are loaded, and groups have sums of their own.
#pragma once

#include "gemm/lanes_quantized.h"
#include "gemm/panels.h"

#if defined(PAGEANT_BYTE_TILES)

// Adds a unit of W, of 64 inputs by 16 outputs at OF_W, by x in tile 6, and takes the sums.
#define MULTIPLY_UNIT(C, B, OF_W, TO)                                        \
    do {                                                                     \
        UNROLL for (int i = 0; i < TILE; i++) fetch_here((OF_W) + i * LINE); \
        TILE_ZERO(C);                                                        \
        TILE_LOAD(B, OF_W, LINE);                                            \
        TILE_MULTIPLY_BYTES(C, 6, B);                                        \
        TILE_FREE(B);                                                        \
        TILE_STORE(C, TO, LINE);                                             \
    } while (0)

// A panel of W, that of outputs o to o + 16, in units of 64 inputs; scales of some units later are asked for, since they lie
// elsewhere.
struct PairScales {
    TiledUnits<LINE> scales;

    PairScales(const Quantized& w, int64_t o) : PairScales((const uint8_t*)(w.scales + o * w.groups()), w.groups() / 2) {}

  private:
    PairScales(const uint8_t* at, int64_t units) : scales{at, at, units, 5} {}
};
struct WholePairPanel : PairScales {
    static constexpr int64_t BYTES = TILE * UNIT;
    const uint8_t* values;

    WholePairPanel(const Quantized& w, int64_t o) : PairScales(w, o), values(w.values + o * w.row_bytes<8>()) {}
    const uint8_t* unit(int64_t u) const { return values + u * BYTES; }
    void ready(int64_t) {}
};
// Of one in halves, which are joined before they are multiplied.
struct HalvedPairPanel : PairScales {
    HalvedPanel halves;
    alignas(LINE) uint8_t rooms[2][WholePairPanel::BYTES];

    HalvedPairPanel(const Quantized& w, int64_t o) : PairScales(w, o), halves(w, o) { ready(0); }
    const uint8_t* unit(int64_t u) const { return rooms[u % 2]; }
    void ready(int64_t u) {
        if (u >= halves.units) return;
        halves.fetch(u + 4);
        halves.join(u, rooms[u % 2]);
    }
};

template <class T, class Panel>
struct ByPairTiles {
    Product<T> p;
    Quantized w;

    static constexpr int MOST = TILE / 2;  // rows
    int64_t units() const { return w.groups() / 2; }
    static int64_t unit_bytes(int64_t count) { return (2 * count + 1) * LINE; }  // the last line has scales
    int64_t packed_size(int64_t count) const { return units() * unit_bytes(count); }

    void pack(int64_t first, int64_t last, int64_t r, int64_t end, uint8_t* workspace) const {
        const int64_t count = last - first;
        for (int64_t u = 0; u < units(); u++, workspace += unit_bytes(count))
            for (int64_t a = r; a < end; a++) {
                const auto packed = Bytes<8>::packed(p, a, u);
                uint8_t* const lines = workspace + (a - first) * 2 * LINE;
                std::memset(lines, 0, 2 * LINE);
                std::memcpy(lines, packed.fours, GROUP);
                std::memcpy(lines + LINE + GROUP, packed.fours + 8, GROUP);
                float* const scales = (float*)(workspace + 2 * count * LINE) + 2 * (a - first);
                for (int g = 0; g < 2; g++) scales[g] = packed.scale(g);
            }
    }

    void block(const uint8_t* workspace, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        const int rows = int(2 * (end - r));
        configure_tiles([=](int tile) { return TileShape{tile == 4 || tile == 5 ? TILE : rows, LINE}; });
        with_count<MOST>(end - r, [&](auto N) {
            for (int64_t o = start; o < stop; o += 2 * TILE) two_panels<N>(workspace, r, o, std::min(o + TILE, stop - TILE));
        });
        leave_tiles();
    }

  private:
    template <int N>
    using Whole = int32_t[2 * N][TILE];
    // Those of outputs o and `other` on, in turn: memory is read faster than by one. A unit's sums go from their tile to memory
    // while the next ones are made, and are scaled then.
    template <int N>
    void two_panels(const uint8_t* x, int64_t r, int64_t o, int64_t other) const {
        Panel panels[2] = {{w, o}, {w, other}};
        alignas(LINE) Whole<N> whole[2][2];
        vf sums[2][N] = {};
        for (int64_t u = 0; u < units(); u++, x += unit_bytes(N)) {
            TILE_LOAD(6, x, LINE);
            MULTIPLY_UNIT(0, 4, panels[0].unit(u), whole[u % 2][0]);
            panels[0].ready(u + 1);
            if (u > 0) add_scaled<N>(whole[(u - 1) % 2][0], panels[0], u - 1, x - unit_bytes(N), sums[0]);
            MULTIPLY_UNIT(1, 5, panels[1].unit(u), whole[u % 2][1]);
            panels[1].ready(u + 1);
            TILE_FREE(6);
            if (u > 0) add_scaled<N>(whole[(u - 1) % 2][1], panels[1], u - 1, x - unit_bytes(N), sums[1]);
        }
        if (const int64_t u = units() - 1; u >= 0)
            for (int i = 0; i < 2; i++) add_scaled<N>(whole[u % 2][i], panels[i], u, x - unit_bytes(N), sums[i]);
        for (int a = 0; a < N; a++) p.put(sums[0][a], r + a, o), p.put(sums[1][a], r + a, other);
    }
    // Of unit u, whose scales of x lie after its N rows.
    template <int N>
    static void add_scaled(const Whole<N>& whole, const Panel& panel, int64_t u, const uint8_t* x, vf (&sums)[N]) {
        const float* of_x = (const float*)(x + 2 * N * LINE);
        const vu scale_pairs = load<vu>(panel.scales.unit(u));
        __builtin_prefetch(panel.scales.ahead(u), 0, 3);
        UNROLL for (int g = 0; g < 2; g++) {
            const vf of_w = group_scales(scale_pairs, g);
            UNROLL for (int a = 0; a < N; a++) {
                const vf exact = (vf)_mm512_cvtepi32_ps(load<__m512i>(whole[2 * a + g]));
                sums[a] = fma(exact * splat(of_x[2 * a + g]), of_w, sums[a]);
            }
        }
    }
};
#endif
