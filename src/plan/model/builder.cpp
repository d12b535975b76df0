#include "syncopate/plan/model/builder.hpp"

#include <utility>

#include <fmt/format.h>

#include "plan/model/data_order.hpp"

#include "syncopate/at.hpp"

namespace syncopate::plan {

Builder::Builder(Mesh mesh, bool pull) : pull_(pull) {
    plan_.mesh = std::move(mesh);
    const std::int32_t ranks = plan_.mesh.num_ranks();
    if (ranks < 1 || ranks > kMaxRanks) {
        problem_ = fmt::format("the mesh has {} ranks; expected 1 to {}", ranks, kMaxRanks);
        return;
    }
    plan_.ranks.resize(static_cast<std::size_t>(ranks));
}

std::int32_t Builder::tensor(Tensor tensor) {
    plan_.tensors.push_back(std::move(tensor));
    return static_cast<std::int32_t>(plan_.tensors.size()) - 1;
}

std::int32_t Builder::scratch(Tensor tensor) {
    const std::string name = tensor.name;
    for (int copy = 2; plan_.find_tensor(tensor.name); ++copy) tensor.name = fmt::format("{}-{}", name, copy);
    return this->tensor(std::move(tensor));
}

void Builder::hold(std::vector<Holding>& list, Holding holding) {
    if (!is_rank(holding.rank) && problem_.empty()) {
        problem_ =
            fmt::format("there is no rank {}; the mesh has ranks 0 to {}", holding.rank, num_ranks() - 1);
    }
    list.push_back(std::move(holding));
}

void Builder::initial(RankChunk place, bool partial) {
    hold(plan_.initial, {place.rank, std::move(place.chunk), partial});
}

void Builder::produced(RankChunk place, bool partial) {
    hold(plan_.produced, {place.rank, std::move(place.chunk), partial});
}

void Builder::final(RankChunk place) { hold(plan_.final, {place.rank, std::move(place.chunk)}); }

void Builder::final_of_all(RankChunk place) {
    hold(plan_.final, {.rank = place.rank, .chunk = std::move(place.chunk), .of_all = true});
}

void Builder::final_of(RankChunk place, std::vector<std::int32_t> ranks) {
    hold(plan_.final, {.rank = place.rank, .chunk = std::move(place.chunk), .of = std::move(ranks)});
}

void Builder::judge(std::int32_t rank, const Chunk& chunk) {
    const auto refuse = [&](std::string why) {
        problem_ = fmt::format("transfer {}: {}", program_.size(), std::move(why));
    };
    const auto& [tensor, region] = chunk;
    if (!is_rank(rank)) {
        return refuse(fmt::format("there is no rank {}; the mesh has ranks 0 to {}", rank, num_ranks() - 1));
    }
    if (tensor < 0 || static_cast<std::size_t>(tensor) >= plan_.tensors.size()) {
        return refuse(
            fmt::format("there is no tensor number {}; the plan has {}", tensor, plan_.tensors.size()));
    }
    const Tensor& known = plan_.tensors[at(tensor)];
    if (region.size() != known.shape.size() || is_empty(region) || !contains(known.whole(), region)) {
        return refuse(fmt::format("{} is no box inside tensor {}, {}", to_string(region), known.name,
                                  to_string(known.whole())));
    }
}

OpRef Builder::transfer(const RankChunk& from, const RankChunk& to, Reduce reduce, std::vector<OpRef> after) {
    const bool local = from.rank == to.rank;
    Op op;
    op.kind = local ? OpKind::local : pull_ ? OpKind::pull : OpKind::push;
    if (!local) op.peer = pull_ ? from.rank : to.rank;
    op.src = from.chunk;
    op.dst = to.chunk;
    op.reduce = reduce;
    op.after = std::move(after);
    return append(pull_ ? to.rank : from.rank, std::move(op));
}

OpRef Builder::join(const RankChunk& from, const RankChunk& to, Reduce reduce, std::vector<OpRef> after) {
    if (problem_.empty() && reduce == Reduce::none)
        problem_ = fmt::format("transfer {}: a join needs a reduction, sum or max", program_.size());
    const OpRef ref = transfer(from, to, reduce, std::move(after));
    if (ref.index >= 0) joins_.push_back(ref);
    return ref;
}

std::vector<OpRef> Builder::collective(std::vector<std::pair<std::int32_t, Op>> members) {
    std::vector<OpRef> refs;
    for (auto& [owner, op] : members) {
        if (problem_.empty() && op.kind != OpKind::collective)
            problem_ =
                fmt::format("op {}: is a {}, not part of a collective", program_.size(), name_of(op.kind));
        refs.push_back(push_back(owner, std::move(op)));
    }
    return refs;
}

OpRef Builder::append(std::int32_t owner, Op op, bool joins) {
    if (problem_.empty() && op.kind == OpKind::collective) {
        problem_ = fmt::format(
            "op {}: is one participant's part of a collective; append all of them by collective()",
            program_.size());
    }
    joins = joins && op.reduce != Reduce::none;
    const OpRef ref = push_back(owner, std::move(op));
    if (joins && ref.index >= 0) joins_.push_back(ref);
    return ref;
}

OpRef Builder::push_back(std::int32_t owner, Op op) {
    if (problem_.empty()) judge(op.source_rank(owner), op.src);
    if (problem_.empty()) judge(op.destination_rank(owner), op.dst);
    if (problem_.empty() && program_.size() == static_cast<std::size_t>(kMaxOps))
        problem_ = fmt::format("the plan would have more than {} ops; use a smaller split", kMaxOps);
    if (!problem_.empty()) return {owner, -1};
    std::vector<Op>& list = plan_.ranks[at(owner)];
    const OpRef ref{owner, static_cast<std::int32_t>(list.size())};
    list.push_back(std::move(op));
    program_.push_back(ref);
    return ref;
}

void Builder::set_backend(OpRef ref, Backend backend) {
    if (!is_rank(ref.rank) || ref.index < 0) return;  // an op that was refused
    plan_.ranks[at(ref.rank)][at(ref.index)].backend = backend;
}

Result<Plan> Builder::take() {
    const std::vector<OpRef> program = std::exchange(program_, {});
    const std::vector<OpRef> joins = std::exchange(joins_, {});
    Result<Plan> plan = take_unordered();
    if (!plan) return plan;
    return with_data_order(*std::move(plan), program, joins);
}

Result<Plan> Builder::take_unordered() {
    program_.clear();
    joins_.clear();
    Plan plan = std::exchange(plan_, Plan{});
    std::string problem = std::exchange(problem_, {});
    if (!problem.empty()) return usage_error(std::move(problem));
    return plan;
}

}  // namespace syncopate::plan
