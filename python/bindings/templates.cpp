// How plans are made, as Python sees it: templates, lowering, and the Builder.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "gil.hpp"
#include "plan_values.hpp"
#include "syncopate/plan/lower/lower.hpp"
#include "syncopate/plan/model/builder.hpp"
#include "syncopate/plan/model/join.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"
#include "syncopate/plan/templates/push_groups.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"
#include "syncopate/plan/templates/templates.hpp"
#include "value.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace syncopate::bindings {
namespace {

using PlaceTuple = std::tuple<std::int32_t, std::string, Box>;  // rank, tensor, (begin, end) per axis
using Ref = std::pair<std::int32_t, std::int32_t>;

plan::Reduce to_reduce(const std::optional<std::string>& name) {
    if (!name) return plan::Reduce::none;
    if (*name == "sum") return plan::Reduce::sum;
    if (*name == "max") return plan::Reduce::max;
    return named(std::optional<plan::Reduce>{}, "reduction", *name,
                 std::array<std::string_view, 2>{"sum", "max"});
}

/// What a template may be told, by name, rising.
std::vector<Field<plan::TemplateOptions>> options_of(std::string_view self) {
    using Options = plan::TemplateOptions;
    const auto algorithm = [self](Options& options, nb::handle value) {
        options.algorithm = unwrap(plan::parse_algorithm(nb::cast<std::string>(value), self));
    };
    const auto reduce = [](Options& options, nb::handle value) {
        options.reduce = to_reduce(nb::cast<std::string>(value));
    };
    return {{"algorithm", "str", "", {}, algorithm},
            field("axis", "int", &Options::axis),
            field("group", "list[int]", &Options::group),
            field("inner", "int", &Options::inner),
            field("minor_axis", "int", &Options::minor_axis),
            field("minor_sizes", "list[int]", &Options::minor_sizes),
            field("minor_split", "int", &Options::minor_split),
            field("over", "list[str]", &Options::over),
            field("peer_by_peer", "bool", &Options::peer_by_peer),
            field("produced", "bool", &Options::produced),
            field("pull", "bool", &Options::pull),
            {"reduce", "str", "", {}, reduce},
            field("root", "int", &Options::root),
            field("split", "int", &Options::split),
            field("steps", "int", &Options::steps),
            field("to_axis", "int", &Options::to_axis),
            field("transient", "bool", &Options::transient)};
}

/// Every keyword is the option of that name; what is left out keeps its default.
plan::TemplateOptions to_options(std::string_view self, const nb::kwargs& keywords) {
    plan::TemplateOptions options;
    const std::vector<Field<plan::TemplateOptions>> known = options_of(self);
    for (auto [key, value] : keywords) {
        const auto name = nb::cast<std::string>(key);
        const auto found = std::ranges::find(known, name, &Field<plan::TemplateOptions>::name);
        if (found == known.end()) {
            std::string said = "there is no option '" + name + "'; options: ";
            for (const auto& one : known) said += (&one == &known.front() ? "" : ", ") + one.name;
            throw nb::type_error(said.c_str());
        }
        try {
            found->set(options, value);
        } catch (const nb::cast_error&) {
            throw nb::type_error(("option '" + name + "' has a value of the wrong type").c_str());
        }
    }
    return options;
}

/// A Builder that knows tensors by name.
class NamedBuilder {
public:
    NamedBuilder(const plan::Mesh& mesh, bool pull) : builder_(mesh, pull) {}

    std::string tensor(plan::Tensor tensor) { return noted(builder_.tensor(std::move(tensor))); }
    std::string scratch(plan::Tensor tensor) { return noted(builder_.scratch(std::move(tensor))); }
    void initial(const PlaceTuple& place, bool partial) { builder_.initial(to_place(place), partial); }
    void produced(const PlaceTuple& place, bool partial) { builder_.produced(to_place(place), partial); }
    void final(const PlaceTuple& place, const nb::object& of) {
        if (of.is_none()) {
            builder_.final(to_place(place));
        } else if (of.equal(nb::str("all"))) {
            builder_.final_of_all(to_place(place));
        } else {
            builder_.final_of(to_place(place), nb::cast<std::vector<std::int32_t>>(of));
        }
    }
    Ref transfer(const PlaceTuple& from, const PlaceTuple& to, const std::optional<std::string>& reduce,
                 const std::vector<Ref>& after, const std::string& backend) {
        std::vector<plan::OpRef> waits;
        for (const auto& [rank, index] : after) waits.push_back({rank, index});
        const plan::Backend chosen = to_backend(backend);
        const plan::OpRef ref =
            builder_.transfer(to_place(from), to_place(to), to_reduce(reduce), std::move(waits));
        builder_.set_backend(ref, chosen);
        return {ref.rank, ref.index};
    }
    plan::Plan build() {
        names_.clear();
        return unwrap(builder_.take());
    }

private:
    std::string noted(std::int32_t tensor) {
        names_.push_back(builder_.tensor(tensor).name);
        return names_.back();
    }
    plan::RankChunk to_place(const PlaceTuple& place) const {
        const auto& [rank, tensor, box] = place;
        plan::RankChunk made{rank, {}};
        for (std::size_t i = 0; i < names_.size(); ++i) {
            if (names_[i] == tensor) made.chunk.tensor = static_cast<std::int32_t>(i);
        }
        if (made.chunk.tensor < 0) throw Raised(usage_error("the plan has no tensor \"" + tensor + "\""));
        for (const auto& [begin, end] : box) made.chunk.region.push_back({begin, end});
        return made;
    }

    plan::Builder builder_;
    std::vector<std::string> names_;  ///< by index of the tensor
};

/// The plans of what kernels make.
void bind_pushes(nb::module_& m) {
    m.def(
        "push_reduce",
        [](const plan::Mesh& mesh, const plan::Tensor& tensor, std::int32_t axis, std::int32_t split,
           const std::string& reduce, bool all, bool by_part, bool pull,
           std::optional<std::int32_t> split_axis, const std::vector<std::string>& backends) {
            plan::PushReduceOptions options{.axis = axis,
                                            .split = split,
                                            .split_axis = split_axis,
                                            .reduce = to_reduce(reduce),
                                            .all = all,
                                            .by_part = by_part,
                                            .pull = pull};
            for (const std::string& backend : backends) options.backends.push_back(to_backend(backend));
            return unwrap(plan::push_reduce(mesh, tensor, options));
        },
        "mesh"_a, "tensor"_a, "axis"_a = 0, "split"_a = 1, nb::kw_only(), "reduce"_a = "sum", "all"_a = false,
        "by_part"_a = false, "pull"_a = false, "split_axis"_a = nb::none(),
        "backends"_a = std::vector<std::string>(),
        R"(Reduce-scatter of what every rank's kernel makes: each pushes its contribution to a shard of `tensor` along `axis`
to the shard's owner, where contributions are reduced ("sum" or "max") in rank order.

`split`: chunks per shard, along `split_axis` (default: `axis`). `all`: all-reduce, each summed chunk goes on to all
ranks. `by_part`: the first chunks of all shards go first, then the second ones, …; else shard by shard. `pull`: owners
pull the contributions instead, and the chunk engine, or by ldst_inline a sum's kernel, adds them up where they are.
`backends`: by what the contributions to the next rank go, to the one after it, …; open past the end.)");
    m.def(
        "push_reduce_to_all",
        [](const plan::Mesh& mesh, const plan::Tensor& tensor, const std::string& to, std::int32_t split,
           std::int32_t split_axis, const std::string& reduce, bool all, std::optional<std::int64_t> rows) {
            return unwrap(plan::push_reduce_to_all(mesh, tensor, to,
                                                   {.all = all,
                                                    .rows = rows,
                                                    .split = split,
                                                    .split_axis = split_axis,
                                                    .reduce = to_reduce(reduce)}));
        },
        "mesh"_a, "tensor"_a, "to"_a, "split"_a = 1, nb::kw_only(), "split_axis"_a = 0, "reduce"_a = "sum",
        "all"_a = true, "rows"_a = nb::none(),
        R"(The all-reduce in one step of what every rank's kernel makes: each sends all of its contribution to `tensor` to every
rank, and each sums all of it into `to`, in rank order. For little data, where two steps take longer than the bytes.
`all` False: a reduce-scatter that sends as much, of which each rank ends with its even share of rows; tiles need not end
where shares do. `rows`: so many are asked for, the others pad the tensor to whole tiles.

`split`: chunks along `split_axis`.)");
    m.def(
        "push_groups",
        [](const plan::Mesh& mesh, const plan::Tensor& rows, std::int64_t experts,
           const std::optional<plan::Tensor>& back, const std::optional<plan::Tensor>& more, bool keep,
           const std::string& counts) {
            return unwrap(plan::push_groups(
                mesh, rows,
                {.experts = experts, .more = more, .back = back, .keep = keep, .counts = counts}));
        },
        "mesh"_a, "rows"_a, "experts"_a, "back"_a = nb::none(), nb::kw_only(), "more"_a = nb::none(),
        "keep"_a = false, "counts"_a = "counts",
        R"(Rows to the ranks of their experts, in groups of which only a call knows how many rows they have: `rows` [bound,
columns], as many as come to a rank at most. Rank r has an equal share of the `experts`, in order, and begins with its
own rows for all of them, and with how many these are: its row of `counts` [ranks, experts], int32. `back` [bound, …]:
what kernels make of the rows, which goes back to their ranks. `more` [bound, …]: a second tensor of the same rows, which
comes with them. `keep`: what came is the user's until the next call.)");
    m.def(
        "push_exchange",
        [](const plan::Mesh& mesh, const plan::Tensor& tensor, const std::string& to, std::int32_t split,
           bool produced, bool transient, bool for_kernel, std::int32_t minor_axis, std::int32_t minor_split,
           std::vector<std::int64_t> minor_sizes, bool peer_by_peer) {
            return unwrap(plan::push_exchange(mesh, tensor, to,
                                              {.produced = produced,
                                               .split = split,
                                               .transient = transient,
                                               .for_kernel = for_kernel,
                                               .minor_axis = minor_axis,
                                               .minor_split = minor_split,
                                               .minor_sizes = std::move(minor_sizes),
                                               .peer_by_peer = peer_by_peer}));
        },
        "mesh"_a, "tensor"_a, "to"_a, "split"_a = 1, nb::kw_only(), "produced"_a = true,
        "transient"_a = false, "for_kernel"_a = false, "minor_axis"_a = -1, "minor_split"_a = 1,
        "minor_sizes"_a = std::vector<std::int64_t>(), "peer_by_peer"_a = false,
        R"(The all-to-all of equal buffers: block p (of rows) of each rank's own `tensor` becomes block r of `to` on rank p.

`split`: chunks per block. `produced` False: `tensor` is held initially, not made by the kernel. `transient`, then: ranks
pull their blocks, for their kernels only. `for_kernel`: blocks are pushed, for the kernels only; a kernel that can reads
the own one where the user has it. `minor_axis`, `minor_split`, `minor_sizes` cut what leaves along a second axis;
`peer_by_peer`: all slices for one peer before the next one's, instead of every peer's first before any second.)");
    m.def(
        "join",
        [](const std::vector<plan::Plan>& parts, const std::vector<plan::Tensor>& tensors) {
            return unwrap(plan::join(parts, tensors));
        },
        "parts"_a, "tensors"_a = nb::tuple(),
        R"(Several plans over one mesh as one, for a program of several stages: each rank's list is that of the first part, then
that of the second, … `tensors`: more of them, which no op moves. Raises where meshes differ or a name comes twice.)");
}

}  // namespace

void bind_templates(nb::module_& m) {
    bind_pushes(m);
    m.def(
        "make_plan",
        [](const std::string& name, const plan::Mesh& mesh, const plan::Tensor& tensor, bool direct,
           const nb::kwargs& keywords) {
            const plan::TemplateOptions options = to_options(name, keywords);
            const GilReleased released;
            return unwrap(direct ? plan::make_collective(name, mesh, tensor, options)
                                 : plan::make_plan(name, mesh, tensor, options));
        },
        nb::arg("name"), nb::arg("mesh"), nb::arg("tensor"), nb::arg("direct"), nb::arg("options"),
        "The plan of a template, or with `direct` of the one collective op that it stands for.");
    m.def(
        "lower",
        [](const plan::Plan& plan, const nb::object& to, const std::string& algorithm, std::int32_t split,
           bool pull, std::int32_t inner, const std::optional<std::string>& topology, std::uint64_t seed) {
            plan::LowerOptions options{.algorithm = unwrap(plan::parse_algorithm(algorithm)),
                                       .split = split,
                                       .pull = pull,
                                       .inner = inner,
                                       .seed = seed};
            const auto words = nb::isinstance<nb::str>(to) ? std::vector{nb::cast<std::string>(to)}
                                                           : nb::cast<std::vector<std::string>>(to);
            for (const std::string& word : words)
                options.rules.push_back(unwrap(plan::parse_lower_rule(word)));
            if (topology) options.topology = unwrap(plan::find_topology(*topology));
            const GilReleased released;
            return unwrap(plan::lower_collectives(plan, options));
        },
        "plan"_a, "to"_a = "template", nb::kw_only(), "algorithm"_a = "auto", "split"_a = 1, "pull"_a = false,
        "inner"_a = 0, "topology"_a = nb::none(), "seed"_a = 0,
        R"(`plan` with transfers in the place of its collectives.

`to`: "template", "synth" (those that a search finds for `topology`, as of simulate(), and `seed`), or "direct",
which leaves them; or several words, such as ["synth", "all_reduce=template", "2:5=direct"], for collectives of one
kind, or for the one that op 5 of rank 2 is part of. The last that fits counts; without any, "template".
`algorithm` is for each collective whose template has it; the others take their default. `split`: chunks per piece;
0 with "synth": as many as are fastest.)");

    nb::class_<NamedBuilder>(
        m, "Builder",
        R"(A plan written as a program: say what is moved, one transfer after another; `after` follows from the data.

A place is (rank, tensor name, box), a box one (begin, end) per axis. Ops are named (rank, index). What is wrong with
a place is raised by build().)")
        .def(nb::init<const plan::Mesh&, bool>(), "mesh"_a, nb::kw_only(), "pull"_a = false)
        .def("tensor", &NamedBuilder::tensor, "tensor"_a, "Adds a tensor and returns its name.")
        .def("scratch", &NamedBuilder::scratch, "tensor"_a,
             "Adds staging space; where the name is taken, another one is made of it. Returns the name.")
        .def("initial", &NamedBuilder::initial, "place"_a, nb::kw_only(), "partial"_a = false,
             "What a rank holds before the first op: the value, or its contribution to a reduction.")
        .def("produced", &NamedBuilder::produced, "place"_a, nb::kw_only(), "partial"_a = false,
             "What the kernel will write there.")
        .def("final", &NamedBuilder::final, "place"_a, nb::kw_only(), "of"_a = nb::none(),
             "What a rank must hold at the end: the value, or with `of` the reduction over \"all\" or over "
             "these ranks.")
        .def("transfer", &NamedBuilder::transfer, "source"_a, "target"_a, nb::kw_only(),
             "reduce"_a = nb::none(), "after"_a = std::vector<Ref>(), "backend"_a = "auto",
             "Moves a chunk, or with `reduce` (\"sum\", \"max\") joins it to what the target holds. Returns "
             "the op's name.")
        .def("build", &NamedBuilder::build, "The plan; the builder is empty afterwards.");
}

}  // namespace syncopate::bindings
