// Panels of quantised weights, whose products are of whole numbers, which AVX512-VNNI adds up four at a time: x is rounded to 8
// bits too (byte_packing.h). A group's products are added up exactly, and then scaled and added to those before it.
//
// The instruction takes one side without a sign. That is W's, raised as it is unpacked; what this adds to a group depends on x
// alone, and is what its sum starts from. It starts from the bits of a float too, whose last digit is worth the scale of x:
// then the sum's bits are those of that float + the sum, scaled, and there is nothing to convert or to multiply. What remains
// is to take the float off again, which is exact, and to add the rest times W's scale, which rounds once.
//
// Where there are AMX's tiles, they multiply many rows with weights in tiles, to the same bits: see byte_pairs.h and
// byte_panels.h.
#pragma once

#include "gemm/byte_packing.h"
#include "gemm/halves.h"
#include "gemm/lanes.h"

#if defined(__AVX512VNNI__)

// Of each row of W four numbers by the same four of x.
inline void add_fours(vi& sum, vu column, const uint32_t& fours) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(column), "m"(fours));
}

// Of panels in tiles, so much is asked for before it is used, of all that are gone through in turn.
constexpr int64_t BYTES_AHEAD = 8 << 10;

// 16 rows of W, and their scales.
template <int BITS>
inline Rows values_of(const Quantized& w, Place place) {
    thread_local std::vector<uint8_t> workspace;
    return panel_of(w.values, w.row_bytes<BITS>(), w.row_bytes<BITS>(), place, workspace);
}
inline Rows scales_of(const Quantized& w, Place place) {
    thread_local std::vector<uint8_t> workspace;
    return panel_of(w.scales, w.groups() * sizeof(bf16), w.groups() * sizeof(bf16), place, workspace);
}

// What panels have in common, however they lie in memory: units of 64 inputs.
template <int BITS>
struct Bytes {
    static constexpr int UNIT_INPUTS = UNIT, TOGETHER = 8, FEW = 80, IN_TURN = BYTES_IN_TURN;
    static constexpr bool LIES = false;
    typedef vf Sum;

    struct Matrix : Quantized {
        int64_t row_bytes() const { return Quantized::row_bytes<BITS>(); }
    };

    typedef PackedBytes<BITS> Packed;
    template <class T>
    using Packing = BytePacking<BITS, T>;

    // Unit u of row a of x.
    template <class T>
    static Packed packed(const Product<T>& p, int64_t a, int64_t u) {
        Packed to;
        to.set(p.x + a * p.x_stride + u * UNIT, std::min<int64_t>(UNIT, p.inputs - u * UNIT));
        return to;
    }

    struct Unit {
        static constexpr int REGISTER_SUMS = 12, CHAINS = 1;
        typedef PackedBytes<BITS> Packed;
        vu columns[16];  // of four inputs; a group has 8
        vf scales[2];

        Unit() = default;
        explicit Unit(vu scale_pairs) {
            UNROLL for (int g = 0; g < 2; g++) scales[g] = group_scales(scale_pairs, g);
        }

        // Their fifth bits, of both groups.
        void add_fifths(vu first, vu second) {
            UNROLL for (int c = 0; c < 8; c++) {
                columns[c] |= fifths_of(first, c);
                columns[c + 8] |= fifths_of(second, c);
            }
        }

        // Adds this unit's products with each of N rows.
        template <int N>
        void add(vf* sums, const Packed* x) const {
            UNROLL for (int g = 0; g < 2; g++) {
                vi whole[N];
                UNROLL for (int a = 0; a < N; a++) whole[a] = (vi)_mm512_set1_epi32(x[a].starts[g]);
                UNROLL for (int i = 8 * g; i < 8 * g + 8; i++)
                    UNROLL for (int a = 0; a < N; a++) add_fours(whole[a], columns[i], x[a].fours[i]);
                UNROLL for (int a = 0; a < N; a++) sums[a] = fma((vf)whole[a] - splat(x[a].lifts[g]), scales[g], sums[a]);
            }
        }

        // Adds the products of M rows with N panels, whose units of this place lie so many units apart.
        template <int M, int N, class Lines>
        static void add_register_tile(vf (&sums)[M][N], const Unit* units, int64_t apart, const Packed* x, Lines& ahead) {
#pragma GCC unroll 1
            for (int g = 0; g < 2; g++) {
                vi whole[M][N];
                UNROLL for (int m = 0; m < M; m++) {
                    const vi start = (vi)_mm512_set1_epi32(x[m].starts[g]);
                    UNROLL for (int n = 0; n < N; n++) whole[m][n] = start;
                }
                UNROLL for (int i = 0; i < 8; i++) {
                    ahead.fetch();
                    vu panels[N];
                    UNROLL for (int n = 0; n < N; n++) panels[n] = load<vu>(units[n * apart].columns + 8 * g + i);
                    UNROLL for (int m = 0; m < M; m++) {
                        vu fours = vu{} + x[m].fours[8 * g + i];
                        asm("" : "+v"(fours));  // for all panels
                        UNROLL for (int n = 0; n < N; n++)
                            whole[m][n] = (vi)_mm512_dpbusd_epi32((__m512i)whole[m][n], (__m512i)panels[n], (__m512i)fours);
                    }
                }
                UNROLL for (int n = 0; n < N; n++) {
                    const vf scale = load<vf>(units[n * apart].scales + g);
                    UNROLL for (int m = 0; m < M; m++) sums[m][n] = fma((vf)whole[m][n] - splat(x[m].lifts[g]), scale, sums[m][n]);
                }
            }
        }
    };
};

// 16 rows of W as they lie.
template <int BITS>
class BytePanel : public Bytes<BITS> {
  public:
    using Unit = typename Bytes<BITS>::Unit;
    using Matrix = typename Bytes<BITS>::Matrix;

    BytePanel(const Matrix& w, Place place)
        : rows_(values_of<BITS>(w, place)), scales_(scales_of(w, place)), units_(w.groups() / 2) {}

    Unit unit(int64_t u) {
        if (u % PANEL == 0) turn_scales(u);
        Unit to(scale_pairs_[u % PANEL]);
        if constexpr (BITS == 8) {
            UNROLL for (int b = 0; b < PANEL; b++) {
                to.columns[b] = load<vu>(rows_.row(b, u * UNIT)) ^ 0x80808080u;
                rows_.fetch(u * PANEL + b);
            }
            transpose(to.columns);
        } else {
            vu halves[8];  // of two rows each, four apart
            UNROLL for (int b = 0; b < 8; b++) {
                const int low = b / 4 * 8 + b % 4;
                halves[b] = (vu)_mm512_inserti64x4(_mm512_castsi256_si512(load<__m256i>(rows_.row(low, u * UNIT_BYTES))),
                                                   load<__m256i>(rows_.row(low + 4, u * UNIT_BYTES)), 1);
            }
            UNROLL for (int i = 0; i < LINES; i++) rows_.fetch(u * LINES + i);
            transpose_quarters(halves);
            UNROLL for (int i = 0; i < 4; i++) {
                vu a = quarters(halves[i], halves[i + 4], EVEN), b = quarters(halves[i], halves[i + 4], ODD);
                to.columns[i] = a & 0x0f0f0f0fu;
                to.columns[i + 4] = b & 0x0f0f0f0fu;
                to.columns[i + 8] = a >> 4 & 0x0f0f0f0fu;
                to.columns[i + 12] = b >> 4 & 0x0f0f0f0fu;
            }
            if constexpr (BITS == 5) {
                __m512i eights[2];  // of 8 rows each
                UNROLL for (int b = 0; b < PANEL; b++) std::memcpy((uint64_t*)eights + b, rows_.row(b, u * UNIT_BYTES + GROUP), 8);
                to.add_fifths(fours(eights[0], eights[1]), fours(_mm512_srli_epi64(eights[0], 32), _mm512_srli_epi64(eights[1], 32)));
            }
        }
        return to;
    }

  private:
    Rows rows_, scales_;
    static constexpr int UNIT_BYTES = UNIT * BITS / 8, LINES = PANEL * UNIT_BYTES / LINE;
    int64_t units_;
    vu scale_pairs_[PANEL];  // of 16 units, each of two groups: the two scales of all 16 rows, side by side

    // The lower four of every eight bytes.
    static vu fours(__m512i a, __m512i b) {
        return (vu)_mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(a)), _mm512_cvtepi64_epi32(b), 1);
    }

    void turn_scales(int64_t u) {
        const int64_t left = 2 * (units_ - u);
        UNROLL for (int b = 0; b < PANEL; b++) {
            const uint8_t* at = scales_.row(b, u * 2 * sizeof(bf16));
            scale_pairs_[b] = left >= 2 * PANEL ? load<vu>(at) : first_of(at, left);
            scales_.fetch(u + b);
        }
        transpose(scale_pairs_);
    }
};

// 16 rows of W in tiles (kernels/quantized.py says how they lie): columns are there already, and follow one another.
template <int BITS>
class TiledBytePanel : public Bytes<BITS> {
  public:
    using Unit = typename Bytes<BITS>::Unit;
    using Matrix = typename Bytes<BITS>::Matrix;

    TiledBytePanel(const Matrix& w, Place place)
        : TiledBytePanel(w, place.o, std::min(place.next, place.outputs - PANEL), BYTES_AHEAD / BYTES / place.in_turn) {}

    __attribute__((always_inline)) Unit unit(int64_t u) const {
        const uint8_t *at = values_.unit(u), *ahead = values_.ahead(u);
        __builtin_prefetch(scales_.ahead(u), 0, 3);
        Unit to(load<vu>(scales_.unit(u)));
        if constexpr (BITS < 8)  // are soon through
            UNROLL for (int i = 0; i < BYTES / LINE; i++) __builtin_prefetch(ahead + i * LINE, 0, 3);
        UNROLL for (int i = 0; i < (BITS == 8 ? 16 : 8); i++) {
            vu line = load<vu>(at + i * LINE);
            if constexpr (BITS == 8) {
                made_here(line);
                fetch_here(ahead + i * LINE);
                to.columns[i] = line ^ 0x80808080u;
            } else {
                to.columns[i] = line & 0x0f0f0f0fu, to.columns[i + 8] = line >> 4 & 0x0f0f0f0fu;
            }
        }
        if constexpr (BITS == 5) to.add_fifths(load<vu>(at + 8 * LINE), load<vu>(at + 9 * LINE));
        return to;
    }

  private:
    static constexpr int64_t BYTES = PANEL * UNIT * BITS / 8;  // of a unit
    TiledUnits<BYTES> values_;
    TiledUnits<LINE> scales_;

    TiledBytePanel(const Matrix& w, int64_t o, int64_t then, int64_t before)
        : values_{w.values + o * w.row_bytes(), w.values + then * w.row_bytes(), w.groups() / 2, before},
          scales_{scales_at(w, o), scales_at(w, then), w.groups() / 2, before} {}

    static const uint8_t* scales_at(const Matrix& w, int64_t o) { return (const uint8_t*)(w.scales + o * w.groups()); }
};

// The same of a weight in halves: a class of its own, since a choice within the loop over units keeps columns out of registers.
class HalvedBytePanel : public Bytes<8> {
  public:
    // Where what is read next lies: the upper halves.
    struct Matrix : Quantized {
        int64_t row_bytes() const { return Quantized::row_bytes<4>(); }
    };

    HalvedBytePanel(const Matrix& w, Place place)
        : halves_(w, place.o), scales_((const uint8_t*)(w.scales + place.o * w.groups())),
          before_(BYTES_AHEAD / (2 * HalvedPanel::BYTES) / place.in_turn) {}

    __attribute__((always_inline)) Unit unit(int64_t u) const {
        Unit to(load<vu>(scales_ + u * LINE));
        __builtin_prefetch(scales_ + (u + before_) * LINE, 0, 3);
        halves_.fetch(u + before_);
        halves_.join(u, to.columns);
        UNROLL for (int i = 0; i < 16; i++) to.columns[i] ^= 0x80808080u;
        return to;
    }

  private:
    const HalvedPanel halves_;
    const uint8_t* const scales_;
    const int64_t before_;  // units, which may be the next panel's
};

template <int BITS, bool IN_HALVES>
using TilesOrHalves = std::conditional_t<IN_HALVES, HalvedBytePanel, TiledBytePanel<BITS>>;
#endif
