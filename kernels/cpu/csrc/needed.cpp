// What grammars leave to be computed of the logits. Rows come in an order: those of which all is needed, and behind them those
// whose masks allow something in few strips of the vocabulary, for which these strips are enough. So each of the two is a
// product of its own; and the first can be made before all masks have come, of rows that have none, whose masks are there,
// or whose last ones allowed much.
#include "needed.h"

#include "clock.h"
#include "masks.h"

#include <algorithm>
#include <cstring>

namespace {

constexpr int64_t STRIP = 16;  // outputs that any product makes together
constexpr int64_t MILLION = 1'000'000;
typedef uint16_t Strip;        // of a mask: a bit for each

// The masks of rows, by strips; -1 is the slot of those that have none.
struct Masks {
    const int64_t* slots;
    const Strip* bits;
    int64_t strips;

    Masks(const int64_t* slots, const uint32_t* bits, int64_t words)
        : slots(slots), bits((const Strip*)bits), strips(words * MASK_BITS / STRIP) {}
    const Strip* of(int64_t row) const { return bits + slots[row] * strips; }
    // Whether it allows something in more than half of the strips.
    bool allows_much(int64_t row) const {
        return slots[row] < 0 || 2 * std::count_if(of(row), of(row) + strips, [](Strip s) { return s != 0; }) > strips;
    }
    // Where any of some rows, which have masks, allow something.
    std::vector<Range> ranges(const int64_t* rows, int64_t count) const {
        std::vector<Strip> allowed(strips);
        for (int64_t i = 0; i < count; i++)
            std::transform(allowed.begin(), allowed.end(), of(rows[i]), allowed.begin(), [](Strip a, Strip b) { return a | b; });
        std::vector<Range> found;
        for (int64_t s = 0; s < strips; s++) {
            if (!allowed[s]) continue;
            if (!found.empty() && found.back().stop == s * STRIP) found.back().stop += STRIP;
            else found.push_back({s * STRIP, (s + 1) * STRIP});
        }
        return found;
    }
    // Of so many rows whole and so many in ranges, among all, in millionths.
    int64_t share(int64_t whole, int64_t some, const std::vector<Range>& ranges, int64_t rows) const {
        const int64_t across = strips * STRIP;
        return MILLION * (whole * across + some * total(ranges)) / std::max<int64_t>(1, rows * across);
    }
};

// Hidden states, and where they go in another order.
struct Rows {
    const uint8_t* at;
    int64_t stride, bytes;
    uint8_t* to;
    int64_t* order;  // order[i] is in place i

    void place(int64_t i) const { std::memcpy(to + i * bytes, at + order[i] * stride, bytes); }
};

}  // namespace

// Puts rows in order by the masks that there are, old ones if need be, and says in `needed` which are needed whole. `known` is
// the share of all logits that the others leave, if their masks stay like this, in millionths, and when that was known.
EXPORT void pageant_narrow(const uint8_t* hidden, int64_t stride, int64_t row_bytes, int64_t rows, const int64_t* slots,
                           const uint32_t* bits, int64_t words, uint8_t* narrowed, int64_t* order, Needed* needed,
                           int64_t* known) {
    const Masks masks(slots, bits, words);
    const Rows all{hidden, stride, row_bytes, narrowed, order};
    for (int64_t r = 0; r < rows; r++) order[r] = r;
    const int64_t whole = std::stable_partition(order, order + rows, [&](int64_t r) { return masks.allows_much(r); }) - order;
    for (int64_t i = 0; i < rows; i++) all.place(i);
    *needed = {0, whole, 0};
    known[0] = MILLION - masks.share(whole, rows - whole, masks.ranges(order + whole, rows - whole), rows);
    known[1] = nanoseconds_now();
}

// What is still to be computed after that, when masks have come: where they allow much after all, rows come before the others;
// if some have not come, all rows are needed whole. In the end places[r] is where row r is, and `share` of all logits, in
// millionths, is what will have been computed.
EXPORT void pageant_narrow_rest(const uint8_t* hidden, int64_t stride, int64_t row_bytes, int64_t rows, const int64_t* slots,
                                const uint32_t* bits, int64_t words, const int64_t* came, uint8_t* narrowed, int64_t* order,
                                const Needed* before, int64_t* places, Needed* needed, int64_t* share) {
    const Masks masks(slots, bits, words);
    const Rows all{hidden, stride, row_bytes, narrowed, order};
    const int64_t done = before->whole;
    int64_t whole = rows;
    std::vector<Range> ranges;
    if (*came) {
        whole = std::stable_partition(order + done, order + rows, [&](int64_t r) { return masks.allows_much(r); }) - order;
        ranges = masks.ranges(order + whole, rows - whole);
        if (whole > done)
            for (int64_t i = done; i < rows; i++) all.place(i);
    }
    *needed = {done, whole, int64_t(ranges.size())};
    std::copy(ranges.begin(), ranges.end(), needed->ranges());
    for (int64_t i = 0; i < rows; i++) places[order[i]] = i;
    *share = masks.share(whole, rows - whole, ranges, rows);
}
