#include "plan/templates/template_setup.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/at.hpp"
#include "syncopate/plan/templates/templates.hpp"

namespace syncopate::plan {
namespace {

/// Refuses what only other templates, or other algorithms of this one, have.
Status judge_uses(const Template& self, const TemplateOptions& options, Algorithm algorithm) {
    const TemplateOptions defaults;
    const auto foreign = [&](std::string_view option, bool set, unsigned use) {
        return set && (self.uses & use) == 0
                   ? Status(usage_error(fmt::format("{} is not one of its options", option)))
                   : Status(Done{});
    };
    for (const Status& status :
         {foreign("to_axis", options.to_axis != defaults.to_axis, Template::kToAxis),
          foreign("root", options.root != defaults.root, Template::kRoot),
          foreign("steps", options.steps != defaults.steps, Template::kSteps),
          foreign("reduce", options.reduce != defaults.reduce, Template::kReduce),
          foreign("peer_by_peer", options.peer_by_peer != defaults.peer_by_peer, Template::kPeerByPeer)}) {
        if (!status) return status;
    }
    if (options.transient && (options.produced || (self.uses & Template::kReduce) != 0))
        return usage_error(
            "transient is for what arrives and the kernel reads; here the end of the call wants it");
    if (options.reduce == Reduce::none) return usage_error("reduce is none; expected sum or max");
    if (options.peer_by_peer && algorithm != Algorithm::direct)
        return usage_error("peer_by_peer is an option of the algorithm direct");
    if (options.inner != 0 && !has_two_levels(algorithm)) {
        return usage_error(fmt::format("inner is the size of one of two levels; the algorithm {} has none",
                                       name_of(algorithm)));
    }
    return Done{};
}

Result<Algorithm> choose_algorithm(const Template& self, Algorithm wanted) {
    if (wanted == Algorithm::automatic) return self.algorithms.front();
    if (std::find(self.algorithms.begin(), self.algorithms.end(), wanted) != self.algorithms.end())
        return wanted;
    std::vector<std::string_view> names;
    for (const Algorithm algorithm : self.algorithms) names.push_back(name_of(algorithm));
    return usage_error(
        fmt::format("it has no algorithm \"{}\"; it has: {}", name_of(wanted), fmt::join(names, ", ")));
}

}  // namespace

Result<Setup> prepare(std::string_view name, const Mesh& mesh, const Tensor& tensor,
                      const TemplateOptions& options) {
    const auto refuse = [&](const Error& error) {
        return usage_error(fmt::format("{}: {}", name, error.message));
    };
    const Template& self = *find_template(name);
    const std::int32_t ranks = mesh.num_ranks();
    if (ranks < 1 || ranks > kMaxRanks)
        return refuse({fmt::format("the mesh has {} ranks; expected 1 to {}", ranks, kMaxRanks)});
    const Result<Algorithm> algorithm = choose_algorithm(self, options.algorithm);
    if (!algorithm) return refuse(algorithm.error());
    const Cut cut{options.axis, options.split, options.minor_axis, options.minor_split, options.minor_sizes};
    for (const Status& status : {judge(tensor), judge(cut, tensor), judge_uses(self, options, *algorithm)}) {
        if (!status) return refuse(status.error());
    }
    Result<std::vector<Team>> teams = teams_of(mesh, options.over, options.group);
    if (!teams) return refuse(teams.error());
    if (has_two_levels(*algorithm)) {
        if (const Status levels = set_levels(*teams, mesh, options.inner); !levels)
            return refuse(levels.error());
    }
    Setup setup{.name = std::string(name),
                .builder = Builder(mesh, options.pull),
                .tensor = tensor,
                .options = options,
                .teams = *std::move(teams),
                .cut = cut,
                .shards = {}};
    setup.options.algorithm = *algorithm;
    setup.builder.tensor(tensor);
    setup.shards = split_evenly(0, tensor.shape[at(options.axis)], setup.size());
    return setup;
}

Chunk Setup::shard(std::int32_t position) const {
    return {0, with_axis(tensor.whole(), options.axis, shards[at(position)])};
}

Script Setup::script(const Team& team) {
    const std::int32_t slices = cut.minor_axis < 0 ? 1 : cut.num_slices(tensor.shape[at(cut.minor_axis)]);
    return {builder, team, cut, slices};
}

void Setup::start(std::int32_t rank, Chunk chunk, bool partial) {
    if (is_empty(chunk.region)) return;
    if (options.produced) {
        builder.produced({rank, std::move(chunk)}, partial);
    } else {
        builder.initial({rank, std::move(chunk)}, partial);
    }
}

void Setup::end(std::int32_t rank, Chunk chunk) {
    if (!options.transient && !is_empty(chunk.region)) builder.final({rank, std::move(chunk)});
}

void Setup::end_reduced(const Team& team, std::int32_t rank, Chunk chunk) {
    if (is_empty(chunk.region)) return;
    if (team.size() == builder.num_ranks()) {
        builder.final_of_all({rank, std::move(chunk)});
    } else {
        builder.final_of({rank, std::move(chunk)}, team.ranks);
    }
}

Slots Setup::shard_slots(std::int64_t count, std::string_view suffix) {
    Tensor model = tensor;
    model.name += suffix;
    model.shape[at(options.axis)] = shards.front().size();  // none is longer
    return {builder, std::move(model), options.axis, count};
}

Slots Setup::whole_slots(std::int64_t count) {
    Tensor model = tensor;
    model.name += ".staging";
    return {builder, std::move(model), options.axis, count};
}

std::vector<Region> Setup::shard_regions() const {
    std::vector<Region> regions;
    for (std::int32_t position = 0; position < size(); ++position) regions.push_back(shard(position).region);
    return regions;
}

Status Setup::bounded(const std::vector<Region>& pieces, std::int64_t times) const {
    // Counted before anything is built: a split may be as large as an integer can be.
    std::int64_t ops = 0;
    for (const Region& piece : pieces) {
        if (__builtin_add_overflow(ops, cut.num_chunks(piece), &ops)) ops = kMaxOps + 1;
        if (ops > kMaxOps) break;
    }
    if (times == 0 || ops <= kMaxOps / times / static_cast<std::int64_t>(teams.size())) return Done{};
    return usage_error(
        fmt::format("{}: the plan would have more than {} ops; use a smaller split", name, kMaxOps));
}

Result<Plan> Setup::finish(bool unordered) {
    Result<Plan> plan = unordered ? builder.take_unordered() : builder.take();
    if (!plan) return usage_error(fmt::format("{}: {}", name, plan.error().message));
    for (std::size_t staging = 1; staging < plan->tensors.size(); ++staging) {
        const Chunk whole{static_cast<std::int32_t>(staging), plan->tensors[staging].whole()};
        if (plan->bytes(whole) == std::numeric_limits<std::int64_t>::max()) {
            return usage_error(
                fmt::format("{}: the staging space {} would be too large: its bytes do not fit 64 bits", name,
                            plan->tensors[staging].name));
        }
    }
    return plan;
}

}  // namespace syncopate::plan
