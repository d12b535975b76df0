#include "plan/random_plans.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "plan/plans.hpp"

namespace syncopate::plan::test {
namespace {

Holding partial_of(std::int32_t rank, Chunk chunk) {
    Holding holding{rank, std::move(chunk)};
    holding.partial = true;
    return holding;
}
Holding sum_of_all(std::int32_t rank, Chunk chunk) {
    Holding holding{rank, std::move(chunk)};
    holding.of_all = true;
    return holding;
}

Chunk part(std::int64_t n, std::int64_t size, std::int32_t tensor = 0) {
    return box({{n * size, (n + 1) * size}}, tensor);
}

Plan blank(std::int32_t ranks, std::vector<std::int64_t> sizes) {
    Plan plan;
    plan.mesh = ring_of(ranks);
    plan.ranks.resize(static_cast<std::size_t>(ranks));
    for (std::size_t i = 0; i < sizes.size(); ++i)
        plan.tensors.push_back({std::string(1, static_cast<char>('A' + i)), {sizes[i]}, DType::fp32});
    return plan;
}

Plan direct_all_gather(std::int32_t ranks, std::int64_t size, bool pulls) {
    Plan plan = blank(ranks, {ranks * size});
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        plan.initial.push_back({rank, part(rank, size)});
        plan.final.push_back({rank, box({{0, ranks * size}})});
        for (std::int32_t offset = 1; offset < ranks; ++offset) {
            const std::int32_t peer = (rank + offset) % ranks;
            plan.ranks[static_cast<std::size_t>(rank)].push_back(pulls ? pull(peer, part(peer, size))
                                                                       : push(peer, part(rank, size)));
        }
    }
    return plan;
}

Plan ring_all_gather(std::int32_t ranks, std::int64_t size) {
    Plan plan = direct_all_gather(ranks, size, false);
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        auto& ops = plan.ranks[static_cast<std::size_t>(rank)];
        ops.clear();
        for (std::int32_t step = 0; step + 1 < ranks; ++step) {
            std::vector<OpRef> after;
            if (step > 0) after = {{(rank + ranks - 1) % ranks, step - 1}};
            ops.push_back(push((rank + 1) % ranks, part((rank - step + ranks) % ranks, size), after));
        }
    }
    return plan;
}

/// Everyone adds into rank 0, which hands the sum back.
Plan star_all_reduce(std::int32_t ranks, Reduce reduce, bool produced) {
    Plan plan = blank(ranks, {2});
    std::vector<OpRef> adds;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        (produced ? plan.produced : plan.initial).push_back(partial_of(rank, box({{0, 2}})));
        plan.final.push_back(sum_of_all(rank, box({{0, 2}})));
        if (rank == 0) continue;
        plan.ranks[static_cast<std::size_t>(rank)].push_back(push(0, box({{0, 2}}), {}, reduce));
        adds.push_back({rank, 0});
    }
    for (std::int32_t rank = 1; rank < ranks; ++rank)
        plan.ranks[0].push_back(push(rank, box({{0, 2}}), adds));
    return plan;
}

/// Two chunks go through one slot of the receiver, one after the other.
Plan through_one_slot() {
    Plan plan = blank(2, {4, 2});
    plan.initial = {{0, box({{0, 4}})}};
    plan.final = {{1, box({{0, 4}})}};
    const Chunk slot = box({{0, 2}}, 1);
    plan.ranks[0] = {transfer(OpKind::push, 1, box({{0, 2}}), slot),
                     transfer(OpKind::push, 1, box({{2, 4}}), slot, {{1, 0}})};
    plan.ranks[1] = {transfer(OpKind::local, -1, slot, box({{0, 2}}), {{0, 0}}),
                     transfer(OpKind::local, -1, slot, box({{2, 4}}), {{0, 1}})};
    return plan;
}

/// Both ranks exchange their contributions through scratch memory and add.
Plan exchange_and_add(Reduce reduce) {
    Plan plan = blank(2, {2, 2});
    for (std::int32_t rank = 0; rank < 2; ++rank) {
        plan.produced.push_back(partial_of(rank, box({{0, 2}})));
        plan.final.push_back(sum_of_all(rank, box({{0, 2}})));
        plan.ranks[static_cast<std::size_t>(rank)] = {
            transfer(OpKind::push, 1 - rank, box({{0, 2}}), box({{0, 2}}, 1)),
            transfer(OpKind::local, -1, box({{0, 2}}, 1), box({{0, 2}}), {{1 - rank, 0}, {rank, 0}}, reduce)};
    }
    return plan;
}

/// What is there is copied away, and then others add to it, or compare with it, in any order.
Plan read_then_add(Reduce reduce) {
    Plan plan = blank(3, {2, 2});
    plan.ranks[0] = {transfer(OpKind::local, -1, box({{0, 2}}), box({{0, 2}}, 1))};
    for (std::int32_t rank = 0; rank < 3; ++rank) {
        plan.initial.push_back(partial_of(rank, box({{0, 2}})));
        if (rank > 0) plan.ranks[static_cast<std::size_t>(rank)] = {push(0, box({{0, 2}}), {{0, 0}}, reduce)};
    }
    plan.final.push_back(sum_of_all(0, box({{0, 2}})));
    return plan;
}

/// What the kernel has produced is sent away and then written over.
Plan reuse_of_produced() {
    Plan plan = blank(2, {4});
    plan.produced = {{0, box({{0, 2}})}};
    plan.initial = {{1, box({{2, 4}})}};
    plan.ranks[0] = {push(1, box({{0, 2}}))};
    plan.ranks[1] = {transfer(OpKind::push, 0, box({{2, 4}}), box({{0, 2}}), {{0, 0}})};
    plan.final = {{1, box({{0, 4}})}};
    return plan;
}

Plan of_collective(CollectiveKind kind, std::int32_t ranks, bool in_place, bool follow) {
    const std::int64_t whole_size = 2 * ranks;
    Plan plan = blank(ranks, {whole_size, whole_size});
    const bool reduces = kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        const Chunk whole = box({{0, whole_size}});
        const Chunk mine = part(rank, 2);
        Chunk src = kind == CollectiveKind::all_gather ? mine : whole;
        Chunk dst = kind == CollectiveKind::reduce_scatter ? mine : whole;
        if (kind == CollectiveKind::all_to_all && in_place) src = mine;  // each gives what it has to all
        if (!in_place) dst.tensor = 1;
        Op op;
        op.kind = OpKind::collective;
        op.collective = kind;
        std::vector<std::int32_t> members(static_cast<std::size_t>(ranks));
        std::iota(members.begin(), members.end(), 0);
        op.ranks = std::move(members);
        op.src = src;
        op.dst = dst;
        Holding given{rank, src};
        given.partial = reduces;
        if (kind != CollectiveKind::broadcast || rank == 0) plan.initial.push_back(given);
        Holding wanted{rank, dst};
        wanted.of_all = reduces;
        if (kind != CollectiveKind::all_to_all || in_place) plan.final.push_back(wanted);
        plan.ranks[static_cast<std::size_t>(rank)].push_back(op);
    }
    if (follow)
        plan.ranks[1].push_back(
            transfer(OpKind::push, 0, plan.ranks[1][0].dst, plan.ranks[1][0].dst, {{0, 0}}));
    return plan;
}

// ---- a model of what ops do, enough to make right plans
// -----------------------------------------------------

using Cell = std::tuple<std::int32_t, std::int32_t, std::int64_t>;  // rank, tensor, element
struct Term {
    std::int32_t rank;  // -1: the value
    std::int32_t tensor;
    std::int64_t element;
    auto operator<=>(const Term&) const = default;
};
struct Held {
    Reduce by = Reduce::none;
    bool clean = true;
    std::set<Term> terms;
    bool operator==(const Held&) const = default;
};

std::vector<std::int64_t> elements(const Plan& plan, const Chunk& chunk) {
    const auto& shape = plan.tensors[static_cast<std::size_t>(chunk.tensor)].shape;
    std::vector<std::int64_t> numbers{0};
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
        std::vector<std::int64_t> next;
        for (const std::int64_t number : numbers) {
            for (std::int64_t i = chunk.region[axis].begin; i < chunk.region[axis].end; ++i)
                next.push_back(number * shape[axis] + i);
        }
        numbers = std::move(next);
    }
    return numbers;
}

std::vector<Cell> cells(const Plan& plan, std::int32_t rank, const Chunk& chunk) {
    std::vector<Cell> all;
    for (const std::int64_t element : elements(plan, chunk)) all.emplace_back(rank, chunk.tensor, element);
    return all;
}
std::vector<Cell> sources(const Plan& plan, OpRef ref) {
    return cells(plan, plan.op(ref).source_rank(ref.rank), plan.op(ref).src);
}
std::vector<Cell> targets(const Plan& plan, OpRef ref) {
    return cells(plan, plan.op(ref).destination_rank(ref.rank), plan.op(ref).dst);
}

using Model = std::map<Cell, Held>;

Model at_start(const Plan& plan) {
    Model model;
    for (const auto* holdings : {&plan.initial, &plan.produced}) {
        for (const Holding& holding : *holdings) {
            for (const std::int64_t element : elements(plan, holding.chunk)) {
                model[{holding.rank, holding.chunk.tensor, element}] = {
                    Reduce::none,
                    true,
                    {{holding.partial ? holding.rank : -1, holding.chunk.tensor, element}}};
            }
        }
    }
    return model;
}

/// False if the op reads nothing, or adds something twice.
bool execute(const Plan& plan, OpRef ref, Model& model) {
    const Reduce reduce = plan.op(ref).reduce;
    const auto from = sources(plan, ref);
    const auto to = targets(plan, ref);
    bool fine = true;
    for (std::size_t n = 0; n < from.size(); ++n) {
        if (!model.contains(from[n]) || (reduce != Reduce::none && !model.contains(to[n]))) {
            fine = false;
            continue;
        }
        const Held arriving = model[from[n]];
        Held& held = model[to[n]];
        if (reduce == Reduce::none) {
            held = arriving;
            continue;
        }
        if (reduce == Reduce::max && held == arriving) continue;
        Held joined{reduce, held.clean && arriving.clean, held.terms};
        for (const Held* side : {&std::as_const(held), &arriving})
            joined.clean &= side->by == Reduce::none || side->by == reduce;
        joined.terms.insert(arriving.terms.begin(), arriving.terms.end());
        if (reduce == Reduce::sum) {
            fine &= joined.terms.size() == held.terms.size() + arriving.terms.size();
            for (const Term& term : joined.terms) fine &= term.rank >= 0;
        }
        held = std::move(joined);
    }
    return fine;
}

template <typename T>
bool meet(const std::vector<T>& a, const std::vector<T>& b) {
    return std::any_of(a.begin(), a.end(),
                       [&](const T& x) { return std::find(b.begin(), b.end(), x) != b.end(); });
}

bool conflict(const Plan& plan, OpRef a, OpRef b) {
    if (meet(sources(plan, a), targets(plan, b)) || meet(targets(plan, a), sources(plan, b))) return true;
    const Reduce reduce = plan.op(a).reduce;
    return meet(targets(plan, a), targets(plan, b)) &&
           (reduce == Reduce::none || reduce != plan.op(b).reduce);
}

}  // namespace

bool is_well_formed(const Plan& plan) {
    const auto fits = [&](const Chunk& chunk) {
        const auto& shape = plan.tensors[static_cast<std::size_t>(chunk.tensor)].shape;
        if (chunk.region.size() != shape.size()) return false;
        for (std::size_t axis = 0; axis < shape.size(); ++axis) {
            const Interval& range = chunk.region[axis];
            if (range.begin < 0 || range.end > shape[axis] || range.empty()) return false;
        }
        return true;
    };
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        const auto& ops = plan.ranks[static_cast<std::size_t>(rank)];
        for (std::size_t i = 0; i < ops.size(); ++i) {
            const Op& op = ops[i];
            if (!fits(op.src) || !fits(op.dst)) return false;
            for (const OpRef ref : op.after) {
                if (ref.rank < 0 || ref.rank >= plan.num_ranks() || ref.index < 0 ||
                    static_cast<std::size_t>(ref.index) >=
                        plan.ranks[static_cast<std::size_t>(ref.rank)].size())
                    return false;
            }
            if (op.kind == OpKind::collective) continue;
            if ((op.kind == OpKind::push || op.kind == OpKind::pull) &&
                (op.peer < 0 || op.peer >= plan.num_ranks() || op.peer == rank))
                return false;
            for (std::size_t axis = 0; axis < op.src.region.size(); ++axis) {
                if (op.dst.region.size() != op.src.region.size() ||
                    op.src.region[axis].size() != op.dst.region[axis].size())
                    return false;
            }
            if (op.kind == OpKind::local && op.src.tensor == op.dst.tensor &&
                meet(elements(plan, op.src), elements(plan, op.dst)))
                return false;
        }
    }
    return true;
}

Plan RandomPlans::from_template() {
    const auto ranks = static_cast<std::int32_t>(2 + below(2));
    switch (below(10)) {
        case 0: story_ = "relay"; return relay();
        case 1: story_ = "direct all-gather"; return direct_all_gather(ranks, 1 + below(2), chance(50));
        case 2: story_ = "ring all-gather"; return ring_all_gather(ranks, 1 + below(2));
        case 3: story_ = "ring reduce-scatter"; return ring_reduce_scatter(ranks);
        case 4:
            story_ = "star all-reduce";
            return star_all_reduce(ranks, chance(70) ? Reduce::sum : Reduce::max, chance(50));
        case 5: story_ = "through one slot"; return through_one_slot();
        case 6: story_ = "exchange and add"; return exchange_and_add(chance(70) ? Reduce::sum : Reduce::max);
        case 7: story_ = "reuse of produced"; return reuse_of_produced();
        case 8: story_ = "read, then add"; return read_then_add(chance(70) ? Reduce::sum : Reduce::max);
        default: break;
    }
    story_ = "collective";
    return of_collective(static_cast<CollectiveKind>(below(5)), ranks, chance(50), chance(60));
}

Region RandomPlans::random_region(const Tensor& tensor) {
    Region region;
    for (const std::int64_t size : tensor.shape) {
        const std::int64_t length = 1 + below(std::min<std::int64_t>(size, 2));
        const std::int64_t begin = below(size - length + 1);
        region.push_back({begin, begin + length});
    }
    return region;
}

void RandomPlans::add_random_op(Plan& plan, std::vector<OpRef>& order) {
    Model model = at_start(plan);
    for (const OpRef ref : order) execute(plan, ref, model);
    const std::set<Cell> produced = [&] {
        std::set<Cell> all;
        for (const Holding& holding : plan.produced) {
            for (const Cell& cell : cells(plan, holding.rank, holding.chunk)) all.insert(cell);
        }
        for (const OpRef ref : order) {  // what has been read has been written before
            for (const Cell& cell : sources(plan, ref)) all.erase(cell);
            if (plan.op(ref).reduce == Reduce::none) continue;
            for (const Cell& cell : targets(plan, ref)) all.erase(cell);
        }
        return all;
    }();
    const bool careless = chance(4);
    for (int attempt = 0; attempt < 30; ++attempt) {
        const auto owner = static_cast<std::int32_t>(below(plan.num_ranks()));
        Op op;
        op.kind = plan.num_ranks() == 1 ? OpKind::local : static_cast<OpKind>(below(3));
        if (op.kind != OpKind::local)
            op.peer = static_cast<std::int32_t>((owner + 1 + below(plan.num_ranks() - 1)) % plan.num_ranks());
        op.src.tensor = static_cast<std::int32_t>(below(static_cast<std::int64_t>(plan.tensors.size())));
        op.src.region = random_region(plan.tensors[static_cast<std::size_t>(op.src.tensor)]);
        op.dst = op.src;
        if (op.kind == OpKind::local || chance(35)) {
            op.dst.tensor = static_cast<std::int32_t>(below(static_cast<std::int64_t>(plan.tensors.size())));
            op.dst.region = random_region(plan.tensors[static_cast<std::size_t>(op.dst.tensor)]);
        }
        const std::int64_t dice = below(100);
        op.reduce = dice < 55 ? Reduce::none : dice < 85 ? Reduce::sum : Reduce::max;
        auto& list = plan.ranks[static_cast<std::size_t>(owner)];
        const OpRef ref{owner, static_cast<std::int32_t>(list.size())};
        list.push_back(op);
        Model after = model;
        bool fine = is_well_formed(plan);
        if (fine && !careless) {
            fine = execute(plan, ref, after);
            if (op.reduce == Reduce::none) {
                for (const Cell& cell : targets(plan, ref)) fine &= !produced.contains(cell);
            }
        }
        if (!fine) {
            list.pop_back();
            continue;
        }
        std::set<OpRef> waits;
        for (const OpRef earlier : order) {
            if (conflict(plan, earlier, ref) ? !chance(2) : chance(8)) waits.insert(earlier);
        }
        // Leave out what another one waits for already, mostly.
        for (const OpRef wait : std::set<OpRef>(waits)) {
            const bool implied = std::any_of(waits.begin(), waits.end(), [&](OpRef other) {
                const auto& after_other = plan.op(other).after;
                return std::find(after_other.begin(), after_other.end(), wait) != after_other.end();
            });
            if (implied && chance(80)) waits.erase(wait);
        }
        list.back().after.assign(waits.begin(), waits.end());
        order.push_back(ref);
        return;
    }
}

void RandomPlans::ask_for_what_comes_out(Plan& plan, const std::vector<OpRef>& order) {
    Model model = at_start(plan);
    std::set<std::pair<std::int32_t, std::int64_t>> own;
    for (const auto& [cell, held] : model) own.emplace(std::get<1>(cell), std::get<2>(cell));
    for (const OpRef ref : order) execute(plan, ref, model);
    std::map<std::pair<std::int32_t, std::int64_t>, std::pair<std::int32_t, std::int64_t>> brought;
    for (int attempt = 0; attempt < 12 && plan.final.size() < 4; ++attempt) {
        Holding wanted;
        wanted.rank = static_cast<std::int32_t>(below(plan.num_ranks()));
        wanted.chunk.tensor =
            static_cast<std::int32_t>(below(static_cast<std::int64_t>(plan.tensors.size())));
        wanted.chunk.region = random_region(plan.tensors[static_cast<std::size_t>(wanted.chunk.tensor)]);
        std::optional<std::set<std::int32_t>> ranks;
        bool fine = true;
        auto next = brought;
        for (const Cell& cell : cells(plan, wanted.rank, wanted.chunk)) {
            if (!model.contains(cell) || !model[cell].clean) {
                fine = false;
                break;
            }
            const std::pair at{std::get<1>(cell), std::get<2>(cell)};
            const std::set<Term>& terms = model[cell].terms;
            const std::pair source{terms.begin()->tensor, terms.begin()->element};
            std::set<std::int32_t> from;
            for (const Term& term : terms) {
                from.insert(term.rank);
                fine &= std::pair{term.tensor, term.element} == source;
            }
            fine &= !(from.contains(-1) && from.size() > 1);
            fine &= own.contains(at) ? source == at : next.emplace(at, source).first->second == source;
            if (!ranks) ranks = from;
            fine &= *ranks == from;
        }
        if (!fine || !ranks) continue;
        if (!ranks->contains(-1)) wanted.of.assign(ranks->begin(), ranks->end());
        if (static_cast<std::int32_t>(wanted.of.size()) == plan.num_ranks() && chance(50)) {
            wanted.of.clear();
            wanted.of_all = true;
        }
        brought = std::move(next);
        plan.final.push_back(wanted);
    }
}

Plan RandomPlans::random_dag(std::size_t max_ops) {
    story_ = "random";
    const auto ranks = static_cast<std::int32_t>(1 + below(3));
    Plan plan = blank(ranks, {2 + below(3)});
    if (chance(50)) plan.tensors.push_back({"B", {2 + below(2)}, DType::fp32});
    if (chance(20)) {
        for (Tensor& tensor : plan.tensors) tensor.shape = {2, tensor.shape[0]};
    }
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
        const std::int64_t count = 1 + below(2);
        for (std::int64_t i = 0; i < count; ++i) {
            Holding holding;
            holding.rank = rank;
            holding.chunk.tensor = chance(70) ? 0 : static_cast<std::int32_t>(plan.tensors.size()) - 1;
            const Tensor& tensor = plan.tensors[static_cast<std::size_t>(holding.chunk.tensor)];
            holding.chunk.region = chance(60) ? tensor.whole() : random_region(tensor);
            holding.partial = chance(60);
            // What is said twice of one place must not contradict itself.
            const auto mine = cells(plan, rank, holding.chunk);
            bool clash = false;
            for (const auto* holdings : {&plan.initial, &plan.produced}) {
                for (const Holding& other : *holdings)
                    clash |= other.rank == rank && meet(mine, cells(plan, rank, other.chunk));
            }
            if (!clash) (chance(30) ? plan.produced : plan.initial).push_back(holding);
        }
    }
    std::vector<OpRef> order;
    const std::int64_t ops = 2 + below(static_cast<std::int64_t>(max_ops) - 1);
    for (std::int64_t i = 0; i < ops; ++i) add_random_op(plan, order);
    ask_for_what_comes_out(plan, order);
    return plan;
}

bool RandomPlans::mutate(Plan& plan) {
    std::vector<OpRef> ops;
    std::vector<std::pair<OpRef, std::size_t>> waits;
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        const auto& list = plan.ranks[static_cast<std::size_t>(rank)];
        for (std::size_t i = 0; i < list.size(); ++i) {
            ops.push_back({rank, static_cast<std::int32_t>(i)});
            for (std::size_t n = 0; n < list[i].after.size(); ++n) waits.emplace_back(ops.back(), n);
        }
    }
    if (ops.empty()) return false;
    const auto op_at = [&](OpRef ref) -> Op& {
        return plan.ranks[static_cast<std::size_t>(ref.rank)][static_cast<std::size_t>(ref.index)];
    };
    const OpRef ref = ops[static_cast<std::size_t>(below(static_cast<std::int64_t>(ops.size())))];
    Op& op = op_at(ref);
    const bool collective = op.kind == OpKind::collective;
    switch (below(10)) {
        case 0:
        case 1: {
            if (waits.empty()) return false;
            const auto [from, n] =
                waits[static_cast<std::size_t>(below(static_cast<std::int64_t>(waits.size())))];
            auto& after = op_at(from).after;
            const OpRef to = after[n];
            const auto dropped = after.begin() + static_cast<std::ptrdiff_t>(n);
            after.erase(dropped, dropped + 1);
            if (chance(70)) {
                story_ += ", drop a wait";
            } else {
                op_at(to).after.push_back(from);
                story_ += ", turn a wait round";
            }
            return true;
        }
        case 2:
            op.after.push_back(ops[static_cast<std::size_t>(below(static_cast<std::int64_t>(ops.size())))]);
            story_ += ", add a wait";
            return true;
        case 3:
        case 4: {
            if (collective) return false;
            Chunk& chunk = chance(50) ? op.src : op.dst;
            const auto axis = static_cast<std::size_t>(below(static_cast<std::int64_t>(chunk.region.size())));
            const std::int64_t by = chance(50) ? 1 : -1;
            chunk.region[axis].begin += by;
            chunk.region[axis].end += by;
            story_ += ", shift a region";
            return true;
        }
        case 5:
            if (collective || op.kind == OpKind::local) return false;
            op.peer = static_cast<std::int32_t>(below(plan.num_ranks()));
            story_ += ", change a peer";
            return true;
        case 6:
            if (collective) return false;
            op.reduce = static_cast<Reduce>(below(3));
            story_ += ", change a reduction";
            return true;
        case 7: {
            auto& list = plan.ranks[static_cast<std::size_t>(ref.rank)];
            if (ops.size() >= 7) return false;
            const Op copy = op;
            list.push_back(copy);
            story_ += ", double an op";
            return true;
        }
        case 8: {
            auto& list = plan.ranks[static_cast<std::size_t>(ref.rank)];
            const OpRef last{ref.rank, static_cast<std::int32_t>(list.size()) - 1};
            list.pop_back();
            for (auto& ops_of_rank : plan.ranks) {
                for (Op& other : ops_of_rank)
                    erase_if(other.after, [&](OpRef before) { return before == last; });
            }
            story_ += ", leave out an op";
            return true;
        }
        default:
            if (chance(50) && !plan.initial.empty()) {
                plan.initial.erase(plan.initial.begin() +
                                   below(static_cast<std::int64_t>(plan.initial.size())));
                story_ += ", leave out what is held";
            } else {
                if (collective) return false;
                std::swap(op.src, op.dst);
                story_ += ", swap source and destination";
            }
            return true;
    }
}

Plan RandomPlans::next(std::size_t max_ops) {
    for (;;) {
        Plan plan = chance(35) ? from_template() : random_dag(max_ops);
        const std::int64_t changes = chance(45) ? 0 : 1 + below(2);
        for (std::int64_t i = 0; i < changes; ++i) mutate(plan);
        if (is_well_formed(plan)) return plan;
    }
}

}  // namespace syncopate::plan::test
