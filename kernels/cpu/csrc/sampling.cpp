// Drawing tokens by Gumbel-max, a row on each thread, without sorting the vocabulary and mostly without a
// logarithm. pageant/kernels/sampling.py says what is drawn; the result here is the same.
//
// The filters are thresholds, found with a histogram over the logits' leading bits: one pass finds the bucket
// that a threshold lies in, and only that bucket's few members are sorted.
//
// The draw is argmax(logit + noise), and noise grows with its random word. So for a group of tokens, the best
// score so far and the group's largest logit give a word that must be exceeded: comparing words is enough to
// pass over nearly all tokens.
#include <algorithm>
#include <cmath>
#include <vector>

#include "exponential.h"
#include "masks.h"
#include "philox.h"
#include "rows.h"

namespace {

constexpr float GREEDY_TEMPERATURE = 1e-5f;
constexpr int64_t GROUP = 4 * QUADS;

struct Rows {
    const float* logits;
    int64_t stride, vocab_size;
    const float* temperature;
    const int32_t* top_k;
    const float* top_p;
    const float* min_p;
    const int64_t* seed;
    const int32_t* sample;
    const int64_t* position;
    const std::vector<const uint32_t*>& allowed;  // a bit for each token, or nothing where all may be drawn
};

// By groups: a loop that may end at each number is not made vectors of.
int64_t first_of(const float* x, int64_t n, float value) {
    int64_t i = 0;
    for (; i + GROUP <= n; i += GROUP) {
        int found = 0;
        for (int64_t j = 0; j < GROUP; j++) found |= x[i + j] == value;
        if (found) break;
    }
    for (; i < n; i++)
        if (x[i] == value) return i;
    return 0;
}

// Buckets of floats that are 0 or less (or -inf), the largest in bucket 0: sign apart, a float's bits grow
// with its size.
constexpr int BUCKET_BITS = 11;
constexpr int BUCKETS = 1 << BUCKET_BITS;
inline uint32_t bucket_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return (bits & 0x7fffffffu) >> (31 - BUCKET_BITS);
}

// Values of one bucket in falling order, those below `floor` left out.
void members(const float* x, int64_t n, uint32_t bucket, float floor, std::vector<float>& to) {
    to.clear();
    for (int64_t i = 0; i < n; i++)
        if (bucket_of(x[i]) == bucket && x[i] >= floor) to.push_back(x[i]);
    std::sort(to.begin(), to.end(), std::greater<float>());
}

// The k-th largest of x, if so many are at least `floor`; else floor.
float kth_largest(const float* x, int64_t n, int64_t k, float floor, std::vector<float>& memory) {
    std::vector<int32_t> counts(BUCKETS, 0);
    for (int64_t i = 0; i < n; i++)
        if (x[i] >= floor) counts[bucket_of(x[i])]++;
    for (uint32_t b = 0; b < BUCKETS; k -= counts[b++]) {
        if (counts[b] < k) continue;
        members(x, n, b, floor, memory);
        return memory[k - 1];
    }
    return floor;
}

// The largest threshold at which what is left has at least `share` of the mass of what is at least `floor`.
float nucleus(const float* x, int64_t n, float share, float floor, std::vector<float>& memory) {
    std::vector<double> masses(BUCKETS, 0.0);
    double total = 0;
    for (int64_t i = 0; i < n; i += W) {
        int count = int(std::min<int64_t>(W, n - i));
        vf values = count == W ? read(x + i) : read(x + i, count);
        vf weights = exponential(values);
        for (int j = 0; j < count; j++) {
            if (values[j] < floor || weights[j] == 0) continue;
            masses[bucket_of(values[j])] += weights[j];
            total += weights[j];
        }
    }
    double wanted = double(share) * total, mass = 0;
    for (uint32_t b = 0; b < BUCKETS; mass += masses[b++]) {
        if (masses[b] == 0 || mass + masses[b] < wanted) continue;
        members(x, n, b, floor, memory);
        for (float value : memory) {
            mass += std::exp(double(value));
            if (mass >= wanted) return value;
        }
        return memory.empty() ? floor : memory.back();
    }
    return floor;
}

double noise_of(uint32_t word) {
    double uniform = (double(word) + 0.5) * 0x1p-32;
    return double(float(-std::log(-std::log(uniform))));
}

// The largest word whose noise surely stays below `gap`, or 0.
uint32_t word_for(float gap) {
    double word = std::exp(-std::exp(-(double(gap) - 1e-4))) * 0x1p32 - 2;
    return word <= 0 ? 0 : word >= 0x1p32 - 1 ? 0xfffffffeu : uint32_t(word);
}

struct Draw {
    float score = NOWHERE;
    int64_t token = 0;
};

// Draws among the tokens from `start` on, GROUP of them at most, that are at least `floor`.
void draw_group(const float* x, int64_t n, int64_t start, float floor, const NoiseKey& name, Draw& draw) {
    int64_t count = std::min(GROUP, n - start);
    float top = largest_of(x + start, count);
    if (top < floor || top == NOWHERE) return;
    uint32_t least = draw.score == NOWHERE ? 0 : word_for(draw.score - top);
    uint32_t words[4][QUADS];
    philox(name, uint32_t(start / 4), words);
    uint32_t highest = 0;
    for (int i = 0; i < 4; i++)
        for (int q = 0; q < QUADS; q++) highest = std::max(highest, words[i][q]);
    if (highest < least) return;
    for (int64_t t = 0; t < count; t++) {
        uint32_t word = words[t % 4][t / 4];
        float logit = x[start + t];
        if (word < least || logit < floor || logit == NOWHERE) continue;
        float score = logit + float(noise_of(word));
        if (score > draw.score || (score == draw.score && start + t < draw.token)) draw = {score, start + t};
    }
}

int64_t draw_row(const Rows& rows, int64_t r) {
    const float* logits = rows.logits + r * rows.stride;
    int64_t n = rows.vocab_size;
    const uint32_t* allowed = rows.allowed.empty() ? nullptr : rows.allowed[r];
    int64_t top_token = allowed ? first_largest_of(logits, n, allowed) : first_of(logits, n, largest_of(logits, n));
    float top = logits[top_token];
    if (!(rows.temperature[r] >= GREEDY_TEMPERATURE)) return top_token;
    static thread_local std::vector<float> tempered, memory;
    tempered.resize(n);
    float* x = tempered.data();
    float temperature = rows.temperature[r];
    for (int64_t i = 0; i < n; i++) x[i] = (logits[i] - top) / temperature;
    if (allowed) mask(x, n, allowed);
    float floor = rows.min_p[r] > 0 ? std::log(rows.min_p[r]) : NOWHERE;
    if (rows.top_k[r] > 0 && rows.top_k[r] < n) floor = kth_largest(x, n, rows.top_k[r], floor, memory);
    if (rows.top_p[r] < 1) floor = nucleus(x, n, rows.top_p[r], floor, memory);
    uint64_t seed = uint64_t(rows.seed[r]), position = uint64_t(rows.position[r]);
    NoiseKey name{{uint32_t(seed), uint32_t(seed >> 32)},
                  {uint32_t(position), uint32_t(position >> 32), uint32_t(rows.sample[r])}};
    Draw draw;
    int64_t first = top_token / GROUP * GROUP;  // where the best is likely, and so the bar high from the start
    draw_group(x, n, first, floor, name, draw);
    for (int64_t start = 0; start < n; start += GROUP)
        if (start != first) draw_group(x, n, start, floor, name, draw);
    return draw.token;
}

}  // namespace

EXPORT void pageant_sample(const float* logits, int64_t stride, int64_t rows, int64_t vocab_size,
                           const float* temperature, const int32_t* top_k, const float* top_p,
                           const float* min_p, const int64_t* seed, const int32_t* sample,
                           const int64_t* position, const int64_t* masked, int64_t masks, const uint32_t* bits,
                           int64_t words, int64_t* tokens) {
    std::vector<const uint32_t*> allowed(masks ? rows : 0, nullptr);
    for (int64_t i = 0; i < masks; i++) allowed[masked[i]] = bits + i * words;
    Rows all{logits, stride, vocab_size, temperature, top_k, top_p, min_p, seed, sample, position, allowed};
    if (rows * vocab_size < 8192) {
        for (int64_t r = 0; r < rows; r++) tokens[r] = draw_row(all, r);
        return;
    }
    parallel_for(rows, [&](int64_t r) { tokens[r] = draw_row(all, r); });
}
