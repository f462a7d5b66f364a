// What a grammar allows: a bit for each token.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rows.h"

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

inline bool any_above(vf x, vf y) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)x, (__m512)y, _CMP_GT_OQ) != 0;
#else
    const vi above = x > y;
    int32_t any = 0;
    for (int i = 0; i < W; i++) any |= above[i];
    return any != 0;
#endif
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

// The place of the largest that is allowed, the first of equals; 0 if all of those are -inf.
inline int64_t first_largest_of(const float* x, int64_t n, const uint32_t* bits) {
    float best = NOWHERE;
    int64_t found = 0;
    for (int64_t start = 0; start < n; start += MASK_BITS) {
        uint32_t word = bits[start / MASK_BITS];
        if (word == 0) continue;
        bool any = false;
        along(std::min(MASK_BITS, n - start), [&](int64_t i, int count) {
            any |= any_above(allowed_of(get(x + start + i, count), word >> i), splat(best));
        });
        if (!any) continue;
        for (; word; word &= word - 1) {
            int64_t i = start + __builtin_ctz(word);
            if (i < n && x[i] > best) best = x[i], found = i;
        }
    }
    return found;
}
