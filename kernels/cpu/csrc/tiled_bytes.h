// Quantised weights by AMX's tiles of bytes, for many rows of x: the bits of lanes_quantized.h, which is for few. A
// group's sum of whole numbers is exact either way, and is scaled and added to those before it in the same order.
//
// A group fills half of a tile, and each group's sums are scaled in vectors, which takes longer than the tiles do. Tiles of
// bfloat16 need no scaling, and have x unrounded: so from many rows on those of unpacked_tiles.h are faster, whose bits are
// others.
#pragma once

#include "lanes_quantized.h"
#include "scratch.h"
#include "unpacked_tiles.h"

#if defined(__AVX512VNNI__) && defined(__AMX_INT8__)

// Tiles 0 and 1 are sums [16 outputs][16 rows], 4 a group of x [8][16 rows of 4], 6 one of W [16 outputs][32].
inline void use_byte_tiles() {
    configure_tiles([](int tile) { return TileShape{tile == 4 ? GROUP / 4 : TILE, tile == 6 ? GROUP : 64}; });
}

// A group of W by one of x, added to tile C.
#define ADD_GROUP(C, OF_W, STRIDE, OF_X)      \
    do {                                      \
        TILE_LOAD_A(6, OF_W, STRIDE);         \
        TILE_LOAD_B(4, OF_X, TILE * 4);       \
        _tile_dpbssd(C, 6, 4);                \
        TILE_FREE(4);                         \
        TILE_FREE(6);                         \
    } while (0)
#define TAKE_SUMS(C, TO)             \
    do {                             \
        TILE_STORE(C, TO, TILE * 4); \
        TILE_ZERO(C);                \
    } while (0)

// 64 inputs of 16 rows of x: two groups.
struct ByteTile {
    uint32_t fours[2][GROUP / 4][TILE];
    float scales[2][TILE];
};

// 16 rows of W as bytes with their scales, and what is fetched meanwhile. Made anew for each strip of a block, for all of
// whose rows of x it then serves.
template <int BITS>
class ByteRows {
  public:
    ByteRows(const Quantized& w, Place place)
        : rows_(values_of<BITS>(w, place)), units_(w.groups() / 2), scales_(room<float>(units_ * 2 * STRIP)) {
        const Rows narrow = scales_of(w, place);
        for (int64_t u = 0; u < units_; u += STRIP) widen_scales(narrow, u);
        if constexpr (BITS == 8) at_ = (const int8_t*)rows_.at, stride_ = rows_.stride;
        else {
            int8_t* bytes = room<int8_t>(units_ * UNIT * STRIP);
            for (int b = 0; b < STRIP; b++) widen(rows_.row(b, 0), bytes + b * units_ * UNIT);
            at_ = bytes, stride_ = units_ * UNIT;
        }
    }
    int64_t units() const { return units_; }
    const int8_t* at(int64_t unit) const { return at_ + unit * UNIT; }
    int64_t stride() const { return stride_; }
    const float* scales(int64_t unit) const { return scales_ + unit * 2 * STRIP; }
    // Lines of the next strip, of which it has so many to each unit.
    static constexpr int LINES = STRIP * UNIT * BITS / 8 / LINE;
    void fetch(int64_t line) const { __builtin_prefetch(rows_.next + line * LINE, 0, 3); }

  private:
    Rows rows_;
    int64_t units_;
    float* scales_;
    const int8_t* at_;
    int64_t stride_;

    void widen_scales(const Rows& narrow, int64_t u) {
        vu pairs[STRIP];
        scale_pairs(narrow, u, units_, pairs);
        for (int64_t i = 0; i < std::min<int64_t>(STRIP, units_ - u); i++) {
            store(scales_ + (u + i) * 2 * STRIP, first_scales(pairs[i]));
            store(scales_ + (u + i) * 2 * STRIP + STRIP, second_scales(pairs[i]));
        }
    }
    void widen(const uint8_t* from, int8_t* to) const {
        const __m512i mask = _mm512_set1_epi8(15), raised = _mm512_set1_epi8(8);
        for (int64_t u = 0; u < units_; u++, from += UNIT / 2, to += UNIT) {
            const __m256i both = load<__m256i>(from);
            const __m512i low_and_high = _mm512_inserti64x4(_mm512_castsi256_si512(both), _mm256_srli_epi16(both, 4), 1);
            store(to, _mm512_sub_epi8(_mm512_and_si512(low_and_high, mask), raised));
        }
    }
    template <class N>
    static N* room(int64_t count) {
        thread_local Scratch<N> mine;
        return mine.take(count);
    }
};

// A block of rows of x by rows of W: see Tiled.
template <int BITS, class T>
struct TiledBytes {
    Product<T> p;
    Quantized w;

    int64_t units() const { return w.groups() / 2; }
    int64_t packed_size(int64_t count) const { return (count + TILE - 1) / TILE * units() * sizeof(ByteTile); }

    void pack(int64_t first, int64_t r, int64_t end, uint8_t* room) const {
        ByteTile* to = reinterpret_cast<ByteTile*>(room) + (r - first) / TILE * units();
        for (int64_t u = 0; u < units(); u++, to++) {
            vu fours[TILE] = {};
            std::memset(to->scales, 0, sizeof to->scales);
            for (int64_t a = r; a < end; a++) {
                typename ByteStrip<BITS>::Packed packed;
                const int64_t i = u * UNIT;
                packed.set(p.x + a * p.x_stride + i, std::min<int64_t>(UNIT, p.inputs - i));
                fours[a - r] = load<vu>(packed.fours);
                for (int g = 0; g < 2; g++) to->scales[g][a - r] = packed.scales[g];
            }
            transpose(fours);
            std::memcpy(to->fours, fours, sizeof fours);
        }
    }

    void block(const uint8_t* room, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        const int64_t down = (end - r + TILE - 1) / TILE;
        use_byte_tiles();
        for (int64_t o = start; o < stop; o += STRIP) {
            const ByteRows<BITS> rows(w, {o, o + STRIP < stop ? o + STRIP : next_piece(start, stop), p.outputs});
            const int64_t lines = (ByteRows<BITS>::LINES + down - 1) / down;
            const ByteTile* x = reinterpret_cast<const ByteTile*>(room);
            for (int64_t d = 0; d < down; d++, x += units()) {
                alignas(64) float sums[TILE * TILE];
                multiply(rows, x, d * lines * units(), lines, sums);
                finish_tile(p, sums, r + d * TILE, std::min<int64_t>(TILE, end - r - d * TILE), o);
            }
        }
        leave_tiles();
    }

  private:
    // 16 outputs by 16 rows of x. A group's sums go from their tile to memory while the next ones are made, and are
    // scaled while those after them are.
    static void multiply(const ByteRows<BITS>& rows, const ByteTile* x, int64_t line, int64_t lines, float* to) {
        alignas(64) int32_t first[TILE * TILE], second[TILE * TILE];
        vf sums[TILE];
        UNROLL for (int b = 0; b < TILE; b++) sums[b] = vf{};
        const int64_t units = rows.units();
        TILE_ZERO(0);
        TILE_ZERO(1);
        for (int64_t u = 0; u < units; u++) {
            for (int64_t i = 0; i < lines; i++) rows.fetch(line++);
            ADD_GROUP(0, rows.at(u), rows.stride(), x[u].fours[0]);
            if (u > 0) {
                TAKE_SUMS(1, second);
                scale(first, rows.scales(u - 1), x[u - 1].scales[0], sums);
            }
            ADD_GROUP(1, rows.at(u) + GROUP, rows.stride(), x[u].fours[1]);
            TAKE_SUMS(0, first);
            if (u > 0) scale(second, rows.scales(u - 1) + STRIP, x[u - 1].scales[1], sums);
        }
        if (units > 0) {
            TAKE_SUMS(1, second);
            scale(first, rows.scales(units - 1), x[units - 1].scales[0], sums);
            scale(second, rows.scales(units - 1) + STRIP, x[units - 1].scales[1], sums);
        }
        UNROLL for (int b = 0; b < TILE; b++) store(to + b * TILE, sums[b]);
    }
    static void scale(const int32_t* whole, const float* of_w, const float* of_x, vf (&sums)[TILE]) {
        const vf scales = load<vf>(of_x);
        UNROLL for (int b = 0; b < TILE; b++) {
            const vf exact = (vf)_mm512_cvtepi32_ps(load<__m512i>(whole + b * TILE));
            sums[b] = fma(exact, splat(of_w[b]) * scales, sums[b]);
        }
    }
};

// The way of multiplying (see product.h): by lanes where rows of a block are few.
template <int BITS, class T>
struct LanesOrTiles {
    Lanes<ByteStrip<BITS>, T> lanes;
    Product<T> p = lanes.p;

    static constexpr int64_t BLOCK_ROWS = 192, PACKED_TOGETHER = TILE;
    static_assert(BLOCK_ROWS % PACKED_TOGETHER == 0, "each packing is of one block");
    int64_t block_rows() const { return BLOCK_ROWS; }
    static constexpr int64_t FEW = BITS == 8 ? 8 : 16;  // rows, up to which lanes are as fast
    const void* weights() const { return lanes.weights(); }
    int64_t row_bytes() const { return lanes.row_bytes(); }
    int64_t packed_size(int64_t count) const { return count <= FEW ? lanes.packed_size(count) : tiles().packed_size(count); }
    void pack(int64_t first, int64_t last, int64_t r, int64_t end, uint8_t* room) const {
        if (last - first <= FEW) lanes.pack(first, last, r, end, room);
        else tiles().pack(first, r, end, room);
    }
    void block(const uint8_t* room, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        if (end - r <= FEW) lanes.block(room, r, end, start, stop);
        else tiles().block(room, r, end, start, stop);
    }

  private:
    TiledBytes<BITS, T> tiles() const { return {p, lanes.w}; }
};

// The same of bfloat16, for whom more rows than are to be alike need not have the bits of fewer.
template <int BITS>
struct BytesOrUnpacked {
    LanesOrTiles<BITS, bf16> bytes;
    Tiled<UnpackedTiles<BITS>> unpacked;
    Product<bf16> p = unpacked.p;
    bool many = p.rows > unpacked.w.w.alike;

    static constexpr int64_t PACKED_TOGETHER = TILE;
    int64_t block_rows() const { return many ? unpacked.block_rows() : bytes.block_rows(); }
    const void* weights() const { return bytes.weights(); }
    int64_t row_bytes() const { return bytes.row_bytes(); }
    int64_t packed_size(int64_t count) const { return many ? unpacked.packed_size(count) : bytes.packed_size(count); }
    void pack(int64_t first, int64_t last, int64_t r, int64_t end, uint8_t* room) const {
        if (many) unpacked.pack(first, last, r, end, room);
        else bytes.pack(first, last, r, end, room);
    }
    void block(const uint8_t* room, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        if (many) unpacked.block(room, r, end, start, stop);
        else bytes.block(room, r, end, start, stop);
    }
};
#endif
