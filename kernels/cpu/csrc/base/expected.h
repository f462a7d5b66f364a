// What is read soon, so that threads with nothing to do bring the first of it nearer: between the products of a step
// there is little to compute and memory has nothing to do, and some threads are always through before the others.
#pragma once

#include <cstdint>

// Memory that a call goes through in pieces of so many bytes, of which threads take turns.
struct Reading {
    const char* at = nullptr;
    int64_t piece = 0, bytes = 0;
};

// What the next call goes through that reads much.
void expect(const Reading& reading);
// What this thread's last such call went through.
Reading& last_reading();
// Some of what is expected, of the pieces that thread `index` of `threads` begins with, comes nearer. False: it has enough.
bool fetch_expected(int64_t index, int64_t threads);
