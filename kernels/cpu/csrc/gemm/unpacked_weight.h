// Quantised weights that tiles of bfloat16 multiply: unpacked first, and whoever does that asks for what comes next.
#pragma once

#include "gemm/quantized.h"
#include "base/scratch.h"

template <int BITS>
struct UnpackedWeight {
    Quantized w;
    int64_t outputs;

    const uint8_t* at(int64_t o) const { return w.values + o * row_bytes(); }
    int64_t row_bytes() const { return w.row_bytes<BITS>(); }

    struct Ahead {
        Ahead(const UnpackedWeight&, int64_t, int64_t) {}
        template <int CACHE>
        void fetch() {}
    };
    struct Near {
        Near(const UnpackedWeight&, int64_t, int64_t, int64_t) {}
        void fetch() {}
    };
};
