// Complete: what a strategy leaves open, by the same estimate that chooses.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "syncopate/fuse/fuse.hpp"
#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/fuse/passes/channel.hpp"
#include "syncopate/ops/attention.hpp"
#include "syncopate/tune/candidates/gluon_tiles.hpp"
#include "syncopate/tune/candidates/mixture.hpp"
#include "syncopate/tune/candidates/tiles.hpp"
#include "syncopate/tune/choose.hpp"
#include "syncopate/tune/play/attention.hpp"
#include "syncopate/tune/play/estimate.hpp"
#include "tune/play/operator_play.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {
namespace {

using Kind = OperatorRow::Kind;
using plan::Backend;

bool reduces(Kind kind) { return kind == Kind::scatters || kind == Kind::reduces; }

/// The fewest blocks with which the chunk engine is nearly as fast as with any number.
std::int32_t enough_blocks(const Machine& machine) {
    constexpr double kNearly = 0.9;
    const auto& points = machine.rates.engine_gbps.points;
    double most = 0;
    for (const auto& [blocks, gbps] : points) most = std::max(most, gbps);
    for (const auto& [blocks, gbps] : points) {
        if (gbps >= kNearly * most) return static_cast<std::int32_t>(blocks);
    }
    return 1;
}

/// The quicker of two, each with what it leaves open as by default.
Strategy quicker(const Problem& problem, const Machine& machine, Strategy usual, const Strategy& other) {
    if (!strategy_objection(problem, other).empty()) return usual;
    const auto one_part = [](Strategy strategy) {
        if (!strategy.split) strategy.split = 1;
        return strategy;
    };
    const double us = estimate(problem, machine, one_part(usual)).us;
    if (least_us(problem, machine, one_part(other)) >= us) return usual;
    return estimate(problem, machine, one_part(other)).us < us ? other : usual;
}

/// The quickest tiles of each product.
std::vector<TileConfig> quickest_of_each(const Problem& problem, const Machine& machine, const Strategy& made,
                                         const ChooseOptions& options) {
    const Kind kind = operator_row(problem.op)->kind;
    const std::vector<ProductShape> shapes = problem.products();
    const bool fused = made.placement == Placement::fused;
    const bool sends = reduces(kind) || kind == Kind::sends;
    const bool in_turns = made.one_step || made.kernel_sums || made.backend == Backend::tma_inline;
    const auto quickest = [&](const ProductShape& shape, ProductPlace place) {
        return made.kernel == ProductKernel::gluon
                   ? quickest_gluon_tiles(machine, problem.operands(), shape, *made.programs, place)
                   : quickest_tiles(machine, problem.dtype, shape, *made.programs, options.exact_fp32);
    };
    std::vector<TileConfig> tiles;
    for (const ProductShape& shape : shapes) {
        ProductPlace place = ProductPlace::apart;
        if (fused && !sends && !made.together && &shape == &shapes.front()) place = ProductPlace::awaits;
        if (fused && sends && &shape == &shapes.back())
            place = in_turns ? ProductPlace::in_turns : ProductPlace::departs;
        tiles.push_back(quickest(shape, place));
        const std::int64_t rows = shape.m / problem.ranks;
        if (stores_at_owners(kind, made) && rows > 0 && rows % tiles.back().block_m != 0)
            tiles.back() = quickest({rows, shape.n, shape.k}, ProductPlace::apart);
    }
    return tiles;
}

/// How what a product makes leaves a device, where that is open: copied, or stored at its destination tile by
/// tile; and an all-reduce in how many parts.
/// `open`: its tiles are, too.
Strategy with_departure(const Problem& problem, const Machine& machine, Kind kind, const Strategy& made,
                        const ChooseOptions* open) {
    Strategy best = made;
    if (kind == Kind::reduces && !made.split) {
        for (const std::int32_t split : {2, 4}) {
            Strategy other = made;
            other.split = split;
            best = quicker(problem, machine, best, other);
        }
    }
    if (made.stored != 0 || best.split.value_or(1) > 1) return best;
    Strategy other = made;
    other.backend = Backend::tma_inline;
    if (open != nullptr) other.tiles = quickest_of_each(problem, machine, other, *open);
    return quicker(problem, machine, best, other);
}

/// The plain kernel's strategy where the Gluon one does not run. Tiles are chosen anew, but on the host,
/// where any do.
Strategy by_plain_kernel(Strategy made, bool cuda) {
    made.kernel = ProductKernel::plain;
    if (cuda) made.kernel_sums = false;
    if (cuda) made.tiles.clear();
    constexpr std::int32_t kPart =
        64;  // of 192: tiles of the plain kernel have powers of two of rows and columns
    for (TileConfig& tile : made.tiles) {
        tile.split_k = 1;
        for (std::int32_t* extent : {&tile.block_m, &tile.block_n}) {
            if (!std::has_single_bit(static_cast<std::uint32_t>(*extent))) *extent = kPart;
        }
    }
    return made;
}

/// The same products by the ranks of one node, which tell two kernels apart as well, and sooner.
Problem within_a_node(Problem problem) {
    problem.ranks /= std::max(1, problem.nodes);
    problem.nodes = 1;
    return problem;
}

/// By which kernel it is, where that is open: the quicker one, each with what it leaves open as by default.
/// Tiles are those of the plain kernel.
ProductKernel quicker_kernel(const Problem& problem, const Machine& machine, const Strategy& given,
                             const ChooseOptions& options) {
    const bool runs_gluon = options.device == fuse::Device::cuda && options.gluon &&
                            machine.rates.gluon_tflops > 0 && gluon_multiplies(problem.dtype);
    if (given.placement != Placement::fused || !runs_gluon || !given.tiles.empty() ||
        !estimate_objection(problem, machine).empty())
        return ProductKernel::plain;
    const auto us = [&](ProductKernel kernel) {
        Strategy by = given;
        by.kernel = kernel;
        by = complete(problem, machine, by, options);
        return strategy_objection(problem, by).empty() ? estimate(problem, machine, by).us
                                                       : std::numeric_limits<double>::infinity();
    };
    return us(ProductKernel::gluon) < us(ProductKernel::plain) ? ProductKernel::gluon : ProductKernel::plain;
}

/// The parts that a strategy leaves open are chosen; on the host, where none is faster, with the block's
/// tiles.
void complete_parts(const Problem& problem, const Machine& machine, Strategy& strategy,
                    const ChooseOptions& options) {
    const std::vector<Problem> operators = problem.parts();
    const bool open = strategy.parts.empty();
    strategy.parts.resize(std::max(strategy.parts.size(), operators.size()));
    for (std::size_t i = 0; i < operators.size(); ++i) {
        Strategy& part = strategy.parts[i];
        if (open && options.device == fuse::Device::host) part.tiles = {strategy.tiles[i]};
        part = open && options.device == fuse::Device::cuda
                   ? choose(operators[i], machine, nullptr, options).strategy
                   : complete(operators[i], machine, part, options);
    }
}

/// A chain's two products are those of a block on one rank.
Problem block_of(const Problem& chain) {
    Problem block = chain;
    const std::int64_t h = chain.extent("H");
    block.op = "feed_forward";
    block.extents = {{"M", chain.extent("M")}, {"K", h}, {"F", chain.extent("F")}, {"N", h}};
    return block;
}

/// Multiprocessors for relays of attention, whose kind over nodes is known where nobody has chosen.
std::int32_t relays_of(const Problem& problem, const Strategy& strategy) {
    std::string kind(problem.word("kind"));
    const bool open = kind.empty() || kind == "auto";
    if (open) kind = strategy.kind;
    if (problem.op != "attention" || (kind.empty() && problem.nodes == 1)) return 0;
    return ops::relays_of(kind.empty() ? ops::kind_over_nodes(problem.ranks, problem.nodes).kind : kind,
                          problem.ranks);
}

/// Multiprocessors that a persistent kernel leaves to the chunk engine, relays, and what carries chunks between nodes.
std::int32_t left_free(const Problem& problem, const Strategy& strategy, const ChooseOptions& options) {
    if (options.device == fuse::Device::host) return 0;
    // Programs that all wait for the engine find its multiprocessors free when they start to work.
    const bool beside = fuse::is_engine(strategy.backend) && !strategy.together;
    return (problem.nodes > 1 ? fuse::kChannelBlocks : 0) + relays_of(problem, strategy) +
           (beside ? strategy.engine_blocks.value_or(fuse::Options{}.engine_blocks) : 0);
}

/// Attention's kind, where neither the problem nor the strategy says it, and its kernel, as it runs on the machine.
Strategy complete_attention(const Problem& problem, const Machine& machine, Strategy made,
                            const ChooseOptions& options) {
    const Result<AttentionProblem> attention = attention_problem(problem, machine);
    if (attention && made.kind.empty() && made.placement != Placement::unfused) {
        AttentionProblem of_kinds = *attention;
        of_kinds.spec.reset();
        const Strategy found =
            choose(of_kinds, machine, nullptr, {.unfused = false, .device = options.device}).strategy;
        made.kind = found.kind;
        if (made.inner == 0) made.inner = found.inner;
    }
    const std::int32_t sms = problem.num_sms > 0 ? problem.num_sms : machine.num_sms;
    if (!made.programs) made.programs = std::max(1, sms - left_free(problem, made, options));
    if (!attention || !made.tiles.empty()) return made;
    const bool cuda = options.device == fuse::Device::cuda;
    const bool gluon = cuda && attention->kernel.name == AttentionKernelName::gluon;
    made.kernel = gluon ? ProductKernel::gluon : ProductKernel::plain;
    const std::int64_t head = attention->shape.head_dim;
    const std::optional<TileConfig> small = ops::attention_tiles(AttentionKernelName::triton, head, false);
    made.tiles = {cuda || !small ? attention->kernel.tile : *small};
    return made;
}

constexpr std::int32_t kHostPrograms = 4;  // of a grid in the interpreter

Strategy complete_mixture(const Problem& problem, const Machine& machine, Strategy made,
                          const ChooseOptions& options) {
    const std::int32_t sms = options.device == fuse::Device::host ? kHostPrograms : machine.num_sms;
    if (!made.programs) made.programs = problem.num_sms > 0 ? problem.num_sms : sms;
    const bool by_gluon =
        made.kernel == ProductKernel::gluon && options.device == fuse::Device::cuda && options.gluon;
    if (made.tiles.empty())
        made.tiles = {by_gluon ? mixture_gluon_tile() : mixture_tile(problem, options.device)};
    if (!by_gluon) made.kernel = ProductKernel::plain;
    return made;
}

}  // namespace

Strategy complete(const Problem& problem, const Machine& machine, const Strategy& given,
                  const ChooseOptions& options) {
    if (problem.op == "mlp_chain") return complete(block_of(problem), machine, given, options);
    if (problem.op == "attention") return complete_attention(problem, machine, given, options);
    if (problem.is_mixture()) return complete_mixture(problem, machine, given, options);
    const OperatorRow* row = operator_row(problem.op);
    const std::vector<ProductShape> shapes = problem.products();
    Strategy made = given;
    const bool known = row != nullptr && !shapes.empty();
    if (!made.kernel)
        made.kernel =
            known ? quicker_kernel(within_a_node(problem), machine, made, options) : ProductKernel::plain;
    if (!known) return made;
    const bool cuda = options.device == fuse::Device::cuda;
    const bool runs_gluon = cuda && options.gluon && gluon_multiplies(problem.dtype);
    if (made.kernel == ProductKernel::gluon && !runs_gluon) made = by_plain_kernel(std::move(made), cuda);
    // The plain kernel takes up to 30 times as long for fp8.
    const bool fp8 = problem.item() == 1 && runs_gluon && machine.rates.gluon_tflops > 0;
    if (fp8 && made.tiles.empty() && made.placement != Placement::unfused) made.kernel = ProductKernel::gluon;
    if (reduces(row->kind) && made.backend == Backend::automatic && made.pull)
        made.backend = Backend::ldst_dedicated;
    const bool stores = made.one_step || made.kernel_sums;
    if (stores && cuda && made.backend == Backend::automatic) made.backend = Backend::tma_inline;
    if (!made.engine_blocks) made.engine_blocks = enough_blocks(machine);
    const std::int32_t sms = problem.num_sms > 0 ? problem.num_sms : machine.num_sms;
    if (!made.programs) made.programs = std::max(1, sms - left_free(problem, made, options));
    const bool sends = reduces(row->kind) || row->kind == Kind::sends;
    const bool open = made.tiles.empty();
    if (open) {
        made.tiles = quickest_of_each(problem, machine, made, options);
    } else if (made.tiles.size() == 1 && shapes.size() > 1) {
        made.tiles.resize(shapes.size(), made.tiles.front());
    }
    if (cuda && sends && problem.ranks > 1 && problem.nodes == 1 && made.backend == Backend::automatic &&
        made.placement == Placement::fused)
        made = with_departure(problem, machine, row->kind, made, open ? &options : nullptr);
    if (!made.split) made.split = 1;
    if (made.placement == Placement::apart) complete_parts(problem, machine, made, options);
    return made;
}

}  // namespace syncopate::tune
