#include "fuse/random_programs.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "fuse/sample.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"
#include "syncopate/plan/templates/templates.hpp"

namespace syncopate::fuse::test {
namespace {

using plan::Backend;

constexpr plan::DType kType = plan::DType::fp32;

/// The tensors and ops of both, which have no tensor in common.
plan::Plan joined(plan::Plan plan, const plan::Plan& more) {
    const auto tensors = static_cast<std::int32_t>(plan.tensors.size());
    const auto moved = [&](plan::Chunk chunk) {
        chunk.tensor += tensors;
        return chunk;
    };
    const auto add_holdings = [&](std::vector<plan::Holding>& to, const std::vector<plan::Holding>& from) {
        for (plan::Holding holding : from) {
            holding.chunk = moved(holding.chunk);
            to.push_back(holding);
        }
    };
    std::vector<std::int32_t> first;  // by rank: where the others' ops begin
    for (const auto& list : plan.ranks) first.push_back(static_cast<std::int32_t>(list.size()));
    plan.tensors.insert(plan.tensors.end(), more.tensors.begin(), more.tensors.end());
    add_holdings(plan.initial, more.initial);
    add_holdings(plan.produced, more.produced);
    add_holdings(plan.final, more.final);
    for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
        for (plan::Op op : more.ranks[rank]) {
            op.src = moved(op.src);
            op.dst = moved(op.dst);
            for (plan::OpRef& before : op.after) before.index += first[static_cast<std::size_t>(before.rank)];
            plan.ranks[rank].push_back(std::move(op));
        }
    }
    return plan;
}

}  // namespace

/// A plan that brings `tensor` to all ranks, whole: what a kernel reads.
plan::Plan RandomPrograms::brought(const plan::Tensor& tensor, std::string& story) {
    const plan::Mesh mesh = sample::ranks(ranks_);
    if (tensor.shape[0] >= ranks_ && chance(15)) {
        story = "ring of copies";
        return sample::ring_all_gather(ranks_, tensor, chance(50));
    }
    if (chance(15) && tensor.shape[0] % ranks_ == 0) {
        story = "exchange";
        plan::PushExchangeOptions options{.produced = false,
                                          .split = 1 + static_cast<std::int32_t>(below(2))};
        options.transient = chance(40);
        options.for_kernel = !options.transient && chance(50);
        plan::Tensor from = tensor;
        from.name = "X";
        if (auto plan = plan::push_exchange(mesh, from, tensor.name, options)) return *plan;
    }
    const plan::Template& of = *plan::find_template(
        one_of<std::string_view>({"all_gather", "all_gather", "broadcast", "all_reduce"}));
    for (;;) {
        plan::TemplateOptions options;
        options.algorithm = one_of(of.algorithms);
        options.split = static_cast<std::int32_t>(1 + below(4));
        options.axis = static_cast<std::int32_t>(below(2));
        options.pull = chance(40);
        options.transient = options.pull && chance(30);
        if (chance(25)) {
            options.minor_axis = 1 - options.axis;
            options.minor_split = static_cast<std::int32_t>(1 + below(3));
        }
        if ((of.uses & plan::Template::kRoot) != 0) options.root = static_cast<std::int32_t>(below(ranks_));
        if ((of.uses & plan::Template::kReduce) != 0 && chance(30)) options.reduce = plan::Reduce::max;
        const auto plan = of.make(mesh, tensor, options);
        if (!plan) continue;  // an option that this template does not have
        story = fmt::format("{} {}", plan::name_of(options.algorithm), of.name);
        return *plan;
    }
}

/// A plan that sends, and may sum, what kernels make of `tensor`.
plan::Plan RandomPrograms::made(const plan::Tensor& tensor, std::string& story) {
    const plan::Mesh mesh = sample::ranks(ranks_);
    for (;;) {
        if (chance(15)) {
            const auto plan = plan::push_exchange(mesh, tensor, tensor.name + "to",
                                                  {.split = static_cast<std::int32_t>(1 + below(3))});
            if (!plan) continue;  // rows that are no multiple of the ranks
            story = "exchange of what is made";
            return *plan;
        }
        if (chance(25)) {
            const plan::Template& of =
                *plan::find_template(one_of<std::string_view>({"reduce_scatter", "all_reduce"}));
            plan::TemplateOptions options;
            options.algorithm = one_of(of.algorithms);
            options.split = static_cast<std::int32_t>(1 + below(3));
            options.axis = static_cast<std::int32_t>(below(2));
            options.pull = chance(40);
            options.produced = true;
            const auto plan = of.make(mesh, tensor, options);
            if (!plan) continue;
            story = fmt::format("{} {} of what is made", plan::name_of(options.algorithm), of.name);
            return *plan;
        }
        plan::PushReduceOptions options;
        options.split = static_cast<std::int32_t>(1 + below(4));
        if (chance(30)) options.split_axis = static_cast<std::int32_t>(below(2));
        if (chance(25)) options.reduce = plan::Reduce::max;
        options.all = chance(40);
        options.by_part = chance(30);
        options.pull = chance(30);
        const auto plan = plan::push_reduce(mesh, tensor, options);
        if (!plan) continue;
        story = fmt::format("push_reduce{}{}", options.all ? " to all" : "", options.pull ? ", pulled" : "");
        return *plan;
    }
}

kernel::Kernel RandomPrograms::matmul(std::int64_t m, std::int64_t n, std::int64_t k) {
    sample::Gemm sizes{m, n, k, 1 + below(4), 2 + below(3), 1 + below(4), chance(50) ? 1 + below(4) : 0};
    kernel::Kernel kernel = sample::gemm(sizes);
    for (auto& [name, tensor] : kernel.arguments.tensors) tensor.dtype = kType;
    return kernel;
}

/// Most ops are left to fuse; the others go by what is drawn, which may not be legal.
void RandomPrograms::choose_backends(plan::Plan& plan, Device device) {
    const Backend common = device == Device::host ? Backend::host : Backend::copy_engine;
    const std::vector<Backend> all{common, Backend::tma_dedicated, Backend::ldst_dedicated,
                                   Backend::ldst_inline};
    const std::optional<Backend> one = chance(40) ? std::optional(one_of(all)) : std::nullopt;
    const bool each = !one && chance(60);
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        for (plan::Op& op : plan.ranks[static_cast<std::size_t>(rank)]) {
            if (one) op.backend = *one;
            if (each && chance(60)) op.backend = one_of(all);
            const bool moves = op.kind == plan::OpKind::push || op.kind == plan::OpKind::pull;
            if (moves && plan.mesh.node_of(rank) != plan.mesh.node_of(op.peer))
                op.backend = Backend::automatic;  // none of these reaches another node
        }
    }
}

RandomProgram RandomPrograms::next() {
    RandomProgram drawn;
    std::pair<std::int32_t, std::int32_t> of_nodes{1, 1};
    if (nodes_)
        of_nodes = one_of<std::pair<std::int32_t, std::int32_t>>({{2, 1}, {2, 2}, {3, 1}, {2, 3}, {3, 2}});
    ranks_ = nodes_ ? of_nodes.first * of_nodes.second : static_cast<std::int32_t>(1 + below(4));
    const std::int64_t m = chance(50) ? ranks_ * (1 + below(3)) : 1 + below(3 * ranks_);
    const std::int64_t n = one_of<std::int64_t>({4, 6, 8}), k = one_of<std::int64_t>({4, 8});
    const bool reads = chance(65), makes = !reads || chance(40);
    const std::int64_t stages = reads && makes && chance(60) ? 2 + below(2) : 1;
    std::string bringing, making;
    StagedProgram& program = drawn.program;
    program.plan.mesh = sample::ranks(ranks_);
    program.plan.ranks.resize(static_cast<std::size_t>(ranks_));
    drawn.options.device = chance(50) ? Device::host : Device::cuda;
    if (reads) program.plan = brought({"A", {m, k}, kType}, bringing);
    if (makes) program.plan = joined(program.plan, made({"C", {m, n}, kType}, making));
    // Between two stages a tensor that no op moves.
    std::string from = reads ? "A" : "";
    std::int64_t inner = k;
    for (std::int64_t stage = 0; stage < stages; ++stage) {
        const bool last = stage + 1 == stages;
        const std::int64_t columns = last ? n : one_of<std::int64_t>({4, 8});
        Stage one{matmul(m, columns, inner), {}};
        if (!from.empty()) one.bindings["a_ptr"] = from;
        if (!last) {
            from = fmt::format("H{}", stage);
            program.plan.tensors.push_back({from, {m, columns}, kType});
            one.bindings["c_ptr"] = from;
        } else if (makes) {
            one.bindings["c_ptr"] = "C";
        }
        inner = columns;
        for (const kernel::Tile& tile : one.kernel.tiles) drawn.program_of.push_back(tile.program);
        program.stages.push_back(std::move(one));
    }
    if (nodes_) program.plan.mesh = {{{"node", of_nodes.first}, {"gpu", of_nodes.second}}, "node"};
    choose_backends(program.plan, drawn.options.device);
    drawn.story =
        fmt::format("{} ranks on {} nodes, {} rows on {}: {}{}{}, {} stages", ranks_, of_nodes.first, m,
                    name_of(drawn.options.device), bringing, reads && makes ? " and " : "", making, stages);
    return drawn;
}

}  // namespace syncopate::fuse::test
