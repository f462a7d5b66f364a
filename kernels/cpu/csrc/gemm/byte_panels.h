// Quantised weights in tiles by AMX's tiles of bytes, for many rows of x: the bits of lanes_quantized.h, which is for few. A
// group's sum of whole numbers is exact either way, and is scaled and added to those before it in the same order.
//
// A group fills half of a tile, and each group's sums are scaled in vectors, which takes longer than the tiles do. Tiles of
// bfloat16 need no scaling, and have x unrounded: so from many rows on those of unpacked_panels.h are faster, whose bits are
// others.
#pragma once

#include "gemm/byte_pairs.h"
#include "base/scratch.h"
#include "gemm/panels.h"

#if defined(PAGEANT_BYTE_TILES)

// Tiles 0 and 1 are sums [16 rows][16 outputs], 4 a group of W [8][16 outputs of 4], 6 one of x [16 rows][32].
inline void use_byte_tiles() {
    configure_tiles([](int tile) { return TileShape{tile == 4 ? GROUP / 4 : TILE, tile == 6 ? GROUP : TILE_LINE}; });
}

// A group of x by one of W, added to tile C.
#define ADD_GROUP(C, OF_X, OF_W)       \
    do {                               \
        TILE_LOAD(6, OF_X, GROUP);     \
        TILE_LOAD(4, OF_W, TILE_LINE); \
        TILE_MULTIPLY_BYTES(C, 6, 4);  \
        TILE_FREE(4);                  \
        TILE_FREE(6);                  \
    } while (0)
#define TAKE_SUMS(C, TO)             \
    do {                             \
        TILE_STORE(C, TO, TILE * 4); \
        TILE_ZERO(C);                \
    } while (0)

// 64 inputs of 16 rows of x: two groups.
struct ByteTile {
    int8_t values[2][TILE][GROUP];
    float scales[2][TILE];
};

// A panel of W as bytes, and what is fetched meanwhile. Made anew for each panel of a block, for all of whose rows of x it
// then serves.
template <int BITS>
class ByteGroups {
  public:
    ByteGroups(const Quantized& w, Place place)
        : units_(w.groups() / 2), values_((const int8_t*)w.values + place.o * w.row_bytes<BITS>()),
          scales_(w.scales + place.o * w.groups()), next_(w, std::min(place.next, place.outputs - TILE)) {
        if constexpr (BITS < 8) values_ = widened((const uint8_t*)values_);
        else if (w.in_halves()) values_ = (const int8_t*)HalvedPanel(w, place.o).joined();
    }
    int64_t units() const { return units_; }
    const int8_t* group(int64_t unit, int g) const { return values_ + unit * TILE * UNIT + g * TILE * GROUP; }
    vf scales(int64_t unit, int g) const {
        return group_scales(load<vu>(scales_ + unit * 2 * TILE), g);
    }
    // Lines of the next panel, of which it has so many to each unit.
    static constexpr int LINES = TILE * UNIT * BITS / 8 / LINE;
    void fetch(int64_t line) const { __builtin_prefetch(next_.line(line), 0, 3); }

  private:
    const int64_t units_;
    const int8_t* values_;
    const bf16* scales_;
    const PanelLines<BITS> next_;

    const int8_t* widened(const uint8_t* from) const {
        thread_local Scratch<int8_t> workspace;
        int8_t* const to = workspace.take(units_ * TILE * UNIT);
        constexpr int FOURS = GROUP / 4;
        for (int64_t u = 0; u < units_; u++, from += LINES * LINE) {
            vu fifths[2] = {};
            if constexpr (BITS == 5)
                for (int g = 0; g < 2; g++) fifths[g] = load<vu>(from + (FOURS + g) * LINE);
            UNROLL for (int i = 0; i < FOURS; i++) {
                const vu both = load<vu>(from + i * LINE);
                UNROLL for (int g = 0; g < 2; g++) {
                    const vu raised = both >> 4 * g & 0x0f0f0f0fu | fifths_of(fifths[g], i);
                    store(to + u * TILE * UNIT + (g * FOURS + i) * LINE,
                          _mm512_sub_epi8((__m512i)raised, _mm512_set1_epi8(RAISED<BITS>)));
                }
            }
        }
        return to;
    }
};

// A block of rows of x by rows of W: what Lanes is for few.
template <int BITS, class T>
struct ByByteTiles {
    Product<T> p;
    Quantized w;

    int64_t units() const { return w.groups() / 2; }
    int64_t packed_size(int64_t count) const { return (count + TILE - 1) / TILE * units() * sizeof(ByteTile); }

    void pack(int64_t first, int64_t, int64_t r, int64_t end, uint8_t* workspace) const {
        ByteTile* to = reinterpret_cast<ByteTile*>(workspace) + (r - first) / TILE * units();
        for (int64_t u = 0; u < units(); u++, to++) {
            std::memset(to, 0, sizeof *to);
            for (int64_t a = r; a < end; a++) {
                const auto packed = Bytes<BITS>::packed(p, a, u);
                for (int g = 0; g < 2; g++) {
                    std::memcpy(to->values[g][a - r], packed.fours + 8 * g, GROUP);
                    to->scales[g][a - r] = packed.scale(g);
                }
            }
        }
    }

    void block(const uint8_t* workspace, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        const int64_t down = (end - r + TILE - 1) / TILE;
        use_byte_tiles();
        for (int64_t o = start; o < stop; o += TILE) {
            const ByteGroups<BITS> groups(w, {o, o + TILE < stop ? o + TILE : next_piece(start, stop), p.outputs});
            const int64_t lines = (ByteGroups<BITS>::LINES + down - 1) / down;
            const ByteTile* x = reinterpret_cast<const ByteTile*>(workspace);
            for (int64_t d = 0; d < down; d++, x += units()) {
                alignas(TILE_LINE) float sums[TILE * TILE];
                multiply(groups, x, d * lines * units(), lines, sums);
                finish_rows(p, sums, r + d * TILE, std::min<int64_t>(TILE, end - r - d * TILE), o);
            }
        }
        leave_tiles();
    }

  private:
    // 16 rows of x by 16 outputs. A group's sums go from their tile to memory while the next ones are made, and are
    // scaled while those after them are.
    static void multiply(const ByteGroups<BITS>& groups, const ByteTile* x, int64_t line, int64_t lines, float* to) {
        alignas(TILE_LINE) int32_t first[TILE * TILE], second[TILE * TILE];
        vf sums[TILE];
        UNROLL for (int a = 0; a < TILE; a++) sums[a] = vf{};
        const int64_t units = groups.units();
        TILE_ZERO(0);
        TILE_ZERO(1);
        for (int64_t u = 0; u < units; u++) {
            for (int64_t i = 0; i < lines; i++) groups.fetch(line++);
            ADD_GROUP(0, x[u].values[0], groups.group(u, 0));
            if (u > 0) {
                TAKE_SUMS(1, second);
                scale(first, groups.scales(u - 1, 0), x[u - 1].scales[0], sums);
            }
            ADD_GROUP(1, x[u].values[1], groups.group(u, 1));
            TAKE_SUMS(0, first);
            if (u > 0) scale(second, groups.scales(u - 1, 1), x[u - 1].scales[1], sums);
        }
        if (units > 0) {
            TAKE_SUMS(1, second);
            scale(first, groups.scales(units - 1, 0), x[units - 1].scales[0], sums);
            scale(second, groups.scales(units - 1, 1), x[units - 1].scales[1], sums);
        }
        UNROLL for (int a = 0; a < TILE; a++) store(to + a * TILE, sums[a]);
    }
    static void scale(const int32_t* whole, vf of_w, const float* of_x, vf (&sums)[TILE]) {
        UNROLL for (int a = 0; a < TILE; a++) {
            const vf exact = (vf)_mm512_cvtepi32_ps(load<__m512i>(whole + a * TILE));
            sums[a] = fma(exact * splat(of_x[a]), of_w, sums[a]);
        }
    }
};

// The kernel (see product.h): by lanes where rows of a block are few. Of 8 bits in halves, or as they are.
template <int BITS, class T, bool IN_HALVES = false>
struct LanesOrTiles {
    Lanes<TilesOrHalves<BITS, IN_HALVES>, T> lanes;
    Product<T> p = lanes.p;

    static constexpr int64_t BLOCK_ROWS = 192, PACKED_TOGETHER = TILE;
    static_assert(BLOCK_ROWS % PACKED_TOGETHER == 0, "each packing is of one block");
    int64_t block_rows() const { return BLOCK_ROWS; }
    static constexpr int64_t FEW = BITS == 8 ? 2 : 16;  // rows, up to which lanes are as fast
    const void* weights() const { return lanes.weights(); }
    int64_t row_bytes() const { return lanes.row_bytes(); }
    int64_t packed_size(int64_t count) const {
        return with_kernel(count, [&](const auto& kernel) { return kernel.packed_size(count); });
    }
    void pack(int64_t first, int64_t last, int64_t r, int64_t end, uint8_t* workspace) const {
        with_kernel(last - first, [&](const auto& kernel) { kernel.pack(first, last, r, end, workspace); });
    }
    void block(const uint8_t* workspace, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        with_kernel(end - r, [&](const auto& kernel) { kernel.block(workspace, r, end, start, stop); });
    }

  private:
    typedef ByPairTiles<T, std::conditional_t<IN_HALVES, HalvedPairPanel, WholePairPanel>> ByPairs;
    // Calls use(the kernel for so many rows).
    template <class Use>
    auto with_kernel(int64_t rows, const Use& use) const {
        if (rows <= FEW) return use(lanes);
        if (BITS == 8 && rows <= ByPairs::MOST) return use(ByPairs{p, lanes.w});
        return use(ByByteTiles<BITS, T>{p, lanes.w});
    }
};
#endif
