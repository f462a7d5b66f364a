// act(gate) * up, of a product whose outputs are gates first and then as many ups: what is gated is never in memory whole.
// Numbers are rounded where they would be if it were.
#pragma once

#include "activations.h"
#include "tiled.h"

#if defined(PAGEANT_TILES)

// A block of rows of x; p has the bias and the outputs of the gated product, `w` twice as many.
template <class Activation>
class GatedBlock : TiledBlock<Strips> {
    using Base = TiledBlock<Strips>;
    template <int TILES>
    using Sums = Base::Sums<TILES>;

  public:
    using Base::Base;

    // Outputs start to stop; `next` is what this thread comes to then.
    void multiply(int64_t start, int64_t stop, int64_t next) {
        by_size([&](auto down) { few<down()>(start, stop, next); }, [&] { many(start, stop, next); });
    }

  private:
    int64_t up_of(int64_t o) const { return p_.outputs + o; }

    template <int DOWN>
    void few(int64_t start, int64_t stop, int64_t next) const {
        alignas(TILE_LINE) Sums<DOWN> gates = {}, ups = {};
        for (int64_t o = start; o < stop; o += TILE) {
            add_up(o, up_of(o), gates);
            add_up(up_of(o), o + TILE < stop ? o + TILE : next, ups);
            for (int64_t d = 0; d < DOWN; d++) {
                gate(gates[d], ups[d], o);
                finish_tile(results(), gates[d], d * TILE, rows_of_tile(d), o);
            }
        }
    }

    // The tile of gates and that of ups with the same outputs go by two of x; and where there are 32 outputs, both pairs go
    // before the next of x, for whole lines of results.
    void many(int64_t start, int64_t stop, int64_t next) const {
        const int64_t turns = (shape_.tiles_down() + 1) / 2, lines = (2 * TILE + turns - 1) / turns;
        for (int64_t o = start; o < stop; o += 2 * TILE) {
            const int64_t then = o + 2 * TILE < stop ? o + 2 * TILE : next, second = o + TILE;
            const bool wide = second < stop;
            Strips::Ahead gates(w_, then, lines), ups(w_, up_of(then), lines);
            for (int64_t d = 0; d < shape_.tiles_down(); d += 2) {
                alignas(TILE_LINE) Sums<4> left, right;
                of_pair(o, d, gates, left);
                if (wide) of_pair(second, d, ups, right);
                for (int64_t i = 0; i < std::min<int64_t>(2, shape_.tiles_down() - d); i++) {
                    const int64_t r = (d + i) * TILE, count = rows_of_tile(d + i);
                    if (wide) finish_two(results(), left[2 * i], right[2 * i], r, count, o, past_caches_);
                    else finish_tile(results(), left[2 * i], r, count, o);
                }
            }
        }
    }

    // Results of 16 outputs by two tiles of x: first and third of the sums.
    void of_pair(int64_t o, int64_t down, Strips::Ahead& ahead, Sums<4>& sums) const {
        two_by_two(w_.rows<0>(o, 0), w_.rows<0>(up_of(o), 0), down, ahead, sums);
        gate(sums[0], sums[1], o);
        gate(sums[2], sums[3], o);
    }

    // Of 16 outputs from o on, [16][16]. Mutates the gates.
    void gate(float* gates, const float* ups, int64_t o) const {
        for (int i = 0; i < TILE; i++)
            for (int b = 0; b < TILE; b += W) {
                float* at = gates + i * TILE + b;
                vf of_gate = load<vf>(at), of_up = load<vf>(ups + i * TILE + b);
                if (p_.bias) of_gate += splat(to_float(p_.bias[o + i])), of_up += splat(to_float(p_.bias[up_of(o) + i]));
                store(at, rounded<bf16>(Activation::of(rounded<bf16>(of_gate))) * rounded<bf16>(of_up));
            }
    }

    // Where they go, without the bias, which is in them.
    Product<bf16> results() const {
        Product<bf16> p = p_;
        p.bias = nullptr;
        return p;
    }
};

// The way of multiplying: see product.h.
template <class Activation>
struct Gated : Tiled<Strips> {
    void block(const uint8_t* room, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        whole_block<GatedBlock<Activation>>(room, r, end, start, stop);
    }
};
#endif
