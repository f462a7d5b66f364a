// Log-probabilities of drawn tokens, their ranks, and the most probable tokens beside them, without a sort.
//
// A row is cut into pieces that fit a core's cache, and each is read from memory once: its largest logit, the
// sum of exponentials under it, how many logits come before the drawn one, and its own k largest in a heap.
// Pieces are put together in order, so a row's bits depend neither on the batch nor on the threads.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/exponential.h"
#include "base/rows.h"

namespace {

constexpr int64_t PIECE = 8 << 10;
constexpr int64_t LOOK = 64;  // logits looked at together: most hold none of the largest

struct Candidate {
    float logit;
    int32_t token;
    // Largest first, the lowest id first among equals. A heap of them has its last one at the front.
    bool operator<(const Candidate& other) const {
        return logit > other.logit || (logit == other.logit && token < other.token);
    }
};

struct Piece {
    float largest = NOWHERE;
    double total = 0;  // of exp(logit - largest)
    int64_t before = 0;
    std::vector<Candidate> best;
};

// How many of x are above `bar`, or with `equal` at least at it.
int64_t count_from(const float* x, int64_t n, float bar, bool equal) {
    vi counts = {};
    int64_t i = 0, count = 0;
    for (; i + W <= n; i += W) {
        vf values = read(x + i);
        counts -= equal ? values >= bar : values > bar;
    }
    for (int lane = 0; lane < W; lane++) count += counts[lane];
    for (; i < n; i++) count += equal ? x[i] >= bar : x[i] > bar;
    return count;
}

void keep_best(const float* x, int64_t start, int64_t n, size_t k, std::vector<Candidate>& best) {
    for (int64_t i = 0; i < n; i += LOOK) {
        int64_t count = std::min(LOOK, n - i);
        if (best.size() == k && !(largest_of(x + i, count) > best.front().logit)) continue;
        for (int64_t j = i; j < i + count; j++) {
            if (best.size() == k) {
                if (!(x[j] > best.front().logit)) continue;
                std::pop_heap(best.begin(), best.end());
                best.pop_back();
            }
            best.push_back({x[j], int32_t(start + j)});
            std::push_heap(best.begin(), best.end());
        }
    }
}

Piece look_at(const float* logits, int64_t start, int64_t stop, int64_t token, size_t k) {
    const float *x = logits + start, bar = logits[token];
    int64_t n = stop - start, split = std::min(std::max(token - start, int64_t(0)), n);
    Piece piece;
    piece.largest = largest_of(x, n);
    if (piece.largest > NOWHERE) {
        vf sums = {};
        along(n, [&](int64_t i, int count) {
            vf powers = exponential(get(x + i, count) - piece.largest);
            for (int lane = count; lane < W; lane++) powers[lane] = 0;
            sums += powers;
        });
        piece.total = sum(sums);
    }
    piece.before = count_from(x, split, bar, true) + count_from(x + split, n - split, bar, false);
    if (k > 0) keep_best(x, start, n, k, piece.best);
    return piece;
}

void put_together(std::vector<Piece>::iterator pieces, int64_t count, const float* logits, int64_t token, int64_t k,
                  float* chosen, int32_t* rank, int32_t* top_tokens, float* top) {
    float largest = NOWHERE;
    for (int64_t i = 0; i < count; i++) largest = std::max(largest, pieces[i].largest);
    double total = 0;
    int64_t before = 0;
    std::vector<Candidate> best;
    for (int64_t i = 0; i < count; i++) {
        total += pieces[i].total * std::exp(double(pieces[i].largest) - largest);
        before += pieces[i].before;
        best.insert(best.end(), pieces[i].best.begin(), pieces[i].best.end());
    }
    double normaliser = largest + std::log(total);
    *chosen = float(logits[token] - normaliser);
    *rank = int32_t(before + 1);
    std::partial_sort(best.begin(), best.begin() + k, best.end());
    for (int64_t i = 0; i < k; i++) {
        top_tokens[i] = best[i].token;
        top[i] = float(best[i].logit - normaliser);
    }
}

}  // namespace

EXPORT void pageant_top_logprobs(const float* logits, int64_t stride, int64_t rows, int64_t vocab_size,
                                 const int64_t* tokens, int64_t k, float* chosen, int32_t* ranks,
                                 int32_t* top_tokens, float* top) {
    int64_t each = (vocab_size + PIECE - 1) / PIECE;
    std::vector<Piece> pieces(rows * each);
    parallel_for(rows * each, [&](int64_t i) {
        int64_t row = i / each, start = i % each * PIECE;
        pieces[i] = look_at(logits + row * stride, start, std::min(start + PIECE, vocab_size), tokens[row], k);
    });
    for_rows(rows, each * (k + 1), [&](int64_t row) {
        put_together(pieces.begin() + row * each, each, logits + row * stride, tokens[row], k, chosen + row,
                     ranks + row, top_tokens + row * k, top + row * k);
    });
}
