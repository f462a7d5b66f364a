// exp and what is made of it, for vectors.
#pragma once

#include "base/vec.h"

// e**x, within two units of the last place; exactly 1 at 0, exactly 0 below -87.3, infinite above 88.7.
// Reduction to [-ln 2 / 2, ln 2 / 2] and the polynomial of Cephes' expf (Moshier, 1989).
inline vf exponential(vf x) {
    vf clamped = min(max(x, splat(-87.3f)), splat(88.7f));
    // Adding 1.5 * 2**23 rounds to an integer, which then stands in the low bits.
    vf magic = splat(12582912.0f);
    vf shifted = fma(clamped, splat(1.44269504f), magic);
    vf n = shifted - magic;
    vf r = fma(n, splat(-0.693359375f), clamped);
    r = fma(n, splat(2.12194440e-4f), r);
    vf p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r) + 1.0f;
    vi exponent = ((vi)shifted - (vi)magic) << 23;
    vf power = (vf)((vi)p + exponent);
    power = x > 88.7f ? splat(__builtin_inff()) : power;
    power = x < -87.3f ? vf{} : power;
    return x == x ? power : x;
}

// 2**x for x up to 126; exactly 0 below -126, and NaN of NaN. Off by 9e-5 of it with 3 terms, which is little beside
// what a bfloat16 loses, and by a unit of the last place with 6. The polynomials are best for [0, 1), and 1 at 0.
template <int TERMS>
inline vf power_of_two(vf x) {
    static_assert(TERMS == 3 || TERMS == 6, "what there are polynomials of");
#if defined(__AVX512F__)
    __mmask16 counts = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    vf r = (vf)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#else
    vf magic = splat(12582912.0f);  // rounds to an integer, as in `exponential`
    vf clamped = max(x, splat(-126.0f));
    vf shifted = (clamped - 0.5f) + magic;
    vf r = clamped - (shifted - magic);
#endif
    vf p;
    if constexpr (TERMS == 3) {
        p = splat(7.7067051e-2f);
        p = fma(p, r, splat(2.2764498e-1f));
        p = fma(p, r, splat(6.9511679e-1f));
    } else {
        p = splat(2.1612916e-4f);
        p = fma(p, r, splat(1.2467846e-3f));
        p = fma(p, r, splat(9.6754516e-3f));
        p = fma(p, r, splat(5.5485281e-2f));
        p = fma(p, r, splat(2.4022931e-1f));
        p = fma(p, r, splat(6.9314704e-1f));
    }
    p = fma(p, r, splat(1.0f));
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_scalef_ps(counts, (__m512)p, (__m512)x);
#else
    vf power = (vf)((vi)p + (((vi)shifted - (vi)magic) << 23));
    power = x < -126.0f ? vf{} : power;
    return x == x ? power : x;
#endif
}

inline vf hyperbolic_tangent(vf x) {
    return 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f);
}

inline vf silu(vf x) { return x / (1.0f + exponential(-x)); }

// The same for numbers of 16 bits, by a shorter power: off by 5e-6 of it at most, where x is far from 0.
inline vf short_silu(vf x) {
#if defined(__AVX512F__)
    return x / (1.0f + power_of_two<6>(x * -1.44269504f));
#else
    return silu(x);
#endif
}

// 1 - erf(x): Abramowitz and Stegun, 7.1.26, off by 1.5e-7 at most.
inline vf complementary_error(vf x) {
    vf size = max(x, -x);
    vf t = 1.0f / fma(splat(0.3275911f), size, splat(1.0f));
    vf p = splat(1.061405429f);
    p = fma(p, t, splat(-1.453152027f));
    p = fma(p, t, splat(1.421413741f));
    p = fma(p, t, splat(-0.284496736f));
    p = fma(p, t, splat(0.254829592f));
    vf tail = p * t * exponential(-size * size);
    return x < 0.0f ? 2.0f - tail : tail;
}
