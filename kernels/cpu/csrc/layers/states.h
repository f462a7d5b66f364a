// States of recurrent layers in pages of the KV cache, and the way of a step's tokens through them (kernels/states.py).
#pragma once

#include <algorithm>
#include <cstring>

#include "base/rows.h"
#include "base/scratch.h"

constexpr int64_t TOKENS_MAX = 64;  // of a tile, which goes through one panel of a state, or slice of channels, after another

inline int64_t padded(int64_t n) { return (n + W - 1) / W * W; }

struct Page {
    char* memory;  // of block 0
    int64_t group, stride;  // bytes from a block to the next
};

struct States {
    const Page* pages;
    int64_t page_bytes;
    const int64_t* tokens;     // by sequence
    const int64_t* sequences;  // of each: first run, last, whether it is new, its blocks
    const int64_t* runs;       // of each: first of the tokens, behind the last, whether its states are kept, its blocks
    int64_t groups;

    const int64_t* sequence(int64_t i) const { return sequences + i * (3 + groups); }
    const int64_t* run(int64_t i) const { return runs + i * (3 + groups); }

    // Calls body(where it is, how far into the bytes, how many) for each page that has some of these bytes of a state.
    template <class Body>
    void in_pages(const int64_t* blocks, int64_t first, int64_t bytes, const Body& body) const {
        for (int64_t done = 0; done < bytes;) {
            const int64_t at = first + done, within = at % page_bytes;
            const int64_t some = std::min(page_bytes - within, bytes - done);
            const Page& page = pages[at / page_bytes];
            body(page.memory + blocks[page.group] * page.stride + within, done, some);
            done += some;
        }
    }

    void load_bytes(const int64_t* blocks, int64_t first, int64_t bytes, void* to) const {
        in_pages(blocks, first, bytes,
                 [&](const char* place, int64_t at, int64_t some) { std::memcpy((char*)to + at, place, some); });
    }
    void store_bytes(const int64_t* blocks, int64_t first, int64_t bytes, const void* from) const {
        in_pages(blocks, first, bytes,
                 [&](char* place, int64_t at, int64_t some) { std::memcpy(place, (const char*)from + at, some); });
    }
};

// A head's matrix, float32 [rows, columns]. At work, it is cut into panels of at most VECTORS vectors of columns, one after
// another, whose rows are padded to whole vectors.
template <int VECTORS>
struct Panels {
    int64_t rows, columns;

    int64_t width() const { return padded(columns); }
    int64_t size() const { return rows * width(); }
    int64_t bytes() const { return rows * columns * 4; }

    // Calls body(panel, its first column, how many vectors of columns).
    template <class Body>
    void each(float* matrix, const Body& body) const {
        constexpr int64_t MOST = VECTORS * W;
        for (int64_t column = 0; column < width(); column += MOST) {
            const int64_t vectors = std::min(MOST, width() - column) / W;
            with_count<VECTORS>(vectors, [&](auto n) { body(matrix + column * rows, column, n); });
        }
    }

    // Reads the matrix from a state's bytes from `first` on. flat: scratch for as many numbers.
    void restore(const States& states, const int64_t* blocks, int64_t first, float* matrix, float* flat) const {
        const float* from = flat;
        states.in_pages(blocks, first, bytes(), [&](const char* place, int64_t at, int64_t some) {
            if (some == bytes()) from = (const float*)place;
            else std::memcpy((char*)flat + at, place, some);
        });
        each(matrix, [&](float* panel, int64_t column, auto vectors) {
            vectors_of(panel, column, vectors, [&](float* own, int64_t at, int n) { store(own, get(from + at, n)); });
        });
    }

    void save(const States& states, const int64_t* blocks, int64_t first, float* matrix, float* flat) const {
        float* to = flat;
        states.in_pages(blocks, first, bytes(), [&](char* place, int64_t, int64_t some) {
            if (some == bytes()) to = (float*)place;
        });
        each(matrix, [&](float* panel, int64_t column, auto vectors) {
            vectors_of(panel, column, vectors, [&](float* own, int64_t at, int n) { put(to + at, load<vf>(own), n); });
        });
        if (to == flat) states.store_bytes(blocks, first, bytes(), flat);
    }

  private:
    // Calls body(vector of a panel, its first number's place in the matrix, how many of its numbers are there).
    template <class Body>
    void vectors_of(float* panel, int64_t column, int vectors, const Body& body) const {
        for (int64_t i = 0; i < rows; i++)
            for (int n = 0; n < vectors; n++) {
                const int64_t at = column + n * W, here = std::min<int64_t>(W, columns - at);
                body(panel + (i * vectors + n) * W, i * columns + at, int(here));
            }
    }
};
