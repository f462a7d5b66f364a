// Products of bfloat16 by tiles, for machines that have them: one way for any number of rows of x, so that a row's
// bits do not depend on how many there are. x is packed, pairs of inputs by rows; W is taken as it lies.
//
// Rows of W lie far apart, and tiles take 64 bytes of each of 16: read like that, memory gives a quarter of what it can.
// So tiles find their 16 rows in a near cache, to which the 16 before have brought them in the order of memory.
#pragma once

#include "lanes.h"
#include "tiles.h"

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
        uint32_t* strip = to + down * tiles_along() * tile_size();
        int64_t count = std::min<int64_t>(columns(), rows - down * TILE), i = 0;
#if defined(__AVX512F__)
        if (count == TILE)
            for (; i + TILE_INPUTS <= inputs; i += TILE_INPUTS, strip += tile_size()) {
                vu lines[TILE];
                for (int a = 0; a < TILE; a++) lines[a] = load<vu>(x + a * x_stride + i);
                transpose(lines);
                for (int pair = 0; pair < TILE; pair++) store(strip + pair * TILE, lines[pair]);
            }
#endif
        if (i < inputs) pack_some(x + i, x_stride, count, inputs - i, strip);
    }
    const uint32_t* tile(const uint32_t* packed, int64_t down, int64_t along) const {
        return packed + (down * tiles_along() + along) * tile_size();
    }

  private:
    void pack_some(const bf16* x, int64_t x_stride, int64_t count, int64_t left, uint32_t* to) const {
        const int columns = this->columns();
        std::memset(to, 0, (left + TILE_INPUTS - 1) / TILE_INPUTS * tile_size() * sizeof *to);
        for (int64_t column = 0; column < count; column++) {
            const bf16* row = x + column * x_stride;
            for (int64_t pair = 0; pair < left / 2; pair++) std::memcpy(to + pair * columns + column, row + 2 * pair, 4);
            if (left % 2) std::memcpy(to + left / 2 * columns + column, row + left - 1, 2);
        }
    }
};

// Rows of W side by side, as many as tiles have: what a tile takes at some of their inputs.
class TileRows {
  public:
    TileRows(const Product<bf16>& p, int64_t o)
        : at_(p.weight + o * p.weight_stride), stride_(p.weight_stride), inputs_(p.inputs),
          rows_(std::min<int64_t>(TILE, p.outputs - o)) {}

    struct Operand {
        const bf16* at;
        int64_t stride;  // in bytes
    };
    // Where W ends within a tile, a copy with zeros.
    Operand operand(int64_t along, bf16 (&room)[TILE * TILE_INPUTS]) const {
        const int64_t i = along * TILE_INPUTS, inputs = std::min<int64_t>(TILE_INPUTS, inputs_ - i);
        if (rows_ == TILE && inputs == TILE_INPUTS) return {at_ + i, int64_t(stride_ * sizeof(bf16))};
        std::memset(room, 0, sizeof room);
        for (int64_t row = 0; row < rows_; row++)
            std::memcpy(room + row * TILE_INPUTS, at_ + row * stride_ + i, inputs * sizeof(bf16));
        return {room, TILE_INPUTS * sizeof(bf16)};
    }

  private:
    const bf16* at_;
    int64_t stride_, inputs_, rows_;
};

// A block of rows of x, whose product p is, by rows of W.
class TiledBlock {
  public:
    TiledBlock(const Product<bf16>& p, const uint8_t* packed)
        : p_(p), shape_{p.rows, p.inputs}, packed_((const uint32_t*)packed), b_stride_(4 * shape_.columns()) {}

    // Outputs start to stop; `next` is what this thread comes to then.
    void multiply(int64_t start, int64_t stop, int64_t next) {
        use_tiles(shape_.columns());
        switch (shape_.tiles_down()) {
            case 1: few<1>(start, stop, next); break;
            case 2: few<2>(start, stop, next); break;
            case 3: few<3>(start, stop, next); break;
            case 4: few<4>(start, stop, next); break;
            default: many(start, stop, next);
        }
        leave_tiles();
    }

  private:
    static constexpr int LINE_BYTES = 64, NEAREST = 3, SECOND = 2;  // caches
    const Product<bf16>& p_;
    const PackedRows shape_;
    const uint32_t* packed_;
    const int64_t b_stride_;

    const char* place(int64_t o) const { return (const char*)(p_.weight + std::min(o, p_.outputs - 1) * p_.weight_stride); }
    template <int CACHE>
    static void fetch(const char* from, int64_t line, int lines) {
        for (int i = 0; i < lines; i++) __builtin_prefetch(from + (line + i) * LINE_BYTES, 0, CACHE);
    }

    // Up to 64 rows of x: with sums of them all in tiles, W is gone through once.
    template <int DOWN>
    void few(int64_t start, int64_t stop, int64_t next) {
        bf16 room[TILE * TILE_INPUTS];
        for (int64_t o = start; o < stop; o += TILE) {
            const TileRows rows(p_, o);
            const char* ahead = place(o + TILE < stop ? o + TILE : next);
            zero<DOWN>();
            for (int64_t k = 0; k < shape_.tiles_along(); k++) {
                fetch<NEAREST>(ahead, k * TILE, TILE);
                const auto a = rows.operand(k, room);
                TILE_LOAD_A(6, a.at, a.stride);
                TILE_LOAD_B(4, shape_.tile(packed_, 0, k), b_stride_);
                TILE_MULTIPLY(0, 6, 4);
                if constexpr (DOWN > 1) {
                    TILE_LOAD_B(5, shape_.tile(packed_, 1, k), b_stride_);
                    TILE_MULTIPLY(1, 6, 5);
                }
                if constexpr (DOWN > 2) {
                    TILE_LOAD_B(4, shape_.tile(packed_, 2, k), b_stride_);
                    TILE_MULTIPLY(2, 6, 4);
                }
                if constexpr (DOWN > 3) {
                    TILE_LOAD_B(5, shape_.tile(packed_, 3, k), b_stride_);
                    TILE_MULTIPLY(3, 6, 5);
                }
            }
            finish<DOWN>([&](int tile, const float* sums) { write(sums, tile, o); });
        }
    }

    // More: two tiles of W by two of x at a time.
    void many(int64_t start, int64_t stop, int64_t next) {
        for (int64_t o = start; o < stop; o += 2 * TILE) {
            const char* ahead = place(o + 2 * TILE < stop ? o + 2 * TILE : next);
            for (int64_t d = 0; d < shape_.tiles_down(); d += 2) two_by_two(d, o, d == 0 ? ahead : nullptr);
        }
    }

    // Where there are only rows for one tile, of W or of x, the other is computed from the same, and left.
    void two_by_two(int64_t down, int64_t o, const char* ahead) {
        const bool wide = o + TILE < p_.outputs, deep = down + 1 < shape_.tiles_down();
        const TileRows upper(p_, o), lower(p_, wide ? o + TILE : o);
        bf16 first[TILE * TILE_INPUTS], second[TILE * TILE_INPUTS];
        zero<4>();
        for (int64_t k = 0; k < shape_.tiles_along(); k++) {
            if (ahead) fetch<SECOND>(ahead, 2 * k * TILE, 2 * TILE);
            const auto a = upper.operand(k, first), b = lower.operand(k, second);
            TILE_LOAD_A(6, a.at, a.stride);
            TILE_LOAD_B(4, shape_.tile(packed_, down, k), b_stride_);
            TILE_MULTIPLY(0, 6, 4);
            TILE_LOAD_A(7, b.at, b.stride);
            TILE_MULTIPLY(1, 7, 4);
            TILE_LOAD_B(5, shape_.tile(packed_, down + deep, k), b_stride_);
            TILE_MULTIPLY(2, 6, 5);
            TILE_MULTIPLY(3, 7, 5);
        }
        finish<4>([&](int tile, const float* sums) {
            if ((wide || tile % 2 == 0) && (deep || tile < 2)) write(sums, down + tile / 2, o + tile % 2 * TILE);
        });
    }

    template <int TILES>
    static void zero() {
        TILE_ZERO(0);
        if constexpr (TILES > 1) TILE_ZERO(1);
        if constexpr (TILES > 2) TILE_ZERO(2);
        if constexpr (TILES > 3) TILE_ZERO(3);
    }
    // Calls write(tile, sums) for each.
    template <int TILES, class Write>
    static void finish(const Write& write) {
        alignas(LINE_BYTES) float sums[TILES][TILE * TILE];
        TILE_STORE(0, sums[0], LINE_BYTES);
        if constexpr (TILES > 1) TILE_STORE(1, sums[1], LINE_BYTES);
        if constexpr (TILES > 2) TILE_STORE(2, sums[2], LINE_BYTES);
        if constexpr (TILES > 3) TILE_STORE(3, sums[3], LINE_BYTES);
        for (int i = 0; i < TILES; i++) write(i, sums[i]);
    }
    void write(const float* sums, int64_t down, int64_t o) const {
        finish_tile(p_, sums, down * TILE, std::min<int64_t>(TILE, p_.rows - down * TILE), o);
    }
};

// The way of multiplying: see product.h.
struct Tiled {
    Product<bf16> p;

    static constexpr int64_t BLOCK_ROWS = 256, PACKED_TOGETHER = TILE;
    int64_t row_bytes() const { return p.inputs * sizeof(bf16); }
    int64_t packed_size(int64_t count) const { return PackedRows{count, p.inputs}.size() * sizeof(uint32_t); }
    void pack(int64_t first, int64_t last, int64_t r, int64_t, uint8_t* room) const {
        PackedRows{last - first, p.inputs}.pack(p.x + r * p.x_stride, p.x_stride, (r - first) / TILE, (uint32_t*)room);
    }
    void block(const uint8_t* room, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        // Threads take pieces in turn: what follows this piece in memory is another's, who would fetch it again.
        TiledBlock(p.of_rows(r, end), room).multiply(start, stop, start + (stop - start) * thread_count());
    }
};
#endif
