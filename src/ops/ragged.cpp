#include "syncopate/ops/ragged.hpp"

#include <algorithm>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/kernel/stated/statement.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

using kernel::stated::Statement;
using plan::Interval;
using plan::Region;

/// Of what a rank has made, an expert each: nothing is stored there, but it says on which rank an expert's tiles run.
constexpr const char* kMade = "made";

class Lowering {
public:
    explicit Lowering(const RaggedRows& of) : of_(of) {}

    /// `stored`: the dtype of what the user's kernel makes.
    plan::Plan plan(const plan::Plan& given, plan::DType stored) {
        made_.mesh = given.mesh;
        made_.ranks.resize(at(of_.ranks));
        const std::int32_t counts = add({of_.counts, {of_.ranks, of_.experts + 1}, plan::DType::int32});
        const std::int32_t rows = add({of_.tensor,
                                       {of_.ranks, of_.experts, of_.columns},
                                       of_.dtype,
                                       plan::Ragged{0, {"rows_from_rank", "expert"}, of_.rows, of_.bound}});
        const std::int32_t product = add({made_name(), {of_.experts}, stored});
        const Interval columns{0, of_.columns};
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank) {
            const Interval self{rank, rank + 1};
            const Region told{self, {0, of_.experts + 1}};
            hold(made_.produced, rank, counts, told);
            hold(made_.produced, rank, rows, {self, {0, of_.experts}, columns});
            hold(made_.produced, rank, product, {experts_of(rank)});
            if (of_.kept) hold(made_.final, rank, rows, {{0, of_.ranks}, experts_of(rank), columns});
            for (std::int64_t step = 1; step < of_.ranks; ++step) {
                const std::int64_t peer = (rank + step) % of_.ranks;
                push(rank, peer, counts, told);
                const Interval theirs = experts_of(peer);
                for (std::int64_t expert = theirs.begin; expert < theirs.end; ++expert)
                    push(rank, peer, rows, {self, {expert, expert + 1}, columns});
            }
        }
        return std::move(made_);
    }

    [[nodiscard]] std::string made_name() const {
        return of_.tensor == kMade || of_.counts == kMade ? "made_by" : kMade;
    }

private:
    [[nodiscard]] Interval experts_of(std::int64_t rank) const {
        return {rank * of_.own, (rank + 1) * of_.own};
    }

    std::int32_t add(plan::Tensor tensor) {
        made_.tensors.push_back(std::move(tensor));
        return static_cast<std::int32_t>(made_.tensors.size()) - 1;
    }

    static void hold(std::vector<plan::Holding>& list, std::int64_t rank, std::int32_t tensor,
                     Region region) {
        list.push_back({static_cast<std::int32_t>(rank), {tensor, std::move(region)}});
    }

    void push(std::int64_t from, std::int64_t to, std::int32_t tensor, const Region& region) {
        plan::Op op;
        op.kind = plan::OpKind::push;
        op.peer = static_cast<std::int32_t>(to);
        op.src = op.dst = {tensor, region};
        made_.ranks[at(from)].push_back(std::move(op));
    }

    const RaggedRows& of_;
    plan::Plan made_;
};

Statement stage_of(const char* kernel, const char* param) {
    return {.kernel = kernel, .file = "ragged.py", .parameters = {param, "sy_schedule", "sy_control"}};
}

}  // namespace

Result<RaggedProgram> ragged_program(const emit::StageText& stage, const plan::Plan& plan,
                                     std::int64_t programs) {
    RaggedProgram made;
    SYNCOPATE_TAKE(made.of, ragged_rows(plan));
    const RaggedRows& of = made.of;
    SYNCOPATE_TAKE(made.user, ragged_kernel(stage, of));
    Lowering lowering(of);
    made.program.plan = lowering.plan(plan, made.user.kernel.arguments.tensors.at(made.user.makes).dtype);

    Statement counts = stage_of("ragged_counts", "counts_ptr");
    counts.tiles = {{"s", "R"}};
    counts.writes = {{"counts_ptr", {"s", ":"}}};
    counts.sends = {"counts_ptr"};
    Statement layout = stage_of("ragged_layout", "counts_ptr");
    layout.tiles = {{"p", "PROGRAMS"}};
    layout.reads = {{"counts_ptr", {":", ":"}}};
    Statement rows = stage_of("ragged_rows", "x_ptr");
    rows.tiles = {{"s", "R"}, {"e", "E"}};
    rows.writes = {{"x_ptr", {"s", "e", ":"}}};
    rows.sends = {"x_ptr"};
    rows.ragged = "R*E + BOUND // TILE";
    const std::int64_t one = 1;
    for (const auto& [statement, grid] :
         {std::pair(&counts, one), std::pair(&layout, programs), std::pair(&rows, programs)}) {
        kernel::Arguments arguments;
        arguments.scalars = {{"R", of.ranks},
                             {"E", of.experts},
                             {"BOUND", of.bound},
                             {"TILE", kRaggedTile},
                             {"PROGRAMS", programs}};
        const std::string& param = statement->parameters.front();
        const std::string& name = param == "x_ptr" ? of.tensor : of.counts;
        const plan::Tensor& tensor = made.program.plan.tensors[at(*made.program.plan.find_tensor(name))];
        arguments.tensors[param] =
            kernel::TensorArgument{.shape = tensor.shape, .strides = {}, .dtype = tensor.dtype, .block = {}};
        arguments.grid = {grid, 1, 1};
        SYNCOPATE_TAKE(auto kernel, kernel::stated::analyse(*statement, arguments));
        made.program.stages.push_back({std::move(kernel), {{param, name}}});
    }
    made.program.stages.push_back(
        {made.user.kernel, {{made.user.reads, of.tensor}, {made.user.makes, lowering.made_name()}}});
    return made;
}

}  // namespace syncopate::ops
