// Products of many rows of x by lanes, with AVX-512: patches of a few rows by a few strips, whose sums stay in registers from
// the first input to the last. A number of x that was broadcast serves all strips of the patch. By one strip at a time (lanes.h)
// each product loads a number of its own, and loads come to their limit before products do: on a Zen 5, which multiplies
// twice a cycle, at 78 % of the products that it could make of bfloat16, and at 95 % by patches. Where rows are few, strips are
// many, for as many sums that do not wait for one another.
//
// W is gone through once for each patch of a block, and what comes next is asked for meanwhile. Strips are columns, as they lie or
// made once for the block. A result is added up in the order that lanes.h has: the same bits by either.
#pragma once

#include <cstddef>

#include "base/vec.h"

#if defined(__AVX512F__)

constexpr int PATCH_ROWS_MAX = 12;

// Some rows of x, packed; `apart` is from a unit to the next.
template <class Packed>
struct PatchRows {
    const Packed* at;
    int64_t apart;
};

// What comes then: lines of which so many lie together, and the others some bytes later.
struct LinesThen {
    const char* from;
    int64_t together, gap;
};

// What is asked for while something else is computed, from a line on, `lines` in each of its units of PATCH_STEPS: as many with
// each step, and the rest before. They are asked for in the nearest cache, though they do not fit there: in the second alone
// they would come more slowly.
constexpr int64_t PATCH_STEPS = 16;
class LinesBetween {
  public:
    LinesBetween(const LinesThen& then, int64_t line, int64_t lines)
        : at_(then.from + line * LINE), turn_(then.from + then.together * LINE), gap_(then.gap), each_(lines / PATCH_STEPS),
          rest_(lines % PATCH_STEPS) {}
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

// Strips of units one after another, `apart` from a strip to the next; and what comes then.
template <class Unit>
struct PatchStrips {
    const Unit* at;
    int64_t apart, units;
    LinesThen then;
};

// The sums of M rows by N strips: of every CHAINS-th unit first, then of those after these.
template <int M, int N, class Unit>
__attribute__((noinline)) void sum_patch(const PatchStrips<Unit>& w, const PatchRows<typename Unit::Packed>& x, LinesBetween ahead,
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
            Unit::template add_patch<M, N>(sums, w.at + u, w.apart, rows, ahead);
        }
        UNROLL for (int m = 0; m < M; m++)
            UNROLL for (int n = 0; n < N; n++) to[m][n] = chain == 0 ? sums[m][n] : to[m][n] + sums[m][n];
    }
}

// How many rows a patch has at most, by N strips.
template <int N, class Unit>
constexpr int PATCH_ROWS = Unit::PATCH_SUMS / N < PATCH_ROWS_MAX ? Unit::PATCH_SUMS / N : PATCH_ROWS_MAX;

// N strips of W by a block of packed rows of x, in patches as even as can be; meanwhile so many lines of the next strips are
// asked for. done(row, sums) has the sums of some rows, from `row` of the block on.
template <int N, class Unit, class Done>
void by_patches(const PatchStrips<Unit>& w, const typename Unit::Packed* x, int64_t count, int64_t lines, const Done& done) {
    constexpr int MOST = PATCH_ROWS<N, Unit>;
    const int64_t patches = (count + MOST - 1) / MOST, each = (lines + patches * w.units - 1) / (patches * w.units);
    for (int64_t i = 0; i < patches; i++) {
        const int64_t first = count * i / patches, stop = count * (i + 1) / patches;
        const LinesBetween ahead(w.then, i * each * w.units, each);
        with_count<MOST>(stop - first, [&](auto M) {
            vf sums[M][N];
            sum_patch<M, N>(w, {x + first, count}, ahead, sums);
            done(first, sums);
        });
    }
}
#endif
