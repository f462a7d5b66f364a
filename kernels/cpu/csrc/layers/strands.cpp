// The way of a step's tokens through recurrent layers as arrays (states.h), which all of its layers share. Made here, so that a
// recorded step makes them anew.
#include <algorithm>
#include <cstdint>

#include "base/threads.h"

// tokens: [T], numbered by the step, or from starts[S] on where they are replayed. sequences: [S, 3 + groups]. runs: at most
// [T + S, 3 + groups]. replays and unsure may be missing.
EXPORT void pageant_strands(const int32_t* starts, const int32_t* lengths, int64_t count, const int32_t* tables,
                            int64_t group_stride, int64_t sequence_stride, int64_t groups, int64_t block_size,
                            const int32_t* replays, const int32_t* unsure, int64_t* tokens, int64_t* sequences,
                            int64_t* runs) {
    const int64_t width = 3 + groups;
    int64_t num_tokens = 0, num_runs = 0;
    for (int64_t s = 0; s < count; s++) {
        const int64_t own = starts[s + 1] - starts[s], replayed = replays ? replays[s + 1] - replays[s] : 0;
        const int64_t all = own ? own + replayed : 0, sure = all - (all && unsure ? unsure[s] : 0);
        const int64_t first = lengths[s] - all, at = num_tokens;
        for (int64_t i = 0; i < all; i++) tokens[num_tokens++] = i < replayed ? replays[s] + i : starts[s] + i - replayed;
        const auto blocks_of = [&](int64_t column, int64_t* to) {
            for (int64_t g = 0; g < groups; g++) to[g] = tables[g * group_stride + s * sequence_stride + column];
        };
        int64_t* sequence = sequences + s * width;
        sequence[0] = num_runs;
        sequence[2] = first == 0 || all == 0;
        blocks_of(std::max<int64_t>(0, first - 1) / block_size, sequence + 3);
        const auto add_run = [&](int64_t from, int64_t to, bool kept) {
            int64_t* run = runs + num_runs++ * width;
            run[0] = at + from, run[1] = at + to, run[2] = kept;
            if (kept) blocks_of((first + from) / block_size, run + 3);
            else std::fill_n(run + 3, groups, 0);
        };
        for (int64_t from = 0; from < sure;) {
            const int64_t to = std::min(sure, ((first + from) / block_size + 1) * block_size - first);
            add_run(from, to, true);
            from = to;
        }
        if (sure < all) add_run(sure, all, false);
        sequence[1] = num_runs;
    }
}
