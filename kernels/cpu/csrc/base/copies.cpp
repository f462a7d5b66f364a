// Copies that sum up what they copy (kernels/host_copies.py), in one pass: a line is read once, summed while it is in registers,
// and written past the caches, which would read its place from memory first.
#include "base/threads.h"
#include "base/vec.h"

#include <cstdint>
#include <cstring>

namespace {

typedef uint64_t words8 __attribute__((vector_size(LINE)));
constexpr int64_t WORD = sizeof(uint64_t);
constexpr int64_t AHEAD = 8 * LINE;  // what is asked for before it is read

// A whole line to where one begins.
inline void stream_line(uint8_t* to, words8 line) {
#if defined(__AVX512F__)
    _mm512_stream_si512((__m512i*)to, (__m512i)line);
#elif defined(__AVX2__)
    __m256i half[2];
    std::memcpy(half, &line, sizeof line);
    _mm256_stream_si256((__m256i*)to, half[0]);
    _mm256_stream_si256((__m256i*)to + 1, half[1]);
#else
    std::memcpy(to, &line, sizeof line);
#endif
}

// Streamed lines are seen before what is written next.
inline void settle() {
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

inline uint64_t sum_of(words8 line) {
    uint64_t sum = 0;
    for (int i = 0; i < LINE / WORD; i++) sum += line[i];
    return sum;
}

inline uint64_t copy_word(const uint8_t* from, uint8_t* to) {
    uint64_t word;
    std::memcpy(&word, from, WORD);
    std::memcpy(to, &word, WORD);
    return word;
}

// Whole words, from anywhere to anywhere.
uint64_t copy_words(const uint8_t* from, uint8_t* to, int64_t bytes) {
    uint64_t sum = 0;
    int64_t at = 0;
    if (uintptr_t(to) % WORD == 0) {
        for (; at < bytes && uintptr_t(to + at) % LINE; at += WORD) sum += copy_word(from + at, to + at);
        words8 sums[2] = {};
        for (; at + 2 * LINE <= bytes; at += 2 * LINE) {
            const words8 one = load<words8>(from + at), other = load<words8>(from + at + LINE);
            __builtin_prefetch(from + at + AHEAD);
            __builtin_prefetch(from + at + AHEAD + LINE);
            sums[0] += one;
            sums[1] += other;
            stream_line(to + at, one);
            stream_line(to + at + LINE, other);
        }
        sum += sum_of(sums[0] + sums[1]);
    }
    for (; at < bytes; at += WORD) sum += copy_word(from + at, to + at);
    return sum;
}

// Byte by byte: so what is summed is what is copied.
uint64_t copy_bytes(const uint8_t* from, uint8_t* to, int64_t bytes) {
    uint64_t sum = 0;
    for (int64_t at = 0; at < bytes; at++) {
        const uint8_t byte = from[at];
        to[at] = byte;
        sum += byte;
    }
    return sum;
}

}  // namespace

EXPORT void pageant_copy_parts(int64_t runs, uint8_t* const* sources, uint8_t* const* destinations, const int64_t* counts,
                               const int64_t* part_bytes, const int64_t* in_words, uint64_t* sums) {
    for (int64_t i = 0; i < runs; i++) {
        const uint8_t* from = sources[i];
        uint8_t* to = destinations[i];
        for (int64_t part = 0; part < counts[i]; part++, from += part_bytes[i], to += part_bytes[i])
            *sums++ = in_words[i] ? copy_words(from, to, part_bytes[i]) : copy_bytes(from, to, part_bytes[i]);
    }
    settle();
}
