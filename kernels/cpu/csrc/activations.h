// Activations of vectors, and of rows of them.
#pragma once

#include "exponential.h"
#include "rows.h"

enum : int64_t { SILU, GELU, GELU_TANH };  // as Python says which

// Of numbers whose results are rounded to T.
struct Silu {
    template <class T>
    static vf of(vf x) { return sizeof(T) == sizeof(float) ? silu(x) : short_silu(x); }
};
struct Gelu {
    template <class T>
    static vf of(vf x) { return 0.5f * x * complementary_error(-0.70710678f * x); }
};
struct GeluTanh {
    template <class T>
    static vf of(vf x) {
        return 0.5f * x * (1.0f + hyperbolic_tangent(0.79788456f * (x + 0.044715f * x * x * x)));
    }
};

// Calls run(the activation that Python means).
template <class Run>
inline void with_activation(int64_t which, const Run& run) {
    if (which == SILU) run(Silu());
    else if (which == GELU) run(Gelu());
    else run(GeluTanh());
}

// y [n] = act(gate) * up of a row: gate [n], then up [n].
template <class Activation, class T>
inline void act_and_mul_row(const T* gate, T* y, int64_t n) {
    along(n, [&](int64_t i, int count) {
        vf acted = rounded<T>(Activation::template of<T>(get(gate + i, count)));
        put(y + i, acted * get(gate + n + i, count), count);
    });
}
