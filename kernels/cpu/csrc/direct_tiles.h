// Attention's two products for up to 16 rows by AMX's tiles, with keys as they lie: 16 tokens of a block are what a tile
// takes, and the queries are what is packed. Values are interleaved in pairs, a chunk at a time, in the nearest cache.
//
// Each result has the bits that panel_tiles.h gives: the same chains, along pairs of inputs in tiles of 32, whichever
// side is whose.
#pragma once

#include "packing.h"
#include "panel_tiles.h"

#if defined(PAGEANT_TILES)

namespace direct_tiles {

// 16 tokens' keys: where they lie, if that is one after another and in whole tiles; else a copy with zeros.
struct Keys {
    const Cell* at;
    int64_t stride;  // in bytes
};
inline Keys keys_of(const bf16* const* rows, int64_t head_dim, int64_t depth, Cell* room) {
    bool together = head_dim == 2 * depth;
    for (int t = 1; t < TILE; t++) together &= rows[t] == rows[0] + t * head_dim;
    if (together) return {reinterpret_cast<const Cell*>(rows[0]), int64_t(head_dim * sizeof(bf16))};
    std::memset(room, 0, TILE * depth * sizeof(Cell));
    for (int t = 0; t < TILE; t++) std::memcpy(room + t * depth, rows[t], head_dim * sizeof(bf16));
    return {room, int64_t(depth * sizeof(Cell))};
}

// Of [16 tokens][16 rows], the tokens' scores of each row, SCORES_STRIDE apart.
inline void put_scores(const float* sums, float* scores, int64_t count) {
#if defined(__AVX512F__)
    vu lines[TILE];
    for (int t = 0; t < TILE; t++) lines[t] = load<vu>(sums + t * TILE);
    transpose(lines);
    for (int64_t r = 0; r < count; r++) store(scores + r * SCORES_STRIDE, lines[r]);
#else
    for (int64_t r = 0; r < count; r++)
        for (int t = 0; t < TILE; t++) scores[r * SCORES_STRIDE + t] = sums[t * TILE + r];
#endif
}

}  // namespace direct_tiles

// Puts queries [count, depth cells] side by side as the two functions below take them: [depth, 16].
inline void pack_queries(const Cell* queries, int64_t count, int64_t depth, Cell* packed) {
    std::memset(packed, 0, depth * TILE * sizeof(Cell));
    for (int64_t r = 0; r < count; r++)
        for (int64_t k = 0; k < depth; k++) packed[k * TILE + r] = queries[r * depth + k];
}

// Scores of packed queries and a chunk of keys at `rows`, SCORES_STRIDE apart; fetches what is at `next`. `room` is for
// CHUNK * depth cells.
inline void direct_tile_scores(const Cell* queries, int64_t depth, const bf16* const* rows, const bf16* const* next,
                               int64_t head_dim, Cell* room, float* scores, int64_t count) {
    direct_tiles::Keys keys[CHUNK / TILE];
    for (int i = 0; i < CHUNK / TILE; i++)
        keys[i] = direct_tiles::keys_of(rows + i * TILE, head_dim, depth, room + i * TILE * depth);
    const int64_t steps = depth / TILE;
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int64_t k = 0; k < steps; k++) {
        for (int64_t t = CHUNK * k / steps; t < CHUNK * (k + 1) / steps; t++)
            packing::fetch(next[packing::in_turn(t)], head_dim);
        TILE_LOAD_B(4, queries + k * TILE * TILE, TILE * sizeof(Cell));
        TILE_LOAD_A(6, keys[0].at + k * TILE, keys[0].stride);
        TILE_MULTIPLY(0, 6, 4);
        TILE_FREE(6);
        TILE_LOAD_A(7, keys[1].at + k * TILE, keys[1].stride);
        TILE_MULTIPLY(1, 7, 4);
        TILE_FREE(7);
        TILE_LOAD_A(6, keys[2].at + k * TILE, keys[2].stride);
        TILE_MULTIPLY(2, 6, 4);
        TILE_FREE(6);
        TILE_LOAD_A(7, keys[3].at + k * TILE, keys[3].stride);
        TILE_MULTIPLY(3, 7, 4);
        TILE_FREE(7);
        TILE_FREE(4);
    }
    static_assert(CHUNK == 4 * TILE);
    alignas(64) float sums[4][TILE * TILE];
    TILE_STORE(0, sums[0], TILE * sizeof(float));
    TILE_STORE(1, sums[1], TILE * sizeof(float));
    TILE_STORE(2, sums[2], TILE * sizeof(float));
    TILE_STORE(3, sums[3], TILE * sizeof(float));
    for (int i = 0; i < 4; i++) direct_tiles::put_scores(sums[i], scores + i * TILE, count);
}

// Adds weights [16, a chunk's cells] times a chunk's panel of values to sums [16, width].
inline void direct_tile_sums(const Cell* weights, const Cell* panel, float* sums, int64_t width) {
    constexpr int WIDE = VALUES_WIDE<PairCells>, DEEP = CHUNK / PairCells::PER_CELL, HALF = WIDE / 2;
    static_assert(DEEP == 2 * TILE && HALF == 2 * TILE);
    TILE_LOAD_A(6, weights, SCORES_STRIDE * sizeof(Cell));
    TILE_LOAD_A(7, weights + TILE, SCORES_STRIDE * sizeof(Cell));
    for (int64_t d = 0; d < width; d += HALF) {
        const Cell* b = panel + d / WIDE * VALUES_DEEP<PairCells> * WIDE + d % WIDE;
        TILE_LOAD_B(0, sums + d, width * sizeof(float));
        TILE_LOAD_B(1, sums + d + TILE, width * sizeof(float));
        TILE_LOAD_B(4, b, WIDE * sizeof(Cell));
        TILE_MULTIPLY(0, 6, 4);
        TILE_FREE(4);
        TILE_LOAD_B(5, b + TILE, WIDE * sizeof(Cell));
        TILE_MULTIPLY(1, 6, 5);
        TILE_FREE(5);
        TILE_LOAD_B(4, b + TILE * WIDE, WIDE * sizeof(Cell));
        TILE_MULTIPLY(0, 7, 4);
        TILE_FREE(4);
        TILE_LOAD_B(5, b + TILE * WIDE + TILE, WIDE * sizeof(Cell));
        TILE_MULTIPLY(1, 7, 5);
        TILE_FREE(5);
        TILE_STORE(0, sums + d, width * sizeof(float));
        TILE_STORE(1, sums + d + TILE, width * sizeof(float));
    }
}

#endif
