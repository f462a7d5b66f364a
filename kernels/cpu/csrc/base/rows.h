// Going through rows of numbers.
#pragma once

#include "base/threads.h"
#include "base/vec.h"

// Numbers that one thread gets through in about the time that waking the others takes.
constexpr int64_t NUMBERS_ALONE = 16 << 10;

// Calls task(row) for each row, on one thread unless there are many of them.
template <class Task>
void for_rows(int64_t rows, int64_t numbers_each, const Task& task) {
    int64_t grain = NUMBERS_ALONE / (numbers_each > 0 ? numbers_each : 1);
    parallel_ranges(rows, grain > 0 ? grain : 1, [&](int64_t start, int64_t stop) {
        for (int64_t row = start; row < stop; row++) task(row);
    });
}

// Calls body(first, vector's size) along n numbers: W at a time, then what is left.
template <class Body>
inline void along(int64_t n, const Body& body) {
    int64_t i = 0;
    for (; i + W <= n; i += W) body(i, W);
    if (i < n) body(i, int(n - i));
}
template <class T>
inline vf get(const T* p, int n) { return n == W ? read(p) : read(p, n); }
template <class T>
inline void put(T* p, vf x, int n) { n == W ? write(p, x) : write(p, x, n); }

constexpr float NOWHERE = -__builtin_inff();  // as a logit: of what is not drawn

// NOWHERE, if there are none.
inline float largest_of(const float* x, int64_t n) {
    vf best = splat(NOWHERE);
    int64_t i = 0;
    for (; i + W <= n; i += W) best = max(best, read(x + i));
    float m = maximum(best);
    for (; i < n; i++) m = std::max(m, x[i]);
    return m;
}
