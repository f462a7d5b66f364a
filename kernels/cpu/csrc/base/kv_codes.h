// Keys and values in 8 bits: a head of one token as codes with a scale, and back (kernels/quantized_kv.py).
//
// A number is its code's times UNIT and the scale. Attention multiplies codes as they are: the scale of a key goes into its
// scores, and that of a value into its weights (sights.h).
#pragma once

#include <algorithm>

#include "base/kv_layout.h"
#include "base/rows.h"

namespace kv_codes {

typedef uint8_t vc __attribute__((vector_size(W)));  // W codes
typedef int8_t vsc __attribute__((vector_size(W)));
typedef int16_t vsh __attribute__((vector_size(W * 2)));

// A whole number from -127 to 127.
struct Int8 {
    uint8_t bits;

    static constexpr float LARGEST = 127.0f, UNIT = 1.0f;

    static vf numbers(vc codes) {
#if defined(__AVX512F__)
        return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)codes));
#elif defined(__AVX2__)
        return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)&codes)));
#else
        return __builtin_convertvector((vsc)codes, vf);
#endif
    }
    // To nearest, ties to even: the last bits of what is added have the weight of one.
    static vu codes(vf x) { return (vu)(x + splat(0x1.8p23f)); }
};

// e4m3fn: four bits of exponent, three of mantissa.
struct Fp8 {
    uint8_t bits;

    static constexpr float LARGEST = 448.0f, UNIT = 256.0f;

    // As float16 they are 2**8 too small, subnormal ones too.
    static vf numbers(vc codes) {
#if defined(__AVX512F__)
        const vsh bits = (vsh)_mm256_cvtepi8_epi16((__m128i)codes);
#elif defined(__AVX2__)
        const vsh bits = (vsh)_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)&codes));
#else
        const vsh bits = __builtin_convertvector((vsc)codes, vsh);
#endif
        return from_half((vh)bits << 7 & uint16_t(0xbfff));
    }
    // To nearest, ties to even. Subnormal numbers are rounded by adding a number whose last bit has the weight of theirs.
    static vu codes(vf x) {
        const vu sign = (vu)x >> 24 & 0x80u, size = (vu)x & 0x7fffffffu;
        const vu small = (vu)((vf)size + splat(0x1p14f)) - 0x46800000u;
        const vu normal = (size - 0x3c000000u + 0x7ffffu + (size >> 20 & 1u)) >> 20;
        return (size < 0x3c800000u ? small : normal) | sign;
    }
};

template <class Code>
inline vc load_codes(const Code* p, int n) {
    if (n == W) return load<vc>(p);
    vc part = {};
    std::memcpy(&part, p, n);
    return part;
}
inline void store_codes(uint8_t* p, vu codes, int n) {
    const vc bytes = __builtin_convertvector(codes & 0xffu, vc);
    std::memcpy(p, &bytes, n);
}

// The largest of the sizes of n numbers; NaN, if one of them is not finite.
template <class T>
float largest_size(const T* x, int64_t n) {
    vf largest = {}, zeros = {};
    along(n, [&](int64_t i, int count) {
        const vf v = get(x + i, count);
        largest = max((vf)((vu)v & 0x7fffffffu), largest);
        zeros += v * splat(0.0f);
    });
    return maximum(largest) + sum(zeros);
}

template <class Code, class T>
float encode(const T* x, int64_t n, uint8_t* codes) {
    const float scale = largest_size(x, n) / Code::LARGEST;
    const vf by = splat(scale > 0 ? scale : 1.0f), most = splat(Code::LARGEST);
    along(n, [&](int64_t i, int count) {
        store_codes(codes + i, Code::codes(max(min(get(x + i, count) / by, most), -most)), count);
    });
    return scale;
}

// Unpacks the numbers of n codes, without their scale, which T holds exactly.
template <class Code, class T>
void unpack(const Code* codes, int64_t n, T* to) {
    along(n, [&](int64_t i, int count) { put(to + i, Code::numbers(load_codes(codes + i, count)), count); });
}

}  // namespace kv_codes

// Calls use(code) with a code of the format, which is INT8 or FP8.
template <class Use>
void with_code(KvFormat format, const Use& use) {
    if (format == KvFormat::INT8) use(kv_codes::Int8{});
    else use(kv_codes::Fp8{});
}

// Writes the codes and the scale of one head.
template <class T>
void encode_head(KvFormat format, const T* x, int64_t n, char* codes, char* scale) {
    auto* to = reinterpret_cast<uint8_t*>(codes);
    with_code(format, [&](auto code) {
        const float made = kv_codes::encode<decltype(code)>(x, n, to);
        std::memcpy(scale, &made, sizeof made);
    });
}
