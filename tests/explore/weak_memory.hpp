// Small programs of a few threads on memory as weak as PTX and C++ allow, in every execution: what the protocol's pairs of
// publish and observe rest on, where threads do not just take turns.
//
// Each write stays as a message with the view of who wrote it (Kang et al., A Promising Semantics, POPL 2017, without
// promises); who reads may see any message that its own view has not passed. In addition a thread does its operations in
// any order that nothing forbids, since a read may come late and a write early:
//
//      acquire   before all that follows            same place   in order
//      release   after all that comes before        fence        both
//
// What is released counts for who acquires only where the scopes of both have both threads in them. Bulk stores are
// written at any time before somebody waits until they are; loads by TMA see what the last proxy fence has seen.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace syncopate::explore {

enum class Order : std::uint8_t { relaxed, acquire, release, both };
enum class Scope : std::uint8_t { block, gpu, system };

struct MemoryOp {
    enum class Kind : std::uint8_t {
        write,  ///< `value` to `place`
        read,   ///< into register `into`
        await,  ///< until `place` has reached `value`
        add,    ///< `value`; what was there goes to register `into`
        fence,
        bulk_write,  ///< by another proxy, some time
        bulk_wait,   ///< until those of this thread are written; with `value` 0 only read
        tma_read,    ///< through another proxy
        proxy_fence,
    };
    Kind kind = Kind::read;
    int place = 0;
    int value = 1;
    Order order = Order::relaxed;
    Scope scope = Scope::system;
    int into = 0;
    int only_if = -1;  ///< register `into` of this thread has this value
};

struct MemoryThread {
    int rank = 0;
    int block = 0;
    std::vector<MemoryOp> ops;
};

using Registers = std::vector<std::vector<int>>;  ///< by thread; 0 at first

struct Litmus {
    std::string name;
    std::vector<MemoryThread> threads;
    std::function<bool(const Registers&)> is_right;
};

/// Places below this are data: two ops of different threads, one of which writes, must be ordered (in PTX and C++ all else
/// is a race, whatever is then found). The others are words.
inline constexpr int kDataPlaces = 2;

struct LitmusResult {
    std::uint64_t states = 0;
    bool right = true;  ///< in every execution
    bool ends = false;  ///< in some
};

[[nodiscard]] LitmusResult run(const Litmus& litmus);

}  // namespace syncopate::explore
