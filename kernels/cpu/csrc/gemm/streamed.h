// Products with weights as they lie, streamed from memory.
//
// One row of x is a matrix-vector product: bound by the memory that W streams from. So a tile is a few rows
// of W, read along their inputs side by side while the rows of the next tile are fetched; the rows of x take
// turns on it while it is in the nearest cache. Each (row of x, row of W) has one accumulator vector of its
// own, added up along the inputs in order: a result is the same bits in a tile of any shape, and so the same
// whatever rows stand beside it.
#pragma once

#include "gemm/product.h"

// How T's are multiplied: STEP inputs at a time.
template <class T>
struct Dot;

template <>
struct Dot<float> {
    static constexpr int STEP = W;
    using Lanes = vf;
    static vf add(vf sums, vf a, vf b) { return fma(a, b, sums); }
};

template <>
struct Dot<bf16> {
    static constexpr int STEP = 2 * W;
    using Lanes = vu;  // pairs
    static vf add(vf sums, vu a, vu b) {
        sums = fma((vf)(a << 16), (vf)(b << 16), sums);
        return fma((vf)(a & 0xffff0000u), (vf)(b & 0xffff0000u), sums);
    }
};

// Widened as they are read.
template <>
struct Dot<f16> {
    static constexpr int STEP = W;
    using Lanes = vf;
    static vf add(vf sums, vf a, vf b) { return fma(a, b, sums); }
};

template <class T>
inline typename Dot<T>::Lanes load_lanes(const T* p) { return load<typename Dot<T>::Lanes>(p); }
inline vf load_lanes(const f16* p) { return read(p); }

// The first n < STEP numbers, the rest zero.
template <class T>
inline typename Dot<T>::Lanes load_part(const T* p, int64_t n) {
#if defined(__AVX512F__)
    static_assert(sizeof(T) == 4);  // lanes_bfloat.h has bfloat16
    return (vf)_mm512_maskz_loadu_ps((1u << n) - 1, p);
#else
    T part[Dot<T>::STEP] = {};
    std::memcpy(part, p, n * sizeof(T));
    return load<typename Dot<T>::Lanes>(part);
#endif
}
inline vf load_part(const f16* p, int64_t n) { return read(p, int(n)); }

// Adds up the lanes, and the bias, and writes the results.
template <class Y, int R, int O, class T>
inline void finish_as(const Product<T>& p, Y* out, const vf (&sums)[R][O], int64_t r, int64_t o) {
    UNROLL for (int a = 0; a < R; a++) {
        Y* y = out + (r + a) * p.y_stride + o;
        if constexpr (O % 4 == 0) {
            UNROLL for (int b = 0; b < O; b += 4) {
                vf4 four = sum4(sums[a][b], sums[a][b + 1], sums[a][b + 2], sums[a][b + 3]);
                write4(y + b, p.bias ? four + read4(p.bias + o + b) : four);
            }
        } else {
            float one = sum4(sums[a][0], vf{}, vf{}, vf{})[0];
            set(y[0], p.bias ? one + to_float(p.bias[o]) : one);
        }
    }
}

template <int R, int O, class T>
inline void finish(const Product<T>& p, const vf (&sums)[R][O], int64_t r, int64_t o) {
    if (p.unrounded) finish_as(p, p.unrounded, sums, r, o);
    else finish_as(p, p.y, sums, r, o);
}

// Rows r to r+R of x by rows o to o+O of W. O is 1 or a multiple of 4.
template <int R, int O, bool FETCH, class T>
void tile(const Product<T>& p, int64_t r, int64_t o) {
    using Lanes = typename Dot<T>::Lanes;
    constexpr int STEP = Dot<T>::STEP;
    const int64_t x_stride = p.x_stride, weight_stride = p.weight_stride, inputs = p.inputs;
    const T* x = p.x + r * x_stride;
    const T* w = p.weight + o * weight_stride;
    vf sums[R][O];
    UNROLL for (int a = 0; a < R; a++) {
        UNROLL for (int b = 0; b < O; b++) sums[a][b] = vf{};
    }
    int64_t i = 0;
    for (; i + STEP <= inputs; i += STEP) {
        Lanes weights[O];
        UNROLL for (int b = 0; b < O; b++) {
            weights[b] = load_lanes(w + b * weight_stride + i);
            if (FETCH) __builtin_prefetch(w + (b + O) * weight_stride + i, 0, 3);
        }
        UNROLL for (int a = 0; a < R; a++) {
            Lanes lanes = load_lanes(x + a * x_stride + i);
            UNROLL for (int b = 0; b < O; b++) sums[a][b] = Dot<T>::add(sums[a][b], lanes, weights[b]);
        }
    }
    if (i < inputs) {
        int64_t left = inputs - i;
        Lanes weights[O];
        UNROLL for (int b = 0; b < O; b++) weights[b] = load_part(w + b * weight_stride + i, left);
        UNROLL for (int a = 0; a < R; a++) {
            Lanes lanes = load_part(x + a * x_stride + i, left);
            UNROLL for (int b = 0; b < O; b++) sums[a][b] = Dot<T>::add(sums[a][b], lanes, weights[b]);
        }
    }
    finish(p, sums, r, o);
}

template <int O, bool FETCH, class T>
void tile_rows(const Product<T>& p, int64_t r, int64_t count, int64_t o) {
    switch (count) {
        case 1: return tile<1, O, FETCH>(p, r, o);
        case 2: return tile<2, O, FETCH>(p, r, o);
        case 3: return tile<3, O, FETCH>(p, r, o);
        case 4: return tile<4, O, FETCH>(p, r, o);
        case 5: return tile<5, O, FETCH>(p, r, o);
        default: return tile<6, O, FETCH>(p, r, o);
    }
}
constexpr int ROWS = W == 16 ? 6 : 2;  // rows of x in a tile: 4 * 6 sums fit the 32 registers of AVX-512

// Rows r to stop of x by rows o to o+O of W, which stay in the nearest cache meanwhile.
template <int O, class T>
void weights_stay(const Product<T>& p, int64_t r, int64_t stop, int64_t o) {
    if (r < stop) tile_rows<O, true>(p, r, std::min<int64_t>(ROWS, stop - r), o);
    for (r += ROWS; r < stop; r += ROWS) tile_rows<O, false>(p, r, std::min<int64_t>(ROWS, stop - r), o);
}

// The kernel: see product.h.
template <class T>
struct Streamed {
    Product<T> p;

    static constexpr int64_t PACKED_TOGETHER = 0;
    int64_t block_rows() const { return 96; }
    const void* weights() const { return p.weight; }
    int64_t row_bytes() const { return p.inputs * sizeof(T); }
    void block(const uint8_t*, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        int64_t o = start;
        if (end - r == 1)
            for (; o + 8 <= stop; o += 8) tile<1, 8, true>(p, r, o);
        for (; o + 4 <= stop; o += 4) weights_stay<4>(p, r, end, o);
        for (; o < stop; o++) weights_stay<1>(p, r, end, o);
    }
};
