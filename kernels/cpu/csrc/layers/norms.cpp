// Norms of rows, alone and of a sum.
#include "layers/norms.h"

namespace {

template <class T>
struct LayerNorm {
    using Weight = T;
    const T* weight;
    float eps;
    const T* bias = nullptr;
    void operator()(const T* x, T* y, int64_t n) const {
        float mean = sum_along(n, [&](int64_t i, int count, vf so_far) { return so_far + get(x + i, count); });
        mean /= float(n);
        float squares = sum_along(n, [&](int64_t i, int count, vf so_far) {
            vf v = get(x + i, count) - mean;
            if (count < W)  // what is past the end is no zero any more
                for (int j = count; j < W; j++) v[j] = 0;
            return fma(v, v, so_far);
        });
        float scale = 1.0f / std::sqrt(squares / float(n) + eps);
        along(n, [&](int64_t i, int count) {
            vf normed = (get(x + i, count) - mean) * scale;
            put(y + i, fma(normed, get(weight + i, count), get(bias + i, count)), count);
        });
    }
};

template <class T, class Norm>
void norm(const Norm& one, const T* x, int64_t stride, T* y, int64_t y_stride, int64_t rows, int64_t n) {
    for_rows(rows, n, [&](int64_t row) { one(x + row * stride, y + row * y_stride, n); });
}

template <class T, class Norm>
void add_norm(const Norm& one, const T* x, int64_t x_stride, const T* residual, int64_t residual_stride, T* y,
              int64_t y_stride, T* total, int64_t rows, int64_t n) {
    for_rows(rows, n, [&](int64_t row) {
        const T *a = x + row * x_stride, *b = residual + row * residual_stride;
        T* sums = total + row * n;
        along(n, [&](int64_t i, int count) { put(sums + i, get(a + i, count) + get(b + i, count), count); });
        one(sums, y + row * y_stride, n);
    });
}

}  // namespace

#define NORM(NAME, SUFFIX, T, WEIGHT, ONE)                                                                  \
    EXPORT void pageant_##NAME##_##SUFFIX(const T* x, int64_t stride, T* y, int64_t y_stride, int64_t rows, \
                                          int64_t n, const WEIGHT* weight, const T* bias, double eps) {     \
        norm(ONE, x, stride, y, y_stride, rows, n);                                                         \
        (void)bias;                                                                                         \
    }                                                                                                       \
    EXPORT void pageant_add_##NAME##_##SUFFIX(const T* x, int64_t x_stride, const T* residual,              \
                                              int64_t residual_stride, T* y, int64_t y_stride, T* total,    \
                                              int64_t rows, int64_t n, const WEIGHT* weight, const T* bias, \
                                              double eps) {                                                 \
        add_norm(ONE, x, x_stride, residual, residual_stride, y, y_stride, total, rows, n);                 \
        (void)bias;                                                                                         \
    }
#define NORMS(SUFFIX, T)                                                                                    \
    NORM(rms_norm, SUFFIX, T, T, (RmsNorm<T>{weight, float(eps)}))                                          \
    NORM(wide_rms_norm, SUFFIX, T, float, (WideRmsNorm<T>{weight, float(eps)}))                             \
    NORM(layer_norm, SUFFIX, T, T, (LayerNorm<T>{weight, float(eps), bias}))
NORMS(f32, float)
NORMS(bf16, bf16)
NORMS(f16, f16)
