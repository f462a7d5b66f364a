// Makes calls that it reads from its input, and writes what they leave in memory: a library of another processor behind a pipe.
// A call is the function's name, the number of its arguments, and each argument: a kind, and eight bytes or a buffer.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

struct Function {
    const char* name;
    void (*address)();
};
#include "guest_functions.h"

enum Kind : uint8_t { INTEGER, DOUBLE, BUFFER };

static void read_whole(void* to, size_t size) {
    if (std::fread(to, 1, size, stdin) != size) std::exit(2);
}

template <class T>
static T read_one() {
    T value;
    read_whole(&value, sizeof value);
    return value;
}

int main() {
    std::string name(read_one<uint32_t>(), ' ');
    read_whole(name.data(), name.size());
    int64_t integers[32] = {};  // and pointers, which the ABI passes alike
    double doubles[8] = {};
    int integer_count = 0, double_count = 0;
    std::vector<std::vector<char>> buffers(read_one<uint32_t>());
    for (auto& buffer : buffers) {
        const auto kind = read_one<Kind>();
        if (kind == INTEGER) integers[integer_count++] = read_one<int64_t>();
        if (kind == DOUBLE) doubles[double_count++] = read_one<double>();
        if (kind == BUFFER) {
            buffer.resize(read_one<int64_t>());
            read_whole(buffer.data(), buffer.size());
            integers[integer_count++] = (int64_t)buffer.data();
        }
    }
    const int64_t* i = integers;
    const double* d = doubles;
    for (const Function& function : FUNCTIONS) {
        if (name != function.name) continue;
        auto call = (int64_t(*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                                int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                                int64_t, int64_t, double, double))function.address;
        call(i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8], i[9], i[10], i[11], i[12], i[13], i[14], i[15], i[16], i[17],
             i[18], i[19], i[20], i[21], i[22], i[23], d[0], d[1]);
        for (auto& buffer : buffers) std::fwrite(buffer.data(), 1, buffer.size(), stdout);
        return std::fflush(stdout) ? 3 : 0;
    }
    return 4;
}
