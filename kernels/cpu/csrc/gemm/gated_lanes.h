// act(gate) * up of a product by lanes (gated_panels.h says what that is). The two panels of a register tile are one of gates
// and the one of ups that goes with it: what is gated never leaves the registers.
#pragma once

#include "base/activations.h"
#include "gemm/lanes.h"

#if defined(__AVX512F__)

// The kernel: see product.h. p has the bias and the outputs of the gated product, the weight twice as many.
template <class Activation, class Panel>
struct GatedLanes : Lanes<Panel, bf16> {
    using Base = Lanes<Panel, bf16>;
    using Base::p;

    void block(const uint8_t* workspace, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        p.with_results([&](bool past_caches) {
            vh left[Base::REGISTER_TILED_ROWS];  // of a line, until its right half is there
            int64_t o = start;
            if (past_caches)
                for (; o + 2 * PANEL <= stop; o += 2 * PANEL) {
                    panel(workspace, r, end, o, o + PANEL, [&](int64_t row, vf result) { left[row - r] = narrowed<bf16>(result); });
                    panel(workspace, r, end, o + PANEL, then_of(o + PANEL, start, stop), [&](int64_t row, vf result) {
                        store_line(p.at(row, o), line_of(left[row - r], narrowed<bf16>(result)), true);
                    });
                }
            for (; o < stop; o += PANEL)
                panel(workspace, r, end, o, then_of(o, start, stop), [&](int64_t row, vf result) { write(p.at(row, o), result); });
        });
    }

  private:
    // What comes after the panel of output o.
    int64_t then_of(int64_t o, int64_t start, int64_t stop) const {
        const int64_t then = o + PANEL < stop ? o + PANEL : next_piece(start, stop);
        return then < p.outputs ? then : o;
    }
    // Calls done(row, results) for rows r to end and 16 outputs; those that come `then` are asked for.
    template <class Done>
    void panel(const uint8_t* workspace, int64_t r, int64_t end, int64_t o, int64_t then, const Done& done) const {
        const int64_t lines = 2 * PANEL * this->row_bytes() / LINE;
        const auto columns = this->template columns_of<2>(o, then, p.outputs, 2 * p.outputs);
        by_register_tiles<2>(columns, reinterpret_cast<const typename Base::Packed*>(workspace), end - r, lines, [&](int64_t row, const auto& sums) {
            for (const auto& of_row : sums) done(r + row++, gated(of_row[0], of_row[1], o));
        });
    }
    vf gated(vf gate, vf up, int64_t o) const {
        if (p.bias) gate += read(p.bias + o), up += read(p.bias + p.outputs + o);
        return rounded<bf16>(Activation::template of<bf16>(rounded<bf16>(gate))) * rounded<bf16>(up);
    }
};

// `activation` is one of Python's.
template <class Panel>
void multiply_gated(const Lanes<Panel, bf16>& kernel, int64_t activation) {
    with_activation(activation, [&](auto act) { multiply(GatedLanes<decltype(act), Panel>{kernel}); });
}
#endif
