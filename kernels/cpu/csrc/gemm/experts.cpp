// A mixture of experts: the choice of experts, and the product with those that were chosen.
//
// The pairs of (token, chosen expert) are put in the order of their experts, with a copy of the token's row for
// each. Then each expert has its rows side by side, and its two products are cut into pieces as a linear's are:
// an expert's weights are read once for 96 rows, those of one that nobody chose never. All pieces of all
// experts are one job, so that experts with few rows and with many fill the threads together.
//
// A pair's row is computed as in any product, and a token's pairs are added up in the order of its choices: so
// a token's result is the same bits whoever else is in the batch.
//
// Of a layer whose experts are shared out over ranks, a pair may have no expert here: it has a negative number, and adds
// nothing. Results are then parts of a sum, and are not rounded, nor is what an expert makes.
#include <memory>
#include <vector>

#include "base/activations.h"
#include "gemm/works.h"

namespace {

template <class T>
struct Layer {
    const T* x;
    int64_t x_stride;
    const T *first_bias, *down_bias;  // [experts, ...], or null
    const float* weights;
    const int64_t* chosen;  // as weights: [tokens, top_k]
    T* y;
    float* unrounded;  // results go here instead of to y, where it is not null
    int64_t tokens, top_k, experts, hidden, inner;
    int64_t parts;  // of what comes before the activation: a gate and what it lets through, or one
    void (*activate)(const T* before, T* y, int64_t n);
};

// A matrix [outputs, inputs] for each expert, one after another: of T's, or quantised to so many bits.
struct Stack {
    const void* at;
    const bf16* scales;
    int64_t bits, alike;  // no bits: T's
    bool in_tiles;

    template <class T>
    std::unique_ptr<AnyWork> work(Product<T> p, int64_t expert) const {
        const int64_t first = expert * p.outputs;
        if (!bits) {
            p.weight = (const T*)at + first * p.inputs;
            p.weight_stride = p.inputs;
            return work_of(p);
        }
        Quantized w{(const uint8_t*)at, scales, p.inputs, alike};
        w.values += first * w.row_bytes(bits);
        w.scales += first * w.groups();
        return work_of(p, w, bits, in_tiles);
    }
};

// Pairs in the order of their experts: `starts[e]` to `starts[e + 1]` are the rows of expert e. Pairs without one have no row,
// and -1 for it.
struct Grouping {
    std::vector<int64_t> starts, row_of, token_of;

    int64_t rows() const { return starts.back(); }

    Grouping(const int64_t* chosen, int64_t tokens, int64_t top_k, int64_t experts)
        : starts(experts + 1), row_of(tokens * top_k), token_of(tokens * top_k) {
        for (int64_t pair = 0; pair < tokens * top_k; pair++)
            if (chosen[pair] >= 0) starts[chosen[pair] + 1]++;
        for (int64_t e = 0; e < experts; e++) starts[e + 1] += starts[e];
        std::vector<int64_t> next(starts.begin(), starts.end() - 1);
        for (int64_t pair = 0; pair < tokens * top_k; pair++) {
            row_of[pair] = chosen[pair] < 0 ? -1 : next[chosen[pair]]++;
            if (chosen[pair] >= 0) token_of[row_of[pair]] = pair / top_k;
        }
    }
};

// y or unrounded [pairs, outputs] = each row of x [pairs, inputs] by its expert's weight, and the expert's bias.
template <class T>
void products(const Grouping& grouping, const T* x, const Stack& weights, const T* bias, T* y, float* unrounded,
              int64_t inputs, int64_t outputs) {
    struct Piece {
        size_t work;
        int64_t index;
    };
    std::vector<std::unique_ptr<AnyWork>> works;
    std::vector<int64_t> rooms{0};
    std::vector<Piece> packings, pieces;
    for (size_t e = 0; e + 1 < grouping.starts.size(); e++) {
        int64_t first = grouping.starts[e], rows = grouping.starts[e + 1] - first;
        if (rows == 0) continue;
        Product<T> product{x + first * inputs, inputs, nullptr, 0, bias ? bias + int64_t(e) * outputs : nullptr,
                           y ? y + first * outputs : nullptr, rows, inputs, outputs,
                           unrounded ? unrounded + first * outputs : nullptr};
        works.push_back(weights.work(product, int64_t(e)));
        const AnyWork& work = *works.back();
        rooms.push_back(rooms.back() + work.packed_size());
        for (int64_t i = 0; i < work.packings(); i++) packings.push_back({works.size() - 1, i});
        for (int64_t i = 0; i < work.pieces(); i++) pieces.push_back({works.size() - 1, i});
    }
    uint8_t* workspace = packing_room(rooms.back());
    parallel_for(int64_t(packings.size()), [&](int64_t i) {
        works[packings[i].work]->pack(packings[i].index, workspace + rooms[packings[i].work]);
    });
    parallel_turns(int64_t(pieces.size()), [&](int64_t i) {
        works[pieces[i].work]->multiply(pieces[i].index, workspace + rooms[pieces[i].work]);
    });
}

// to [tokens, hidden] = the sum of what each token's experts made, by their weights [tokens, top_k], in the order of its
// choices. row_of(pair) is the row of `made` that a pair has, or negative.
template <class To, class RowOf>
void weighted_sums(int64_t tokens, int64_t top_k, int64_t hidden, const float* weights, const RowOf& row_of, const To* made,
                   To* to) {
    for_rows(tokens, top_k * hidden, [&](int64_t token) {
        along(hidden, [&](int64_t i, int count) {
            vf sum = {};
            for (int64_t pair = token * top_k; pair < (token + 1) * top_k; pair++)
                if (row_of(pair) >= 0) sum = fma(get(made + row_of(pair) * hidden + i, count), splat(weights[pair]), sum);
            put(to + token * hidden + i, sum, count);
        });
    });
}

template <class T>
void moe(const Layer<T>& layer, const Stack& into, const Stack& down) {
    const int64_t hidden = layer.hidden, inner = layer.inner, middle = layer.parts * inner;
    Grouping grouping(layer.chosen, layer.tokens, layer.top_k, layer.experts);
    const int64_t pairs = grouping.rows();
    const auto sum_up = [&](const auto* made, auto* to) {
        const auto row_of = [&](int64_t pair) { return grouping.row_of[pair]; };
        weighted_sums(layer.tokens, layer.top_k, hidden, layer.weights, row_of, made, to);
    };
    // Not cleared: all of it is written before it is read.
    std::unique_ptr<T[]> rows(new T[pairs * hidden]), before(new T[pairs * middle]), acted(new T[pairs * inner]);
    for_rows(pairs, hidden, [&](int64_t row) {
        std::memcpy(rows.get() + row * hidden, layer.x + grouping.token_of[row] * layer.x_stride,
                    hidden * sizeof(T));
    });
    products<T>(grouping, rows.get(), into, layer.first_bias, before.get(), nullptr, hidden, middle);
    for_rows(pairs, middle, [&](int64_t row) {
        layer.activate(before.get() + row * middle, acted.get() + row * inner, inner);
    });
    if (layer.unrounded) {
        std::unique_ptr<float[]> made(new float[pairs * hidden]);
        products<T>(grouping, acted.get(), down, layer.down_bias, nullptr, made.get(), inner, hidden);
        sum_up(made.get(), layer.unrounded);
        return;
    }
    T* made = rows.get();  // in the place of what it was made from
    products<T>(grouping, acted.get(), down, layer.down_bias, made, nullptr, inner, hidden);
    sum_up(made, layer.y);
}

// The experts of one token: the largest logits, the lowest id among equals, and their softmax over all.
template <class T>
void route_row(const T* logits, int64_t experts, int64_t top_k, bool normalise, float* weights, int64_t* chosen,
               float* values) {
    along(experts, [&](int64_t i, int count) { put(values + i, get(logits + i, count), count); });
    int64_t found = 0;
    for (int64_t e = 0; e < experts; e++) {
        if (found == top_k && !(values[e] > weights[top_k - 1])) continue;
        int64_t place = found < top_k ? found++ : top_k - 1;
        for (; place > 0 && values[e] > weights[place - 1]; place--) {
            weights[place] = weights[place - 1];
            chosen[place] = chosen[place - 1];
        }
        weights[place] = values[e];
        chosen[place] = e;
    }
    const vf largest = splat(weights[0]);
    float total = 0;
    vf sums = {};
    along(experts, [&](int64_t i, int count) {
        vf power = exponential(get(values + i, count) - largest);
        for (int j = count; j < W; j++) power[j] = 0;
        sums += power;
    });
    total = sum(sums);
    float of_chosen = 0;
    for (int64_t k = 0; k < top_k; k++) {
        weights[k] = exponential(splat(weights[k]) - largest)[0] / total;
        of_chosen += weights[k];
    }
    for (int64_t k = 0; normalise && k < top_k; k++) weights[k] /= of_chosen;
}

template <class T>
void route(const T* logits, int64_t stride, int64_t tokens, int64_t experts, int64_t top_k, bool normalise,
           float* weights, int64_t* chosen) {
    for_rows(tokens, 4 * experts, [&](int64_t t) {
        static thread_local std::vector<float> values;
        values.resize(experts);
        route_row(logits + t * stride, experts, top_k, normalise, weights + t * top_k, chosen + t * top_k,
                  values.data());
    });
}

template <class T>
auto activation_of(int64_t activation) {
    if (activation == RELU2) return act_row<Relu2, T>;
    void (*found)(const T*, T*, int64_t) = act_and_mul_row<ClampedSwiglu, T>;
    if (activation != CLAMPED_SWIGLU)
        with_activation(activation, [&](auto act) { found = act_and_mul_row<Gating<decltype(act)>, T>; });
    return found;
}

}  // namespace

// The scales are null where weights are whole, and the biases where there are none.
#define EXPERTS(SUFFIX, T)                                                                                  \
    EXPORT void pageant_moe_##SUFFIX(const T* x, int64_t x_stride, const void* gate_up,                     \
                                     const bf16* gate_up_scales, const void* down, const bf16* down_scales, \
                                     int64_t bits, int64_t in_tiles, int64_t alike, const T* gate_up_bias,  \
                                     const T* down_bias, const float* weights, const int64_t* chosen, T* y, \
                                     float* unrounded, int64_t tokens, int64_t top_k, int64_t experts,      \
                                     int64_t hidden, int64_t inner, int64_t activation) {                   \
        Layer<T> layer{x, x_stride, gate_up_bias, down_bias, weights, chosen, y, unrounded, tokens, top_k,  \
                       experts, hidden, inner, activation == RELU2 ? 1 : 2, activation_of<T>(activation)};  \
        const Stack up{gate_up, gate_up_scales, bits, alike, in_tiles != 0};                                \
        const Stack out{down, down_scales, bits, alike, in_tiles != 0};                                     \
        moe(layer, up, out);                                                                                \
    }                                                                                                       \
    EXPORT void pageant_weigh_experts_##SUFFIX(const T* made, const float* weights, T* y, int64_t tokens,   \
                                               int64_t top_k, int64_t hidden) {                             \
        weighted_sums(tokens, top_k, hidden, weights, [](int64_t pair) { return pair; }, made, y);          \
    }                                                                                                       \
    EXPORT void pageant_route_##SUFFIX(const T* logits, int64_t stride, int64_t tokens, int64_t experts,    \
                                       int64_t top_k, int64_t normalise, float* weights, int64_t* chosen) { \
        route(logits, stride, tokens, experts, top_k, normalise != 0, weights, chosen);                     \
    }
EXPERTS(f32, float)
EXPERTS(bf16, bf16)
EXPERTS(f16, f16)
