// Which logits of a row can be of the token that is drawn: for a large vocabulary the product with the head is a quarter of what a
// small model reads for a token, and nearly all of it is of tokens that are far from being drawn. So bounds come first, of which
// each reads half of what its logit would (screening.h), and then logits whose bounds reach to what the filters leave.
#include "needed.h"
#include "rows.h"
#include "screening.h"
#include "ways.h"

#include <algorithm>
#include <cmath>
#include <functional>

#if defined(__AVX512VNNI__)

namespace {

constexpr float GREEDY_TEMPERATURE = 1e-5f;
constexpr int64_t TOP_K_MAX = 256;
constexpr int64_t STRIPS_ALONE = NUMBERS_ALONE / STRIP;

// How a row's token is drawn; see sampling.cpp.
struct Drawing {
    float temperature;
    int32_t top_k;
    float min_p;

    bool is_greedy() const { return !(temperature >= GREEDY_TEMPERATURE); }
    // How many of the largest logits say which others matter; 0: none do, any token can be drawn.
    int64_t deciding() const {
        if (is_greedy()) return 1;
        if (top_k > 0) return top_k <= TOP_K_MAX ? top_k : 0;
        return min_p > 0 ? 1 : 0;
    }
    // No smaller logit than this can be drawn, where these are the largest, as many as decide, in order. Filters look at
    // logits that were tempered, which rounds them.
    float floor(const std::vector<float>& largest) const {
        constexpr float ROUNDING = 1e-5f;
        float least = is_greedy() || top_k > 0 ? largest.back() : NOWHERE;
        if (!is_greedy() && min_p > 0) least = std::max(least, largest[0] + temperature * std::log(min_p));
        return least - ROUNDING * (std::abs(largest[0]) + std::abs(least));
    }
};

// Bounds or logits by strips.
class LogitStrips {
  public:
    LogitStrips(float* logits, int64_t outputs) : logits_(logits), tops_(outputs / STRIP) {
        parallel_ranges(count(), STRIPS_ALONE, [&](int64_t start, int64_t stop) {
            for (int64_t s = start; s < stop; s++) {
                const float top = maximum(read(logits_ + s * STRIP));
                tops_[s] = top == top ? top : INFINITY;  // what is no number has no bound
            }
        });
    }
    int64_t count() const { return int64_t(tops_.size()); }

    // Those with the largest numbers, in the order of memory.
    std::vector<int64_t> highest(int64_t k) const {
        std::vector<float> order = tops_;
        std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<float>());
        std::vector<int64_t> found;
        for (int64_t s = 0; s < count() && int64_t(found.size()) < k; s++)
            if (tops_[s] >= order[k - 1]) found.push_back(s);
        return found;
    }
    // The k largest numbers of some, in order; what is no number comes last, as if it were not there.
    std::vector<float> largest(const std::vector<int64_t>& some, int64_t k) const {
        std::vector<float> all;
        for (int64_t s : some)
            for (int64_t i = s * STRIP; i < (s + 1) * STRIP; i++) all.push_back(logits_[i] > NOWHERE ? logits_[i] : NOWHERE);
        std::partial_sort(all.begin(), all.begin() + k, all.end(), std::greater<float>());
        all.resize(k);
        return all;
    }
    // Those, beside some that are done, of which a number is not below the floor. Those of no others are drawn.
    std::vector<int64_t> reaching(float floor, const std::vector<int64_t>& done) {
        std::vector<std::vector<int64_t>> parts((count() + STRIPS_ALONE - 1) / STRIPS_ALONE);
        std::vector<char> is_done(count());
        for (int64_t s : done) is_done[s] = 1;
        parallel_ranges(count(), STRIPS_ALONE, [&](int64_t start, int64_t stop) {
            for (int64_t s = start; s < stop; s++) {
                if (is_done[s]) continue;
                if (tops_[s] < floor) write(logits_ + s * STRIP, splat(NOWHERE));
                else parts[start / STRIPS_ALONE].push_back(s);
            }
        });
        std::vector<int64_t> found;
        for (const auto& part : parts) found.insert(found.end(), part.begin(), part.end());
        return found;
    }

  private:
    float* logits_;
    std::vector<float> tops_;
};

std::vector<Range> ranges_of(const std::vector<int64_t>& strips) {
    std::vector<Range> ranges;
    for (int64_t s : strips) {
        if (!ranges.empty() && ranges.back().stop == s * STRIP) ranges.back().stop += STRIP;
        else ranges.push_back({s * STRIP, (s + 1) * STRIP});
    }
    return ranges;
}

template <class T>
void screen(const Product<T>& p, const Quantized& w, const Drawing& drawing, Needed* needed) {
    *needed = {0, p.rows, 0};
    const int64_t k = drawing.deciding();
    if (k == 0 || k * STRIP > p.outputs) return;
    multiply(UpperBounds<T>{{p, {w}}});
    const Reading reading = last_reading();
    LogitStrips strips(p.unrounded, p.outputs);
    const std::vector<int64_t> highest = strips.highest(k);
    multiply(tiled_way_of<8>(p, w), ranges_of(highest));
    last_reading() = reading;
    const std::vector<float> largest = strips.largest(highest, k);
    if (!(largest.back() > NOWHERE)) return;
    const std::vector<Range> others = ranges_of(strips.reaching(drawing.floor(largest), highest));
    if (2 * total(others) > p.outputs) return;
    *needed = {0, 0, int64_t(others.size())};
    std::copy(others.begin(), others.end(), needed->ranges());
}

}  // namespace

// What is needed of the logits [1, outputs] to draw a token from as it is said: all; or what there is room for in `needed`, at most
// every other strip. In `logits` are some that were needed to find that out then, and -inf for tokens that are not drawn.
#define SCREEN(SUFFIX, T)                                                                                                        \
    EXPORT void pageant_screen_##SUFFIX(const T* x, const uint8_t* upper, const uint8_t* lower, const bf16* scales,                \
                                        int64_t inputs, int64_t outputs,                                                        \
                                        const float* temperature, const int32_t* top_k, const float* min_p,                     \
                                        float* logits, Needed* needed) {                                                        \
        const Product<T> p{x, inputs, nullptr, 0, nullptr, nullptr, 1, inputs, outputs, logits};                                \
        screen(p, Quantized{upper, scales, inputs, 1, lower}, Drawing{*temperature, *top_k, *min_p}, needed);                    \
    }
SCREEN(bf16, bf16)
SCREEN(f16, f16)
#endif
