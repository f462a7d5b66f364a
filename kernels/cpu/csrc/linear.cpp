// Products with weights: product.h's, shared among threads.
#include "product.h"

namespace {

template <class T>
void linear(const Product<T>& p) {
    // Small products are done before another thread would have woken up.
    if (p.outputs * p.inputs * p.rows < 32 << 10) return block(p, 0, p.rows, 0, p.outputs);
    int64_t each = outputs_each(p);
    int64_t across = (p.outputs + each - 1) / each, down = (p.rows + ROWS_BLOCK - 1) / ROWS_BLOCK;
    parallel_for(across * down, [&](int64_t i) {
        int64_t r = i / across * ROWS_BLOCK, o = i % across * each;
        block(p, r, std::min(r + ROWS_BLOCK, p.rows), o, std::min(o + each, p.outputs));
    });
}

}  // namespace

#define LINEAR(NAME, T)                                                                                     \
    EXPORT void NAME(const T* x, int64_t x_stride, const T* weight, int64_t weight_stride, const T* bias,   \
                     T* y, int64_t rows, int64_t inputs, int64_t outputs) {                                 \
        linear<T>({x, x_stride, weight, weight_stride, bias, y, rows, inputs, outputs});                    \
    }
LINEAR(pageant_linear_f32, float)
LINEAR(pageant_linear_bf16, bf16)
LINEAR(pageant_linear_f16, f16)
