// A row of logits, gone through by groups of tokens: by one thread, or by all of them in parts.
#pragma once

#include <vector>

#include "sampling/masks.h"
#include "base/philox.h"

constexpr int64_t GROUP_TOKENS = 4 * QUADS;  // tokens
constexpr int VECTORS = GROUP_TOKENS / W;

// Some of a row's groups.
struct Part { int64_t number, first, end; };

// How many parts a row is gone through in, each by a thread; one is this thread's.
struct Parts {
    int64_t count;

    // Calls task(part) for each.
    template <class Task>
    void each(int64_t groups, const Task& task) const {
        parallel_for(count, [&](int64_t i) { task(Part{i, i * groups / count, (i + 1) * groups / count}); });
    }
};

// What may be drawn, tempered: the largest is 0. Nothing is kept but the largest of each group.
class Vocabulary {
  public:
    Vocabulary(const float* logits, int64_t size, const uint32_t* allowed, Parts parts, std::vector<float>& tops)
        : logits_(logits), size_(size), allowed_(allowed), parts_(parts), tops_(tops) {
        tops.resize(groups());
        std::vector<Place> found(parts.count);
        each([&](const Part& part) {
            for (int64_t g = part.first; g < part.end; g++) {
                tops_[g] = largest_in(g);
                if (tops_[g] > found[part.number].logit) found[part.number] = {tops_[g], g};
            }
        });
        Place best;
        for (const Place& one : found)
            if (one.logit > best.logit) best = one;
        if (best.logit == NOWHERE) return;
        top_ = best.logit;
        vf x[VECTORS];
        raw(best.group, x);
        int64_t i = 0;
        while (x[i / W][i % W] != top_) i++;
        top_token_ = best.group * GROUP_TOKENS + i;
    }

    int64_t size() const { return size_; }
    int64_t groups() const { return (size_ + GROUP_TOKENS - 1) / GROUP_TOKENS; }
    // That of the largest logit, the first of equals; 0 if nothing may be drawn.
    int64_t top_token() const { return top_token_; }

    // What comes below is of logits after this.
    void temper(float temperature) {
        temperature_ = temperature;
        along(groups(), [&](int64_t g, int n) { put(&tops_[g], (get(&tops_[g], n) - splat(top_)) / splat(temperature), n); });
    }
    // The largest of a group.
    float top(int64_t g) const { return tops_[g]; }
    const std::vector<float>& tops() const { return tops_; }
    // All of a group; -inf is what may not be drawn.
    void group(int64_t g, vf (&x)[VECTORS]) const {
        raw(g, x);
        for (vf& part : x) part = (part - splat(top_)) / splat(temperature_);
    }
    template <class Task>
    void each(const Task& task) const { parts_.each(groups(), task); }
    int64_t parts() const { return parts_.count; }

  private:
    struct Place {
        float logit = NOWHERE;
        int64_t group = 0;
    };
    const float* logits_;
    int64_t size_;
    const uint32_t* allowed_;
    Parts parts_;
    std::vector<float>& tops_;
    float top_ = NOWHERE, temperature_ = 1;
    int64_t top_token_ = 0;

    // Which of a group's tokens may be drawn, a bit for each.
    uint64_t allowed_in(int64_t g) const {
        static_assert(GROUP_TOKENS == 2 * MASK_BITS);
        if (!allowed_) return ~uint64_t(0);
        const uint32_t* words = allowed_ + 2 * g;
        return words[0] | (size_ - g * GROUP_TOKENS > MASK_BITS ? uint64_t(words[1]) << MASK_BITS : 0);
    }
    void raw(int64_t g, vf (&x)[VECTORS]) const { raw(g, allowed_in(g), x); }
    void raw(int64_t g, uint64_t allowed, vf (&x)[VECTORS]) const {
        const int64_t left = size_ - g * GROUP_TOKENS;
        for (int v = 0; v < VECTORS; v++) {
            const int64_t start = g * GROUP_TOKENS + v * W, here = left - v * W;
            x[v] = here >= W ? read(logits_ + start) : splat(NOWHERE);
            for (int64_t i = 0; i < here && here < W; i++) x[v][i] = logits_[start + i];
            if (allowed != ~uint64_t(0)) x[v] = allowed_of(x[v], uint32_t(allowed >> v * W));
        }
    }
    float largest_in(int64_t g) const {
        const uint64_t allowed = allowed_in(g);
        if (!allowed) return NOWHERE;  // its logits are not even read
        vf x[VECTORS], best = splat(NOWHERE);
        raw(g, allowed, x);
        for (const vf& part : x) best = max(best, part);
        return maximum(best);
    }
};
