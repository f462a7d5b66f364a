// act(gate) * up, of a product whose outputs are gates first and then as many ups: what is gated is never in memory whole.
// Numbers are rounded where they would be if it were.
#pragma once

#include "activations.h"
#include "strips.h"

#if defined(PAGEANT_TILES)

// A block of rows of x; p has the bias and the outputs of the gated product, `w` twice as many.
template <class Activation>
class GatedBlock : StripBlock<Strips> {
    template <int TILES>
    using Sums = StripBlock<Strips>::Sums<TILES>;

  public:
    GatedBlock(const Product<bf16>& p, const Strips& w, bool past_caches) : StripBlock<Strips>(p, w, past_caches), results_(p) {
        results_.bias = nullptr;
    }

    // Outputs start to stop; `next` is what this thread comes to then.
    void multiply(int64_t start, int64_t stop, int64_t next) const {
        use_tiles(rows_, TILE);
        by_size([&](auto down) { few<down()>(start, stop, next); }, [&] { many(start, stop, next); });
        leave_tiles();
    }

  private:
    Product<bf16> results_;  // where they go, without the bias, which is in them

    int64_t up_of(int64_t o) const { return p_.outputs + o; }

    template <int DOWN>
    void few(int64_t start, int64_t stop, int64_t next) const {
        alignas(TILE_LINE) Sums<DOWN> gates, ups;
        for (int64_t o = start; o < stop; o += TILE) {
            add_up<DOWN>(o, up_of(o), gates);
            add_up<DOWN>(up_of(o), o + TILE < stop ? o + TILE : next, ups);
            for (int64_t d = 0; d < DOWN; d++) {
                gate(gates[d], ups[d], o);
                finish_rows(results_, gates[d], first_row(d), rows_, o);
            }
        }
    }

    // The strip of gates and that of ups with the same outputs go by two tiles of x; and where there are 32 outputs, both
    // pairs go before the next of x, for whole lines of results.
    void many(int64_t start, int64_t stop, int64_t next) const {
        for (int64_t o = start; o < stop; o += 2 * TILE) {
            const int64_t then = o + 2 * TILE < stop ? o + 2 * TILE : next, second = o + TILE;
            const bool wide = second < stop;
            Strips::Ahead gates(w_, then, lines_each()), ups(w_, up_of(then), lines_each());
            for (int64_t d = 0; d < down_; d += 2) {
                alignas(TILE_LINE) Sums<4> left, right;
                of_pair(o, d, gates, left);
                if (wide) of_pair(second, d, ups, right);
                finish_two(results_, {left[0], left[2]}, {right[0], right[2]}, wide, d, o);
            }
        }
    }

    // Results of 16 outputs by two tiles of x: first and third of the sums.
    void of_pair(int64_t o, int64_t down, Strips::Ahead& ahead, Sums<4>& sums) const {
        two_by_two(w_.strip<0>(o, 0), w_.strip<1>(up_of(o), 0), down, ahead, sums);
        gate(sums[0], sums[1], o);
        gate(sums[2], sums[3], o);
    }

    // Of 16 outputs from o on, [rows][16]. Mutates the gates.
    void gate(float* gates, const float* ups, int64_t o) const {
        for (int b = 0; b < TILE; b += W) {
            vf of_gate = {}, of_up = {};
            if (p_.bias) of_gate = read(p_.bias + o + b), of_up = read(p_.bias + up_of(o) + b);
            for (int64_t a = 0; a < rows_; a++) {
                float* at = gates + a * TILE + b;
                const vf gate = rounded<bf16>(load<vf>(at) + of_gate), up = rounded<bf16>(load<vf>(ups + a * TILE + b) + of_up);
                store(at, rounded<bf16>(Activation::of(gate)) * up);
            }
        }
    }
};

// The way of multiplying: see product.h.
template <class Activation>
struct Gated : ByStrips<Strips> {
    void block(const uint8_t* room, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        whole_block<GatedBlock<Activation>>(room, r, end, start, stop);
    }
};
#endif
