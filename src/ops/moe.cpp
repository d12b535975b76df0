// Mixture of experts, expert parallel: rank r has experts [r · E / R, (r + 1) · E / R), and T tokens of H.
//
//     count      how many of this rank's rows go to each expert; every rank is told
//     layout     where each group (source rank × expert) lies, and the tables of the next three stages
//     dispatch   rows of x are stored at their experts' ranks, with where they come from
//     up         of an expert's rows act(x @ w1) · (x @ w1'): its tiles start when its rows are there
//     down       that @ w2: its rows are stored at the ranks of their tokens
//     combine    the topk rows of a token, by their weights, in the order of k in fp32
//
// How many rows a group has only a call knows, so X, A and Y have a ragged axis, and the tiles of the three
// stages in the middle are groups of tiles (kernel::Kernel::most_slots). The kernels are
// python/syncopate/kernels/moe.py; here stands what each of them touches, group by group.
//
// `part` is a program of its own: "dispatch" leaves the rows at the experts' ranks, "combine" takes them from
// there; "kept" is all of it, and leaves what came and went for a backward pass.
#include <algorithm>

#include <fmt/format.h>

#include "ops/product.hpp"
#include "syncopate/at.hpp"
#include "syncopate/kernel/stated/statement.hpp"
#include "syncopate/plan/model/ragged.hpp"

namespace syncopate::ops {
namespace {

using kernel::stated::Statement;
using plan::Chunk;
using plan::Interval;

constexpr std::int64_t kTokens = 16;     // of a tile of `combine`, at most
constexpr std::int32_t kPrograms = 132;  // of a grid, where neither strategy nor problem says a number

constexpr std::int64_t kSharedBytes = 227 << 10;  // of a multiprocessor
constexpr std::int64_t kBarrierBytes = 2 << 10;   // of a program, beside what it loads
constexpr std::int64_t kMostBeside = 4;           // programs of one multiprocessor
constexpr std::int64_t kMovers = 2;               // those that move rows: one loads while another one stores

struct Sizes {
    explicit Sizes(const Problem& problem, const Strategy& strategy)
        : ranks(problem.ranks),
          tokens(problem.extent("T")),
          experts(problem.extent("E")),
          topk(problem.extent("topk")),
          hidden(problem.extent("H")),
          inner(problem.extent("F")),
          item(plan::size_of(problem.dtype)),
          tile(strategy.tiles.empty() ? TileConfig{} : strategy.tiles.front()),
          programs(strategy.programs.value_or(problem.num_sms > 0 ? problem.num_sms : kPrograms)) {
        bound = problem.extent("bound");
        const std::int64_t most = ranks * tokens * std::min(topk, own());
        if (bound == 0 || bound > most) bound = most;
    }
    [[nodiscard]] std::int64_t own() const { return experts / ranks; }  ///< experts of a rank
    [[nodiscard]] static std::int64_t blocks(std::int64_t rows, std::int64_t size) {
        return (rows + size - 1) / size;
    }
    /// Tiles of `combine`: as many as programs, where each then has no more than kTokens tokens.
    [[nodiscard]] std::int64_t combined() const {
        return std::min(tokens, std::max(kMovers * programs, blocks(tokens, kTokens)));
    }
    /// Programs of a product: as many on each multiprocessor as there is shared memory for, so that one loads
    /// while another ends a tile.
    [[nodiscard]] std::int64_t programs_of(std::int64_t products) const {
        const std::int64_t stage = (tile.block_m + products * tile.block_n) * tile.block_k * item;
        const std::int64_t fit = kSharedBytes / (stage * tile.stages + kBarrierBytes);
        return programs * std::clamp<std::int64_t>(fit, 1, kMostBeside);
    }

    std::int64_t ranks, tokens, experts, topk, hidden, inner, item;
    TileConfig tile;
    std::int64_t programs;
    std::int64_t bound = 0;  ///< rows that come to a rank at most
};

std::string objection(const Problem& problem) {
    const Sizes of(problem, {});
    if (problem.dtype != plan::DType::bf16 && problem.dtype != plan::DType::fp16 &&
        problem.dtype != plan::DType::fp32)
        return fmt::format("moe: expected dtype bf16, fp16 or fp32, got {}", plan::name_of(problem.dtype));
    if (of.experts % of.ranks != 0)
        return fmt::format("moe: E={} experts are no multiple of {} ranks", of.experts, of.ranks);
    if (of.topk > of.experts) return fmt::format("moe: topk={} of E={} experts", of.topk, of.experts);
    if (of.ranks * of.tokens * of.topk > std::int64_t{1} << 30)
        return fmt::format("moe: {} x {} x {} rows are more than tables can number", of.ranks, of.tokens,
                           of.topk);
    return {};
}

/// The plan's tensors, by the names that statements and kernels use.
class Moe {
public:
    Moe(const Problem& problem, const Strategy& strategy)
        : problem_(problem), of_(problem, strategy), part_(problem.word("part")) {
        plan_.mesh = mesh_of(problem);
        plan_.ranks.resize(static_cast<std::size_t>(problem.ranks));
    }

    Outline outline() {
        if (part_ != "combine") add_counts();
        if (part_ != "combine") add_dispatch();
        if (part_ != "dispatch") {
            if (part_ != "combine") add_inner();
            add_combine();
        }
        if (part_ == "dispatch" || part_ == "kept") keep();
        Outline made;
        made.plan = std::move(plan_);
        for (const Statement& stage : stages()) made.bindings.push_back(bindings_of(stage, made.plan));
        return made;
    }

    Result<fuse::StagedProgram> program(const Outline& outline) const {
        fuse::StagedProgram made;
        made.plan = outline.plan;
        const std::vector<Statement> statements = stages();
        for (std::size_t i = 0; i < statements.size(); ++i) {
            kernel::Arguments arguments;
            arguments.scalars = scalars();
            for (const auto& [param, name] : outline.bindings[i]) {
                const plan::Tensor& tensor = made.plan.tensors[at(*made.plan.find_tensor(name))];
                arguments.tensors[param] =
                    kernel::TensorArgument{.shape = tensor.shape, .dtype = tensor.dtype};
            }
            arguments.grid = {programs_of(statements[i].kernel), 1, 1};
            Result<kernel::Kernel> kernel = kernel::stated::analyse(statements[i], arguments);
            if (!kernel) return kernel.error();
            made.stages.push_back({*std::move(kernel), outline.bindings[i]});
        }
        return made;
    }

private:
    [[nodiscard]] std::int64_t programs_of(std::string_view kernel) const {
        if (kernel == "moe_up") return of_.programs_of(2);
        if (kernel == "moe_down") return of_.programs_of(1);
        return kernel == "moe_count" || kernel == "moe_layout" ? of_.programs : kMovers * of_.programs;
    }
    [[nodiscard]] Interval experts_of(std::int64_t rank) const {
        return {rank * of_.own(), (rank + 1) * of_.own()};
    }
    static Interval one(std::int64_t at) { return {at, at + 1}; }

    /// A tensor whose rows are grouped by the rank that sends them and an expert, or one entry a row.
    std::int32_t add_ragged(const char* name, std::vector<std::int64_t> row, plan::DType dtype,
                            std::int64_t rows, std::int64_t bound) {
        plan::Tensor tensor{name, {of_.ranks, of_.experts}, dtype};
        tensor.shape.insert(tensor.shape.end(), row.begin(), row.end());
        tensor.ragged = plan::Ragged{0, {"rows_from_rank", "expert"}, rows, bound};
        plan_.tensors.push_back(std::move(tensor));
        return static_cast<std::int32_t>(plan_.tensors.size()) - 1;
    }

    static void hold(std::vector<plan::Holding>& list, std::int64_t rank, std::int32_t tensor,
                     plan::Region region) {
        list.push_back({static_cast<std::int32_t>(rank), {tensor, std::move(region)}});
    }

    void push(std::int64_t from, std::int64_t to, std::int32_t tensor, plan::Region region) {
        const Chunk chunk{tensor, std::move(region)};
        plan::Op op;
        op.kind = plan::OpKind::push;
        op.peer = static_cast<std::int32_t>(to);
        op.src = chunk;
        op.dst = chunk;
        plan_.ranks[at(from)].push_back(std::move(op));
    }

    template <typename Each>
    void each_peer(Each each) const {  // those behind a rank first, so that no rank is asked by all at once
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank) {
            for (std::int64_t step = 1; step < of_.ranks; ++step) each(rank, (rank + step) % of_.ranks);
        }
    }

    /// What the caller may read until the next call.
    void keep() {
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank) {
            hold(plan_.final, rank, counts_, {{0, of_.ranks}, {0, of_.experts + 1}});
            hold(plan_.final, rank, x_, {{0, of_.ranks}, experts_of(rank), {0, of_.hidden}});
            hold(plan_.final, rank, origin_, {{0, of_.ranks}, experts_of(rank)});
            if (y_ >= 0) hold(plan_.final, rank, y_, {one(rank), {0, of_.experts}, {0, of_.hidden}});
        }
    }

    /// Of each rank a row: rows for each expert, then how many ids name none.
    void add_counts() {
        const std::int64_t columns = of_.experts + 1;
        plan_.tensors.push_back({"counts", {of_.ranks, columns}, plan::DType::int32});
        counts_ = static_cast<std::int32_t>(plan_.tensors.size()) - 1;
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank)
            hold(plan_.produced, rank, counts_, {one(rank), {0, columns}});
        each_peer([&](std::int64_t rank, std::int64_t peer) {
            push(rank, peer, counts_, {one(rank), {0, columns}});
        });
    }

    void add_dispatch() {
        const std::int64_t rows = plan::rows_for(of_.bound, of_.own(), of_.tile.block_m);
        x_ = add_ragged("X", {of_.hidden}, problem_.dtype, rows, of_.bound);
        origin_ = add_ragged("origin", {}, plan::DType::int32, rows, of_.bound);
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank) {
            hold(plan_.produced, rank, x_, {one(rank), {0, of_.experts}, {0, of_.hidden}});
            hold(plan_.produced, rank, origin_, {one(rank), {0, of_.experts}});
        }
        each_peer([&](std::int64_t rank, std::int64_t peer) {
            const Interval theirs = experts_of(peer);
            for (std::int64_t expert = theirs.begin; expert < theirs.end; ++expert) {
                push(rank, peer, x_, {one(rank), one(expert), {0, of_.hidden}});
                push(rank, peer, origin_, {one(rank), one(expert)});
            }
        });
    }

    void add_inner() {
        const std::int64_t rows = plan::rows_for(of_.bound, of_.own(), of_.tile.block_m);
        const std::int32_t inner = add_ragged("A", {of_.inner}, problem_.dtype, rows, of_.bound);
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank)
            hold(plan_.produced, rank, inner, {{0, of_.ranks}, experts_of(rank), {0, of_.inner}});
    }

    /// Rows that come back lie by the token and the place among its topk experts that they are of.
    void add_combine() {
        const std::int64_t routes = of_.tokens * of_.topk;
        y_ = add_ragged("Y", {of_.hidden}, problem_.dtype, routes, routes);
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank)
            hold(plan_.produced, rank, y_, {{0, of_.ranks}, experts_of(rank), {0, of_.hidden}});
        each_peer([&](std::int64_t rank, std::int64_t peer) {
            push(rank, peer, y_, {one(peer), experts_of(rank), {0, of_.hidden}});
        });
        // What a rank makes of its own tokens. The kernel stores it where the user wants it.
        const std::int64_t blocks = of_.combined();
        plan_.tensors.push_back({"done", {of_.ranks, blocks}, plan::DType::int32});
        const auto done = static_cast<std::int32_t>(plan_.tensors.size()) - 1;
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank)
            hold(plan_.produced, rank, done, {one(rank), {0, blocks}});
    }

    [[nodiscard]] std::map<std::string, kernel::Scalar> scalars() const {
        return {{"R", of_.ranks},
                {"E", of_.experts},
                {"EXPERTS", of_.own()},
                {"ROWS", of_.tokens * of_.topk},
                {"BOUND", of_.bound},
                {"BLOCKS", of_.combined()},
                {"PROGRAMS", of_.programs},
                {"BLOCK_M", std::int64_t{of_.tile.block_m}},
                {"UP", Sizes::blocks(of_.inner, of_.tile.block_n)},
                {"DOWN", Sizes::blocks(of_.hidden, of_.tile.block_n)}};
    }

    static Statement stage(const char* kernel, std::vector<std::string> tensors) {
        Statement made{.kernel = kernel, .file = "moe.py"};
        made.parameters = std::move(tensors);
        made.parameters.insert(made.parameters.end(), {"sy_schedule", "sy_control"});
        return made;
    }

    /// Experts of all ranks: a rank runs its own, as the plan says who makes what.
    static Statement grouped(const char* kernel, std::vector<std::string> tensors, const char* columns) {
        Statement made = stage(kernel, std::move(tensors));
        made.tiles = {{"e", "E"}};
        made.ragged = fmt::format("(E + BOUND // BLOCK_M)*{}", columns);
        return made;
    }

    [[nodiscard]] std::vector<Statement> stages() const {
        const std::vector<std::string> here{"s", "e", ":"};
        const std::vector<std::string> all{":", "e", ":"};
        const std::vector<std::string> numbers{":", "e"};
        std::vector<Statement> made;
        if (part_ != "combine") {
            Statement count = stage("moe_count", {"counts_ptr"});
            count.tiles = {{"s", "R"}, {"e", "E + 1"}};
            count.writes = {{"counts_ptr", {"s", "e"}}};
            count.sends = {"counts_ptr"};
            made.push_back(std::move(count));
        }
        Statement layout = stage("moe_layout", {"counts_ptr"});
        layout.tiles = {{"p", "PROGRAMS"}};
        layout.reads = {{"counts_ptr", {":", ":"}}};
        made.push_back(std::move(layout));
        if (part_ != "combine") {
            Statement dispatch = stage("moe_dispatch", {"x_ptr", "origin_ptr"});
            dispatch.tiles = {{"s", "R"}, {"e", "E"}};
            dispatch.writes = {{"x_ptr", here}, {"origin_ptr", {"s", "e"}}};
            dispatch.sends = {"x_ptr", "origin_ptr"};
            dispatch.ragged = "R*E + ROWS // BLOCK_M";
            made.push_back(std::move(dispatch));
        }
        if (part_ == "dispatch") return made;
        if (part_ != "combine") {
            Statement up = grouped("moe_up", {"x_ptr", "a_ptr"}, "UP");
            up.reads = {{"x_ptr", all}};
            up.writes = {{"a_ptr", all}};
            made.push_back(std::move(up));
        }
        const bool moves = part_ == "combine";
        Statement down = moves ? grouped("moe_return", {"y_ptr"}, "1")
                               : grouped("moe_down", {"a_ptr", "origin_ptr", "y_ptr"}, "DOWN");
        if (!moves) down.reads = {{"a_ptr", all}, {"origin_ptr", numbers}};
        down.writes = {{"y_ptr", all}};
        down.sends = {"y_ptr"};
        made.push_back(std::move(down));
        Statement combine = stage("moe_combine", {"y_ptr", "done_ptr"});
        combine.tiles = {{"s", "R"}, {"b", "BLOCKS"}};
        combine.reads = {{"y_ptr", {"s", ":", ":"}}};
        combine.writes = {{"done_ptr", {"s", "b"}}};
        made.push_back(std::move(combine));
        return made;
    }

    /// A parameter "x_ptr" is bound to the plan's tensor "X", "a_ptr" to "A", "counts_ptr" to "counts".
    static Bindings bindings_of(const Statement& stage, const plan::Plan& plan) {
        Bindings made;
        for (const std::string& param : stage.parameters) {
            if (!param.ends_with("_ptr")) continue;
            std::string name = param.substr(0, param.size() - 4);
            if (name.size() == 1) name.front() = static_cast<char>(name.front() - 'a' + 'A');
            if (plan.find_tensor(name)) made[param] = name;
        }
        return made;
    }

    const Problem& problem_;
    Sizes of_;
    std::string_view part_;
    plan::Plan plan_;
    std::int32_t counts_ = -1;
    std::int32_t x_ = -1;
    std::int32_t y_ = -1;
    std::int32_t origin_ = -1;
};

Status check_strategy(const Problem& problem, const Strategy& strategy) {
    if (std::string why = objection(problem); !why.empty()) return usage(std::move(why));
    if (strategy.kernel == ProductKernel::gluon)
        return usage("moe: its products are made by the plain kernel; there is none of kernel \"gluon\" yet");
    return Done{};
}

Result<Outline> outlined(const Problem& problem, const Strategy& strategy, const Call& /*call*/) {
    if (Status status = check_strategy(problem, strategy); !status) return status.error();
    return Moe(problem, strategy).outline();
}

Result<fuse::StagedProgram> programmed(const Problem& problem, const Strategy& strategy,
                                       const Call& /*call*/) {
    if (Status status = check_strategy(problem, strategy); !status) return status.error();
    Moe moe(problem, strategy);
    const Outline outline = moe.outline();
    return moe.program(outline);
}

}  // namespace

OperatorRow moe() {
    return {.name = "moe",
            .extents = {"T", "E", "topk", "H", "F", "bound"},
            .required = 5,
            .defaults = {0},
            .words = {"part"},
            .objection = objection,
            .outline = outlined,
            .program = programmed};
}

}  // namespace syncopate::ops
