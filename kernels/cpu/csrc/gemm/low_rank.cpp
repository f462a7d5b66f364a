// What low-rank adapters add to a product, each to rows of its own: y += (x @ down) @ up.
//
// Both matrices of one lie with their inputs as rows, so that a vector holds neighbouring outputs, and nothing is summed
// across lanes: for sums of so few terms that takes longer than the products. Each number is added up over its inputs
// in their order, however many rows are computed together: its bits do not depend on them.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "base/rows.h"
#include "base/scratch.h"

namespace {

constexpr int64_t TILE = 4;        // rows that share each load of a matrix; of more, floats leave the nearest cache
constexpr int64_t COLUMNS = 256;  // of a matrix that a task has

// A part of the outputs, which has a matrix `up` of its own [rank, outputs] for the next of the ranks.
template <class T>
struct Part {
    const T* up;
    int64_t start, outputs, rank;
};

// An adapter, and its rows of x and y; no tokens are all rows.
template <class T>
struct Addition {
    const int64_t* tokens;
    int64_t rows;
    const T* down;  // [inputs, rank]
    int64_t rank;
    const Part<T>* parts;
    int64_t num_parts;

    int64_t row(int64_t i) const { return tokens ? tokens[i] : i; }
};

// What a task has of an addition: some of its rows on the way down, or some outputs of a part on the way up.
template <class T>
struct Piece {
    const Addition<T>* addition;
    float* low;  // x @ down, [rows, rank]
    const Part<T>* part;
    int64_t start, size;
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
    next(std::integral_constant<int, 4>());
    next(std::integral_constant<int, 2>());
    next(std::integral_constant<int, 1>());
}

template <class T>
void multiply_down(const T* x, int64_t x_stride, int64_t inputs, const Piece<T>& piece) {
    static thread_local Scratch<float> memory;
    const Addition<T>& own = *piece.addition;
    float* wide = memory.take(TILE * inputs);
    for (int64_t r = 0; r < piece.size; r++) {
        const T* from = x + own.row(piece.start + r) * x_stride;
        along(inputs, [&](int64_t k, int n) { put(wide + r * inputs + k, get(from + k, n), n); });
    }
    float* low = piece.low + piece.start * own.rank;
    along(own.rank, [&](int64_t c, int n) {
        tiles(piece.size, wide, inputs, own.down + c, own.rank, inputs, n,
              [&](int64_t r, vf sums) { put(low + r * own.rank + c, sums, n); });
    });
}

template <class T>
void add_up(T* y, int64_t y_stride, const Piece<T>& piece) {
    const Addition<T>& own = *piece.addition;
    const Part<T>& part = *piece.part;
    const float* low = piece.low;
    for (const Part<T>* before = own.parts; before != piece.part; before++) low += before->rank;
    for (int64_t first = 0; first < own.rows; first += TILE)
        along(piece.size, [&](int64_t c, int n) {
            tiles(std::min(TILE, own.rows - first), low + first * own.rank, own.rank, part.up + piece.start + c,
                  part.outputs, part.rank, n, [&](int64_t r, vf sums) {
                      T* to = y + own.row(first + r) * y_stride + part.start + piece.start + c;
                      put(to, get(to, n) + sums, n);
                  });
        });
}

template <class T>
void add_low_rank(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t inputs, const Addition<T>* additions,
                  int64_t count) {
    static thread_local Scratch<float> memory;
    int64_t numbers = 0;
    for (int64_t i = 0; i < count; i++) numbers += additions[i].rows * additions[i].rank;
    float* low = memory.take(numbers);
    std::vector<Piece<T>> down, up;
    for (const Addition<T>* own = additions; own != additions + count; low += own->rows * own->rank, own++) {
        for (int64_t row = 0; row < own->rows; row += TILE)
            down.push_back({own, low, nullptr, row, std::min(TILE, own->rows - row)});
        for (const Part<T>* part = own->parts; part != own->parts + own->num_parts; part++)
            for (int64_t start = 0; start < part->outputs; start += COLUMNS)
                up.push_back({own, low, part, start, std::min(COLUMNS, part->outputs - start)});
    }
    parallel_for(down.size(), [&](int64_t i) { multiply_down(x, x_stride, inputs, down[i]); });
    parallel_for(up.size(), [&](int64_t i) { add_up(y, y_stride, up[i]); });
}

}  // namespace

#define ADD_LOW_RANK(NAME, T)                                                                                \
    EXPORT void NAME(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t inputs,                   \
                     const Addition<T>* additions, int64_t count) {                                          \
        add_low_rank(x, x_stride, y, y_stride, inputs, additions, count);                                    \
    }
ADD_LOW_RANK(pageant_add_low_rank_f32, float)
ADD_LOW_RANK(pageant_add_low_rank_bf16, bf16)
ADD_LOW_RANK(pageant_add_low_rank_f16, f16)
