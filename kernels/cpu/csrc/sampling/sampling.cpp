// Drawing tokens by Gumbel-max, without sorting the vocabulary and mostly without a logarithm.
// pageant/kernels/sampling.py says what is drawn; the result here is the same.
#include <vector>

#include "sampling/drawing.h"
#include "base/slots.h"
#include "sampling/thresholds.h"

namespace {

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

int64_t draw_row(const Rows& rows, int64_t r, Parts parts) {
    if (rows.is_void(r)) return 0;
    static thread_local std::vector<float> tops;
    Vocabulary words(rows.of(r), rows.vocab_size, rows.allowed(r), parts, tops);
    if (!(rows.temperature[r] >= GREEDY_TEMPERATURE)) return words.top_token();
    words.temper(rows.temperature[r]);
    float floor = rows.min_p[r] > 0 ? std::log(rows.min_p[r]) : NOWHERE;
    if (rows.top_k[r] > 0 && rows.top_k[r] < rows.vocab_size) floor = kth_largest(words, rows.top_k[r], floor);
    if (rows.top_p[r] < 1) floor = nucleus(words, rows.top_p[r], floor);
    return draw(words, floor, noise_key(rows.seed[r], rows.position[r], rows.sample[r])).token;
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
