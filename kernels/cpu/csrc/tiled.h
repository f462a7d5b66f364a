// Products of bfloat16 by tiles, for machines that have them: one way for any number of rows of x, so that a row's
// bits do not depend on how many there are. The weight lies as ever; x is packed, pairs of inputs by rows.
#pragma once

#include "product.h"
#include "tiles.h"

#if defined(PAGEANT_TILES)
#include <vector>

// Rows of x as B takes them: for each 16 rows and each 32 inputs a tile of [16 pairs][columns].
struct PackedRows {
    int64_t rows, inputs;

    int columns() const { return int(std::min<int64_t>(rows, TILE)); }
    int64_t tiles_down() const { return (rows + TILE - 1) / TILE; }
    int64_t tiles_along() const { return (inputs + TILE_INPUTS - 1) / TILE_INPUTS; }
    int64_t tile_size() const { return int64_t(TILE) * columns(); }  // in pairs
    int64_t size() const { return tiles_down() * tiles_along() * tile_size(); }

    // Rows from TILE * `down` on. What is past the last row or input is zero.
    void pack(const bf16* x, int64_t x_stride, int64_t down, uint32_t* to) const {
        const int columns = this->columns();
        uint32_t* strip = to + down * tiles_along() * tile_size();
        std::memset(strip, 0, tiles_along() * tile_size() * sizeof *strip);
        int64_t count = std::min<int64_t>(columns, rows - down * TILE);
        for (int64_t column = 0; column < count; column++) {
            const bf16* row = x + (down * TILE + column) * x_stride;
            for (int64_t pair = 0; pair < inputs / 2; pair++)
                std::memcpy(strip + pair * columns + column, row + 2 * pair, 4);
            if (inputs % 2) std::memcpy(strip + inputs / 2 * columns + column, row + inputs - 1, 2);
        }
    }
    const uint32_t* tile(const uint32_t* packed, int64_t down, int64_t along) const {
        return packed + (down * tiles_along() + along) * tile_size();
    }
};

// Results of 16 outputs by up to 16 rows of x, from C to y.
template <class Y>
void finish_tile(const Product<bf16>& p, Y* out, const float* sums, int columns, int64_t r, int64_t count, int64_t o,
                 int64_t outputs) {
    for (int64_t a = 0; a < count; a++) {
        float line[TILE];
        for (int b = 0; b < TILE; b++) line[b] = sums[b * columns + a];
        Y* y = out + (r + a) * p.outputs + o;
        for (int64_t b = 0; b < outputs; b++) set(y[b], p.bias ? line[b] + to_float(p.bias[o + b]) : line[b]);
    }
}

class TiledProduct {
  public:
    TiledProduct(const Product<bf16>& p, const PackedRows& shape, const uint32_t* packed)
        : p_(p), shape_(shape), packed_(packed), columns_(shape.columns()), b_stride_(4 * columns_) {}

    // Strips `first` to `last` of x by rows start to stop of W.
    void block(int64_t first, int64_t last, int64_t start, int64_t stop) {
        use_tiles(columns_);
        int64_t o = start;
        if (last - first == 1) {
            for (; o + 4 * TILE <= stop; o += 4 * TILE) four_by_one(first, o);
            for (; o < stop; o += TILE) one_by_one(first, o, stop);
        } else {
            for (; o + 2 * TILE <= stop; o += 2 * TILE) {
                int64_t down = first;
                for (; down + 2 <= last; down += 2) two_by_two(down, o);
                if (down < last) one_by_one(down, o, o + TILE), one_by_one(down, o + TILE, o + 2 * TILE);
            }
            for (; o < stop; o += TILE)
                for (int64_t down = first; down < last; down++) one_by_one(down, o, stop);
        }
        leave_tiles();
    }

  private:
    const Product<bf16>& p_;
    const PackedRows& shape_;
    const uint32_t* packed_;
    const int columns_;
    const int64_t b_stride_;

    struct Operand {
        const bf16* at;
        int64_t stride;  // in bytes
    };
    // 16 rows of W from o on, at inputs of tile `along`: in place, or a copy with zeros where W has ended.
    Operand weights(int64_t o, int64_t along, bf16 (&room)[TILE * TILE_INPUTS]) const {
        int64_t i = along * TILE_INPUTS, rows = std::min<int64_t>(TILE, p_.outputs - o);
        int64_t inputs = std::min<int64_t>(TILE_INPUTS, p_.inputs - i);
        const bf16* from = p_.weight + o * p_.weight_stride + i;
        if (rows == TILE && inputs == TILE_INPUTS) return {from, p_.weight_stride * 2};
        std::memset(room, 0, sizeof room);
        for (int64_t row = 0; row < rows; row++)
            std::memcpy(room + row * TILE_INPUTS, from + row * p_.weight_stride, inputs * 2);
        return {room, TILE_INPUTS * 2};
    }
    // The same inputs of the rows that come after `rows`: W streams from memory. What lies between would drive it out
    // of the nearest cache, so it is brought to the second.
    void fetch(const bf16* at, int64_t stride, int64_t rows) const {
        const char* next = (const char*)at + rows * stride;
        for (int row = 0; row < TILE; row++) __builtin_prefetch(next + row * stride, 0, 2);
    }

    void one_by_one(int64_t down, int64_t o, int64_t stop) {
        TILE_ZERO(0);
        bf16 room[TILE * TILE_INPUTS];
        for (int64_t k = 0; k < shape_.tiles_along(); k++) {
            Operand a = weights(o, k, room);
            TILE_LOAD_B(4, shape_.tile(packed_, down, k), b_stride_);
            TILE_LOAD_A(6, a.at, a.stride);
            TILE_MULTIPLY(0, 6, 4);
        }
        float sums[TILE * TILE];
        TILE_STORE(0, sums, b_stride_);
        write(sums, down, o, std::min<int64_t>(TILE, stop - o));
    }

    void four_by_one(int64_t down, int64_t o) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        bf16 room[TILE * TILE_INPUTS];
        for (int64_t k = 0; k < shape_.tiles_along(); k++) {
            TILE_LOAD_B(4, shape_.tile(packed_, down, k), b_stride_);
#define PAGEANT_OUTPUTS(C, A)                              \
    {                                                      \
        Operand a = weights(o + C * TILE, k, room);        \
        fetch(a.at, a.stride, a.at == room ? 0 : 4 * TILE); \
        TILE_LOAD_A(A, a.at, a.stride);                    \
        TILE_MULTIPLY(C, A, 4);                            \
    }
            PAGEANT_OUTPUTS(0, 6)
            PAGEANT_OUTPUTS(1, 7)
            PAGEANT_OUTPUTS(2, 6)
            PAGEANT_OUTPUTS(3, 7)
#undef PAGEANT_OUTPUTS
        }
        float sums[4][TILE * TILE];
        TILE_STORE(0, sums[0], b_stride_);
        TILE_STORE(1, sums[1], b_stride_);
        TILE_STORE(2, sums[2], b_stride_);
        TILE_STORE(3, sums[3], b_stride_);
        for (int i = 0; i < 4; i++) write(sums[i], down, o + i * TILE, TILE);
    }

    void two_by_two(int64_t down, int64_t o) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        bf16 first[TILE * TILE_INPUTS], second[TILE * TILE_INPUTS];
        for (int64_t k = 0; k < shape_.tiles_along(); k++) {
            Operand a = weights(o, k, first), b = weights(o + TILE, k, second);
            TILE_LOAD_A(6, a.at, a.stride);
            TILE_LOAD_A(7, b.at, b.stride);
            TILE_LOAD_B(4, shape_.tile(packed_, down, k), b_stride_);
            TILE_LOAD_B(5, shape_.tile(packed_, down + 1, k), b_stride_);
            TILE_MULTIPLY(0, 6, 4);
            TILE_MULTIPLY(1, 7, 4);
            TILE_MULTIPLY(2, 6, 5);
            TILE_MULTIPLY(3, 7, 5);
        }
        float sums[4][TILE * TILE];
        TILE_STORE(0, sums[0], b_stride_);
        TILE_STORE(1, sums[1], b_stride_);
        TILE_STORE(2, sums[2], b_stride_);
        TILE_STORE(3, sums[3], b_stride_);
        for (int i = 0; i < 4; i++) write(sums[i], down + i / 2, o + i % 2 * TILE, TILE);
    }

    void write(const float* sums, int64_t down, int64_t o, int64_t outputs) const {
        int64_t r = down * TILE, count = std::min<int64_t>(TILE, p_.rows - r);
        if (p_.unrounded) finish_tile(p_, p_.unrounded, sums, columns_, r, count, o, outputs);
        else finish_tile(p_, p_.y, sums, columns_, r, count, o, outputs);
    }
};

// Rows r to end of x by rows start to stop of W, packing x for this call alone. In place of product.h's.
inline void block(const Product<bf16>& p, int64_t r, int64_t end, int64_t start, int64_t stop) {
    thread_local std::vector<uint32_t> room;
    if (end == r) return;
    Product<bf16> part = p;
    part.x += r * p.x_stride;
    part.rows = end - r;
    if (part.y) part.y += r * p.outputs;
    if (part.unrounded) part.unrounded += r * p.outputs;
    PackedRows shape{part.rows, p.inputs};
    room.resize(shape.size());
    for (int64_t down = 0; down < shape.tiles_down(); down++) shape.pack(part.x, p.x_stride, down, room.data());
    TiledProduct(part, shape, room.data()).block(0, shape.tiles_down(), start, stop);
}

// Shares a product among threads, with x packed once for all: piece(shape, packed, first, last, start, stop) is for
// strips `first` to `last` of x by rows start to stop of W.
template <class Piece>
void share_packed(const Product<bf16>& p, int64_t row_bytes, const Piece& piece) {
    thread_local std::vector<uint32_t> packed;
    if (p.rows == 0 || p.outputs == 0) return;
    PackedRows shape{p.rows, p.inputs};
    packed.resize(shape.size());
    uint32_t* room = packed.data();
    if (p.rows * p.inputs < 64 << 10)
        for (int64_t down = 0; down < shape.tiles_down(); down++) shape.pack(p.x, p.x_stride, down, room);
    else
        parallel_for(shape.tiles_down(), [&](int64_t down) { shape.pack(p.x, p.x_stride, down, room); });
    share_product(p, row_bytes, [&](int64_t r, int64_t end, int64_t start, int64_t stop) {
        piece(shape, room, r / TILE, (end + TILE - 1) / TILE, start, stop);
    });
}

inline void tiled_linear(const Product<bf16>& p) {
    share_packed(p, p.inputs * sizeof(bf16), [&](const PackedRows& shape, const uint32_t* packed, int64_t first,
                                                 int64_t last, int64_t start, int64_t stop) {
        TiledProduct(p, shape, packed).block(first, last, start, stop);
    });
}
#endif
