// Recorded calls of this library's functions, made again without the interpreter between them.
#include "base/clock.h"
#include "base/expected.h"
#include "base/replay.h"
#include "base/slots.h"
#include "base/threads.h"

#include <cstddef>
#include <thread>
#include <utility>

namespace {

constexpr size_t WORDS_MAX = 24, REALS_MAX = 2;

// One call: a function whose arguments are words (integers and pointers, which are passed alike) and reals. The
// order among the two kinds is lost, and does not matter where they are passed in registers of their own kinds.
struct Call {
    void* function;
    int64_t words, reals;
    uint64_t word[WORDS_MAX];
    double real[REALS_MAX];
    Reading reads;  // noted here whenever it is made
};

template <class T, size_t>
using Same = T;

template <size_t... I, size_t... J>
void call(const Call& c, std::index_sequence<I...>, std::index_sequence<J...>) {
    auto function = reinterpret_cast<void (*)(Same<uint64_t, I>..., Same<double, J>...)>(c.function);
    function(c.word[I]..., c.real[J]...);
}

using Caller = void (*)(const Call&);

template <size_t Reals, size_t... Words>
void call_by_words(const Call& c, std::index_sequence<Words...>) {
    static constexpr Caller callers[] = {[](const Call& one) {
        call(one, std::make_index_sequence<Words>{}, std::make_index_sequence<Reals>{});
    }...};
    callers[c.words](c);
}

template <size_t... Reals>
void call_by_reals(const Call& c, std::index_sequence<Reals...>) {
    static constexpr Caller callers[] = {
        [](const Call& one) { call_by_words<Reals>(one, std::make_index_sequence<WORDS_MAX + 1>{}); }...};
    callers[c.reals](c);
}

// The first call after number i that goes through weights, perhaps the next time; i + count, if there is none.
int64_t reader_after(const Call* calls, int64_t count, int64_t i) {
    int64_t next = i + 1;
    while (next < i + count && !calls[next % count].reads.at) next++;
    return next;
}

// Whether the calls after the present one are left out, this time.
bool& cut_short() {
    thread_local bool cut;
    return cut;
}

}  // namespace

void end_replay() { cut_short() = true; }

// For a function of the caller's that could not do what is recorded of it.
EXPORT void pageant_stop_replay() { end_replay(); }

EXPORT void pageant_replay(Call* calls, int64_t count) {
    cut_short() = false;
    int64_t next = 0;
    for (int64_t i = 0; i < count && !cut_short(); i++) {
        if (next <= i) next = reader_after(calls, count, i);
        expect(calls[next % count].reads);
        last_reading() = {};
        call_by_reals(calls[i], std::make_index_sequence<REALS_MAX + 1>{});
        calls[i].reads = last_reading();
    }
}

constexpr int64_t YIELDING = 20'000, NAP = 10'000;
// Waits until each table[slots[i]] has come to be expected[i], but where slots[i] is negative; while n have not, for
// patience[n] nanoseconds at most, after which a recording ends here, if this gate `ends` it. `outcome` is whether all came,
// for how many nanoseconds that was waited for, and when that began. What another thread wrote before it wrote those numbers
// may be read then.
EXPORT void pageant_gate(const int64_t* table, const int64_t* slots, const int64_t* expected, int64_t count,
                         const int64_t* patience, int64_t ends, int64_t* outcome) {
    outcome[2] = nanoseconds_now();
    for (int64_t waited = 0;; waited = nanoseconds_now() - outcome[2]) {
        int64_t late = 0;
        for (int64_t i = 0; i < count; i++) late += !has_come(table, slots[i], expected[i]);
        outcome[0] = late == 0, outcome[1] = waited;
        cut_short() = ends && late > 0;
        if (late == 0 || waited >= patience[late]) return;
        if (waited < YIELDING) std::this_thread::yield();
        else std::this_thread::sleep_for(std::chrono::nanoseconds(NAP));
    }
}
