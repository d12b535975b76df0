#include "syncopate/plan/synthesise.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "cut.hpp"
#include "syncopate/plan/simulate.hpp"
#include "syncopate/plan/templates.hpp"
#include "synthesis_steps.hpp"
#include "tree_steps.hpp"

namespace syncopate::plan {
namespace {

constexpr std::int32_t kMostGroups = 16;
constexpr std::int32_t kAlongTrees = 0;  ///< in place of a number of groups
constexpr std::int32_t kMostChunksGrouped = 64;

Error usage(const SynthesiseOptions& options, const std::string& message) {
    return Error{fmt::format("synthesise {}: {}", name_of(options.kind), message), {}, ErrorClass::usage};
}

/// Done, or what is wrong with the arguments.
Status validate(const Mesh& mesh, const Tensor& tensor, const Topology& topology,
                const SynthesiseOptions& options) {
    const std::int32_t ranks = mesh.num_ranks();
    const auto axes = static_cast<std::int32_t>(tensor.shape.size());
    if (options.kind == CollectiveKind::permute)
        return usage(options, "a permute moves each chunk once, so there is nothing to synthesise");
    if (ranks < 1 || ranks > kMaxRanks)
        return usage(options, fmt::format("the mesh has {} ranks; expected 1 to {}", ranks, kMaxRanks));
    if (ranks > topology.num_devices()) {
        return usage(options, fmt::format("the mesh has {} ranks, but topology {} has {} devices", ranks,
                                          topology.name, topology.num_devices()));
    }
    if (axes < 1 || axes > kMaxAxes)
        return usage(options, fmt::format("the tensor has {} axes; expected 1 to {}", axes, kMaxAxes));
    for (const std::int64_t size : tensor.shape) {
        if (size < 1)
            return usage(options, fmt::format("tensor {} has an axis of size {}; expected at least 1",
                                              tensor.name, size));
    }
    const auto has_axis = [&](std::int32_t axis) { return axis >= 0 && axis < axes; };
    if (!has_axis(options.axis)) {
        return usage(options, fmt::format("axis {} is not an axis of tensor {}; expected 0 to {}",
                                          options.axis, tensor.name, axes - 1));
    }
    if (options.kind == CollectiveKind::all_to_all &&
        (!has_axis(options.to_axis) || options.to_axis == options.axis)) {
        return usage(options,
                     fmt::format("to_axis {} must be another axis of tensor {} than {}: shards along the one "
                                 "become shards along the other",
                                 options.to_axis, tensor.name, options.axis));
    }
    if (options.chunks < 0 || options.chunks > kMaxOps)
        return usage(options, fmt::format("chunks is {}; expected 0 to {}", options.chunks, kMaxOps));
    if (options.attempts < 0 || options.attempts > 1000)
        return usage(options, fmt::format("attempts is {}; expected 0 to 1000", options.attempts));
    std::vector<std::int32_t> seen = options.ranks;
    std::sort(seen.begin(), seen.end());
    if (std::adjacent_find(seen.begin(), seen.end()) != seen.end())
        return usage(options, "ranks names a rank twice");
    if (!seen.empty() && (seen.front() < 0 || seen.back() >= ranks))
        return usage(options, fmt::format("ranks names a rank that is not one of 0 to {}", ranks - 1));
    if (options.kind == CollectiveKind::broadcast &&
        (seen.empty() ? options.root < 0 || options.root >= ranks
                      : !std::binary_search(seen.begin(), seen.end(), options.root))) {
        return usage(options, fmt::format("root {} does not take part", options.root));
    }
    return Done{};
}

class Synthesis {
public:
    Synthesis(const Mesh& mesh, const Tensor& tensor, const Topology& topology,
              const SynthesiseOptions& options, std::int32_t groups, SecondCrossings second_crossings)
        : topology_(topology),
          options_(options),
          groups_(groups),
          second_crossings_(second_crossings),
          members_(options.ranks) {
        if (members_.empty()) {
            members_.resize(static_cast<std::size_t>(mesh.num_ranks()));
            std::iota(members_.begin(), members_.end(), 0);
        }
        plan_.mesh = mesh;
        plan_.tensors = {tensor};
        plan_.ranks.resize(static_cast<std::size_t>(mesh.num_ranks()));
        whole_ = tensor.whole();
        shards_ = split_evenly(0, tensor.shape[static_cast<std::size_t>(options.axis)], count());
    }

    Result<Plan> make() {
        if (Status cut = cut_chunks(); !cut) return cut.error();
        hold();
        delivered_.assign(chunks_.size() * members_.size(), {});
        switch (options_.kind) {
            case CollectiveKind::reduce_scatter:
                if (Status done = add(SynthesisPattern::sum); !done) return done.error();
                break;
            case CollectiveKind::all_reduce:
                if (Status done = all_reduce(); !done) return done.error();
                break;
            case CollectiveKind::all_to_all:
                if (Status done = add(SynthesisPattern::send); !done) return done.error();
                break;
            case CollectiveKind::all_gather:
            case CollectiveKind::broadcast:
            case CollectiveKind::permute:
                if (Status done = add(SynthesisPattern::spread); !done) return done.error();
                break;
        }
        return std::move(plan_);
    }

private:
    [[nodiscard]] std::int32_t count() const { return static_cast<std::int32_t>(members_.size()); }
    [[nodiscard]] std::int32_t rank(std::int32_t participant) const {
        return members_[static_cast<std::size_t>(participant)];
    }

    /// Adds `interval` of the axis, in options_.chunks parts, to what `origin` has.
    void cut(const Interval& interval, const Region& frame, std::int32_t origin, std::int32_t destination) {
        const auto parts =
            static_cast<std::int32_t>(std::min<std::int64_t>(options_.chunks, interval.size()));
        if (parts == 0) return;
        for (const Interval& part : split_evenly(interval.begin, interval.end, parts)) {
            const Chunk chunk{0, with_axis(frame, options_.axis, part)};
            if (is_empty(chunk.region)) continue;
            chunks_.push_back({origin, destination, static_cast<double>(plan_.bytes(chunk))});
            regions_.push_back(chunk);
        }
    }

    Status cut_chunks() {
        // Counted before anything is built. Each chunk takes at least as many ops as ranks that want it.
        const auto ranks = static_cast<double>(count());
        const auto longest = static_cast<double>(shards_.front().size());
        const double parts = std::min<double>(
            options_.chunks, options_.kind == CollectiveKind::broadcast
                                 ? static_cast<double>(whole_[static_cast<std::size_t>(options_.axis)].size())
                                 : longest);
        double ops = ranks * ranks * parts * (options_.kind == CollectiveKind::all_reduce ? 2 : 1);
        if (options_.kind == CollectiveKind::broadcast) ops = ranks * parts;
        if (ops > static_cast<double>(kMaxOps)) {
            return usage(options_,
                         fmt::format("the plan would have more than {} ops; use fewer chunks", kMaxOps));
        }
        if (options_.kind == CollectiveKind::broadcast) {
            const auto root = std::find(members_.begin(), members_.end(), options_.root) - members_.begin();
            cut(whole_[static_cast<std::size_t>(options_.axis)], whole_, static_cast<std::int32_t>(root), -1);
            return Done{};
        }
        const bool exchange = options_.kind == CollectiveKind::all_to_all;
        std::vector<Interval> targets;
        if (exchange) {
            targets = split_evenly(0, whole_[static_cast<std::size_t>(options_.to_axis)].size(), count());
        }
        for (std::int32_t origin = 0; origin < count(); ++origin) {
            const Interval& shard = shards_[static_cast<std::size_t>(origin)];
            if (!exchange) {
                cut(shard, whole_, origin, -1);
                continue;
            }
            for (std::int32_t to = 0; to < count(); ++to) {
                if (to != origin)
                    cut(shard, with_axis(whole_, options_.to_axis, targets[static_cast<std::size_t>(to)]),
                        origin, to);
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
            targets = split_evenly(0, whole_[static_cast<std::size_t>(options_.to_axis)].size(), count());
        for (std::int32_t i = 0; i < count(); ++i) {
            const Region own = with_axis(whole_, options_.axis, shards_[static_cast<std::size_t>(i)]);
            Holding first{rank(i), {0, reduces ? whole_ : own}};
            first.partial = reduces;
            Holding last{rank(i), {0, options_.kind == CollectiveKind::reduce_scatter ? own : whole_}};
            if (options_.kind == CollectiveKind::broadcast) first.chunk.region = whole_;
            if (options_.kind == CollectiveKind::all_to_all)
                last.chunk.region = with_axis(whole_, options_.to_axis, targets[static_cast<std::size_t>(i)]);
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
        if (groups_ == kAlongTrees) return all_reduce_along_trees();
        for (std::int32_t group = 0; group <= groups_; ++group) {
            std::vector<Found> found;
            for (const auto& [pattern, of] :
                 {std::pair(SynthesisPattern::sum, group), std::pair(SynthesisPattern::spread, group - 1)}) {
                if (of < 0 || of >= groups_) continue;
                Result<Found> ways = search(pattern, of);
                if (!ways) return ways.error();
                found.push_back(*std::move(ways));
            }
            if (Status done = append(found); !done) return done;
        }
        return Done{};
    }

    Status all_reduce_along_trees() {
        const auto steps = tree_steps({topology_, members_, options_.seed, options_.attempts}, chunks_);
        if (!steps) return usage(options_, "no trees fit this topology");
        std::vector<OpRef> refs;  // by step
        for (const TreeStep& step : *steps) {
            refs.push_back(push({.chunk = step.chunk, .from = step.from, .to = step.to},
                                step.sums ? Reduce::sum : Reduce::none));
            if (step.yields_to >= 0) wait(step.from, refs[static_cast<std::size_t>(step.yields_to)]);
        }
        return Done{};
    }

    struct Found {
        SynthesisPattern pattern;
        std::vector<SynthesisStep> steps;
    };

    /// Ways of all chunks, or of those of a group: every so many'th of each shard.
    Result<Found> search(SynthesisPattern pattern, std::int32_t group = -1) {
        std::vector<std::int32_t> ids;
        std::vector<MovingChunk> chunks;
        for (std::size_t i = 0; i < chunks_.size(); ++i) {
            const auto id = static_cast<std::int32_t>(i);
            if (group >= 0 && id % groups_ != group) continue;
            ids.push_back(id);
            chunks.push_back(chunks_[i]);
        }
        Result<SynthesisSteps> found = synthesis_steps(
            {topology_, members_, options_.seed, options_.attempts, second_crossings_}, pattern, chunks);
        if (!found) return usage(options_, found.error().message);
        for (SynthesisStep& step : found->steps) step.chunk = ids[static_cast<std::size_t>(step.chunk)];
        return Found{pattern, std::move(found->steps)};
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
                return usage(options_,
                             fmt::format("the plan would have more than {} ops; use fewer chunks", kMaxOps));
            const bool sums = searches[first].pattern == SynthesisPattern::sum;
            refs[first].push_back(push(step, sums ? Reduce::sum : Reduce::none));
            if (step.yields_to >= 0) wait(step.from, refs[first][static_cast<std::size_t>(step.yields_to)]);
        }
    }

    Status add(SynthesisPattern pattern) {
        Result<Found> found = search(pattern);
        if (!found) return found.error();
        return append({*std::move(found)});
    }

    /// The participant's last op is after another one too.
    void wait(std::int32_t participant, OpRef other) {
        std::vector<OpRef>& after = plan_.ranks[static_cast<std::size_t>(rank(participant))].back().after;
        if (std::find(after.begin(), after.end(), other) == after.end()) after.push_back(other);
    }

    /// Appends a push, after what brought its chunk.
    OpRef push(const SynthesisStep& step, Reduce reduce) {
        std::vector<Op>& list = plan_.ranks[static_cast<std::size_t>(rank(step.from))];
        Op& op = list.emplace_back();
        op.kind = OpKind::push;
        op.peer = rank(step.to);
        op.src = op.dst = regions_[static_cast<std::size_t>(step.chunk)];
        op.reduce = reduce;
        op.after = delivered(step.chunk, step.from);
        const OpRef ref{rank(step.from), static_cast<std::int32_t>(list.size()) - 1};
        if (reduce == Reduce::none) delivered(step.chunk, step.to).clear();
        delivered(step.chunk, step.to).push_back(ref);
        return ref;
    }

    const Topology& topology_;
    const SynthesiseOptions& options_;
    std::int32_t groups_;  ///< all_reduce: of chunks, which go one after another
    SecondCrossings second_crossings_;
    std::vector<std::int32_t> members_;  ///< by participant: its rank
    Plan plan_;
    Region whole_;
    std::vector<Interval> shards_;  ///< by participant
    std::vector<MovingChunk> chunks_;
    std::vector<Chunk> regions_;                 ///< of the chunks
    std::vector<std::vector<OpRef>> delivered_;  ///< by chunk and participant: ops that have brought it there
    std::int64_t num_ops_ = 0;
};

/// A broadcast's chunks fill a pipeline as long as the machine is wide, so there may be more of them.
std::int32_t most_chunks(const SynthesiseOptions& options) {
    return options.kind == CollectiveKind::broadcast ? 4 * kMostChunksTried : kMostChunksTried;
}

/// One way to search that may give the fastest plan.
struct Way {
    std::int32_t groups = 1;  ///< or kAlongTrees
    SecondCrossings second_crossings = SecondCrossings::sparing;
};

/// `open`: the number of chunks is one of several that are tried.
std::vector<Way> ways(const Topology& topology, const SynthesiseOptions& options, bool open) {
    std::vector<Way> all{{}};
    if (options.kind != CollectiveKind::all_reduce) return all;
    const bool grouped = options.chunks <= kMostChunksGrouped;
    const bool nodes = topology.num_nodes() > 1;
    for (std::int32_t groups = 2; grouped && groups <= std::min(options.chunks, kMostGroups); groups *= 2) {
        all.push_back({groups});
        if (nodes) all.push_back({groups, SecondCrossings::eager});
    }
    if (grouped || open) all.push_back({kAlongTrees});
    return all;
}

}  // namespace

Result<Plan> synthesise(const Mesh& mesh, const Tensor& tensor, const Topology& topology,
                        const SynthesiseOptions& options) {
    if (Status valid = validate(mesh, tensor, topology, options); !valid) return valid.error();
    // A plan with each number of chunks, and for each way to search, that may be the fastest; the simulation
    // tells.
    std::optional<Plan> best;
    double shortest = 0;
    SynthesiseOptions cut = options;
    const bool open = options.chunks == 0;
    for (cut.chunks = open ? 1 : options.chunks; cut.chunks <= (open ? most_chunks(options) : options.chunks);
         cut.chunks *= 2) {
        const std::vector<Way> tried = ways(topology, cut, open);
        double fastest = kUnlimited;
        for (const Way& way : tried) {
            Result<Plan> plan =
                Synthesis(mesh, tensor, topology, cut, way.groups, way.second_crossings).make();
            if (!plan && way.groups == kAlongTrees) continue;  // no trees fit
            if (!plan && !best) return plan.error();
            if (!plan) return *std::move(best);
            if (!open && tried.size() == 1) return plan;
            const Result<Simulation> run = simulate(*plan, topology);
            if (!run) return run.error();
            fastest = std::min(fastest, run->makespan_us);
            if (best && run->makespan_us >= shortest) continue;
            best = *std::move(plan);
            shortest = run->makespan_us;
        }
        if (!open || fastest > kClearlySlower * shortest) break;
    }
    return *std::move(best);
}

}  // namespace syncopate::plan
