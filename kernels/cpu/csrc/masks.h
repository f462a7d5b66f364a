// What a grammar allows: a bit for each token.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rows.h"

constexpr int64_t MASK_BITS = 32;

// Makes -inf of what is not allowed.
inline void mask(float* x, int64_t n, const uint32_t* bits) {
    constexpr float nowhere = -__builtin_inff();
    for (int64_t start = 0; start < n; start += MASK_BITS) {
        uint32_t word = bits[start / MASK_BITS];
        if (word == ~0u) continue;
        float* part = x + start;
        int64_t count = std::min(MASK_BITS, n - start);
        if (word == 0) {
            std::fill(part, part + count, nowhere);
        } else if (count == MASK_BITS) {
            for (int64_t i = 0; i < MASK_BITS; i++) part[i] = word >> i & 1 ? part[i] : nowhere;
        } else {
            for (int64_t i = 0; i < count; i++) part[i] = word >> i & 1 ? part[i] : nowhere;
        }
    }
}

// The place of the largest that is allowed, the first of equals; 0 if all of those are -inf. Mostly few are.
inline int64_t first_largest_of(const float* x, int64_t n, const uint32_t* bits) {
    float best = -__builtin_inff();
    int64_t found = 0;
    for (int64_t start = 0; start < n; start += MASK_BITS) {
        uint32_t word = bits[start / MASK_BITS];
        if (word == ~0u && start + MASK_BITS <= n && largest_of(x + start, MASK_BITS) <= best) continue;
        for (; word; word &= word - 1) {
            int64_t i = start + __builtin_ctz(word);
            if (i < n && x[i] > best) best = x[i], found = i;
        }
    }
    return found;
}
