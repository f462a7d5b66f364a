// Products with quantised weights that are unpacked to T's first, some rows of W at a time for a block of x, in a near
// cache, and then multiplied as the dequantised weight would be: a result is that weight's, bit for bit.
#pragma once

#include "gemm/lanes_bfloat.h"
#include "gemm/quantized.h"
#include "gemm/streamed.h"

// Kernels (see product.h): four rows of W, as streamed.h does.
template <int BITS, class T>
struct Unpacked {
    Product<T> p;
    Quantized w;

    static constexpr int64_t PACKED_TOGETHER = 0;
    int64_t block_rows() const { return 96; }
    const void* weights() const { return w.values; }
    int64_t row_bytes() const { return w.row_bytes<BITS>(); }
    void block(const uint8_t*, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        thread_local std::vector<T> workspace;
        workspace.resize(4 * w.padded());
        int64_t o = start;
        for (; o + 4 <= stop; o += 4) some<4>(workspace.data(), r, end, o);
        for (; o < stop; o++) some<1>(workspace.data(), r, end, o);
    }

  private:
    template <int O>
    void some(T* workspace, int64_t r, int64_t end, int64_t o) const {
        for (int b = 0; b < O; b++) unpack_row<BITS>(w, o + b, workspace + b * w.padded(), O * row_bytes());
        Product<T> part = p.of_outputs(o, workspace, w.padded());
        for (; r < end; r += ROWS) tile_rows<O, false>(part, r, std::min<int64_t>(ROWS, end - r), 0);
    }
};

#if defined(__AVX2__)
// A panel of W, as lanes_bfloat.h does.
template <int BITS>
struct UnpackedLanes {
    typedef Lanes<BfloatPanel<BestPairs>, bf16> Whole;
    Product<bf16> p;
    Quantized w;

    static constexpr int64_t PACKED_TOGETHER = Whole::PACKED_TOGETHER;
    int64_t block_rows() const { return Whole::BLOCK_ROWS; }
    const void* weights() const { return w.values; }
    int64_t row_bytes() const { return w.row_bytes<BITS>(); }
    int64_t packed_size(int64_t count) const { return Whole{p, {}}.packed_size(count); }
    void pack(int64_t first, int64_t last, int64_t r, int64_t end, uint8_t* workspace) const {
        Whole{p, {}}.pack(first, last, r, end, workspace);
    }
    void block(const uint8_t* x, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        thread_local std::vector<bf16> workspace;
        workspace.resize(PANEL * w.padded());
        for (int64_t o = start; o < stop; o += PANEL) {
            Product<bf16> part = p.of_outputs(o, workspace.data(), w.padded());
            part.outputs = std::min<int64_t>(PANEL, p.outputs - o);
            for (int64_t b = 0; b < part.outputs; b++)
                unpack_row<BITS>(w, o + b, workspace.data() + b * w.padded(), PANEL * row_bytes());
            Whole{part, {workspace.data(), w.padded(), p.inputs}}.block(x, r, end, 0, part.outputs);
        }
    }
};
#endif
