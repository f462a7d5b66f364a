// Products of bfloat16 by tiles, for machines that have them: one way for any number of rows of x, so that a row's
// bits do not depend on how many there are. x is packed, pairs of inputs by rows; W is taken as it lies, or, where it is
// quantised, from where it was unpacked to.
#pragma once

#include "quantized.h"
#include "tiles.h"

#if defined(PAGEANT_TILES)

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
        const int columns = this->columns();
        uint32_t* strip = to + down * tiles_along() * tile_size();
        std::memset(strip, 0, tiles_along() * tile_size() * sizeof *strip);
        int64_t count = std::min<int64_t>(columns, rows - down * TILE);
        for (int64_t column = 0; column < count; column++) {
            const bf16* row = x + column * x_stride;
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

// 16 rows of W at the inputs of one tile, `stride` bytes apart.
struct Operand {
    const bf16* at;
    int64_t stride;
};

// W as it lies; where it ends within a tile, a copy with zeros.
class WholeWeight {
  public:
    explicit WholeWeight(const Product<bf16>& p) : p_(p) {}

    void reach(int64_t, int64_t, int64_t) {}
    Operand operand(int64_t o, int64_t along, bf16 (&room)[TILE * TILE_INPUTS]) const {
        int64_t i = along * TILE_INPUTS, rows = std::min<int64_t>(TILE, p_.outputs - o);
        int64_t inputs = std::min<int64_t>(TILE_INPUTS, p_.inputs - i);
        const bf16* from = p_.weight + o * p_.weight_stride + i;
        if (rows == TILE && inputs == TILE_INPUTS) return {from, int64_t(p_.weight_stride * sizeof(bf16))};
        std::memset(room, 0, sizeof room);
        for (int64_t row = 0; row < rows; row++)
            std::memcpy(room + row * TILE_INPUTS, from + row * p_.weight_stride, inputs * sizeof(bf16));
        return {room, TILE_INPUTS * sizeof(bf16)};
    }
    // The same inputs of the rows that come after `rows`: W streams from memory. What lies between would drive it out
    // of the nearest cache, so it is brought to the second.
    void fetch(Operand operand, int64_t rows) const {
        if (operand.stride == TILE_INPUTS * sizeof(bf16)) return;
        const char* next = (const char*)operand.at + rows * operand.stride;
        for (int row = 0; row < TILE; row++) __builtin_prefetch(next + row * operand.stride, 0, 2);
    }

  private:
    const Product<bf16>& p_;
};

// Quantised weights, some rows of which are unpacked to where tiles take them from: some inputs at a time, so that they
// stay in the nearest cache, where they are wanted once; else whole.
template <int BITS>
class UnpackedWeight {
  public:
    UnpackedWeight(const Product<bf16>& p, const Quantized& w, bool once)
        : p_(p), w_(w), tiles_(once ? TILES_AT_A_TIME : w.padded() / TILE_INPUTS) {}

    // Rows o to o+count are wanted at the inputs of tile `along`.
    void reach(int64_t o, int64_t count, int64_t along) {
        if (o == first_ && along / tiles_ == part_) return;
        first_ = o;
        part_ = along / tiles_;
        int64_t start = part_ * tiles_ * TILE_INPUTS, stop = std::min(start + inputs(), w_.padded());
        room().resize(count * inputs());
        for (int64_t b = 0; b < std::min(count, p_.outputs - o); b++)
            unpack_part<BITS>(w_, o + b, start, stop, room().data() + b * inputs(), count * w_.row_bytes<BITS>());
    }
    Operand operand(int64_t o, int64_t along, bf16 (&)[TILE * TILE_INPUTS]) const {
        return {room().data() + (o - first_) * inputs() + along % tiles_ * TILE_INPUTS, int64_t(inputs() * sizeof(bf16))};
    }
    void fetch(Operand, int64_t) const {}

  private:
    static constexpr int64_t TILES_AT_A_TIME = 8;
    const Product<bf16>& p_;
    const Quantized& w_;
    const int64_t tiles_;
    int64_t first_ = -1, part_ = -1;

    int64_t inputs() const { return tiles_ * TILE_INPUTS; }
    static std::vector<bf16>& room() {
        thread_local std::vector<bf16> mine;
        return mine;
    }
};

// A block of rows of x, whose product p is, by rows of W.
template <class Weight>
class TiledBlock {
  public:
    TiledBlock(const Product<bf16>& p, Weight& weight, const uint8_t* packed)
        : p_(p), weight_(weight), shape_{p.rows, p.inputs}, packed_((const uint32_t*)packed),
          columns_(shape_.columns()), b_stride_(4 * columns_) {}

    void multiply(int64_t start, int64_t stop) {
        use_tiles(columns_);
        const int64_t down = shape_.tiles_down();
        int64_t o = start;
        if (down == 1) {
            for (; o + 4 * TILE <= stop; o += 4 * TILE) four_by_one(o);
        } else {
            for (; o + 2 * TILE <= stop; o += 2 * TILE) {
                for (int64_t d = 0; d + 2 <= down; d += 2) two_by_two(d, o);
                if (down % 2)
                    for (int half = 0; half < 2; half++) one_by_one(down - 1, o + half * TILE, o, 2 * TILE);
            }
        }
        for (; o < stop; o += TILE)
            for (int64_t d = 0; d < down; d++) one_by_one(d, o, o, TILE);
        leave_tiles();
    }

  private:
    const Product<bf16>& p_;
    Weight& weight_;
    const PackedRows shape_;
    const uint32_t* packed_;
    const int columns_;
    const int64_t b_stride_;

    // Rows o to o+16 of W, of the `count` from `first` on that are wanted together.
    void one_by_one(int64_t down, int64_t o, int64_t first, int64_t count) {
        TILE_ZERO(0);
        bf16 room[TILE * TILE_INPUTS];
        for (int64_t k = 0; k < shape_.tiles_along(); k++) {
            weight_.reach(first, count, k);
            Operand a = weight_.operand(o, k, room);
            TILE_LOAD_B(4, shape_.tile(packed_, down, k), b_stride_);
            TILE_LOAD_A(6, a.at, a.stride);
            TILE_MULTIPLY(0, 6, 4);
        }
        float sums[TILE * TILE];
        TILE_STORE(0, sums, b_stride_);
        write(sums, down, o);
    }

    void four_by_one(int64_t o) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        bf16 room[TILE * TILE_INPUTS];
        for (int64_t k = 0; k < shape_.tiles_along(); k++) {
            weight_.reach(o, 4 * TILE, k);
            TILE_LOAD_B(4, shape_.tile(packed_, 0, k), b_stride_);
#define PAGEANT_OUTPUTS(C, A)                                 \
    {                                                         \
        Operand a = weight_.operand(o + C * TILE, k, room);   \
        weight_.fetch(a, 4 * TILE);                           \
        TILE_LOAD_A(A, a.at, a.stride);                       \
        TILE_MULTIPLY(C, A, 4);                               \
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
        for (int i = 0; i < 4; i++) write(sums[i], 0, o + i * TILE);
    }

    void two_by_two(int64_t down, int64_t o) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        bf16 first[TILE * TILE_INPUTS], second[TILE * TILE_INPUTS];
        for (int64_t k = 0; k < shape_.tiles_along(); k++) {
            weight_.reach(o, 2 * TILE, k);
            Operand a = weight_.operand(o, k, first), b = weight_.operand(o + TILE, k, second);
            if (down == 0) weight_.fetch(a, 2 * TILE), weight_.fetch(b, 2 * TILE);
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
        for (int i = 0; i < 4; i++) write(sums[i], down + i / 2, o + i % 2 * TILE);
    }

    void write(const float* sums, int64_t down, int64_t o) const {
        int64_t r = down * TILE, count = std::min<int64_t>(TILE, p_.rows - r);
        int64_t outputs = std::min<int64_t>(TILE, p_.outputs - o);
        if (p_.unrounded) finish_tile(p_, p_.unrounded, sums, columns_, r, count, o, outputs);
        else finish_tile(p_, p_.y, sums, columns_, r, count, o, outputs);
    }
};

// The ways of multiplying: see product.h.
struct Tiled {
    Product<bf16> p;

    static constexpr int64_t PACKED_TOGETHER = TILE;
    int64_t row_bytes() const { return p.inputs * sizeof(bf16); }
    int64_t packed_size(int64_t count) const { return PackedRows{count, p.inputs}.size() * sizeof(uint32_t); }
    void pack(int64_t first, int64_t last, int64_t r, int64_t, uint8_t* room) const {
        PackedRows{last - first, p.inputs}.pack(p.x + r * p.x_stride, p.x_stride, (r - first) / TILE, (uint32_t*)room);
    }
    void block(const uint8_t* room, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        Product<bf16> part = p.of_rows(r, end);
        WholeWeight weight(part);
        TiledBlock<WholeWeight>(part, weight, room).multiply(start, stop);
    }
};

template <int BITS>
struct TiledUnpacked : Tiled {
    Quantized w;

    int64_t row_bytes() const { return w.row_bytes<BITS>(); }
    void block(const uint8_t* room, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        Product<bf16> part = p.of_rows(r, end);
        UnpackedWeight<BITS> weight(part, w, end - r <= 2 * TILE);
        TiledBlock<UnpackedWeight<BITS>>(part, weight, room).multiply(start, stop);
    }
};
#endif
