// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011), for
// several consecutive counters at once. See pageant/kernels/sampling.py for what the words mean.
#pragma once

#include <cstdint>

struct NoiseKey {
    uint32_t key[2];
    uint32_t counter[3];  // words 1 to 3; word 0 is the token's id over 4
};

constexpr int QUADS = 16;  // computed together

// words[i][q] is word i of counter `quad + q`. The loops over q are what the compiler makes vectors of.
inline void philox(const NoiseKey& name, uint32_t quad, uint32_t words[4][QUADS]) {
    uint64_t c0[QUADS], c1[QUADS], c2[QUADS], c3[QUADS];
    for (int q = 0; q < QUADS; q++) {
        c0[q] = quad + uint32_t(q);
        c1[q] = name.counter[0];
        c2[q] = name.counter[1];
        c3[q] = name.counter[2];
    }
    uint32_t k0 = name.key[0], k1 = name.key[1];
    for (int round = 0; round < 10; round++) {
        for (int q = 0; q < QUADS; q++) {
            uint64_t p0 = c0[q] * 0xD2511F53u, p1 = c2[q] * 0xCD9E8D57u;
            c0[q] = (p1 >> 32) ^ c1[q] ^ k0;
            c1[q] = p1 & 0xffffffffu;
            c2[q] = (p0 >> 32) ^ c3[q] ^ k1;
            c3[q] = p0 & 0xffffffffu;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int q = 0; q < QUADS; q++) {
        words[0][q] = uint32_t(c0[q]);
        words[1][q] = uint32_t(c1[q]);
        words[2][q] = uint32_t(c2[q]);
        words[3][q] = uint32_t(c3[q]);
    }
}
