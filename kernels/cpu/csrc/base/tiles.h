// The matrix registers of AMX: eight tiles of 16 rows of 64 bytes, and the product of two of bfloat16 added to one of
// floats, or of two of signed bytes to one of whole numbers. PAGEANT_EMULATE_TILES is the same in plain C++, for testing on
// machines without them.
//
// A is `rows` by 32 inputs, as a matrix has them; B is 16 pairs of inputs by `columns`; C is `rows` by `columns`. Of bytes, A
// has 64 inputs, and B 16 times four. Tiles are named by literal numbers, which is how the compiler's own macros want them.
#pragma once

#include <cstdint>
#include <cstring>

constexpr int TILE = 16;         // rows of a tile, and most columns of B and C
constexpr int TILE_LINE = 64;    // bytes of a row
constexpr int TILE_BYTES = TILE * TILE_LINE;
constexpr int TILE_INPUTS = 32;  // that one product of tiles adds up

// Gives a tile up that will be loaded before it is read again. It seems that two threads of a core share what tiles are
// renamed to, and that one that is zero needs none of it: with all eight of a thread in use, loads and products wait for
// one another, and the fewer are in use the less they do. (Measured on a Xeon of the fourth generation, two tiles by two
// from the nearest cache: 0.57 TFLOP/s a thread without this and 0.97 with it, and in stretches that look like having a
// core to itself 2.2 either way.)
#define TILE_FREE(T) TILE_ZERO(T)

struct TileShape { int rows, row_bytes; };

#if defined(PAGEANT_EMULATE_TILES)

#include "base/vec.h"

namespace emulated {
struct Tiles {
    TileShape shapes[8] = {};
    alignas(64) uint8_t data[8][TILE][64];
};
inline Tiles& tiles() {
    thread_local Tiles mine;
    return mine;
}
inline void load(int tile, const void* from, int64_t stride) {
    const TileShape shape = tiles().shapes[tile];
    std::memset(tiles().data[tile], 0, sizeof tiles().data[tile]);
    for (int row = 0; row < shape.rows; row++)
        std::memcpy(tiles().data[tile][row], (const uint8_t*)from + row * stride, shape.row_bytes);
}
inline void store(int tile, void* to, int64_t stride) {
    const TileShape shape = tiles().shapes[tile];
    for (int row = 0; row < shape.rows; row++)
        std::memcpy((uint8_t*)to + row * stride, tiles().data[tile][row], shape.row_bytes);
}
// Adds to each number of C what of_place(row, column) is.
template <class Number, class OfPlace>
inline void add(int c, const OfPlace& of_place) {
    const TileShape shape = tiles().shapes[c];
    for (int m = 0; m < shape.rows; m++)
        for (int n = 0; n < shape.row_bytes / 4; n++) {
            Number sum;
            std::memcpy(&sum, tiles().data[c][m] + 4 * n, 4);
            sum += of_place(m, n);
            std::memcpy(tiles().data[c][m] + 4 * n, &sum, 4);
        }
}
// As Intel's manual has it: even and odd inputs apart, then both to what is there.
inline void multiply(int c, int a, int b) {
    add<float>(c, [=](int m, int n) {
        float even = 0, odd = 0;
        for (int k = 0; k < tiles().shapes[b].rows; k++) {
            bf16 left[2], right[2];
            std::memcpy(left, tiles().data[a][m] + 4 * k, 4);
            std::memcpy(right, tiles().data[b][k] + 4 * n, 4);
            even = __builtin_fmaf(to_float(left[0]), to_float(right[0]), even);
            odd = __builtin_fmaf(to_float(left[1]), to_float(right[1]), odd);
        }
        return even + odd;
    });
}
inline void multiply_bytes(int c, int a, int b) {
    add<int32_t>(c, [=](int m, int n) {
        int32_t sum = 0;
        for (int k = 0; k < tiles().shapes[b].rows; k++)
            for (int i = 4 * k; i < 4 * k + 4; i++)
                sum += int8_t(tiles().data[a][m][i]) * int8_t(tiles().data[b][k][4 * n + i % 4]);
        return sum;
    });
}
}  // namespace emulated

#define TILE_ZERO(T) std::memset(emulated::tiles().data[T], 0, sizeof emulated::tiles().data[T])
#define TILE_LOAD(T, FROM, STRIDE) emulated::load(T, FROM, STRIDE)
#define TILE_STORE(T, TO, STRIDE) emulated::store(T, TO, STRIDE)
#define TILE_MULTIPLY(C, A, B) emulated::multiply(C, A, B)
#define TILE_MULTIPLY_BYTES(C, A, B) emulated::multiply_bytes(C, A, B)

inline bool tiles_allowed() { return true; }
// Takes the shape of each of the eight from `shape_of`.
template <class ShapeOf>
inline void configure_tiles(const ShapeOf& shape_of) {
    for (int tile = 0; tile < 8; tile++) emulated::tiles().shapes[tile] = shape_of(tile);
}
inline void leave_tiles() {}

#elif defined(__AMX_BF16__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

// GCC does not know that these instructions read memory; without this it leaves out what is written for them.
inline void settle(const void* p) { __asm__ volatile("" ::"r"(p) : "memory"); }

#define TILE_ZERO(T) _tile_zero(T)
#define TILE_LOAD(T, FROM, STRIDE)        \
    do {                                  \
        settle(FROM);                     \
        _tile_loadd(T, (FROM), (STRIDE)); \
    } while (0)
#define TILE_STORE(T, TO, STRIDE)         \
    do {                                  \
        _tile_stored(T, (TO), (STRIDE));  \
        settle(TO);                       \
    } while (0)
#define TILE_MULTIPLY(C, A, B) _tile_dpbf16ps(C, A, B)
#define TILE_MULTIPLY_BYTES(C, A, B) _tile_dpbssd(C, A, B)

// Asks the kernel, once for a process; without its leave the first tile would be the end.
inline bool tiles_allowed() {
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

// Takes the shape of each of the eight from `shape_of`.
template <class ShapeOf>
inline void configure_tiles(const ShapeOf& shape_of) {
    struct {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t row_bytes[16] = {};
        uint8_t rows[16] = {};
    } shapes;
    static_assert(sizeof shapes == 64, "what the instruction reads");
    for (int tile = 0; tile < 8; tile++) {
        shapes.rows[tile] = shape_of(tile).rows;
        shapes.row_bytes[tile] = shape_of(tile).row_bytes;
    }
    settle(&shapes);
    _tile_loadconfig(&shapes);
}

inline void leave_tiles() { _tile_release(); }

#endif

#if defined(PAGEANT_EMULATE_TILES) || defined(__AMX_BF16__)
#define PAGEANT_TILES 1
#if defined(__AVX512VNNI__)  // of whose products of bytes those of tiles have the bits
#define PAGEANT_BYTE_TILES 1
#endif

// Tiles 0 to 3 are C, 4 and 5 are B, 6 and 7 are A.
inline void use_tiles(int rows, int columns) {
    configure_tiles([=](int tile) {
        const bool is_a = tile >= 6, is_b = !is_a && tile >= 4;
        return TileShape{is_b ? TILE : rows, is_a ? 64 : 4 * columns};
    });
}
#else
inline bool tiles_allowed() { return true; }
#endif
