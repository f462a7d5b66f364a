// Work shared among the threads that torch already has.
//
// A second pool beside torch's would fight it for the same cores: OpenMP's threads go on spinning for
// milliseconds after each region. So the runtime that torch loaded is called, through the two functions
// that are handed over when this library is loaded. Tasks are taken one by one from a counter rather than
// dealt out beforehand, so that a core that something else keeps busy delays one task and not the whole.
#pragma once

#include <atomic>
#include <cstdint>

// The width that torch.set_num_threads gave, on the calling thread.
int thread_count();
// Runs body(argument) on each thread of the team, and returns when all have.
void on_every_thread(void (*body)(void*), void* argument);

// Calls task(i) for each i below count, in any order and on any thread.
template <class Task>
void parallel_for(int64_t count, const Task& task) {
    if (count <= 1 || thread_count() <= 1) {
        for (int64_t i = 0; i < count; i++) task(i);
        return;
    }
    struct Job {
        const Task& task;
        int64_t count;
        std::atomic<int64_t> next;
    } job{task, count, {0}};
    on_every_thread(
        [](void* argument) {
            Job& job = *static_cast<Job*>(argument);
            for (int64_t i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < job.count;) job.task(i);
        },
        &job);
}

// The same for work that is split into pieces of at least `grain` units, a unit costing next to nothing.
template <class Task>
void parallel_ranges(int64_t count, int64_t grain, const Task& task) {
    int64_t pieces = (count + grain - 1) / grain;
    parallel_for(pieces, [&](int64_t i) {
        int64_t stop = (i + 1) * grain;
        task(i * grain, stop < count ? stop : count);
    });
}

#define EXPORT extern "C" __attribute__((visibility("default")))
