// Bounds of a row's logits by panels, some of which become the logits.
#pragma once

#include <algorithm>
#include <functional>

#include "gemm/needed.h"
#include "base/rows.h"

#if defined(__AVX512F__)

class LogitPanels {
  public:
    LogitPanels(float* logits, int64_t outputs) : logits_(logits), tops_(outputs / PANEL), states_(outputs / PANEL) {
        parallel_ranges(count(), ALONE, [&](int64_t start, int64_t stop) {
            for (int64_t s = start; s < stop; s++) {
                const float top = maximum(read(logits_ + s * PANEL));
                tops_[s] = top == top ? top : INFINITY;
            }
        });
    }
    // Whether each has a bound.
    bool are_numbers() const { return *std::max_element(tops_.begin(), tops_.end()) < INFINITY; }

    // Of each panel, one thread at a time.
    void add(int64_t panel) {
        if (states_[panel] == LEFT) states_[panel] = ADDED;
    }
    // As many with the largest bounds.
    void add_highest(int64_t k) {
        std::vector<float> order = tops_;
        std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<float>());
        const float least = order[k - 1];
        for (int64_t s = 0; s < count() && k > 0; s++)
            if (tops_[s] >= least) add(s), k--;
    }
    // Those with a bound that is not below the floor.
    void add_reaching(float floor) {
        for (int64_t s = 0; s < count(); s++)
            if (tops_[s] >= floor) add(s);
    }
    // Those that were added since the last call, in the order of memory.
    std::vector<int64_t> take() {
        std::vector<int64_t> added;
        for (int64_t s = 0; s < count(); s++)
            if (states_[s] == ADDED) states_[s] = TAKEN, added.push_back(s);
        return added;
    }
    // Nothing of what was never taken is drawn.
    void leave_out_rest() {
        parallel_ranges(count(), ALONE, [&](int64_t start, int64_t stop) {
            for (int64_t s = start; s < stop; s++)
                if (states_[s] == LEFT) write(logits_ + s * PANEL, splat(NOWHERE));
        });
    }

    // The k largest of some, in order.
    std::vector<float> largest(const std::vector<int64_t>& some, int64_t k) const {
        std::vector<float> all;
        for (int64_t s : some) all.insert(all.end(), logits_ + s * PANEL, logits_ + (s + 1) * PANEL);
        std::partial_sort(all.begin(), all.begin() + k, all.end(), std::greater<float>());
        all.resize(k);
        return all;
    }

  private:
    enum State : char { LEFT, ADDED, TAKEN };
    static constexpr int64_t ALONE = NUMBERS_ALONE / PANEL;  // what one thread goes through
    static_assert(PANEL == W, "a panel is a vector");
    float* logits_;
    std::vector<float> tops_;
    std::vector<State> states_;

    int64_t count() const { return int64_t(tops_.size()); }
};

inline std::vector<Range> ranges_of(const std::vector<int64_t>& panels) {
    std::vector<Range> ranges;
    for (int64_t s : panels) {
        if (!ranges.empty() && ranges.back().stop == s * PANEL) ranges.back().stop += PANEL;
        else ranges.push_back({s * PANEL, (s + 1) * PANEL});
    }
    return ranges;
}
#endif
