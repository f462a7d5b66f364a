// Where the masks of rows are in a table that another thread writes to.
#pragma once

#include <cstdint>

constexpr int64_t UNMASKED = -1, VOID = -2;  // slots of rows that may draw anything, and of rows that draw nothing

// Whether the mask of a slot, if it is one, is that for the position that is expected. What was written before may be read then.
inline bool has_come(const int64_t* table, int64_t slot, int64_t expected) {
    return slot < 0 || __atomic_load_n(table + slot, __ATOMIC_ACQUIRE) == expected;
}
