// A steady clock.
#pragma once

#include <chrono>
#include <cstdint>

inline int64_t nanoseconds_now() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}
