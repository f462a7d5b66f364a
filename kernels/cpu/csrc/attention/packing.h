// Packing keys and values of a chunk of the cache into panels (see panel.h), with a pointer for each token.
// Meanwhile the memory of what comes after it is asked for, line by line: in one burst it would only queue. Where few rows
// read a chunk that is large, packing is too short for that, and the lines are asked for while scores are made.
#pragma once

#include "attention/panel.h"
#include "base/kv_codes.h"
#include "base/transpose.h"

namespace packing {

// W cells of a row of numbers.
template <class Cells>
inline vu cells(const float* p) { return (vu)read(p); }
template <class Cells>
inline vu cells(const bf16* p) {
    if constexpr (Cells::PER_CELL == 2) return load<vu>(p);
    return (vu)read(p);
}
template <class Cells>
inline vu cells(const f16* p) { return (vu)read(p); }
// Those of codes in 8 bits stand for their numbers without a scale.
template <class Cells, class Code>
inline vu cells_of_codes(const Code* p) {
    const vf first = Code::numbers(load<kv_codes::vc>(p));
#if defined(__AVX512F__)
    if constexpr (Cells::PER_CELL == 2) return line_of<bf16>(first, Code::numbers(load<kv_codes::vc>(p + W)));
#endif
    return (vu)first;
}
template <class Cells>
inline vu cells(const kv_codes::Int8* p) { return cells_of_codes<Cells>(p); }
template <class Cells>
inline vu cells(const kv_codes::Fp8* p) { return cells_of_codes<Cells>(p); }
// The same where there are only n numbers, the rest zero; n may be none or less.
template <class Cells, class T>
inline vu cells(const T* p, int64_t n) {
    if (n >= W * Cells::PER_CELL) return cells<Cells>(p);
    if (n <= 0) return vu{};
    T part[W * Cells::PER_CELL] = {};
    std::memcpy(part, p, n * sizeof(T));
    return cells<Cells>(part);
}

// The values of PER_CELL tokens, one or two, as cells, PER_CELL vectors of them. Pairs come as the machine interleaves them
// at one instruction each: within quarters of a vector. Sums stay in that order until `in_order`.
template <class Cells, class T>
inline void value_cells(const T* first, const T* second, int64_t left, vu* to) {
    to[0] = cells<Cells>(first, left);
    if constexpr (Cells::PER_CELL == 2) {
        vu a = to[0], b = cells<Cells>(second, left);
#if defined(__AVX512BW__)
        to[0] = (vu)_mm512_unpacklo_epi16((__m512i)a, (__m512i)b);
        to[1] = (vu)_mm512_unpackhi_epi16((__m512i)a, (__m512i)b);
#else
        static_assert(W == 4 || Cells::PER_CELL == 1, "a vector is a quarter");
        for (int i = 0; i < W; i++) {
            to[i / 2][i % 2 * 2] = (a[i] & 0xffffu) | b[i] << 16;
            to[i / 2][i % 2 * 2 + 1] = a[i] >> 16 | (b[i] & 0xffff0000u);
        }
#endif
    }
}

// Asks for the cache lines of `count` numbers. Far enough ahead that they belong in the second cache.
template <class T>
inline void fetch(const T* p, int64_t count) {
    for (int64_t d = 0; d < count; d += LINE / sizeof(T)) __builtin_prefetch(p + d, 0, 2);
}
// The order in which a chunk's tokens are fetched: its four quarters side by side. They are mostly blocks of the
// cache, which lie apart, and memory answers twice as fast when several places are read at once.
inline int64_t in_turn(int64_t t) { return t % 4 * (CHUNK / 4) + t / 4; }

// Asks for the rows of a chunk, `numbers` of each: one row at a call.
template <class T>
struct RowsAhead {
    const T* const* rows;
    int64_t numbers;
    void operator()(int64_t t) const { fetch(rows[in_turn(t)], numbers); }
};

// Asks for the rows of a chunk a few lines at a call, until there are no more.
template <class T>
class LinesAhead {
  public:
    LinesAhead(const T* const* rows, int64_t numbers) : rows_(rows), numbers_(numbers) {}
    void operator()() {
        if (t_ == CHUNK) return;
        fetch(rows_[in_turn(t_)] + done_, std::min(NUMBERS_EACH, numbers_ - done_));
        done_ += NUMBERS_EACH;
        if (done_ >= numbers_) done_ = 0, t_++;
    }

  private:
    static constexpr int64_t NUMBERS_EACH = 4 * LINE / sizeof(T);
    const T* const* rows_;
    int64_t numbers_, done_ = 0, t_ = 0;
};

// Asks for nothing.
struct NothingAhead {
    void operator()(int64_t = 0) const {}
};

}  // namespace packing

// Undoes the order of `value_cells`.
template <class Cells>
void in_order(float* values, int64_t width) {
#if defined(__AVX512BW__)  // else pairs are as they should be, or there are none
    if constexpr (Cells::PER_CELL == 2) {
        for (int64_t d = 0; d < width; d += 2 * W) {
            vf low = load<vf>(values + d), high = load<vf>(values + d + W);
            store(values + d, shuffle<0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23>(low, high));
            store(values + d + W,
                  shuffle<8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31>(low, high));
        }
    }
#endif
}

// A chunk's panel of keys, with `depth` cells of the head. `ahead` is called with each token.
template <class Cells, class T, class Ahead>
void pack_keys(const T* const* rows, const Ahead& ahead, int64_t head_dim, int64_t depth, Cell* panel) {
    constexpr int WIDE = SCORES_WIDE<Cells>;
    for (int64_t t = 0; t < CHUNK; t += W) {
        for (int i = 0; i < W; i++) ahead(t + i);
        Cell* to = panel + t / WIDE * depth * WIDE + t % WIDE;
        for (int64_t k = 0; k < depth; k += W) {
            vu square[W];
            int64_t d = k * Cells::PER_CELL;
            for (int i = 0; i < W; i++) square[i] = packing::cells<Cells>(rows[t + i] + d, head_dim - d);
            transpose(square);
            for (int i = 0; i < W; i++) store(to + (k + i) * WIDE, square[i]);
        }
    }
}

// A chunk's part of a split's panel of values, `width` numbers of the head in the order of `value_cells`. Those of a row begin
// `offset` numbers after it. `ahead` is called with each token.
template <class Cells, class T, class Ahead>
void pack_values(const T* const* rows, int64_t offset, const Ahead& ahead, int64_t value_dim, int64_t width, Cell* panel) {
    constexpr int WIDE = VALUES_WIDE<Cells>;
    for (int64_t t = 0; t < CHUNK; t += Cells::PER_CELL, panel += WIDE) {
        const T *first = rows[t] + offset, *last = rows[t + Cells::PER_CELL - 1] + offset;
        for (int i = 0; i < Cells::PER_CELL; i++) ahead(t + i);
        for (int64_t d = 0; d < width; d += W * Cells::PER_CELL) {
            vu made[Cells::PER_CELL];
            packing::value_cells<Cells>(first + d, last + d, value_dim - d, made);
            Cell* to = panel + d / WIDE * VALUES_DEEP<Cells> * WIDE + d % WIDE;
            for (int i = 0; i < Cells::PER_CELL; i++) store(to + i * W, made[i]);
        }
    }
}
