// Vectors of W floats, as wide as the instruction set that this is compiled for, and what moves numbers
// into and out of them. GCC's and Clang's vector extensions carry the arithmetic, so that one source serves
// every instruction set; only what they cannot say is written as an intrinsic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

// Loops over vectors are unrolled by name: where the compiler leaves one, they live in memory.
#define UNROLL _Pragma("GCC unroll 16")

typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
typedef uint16_t vh __attribute__((vector_size(W * 2)));
typedef float vf4 __attribute__((vector_size(16)));

// A bfloat16, as memory holds it: the upper half of a float. And a float16, IEEE's.
struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

template <class V, class T>
inline V load(const T* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

template <class V, class T>
inline void store(T* p, V v) {
    std::memcpy(p, &v, sizeof v);
}

// Calls body(constant) with the count, from 1 to MOST: a function of its own for each.
template <int MOST, class Body>
void with_count(int64_t count, const Body& body) {
    if constexpr (MOST > 1)
        if (count != MOST) return with_count<MOST - 1>(count, body);
    body(std::integral_constant<int, MOST>{});
}

// Whether results are more than the caches keep for who reads them next. Each line that is written there would be read from
// memory first, for nothing.
inline bool leaves_caches(int64_t bytes) { return bytes >= 2 << 20; }

#if defined(__AVX512F__)
// A whole line to where one begins, which no cache is to keep; what makes such lines seen before what is written next; and a
// line to anywhere, which is kept unless it leaves the caches and can.
inline void store_past_caches(void* p, vu line) { _mm512_stream_si512((__m512i*)p, (__m512i)line); }
inline void settle_lines() { _mm_sfence(); }
inline void store_line(void* p, vu line, bool past_caches) {
    if (past_caches && uintptr_t(p) % sizeof line == 0) store_past_caches(p, line);
    else store((vu*)p, line);
}
#else
inline void settle_lines() {}
#endif

constexpr int64_t LINE = 64;  // bytes that memory is fetched by
constexpr int PANEL = 16;     // rows of a weight, or outputs, that go together: see kernels/panels.py

// Asks for a line, for the nearest cache, here and not before: in a burst, requests queue, and memory answers fewer of them at
// once than when what was asked for earlier is used in between. The compiler would gather them.
inline void fetch_here(const void* p) {
#if defined(__AVX2__)
    asm volatile("prefetcht0 %0" : : "m"(*(const char*)p));
#else
    __builtin_prefetch(p, 0, 3);
#endif
}
// Has a vector made here.
inline void made_here(vu& v) {
#if defined(__AVX512F__)
    asm volatile("" : "+v"(v));
#elif defined(__AVX2__)
    asm volatile("" : "+x"(v));
#endif
}

// (GCC makes a sum of `vf{} + x`, since a negative zero would not stay one.)
inline vf splat(float x) {
#if defined(__AVX512F__)
    return (vf)_mm512_set1_ps(x);
#elif defined(__AVX2__)
    return (vf)_mm256_set1_ps(x);
#else
    return vf{x, x, x, x};
#endif
}

// a * b + c, rounded once where the machine can. Spelled out, so that every tile shape rounds alike.
inline vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

inline vf max(vf a, vf b) { return a > b ? a : b; }
inline vf min(vf a, vf b) { return a < b ? a : b; }

// To bfloat16's bits, to nearest and ties to even; NaN stays NaN.
// (The instruction makes zeros of numbers below 1e-38, which nothing here is the worse for.)
inline vu narrow(vf x) {
#if defined(__AVX512BF16__)
    return (vu)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)x));
#endif
    vu u = (vu)x;
    vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return x == x ? rounded : (u >> 16) | 0x40u;
}
inline vf widen(vu bits) { return (vf)(bits << 16); }

// W numbers of 16 bits as numbers of 32. GCC 12 splits the conversion in four.
inline vu halves(const bf16* p) {
#if defined(__AVX512F__)
    return (vu)_mm512_cvtepu16_epi32((__m256i)load<vh>(p));
#else
    return __builtin_convertvector(load<vh>(p), vu);
#endif
}

// float16's bits to floats, where no instruction does it; F and U have as many lanes. A shifted number is 2**112
// too small, which a product puts right for subnormal ones too.
template <class F, class U>
inline F from_half_bits(U bits) {
    U size = (bits & 0x7fffu) << 13;
    U finite = (U)((F)size * 0x1p112f);
    return (F)((size < 0x0f800000u ? finite : size | 0x7f800000u) | (bits & 0x8000u) << 16);
}
// And back, to nearest and ties to even. Numbers that become subnormal are rounded by adding 0.5, whose last
// place is theirs.
template <class F, class U>
inline U to_half_bits(F x) {
    U sign = (U)x >> 16 & 0x8000u, size = (U)x & 0x7fffffffu;
    U small = (U)((F)size + 0.5f) - 0x3f000000u;
    U normal = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    U finite = size < 0x38800000u ? small : normal;
    U bits = size < 0x47800000u ? finite : U{} + 0x7c00u;
    return (size > 0x7f800000u ? U{} + 0x7e00u : bits) | sign;
}

inline vf from_half(vh bits) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps((__m256i)bits);
#elif defined(__F16C__)
    return (vf)_mm256_cvtph_ps((__m128i)bits);
#else
    return from_half_bits<vf>(__builtin_convertvector(bits, vu));
#endif
}
inline vh to_half(vf x) {
#if defined(__AVX512F__)
    return (vh)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
    return (vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    return __builtin_convertvector(to_half_bits<vf, vu>(x), vh);
#endif
}

inline vf read(const float* p) { return load<vf>(p); }
inline vf read(const bf16* p) { return widen(halves(p)); }
inline vf read(const f16* p) { return from_half(load<vh>(p)); }
// As numbers of 16 bits.
template <class T>
inline vh narrowed(vf x);
template <>
inline vh narrowed<bf16>(vf x) {
#if defined(__AVX512BF16__)
    return (vh)_mm512_cvtneps_pbh((__m512)x);
#else
    return __builtin_convertvector(narrow(x), vh);
#endif
}
template <>
inline vh narrowed<f16>(vf x) { return to_half(x); }
inline void write(float* p, vf x) { store(p, x); }
inline void write(bf16* p, vf x) { store(p, narrowed<bf16>(x)); }
inline void write(f16* p, vf x) { store(p, narrowed<f16>(x)); }
#if defined(__AVX512F__)
// Two such vectors side by side.
inline vu line_of(vh left, vh right) {
    return (vu)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)left), (__m256i)right, 1);
}
template <class T>
inline vu line_of(vf left, vf right) {
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, bf16>) return (vu)_mm512_cvtne2ps_pbh((__m512)right, (__m512)left);
#endif
    return line_of(narrowed<T>(left), narrowed<T>(right));
}
#endif

// The first n < W numbers; what is past them reads as zero and is not written.
template <class T>
inline vf read(const T* p, int n) {
    T part[W] = {};
    std::memcpy(part, p, n * sizeof(T));
    return read(part);
}
template <class T>
inline void write(T* p, vf x, int n) {
    T part[W];
    write(part, x);
    std::memcpy(p, part, n * sizeof(T));
}

// What x becomes when it is stored as T and read back.
template <class T>
inline vf rounded(vf x);
template <>
inline vf rounded<float>(vf x) { return x; }
template <>
inline vf rounded<bf16>(vf x) { return widen(narrow(x)); }
template <>
inline vf rounded<f16>(vf x) { return from_half(to_half(x)); }

// Four at a time.
typedef uint32_t vu4 __attribute__((vector_size(16)));
typedef uint16_t vh4 __attribute__((vector_size(8)));
inline vf4 read4(const float* p) { return load<vf4>(p); }
inline vf4 read4(const bf16* p) { return (vf4)(__builtin_convertvector(load<vh4>(p), vu4) << 16); }
inline void write4(float* p, vf4 x) { store(p, x); }
inline void write4(bf16* p, vf4 x) {
    vu4 u = (vu4)x;
    vu4 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    store(p, __builtin_convertvector(x == x ? rounded : (u >> 16) | 0x40u, vh4));
}
inline vf4 read4(const f16* p) {
#if defined(__F16C__)
    return (vf4)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i*)p));
#else
    return from_half_bits<vf4>(__builtin_convertvector(load<vh4>(p), vu4));
#endif
}
inline void write4(f16* p, vf4 x) {
#if defined(__F16C__)
    _mm_storel_epi64((__m128i*)p, _mm_cvtps_ph((__m128)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
    store(p, __builtin_convertvector(to_half_bits<vf4, vu4>(x), vh4));
#endif
}

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}
inline void set(float& to, float x) { to = x; }
inline void set(bf16& to, float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    to.bits = x == x ? uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16) : uint16_t((u >> 16) | 0x40u);
}
inline float to_float(f16 x) {
    f16 four[4] = {x};
    return read4(four)[0];
}
inline void set(f16& to, float x) {
    f16 four[4];
    write4(four, vf4{x});
    to = four[0];
}

// Lanes I... of a and b together, a's first.
template <int... I, class V>
inline V shuffle(V a, V b) {
#if defined(__clang__) || __GNUC__ >= 12
    return __builtin_shufflevector(a, b, I...);
#else
    typedef decltype(a < b) Index;
    return __builtin_shuffle(a, b, Index{I...});
#endif
}

// Sums and maxima over lanes, in one fixed order.
inline vf4 quarter_sum(vf x) {
    vf4 parts[W / 4];
    std::memcpy(parts, &x, sizeof x);
    if constexpr (W == 16) return (parts[0] + parts[2]) + (parts[1] + parts[3]);
    if constexpr (W == 8) return parts[0] + parts[1];
    return parts[0];
}
// The four sums of four vectors.
inline vf4 sum4(vf a, vf b, vf c, vf d) {
#if defined(__AVX512F__)
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0x44),
                              _mm512_shuffle_f32x4((__m512)a, (__m512)b, 0xee));
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4((__m512)c, (__m512)d, 0x44),
                              _mm512_shuffle_f32x4((__m512)c, (__m512)d, 0xee));
    __m512 abcd = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    abcd = _mm512_add_ps(abcd, _mm512_permute_ps(abcd, 0x4e));
    abcd = _mm512_add_ps(abcd, _mm512_permute_ps(abcd, 0xb1));
    const __m512i firsts = _mm512_set_epi32(12, 8, 4, 0, 12, 8, 4, 0, 12, 8, 4, 0, 12, 8, 4, 0);
    return (vf4)_mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, abcd));
#else
    vf4 p = quarter_sum(a), q = quarter_sum(b), r = quarter_sum(c), s = quarter_sum(d);
    vf4 pq = shuffle<0, 4, 1, 5>(p, q) + shuffle<2, 6, 3, 7>(p, q);  // p02 q02 p13 q13
    vf4 rs = shuffle<0, 4, 1, 5>(r, s) + shuffle<2, 6, 3, 7>(r, s);
    return shuffle<0, 1, 4, 5>(pq, rs) + shuffle<2, 3, 6, 7>(pq, rs);
#endif
}
inline float sum(vf x) {
    vf4 p = quarter_sum(x);
    return (p[0] + p[2]) + (p[1] + p[3]);
}
inline float maximum(vf x) {
    vf4 parts[W / 4];
    std::memcpy(parts, &x, sizeof x);
    vf4 m = parts[0];
    for (int i = 1; i < W / 4; i++) m = parts[i] > m ? parts[i] : m;
    float low = m[0] > m[2] ? m[0] : m[2], high = m[1] > m[3] ? m[1] : m[3];
    return low > high ? low : high;
}
