#include "explore/recorded.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/host/host_channel.hpp"
#include "syncopate/emit/table.hpp"

namespace syncopate::explore {
namespace {

bool is_of_collective(PlayedOp& op, int rank, std::int32_t word) {
    const fuse::RankSchedule& own = op.schedule().ranks[static_cast<std::size_t>(rank)];
    return word >= emit::relay_gate_of(own, own.num_relays);
}

void number_atoms(Recorded& of) {
    Model& model = of.model;
    std::vector<std::uint64_t> cuts;
    const auto each = [&](const auto& visit) {
        for (const auto& [agent, step] : model.record) {
            for (const Bytes& bytes : of.touched[agent][step].reads) visit(bytes, agent, step, false);
            for (const Bytes& bytes : of.touched[agent][step].writes) visit(bytes, agent, step, true);
        }
    };
    each([&](const Bytes& bytes, std::size_t, std::size_t, bool) {
        cuts.push_back(bytes.begin);
        cuts.push_back(bytes.end);
    });
    std::ranges::sort(cuts);
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<std::vector<std::uint32_t>> touching(cuts.size());
    each([&](const Bytes& bytes, std::size_t agent, std::size_t step, bool writes) {
        auto at = static_cast<std::size_t>(std::ranges::lower_bound(cuts, bytes.begin) - cuts.begin());
        const std::uint32_t id = 2u * model.agents[agent].steps[step].number + (writes ? 1u : 0u);
        for (; cuts[at] < bytes.end; ++at) touching[at].push_back(id);
    });
    std::map<std::vector<std::uint32_t>, std::uint16_t> atoms;
    for (std::vector<std::uint32_t>& ids : touching) {
        std::ranges::sort(ids);
        ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
        if (ids.empty()) continue;
        const auto atom = static_cast<std::uint16_t>(atoms.size());
        if (!atoms.try_emplace(ids, atom).second) continue;
        for (const std::uint32_t id : ids) {
            const auto& [agent, step] = model.record[id / 2 - 1];
            Step& one = model.agents[agent].steps[step];
            (id % 2 == 1 ? one.writes : one.reads).push_back(atom);
        }
    }
    model.num_atoms = atoms.size();
}

std::string role_of(const Agent& agent) {
    std::string role = fmt::format("{}", agent.rank);
    for (const Step& step : agent.steps) {
        if (step.kind == Step::Kind::move)
            role += fmt::format(" m{}/{}", step.reads.size() > 0, step.writes.size() > 0);
        else if (step.own)
            role += fmt::format(" {}{}", static_cast<int>(step.kind), step.word);
    }
    return role;
}

/// What each step finds, where calls come one after another.
void find_contents(Model& model) {
    std::vector<std::uint16_t> holds(model.num_atoms, 0);
    for (const auto& [agent, step] : model.record) {
        Step& of = model.agents[agent].steps[step];
        for (const std::uint16_t atom : of.reads) of.found.push_back(holds[atom]);
        for (const std::uint16_t atom : of.writes) holds[atom] = of.number;
    }
}

void find_owners(Recorded& of) {
    Model& model = of.model;
    model.owners.assign(model.word_names.size(), -1);
    for (int rank = 0; rank < of.op.size(); ++rank) {
        const std::uint64_t block = of.block_of(rank);
        if (model.calls > 0) model.fault_words.push_back(of.word(block + 4 * emit::control::fault));
        model.owners.resize(model.word_names.size(), -1);
        for (const auto& [address, number] : of.words) {
            if (address >= block && address - block < of.op.op(rank).control_bytes())
                model.owners[number] = rank;
        }
    }
}

void find_monotonic(Model& model) {
    model.monotonic.assign(model.num_words, true);
    std::vector<std::uint32_t> holds(model.num_words, 0);
    for (const auto& place : model.record) {
        const Step& step = model.at(place);
        if (model.calls > 0 && model.agents[place.first].call == model.calls + 1) {  // all is as new then
            if (step.kind == Step::Kind::store) holds[step.word] = step.value;
            for (std::size_t of = 0; step.kind == Step::Kind::clear && of < holds.size(); ++of) {
                if (model.owners[of] == static_cast<int>(step.word)) holds[of] = 0;
            }
            continue;
        }
        if (step.kind == Step::Kind::add) holds[step.word] += step.value;
        if (step.kind != Step::Kind::store) continue;
        if (step.value < holds[step.word]) model.monotonic[step.word] = false;
        holds[step.word] = step.value;
    }
}

}  // namespace

std::uint32_t Recorded::word(std::uint64_t address) {
    address = op.in_first_mapping(address);
    const auto [found, is_new] = words.try_emplace(address, model.word_names.size());
    if (is_new) model.word_names.push_back(name_of(address));
    return static_cast<std::uint32_t>(found->second);
}
std::uint32_t Recorded::new_word(std::string name) {
    model.word_names.push_back(std::move(name));
    return static_cast<std::uint32_t>(model.word_names.size() - 1);
}
std::uint32_t Recorded::done_of(std::size_t agent) {
    const auto found = done.find(agent);
    if (found != done.end()) return found->second;
    return done[agent] = new_word(fmt::format("end of agent {}", agent));
}

std::uint64_t Recorded::block_of(int rank) const {
    return op.in_first_mapping(op.op(rank).control_address());
}

std::string Recorded::name_of(std::uint64_t address) const {
    if (runtime::HostChannel::is_word(address))
        return fmt::format("channel word {}", address - reinterpret_cast<std::uint64_t>(
                                                            runtime::HostChannel::word_of(0, false)));
    if (runtime::HostChannel::is_fault(address))
        return fmt::format("channel fault {}",
                           address - reinterpret_cast<std::uint64_t>(runtime::HostChannel::fault_of(0, 0)));
    for (int rank = 0; rank < op.size(); ++rank) {
        const std::uint64_t block = block_of(rank);
        if (address < block || address - block >= op.op(rank).control_bytes()) continue;
        const auto at = static_cast<std::int32_t>((address - block) / 4);
        const auto& signals = op.schedule().ranks[static_cast<std::size_t>(rank)].signals;
        const std::int32_t signal = (at - emit::control::first_signal) / emit::control::signal_stride;
        if (at < emit::control::first_signal) return fmt::format("header word {} of rank {}", at, rank);
        if (is_of_collective(op, rank, at)) return fmt::format("collective word {} of rank {}", at, rank);
        if (signal >= static_cast<std::int32_t>(signals.size()))
            return fmt::format("counter word {} of rank {}", at, rank);
        static constexpr const char* kKinds[] = {"arrived", "consumed", "ready", "fetched", "made"};
        const fuse::SignalMeaning& meaning = signals[static_cast<std::size_t>(signal)];
        return fmt::format("signal {} of rank {} ({} {}:{})", signal, rank,
                           kKinds[static_cast<std::size_t>(meaning.kind)], meaning.op.rank, meaning.op.index);
    }
    return fmt::format("word {} of this process", model.word_names.size());
}

namespace {

/// What a wait for another node's rank may end by, too.
void find_broken(Recorded& of) {
    Model& model = of.model;
    std::map<std::uint64_t, std::pair<int, int>> ends;  // by word: who tells, and who awaits it
    for (const fuse::RankSchedule& rank : of.op.schedule().ranks) {
        for (const fuse::Transfer& transfer : rank.transfers) {
            if (transfer.channel() == nullptr) continue;
            const std::int32_t number = transfer.channel()->number;
            for (const bool come : {false, true}) {
                const auto word =
                    reinterpret_cast<std::uint64_t>(runtime::HostChannel::word_of(number, come));
                ends[word] = come ? std::pair(transfer.src_rank, transfer.dst_rank)
                                  : std::pair(transfer.dst_rank, transfer.src_rank);
            }
        }
    }
    for (const auto& [address, ranks] : ends) {
        const auto word = of.words.find(address);
        if (word == of.words.end()) continue;
        const std::uint32_t broken = of.word(
            reinterpret_cast<std::uint64_t>(runtime::HostChannel::fault_of(ranks.first, ranks.second)));
        model.tells.resize(model.word_names.size(), -1);
        model.told.resize(model.word_names.size(), -1);
        model.tells[broken] = ranks.first;
        model.told[broken] = ranks.second;
        for (Agent& agent : model.agents) {
            for (Step& step : agent.steps) {
                if (step.kind == Step::Kind::wait && step.word == word->second) step.broken = broken;
            }
        }
    }
}

}  // namespace

Model model_of(Recorded recorded, std::string name) {
    Model& model = recorded.model;
    find_broken(recorded);
    number_atoms(recorded);
    for (Agent& agent : model.agents) agent.role = role_of(agent);
    find_contents(model);
    find_owners(recorded);
    model.name = std::move(name);
    model.num_words = model.word_names.size();
    model.tells.resize(model.num_words, -1);
    model.told.resize(model.num_words, -1);
    for (int rank = 0; rank < recorded.op.size(); ++rank)
        model.nodes.push_back(recorded.op.schedule().mesh.node_of(rank));
    find_monotonic(model);
    return std::move(model);
}

}  // namespace syncopate::explore
