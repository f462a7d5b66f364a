// Which logits of a row can be of the token that is drawn: for a large vocabulary the product with the head is a quarter of
// what a small model reads for a token, and nearly all of it is of tokens that are far from being drawn. So bounds come first,
// of which each reads half of what its logit would (screening.h), and then logits whose bounds reach to what filters and noise
// leave.
#include "sampling/drawing.h"
#include "sampling/logit_panels.h"
#include "gemm/needed.h"
#include "sampling/screening.h"
#include "gemm/kernel_choice.h"

#include <optional>

#if defined(__AVX512VNNI__)

namespace {

constexpr int64_t TOP_K_MAX = 256;
constexpr float ROUNDING = 1e-5f;  // of what is computed here and, by other steps, where a token is drawn

// How a row's token is drawn; see sampling.cpp.
struct Drawing {
    float temperature;
    int32_t top_k;
    float top_p, min_p;
    NoiseKey noise;

    bool is_greedy() const { return !(temperature >= GREEDY_TEMPERATURE); }
    // Whether all that says if a token is drawn is the largest logit and the best score.
    bool is_by_score() const { return !is_greedy() && top_k <= 0 && !(top_p < 1); }
    // How many of the largest logits say which others matter; 0: none do, any can.
    int64_t deciding() const {
        if (is_greedy() || is_by_score()) return 1;
        if (top_k > 0) return top_k <= TOP_K_MAX ? top_k : 0;
        return min_p > 0 ? 1 : 0;
    }
    // What matters whatever its score is: no smaller logit, where these are the largest, as many as decide, in order.
    float floor(const std::vector<float>& largest) const {
        float least = is_greedy() || is_by_score() || top_k > 0 ? largest.back() : NOWHERE;
        if (!is_greedy() && !is_by_score() && min_p > 0) least = std::max(least, largest[0] + temperature * std::log(min_p));
        return least - ROUNDING * (std::abs(largest[0]) + std::abs(least));
    }
};

// What tokens can score at most, by their bounds.
class Scores {
  public:
    Scores(const float* bounds, int64_t outputs, const Drawing& drawing)
        : drawing_(drawing), words_(bounds, outputs, nullptr, {thread_count()}, workspace()), top_(bounds[words_.top_token()]) {
        words_.temper(drawing.temperature);
    }
    // The panel of the token that would be drawn if bounds were logits.
    int64_t best() const { return draw(words_, below_largest(), drawing_.noise).token / PANEL; }

    // Adds panels of which a token may score best, where the logits of some are there, the largest of all among them.
    void add_reaching(LogitPanels& panels, const std::vector<int64_t>& some, float largest) const {
        const float rounding = ROUNDING * ((std::abs(largest) + std::abs(top_)) / drawing_.temperature + 2 * NOISE_MOST);
        float floor = (largest - top_) / drawing_.temperature + below_largest(), bar = NOWHERE;
        for (int64_t s : some)
            each_reaching(words_, s * PANEL / GROUP_TOKENS, floor + rounding, bar, drawing_.noise, [&](int64_t token, float score) {
                if (token / PANEL == s) bar = std::max(bar, score);
            });
        floor -= rounding, bar -= rounding;
        words_.each([&](const Part& part) {
            for (int64_t g = part.first; g < part.end; g++)
                each_reaching(words_, g, floor, bar, drawing_.noise, [&](int64_t token, float score) {
                    if (score >= bar) panels.add(token / PANEL);
                });
        });
    }

  private:
    const Drawing& drawing_;
    Vocabulary words_;
    const float top_;

    // How far below the largest tokens are drawn.
    float below_largest() const { return drawing_.min_p > 0 ? std::log(drawing_.min_p) : NOWHERE; }
    static std::vector<float>& workspace() {
        thread_local std::vector<float> tops;
        return tops;
    }
};

template <class T>
void screen(const Product<T>& p, const Quantized& w, const Drawing& drawing, Needed* needed) {
    *needed = {0, p.rows, 0};
    const int64_t k = drawing.deciding();
    if (k == 0 || k * PANEL > p.outputs) return;
    multiply(UpperBounds<T>{{p, {w}}});
    const Reading reading = last_reading();
    LogitPanels panels(p.unrounded, p.outputs);
    if (!panels.are_numbers()) return;
    panels.add_highest(k);
    std::optional<Scores> scores;
    if (drawing.is_by_score()) {
        scores.emplace(p.unrounded, p.outputs, drawing);
        panels.add(scores->best());
    }
    const std::vector<int64_t> some = panels.take();
    multiply(tiled_kernel_of<8, true>(p, w), ranges_of(some));
    last_reading() = reading;
    const std::vector<float> largest = panels.largest(some, k);
    panels.add_reaching(drawing.floor(largest));
    if (scores) scores->add_reaching(panels, some, largest[0]);
    const std::vector<Range> others = ranges_of(panels.take());
    if (2 * total(others) > p.outputs) return;
    panels.leave_out_rest();
    *needed = {0, 0, int64_t(others.size())};
    std::copy(others.begin(), others.end(), needed->ranges());
}

}  // namespace

// What is needed of the logits [1, outputs] to draw a token from as it is said: all; or what there is workspace for in
// `needed`, at most every other panel. In `logits` are some that were needed to find that out then, and -inf for tokens that
// are not drawn.
#define SCREEN(SUFFIX, T)                                                                                                        \
    EXPORT void pageant_screen_##SUFFIX(const T* x, const uint8_t* upper, const uint8_t* lower, const bf16* scales,              \
                                        int64_t inputs, int64_t outputs, const float* temperature, const int32_t* top_k,        \
                                        const float* top_p, const float* min_p, const int64_t* seed, const int32_t* sample,     \
                                        const int64_t* position, float* logits, Needed* needed) {                               \
        const Product<T> p{x, inputs, nullptr, 0, nullptr, nullptr, 1, inputs, outputs, logits};                                \
        const Drawing drawing{*temperature, *top_k, *top_p, *min_p, noise_key(*seed, *position, *sample)};                      \
        screen(p, Quantized{upper, scales, inputs, 1, lower}, drawing, needed);                                                 \
    }
SCREEN(bf16, bf16)
SCREEN(f16, f16)
#endif
