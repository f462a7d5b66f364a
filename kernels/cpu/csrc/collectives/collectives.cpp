// Collective operations of ranks that share memory: sums along a fixed tree, and copies.
#include "collectives/group.h"
#include "base/rows.h"
#include "base/vec.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace {

// Sums of fewer bytes are taken by every rank from all parts, in one exchange.
constexpr int64_t WHOLE_MAX = 32 << 10;
constexpr int64_t COPIED_ALONE = 128 << 10;  // bytes

void copy(char* to, const char* from, int64_t bytes) {
    if (bytes <= COPIED_ALONE) {
        std::memcpy(to, from, bytes);
        return;
    }
    parallel_ranges(bytes, COPIED_ALONE, [&](int64_t start, int64_t stop) { std::memcpy(to + start, from + start, stop - start); });
}

// The sum of `count` vectors, neighbours first; an odd one out goes up as it is.
inline vf tree(vf* level, int count) {
    while (count > 1) {
        const int pairs = count / 2;
        for (int i = 0; i < pairs; i++) level[i] = level[2 * i] + level[2 * i + 1];
        if (count & 1) level[pairs] = level[count - 1];
        count = pairs + (count & 1);
    }
    return level[0];
}

template <class Body>
void sum_along(const float* const* parts, int count, int64_t start, int64_t stop, const Body& body) {
    const auto all = [&](auto most) {
        constexpr int MOST = decltype(most)::value;
        along(stop - start, [&](int64_t i, int numbers) {
            vf level[MOST];
            for (int part = 0; part < (MOST <= 4 ? MOST : count); part++) level[part] = get(parts[part] + start + i, numbers);
            body(start + i, tree(level, MOST <= 4 ? MOST : count), numbers);
        });
    };
    switch (count) {
        case 1: return all(std::integral_constant<int, 1>{});
        case 2: return all(std::integral_constant<int, 2>{});
        case 4: return all(std::integral_constant<int, 4>{});
        default: return all(std::integral_constant<int, RANKS_MAX>{});
    }
}

// to[i] = the sum of parts, for i from start on. `to` and parts are of all numbers.
void sum_floats(const float* const* parts, int count, int64_t start, int64_t stop, float* to) {
    parallel_ranges(stop - start, NUMBERS_ALONE, [&](int64_t from, int64_t until) {
        sum_along(parts, count, start + from, start + until, [&](int64_t i, vf sum, int n) { put(to + i, sum, n); });
    });
}

// What a sum becomes: with a bias for each column, in the type of the results.
struct Finish {
    void* out;
    int64_t type;  // 0, 1, 2: float32, bfloat16, float16
    const void* bias;
    int64_t bias_type, columns;

    int64_t bytes_each() const { return type == 0 ? 4 : 2; }
};

template <class Body>
void with_type(int64_t type, const Body& body) {
    if (type == 0) body(float{});
    else if (type == 1) body(bf16{});
    else body(f16{});
}

// Where results go: one place, or two, which takes one pass.
template <class Out>
struct Places {
    Out *to, *also;

    void put_both(int64_t i, vf x, int n) const {
        put(to + i, x, n);
        if (also) put(also + i, x, n);
    }
};

// Sums numbers `first + start` to `first + stop` of [rows, columns], where part[i] is that of number first + i.
template <class Out, class Bias>
void finish_row_by_row(const float* const* parts, int count, int64_t first, int64_t start, int64_t stop, const Bias* bias,
                       int64_t columns, Places<Out> places) {
    while (start < stop) {
        const int64_t column = (first + start) % columns, end = std::min(stop, start + columns - column);
        const Bias* here = bias + column - start;
        sum_along(parts, count, start, end, [&](int64_t i, vf sum, int n) { places.put_both(i, sum + get(here + i, n), n); });
        start = end;
    }
}

void finish_sum(const float* const* parts, int count, int64_t first, int64_t start, int64_t stop, const Finish& finish,
                void* to, void* also = nullptr) {
    with_type(finish.type, [&](auto out) {
        using Out = decltype(out);
        const Places<Out> places{static_cast<Out*>(to), static_cast<Out*>(also)};
        parallel_ranges(stop - start, NUMBERS_ALONE, [&](int64_t from, int64_t until) {
            if (!finish.bias) {
                sum_along(parts, count, start + from, start + until, [&](int64_t i, vf sum, int n) { places.put_both(i, sum, n); });
                return;
            }
            with_type(finish.bias_type, [&](auto bias) {
                finish_row_by_row(parts, count, first, start + from, start + until,
                                  static_cast<const decltype(bias)*>(finish.bias), finish.columns, places);
            });
        });
    });
}

// This rank's segments of numbers first to first + n, as pointers to number `first` of each.
struct Segments {
    const float* at[RANKS_MAX];
    int count;

    Segments(const float* parts, int64_t segments, int64_t total, int64_t first) : count(int(segments)) {
        for (int s = 0; s < count; s++) at[s] = parts + s * total + first;
    }
};

// One exchange: every rank adds all parts.
bool sum_whole(Group& group, const Segments& mine, int64_t n, const Finish& finish) {
    if (!begin(group)) return false;
    sum_floats(mine.at, mine.count, 0, n, reinterpret_cast<float*>(group.slot(group.rank, group.number)));
    enter(group, Kind::SUM, n * 4);
    if (!wait_for_all(group, Kind::SUM, n * 4)) return false;
    const float* parts[RANKS_MAX];
    for (int rank = 0; rank < group.size; rank++) parts[rank] = reinterpret_cast<const float*>(group.slot(rank, group.number));
    finish_sum(parts, group.size, 0, 0, n, finish, finish.out);
    return true;
}

// Two exchanges: each rank adds its piece of n numbers from `first` on, and gives it to all.
bool sum_by_pieces(Group& group, const Segments& mine, int64_t first, int64_t n, const Finish& finish) {
    const int64_t each = ((n + group.size - 1) / group.size + 63) / 64 * 64, width = finish.bytes_each();
    const auto start = [&](int rank) { return std::min(n, each * rank); };
    if (!begin(group)) return false;
    float* slot = reinterpret_cast<float*>(group.slot(group.rank, group.number));
    for (int rank = 0; rank < group.size; rank++)
        if (rank != group.rank || mine.count > 1) sum_floats(mine.at, mine.count, start(rank), start(rank + 1), slot);
    enter(group, Kind::SUM_PARTS, n * 4);
    if (!wait_for_all(group, Kind::SUM_PARTS, n * 4)) return false;
    const float* parts[RANKS_MAX];
    for (int rank = 0; rank < group.size; rank++) parts[rank] = reinterpret_cast<const float*>(group.slot(rank, group.number));
    if (mine.count == 1) parts[group.rank] = mine.at[0];

    if (!begin(group)) return false;
    char* out = static_cast<char*>(finish.out) + first * width;
    char* results = group.slot(group.rank, group.number);
    const int64_t from = start(group.rank), until = start(group.rank + 1);
    finish_sum(parts, group.size, first, from, until, finish, results, out);
    enter(group, Kind::SUM_RESULT, n * width);
    for (int step = 1; step < group.size; step++) {
        const int rank = (group.rank + step) % group.size;
        if (!wait_for_rank(group, rank, Kind::SUM_RESULT, n * width)) return false;
        copy(out + start(rank) * width, group.slot(rank, group.number) + start(rank) * width,
             (start(rank + 1) - start(rank)) * width);
    }
    return true;
}

bool all_reduce(Group& group, const float* parts, int64_t segments, int64_t n, const Finish& finish) {
    if (group.size == 1) {
        finish_sum(Segments(parts, segments, n, 0).at, int(segments), 0, 0, n, finish, finish.out);
        return true;
    }
    const int64_t most = group.head().slot_bytes / 4 - 64 * group.size;
    if (n * 4 <= std::min(WHOLE_MAX, group.head().slot_bytes)) return sum_whole(group, Segments(parts, segments, n, 0), n, finish);
    for (int64_t first = 0; first < n; first += most) {
        const int64_t count = std::min(most, n - first);
        if (!sum_by_pieces(group, Segments(parts, segments, n, first), first, count, finish)) return false;
    }
    return true;
}

// Calls task(start, bytes) for as many bytes at a time as a slot has; once for none.
template <class Task>
bool by_slots(const Group& group, int64_t bytes, const Task& task) {
    const int64_t most = group.head().slot_bytes;
    for (int64_t start = 0; start < std::max<int64_t>(bytes, 1); start += most)
        if (!task(start, std::min(most, bytes - start))) return false;
    return true;
}

bool broadcast(Group& group, char* data, int64_t bytes, int root) {
    return by_slots(group, bytes, [&](int64_t start, int64_t some) {
        if (!begin(group)) return false;
        if (group.rank == root) copy(group.slot(root, group.number), data + start, some);
        enter(group, Kind::BROADCAST, bytes);
        if (!wait_for_rank(group, root, Kind::BROADCAST, bytes)) return false;
        if (group.rank != root) copy(data + start, group.slot(root, group.number), some);
        return true;
    });
}

// To one root, or to all where it is -1.
bool gather(Group& group, const char* part, char* out, int64_t bytes, int root) {
    const Kind kind = root < 0 ? Kind::ALL_GATHER : Kind::GATHER;
    return by_slots(group, bytes, [&](int64_t start, int64_t some) {
        if (!begin(group)) return false;
        if (group.rank != root) copy(group.slot(group.rank, group.number), part + start, some);
        enter(group, kind, bytes);
        if (!out) return true;
        copy(out + group.rank * bytes + start, part + start, some);
        for (int step = 1; step < group.size; step++) {
            const int rank = (group.rank + step) % group.size;
            if (!wait_for_rank(group, rank, kind, bytes)) return false;
            copy(out + rank * bytes + start, group.slot(rank, group.number), some);
        }
        return true;
    });
}

// counts[s * size + d]: rows of `width` bytes that rank s sends rank d.
bool all_to_all(Group& group, const char* rows, char* out, const int64_t* counts, int64_t width) {
    const int size = group.size;
    const auto sum = [&](const int64_t* row, int until) {
        int64_t total = 0;
        for (int i = 0; i < until; i++) total += row[i];
        return total * width;
    };
    int64_t most = 0;
    for (int sender = 0; sender < size; sender++) most = std::max(most, sum(counts + sender * size, size));
    const int64_t mine = sum(counts + group.rank * size, size);
    return by_slots(group, most, [&](int64_t start, int64_t some) {
        if (!begin(group)) return false;
        if (start < mine) copy(group.slot(group.rank, group.number), rows + start, std::min(some, mine - start));
        enter(group, Kind::ALL_TO_ALL, most);
        char* to = out;
        for (int sender = 0; sender < size; sender++) {
            if (!wait_for_rank(group, sender, Kind::ALL_TO_ALL, most)) return false;
            const int64_t *row = counts + sender * size, from = sum(row, group.rank), until = sum(row, group.rank + 1);
            const int64_t first = std::max(from, start), last = std::min(until, start + some);
            if (first < last) copy(to + first - from, group.slot(sender, group.number) + first - start, last - first);
            to += until - from;
        }
        return true;
    });
}

bool send(Group& group, const char* data, int64_t bytes, int peer) {
    Edge& edge = group.edge(group.rank, peer);
    const int64_t most = group.head().edge_bytes;
    for (int64_t start = 0; start < std::max<int64_t>(bytes, 1); start += most) {
        const uint32_t number = edge.sent.value.load(std::memory_order_relaxed) + 1;
        if (!wait_for(group, edge.received, number - 2, peer, "it to receive")) return false;
        copy(group.edge_slot(group.rank, peer, number), data + start, std::min(most, bytes - start));
        edge.kinds[number & 1].store(uint64_t(bytes), std::memory_order_relaxed);
        advance(edge.sent, number);
    }
    return true;
}

bool receive(Group& group, char* data, int64_t bytes, int peer) {
    Edge& edge = group.edge(peer, group.rank);
    const int64_t most = group.head().edge_bytes;
    for (int64_t start = 0; start < std::max<int64_t>(bytes, 1); start += most) {
        const uint32_t number = edge.received.value.load(std::memory_order_relaxed) + 1;
        if (!wait_for(group, edge.sent, number, peer, "what it sends")) return false;
        const uint64_t found = edge.kinds[number & 1].load(std::memory_order_relaxed);
        if (found != uint64_t(bytes)) {
            char reason[160];
            std::snprintf(reason, sizeof reason, "rank %d sent %llu bytes to rank %d, which expected %lld", peer,
                          (unsigned long long)found, group.rank, (long long)bytes);
            break_off(group, -1, reason);
            return false;
        }
        copy(data + start, group.edge_slot(peer, group.rank, number), std::min(most, bytes - start));
        advance(edge.received, number);
    }
    return true;
}

// 0: done. 1: the group is broken. 2: another thread is in an operation.
template <class Operation>
int64_t operate(Group* group, const Operation& operation) {
    Stay stay(*group);
    if (!stay.refused && !operation(*group)) stay.refused = 1;
    return stay.refused;
}

}  // namespace

// parts: [segments, rows, columns]. Types: 0 is float32, 1 is bfloat16, 2 is float16; `bias` may be null.
EXPORT int64_t pageant_group_all_reduce(Group* group, const float* parts, int64_t segments, int64_t rows, int64_t columns,
                                        void* out, int64_t type, const void* bias, int64_t bias_type) {
    const Finish finish{out, type, bias, bias_type, columns};
    return operate(group, [&](Group& g) { return all_reduce(g, parts, segments, rows * columns, finish); });
}

EXPORT int64_t pageant_group_broadcast(Group* group, void* data, int64_t bytes, int64_t root) {
    return operate(group, [&](Group& g) { return broadcast(g, static_cast<char*>(data), bytes, int(root)); });
}

// `out` is null on ranks that are not the root; a root of -1 is all ranks.
EXPORT int64_t pageant_group_gather(Group* group, const void* part, void* out, int64_t bytes, int64_t root) {
    return operate(group, [&](Group& g) {
        return gather(g, static_cast<const char*>(part), static_cast<char*>(out), bytes, int(root));
    });
}

EXPORT int64_t pageant_group_all_to_all(Group* group, const void* rows, void* out, const int64_t* counts, int64_t width) {
    return operate(group, [&](Group& g) {
        return all_to_all(g, static_cast<const char*>(rows), static_cast<char*>(out), counts, width);
    });
}

EXPORT int64_t pageant_group_barrier(Group* group) {
    return operate(group, [&](Group& g) {
        if (!begin(g)) return false;
        enter(g, Kind::BARRIER, 0);
        return wait_for_all(g, Kind::BARRIER, 0);
    });
}

EXPORT int64_t pageant_group_send(Group* group, const void* data, int64_t bytes, int64_t peer) {
    return operate(group, [&](Group& g) { return send(g, static_cast<const char*>(data), bytes, int(peer)); });
}

EXPORT int64_t pageant_group_receive(Group* group, void* data, int64_t bytes, int64_t peer) {
    return operate(group, [&](Group& g) { return receive(g, static_cast<char*>(data), bytes, int(peer)); });
}
