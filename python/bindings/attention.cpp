// Plans of attention over a sharded sequence, as Python sees them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "known.hpp"
#include "plan_values.hpp"
#include "sequence_values.hpp"
#include "syncopate/ops/attention.hpp"
#include "syncopate/ops/attention_backward.hpp"
#include "syncopate/plan/templates/attention.hpp"
#include "syncopate/plan/templates/attention_passes.hpp"
#include "syncopate/tune/choose.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/play/attention.hpp"
#include "syncopate/tune/play/attention_backward.hpp"

namespace nb = nanobind;

namespace syncopate::bindings {
namespace {

/// The one of that name, or text; "": the nearest.
tune::Machine machine_of(const std::string& name, const std::string& device, std::int32_t ranks) {
    return name.empty() ? unwrap(tune::nearest_machine(device, ranks)).machine
                        : unwrap(tune::find_machine(name));
}

using RowList = Box;

plan::Rows to_rows(const RowList& list) {
    plan::Rows rows;
    for (const auto& [begin, end] : list) rows.push_back({begin, end});
    return rows;
}

RowList to_list(const plan::Rows& rows) {
    RowList list;
    for (const plan::Interval& run : rows) list.emplace_back(run.begin, run.end);
    return list;
}

std::vector<plan::Rows> to_rows_of_ranks(const std::vector<RowList>& lists) {
    std::vector<plan::Rows> rows;
    for (const RowList& own : lists) rows.push_back(to_rows(own));
    return rows;
}

std::vector<RowList> to_lists(const std::vector<plan::Rows>& rows) {
    std::vector<RowList> lists;
    for (const plan::Rows& own : rows) lists.push_back(to_list(own));
    return lists;
}

plan::Sharding to_sharding(const std::string& name) {
    return named(plan::sharding_from(name), "sharding", name,
                 std::array<std::string_view, 3>{"contiguous", "zigzag", "documents"});
}

plan::Sequence to_sequence(std::int64_t length, const std::vector<std::int64_t>& documents, bool causal,
                           std::int64_t window) {
    return {.length = length, .documents = documents, .causal = causal, .window = window};
}

plan::Plan make_plan(const plan::Mesh& mesh, const std::array<std::int64_t, 5>& shape,
                     const nb::object& dtype, const std::vector<RowList>& rows,
                     const std::vector<RowList>& attended, const std::string& circulation,
                     std::int32_t ulysses, std::int32_t inner, std::int32_t split, bool only_kv,
                     bool q_o_stay, std::int32_t parts) {
    const auto& [batch, heads, kv_heads, length, head_dim] = shape;
    plan::AttentionOptions options;
    options.circulation = named(plan::circulation_from(circulation), "circulation", circulation,
                                std::array<std::string_view, 3>{"all_gather", "ring", "double_ring"});
    options.ulysses = ulysses;
    options.inner = inner;
    options.split = split;
    options.only_kv = only_kv;
    options.q_o_stay = q_o_stay;
    options.parts = parts;
    for (const RowList& own : rows) options.rows.push_back(to_rows(own));
    for (const RowList& own : attended) options.attended.push_back(to_rows(own));
    const auto name = nb::module_::import_("syncopate.call.arguments").attr("dtype_name")(dtype);
    const plan::DType type = to_dtype(nb::cast<std::string>(name));
    return unwrap(plan::attention({{{"gpu", mesh.num_ranks()}}},
                                  {batch, heads, kv_heads, length, head_dim, type}, options));
}

nb::list to_list(const std::vector<tune::Candidate>& candidates) {
    nb::list made;
    for (const tune::Candidate& candidate : candidates)
        made.append(nb::make_tuple(candidate.strategy.kind, candidate.strategy.inner, candidate.estimate.us,
                                   candidate.pruned));
    return made;
}

ops::AttentionTask make_task(const std::array<std::int64_t, 5>& shape, const std::string& dtype,
                             const std::vector<RowList>& rows, const std::vector<std::int64_t>& documents,
                             bool causal, std::int64_t window, const std::array<std::int32_t, 2>& tile,
                             const std::string& kind, std::int32_t inner, std::int32_t split,
                             std::int32_t parts, std::int32_t nodes, std::optional<std::int64_t> bounded,
                             bool gathered) {
    const auto& [batch, heads, kv_heads, length, head_dim] = shape;
    return {.shape = {batch, heads, kv_heads, length, head_dim, to_dtype(dtype)},
            .sequence = to_sequence(length, documents, causal, window),
            .rows = to_rows_of_ranks(rows),
            .kind = kind,
            .inner = inner,
            .split = split,
            .parts = parts,
            .tile = {.block_m = tile[0], .block_n = tile[1]},
            .nodes = nodes,
            .bounded = bounded,
            .gathered = gathered};
}

/// (strategy, µs, whether these were measured, note)
nb::tuple choose_attention(const ops::AttentionTask& task, const std::string& kernel,
                           const std::string& device, bool cuda, bool unfused, const std::string& spec,
                           const std::string& hash, const std::string& versions,
                           const std::string& machine_name) {
    tune::AttentionProblem problem{.shape = task.shape,
                                   .sequence = task.sequence,
                                   .rows = task.rows,
                                   .kernel = {.tile = task.tile},
                                   .inner = task.inner,
                                   .nodes = task.nodes,
                                   .kind = task.kind,
                                   .bounded = task.bounded};
    if (kernel == "gluon") problem.kernel.name = tune::AttentionKernelName::gluon;
    const auto ranks = static_cast<std::int32_t>(task.rows.size());
    const tune::Machine machine = machine_of(machine_name, device, ranks / task.nodes);
    if (!spec.empty()) problem.spec = unwrap(ops::parse_problem(spec));
    const Known known(hash, device, versions, cuda);
    const fuse::Device on = cuda ? fuse::Device::cuda : fuse::Device::host;
    return known.told(tune::choose(problem, machine, known.store(), {.unfused = unfused, .device = on}));
}

/// width, places by rank, and by pass and rank the slices: ((begin, end), fresh).
nb::object to_passes(const std::optional<plan::AttentionPasses>& passes) {
    if (!passes) return nb::none();
    nb::list slices;
    for (const auto& by_rank : passes->slices) {
        nb::list of_pass;
        for (const std::vector<plan::PassSlice>& own : by_rank) {
            nb::list of_rank;
            for (const plan::PassSlice& slice : own)
                of_rank.append(nb::make_tuple(nb::make_tuple(slice.rows.begin, slice.rows.end), slice.fresh));
            of_pass.append(of_rank);
        }
        slices.append(of_pass);
    }
    return nb::make_tuple(passes->width, to_lists(passes->places), slices);
}

nb::dict to_dict(const tune::TileConfig& tile) {
    nb::dict made;
    made["block_m"] = tile.block_m;
    made["block_n"] = tile.block_n;
    made["stages"] = tile.stages;
    made["warps"] = tile.warps;
    return made;
}

nb::tuple attention_kernel(const std::array<std::int64_t, 5>& shape, const std::string& dtype,
                           std::int32_t ranks, double scale, bool cuda, bool hopper) {
    const auto& [batch, heads, kv_heads, length, head_dim] = shape;
    const tune::AttentionKernel made =
        tune::choose_attention_kernel({batch, heads, kv_heads, length, head_dim, to_dtype(dtype)}, ranks,
                                      scale, {.cuda = cuda, .hopper = hopper});
    return nb::make_tuple(std::string(tune::name_of(made.name)), to_dict(made.tile), made.why);
}

nb::object attention_tiles(const std::string& kernel, std::int64_t head_dim, bool cuda) {
    const auto name =
        kernel == "gluon" ? tune::AttentionKernelName::gluon : tune::AttentionKernelName::triton;
    const auto tile = tune::attention_tiles(name, head_dim, cuda);
    return tile ? nb::object(to_dict(*tile)) : nb::none();
}

ops::AttentionBackwardTask of_kind(const ops::AttentionBackwardTask& task, const std::string& kind,
                                   std::int32_t inner, std::int32_t split) {
    ops::AttentionBackwardTask made = task;
    made.forward.kind = kind;
    made.forward.inner = inner;
    made.forward.split = split;
    return made;
}

void bind_backward(nb::module_& m) {
    nb::class_<ops::AttentionBackwardOutline>(
        m, "AttentionBackwardOutline",
        "The backward of attention without its kernels (ops/attention_backward.hpp).")
        .def_ro("plan", &ops::AttentionBackwardOutline::plan)
        .def_ro("bindings", &ops::AttentionBackwardOutline::bindings,
                "Of each stage: parameter → tensor of the plan.")
        .def_ro("exchanges", &ops::AttentionBackwardOutline::exchanges)
        .def_ro("together", &ops::AttentionBackwardOutline::together)
        .def_ro("sharing", &ops::AttentionBackwardOutline::sharing)
        .def_prop_ro(
            "passes", [](const ops::AttentionBackwardOutline& made) { return to_passes(made.passes); },
            "As of AttentionOutline.");
    nb::class_<ops::AttentionBackwardTask>(m, "AttentionBackwardTask",
                                           "What is asked of the backward of attention, but its kind.")
        .def(nb::new_([](const ops::AttentionTask& forward, bool gluon, bool deterministic, bool kept) {
                 return ops::AttentionBackwardTask{
                     .forward = forward, .gluon = gluon, .deterministic = deterministic, .kept = kept};
             }),
             nb::arg("forward"), nb::arg("gluon"), nb::arg("deterministic"), nb::arg("kept"));
    m.def(
        "attention_backward",
        [](const ops::AttentionBackwardTask& task, const std::string& kind, std::int32_t inner,
           std::int32_t split) {
            return unwrap(ops::attention_backward_outline(of_kind(task, kind, inner, split)));
        },
        nb::arg("task"), nb::arg("kind"), nb::arg("inner"), nb::arg("split"));
    m.def(
        "rank_attention_backward",
        [](const ops::AttentionBackwardTask& task, std::int32_t inner, std::int32_t split,
           const std::string& device, const std::string& machine) {
            const auto ranks = static_cast<std::int32_t>(task.forward.rows.size());
            return to_list(tune::rank_attention_backward(of_kind(task, "", inner, split),
                                                         machine_of(machine, device, ranks)));
        },
        nb::arg("task"), nb::arg("inner"), nb::arg("split"), nb::arg("device"), nb::arg("machine") = "",
        "(kind, inner, µs, why not) of all kinds, the best by the estimate first "
        "(tune/play/attention_backward.hpp).");
    m.def(
        "backward_kind",
        [](const std::string& forward, std::int32_t ranks, std::int64_t kv_heads, std::int32_t inner,
           std::int32_t nodes, bool deterministic, bool kept) {
            const ops::BackwardKind made =
                ops::backward_kind(forward, {ranks, kv_heads, inner, nodes, deterministic, kept});
            return nb::make_tuple(made.kind, made.why);
        },
        nb::arg("forward"), nb::arg("ranks"), nb::arg("kv_heads"), nb::arg("inner") = 0, nb::arg("nodes") = 1,
        nb::arg("deterministic") = false, nb::arg("kept") = false,
        "How the backward of a kind is carried out, and why not as the forward.");
    m.def(
        "attention_backward_kernel",
        [](std::int64_t head_dim, const std::string& dtype, double scale, bool cuda, bool hopper) {
            const ops::AttentionKernel made = ops::choose_backward_kernel(head_dim, to_dtype(dtype), scale,
                                                                          {.cuda = cuda, .hopper = hopper});
            const ops::TileConfig q = ops::attention_backward_q_tile(made.tile, head_dim, cuda);
            return nb::make_tuple(std::string(ops::name_of(made.name)), to_dict(made.tile), to_dict(q),
                                  made.why);
        },
        nb::arg("head_dim"), nb::arg("dtype"), nb::arg("scale"), nb::arg("cuda"), nb::arg("hopper"),
        "The kernel that runs, \"gluon\" or \"triton\", its tiles, those of dQ's own kernel, and why it is "
        "not the Gluon one.");
    m.def("attention_backward_parts", &ops::attention_backward_parts, nb::arg("tiles"), nb::arg("group"),
          nb::arg("rows"), nb::arg("unequal"), nb::arg("multiprocessors"),
          "Among how many the work of each tile is shared out (ops/attention_backward.hpp).");
}

void bind_outline(nb::module_& m) {
    nb::class_<ops::AttentionOutline>(m, "AttentionOutline",
                                      "Attention without its kernel (ops/attention.hpp).")
        .def_ro("plan", &ops::AttentionOutline::plan)
        .def_ro("bindings", &ops::AttentionOutline::bindings, "Parameter → tensor of the plan.")
        .def_ro("placed", &ops::AttentionOutline::placed)
        .def_ro("together", &ops::AttentionOutline::together)
        .def_ro("relays", &ops::AttentionOutline::relays)
        .def_prop_ro(
            "passes", [](const ops::AttentionOutline& made) { return to_passes(made.passes); },
            "None, or: rows that a rank has at once, by rank the places that it fills, and by pass and rank "
            "what lies there, ((begin, end), the first row that is new).");
    nb::class_<ops::AttentionTask>(m, "AttentionTask",
                                   "What is asked of attention (ops/attention.hpp); tile: block_m, block_n.")
        .def(nb::new_(&make_task), nb::arg("shape"), nb::arg("dtype"), nb::arg("rows"), nb::arg("documents"),
             nb::arg("causal"), nb::arg("window"), nb::arg("tile"), nb::kw_only(), nb::arg("kind") = "auto",
             nb::arg("inner") = 0, nb::arg("split") = 1, nb::arg("parts") = 0, nb::arg("nodes") = 1,
             nb::arg("bounded") = nb::none(), nb::arg("gathered") = false);
    m.def(
        "attention", [](const ops::AttentionTask& task) { return unwrap(ops::attention_outline(task)); },
        nb::arg("task"));
    m.def("attention_objection", &ops::attention_objection, nb::arg("kind"), nb::arg("ranks"),
          nb::arg("heads"), nb::arg("inner"));
    m.def(
        "attention_rows",
        [](std::int64_t length, const std::vector<std::int64_t>& documents, std::int32_t ranks,
           const std::string& sharding, std::int64_t block, std::int32_t group, bool even) {
            return to_lists(ops::attention_rows(to_sequence(length, documents, false, 0), ranks,
                                                to_sharding(sharding), block, group, even));
        },
        nb::arg("length"), nb::arg("documents"), nb::arg("ranks"), nb::arg("sharding"), nb::arg("block"),
        nb::arg("group"), nb::arg("even"));
    m.def(
        "usual_rows",
        [](std::int64_t length, const std::vector<std::int64_t>& documents, std::int32_t ranks,
           const std::string& sharding) {
            return to_lists(
                ops::usual_rows(to_sequence(length, documents, false, 0), ranks, to_sharding(sharding)));
        },
        nb::arg("length"), nb::arg("documents"), nb::arg("ranks"), nb::arg("sharding"));
}

}  // namespace

void bind_attention(nb::module_& m) {
    nb::module_ operators = nb::cast<nb::module_>(m.attr("ops"));
    bind_outline(operators);
    bind_backward(operators);
    m.def(
        "attention", &make_plan, nb::arg("mesh"), nb::arg("shape"), nb::arg("dtype"), nb::arg("rows"),
        nb::arg("attended") = nb::tuple(), nb::kw_only(), nb::arg("circulation") = "all_gather",
        nb::arg("ulysses") = 1, nb::arg("inner") = 0, nb::arg("split") = 1, nb::arg("only_kv") = false,
        nb::arg("q_o_stay") = false, nb::arg("parts") = 1,
        R"(Attention over a sharded sequence (plan/templates/attention.hpp draws it). Tensors Q, O [B, H, S, D], K, V [B, HKV, S, D]
and L [B, H, S].

`shape`: B, H, HKV, S, D. `rows`: by rank, which it holds (`shard_rows`); `attended`: which of K and V it needs
(`attended_rows`); default: all. `circulation`: "all_gather", "ring" or "double_ring" (`inner` ranks in an inner ring).
`ulysses`: so many neighbours exchange heads for rows. `split`: chunks into which each run of rows is cut.
`parts`: of the heads of K and V, sent one after another, each with its Q.
`only_kv`: K and V alone, where Q, O and L are each rank's own affair. `q_o_stay`: K, V and L, where Q and O stay where
each rank has them.)");
    m.def(
        "shard_rows",
        [](std::int64_t length, std::int32_t ranks, const std::string& sharding, std::int64_t block,
           const std::vector<std::int64_t>& documents, std::int32_t group) {
            require_sequence(length, block, documents);
            require("ranks", ranks, 1, 4096);
            if (group < 1 || ranks % group != 0)
                throw nb::value_error("group: a number of ranks that divides them is expected");
            return to_lists(plan::shard_rows(to_sequence(length, documents, false, 0), ranks,
                                             to_sharding(sharding), block, group));
        },
        nb::arg("length"), nb::arg("ranks"), nb::arg("sharding") = "contiguous", nb::arg("block") = 1,
        nb::arg("documents") = std::vector<std::int64_t>(), nb::arg("group") = 1,
        R"(The rows of a sequence that each rank holds, cut at multiples of `block`: "contiguous", "zigzag" (the r-th and the r-th
from behind of 2 · ranks parts) or "documents" (so in each; `documents`: where each begins, and the end of the
last). `group`: so many neighbours share tiles, and only what all of them hold is cut so.)");
    m.def("choose_attention", &choose_attention, nb::arg("task"), nb::arg("kernel"), nb::arg("device") = "",
          nb::arg("cuda") = false, nb::arg("unfused") = false, nb::arg("spec") = "", nb::arg("hash") = "",
          nb::arg("versions") = "", nb::arg("machine") = "",
          "(strategy, µs, whether these were measured, why), as of tune.choose. spec: that says all of it.");
    m.def("attention_kernel", &attention_kernel, nb::arg("shape"), nb::arg("dtype"), nb::arg("ranks"),
          nb::arg("scale"), nb::arg("cuda"), nb::arg("hopper"),
          "The kernel that runs (tune/play/attention.hpp): its name, \"gluon\" or \"triton\", its tiles, and "
          "why "
          "it is not the "
          "Gluon one.");
    m.def("padded_head", &tune::padded_head, nb::arg("head_dim"), nb::arg("cuda") = true,
          "The head size that has tiles and room for so many columns; None: they are too many.");
    m.def("attention_tiles", &attention_tiles, nb::arg("kernel"), nb::arg("head_dim"), nb::arg("cuda") = true,
          "The tiles of a kernel for heads of one size; None: it cannot do that size.");
    m.def(
        "attended_rows",
        [](std::int64_t length, const RowList& rows, bool causal, std::int64_t window, std::int64_t block,
           const std::vector<std::int64_t>& documents) {
            require_sequence(length, block, documents);
            require("window", window, 0, kMostRows);
            require_rows(rows, length);
            return to_list(
                plan::attended_by(to_sequence(length, documents, causal, window), to_rows(rows), block));
        },
        nb::arg("length"), nb::arg("rows"), nb::kw_only(), nb::arg("causal") = false, nb::arg("window") = 0,
        nb::arg("block") = 1, nb::arg("documents") = std::vector<std::int64_t>(),
        "What these rows of a sequence see, in whole blocks of `block` rows, as a kernel loads them.");
}

}  // namespace syncopate::bindings
