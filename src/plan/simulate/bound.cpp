#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "plan/check/check_passes.hpp"
#include "plan/model/box_index.hpp"
#include "syncopate/plan/simulate/simulate.hpp"

#include "syncopate/at.hpp"

namespace syncopate::plan {
namespace {

constexpr std::int32_t kMostRanksForEveryCut = 16;
constexpr std::int32_t kMostRanksForWays = 256;  // ways between all pairs are looked at up to here

/// One region that is wanted at the end, as the value or as a reduction, and all ranks that want it.
struct Wanted {
    Chunk chunk;
    std::vector<std::int32_t> contributors;  ///< of a reduction; empty: the value
    std::vector<std::int32_t> ranks;
};

std::vector<Wanted> wanted_of(const Plan& plan) {
    std::map<std::vector<std::int64_t>, std::size_t> known;
    std::vector<Wanted> all;
    for (const Holding& holding : plan.final) {
        std::vector<std::int64_t> key{holding.chunk.tensor, holding.of_all ? 1 : 0};
        for (const Interval& axis : holding.chunk.region) key.insert(key.end(), {axis.begin, axis.end});
        key.insert(key.end(), holding.of.begin(), holding.of.end());
        const auto [at, first] = known.emplace(std::move(key), all.size());
        if (first) {
            Wanted& made = all.emplace_back(Wanted{holding.chunk, holding.of, {}});
            if (holding.of_all) {
                made.contributors.resize(plan.ranks.size());
                std::iota(made.contributors.begin(), made.contributors.end(), 0);
            }
        }
        all[at->second].ranks.push_back(holding.rank);
    }
    return all;
}

/// "117 MB", "4.03 GB": in the units of GB/s, not those of human_bytes.
std::string megabytes(double bytes) {
    return bytes < 1e9 ? fmt::format("{:.3g} MB", bytes / 1e6) : fmt::format("{:.3g} GB", bytes / 1e9);
}

/// A box of which a rank holds the value at the start.
struct Held {
    std::int32_t rank = 0;
    std::size_t id = 0;
};

double volume(const std::vector<Region>& parts) {
    double sum = 0;
    for (const Region& part : parts) sum += static_cast<double>(num_elements(part));
    return sum;
}

/// Bytes that must cross the border of each group of ranks, and in all.
struct Crossing {
    std::vector<double> in;
    std::vector<double> out;
    double total = 0;       ///< bytes of messages
    double sums = 0;        ///< bytes of those that reduce
    double byte_links = 0;  ///< bytes times links on the way, of what has one holder and one wanter
    bool known = true;      ///< all that is wanted is held somewhere
};

class Bounds {
public:
    Bounds(const Plan& plan, const Topology& topology)
        : plan_(plan), topology_(topology), wanted_(wanted_of(plan)) {
        const std::vector<std::size_t> axes = key_axes(plan);
        for (std::size_t tensor = 0; tensor < plan.tensors.size(); ++tensor) held_.emplace_back(axes[tensor]);
        std::size_t id = 0;
        for (const auto* holdings : {&plan.initial, &plan.produced}) {
            for (const Holding& holding : *holdings) {
                if (holding.partial || is_empty(holding.chunk.region)) continue;
                held_[at(holding.chunk.tensor)].insert(holding.chunk.region, {holding.rank, id++});
            }
        }
        disjoint_ = wanted_is_disjoint(axes);
    }

    Bound find() {
        start_up_ = std::min({topology_.copy_engine.push_us, topology_.copy_engine.pull_us,
                              topology_.sm.push_us, topology_.sm.pull_us});
        if (topology_.network) {
            start_up_ = std::min({start_up_, topology_.network->push_us, topology_.network->pull_us});
        }
        start_up_ += topology_.start_us;
        std::vector<std::int32_t> groups(plan_.ranks.size());
        std::iota(groups.begin(), groups.end(), 0);
        const Crossing devices = crossing(groups, plan_.num_ranks());
        if (!devices.known) {
            consider_own_moves();
            return best_;
        }
        consider_borders(devices, groups, [](std::size_t rank) { return fmt::format("rank {}", rank); });
        if (topology_.num_nodes() > 1) {
            for (std::size_t rank = 0; rank < groups.size(); ++rank)
                groups[rank] = topology_.devices[rank].node;
            consider_borders(crossing(groups, topology_.num_nodes()), groups,
                             [](std::size_t node) { return fmt::format("node {}", node); });
        }
        consider_cuts();
        if (disjoint_) {
            double ingress = 0;
            for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) ingress += border({rank}).first;
            consider(devices.total, ingress, "bytes into all ranks together");
            if (!sums_in_place())
                consider(devices.sums, engines_that_reduce(), "bytes to sum, by all ranks' engines together");
            double links = 0;
            for (const Link& link : topology_.links) links += link.gbps;
            consider(devices.byte_links, links, "bytes over all links together");
        }
        consider_ways();
        return best_;
    }

private:
    bool wanted_is_disjoint(const std::vector<std::size_t>& axes) const {
        std::vector<BoxIndex<char>> seen;
        for (std::size_t tensor = 0; tensor < plan_.tensors.size(); ++tensor) seen.emplace_back(axes[tensor]);
        for (const Wanted& wanted : wanted_) {
            if (is_empty(wanted.chunk.region)) continue;
            BoxIndex<char>& index = seen[at(wanted.chunk.tensor)];
            bool free = true;
            index.visit_overlapping(wanted.chunk.region, [&](const auto&) { return free = false; });
            if (!free) return false;
            index.insert(wanted.chunk.region, 0);
        }
        return true;
    }

    /// Sums over what is wanted, if no two of its regions overlap; else the largest.
    void add(double& sum, double bytes) const { sum = disjoint_ ? sum + bytes : std::max(sum, bytes); }

    Crossing crossing(const std::vector<std::int32_t>& groups, std::int32_t count) const {
        Crossing result;
        result.in.assign(static_cast<std::size_t>(count), 0);
        result.out.assign(static_cast<std::size_t>(count), 0);
        for (const Wanted& wanted : wanted_) {
            if (is_empty(wanted.chunk.region)) continue;
            wanted.contributors.empty() ? value(wanted, groups, result) : reduction(wanted, groups, result);
        }
        return result;
    }

    static std::vector<std::int32_t> groups_of(const std::vector<std::int32_t>& ranks,
                                               const std::vector<std::int32_t>& groups) {
        std::vector<std::int32_t> found;
        for (const std::int32_t rank : ranks) found.push_back(groups[at(rank)]);
        std::sort(found.begin(), found.end());
        found.erase(std::unique(found.begin(), found.end()), found.end());
        return found;
    }

    void reduction(const Wanted& wanted, const std::vector<std::int32_t>& groups, Crossing& result) const {
        const auto bytes = static_cast<double>(plan_.bytes(wanted.chunk));
        const std::vector<std::int32_t> from = groups_of(wanted.contributors, groups);
        const std::vector<std::int32_t> to = groups_of(wanted.ranks, groups);
        for (const std::int32_t group : from) {
            if (to.size() > 1 || to.front() != group) add(result.out[at(group)], bytes);
        }
        bool one_contributes = false;
        for (const std::int32_t group : to) {
            if (from.size() > 1 || from.front() != group) add(result.in[at(group)], bytes);
            one_contributes |= std::binary_search(from.begin(), from.end(), group);
        }
        result.sums += bytes * static_cast<double>(from.size() - 1);
        // Every contribution joins the others by a message, and then every further rank needs one.
        result.total += bytes * static_cast<double>(from.size() + to.size() - (one_contributes ? 2 : 1));
    }

    void value(const Wanted& wanted, const std::vector<std::int32_t>& groups, Crossing& result) const {
        const std::vector<std::int32_t> to = groups_of(wanted.ranks, groups);
        const auto element = static_cast<double>(size_of(plan_.tensors[at(wanted.chunk.tensor)].dtype));
        const BoxIndex<Held>& held = held_[at(wanted.chunk.tensor)];
        std::map<std::int32_t, double> there;  // by group: elements of the region that it holds
        double covered = 0;
        held.visit_overlapping(wanted.chunk.region, [&](const auto& entry) {
            const std::int32_t group = groups[at(entry.value.rank)];
            std::vector<Region> own{*intersect(entry.box, wanted.chunk.region)};
            std::vector<Region> first = own;
            std::vector<Region> alone = own;
            held.visit_overlapping(own.front(), [&](const auto& other) {
                const bool same = groups[at(other.value.rank)] == group;
                const bool earlier = other.value.id < entry.value.id;
                if (earlier) take(first, other.box);
                if (same && earlier) take(own, other.box);
                if (!same || earlier) take(alone, other.box);
                return !own.empty();
            });
            there[group] += volume(own);
            covered += volume(first);
            if (to.size() > 1 || to.front() != group) {
                add(result.out[at(group)], volume(alone) * element);
                if (to.size() == 1 && !alone.empty()) {
                    result.byte_links +=
                        volume(alone) * element * links_between(entry.value.rank, wanted.ranks.front());
                }
            }
            return true;
        });
        const auto whole = static_cast<double>(num_elements(wanted.chunk.region));
        if (covered < whole) result.known = false;
        for (const std::int32_t group : to) {
            const auto found = there.find(group);
            const double missing = (whole - (found == there.end() ? 0 : found->second)) * element;
            add(result.in[at(group)], missing);
            result.total += missing;
        }
    }

    /// Whether ranks sum what lies in their own memory, where no engine carries it.
    bool sums_in_place() const {
        const auto sums = [](const Op& op) { return op.kind == OpKind::local && op.reduce != Reduce::none; };
        return std::ranges::any_of(plan_.ranks,
                                   [&](const auto& ops) { return std::ranges::any_of(ops, sums); });
    }

    /// GB/s of all engines that can reduce.
    double engines_that_reduce() const {
        const auto rate = [](const Engine& engine) {
            return engine.per_peer ? kUnlimited : engine.lanes * engine.rate();
        };
        return plan_.num_ranks() * (rate(topology_.sm) + (topology_.network ? rate(*topology_.network) : 0));
    }

    /// Least number of links from one device to another, whoever passes on; 0 if there is no way.
    double links_between(std::int32_t from, std::int32_t to) const {
        std::vector<std::int32_t>& distance = distance_[from];
        if (distance.empty()) {
            if (leaving_.empty()) {
                leaving_.resize(static_cast<std::size_t>(topology_.num_vertices()));
                for (const Link& link : topology_.links) leaving_[at(link.from)].push_back(link.to);
            }
            distance.assign(leaving_.size(), 0);
            std::deque<std::int32_t> open{from};
            while (!open.empty()) {
                const auto at = static_cast<std::size_t>(open.front());
                open.pop_front();
                for (const std::int32_t next : leaving_[at]) {
                    if (next == from || distance[static_cast<std::size_t>(next)] > 0) continue;
                    distance[static_cast<std::size_t>(next)] = distance[at] + 1;
                    open.push_back(next);
                }
            }
        }
        return distance[at(to)];
    }

    /// GB/s into and out of a set of devices together with the switches that only they use.
    std::pair<double, double> border(const std::vector<std::int32_t>& devices) const {
        std::vector<char> inside(static_cast<std::size_t>(topology_.num_vertices()), 0);
        for (const std::int32_t device : devices) inside[at(device)] = 1;
        if (devices.size() > 1) {
            for (std::int32_t v = topology_.num_devices(); v < topology_.num_vertices(); ++v)
                inside[at(v)] = 1;
            for (const Link& link : topology_.links) {
                const auto settle = [&](std::int32_t at, std::int32_t other) {
                    if (at >= topology_.num_devices() && other < topology_.num_devices() &&
                        inside[static_cast<std::size_t>(other)] == 0) {
                        inside[static_cast<std::size_t>(at)] = 0;
                    }
                };
                settle(link.from, link.to);
                settle(link.to, link.from);
            }
        }
        double in = 0;
        double out = 0;
        for (const Link& link : topology_.links) {
            const bool from = inside[at(link.from)] != 0;
            const bool to = inside[at(link.to)] != 0;
            if (to && !from) in += link.gbps;
            if (from && !to) out += link.gbps;
        }
        if (devices.size() == 1) {
            const Device& device = topology_.devices[at(devices.front())];
            in = std::min(in, device.ingress_gbps);
            out = std::min(out, device.egress_gbps);
        }
        return {in, out};
    }

    /// Cuts of the machine in two: the first ranks and the others, and, for rows of a grid, the first ones of
    /// each row.
    void consider_cuts() {
        const std::int32_t ranks = plan_.num_ranks();
        const std::int32_t step = ranks <= kMostRanksForEveryCut ? 1 : (ranks + 1) / 2;
        std::vector<std::int32_t> side(static_cast<std::size_t>(ranks));
        const auto consider_cut = [&](std::int32_t row, std::int32_t first) {
            for (std::int32_t rank = 0; rank < ranks; ++rank) side[at(rank)] = rank % row < first ? 0 : 1;
            consider_borders(crossing(side, 2), side, [&](std::size_t which) {
                const std::string low = fmt::format("ranks 0 to {}", first - 1);
                const std::string high = fmt::format("ranks {} to {}", first, row - 1);
                return (which == 0 ? low : high) + (row == ranks ? "" : fmt::format(" of every {}", row));
            });
        };
        for (std::int32_t first = step; first < ranks; first += step) consider_cut(ranks, first);
        for (std::int32_t row = 2; row <= ranks / 2; ++row) {
            if (ranks % row == 0 && ranks <= kMostRanksForWays) consider_cut(row, (row + 1) / 2);
        }
    }

    template <typename Name>
    void consider_borders(const Crossing& crossing, const std::vector<std::int32_t>& groups, Name name) {
        std::vector<std::vector<std::int32_t>> members(crossing.in.size());
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank)
            members[at(groups[static_cast<std::size_t>(rank)])].push_back(rank);
        for (std::size_t group = 0; group < members.size(); ++group) {
            if (members[group].empty() || (crossing.in[group] == 0 && crossing.out[group] == 0)) continue;
            const auto [in, out] = border(members[group]);
            consider(crossing.in[group], in, "bytes into " + name(group));
            consider(crossing.out[group], out, "bytes out of " + name(group));
        }
    }

    void consider(double bytes, double gbps, const std::string& what) {
        if (bytes <= 0 || gbps <= 0 || gbps == kUnlimited) return;
        const double us = start_up_ + bytes / (gbps * kBytesPerUs);
        if (us <= best_.us) return;
        best_ = {us, fmt::format("{}: {} at {:.4g} GB/s", what, megabytes(bytes), gbps)};
    }

    /// Where tensors are renamed on the way, `final` does not say what must move; this plan's own transfers
    /// do.
    void consider_own_moves() {
        std::vector<double> in(plan_.ranks.size(), 0);
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            for (const Op& op : plan_.ranks[at(rank)]) {
                if (op.kind != OpKind::push && op.kind != OpKind::pull) continue;
                in[at(op.destination_rank(rank))] += static_cast<double>(plan_.bytes(op.dst));
            }
        }
        for (std::int32_t rank = 0; rank < plan_.num_ranks(); ++rank) {
            const double bytes = in[at(rank)];
            if (bytes > 0)
                consider(bytes, border({rank}).first,
                         fmt::format("bytes this plan moves into rank {}", rank));
        }
    }

    /// One start-up, and the latency of the longest way that some byte must take.
    void consider_ways() {
        if (plan_.num_ranks() > kMostRanksForWays) return;
        Topology passing = topology_;
        passing.forwarding = true;
        Routes routes(passing);
        std::vector<std::int32_t> path;
        const auto way = [&](std::int32_t from, std::int32_t to) {
            path.clear();
            double latency = 0;
            if (!routes.append_path(from, to, path)) return latency;
            for (const std::int32_t link : path) latency += topology_.links[at(link)].latency_us;
            return latency;
        };
        double longest = -1;
        for (const Wanted& wanted : wanted_) {
            if (is_empty(wanted.chunk.region)) continue;
            for (const std::int32_t to : wanted.ranks) {
                for (const std::int32_t from : wanted.contributors) {
                    if (from != to) longest = std::max(longest, way(from, to));
                }
                if (!wanted.contributors.empty()) continue;
                const BoxIndex<Held>& held = held_[at(wanted.chunk.tensor)];
                held.visit_overlapping(wanted.chunk.region, [&](const auto& entry) {
                    double nearest = kUnlimited;
                    held.visit_overlapping(entry.box, [&](const auto& same) {
                        nearest = std::min(nearest, same.value.rank == to ? -1 : way(same.value.rank, to));
                        return nearest > 0;
                    });
                    longest = std::max(longest, nearest);
                    return true;
                });
            }
        }
        if (longest >= 0 && start_up_ + longest > best_.us) {
            best_ = {start_up_ + longest, "one start-up and the latency of the longest way"};
        }
    }

    const Plan& plan_;
    const Topology& topology_;
    std::vector<Wanted> wanted_;
    std::vector<BoxIndex<Held>> held_;  ///< by tensor
    bool disjoint_ = true;              ///< no two wanted regions overlap
    double start_up_ = 0;
    Bound best_;
    mutable std::map<std::int32_t, std::vector<std::int32_t>> distance_;
    mutable std::vector<std::vector<std::int32_t>> leaving_;
};

}  // namespace

Bound lower_bound(const Plan& plan, const Topology& topology) { return Bounds(plan, topology).find(); }

}  // namespace syncopate::plan
