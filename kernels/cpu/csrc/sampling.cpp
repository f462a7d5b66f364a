// Drawing tokens by Gumbel-max, without sorting the vocabulary and mostly without a logarithm.
// pageant/kernels/sampling.py says what is drawn; the result here is the same.
//
// The draw is argmax(logit + noise), and noise grows with its random word. So for a group of tokens, the best
// score so far and the group's largest logit give a word that must be exceeded: comparing words is enough to
// pass over nearly all tokens.
#include <algorithm>
#include <cmath>
#include <vector>

#include "slots.h"
#include "thresholds.h"

namespace {

constexpr float GREEDY_TEMPERATURE = 1e-5f;

struct Rows {
    const float* logits;
    int64_t stride, vocab_size;
    const int64_t* places;  // of their logits; nullptr where each is in its own
    const float* temperature;
    const int32_t* top_k;
    const float* top_p;
    const float* min_p;
    const int64_t* seed;
    const int32_t* sample;
    const int64_t* position;
    const int64_t* slots;  // of the masks; nullptr where all may be drawn of all rows
    const uint32_t* bits;
    int64_t words;  // of a mask

    bool is_void(int64_t r) const { return slots && slots[r] == VOID; }
    const float* of(int64_t r) const { return logits + (places ? places[r] : r) * stride; }
    const uint32_t* allowed(int64_t r) const { return slots && slots[r] >= 0 ? bits + slots[r] * words : nullptr; }
};

double noise_of(uint32_t word) {
    double uniform = (double(word) + 0.5) * 0x1p-32;
    return double(float(-std::log(-std::log(uniform))));
}

// A word that must be exceeded for its noise to reach `gap`: -log(-log u) is less than -log(1 - u).
uint32_t word_for(float gap) {
    double word = (1 - double(std::exp(-(gap - 1e-4f)))) * 0x1p32 - 2;
    return word <= 0 ? 0 : uint32_t(word);
}
constexpr float NOISE_MOST = 23;

struct Draw {
    float score = NOWHERE;
    int64_t token = 0;

    void take(const Draw& other) {
        if (other.score > score || (other.score == score && other.token < token)) *this = other;
    }
};

// Draws among the tokens of a group that are at least `floor`.
void draw_group(const Vocabulary& words, int64_t g, float floor, const NoiseKey& name, Draw& draw) {
    const float top = words.top(g);
    if (!(top >= floor) || top == NOWHERE || top + NOISE_MOST < draw.score) return;
    const uint32_t least = draw.score == NOWHERE ? 0 : word_for(draw.score - top);
    uint32_t noise[4][QUADS];
    philox(name, uint32_t(g * QUADS), noise);
    uint32_t highest = 0;
    for (int i = 0; i < 4; i++)
        for (int q = 0; q < QUADS; q++) highest = std::max(highest, noise[i][q]);
    if (highest < least) return;
    vf x[VECTORS];
    words.group(g, x);
    for (int64_t t = 0; t < GROUP; t++) {
        const uint32_t word = noise[t % 4][t / 4];
        const float logit = x[t / W][t % W];
        if (word < least || !(logit >= floor) || logit == NOWHERE) continue;
        draw.take({logit + float(noise_of(word)), g * GROUP + t});
    }
}

int64_t draw_row(const Rows& rows, int64_t r, Parts parts) {
    if (rows.is_void(r)) return 0;
    static thread_local std::vector<float> tops;
    Vocabulary words(rows.of(r), rows.vocab_size, rows.allowed(r), parts, tops);
    if (!(rows.temperature[r] >= GREEDY_TEMPERATURE)) return words.top_token();
    words.temper(rows.temperature[r]);
    float floor = rows.min_p[r] > 0 ? std::log(rows.min_p[r]) : NOWHERE;
    if (rows.top_k[r] > 0 && rows.top_k[r] < rows.vocab_size) floor = kth_largest(words, rows.top_k[r], floor);
    if (rows.top_p[r] < 1) floor = nucleus(words, rows.top_p[r], floor);
    uint64_t seed = uint64_t(rows.seed[r]), position = uint64_t(rows.position[r]);
    NoiseKey name{{uint32_t(seed), uint32_t(seed >> 32)},
                  {uint32_t(position), uint32_t(position >> 32), uint32_t(rows.sample[r])}};
    Draw first;  // where the best is likely, and so the bar high from the start
    draw_group(words, words.top_token() / GROUP, floor, name, first);
    std::vector<Draw> draws(parts.count, first);
    words.each([&](const Part& part) {
        Draw mine = first;
        for (int64_t g = part.first; g < part.end; g++) draw_group(words, g, floor, name, mine);
        draws[part.number] = mine;
    });
    for (const Draw& draw : draws) first.take(draw);
    return first.token;
}

}  // namespace

EXPORT void pageant_sample(const float* logits, int64_t stride, const int64_t* places, int64_t rows,
                           int64_t vocab_size, const float* temperature, const int32_t* top_k, const float* top_p,
                           const float* min_p, const int64_t* seed, const int32_t* sample,
                           const int64_t* position, const int64_t* slots, const uint32_t* bits, int64_t words,
                           int64_t* tokens) {
    Rows all{logits, stride, vocab_size, places, temperature, top_k, top_p, min_p, seed, sample, position, slots, bits, words};
    // As many as there are threads at once, a row on each; the last few by all threads together.
    const int64_t threads = vocab_size < NUMBERS_ALONE ? 1 : thread_count(), alone = rows / threads * threads;
    for_rows(alone, vocab_size, [&](int64_t r) { tokens[r] = draw_row(all, r, {1}); });
    for (int64_t r = alone; r < rows; r++) tokens[r] = draw_row(all, r, {threads});
}
