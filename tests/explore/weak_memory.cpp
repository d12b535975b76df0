#include "explore/weak_memory.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_set>
#include <utility>

namespace syncopate::explore {
namespace {

constexpr int kPlaces = 6;
constexpr int kRegisters = 4;
constexpr int kMostOps = 8;  ///< of a thread
using Kind = MemoryOp::Kind;

/// What somebody has seen: by place, the messages up to this one are over; and of all threads' ops, as bits, those that
/// happen before what comes now.
struct View {
    std::array<std::uint8_t, kPlaces> places{};
    std::uint64_t ops = 0;
};

struct Message {
    int value = 0;
    View view{};
    /// Who may acquire it: of these threads, by the scope with which it was released.
    std::uint8_t thread = 0;
    Scope scope = Scope::block;
    bool released = false;
};

struct ThreadState {
    std::uint32_t done = 0;  ///< by op, as bits
    View now{};
    View fenced{};                  ///< what a release fence has seen
    std::array<View, 3> pending{};  ///< by its scope: what an acquire fence will see
    View proxy{};                   ///< what the other proxy sees
    bool has_fenced = false;
    Scope fence_scope = Scope::block;
    std::array<int, kRegisters> registers{};
};

struct State {
    std::vector<ThreadState> threads;
    std::array<std::vector<Message>, kPlaces> memory;
};

bool acquires(const MemoryOp& op) { return op.order == Order::acquire || op.order == Order::both; }
bool releases(const MemoryOp& op) { return op.order == Order::release || op.order == Order::both; }
bool touches(const MemoryOp& op) {
    return op.kind != Kind::fence && op.kind != Kind::bulk_wait && op.kind != Kind::proxy_fence;
}

void join(View& view, const View& other) {
    for (int place = 0; place < kPlaces; ++place)
        view.places[place] = std::max(view.places[place], other.places[place]);
    view.ops |= other.ops;
}

class Running {
public:
    explicit Running(const Litmus& litmus) : litmus_(litmus) {}

    LitmusResult run() {
        State first;
        first.threads.resize(litmus_.threads.size());
        for (auto& messages : first.memory) messages.push_back({});
        std::vector<State> open{first};
        while (!open.empty() && result_.right) {
            const State state = std::move(open.back());
            open.pop_back();
            if (!seen_.insert(text_of(state)).second) continue;
            ++result_.states;
            bool over = true;
            for (std::size_t thread = 0; thread < state.threads.size(); ++thread) {
                const auto& ops = litmus_.threads[thread].ops;
                for (std::size_t op = 0; op < ops.size(); ++op) {
                    if ((state.threads[thread].done >> op & 1) != 0) continue;
                    over = false;
                    if (may_come(state.threads[thread], ops, op)) take(state, thread, op, open);
                }
            }
            if (over) end(state);
        }
        return result_;
    }

private:
    /// Whether all is done that must come before the op.
    static bool may_come(const ThreadState& thread, const std::vector<MemoryOp>& ops, std::size_t at) {
        const MemoryOp& op = ops[at];
        for (std::size_t i = 0; i < at; ++i) {
            if ((thread.done >> i & 1) != 0) continue;
            const MemoryOp& before = ops[i];
            if (before.kind == Kind::bulk_write) {
                if (op.kind == Kind::bulk_wait && op.value != 0) return false;
                continue;  // written some time
            }
            const bool fences = before.kind == Kind::fence || op.kind == Kind::fence ||
                                before.kind == Kind::bulk_wait || before.kind == Kind::proxy_fence ||
                                op.kind == Kind::proxy_fence;
            const bool same = touches(before) && touches(op) && before.place == op.place;
            const bool needs = op.only_if >= 0 && before.kind == Kind::add && before.into == op.into;
            if (fences || same || needs || acquires(before) || releases(op)) return false;
        }
        return true;
    }

    [[nodiscard]] bool include(std::size_t one, Scope scope, std::size_t other) const {
        const MemoryThread& a = litmus_.threads[one];
        const MemoryThread& b = litmus_.threads[other];
        if (scope == Scope::system) return true;
        return a.rank == b.rank && (scope == Scope::gpu || a.block == b.block);
    }

    void see(ThreadState& thread, std::size_t index, const MemoryOp& op, const Message& message) const {
        if (!message.released || !include(message.thread, message.scope, index)) return;
        if (acquires(op)) {
            if (include(index, op.scope, message.thread)) join(thread.now, message.view);
        } else {
            for (const Scope scope : {Scope::block, Scope::gpu, Scope::system}) {
                if (include(index, scope, message.thread))
                    join(thread.pending[static_cast<std::size_t>(scope)], message.view);
            }
        }
    }

    static std::uint64_t bit_of(std::size_t thread, std::size_t op) {
        return std::uint64_t{1} << (thread * kMostOps + op);
    }
    /// What the thread has seen, and done of what comes before the op.
    static View so_far(const ThreadState& thread, std::size_t index, std::size_t at) {
        View view = thread.now;
        view.ops |= (static_cast<std::uint64_t>(thread.done) & ((1U << at) - 1)) << (index * kMostOps);
        return view;
    }

    /// Whether an op that conflicts with this one, of another thread, has come without an order between them: of what is
    /// data that must not be, whatever it then finds.
    [[nodiscard]] bool races(const State& state, std::size_t index, std::size_t at) const {
        const auto is_data = [](const MemoryOp& op) {
            return touches(op) && op.order == Order::relaxed && op.place < kDataPlaces;
        };
        const auto reads = [](const MemoryOp& op) {
            return op.kind == Kind::read || op.kind == Kind::tma_read;
        };
        const MemoryOp& op = litmus_.threads[index].ops[at];
        if (!is_data(op)) return false;
        const ThreadState& own = state.threads[index];
        const View& view = op.kind == Kind::tma_read ? own.proxy : own.now;
        for (std::size_t other = 0; other < state.threads.size(); ++other) {
            for (std::size_t i = 0; other != index && i < litmus_.threads[other].ops.size(); ++i) {
                const MemoryOp& that = litmus_.threads[other].ops[i];
                if ((state.threads[other].done >> i & 1) == 0 || !is_data(that) || that.place != op.place)
                    continue;
                if (!(reads(op) && reads(that)) && (view.ops & bit_of(other, i)) == 0) return true;
            }
        }
        return false;
    }

    Message written(const ThreadState& thread, std::size_t index, std::size_t at, const MemoryOp& op,
                    int value) const {
        Message message{.value = value, .thread = static_cast<std::uint8_t>(index)};
        if (releases(op)) {
            message.view = so_far(thread, index, at);
            message.released = true;
            message.scope = op.scope;
        } else if (thread.has_fenced && op.kind != Kind::bulk_write) {
            message.view = thread.fenced;
            message.released = true;
            message.scope = std::min(op.scope, thread.fence_scope);
        }
        return message;
    }

    void take(const State& state, std::size_t index, std::size_t at, std::vector<State>& open) {
        const MemoryOp& op = litmus_.threads[index].ops[at];
        State next = state;
        ThreadState& thread = next.threads[index];
        thread.done |= 1U << at;
        if (op.only_if >= 0 && thread.registers[op.into] != op.only_if) {
            open.push_back(std::move(next));
            return;
        }
        if (races(state, index, at)) result_.right = false;
        std::vector<Message>& messages = next.memory[op.place];
        const auto append = [&](Message message) {
            messages.push_back(message);
            const auto place = static_cast<std::uint8_t>(messages.size() - 1);
            thread.now.places[op.place] = place;
            messages.back().view.places[op.place] = place;
        };
        switch (op.kind) {
            case Kind::fence:
                join(thread.now, thread.pending[static_cast<std::size_t>(op.scope)]);
                thread.fenced = so_far(thread, index, at);
                thread.has_fenced = true;
                thread.fence_scope = op.scope;
                break;
            case Kind::proxy_fence: thread.proxy = thread.now; break;
            case Kind::bulk_wait: break;
            case Kind::write:
            case Kind::bulk_write: append(written(thread, index, at, op, op.value)); break;
            case Kind::add: {
                const Message last = messages.back();
                see(thread, index, op, last);
                thread.registers[op.into] = last.value;
                Message message = written(thread, index, at, op, last.value + op.value);
                if (last.released) {  // who acquires this one acquires that one, too
                    join(message.view, last.view);
                    if (!message.released) {
                        message.thread = last.thread;
                        message.scope = last.scope;
                    }
                    message.released = true;
                }
                append(message);
                break;
            }
            case Kind::read:
            case Kind::await:
            case Kind::tma_read: {
                const View& view = op.kind == Kind::tma_read ? thread.proxy : thread.now;
                for (std::size_t i = view.places[op.place]; i < messages.size(); ++i) {
                    if (op.kind == Kind::await && messages[i].value < op.value) continue;
                    State other = next;
                    ThreadState& reading = other.threads[index];
                    reading.now.places[op.place] =
                        std::max(reading.now.places[op.place], static_cast<std::uint8_t>(i));
                    reading.registers[op.into] = messages[i].value;
                    see(reading, index, op, messages[i]);
                    open.push_back(std::move(other));
                }
                return;
            }
        }
        open.push_back(std::move(next));
    }

    void end(const State& state) {
        result_.ends = true;
        Registers registers;
        for (const ThreadState& thread : state.threads)
            registers.emplace_back(thread.registers.begin(), thread.registers.end());
        result_.right = result_.right && litmus_.is_right(registers);
    }

    static std::string text_of(const State& state) {
        std::string text;
        const auto put = [&](const auto& bytes) {
            for (const auto byte : bytes) text.push_back(static_cast<char>(byte));
        };
        const auto put_view = [&](const View& view) {
            put(view.places);
            text.append(reinterpret_cast<const char*>(&view.ops), sizeof(view.ops));
        };
        for (const ThreadState& thread : state.threads) {
            put(std::array{thread.done & 255, thread.done >> 8});
            for (const View* view : {&thread.now, &thread.fenced, &thread.pending[0], &thread.pending[1],
                                     &thread.pending[2], &thread.proxy})
                put_view(*view);
            put(thread.registers);
        }
        for (const auto& messages : state.memory) {
            text.push_back('|');
            for (const Message& message : messages) {
                put(std::array{message.value, static_cast<int>(message.thread),
                               static_cast<int>(message.scope), static_cast<int>(message.released)});
                put_view(message.view);
            }
        }
        return text;
    }

    const Litmus& litmus_;
    std::unordered_set<std::string> seen_;
    LitmusResult result_;
};

}  // namespace

LitmusResult run(const Litmus& litmus) { return Running(litmus).run(); }

}  // namespace syncopate::explore
