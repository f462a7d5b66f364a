// What a grammar forbids: logits become -inf where a bit is 0.
#include <algorithm>

#include "threads.h"

namespace {

constexpr float NOWHERE = -__builtin_inff();
constexpr int64_t BITS = 32;

void mask(float* x, int64_t n, const uint32_t* bits) {
    for (int64_t start = 0; start < n; start += BITS) {
        uint32_t word = bits[start / BITS];
        if (word == ~0u) continue;
        float* part = x + start;
        int64_t count = std::min(BITS, n - start);
        if (word == 0) {
            std::fill(part, part + count, NOWHERE);
        } else if (count == BITS) {
            for (int64_t i = 0; i < BITS; i++) part[i] = word >> i & 1 ? part[i] : NOWHERE;
        } else {
            for (int64_t i = 0; i < count; i++) part[i] = word >> i & 1 ? part[i] : NOWHERE;
        }
    }
}

}  // namespace

EXPORT void pageant_mask_logits(float* logits, int64_t stride, int64_t vocab_size, const int64_t* rows, int64_t count,
                                const uint32_t* bits, int64_t words) {
    parallel_for(count, [&](int64_t i) { mask(logits + rows[i] * stride, vocab_size, bits + i * words); });
}
