#include "threads.h"

namespace {
using Body = void (*)(void*);
// GOMP_parallel(body, argument, threads or 0, flags): libgomp's, and offered by LLVM's and Intel's too.
void (*parallel)(Body, void*, unsigned, unsigned) = nullptr;
int (*threads_max)() = nullptr;
}  // namespace

// Null pointers: there is no OpenMP runtime, and all work is done on the calling thread.
EXPORT void pageant_use_threads(void* parallel_function, void* threads_max_function) {
    parallel = reinterpret_cast<decltype(parallel)>(parallel_function);
    threads_max = reinterpret_cast<decltype(threads_max)>(threads_max_function);
}

EXPORT int64_t pageant_threads() { return thread_count(); }

int thread_count() { return threads_max ? threads_max() : 1; }

void on_every_thread(Body body, void* argument) {
    // Always the whole team: libgomp ends threads that a smaller team leaves out, and starts them again.
    parallel(body, argument, 0, 0);
}
