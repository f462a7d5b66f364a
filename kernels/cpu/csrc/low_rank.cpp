// What a low-rank adapter adds to some rows of a product: y += (x @ down) @ up.
//
// Both matrices lie with their inputs as rows, so that a vector holds neighbouring outputs, and nothing is summed
// across lanes: for sums of so few terms that takes longer than the products. Each number is added up over its inputs
// in their order, however many rows are computed together: its bits do not depend on them.
#include <algorithm>
#include <type_traits>

#include "rows.h"
#include "scratch.h"

namespace {

constexpr int64_t TILE = 8;        // rows that share each load of a matrix
constexpr int64_t COLUMNS = 512;  // of a matrix that a task has

// A part of the outputs, which has a matrix `up` of its own [rank, outputs] for the next of the ranks.
template <class T>
struct Part {
    const T* up;
    int64_t start, outputs, rank;
};

// Calls use(row, sums) with `count` columns of x @ matrix, for a matrix whose rows are `stride` apart.
template <int ROWS, class T, class Use>
inline void tile(const float* x, int64_t x_stride, const T* matrix, int64_t stride, int64_t inputs, int count,
                 const Use& use) {
    vf sums[ROWS];
    for (int r = 0; r < ROWS; r++) sums[r] = splat(0);
    for (int64_t k = 0; k < inputs; k++) {
        vf weights = get(matrix + k * stride, count);
        for (int r = 0; r < ROWS; r++) sums[r] = fma(splat(x[r * x_stride + k]), weights, sums[r]);
    }
    for (int r = 0; r < ROWS; r++) use(r, sums[r]);
}

// The same for up to TILE rows.
template <class T, class Use>
inline void tiles(int64_t rows, const float* x, int64_t x_stride, const T* matrix, int64_t stride, int64_t inputs,
                  int count, const Use& use) {
    int64_t row = 0;
    auto next = [&](auto size) {
        constexpr int ROWS = decltype(size)::value;
        if (rows - row < ROWS) return;
        tile<ROWS>(x + row * x_stride, x_stride, matrix, stride, inputs, count,
                   [&](int r, vf sums) { use(row + r, sums); });
        row += ROWS;
    };
    next(std::integral_constant<int, 8>());
    next(std::integral_constant<int, 4>());
    next(std::integral_constant<int, 2>());
    next(std::integral_constant<int, 1>());
}

// x @ down, as floats, for rows of x that `at` names.
template <class T, class At>
void multiply_down(const T* x, int64_t x_stride, int64_t rows, const At& at, const T* down, int64_t inputs,
                   int64_t rank, float* low) {
    parallel_for((rows + TILE - 1) / TILE, [&](int64_t i) {
        static thread_local Scratch<float> memory;
        float* wide = memory.take(TILE * inputs);
        int64_t first = i * TILE, count = std::min(TILE, rows - first);
        for (int64_t r = 0; r < count; r++)
            along(inputs, [&](int64_t k, int n) { put(wide + r * inputs + k, get(x + at(first + r) * x_stride + k, n), n); });
        along(rank, [&](int64_t c, int n) {
            tiles(count, wide, inputs, down + c, rank, inputs, n,
                  [&](int64_t r, vf sums) { put(low + (first + r) * rank + c, sums, n); });
        });
    });
}

template <class T>
void add_low_rank(const T* x, int64_t x_stride, T* y, int64_t y_stride, const int64_t* tokens, int64_t rows,
                  const T* down, int64_t inputs, int64_t rank, const Part<T>* parts, int64_t num_parts) {
    static thread_local Scratch<float> memory;
    float* low = memory.take(rows * rank);
    auto at = [&](int64_t row) { return tokens ? tokens[row] : row; };
    multiply_down(x, x_stride, rows, at, down, inputs, rank, low);
    int64_t outputs = 0;
    for (int64_t p = 0; p < num_parts; p++) outputs = std::max(outputs, parts[p].outputs);
    int64_t pieces = (outputs + COLUMNS - 1) / COLUMNS;
    parallel_for(num_parts * pieces, [&](int64_t i) {
        const Part<T>* part = parts + i / pieces;
        int64_t start = i % pieces * COLUMNS, size = std::min(COLUMNS, part->outputs - start), column = 0;
        for (const Part<T>* before = parts; before != part; before++) column += before->rank;
        for (int64_t first = 0; size > 0 && first < rows; first += TILE)
            along(size, [&](int64_t c, int n) {
                tiles(std::min(TILE, rows - first), low + first * rank + column, rank, part->up + start + c,
                      part->outputs, part->rank, n, [&](int64_t r, vf sums) {
                          T* to = y + at(first + r) * y_stride + part->start + start + c;
                          put(to, get(to, n) + sums, n);
                      });
            });
    });
}

}  // namespace

#define ADD_LOW_RANK(NAME, T)                                                                                \
    EXPORT void NAME(const T* x, int64_t x_stride, T* y, int64_t y_stride, const int64_t* tokens,            \
                     int64_t rows, const T* down, int64_t inputs, int64_t rank, const Part<T>* parts,        \
                     int64_t num_parts) {                                                                    \
        add_low_rank(x, x_stride, y, y_stride, tokens, rows, down, inputs, rank, parts, num_parts);          \
    }
ADD_LOW_RANK(pageant_add_low_rank_f32, float)
ADD_LOW_RANK(pageant_add_low_rank_bf16, bf16)
ADD_LOW_RANK(pageant_add_low_rank_f16, f16)
