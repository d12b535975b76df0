#include "syncopate/ops/ragged.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "ops/ragged_told.hpp"
#include "syncopate/at.hpp"
#include "syncopate/kernel/stated/statement.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

using kernel::stated::Statement;
using plan::Interval;
using plan::Region;

/// The plan that says what each stage makes and what it sends.
class Lowering {
public:
    explicit Lowering(const RaggedRows& of) : of_(of) {}

    /// `stored`: the dtypes of what the user's kernels make. `programs`: of the stage that copies what came back.
    plan::Plan plan(const plan::Mesh& mesh, const std::vector<plan::DType>& stored, std::int64_t programs) {
        plan_.mesh = mesh;
        plan_.ranks.resize(at(of_.ranks));
        add_counts();
        for (const RaggedTensor* one : of_.brought()) add_rows(*one);
        for (std::size_t user = 0; user < stored.size(); ++user)
            add_made(made(user), stored[user], of_.back && user + 1 == stored.size());
        if (of_.back) add_back(programs);
        return std::move(plan_);
    }

    /// What the user's kernel of that number makes. Of what goes back it is the rows; of all else, which lies where the user
    /// has it, only that it is made.
    [[nodiscard]] std::string made(std::size_t user) const {
        return unused(user == 0 ? "made" : "made" + std::to_string(user));
    }
    /// What the last stage has copied.
    [[nodiscard]] std::string taken() const { return unused("taken"); }

private:
    [[nodiscard]] std::string unused(std::string name) const {
        const auto taken = [&] {
            return name == of_.rows.name || name == of_.counts || (of_.more && name == of_.more->name) ||
                   (of_.back && name == of_.back->name);
        };
        while (taken()) name += "_";
        return name;
    }

    [[nodiscard]] Interval experts_of(std::int64_t rank) const {
        return {rank * of_.own, (rank + 1) * of_.own};
    }

    static Interval one(std::int64_t at) { return {at, at + 1}; }

    std::int32_t add(std::string name, std::vector<std::int64_t> shape, plan::DType dtype) {
        plan_.tensors.push_back({std::move(name), std::move(shape), dtype});
        return static_cast<std::int32_t>(plan_.tensors.size()) - 1;
    }

    std::int32_t add_ragged(const std::string& name, const RaggedTensor& like) {
        const std::int32_t made = add(name, {of_.ranks, of_.experts, like.columns}, like.dtype);
        plan_.tensors.back().ragged = plan::Ragged{0, {"rows_from_rank", "expert"}, like.rows, of_.bound};
        return made;
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
        plan_.ranks[at(from)].push_back(std::move(op));
    }

    /// Those behind a rank first, so that no rank is asked by all at once.
    template <typename Each>
    void each_peer(Each each) const {
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank) {
            for (std::int64_t step = 1; step < of_.ranks; ++step) each(rank, (rank + step) % of_.ranks);
        }
    }

    void add_counts() {
        const std::int32_t counts = add(of_.counts, {of_.ranks, of_.experts + 1}, plan::DType::int32);
        const Interval all{0, of_.experts + 1};
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank)
            hold(plan_.produced, rank, counts, {one(rank), all});
        each_peer([&](std::int64_t rank, std::int64_t peer) { push(rank, peer, counts, {one(rank), all}); });
    }

    void add_rows(const RaggedTensor& brought) {
        const std::int32_t rows = add_ragged(brought.name, brought);
        const Interval columns{0, brought.columns};
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank) {
            hold(plan_.produced, rank, rows, {one(rank), {0, of_.experts}, columns});
            if (brought.kept) hold(plan_.final, rank, rows, {{0, of_.ranks}, experts_of(rank), columns});
        }
        each_peer([&](std::int64_t rank, std::int64_t peer) {
            const Interval theirs = experts_of(peer);
            for (std::int64_t expert = theirs.begin; expert < theirs.end; ++expert)
                push(rank, peer, rows, {one(rank), one(expert), columns});
        });
    }

    void add_made(const std::string& name, plan::DType stored, bool goes_back) {
        const std::int32_t made =
            goes_back
                ? add_ragged(name, {of_.back->name, of_.back->columns, of_.rows.rows, of_.back->dtype, false})
                : add(name, {of_.experts}, stored);
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank) {
            const Interval own = experts_of(rank);
            hold(plan_.produced, rank, made,
                 goes_back ? Region{{0, of_.ranks}, own, {0, of_.back->columns}} : Region{own});
        }
    }

    void add_back(std::int64_t programs) {
        const std::int32_t back = add_ragged(of_.back->name, *of_.back);
        const std::int32_t taken = add(this->taken(), {of_.ranks, programs}, plan::DType::int32);
        const Interval columns{0, of_.back->columns};
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank) {
            hold(plan_.produced, rank, back, {{0, of_.ranks}, experts_of(rank), columns});
            hold(plan_.produced, rank, taken, {one(rank), {0, programs}});
        }
        each_peer([&](std::int64_t rank, std::int64_t peer) {
            const Interval own = experts_of(rank);
            for (std::int64_t expert = own.begin; expert < own.end; ++expert)
                push(rank, peer, back, {one(peer), one(expert), columns});
        });
    }

    const RaggedRows& of_;
    plan::Plan plan_;
};

constexpr std::int64_t kLayouts = 32;  // programs that write tables: those are small

/// As mixtures' rows. Beside a kernel that is launched with as many programs as there are multiprocessors, each of which has its
/// share of the tiles, none has one of its own.
MixtureSending sending_of(const RaggedRows& of, const RaggedKernel& first, std::int64_t programs) {
    std::int64_t bytes = 0;  // of a row
    for (const RaggedTensor* const one : of.brought())
        bytes += one->columns * static_cast<std::int64_t>(plan::size_of(one->dtype));
    const bool in_turns = first.groups > 1 && !first.kernel.persistent;
    return mixture_sending(in_turns ? of.bound / of.ranks : 0, bytes, programs);
}

/// The library's stages (python/syncopate/kernels/ragged.py).
class Stages {
public:
    Stages(const RaggedRows& of, std::int64_t programs, const MixtureSending& sending, const plan::Plan& plan)
        : of_(of), programs_(programs), sending_(sending), plan_(plan) {}

    Result<fuse::Stage> counts() const {
        Statement made = stage_of("ragged_counts", {"counts_ptr"});
        made.tiles = {{"s", "R"}};
        made.writes = {{"counts_ptr", {"s", ":"}}};
        made.sends = {"counts_ptr"};
        return stage(made, {of_.counts}, 1);
    }

    Result<fuse::Stage> layout() const {
        Statement made = stage_of("ragged_layout", {"counts_ptr"});
        made.tiles = {{"p", "PROGRAMS"}};
        made.reads = {{"counts_ptr", {":", ":"}}};
        return stage(made, {of_.counts}, std::min(programs_, kLayouts));
    }

    /// `by_expert`: what reads them waits for an expert's rows alone, and starts beside it.
    Result<fuse::Stage> rows(bool by_expert) const {
        Statement made = stage_of("ragged_rows", {"x_ptr"});
        made.tiles = {{"s", "R"}, {"e", "E"}};
        made.writes = {{"x_ptr", {"s", "e", ":"}}};
        made.sends = {"x_ptr"};
        made.ragged = "R*E + ROWS // SENT";  // of this rank's own rows, which may be more than the bound
        made.starts_next = by_expert;
        std::vector<std::string> tensors{of_.rows.name};
        if (of_.more) {
            made.parameters.insert(made.parameters.begin() + 1, "more_ptr");
            made.writes.push_back({"more_ptr", made.writes.front().ranges});
            made.sends.emplace_back("more_ptr");
            tensors.push_back(of_.more->name);
        }
        return stage(made, tensors, sending_.programs);
    }

    Result<fuse::Stage> back(const std::string& product) const {
        Statement made = stage_of("ragged_back", {"made_ptr", "y_ptr"});
        made.tiles = {{"e", "E"}, {"s", "R"}};
        made.reads = {{"made_ptr", {"s", "e", ":"}}};
        made.writes = {{"y_ptr", {"s", "e", ":"}}};
        made.sends = {"y_ptr"};
        made.ragged = "R*E + BOUND // TILE";
        return stage(made, {product, of_.back->name}, programs_);
    }

    Result<fuse::Stage> take(const std::string& taken) const {
        Statement made = stage_of("ragged_take", {"y_ptr", "taken_ptr"});
        made.tiles = {{"s", "R"}, {"p", "PROGRAMS"}};
        made.reads = {{"y_ptr", {"s", ":", ":"}}};
        made.writes = {{"taken_ptr", {"s", "p"}}};
        return stage(made, {of_.back->name, taken}, programs_);
    }

private:
    static Statement stage_of(const char* kernel, std::vector<std::string> params) {
        Statement made{.kernel = kernel, .file = "ragged.py", .parameters = std::move(params)};
        made.parameters.insert(made.parameters.end(), {"sy_schedule", "sy_control"});
        return made;
    }

    /// `tensors`: of its first parameters.
    [[nodiscard]] Result<fuse::Stage> stage(const Statement& statement,
                                            const std::vector<std::string>& tensors,
                                            std::int64_t grid) const {
        kernel::Arguments arguments;
        arguments.scalars = {{"R", of_.ranks},        {"E", of_.experts},    {"BOUND", of_.bound},
                             {"ROWS", of_.rows.rows}, {"TILE", kRaggedTile}, {"SENT", sending_.rows},
                             {"PROGRAMS", grid}};
        arguments.grid = {grid, 1, 1};
        fuse::Stage made;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            const plan::Tensor& tensor = plan_.tensors[at(*plan_.find_tensor(tensors[i]))];
            arguments.tensors[statement.parameters[i]] = kernel::TensorArgument{
                .shape = tensor.shape, .strides = {}, .dtype = tensor.dtype, .block = {}};
            made.bindings[statement.parameters[i]] = tensors[i];
        }
        SYNCOPATE_TAKE(made.kernel, kernel::stated::analyse(statement, arguments));
        return made;
    }

    const RaggedRows& of_;
    std::int64_t programs_;
    MixtureSending sending_;
    const plan::Plan& plan_;
};

}  // namespace

Result<RaggedProgram> ragged_program(std::span<const emit::StageText> stages, const plan::Plan& plan,
                                     std::int64_t programs) {
    RaggedProgram made;
    SYNCOPATE_TAKE(made.of, ragged_rows(plan));
    // Of kernels that others follow nothing goes back.
    RaggedRows alone = made.of;
    alone.back.reset();
    std::vector<plan::DType> stored;
    for (const emit::StageText& stage : stages) {
        const RaggedRows& of = &stage == &stages.back() ? made.of : alone;
        SYNCOPATE_TAKE(RaggedKernel user,
                       made.users.empty() ? ragged_kernel(stage, of) : ragged_follower(stage, of));
        for (const RaggedTold& told : user.told) {
            if (told.block == 0) continue;
            if (made.block > 0 && made.block != told.block)
                return kernel::error_at(
                    *user.kernel.find_param(told.param),
                    fmt::format("{}: blocks of {} rows, and others are told of blocks of {}: one "
                                "size is for all",
                                told.param, told.block, made.block));
            made.block = told.block;
            made.blocks = most_blocks(made.of.own, made.of.bound, told.block);
        }
        stored.push_back(user.kernel.arguments.tensors.at(user.makes).dtype);
        made.users.push_back(std::move(user));
    }
    Lowering lowering(made.of);
    made.program.plan = lowering.plan(plan.mesh, stored, programs);
    made.made = lowering.made(stages.size() - 1);
    for (const RaggedTensor* const one : made.of.brought()) {
        const auto reads = [&](const RaggedKernel& user) {
            return std::ranges::any_of(user.reads,
                                       [&](const auto& read) { return read.second == one->name; });
        };
        if (std::ranges::none_of(made.users, reads))
            return Error{
                fmt::format("bind: no parameter is bound to {}: its rows would be read by nobody", one->name),
                {.file = stages.front().file}};
    }
    made.sending = sending_of(made.of, made.users.front(), programs);
    const Stages own(made.of, programs, made.sending, made.program.plan);
    std::vector<Result<fuse::Stage>> all{own.counts(), own.layout(), own.rows(made.users.front().groups > 1)};
    for (std::size_t user = 0; user < made.users.size(); ++user) {
        const RaggedKernel& one = made.users[user];
        fuse::Stage stage{one.kernel, {{one.makes, lowering.made(user)}}};
        for (const auto& [param, tensor] : one.reads) stage.bindings[param] = tensor;
        all.emplace_back(std::move(stage));
    }
    if (made.of.back) {
        made.taken = lowering.taken();
        all.push_back(own.back(made.made));
        all.push_back(own.take(made.taken));
    }
    for (Result<fuse::Stage>& one : all) {
        if (!one) return one.error();
        made.program.stages.push_back(*std::move(one));
    }
    return made;
}

}  // namespace syncopate::ops
