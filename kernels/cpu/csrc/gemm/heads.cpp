// Products of each head's part of x with a matrix of its own, which may lie either way: latents to heads and back.
//
// A number is one chain along the inputs, or one for each lane, whatever rows are computed with it: so a row has the same
// bits alone or among others.
#include <algorithm>

#include "base/threads.h"
#include "base/vec.h"

namespace {

constexpr int64_t ROWS = 4, COLUMNS = 4;  // of a register tile: rows, and vectors or outputs
constexpr int64_t ROWS_EACH = 64;         // of a task

template <class T>
struct HeadProducts {
    const T* x;
    int64_t x_stride, x_head_stride;
    const T* weight;
    int64_t head_stride, in_stride, out_stride;
    T* y;
    int64_t y_stride, y_head_stride, tokens, heads, inputs, outputs;
};

// R rows by the outputs from m on, `count` of them up to C vectors, where outputs lie side by side.
template <int R, int C, class T>
void by_outputs(const HeadProducts<T>& p, const T* x, const T* weight, T* y, int64_t count) {
    vf sums[R][C] = {};
    auto add = [&](const auto& load_column) {
        for (int64_t k = 0; k < p.inputs; k++) {
            vf columns[C];
            for (int c = 0; c < C; c++) columns[c] = load_column(weight + k * p.in_stride + c * W, count - c * W);
            for (int r = 0; r < R; r++) {
                const vf factor = splat(to_float(x[r * p.x_stride + k]));
                for (int c = 0; c < C; c++) sums[r][c] = fma(factor, columns[c], sums[r][c]);
            }
        }
    };
    if (count == C * W) add([](const T* at, int64_t) { return read(at); });
    else add([](const T* at, int64_t left) { return left >= W ? read(at) : left > 0 ? read(at, int(left)) : vf{}; });
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) {
            const int64_t left = count - c * W;
            T* to = y + r * p.y_stride + c * W;
            if (left >= W) write(to, sums[r][c]);
            else if (left > 0) write(to, sums[r][c], int(left));
        }
}

// R rows by C outputs, where inputs lie side by side.
template <int R, int C, class T>
void by_inputs(const HeadProducts<T>& p, const T* x, const T* weight, T* y) {
    vf sums[R][C] = {};
    auto add = [&](int64_t k, const auto& load) {
        vf rows[R];
        for (int r = 0; r < R; r++) rows[r] = load(x + r * p.x_stride + k);
        for (int c = 0; c < C; c++) {
            const vf column = load(weight + c * p.out_stride + k);
            for (int r = 0; r < R; r++) sums[r][c] = fma(rows[r], column, sums[r][c]);
        }
    };
    int64_t k = 0;
    for (; k + W <= p.inputs; k += W) add(k, [](const T* at) { return read(at); });
    if (k < p.inputs) add(k, [n = int(p.inputs - k)](const T* at) { return read(at, n); });
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) {
            vf total = splat(sum(sums[r][c]));
            write(y + r * p.y_stride + c, total, 1);
        }
}

// Calls block(R, row) for ROWS rows at a time, then for one at a time.
template <class Block>
void in_blocks(int64_t first, int64_t stop, const Block& block) {
    for (; first + ROWS <= stop; first += ROWS) block(std::integral_constant<int, ROWS>{}, first);
    for (; first < stop; first++) block(std::integral_constant<int, 1>{}, first);
}

template <class T>
void multiply(const HeadProducts<T>& p, int64_t head, int64_t first, int64_t stop) {
    const T *x = p.x + head * p.x_head_stride, *weight = p.weight + head * p.head_stride;
    T* y = p.y + head * p.y_head_stride;
    if (p.out_stride == 1) {
        for (int64_t m = 0; m < p.outputs; m += COLUMNS * W)
            in_blocks(first, stop, [&](auto R, int64_t row) {
                by_outputs<R, COLUMNS>(p, x + row * p.x_stride, weight + m, y + row * p.y_stride + m,
                                       std::min<int64_t>(COLUMNS * W, p.outputs - m));
            });
        return;
    }
    in_blocks(0, p.outputs, [&](auto C, int64_t m) {
        in_blocks(first, stop, [&](auto R, int64_t row) {
            by_inputs<R, C>(p, x + row * p.x_stride, weight + m * p.out_stride, y + row * p.y_stride + m);
        });
    });
}

template <class T>
void multiply_heads(const HeadProducts<T>& p) {
    const int64_t parts = (p.tokens + ROWS_EACH - 1) / ROWS_EACH;
    parallel_for(p.heads * parts, [&](int64_t i) {
        const int64_t first = i % parts * ROWS_EACH;
        multiply(p, i / parts, first, std::min(p.tokens, first + ROWS_EACH));
    });
}

}  // namespace

#define HEADS(NAME, T)                                                                                        \
    EXPORT void NAME(const T* x, int64_t x_stride, int64_t x_head_stride, const T* weight,                    \
                     int64_t head_stride, int64_t in_stride, int64_t out_stride, T* y, int64_t y_stride,      \
                     int64_t y_head_stride, int64_t tokens, int64_t heads, int64_t inputs, int64_t outputs) { \
        multiply_heads<T>({x, x_stride, x_head_stride, weight, head_stride, in_stride, out_stride, y,         \
                           y_stride, y_head_stride, tokens, heads, inputs, outputs});                         \
    }
HEADS(pageant_multiply_heads_f32, float)
HEADS(pageant_multiply_heads_bf16, bf16)
HEADS(pageant_multiply_heads_f16, f16)
