// Weights of 8, 5 or 4 bits (kernels/quantized.py says how they lie in memory), and how they become T's.
#pragma once

#include "gemm/product.h"

constexpr int GROUP = 32;  // inputs that share a scale
constexpr int UNIT = 64;   // inputs that are unpacked together

typedef int8_t signed_bytes __attribute__((vector_size(W)));
typedef uint8_t bytes __attribute__((vector_size(W)));

// What is added to weights before they lie in memory or, to those of 8 bits, before they are multiplied without a sign.
template <int BITS>
constexpr int RAISED = 1 << (BITS - 1);

// Of bytes that have the fifth bits of a group, four to a vector's lane: those of inputs 4 c to 4 c + 3, in their places.
template <class V>
inline V fifths_of(V fifths, int c) { return (c < 4 ? fifths << (4 - c) : fifths >> (c - 4)) & 0x10101010u; }

// The same of inputs i to i + W of a unit, a lane each.
inline vu fifths_from(const uint8_t* values, int i) {
    uint32_t fifths;
    std::memcpy(&fifths, values + GROUP + i / GROUP * 4, sizeof fifths);
    vu all, places;
    UNROLL for (int lane = 0; lane < W; lane++) {
        all[lane] = fifths;
        places[lane] = lane % 4 * 8 + (i % GROUP + lane) / 4;
    }
    return (all >> places & 1u) << 4;
}

// W weights from weight i on of a unit, as floats, not yet scaled.
template <int BITS>
inline vf whole_numbers(const uint8_t* values, int i) {
    if constexpr (BITS == 8) {
#if defined(__AVX512F__)
        return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(values + i))));
#elif defined(__AVX2__)
        return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(values + i))));
#else
        return __builtin_convertvector(__builtin_convertvector(load<signed_bytes>(values + i), vi), vf);
#endif
    }
    const uint8_t* at = values + i % GROUP;
#if defined(__AVX512F__)
    vu both = (vu)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)at));
#elif defined(__AVX2__)
    vu both = (vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)at));
#else
    vu both = __builtin_convertvector(load<bytes>(at), vu);
#endif
    vu q = i < GROUP ? both & 15u : both >> 4;
    if constexpr (BITS == 5) q |= fifths_from(values, i);
    return __builtin_convertvector((vi)q - RAISED<BITS>, vf);
}

// A unit by its two scales, as T's: a group at `first` and one at `second`.
template <int BITS, class T>
inline void unpack(const uint8_t* values, const float* scales, T* first, T* second) {
    UNROLL for (int i = 0; i < GROUP; i += W) {
        write(first + i, whole_numbers<BITS>(values, i) * splat(scales[0]));
        write(second + i, whole_numbers<BITS>(values, GROUP + i) * splat(scales[1]));
    }
}

#if defined(__AVX512BF16__)
template <int BITS>
inline void unpack(const uint8_t* values, const float* scales, bf16* to_first, bf16* to_second) {
    if constexpr (BITS != 4) {
        UNROLL for (int g = 0; g < 2; g++) {
            vf low = whole_numbers<BITS>(values, g * GROUP) * splat(scales[g]);
            vf high = whole_numbers<BITS>(values, g * GROUP + W) * splat(scales[g]);
            store(g ? to_second : to_first, line_of<bf16>(low, high));
        }
        return;
    }
    // All 16 that each group may have, looked up: the lower half of the table is the first group's.
    const vf q = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    vf first = q * splat(scales[0]), second = q * splat(scales[1]);
    __m512i table = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    __m512i both = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)values));
    __m512i low = _mm512_and_si512(both, _mm512_set1_epi16(15));
    __m512i high = _mm512_or_si512(_mm512_srli_epi16(both, 4), _mm512_set1_epi16(16));
    store(to_first, (vu)_mm512_permutexvar_epi16(low, table));
    store(to_second, (vu)_mm512_permutexvar_epi16(high, table));
}
#endif

// A matrix. Products with up to `alike` rows of x have a row's bits whatever is beside it; so have those with more, but the
// bits may be others.
struct Quantized {
    const uint8_t* values;
    const bf16* scales;
    int64_t inputs;
    int64_t alike = 0;
    const uint8_t* lower = nullptr;  // of 8 bits in halves, whose upper ones are `values` then: see halves.h

    int64_t padded() const { return (inputs + UNIT - 1) / UNIT * UNIT; }
    int64_t groups() const { return padded() / GROUP; }
    bool in_halves() const { return lower != nullptr; }
    int64_t row_bytes(int64_t bits) const { return padded() * bits / 8; }
    template <int BITS>
    int64_t row_bytes() const { return row_bytes(BITS); }
};

// Of vectors of a unit's two scales: those of group g.
inline vf group_scales(vu pairs, int g) { return (vf)(g ? pairs & 0xffff0000u : pairs << 16); }

constexpr int CHUNK_GROUPS = 32;  // whose scales are widened at a time
constexpr int CHUNK = CHUNK_GROUPS * GROUP;

// At most CHUNK_GROUPS scales as floats.
inline void widen_scales(const bf16* from, int64_t count, float* to) {
    for (int i = 0; i < CHUNK_GROUPS; i += W)
        if (i < count) store(to + i, count - i >= W ? read(from + i) : read(from + i, int(count - i)));
}

// Row o of W, as T's: `padded()` numbers, each group `step` after the one before. The memory `ahead` bytes further on is
// asked for.
template <int BITS, class T>
void unpack_row(const Quantized& w, int64_t o, T* to, int64_t ahead, int64_t step = GROUP) {
    const uint8_t* values = w.values + o * w.row_bytes<BITS>();
    const bf16* narrow = w.scales + o * w.groups();
    float scales[CHUNK_GROUPS];
    for (int64_t start = 0; start < w.padded(); start += CHUNK) {
        widen_scales(narrow + start / GROUP, w.groups() - start / GROUP, scales);
        const float* scale = scales;
        for (int64_t i = start; i < std::min(start + CHUNK, w.padded()); i += UNIT) {
            __builtin_prefetch(values + ahead, 0, 3);
            unpack<BITS>(values, scale, to, to + step);
            values += UNIT * BITS / 8, scale += UNIT / GROUP, to += UNIT / GROUP * step;
        }
    }
}

// Calls call(bits) with a constant.
template <class Call>
void by_bits(int64_t bits, const Call& call) {
    if (bits == 8) call(std::integral_constant<int, 8>{});
    else if (bits == 5) call(std::integral_constant<int, 5>{});
    else call(std::integral_constant<int, 4>{});
}
