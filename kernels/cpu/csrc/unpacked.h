// Products with quantised weights that are unpacked to T's first, four rows of W at a time for a block of x, in the
// nearest cache, and then multiplied as streamed.h does: a result is that of the dequantised weight, bit for bit.
#pragma once

#include "quantized.h"
#include "streamed.h"

// The way of multiplying: see product.h.
template <int BITS, class T>
struct Unpacked {
    Product<T> p;
    Quantized w;

    static constexpr int64_t PACKED_TOGETHER = 0;
    int64_t block_rows() const { return 96; }
    const void* weights() const { return w.values; }
    int64_t row_bytes() const { return w.row_bytes<BITS>(); }
    void block(const uint8_t*, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        thread_local std::vector<T> room;
        room.resize(4 * w.padded());
        int64_t o = start;
        for (; o + 4 <= stop; o += 4) some<4>(room.data(), r, end, o);
        for (; o < stop; o++) some<1>(room.data(), r, end, o);
    }

  private:
    template <int O>
    void some(T* room, int64_t r, int64_t end, int64_t o) const {
        for (int b = 0; b < O; b++) unpack_row<BITS>(w, o + b, room + b * w.padded(), O * row_bytes());
        Product<T> part = p.of_outputs(o, room, w.padded());
        for (; r < end; r += ROWS) tile_rows<O, false>(part, r, std::min<int64_t>(ROWS, end - r), 0);
    }
};
