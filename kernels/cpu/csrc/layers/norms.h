// Root-mean-square norms of a row; x and y may be the same. Rounding is the reference's: what differs between
// them is when.
#pragma once

#include <cmath>

#include "base/rows.h"

// Each sum has two accumulators, since one would wait for its own last addition.
template <class Term>
float sum_along(int64_t n, const Term& term) {
    vf now = {}, next = {};
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) now = term(i, W, now), next = term(i + W, W, next);
    along(n - i, [&](int64_t at, int count) {
        now = term(i + at, count, now);
        std::swap(now, next);
    });
    return sum(now + next);
}

template <class T>
float root_scale(const T* x, int64_t n, float eps) {
    float squares = sum_along(n, [&](int64_t i, int count, vf so_far) {
        vf v = get(x + i, count);
        return fma(v, v, so_far);
    });
    return 1.0f / std::sqrt(squares / float(n) + eps);
}

// The weight is multiplied in after rounding.
template <class T>
struct RmsNorm {
    using Weight = T;
    const T* weight;
    float eps;
    void operator()(const T* x, T* y, int64_t n) const {
        float scale = root_scale(x, n, eps);
        along(n, [&](int64_t i, int count) {
            put(y + i, rounded<T>(get(x + i, count) * scale) * get(weight + i, count), count);
        });
    }
};

// The weight, in float32, is multiplied in before.
template <class T>
struct WideRmsNorm {
    using Weight = float;
    const float* weight;
    float eps;
    void operator()(const T* x, T* y, int64_t n) const {
        float scale = root_scale(x, n, eps);
        along(n, [&](int64_t i, int count) {
            put(y + i, get(x + i, count) * scale * get(weight + i, count), count);
        });
    }
};
