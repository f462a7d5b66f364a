// Work shared among threads, none of which is ever waited for unless it is doing some of it.
//
// OpenMP's pool, which torch has, was turned down by measurement (docs/kernels.md): its regions end when every
// thread of the team has arrived, so that one thread which the system has put aside holds up a product of
// 100 microseconds for a whole time slice; and its threads spin for milliseconds after each region, at the
// cost of whatever else wants the cores. Here tasks are taken one by one from a counter, the caller takes
// them too and returns when all are done, and idle threads look for more for 50 microseconds, in which they yield their
// cores, and then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

// How many threads a call from this thread is spread over: what torch.set_num_threads gave.
int thread_count();
// Calls task(argument, i) for each i below count, in any order, on the calling thread and others.
void run_tasks(int64_t count, void (*task)(const void*, int64_t), const void* argument);

// This thread's number among those that a call is spread over; its caller's is 0.
int thread_index();

template <class Task>
void parallel_for(int64_t count, const Task& task) {
    if (count <= 1 || thread_count() <= 1) {
        for (int64_t i = 0; i < count; i++) task(i);
        return;
    }
    run_tasks(count, [](const void* argument, int64_t i) { (*static_cast<const Task*>(argument))(i); }, &task);
}

// The same for pieces of `grain` units, a unit costing next to nothing.
template <class Task>
void parallel_ranges(int64_t count, int64_t grain, const Task& task) {
    int64_t pieces = (count + grain - 1) / grain;
    parallel_for(pieces, [&](int64_t i) {
        int64_t stop = (i + 1) * grain;
        task(i * grain, stop < count ? stop : count);
    });
}

// The same, where a thread is to know what it does next: of as many as there are, each takes its turn, and helps with
// what is left of the others' when it is through. So thread i begins with task i, mostly, and after that comes
// i + thread_count().
template <class Task>
void parallel_turns(int64_t count, const Task& task) {
    const int64_t turns = thread_count() < count ? thread_count() : count;
    struct alignas(64) Counter { std::atomic<int64_t> done{0}; };
    std::vector<Counter> taken(turns);
    parallel_for(turns, [&](int64_t) {
        const int64_t mine = thread_index() % turns;
        for (int64_t i = mine; i < mine + turns; i++) {
            const int64_t turn = i < turns ? i : i - turns;
            for (int64_t at; (at = turn + turns * taken[turn].done.fetch_add(1, std::memory_order_relaxed)) < count;) task(at);
        }
    });
}

#define EXPORT extern "C" __attribute__((visibility("default")))
