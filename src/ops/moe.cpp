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
// Rows of fp8 bring their scales with them, and what `up` makes gets one for each kScaled columns of a row.
//
// `part` is a program of its own: "dispatch" leaves the rows at the experts' ranks, "combine" takes them from
// there; "kept" is all of it, and leaves what came and went for a backward pass.
#include <fmt/format.h>

#include "ops/mixture.hpp"
#include "syncopate/ops/mixture.hpp"

namespace syncopate::ops {
namespace {

using plan::Interval;

/// The plan's tensors, by the names that statements and kernels use.
class Moe final : public Mixture {
public:
    Moe(const Problem& problem, const Strategy& strategy) : Mixture(problem, strategy) {}

    Outline outline() override {
        if (part_ != "combine") add_counts();
        if (part_ != "combine") add_dispatch();
        if (part_ != "dispatch") {
            if (part_ != "combine") add_inner();
            add_combine();
        }
        if (part_ == "dispatch" || part_ == "kept") keep();
        return finished();
    }

private:
    [[nodiscard]] Interval experts_of(std::int64_t rank) const {
        return {rank * of_.own, (rank + 1) * of_.own};
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

    void add_dispatch() {
        x_ = add_routed("X", {of_.hidden}, problem_.dtype, of_.rows(), of_.bound);
        if (is_scaled())
            x_scale_ = add_routed("x_scale", {of_.x_scales()}, plan::DType::fp32, of_.rows(), of_.bound);
        origin_ = add_routed("origin", {}, plan::DType::int32, of_.rows(), of_.bound);
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank) {
            hold(plan_.produced, rank, x_, {one(rank), {0, of_.experts}, {0, of_.hidden}});
            if (is_scaled())
                hold(plan_.produced, rank, x_scale_, {one(rank), {0, of_.experts}, {0, of_.x_scales()}});
            hold(plan_.produced, rank, origin_, {one(rank), {0, of_.experts}});
        }
        each_peer([&](std::int64_t rank, std::int64_t peer) {
            const Interval theirs = experts_of(peer);
            for (std::int64_t expert = theirs.begin; expert < theirs.end; ++expert) {
                push(rank, peer, x_, {one(rank), one(expert), {0, of_.hidden}});
                if (is_scaled()) push(rank, peer, x_scale_, {one(rank), one(expert), {0, of_.x_scales()}});
                push(rank, peer, origin_, {one(rank), one(expert)});
            }
        });
    }

    void add_inner() {
        make("A", of_.inner, problem_.dtype);
        if (is_scaled()) make("a_scale", of_.a_scales(), plan::DType::fp32);
    }

    /// Of the rows that have come, on their experts' ranks.
    void make(const char* name, std::int64_t width, plan::DType dtype) {
        const std::int32_t made = add_routed(name, {width}, dtype, of_.rows(), of_.bound);
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank)
            hold(plan_.produced, rank, made, {{0, of_.ranks}, experts_of(rank), {0, width}});
    }

    /// Rows that come back lie by the token and the place among its topk experts that they are of.
    void add_combine() {
        const std::int64_t routes = of_.tokens * of_.topk;
        y_ = add_routed("Y", {of_.hidden}, problem_.out, routes, routes);
        for (std::int64_t rank = 0; rank < of_.ranks; ++rank)
            hold(plan_.produced, rank, y_, {{0, of_.ranks}, experts_of(rank), {0, of_.hidden}});
        each_peer([&](std::int64_t rank, std::int64_t peer) {
            push(rank, peer, y_, {one(peer), experts_of(rank), {0, of_.hidden}});
        });
        add_done(of_.combined());
    }

    [[nodiscard]] std::vector<Statement> stages() const override {
        const std::vector<std::string> here{"s", "e", ":"};
        const std::vector<std::string> all{":", "e", ":"};
        const std::vector<std::string> numbers{":", "e"};
        std::vector<Statement> made;
        if (part_ != "combine") made.push_back(counting());
        Statement layout = stage("moe_layout", {"counts_ptr"});
        layout.tiles = {{"p", "PROGRAMS"}};
        layout.reads = {{"counts_ptr", {":", ":"}}};
        made.push_back(std::move(layout));
        if (part_ != "combine") {
            Statement dispatch = stage("moe_dispatch", {"x_ptr", "origin_ptr"});
            dispatch.tiles = {{"s", "R"}, {"e", "E"}};
            dispatch.writes = {{"x_ptr", here}, {"origin_ptr", {"s", "e"}}};
            dispatch.sends = {"x_ptr", "origin_ptr"};
            dispatch.ragged = "R*E + ROWS // SENT";
            dispatch.starts_next = true;
            if (is_scaled()) {
                with(dispatch, dispatch.writes, "x_scale_ptr", here);
                dispatch.sends.emplace_back("x_scale_ptr");
            }
            made.push_back(std::move(dispatch));
        }
        if (part_ == "dispatch") return made;
        if (part_ != "combine") {
            Statement up = grouped("moe_up", {"x_ptr", "a_ptr"}, "UP");
            up.reads = {{"x_ptr", all}};
            up.writes = {{"a_ptr", all}};
            if (is_scaled()) {
                with(up, up.reads, "x_scale_ptr", all);
                with(up, up.writes, "a_scale_ptr", all);
            }
            made.push_back(std::move(up));
        }
        const bool moves = part_ == "combine";
        Statement down = moves ? grouped("moe_return", {"y_ptr"}, "1")
                               : grouped("moe_down", {"a_ptr", "origin_ptr", "y_ptr"}, "DOWN");
        if (!moves) down.reads = {{"a_ptr", all}, {"origin_ptr", numbers}};
        down.writes = {{"y_ptr", all}};
        if (!moves && is_scaled()) with(down, down.reads, "a_scale_ptr", all);
        down.sends = {"y_ptr"};
        made.push_back(std::move(down));
        Statement combine = stage("moe_combine", {"y_ptr", "done_ptr"});
        combine.tiles = {{"s", "R"}, {"b", "BLOCKS"}};
        combine.reads = {{"y_ptr", {"s", ":", ":"}}};
        combine.writes = {{"done_ptr", {"s", "b"}}};
        made.push_back(std::move(combine));
        return made;
    }

    std::int32_t x_ = -1;
    std::int32_t x_scale_ = -1;
    std::int32_t y_ = -1;
    std::int32_t origin_ = -1;
};

Status check_strategy(const Problem& problem, const Strategy& strategy) {
    std::string why = mixture_objection(problem);
    if (why.empty()) why = mixture_strategy_objection(problem, strategy);
    return why.empty() ? Status(Done{}) : usage(why.starts_with("moe") ? why : "moe: " + why);
}

std::unique_ptr<Mixture> mixture(const Problem& problem, const Strategy& strategy) {
    if (problem.word("parallel") == "tensor") return tensor_mixture(problem, strategy);
    return expert_mixture(problem, strategy);
}

Result<Outline> outlined(const Problem& problem, const Strategy& strategy, const Call& /*call*/) {
    if (Status status = check_strategy(problem, strategy); !status) return status.error();
    return mixture(problem, strategy)->outline();
}

Result<fuse::StagedProgram> programmed(const Problem& problem, const Strategy& strategy,
                                       const Call& /*call*/) {
    if (Status status = check_strategy(problem, strategy); !status) return status.error();
    const std::unique_ptr<Mixture> made = mixture(problem, strategy);
    const Outline outline = made->outline();
    return made->program(outline);
}

}  // namespace

std::unique_ptr<Mixture> expert_mixture(const Problem& problem, const Strategy& strategy) {
    return std::make_unique<Moe>(problem, strategy);
}

OperatorRow moe() {
    return {.name = "moe",
            .extents = {"T", "E", "topk", "H", "F", "bound"},
            .required = 5,
            .defaults = {0},
            .words = {"part", "parallel"},
            .routes = true,
            .scaled = true,
            .objection = mixture_objection,
            .outline = outlined,
            .program = programmed,
            .activations = {"relu", "silu"},
            .operands = {"x", "topk_ids", "topk_weights", "w1", "w2", "scale_x", "scale_w1", "scale_w2", "y"},
            .exact_rows = true,
            .parameters = mixture_parameters,
            .seen = kSeen,
            .judge = mixture_verdict};
}

}  // namespace syncopate::ops
