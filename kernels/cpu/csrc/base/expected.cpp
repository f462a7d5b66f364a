#include "base/expected.h"

#include "base/vec.h"

#include <atomic>

namespace {

constexpr int64_t SOME = 8 * LINE;     // fetched between two looks at whether there is work
constexpr int64_t MOST = 256 << 10;    // for a thread, of which two share a second cache

// Written by whoever makes calls and read by idle threads. One may see half of what is written, or what is there no
// longer: it then asks for memory in vain, and that may be any address.
std::atomic<const char*> expected_at{nullptr};
std::atomic<int64_t> expected_piece{0}, expected_bytes{0};

}  // namespace

void expect(const Reading& reading) {
    expected_piece.store(reading.piece, std::memory_order_relaxed);
    expected_bytes.store(reading.bytes, std::memory_order_relaxed);
    expected_at.store(reading.at, std::memory_order_relaxed);
}

Reading& last_reading() {
    thread_local Reading mine;
    return mine;
}

bool fetch_expected(int64_t index, int64_t threads) {
    thread_local const char* of = nullptr;
    thread_local int64_t fetched = 0;
    const char* at = expected_at.load(std::memory_order_relaxed);
    if (at != of) of = at, fetched = 0;
    const int64_t piece = expected_piece.load(std::memory_order_relaxed);
    if (!at || piece <= 0 || fetched >= MOST) return false;
    const int64_t start = (fetched / piece * threads + index) * piece + fetched % piece;
    if (start + SOME > expected_bytes.load(std::memory_order_relaxed)) return false;
    for (int64_t i = 0; i < SOME; i += LINE) __builtin_prefetch(at + start + i, 0, 2);
    fetched += SOME;
    return true;
}
