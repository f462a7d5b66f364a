// Activations of vectors, and of rows of them.
#pragma once

#include "base/exponential.h"
#include "base/rows.h"

enum : int64_t { SILU, GELU, GELU_TANH, CLAMPED_SWIGLU, RELU2 };  // as Python says which

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

// The square of what is above zero, of a number that no gate goes with. NaN stays NaN.
struct Relu2 {
    template <class T>
    static vf of(vf x) {
        const vf above = x < 0.0f ? vf{} : x;
        return above * above;
    }
};

// act(gate) * up, rounded as if both factors were in memory.
template <class Activation>
struct Gating {
    template <class T>
    static vf of(vf gate, vf up) { return rounded<T>(Activation::template of<T>(gate)) * up; }
};
// gpt-oss's. NaN stays NaN.
struct ClampedSwiglu {
    template <class T>
    static vf of(vf gate, vf up) {
        gate = gate > 7.0f ? splat(7.0f) : gate;
        up = up > 7.0f ? splat(7.0f) : up < -7.0f ? splat(-7.0f) : up;
        return gate / (1.0f + exponential(-1.702f * gate)) * (up + 1.0f);
    }
};

// Calls run(the activation that Python means), one that is of a gate alone.
template <class Run>
inline void with_activation(int64_t which, const Run& run) {
    if (which == SILU) run(Silu());
    else if (which == GELU) run(Gelu());
    else run(GeluTanh());
}

// y [n] = the gating of a row: gate [n], then up [n].
template <class Gate, class T>
inline void act_and_mul_row(const T* gate, T* y, int64_t n) {
    along(n, [&](int64_t i, int count) {
        put(y + i, Gate::template of<T>(get(gate + i, count), get(gate + n + i, count)), count);
    });
}
// y [n] = the activation of a row [n].
template <class Activation, class T>
inline void act_row(const T* x, T* y, int64_t n) {
    along(n, [&](int64_t i, int count) { put(y + i, Activation::template of<T>(get(x + i, count)), count); });
}
