// Short causal convolutions of recurrent layers, whose last inputs lie in pages (kernels/base.py, causal_conv). Each token's sum
// is taken in the order of the taps, so that its bits do not depend on which tokens are computed with it.
#include "base/activations.h"
#include "layers/states.h"

namespace {

constexpr int64_t SLICE = 256;  // channels of a task

template <class T>
struct Convolution {
    States states;
    const T* channels;  // [tokens, C]
    int64_t stride;
    const T *taps, *bias;  // [C, kernel], and [C] or nothing
    bool activated;
    T* y;                // [tokens, C]
    int64_t first_byte;  // of the inputs in a state
    int64_t num_channels, kernel;

    // The task of a sequence's channels from `from` on.
    void slice(const int64_t* sequence, int64_t from) const {
        const int64_t size = std::min(SLICE, num_channels - from), before = kernel - 1;
        static thread_local Scratch<float> scratch;
        float* inputs = scratch.take((TOKENS_MAX + 2 * kernel + 1) * SLICE);  // [tokens, SLICE]: those before a tile, then its own
        float *own_taps = inputs + (TOKENS_MAX + before) * SLICE, *own_bias = own_taps + kernel * SLICE;
        T* row = (T*)(own_bias + SLICE);
        for (int64_t c = 0; c < size; c++) {
            for (int64_t j = 0; j < kernel; j++) own_taps[j * SLICE + c] = to_float(taps[(from + c) * kernel + j]);
            own_bias[c] = bias ? to_float(bias[from + c]) : 0.0f;
        }
        for (int64_t j = 0; j < before; j++) {
            if (sequence[2]) {
                std::fill_n(inputs + j * SLICE, size, 0.0f);
            } else {
                states.load_bytes(sequence + 3, byte_of(j, from), size * sizeof(T), row);
                along(size, [&](int64_t c, int n) { put(inputs + j * SLICE + c, get(row + c, n), n); });
            }
        }
        for (int64_t r = sequence[0]; r < sequence[1]; r++) {
            const int64_t* run = states.run(r);
            for (int64_t first = run[0]; first < run[1]; first += TOKENS_MAX)
                take_in(states.tokens + first, std::min(TOKENS_MAX, run[1] - first), from, size, inputs, own_taps, own_bias);
            for (int64_t j = 0; run[2] && j < before; j++) {
                along(size, [&](int64_t c, int n) { put(row + c, get(inputs + j * SLICE + c, n), n); });
                states.store_bytes(run + 3, byte_of(j, from), size * sizeof(T), row);
            }
        }
    }

    // Computes some tokens, and leaves the last inputs before the first.
    void take_in(const int64_t* tokens, int64_t count, int64_t from, int64_t size, float* inputs, const float* own_taps,
                 const float* own_bias) const {
        float* own = inputs + (kernel - 1) * SLICE;
        for (int64_t t = 0; t < count; t++) {
            const T* source = channels + tokens[t] * stride + from;
            along(size, [&](int64_t c, int n) { put(own + t * SLICE + c, get(source + c, n), n); });
        }
        for (int64_t t = 0; t < count; t++) {
            T* to = y + tokens[t] * num_channels + from;
            along(size, [&](int64_t c, int n) {
                vf sum = get(inputs + t * SLICE + c, n) * get(own_taps + c, n);
                for (int64_t j = 1; j < kernel; j++)
                    sum = fma(get(inputs + (t + j) * SLICE + c, n), get(own_taps + j * SLICE + c, n), sum);
                sum = sum + get(own_bias + c, n);
                put(to + c, activated ? Silu::of<T>(sum) : sum, n);
            });
        }
        std::copy_n(inputs + count * SLICE, (kernel - 1) * SLICE, inputs);
    }

    int64_t byte_of(int64_t row, int64_t channel) const {
        return first_byte + (row * num_channels + channel) * int64_t(sizeof(T));
    }
};

template <class T>
void causal_conv(const Convolution<T>& p, int64_t sequences) {
    const int64_t slices = (p.num_channels + SLICE - 1) / SLICE;
    parallel_for(sequences * slices,
                 [&](int64_t task) { p.slice(p.states.sequence(task / slices), task % slices * SLICE); });
}

}  // namespace

#define CAUSAL_CONV(NAME, T)                                                                                             \
    EXPORT void NAME(const T* channels, int64_t stride, const T* taps, const T* bias, int64_t activated, T* y,           \
                     const int64_t* pages, int64_t page_bytes, int64_t first_byte, const int64_t* tokens,                \
                     const int64_t* sequences, int64_t num_sequences, const int64_t* runs, int64_t groups,               \
                     int64_t num_channels, int64_t kernel) {                                                             \
        causal_conv<T>({{(const Page*)pages, page_bytes, tokens, sequences, runs, groups},                               \
                        channels, stride, taps, bias, activated != 0, y, first_byte, num_channels, kernel},              \
                       num_sequences);                                                                                   \
    }
CAUSAL_CONV(pageant_causal_conv_f32, float)
CAUSAL_CONV(pageant_causal_conv_bf16, bf16)
CAUSAL_CONV(pageant_causal_conv_f16, f16)
