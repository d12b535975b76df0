#include "exhaustive.hpp"

#include <map>
#include <unordered_set>
#include <utility>

namespace syncopate::sync::test {
namespace {

/// A block of a call.
struct Node {
    std::int32_t call, stage, block, place;
    Touched touched;
    struct Awaited {
        std::size_t semaphore;
        std::int64_t threshold;
    };
    std::vector<Awaited> waits;
    std::vector<std::size_t> posts;
    std::uint32_t before = 0;        ///< nodes that must have started before it starts
    std::uint32_t ended_before = 0;  ///< nodes that must have completed before it starts
    std::uint32_t writers = 0;       ///< earlier ones that write what it reads after its waits
    std::uint32_t early_writers = 0;
    std::uint32_t touching = 0;  ///< earlier ones that touch what it writes
};

struct State {
    std::uint32_t started = 0, passed = 0, done = 0;
    [[nodiscard]] std::uint64_t key() const {
        return std::uint64_t{started} | std::uint64_t{passed} << 20 | std::uint64_t{done} << 40;
    }
};

class Explorer {
public:
    Explorer(const Chain& chain, const Synchronization& made,
             const std::vector<std::vector<Touched>>& touched, std::int32_t calls)
        : chain_(chain), made_(made) {
        for (std::int32_t call = 0; call < calls; ++call) {
            for (std::size_t stage = 0; stage < chain.stages.size(); ++stage) {
                for (std::size_t place = 0; place < made.orders[stage].size(); ++place) {
                    const std::int32_t block = made.orders[stage][place];
                    nodes_.push_back({call,
                                      static_cast<std::int32_t>(stage),
                                      block,
                                      static_cast<std::int32_t>(place),
                                      touched[stage][static_cast<std::size_t>(block)],
                                      {},
                                      {}});
                }
            }
        }
        for (std::size_t later = 0; later < nodes_.size(); ++later) {
            for (std::size_t earlier = 0; earlier < later; ++earlier) relate(earlier, later);
            connect(nodes_[later]);
        }
        values_.resize(semaphores_.size());
    }

    [[nodiscard]] std::size_t size() const { return nodes_.size(); }

    void explore(std::int32_t resident, std::size_t most_states, Tried& tried) {
        std::unordered_set<std::uint64_t> seen;
        std::vector<State> open{{}};
        seen.insert(open.back().key());
        const std::uint32_t all = (std::uint32_t{1} << nodes_.size()) - 1;
        while (!open.empty()) {
            const State state = open.back();
            open.pop_back();
            if (++tried.states > most_states) {
                tried.complete = false;
                return;
            }
            bool moved = false;
            const auto go = [&](const State& next) {
                moved = true;
                if (seen.insert(next.key()).second) open.push_back(next);
            };
            count(state);
            const bool room = __builtin_popcount(state.started & ~state.done) < resident;
            for (std::size_t i = 0; i < nodes_.size(); ++i) step(state, i, room, tried, go);
            if (!moved && state.done != all) tried.deadlock = true;
        }
    }

private:
    template <typename Go>
    void step(const State& state, std::size_t i, bool room, Tried& tried, const Go& go) {
        const Node& node = nodes_[i];
        const std::uint32_t bit = std::uint32_t{1} << i;
        State next = state;
        if ((state.started & bit) == 0) {
            if (!room || (node.before & ~state.started) != 0 || (node.ended_before & ~state.done) != 0)
                return;
            if ((node.early_writers & ~state.done) != 0) tried.early_read = true;
            next.started |= bit;
        } else if ((state.passed & bit) == 0) {
            for (const Node::Awaited& wait : node.waits) {
                if (values_[wait.semaphore] < wait.threshold) return;
            }
            if ((node.writers & ~state.done) != 0) tried.early_read = true;
            if ((node.touching & ~state.done) != 0) tried.overwrite = true;
            next.passed |= bit;
        } else if ((state.done & bit) == 0) {
            next.done |= bit;
        } else {
            return;
        }
        go(next);
    }

    void count(const State& state) {
        std::ranges::fill(values_, 0);
        for (std::size_t i = 0; i < nodes_.size(); ++i) {
            if ((state.done >> i & 1) == 0) continue;
            for (const std::size_t semaphore : nodes_[i].posts) ++values_[semaphore];
        }
    }

    void relate(std::size_t earlier, std::size_t later) {
        const Node& a = nodes_[earlier];
        Node& b = nodes_[later];
        const std::uint32_t bit = std::uint32_t{1} << earlier;
        const bool same_stage = a.call == b.call && a.stage == b.stage;
        if (a.call != b.call && chain_.calls == Chain::Calls::ordered) {
            b.ended_before |= bit;
        } else if (same_stage ? chain_.stages[static_cast<std::size_t>(b.stage)].tickets
                              : chain_.launch == Chain::Start::after_start) {
            b.before |= bit;
        }
        if ((a.touched.writes & b.touched.reads) != 0) b.writers |= bit;
        if ((a.touched.writes & b.touched.early) != 0) b.early_writers |= bit;
        if (((a.touched.reads | a.touched.early) & b.touched.writes) != 0) b.touching |= bit;
        const bool added = same_stage && a.touched.adds && b.touched.adds;
        if ((a.touched.writes & b.touched.writes) != 0 && !added) b.touching |= bit;
    }

    std::size_t semaphore(std::int32_t array, std::int32_t number) {
        return semaphores_.emplace(std::pair{array, number}, semaphores_.size()).first->second;
    }

    void connect(Node& node) {
        for (std::size_t array = 0; array < made_.arrays.size(); ++array) {
            const SemaphoreArray& of = made_.arrays[array];
            if (of.stage != node.stage || of.of_block[static_cast<std::size_t>(node.block)] < 0) continue;
            node.posts.push_back(semaphore(static_cast<std::int32_t>(array),
                                           of.of_block[static_cast<std::size_t>(node.block)]));
        }
        for (const Wait& wait : made_.waits_of(node.stage, node.block)) {
            const std::vector<std::int32_t>& posts = made_.arrays[static_cast<std::size_t>(wait.array)].posts;
            const auto number = static_cast<std::size_t>(wait.semaphore);
            const std::int64_t each_call = number < posts.size() ? posts[number] : 0;
            if (node.call < wait.lag) continue;
            node.waits.push_back(
                {semaphore(wait.array, wait.semaphore), (node.call - wait.lag) * each_call + wait.count});
        }
    }

    const Chain& chain_;
    const Synchronization& made_;
    std::vector<Node> nodes_;
    std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> semaphores_;
    std::vector<std::int64_t> values_;
};

}  // namespace

Tried try_everything(const Chain& chain, const Synchronization& synchronization,
                     const std::vector<std::vector<Touched>>& touched, std::int32_t calls,
                     std::size_t most_states) {
    Explorer explorer(chain, synchronization, touched, calls);
    Tried tried;
    const auto all = static_cast<std::int32_t>(explorer.size());
    for (const std::int32_t resident : {1, 2, 3, all}) {
        if (resident <= all) explorer.explore(resident, most_states, tried);
    }
    return tried;
}

}  // namespace syncopate::sync::test
