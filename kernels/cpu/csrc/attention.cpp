// Attention over the paged cache, decode and prefill alike.
//
// An item of work is some rows of one sequence and one key head: a row is a (token, query head) pair, so that
// grouped heads share each key that is read. Its context is gone through in splits, at absolute places; each split
// starts from nothing (gather.h), and splits are merged in order. That makes a row's arithmetic a function of its own
// context alone: the same bits alone or among neighbours, in a chunk of any size, and whether its splits were computed
// by one thread in turn (many rows) or by several at once (few rows, long contexts).
#include <cmath>

#include "gather.h"
#include "threads.h"

namespace {

constexpr int64_t ROWS_MAX = 256;   // of an item: their sums and a split's panels stay in the second cache
constexpr int64_t ROWS_APART = 32;  // an item of no more rows than this may have its splits computed apart
constexpr int64_t UNITS_EACH = 8;   // for each thread, before splits are computed apart

// Adds what a later split gathered. Out of line, so that every caller rounds alike.
__attribute__((noinline)) void merge_row(Rows to, Rows from, int64_t width) {
    float theirs = *from.largest;
    if (theirs == NOTHING) return;
    float largest = std::max(*to.largest, theirs);
    float keep = power_of_two<6>(splat(*to.largest - largest))[0], add = power_of_two<6>(splat(theirs - largest))[0];
    *to.largest = largest;
    *to.total = *to.total * keep + *from.total * add;
    for (int64_t d = 0; d < width; d += W)
        store(to.values + d, fma(load<vf>(to.values + d), splat(keep), load<vf>(from.values + d) * add));
}

void clear(Rows rows, int64_t count, int64_t width) {
    std::fill_n(rows.values, count * width, 0.0f);
    std::fill_n(rows.largest, count, NOTHING);
    std::fill_n(rows.total, count, 0.0f);
}

template <class T>
void write_row(const Problem<T>& p, Rows row, T* output) {
    float share = *row.total > 0 ? 1.0f / *row.total : 0.0f;
    in_order<typename CellsOf<T>::Type>(row.values, p.width());
    for (int64_t d = 0; d < p.head_dim; d += W) {
        vf scaled = load<vf>(row.values + d) * share;
        if (d + W <= p.head_dim) write(output + d, scaled);
        else write(output + d, scaled, int(p.head_dim - d));
    }
}

template <class T>
Gatherer<T>& gatherer() {
    static thread_local Gatherer<T> mine;
    return mine;
}

// All splits of an item, one after another.
template <class T>
void whole_item(const Problem<T>& p, const Item& item) {
    static thread_local RowsMemory memory;
    int64_t width = p.width();
    Gatherer<T>& g = gatherer<T>();
    g.start(p, item);
    auto output_of = [&](int64_t r) { return p.output_of(g.token(r), g.head(r)); };
    if (g.stop_split() - g.first_split() == 1)  // a split alone is merged with nothing
        return g.gather(g.first_split(), g.stop_split(), [&](int64_t, int64_t row, int64_t count, Rows part) {
            for (int64_t r = 0; r < count; r++) {
                const Rows own = part.from(r, width);
                if (*own.largest == NOTHING) clear(own, 1, width);
                write_row(p, own, output_of(row + r));
            }
        });
    Rows all = memory.take(item.count, width);
    clear(all, item.count, width);
    g.gather(g.first_split(), g.stop_split(), [&](int64_t, int64_t row, int64_t count, Rows part) {
        for (int64_t r = 0; r < count; r++) merge_row(all.from(row + r, width), part.from(r, width), width);
    });
    for (int64_t r = 0; r < item.count; r++) write_row(p, all.from(r, width), output_of(r));
}

// A sequence's part of the work: items of up to `rows_each` rows, in `pieces` of `splits_each` splits.
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
        return apart.from(share.first_row + (kv_head * share.splits + split) * share.rows, width);
    };
    // The last rows of a chunk have the longest contexts: they go first, for the threads to end together.
    parallel_for(units, [&](int64_t i) {
        int64_t unit = units - 1 - i;
        auto after = std::upper_bound(shares.begin(), shares.end(), unit,
                                      [](int64_t u, const Share& share) { return u < share.first_unit; });
        const Share& share = *(after - 1);
        int64_t local = unit - share.first_unit, kv_head = local % p.kv_heads, piece = local / p.kv_heads;
        if (share.pieces == 1) {
            int64_t first = piece * share.rows_each;
            whole_item(p, {share.sequence, kv_head, first, std::min(share.rows_each, share.rows - first)});
            return;
        }
        Gatherer<T>& g = gatherer<T>();
        g.start(p, {share.sequence, kv_head, 0, share.rows});
        int64_t first = piece * share.splits_each, stop = std::min(first + share.splits_each, share.splits);
        g.gather(first, stop, [&](int64_t split, int64_t row, int64_t count, Rows part) {
            Rows to = rows_of(share, kv_head, split).from(row, width);
            std::copy_n(part.values, count * width, to.values);
            std::copy_n(part.largest, count, to.largest);
            std::copy_n(part.total, count, to.total);
        });
    });
    if (rows_apart == 0) return;
    parallel_for((shares.size() - 1) * p.kv_heads, [&](int64_t i) {
        const Share& share = shares[i / p.kv_heads];
        int64_t kv_head = i % p.kv_heads;
        if (share.pieces == 1) return;
        static thread_local RowsMemory memory;
        Rows all = memory.take(share.rows, width);
        clear(all, share.rows, width);
        for (int64_t split = 0; split < share.splits; split++) {
            Rows part = rows_of(share, kv_head, split);
            for (int64_t r = 0; r < share.rows; r++) merge_row(all.from(r, width), part.from(r, width), width);
        }
        for (int64_t r = 0; r < share.rows; r++) {
            int64_t token = p.starts[share.sequence] + r / p.group(), head = kv_head * p.group() + r % p.group();
            write_row(p, all.from(r, width), p.output_of(token, head));
        }
    });
}

}  // namespace

#define ATTENTION(NAME, T)                                                                                    \
    EXPORT void NAME(const T* query, int64_t query_stride, const T* keys, const T* values, T* output,         \
                     int64_t output_stride, const int32_t* starts, const int32_t* lengths,                    \
                     const int32_t* tables, int64_t table_stride, const int64_t* positions,                   \
                     const int64_t* ancestors, int64_t sequences, int64_t heads, int64_t kv_heads,            \
                     int64_t head_dim, int64_t block_size, int64_t window, double scale, double softcap) {    \
        attend<T>({query, query_stride, keys, values, output, output_stride, starts, lengths, tables,         \
                   table_stride, positions, ancestors, sequences, heads, kv_heads, head_dim, block_size,      \
                   window, float(scale), float(softcap)});                                                    \
    }
ATTENTION(pageant_attention_f32, float)
ATTENTION(pageant_attention_bf16, bf16)
ATTENTION(pageant_attention_f16, f16)
