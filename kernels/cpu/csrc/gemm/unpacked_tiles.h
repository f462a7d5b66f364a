// Quantised weights by tiles of bfloat16: 16 rows of W at a time are unpacked, tile after tile, for a whole block of x, and
// multiplied as tiled.h does. A result is that of the dequantised weight, bit for bit.
#pragma once

#include "gemm/tiled.h"
#include "gemm/unpacked_weight.h"

#if defined(PAGEANT_TILES)

// W, as Tiled takes it.
template <int BITS>
struct UnpackedTiles : UnpackedWeight<BITS> {
    using UnpackedWeight<BITS>::w;

    // Rows from o on, past the last of which it is repeated; `next` are asked for meanwhile. See Lying.
    template <int WORKSPACE>
    TileRows rows(int64_t o, int64_t next) const {
        thread_local Scratch<bf16> workspace;
        bf16* tiles = workspace.take(TILE * w.padded());
        for (int64_t row = 0; row < TILE; row++)
            unpack_row<BITS>(w, std::min(o + row, this->outputs - 1), tiles + row * TILE_INPUTS, (next - o) * this->row_bytes(),
                             TILE * TILE_INPUTS);
        return {(const char*)tiles, TILE_LINE, TILE_BYTES};
    }
};
#endif
