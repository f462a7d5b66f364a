// What splits gathered of a row, put together, and its output.
#pragma once

#include "attention/packing.h"

inline void clear(Rows rows, int64_t count, int64_t width) {
    std::fill_n(rows.values, count * width, 0.0f);
    std::fill_n(rows.largest, count, NOTHING);
    std::fill_n(rows.total, count, 0.0f);
}

// Adds to rows what a later split gathered of each. Out of line, so that every caller rounds alike.
__attribute__((noinline)) inline void merge_rows(Rows to, Rows from, int64_t count, int64_t width) {
    for (int64_t first = 0; first < count; first += W) {
        const int n = int(std::min<int64_t>(W, count - first));
        const Rows ours = to.from(first, width), theirs = from.from(first, width);
        const vf before = read(ours.largest, n), added = read(theirs.largest, n), largest = max(before, added);
        const vf keep = power_of_two<6>(before - largest), add = power_of_two<6>(added - largest);
        const vf total = read(ours.total, n);
        write(ours.largest, largest, n);
        write(ours.total, added == NOTHING ? total : total * keep + read(theirs.total, n) * add, n);
        for (int r = 0; r < n; r++) {
            if (added[r] == NOTHING) continue;
            const vf keeps = splat(keep[r]), adds = splat(add[r]);
            float* at = ours.values + r * width;
            for (int64_t d = 0; d < width; d += W)
                store(at + d, fma(load<vf>(at + d), keeps, load<vf>(theirs.values + r * width + d) * adds));
        }
    }
}

// What makes the weighted mean of a row's weighted sum; zero, if it has seen nothing. A sink has a weight, and no value.
template <class T>
float share_of(const Problem<T>& p, Rows row, int64_t head) {
    if (!p.sinks) return *row.total > 0 ? 1.0f / *row.total : 0.0f;
    const float sink = p.sinks[head] * LOG2_E, largest = std::max(sink, *row.largest);
    if (largest == NOTHING) return 0.0f;
    const float keep = power_of_two<6>(splat(*row.largest - largest))[0];
    return keep / (*row.total * keep + power_of_two<6>(splat(sink - largest))[0]);
}

// The weighted mean of a row under a query head. Past the caches, if who reads it next would not find it there.
template <class T>
void write_row(const Problem<T>& p, Rows row, int64_t head, T* output, bool past_caches) {
    const vf share = splat(share_of(p, row, head));
    int64_t d = 0;
    in_order<typename CellsOf<T>::Type>(row.values, p.width());
#if defined(__AVX512F__)
    if constexpr (sizeof(T) == 2)
        for (; d + 2 * W <= p.value_dim; d += 2 * W) {
            const vf first = load<vf>(row.values + d) * share, second = load<vf>(row.values + d + W) * share;
            store_line(output + d, line_of<T>(first, second), past_caches);
        }
#endif
    for (; d < p.value_dim; d += W) {
        const vf scaled = load<vf>(row.values + d) * share;
        if (d + W <= p.value_dim) write(output + d, scaled);
        else write(output + d, scaled, int(p.value_dim - d));
    }
}
