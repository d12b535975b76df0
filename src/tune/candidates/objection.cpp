// Which strategies the runtime can carry out. What a backend may carry is a row of fuse/model/backend.hpp; what an
// operator's template and its kernels take is here.
#include <algorithm>
#include <bit>
#include <numeric>

#include <fmt/format.h>

#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/fuse/passes/assign.hpp"
#include "syncopate/ops/attention.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/tune/candidates/gluon_tiles.hpp"
#include "syncopate/tune/candidates/mixture.hpp"
#include "syncopate/tune/candidates/tiles.hpp"
#include "syncopate/tune/choose.hpp"
#include "tune/play/transfers.hpp"

namespace syncopate::tune {
namespace {

using Kind = OperatorRow::Kind;
using plan::Backend;

constexpr std::int64_t kLeastSliceBlocks = 1;
constexpr std::int32_t kMostResident = 32;                          // programs of a multiprocessor
constexpr std::int32_t kMostDirectSources = fuse::kMostSumSources;  // that one sum reads where they are

struct Question {
    const Problem& problem;
    const Strategy& strategy;
    Kind kind;
    ProductShape first;
    ProductShape last;
};

bool gathers(Kind kind) { return kind == Kind::gathers || kind == Kind::exchanges || kind == Kind::block; }
bool reduces(Kind kind) { return kind == Kind::scatters || kind == Kind::reduces; }

std::string backend_objection(const Question& asked) {
    const Strategy& s = asked.strategy;
    if (s.backend == Backend::automatic) return {};
    const fuse::BackendTraits& row = fuse::traits_of(s.backend);
    const std::string name(plan::name_of(s.backend));
    if (!row.on_cuda) return name + " does not exist on device cuda";
    if (row.lane == fuse::LaneKind::channel)
        return name + " carries what goes between nodes, and nothing else";
    if (row.lane == fuse::LaneKind::library) return name + " carries out whole collectives: that is unfused";
    if (s.backend == Backend::ldst_inline && !(reduces(asked.kind) && s.pull))
        return "the kernels here store and load by descriptors, not by pointers";
    if (fuse::is_inline(s.backend) && asked.problem.scales != Scales::none &&
        (asked.kind == Kind::gathers || asked.kind == Kind::exchanges))
        return "tiles that fetch x have no scales of it";
    if (asked.kind == Kind::block && (fuse::is_inline(s.backend) || fuse::is_engine(s.backend)))
        return "a program of two stages sends by copies";
    if (s.backend == Backend::tma_inline && s.pull && reduces(asked.kind))
        return "owners read contributions by loads, not by a kernel's descriptors";
    return {};
}

std::string store_objection(const Question& asked) {
    const Strategy& s = asked.strategy;
    if (s.tiles.empty() || !stores_at_owners(asked.kind, s)) return {};
    const std::int64_t block = s.tiles.back().block_m;
    const std::int64_t ranks = asked.problem.ranks;
    const std::int64_t parts = s.split_axis.value_or(0) == 0 ? s.split.value_or(1) : 1;
    if (asked.last.m % (ranks * parts * block) == 0) return {};
    if (parts > 1) return fmt::format("tiles of {} rows do not end where {} parts do", block, parts);
    return fmt::format("some tile of {} rows is for several of {} ranks, and stored at one", block, ranks);
}

std::string reduction_objection(const Question& asked) {
    const Strategy& s = asked.strategy;
    const std::int32_t others = asked.problem.ranks - 1;
    if (s.one_step) {
        if (!reduces(asked.kind)) return "only sums are done in one step";
        if (s.pull || s.stored != 0)
            return "in one step all contributions are sent, by the kernel or beside it";
        if (others >= kMostDirectSources)
            return fmt::format("one step has at most {} ranks", kMostDirectSources);
    }
    if (s.kernel_sums) {
        if (!reduces(asked.kind)) return "the product has nothing to sum";
        if (s.kernel == ProductKernel::plain) return "only the Gluon kernel sums";
        if (s.pull || s.split.value_or(1) > 1)
            return "the product's programs sum once, what tiles have stored at their owners";
        if (asked.kind == Kind::reduces && !s.one_step) return "the product's programs send no sums";
        if (s.backend != Backend::automatic && s.backend != Backend::tma_inline)
            return "where the product's programs sum, tiles store what they make";
        if (others >= kMostDirectSources)
            return fmt::format("the product's programs sum for at most {} ranks", kMostDirectSources);
        if (asked.kind == Kind::scatters && asked.last.m <= others)
            return "some rank would have nothing to sum";
    }
    if (!reduces(asked.kind)) return s.stored != 0 ? "only contributions to sums are stored" : "";
    if (s.stored < 0 || s.stored > std::max(0, others))
        return fmt::format("a rank makes {} contributions for others", others);
    if (s.stored > 0 && s.pull) return "with pull every contribution is read where it is";
    if (s.pull && s.backend == Backend::ldst_inline && others > kMostDirectSources)
        return fmt::format("one sum reads at most {} contributions where they are", kMostDirectSources);
    return {};
}

std::string together_objection(const Question& asked) {
    const Strategy& s = asked.strategy;
    if (!s.together) return {};
    if (asked.kind != Kind::gathers && asked.kind != Kind::exchanges)
        return "tiles wait together for what comes before one product";
    if (fuse::is_inline(s.backend)) return "tiles that fetch what they read wait for nothing";
    return {};
}

std::string cut_objection(const Question& asked) {
    const Strategy& s = asked.strategy;
    const Chunking& cut = s.chunking;
    const bool sliced = cut.num_slices > 1 || !cut.slices.empty();
    const std::int32_t ranks = asked.problem.ranks;
    if (!gathers(asked.kind) && (cut.rows > 1 || sliced)) return "nothing comes before the product";
    if (gathers(asked.kind) && cut.rows > std::max<std::int64_t>(1, asked.first.m / ranks))
        return fmt::format("a shard has {} rows", asked.first.m / ranks);
    if (sliced) {
        const std::vector<std::int64_t> extents = slices_of(cut, asked.first.k);
        if (std::accumulate(extents.begin(), extents.end(), std::int64_t{0}) != asked.first.k)
            return fmt::format("the slices are not together K = {}", asked.first.k);
        const std::int64_t block = s.tiles.empty() ? 1 : s.tiles.front().block_k;
        for (const std::int64_t extent : extents) {
            if (extent % block != 0 || extent < kLeastSliceBlocks * block)
                return fmt::format("a slice of {} is no multiple of the tiles' {}", extent, block);
        }
        if (!s.tiles.empty() && s.tiles.front().num_wide >= 0)
            return "a kernel of two tile shapes has no phases";
    }
    const std::int64_t split = s.split.value_or(1);
    if (s.split_axis.value_or(0) > 1) return fmt::format("a product has no axis {}", *s.split_axis);
    if (asked.kind == Kind::gathers || asked.kind == Kind::exchanges) return {};
    if (s.split_axis.value_or(0) == 1) {
        const std::int64_t block = s.tiles.empty() ? 1 : s.tiles.back().block_n;
        if (split > 1 && asked.last.n % (split * block) != 0)
            return fmt::format("{} parts of columns are no whole tiles", split);
    } else if (split > std::max<std::int64_t>(1, asked.last.m / ranks)) {
        return fmt::format("a shard has {} rows", asked.last.m / ranks);
    }
    return {};
}

std::string tile_objection(const Question& asked) {
    const std::size_t products = asked.kind == Kind::block ? 2 : 1;
    if (asked.strategy.tiles.size() > products)
        return fmt::format("tiles of {} products, and there {} {}", asked.strategy.tiles.size(),
                           products == 1 ? "is" : "are", products);
    if (asked.problem.num_sms > 0 &&
        asked.strategy.programs.value_or(0) > kMostResident * asked.problem.num_sms)
        return fmt::format("{} programs: {} multiprocessors run at most {} each", *asked.strategy.programs,
                           asked.problem.num_sms, kMostResident);
    const bool gluon = asked.strategy.kernel == ProductKernel::gluon;
    for (const TileConfig& tile : asked.strategy.tiles) {
        if (gluon) {
            const bool is_last = &tile == &asked.strategy.tiles.back();
            std::string text =
                gluon_objection(asked.problem.operands(), is_last ? asked.last : asked.first, tile);
            if (!text.empty()) return text;
            if (tile.warps != 0) return "the Gluon kernel has warps of its own";
            continue;
        }
        for (const std::int32_t extent : {tile.block_m, tile.block_n, tile.block_k}) {
            if (!std::has_single_bit(static_cast<std::uint32_t>(extent)))
                return fmt::format("the plain kernel's tiles have powers of two of rows and columns, not {}",
                                   extent);
        }
        const double loaded =
            asked.problem.item() * tile.stages * (tile.block_m + tile.block_n) * tile.block_k;
        if (loaded > static_cast<double>(kBlockSharedBytes))
            return fmt::format("{} stages of {}x{}x{} take more shared memory than there is", tile.stages,
                               tile.block_m, tile.block_n, tile.block_k);
        if (tile.num_wide >= 0 && plan::size_of(asked.problem.dtype) != 2)
            return "two tile shapes are for 16-bit products";
        if (tile.split_k > 1) return "the plain kernel does not share a tile's reduction";
    }
    return {};
}

/// Of a block as operators that are apart: of which one what is wrong.
std::string parts_objection(const Problem& problem, const Strategy& strategy) {
    const std::vector<Problem> operators = problem.parts();
    if (operators.empty()) return fmt::format("{} is one operator", problem.op);
    if (strategy.parts.size() != operators.size())
        return fmt::format("{} is {} operators, and parts has {}", problem.op, operators.size(),
                           strategy.parts.size());
    for (std::size_t i = 0; i < operators.size(); ++i) {
        const std::string text = strategy_objection(operators[i], strategy.parts[i]);
        if (!text.empty()) return fmt::format("{}: {}", operators[i].op, text);
    }
    return {};
}

/// Of attention: its kind, and what of it the library's way can do.
std::string attention_objection(const Problem& problem, const Strategy& strategy) {
    const auto task = ops::attention_task(problem, strategy);
    if (!task) return task.error().message;
    if (strategy.placement == Placement::apart) return "attention is one operator";
    const std::string_view kind = problem.word("kind");
    const bool open = kind.empty() || kind == "auto" || strategy.kind.empty();
    if (!open && strategy.kind != kind) return fmt::format("{} is asked for", kind);
    ops::AttentionTask asked = *task;
    if (strategy.placement == Placement::unfused) {
        if (problem.nodes > 1) return "unfused: it gathers within one node";
        if (!kind.empty() && kind != "auto" && kind != "all_gather")
            return fmt::format("unfused: it gathers K and V, and {} is asked for", kind);
        asked.kind = "all_gather";
        asked.gathered = true;
    }
    const auto outline = ops::attention_outline(asked);
    return outline ? std::string() : outline.error().message;
}

}  // namespace

std::string strategy_objection(const Problem& problem, const Strategy& strategy) {
    const OperatorRow* row = operator_row(problem.op);
    if (row == nullptr) return "there is no operator " + problem.op;
    if (const std::string objection = problem_objection(problem); !objection.empty()) return objection;
    if (problem.is_mixture()) return mixture_objection(problem, strategy);
    if (problem.op == "attention") return attention_objection(problem, strategy);
    if (!strategy.kind.empty() || strategy.inner != 0 || strategy.head_parts != 0)
        return "kind, inner and head_parts are attention's";
    if (strategy.placement == Placement::unfused || row->kind == Kind::other) return {};
    if (strategy.placement == Placement::apart) return parts_objection(problem, strategy);
    if (!strategy.parts.empty()) return "one operator has no parts";
    if (std::string text = ops::nodes_objection(problem, strategy); !text.empty()) return text;
    const std::vector<ProductShape> shapes = problem.products();
    const Question asked{problem, strategy, row->kind, shapes.front(), shapes.back()};
    for (const auto objection : {backend_objection, reduction_objection, store_objection, together_objection,
                                 cut_objection, tile_objection}) {
        if (std::string text = objection(asked); !text.empty()) return text;
    }
    return {};
}

}  // namespace syncopate::tune
