// Strategies as Python values (value.hpp).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bindings.hpp"
#include "syncopate/ops/strategy.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/tune/candidates/tiles.hpp"
#include "value.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace syncopate::bindings {
namespace {

using ops::Chunking;
using ops::Placement;
using ops::Strategy;
using ops::TileConfig;

constexpr const char* kStrategyDoc =
    R"(How a problem is carried out. Of a user's own kernel and plan (sy.fuse) only what is marked * is left to choose.

kernel          of the products: "plain" (Triton), or "gluon", the library's for 16 bits and fp8 on Hopper; where
                that does not run, the plain one is taken. "": the quicker one; with tilings, the plain one
tilings         tiles of each product (one for all of them is enough); (): by the product's shape
programs        of each kernel's grid, at most; None: the multiprocessors that communication leaves
chunking        of what comes before a product
split           chunks of each rank's shard of what a product makes; None: by the backend and the shape
split_axis      the axis that `split` cuts; None: the one that the plan is about
pull            receivers fetch; of sums: their owners read the contributions where they are
stored          of a reduction: so many of a rank's contributions, its last, are stored at their owners tile by tile
one_step        of sums: every rank sends all that it makes to all ranks, and each sums its part
kernel_sums *   programs that have made their tiles add up what arrives; for kernels that state that they can
together *      all tiles wait for what arrives, also those of own rows: tiles that all run at once then read w together
backend *       of transfers whose plan leaves it open; "auto": the best legal one
engine_blocks * multiprocessors of the chunk engine, which kernels beside it leave free; None: by the backend
unfused         the vendors' libraries: a product, and a collective before or after it; of attention NCCL's all-gather
apart           a block as two operators, one after the other, by the strategies `parts`; (): each by its shape. Then
                nothing else counts
kind            of attention: "all_gather", "ring", …; "": the quickest. inner: ranks of an inner ring, or that exchange heads;
                head_parts: of the heads, sent one after another; 0: as many as are worth their transfers
)";

nb::object text(std::string_view name) { return nb::str(name.data(), name.size()); }

/// The index of a word among `known`.
std::size_t choice(const char* field, const std::vector<std::string_view>& known, nb::handle given) {
    std::string words;
    for (std::size_t i = 0; i < known.size(); ++i) {
        if (given.equal(text(known[i]))) return i;
        words.append(i == 0 ? "\"" : ", \"").append(known[i]).append("\"");
    }
    throw nb::value_error(
        (std::string(field) + ": expected one of " + words + ", got " + nb::repr(given).c_str()).c_str());
}

/// A member that Python has as a word.
template <typename Enum>
Field<Strategy> word(const char* name, std::size_t count, Enum Strategy::* member) {
    return {name, "str", "", [=](const Strategy& s) { return text(name_of(s.*member)); },
            [=](Strategy& s, nb::handle given) {
                s.*member = static_cast<Enum>(choice(name, names_of<Enum>(count), given));
            }};
}

/// A placement that Python has as a flag; of several the last of the enumeration counts.
Field<Strategy> flag(const char* name, Placement placement) {
    return {name, "bool", "", [=](const Strategy& s) { return nb::cast(s.placement == placement); },
            [=](Strategy& s, nb::handle given) {
                if (nb::cast<bool>(given)) s.placement = std::max(s.placement, placement);
            }};
}

Field<Strategy> kernel() {
    const std::vector<std::string_view> words{"", "plain", "gluon"};
    return {"kernel", "str", "", [](const Strategy& s) { return text(s.kernel ? name_of(*s.kernel) : ""); },
            [words](Strategy& s, nb::handle given) {
                const std::size_t at = choice("kernel", words, given);
                s.kernel.reset();
                if (at > 0) s.kernel = static_cast<ops::ProductKernel>(at - 1);
            }};
}

Field<Strategy> tilings() {
    Field<Strategy> made = fields_of("tilings", "tuple[Tiling, ...]", &Strategy::tiles);
    made.set = [](Strategy& s, nb::handle given) {
        if (!nb::isinstance<nb::tuple>(given) && !nb::isinstance<nb::list>(given))
            throw nb::type_error(
                (std::string("tilings: expected a tuple of tilings, got ") + nb::repr(given).c_str())
                    .c_str());
        s.tiles = nb::cast<std::vector<TileConfig>>(given);
    };
    return made;
}

Field<Chunking> slices() {
    return {"slices", "int | tuple[int, ...]", "",
            [](const Chunking& cut) -> nb::object {
                if (cut.slices.empty()) return nb::cast(cut.num_slices);
                return nb::tuple(nb::cast(cut.slices));
            },
            [](Chunking& cut, nb::handle given) {
                const bool number = nb::isinstance<nb::int_>(given);
                cut.num_slices = number ? nb::cast<std::int32_t>(given) : 1;
                cut.slices =
                    number ? std::vector<std::int64_t>() : nb::cast<std::vector<std::int64_t>>(given);
                if (!number && cut.slices.empty())
                    throw nb::value_error("slices: give a number, or the extent of each slice");
            }};
}

void bind_tiling(nb::module_& m) {
    nb::class_<TileConfig> type(
        m, "Tiling",
        "Which tiles cover an M x N product: `num_wide` columns of wide tiles, the rest in "
        "narrow ones.");
    bind_value<TileConfig>(
        type,
        {field("block_m", "int", &TileConfig::block_m), field("block_n", "int", &TileConfig::block_n),
         field("block_k", "int", &TileConfig::block_k), field("stages", "int", &TileConfig::stages),
         field("num_wide", "int", &TileConfig::num_wide, "-1: one tile shape (block_n) throughout"),
         field("precision", "str", &TileConfig::precision, "of fp32 products: \"tf32\" or \"ieee\""),
         field("group_m", "int", &TileConfig::group_m,
               "rows of tiles that the kernel's own order walks together"),
         field("split_k", "int", &TileConfig::split_k,
               "programs that share a tile's reduction, where the kernel can"),
         field("warps", "int", &TileConfig::warps,
               "of the plain kernel; 0: as many as such a tile usually takes")},
        5, TileConfig{});
    type.def_prop_ro(
        "num_warps",
        [](const TileConfig& tile) { return tile.warps != 0 ? tile.warps : tune::usual_warps(tile); },
        "Of a program of the plain kernel.");
}

void bind_chunking(nb::module_& m) {
    nb::class_<Chunking> type(
        m, "Chunking",
        "How a shard, or a block for another rank, is cut and sent: `rows` chunks along M, each in "
        "`slices` along K, so many equal ones or of these extents; all ranks' first slices travel "
        "first, or `peer_by_peer` all slices to one peer before the next one's.");
    bind_value<Chunking>(type,
                         {field("rows", "int", &Chunking::rows), slices(),
                          field("peer_by_peer", "bool", &Chunking::peer_by_peer)},
                         0, Chunking{});
}

}  // namespace

void bind_strategy(nb::module_& m) {
    bind_tiling(m);
    bind_chunking(m);
    nb::class_<Strategy> type(m, "Strategy", kStrategyDoc);
    Strategy usual;
    usual.kernel.reset();
    bind_value<Strategy>(
        type,
        {tilings(), field("programs", "int | None", &Strategy::programs),
         field("chunking", "Chunking", &Strategy::chunking), field("split", "int | None", &Strategy::split),
         field("split_axis", "int | None", &Strategy::split_axis), field("pull", "bool", &Strategy::pull),
         field("stored", "int", &Strategy::stored), field("one_step", "bool", &Strategy::one_step),
         field("kernel_sums", "bool", &Strategy::kernel_sums), field("together", "bool", &Strategy::together),
         word("backend", plan::kNumBackends, &Strategy::backend),
         field("engine_blocks", "int | None", &Strategy::engine_blocks), flag("unfused", Placement::unfused),
         kernel(), flag("apart", Placement::apart),
         fields_of("parts", "tuple[Strategy, ...]", &Strategy::parts), field("kind", "str", &Strategy::kind),
         field("inner", "int", &Strategy::inner), field("head_parts", "int", &Strategy::head_parts)},
        0, usual, [](Strategy& s) {
            if (!s.kernel && !s.tiles.empty()) s.kernel = ops::ProductKernel::plain;
        });
    type.def_prop_ro(
            "fused", [](const Strategy& s) { return s.placement == Placement::fused; },
            "Whether the operator's kernel and plan are what runs.")
        .def_prop_ro(
            "name", [](const Strategy& s) { return ops::name_of(s); }, "Short, and readable.")
        .def(
            "to_json", [](const Strategy& s) { return ops::to_json(s); },
            "As stores keep it (ops/strategy.hpp).")
        .def_static(
            "from_json",
            [](const std::string& json) { return unwrap(ops::strategy_from_json(json, "the strategy")); },
            "json"_a, "The inverse of to_json.");
}

}  // namespace syncopate::bindings
