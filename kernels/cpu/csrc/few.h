// What few rows of attention gather from a context (see gather.h), for all key heads of an item at once: a block of the cache
// has them side by side, so that keys, and then values, are read in the order of memory, block by block. One key head at a
// time, each 4 KB are somewhere else, and come at half to three quarters of the speed.
#pragma once

#include <type_traits>
#include <vector>

#include "direct.h"
#include "sights.h"

template <class T>
class FewGatherer {
    using Cells = typename CellsOf<T>::Type;
    using Number = typename Cells::Number;

  public:
    void start(const Problem<T>& problem, const Item& its) {
        p = problem;
        item = its;
        depth = padded_depth<Cells>(p.head_dim);
        width = p.width();
        scores = scores_memory.take(item.rows() * SCORES_STRIDE);
        part = part_memory.take(item.rows(), width);
        spread = spread_memory.take(item.rows() * depth * 4);
        copy = copy_memory.take(RUN * p.head_dim);
        sights.resize(item.count);
        seen = Span{0, 0};
        for (int64_t r = 0; r < item.count; r++) seen = seen.with(look(p, item.sequence, item.token(p, r), sights[r]));
        for (int64_t r = 0; r < item.rows(); r++) spread_row(r);
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
            for (int64_t h = 0; h < std::min(AHEAD, item.heads); h++)
                packing::fetch(first_of(p.keys, wanted.start / RUN) + h * p.block_numbers(), RUN * p.head_dim);
        after = then, of_keys = p.keys;
        for (int64_t split = first; split < stop; split++) {
            const Span chunks = chunks_of(wanted, split), runs = runs_of(split);
            add_scores(runs);
            for (int64_t r = 0; r < item.rows(); r++)
                weigh(p, sights[r % item.count], chunks, scores + r * SCORES_STRIDE, part.from(r, width));
            std::fill_n(part.values, item.rows() * width, 0.0f);
            add_values(runs, runs_of(split + 1));
            done(split, 0, item.rows(), part);
        }
    }

  private:
    void spread_row(int64_t r) {
        thread_local std::vector<Cell> cells;
        cells.assign(depth, 0);
        const T* query = p.query_of(item.token(p, r), item.head(p, r));
        Number* to = reinterpret_cast<Number*>(cells.data());
        if constexpr (std::is_same_v<Number, T>) std::copy_n(query, p.head_dim, to);
        else for (int64_t d = 0; d < p.head_dim; d++) to[d] = to_float(query[d]);
        direct::spread_query(cells.data(), depth, r % item.count, item.count, spread + r / item.count * item.count * depth * 4);
    }

    // The runs of a split of which anything is wanted.
    Span runs_of(int64_t split) const {
        const Span its = wanted.and_of({split * SPLIT, (split + 1) * SPLIT});
        return its.empty() ? Span{0, 0} : Span{its.start / RUN, ceil_div(its.stop, RUN)};
    }
    Place place(int64_t run) const { return {item.sequence, item.kv_head, run * RUN}; }
    const T* first_of(const T* cache, const Place& at) const { return p.entry_of(cache, at.sequence, at.kv_head, at.entry); }
    const T* first_of(const T* cache, int64_t run) const { return first_of(cache, place(run)); }

    // Whether all of a run is wanted, and lies in one block.
    bool lies(int64_t run) const {
        const Span all = {run * RUN, (run + 1) * RUN}, its = wanted.and_of(all);
        return its.stop - its.start == RUN && all.start % p.block_size + RUN <= p.block_size;
    }
    // A copy of what is wanted of a run, with zeros between: entries that no row sees may hold anything, and a weight of zero
    // times NaN is NaN.
    const T* copied(const T* cache, int64_t run, int64_t kv_head) const {
        const Span its = wanted.and_of({run * RUN, (run + 1) * RUN});
        std::fill_n(copy, RUN * p.head_dim, T{});
        for (int64_t entry = its.start; entry < its.stop; entry++)
            std::copy_n(p.entry_of(cache, item.sequence, kv_head, entry), p.head_dim, copy + entry % RUN * p.head_dim);
        return copy;
    }

    // Calls each(run, ahead, h, i) for the runs of each key head h, in the order of memory: with where it lies, what is to be
    // asked for meanwhile, and which run of its split it is. `next` is what comes after the last, of the first key head.
    template <class Each>
    void go_through(const T* cache, Span runs, const T* next, const Each& each) const {
        const int64_t apart = p.block_numbers(), ahead = std::min(AHEAD, item.heads);
        for (int64_t run = runs.start; run < runs.stop; run++) {
            const T* here = first_of(cache, run);
            const T* after = run + 1 < runs.stop ? first_of(cache, run + 1) : next;
            const bool whole = lies(run);
            fetch_here(after);  // so that its place is known when it is asked for
            for (int64_t h = 0; h < item.heads; h++) {
                const T* asked = h + ahead < item.heads ? here + (h + ahead) * apart : after + (h + ahead - item.heads) * apart;
                each(whole ? here + h * apart : copied(cache, run, item.kv_head + h), (const char*)asked, h, run % (SPLIT / RUN));
            }
        }
    }

    void add_scores(Span runs) {
        const T* next = runs.empty() ? nullptr : first_of(p.values, runs.start);
        with_count<FEW_ROWS<Cells>>(item.count, [&](auto R) {
            go_through(p.keys, runs, next, [&](const T* run, const char* ahead, int64_t h, int64_t i) {
                float* to = scores + h * R * SCORES_STRIDE + i * RUN;
                direct::scores_of_run<Cells, R>(spread + h * R * depth * 4, run, ahead, p.head_dim, to);
            });
        });
    }

    // `later`: those of the next split.
    void add_values(Span runs, Span later) {
        const T* next = later.empty() ? first_of(p.keys, after) : first_of(p.keys, later.start);
        with_count<FEW_ROWS<Cells>>(item.count, [&](auto R) {
            go_through(p.values, runs, next, [&](const T* run, const char* ahead, int64_t h, int64_t i) {
                const Cell* weights = (const Cell*)scores + h * R * SCORES_STRIDE + i * (RUN / Cells::PER_CELL);
                direct::sums_of_run<Cells, R>(weights, run, ahead, p.head_dim, part.values + h * R * width, width);
            });
        });
    }

    static constexpr int64_t AHEAD = 2;  // runs that are asked for before they are read

    Problem<T> p;
    Item item;
    int64_t depth, width;
    Span seen, wanted;  // entries that any row sees, and those of them that are gathered now
    Cell* spread;
    float* scores;  // and, in their place, weights
    Rows part;
    T* copy;
    Place after{-1, 0, 0};
    const T* of_keys = nullptr;  // of the call before
    std::vector<Sight> sights;   // of the rows of one key head
    Scratch<Cell> spread_memory;
    Scratch<float> scores_memory;
    Scratch<T> copy_memory;
    RowsMemory part_memory;
};
