// Attention over the paged cache, decode and prefill alike, with an online softmax (Milakov and Gimelshein,
// 2018; Dao et al., FlashAttention, 2022).
//
// An item of work is some rows of one sequence and one key head: a row is a (token, query head) pair, so that
// grouped heads share each key that is read. Its context is gone through in tiles, and tiles are grouped into
// splits, both at absolute places in the context; each split starts from nothing, and splits are merged in
// order. That makes a row's arithmetic a function of its own context alone: the same bits alone or among
// neighbours, in a chunk of any size, and whether its splits were computed by one thread in turn (many rows)
// or by several at once (few rows, long contexts).
#include <cmath>
#include <vector>

#include "direct.h"
#include "exponential.h"
#include "packing.h"
#include "threads.h"

namespace {

static_assert(TILE == 64, "what a row sees of a tile is one word of bits");
constexpr int64_t SPLIT = 512;      // entries, a multiple of TILE
constexpr int64_t ROWS_MAX = 96;    // of an item: their scratch and a tile's panels stay in the second cache
constexpr int64_t ROWS_APART = 32;  // an item of no more rows than this may have its splits computed apart
constexpr int64_t UNITS_EACH = 8;   // for each thread, before splits are computed apart
constexpr float NOTHING = -__builtin_inff();

template <class T>
struct Problem {
    const T* query;
    int64_t query_stride;
    const T* keys;
    const T* values;
    T* output;
    const int32_t* starts;
    const int32_t* lengths;
    const int32_t* tables;
    int64_t table_stride;
    const int64_t* positions;
    const int64_t* ancestors;  // or null
    int64_t sequences, heads, kv_heads, head_dim, block_size;
    int64_t window;  // 0: none
    float scale, softcap;  // 0: none

    int64_t group() const { return heads / kv_heads; }
    int64_t width() const { return values_width<typename CellsOf<T>::Type>(head_dim); }
};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What a row has gathered so far: the weighted values, their largest score and the sum of their weights.
struct Rows {
    float* values;  // [rows, width]
    float* largest;
    float* total;
};

// Adds what a later split gathered. Out of line, so that every caller rounds alike.
__attribute__((noinline)) void merge_row(Rows& to, const Rows& from, int64_t row, int64_t from_row, int64_t width) {
    float theirs = from.largest[from_row];
    if (theirs == NOTHING) return;
    float largest = std::max(to.largest[row], theirs);
    float keep = exponential(splat(to.largest[row] - largest))[0], add = exponential(splat(theirs - largest))[0];
    to.largest[row] = largest;
    to.total[row] = to.total[row] * keep + from.total[from_row] * add;
    float *ours = to.values + row * width, *more = from.values + from_row * width;
    for (int64_t d = 0; d < width; d += W)
        store(ours + d, fma(load<vf>(ours + d), splat(keep), load<vf>(more + d) * add));
}

void clear(Rows& rows, int64_t count, int64_t width) {
    std::fill_n(rows.values, count * width, 0.0f);
    std::fill_n(rows.largest, count, NOTHING);
    std::fill_n(rows.total, count, 0.0f);
}

template <class T>
void write_row(const Problem<T>& p, const Rows& rows, int64_t row, T* output) {
    float share = rows.total[row] > 0 ? 1.0f / rows.total[row] : 0.0f;
    float* values = rows.values + row * p.width();
    in_order<typename CellsOf<T>::Type>(values, p.width());
    for (int64_t d = 0; d < p.head_dim; d += W) {
        vf scaled = load<vf>(values + d) * share;
        if (d + W <= p.head_dim) write(output + d, scaled);
        else write(output + d, scaled, int(p.head_dim - d));
    }
}

// Memory of one thread, kept from call to call.
template <class N>
N* scratch(std::vector<N>& memory, int64_t size) {
    if (int64_t(memory.size()) < size) memory.resize(size);
    return memory.data();
}

// Rows [first, first + count) of a sequence under one key head: row = token * group + head of the group.
template <class T>
struct Item {
    int64_t sequence, kv_head, first, count;
};

template <class T>
class Worker {
    using Cells = typename CellsOf<T>::Type;
    using Number = typename Cells::Number;

public:
    void start(const Problem<T>& problem, const Item<T>& its) {
        p = problem;
        item = its;
        depth = ceil_div(p.head_dim, Cells::PER_CELL);
        width = p.width();
        query_stride = ceil_div(depth, W) * W;
        query = scratch(query_memory, item.count * query_stride);
        sights.resize(item.count);
        keys = scratch(keys_memory, depth * TILE);
        values = scratch(values_memory, TILE / Cells::PER_CELL * width);
        scores = scratch(scores_memory, item.count * TILE);
        weights = scratch(weights_memory, item.count * TILE);
        nothing.resize(p.head_dim, T{});
        oldest = p.lengths[item.sequence];
        newest = 0;
        std::fill_n(query, item.count * query_stride, 0);
        for (int64_t r = 0; r < item.count; r++) {
            const T* from = p.query + token(r) * p.query_stride + head(r) * p.head_dim;
            Number* to = reinterpret_cast<Number*>(query + r * query_stride);
            for (int64_t d = 0; d < p.head_dim; d++) set(to[d], to_float(from[d]));
            look(token(r), sights[r]);
        }
    }

    int64_t token(int64_t r) const { return p.starts[item.sequence] + (item.first + r) / p.group(); }
    int64_t head(int64_t r) const { return item.kv_head * p.group() + (item.first + r) % p.group(); }

    // The splits that hold any entry that a row sees.
    int64_t first_split() const { return oldest / SPLIT; }
    int64_t stop_split() const { return ceil_div(newest, SPLIT); }

    // Gathers what the entries of splits first to stop hold, each apart and in order: rows_of(split) says into
    // what, and done(split) that it is there.
    template <class RowsOf, class Done>
    void gather(int64_t first, int64_t stop, const RowsOf& rows_of, const Done& done) {
        int64_t end = std::min(newest, stop * SPLIT);
        int64_t tile = std::max(oldest / TILE * TILE, first * SPLIT);
        Tile now, next;
        point(tile, end, now);
        for (int64_t t = 0; t < TILE; t++) packing::fetch(now.keys[packing::in_turn(t)], p.head_dim);
        for (int64_t t = 0; t < TILE; t++) packing::fetch(now.values[packing::in_turn(t)], p.head_dim);
        for (int64_t split = first; split < stop; split++) {
            Rows rows = rows_of(split);
            clear(rows, item.count, width);
            for (; tile < std::min(end, (split + 1) * SPLIT); tile += TILE, now = next) {
                point(tile + TILE, end, next);
                attend(tile, now, next, rows);
            }
            done(split);
        }
    }

private:
    // What a row sees: entries [begin, stop), and from `own` on those whose bit is set.
    struct Sight {
        int64_t begin, stop, own;
        uint64_t chosen;
    };
    // Where each token of a tile lies.
    struct Tile {
        const T *keys[TILE], *values[TILE];
    };

    void look(int64_t token, Sight& sight) {
        int64_t length = p.lengths[item.sequence], position = p.positions[token];
        int64_t first = p.starts[item.sequence], count = p.starts[item.sequence + 1] - first;
        sight.begin = p.window ? std::max<int64_t>(0, position + 1 - p.window) : 0;
        sight.stop = std::min(length, position + 1);
        sight.own = length - count;
        sight.chosen = p.ancestors ? uint64_t(p.ancestors[token]) : 0;
        if (sight.chosen) {
            sight.stop = sight.own;
            for (int64_t i = 0; i < std::min(count, TILE); i++)
                if (p.window && p.positions[first + i] <= position - p.window) sight.chosen &= ~(1ull << i);
        }
        if (sight.begin < sight.stop) {
            oldest = std::min(oldest, sight.begin);
            newest = std::max(newest, sight.stop);
        }
        if (sight.chosen) {
            oldest = std::min(oldest, sight.own);
            newest = length;
        }
    }

    // Bit i: whether entry tile + i is seen.
    static uint64_t seen(const Sight& sight, int64_t tile) {
        auto below = [](int64_t n) { return n >= TILE ? ~0ull : n <= 0 ? 0 : (1ull << n) - 1; };
        uint64_t bits = below(sight.stop - tile) & ~below(sight.begin - tile);
        int64_t shift = sight.own - tile;
        if (sight.chosen && shift > -TILE && shift < TILE)
            bits |= shift >= 0 ? sight.chosen << shift : sight.chosen >> -shift;
        return bits;
    }

    // Entries that no row sees read as zero: they may hold anything, and a weight of zero times NaN is NaN.
    void point(int64_t tile, int64_t stop, Tile& to) const {
        const int32_t* table = p.tables + item.sequence * p.table_stride;
        std::fill_n(to.keys, TILE, nothing.data());
        std::fill_n(to.values, TILE, nothing.data());
        int64_t entry = std::max(tile, oldest), end = std::min(tile + TILE, stop);
        while (entry < end) {
            int64_t block = entry / p.block_size, offset = entry - block * p.block_size;
            int64_t base = ((table[block] * p.kv_heads + item.kv_head) * p.block_size + offset) * p.head_dim;
            int64_t block_end = std::min(end, (block + 1) * p.block_size);
            for (; entry < block_end; entry++, base += p.head_dim) {
                to.keys[entry - tile] = p.keys + base;
                to.values[entry - tile] = p.values + base;
            }
        }
    }

    void attend(int64_t tile, const Tile& now, const Tile& next, Rows& rows) {
        constexpr int64_t CELLS = TILE / Cells::PER_CELL;
        bool few = item.count <= FEW_ROWS<Cells>;
        if (few) {
            direct_scores<Cells>(query, query_stride, now.keys, next.keys, p.head_dim, scores, item.count);
        } else {
            pack_keys<Cells>(now.keys, next.keys, p.head_dim, keys);
            panel_scores<Cells>(query, query_stride, keys, scores, item.count, depth);
        }
        for (int64_t r = 0; r < item.count; r++) weigh(tile, r, rows);
        if (few) {
            direct_sums<Cells>(weights, now.values, next.values, p.head_dim, rows.values, width, item.count);
        } else {
            pack_values<Cells>(now.values, next.values, p.head_dim, width, values);
            panel_product<Cells>(weights, CELLS, values, width, rows.values, width, item.count, width, CELLS);
        }
    }

    // Turns row r's scores into weights, relative to the largest score so far.
    void weigh(int64_t tile, int64_t r, Rows& rows) {
        float* row = scores + r * TILE;
        uint64_t bits = seen(sights[r], tile);
        vf largest = splat(NOTHING);
        for (int t = 0; t < TILE; t += W) {
            vf s = load<vf>(row + t) * p.scale;
            if (p.softcap != 0) s = p.softcap * hyperbolic_tangent(s / p.softcap);
            if (~bits) s = ((vi{} + int32_t(bits >> t)) >> lanes() & 1) != 0 ? s : splat(NOTHING);
            store(row + t, s);
            largest = max(largest, s);
        }
        float before = rows.largest[r], now = std::max(before, maximum(largest));
        float base = now == NOTHING ? 0.0f : now;
        rows.largest[r] = now;
        vf total = {};
        Number* to = reinterpret_cast<Number*>(weights + r * (TILE / Cells::PER_CELL));
        for (int t = 0; t < TILE; t += W) {
            // Rounded before they are summed, so that what is divided by is the sum of what was weighed with.
            vf weight = rounded<Number>(exponential(load<vf>(row + t) - base));
            write(to + t, weight);
            total += weight;
        }
        float keep = before == base ? 1.0f : exponential(splat(before - base))[0];
        rows.total[r] = rows.total[r] * keep + sum(total);
        if (keep == 1.0f) return;
        float* values = rows.values + r * width;
        for (int64_t d = 0; d < width; d += W) store(values + d, load<vf>(values + d) * keep);
    }

    static vi lanes() {
        vi v;
        for (int i = 0; i < W; i++) v[i] = i;
        return v;
    }

    Problem<T> p;
    Item<T> item;
    int64_t depth, width, query_stride, oldest, newest;
    Cell *query, *keys, *values, *weights;
    float* scores;
    std::vector<Sight> sights;
    std::vector<T> nothing;
    std::vector<Cell> query_memory, keys_memory, values_memory, weights_memory;
    std::vector<float> scores_memory;
};

template <class T>
Worker<T>& worker() {
    static thread_local Worker<T> mine;
    return mine;
}

struct RowsMemory {
    std::vector<float> memory;
    Rows take(int64_t count, int64_t width) {
        float* start = scratch(memory, count * (width + 2));
        return {start, start + count * width, start + count * (width + 1)};
    }
};

// All splits of an item, one after another.
template <class T>
void whole_item(const Problem<T>& p, const Item<T>& item) {
    static thread_local RowsMemory split_memory, sum_memory;
    Worker<T>& w = worker<T>();
    w.start(p, item);
    Rows part = split_memory.take(item.count, p.width()), all = sum_memory.take(item.count, p.width());
    clear(all, item.count, p.width());
    w.gather(w.first_split(), w.stop_split(), [&](int64_t) { return part; }, [&](int64_t) {
        for (int64_t r = 0; r < item.count; r++) merge_row(all, part, r, r, p.width());
    });
    for (int64_t r = 0; r < item.count; r++)
        write_row(p, all, r, p.output + (w.token(r) * p.heads + w.head(r)) * p.head_dim);
}

// A sequence's part of the work: items of up to ROWS_MAX rows, in `pieces` of `splits_each` splits.
struct Share {
    int64_t sequence, rows, rows_each, items, splits, splits_each, pieces, first_unit, first_row;
};

// Says how the work is cut into units. Splits are only computed apart where there are few items.
template <class T>
std::vector<Share> cut(const Problem<T>& p) {
    std::vector<Share> shares;
    int64_t items = 0;
    for (int64_t s = 0; s < p.sequences; s++) {
        int64_t rows = (p.starts[s + 1] - p.starts[s]) * p.group();
        if (rows == 0) continue;
        int64_t rows_each = std::min(rows, std::max<int64_t>(1, ROWS_MAX / p.group()) * p.group());
        shares.push_back({s, rows, rows_each, ceil_div(rows, rows_each), ceil_div(p.lengths[s], SPLIT)});
        items += shares.back().items * p.kv_heads;
    }
    int64_t wanted = thread_count() > 1 ? ceil_div(UNITS_EACH * thread_count(), std::max<int64_t>(1, items)) : 1;
    int64_t units = 0, rows_apart = 0;
    for (Share& share : shares) {
        int64_t pieces = share.rows <= ROWS_APART ? std::clamp<int64_t>(share.splits, 1, wanted) : 1;
        share.splits_each = ceil_div(share.splits, pieces);
        share.pieces = pieces == 1 ? 1 : ceil_div(share.splits, share.splits_each);
        share.first_unit = units;
        share.first_row = rows_apart;
        units += share.items * share.pieces * p.kv_heads;
        if (share.pieces > 1) rows_apart += share.rows * share.splits * p.kv_heads;
    }
    Share end{};
    end.first_unit = units;
    end.first_row = rows_apart;
    shares.push_back(end);
    return shares;
}

template <class T>
void attend(const Problem<T>& p) {
    std::vector<Share> shares = cut(p);
    int64_t units = shares.back().first_unit, rows_apart = shares.back().first_row, width = p.width();
    static thread_local RowsMemory apart_memory;
    Rows apart = apart_memory.take(rows_apart, width);
    auto rows_of = [&](const Share& share, int64_t kv_head, int64_t split) {
        int64_t row = share.first_row + (kv_head * share.splits + split) * share.rows;
        return Rows{apart.values + row * width, apart.largest + row, apart.total + row};
    };
    // The last rows of a chunk have the longest contexts: they go first, for the threads to end together.
    parallel_for(units, [&](int64_t i) {
        int64_t unit = units - 1 - i;
        auto after = std::upper_bound(shares.begin(), shares.end(), unit,
                                      [](int64_t u, const Share& share) { return u < share.first_unit; });
        const Share& share = *(after - 1);
        int64_t local = unit - share.first_unit, kv_head = local % p.kv_heads, part = local / p.kv_heads;
        if (share.pieces == 1) {
            int64_t first = part * share.rows_each;
            whole_item(p, Item<T>{share.sequence, kv_head, first, std::min(share.rows_each, share.rows - first)});
            return;
        }
        Worker<T>& w = worker<T>();
        w.start(p, {share.sequence, kv_head, 0, share.rows});
        int64_t first = part * share.splits_each, stop = std::min(first + share.splits_each, share.splits);
        w.gather(first, stop, [&](int64_t split) { return rows_of(share, kv_head, split); }, [](int64_t) {});
    });
    if (rows_apart == 0) return;
    parallel_for((shares.size() - 1) * p.kv_heads, [&](int64_t i) {
        const Share& share = shares[i / p.kv_heads];
        int64_t kv_head = i % p.kv_heads;
        if (share.pieces == 1) return;
        static thread_local RowsMemory sum_memory;
        Rows all = sum_memory.take(share.rows, width);
        clear(all, share.rows, width);
        for (int64_t split = 0; split < share.splits; split++) {
            Rows part = rows_of(share, kv_head, split);
            for (int64_t r = 0; r < share.rows; r++) merge_row(all, part, r, r, width);
        }
        for (int64_t r = 0; r < share.rows; r++) {
            int64_t token = p.starts[share.sequence] + r / p.group(), head = kv_head * p.group() + r % p.group();
            write_row(p, all, r, p.output + (token * p.heads + head) * p.head_dim);
        }
    });
}

}  // namespace

#define ATTENTION(NAME, T)                                                                                    \
    EXPORT void NAME(const T* query, int64_t query_stride, const T* keys, const T* values, T* output,         \
                     const int32_t* starts, const int32_t* lengths, const int32_t* tables,                    \
                     int64_t table_stride, const int64_t* positions, const int64_t* ancestors,                \
                     int64_t sequences, int64_t heads, int64_t kv_heads, int64_t head_dim,                    \
                     int64_t block_size, int64_t window, double scale, double softcap) {                      \
        attend<T>({query, query_stride, keys, values, output, starts, lengths, tables, table_stride,          \
                   positions, ancestors, sequences, heads, kv_heads, head_dim, block_size, window,            \
                   float(scale), float(softcap)});                                                            \
    }
ATTENTION(pageant_attention_f32, float)
ATTENTION(pageant_attention_bf16, bf16)
ATTENTION(pageant_attention_f16, f16)
