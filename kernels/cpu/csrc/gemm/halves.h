// Weights of 8 bits in tiles that lie in halves: the upper four bits of all numbers, and the lower four somewhere else, each
// half as weights of 4 bits lie. Who needs to know no more than about how large results are reads the upper halves only
// (screening.cpp).
//
// What is left out then must be random, whatever the weights are: so what lies there is q + 128 + r, where q is from -128 to
// 112, and r, from 0 to 15, is random, and the same for an input in all rows. Then what the lower four bits are worth is spread
// evenly, and is of no use to guess q by: that is subtractive dither (Roberts: Picture coding using pseudo-random noise; 1962).
#pragma once

#include "base/philox.h"
#include "gemm/quantized.h"
#include "base/scratch.h"

constexpr int64_t HALVED_INPUTS_MAX = 16 << 10;  // whose r are kept
constexpr int HALVED_MOST = 112;                 // of q

// r of each input, and what turns a number that lies there into q. (kernels/halves.py has the same.)
struct Dither {
    alignas(64) uint8_t r[HALVED_INPUTS_MAX];
    alignas(64) int8_t back[HALVED_INPUTS_MAX];

    Dither() {
        static_assert(HALVED_INPUTS_MAX % (4 * QUADS) == 0);
        uint32_t words[4][QUADS];
        for (int64_t i = 0; i < HALVED_INPUTS_MAX; i++) {
            if (i % (4 * QUADS) == 0) philox({}, uint32_t(i / 4), words);
            r[i] = uint8_t(words[i % 4][i / 4 % QUADS] >> 28);
            back[i] = int8_t(-RAISED<8> - r[i]);
        }
    }
};
inline const Dither DITHER;  // not in a function, which would look each time whether it is there

// A number of a row, from the bytes with its upper and its lower bits: those of the first or of the second group of a unit.
inline int8_t joined(uint8_t upper, uint8_t lower, int second, int64_t input) {
    const int value = (upper >> 4 * second & 15) << 4 | (lower >> 4 * second & 15);
    return int8_t(value + DITHER.back[input]);
}

// The lines of a panel, that of outputs o to o + 16, each once: for who fetches them one by one.
template <int BITS>
class PanelLines {
  public:
    PanelLines(const Quantized& w, int64_t o)
        : at_(w.values + o * (w.in_halves() ? w.row_bytes<4>() : w.row_bytes<BITS>())),
          lower_(w.in_halves() ? w.lower + o * w.row_bytes<4>() : nullptr) {}
    const uint8_t* line(int64_t i) const {
        if (BITS == 8 && lower_) return (i % 2 ? lower_ : at_) + i / 2 * 64;
        return at_ + i * 64;
    }

  private:
    const uint8_t *at_, *lower_;
};

#if defined(__AVX512BW__)
// A panel: that of outputs o to o + 16.
struct HalvedPanel {
    static constexpr int64_t BYTES = 16 * UNIT / 2;  // of half a unit
    const uint8_t *upper, *lower;
    int64_t units;

    HalvedPanel(const Quantized& w, int64_t o)
        : upper(w.values + o * w.row_bytes<4>()), lower(w.lower + o * w.row_bytes<4>()), units(w.groups() / 2) {}

    // Asks for unit u, which may be the next panel's.
    void fetch(int64_t u) const {
        UNROLL for (int i = 0; i < 8; i++) {
            fetch_here(upper + u * BYTES + i * 64);
            fetch_here(lower + u * BYTES + i * 64);
        }
    }
    // Unit u as columns, of four inputs of 16 rows each, as signed bytes.
    void join(int64_t u, vu (&columns)[16]) const {
        UNROLL for (int i = 0; i < 8; i++) {
            const int64_t line = u * BYTES + i * 64;
            const vu high = load<vu>(upper + line), low = load<vu>(lower + line);
            columns[i] = back(halves(high << 4, low), u * UNIT + i * 4);
            columns[i + 8] = back(halves(high, low >> 4), u * UNIT + GROUP + i * 4);
        }
    }
    // The same as it would lie not in halves.
    void join(int64_t u, uint8_t* to) const {
        vu columns[16];
        join(u, columns);
        UNROLL for (int i = 0; i < 16; i++) store(to + i * 64, columns[i]);
    }
    // All of them, in this thread's memory.
    const uint8_t* joined() const {
        thread_local Scratch<uint8_t> workspace;
        uint8_t* const to = workspace.take(units * 2 * BYTES);
        for (int64_t u = 0; u < units; u++) join(u, to + u * 2 * BYTES);
        return to;
    }

  private:
    // The upper four bits of each byte of one, the lower four of the other.
    static vu halves(vu high, vu low) {
        return (vu)_mm512_ternarylogic_epi32(_mm512_set1_epi8(15), (__m512i)low, (__m512i)high, 0xca);
    }
    // Numbers of four inputs, from what lies there.
    static vu back(vu value, int64_t input) {
        int32_t back;
        std::memcpy(&back, DITHER.back + input, sizeof back);
        return (vu)_mm512_add_epi8((__m512i)value, _mm512_set1_epi32(back));
    }
};
#endif
