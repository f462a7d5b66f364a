// A group of ranks in shared memory: the segment's layout, and waits of one rank for others.
//
// Every rank has a line with the number of the last operation that it has entered, and two slots for data, one for
// operations of even numbers and one for odd ones. A rank that has entered operation n has its data of n in place, and is
// done with n - 1. So a slot may be written again, for n + 2, as soon as all have entered n + 1; and nobody counts what is
// read. An edge is a ring of two slots from one rank to another, apart from that order.
#pragma once

#include <atomic>
#include <cstdint>

constexpr int RANKS_MAX = 64;
constexpr int64_t PAGE = 4096;

// A number that others wait for, which only grows (and wraps), and how many of them sleep until it does.
struct alignas(64) Counter {
    std::atomic<uint32_t> value;
    std::atomic<uint32_t> sleepers;
};

struct alignas(128) Line {
    Counter entered;
    std::atomic<uint64_t> kinds[2];  // what the operations of both parities are, to find ranks that differ
    std::atomic<int32_t> process;    // 0 before the rank has joined
};

struct alignas(128) Edge {
    Counter sent, received;
    std::atomic<uint64_t> kinds[2];  // bytes of the whole message
};

struct alignas(128) Head {
    uint64_t nonce;
    int64_t size, slot_bytes, edge_bytes;
    std::atomic<uint32_t> broken;  // 0: no; 1: the reason is being written; 2: it is there
    int32_t culprit;               // a rank, or -1
    char reason[512];
};

enum class Kind : uint64_t { BARRIER = 1, SUM, SUM_PARTS, SUM_RESULT, BROADCAST, GATHER, ALL_GATHER, ALL_TO_ALL };

// One rank's side. Never freed, since recordings may still call with it; the memory is unmapped on closing.
struct Group {
    char* memory;
    int64_t bytes;
    int rank, size;
    int64_t deadline;       // nanoseconds
    uint32_t number;        // of the last operation entered here
    int pidfds[RANKS_MAX];  // -1 where there is none
    std::atomic<int> users;
    std::atomic<bool> closed, unmapped, in_operation;
    int culprit;
    char reason[512];  // why it broke, for after it is closed

    Head& head() const { return *reinterpret_cast<Head*>(memory); }
    Line& line(int of) const;
    Edge& edge(int from, int to) const;
    char* slot(int of, uint32_t operation) const;
    char* edge_slot(int from, int to, uint32_t message) const;
    static int64_t bytes_for(int64_t size, int64_t slot_bytes, int64_t edge_bytes);
};

// Marks a thread's stay in an operation, after which closing unmaps. `allowed` is not 0 where there is no use in going on.
class Stay {
public:
    explicit Stay(Group& group);
    ~Stay();
    int64_t refused = 0;  // 1: broken, 2: another thread is in an operation

private:
    Group& group;
    bool entered = false;
};

// Begins the next operation here: from now on the slot of its parity may be written. False if the group is broken.
bool begin(Group& group);
// Has entered it, with its data in place, and says so.
void enter(Group& group, Kind kind, uint64_t amount);
// Waits until a rank has entered it too, and checks that it is the same operation there.
bool wait_for_rank(Group& group, int rank, Kind kind, uint64_t amount);
bool wait_for_all(Group& group, Kind kind, uint64_t amount);
// Waits until a counter that rank `peer` advances has reached a number.
bool wait_for(Group& group, Counter& counter, uint32_t number, int peer, const char* awaited);
void advance(Counter& counter, uint32_t number);
// Breaks the group for everyone, unless it is broken, and notes why.
void break_off(Group& group, int culprit, const char* reason);
