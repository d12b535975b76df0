#include "sync/replay.hpp"

#include <algorithm>

#include "syncopate/at.hpp"

namespace syncopate::sync {

Unrolled::Unrolled(const Chain& chain, const Synchronization& synchronization)
    : chain_(chain), synchronization_(synchronization), calls_(chain.calls == Chain::Calls::ordered ? 1 : 3) {
    for (const ChainStage& stage : chain.stages) {
        first_.push_back(per_call_);
        per_call_ += stage.num_blocks();
    }
    first_semaphore_.push_back(0);
    std::vector<std::int32_t> semaphores(synchronization.arrays.size(), 0);
    for (std::size_t i = 0; i < semaphores.size(); ++i)
        semaphores[i] = static_cast<std::int32_t>(synchronization.arrays[i].posts.size());
    for (const Link& link : synchronization.links) {  // some may be awaited and never posted
        for (const std::vector<Wait>& waits : link.waits) {
            for (const Wait& wait : waits) {
                std::int32_t& count = semaphores[at(wait.array)];
                count = std::max(count, wait.semaphore + 1);
            }
        }
    }
    for (const std::int32_t count : semaphores) first_semaphore_.push_back(first_semaphore_.back() + count);
    const auto nodes = static_cast<std::size_t>(calls_ * per_call_);
    waits_.resize(nodes);
    posts_.resize(nodes);
    waiters_.resize(static_cast<std::size_t>(first_semaphore_.back()));
    for (std::int32_t call = 0; call < calls_; ++call) add_call(synchronization, call);
    for (std::size_t at = 0; at < nodes; ++at) {
        for (const NodeWait& wait : waits_[at])
            waiters_[static_cast<std::size_t>(wait.semaphore)].push_back(
                {wait.threshold, static_cast<Node>(at)});
        effort_ += 1 + static_cast<std::int64_t>(waits_[at].size() + posts_[at].size());
    }
    for (std::vector<Waiter>& waiters : waiters_) std::ranges::stable_sort(waiters, {}, &Waiter::threshold);
}

void Unrolled::add_call(const Synchronization& synchronization, std::int32_t call) {
    for (std::size_t i = 0; i < synchronization.arrays.size(); ++i) {
        const SemaphoreArray& array = synchronization.arrays[i];
        for (std::size_t block = 0; block < array.of_block.size(); ++block) {
            if (array.of_block[block] < 0) continue;
            const Node poster =
                node(call, static_cast<std::size_t>(array.stage), static_cast<std::int64_t>(block));
            posts_[at(poster)].push_back(first_semaphore_[i] + array.of_block[block]);
        }
    }
    for (const Link& link : synchronization.links) {
        for (std::size_t block = 0; block < link.waits.size(); ++block) {
            const Node waiting =
                node(call, static_cast<std::size_t>(link.stage), static_cast<std::int64_t>(block));
            for (const Wait& wait : link.waits[block]) {
                const std::int32_t before = call - wait.lag;
                // What the call before the first one had to do is done, and so it is where calls are ordered.
                if (before < 0) continue;
                const SemaphoreArray& array = synchronization.arrays[at(wait.array)];
                const std::int64_t posts = static_cast<std::size_t>(wait.semaphore) < array.posts.size()
                                               ? array.posts[at(wait.semaphore)]
                                               : 0;
                const std::int64_t threshold = before * posts + wait.count;
                if (threshold <= 0) continue;
                waits_[at(waiting)].push_back({first_semaphore_[at(wait.array)] + wait.semaphore, threshold});
            }
        }
    }
}

std::vector<bool> Unrolled::passing(Node held) const {
    std::vector<bool> passes(waits_.size(), false);
    std::vector<std::int32_t> missing(waits_.size());
    std::vector<std::int64_t> value(waiters_.size(), 0);
    std::vector<std::size_t> next(waiters_.size(), 0);  // the first waiter that is not over
    std::vector<Node> ready;
    for (std::size_t at = 0; at < waits_.size(); ++at) {
        missing[at] = static_cast<std::int32_t>(waits_[at].size());
        if (missing[at] == 0) ready.push_back(static_cast<Node>(at));
    }
    while (!ready.empty()) {
        const Node at = ready.back();
        ready.pop_back();
        passes[static_cast<std::size_t>(at)] = true;
        if (at == held) continue;
        for (const std::int32_t semaphore : posts_[static_cast<std::size_t>(at)]) {
            const auto word = static_cast<std::size_t>(semaphore);
            ++value[word];
            const std::vector<Waiter>& waiters = waiters_[word];
            for (; next[word] < waiters.size() && waiters[next[word]].threshold <= value[word];
                 ++next[word]) {
                const Node waiter = waiters[next[word]].node;
                if (--missing[static_cast<std::size_t>(waiter)] == 0) ready.push_back(waiter);
            }
        }
    }
    return passes;
}

std::vector<Unrolled::Stuck> Unrolled::stuck() const {
    std::vector<Stuck> all(waits_.size());
    std::vector<std::int64_t> value(waiters_.size(), 0);
    const auto look = [&](Node at) {
        const std::vector<NodeWait>& waits = waits_[static_cast<std::size_t>(at)];
        for (std::size_t i = 0; i < waits.size(); ++i) {
            const std::int64_t posts = value[static_cast<std::size_t>(waits[i].semaphore)];
            if (posts >= waits[i].threshold) continue;
            all[static_cast<std::size_t>(at)] = {static_cast<std::int32_t>(i), posts};
            return;
        }
    };
    const auto complete = [&](Node at) {
        for (const std::int32_t semaphore : posts_[static_cast<std::size_t>(at)])
            ++value[static_cast<std::size_t>(semaphore)];
    };
    for (std::int32_t call = 0; call < calls_; ++call) {
        for (std::size_t stage = 0; stage < chain_.stages.size(); ++stage) {
            const std::vector<std::int32_t>& order = synchronization_.orders[stage];
            // Where nothing orders the stages, this one may be the only one that has started.
            if (chain_.launch == Chain::Start::any) std::ranges::fill(value, 0);
            if (!chain_.stages[stage].tickets) {
                for (const std::int32_t block : order) look(node(call, stage, block));
            }
            for (const std::int32_t block : order) {
                const Node at = node(call, stage, block);
                if (chain_.stages[stage].tickets) look(at);
                complete(at);
            }
        }
    }
    return all;
}

}  // namespace syncopate::sync
