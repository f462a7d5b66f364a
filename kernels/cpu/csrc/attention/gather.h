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

#include "attention/packing.h"
#include "attention/panel_tiles.h"
#include "attention/sights.h"

// For one key head at a time: those that go by runs are in few.h. A cache of codes, which `Cached` is if not T, is unpacked
// chunk by chunk.
template <class T, class Cached>
class Gatherer {
    static constexpr bool CODED = !std::is_same_v<Cached, T>;
    using Cells = typename CellsOf<T>::Type;
    using Number = typename Cells::Number;
    using Element = std::conditional_t<CODED, Number, T>;  // of keys and values as they are packed
    static constexpr int64_t AHEAD = 16;  // rows of queries that are fetched before they are read
    static constexpr int64_t GROUP_ROWS = Cells::TILED ? 2 * TILE : 24;

  public:
    void start(const Problem<T>& problem, const Item& its) {
        p = problem;
        item = its;
        depth = padded_depth<Cells>(p.head_dim);
        width = p.width();
        groups = ceil_div(item.count, GROUP_ROWS);
        offset = (p.values - p.keys) / int64_t(sizeof(Element));
        within_keys = !CODED && 0 <= offset && offset < p.head_dim;
        query = query_memory.take(groups * GROUP_ROWS * depth);
        scores = scores_memory.take(GROUP_ROWS * SCORES_STRIDE);
        part = part_memory.take(GROUP_ROWS, width);
        keys = keys_memory.take((groups == 1 ? 1 : CHUNKS) * CHUNK * depth);
        values = values_memory.take(ceil_div(width, VALUES_WIDE<Cells>) * VALUES_WIDE<Cells> * VALUES_DEEP<Cells>);
        nothing.resize(p.head_dim, Element{});
        if constexpr (CODED)
            for (Lines& its : lines) its.workspace = its.memory.take(CHUNK * p.head_dim);
        sights.resize(item.count);
        seen_by.assign(groups, Span{0, 0});
        std::memset(query, 0, item.count * depth * sizeof *query);
        for (int64_t r = 0; r < item.count; r++) {
            if (r + AHEAD < item.count) packing::fetch(query_of(r + AHEAD), p.head_dim);
            Number* to = reinterpret_cast<Number*>(query + r * depth);
            if constexpr (std::is_same_v<Number, T>) std::copy_n(query_of(r), p.head_dim, to);
            else for (int64_t d = 0; d < p.head_dim; d++) to[d] = to_float(query_of(r)[d]);
            Span& of_group = seen_by[r / GROUP_ROWS];
            of_group = of_group.with(look(p, item.sequence, item.token(p, r), sights[r]));
        }
        seen = Span{0, 0};
        for (const Span& of_group : seen_by) seen = seen.with(of_group);
    }

    // The splits that hold any entry that a row sees.
    int64_t first_split() const { return seen.start / SPLIT; }
    int64_t stop_split() const { return ceil_div(seen.stop, SPLIT); }

    // Gathers what the entries of splits first to stop hold, each apart and in order: done(split, row, count, rows)
    // is told of each group's rows, from `row` on.
    template <class Done>
    void gather(int64_t first, int64_t stop, const Place&, const Done& done) {
        wanted = seen.and_of({first * SPLIT, stop * SPLIT});
#if defined(PAGEANT_TILES)
        if constexpr (Cells::TILED) use_tiles(TILE, TILE);
#endif
        point(p.keys, wanted.start / CHUNK, *next);
        for (int64_t t = 0; t < CHUNK; t++) packing::fetch(next->at[packing::in_turn(t)], p.head_dim);
        for (int64_t split = first; split < stop; split++) {
            Span chunks = chunks_of(wanted, split);
            if constexpr (CODED) {
                p.template read_scales<Cached>(p.keys, item.sequence, item.kv_head, split, wanted, key_scales);
                p.template read_scales<Cached>(p.values, item.sequence, item.kv_head, split, wanted, value_scales);
            }
            for (int64_t group = groups - 1; group >= 0; group--) {
                int64_t row = group * GROUP_ROWS, count = std::min(GROUP_ROWS, item.count - row);
                Span its = chunks_of(seen_by[group], split);
                if (group == groups - 1) many_rows<true>(chunks, its, row, count);
                else many_rows<false>(chunks, its, row, count);
                done(split, row, count, part);
            }
        }
#if defined(PAGEANT_TILES)
        if constexpr (Cells::TILED) leave_tiles();
#endif
    }

  private:
    // Where the keys or the values of a chunk's tokens lie, and workspace for them where they are unpacked.
    struct Lines {
        const Element* at[CHUNK];
        Element* workspace;
        Scratch<Element> memory;
    };

    const T* query_of(int64_t r) const { return p.query_of(item.token(p, r), item.head(p, r)); }

    // Entries that no row sees read as zero: they may hold anything, and a weight of zero times NaN is NaN.
    void point(const char* cache, int64_t chunk, Lines& to) const {
        int64_t first = chunk * CHUNK;
        Span its = wanted.and_of({first, first + CHUNK});
        if (its.stop - its.start < CHUNK) std::fill_n(to.at, CHUNK, nothing.data());
        if constexpr (CODED) {
            Element* at = to.workspace;
            for (int64_t entry = its.start; entry < its.stop; entry++, at += p.head_dim) to.at[entry - first] = at;
            p.template unpack<Cached>(cache, item.sequence, item.kv_head, its.start, its.stop, to.workspace, p.head_dim, [] {});
        } else {
            for (int64_t entry = its.start; entry < its.stop;) {
                const T* at = (const T*)p.entry_of(cache, item.sequence, item.kv_head, entry);
                int64_t stop = std::min(its.stop, (entry / p.block_size + 1) * p.block_size);
                for (; entry < stop; entry++, at += p.head_dim) to.at[entry - first] = at;
            }
        }
    }

    // What was to be fetched is read now, and `chunk` of `cache` is to be fetched meanwhile.
    void advance(const char* cache, int64_t chunk) {
        std::swap(now, next);
        point(cache, chunk, *next);
    }
    // A split's keys are read in order, then its values, if they are no parts of keys, and then the next split's keys.
    void advance_keys(int64_t chunk, Span chunks) {
        bool more = within_keys || chunk + 1 < chunks.stop;
        advance(more ? p.keys : p.values, more ? chunk + 1 : chunks.start);
    }
    void advance_values(int64_t chunk, Span chunks) {
        advance(chunk + 1 < chunks.stop ? p.values : p.keys, chunk + 1);
    }

    float* scores_of(int64_t chunk) const { return scores + chunk % CHUNKS * CHUNK; }
    const Cell* weights_of(int64_t chunk) const {
        return reinterpret_cast<const Cell*>(scores) + chunk % CHUNKS * (CHUNK / Cells::PER_CELL);
    }

    // A group's part of a split, of which it sees the chunks `its`. The group that packs does so for all.
    template <bool PACKS>
    void many_rows(Span chunks, Span its, int64_t row, int64_t count) {
        for (int64_t chunk = chunks.start; chunk < chunks.stop; chunk++) {
            Cell* panel = keys + (groups == 1 ? 0 : chunk % CHUNKS) * CHUNK * depth;
            auto multiply = [&](auto ahead) { multiply_keys(query + row * depth, panel, scores_of(chunk), count, ahead); };
            if constexpr (PACKS) {
                advance_keys(chunk, chunks);
                // Few rows take long for a chunk's products, and packing it takes less than reading the next one.
                if (!Cells::TILED && within_keys && its.holds(chunk)) {
                    pack_chunk(chunk, panel, packing::NothingAhead{});
                    multiply(packing::LinesAhead<Element>{next->at, p.head_dim});
                    continue;
                }
                pack_chunk(chunk, panel, packing::RowsAhead<Element>{next->at, p.head_dim});
            }
            if (its.holds(chunk)) multiply(packing::NothingAhead{});
        }
        for (int64_t r = 0; r < count; r++) weigh_row(its, row + r, r);
        for (int64_t chunk = chunks.start; PACKS && !within_keys && chunk < chunks.stop; chunk++) {
            advance_values(chunk, chunks);
            pack_values<Cells>(now->at, 0, packing::RowsAhead<Element>{next->at, p.value_dim}, p.value_dim, width, panel_of_values(chunk));
        }
        multiply_values(its, count);
    }

    // Packs a chunk's keys, and its values where they are parts of them.
    template <class Ahead>
    void pack_chunk(int64_t chunk, Cell* panel, const Ahead& ahead) const {
        pack_keys<Cells>(now->at, ahead, p.head_dim, depth, panel);
        if (within_keys)
            pack_values<Cells>(now->at, offset, packing::NothingAhead{}, p.value_dim, width, panel_of_values(chunk));
    }

    Cell* panel_of_values(int64_t chunk) const {
        return values + chunk % CHUNKS * (CHUNK / Cells::PER_CELL) * VALUES_WIDE<Cells>;
    }

    template <class Ahead>
    void multiply_keys(const Cell* rows, const Cell* panel, float* to, int64_t count, const Ahead& ahead) const {
#if defined(PAGEANT_TILES)
        if constexpr (Cells::TILED) return tile_scores(rows, panel, to, count, depth);
#endif
        if constexpr (!Cells::TILED) panel_scores<Cells>(rows, panel, to, count, depth, ahead);
    }

    void multiply_values(Span chunks, int64_t count) const {
        int64_t cells = (chunks.stop - chunks.start) * (CHUNK / Cells::PER_CELL);
        const Cell *weights = weights_of(chunks.start), *panel = panel_of_values(chunks.start);
#if defined(PAGEANT_TILES)
        if constexpr (Cells::TILED) return tile_sums(weights, panel, part.values, count, width, cells);
#endif
        if constexpr (!Cells::TILED) panel_sums<Cells>(weights, panel, part.values, count, width, cells);
    }

    // Of the group's row `r`, which is the item's row `of`.
    void weigh_row(Span chunks, int64_t of, int64_t r) {
        float* const at = scores + r * SCORES_STRIDE;
        if constexpr (CODED) weigh(p, sights[of], chunks, at, part.from(r, width), SplitScales{key_scales, value_scales});
        else weigh(p, sights[of], chunks, at, part.from(r, width), NoScales{});
    }

    Problem<T> p;
    Item item;
    int64_t depth, width, groups;
    bool within_keys;  // values are parts of keys, from number `offset` on: each chunk is read once
    int64_t offset;
    Span seen, wanted;  // entries that any row sees, and those of them that are gathered now
    Cell *query, *keys, *values;
    float* scores;
    float key_scales[CODED ? SPLIT : 1], value_scales[CODED ? SPLIT : 1];
    Rows part;
    Lines lines[2];
    Lines *now = &lines[0], *next = &lines[1];
    std::vector<Sight> sights;
    std::vector<Span> seen_by;
    std::vector<Element> nothing;
    Scratch<Cell> query_memory, keys_memory, values_memory;
    Scratch<float> scores_memory;
    RowsMemory part_memory;
};
