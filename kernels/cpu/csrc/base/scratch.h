// Memory that a thread keeps from call to call. It begins with a line of the cache: a vector that lies across two
// of them takes twice as long to load.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

template <class N>
class Scratch {
  public:
    // Memory for `count`, which holds anything.
    N* take(int64_t count) {
        if (count > room_) {
            size_t lines = (count * sizeof(N) + 63) / 64;
            memory_.reset(static_cast<N*>(std::aligned_alloc(64, lines * 64)));
            room_ = count;
        }
        return memory_.get();
    }

  private:
    struct Free {
        void operator()(N* p) const { std::free(p); }
    };
    std::unique_ptr<N, Free> memory_;
    int64_t room_ = 0;
};
