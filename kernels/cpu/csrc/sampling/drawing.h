// Gumbel-max: a token is drawn whose score, its logit and a noise, is the largest. Noise grows with its random word. So for a
// group of tokens, a score that is to be reached and the group's largest logit give a word that must be exceeded: comparing
// words is enough to pass over nearly all tokens.
#pragma once

#include <algorithm>
#include <cmath>

#include "sampling/vocabulary.h"

constexpr float GREEDY_TEMPERATURE = 1e-5f;
constexpr float NOISE_MOST = 23;

inline NoiseKey noise_key(int64_t seed, int64_t position, int32_t sample) {
    return {{uint32_t(seed), uint32_t(uint64_t(seed) >> 32)},
            {uint32_t(position), uint32_t(uint64_t(position) >> 32), uint32_t(sample)}};
}
inline double noise_of(uint32_t word) {
    double uniform = (double(word) + 0.5) * 0x1p-32;
    return double(float(-std::log(-std::log(uniform))));
}
// A word that must be exceeded for its noise to reach `gap`: -log(-log u) is less than -log(1 - u).
inline uint32_t word_for(float gap) {
    double word = (1 - double(std::exp(-(gap - 1e-4f)))) * 0x1p32 - 2;
    return word <= 0 ? 0 : uint32_t(word);
}

// Calls take(token, score) for tokens of a group that are at least `floor`, all among them whose scores are at least `bar`.
template <class Take>
inline void each_reaching(const Vocabulary& words, int64_t g, float floor, float bar, const NoiseKey& name, const Take& take) {
    const float top = words.top(g);
    if (!(top >= floor) || top == NOWHERE || top + NOISE_MOST < bar) return;
    const uint32_t least = bar == NOWHERE ? 0 : word_for(bar - top);
    uint32_t noise[4][QUADS];
    philox(name, uint32_t(g * QUADS), noise);
    uint32_t highest = 0;
    for (int i = 0; i < 4; i++)
        for (int q = 0; q < QUADS; q++) highest = std::max(highest, noise[i][q]);
    if (highest < least) return;
    vf x[VECTORS];
    words.group(g, x);
    for (int64_t t = 0; t < GROUP_TOKENS; t++) {
        const uint32_t word = noise[t % 4][t / 4];
        const float logit = x[t / W][t % W];
        if (word < least || !(logit >= floor) || logit == NOWHERE) continue;
        take(g * GROUP_TOKENS + t, logit + float(noise_of(word)));
    }
}

struct Draw {
    float score = NOWHERE;
    int64_t token = 0;

    void take(const Draw& other) {
        if (other.score > score || (other.score == score && other.token < token)) *this = other;
    }
};

// Of what is at least `floor`.
inline Draw draw(const Vocabulary& words, float floor, const NoiseKey& name) {
    const auto draw_group = [&](int64_t g, Draw& best) {
        each_reaching(words, g, floor, best.score, name, [&](int64_t token, float score) { best.take({score, token}); });
    };
    Draw first;  // where the best is likely, and so the bar high from the start
    draw_group(words.top_token() / GROUP_TOKENS, first);
    std::vector<Draw> draws(words.parts(), first);
    words.each([&](const Part& part) {
        Draw mine = first;
        for (int64_t g = part.first; g < part.end; g++) draw_group(g, mine);
        draws[part.number] = mine;
    });
    for (const Draw& one : draws) first.take(one);
    return first;
}
