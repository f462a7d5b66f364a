// Waits among the ranks of a group, and how they end.
#include "collectives/group.h"

#include "base/clock.h"
#include "base/pause.h"
#include "base/replay.h"
#include "base/threads.h"

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

// A waiter keeps its core for some looks, then yields it between looks, and sleeps when the time is over.
constexpr int LOOKS = 64;
constexpr int64_t SPIN = 50'000;
// A sleeper looks around so often: for a rank that died, a deadline, a group that was broken.
constexpr int64_t NAP = 20'000'000;

bool reached(const Counter& counter, uint32_t number) {
    return int32_t(counter.value.load(std::memory_order_acquire) - number) >= 0;
}

#if defined(__linux__)
void sleep_on(Counter& counter, uint32_t seen) {
    const timespec nap{0, NAP};
    syscall(SYS_futex, &counter.value, FUTEX_WAIT, seen, &nap, nullptr, 0);
}
void wake(Counter& counter) { syscall(SYS_futex, &counter.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

bool has_ended(const Group& group, int rank) {
    const int process = group.line(rank).process.load();
    if (process == 0 || process == int(getpid())) return false;
    if (group.pidfds[rank] >= 0) {
        pollfd ended{group.pidfds[rank], POLLIN, 0};
        return poll(&ended, 1, 0) > 0;
    }
    return kill(process, 0) < 0 && errno == ESRCH;
}

void unmap(Group& group) {
    if (group.unmapped.exchange(true)) return;
    for (int rank = 0; rank < group.size; rank++)
        if (group.pidfds[rank] >= 0) close(group.pidfds[rank]);
    munmap(group.memory, group.bytes);
}
#else
void sleep_on(Counter&, uint32_t) { std::this_thread::sleep_for(std::chrono::microseconds(100)); }
void wake(Counter&) {}
bool has_ended(const Group&, int) { return false; }
void unmap(Group&) {}
#endif

int64_t aligned(int64_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }
int64_t slots_at(int64_t size) { return aligned(sizeof(Head) + size * sizeof(Line) + size * size * sizeof(Edge)); }

const char* name_of(Kind kind) {
    switch (kind) {
        case Kind::BARRIER: return "barrier";
        case Kind::SUM:
        case Kind::SUM_PARTS:
        case Kind::SUM_RESULT: return "all_reduce";
        case Kind::BROADCAST: return "broadcast";
        case Kind::GATHER: return "gather";
        case Kind::ALL_GATHER: return "all_gather";
        case Kind::ALL_TO_ALL: return "all_to_all";
    }
    return "nothing known";
}

uint64_t packed(Kind kind, uint64_t amount) { return uint64_t(kind) << 56 | (amount & ((uint64_t(1) << 56) - 1)); }

// Whether the group is broken; the reason is then noted here too.
bool is_broken(Group& group) {
    Head& head = group.head();
    if (head.broken.load(std::memory_order_acquire) == 0) return false;
    while (head.broken.load(std::memory_order_acquire) == 1) std::this_thread::yield();
    std::memcpy(group.reason, head.reason, sizeof group.reason);
    group.culprit = head.culprit;
    return true;
}

}  // namespace

Line& Group::line(int of) const { return reinterpret_cast<Line*>(memory + sizeof(Head))[of]; }
Edge& Group::edge(int from, int to) const {
    return reinterpret_cast<Edge*>(memory + sizeof(Head) + size * sizeof(Line))[from * size + to];
}
char* Group::slot(int of, uint32_t operation) const {
    return memory + slots_at(size) + (2 * of + (operation & 1)) * head().slot_bytes;
}
char* Group::edge_slot(int from, int to, uint32_t message) const {
    char* first = memory + slots_at(size) + 2 * size * head().slot_bytes;
    return first + (2 * (from * size + to) + (message & 1)) * head().edge_bytes;
}
int64_t Group::bytes_for(int64_t size, int64_t slot_bytes, int64_t edge_bytes) {
    return slots_at(size) + 2 * size * slot_bytes + 2 * size * size * edge_bytes;
}

void break_off(Group& group, int culprit, const char* reason) {
    Head& head = group.head();
    uint32_t whole = 0;
    if (head.broken.compare_exchange_strong(whole, 1)) {
        std::snprintf(head.reason, sizeof head.reason, "%s", reason);
        head.culprit = culprit;
        head.broken.store(2, std::memory_order_release);
    }
    is_broken(group);
    for (int i = 0; i < group.size; i++) {
        wake(group.line(i).entered);
        for (int j = 0; j < group.size; j++) wake(group.edge(i, j).sent), wake(group.edge(i, j).received);
    }
}

bool wait_for(Group& group, Counter& counter, uint32_t number, int peer, const char* awaited) {
    for (int look = 0; look < LOOKS; look++) {
        if (reached(counter, number)) return true;
        pause_spinning();
    }
    const int64_t began = nanoseconds_now();
    while (nanoseconds_now() - began < SPIN) {
        if (reached(counter, number)) return true;
        std::this_thread::yield();
    }
    bool has_come = false;
    counter.sleepers.fetch_add(1);  // before the next look: who advances the counter looks for sleepers afterwards
    for (;;) {
        const uint32_t seen = counter.value.load();
        if ((has_come = int32_t(seen - number) >= 0) || is_broken(group)) break;
        char reason[256];
        if (has_ended(group, peer)) {
            if ((has_come = reached(counter, number))) break;
            std::snprintf(reason, sizeof reason, "the process of rank %d has ended", peer);
            break_off(group, peer, reason);
        } else if (nanoseconds_now() - began > group.deadline) {
            std::snprintf(reason, sizeof reason, "rank %d did not come within %g s: rank %d waited for %s", peer,
                          double(group.deadline) / 1e9, group.rank, awaited);
            break_off(group, peer, reason);
        } else {
            sleep_on(counter, seen);
        }
    }
    counter.sleepers.fetch_sub(1);
    return has_come;
}

void advance(Counter& counter, uint32_t number) {
    counter.value.store(number);  // sequentially consistent, as the look at the sleepers is
    if (counter.sleepers.load() > 0) wake(counter);
}

bool begin(Group& group) {
    if (is_broken(group)) return false;
    group.number++;
    for (int rank = 0; rank < group.size; rank++)
        if (rank != group.rank && !wait_for(group, group.line(rank).entered, group.number - 1, rank, "its last operation"))
            return false;
    return true;
}

void enter(Group& group, Kind kind, uint64_t amount) {
    Line& mine = group.line(group.rank);
    mine.kinds[group.number & 1].store(packed(kind, amount), std::memory_order_relaxed);
    advance(mine.entered, group.number);
}

bool wait_for_rank(Group& group, int rank, Kind kind, uint64_t amount) {
    if (rank == group.rank) return true;
    Line& theirs = group.line(rank);
    if (!wait_for(group, theirs.entered, group.number, rank, name_of(kind))) return false;
    const uint64_t found = theirs.kinds[group.number & 1].load(std::memory_order_relaxed);
    if (found == packed(kind, amount)) return true;
    char reason[256];
    const auto size = [](uint64_t one) { return (unsigned long long)(one & ((uint64_t(1) << 56) - 1)); };
    std::snprintf(reason, sizeof reason,
                  "rank %d is in %s of %llu bytes, and rank %d in %s of %llu bytes, at operation %u", group.rank,
                  name_of(kind), size(packed(kind, amount)), rank, name_of(Kind(found >> 56)), size(found), group.number);
    break_off(group, -1, reason);
    return false;
}

bool wait_for_all(Group& group, Kind kind, uint64_t amount) {
    for (int rank = 0; rank < group.size; rank++)
        if (!wait_for_rank(group, rank, kind, amount)) return false;
    return true;
}

Stay::Stay(Group& of) : group(of) {
    group.users.fetch_add(1);
    if (group.closed.load()) refused = 1;
    else if (group.in_operation.exchange(true)) refused = 2;
    else entered = true;
    if (entered && is_broken(group)) refused = 1;
}

Stay::~Stay() {
    if (entered) group.in_operation.store(false);
    if (refused) end_replay();
    if (group.users.fetch_sub(1) == 1 && group.closed.load()) unmap(group);
}

#if defined(__linux__)
// Lays out a new segment: zeros otherwise.
EXPORT int64_t pageant_group_bytes(int64_t size, int64_t slot_bytes, int64_t edge_bytes) {
    return Group::bytes_for(size, slot_bytes, edge_bytes);
}

EXPORT int64_t pageant_group_lay_out(int64_t file, int64_t size, int64_t slot_bytes, int64_t edge_bytes, uint64_t nonce) {
    void* memory = mmap(nullptr, sizeof(Head), PROT_READ | PROT_WRITE, MAP_SHARED, int(file), 0);
    if (memory == MAP_FAILED) return errno;
    Head& head = *static_cast<Head*>(memory);
    head.size = size, head.slot_bytes = slot_bytes, head.edge_bytes = edge_bytes, head.culprit = -1, head.nonce = nonce;
    munmap(memory, sizeof(Head));
    return 0;
}

// Joins a segment of some bytes. Null if it cannot be mapped, is another's, or has that rank already; `why` is 1, 2, 3 then.
EXPORT Group* pageant_group_join(int64_t file, int64_t bytes, int64_t rank, int64_t size, uint64_t nonce, int64_t deadline,
                                 int64_t* why) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, int(file), 0);
    *why = 1;
    if (memory == MAP_FAILED) return nullptr;
    Group* group = new Group{};
    group->memory = static_cast<char*>(memory), group->bytes = bytes, group->rank = int(rank), group->size = int(size);
    group->deadline = deadline, group->culprit = -1;
    for (int& pidfd : group->pidfds) pidfd = -1;
    const Head& head = group->head();
    *why = 2;
    int32_t nobody = 0;
    const bool is_right = head.nonce == nonce && head.size == size &&
                          Group::bytes_for(size, head.slot_bytes, head.edge_bytes) == bytes && (*why = 3) &&
                          group->line(int(rank)).process.compare_exchange_strong(nobody, int(getpid()));
    if (is_right) return group;
    munmap(memory, bytes);
    delete group;
    return nullptr;
}

// Begins to watch the others, once all have joined; from now on, an operation waits for so many nanoseconds.
EXPORT void pageant_group_watch(Group* group, int64_t deadline) {
    group->deadline = deadline;
#if defined(SYS_pidfd_open)
    for (int rank = 0; rank < group->size; rank++) {
        const int process = group->line(rank).process.load();
        if (process != int(getpid()) && group->pidfds[rank] < 0)
            group->pidfds[rank] = int(syscall(SYS_pidfd_open, process, 0));
    }
#endif
}

EXPORT void pageant_group_abort(Group* group, int64_t culprit, const char* reason) {
    group->users.fetch_add(1);
    if (!group->closed.load()) break_off(*group, int(culprit), reason);
    if (group->users.fetch_sub(1) == 1 && group->closed.load()) unmap(*group);
}

// Breaks the group and unmaps it: now, or when the operation that a thread is in has ended.
EXPORT void pageant_group_close(Group* group, const char* reason) {
    group->users.fetch_add(1);
    if (!group->closed.load()) {
        break_off(*group, group->rank, reason);
        group->closed.store(true);
    }
    if (group->users.fetch_sub(1) == 1) unmap(*group);
}

// Why the group is broken, or null; and whose fault that was, or -1.
EXPORT const char* pageant_group_reason(Group* group, int64_t* culprit) {
    group->users.fetch_add(1);
    const bool broken = group->closed.load() || is_broken(*group);
    if (group->users.fetch_sub(1) == 1 && group->closed.load()) unmap(*group);
    *culprit = group->culprit;
    return broken ? group->reason : nullptr;
}
#endif
