// Panels of bfloat16: a unit is 16 pairs of inputs. They are multiplied as pairs, by an instruction of its own, or as the
// floats that they are widened to. Where there is such an instruction, Intel's processors take four times as long for it as
// for a product of floats, of which it does the work of two; AMD's take as long as for one (levels.py chooses).
#pragma once

#include "gemm/lanes.h"

#if defined(__AVX2__)

template <class Kind>
class BfloatPanel {
  public:
    static constexpr int UNIT_INPUTS = 32, TOGETHER = Kind::TOGETHER, FEW = 4, IN_TURN = BFLOATS_IN_TURN;
    static constexpr bool LIES = false;
    typedef Kind Unit;
    typedef typename Kind::Packed Packed;
    template <class T>
    using Packing = PackedSingly<Packed, T>;
    typedef typename Kind::Sum Sum;

    struct Matrix {
        const bf16* values;
        int64_t stride, inputs;
        int64_t row_bytes() const { return stride * sizeof(bf16); }
    };

    BfloatPanel(const Matrix& w, Place place)
        : rows_(panel_of(w.values, w.row_bytes(), w.inputs * sizeof(bf16), place, workspace())), inputs_(w.inputs) {}

    __attribute__((always_inline)) Unit unit(int64_t u) const {
        Unit to;
        const int64_t left = inputs_ - u * UNIT_INPUTS;
        UNROLL for (int i = 0; i < ACROSS; i++)
            UNROLL for (int pair = 0; pair < 16; pair += W) {
                vu square[W];
                if (left >= UNIT_INPUTS)
                    UNROLL for (int b = 0; b < W; b++) square[b] = load<vu>(pairs(i * W + b, u, pair));
                else
                    UNROLL for (int b = 0; b < W; b++)
                        square[b] = first_of(pairs(i * W + b, u, pair), std::clamp<int64_t>(left - 2 * pair, 0, 2 * W));
                transpose(square);
                UNROLL for (int k = 0; k < W; k++) to.columns[pair + k][i] = square[k];
            }
        UNROLL for (int b = 0; b < PANEL; b++) rows_.fetch(u * PANEL + b);
        return to;
    }

  private:
    Rows rows_;
    int64_t inputs_;

    // Pairs of row b, from one of a unit on.
    const uint8_t* pairs(int b, int64_t u, int pair) const { return rows_.row(b, u * LINE + 2 * pair * sizeof(bf16)); }

    static std::vector<uint8_t>& workspace() {
        thread_local std::vector<uint8_t> mine;
        return mine;
    }
};

// 16 rows of W in tiles (kernels/tiled.py says how they lie): columns are there already, and follow one another.
template <class Kind>
class TiledBfloatPanel {
  public:
    static constexpr int UNIT_INPUTS = 32, TOGETHER = Kind::TOGETHER, FEW = 4, IN_TURN = BFLOATS_IN_TURN;
    static constexpr bool LIES = true;
    typedef Kind Unit;
    typedef typename Kind::Packed Packed;
    template <class T>
    using Packing = PackedSingly<Packed, T>;
    typedef typename Kind::Sum Sum;

    struct Matrix {
        const bf16* values;
        int64_t inputs;
        int64_t row_bytes() const { return inputs * sizeof(bf16); }
    };

    TiledBfloatPanel(const Matrix& w, Place place)
        : lines_{at(w, place.o), at(w, std::min(place.next, place.outputs - PANEL)), w.inputs / UNIT_INPUTS, UNITS_AHEAD} {}

    static const Unit* lying(const Matrix& w, int64_t o) { return (const Unit*)at(w, o); }

    __attribute__((always_inline)) Unit unit(int64_t u) const {
        Unit to;
        const uint8_t *from = lines_.unit(u), *ahead = lines_.ahead(u);
        UNROLL for (int pair = 0; pair < 16; pair++) {
            UNROLL for (int i = 0; i < ACROSS; i++) {
                to.columns[pair][i] = load<vu>(from + pair * LINE + i * sizeof(vu));
                made_here(to.columns[pair][i]);
            }
            fetch_here(ahead + pair * LINE);
        }
        return to;
    }

  private:
    static constexpr int64_t UNITS_AHEAD = 4;
    TiledUnits<PANEL * LINE> lines_;

    static const uint8_t* at(const Matrix& w, int64_t o) { return (const uint8_t*)(w.values + o * w.inputs); }
};

// Instructions are spelled out, since GCC broadcasts by one of its own.

#if defined(__AVX512BF16__)
struct Pairs {
    // By two chains a row that is alone waits half as long for its sums.
    static constexpr int TOGETHER = 8, REGISTER_SUMS = 24, CHAINS = 2;
    typedef vf Sum;
    struct Packed {
        uint32_t pairs[16];

        void set(const bf16* x, int64_t count) { store(pairs, count == 32 ? load<vu>(x) : first_of(x, count)); }
    };
    vu columns[16][ACROSS];

    // Adds this unit's products with each of N rows.
    template <int N>
    void add(vf* sums, const Packed* x) const {
        vf totals[N];
        UNROLL for (int a = 0; a < N; a++) {
            totals[a] = sums[a];
            __builtin_prefetch(x + a + AHEAD, 0, 3);
        }
        UNROLL for (int i = 0; i < 16; i++)
            UNROLL for (int a = 0; a < N; a++) add_pairs(totals[a], columns[i][0], x[a].pairs[i]);
        UNROLL for (int a = 0; a < N; a++) sums[a] = totals[a];
    }

    // Adds the products of M rows with N panels, whose units of this place lie so many units apart.
    template <int M, int N, class Lines>
    static void add_register_tile(vf (&sums)[M][N], const Pairs* units, int64_t apart, const Packed* x, Lines& ahead) {
#pragma GCC unroll 4
        for (int i = 0; i < 16; i++) {
            ahead.fetch();
            vu panels[N];
            UNROLL for (int n = 0; n < N; n++) panels[n] = load<vu>(units[n * apart].columns[i]);
            UNROLL for (int m = 0; m < M; m++) {
                vu pair = vu{} + x[m].pairs[i];
                asm("" : "+v"(pair));  // for all panels
                UNROLL for (int n = 0; n < N; n++)
                    sums[m][n] = (vf)_mm512_dpbf16_ps((__m512)sums[m][n], (__m512bh)panels[n], (__m512bh)pair);
            }
        }
    }

  private:
    static void add_pairs(vf& sum, vu column, const uint32_t& pair) {
        asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(column), "m"(pair));
    }
};
#endif

struct WidePairs {
    static constexpr int TOGETHER = ACROSS == 1 ? 4 : 3;  // whose sums fit the registers
    static constexpr int REGISTER_SUMS = 0, CHAINS = 1;  // each of Chains already
    typedef Chains Sum;
    struct Packed {
        float inputs[32];

        void set(const bf16* x, int64_t count) {
            for (int i = 0; i < 32; i += W) {
                const int64_t left = std::max<int64_t>(0, count - i);
                store(inputs + i, left >= W ? read(x + i) : read(x + i, int(left)));
            }
        }
    };
    vu columns[16][ACROSS];

    // Adds this unit's products with each of N rows: those of the first of each pair, and of the second.
    template <int N>
    void add(Chains* sums, const Packed* x) const {
        Chains totals[N];
        UNROLL for (int a = 0; a < N; a++) {
            totals[a] = sums[a];
            __builtin_prefetch(x[a + AHEAD].inputs, 0, 3);
            __builtin_prefetch(x[a + AHEAD].inputs + 16, 0, 3);
        }
        UNROLL for (int pair = 0; pair < 16; pair++)
            UNROLL for (int i = 0; i < ACROSS; i++) {
                const vf first = widen(columns[pair][i]), second = (vf)(columns[pair][i] & 0xffff0000u);
                UNROLL for (int a = 0; a < N; a++) add_products(totals[a].first[i], first, x[a].inputs[2 * pair]);
                UNROLL for (int a = 0; a < N; a++) add_products(totals[a].second[i], second, x[a].inputs[2 * pair + 1]);
            }
        UNROLL for (int a = 0; a < N; a++) sums[a] = totals[a];
    }

  private:
    static void add_products(vf& sum, vf column, const float& input) {
#if defined(__AVX512F__)
        asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(column), "m"(input));
#else
        sum = fma(splat(input), column, sum);
#endif
    }
};

#if defined(__AVX512BF16__)
typedef Pairs BestPairs;
#else
typedef WidePairs BestPairs;
#endif
#endif
