// What filters leave of a vocabulary, as the least logit that is left. Nothing is sorted but what lies near it.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/exponential.h"
#include "sampling/vocabulary.h"

// Calls take(part's number, x) for vectors of tempered logits, all among them that are at least `least`.
template <class Take>
inline void each_above(const Vocabulary& words, float least, const Take& take) {
    words.each([&](const Part& part) {
        for (int64_t g = part.first; g < part.end; g++) {
            if (!(words.top(g) >= least) || words.top(g) == NOWHERE) continue;
            vf x[VECTORS];
            words.group(g, x);
            for (const vf& some : x) take(part.number, some);
        }
    });
}

// Those that are at least `least` and in lanes where chosen(x) holds.
template <class Chosen>
inline std::vector<float> members(const Vocabulary& words, float least, const Chosen& chosen) {
    std::vector<std::vector<float>> parts(words.parts());
    each_above(words, least, [&](int64_t part, vf x) {
        each_lane((x >= least) & chosen(x), [&](int i) { parts[part].push_back(x[i]); });
    });
    std::vector<float> all;
    for (const std::vector<float>& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}

// The k-th largest, if so many are at least `floor`; else floor. It is no less than the k-th largest of what is the largest
// of each group.
inline float kth_largest(const Vocabulary& words, int64_t k, float floor) {
    float least = floor;
    if (k <= words.groups()) {
        std::vector<float> tops = words.tops();
        std::nth_element(tops.begin(), tops.begin() + (k - 1), tops.end(), std::greater<float>());
        least = std::max(floor, tops[k - 1]);
    }
    std::vector<float> all = members(words, least, [](vf x) { return x != NOWHERE; });
    if (int64_t(all.size()) < k) return floor;
    std::nth_element(all.begin(), all.begin() + (k - 1), all.end(), std::greater<float>());
    return all[k - 1];
}

// The largest threshold at which what is left has at least `share` of the mass of what is at least `floor`.
inline float nucleus(const Vocabulary& words, float share, float floor) {
    std::vector<double> sums(words.parts(), 0.0);
    each_above(words, floor, [&](int64_t part, vf x) { sums[part] += sum(x >= floor ? exponential(x) : vf{}); });
    double total = 0, mass = 0;
    for (double one : sums) total += one;
    const double wanted = double(share) * total;
    // All that is below this has less than what may be left out.
    const double rest = std::max(1e-30, (total - wanted) / double(words.size()));
    const float least = std::max(floor, float(std::log(rest)) - 0.01f);
    // Masses by equal steps of the logit from 0 down.
    constexpr int32_t BUCKETS = 1024;
    const float by = BUCKETS / std::clamp(least, -87.0f, -1e-6f);
    const auto buckets_of = [=](vf x) {
        return __builtin_convertvector(min(max(x * splat(by), vf{}), splat(BUCKETS - 1)), vi);
    };
    std::vector<std::vector<double>> masses(words.parts());
    each_above(words, least, [&](int64_t part, vf x) {
        std::vector<double>& mine = masses[part];
        mine.resize(BUCKETS);
        int32_t buckets[W];
        float weights[W];
        store(buckets, buckets_of(x));
        store(weights, exponential(x));
        each_lane(x >= least, [&](int i) { mine[buckets[i]] += weights[i]; });
    });
    for (int32_t b = 0; b < BUCKETS; b++) {
        double here = 0;
        for (const std::vector<double>& part : masses)
            if (!part.empty()) here += part[b];
        if (here == 0 || mass + here < wanted) {
            mass += here;
            continue;
        }
        std::vector<float> all = members(words, least, [&](vf x) { return buckets_of(x) == b; });
        std::sort(all.begin(), all.end(), std::greater<float>());
        for (float value : all) {
            mass += std::exp(double(value));
            if (mass >= wanted) return value;
        }
        return all.empty() ? floor : all.back();
    }
    return floor;
}
