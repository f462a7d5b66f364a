// Rotary embedding of one head.
#pragma once

#include "base/rows.h"

template <class T>
void rotate(T* x, const float* cos, const float* sin, int64_t half) {
    along(half, [&](int64_t i, int count) {
        vf a = get(x + i, count), b = get(x + half + i, count);
        vf c = get(cos + i, count), s = get(sin + i, count);
        put(x + i, a * c - b * s, count);
        put(x + half + i, b * c + a * s, count);
    });
}
