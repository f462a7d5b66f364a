// act(gate) * up, of a product whose outputs are gates first and then as many ups: what is gated is never in memory whole.
// Numbers are rounded where they would be if it were.
#pragma once

#include "base/activations.h"
#include "gemm/panels.h"

#if defined(PAGEANT_TILES)

// A block of rows of x; p has the bias and the outputs of the gated product, `w` twice as many.
template <class Activation, class Weights>
class GatedBlock : PanelBlock<Weights> {
    using Base = PanelBlock<Weights>;
    using Base::p_, Base::w_, Base::along_, Base::down_, Base::rows_, Base::past_caches_, Base::first_row;
    using Pair = typename Base::Pair;
    template <int TILES>
    using Sums = typename Base::template Sums<TILES>;

  public:
    using Base::Base;

    // Outputs start to stop; `next` is what this thread comes to then. The panel of gates and that of ups with the same outputs
    // go together; and where there are 32 outputs, results are made of both pairs, for whole lines of them. Those are made
    // while the next are multiplied: tiles leave vectors idle.
    void multiply(int64_t start, int64_t stop, int64_t next) const {
        use_tiles(rows_, TILE);
        Sums<4> *left = this->template workspace<0>(), *right = this->template workspace<1>();
        Lines lines(*this);
        const auto meanwhile = [&] { lines.some(); };
        for (int64_t o = start; o < stop; o += 2 * TILE) {
            const int64_t second = o + TILE, then = second + TILE < stop ? second + TILE : next;
            const bool wide = second < stop;
            typename Weights::Ahead next_gates(w_, then, this->lines_each()), next_ups(w_, up_of(then), this->lines_each());
            const auto finish = [&](int64_t d) {
                lines.rest();
                lines.begin(left[d / 2], wide ? right[d / 2] : nullptr, d, o);
            };
            const Pair pair{w_.template panel<0>(o, then), w_.template panel<1>(up_of(o), up_of(then)),
                            o == start && Base::begins(start, stop)};
            this->by_two_panels(pair, next_gates, left, meanwhile, [&](int64_t d) {
                if (!wide) finish(d);
            });
            if (wide) {
                const Pair more{w_.template panel<2>(second, then + TILE), w_.template panel<3>(up_of(second), up_of(then) + TILE)};
                this->by_two_panels(more, next_ups, right, meanwhile, finish);
            }
            lines.rest();
        }
        leave_tiles();
    }

  private:
    int64_t up_of(int64_t o) const { return p_.outputs + o; }

    // Of 16 outputs by two tiles of x, as by_two_panels() has them: gates and ups by the first, then by the second.
    typedef const float (*PairSums)[TILE * TILE];

    // Results of 16 or, with a right pair, 32 outputs on their way to y.
    class Lines {
      public:
        explicit Lines(const GatedBlock& block) : block_(block), each_((2 * TILE + block.steps() - 1) / block.steps()) {}

        void begin(PairSums left, PairSums right, int64_t down, int64_t o) {
            left_ = left, right_ = right, down_ = down, o_ = o, at_ = 0;
            stop_ = std::min<int64_t>(2, block_.down_ - down) * block_.rows_;
        }
        // As many as, tile after tile along the inputs, are all in the end.
        void some() {
            for (int64_t i = 0; i < each_ && at_ < stop_; i++) one();
        }
        void rest() {
            while (at_ < stop_) one();
        }

      private:
        const GatedBlock& block_;
        const int64_t each_;
        PairSums left_ = nullptr, right_ = nullptr;
        int64_t down_ = 0, o_ = 0, at_ = 0, stop_ = 0;

        void one() {
            const int64_t tile = at_ / TILE, row = at_++ % TILE * TILE, r = block_.first_row(down_ + tile) + row / TILE;
            const float *gates = left_[2 * tile] + row, *ups = left_[2 * tile + 1] + row;
            if (!right_) return block_.finish_half(gates, ups, r, o_);
            block_.finish_whole(gates, ups, right_[2 * tile] + row, right_[2 * tile + 1] + row, r, o_);
        }
    };

    // 16 results of row r.
    void finish_half(const float* gates, const float* ups, int64_t r, int64_t o) const {
        for (int b = 0; b < TILE; b += W) write(p_.at(r, o + b), gated(gates + b, ups + b, o + b));
    }
    // A line of 32.
    void finish_whole(const float* gates, const float* ups, const float* more_gates, const float* more_ups, int64_t r,
                      int64_t o) const {
#if defined(__AVX512F__)
        const vf left = gated(gates, ups, o), right = gated(more_gates, more_ups, o + TILE);
        store_line(p_.at(r, o), line_of<bf16>(left, right), past_caches_);
#else
        finish_half(gates, ups, r, o);
        finish_half(more_gates, more_ups, r, o + TILE);
#endif
    }
    vf gated(const float* gates, const float* ups, int64_t o) const {
        vf gate = load<vf>(gates), up = load<vf>(ups);
        if (p_.bias) gate += read(p_.bias + o), up += read(p_.bias + up_of(o));
        return rounded<bf16>(Activation::template of<bf16>(rounded<bf16>(gate))) * rounded<bf16>(up);
    }
};

// The kernel: see product.h.
template <class Activation, class Weights>
struct Gated : ByPanels<Weights> {
    void block(const uint8_t* workspace, int64_t r, int64_t end, int64_t start, int64_t stop) const {
        this->template whole_block<GatedBlock<Activation, Weights>>(workspace, r, end, start, stop);
    }
};

// `activation` is one of Python's.
template <class Weights>
void multiply_gated(const ByPanels<Weights>& kernel, int64_t activation) {
    with_activation(activation, [&](auto act) { multiply(Gated<decltype(act), Weights>{kernel}); });
}
#endif
