// What fuse has made, as Python sees it: an artifact's stages and its schedule, with tensors by name.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "bindings.hpp"
#include "gil.hpp"
#include "syncopate/emit/artifact.hpp"
#include "syncopate/emit/folder.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/fuse/model/json.hpp"
#include "syncopate/fuse/model/schedule.hpp"
#include "syncopate/fuse/passes/heap.hpp"

namespace nb = nanobind;

namespace syncopate::bindings {
namespace {

using ChunkView = std::pair<std::string, Box>;          // tensor, (begin, end) per axis
using RefView = std::pair<std::int32_t, std::int32_t>;  // rank and op, rank and signal, signal and lag
using TensorView = std::tuple<std::string, std::vector<std::int64_t>, std::string>;  // name, shape, dtype

std::string tensor_name(const fuse::Schedule& schedule, std::int32_t tensor) {
    return schedule.tensors[static_cast<std::size_t>(tensor)].name;
}

ChunkView view_of(const fuse::Schedule& schedule, const plan::Chunk& chunk) {
    return {tensor_name(schedule, chunk.tensor), to_box(chunk.region)};
}

std::vector<RefView> views_of(const std::vector<fuse::Wait>& waits) {
    std::vector<RefView> views;
    for (const fuse::Wait& wait : waits) views.emplace_back(wait.signal, wait.lag);
    return views;
}

std::vector<RefView> views_of(const std::vector<fuse::Post>& posts) {
    std::vector<RefView> views;
    for (const fuse::Post& post : posts) views.emplace_back(post.rank, post.signal);
    return views;
}

/// One transfer or sum of a schedule; see fuse/model/schedule.hpp.
struct TransferView {
    RefView op;
    std::string backend;
    std::int32_t src_rank;
    std::int32_t dst_rank;
    ChunkView src;
    ChunkView dst;
    std::string reduce;
    std::vector<std::pair<std::int32_t, ChunkView>> sources;
    std::vector<std::int32_t> peers;
    std::vector<RefView> waits;
    std::vector<RefView> posts;
};

/// A chunk that a rank's kernel makes.
struct MadeView {
    ChunkView chunk;
    std::vector<std::int64_t> slots;
    std::vector<RefView> posts;
    bool stored_elsewhere;
};

/// How a kernel stores or loads at other ranks.
struct ReachView {
    std::string tensor;
    bool by_row;
    bool own;
    std::int32_t copies;
};

std::optional<ReachView> view_of(const fuse::Schedule& schedule, const std::optional<fuse::Reach>& reach,
                                 std::int32_t copies) {
    if (!reach) return std::nullopt;
    return ReachView{tensor_name(schedule, reach->tensor), reach->by_row, reach->own, copies};
}

/// A kernel of an artifact and what it is called with.
struct StageView {
    emit::KernelLaunch launch;
    std::string source;
    std::string original;
    std::array<std::string, 2> files;
};

const fuse::RankSchedule& rank_of(const fuse::Schedule& schedule, std::int32_t rank) {
    if (rank < 0 || static_cast<std::size_t>(rank) >= schedule.ranks.size())
        throw nb::index_error("the schedule has no such rank");
    if (schedule.part && (rank < schedule.part->first || rank >= schedule.part->end))
        throw nb::index_error(
            ("the schedule is of one node's ranks, and rank " + std::to_string(rank) + " is of another node")
                .c_str());
    return schedule.ranks[static_cast<std::size_t>(rank)];
}

std::vector<TransferView> transfers(const fuse::Schedule& schedule, std::int32_t rank) {
    std::vector<TransferView> views;
    for (const fuse::Transfer& transfer : rank_of(schedule, rank).transfers) {
        const fuse::Sum* work = transfer.sum();
        const fuse::Sum sum = work != nullptr ? *work : fuse::Sum{.reduce = plan::Reduce::none};
        std::vector<std::pair<std::int32_t, ChunkView>> sources;
        for (const fuse::Source& source : sum.sources)
            sources.emplace_back(source.rank, view_of(schedule, source.chunk));
        views.push_back({.op = {transfer.op.rank, transfer.op.index},
                         .backend = std::string(plan::name_of(transfer.backend)),
                         .src_rank = transfer.src_rank,
                         .dst_rank = transfer.dst_rank,
                         .src = view_of(schedule, transfer.src),
                         .dst = view_of(schedule, transfer.dst),
                         .reduce = std::string(plan::name_of(sum.reduce)),
                         .sources = std::move(sources),
                         .peers = sum.peers,
                         .waits = views_of(transfer.waits),
                         .posts = views_of(transfer.posts)});
    }
    return views;
}

std::vector<MadeView> chunks(const fuse::Schedule& schedule, std::int32_t rank) {
    const fuse::RankSchedule& mine = rank_of(schedule, rank);
    std::vector<MadeView> views;
    for (const fuse::MadeChunk& made : mine.chunks)
        views.push_back({view_of(schedule, made.chunk), {}, views_of(made.posts), !made.stores.empty()});
    for (std::size_t slot = 0; slot < mine.slots.size(); ++slot) {
        for (const std::int32_t chunk : mine.slots[slot].makes)
            views[static_cast<std::size_t>(chunk)].slots.push_back(static_cast<std::int64_t>(slot));
    }
    return views;
}

std::vector<std::tuple<std::string, std::int32_t, std::int32_t>> signals(const fuse::Schedule& schedule,
                                                                         std::int32_t rank) {
    std::vector<std::tuple<std::string, std::int32_t, std::int32_t>> views;
    for (const fuse::SignalMeaning& signal : rank_of(schedule, rank).signals)
        views.emplace_back(std::string(fuse::name_of(signal.kind)), signal.op.rank, signal.op.index);
    return views;
}

std::map<std::int64_t, std::int32_t> read_at(const fuse::Schedule& schedule, std::int32_t rank) {
    std::map<std::int64_t, std::int32_t> places;
    const fuse::RankSchedule& mine = rank_of(schedule, rank);
    for (std::size_t slot = 0; slot < mine.slots.size(); ++slot) {
        if (const std::optional<fuse::Place>& from = mine.slots[slot].from)
            places.emplace(static_cast<std::int64_t>(slot), from->rank);
    }
    return places;
}

bool reorders(const fuse::Schedule& schedule) {
    const auto out_of_order = [](const fuse::Slot& slot) {
        return std::ranges::adjacent_find(slot.phases, [](const fuse::Phase& one, const fuse::Phase& next) {
                   return one.loop == next.loop && next.iteration_begin < one.iteration_begin;
               }) != slot.phases.end();
    };
    return std::ranges::any_of(schedule.ranks, [&](const fuse::RankSchedule& rank) {
        return std::ranges::any_of(rank.slots, out_of_order);
    });
}

void bind_schedule(nb::module_& m) {
    nb::class_<TransferView>(m, "Transfer", "A transfer or sum of a schedule; see fuse/model/schedule.hpp.")
        .def_ro("op", &TransferView::op, "(rank, index) of the plan's op")
        .def_ro("backend", &TransferView::backend)
        .def_ro("src_rank", &TransferView::src_rank)
        .def_ro("dst_rank", &TransferView::dst_rank)
        .def_ro("src", &TransferView::src, "(tensor, box)")
        .def_ro("dst", &TransferView::dst, "(tensor, box)")
        .def_ro("reduce", &TransferView::reduce, "\"none\" of a copy")
        .def_ro("sources", &TransferView::sources, "(rank, (tensor, box)) of each")
        .def_ro("peers", &TransferView::peers, "Ranks at which a sum is stored too.")
        .def_ro("waits", &TransferView::waits, "(signal, lag) of each")
        .def_ro("posts", &TransferView::posts, "(rank, signal) of each");
    nb::class_<MadeView>(m, "MadeChunk", "A chunk that a rank's kernel makes.")
        .def_ro("chunk", &MadeView::chunk, "(tensor, box)")
        .def_ro("slots", &MadeView::slots, "whose tiles write into it")
        .def_ro("posts", &MadeView::posts)
        .def_ro("stored_elsewhere", &MadeView::stored_elsewhere, "Its tiles are stored at other ranks.");
    nb::class_<ReachView>(m, "Reach", "How a kernel stores or loads at other ranks.")
        .def_ro("tensor", &ReachView::tensor)
        .def_ro("by_row", &ReachView::by_row, "through a descriptor that spans all heaps; else by pointers")
        .def_ro("own", &ReachView::own, "only what the rank itself was given")
        .def_ro("copies", &ReachView::copies, "places where a tile is stored, at most");
    nb::class_<fuse::Schedule>(m, "Schedule", "What every rank does in a call; see fuse/model/schedule.hpp.")
        .def_prop_ro("num_ranks", [](const fuse::Schedule& s) { return s.ranks.size(); })
        .def_prop_ro(
            "ranks",
            [](const fuse::Schedule& s) {
                const auto size = static_cast<std::int32_t>(s.ranks.size());
                const std::pair<std::int32_t, std::int32_t> made =
                    s.part ? std::pair(s.part->first, s.part->end) : std::pair(0, size);
                return nb::steal(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyRange_Type), "ii",
                                                       made.first, made.second));
            },
            "Those of which it says something: all, or those of one node.")
        .def_prop_ro("num_stages", [](const fuse::Schedule& s) { return s.stages.size(); })
        .def_prop_ro(
            "phased", [](const fuse::Schedule& s) { return s.stages.front().phased; },
            "Tiles of the first stage wait inside their loops.")
        .def_prop_ro(
            "overlaps",
            [](const fuse::Schedule& s) {
                std::vector<bool> of_stages;
                for (const fuse::StageSlots& stage : s.stages) of_stages.push_back(stage.overlaps);
                return of_stages;
            },
            "Of each stage: it starts once all programs of the one before have started.")
        .def_prop_ro(
            "head_starts",
            [](const fuse::Schedule& s) {
                std::vector<std::pair<std::int64_t, std::int64_t>> of_stages;
                for (const fuse::StageSlots& stage : s.stages)
                    of_stages.emplace_back(stage.head_start.programs, stage.head_start.rounds);
                return of_stages;
            },
            "Of each stage: its first programs, and how many rounds of tiles these run before all take "
            "turns.")
        .def_prop_ro("tensors",
                     [](const fuse::Schedule& s) {
                         std::vector<TensorView> views;
                         for (const plan::Tensor& t : s.tensors)
                             views.emplace_back(t.name, t.shape, std::string(plan::name_of(t.dtype)));
                         return views;
                     })
        .def_prop_ro(
            "stores", [](const fuse::Schedule& s) { return view_of(s, s.stores(), s.most_stores(0)); },
            "How tiles are stored at other ranks, if some are.")
        .def_prop_ro(
            "loads", [](const fuse::Schedule& s) { return view_of(s, s.loads(), 1); },
            "How tiles load what is not in the kernel's own place, if some do.")
        .def_prop_ro(
            "kernel_tells",
            [](const fuse::Schedule& s) {
                return std::ranges::any_of(s.ranks,
                                           [](const auto& rank) { return !rank.kernel_posts.empty(); });
            },
            "The end of some rank's kernel is told to others: they may overwrite what it read.")
        .def_prop_ro("reorders", &reorders,
                     "Some tile runs ranges of a loop in another order than the kernel alone does.")
        .def_prop_ro("kernel_summands", &fuse::kernel_summands,
                     "How many contributions the kernel's programs add up; 0: they do not.")
        .def_prop_ro(
            "tensors_by_row",
            [](const fuse::Schedule& s) {
                std::vector<std::string> names;
                for (const std::int32_t tensor : fuse::tensors_by_row(s))
                    names.push_back(tensor_name(s, tensor));
                return names;
            },
            "Those that the kernel is given as rows of all ranks' heaps; see fuse/passes/heap.hpp.")
        .def("transfers", &transfers, nb::arg("rank"), "Of a rank, in the order in which they are to start.")
        .def("chunks", &chunks, nb::arg("rank"), "What a rank's kernel makes.")
        .def("signals", &signals, nb::arg("rank"), "What each signal stands for: (kind, rank, op).")
        .def(
            "counted",
            [](const fuse::Schedule& schedule, std::int32_t rank) {
                std::map<std::int32_t, std::int32_t> posts;
                for (const fuse::CountedSignal& of : rank_of(schedule, rank).counted)
                    posts[of.signal] = of.posts;
                return posts;
            },
            nb::arg("rank"),
            "By signal: how often a call adds to it, where it does; others are set to its number.")
        .def("read_at", &read_at, nb::arg("rank"), "By slot, at which rank its tile reads what it fetches.");
}

nb::dict scalars(const StageView& stage) {
    nb::dict made;
    for (const auto& [name, scalar] : stage.launch.arguments.scalars) {
        made[name.c_str()] = std::visit(
            [](const auto& value) -> nb::object {
                if constexpr (std::is_same_v<std::decay_t<decltype(value)>, kernel::NoneValue>) {
                    return nb::none();
                } else {
                    return nb::cast(value);
                }
            },
            scalar);
    }
    return made;
}

std::map<std::string, std::tuple<std::vector<std::int64_t>, std::string, std::vector<std::int64_t>>> tensors(
    const StageView& stage) {
    std::map<std::string, std::tuple<std::vector<std::int64_t>, std::string, std::vector<std::int64_t>>> made;
    for (const auto& [name, tensor] : stage.launch.arguments.tensors)
        made.emplace(name, std::tuple(tensor.shape, std::string(plan::name_of(tensor.dtype)), tensor.block));
    return made;
}

std::map<std::string, std::vector<std::int64_t>> values(const StageView& stage) {
    std::map<std::string, std::vector<std::int64_t>> made;
    for (const auto& [name, tensor] : stage.launch.arguments.tensors) {
        if (!tensor.values.empty()) made.emplace(name, tensor.values);
    }
    return made;
}

std::vector<StageView> stages(const emit::Artifact& artifact) {
    std::vector<StageView> views;
    for (std::size_t stage = 0; stage < artifact.sources.size(); ++stage) {
        views.push_back(
            {artifact.launch.stages[stage],
             artifact.sources[stage].kernel,
             artifact.sources[stage].original,
             {emit::kernel_file(artifact, "kernel", stage), emit::kernel_file(artifact, "original", stage)}});
    }
    return views;
}

std::vector<std::optional<std::map<std::string, std::vector<Box>>>> own_writes(const emit::Artifact& artifact,
                                                                               std::int32_t rank) {
    (void)rank_of(artifact.launch.schedule, rank);
    std::vector<std::optional<std::map<std::string, std::vector<Box>>>> made;
    for (const auto& stage : unwrap(emit::own_writes(artifact, rank))) {
        auto& boxes = made.emplace_back();
        if (!stage) continue;
        boxes.emplace();
        for (const auto& [name, regions] : *stage) {
            for (const plan::Region& region : regions) (*boxes)[name].push_back(to_box(region));
        }
    }
    return made;
}

}  // namespace

void bind_artifact(nb::module_& m) {
    bind_schedule(m);
    nb::class_<StageView>(m, "StageOfArtifact", "A fused kernel and what it is called with.")
        .def_prop_ro(
            "kernel", [](const StageView& s) { return s.launch.kernel; }, "The function's name.")
        .def_prop_ro(
            "file", [](const StageView& s) { return s.launch.file; }, "The user's, as it was given.")
        .def_ro("source", &StageView::source, "Of the emitted kernel.")
        .def_ro("original", &StageView::original, "The user's file.")
        .def_prop_ro(
            "files", [](const StageView& s) { return std::pair(s.files[0], s.files[1]); },
            "The names of both in a folder.")
        .def_prop_ro("grid",
                     [](const StageView& s) {
                         const auto grid =
                             s.launch.arguments.grid.value_or(std::array<std::int64_t, 3>{1, 1, 1});
                         return std::tuple(grid[0], grid[1], grid[2]);
                     })
        .def_prop_ro(
            "parameters",
            [](const StageView& s) {
                std::vector<std::string> names;
                for (const auto& [name, kind] : s.launch.parameters) names.push_back(name);
                return names;
            },
            "Of the user's kernel, by name.")
        .def_prop_ro("scalars", &scalars, "By parameter.")
        .def_prop_ro("tensors", &tensors, "By parameter: (shape, dtype, block of a descriptor).")
        .def_prop_ro("values", &values, "By parameter: the elements of integer tensors that the host knows.")
        .def_prop_ro("bindings", [](const StageView& s) { return s.launch.bindings; })
        .def_prop_ro(
            "accumulates", [](const StageView& s) { return s.launch.accumulates; },
            "Parameters bound to what the kernel makes that it also reads, as atomic_add does.");
    nb::class_<emit::Artifact>(m, "Artifact", "Fused kernels, their plan and their schedule.")
        .def_prop_ro("stages", &stages)
        .def_prop_ro(
            "kernel_source", [](const emit::Artifact& artifact) { return artifact.kernel_source(); },
            "Of the first stage.")
        .def_prop_ro(
            "plan", [](const emit::Artifact& artifact) -> const plan::Plan& { return artifact.launch.plan; },
            nb::rv_policy::reference_internal)
        .def_prop_ro(
            "device",
            [](const emit::Artifact& artifact) { return std::string(fuse::name_of(artifact.launch.device)); })
        .def(
            "grid_of",
            [](const emit::Artifact& artifact, std::size_t stage, std::int32_t rank) {
                if (stage >= artifact.launch.stages.size()) throw nb::index_error("no such stage");
                (void)rank_of(artifact.launch.schedule, rank);
                const auto grid = artifact.launch.grid_of(stage, rank);
                return std::tuple(grid[0], grid[1], grid[2]);
            },
            nb::arg("stage"), nb::arg("rank"), "The grid that a rank launches the stage's kernel with.")
        .def("own_writes", &own_writes, nb::arg("rank"),
             "By stage, what the rank's tiles write of tensors that no plan moves, boxes by parameter; None: "
             "it runs "
             "all tiles.")
        .def_prop_ro(
            "schedule",
            [](const emit::Artifact& artifact) -> const fuse::Schedule& { return artifact.launch.schedule; },
            nb::rv_policy::reference_internal)
        .def_prop_ro(
            "heap_bytes",
            [](const emit::Artifact& artifact) { return fuse::heap_bytes(artifact.launch.schedule); },
            "What a rank's heap must hold.")
        .def_ro("repeatable", &emit::Artifact::repeatable,
                "A call made again, with the same input, leaves the same.")
        .def_ro("written", &emit::Artifact::written, "By stage, the parameters to which its kernel writes.")
        .def_ro("warnings", &emit::Artifact::warnings,
                "What the kernels surely do and can hardly mean, a line each; empty where it comes from a "
                "folder.")
        .def_ro("schedule_json", &emit::Artifact::schedule_json, "schedule.json of a folder.");
    m.def(
        "artifact_from_folder",
        [](const std::string& folder) { return unwrap(emit::artifact_from_folder(folder)); },
        nb::arg("folder"), ReleaseGil(), "What `syncopate fuse -o` wrote.");
}

}  // namespace syncopate::bindings
