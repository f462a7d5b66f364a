// Products with weights.
#include "gemm/gated_lanes.h"
#include "gemm/gated_panels.h"
#include "gemm/kernel_choice.h"
#include "gemm/works.h"

template <class T>
std::unique_ptr<AnyWork> work_of(const Product<T>& p) { return std::make_unique<Work<decltype(kernel_of(p))>>(kernel_of(p)); }
template std::unique_ptr<AnyWork> work_of(const Product<float>&);
template std::unique_ptr<AnyWork> work_of(const Product<bf16>&);
template std::unique_ptr<AnyWork> work_of(const Product<f16>&);

// Whether this process may use what this library was compiled for.
EXPORT int64_t pageant_allowed() { return tiles_allowed(); }

#define LINEAR(NAME, T)                                                                                       \
    EXPORT void NAME(const T* x, int64_t x_stride, const T* weight, int64_t weight_stride, const T* bias,     \
                     T* y, float* unrounded, int64_t rows, int64_t inputs, int64_t outputs,                   \
                     const Needed* needed) {                                                                  \
        const Product<T> p{x, x_stride, weight, weight_stride, bias, y, rows, inputs, outputs, unrounded};    \
        multiply_needed(p, needed, [](const Product<T>& part) { return kernel_of(part); });                      \
    }
LINEAR(pageant_linear_f32, float)
LINEAR(pageant_linear_bf16, bf16)
LINEAR(pageant_linear_f16, f16)

#if defined(PAGEANT_TILES) || defined(__AVX2__)
// W in tiles: see kernels/tiled.py.
EXPORT void pageant_tiled_linear(const bf16* x, int64_t x_stride, const bf16* tiles, const bf16* bias, bf16* y, float* unrounded,
                                 int64_t rows, int64_t inputs, int64_t outputs, const Needed* needed) {
    const Product<bf16> p{x, x_stride, nullptr, 0, bias, y, rows, inputs, outputs, unrounded};
    multiply_needed(p, needed, [&](const Product<bf16>& part) { return tiled_kernel_of(part, tiles); });
}
#endif

// Whether products are by a matrix unit's tiles.
EXPORT int64_t pageant_by_unit() {
#if defined(PAGEANT_TILES)
    return 1;
#else
    return 0;
#endif
}

#if defined(PAGEANT_TILES) || defined(__AVX512BF16__)
// act(gate) * up of a product with W in tiles, which has twice the outputs: gates, then ups.
EXPORT void pageant_gated_linear(const bf16* x, int64_t x_stride, const bf16* tiles, const bf16* bias, bf16* y,
                                 int64_t y_stride, int64_t activation, int64_t rows, int64_t inputs, int64_t outputs) {
    const Product<bf16> p{x, x_stride, nullptr, 0, bias, y, rows, inputs, outputs, nullptr, y_stride};
#if defined(PAGEANT_TILES)
    multiply_gated(ByPanels<Panels>{{p}, {tiles, inputs, 2 * outputs}}, activation);
#else
    multiply_gated(tiled_kernel_of(p, tiles), activation);
#endif
}
#endif
