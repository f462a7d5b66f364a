// Products of many rows of x by lanes, with AVX-512: register tiles of a few rows by a few panels, whose sums stay in registers
// from the first input to the last. A number of x that was broadcast serves all panels of the register tile. By one panel at a
// time (lanes.h) each product loads a number of its own, and loads come to their limit before products do: on a Zen 5, which
// multiplies twice a cycle, at 78 % of the products that it could make of bfloat16, and at 95 % by register tiles. Where rows
// are few, panels are many, for as many sums that do not wait for one another.
//
// W is gone through once for each register tile of a block, and what comes next is asked for meanwhile. Panels are columns, as
// they lie or made once for the block. A result is added up in the order that lanes.h has: the same bits by either.
#pragma once

#include <cstddef>

#include "base/vec.h"

#if defined(__AVX512F__)

constexpr int REGISTER_ROWS_MAX = 12;

// Some rows of x, packed; `apart` is from a unit to the next.
template <class Packed>
struct RegisterRows {
    const Packed* at;
    int64_t apart;
};

// What comes then: lines of which so many lie together, and the others some bytes later.
struct LinesThen {
    const char* from;
    int64_t together, gap;
};

// What is asked for while something else is computed, from a line on, `lines` in each of its units of REGISTER_STEPS: as many
// with each step, and the rest before. They are asked for in the nearest cache, though they do not fit there: in the second
// alone they would come more slowly.
constexpr int64_t REGISTER_STEPS = 16;
class LinesBetween {
  public:
    LinesBetween(const LinesThen& then, int64_t line, int64_t lines)
        : at_(then.from + line * LINE), turn_(then.from + then.together * LINE), gap_(then.gap), each_(lines / REGISTER_STEPS),
          rest_(lines % REGISTER_STEPS) {}
    void begin_unit() {
        if (at_ >= turn_) at_ += gap_, gap_ = 0;
        fetch(rest_);
    }
    void fetch() { fetch(each_); }

  private:
    const char *at_, *const turn_;
    int64_t gap_;
    const int64_t each_, rest_;
    void fetch(int64_t lines) {
        for (const char* stop = at_ + lines * LINE; at_ < stop; at_ += LINE) fetch_here(at_);
    }
};
// Nothing.
struct NoLines {
    void fetch() {}
};

// Panels of units one after another, `apart` from a panel to the next; and what comes then.
template <class Unit>
struct RegisterPanels {
    const Unit* at;
    int64_t apart, units;
    LinesThen then;
};

// The sums of M rows by N panels: of every CHAINS-th unit first, then of those after these.
template <int M, int N, class Unit>
__attribute__((noinline)) void sum_register_tile(const RegisterPanels<Unit>& w,
                                                 const RegisterRows<typename Unit::Packed>& x, LinesBetween ahead,
                                                 vf (&to)[M][N]) {
    constexpr int CHAINS = Unit::CHAINS;
    for (int chain = 0; chain < CHAINS; chain++) {
        vf sums[M][N];
        UNROLL for (int m = 0; m < M; m++)
            UNROLL for (int n = 0; n < N; n++) sums[m][n] = vf{};
        for (int64_t u = chain; u < w.units; u += CHAINS) {
            const typename Unit::Packed* rows = x.at + u * x.apart;
            UNROLL for (int m = 0; m < M; m++) __builtin_prefetch(rows + 2 * CHAINS * x.apart + m, 0, 3);
            ahead.begin_unit();
            Unit::template add_register_tile<M, N>(sums, w.at + u, w.apart, rows, ahead);
        }
        UNROLL for (int m = 0; m < M; m++)
            UNROLL for (int n = 0; n < N; n++) to[m][n] = chain == 0 ? sums[m][n] : to[m][n] + sums[m][n];
    }
}

// How many rows a register tile has at most, by N panels.
template <int N, class Unit>
constexpr int REGISTER_ROWS = Unit::REGISTER_SUMS / N < REGISTER_ROWS_MAX ? Unit::REGISTER_SUMS / N : REGISTER_ROWS_MAX;

// N panels of W by a block of packed rows of x, in register tiles as even as can be; meanwhile so many lines of the next panels
// are asked for. done(row, sums) has the sums of some rows, from `row` of the block on.
template <int N, class Unit, class Done>
void by_register_tiles(const RegisterPanels<Unit>& w, const typename Unit::Packed* x, int64_t count, int64_t lines,
                       const Done& done) {
    constexpr int MOST = REGISTER_ROWS<N, Unit>;
    const int64_t tiles = (count + MOST - 1) / MOST, each = (lines + tiles * w.units - 1) / (tiles * w.units);
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t first = count * i / tiles, stop = count * (i + 1) / tiles;
        const LinesBetween ahead(w.then, i * each * w.units, each);
        with_count<MOST>(stop - first, [&](auto M) {
            vf sums[M][N];
            sum_register_tile<M, N>(w, {x + first, count}, ahead, sums);
            done(first, sums);
        });
    }
}
#endif
