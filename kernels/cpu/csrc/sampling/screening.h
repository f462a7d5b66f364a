// How large a result of a product with a weight in halves (halves.h) can be: what its upper halves make, and what the lower
// ones add but once in 10^13 draws. This reads half of the weight.
//
// Of an input x with a group's scale s, the lower half adds x s e, where e is one of 16 numbers from -7.5 to 7.5, each as
// likely whatever the weight is (halves.h): the sum of four signs by 4, 2, 1 and 1/2. A sum of signs exceeds k standard
// deviations with a probability of at most exp(-k^2 / 2) (Hoeffding: Probability inequalities for sums of bounded random
// variables; 1963).
#pragma once

#include "gemm/lanes_quantized.h"

#if defined(__AVX512VNNI__)

constexpr float DEVIATIONS = 8;
constexpr float VARIANCE = (16 * 16 - 1) / 12.f;  // of e
constexpr float MIDDLE = 7.5f;                    // of what the lower half has

// A sum, and the variance of what is not known of it.
struct Estimate {
    vf sum, variance;
};
inline vf total(const Estimate& estimate, int) {
    return estimate.sum + splat(DEVIATIONS) * (vf)_mm512_sqrt_ps((__m512)estimate.variance);
}

class UpperPanel {
  public:
    static constexpr int UNIT_INPUTS = UNIT, TOGETHER = 2, FEW = 0, IN_TURN = BYTES_IN_TURN;
    static constexpr bool LIES = false;
    typedef Estimate Sum;
    typedef Bytes<8>::Matrix Matrix;

    // Numbers of x; and for each of the two groups what scales of W are multiplied by, for what is known, for what is the same
    // in all rows of W, and, squared, for the variance.
    struct Packed {
        uint32_t fours[16];
        float scales[2], shifts[2], variances[2];

        // Unit u of a row.
        template <class T>
        void set(const Product<T>& p, int64_t a, int64_t u) {
            const auto packed = Bytes<8>::packed(p, a, u);
            std::memcpy(fours, packed.fours, sizeof fours);
            const int8_t* x = (const int8_t*)fours;
            for (int g = 0; g < 2; g++) {
                float shift = 0;
                int32_t squares = 0;
                for (int i = g * GROUP; i < (g + 1) * GROUP; i++) {
                    shift += (MIDDLE - RAISED<8> - DITHER.r[u * UNIT + i]) * x[i];
                    squares += x[i] * x[i];
                }
                const float scale = packed.scale(g);
                scales[g] = scale * 16;
                shifts[g] = scale * shift;
                variances[g] = scale * scale * squares * VARIANCE;
            }
        }
    };

    struct Unit {
        static constexpr int REGISTER_SUMS = 0, CHAINS = 1;
        vu columns[16];
        vf scales[2];

        template <int N>
        void add(Estimate* sums, const Packed* x) const {
            UNROLL for (int g = 0; g < 2; g++) {
                vi whole[N];
                UNROLL for (int a = 0; a < N; a++) whole[a] = vi{} + LIFT_BITS;
                UNROLL for (int i = 8 * g; i < 8 * g + 8; i++)
                    UNROLL for (int a = 0; a < N; a++) add_fours(whole[a], columns[i], x[a].fours[i]);
                const vf lift = scales[g] * splat(-LIFT), squares = scales[g] * scales[g];
                UNROLL for (int a = 0; a < N; a++) {
                    const vf known = fma((vf)whole[a], scales[g], lift);
                    sums[a].sum = fma(known, splat(x[a].scales[g]), fma(scales[g], splat(x[a].shifts[g]), sums[a].sum));
                    sums[a].variance = fma(squares, splat(x[a].variances[g]), sums[a].variance);
                }
            }
        }
    };

    UpperPanel(const Matrix& w, Place place)
        : UpperPanel(w, place.o, std::min(place.next, place.outputs - PANEL), BYTES_AHEAD / HalvedPanel::BYTES / place.in_turn) {}

    __attribute__((always_inline)) Unit unit(int64_t u) const {
        const uint8_t *at = values_.unit(u), *ahead = values_.ahead(u);
        __builtin_prefetch(scales_.ahead(u), 0, 3);
        UNROLL for (int i = 0; i < 8; i++) __builtin_prefetch(ahead + i * LINE, 0, 3);
        const vu pairs = load<vu>(scales_.unit(u));
        Unit to;
        UNROLL for (int g = 0; g < 2; g++) to.scales[g] = group_scales(pairs, g);
        UNROLL for (int i = 0; i < 8; i++) {
            const vu line = load<vu>(at + i * LINE);
            to.columns[i] = line & 0x0f0f0f0fu, to.columns[i + 8] = line >> 4 & 0x0f0f0f0fu;
        }
        return to;
    }

  private:
    TiledUnits<HalvedPanel::BYTES> values_;
    TiledUnits<LINE> scales_;

    UpperPanel(const Matrix& w, int64_t o, int64_t then, int64_t before)
        : values_{HalvedPanel(w, o).upper, HalvedPanel(w, then).upper, w.groups() / 2, before},
          scales_{scales_at(w, o), scales_at(w, then), w.groups() / 2, before} {}
    static const uint8_t* scales_at(const Matrix& w, int64_t o) { return (const uint8_t*)(w.scales + o * w.groups()); }
};

// The kernel (see product.h), whose results are at most what the product's are.
template <class T>
struct UpperBounds : Lanes<UpperPanel, T> {
    int64_t row_bytes() const { return this->w.Quantized::template row_bytes<4>(); }
    void pack(int64_t first, int64_t last, int64_t r, int64_t end, uint8_t* workspace) const {
        auto* packed = reinterpret_cast<UpperPanel::Packed*>(workspace);
        for (int64_t u = 0; u < this->units(); u++, packed += last - first)
            for (int64_t a = r; a < end; a++) packed[a - first].set(this->p, a, u);
    }
};
#endif
