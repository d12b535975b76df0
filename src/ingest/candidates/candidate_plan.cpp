// A candidate as a plan: see plan_of in candidates.hpp for what becomes of each kind.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "ingest/candidates/devices.hpp"
#include "syncopate/at.hpp"
#include "syncopate/ingest/candidates/candidates.hpp"
#include "syncopate/names.hpp"
#include "syncopate/plan/model/region.hpp"

namespace syncopate::ingest {
namespace {

using plan::Chunk;
using plan::Holding;
using plan::Op;
using plan::OpKind;
using plan::Region;
using plan::Tensor;
using Group = std::vector<std::int32_t>;

constexpr std::int64_t kMaxEntries = std::int64_t{1} << 24;

Region part(Region whole, std::int64_t axis, std::int64_t index, std::int64_t parts) {
    plan::Interval& range = whole[at(axis)];
    const std::int64_t size = range.size() / parts;
    range = {range.begin + index * size, range.begin + (index + 1) * size};
    return whole;
}

class Maker {
public:
    explicit Maker(const Candidate& candidate) : candidate_(candidate) {
        plan_.mesh.axes = {{"gpu", candidate.num_ranks}};
        plan_.ranks.resize(static_cast<std::size_t>(candidate.num_ranks));
    }

    Result<plan::Plan> make() {
        // Each op lists its group, each holding of a reduction too.
        std::int64_t entries = 0;
        for (const Group& group : candidate_.groups) {
            const auto size = static_cast<std::int64_t>(group.size());
            entries += size * size * static_cast<std::int64_t>(candidate_.exchanges.size());
        }
        if (entries > kMaxEntries) {
            return Error{
                fmt::format("{} {}: {} arrays over groups of {} ranks make too large a plan", candidate_.kind,
                            candidate_.name, candidate_.exchanges.size(), candidate_.groups[0].size()),
                candidate_.where};
        }
        for (const Exchange& exchange : candidate_.exchanges) {
            if (!add(exchange)) {
                return Error{fmt::format("{} {}: the array {} is too large: its bytes do not fit 64 bits",
                                         candidate_.kind, candidate_.name, exchange.tensor),
                             candidate_.where};
            }
        }
        return std::move(plan_);
    }

private:
    bool add(const Exchange& exchange) {
        drained_ = std::any_of(exchange.dots.begin(), exchange.dots.end(),
                               [](const DotUse& dot) { return !dot.feeds; });
        Tensor tensor;
        tensor.name = unused(exchange.tensor);
        tensor.dtype = plan_dtype(exchange.before.dtype).value_or(plan::DType::bf16);
        const std::string& kind = candidate_.kind;
        const bool own_axis =
            kind == "collective-permute" || (kind == "all-to-all" && exchange.axis == exchange.concat_axis);
        tensor.shape = kind == "all-gather" ? exchange.after.dims : exchange.before.dims;
        if (kind == "all-to-all" && !own_axis) {
            // Each rank has a part along the axis of joining, before.
            tensor.shape[at(exchange.concat_axis)] = exchange.after.dims[at(exchange.concat_axis)];
        }
        if (own_axis) {
            const auto owners = kind == "all-to-all" ? static_cast<std::int64_t>(candidate_.groups[0].size())
                                                     : std::int64_t{candidate_.num_ranks};
            tensor.shape.insert(tensor.shape.begin(), owners);
        }
        if (tensor.shape.empty()) tensor.shape = {1};  // a scalar
        auto bytes = static_cast<std::int64_t>(plan::size_of(tensor.dtype));
        for (const std::int64_t size : tensor.shape) {
            if (__builtin_mul_overflow(bytes, size, &bytes)) return false;
        }
        plan_.tensors.push_back(tensor);
        tensor_ = static_cast<std::int32_t>(plan_.tensors.size()) - 1;
        const Region whole = tensor.whole();
        if (candidate_.windowed) {
            for (const Group& group : candidate_.groups) ring(group, whole, exchange.axis);
        } else if (kind == "collective-permute") {
            permute(whole);
        } else if (kind == "collective-broadcast") {
            for (const Group& group : candidate_.groups) broadcast(group, whole);
        } else {
            for (const Group& group : candidate_.groups) collective(group, whole, exchange);
        }
        return true;
    }

    /// A collective in place: what each member has before and after.
    void collective(const Group& group, const Region& whole, const Exchange& exchange) {
        const std::string& kind = candidate_.kind;
        const auto parts = static_cast<std::int64_t>(group.size());
        for (std::int64_t i = 0; i < parts; ++i) {
            const std::int32_t rank = group[at(i)];
            Op op;
            op.kind = OpKind::collective;
            op.ranks = group;
            op.reduce = candidate_.reduce;
            Region before = whole;
            Region after = whole;
            if (kind == "all-gather") {
                op.collective = plan::CollectiveKind::all_gather;
                before = part(whole, exchange.axis, i, parts);
            } else if (kind == "reduce-scatter") {
                op.collective = plan::CollectiveKind::reduce_scatter;
                after = part(whole, exchange.axis, i, parts);
            } else if (kind == "all-reduce") {
                op.collective = plan::CollectiveKind::all_reduce;
            } else {
                op.collective = plan::CollectiveKind::all_to_all;
                const bool own_axis = exchange.axis == exchange.concat_axis;
                before = part(whole, own_axis ? 0 : exchange.concat_axis, i, parts);
                after = part(whole, own_axis ? exchange.axis + 1 : exchange.axis, i, parts);
            }
            op.src = {tensor_, before};
            op.dst = {tensor_, after};
            hold(rank, before);
            want(rank, after, group);
            if (parts > 1) plan_.ranks[at(rank)].push_back(std::move(op));
        }
    }

    void push(std::int32_t source, std::int32_t target, const Region& region) {
        Op op;
        op.kind = OpKind::push;
        op.peer = target;
        op.src = op.dst = {tensor_, region};
        plan_.ranks[at(source)].push_back(std::move(op));
    }

    void broadcast(const Group& group, const Region& whole) {
        hold(group[0], whole);
        for (const std::int32_t rank : group) {
            want(rank, whole, group);
            if (rank != group[0]) push(group[0], rank, whole);
        }
    }

    void permute(const Region& whole) {
        std::set<std::int32_t> sources;
        if (candidate_.pairs.empty()) {  // legal: nothing moves, and every rank ends with zeros
            for (std::int32_t rank = 0; rank < candidate_.num_ranks; ++rank)
                hold(rank, part(whole, 0, rank, candidate_.num_ranks));
        }
        for (const auto& [source, target] : candidate_.pairs) {
            const Region shard = part(whole, 0, source, candidate_.num_ranks);
            if (sources.insert(source).second) hold(source, shard);
            want(target, shard, {});
            if (source != target) push(source, target, shard);
        }
    }

    /// Step by step to the next in the ring: an all-gather passes on what came in the step before, a
    /// reduce-scatter adds to what the next one has. `group` is in the order of parts along `axis`.
    void ring(const Group& group, const Region& whole, std::int64_t axis) {
        std::map<std::int32_t, std::int32_t> next(candidate_.pairs.begin(), candidate_.pairs.end());
        std::map<std::int32_t, std::int32_t> previous;
        for (const auto& [source, target] : candidate_.pairs) previous[target] = source;
        const auto parts = static_cast<std::int64_t>(group.size());
        std::map<std::int32_t, std::int64_t> index;
        for (std::int64_t i = 0; i < parts; ++i) index[group[at(i)]] = i;
        const bool reduces = candidate_.reduce != plan::Reduce::none;
        for (const std::int32_t rank : group) {
            const Region own = part(whole, axis, index.at(rank), parts);
            hold(rank, reduces ? whole : own);
            want(rank, reduces ? own : whole, group);
            // Step s: all-gather: the part of the rank s before this one. Reduce-scatter: the one that ends,
            // after the steps that remain, at its owner.
            std::int32_t whose = rank;
            for (std::int64_t step = 0; reduces && step + 1 < parts; ++step) whose = next.at(whose);
            auto& ops = plan_.ranks[at(rank)];
            const auto first = static_cast<std::int32_t>(ops.size());
            for (std::int32_t step = 0; step + 1 < parts; ++step) {
                Op op;
                op.kind = OpKind::push;
                op.peer = next.at(rank);
                op.reduce = candidate_.reduce;
                op.src = op.dst = {tensor_, part(whole, axis, index.at(whose), parts)};
                if (step > 0) op.after = {{previous.at(rank), first + step - 1}};
                ops.push_back(std::move(op));
                whose = previous.at(whose);
            }
        }
    }

    void hold(std::int32_t rank, const Region& region) {
        Holding holding{rank, {tensor_, region}};
        holding.partial = candidate_.reduce != plan::Reduce::none;
        (drained_ ? plan_.produced : plan_.initial).push_back(std::move(holding));
    }

    void want(std::int32_t rank, const Region& region, const Group& group) {
        Holding holding{rank, {tensor_, region}};
        if (candidate_.reduce != plan::Reduce::none) {
            holding.of_all = group.size() == plan_.ranks.size();
            if (!holding.of_all) holding.of = group;
        }
        plan_.final.push_back(std::move(holding));
    }

    [[nodiscard]] std::string unused(const std::string& name) const {
        std::string made = name;
        for (int n = 2; plan_.find_tensor(made); ++n) made = fmt::format("{}.{}", name, n);
        return made;
    }

    const Candidate& candidate_;
    plan::Plan plan_;
    std::int32_t tensor_ = -1;
    bool drained_ = false;
};

}  // namespace

Result<plan::Plan> plan_of(const Candidate& candidate) {
    if (!candidate.problem.empty()) {
        const std::string source = short_source(candidate.source);
        return Error{fmt::format("{} {}{} {}", candidate.kind, candidate.name,
                                 source.empty() ? "" : fmt::format(" (of {})", escaped(source, 60)),
                                 candidate.problem),
                     candidate.where};
    }
    return Maker(candidate).make();
}

}  // namespace syncopate::ingest
