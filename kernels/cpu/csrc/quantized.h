// Products with weights of 8 or 4 bits (kernels/quantized.py says how they lie in memory).
//
// Weights are unpacked to what a product of T's takes, rounded to T, and then multiplied as product.h does, in
// the same order: a result is that of the dequantised weight, bit for bit. A few rows of x use the unpacked
// weights from registers, right as they come; more rows use them from the nearest cache, where a tile of four
// rows of W is unpacked once for all.
#pragma once

#include <type_traits>
#include <vector>

#include "tiled.h"

constexpr int GROUP = 32;  // inputs that share a scale
constexpr int UNIT = 64;   // inputs that are unpacked together

typedef int8_t signed_bytes __attribute__((vector_size(W)));
typedef uint8_t bytes __attribute__((vector_size(W)));

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
    vi q = (vi)(i < GROUP ? both & 15u : both >> 4) - 8;
    return __builtin_convertvector(q, vf);
}

// A unit by its two scales, as T's.
template <int BITS, class T>
inline void unpack(const uint8_t* values, const float* scales, T* to) {
    UNROLL for (int i = 0; i < UNIT; i += W)
        write(to + i, whole_numbers<BITS>(values, i) * splat(scales[i / GROUP]));
}

#if defined(__AVX512BF16__)
struct Pairs {
    vu first, second;
};
template <int BITS>
inline Pairs unpack_pairs(const uint8_t* values, const float* scales) {
    if constexpr (BITS == 8) {
        vu pairs[2];
        UNROLL for (int i = 0; i < 2; i++) {
            vf low = whole_numbers<8>(values, i * GROUP) * splat(scales[i]);
            vf high = whole_numbers<8>(values, i * GROUP + W) * splat(scales[i]);
            pairs[i] = (vu)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
        }
        return {pairs[0], pairs[1]};
    }
    // All 16 that each group may have, looked up: the lower half of the table is the first group's.
    const vf q = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    vf first = q * splat(scales[0]), second = q * splat(scales[1]);
    __m512i table = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    __m512i both = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)values));
    __m512i low = _mm512_and_si512(both, _mm512_set1_epi16(15));
    __m512i high = _mm512_or_si512(_mm512_srli_epi16(both, 4), _mm512_set1_epi16(16));
    return {(vu)_mm512_permutexvar_epi16(low, table), (vu)_mm512_permutexvar_epi16(high, table)};
}
template <int BITS>
inline void unpack(const uint8_t* values, const float* scales, bf16* to) {
    Pairs unit = unpack_pairs<BITS>(values, scales);
    store(to, unit.first);
    store(to + GROUP, unit.second);
}
#endif

struct Quantized {
    const uint8_t* values;
    const bf16* scales;
    int64_t inputs;

    int64_t padded() const { return (inputs + UNIT - 1) / UNIT * UNIT; }
    int64_t groups() const { return padded() / GROUP; }
    template <int BITS>
    int64_t row_bytes() const { return padded() * BITS / 8; }
};

constexpr int CHUNK_GROUPS = 32;  // whose scales are widened at a time
constexpr int CHUNK = CHUNK_GROUPS * GROUP;

// At most CHUNK_GROUPS scales as floats.
inline void widen_scales(const bf16* from, int64_t count, float* to) {
    for (int i = 0; i < CHUNK_GROUPS; i += W)
        if (i < count) store(to + i, count - i >= W ? read(from + i) : read(from + i, int(count - i)));
}

// Row o of W, as T's: `padded()` of them. The memory `ahead` bytes further on is asked for.
template <int BITS, class T>
void unpack_row(const Quantized& w, int64_t o, T* to, int64_t ahead) {
    const uint8_t* values = w.values + o * w.row_bytes<BITS>();
    const bf16* narrow = w.scales + o * w.groups();
    float scales[CHUNK_GROUPS];
    for (int64_t start = 0; start < w.padded(); start += CHUNK) {
        widen_scales(narrow + start / GROUP, w.groups() - start / GROUP, scales);
        int64_t stop = std::min(start + CHUNK, w.padded());
        const float* scale = scales;
        for (int64_t i = start; i < stop; i += UNIT, values += UNIT * BITS / 8, scale += UNIT / GROUP) {
            __builtin_prefetch(values + ahead, 0, 3);
            unpack<BITS>(values, scale, to + i);
        }
    }
}

#if defined(__AVX512BF16__)
// Rows r to r+R of x by rows o to o+O of W. The next O rows follow in memory, and are asked for from end to end.
template <int BITS, int R, int O>
void quantized_tile(const Product<bf16>& p, const Quantized& w, int64_t r, int64_t o) {
    constexpr int UNIT_BYTES = UNIT * BITS / 8;
    const int64_t x_stride = p.x_stride, row_bytes = w.row_bytes<BITS>(), groups = w.groups();
    const bf16* x = p.x + r * x_stride;
    const uint8_t* values = w.values + o * row_bytes;
    const uint8_t* next = values + O * row_bytes;
    vf sums[R][O];
    UNROLL for (int a = 0; a < R; a++) {
        UNROLL for (int b = 0; b < O; b++) sums[a][b] = vf{};
    }
    for (int64_t start = 0; start < p.inputs; start += CHUNK) {
        float scales[O][CHUNK_GROUPS];
        for (int b = 0; b < O; b++) {
            const bf16* narrow = w.scales + (o + b) * groups + start / GROUP;
            __builtin_prefetch(narrow + O * groups, 0, 3);
            widen_scales(narrow, groups - start / GROUP, scales[b]);
        }
        const float* scale = scales[0];
        int64_t stop = std::min(start + CHUNK, p.inputs);
        for (int64_t i = start; i < stop; i += UNIT, values += UNIT_BYTES, next += O * UNIT_BYTES, scale += UNIT / GROUP) {
            vu lanes[R][2];
            UNROLL for (int a = 0; a < R; a++) {
                const bf16* at = x + a * x_stride + i;
                int64_t left = p.inputs - i;
                lanes[a][0] = left >= GROUP ? load<vu>(at) : load_part(at, left);
                lanes[a][1] = left >= UNIT ? load<vu>(at + GROUP) : left > GROUP ? load_part(at + GROUP, left - GROUP) : vu{};
            }
            UNROLL for (int line = 0; line < O * UNIT_BYTES; line += 64) __builtin_prefetch(next + line, 0, 3);
            UNROLL for (int b = 0; b < O; b++) {
                Pairs unit = unpack_pairs<BITS>(values + b * row_bytes, scale + b * CHUNK_GROUPS);
                UNROLL for (int a = 0; a < R; a++) {
                    sums[a][b] = Dot<bf16>::add(sums[a][b], lanes[a][0], unit.first);
                    sums[a][b] = Dot<bf16>::add(sums[a][b], lanes[a][1], unit.second);
                }
            }
        }
    }
    finish(p, sums, r, o);
}

template <int BITS, int O>
void few_rows(const Product<bf16>& p, const Quantized& w, int64_t r, int64_t end, int64_t o) {
    switch (end - r) {
        case 1: return quantized_tile<BITS, 1, O>(p, w, r, o);
        case 2: return quantized_tile<BITS, 2, O>(p, w, r, o);
        case 3: return quantized_tile<BITS, 3, O>(p, w, r, o);
        default: return quantized_tile<BITS, 4, O>(p, w, r, o);
    }
}
#endif

template <int BITS, int O, class T>
void many_rows(Product<T> p, const Quantized& w, T* room, int64_t r, int64_t end, int64_t o) {
    for (int b = 0; b < O; b++)
        unpack_row<BITS>(w, o + b, room + b * w.padded(), O * w.row_bytes<BITS>());
    p.weight = room;
    p.weight_stride = w.padded();
    p.y += o;  // the room holds just these rows of W
    if (p.unrounded) p.unrounded += o;
    if (p.bias) p.bias += o;
    for (; r < end; r += ROWS) tile_rows<O, false>(p, r, std::min<int64_t>(ROWS, end - r), 0);
}

// Rows r to end of x by rows start to stop of W.
template <int BITS, class T>
void quantized_block(const Product<T>& p, const Quantized& w, int64_t r, int64_t end, int64_t start, int64_t stop) {
    thread_local std::vector<T> room;
    if (end == r) return;
    int64_t o = start;
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, bf16>) {
        if (end - r == 1)
            for (; o + 8 <= stop; o += 8) few_rows<BITS, 8>(p, w, r, end, o);
        if (end - r <= 4)
            for (; o + 4 <= stop; o += 4) few_rows<BITS, 4>(p, w, r, end, o);
    }
#endif
    room.resize(4 * w.padded());
    for (; o + 4 <= stop; o += 4) many_rows<BITS, 4>(p, w, room.data(), r, end, o);
    for (; o < stop; o++) many_rows<BITS, 1>(p, w, room.data(), r, end, o);
}

#if defined(PAGEANT_TILES)
// By tiles: some rows of W at a time are unpacked to where tiles take them from.
template <int BITS>
void quantized_tiled(const Product<bf16>& p, const Quantized& w) {
    share_packed(p, w.row_bytes<BITS>(), [&](const PackedRows& shape, const uint32_t* packed, int64_t first, int64_t last,
                                             int64_t start, int64_t stop) {
        thread_local std::vector<bf16> room;
        const int64_t together = (last - first == 1 ? 4 : 2) * TILE;
        room.resize(together * w.padded());
        for (int64_t o = start; o < stop; o += together) {
            int64_t count = std::min(together, stop - o);
            for (int64_t b = 0; b < count; b++)
                unpack_row<BITS>(w, o + b, room.data() + b * w.padded(), together * w.row_bytes<BITS>());
            Product<bf16> part = p;
            part.weight = room.data();
            part.weight_stride = w.padded();
            part.y += o;  // the room holds just these rows of W
            if (part.unrounded) part.unrounded += o;
            if (part.bias) part.bias += o;
            TiledProduct(part, shape, packed).block(first, last, 0, count);
        }
    });
}
#endif
