// What grammars leave to be computed of the logits. Rows come in an order: those of which all is needed, and behind them those
// whose masks allow something in few panels of the vocabulary, for which these panels are enough. So each of the two is a
// product of its own; and the first can be made before all masks have come.
#include "gemm/needed.h"

#include "base/clock.h"
#include "sampling/masks.h"
#include "base/slots.h"

#include <algorithm>
#include <cstring>

namespace {

constexpr int64_t MILLION = 1'000'000;
typedef uint16_t __attribute__((may_alias)) PanelBits;  // of a mask: a bit for each output of a panel

// The masks of rows, by panels.
struct Masks {
    const int64_t* slots;
    const PanelBits* bits;
    int64_t panels;

    Masks(const int64_t* slots, const uint32_t* bits, int64_t words)
        : slots(slots), bits((const PanelBits*)bits), panels(words * MASK_BITS / PANEL) {}
    const PanelBits* of(int64_t row) const { return bits + slots[row] * panels; }
    // Whether a row has no mask, or one that allows something in more than half of the panels.
    bool needs_all(int64_t row) const {
        if (slots[row] < 0) return slots[row] == UNMASKED;
        return 2 * std::count_if(of(row), of(row) + panels, [](PanelBits s) { return s != 0; }) > panels;
    }
    // Where any of some rows, which do not need all, need something.
    std::vector<Range> ranges(const int64_t* rows, int64_t count) const {
        std::vector<uint16_t> needed(panels);
        for (int64_t i = 0; i < count; i++)
            if (slots[rows[i]] >= 0)
                for (int64_t s = 0; s < panels; s++) needed[s] |= of(rows[i])[s];
        std::vector<Range> found;
        for (int64_t s = 0; s < panels; s++) {
            if (!needed[s]) continue;
            if (!found.empty() && found.back().stop == s * PANEL) found.back().stop += PANEL;
            else found.push_back({s * PANEL, (s + 1) * PANEL});
        }
        return found;
    }
};

// Hidden states, and where they go in another order.
struct Rows {
    const uint8_t* at;
    int64_t stride, bytes, count;
    uint8_t* to;
    int64_t* order;  // order[i] is in place i

    void place(int64_t first) const {
        for (int64_t i = first; i < count; i++) std::memcpy(to + i * bytes, at + order[i] * stride, bytes);
    }
};

}  // namespace

// Puts rows in order, and says in `needed` which are needed whole: by their masks, if these are there; by the last ones, if
// masks are to be waited for (`patience`); else all of them, as they are. `waiting` is the patience then, none where no rows
// are left; `came` whether all masks are there; `spared` the share of all logits that need not be computed with masks as they
// are in the table, in millionths; and `began` when that was known.
EXPORT void pageant_narrow(const uint8_t* hidden, int64_t stride, int64_t row_bytes, int64_t count, const int64_t* slots,
                           const uint32_t* bits, int64_t words, const int64_t* table, const int64_t* expected,
                           const int64_t* patience, uint8_t* ordered, int64_t* order, Needed* needed, int64_t* waiting,
                           int64_t* came, int64_t* spared, int64_t* began) {
    const Masks masks(slots, bits, words);
    const Rows rows{hidden, stride, row_bytes, count, ordered, order};
    for (int64_t r = 0; r < count; r++) order[r] = r;
    *came = std::all_of(order, order + count, [&](int64_t r) { return has_come(table, slots[r], expected[r]); });
    int64_t whole = std::stable_partition(order, order + count, [&](int64_t r) { return masks.needs_all(r); }) - order;
    const int64_t across = masks.panels * PANEL, some = total(masks.ranges(order + whole, count - whole));
    *spared = MILLION * (count - whole) * (across - some) / (count * across);
    const bool waits = !*came && std::any_of(patience, patience + count + 1, [](int64_t n) { return n > 0; });
    if (!*came && !waits) {
        whole = count;
        for (int64_t r = 0; r < count; r++) order[r] = r;
    }
    for (int64_t n = 0; n <= count; n++) waiting[n] = whole < count ? patience[n] : 0;
    rows.place(0);
    *needed = {0, whole, 0};
    *began = nanoseconds_now();
}

// What is still to be computed after that. Rows whose masks have not come are needed whole, and so are those whose masks allow
// much after all. In the end places[r] is where row r is, and `narrow` how many have not been needed whole.
EXPORT void pageant_narrow_rest(const uint8_t* hidden, int64_t stride, int64_t row_bytes, int64_t count, const int64_t* slots,
                                const uint32_t* bits, int64_t words, const int64_t* table, const int64_t* expected,
                                uint8_t* ordered, int64_t* order, const Needed* before, int64_t* places, Needed* needed,
                                int64_t* narrow) {
    const Masks masks(slots, bits, words);
    const Rows rows{hidden, stride, row_bytes, count, ordered, order};
    const int64_t done = before->whole;
    const int64_t whole = std::stable_partition(order + done, order + count, [&](int64_t r) {
        return !has_come(table, slots[r], expected[r]) || masks.needs_all(r);
    }) - order;
    if (whole > done) rows.place(done);
    const std::vector<Range> ranges = masks.ranges(order + whole, count - whole);
    *needed = {done, whole, int64_t(ranges.size())};
    std::copy(ranges.begin(), ranges.end(), needed->ranges());
    for (int64_t i = 0; i < count; i++) places[order[i]] = i;
    *narrow = count - whole;
}
