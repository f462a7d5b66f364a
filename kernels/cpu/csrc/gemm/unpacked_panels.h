// Quantised weights in tiles by tiles of bfloat16: a panel at a time is unpacked for a whole block of x, and multiplied as
// panels.h does. A result is that of the dequantised weight, bit for bit.
#pragma once

#include "gemm/halves.h"
#include "gemm/panels.h"
#include "gemm/unpacked_weight.h"

#if defined(PAGEANT_TILES)

// W, as PanelBlock takes it.
template <int BITS>
struct UnpackedPanels : UnpackedWeight<BITS> {
    using UnpackedWeight<BITS>::w;

    // The tiles of outputs o to o + 16; those of `next` are asked for meanwhile. See Panels.
    template <int WORKSPACE>
    const char* panel(int64_t o, int64_t next) const {
        thread_local Scratch<bf16> workspace;
        bf16* const tiles = workspace.take(TILE * w.padded());
        const PanelLines<BITS> ahead(w, std::min(next, this->outputs - TILE));
        const uint8_t* values = this->at(o);
        if (BITS == 8 && w.in_halves()) values = joined(o);
        const bf16* scales = w.scales + o * w.groups();
        bf16* to = tiles;
        for (int64_t u = 0; u < w.groups() / 2; u++, values += BYTES, scales += 2 * TILE, to += TILE * UNIT) {
            for (int64_t i = 0; i < LINES; i++) __builtin_prefetch(ahead.line(u * LINES + i), 0, NEAREST);
            unpack_unit(values, scales, to);
        }
        return (const char*)tiles;
    }

  private:
    static constexpr int64_t BYTES = TILE * UNIT * BITS / 8, LINES = BYTES / TILE_LINE;  // of a unit
    static constexpr int FOURS = GROUP / 4;

    // The panel, in this thread's memory.
    const uint8_t* joined(int64_t o) const {
#if defined(__AVX512BW__)
        return HalvedPanel(w, o).joined();
#else
        __builtin_unreachable();  // nobody has halves here
#endif
    }

    // A unit becomes a tile for each of its two groups.
    static void unpack_unit(const uint8_t* values, const bf16* scales, bf16* to) {
#if defined(__AVX512BF16__)
        const vu pairs = load<vu>(scales);
        for (int g = 0; g < 2; g++, to += TILE * GROUP) {
            const vf scale = group_scales(pairs, g);
            vu fifths = {};
            if constexpr (BITS == 5) fifths = load<vu>(values + (FOURS + g) * TILE_LINE);
            UNROLL for (int i = 0; i < FOURS; i++) {
                const vi fours = (vi)load<vu>(values + (BITS == 8 ? g * FOURS + i : i) * TILE_LINE);
                const vi raised = (vi)((vu)fours >> 4 * g & 0x0f0f0f0fu | fifths_of(fifths, i));
                vf inputs[4];
                UNROLL for (int j = 0; j < 4; j++) {
                    const vi q = BITS == 8 ? fours << (24 - 8 * j) >> 24 : (raised >> 8 * j & 31) - RAISED<BITS>;
                    inputs[j] = __builtin_convertvector(q, vf) * scale;
                }
                store(to + 2 * i * 2 * TILE, interleaved(inputs[0], inputs[1]));
                store(to + (2 * i + 1) * 2 * TILE, interleaved(inputs[2], inputs[3]));
            }
        }
#else
        for (int g = 0; g < 2; g++)
            for (int i = 0; i < GROUP; i++)
                for (int o = 0; o < TILE; o++) {
                    const uint8_t byte = values[((BITS == 8 ? g * GROUP : 0) + i) / 4 * TILE_LINE + o * 4 + i % 4];
                    const int fifth = BITS == 5 ? values[(FOURS + g) * TILE_LINE + o * 4 + i % 4] >> i / 4 & 1 : 0;
                    const int q = BITS == 8 ? int8_t(byte) : (byte >> 4 * g & 15) + fifth * 16 - RAISED<BITS>;
                    set(to[g * TILE * GROUP + i / 2 * 2 * TILE + o * 2 + i % 2], q * to_float(scales[2 * o + g]));
                }
#endif
    }
};
#endif
