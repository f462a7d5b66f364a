// What some rows of attention gather from a context: an online softmax (Milakov and Gimelshein, 2018; Dao et al.,
// FlashAttention, 2022) whose steps are splits of 512 entries.
//
// Of a split, all scores of a row come first, then its weights, then the sum of the weighted values: so the largest
// score is known when weights are made, and what was gathered is only scaled when splits are merged. Rows that are
// many go through a split in groups, whose scores stay in the cache, by panels that the first group packs.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "direct.h"
#include "direct_tiles.h"
#include "packing.h"
#include "panel_tiles.h"
#include "scratch.h"

static_assert(CHUNK == 64, "what a row sees of a chunk is one word of bits");
constexpr float NOTHING = -__builtin_inff();

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T>
struct Problem {
    const T* query;
    int64_t query_stride;
    const T* keys;
    const T* values;
    T* output;
    int64_t output_stride;
    const int32_t* starts;
    const int32_t* lengths;
    const int32_t* tables;
    int64_t table_stride;
    const int64_t* positions;
    const int64_t* ancestors;  // or null
    int64_t sequences, heads, kv_heads, head_dim, block_size;
    int64_t window;  // 0: none
    float scale, softcap;  // above 0; 0: none

    int64_t group() const { return heads / kv_heads; }
    T* output_of(int64_t token, int64_t head) const { return output + token * output_stride + head * head_dim; }
    int64_t width() const { return padded_width<typename CellsOf<T>::Type>(head_dim); }
};

// Rows [first, first + count) of a sequence under one key head: row = token * group + head of the group.
struct Item {
    int64_t sequence, kv_head, first, count;
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

inline float largest_of(const float* scores, int64_t count) {
    vf largest[2] = {splat(NOTHING), splat(NOTHING)};
    for (int64_t t = 0; t < count; t += 2 * W)
        for (int i = 0; i < 2; i++) largest[i] = max(load<vf>(scores + t + i * W), largest[i]);
    return maximum(max(largest[0], largest[1]));
}

// Writes the weights 2**(scale * score - largest) of scores, of which there may be none, and returns their sum. They
// may be written where the scores are, or before.
template <class Cells>
__attribute__((noinline)) float make_weights(const float* scores, int64_t count, float scale, float largest,
                                             typename Cells::Number* to) {
    vf base = splat(largest == NOTHING ? 0 : -largest), total = {};
    for (int64_t t = 0; t < count; t += 2 * W) {
        vf a = fma(load<vf>(scores + t), splat(scale), base);
        vf b = fma(load<vf>(scores + t + W), splat(scale), base);
        total = Cells::weights(a, b, to + t, total);
    }
    return sum(total);
}

template <class T>
class Gatherer {
    using Cells = typename CellsOf<T>::Type;
    using Number = typename Cells::Number;
    static constexpr int64_t AHEAD = 16;  // rows of queries that are fetched before they are read
    static constexpr int64_t GROUP_ROWS = Cells::TILED ? 2 * TILE : 24;

  public:
    void start(const Problem<T>& problem, const Item& its) {
        p = problem;
        item = its;
        depth = padded_depth<Cells>(p.head_dim);
        width = p.width();
        groups = ceil_div(item.count, GROUP_ROWS);
        query = query_memory.take(groups * GROUP_ROWS * depth);
        scores = scores_memory.take(GROUP_ROWS * SCORES_STRIDE);
        part = part_memory.take(GROUP_ROWS, width);
        if (few()) {
            spread = spread_memory.take(Cells::TILED ? TILE * depth : item.count * depth * 4);
        }
        if (Cells::TILED || !few()) {
            keys = keys_memory.take((groups == 1 ? 1 : CHUNKS) * CHUNK * depth);
            values = values_memory.take(ceil_div(width, VALUES_WIDE<Cells>) * VALUES_WIDE<Cells> * VALUES_DEEP<Cells>);
        }
        nothing.resize(p.head_dim, T{});
        sights.resize(item.count);
        seen_by.assign(groups, Span{0, 0});
        std::memset(query, 0, item.count * depth * sizeof *query);
        for (int64_t r = 0; r < item.count; r++) {
            if (r + AHEAD < item.count) packing::fetch(query_of(r + AHEAD), p.head_dim);
            Number* to = reinterpret_cast<Number*>(query + r * depth);
            if constexpr (std::is_same_v<Number, T>) std::copy_n(query_of(r), p.head_dim, to);
            else for (int64_t d = 0; d < p.head_dim; d++) to[d] = to_float(query_of(r)[d]);
            if (!Cells::TILED && few()) spread_query(query + r * depth, depth, spread + r * depth * 4);
            Span& of_group = seen_by[r / GROUP_ROWS];
            of_group = of_group.with(look(token(r), sights[r]));
        }
#if defined(PAGEANT_TILES)
        if constexpr (Cells::TILED)
            if (few()) pack_queries(query, item.count, depth, spread);
#endif
        seen = Span{0, 0};
        for (const Span& of_group : seen_by) seen = seen.with(of_group);
    }

    int64_t token(int64_t r) const { return p.starts[item.sequence] + (item.first + r) / p.group(); }
    int64_t head(int64_t r) const { return item.kv_head * p.group() + (item.first + r) % p.group(); }

    // The splits that hold any entry that a row sees.
    int64_t first_split() const { return seen.start / SPLIT; }
    int64_t stop_split() const { return ceil_div(seen.stop, SPLIT); }

    // Gathers what the entries of splits first to stop hold, each apart and in order: done(split, row, count, rows)
    // is told of each group's rows, from `row` on.
    template <class Done>
    void gather(int64_t first, int64_t stop, const Done& done) {
        wanted = seen.and_of({first * SPLIT, stop * SPLIT});
#if defined(PAGEANT_TILES)
        if constexpr (Cells::TILED) use_tiles(TILE, TILE);
#endif
        point(p.keys, wanted.start / CHUNK, *next);
        for (int64_t t = 0; t < CHUNK; t++) packing::fetch(next->at[packing::in_turn(t)], p.head_dim);
        for (int64_t split = first; split < stop; split++) {
            Span chunks = chunks_of(wanted, split);
            for (int64_t group = groups - 1; group >= 0; group--) {
                int64_t row = group * GROUP_ROWS, count = std::min(GROUP_ROWS, item.count - row);
                Span its = chunks_of(seen_by[group], split);
                if (few()) few_rows(chunks);
                else if (group == groups - 1) many_rows<true>(chunks, its, row, count);
                else many_rows<false>(chunks, its, row, count);
                done(split, row, count, part);
            }
        }
#if defined(PAGEANT_TILES)
        if constexpr (Cells::TILED) leave_tiles();
#endif
    }

  private:
    // What a row sees: entries [begin, stop), and from `own` on those whose bit is set.
    struct Sight {
        int64_t begin, stop, own;
        uint64_t chosen;
    };
    // Where the keys or the values of a chunk's tokens lie.
    struct Lines {
        const T* at[CHUNK];
    };

    const T* query_of(int64_t r) const { return p.query + token(r) * p.query_stride + head(r) * p.head_dim; }
    bool few() const { return item.count <= FEW_ROWS<Cells>; }

    static Span chunks_of(Span entries, int64_t split) {
        Span its = entries.and_of({split * SPLIT, (split + 1) * SPLIT});
        return its.empty() ? Span{0, 0} : Span{its.start / CHUNK, ceil_div(its.stop, CHUNK)};
    }

    // What a token sees, and from which entry to which.
    Span look(int64_t token, Sight& sight) const {
        int64_t length = p.lengths[item.sequence], position = p.positions[token];
        int64_t first = p.starts[item.sequence], count = p.starts[item.sequence + 1] - first;
        sight.begin = p.window ? std::max<int64_t>(0, position + 1 - p.window) : 0;
        sight.stop = std::min(length, position + 1);
        sight.own = length - count;
        sight.chosen = p.ancestors ? uint64_t(p.ancestors[token]) : 0;
        if (!sight.chosen) return {sight.begin, sight.stop};
        sight.stop = sight.own;
        for (int64_t i = 0; i < std::min(count, CHUNK); i++)
            if (p.window && p.positions[first + i] <= position - p.window) sight.chosen &= ~(1ull << i);
        return Span{sight.begin, sight.stop}.with({sight.own, sight.chosen ? length : sight.own});
    }

    // Bit i: whether entry first + i is seen.
    static uint64_t bits_of(const Sight& sight, int64_t first) {
        auto below = [](int64_t n) { return n >= CHUNK ? ~0ull : n <= 0 ? 0 : (1ull << n) - 1; };
        uint64_t bits = below(sight.stop - first) & ~below(sight.begin - first);
        int64_t shift = sight.own - first;
        if (sight.chosen && shift > -CHUNK && shift < CHUNK)
            bits |= shift >= 0 ? sight.chosen << shift : sight.chosen >> -shift;
        return bits;
    }

    // Entries that no row sees read as zero: they may hold anything, and a weight of zero times NaN is NaN.
    void point(const T* cache, int64_t chunk, Lines& to) const {
        const int32_t* table = p.tables + item.sequence * p.table_stride;
        int64_t first = chunk * CHUNK;
        Span its = wanted.and_of({first, first + CHUNK});
        if (its.stop - its.start < CHUNK) std::fill_n(to.at, CHUNK, nothing.data());
        for (int64_t entry = its.start; entry < its.stop;) {
            int64_t block = entry / p.block_size, offset = entry - block * p.block_size;
            const T* at = cache + ((table[block] * p.kv_heads + item.kv_head) * p.block_size + offset) * p.head_dim;
            int64_t stop = std::min(its.stop, (block + 1) * p.block_size);
            for (; entry < stop; entry++, at += p.head_dim) to.at[entry - first] = at;
        }
    }

    // What was to be fetched is read now, and `chunk` of `cache` is to be fetched meanwhile.
    void advance(const T* cache, int64_t chunk) {
        std::swap(now, next);
        point(cache, chunk, *next);
    }
    // A split's keys are read in order, then its values, and then the next split's keys.
    void advance_keys(int64_t chunk, Span chunks) {
        bool more = chunk + 1 < chunks.stop;
        advance(more ? p.keys : p.values, more ? chunk + 1 : chunks.start);
    }
    void advance_values(int64_t chunk, Span chunks) {
        advance(chunk + 1 < chunks.stop ? p.values : p.keys, chunk + 1);
    }

    float* scores_of(int64_t chunk) const { return scores + chunk % CHUNKS * CHUNK; }
    const Cell* weights_of(int64_t chunk) const {
        return reinterpret_cast<const Cell*>(scores) + chunk % CHUNKS * (CHUNK / Cells::PER_CELL);
    }

    // Few rows' part of a split: keys are computed with as they lie, and values too where there are no tiles.
    void few_rows(Span chunks) {
        for (int64_t chunk = chunks.start; chunk < chunks.stop; chunk++) {
            advance_keys(chunk, chunks);
            few_scores(scores_of(chunk));
        }
        for (int64_t r = 0; r < item.count; r++) weigh(chunks, r, r);
        std::fill_n(part.values, item.count * width, 0.0f);
        for (int64_t chunk = chunks.start; chunk < chunks.stop; chunk++) {
            advance_values(chunk, chunks);
            few_sums(weights_of(chunk));
        }
    }
    void few_scores(float* to) const {
#if defined(PAGEANT_TILES)
        if constexpr (Cells::TILED)
            return direct_tile_scores(spread, depth, now->at, next->at, p.head_dim, keys, to, item.count);
#endif
        if constexpr (!Cells::TILED) direct_scores<Cells>(spread, depth, now->at, next->at, p.head_dim, to, item.count);
    }
    void few_sums(const Cell* weights) const {
#if defined(PAGEANT_TILES)
        if constexpr (Cells::TILED) {
            pack_values<Cells>(now->at, next->at, p.head_dim, width, values);
            return direct_tile_sums(weights, values, part.values, width);
        }
#endif
        if constexpr (!Cells::TILED)
            direct_sums<Cells>(weights, now->at, next->at, p.head_dim, part.values, width, item.count);
    }

    // A group's part of a split, of which it sees the chunks `its`. The group that packs does so for all.
    template <bool PACKS>
    void many_rows(Span chunks, Span its, int64_t row, int64_t count) {
        for (int64_t chunk = chunks.start; chunk < chunks.stop; chunk++) {
            Cell* panel = keys + (groups == 1 ? 0 : chunk % CHUNKS) * CHUNK * depth;
            if constexpr (PACKS) {
                advance_keys(chunk, chunks);
                pack_keys<Cells>(now->at, next->at, p.head_dim, depth, panel);
            }
            if (its.holds(chunk)) multiply_keys(query + row * depth, panel, scores_of(chunk), count);
        }
        for (int64_t r = 0; r < count; r++) weigh(its, row + r, r);
        for (int64_t chunk = chunks.start; PACKS && chunk < chunks.stop; chunk++) {
            advance_values(chunk, chunks);
            pack_values<Cells>(now->at, next->at, p.head_dim, width, panel_of_values(chunk));
        }
        multiply_values(its, count);
    }

    Cell* panel_of_values(int64_t chunk) const {
        return values + chunk % CHUNKS * (CHUNK / Cells::PER_CELL) * VALUES_WIDE<Cells>;
    }

    void multiply_keys(const Cell* rows, const Cell* panel, float* to, int64_t count) const {
#if defined(PAGEANT_TILES)
        if constexpr (Cells::TILED) return tile_scores(rows, panel, to, count, depth);
#endif
        if constexpr (!Cells::TILED) panel_scores<Cells>(rows, panel, to, count, depth);
    }

    void multiply_values(Span chunks, int64_t count) const {
        int64_t cells = (chunks.stop - chunks.start) * (CHUNK / Cells::PER_CELL);
        const Cell *weights = weights_of(chunks.start), *panel = panel_of_values(chunks.start);
#if defined(PAGEANT_TILES)
        if constexpr (Cells::TILED) return tile_sums(weights, panel, part.values, count, width, cells);
#endif
        if constexpr (!Cells::TILED) panel_sums<Cells>(weights, panel, part.values, count, width, cells);
    }

    // Turns scores into weights, in place: those of the group's row `r`, which is the item's row `of`.
    void weigh(Span chunks, int64_t of, int64_t r) {
        int64_t apart = r * SCORES_STRIDE, count = (chunks.stop - chunks.start) * CHUNK;
        for (int64_t chunk = chunks.start; chunk < chunks.stop; chunk++) {
            if (p.softcap != 0) cap(scores_of(chunk) + apart);
            uint64_t bits = bits_of(sights[of], chunk * CHUNK);
            if (~bits) hide(scores_of(chunk) + apart, bits);
        }
        constexpr float LOG2_E = 1.44269504f;
        float scale = p.softcap != 0 ? LOG2_E : p.scale * LOG2_E;
        float* row = scores_of(chunks.start) + apart;
        part.largest[r] = largest_of(row, count) * scale;
        Number* to = reinterpret_cast<Number*>(scores + apart) + chunks.start % CHUNKS * CHUNK;
        part.total[r] = make_weights<Cells>(row, count, scale, part.largest[r], to);
    }

    void cap(float* at) const {
        for (int t = 0; t < CHUNK; t += W)
            store(at + t, p.softcap * hyperbolic_tangent(load<vf>(at + t) * (p.scale / p.softcap)));
    }

    static void hide(float* at, uint64_t bits) {
        vi lanes;
        for (int i = 0; i < W; i++) lanes[i] = i;
        for (int t = 0; t < CHUNK; t += W) {
            vi seen = (vi{} + int32_t(bits >> t)) >> lanes & 1;
            store(at + t, seen != 0 ? load<vf>(at + t) : splat(NOTHING));
        }
    }

    Problem<T> p;
    Item item;
    int64_t depth, width, groups;
    Span seen, wanted;  // entries that any row sees, and those of them that are gathered now
    Cell *query, *spread, *keys, *values;
    float* scores;
    Rows part;
    Lines lines[2];
    Lines *now = &lines[0], *next = &lines[1];
    std::vector<Sight> sights;
    std::vector<Span> seen_by;
    std::vector<T> nothing;
    Scratch<Cell> query_memory, spread_memory, keys_memory, values_memory;
    Scratch<float> scores_memory;
    RowsMemory part_memory;
};
