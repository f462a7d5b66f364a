// act(gate) * up of a product by lanes (gated_strips.h says what that is). The two strips of a patch are one of gates and the
// one of ups that goes with it: what is gated never leaves the registers.
#pragma once

#include "activations.h"
#include "lanes.h"

#if defined(__AVX512F__)

// The way of multiplying: see product.h. p has the bias and the outputs of the gated product, the weight twice as many.
template <class Activation, class Strip>
struct GatedLanes : Lanes<Strip, bf16> {
    using Base = Lanes<Strip, bf16>;
    using Base::p;

    void block(const uint8_t* room, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        typedef typename Base::Packed Packed;
        const int64_t lines = 2 * STRIP * this->row_bytes() / LINE;
        for (int64_t o = start; o < stop; o += STRIP) {
            const int64_t then = o + STRIP < stop ? o + STRIP : next_piece(start, stop);
            const auto columns = this->template columns_of<2>(o, then < p.outputs ? then : o, p.outputs, 2 * p.outputs);
            by_patches<2>(columns, reinterpret_cast<const Packed*>(room), end - r, lines, [&](int64_t row, const auto& sums) {
                for (const auto& of_row : sums) write(p.at(r + row++, o), gated(of_row[0], of_row[1], o));
            });
        }
    }

  private:
    vf gated(vf gate, vf up, int64_t o) const {
        if (p.bias) gate += read(p.bias + o), up += read(p.bias + p.outputs + o);
        return rounded<bf16>(Activation::template of<bf16>(rounded<bf16>(gate))) * rounded<bf16>(up);
    }
};

// `activation` is one of Python's.
template <class Strip>
void multiply_gated(const Lanes<Strip, bf16>& way, int64_t activation) {
    with_activation(activation, [&](auto act) { multiply(GatedLanes<decltype(act), Strip>{way}); });
}
#endif
