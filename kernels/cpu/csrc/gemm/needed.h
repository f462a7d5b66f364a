// Which results of a product somebody reads: of some rows all, and of those behind them what some outputs make.
#pragma once

#include <cstdint>
#include <vector>

struct Range { int64_t start, stop; };

inline int64_t total(const std::vector<Range>& ranges) {
    int64_t sum = 0;
    for (const Range& range : ranges) sum += range.stop - range.start;
    return sum;
}

// As it lies in memory, with its ranges behind it.
struct Needed {
    int64_t first, whole;  // rows first to whole are needed whole, and what is behind them in ranges
    int64_t count;         // of ranges

    const Range* ranges() const { return reinterpret_cast<const Range*>(this + 1); }
    Range* ranges() { return reinterpret_cast<Range*>(this + 1); }
    std::vector<Range> outputs() const { return {ranges(), ranges() + count}; }
};
