// W vectors of W numbers of 32 bits are made columns: lane j of row i goes to lane i of row j.
#pragma once

#include "base/vec.h"

#if defined(__AVX512F__)

inline vu quarters(vu a, vu b, std::integral_constant<int, 0>) { return (vu)_mm512_shuffle_i32x4((__m512i)a, (__m512i)b, 0x88); }
inline vu quarters(vu a, vu b, std::integral_constant<int, 1>) { return (vu)_mm512_shuffle_i32x4((__m512i)a, (__m512i)b, 0xdd); }
constexpr std::integral_constant<int, 0> EVEN;
constexpr std::integral_constant<int, 1> ODD;

// In each quarter of every four vectors, numbers of 32 bits are made columns: i of the four holds number i of each.
template <int N>
__attribute__((always_inline)) inline void transpose_quarters(vu (&t)[N]) {
    UNROLL for (int i = 0; i < N; i += 4) {
        __m512i a = _mm512_unpacklo_epi32((__m512i)t[i], (__m512i)t[i + 1]);
        __m512i b = _mm512_unpackhi_epi32((__m512i)t[i], (__m512i)t[i + 1]);
        __m512i c = _mm512_unpacklo_epi32((__m512i)t[i + 2], (__m512i)t[i + 3]);
        __m512i d = _mm512_unpackhi_epi32((__m512i)t[i + 2], (__m512i)t[i + 3]);
        t[i] = (vu)_mm512_unpacklo_epi64(a, c);
        t[i + 1] = (vu)_mm512_unpackhi_epi64(a, c);
        t[i + 2] = (vu)_mm512_unpacklo_epi64(b, d);
        t[i + 3] = (vu)_mm512_unpackhi_epi64(b, d);
    }
}
// 16 rows of 16 numbers of 32 bits are made columns.
__attribute__((always_inline)) inline void transpose(vu (&t)[16]) {
    transpose_quarters(t);
    UNROLL for (int i = 0; i < 4; i++) {
        vu a = quarters(t[i], t[i + 4], EVEN), b = quarters(t[i], t[i + 4], ODD);
        vu c = quarters(t[i + 8], t[i + 12], EVEN), d = quarters(t[i + 8], t[i + 12], ODD);
        t[i] = quarters(a, c, EVEN);
        t[i + 4] = quarters(b, d, EVEN);
        t[i + 8] = quarters(a, c, ODD);
        t[i + 12] = quarters(b, d, ODD);
    }
}

#else

namespace transposing {

template <int S, int... I>
inline void exchange(vu& a, vu& b, std::integer_sequence<int, I...>) {
    vu low = shuffle<(I & S ? W + I - S : I)...>(a, b);
    b = shuffle<(I & S ? W + I : I + S)...>(a, b);
    a = low;
}
template <int S>
inline void from(vu* rows) {
    if constexpr (S < W) {
        for (int i = 0; i < W; i++)
            if (!(i & S)) exchange<S>(rows[i], rows[i + S], std::make_integer_sequence<int, W>{});
        from<2 * S>(rows);
    }
}

}  // namespace transposing

__attribute__((always_inline)) inline void transpose(vu (&rows)[W]) { transposing::from<1>(rows); }

#endif
