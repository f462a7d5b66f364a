#include "base/threads.h"

#include "base/expected.h"
#include "base/pause.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace {

constexpr auto SPIN = std::chrono::microseconds(50);
// For as long as a task takes the caller keeps its core: who was given it meanwhile, the event loop perhaps, would hold up the
// next call, which nobody else can begin.
constexpr auto HELD = std::chrono::microseconds(30);
constexpr uint64_t NONE_LEFT = 0xffffffff;

// Between two looks a thread that waits gives its core to whom it keeps from it: another process, the event loop, or
// the very thread that it waits for.
void rest() { std::this_thread::yield(); }

thread_local int this_index = 0;

// One job at a time. `ticket` is the job's number in its upper half and the next task in its lower half.
//
// A worker reads the ticket, then the job, and then takes the task by exchanging the ticket for the next. The
// job is only written while the ticket says that nothing is left, under a new number: so a worker that read
// a job which has changed since fails to take anything. A job lives on its caller's stack until every task
// that was taken is done; a worker that took none never looks at it again.
class Pool {
public:
    void run(int64_t count, void (*task)(const void*, int64_t), const void* argument, int threads) {
        std::unique_lock<std::mutex> mine(callers, std::try_to_lock);
        if (!mine.owns_lock()) {  // another thread's job is running: its workers are taken
            for (int64_t i = 0; i < count; i++) task(argument, i);
            return;
        }
        while (int(started) < threads - 1) std::thread(&Pool::work, this, int(started++)).detach();
        uint64_t number = ((ticket.load() >> 32) + 1) << 32;
        ticket.store(number | NONE_LEFT);
        std::atomic_thread_fence(std::memory_order_seq_cst);  // before any of the job changes
        job_task.store(task, std::memory_order_relaxed);
        job_argument.store(argument, std::memory_order_relaxed);
        job_count.store(count, std::memory_order_relaxed);
        job_helpers.store(threads - 1, std::memory_order_relaxed);
        done.store(0, std::memory_order_relaxed);
        ticket.store(number);
        if (sleeping.load() > 0) {
            std::lock_guard<std::mutex> lock(sleepers);
            wake.notify_all();
        }
        take_tasks(0);
        const auto until = std::chrono::steady_clock::now() + HELD;
        while (done.load(std::memory_order_acquire) < count)
            if (!fetch_expected(0, threads)) {
                if (std::chrono::steady_clock::now() < until) pause_spinning();
                else rest();
            }
    }

private:
    // Takes tasks until none are left. `index` is the worker's, and 0 the caller's too.
    void take_tasks(int index) {
        for (;;) {
            uint64_t seen = ticket.load(std::memory_order_acquire);
            auto task = job_task.load(std::memory_order_relaxed);
            auto argument = job_argument.load(std::memory_order_relaxed);
            int64_t count = job_count.load(std::memory_order_relaxed), i = seen & NONE_LEFT;
            if (i >= count || i == NONE_LEFT || index >= job_helpers.load(std::memory_order_relaxed)) return;
            if (!ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) continue;
            task(argument, i);
            done.fetch_add(1, std::memory_order_release);
        }
    }

    // The number of a job after number `last`, or `last`. One that is being written is not there yet: who took it
    // for seen would miss it.
    uint64_t job_after(uint64_t last) const {
        const uint64_t seen = ticket.load();
        return (seen & NONE_LEFT) == NONE_LEFT ? last : seen >> 32;
    }

    void work(int index) {
        this_index = index + 1;
        for (uint64_t last = 0;;) {
            const auto until = std::chrono::steady_clock::now() + SPIN;
            uint64_t number;
            while ((number = job_after(last)) == last) {
                if (!fetch_expected(this_index, job_helpers.load(std::memory_order_relaxed) + 1)) rest();
                if (std::chrono::steady_clock::now() > until) sleep(last);
            }
            last = number;
            take_tasks(index);
        }
    }

    // Until there is a job after number `last`. The caller stores its ticket before it looks for sleepers,
    // and a sleeper counts itself before it looks at the ticket: one of them sees the other.
    void sleep(uint64_t last) {
        std::unique_lock<std::mutex> lock(sleepers);
        sleeping.fetch_add(1);
        wake.wait(lock, [&] { return job_after(last) != last; });
        sleeping.fetch_sub(1);
    }

    alignas(64) std::atomic<uint64_t> ticket{NONE_LEFT};
    alignas(64) std::atomic<int64_t> done{0};
    alignas(64) std::atomic<void (*)(const void*, int64_t)> job_task{nullptr};
    std::atomic<const void*> job_argument{nullptr};
    std::atomic<int64_t> job_count{0};
    std::atomic<int> job_helpers{0};
    std::atomic<int> sleeping{0};
    int started = 0;
    std::mutex callers, sleepers;
    std::condition_variable wake;
};

// Never destroyed, since its threads never end.
Pool& pool() {
    static Pool* only = new Pool;
    return *only;
}

int (*threads_wanted)() = nullptr;

}  // namespace

// Torch's own count (omp_get_max_threads). Null: all work is done on the calling thread.
EXPORT void pageant_use_threads(void* count_function) {
    threads_wanted = reinterpret_cast<decltype(threads_wanted)>(count_function);
}

EXPORT int64_t pageant_threads() { return thread_count(); }

int thread_count() { return threads_wanted ? threads_wanted() : 1; }

int thread_index() { return this_index; }

void run_tasks(int64_t count, void (*task)(const void*, int64_t), const void* argument) {
    pool().run(count, task, argument, thread_count());
}
