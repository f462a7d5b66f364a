// A pause within a loop that spins.
#pragma once

// Lets the core's other thread run, and saves power, without a call of the system.
inline void pause_spinning() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");  // waits some ten cycles, while `yield` does nothing on most of these cores
#endif
}
