// What a grammar forbids: logits become -inf where a bit is 0.
#include "sampling/masks.h"

#include "base/threads.h"

EXPORT void pageant_mask_logits(float* logits, int64_t stride, int64_t vocab_size, const int64_t* rows, int64_t count,
                                const uint32_t* bits, int64_t words) {
    parallel_for(count, [&](int64_t i) { mask(logits + rows[i] * stride, vocab_size, bits + i * words); });
}
