// How plans are made, as Python sees it: templates, lowering, and the Builder.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "syncopate/plan/lower/lower.hpp"
#include "syncopate/plan/model/builder.hpp"
#include "syncopate/plan/model/join.hpp"
#include "syncopate/plan/templates/push_exchange.hpp"
#include "syncopate/plan/templates/push_reduce.hpp"
#include "syncopate/plan/templates/templates.hpp"

namespace nb = nanobind;

namespace syncopate::bindings {
namespace {

using Axes = std::vector<std::pair<std::string, std::int32_t>>;
using TensorTuple = std::tuple<std::string, std::vector<std::int64_t>, std::string>;
using PlaceTuple = std::tuple<std::int32_t, std::string, Box>;  // rank, tensor, (begin, end) per axis
using Ref = std::pair<std::int32_t, std::int32_t>;

plan::Mesh to_mesh(const Axes& axes) {
    plan::Mesh mesh;
    for (const auto& [name, size] : axes) mesh.axes.push_back({name, size});
    return mesh;
}

plan::Tensor to_tensor(const TensorTuple& tensor) {
    const auto& [name, shape, dtype] = tensor;
    return {name, shape, to_dtype(dtype)};
}

plan::Algorithm to_algorithm(const std::string& name) {
    return named(plan::algorithm_from(name), "algorithm", name,
                 names_of<plan::Algorithm>(plan::kNumAlgorithms));
}

plan::Reduce to_reduce(const std::optional<std::string>& name) {
    if (!name) return plan::Reduce::none;
    if (*name == "sum") return plan::Reduce::sum;
    if (*name == "max") return plan::Reduce::max;
    return named(std::optional<plan::Reduce>{}, "reduction", *name,
                 std::array<std::string_view, 2>{"sum", "max"});
}

void set_option(plan::TemplateOptions& options, const std::string& name, nb::handle value) {
    if (name == "axis") {
        options.axis = nb::cast<std::int32_t>(value);
    } else if (name == "split") {
        options.split = nb::cast<std::int32_t>(value);
    } else if (name == "pull") {
        options.pull = nb::cast<bool>(value);
    } else if (name == "minor_axis") {
        options.minor_axis = nb::cast<std::int32_t>(value);
    } else if (name == "minor_split") {
        options.minor_split = nb::cast<std::int32_t>(value);
    } else if (name == "minor_sizes") {
        options.minor_sizes = nb::cast<std::vector<std::int64_t>>(value);
    } else if (name == "peer_by_peer") {
        options.peer_by_peer = nb::cast<bool>(value);
    } else if (name == "algorithm") {
        options.algorithm = to_algorithm(nb::cast<std::string>(value));
    } else if (name == "over") {
        options.over = nb::cast<std::vector<std::string>>(value);
    } else if (name == "group") {
        options.group = nb::cast<std::vector<std::int32_t>>(value);
    } else if (name == "inner") {
        options.inner = nb::cast<std::int32_t>(value);
    } else if (name == "produced") {
        options.produced = nb::cast<bool>(value);
    } else if (name == "transient") {
        options.transient = nb::cast<bool>(value);
    } else if (name == "to_axis") {
        options.to_axis = nb::cast<std::int32_t>(value);
    } else if (name == "root") {
        options.root = nb::cast<std::int32_t>(value);
    } else if (name == "steps") {
        options.steps = nb::cast<std::int32_t>(value);
    } else if (name == "reduce") {
        options.reduce = to_reduce(nb::cast<std::string>(value));
    } else {
        throw nb::type_error(("there is no option '" + name + "'").c_str());
    }
}

/// Every keyword is the option of that name; what is left out keeps its default.
plan::TemplateOptions to_options(const nb::kwargs& keywords) {
    plan::TemplateOptions options;
    for (auto [key, value] : keywords) {
        const auto name = nb::cast<std::string>(key);
        try {
            set_option(options, name, value);
        } catch (const nb::cast_error&) {
            throw nb::type_error(("option '" + name + "' has a value of the wrong type").c_str());
        }
    }
    return options;
}

/// A Builder that knows tensors by name.
class NamedBuilder {
public:
    NamedBuilder(const Axes& mesh, bool pull) : builder_(to_mesh(mesh), pull) {}

    std::string tensor(const TensorTuple& tensor, bool scratch) {
        plan::Tensor made = to_tensor(tensor);
        const std::int32_t index =
            scratch ? builder_.scratch(std::move(made)) : builder_.tensor(std::move(made));
        names_.push_back(builder_.tensor(index).name);
        return names_.back();
    }
    void initial(const PlaceTuple& place, bool partial) { builder_.initial(to_place(place), partial); }
    void produced(const PlaceTuple& place, bool partial) { builder_.produced(to_place(place), partial); }
    void final(const PlaceTuple& place) { builder_.final(to_place(place)); }
    void final_of(const PlaceTuple& place, const std::optional<std::vector<std::int32_t>>& ranks) {
        if (ranks) {
            builder_.final_of(to_place(place), *ranks);
        } else {
            builder_.final_of_all(to_place(place));
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
    plan::Plan take() {
        names_.clear();
        return unwrap(builder_.take());
    }

private:
    plan::Place to_place(const PlaceTuple& place) const {
        const auto& [rank, tensor, box] = place;
        plan::Place made{rank, {}};
        for (std::size_t i = 0; i < names_.size(); ++i) {
            if (names_[i] == tensor) made.chunk.tensor = static_cast<std::int32_t>(i);
        }
        if (made.chunk.tensor < 0)
            throw Raised(Error{"the plan has no tensor \"" + tensor + "\"", {}, ErrorClass::usage});
        for (const auto& [begin, end] : box) made.chunk.region.push_back({begin, end});
        return made;
    }

    plan::Builder builder_;
    std::vector<std::string> names_;  ///< by index of the tensor
};

/// Plans of several parts in one, and what Python's plans.py makes of them.
void bind_pushes(nb::module_& m) {
    m.def(
        "push_reduce",
        [](const Axes& axes, std::string name, std::vector<std::int64_t> shape, const std::string& dtype,
           std::int32_t axis, std::int32_t split, const std::string& reduce, bool all, bool by_part,
           std::int32_t pulled, std::optional<std::int32_t> split_axis,
           const std::vector<std::string>& backends) {
            std::vector<plan::Backend> chosen;
            for (const std::string& backend : backends) chosen.push_back(to_backend(backend));
            return unwrap(plan::push_reduce(to_mesh(axes),
                                            to_tensor({std::move(name), std::move(shape), dtype}),
                                            {.axis = axis,
                                             .split = split,
                                             .split_axis = split_axis,
                                             .reduce = to_reduce(reduce),
                                             .all = all,
                                             .by_part = by_part,
                                             .backends = std::move(chosen),
                                             .pulled = pulled}));
        },
        nb::arg("mesh"), nb::arg("name"), nb::arg("shape"), nb::arg("dtype"), nb::arg("axis"),
        nb::arg("split"), nb::arg("reduce"), nb::arg("all"), nb::arg("by_part") = false,
        nb::arg("pulled") = 0, nb::arg("split_axis") = nb::none(),
        nb::arg("backends") = std::vector<std::string>());
    m.def(
        "push_reduce_to_all",
        [](const Axes& axes, std::string name, const std::string& to, std::vector<std::int64_t> shape,
           const std::string& dtype, std::int32_t split, std::int32_t split_axis, const std::string& reduce,
           bool all, std::optional<std::int64_t> rows) {
            return unwrap(plan::push_reduce_to_all(to_mesh(axes),
                                                   to_tensor({std::move(name), std::move(shape), dtype}), to,
                                                   {.all = all,
                                                    .rows = rows,
                                                    .split = split,
                                                    .split_axis = split_axis,
                                                    .reduce = to_reduce(reduce)}));
        },
        nb::arg("mesh"), nb::arg("name"), nb::arg("to"), nb::arg("shape"), nb::arg("dtype"), nb::arg("split"),
        nb::arg("split_axis"), nb::arg("reduce"), nb::arg("all") = true, nb::arg("rows") = nb::none());
    m.def(
        "push_exchange",
        [](const Axes& axes, std::string name, const std::string& to, std::vector<std::int64_t> shape,
           const std::string& dtype, std::int32_t split, bool produced, bool transient, bool for_kernel,
           std::int32_t minor_axis, std::int32_t minor_split, std::vector<std::int64_t> minor_sizes,
           bool peer_by_peer) {
            return unwrap(plan::push_exchange(to_mesh(axes),
                                              to_tensor({std::move(name), std::move(shape), dtype}), to,
                                              {.produced = produced,
                                               .split = split,
                                               .transient = transient,
                                               .for_kernel = for_kernel,
                                               .minor_axis = minor_axis,
                                               .minor_split = minor_split,
                                               .minor_sizes = std::move(minor_sizes),
                                               .peer_by_peer = peer_by_peer}));
        },
        nb::arg("mesh"), nb::arg("name"), nb::arg("to"), nb::arg("shape"), nb::arg("dtype"), nb::arg("split"),
        nb::arg("produced"), nb::arg("transient"), nb::arg("for_kernel"), nb::arg("minor_axis"),
        nb::arg("minor_split"), nb::arg("minor_sizes"), nb::arg("peer_by_peer"));

    m.def(
        "join_plans",
        [](const std::vector<plan::Plan>& parts, const std::vector<TensorTuple>& tensors) {
            std::vector<plan::Tensor> added;
            for (const TensorTuple& tensor : tensors) added.push_back(to_tensor(tensor));
            return unwrap(plan::join(parts, added));
        },
        nb::arg("plans"), nb::arg("tensors"));
}

}  // namespace

void bind_templates(nb::module_& m) {
    bind_pushes(m);
    m.def(
        "make_plan",
        [](const std::string& name, const Axes& mesh, const TensorTuple& tensor, bool direct,
           const nb::kwargs& keywords) {
            const plan::TemplateOptions options = to_options(keywords);
            const plan::Mesh axes = to_mesh(mesh);
            const plan::Tensor whole = to_tensor(tensor);
            nb::gil_scoped_release release;
            return unwrap(direct ? plan::make_collective(name, axes, whole, options)
                                 : plan::make_plan(name, axes, whole, options));
        },
        nb::arg("name"), nb::arg("mesh"), nb::arg("tensor"), nb::arg("direct"), nb::arg("options"),
        "The plan of a template, or with `direct` of the one collective op that it stands for.");
    m.def(
        "lower_collectives",
        [](const plan::Plan& plan, const std::vector<std::string>& with, const std::string& algorithm,
           std::int32_t split, bool pull, std::int32_t inner, const std::optional<std::string>& topology,
           std::uint64_t seed) {
            plan::LowerOptions options{.algorithm = to_algorithm(algorithm),
                                       .split = split,
                                       .pull = pull,
                                       .inner = inner,
                                       .seed = seed};
            for (const std::string& word : with)
                options.rules.push_back(unwrap(plan::parse_lower_rule(word)));
            if (topology) options.topology = unwrap(plan::find_topology(*topology));
            nb::gil_scoped_release release;
            return unwrap(plan::lower_collectives(plan, options));
        },
        nb::arg("plan"), nb::arg("how"), nb::arg("algorithm"), nb::arg("split"), nb::arg("pull"),
        nb::arg("inner"), nb::arg("topology").none(), nb::arg("seed"));

    nb::class_<NamedBuilder>(m, "Builder")
        .def(nb::init<const Axes&, bool>(), nb::arg("mesh"), nb::arg("pull"))
        .def("tensor", &NamedBuilder::tensor, nb::arg("tensor"), nb::arg("scratch"))
        .def("initial", &NamedBuilder::initial, nb::arg("place"), nb::arg("partial"))
        .def("produced", &NamedBuilder::produced, nb::arg("place"), nb::arg("partial"))
        .def("final", &NamedBuilder::final, nb::arg("place"))
        .def("final_of", &NamedBuilder::final_of, nb::arg("place"), nb::arg("ranks").none())
        .def("transfer", &NamedBuilder::transfer, nb::arg("source"), nb::arg("target"),
             nb::arg("reduce").none(), nb::arg("after"), nb::arg("backend"))
        .def("take", &NamedBuilder::take);
}

}  // namespace syncopate::bindings
