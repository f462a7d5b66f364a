// What a grammar allows: a bit for each token.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/rows.h"

constexpr int64_t MASK_BITS = 32;

// The lanes of x whose bits are set, -inf in the others.
inline vf allowed_of(vf x, uint32_t bits) {
#if defined(__AVX512F__)
    return (vf)_mm512_mask_mov_ps(_mm512_set1_ps(NOWHERE), __mmask16(bits), (__m512)x);
#else
    static constexpr uint32_t BIT_OF_LANE[] = {1, 2, 4, 8, 16, 32, 64, 128};
    return (load<vu>(BIT_OF_LANE) & bits) != 0u ? x : splat(NOWHERE);
#endif
}

// A bit for each lane in which a comparison holds.
inline uint32_t bits_of(vi truth) {
#if defined(__AVX512F__)
    return _mm512_movepi32_mask((__m512i)truth);
#elif defined(__AVX2__)
    return _mm256_movemask_ps((__m256)truth);
#else
    uint32_t bits = 0;
    for (int i = 0; i < W; i++) bits |= uint32_t(truth[i] & 1) << i;
    return bits;
#endif
}
// Calls take(lane) for each of those.
template <class Take>
inline void each_lane(vi truth, const Take& take) {
    for (uint32_t bits = bits_of(truth); bits; bits &= bits - 1) take(__builtin_ctz(bits));
}

// Makes -inf of what is not allowed.
inline void mask(float* x, int64_t n, const uint32_t* bits) {
    for (int64_t start = 0; start < n; start += MASK_BITS) {
        uint32_t word = bits[start / MASK_BITS];
        if (word == ~0u) continue;
        along(std::min(MASK_BITS, n - start), [&](int64_t i, int count) {
            float* part = x + start + i;
            put(part, allowed_of(get(part, count), word >> i), count);
        });
    }
}
