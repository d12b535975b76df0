#include "plan/synthesise/synthesised_plan.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "plan/model/cut.hpp"
#include "plan/synthesise/hop_network.hpp"
#include "plan/synthesise/synthesis_steps.hpp"
#include "plan/templates/broadcast_nodes.hpp"
#include "plan/templates/broadcast_rounds.hpp"
#include "plan/templates/tree_steps.hpp"

#include "syncopate/at.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

constexpr std::int64_t kEngineBytes = 16;  ///< rows that SMs move begin and end at multiples of this

/// The topology with half of what its links carry, for one of two searches that share it.
Topology half_of(Topology topology) {
    for (Link& link : topology.links) link.gbps /= 2;
    for (Device& device : topology.devices) {
        device.egress_gbps /= 2;
        device.ingress_gbps /= 2;
    }
    return topology;
}

class Synthesis {
public:
    Synthesis(const Mesh& mesh, const Tensor& tensor, const Topology& topology,
              const SynthesiseOptions& options, const SynthesisWay& way)
        : topology_(topology), options_(options), way_(way), members_(participants(mesh, options)) {
        plan_.mesh = mesh;
        plan_.tensors = {tensor};
        plan_.ranks.resize(static_cast<std::size_t>(mesh.num_ranks()));
        whole_ = tensor.whole();
        shards_ = split_evenly(0, tensor.shape[at(options.axis)], count());
    }

    Result<Plan> make() {
        if (way_.both_engines && (way_.rounds || way_.nodes)) find_lead();
        SYNCOPATE_TRY(cut_chunks());
        if (!rows_fit_engine()) return synthesis_error(options_, "rows are no multiples of 16 bytes");
        hold();
        delivered_.assign(chunks_.size() * members_.size(), {});
        switch (options_.kind) {
            case CollectiveKind::reduce_scatter: SYNCOPATE_TRY(add(SynthesisPattern::sum)); break;
            case CollectiveKind::all_reduce: SYNCOPATE_TRY(all_reduce()); break;
            case CollectiveKind::all_to_all: SYNCOPATE_TRY(add(SynthesisPattern::send)); break;
            case CollectiveKind::broadcast:
                SYNCOPATE_TRY(way_.nodes ? broadcast_over_nodes() : add(SynthesisPattern::spread));
                break;
            case CollectiveKind::all_gather:
            case CollectiveKind::permute: SYNCOPATE_TRY(add(SynthesisPattern::spread)); break;
        }
        return std::move(plan_);
    }

private:
    [[nodiscard]] std::int32_t count() const { return static_cast<std::int32_t>(members_.size()); }
    [[nodiscard]] std::int32_t rank(std::int32_t participant) const { return members_[at(participant)]; }

    /// How many bytes more the SMs are to move than the copy engines of each pair of chunks, so that both
    /// take as long: while one of them starts up and posts, the other has the link to itself.
    void find_lead() {
        const HopNetwork copies = hop_network(topology_, members_, false);
        const HopNetwork by_sms = hop_network(topology_, members_, true);
        const auto pause = [](const Hop& hop) { return hop.start_us + hop.wait_us + hop.post_us; };
        for (std::size_t i = 0; i < copies.hops.size() && lead_ == 0; ++i) {
            const Hop& copy = copies.hops[i];
            const Hop& by_sm = by_sms.hops[i];
            if (copy.crosses) continue;
            lead_ = pause(copy) / by_sm.us_per_byte - pause(by_sm) / copy.us_per_byte;
        }
    }

    /// Adds `interval` of the axis, in options_.chunks parts, to what `origin` has; each part as a pair where
    /// both engines move them.
    void cut(const Interval& interval, const Region& frame, std::int32_t origin, std::int32_t destination) {
        const auto parts =
            static_cast<std::int32_t>(std::min<std::int64_t>(options_.chunks, interval.size()));
        if (parts == 0) return;
        // Where both engines move them, chunks begin and end where the SMs' engine can.
        const bool innermost = options_.axis + 1 == static_cast<std::int32_t>(whole_.size());
        const std::int64_t unit = way_.both_engines && innermost ? kEngineBytes / element_bytes() : 1;
        const auto edge = [&](std::int64_t place) {
            return place == interval.end ? place : std::max(interval.begin, place / unit * unit);
        };
        for (const Interval& wanted :
             way_.nodes ? pairs_of(interval, parts) : split_evenly(interval.begin, interval.end, parts)) {
            const Interval part{edge(wanted.begin), edge(wanted.end)};
            const Chunk chunk{0, with_axis(frame, options_.axis, part)};
            if (is_empty(chunk.region)) continue;
            if (!way_.both_engines) {
                add_chunk(chunk, origin, destination, 0);
                continue;
            }
            const auto per_index = static_cast<double>(plan_.bytes(chunk)) / static_cast<double>(part.size());
            const auto more = static_cast<std::int64_t>(lead_ / per_index);
            const std::int64_t middle = std::clamp(
                edge(part.begin + std::max<std::int64_t>(part.size() - more, 0) / 2), part.begin, part.end);
            for (std::int32_t engine = 0; engine < 2; ++engine) {
                const Interval half = engine == 0 ? Interval{part.begin, middle} : Interval{middle, part.end};
                if (half.size() > 0)
                    add_chunk({0, with_axis(frame, options_.axis, half)}, origin, destination, engine);
            }
        }
    }

    [[nodiscard]] std::int64_t element_bytes() const {
        return static_cast<std::int64_t>(size_of(plan_.tensors.front().dtype));
    }

    /// Whether the SMs' engine can move what it is to move: rows of multiples of 16 bytes.
    [[nodiscard]] bool rows_fit_engine() const {
        const std::int64_t bytes = element_bytes();
        const bool pitch = whole_.size() == 1 || whole_.back().size() * bytes % kEngineBytes == 0;
        for (std::size_t i = 0; i < regions_.size(); ++i) {
            const Interval& row = regions_[i].region.back();
            const bool fits = row.begin * bytes % kEngineBytes == 0 && row.end * bytes % kEngineBytes == 0;
            if (engines_[i] == 1 && !(pitch && fits)) return false;
        }
        return true;
    }

    /// The interval in pairs for two nodes.
    [[nodiscard]] std::vector<Interval> pairs_of(const Interval& interval, std::int32_t pairs) const {
        std::vector<Interval> all;
        double so_far = 0;
        std::int64_t begin = interval.begin;
        for (const double share : shares_of_pairs(count() / 2, pairs)) {
            so_far += share;
            const auto end =
                interval.begin + std::llround(std::min(1.0, so_far) * static_cast<double>(interval.size()));
            all.push_back({begin, end});
            begin = end;
        }
        all.back().end = interval.end;
        return all;
    }

    void add_chunk(const Chunk& chunk, std::int32_t origin, std::int32_t destination, std::int32_t engine) {
        chunks_.push_back({origin, destination, static_cast<double>(plan_.bytes(chunk))});
        regions_.push_back(chunk);
        engines_.push_back(engine);
    }

    Status cut_chunks() {
        // Counted before anything is built. Each chunk takes at least as many ops as ranks that want it.
        const auto ranks = static_cast<double>(count());
        const auto longest = static_cast<double>(shards_.front().size());
        const double parts = std::min<double>(options_.chunks * (way_.both_engines ? 2.0 : 1.0),
                                              options_.kind == CollectiveKind::broadcast
                                                  ? static_cast<double>(whole_[at(options_.axis)].size())
                                                  : longest);
        double ops = ranks * ranks * parts * (options_.kind == CollectiveKind::all_reduce ? 2 : 1);
        if (options_.kind == CollectiveKind::broadcast) ops = ranks * parts;
        if (ops > static_cast<double>(kMaxOps)) {
            return synthesis_error(
                options_, fmt::format("the plan would have more than {} ops; use fewer chunks", kMaxOps));
        }
        if (options_.kind == CollectiveKind::broadcast) {
            const auto root = std::find(members_.begin(), members_.end(), options_.root) - members_.begin();
            cut(whole_[at(options_.axis)], whole_, static_cast<std::int32_t>(root), -1);
            return Done{};
        }
        const bool exchange = options_.kind == CollectiveKind::all_to_all;
        std::vector<Interval> targets;
        if (exchange) {
            targets = split_evenly(0, whole_[at(options_.to_axis)].size(), count());
        }
        for (std::int32_t origin = 0; origin < count(); ++origin) {
            const Interval& shard = shards_[at(origin)];
            if (!exchange) {
                cut(shard, whole_, origin, -1);
                continue;
            }
            for (std::int32_t to = 0; to < count(); ++to) {
                if (to != origin)
                    cut(shard, with_axis(whole_, options_.to_axis, targets[at(to)]), origin, to);
            }
        }
        return Done{};
    }

    /// Fills `initial` and `final`.
    void hold() {
        const bool reduces =
            options_.kind == CollectiveKind::reduce_scatter || options_.kind == CollectiveKind::all_reduce;
        std::vector<Interval> targets;
        if (options_.kind == CollectiveKind::all_to_all)
            targets = split_evenly(0, whole_[at(options_.to_axis)].size(), count());
        for (std::int32_t i = 0; i < count(); ++i) {
            const Region own = with_axis(whole_, options_.axis, shards_[at(i)]);
            Holding first{rank(i), {0, reduces ? whole_ : own}};
            first.partial = reduces;
            Holding last{rank(i), {0, options_.kind == CollectiveKind::reduce_scatter ? own : whole_}};
            if (options_.kind == CollectiveKind::broadcast) first.chunk.region = whole_;
            if (options_.kind == CollectiveKind::all_to_all)
                last.chunk.region = with_axis(whole_, options_.to_axis, targets[at(i)]);
            if (reduces && options_.ranks.empty()) last.of_all = true;
            if (reduces && !options_.ranks.empty()) last.of = options_.ranks;
            const bool holds = options_.kind != CollectiveKind::broadcast || rank(i) == options_.root;
            if (holds && !is_empty(first.chunk.region)) plan_.initial.push_back(std::move(first));
            if (!is_empty(last.chunk.region)) plan_.final.push_back(std::move(last));
        }
    }

    std::vector<OpRef>& delivered(std::int32_t chunk, std::int32_t participant) {
        return delivered_[static_cast<std::size_t>(chunk) * members_.size() +
                          static_cast<std::size_t>(participant)];
    }

    /// Sums group by group, each spread while the next one is summed: the two halves load different
    /// directions of a link, and different engines.
    Status all_reduce() {
        if (way_.groups == kAlongTrees) return all_reduce_along_trees();
        for (std::int32_t group = 0; group <= way_.groups; ++group) {
            std::vector<Found> found;
            for (const auto& [pattern, of] :
                 {std::pair(SynthesisPattern::sum, group), std::pair(SynthesisPattern::spread, group - 1)}) {
                if (of < 0 || of >= way_.groups) continue;
                SYNCOPATE_TAKE(Found ways, search(pattern, of, way_.groups));
                found.push_back(std::move(ways));
            }
            SYNCOPATE_TRY(append(found));
        }
        return Done{};
    }

    Status all_reduce_along_trees() {
        const auto steps = tree_steps({topology_, members_, options_.seed, options_.attempts}, chunks_);
        if (!steps) return synthesis_error(options_, "no trees fit this topology");
        std::vector<OpRef> refs;  // by step
        for (const TreeStep& step : *steps) {
            refs.push_back(push({.chunk = step.chunk, .from = step.from, .to = step.to},
                                step.sums ? Reduce::sum : Reduce::none));
            if (step.yields_to >= 0) wait(step.from, refs[at(step.yields_to)]);
        }
        return Done{};
    }

    /// Chunks 2p and 2p + 1 are the halves of pair p.
    Status broadcast_over_nodes() {
        const auto pairs = static_cast<std::int32_t>(chunks_.size() / 2);
        const auto nodes = two_nodes(hop_network(topology_, members_, false), chunks_.front().origin);
        if (!nodes || pairs != options_.chunks || chunks_.size() % 2 != 0 || pairs % (count() / 2) != 0 ||
            engines_[chunks_.size() - 2] != 0) {
            return synthesis_error(options_, "no pairs of chunks for two nodes fit");
        }
        std::vector<OpRef> refs;  // by step
        for (const NodeStep& step : broadcast_nodes(*nodes, pairs)) {
            const bool across = step.half == Half::both;
            const std::int32_t chunk = 2 * step.pair + (step.half == Half::sms ? 1 : 0);
            refs.push_back(push({.chunk = chunk, .from = step.from, .to = step.to}, Reduce::none,
                                step.half == Half::sms ? Backend::tma_dedicated : Backend::automatic));
            if (across) {
                Op& op = plan_.ranks[at(refs.back().rank)].back();
                const auto axis = static_cast<std::size_t>(options_.axis);
                op.src.region[axis].end = regions_[static_cast<std::size_t>(chunk) + 1].region[axis].end;
                op.dst = op.src;
                for (const OpRef other : delivered(chunk + 1, step.from)) wait(step.from, other);
                delivered(chunk + 1, step.to) = {refs.back()};
            }
            if (step.yields_to >= 0) wait(step.from, refs[at(step.yields_to)]);
        }
        return Done{};
    }

    struct Found {
        SynthesisPattern pattern;
        std::vector<SynthesisStep> steps;
        Backend backend = Backend::automatic;
    };

    /// Ways of the chunks of a group: every so many'th, or those of an engine.
    Result<Found> search(SynthesisPattern pattern, std::int32_t group, std::int32_t groups) {
        std::vector<std::int32_t> ids;
        std::vector<MovingChunk> chunks;
        for (std::size_t i = 0; i < chunks_.size(); ++i) {
            const auto id = static_cast<std::int32_t>(i);
            if ((way_.both_engines ? engines_[i] : id % groups) != group) continue;
            ids.push_back(id);
            chunks.push_back(chunks_[i]);
        }
        const bool by_sms = way_.both_engines && group == 1;
        Found result{pattern, {}};
        if (by_sms) result.backend = Backend::tma_dedicated;
        if (way_.rounds) {
            result.steps =
                broadcast_rounds(count(), chunks_.front().origin, static_cast<std::int32_t>(chunks.size()));
        } else {
            const Topology share = way_.both_engines ? half_of(topology_) : topology_;
            Result<SynthesisSteps> found = synthesis_steps(
                {share, members_, options_.seed, options_.attempts, way_.second_crossings, by_sms}, pattern,
                chunks);
            if (!found) return synthesis_error(options_, found.error().message);
            result.steps = std::move(found->steps);
        }
        for (SynthesisStep& step : result.steps) step.chunk = ids[at(step.chunk)];
        return result;
    }

    /// Appends steps as pushes, those of several searches in the order of their starts.
    Status append(const std::vector<Found>& searches) {
        std::vector<std::vector<OpRef>> refs(searches.size());  // by search and step
        while (true) {
            std::size_t first = searches.size();
            for (std::size_t i = 0; i < searches.size(); ++i) {
                if (refs[i].size() == searches[i].steps.size()) continue;
                if (first == searches.size() || searches[i].steps[refs[i].size()].start_us <
                                                    searches[first].steps[refs[first].size()].start_us)
                    first = i;
            }
            if (first == searches.size()) return Done{};
            const SynthesisStep& step = searches[first].steps[refs[first].size()];
            if (++num_ops_ > kMaxOps)
                return synthesis_error(
                    options_, fmt::format("the plan would have more than {} ops; use fewer chunks", kMaxOps));
            const bool sums = searches[first].pattern == SynthesisPattern::sum;
            refs[first].push_back(push(step, sums ? Reduce::sum : Reduce::none, searches[first].backend));
            if (step.yields_to >= 0) wait(step.from, refs[first][at(step.yields_to)]);
        }
    }

    Status add(SynthesisPattern pattern) {
        const std::int32_t engines = way_.both_engines ? 2 : 1;
        std::vector<Found> found;
        for (std::int32_t engine = 0; engine < engines; ++engine) {
            SYNCOPATE_TAKE(Found ways, search(pattern, engine, engines));
            found.push_back(std::move(ways));
        }
        return append(found);
    }

    /// The participant's last op is after another one too.
    void wait(std::int32_t participant, OpRef other) {
        OpRefs& after = plan_.ranks[at(rank(participant))].back().after;
        if (std::find(after.begin(), after.end(), other) == after.end()) after.push_back(other);
    }

    /// Appends a push, after what brought its chunk.
    OpRef push(const SynthesisStep& step, Reduce reduce, Backend backend = Backend::automatic) {
        std::vector<Op>& list = plan_.ranks[at(rank(step.from))];
        Op& op = list.emplace_back();
        op.kind = OpKind::push;
        op.peer = rank(step.to);
        op.src = op.dst = regions_[at(step.chunk)];
        op.reduce = reduce;
        if (topology_.devices[at(rank(step.from))].node == topology_.devices[at(op.peer)].node) {
            op.backend = backend;
        }
        op.after = delivered(step.chunk, step.from);
        const OpRef ref{rank(step.from), static_cast<std::int32_t>(list.size()) - 1};
        if (reduce == Reduce::none) delivered(step.chunk, step.to).clear();
        delivered(step.chunk, step.to).push_back(ref);
        return ref;
    }

    const Topology& topology_;
    const SynthesiseOptions& options_;
    SynthesisWay way_;
    std::vector<std::int32_t> members_;  ///< by participant: its rank
    Plan plan_;
    Region whole_;
    std::vector<Interval> shards_;  ///< by participant
    std::vector<MovingChunk> chunks_;
    std::vector<Chunk> regions_;                 ///< of the chunks
    std::vector<std::int32_t> engines_;          ///< of the chunks, with both engines: 1 the SMs
    double lead_ = 0;                            ///< bytes
    std::vector<std::vector<OpRef>> delivered_;  ///< by chunk and participant: ops that have brought it there
    std::int64_t num_ops_ = 0;
};

}  // namespace

Error synthesis_error(const SynthesiseOptions& options, const std::string& message) {
    return usage_error(fmt::format("synthesise {}: {}", name_of(options.kind), message));
}

std::vector<std::int32_t> participants(const Mesh& mesh, const SynthesiseOptions& options) {
    if (!options.ranks.empty()) return options.ranks;
    std::vector<std::int32_t> all(static_cast<std::size_t>(mesh.num_ranks()));
    std::iota(all.begin(), all.end(), 0);
    return all;
}

Result<Plan> synthesised_plan(const Mesh& mesh, const Tensor& tensor, const Topology& topology,
                              const SynthesiseOptions& options, const SynthesisWay& way) {
    return Synthesis(mesh, tensor, topology, options, way).make();
}

}  // namespace syncopate::plan
