// Products whose lanes are outputs, with AVX2 or AVX-512: 16 rows of W, a panel, are read side by side, a unit of inputs from
// each, and made columns, so that a vector or two have the same few inputs of all 16. Against them goes each row of x of a
// block, its numbers broadcast; then comes the next unit. So W is read once, evenly, and with all of the arithmetic
// in between, whether there is one row of x or a block of them: a tile whose sums stay in registers takes the rows of
// x in turns instead, and waits for memory in the first turn only. Nothing is added up across lanes. Making columns
// takes as long as four rows of x.
//
// With AVX-512 and more than a few rows, register tiles of rows and panels are faster (register_tiles.h).
//
// A result is added up along the inputs in order, unit by unit, in as many chains as a Unit says: the same bits in any company.
#pragma once

#include <array>
#include <new>

#include "gemm/register_tiles.h"
#include "gemm/product.h"
#include "base/scratch.h"
#include "base/transpose.h"

#if defined(__AVX2__)

constexpr int ACROSS = PANEL / W;         // vectors that have a number of each
constexpr int AHEAD = 16;                 // packed units of x that are fetched into the nearest cache
constexpr int64_t NEAR_BYTES = 12 << 10;  // a panel that the nearest cache holds beside the one that is in use

// The first `count` numbers of 16 bits, none or less than a vector has; the rest zero. (Slower than a whole load, even for
// all of them.)
inline vu first_of(const void* p, int64_t count) {
#if defined(__AVX512F__)
    return (vu)_mm512_maskz_loadu_epi16((__mmask32(1) << count) - 1, p);
#else
    uint16_t part[2 * W] = {};
    std::memcpy(part, p, count * sizeof *part);
    return load<vu>(part);
#endif
}

// Sums of 16 outputs in two parts, whose additions do not wait for one another.
struct Chains { vf first[ACROSS], second[ACROSS]; };
inline vf total(vf sum, int) { return sum; }
inline vf total(const Chains& sums, int i) { return sums.first[i] + sums.second[i]; }

// A panel in memory: rows that lie `stride` bytes apart; and the panel that this thread comes to after it.
struct Rows {
    const uint8_t* at;
    int64_t stride;
    const uint8_t* next;

    // Row b, from `byte` on. Written so that four pointers serve all 16 rows.
    const uint8_t* row(int b, int64_t byte) const { return at + byte + b / 4 * (4 * stride) + b % 4 * stride; }
    // Line i of the next panel.
    void fetch(int64_t i) const {
        if (PANEL * stride <= NEAR_BYTES) __builtin_prefetch(next + i * LINE, 0, 3);
        else __builtin_prefetch(next + i * LINE, 0, 2);
    }
};

// Where a panel is: its first output, that of the panel to fetch meanwhile, and how many outputs there are; and how many panels
// are gone through in turn with it.
struct Place {
    int64_t o, next, outputs;
    int in_turn = 1;
};

// Rows o to o+16 of W, which are `used` bytes long. Where W ends before, zeros follow in a copy.
inline Rows panel_of(const void* weight, int64_t stride, int64_t used, Place place, std::vector<uint8_t>& workspace) {
    const uint8_t* at = (const uint8_t*)weight + place.o * stride;
    Rows rows{at, stride, place.next < place.outputs ? (const uint8_t*)weight + place.next * stride : at};
    if (place.o + PANEL <= place.outputs) return rows;
    workspace.assign((PANEL - 1) * stride + std::max(stride, used), 0);
    std::memcpy(workspace.data(), at, (place.outputs - place.o - 1) * stride + used);
    return {workspace.data(), stride, rows.next};
}

// A panel of W in tiles: so many bytes to a unit, one after another, and what is asked for so many units `before` it is used,
// in this panel or in the one that comes then.
template <int64_t BYTES>
struct TiledUnits {
    const uint8_t *at, *next;
    int64_t units, before;

    const uint8_t* unit(int64_t u) const { return at + u * BYTES; }
    const uint8_t* ahead(int64_t u) const {
        u += before;
        return u < units ? at + u * BYTES : next + (u - units) * BYTES;
    }
};

// How many panels a row that is alone goes through in turn. (AVX512-BF16 without AMX is an AMD's: levels.py. They read fewer
// streams faster, and there are the scales' besides.)
#if defined(__AVX512BF16__) && !defined(PAGEANT_TILES)
constexpr int BFLOATS_IN_TURN = 2, BYTES_IN_TURN = 1;
#else
constexpr int BFLOATS_IN_TURN = 4, BYTES_IN_TURN = 4;
#endif

// Packs units of x, one by one.
template <class Packed, class T>
struct PackedSingly {
    void add(const T* x, int64_t count, Packed& to) { to.set(x, count); }
    void finish() {}
};

// The kernel (see product.h). A Panel says what a unit is, how x is packed, and how the two are multiplied: of
// TOGETHER rows of x the sums are added up in turns, since each addition waits for the one before; of what is left over, of
// half as many, and so on.
template <class Panel, class T>
struct Lanes {
    typedef typename Panel::Packed Packed;  // a unit of a row of x
    typedef typename Panel::Sum Sum;        // of a row
    Product<T> p;
    typename Panel::Matrix w;

    static constexpr int64_t PACKED_TOGETHER = 4;
    static constexpr bool BY_REGISTER_TILES = Panel::Unit::REGISTER_SUMS > 0;
    static constexpr int64_t BLOCK_ROWS = 96;  // whose sums stay in the nearest cache
    static constexpr int64_t REGISTER_TILED_ROWS = 4 * BLOCK_ROWS;  // of a block at most, by register tiles
    static_assert(BLOCK_ROWS % PACKED_TOGETHER == 0, "each packing is of one block");
    // By register tiles, as many as take a part of the second cache, and then evenly.
    int64_t block_rows() const {
        if (!BY_REGISTER_TILES) return BLOCK_ROWS;
        const int64_t most = std::clamp<int64_t>(BLOCK_BYTES / (units() * sizeof(Packed)), BLOCK_ROWS, REGISTER_TILED_ROWS);
        return even_blocks(p.rows, most);
    }
    const void* weights() const { return w.values; }
    int64_t row_bytes() const { return w.row_bytes(); }
    int64_t units() const { return (p.inputs + Panel::UNIT_INPUTS - 1) / Panel::UNIT_INPUTS; }
    int64_t packed_size(int64_t count) const { return units() * count * sizeof(Packed); }

    // Unit by unit, in each of them row by row.
    void pack(int64_t first, int64_t last, int64_t r, int64_t end, uint8_t* workspace) const {
        Packed* packed = reinterpret_cast<Packed*>(workspace);
        typename Panel::template Packing<T> packing;
        for (int64_t u = 0; u < units(); u++, packed += last - first)
            for (int64_t a = r; a < end; a++) {
                int64_t i = u * Panel::UNIT_INPUTS;
                packing.add(p.x + a * p.x_stride + i, std::min<int64_t>(Panel::UNIT_INPUTS, p.inputs - i), packed[a - first]);
            }
        packing.finish();
    }

    void block(const uint8_t* workspace, int64_t r, int64_t end, int64_t start, int64_t stop) const {
#if defined(__AVX512F__)
        if constexpr (BY_REGISTER_TILES)
            if (end - r > Panel::FEW) return register_tiles(workspace, r, end, start, stop);
#endif
        // Functions of their own, since what is multiplied at a time decides what registers hold.
        if (end - r == 1) return one_row(workspace, r, start, stop);
#if defined(__AVX512F__)
        if constexpr (BY_REGISTER_TILES && Panel::FEW > Panel::TOGETHER)
            if (end - r > Panel::TOGETHER) start = pairs(workspace, r, end, start, stop);
#endif
        if (end - r < Panel::TOGETHER) panels<Panel::TOGETHER / 2>(workspace, r, end, start, stop);
        else panels<Panel::TOGETHER>(workspace, r, end, start, stop);
    }

  protected:
#if defined(__AVX512F__)
    // N panels as columns, as they lie, or made: from o on and then `beside` outputs later, of so many. `then` is o of the
    // next.
    template <int N>
    RegisterPanels<typename Panel::Unit> columns_of(int64_t o, int64_t then, int64_t beside, int64_t outputs) const {
        typedef typename Panel::Unit Unit;
        const char* ahead = (const char*)weights() + then * row_bytes();
        const int64_t together = beside == PANEL ? N * PANEL : PANEL;
        const LinesThen lines{ahead, together * row_bytes() / LINE, (beside - PANEL) * row_bytes()};
        if constexpr (Panel::LIES) {
            return {Panel::lying(w, o), units() * beside / PANEL, units(), lines};
        } else {
            thread_local Scratch<Unit> memory;
            Unit* const made = memory.take(N * units());
            for (int n = 0; n < N; n++) {
                Panel panel(w, {o + n * beside, then + n * beside, outputs});
                for (int64_t u = 0; u < units(); u++) new (made + n * units() + u) Unit(panel.unit(u));  // in its place
            }
            return {made, units(), units(), lines};
        }
    }
#endif

  private:
    static constexpr int64_t BLOCK_BYTES = 384 << 10;
    static constexpr int CHAINS = Panel::Unit::CHAINS;  // of a result, each of every CHAINS-th unit

    static vf result(const Sum* sums, int64_t a, int64_t count, int i) {
        const vf first = total(sums[a], i);
        if constexpr (CHAINS == 1) return first;
        else return first + total(sums[count + a], i);
    }

    // Some panels in turn, one of each part: Intel's processors read memory faster than by one at a time, and than where panels
    // are beside one another. What is left over is gone through by fewer.
    __attribute__((noinline)) void one_row(const uint8_t* workspace, int64_t r, int64_t start, int64_t stop) const {
        const int64_t next = next_piece(start, stop);
        if constexpr (Panel::IN_TURN >= 4) start = in_turn<4>(workspace, r, start, stop, next);
        if constexpr (Panel::IN_TURN >= 2) start = in_turn<2>(workspace, r, start, stop, next);
        in_turn<1>(workspace, r, start, stop, next);
    }
    // Returns the output after the last; `next` is the first that is gone through afterwards.
    template <int N>
    __attribute__((always_inline)) int64_t in_turn(const uint8_t* workspace, int64_t r, int64_t start, int64_t stop, int64_t next) const {
        const int64_t part = (stop - start + PANEL - 1) / PANEL / N * PANEL, end = start + part;
        for (int64_t o = start; o < end; o += PANEL)
            one_row(workspace, r, o, o + PANEL < end ? o + PANEL : next, part, std::make_integer_sequence<int, N>{});
        return start + N * part;
    }
    template <int... I>
    __attribute__((always_inline)) void one_row(const uint8_t* workspace, int64_t r, int64_t o, int64_t then, int64_t part,
                                                std::integer_sequence<int, I...>) const {
        const Packed* packed = reinterpret_cast<const Packed*>(workspace);
        Panel panels[] = {Panel(w, {o + I * part, then + I * part, p.outputs, int(sizeof...(I))})...};
        Sum sums[sizeof...(I)][CHAINS] = {};
        for (int64_t u = 0; u < units(); u++) (panels[I].unit(u).template add<1>(&sums[I][u % CHAINS], packed + u), ...);
        UNROLL for (int i = 0; i < ACROSS; i++) (p.put(result(sums[I], 0, 1, i), r, o + I * part + i * W), ...);
    }

    template <int TOGETHER>
    __attribute__((noinline)) void panels(const uint8_t* workspace, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        const int64_t count = end - r;
        Sum sums[CHAINS * BLOCK_ROWS];
        Results results;
        for (int64_t o = start; o < stop; o += PANEL) {
            Panel panel(w, {o, o + PANEL < stop ? o + PANEL : next_piece(start, stop), p.outputs});
            const Packed* packed = reinterpret_cast<const Packed*>(workspace);
            clear(sums, CHAINS * count);
            for (int64_t u = 0; u < units(); u++, packed += count)
                add_products<TOGETHER>(panel.unit(u), sums + u % CHAINS * count, packed, count);
            const int64_t beside = (o - start) / PANEL % BESIDE;
            for (int64_t a = 0; a < count; a++)
                UNROLL for (int i = 0; i < ACROSS; i++) results[a][beside * ACROSS + i] = result(sums, a, count, i);
            if (beside == BESIDE - 1 || o + PANEL >= stop) put(results, (beside + 1) * ACROSS, r, end, o - beside * PANEL);
        }
    }

#if defined(__AVX512F__)
    // What comes after N panels from o on: as many, or the next piece.
    template <int N>
    static int64_t then_of(int64_t o, int64_t stop, int64_t next) {
        return o + 2 * N * PANEL <= stop ? o + N * PANEL : next;
    }

    // Two panels at a time, by register tiles whose sums wait in the nearest cache from unit to unit: a number of x that was
    // broadcast serves both. (With one panel each product loads a number of its own, and loads come to their limit first.)
    // Returns the output after the last.
    __attribute__((noinline)) int64_t pairs(const uint8_t* workspace, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        typedef typename Panel::Unit Unit;
        constexpr int N = 2, MOST = REGISTER_ROWS<N, Unit>;
        const int64_t count = end - r, tiles = (count + MOST - 1) / MOST;
        alignas(LINE) vf sums[BLOCK_ROWS][N];
        const int64_t next = next_piece(start, stop);
        int64_t o = start;
        for (; o + N * PANEL <= stop; o += N * PANEL) {
            const int64_t then = then_of<N>(o, stop, next);
            Panel first(w, {o, then, p.outputs, N}), second(w, {o + PANEL, then + PANEL, p.outputs, N});
            const Packed* packed = reinterpret_cast<const Packed*>(workspace);
            for (int64_t a = 0; a < count; a++) sums[a][0] = sums[a][1] = vf{};
            for (int64_t u = 0; u < units(); u++, packed += count) {
                const Unit both[N] = {first.unit(u), second.unit(u)};
                for (int64_t i = 0; i < tiles; i++) {
                    const int64_t a = count * i / tiles;
                    with_count<MOST>(count * (i + 1) / tiles - a,
                                     [&](auto M) { add_register_tile<M>(both, sums + a, packed + a); });
                }
            }
            for (int64_t a = 0; a < count; a++) put(sums[a], r + a, o, false);
        }
        return o;
    }
    template <int M, int N>
    static void add_register_tile(const typename Panel::Unit (&units)[N], vf (*sums)[N], const Packed* packed) {
        vf part[M][N];
        UNROLL for (int m = 0; m < M; m++)
            UNROLL for (int n = 0; n < N; n++) part[m][n] = sums[m][n];
        NoLines ahead;
        Panel::Unit::template add_register_tile<M, N>(part, units, 1, packed, ahead);
        UNROLL for (int m = 0; m < M; m++)
            UNROLL for (int n = 0; n < N; n++) sums[m][n] = part[m][n];
    }

    void register_tiles(const uint8_t* workspace, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        typedef typename Panel::Unit Unit;
        const int64_t next = next_piece(start, stop);
        p.with_results([&](bool past) {
            int64_t o = start;
            if (end - r <= REGISTER_ROWS<4, Unit>)
                for (; o + 4 * PANEL <= stop; o += 4 * PANEL)
                    register_tiles<4>(workspace, r, end, o, then_of<4>(o, stop, next), past);
            for (; o + 2 * PANEL <= stop; o += 2 * PANEL)
                register_tiles<2>(workspace, r, end, o, then_of<2>(o, stop, next), past);
            for (; o < stop; o += PANEL) register_tiles<1>(workspace, r, end, o, next, past);
        });
    }
    template <int N>
    void register_tiles(const uint8_t* workspace, int64_t r, int64_t end, int64_t o, int64_t then, bool past_caches) const {
        const int64_t lines = N * PANEL * row_bytes() / LINE;
        by_register_tiles<N>(columns_of<N>(o, then, PANEL, p.outputs), reinterpret_cast<const Packed*>(workspace), end - r, lines, [&](int64_t row, const auto& sums) {
            for (const auto& of_row : sums) put(of_row, r + row++, o, past_caches);
        });
    }
    // Results of N panels, from o on: past the caches, if lines of them are whole.
    template <int N>
    void put(const vf (&results)[N], int64_t a, int64_t o, bool past_caches) const {
        if (p.unrounded || o + N * PANEL > p.outputs) {
            for (int n = 0; n < N; n++) p.put(results[n], a, o + n * PANEL);
            return;
        }
        vf whole[N];
        for (int n = 0; n < N; n++) whole[n] = p.bias ? results[n] + read(p.bias + o + n * PANEL) : results[n];
        if (N % 2 == 0 && past_caches)
            for (int n = 0; n < N; n += 2) store_line(p.at(a, o + n * PANEL), line_of<T>(whole[n], whole[n + 1]), true);
        else
            for (int n = 0; n < N; n++) write(p.at(a, o + n * PANEL), whole[n]);
    }
#endif

    // Zeroes one by one: they are few, and a call of memset is slow.
    static void clear(Sum* sums, int64_t count) {
        for (int64_t a = 0; a < count; a++) {
            sums[a] = Sum{};
            asm("" : "+m"(sums[a]));
        }
    }

    // Results of a few panels side by side, which go to y together: its rows lie far apart, so that to come to one takes
    // longer than to write there.
    static constexpr int BESIDE = 4;
    typedef vf Results[BLOCK_ROWS][BESIDE * ACROSS];

    void put(const Results& results, int64_t vectors, int64_t r, int64_t end, int64_t o) const {
        const bool whole = !p.unrounded && !p.bias && o + vectors * W <= p.outputs;
        for (int64_t a = r; a < end; a++)
            for (int64_t i = 0; i < vectors; i++) {
                const vf result = results[a - r][i];
                if (whole) write(p.at(a, o + i * W), result);
                else p.put(result, a, o + i * W);
            }
    }

    // Of a unit with each of some rows of x.
    template <int N>
    static void add_products(const typename Panel::Unit& unit, Sum* sums, const Packed* packed, int64_t count) {
        int64_t a = 0;
        for (; a + N <= count; a += N) unit.template add<N>(sums + a, packed + a);
        if constexpr (N > 1) add_products<N / 2>(unit, sums + a, packed + a, count - a);
    }
};
#endif
