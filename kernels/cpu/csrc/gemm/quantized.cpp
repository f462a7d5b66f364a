// Weights of 8, 5 and 4 bits: products with them, rows of them, and making them.
#include "gemm/gated_lanes.h"
#include "gemm/gated_panels.h"
#include "gemm/halves.h"
#include "base/rows.h"
#include "gemm/kernel_choice.h"
#include "gemm/works.h"

#include <cmath>

namespace {

constexpr int64_t FOUR = 4;  // bytes of a row that lie together in tiles

// A row of a panel in halves, as it would lie.
void copy_halves(const Quantized& w, int64_t panel, int64_t lane, uint8_t* values) {
    const int64_t at = panel * w.row_bytes<4>() + lane * FOUR;
    for (int64_t i = 0; i < w.padded(); i++) {
        const int64_t byte = at + (i / UNIT * GROUP + i % GROUP) / FOUR * FOUR * TILE + i % FOUR;
        values[i] = uint8_t(joined(w.values[byte], w.lower[byte], i / GROUP % 2, i));
    }
}

// Row `o` of a weight in tiles, as it would lie: bytes and scales.
template <int BITS>
void copy_row(const Quantized& w, int64_t o, uint8_t* values, uint8_t* scales) {
    const int64_t panel = o / TILE * TILE, lane = o % TILE;
    const uint8_t* of_values = w.values + panel * w.row_bytes<BITS>() + lane * FOUR;
    const uint8_t* of_scales = (const uint8_t*)(w.scales + panel * w.groups()) + lane * FOUR;
    if (w.in_halves()) copy_halves(w, panel, lane, values);
    else for (int64_t i = 0; i < w.row_bytes<BITS>(); i += FOUR) std::memcpy(values + i, of_values + i * TILE, FOUR);
    for (int64_t i = 0; i < w.groups() * int64_t(sizeof(bf16)); i += FOUR) std::memcpy(scales + i, of_scales + i * TILE, FOUR);
}

template <int BITS, class T>
void embed(const int64_t* ids, int64_t rows, const Quantized& w, bool in_tiles, T* y) {
    for_rows(rows, w.inputs, [&](int64_t i) {
        thread_local std::vector<T> numbers;
        thread_local std::vector<uint8_t> values, scales;
        numbers.resize(w.padded());
        if (in_tiles) {
            values.resize(w.row_bytes<BITS>()), scales.resize(w.groups() * sizeof(bf16));
            copy_row<BITS>(w, ids[i], values.data(), scales.data());
            unpack_row<BITS>(Quantized{values.data(), (const bf16*)scales.data(), w.inputs}, 0, numbers.data(), 0);
        } else {
            unpack_row<BITS>(w, ids[i], numbers.data(), 0);
        }
        std::memcpy(y + i * w.inputs, numbers.data(), w.inputs * sizeof(T));
    });
}

template <int BITS, class T>
void linear(const Product<T>& p, const Quantized& w, bool in_tiles, const Needed* needed) {
    if constexpr (BITS == 8 && TAKES_HALVES<T>)
        if (w.in_halves())
            return multiply_needed(p, needed, [&](const Product<T>& part) { return tiled_kernel_of<BITS, true>(part, w); });
    if constexpr (TAKES_TILES<T>)
        if (in_tiles)
            return multiply_needed(p, needed, [&](const Product<T>& part) { return tiled_kernel_of<BITS>(part, w); });
    multiply_needed(p, needed, [&](const Product<T>& part) { return kernel_of<BITS>(part, w); });
}

// Whole numbers that weights become, and what is tried for the one of the largest size. (kernels/quantized.py has the same.)
struct Rounding {
    float least, most;
    float first, last, step;
};
template <int BITS>
Rounding rounding(bool in_halves) {
    constexpr float LIMIT = 1 << (BITS - 1);
    if (in_halves) return {-LIMIT, HALVED_MOST, -LIMIT, 20 - LIMIT, 1};
    return {-LIMIT, LIMIT - 1, BITS == 8 ? -LIMIT : -LIMIT - 1, 1 - LIMIT, 0.5f};
}

// 32 numbers that will share a scale, and the best that was found for them.
struct Group {
    static constexpr int VECTORS = GROUP / W;
    const Rounding& to;
    vf x[VECTORS], q[VECTORS];
    float scale = 0, error = INFINITY;

    explicit Group(const Rounding& to) : to(to) {}

    void attempt(float wanted) {
        bf16 narrowed;
        set(narrowed, wanted);
        float s = to_float(narrowed), inverse = s < 1e-30f && s > -1e-30f ? 0 : 1 / s;
        vf rounded_x[VECTORS], errors = {};
        UNROLL for (int v = 0; v < VECTORS; v++) {
            constexpr float ROUND = 0x1.8p23f;  // a float of this size has no digits after the point
            vf clamped = max(min(x[v] * splat(inverse), splat(to.most)), splat(to.least));
            rounded_x[v] = (clamped + splat(ROUND)) - splat(ROUND);
            vf off = x[v] - rounded_x[v] * splat(s);
            errors = fma(off, off, errors);
        }
        float total = sum(errors);
        if (total < error) {
            error = total;
            scale = s;
            UNROLL for (int v = 0; v < VECTORS; v++) q[v] = rounded_x[v];
        }
    }

    void solve() {
        vf high = x[0], low = x[0];
        UNROLL for (int v = 1; v < VECTORS; v++) {
            high = max(high, x[v]);
            low = min(low, x[v]);
        }
        float top = maximum(high), bottom = -maximum(-low), largest = top > -bottom ? top : bottom;
        UNROLL for (int v = 0; v < VECTORS; v++) q[v] = vf{};
        for (float divisor = to.first; divisor <= to.last; divisor += to.step) attempt(largest / divisor);
        vf products = {}, squares = {};
        UNROLL for (int v = 0; v < VECTORS; v++) {
            products = fma(x[v], q[v], products);
            squares = fma(q[v], q[v], squares);
        }
        attempt(sum(products) / std::max(1.f, sum(squares)));
    }
};

template <int BITS, class T>
void quantize(const T* weight, int64_t stride, int64_t rows, int64_t inputs, bool in_halves, uint8_t* values, bf16* scales) {
    Quantized w{values, scales, inputs};
    const Rounding whole = rounding<BITS>(in_halves);
    parallel_ranges(rows, std::max<int64_t>(1, (64 << 10) / std::max<int64_t>(1, inputs)), [&](int64_t start, int64_t stop) {
        for (int64_t o = start; o < stop; o++) {
            uint8_t* to = values + o * w.row_bytes<BITS>();
            for (int64_t g = 0; g < w.groups(); g++) {
                Group group(whole);
                int64_t left = inputs - g * GROUP;
                for (int v = 0; v < Group::VECTORS; v++, left -= W) {
                    const T* from = weight + o * stride + g * GROUP + v * W;
                    group.x[v] = left >= W ? read(from) : left > 0 ? read(from, int(left)) : vf{};
                }
                group.solve();
                set(scales[o * w.groups() + g], group.scale);
                int32_t q[GROUP];
                for (int v = 0; v < Group::VECTORS; v++)
                    store(q + v * W, __builtin_convertvector(group.q[v], vi));
                uint8_t* at = to + g / 2 * (UNIT * BITS / 8);
                for (int i = 0; i < GROUP; i++) {
                    if constexpr (BITS == 8) {
                        at[g % 2 * GROUP + i] = uint8_t(q[i]);
                        continue;
                    }
                    const uint8_t raised = q[i] + RAISED<BITS>, lower = raised & 15;
                    at[i] = g % 2 ? at[i] | lower << 4 : lower;
                    if constexpr (BITS == 5) {
                        uint8_t& fifths = at[GROUP + g % 2 * FOUR + i % FOUR];
                        fifths = (i < FOUR ? 0 : fifths) | raised >> 4 << i / FOUR;
                    }
                }
            }
        }
    });
}

}  // namespace

template <class T>
std::unique_ptr<AnyWork> work_of(const Product<T>& p, const Quantized& w, int64_t bits, bool in_tiles) {
    std::unique_ptr<AnyWork> work;
    const auto begin = [&](const auto& kernel) { work = std::make_unique<Work<std::decay_t<decltype(kernel)>>>(kernel); };
    by_bits(bits, [&](auto b) {
        if constexpr (TAKES_TILES<T>)
            if (in_tiles) return begin(tiled_kernel_of<b()>(p, w));
        begin(kernel_of<b()>(p, w));
    });
    return work;
}
template std::unique_ptr<AnyWork> work_of(const Product<float>&, const Quantized&, int64_t, bool);
template std::unique_ptr<AnyWork> work_of(const Product<bf16>&, const Quantized&, int64_t, bool);
template std::unique_ptr<AnyWork> work_of(const Product<f16>&, const Quantized&, int64_t, bool);

#define QUANTIZED(SUFFIX, T)                                                                                   \
    EXPORT void pageant_quantized_linear_##SUFFIX(                                                             \
        const T* x, int64_t x_stride, const uint8_t* values, const uint8_t* lower, const bf16* scales,         \
        int64_t bits, int64_t in_tiles, const T* bias, T* y, float* unrounded, int64_t rows, int64_t inputs,   \
        int64_t outputs, const Needed* needed, int64_t alike) {                                                \
        Product<T> p{x, x_stride, nullptr, 0, bias, y, rows, inputs, outputs, unrounded};                      \
        Quantized w{values, scales, inputs, alike, lower};                                                     \
        by_bits(bits, [&](auto b) { linear<b()>(p, w, in_tiles != 0, needed); });                              \
    }                                                                                                          \
    EXPORT void pageant_embed_##SUFFIX(const int64_t* ids, int64_t rows, const uint8_t* values,                \
                                       const uint8_t* lower, const bf16* scales, int64_t bits,                 \
                                       int64_t in_tiles, T* y,                                                 \
                                       int64_t inputs) {                                                       \
        Quantized w{values, scales, inputs, 0, lower};                                                         \
        by_bits(bits, [&](auto b) { embed<b()>(ids, rows, w, in_tiles != 0, y); });                            \
    }                                                                                                          \
    EXPORT int64_t pageant_takes_tiles_##SUFFIX() { return TAKES_TILES<T>; }                                   \
    EXPORT void pageant_quantize_##SUFFIX(const T* weight, int64_t stride, int64_t rows, int64_t inputs,       \
                                          int64_t bits, int64_t for_halves, uint8_t* values, bf16* scales) {   \
        by_bits(bits, [&](auto b) { quantize<b()>(weight, stride, rows, inputs, for_halves, values, scales); }); \
    }
QUANTIZED(f32, float)
QUANTIZED(bf16, bf16)
QUANTIZED(f16, f16)

#if defined(PAGEANT_TILES) || defined(__AVX512VNNI__)
// act(gate) * up of a product with a weight in tiles that has twice the outputs, for many rows: where there is a matrix unit,
// all by tiles of bfloat16.
EXPORT void pageant_quantized_gated_linear(const bf16* x, int64_t x_stride, const uint8_t* values, const bf16* scales,
                                           int64_t bits, const bf16* bias, bf16* y, int64_t y_stride, int64_t activation,
                                           int64_t rows, int64_t inputs, int64_t outputs) {
    const Product<bf16> p{x, x_stride, nullptr, 0, bias, y, rows, inputs, outputs, nullptr, y_stride};
    const Quantized w{values, scales, inputs};
#if defined(PAGEANT_TILES)
    by_bits(bits, [&](auto b) { multiply_gated(ByPanels<UnpackedPanels<b()>>{{p}, {{w, 2 * outputs}}}, activation); });
#else
    by_bits(bits, [&](auto b) { multiply_gated(tiled_kernel_of<b()>(p, w), activation); });
#endif
}
#endif
