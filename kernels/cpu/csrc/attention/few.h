// What few rows of attention gather from a context (see gather.h), for all key heads of an item at once: a block of the cache
// has them side by side, so that keys, and then values, are read in the order of memory, block by block. One key head at a
// time, each 4 KB are somewhere else, and come at half to three quarters of the speed.
#pragma once

#include <array>
#include <type_traits>
#include <vector>

#include "attention/direct_tiles.h"
#include "attention/sights.h"

template <class Cells, bool TILED>
struct FewProducts {
    using Type = VectorProducts<Cells>;
};
#if defined(PAGEANT_TILES)
template <class Cells>
struct FewProducts<Cells, true> {
    using Type = TileProducts<Cells>;
};
#endif

// What is cached is T's, or codes. Vectors multiply these as they lie; for tiles they are unpacked run by run, into the nearest
// cache.
template <class T, class Cached>
class FewGatherer {
    using Cells = typename CellsOf<T>::Type;
    using Number = typename Cells::Number;
    static constexpr bool CODED = !std::is_same_v<Cached, T>, UNPACKS = CODED && Cells::TILED;
    using Element = std::conditional_t<UNPACKS, Number, Cached>;  // of runs as they are multiplied
    using Products = typename FewProducts<Cells, Cells::TILED>::Type;
    static constexpr int TOGETHER = Products::TOGETHER;
    typedef std::array<const Element*, TOGETHER> Runs;
    typedef std::array<const char*, TOGETHER> Asked;  // places in the cache

  public:
    void start(const Problem<T>& problem, const Item& its) {
        p = problem;
        item = its;
        depth = padded_depth<Cells>(p.head_dim);
        width = p.width();
        scores = scores_memory.take(item.rows() * SCORES_STRIDE);
        part = part_memory.take(item.rows(), width);
        products.start({item.heads, item.count, depth, width, p.head_dim, p.value_dim});
        copy = copy_memory.take(TOGETHER * RUN * key_stride());
        if constexpr (CODED) scales = scales_memory.take(2 * item.heads * SPLIT);
        nothing.resize(RUN * key_stride(), Element{});
        sights.resize(item.count);
        seen = Span{0, 0};
        for (int64_t r = 0; r < item.count; r++) seen = seen.with(look(p, item.sequence, item.token(p, r), sights[r]));
        for (int64_t r = 0; r < item.rows(); r++) take_query(r);
    }

    // The splits that hold any entry that a row sees.
    int64_t first_split() const { return seen.start / SPLIT; }
    int64_t stop_split() const { return ceil_div(seen.stop, SPLIT); }

    // Gathers what the entries of splits first to stop hold, each apart and in order: done(split, 0, count, rows) is
    // told of all of the item's rows. `then` is what this thread is to gather afterwards.
    template <class Done>
    void gather(int64_t first, int64_t stop, const Place& then, const Done& done) {
        wanted = seen.and_of({first * SPLIT, stop * SPLIT});
        const bool asked_for = place(wanted.start / RUN) == after && p.keys == of_keys;
        if (!asked_for && !wanted.empty())
            for (const char* run : runs_from(p.keys, wanted.start / RUN))
                for (int64_t h = 0; h < std::min(AHEAD, item.heads); h++)
                    packing::fetch(run + h * p.layout().block_bytes(), RUN * p.layout().row_bytes());
        after = then, of_keys = p.keys;
        for (int64_t split = first; split < stop; split++) {
            const Span chunks = chunks_of(wanted, split), runs = runs_of(split);
            add_scores(runs);
            if constexpr (CODED) read_scales(split);
            for (int64_t r = 0; r < item.rows(); r++)
                weigh(p, sights[r % item.count], chunks, scores + r * SCORES_STRIDE, part.from(r, width), scales_of(r / item.count));
            std::fill_n(part.values, item.rows() * width, 0.0f);
            add_values(runs, runs_of(split + 1));
            done(split, 0, item.rows(), part);
        }
    }

  private:
    void take_query(int64_t r) {
        thread_local std::vector<Cell> cells;
        cells.assign(depth, 0);
        const T* query = p.query_of(item.token(p, r), item.head(p, r));
        Number* to = reinterpret_cast<Number*>(cells.data());
        if constexpr (std::is_same_v<Number, T>) std::copy_n(query, p.head_dim, to);
        else for (int64_t d = 0; d < p.head_dim; d++) to[d] = to_float(query[d]);
        products.take_query(cells.data(), r);
    }
    int64_t key_stride() const { return Products::key_stride(p.head_dim, depth); }

    // The runs of a split of which anything is wanted.
    Span runs_of(int64_t split) const {
        const Span its = wanted.and_of({split * SPLIT, (split + 1) * SPLIT});
        return its.empty() ? Span{0, 0} : Span{its.start / RUN, ceil_div(its.stop, RUN)};
    }
    Place place(int64_t run) const { return {item.sequence, item.kv_head, run * RUN}; }
    // What goes together with a run, or with what is at a place, in memory: as far as there is anything.
    Asked runs_at(const char* cache, const Place& at, Span there) const {
        Asked runs;
        const int64_t first = at.entry / (TOGETHER * RUN) * (TOGETHER * RUN);
        for (int64_t i = 0; i < TOGETHER; i++)
            runs[i] = p.entry_of(cache, at.sequence, at.kv_head, std::clamp(first + i * RUN, there.start / RUN * RUN, there.stop - 1));
        return runs;
    }
    Asked runs_from(const char* cache, int64_t run) const { return runs_at(cache, place(run), wanted); }
    Asked runs_after(const char* cache) const { return runs_at(cache, after, {after.entry, p.lengths[after.sequence]}); }

    // Whether all of a run is wanted, and lies in one block.
    bool lies(int64_t run) const {
        const Span all = {run * RUN, (run + 1) * RUN}, its = wanted.and_of(all);
        return its.stop - its.start == RUN && all.start % p.block_size + RUN <= p.block_size;
    }
    // A copy of what is wanted of a run, `numbers` of each entry in rows so far apart, with zeros between: entries that no row
    // sees may hold anything, and a weight of zero times NaN is NaN. Where codes are unpacked, as much as is read is asked for
    // `ahead`.
    const Element* copied(const char* cache, int64_t run, int64_t kv_head, int64_t numbers, int64_t stride, const char* ahead) const {
        const Span its = wanted.and_of({run * RUN, (run + 1) * RUN});
        if (its.empty()) return nothing.data();
        Element* const to = copy + run % TOGETHER * RUN * key_stride();
        if (!UNPACKS || its.stop - its.start < RUN || stride != p.head_dim) std::fill_n(to, RUN * stride, Element{});
        if constexpr (UNPACKS) {
            p.template unpack<Cached>(cache, item.sequence, kv_head, its.start, its.stop, to + its.start % RUN * stride, stride, [&] {
                for (int64_t i = 0; i < p.head_dim; i += LINE) fetch_here(ahead + i);
                ahead += p.head_dim;
            });
        } else {
            for (int64_t entry = its.start; entry < its.stop; entry++)
                std::copy_n((const Element*)p.entry_of(cache, item.sequence, kv_head, entry), numbers, to + entry % RUN * stride);
        }
        return to;
    }

    // Calls each(runs, asked, h, i) for the runs of each key head h, in the order of memory: with where they lie, or copies
    // whose rows are `stride` apart, what is to be asked for meanwhile, and the first one's place in its split. `next` is what
    // comes after the last, of the first key head. An entry has so many `numbers`.
    template <class Each>
    void go_through(const char* cache, Span runs, const Asked& next, int64_t numbers, int64_t stride, const Each& each) const {
        const int64_t apart = p.layout().block_bytes(), ahead = std::min(AHEAD, item.heads);
        for (int64_t run = runs.start / TOGETHER * TOGETHER; run < runs.stop; run += TOGETHER) {
            const Asked here = runs_from(cache, run);
            const Asked later = run + TOGETHER < runs.stop ? runs_from(cache, run + TOGETHER) : next;
            bool whole[TOGETHER];
            for (int i = 0; i < TOGETHER; i++) {
                whole[i] = !UNPACKS && stride == p.head_dim && lies(run + i);
                fetch_here(later[i]);  // so that its place is known when it is asked for
            }
            for (int64_t h = 0; h < item.heads; h++) {
                Runs at;
                Asked asked;
                for (int i = 0; i < TOGETHER; i++) {
                    const bool goes_on = h + ahead < item.heads;
                    asked[i] = goes_on ? here[i] + (h + ahead) * apart : later[i] + (h + ahead - item.heads) * apart;
                    at[i] = whole[i] ? (const Element*)(here[i] + h * apart) : copied(cache, run + i, item.kv_head + h, numbers, stride, asked[i]);
                    if (UNPACKS) asked[i] = (const char*)at[i];  // which is there
                    if (CODED && cache == p.keys) fetch_scales(run + i, h);
                }
                each(at, asked, h, run % (SPLIT / RUN));
            }
        }
    }

    // Asks for the scales of a run's keys and values, which are read when all scores of a split are made.
    void fetch_scales(int64_t run, int64_t h) const {
        const int64_t entry = std::clamp(run * RUN, wanted.start, wanted.stop - 1);
        const int64_t at = p.scale_place(item.sequence, item.kv_head + h, entry);
        fetch_here(p.keys + at);
        fetch_here(p.values + at);
    }
    // Scales of a split: the keys' of each key head, then the values'.
    void read_scales(int64_t split) {
        for (int64_t h = 0; h < item.heads; h++) {
            p.template read_scales<Cached>(p.keys, item.sequence, item.kv_head + h, split, wanted, scales + h * SPLIT);
            p.template read_scales<Cached>(p.values, item.sequence, item.kv_head + h, split, wanted, scales + (item.heads + h) * SPLIT);
        }
    }
    auto scales_of(int64_t h) const {
        if constexpr (CODED) return SplitScales{scales + h * SPLIT, scales + (item.heads + h) * SPLIT};
        else return NoScales{};
    }

    void add_scores(Span runs) {
        const Asked next = runs.empty() ? Asked{} : runs_from(p.values, runs.start);
        products.scores(runs, [&](const auto& each) { go_through(p.keys, runs, next, p.head_dim, key_stride(), each); }, scores);
    }

    // `later`: those of the next split.
    void add_values(Span runs, Span later) {
        const Asked next = later.empty() ? runs_after(p.keys) : runs_from(p.keys, later.start);
        products.sums([&](const auto& each) { go_through(p.values, runs, next, p.value_dim, p.head_dim, each); }, (const Cell*)scores,
                      part.values);
    }

    static constexpr int64_t AHEAD = 1;  // key heads whose runs are asked for before they are read

    Problem<T> p;
    Item item;
    int64_t depth, width;
    Span seen, wanted;  // entries that any row sees, and those of them that are gathered now
    Products products;
    float* scores;  // and, in their place, weights
    float* scales;
    Rows part;
    Element* copy;
    std::vector<Element> nothing;
    Place after{-1, 0, 0};
    const char* of_keys = nullptr;  // of the call before
    std::vector<Sight> sights;   // of the rows of one key head
    Scratch<float> scores_memory, scales_memory;
    Scratch<Element> copy_memory;
    RowsMemory part_memory;
};
