#include "explore/recorder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace syncopate::explore {

void Recorder::begin_call(int rank, int fiber, int call) {
    const std::size_t agent = make(rank, call);
    std::uint32_t before = 0;
    if (current_.contains(fiber)) {
        before = of_.done_of(current_[fiber]);
        push(current_[fiber], {.kind = Step::Kind::store, .word = before, .value = 1, .own = false});
    } else {
        before = of_.new_word("begin");
    }
    push(agent, {.kind = Step::Kind::wait, .word = before, .value = call > 1 ? 1u : 0u, .own = false});
    current_[fiber] = agent;
    rank_of_[fiber] = rank;
}

std::size_t Recorder::make(int rank, int call) {
    of_.model.agents.push_back({.rank = rank, .call = call});
    of_.touched.emplace_back();
    return of_.model.agents.size() - 1;
}

void Recorder::push(std::size_t agent, Step step) {
    of_.model.record.emplace_back(agent, of_.model.agents[agent].steps.size());
    step.number = static_cast<std::uint16_t>(of_.model.record.size());
    of_.model.agents[agent].steps.push_back(std::move(step));
    of_.touched[agent].emplace_back();
}

void Recorder::take(const Event& event) {
    using Kind = Event::Kind;
    const std::size_t agent = current_.at(event.fiber);
    const bool is_same = seen_.is_same(event);
    seen_.note(event);
    if (event.kind == Kind::look && (of_.model.calls == 0 || is_same)) return;
    const auto value = static_cast<std::uint32_t>(event.value);
    switch (event.kind) {
        case Kind::look:
            if (of_.model.agents[agent].call <= of_.model.calls)
                of_.looks.emplace_back(agent, of_.model.agents[agent].steps.size());
            return push(agent, {.kind = Step::Kind::look, .word = of_.word(event.address), .any = event.any});
        case Kind::start: return take_start(agent, event);
        case Kind::join: return take_join(agent, event);
        case Kind::apart: return take_apart(agent, event);
        case Kind::awaited: {
            const std::uint32_t of = of_.word(event.address);
            return push(agent, {.kind = Step::Kind::wait,
                                .word = of,
                                .value = value,
                                .any = event.any,
                                .own = !of_.model.word_names[of].starts_with("collective") &&
                                       !of_.model.word_names[of].starts_with("channel")});
        }
        case Kind::store:
            return push(agent, {.kind = Step::Kind::store, .word = of_.word(event.address), .value = value});
        case Kind::add:
            return push(agent, {.kind = Step::Kind::add, .word = of_.word(event.address), .value = value});
        case Kind::count: return take_count(agent, event);
        case Kind::read:
        case Kind::write: return take_touch(agent, event);
    }
}

void Recorder::take_start(std::size_t agent, const Event& event) {
    const int child = static_cast<int>(event.address);
    const std::uint32_t begun = of_.new_word(fmt::format("start of fiber {}", child));
    push(agent, {.kind = Step::Kind::store, .word = begun, .value = 1, .own = false});
    begun_[child] = begun;
    rank_of_[child] = rank_of_[event.fiber];
    current_[child] = make(rank_of_[child], of_.model.agents[agent].call);
    push(current_[child], {.kind = Step::Kind::wait, .word = begun, .value = 1, .own = false});
    of_owner_[event.value].push_back(current_[child]);
    owner_of_[child] = event.value;
    of_.agents_of[child].push_back(current_[child]);
}

void Recorder::take_join(std::size_t agent, const Event& event) {
    for (const std::size_t other : of_owner_[event.address]) {
        push(other, {.kind = Step::Kind::store, .word = of_.done_of(other), .value = 1, .own = false});
        push(agent, {.kind = Step::Kind::wait, .word = of_.done_of(other), .value = 1, .own = false});
    }
    of_owner_[event.address].clear();
}

void Recorder::take_apart(std::size_t agent, const Event& event) {
    const std::vector<Step>& so_far = of_.model.agents[agent].steps;
    const auto does = [](const Step& step) { return step.kind != Step::Kind::look; };
    if (std::ranges::count_if(so_far, does) <= 1) return;
    const std::size_t next = make(rank_of_[event.fiber], of_.model.agents[agent].call);
    push(next, {.kind = Step::Kind::wait, .word = begun_.at(event.fiber), .value = 1, .own = false});
    current_[event.fiber] = next;
    of_.agents_of[event.fiber].push_back(next);
    of_owner_[owner_of_.at(event.fiber)].push_back(next);
}

void Recorder::take_count(std::size_t agent, const Event& event) {
    Step step{.kind = Step::Kind::count,
              .word = of_.word(event.address),
              .value = static_cast<std::uint32_t>(event.value),
              .any = event.any,
              .epoch = event.epoch};
    for (const std::uint64_t post : event.posts) step.posts.push_back(of_.word(post));
    return push(agent, std::move(step));
}

void Recorder::take_touch(std::size_t agent, const Event& event) {
    if (const int cleared = cleared_by(event); cleared >= 0)
        return push(agent, {.kind = Step::Kind::clear, .word = static_cast<std::uint32_t>(cleared)});
    std::vector<Step>& steps = of_.model.agents[agent].steps;
    if (event.kind == Event::Kind::read && has_written(agent, event)) push(agent, {.kind = Step::Kind::move});
    if (steps.empty() || steps.back().kind != Step::Kind::move || last_[agent] != event.fiber)
        push(agent, {.kind = Step::Kind::move});
    last_[agent] = event.fiber;
    const std::uint64_t begin = of_.op.in_first_mapping(event.address);
    Touched& touched = of_.touched[agent].back();
    (event.kind == Event::Kind::read ? touched.reads : touched.writes)
        .push_back({begin, begin + event.value});
}

/// Whether the agent's last step has written some of what is read: that is then another step.
bool Recorder::has_written(std::size_t agent, const Event& event) const {
    if (of_.model.calls == 0 || of_.touched[agent].empty()) return false;
    const std::uint64_t begin = of_.op.in_first_mapping(event.address);
    return std::ranges::any_of(of_.touched[agent].back().writes, [&](const Bytes& bytes) {
        return bytes.begin < begin + event.value && begin < bytes.end;
    });
}

/// The rank whose control block is written whole; -1: none.
int Recorder::cleared_by(const Event& event) const {
    if (of_.model.calls == 0 || event.kind != Event::Kind::write) return -1;
    const std::uint64_t begin = of_.op.in_first_mapping(event.address);
    for (int rank = 0; rank < of_.op.size(); ++rank) {
        const std::uint64_t block = of_.block_of(rank);
        if (begin <= block && block < begin + event.value) return rank;
    }
    return -1;
}

}  // namespace syncopate::explore
