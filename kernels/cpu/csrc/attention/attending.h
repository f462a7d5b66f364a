// What attention computes, and the parts into which it is cut.
#pragma once

#include <algorithm>

#include "base/kv_codes.h"
#include "attention/panel.h"
#include "base/scratch.h"

static_assert(CHUNK == 64, "what a row sees of a chunk is one word of bits");
constexpr float NOTHING = -__builtin_inff();
constexpr float LOG2_E = 1.44269504f;

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Chunks, or entries, [start, stop).
struct Span {
    int64_t start, stop;
    bool empty() const { return start >= stop; }
    bool holds(int64_t i) const { return start <= i && i < stop; }
    Span and_of(Span other) const { return {std::max(start, other.start), std::min(stop, other.stop)}; }
    // What holds both.
    Span with(Span other) const {
        if (empty() || other.empty()) return empty() ? other : *this;
        return {std::min(start, other.start), std::max(stop, other.stop)};
    }
};

template <class T>
struct Problem {
    const T* query;
    int64_t query_stride;
    const char* keys;
    const char* values;
    T* output;
    int64_t output_stride;
    const int32_t* starts;
    const int32_t* lengths;
    const int32_t* tables;
    int64_t table_stride;
    const int64_t* positions;
    const int64_t* ancestors;  // or null
    int64_t sequences, heads, kv_heads, head_dim;
    int64_t value_dim;  // of values, which may be parts of keys: their rows are as far apart
    int64_t block_size;
    int64_t window;  // 0: none
    float scale, softcap;  // above 0; 0: none
    KvFormat format;       // of keys and values
    const float* sinks;    // a score of each head, of an entry whose value is zero; or null

    int64_t output_bytes() const { return starts[sequences] * heads * value_dim * int64_t(sizeof(T)); }
    int64_t group() const { return heads / kv_heads; }
    int64_t width() const { return padded_width<typename CellsOf<T>::Type>(value_dim); }
    const T* query_of(int64_t token, int64_t head) const { return query + token * query_stride + head * head_dim; }
    T* output_of(int64_t token, int64_t head) const { return output + token * output_stride + head * value_dim; }
    KvLayout layout() const { return {format, kv_heads, block_size, head_dim, sizeof(T)}; }
    // The key, or the value, of an entry of a sequence's context. Those of the next key head follow `block_bytes` later.
    const char* entry_of(const char* cache, int64_t sequence, int64_t kv_head, int64_t entry) const {
        const int64_t block = entry / block_size, id = tables[sequence * table_stride + block];
        return cache + layout().row(id, kv_head, entry - block * block_size);
    }
    // Where the scale of an entry lies in a cache in 8 bits, in bytes. Those of its block follow one another.
    int64_t scale_place(int64_t sequence, int64_t kv_head, int64_t entry) const {
        const int64_t block = entry / block_size, id = tables[sequence * table_stride + block];
        return layout().scale(id, kv_head, entry - block * block_size);
    }
    // Unpacks codes of entries [start, stop), without their scales, to rows so far apart, and calls then() after each.
    template <class Code, class E, class Then>
    void unpack(const char* cache, int64_t sequence, int64_t kv_head, int64_t start, int64_t stop, E* to, int64_t stride,
                const Then& then) const {
        for (int64_t entry = start; entry < stop;) {
            auto* codes = (const Code*)entry_of(cache, sequence, kv_head, entry);
            const int64_t end = std::min(stop, (entry / block_size + 1) * block_size);
            for (; entry < end; entry++, to += stride, codes += head_dim) {
                kv_codes::unpack(codes, head_dim, to);
                then();
            }
        }
    }
    // Writes by what the numbers of codes of a split are multiplied, of those entries that are wanted, and zeros between.
    template <class Code>
    void read_scales(const char* cache, int64_t sequence, int64_t kv_head, int64_t split, Span wanted, float* to) const {
        const Span its = wanted.and_of({split * SPLIT, (split + 1) * SPLIT});
        if (its.stop - its.start < SPLIT) std::fill_n(to, SPLIT, 0.0f);
        for (int64_t entry = its.start; entry < its.stop;) {
            const char* from = cache + scale_place(sequence, kv_head, entry);
            const int64_t end = std::min(its.stop, (entry / block_size + 1) * block_size);
            for (; entry < end; entry++, from += KV_SCALE_BYTES) to[entry % SPLIT] = load<float>(from) * Code::UNIT;
        }
    }
};

// Some rows of a sequence under each of some key heads, `count` of them from `first` on: row = token * group + head of the
// group. Rows of all heads are numbered together, those of the first head first.
struct Item {
    int64_t sequence, kv_head, heads, first, count;

    int64_t rows() const { return heads * count; }
    template <class T>
    int64_t token(const Problem<T>& p, int64_t r) const { return p.starts[sequence] + (first + r % count) / p.group(); }
    template <class T>
    int64_t head(const Problem<T>& p, int64_t r) const {
        return (kv_head + r / count) * p.group() + (first + r % count) % p.group();
    }
};

// An entry of a sequence's context, under some key heads.
struct Place {
    int64_t sequence, kv_head, entry;

    bool operator==(const Place& other) const {
        return sequence == other.sequence && kv_head == other.kv_head && entry == other.entry;
    }
};

// What rows have gathered: the weighted values, their largest score and the sum of their weights. Scores are powers
// of two here. Where the largest is NOTHING, the others hold anything.
struct Rows {
    float* values;  // [rows, width]
    float* largest;
    float* total;

    Rows from(int64_t row, int64_t width) const { return {values + row * width, largest + row, total + row}; }
};

struct RowsMemory {
    Scratch<float> memory;
    Rows take(int64_t count, int64_t width) {
        float* start = memory.take(count * (width + 2));
        return {start, start + count * width, start + count * (width + 1)};
    }
};

// Those of the chunks of a split that hold any of some entries.
inline Span chunks_of(Span entries, int64_t split) {
    Span its = entries.and_of({split * SPLIT, (split + 1) * SPLIT});
    return its.empty() ? Span{0, 0} : Span{its.start / CHUNK, ceil_div(its.stop, CHUNK)};
}
