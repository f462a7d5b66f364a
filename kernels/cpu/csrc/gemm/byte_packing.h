// Rows of x in 8 bits, for products with quantised weights. 32 numbers, of the row alone, share a scale, as the weights' do; it is a
// power of two, the least by which they have 7 bits and a sign (MXINT8, of the OCP Microscaling Formats; 2023).
#pragma once

#include "gemm/quantized.h"

#if defined(__AVX512VNNI__)

// A group's sum of products starts from the bits of a float whose last digit is worth the scale: so it is scaled as it is added
// up. This is the float where the scale is 1; a sum must not reach a digit of its own.
constexpr float LIFT = 0x1.8p23f;
constexpr int32_t LIFT_BITS = 0x4b400000;
static_assert(GROUP * 128 * 128 < 1 << 22);

// Of groups, a lane each: what numbers are multiplied by to be rounded, and what sums start from.
struct ByteScales {
    __m512 inverses;
    __m512i lifts;  // a float's bits

    // `largest` are the bits of the largest sizes.
    explicit ByteScales(__m512i largest) {
        constexpr int32_t BIAS = 127, DIGITS = 6, NAN_BITS = 0x7fc00000, MOST = 0x77000000;
        // As whole numbers; NaN is the largest of them. What would be rounded to 128 has the next exponent.
        const __m512i exponents = _mm512_and_si512(_mm512_add_epi32(largest, all(0x10000)), all(0x7f800000));
        const __mmask16 counts = _mm512_cmp_ps_mask(_mm512_castsi512_ps(largest), _mm512_set1_ps(1e-30f), _CMP_NLE_UQ);
        inverses = _mm512_castsi512_ps(_mm512_maskz_sub_epi32(counts, all(2 * BIAS + DIGITS << 23), exponents));
        lifts = _mm512_mask_add_epi32(all(LIFT_BITS), counts, exponents, all(LIFT_BITS - (BIAS + DIGITS << 23)));
        // Rows with such numbers, or NaN, become NaN.
        lifts = _mm512_mask_mov_epi32(lifts, _mm512_cmpge_epi32_mask(exponents, all(MOST)), all(NAN_BITS));
    }

  private:
    static __m512i all(int32_t x) { return _mm512_set1_epi32(x); }
};

// 64 numbers of x; and for each of the two groups what sums start from, alone, and less what raised weights add.
template <int BITS>
struct PackedBytes {
    uint32_t fours[16];
    float lifts[2];
    int32_t starts[2];

    float scale(int g) const { return lifts[g] / LIFT; }  // exact

    // The first `count` numbers; the rest are zeros.
    template <class T>
    void set(const T* x, int64_t count) {
        T part[UNIT];
        if (count < UNIT) {
            std::memset(part, 0, sizeof part);
            std::memcpy(part, x, count * sizeof(T));
            x = part;
        }
        for (int g = 0; g < 2; g++) {
            const ByteScales scales(_mm512_set1_epi32(_mm512_reduce_max_epi32(size(x + g * GROUP))));
            const __m512i sum = round(g, x + g * GROUP, scales.inverses);
            set_starts(g, _mm512_cvtsi512_si32(scales.lifts), _mm512_reduce_add_epi32(sum));
        }
    }

    // Four of them. What is found across the lanes of eight groups is of one vector, and takes a fraction of the time.
    template <class T>
    static void set_four(PackedBytes* const (&to)[4], const T* const (&x)[4]) {
        __m512i across[8];  // of each first group, and then of each second
        UNROLL for (int i = 0; i < 8; i++) across[i] = size(x[i % 4] + i / 4 * GROUP);
        const ByteScales scales(of_lanes(across, [](__m512i a, __m512i b) { return _mm512_max_epi32(a, b); }));
        alignas(LINE) float inverses[W];
        alignas(LINE) int32_t lifts[W], sums[W];
        _mm512_store_ps(inverses, scales.inverses);
        _mm512_store_si512(lifts, scales.lifts);
        UNROLL for (int i = 0; i < 8; i++)
            across[i] = to[i % 4]->round(i / 4, x[i % 4] + i / 4 * GROUP, _mm512_set1_ps(inverses[lane_of(i)]));
        _mm512_store_si512(sums, of_lanes(across, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }));
        for (int i = 0; i < 8; i++) to[i % 4]->set_starts(i / 4, lifts[lane_of(i)], sums[lane_of(i)]);
    }

  private:
    void set_starts(int g, int32_t lift, int32_t sum) {
        std::memcpy(lifts + g, &lift, sizeof lift);
        starts[g] = lift - RAISED<BITS> * sum;
    }
    // The bits of the sizes of a group's numbers, of two the larger.
    template <class T>
    static __m512i size(const T* x) {
        const __m512i rest = _mm512_set1_epi32(0x7fffffff);
        return _mm512_max_epi32(_mm512_and_si512((__m512i)read(x), rest), _mm512_and_si512((__m512i)read(x + W), rest));
    }
    // Returns numbers whose sum is that of the rounded ones.
    template <class T>
    __m512i round(int g, const T* x, __m512 inverse) {
        const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps((__m512)read(x), inverse));
        const __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps((__m512)read(x + W), inverse));
        _mm_storeu_si128((__m128i*)(fours + 8 * g), _mm512_cvtepi32_epi8(first));
        _mm_storeu_si128((__m128i*)(fours + 8 * g + 4), _mm512_cvtepi32_epi8(second));
        return _mm512_add_epi32(first, second);
    }
    // What `op` makes of all lanes of each of eight vectors, and where that of vector i is.
    template <class Op>
    static __m512i of_lanes(const __m512i (&v)[8], const Op& op) {
        __m512i halves[4], quarters[2];
        UNROLL for (int i = 0; i < 4; i++)
            halves[i] = op(_mm512_shuffle_i32x4(v[2 * i], v[2 * i + 1], 0x44), _mm512_shuffle_i32x4(v[2 * i], v[2 * i + 1], 0xee));
        UNROLL for (int i = 0; i < 2; i++)
            quarters[i] = op(_mm512_shuffle_i32x4(halves[2 * i], halves[2 * i + 1], 0x88),
                             _mm512_shuffle_i32x4(halves[2 * i], halves[2 * i + 1], 0xdd));
        const __m512i twos = op(_mm512_unpacklo_epi64(quarters[0], quarters[1]), _mm512_unpackhi_epi64(quarters[0], quarters[1]));
        return op(twos, _mm512_shuffle_epi32(twos, _MM_PERM_CDAB));
    }
    static int lane_of(int i) { return i % 4 * 4 + i / 4 * 2; }
};

// Packs units of x, four at a time where they are whole.
template <int BITS, class T>
class BytePacking {
  public:
    void add(const T* x, int64_t count, PackedBytes<BITS>& to) {
        if (count < UNIT) return to.set(x, count);
        x_[waiting_] = x, to_[waiting_] = &to;
        if (++waiting_ == 4) PackedBytes<BITS>::set_four(to_, x_), waiting_ = 0;
    }
    void finish() {
        for (int i = 0; i < waiting_; i++) to_[i]->set(x_[i], UNIT);
    }

  private:
    const T* x_[4];
    PackedBytes<BITS>* to_[4];
    int waiting_ = 0;
};
#endif
