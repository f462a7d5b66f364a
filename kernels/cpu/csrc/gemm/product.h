// y = x W^T + b, with W as a checkpoint has it: [outputs, inputs], row-major; and how it is shared among threads.
//
// There are several kernels; kernel_choice.h chooses. A kernel is a struct with its product `p` and
//   weights()                          where W begins;
//   row_bytes()                        of a row of W;
//   block_rows()                       how many rows of x are multiplied by a row of W that was read once; where x
//                                      is packed, a multiple of the next;
//   PACKED_TOGETHER                    how many rows of x are packed at a time; 0, where x is taken as it lies;
//   packed_size(count)                 the bytes that a block of rows of x takes then; 0, where it is not packed after all;
//   pack(first, last, r, end, workspace) packs rows r to end of a block, which has rows `first` to `last`;
//   block(workspace, r, end, start, stop) multiplies a block of rows of x, r to end, by rows start to stop of W.
// By every kernel a result is the same bits whatever rows of x are beside it.
#pragma once

#include <algorithm>
#include <vector>

#include "base/expected.h"
#include "gemm/needed.h"
#include "base/threads.h"
#include "base/vec.h"

template <class T>
struct Product {
    const T* x;
    int64_t x_stride;
    const T* weight;
    int64_t weight_stride;
    const T* bias;
    T* y;
    int64_t rows, inputs, outputs;
    float* unrounded = nullptr;  // results go here instead of to y, where it is not null
    int64_t y_stride = outputs;

    // W results of row r, from output o on, as far as there are any.
    void put(vf sums, int64_t r, int64_t o) const {
        if (unrounded) put(unrounded, sums, r, o);
        else put(y, sums, r, o);
    }
    // Where results of row r go, from output o on.
    T* at(int64_t r, int64_t o) const { return y + r * y_stride + o; }
    // Calls run(whether results leave past the caches).
    template <class Run>
    void with_results(const Run& run) const {
        const bool past_caches = !unrounded && leaves_caches(rows * outputs * int64_t(sizeof(T)));
        run(past_caches);
        if (past_caches) settle_lines();
    }
    // The outputs from o on, whose rows of W are somewhere else.
    Product of_outputs(int64_t o, const T* some_weight, int64_t stride) const {
        Product part = *this;
        part.weight = some_weight;
        part.weight_stride = stride;
        if (y) part.y += o;
        if (unrounded) part.unrounded += o;
        if (bias) part.bias += o;
        return part;
    }
    // Some rows of x.
    Product of_rows(int64_t r, int64_t end) const {
        Product part = *this;
        part.x += r * x_stride;
        part.rows = end - r;
        if (y) part.y += r * y_stride;
        if (unrounded) part.unrounded += r * y_stride;
        return part;
    }

  private:
    template <class Y>
    void put(Y* to, vf sums, int64_t r, int64_t o) const {
        to += r * y_stride + o;
        int64_t left = outputs - o;
        if (left >= W) write(to, bias ? sums + read(bias + o) : sums);
        else if (left > 0) write(to, bias ? sums + read(bias + o, int(left)) : sums, int(left));
    }
};

constexpr int64_t TASK_BYTES = 1024 << 10;  // of W, at most, that a task with few rows goes through
constexpr int64_t ROWS_UNIT = 32;         // of x, a block's are a multiple of it
constexpr int64_t OUTPUTS_BLOCK = 64;     // rows of W, that a task with many goes through
constexpr int64_t SMALL = 32 << 10;       // numbers, or products, done before another thread would have woken up

// Memory of this thread's for packed rows, kept for its next product.
inline uint8_t* packing_room(int64_t size) {
    struct alignas(64) Line { uint8_t bytes[64]; };
    thread_local std::vector<Line> workspace;
    if (int64_t(workspace.size() * sizeof(Line)) < size) workspace.resize(size / sizeof(Line) + 1);
    return workspace.data()->bytes;
}

// Calls task(i) for each i below count, which together go through so many numbers.
template <class Task>
void share(int64_t count, int64_t numbers, const Task& task) {
    if (numbers >= SMALL) return parallel_turns(count, task);
    for (int64_t i = 0; i < count; i++) task(i);
}

// How many rows of x are a block, where at most so many are to be: all alike, and a multiple of what any kernel packs together.
inline int64_t even_blocks(int64_t rows, int64_t most) {
    const int64_t blocks = std::max<int64_t>(1, (rows + most - 1) / most), each = (rows + blocks - 1) / blocks;
    return std::max<int64_t>(1, (each + ROWS_UNIT - 1) / ROWS_UNIT) * ROWS_UNIT;
}

// Where the rows of W begin that this thread comes to after rows start to stop. Threads take pieces in turn: what follows
// in memory is another's, who would fetch it again.
inline int64_t next_piece(int64_t start, int64_t stop) { return start + (stop - start) * thread_count(); }

// A product in pieces that threads take: first those of packing x to `workspace`, of packed_size() bytes, then the others.
struct AnyWork {
    virtual ~AnyWork() = default;
    virtual int64_t packed_size() const = 0;
    virtual int64_t packings() const = 0;
    virtual int64_t pieces() const = 0;
    virtual void pack(int64_t i, uint8_t* workspace) const = 0;
    virtual void multiply(int64_t i, const uint8_t* workspace) const = 0;
};

// The same by one kernel. Where only some outputs are needed, they are in `some`.
template <class Kernel>
class Work final : public AnyWork {
  public:
    static constexpr int64_t TOGETHER = Kernel::PACKED_TOGETHER;

    explicit Work(const Kernel& kernel, const std::vector<Range>& some = {})
        : kernel_(kernel), rows_(kernel.p.rows), outputs_(kernel.p.outputs), block_(kernel.block_rows()), each_(outputs_each()),
          some_(in_pieces(some)), across_(some.empty() ? (outputs_ + each_ - 1) / each_ : int64_t(some_.size())) {}

    int64_t packed_size() const override {
        if constexpr (TOGETHER == 0) return 0;
        else return rows_ / block_ * kernel_.packed_size(block_) + kernel_.packed_size(rows_ % block_);
    }
    // Of W, where it is gone through once.
    Reading reading() const {
        if (rows_ > block_ || !some_.empty()) return {};
        return {(const char*)kernel_.weights(), each_ * kernel_.row_bytes(), outputs_ * kernel_.row_bytes()};
    }
    int64_t packings() const override { return packed_size() == 0 ? 0 : (rows_ + TOGETHER - 1) / TOGETHER; }
    int64_t pieces() const override { return (rows_ + block_ - 1) / block_ * across_; }

    __attribute__((noinline)) void pack(int64_t i, uint8_t* workspace) const override {
        if constexpr (TOGETHER > 0) {
            int64_t r = i * TOGETHER, first = r / block_ * block_;
            kernel_.pack(first, std::min(first + block_, rows_), r, std::min(r + TOGETHER, rows_), of_block(first, workspace));
        }
    }
    __attribute__((noinline)) void multiply(int64_t i, const uint8_t* workspace) const override {
        const int64_t r = i / across_ * block_, n = i % across_;
        const Range piece = some_.empty() ? Range{n * each_, std::min(n * each_ + each_, outputs_)} : some_[n];
        kernel_.block(of_block(r, workspace), r, std::min(r + block_, rows_), piece.start, piece.stop);
    }

  private:
    Kernel kernel_;
    int64_t rows_, outputs_, block_, each_;
    std::vector<Range> some_;
    int64_t across_;

    std::vector<Range> in_pieces(const std::vector<Range>& ranges) const {
        std::vector<Range> pieces;
        for (const Range& range : ranges)
            for (int64_t o = range.start; o < std::min(range.stop, outputs_); o += each_)
                pieces.push_back({o, std::min({o + each_, range.stop, outputs_})});
        return pieces;
    }

    template <class Byte>
    Byte* of_block(int64_t first, Byte* workspace) const {
        if constexpr (TOGETHER == 0) return nullptr;
        else return workspace + first / block_ * kernel_.packed_size(block_);
    }
    int64_t outputs_each() const {
        if (rows_ > block_) return OUTPUTS_BLOCK;
        int64_t of_task = TASK_BYTES / std::max<int64_t>(1, kernel_.row_bytes());
        int64_t each = std::min(of_task, outputs_ / (8 * thread_count())) / PANEL * PANEL;
        return std::max<int64_t>(PANEL, each);
    }
};

// One product, shared among threads, or some outputs of it.
template <class Kernel>
void multiply(const Kernel& kernel, const std::vector<Range>& some = {}) {
    const Work<Kernel> work(kernel, some);
    uint8_t* workspace = packing_room(work.packed_size());
    int64_t numbers = kernel.p.rows * kernel.p.inputs;
    share(work.packings(), numbers, [&](int64_t i) { work.pack(i, workspace); });
    share(work.pieces(), numbers * (some.empty() ? kernel.p.outputs : total(some)), [&](int64_t i) { work.multiply(i, workspace); });
    last_reading() = work.reading();
}

// What is needed of a product, or all of it (null); `kernel_of` says how a product of some of its rows is done.
template <class T, class KernelOf>
void multiply_needed(const Product<T>& p, const Needed* needed, const KernelOf& kernel_of) {
    if (!needed) return multiply(kernel_of(p));
    if (needed->whole > needed->first) multiply(kernel_of(p.of_rows(needed->first, needed->whole)));
    if (needed->count > 0) multiply(kernel_of(p.of_rows(needed->whole, p.rows)), needed->outputs());
}
