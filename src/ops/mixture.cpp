#include "ops/mixture.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include <fmt/format.h>

#include "syncopate/at.hpp"
#include "syncopate/ops/mixture.hpp"
#include "syncopate/plan/model/ragged.hpp"

namespace syncopate::ops {
namespace {

constexpr std::int64_t kTokens = 16;     // of a tile of tokens, at most
constexpr std::int32_t kPrograms = 132;  // of a grid, where neither strategy nor problem says a number

// Of a strategy, which may come from a file.
constexpr std::int32_t kFewestRows = 16;  // of a tensor core's product
constexpr std::int32_t kMostRows = 256;   // and columns: more accumulators than a block has registers for
constexpr std::int32_t kMostStages = 8;
constexpr std::int32_t kMostPrograms = 1 << 16;

constexpr std::int64_t kSharedBytes = 227 << 10;  // of a multiprocessor
constexpr std::int64_t kBarrierBytes = 2 << 10;   // of a program, beside what it loads
constexpr std::int64_t kMostBeside = 4;           // programs of one multiprocessor
constexpr std::int64_t kMovers = 2;               // those that move rows: one loads while another one stores
constexpr std::int64_t kMuchSent = 32 << 20;      // bytes of a rank
constexpr std::int64_t kSentAtOnce = 256 << 10;   // then, by a program
constexpr std::int64_t kFewestSent = 8;           // rows
constexpr std::int64_t kMostSent = 64;

std::int64_t tiles_of_tokens(std::int64_t tokens, std::int64_t programs) {
    return std::min(tokens, std::max(kMovers * programs, MixtureSizes::blocks(tokens, kTokens)));
}

/// A parameter "x_ptr" is bound to the plan's tensor "X", "a_ptr" to "A", "counts_ptr" to "counts".
Bindings bindings_of(const kernel::stated::Statement& stage, const plan::Plan& plan) {
    Bindings made;
    for (const std::string& param : stage.parameters) {
        if (!param.ends_with("_ptr")) continue;
        std::string name = param.substr(0, param.size() - 4);
        if (name.size() == 1) name.front() = static_cast<char>(name.front() - 'a' + 'A');
        if (plan.find_tensor(name)) made[param] = name;
    }
    return made;
}

std::string dtype_objection(const Problem& problem, const MixtureSizes& of) {
    using plan::DType;
    if (problem.dtype != DType::fp8e4m3) {
        if (problem.dtype != DType::bf16 && problem.dtype != DType::fp16 && problem.dtype != DType::fp32)
            return fmt::format("moe: expected dtype bf16, fp16, fp32 or fp8e4m3, got {}",
                               plan::name_of(problem.dtype));
        if (problem.out != problem.dtype || problem.scales != Scales::none)
            return fmt::format("moe: only fp8e4m3 has scales and another out, not {}",
                               plan::name_of(problem.dtype));
        return {};
    }
    if (problem.out != DType::bf16 && problem.out != DType::fp16)
        return fmt::format("moe: expected out bf16 or fp16 for products of fp8e4m3, got {}",
                           plan::name_of(problem.out));
    const std::string_view part = problem.word("part");
    if (!part.empty() && part != "whole")
        return fmt::format("moe: part={} is of bf16, fp16 and fp32; of fp8e4m3 there is the whole", part);
    if (problem.scales == Scales::none) return "moe: products of fp8e4m3 take scales=row or scales=block";
    if (of.by_block && of.inner % kScaled != 0)
        return fmt::format(
            "moe: F={}{} is no multiple of {}, so that a block of scales of w1 has columns of both "
            "of its halves: use scales=row",
            of.inner, of.is_tensor_parallel ? " of a rank" : "", kScaled);
    return {};
}

std::string tile_objection(const TileConfig& tile) {
    if (tile.split_k > 1 || tile.num_wide >= 0) return "its tiles have one shape, and a whole reduction";
    for (const std::int32_t extent : {tile.block_m, tile.block_n, tile.block_k}) {
        if (extent < kFewestRows || extent > kMostRows ||
            !std::has_single_bit(static_cast<std::uint32_t>(extent)))
            return fmt::format("its tiles have powers of two of rows and columns, {} to {}, not {}",
                               kFewestRows, kMostRows, extent);
    }
    if (tile.stages < 1 || tile.stages > kMostStages)
        return fmt::format("its tiles have 1 to {} stages, not {}", kMostStages, tile.stages);
    return {};
}

/// What `up` makes of a tile has one scale a row, and a block of K is of one scale.
std::string scaled_objection(const TileConfig& tile) {
    if (tile.block_n != kScaled)
        return fmt::format("tiles of fp8e4m3 take block_n={}, the columns that share a scale, got block_n={}",
                           kScaled, tile.block_n);
    if (kScaled % tile.block_k != 0)
        return fmt::format(
            "tiles of fp8e4m3 take a block_k that divides {}, the elements along K that share a scale, got "
            "block_k={}",
            kScaled, tile.block_k);
    return {};
}

}  // namespace

MixtureSizes::MixtureSizes(const Problem& problem, const Strategy& strategy)
    : is_tensor_parallel(problem.word("parallel") == "tensor"),
      ranks(problem.ranks),
      tokens(problem.extent("T")),
      experts(problem.extent("E")),
      topk(problem.extent("topk")),
      hidden(problem.extent("H")),
      own(is_tensor_parallel ? experts : experts / ranks),
      inner(problem.extent("F") / (is_tensor_parallel ? ranks : 1)),
      item(plan::size_of(problem.dtype)),
      by_block(problem.scales == Scales::block),
      tile(strategy.tiles.empty() ? TileConfig{} : strategy.tiles.front()),
      programs(strategy.programs.value_or(problem.num_sms > 0 ? problem.num_sms : kPrograms)) {
    bound = problem.extent("bound");
    // A token may name an expert several times: all its routes may go to a rank, however few experts that has.
    const std::int64_t most = ranks * tokens * topk;
    if (bound == 0 || bound > most) bound = most;
}

std::int64_t mixture_block(std::int64_t tokens, std::int64_t programs) {
    return MixtureSizes::blocks(tokens, tiles_of_tokens(tokens, programs));
}

MixtureSending mixture_sending(std::int64_t routes, std::int64_t row_bytes, std::int64_t programs) {
    if (routes * row_bytes < kMuchSent)
        return {.rows = kFewestSent, .programs = kMovers * programs, .apart = false};
    const auto rows = std::bit_floor(static_cast<std::uint64_t>(kSentAtOnce / row_bytes));
    return {.rows = std::clamp(static_cast<std::int64_t>(rows), kFewestSent, kMostSent),
            .programs = std::max<std::int64_t>(1, programs / 4),  // of 132: as many as fill the link
            .apart = true};
}

MixtureSending mixture_sending(const Problem& problem, const Strategy& strategy) {
    return MixtureSizes(problem, strategy).sending();
}

MixtureSending MixtureSizes::sending() const {
    return mixture_sending(tokens * topk, hidden * item, programs);
}

std::int64_t MixtureSizes::combined() const { return tiles_of_tokens(tokens, programs); }

std::int64_t MixtureSizes::programs_of(std::int64_t products) const {
    const std::int64_t stage = (tile.block_m + products * tile.block_n) * tile.block_k * item;
    const std::int64_t fit = kSharedBytes / (stage * tile.stages + kBarrierBytes);
    return programs * std::clamp<std::int64_t>(fit, 1, kMostBeside);
}

std::int64_t MixtureSizes::programs_of(std::string_view kernel) const {
    if (kernel == "moe_up") return programs_of(2);
    if (kernel == "moe_down") return programs_of(1);
    if (kernel == "moe_dispatch") return sending().programs;
    return kernel == "moe_count" || kernel.ends_with("_layout") ? programs : kMovers * programs;
}

std::int64_t MixtureSizes::rows() const { return plan::rows_for(bound, own, tile.block_m); }

std::string mixture_objection(const Problem& problem) {
    const MixtureSizes of(problem, {});
    if (std::string why = dtype_objection(problem, of); !why.empty()) return why;
    if (of.is_tensor_parallel) {
        if (problem.extent("F") % of.ranks != 0)
            return fmt::format("moe: F={} columns of tensor parallel experts are no multiple of {} ranks",
                               problem.extent("F"), of.ranks);
        if (problem.extent("bound") != 0)
            return fmt::format("moe: bound={}: to tensor parallel experts all rows come on every rank",
                               problem.extent("bound"));
    } else if (of.experts % of.ranks != 0) {
        return fmt::format("moe: E={} experts are no multiple of {} ranks", of.experts, of.ranks);
    }
    if (of.topk > of.experts) return fmt::format("moe: topk={} of E={} experts", of.topk, of.experts);
    if (of.ranks * of.experts > std::int64_t{1} << 24)
        return fmt::format("moe: {} x E={} groups of rows are more than tables can number", of.ranks,
                           of.experts);
    // A route of tensor parallel experts has some words.
    if (of.ranks * of.tokens * of.topk > std::int64_t{1} << (of.is_tensor_parallel ? 29 : 30))
        return fmt::format("moe: {} x {} x {} rows are more than tables can number", of.ranks, of.tokens,
                           of.topk);
    return {};
}

std::string mixture_strategy_objection(const Problem& problem, const Strategy& strategy) {
    Strategy rest = strategy;
    rest.tiles.clear();
    rest.programs.reset();
    rest.kernel = ProductKernel::plain;
    if (rest != Strategy{})
        return fmt::format("it has a tile and programs, and nothing else: not {}", name_of(rest));
    if (strategy.tiles.size() > 1)
        return fmt::format("moe takes one tile, of both products, not {}", strategy.tiles.size());
    const MixtureSizes of(problem, strategy);
    if (of.programs < 1 || of.programs > kMostPrograms)
        return fmt::format("it has 1 to {} programs, not {}", kMostPrograms, of.programs);
    if (std::string why = tile_objection(of.tile); !why.empty()) return why;
    if (problem.scales != Scales::none) {
        if (std::string why = scaled_objection(of.tile); !why.empty()) return why;
    }
    // A slot's tile is its first row times the tiles across, plus one of these: of 32 bits.
    const std::int64_t across = std::max(MixtureSizes::blocks(of.inner, of.tile.block_n),
                                         MixtureSizes::blocks(of.hidden, of.tile.block_n));
    if (of.rows() > std::numeric_limits<std::int32_t>::max() / across)
        return fmt::format("{} rows of {} tiles are more than tables can number: give tiles more columns",
                           of.rows(), across);
    if (strategy.kernel == ProductKernel::gluon) {
        if (std::string why = mixture_gluon_objection(problem, of.tile); !why.empty())
            return "kernel \"gluon\": " + why;
    }
    return {};
}

std::string mixture_gluon_objection(const Problem& problem, const TileConfig& tile) {
    constexpr std::int64_t kRows = 128;  // of a tile, and its columns
    constexpr std::int64_t kDepth = 64;
    const std::int64_t inner = MixtureSizes(problem, {}).inner;
    const std::string_view part = problem.word("part");
    if (plan::size_of(problem.dtype) != 2) return "it takes elements of 16 bits";
    if (!part.empty() && part != "whole") return fmt::format("it makes no part={}", part);
    if (problem.extent("H") % kDepth != 0 || inner % kRows != 0)
        return fmt::format("it takes an H that is a multiple of {} and columns of {}, got {} and {}", kDepth,
                           kRows, problem.extent("H"), inner);
    if (tile.block_m != kRows || tile.block_n != kRows || tile.block_k != kDepth)
        return fmt::format("its tiles have {} rows and columns, and blocks of K of {}", kRows, kDepth);
    // A place of the ring is free when the products of the next one are on their way; more than 4 have no room.
    if (tile.stages < 2 || tile.stages > 4)
        return fmt::format("its tiles have from 2 to 4 stages, not {}", tile.stages);
    return {};
}

Mixture::Mixture(const Problem& problem, const Strategy& strategy)
    : problem_(problem), of_(problem, strategy), part_(problem.word("part")) {
    plan_.mesh = mesh_of(problem);
    plan_.ranks.resize(static_cast<std::size_t>(problem.ranks));
}

Result<fuse::StagedProgram> Mixture::program(const Outline& outline) const {
    fuse::StagedProgram made;
    made.plan = outline.plan;
    const std::vector<Statement> statements = stages();
    for (std::size_t i = 0; i < statements.size(); ++i) {
        kernel::Arguments arguments;
        arguments.scalars = scalars();
        for (const auto& [param, name] : outline.bindings[i]) {
            const plan::Tensor& tensor = made.plan.tensors[at(*made.plan.find_tensor(name))];
            arguments.tensors[param] = kernel::TensorArgument{.shape = tensor.shape, .dtype = tensor.dtype};
        }
        arguments.grid = {of_.programs_of(statements[i].kernel), 1, 1};
        Result<kernel::Kernel> kernel = kernel::stated::analyse(statements[i], arguments);
        if (!kernel) return kernel.error();
        made.stages.push_back({*std::move(kernel), outline.bindings[i]});
    }
    return made;
}

std::vector<std::string> Mixture::kernels() const {
    std::vector<std::string> made;
    for (const Statement& stage : stages()) made.push_back(stage.kernel);
    return made;
}

std::map<std::string, kernel::Scalar> Mixture::scalars() const {
    return {{"R", of_.ranks},
            {"E", of_.experts},
            {"EXPERTS", of_.own},
            {"ROWS", of_.tokens * of_.topk},
            {"BOUND", of_.bound},
            {"BLOCKS", of_.combined()},
            {"PROGRAMS", of_.programs},
            {"BLOCK_M", std::int64_t{of_.tile.block_m}},
            {"SENT", of_.sending().rows},
            {"UP", MixtureSizes::blocks(of_.inner, of_.tile.block_n)},
            {"DOWN", MixtureSizes::blocks(of_.hidden, of_.tile.block_n)}};
}

std::int32_t Mixture::add(const char* name, std::vector<std::int64_t> shape, plan::DType dtype) {
    plan_.tensors.push_back({name, std::move(shape), dtype});
    return static_cast<std::int32_t>(plan_.tensors.size()) - 1;
}

std::int32_t Mixture::add_ragged(const char* name, std::vector<std::string> groups,
                                 std::vector<std::int64_t> many, const std::vector<std::int64_t>& row,
                                 plan::DType dtype, std::int64_t rows, std::int64_t bound) {
    many.insert(many.end(), row.begin(), row.end());
    const std::int32_t made = add(name, std::move(many), dtype);
    plan_.tensors.back().ragged = plan::Ragged{0, std::move(groups), rows, bound};
    return made;
}

void Mixture::push(std::int64_t from, std::int64_t to, std::int32_t tensor, plan::Region region) {
    const plan::Chunk chunk{tensor, std::move(region)};
    plan::Op op;
    op.kind = plan::OpKind::push;
    op.peer = static_cast<std::int32_t>(to);
    op.src = chunk;
    op.dst = chunk;
    plan_.ranks[at(from)].push_back(std::move(op));
}

void Mixture::add_counts() {
    const std::int64_t columns = of_.experts + 1;
    counts_ = add("counts", {of_.ranks, columns}, plan::DType::int32);
    for (std::int64_t rank = 0; rank < of_.ranks; ++rank)
        hold(plan_.produced, rank, counts_, {one(rank), {0, columns}});
    each_peer(
        [&](std::int64_t rank, std::int64_t peer) { push(rank, peer, counts_, {one(rank), {0, columns}}); });
}

void Mixture::add_done(std::int64_t blocks) {
    const std::int32_t done = add("done", {of_.ranks, blocks}, plan::DType::int32);
    for (std::int64_t rank = 0; rank < of_.ranks; ++rank)
        hold(plan_.produced, rank, done, {one(rank), {0, blocks}});
}

Outline Mixture::finished() {
    Outline made;
    made.plan = std::move(plan_);
    for (const Statement& stage : stages()) made.bindings.push_back(bindings_of(stage, made.plan));
    return made;
}

kernel::stated::Statement Mixture::stage(const char* kernel, std::vector<std::string> tensors) {
    Statement made{.kernel = kernel, .file = "moe.py"};
    made.parameters = std::move(tensors);
    made.parameters.insert(made.parameters.end(), {"sy_schedule", "sy_control"});
    return made;
}

void Mixture::with(Statement& stage, std::vector<kernel::stated::Access>& accesses, const char* param,
                   const std::vector<std::string>& ranges) {
    stage.parameters.insert(stage.parameters.begin(), param);
    accesses.push_back({param, ranges});
}

kernel::stated::Statement Mixture::grouped(const char* kernel, std::vector<std::string> tensors,
                                           const char* columns) {
    Statement made = stage(kernel, std::move(tensors));
    made.tiles = {{"e", "E"}};
    made.ragged = fmt::format("(E + BOUND // BLOCK_M)*{}", columns);
    return made;
}

kernel::stated::Statement Mixture::counting() {
    Statement count = stage("moe_count", {"counts_ptr"});
    count.tiles = {{"s", "R"}, {"e", "E + 1"}};
    count.writes = {{"counts_ptr", {"s", "e"}}};
    count.sends = {"counts_ptr"};
    return count;
}

}  // namespace syncopate::ops
