// Attention over the paged cache, decode and prefill alike.
//
// An item of work is some rows of one sequence and one key head, or few of several: a row is a (token, query head) pair, so
// that grouped heads share each key that is read. Its context is gone through in splits, at absolute places; each split
// starts from nothing (gather.h), and splits are merged in order. That makes a row's arithmetic a function of its own
// context alone: the same bits alone or among neighbours, in a chunk of any size, and whether its splits were computed
// by one thread in turn (many rows) or by several at once (few rows, long contexts).
#include <cmath>

#include "attention/few.h"
#include "attention/gather.h"
#include "attention/merging.h"
#include "base/threads.h"

namespace {

constexpr int64_t ROWS_MAX = 512;   // of an item: their sums and a split's panels stay in the second cache
constexpr int64_t ROWS_APART = 32;  // an item of no more rows than this may have its splits computed apart
constexpr int64_t UNITS_EACH = 8;   // for each thread, before splits are computed apart
constexpr int64_t HEADS_EACH = 1;   // units for each thread, before key heads are
constexpr int64_t ROWS_TOGETHER = 16;  // of several key heads, whose queries stay in the nearest cache

// A sequence's part of the work: items of up to `rows_each` rows under `heads_each` key heads, in `pieces` of `splits_each`
// splits; either has one alone. Its units are numbered piece by piece, in each of these head by head, for keys to be read in the
// order of memory; but where there are several items, head by head, for its keys to stay in the second cache.
struct Share {
    int64_t sequence, rows, rows_each, items, heads_each, across, splits, splits_each, pieces, first_unit, first_row;

    int64_t units() const { return items * pieces * across; }
};

template <class T>
bool goes_by_runs(int64_t rows) { return rows <= FEW_ROWS<typename CellsOf<T>::Type>; }

// Says how the work is cut into units. Splits are only computed apart where there are few items, and key heads of few rows
// where there would still be few units.
template <class T>
std::vector<Share> cut(const Problem<T>& p) {
    std::vector<Share> shares;
    int64_t items = 0;
    for (int64_t s = 0; s < p.sequences; s++) {
        Share share{};
        share.sequence = s;
        share.rows = (p.starts[s + 1] - p.starts[s]) * p.group();
        if (share.rows == 0) continue;
        share.rows_each = std::min(share.rows, std::max<int64_t>(1, ROWS_MAX / p.group()) * p.group());
        share.items = ceil_div(share.rows, share.rows_each);
        share.splits = ceil_div(p.lengths[s], SPLIT);
        share.heads_each = goes_by_runs<T>(share.rows) ? std::clamp<int64_t>(ROWS_TOGETHER / share.rows, 1, p.kv_heads) : 1;
        share.across = ceil_div(p.kv_heads, share.heads_each);
        shares.push_back(share);
        items += share.items * share.across;
    }
    auto wanted = [&](int64_t each) { return thread_count() > 1 ? ceil_div(each * thread_count(), std::max<int64_t>(1, items)) : 1; };
    int64_t units = 0, rows_apart = 0;
    for (Share& share : shares) {
        int64_t pieces = share.rows <= ROWS_APART ? std::clamp<int64_t>(share.splits, 1, wanted(UNITS_EACH)) : 1;
        share.splits_each = ceil_div(share.splits, pieces);
        share.pieces = pieces == 1 ? 1 : ceil_div(share.splits, share.splits_each);
        const int64_t parts = std::min(ceil_div(wanted(HEADS_EACH), share.pieces), share.heads_each);
        share.heads_each = ceil_div(share.heads_each, parts);
        share.across = ceil_div(p.kv_heads, share.heads_each);
        share.first_unit = units;
        share.first_row = rows_apart;
        units += share.units();
        if (share.pieces > 1) rows_apart += share.rows * share.splits * p.kv_heads;
    }
    Share end{};
    end.first_unit = units;
    end.first_row = rows_apart;
    shares.push_back(end);
    return shares;
}

// What a thread does at a time: an item, or a piece of its splits.
struct Unit {
    Item item;
    int64_t first, stop;  // splits, where there are several pieces
};

class Units {
  public:
    Units(const std::vector<Share>& shares, int64_t kv_heads) : shares_(shares), kv_heads_(kv_heads) {}

    int64_t count() const { return shares_.back().first_unit; }
    const Share& share_of(int64_t i) const {
        auto after = std::upper_bound(shares_.begin(), shares_.end(), i,
                                      [](int64_t unit, const Share& share) { return unit < share.first_unit; });
        return *(after - 1);
    }
    Unit at(int64_t i) const {
        const Share& share = share_of(i);
        i -= share.first_unit;
        const bool by_items = share.items > 1;
        const int64_t head = by_items ? i / share.items : i % share.across, kv_head = head * share.heads_each;
        const int64_t first = by_items ? i % share.items * share.rows_each : 0, piece = by_items ? 0 : i / share.across;
        const Item item{share.sequence, kv_head, std::min(share.heads_each, kv_heads_ - kv_head), first,
                        std::min(share.rows_each, share.rows - first)};
        return {item, piece * share.splits_each, std::min((piece + 1) * share.splits_each, share.splits)};
    }

  private:
    const std::vector<Share>& shares_;
    int64_t kv_heads_;
};

// What a unit reads first, where its item's rows are of one token, which sees anything.
template <class T>
Place first_place(const Problem<T>& p, const Unit& unit) {
    const int64_t position = p.positions[unit.item.token(p, 0)], last = p.lengths[unit.item.sequence] - 1;
    const int64_t begin = p.window ? std::max<int64_t>(0, position + 1 - p.window) : 0;
    return {unit.item.sequence, unit.item.kv_head, std::min(std::max(begin, unit.first * SPLIT), last) / RUN * RUN};
}

// Calls use(gatherer) with one that is made for such an item, and has begun with it.
template <class G, class T, class Use>
void with(const Problem<T>& p, const Item& item, const Use& use) {
    static thread_local G gatherer;
    gatherer.start(p, item);
    use(gatherer);
}
template <class T, class Use>
void with_gatherer(const Problem<T>& p, const Item& item, const Use& use) {
    auto of_cached = [&](auto cached) {
        using Cached = decltype(cached);
        goes_by_runs<T>(item.count) ? with<FewGatherer<T, Cached>>(p, item, use) : with<Gatherer<T, Cached>>(p, item, use);
    };
    p.layout().coded() ? with_code(p.format, of_cached) : of_cached(T{});
}

// All splits of an item, one after another; `then` is what this thread gathers afterwards.
template <class T, class G>
void whole_item(const Problem<T>& p, const Item& item, G& g, const Place& then, bool past_caches) {
    static thread_local RowsMemory memory;
    const int64_t width = p.width();
    auto write = [&](int64_t r, Rows row) {
        const int64_t head = item.head(p, r);
        write_row(p, row, head, p.output_of(item.token(p, r), head), past_caches);
    };
    if (g.stop_split() - g.first_split() == 1)  // a split alone is merged with nothing
        return g.gather(g.first_split(), g.stop_split(), then, [&](int64_t, int64_t row, int64_t count, Rows part) {
            for (int64_t r = 0; r < count; r++) {
                const Rows own = part.from(r, width);
                if (*own.largest == NOTHING) clear(own, 1, width);
                write(row + r, own);
            }
        });
    Rows all = memory.take(item.rows(), width);
    clear(all, item.rows(), width);
    g.gather(g.first_split(), g.stop_split(), then, [&](int64_t, int64_t row, int64_t count, Rows part) {
        merge_rows(all.from(row, width), part, count, width);
    });
    for (int64_t r = 0; r < item.rows(); r++) write(r, all.from(r, width));
}

template <class T>
void attend(const Problem<T>& p) {
    const std::vector<Share> shares = cut(p);
    const Units units(shares, p.kv_heads);
    const int64_t rows_apart = shares.back().first_row, width = p.width();
    const bool past_caches = leaves_caches(p.output_bytes());
    static thread_local RowsMemory apart_memory;
    Rows apart = apart_memory.take(rows_apart, width);
    auto rows_of = [&](const Share& share, int64_t kv_head, int64_t split) {
        return apart.from(share.first_row + (kv_head * share.splits + split) * share.rows, width);
    };
    // The last rows of a chunk have the longest contexts: they go first, for the threads to end together.
    parallel_turns(units.count(), [&](int64_t i) {
        const int64_t n = units.count() - 1 - i;
        const Share& share = units.share_of(n);
        const Unit unit = units.at(n);
        const Item& item = unit.item;
        const Place then = first_place(p, units.at(std::max<int64_t>(0, n - thread_count())));
        with_gatherer(p, item, [&](auto& g) {
            if (share.pieces == 1) return whole_item(p, item, g, then, past_caches);
            g.gather(unit.first, unit.stop, then, [&](int64_t split, int64_t row, int64_t count, Rows part) {
                for (int64_t r = 0; r < count; r++) {
                    const int64_t of_head = (row + r) % item.count;
                    const Rows to = rows_of(share, item.kv_head + (row + r) / item.count, split).from(of_head, width);
                    const Rows from = part.from(r, width);
                    std::copy_n(from.values, width, to.values);
                    *to.largest = *from.largest, *to.total = *from.total;
                }
            });
        });
        if (past_caches) settle_lines();
    });
    if (rows_apart == 0) return;
    parallel_for((shares.size() - 1) * p.kv_heads, [&](int64_t i) {
        const Share& share = shares[i / p.kv_heads];
        int64_t kv_head = i % p.kv_heads;
        if (share.pieces == 1) return;
        static thread_local RowsMemory memory;
        Rows all = memory.take(share.rows, width);
        clear(all, share.rows, width);
        for (int64_t split = 0; split < share.splits; split++) merge_rows(all, rows_of(share, kv_head, split), share.rows, width);
        const Item item{share.sequence, kv_head, 1, 0, share.rows};
        for (int64_t r = 0; r < share.rows; r++) {
            const int64_t head = item.head(p, r);
            write_row(p, all.from(r, width), head, p.output_of(item.token(p, r), head), false);
        }
    });
}

}  // namespace

#define ATTENTION(NAME, T)                                                                                    \
    EXPORT void NAME(const T* query, int64_t query_stride, const char* keys, const char* values, T* output,   \
                     int64_t output_stride, const int32_t* starts, const int32_t* lengths,                    \
                     const int32_t* tables, int64_t table_stride, const int64_t* positions,                   \
                     const int64_t* ancestors, int64_t sequences, int64_t heads, int64_t kv_heads,            \
                     int64_t head_dim, int64_t value_dim, int64_t block_size, int64_t window, int64_t format, \
                     const float* sinks, double scale, double softcap) {                                      \
        attend<T>({query, query_stride, keys, values, output, output_stride, starts, lengths, tables,         \
                   table_stride, positions, ancestors, sequences, heads, kv_heads, head_dim, value_dim,       \
                   block_size, window, float(scale), float(softcap), KvFormat(format), sinks});               \
    }
ATTENTION(pageant_attention_f32, float)
ATTENTION(pageant_attention_bf16, bf16)
ATTENTION(pageant_attention_f16, f16)
