#include "problem.hpp"

#include <nanobind/stl/variant.h>

#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bindings.hpp"
#include "value.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace syncopate::bindings {
namespace {

nb::object torch(const char* name) { return nb::module_::import_("torch").attr(name); }

nb::object names() { return nb::module_::import_("syncopate.call.arguments").attr("DTYPE_NAMES"); }

std::string name_of(const nb::object& dtype) {
    if (!nb::isinstance(dtype, torch("dtype")))
        throw nb::type_error(fmt::format("dtype: expected a torch.dtype, such as torch.bfloat16, got {}",
                                         nb::repr(dtype).c_str())
                                 .c_str());
    const nb::object name = names().attr("get")(dtype);
    if (name.is_none())
        throw nb::value_error(
            fmt::format("expected dtype bf16, fp16, fp32 or fp8e4m3, got {}", nb::str(dtype).c_str())
                .c_str());
    return nb::cast<std::string>(name);
}

Field<ProblemValue> dtype(const char* name, const char* type, nb::object ProblemValue::* member) {
    return {name, type, "", [=](const ProblemValue& p) { return p.*member; },
            [=](ProblemValue& p, nb::handle given) {
                p.*member = nb::isinstance<nb::str>(given)
                                ? nb::module_::import_("syncopate.call.arguments").attr("torch_dtype")(given)
                                : nb::borrow(given);
            }};
}

bool is_fp8(const ProblemValue& p) { return p.dtype.is(torch("float8_e4m3fn")); }

}  // namespace

nb::object ProblemValue::out_dtype() const {
    if (!out.is_none()) return out;
    return is_fp8(*this) ? torch("bfloat16") : dtype;
}

std::string ProblemValue::key() const {
    const std::string made = name_of(out_dtype()), of = name_of(dtype);
    return fmt::format("{}:M={},N={},K={}{},dtype={}{}{},ranks={}{},sms={}", op, m, n, k,
                       f != 0 ? fmt::format(",F={}", f) : "", of, made != of ? ",out=" + made : "",
                       scales.empty() ? "" : ",scales=" + scales, std::max(1, ranks),
                       nodes > 1 ? fmt::format(",nodes={}", nodes) : "", num_sms);
}

bool ProblemValue::operator==(const ProblemValue& other) const {
    return op == other.op && m == other.m && n == other.n && k == other.k && f == other.f &&
           dtype.is(other.dtype) && out.is(other.out) && ranks == other.ranks && num_sms == other.num_sms &&
           device == other.device && scales == other.scales && nodes == other.nodes;
}

std::string key_of(const GivenProblem& given) {
    const auto* text = std::get_if<std::string>(&given);
    return text != nullptr ? *text : std::get<ProblemValue>(given).key();
}

ops::Problem problem_of(const GivenProblem& given) { return unwrap(ops::parse_problem(key_of(given))); }

void bind_problem(nb::module_& m) {
    nb::class_<ProblemValue> type(m, "Problem",
                                  "An operator (`ops.OPERATORS`), its extents, and what it runs on: `ranks` "
                                  "devices of `num_sms` multiprocessors, alike on `nodes`. "
                                  "`dtype`, `out`: torch's, or their names. `f`: the inner width of a "
                                  "feed-forward block on one rank. `out`: the "
                                  "dtype of what products of fp8 make; None: bf16 of these, else `dtype`. "
                                  "`scales`: their factors (ops.scales).");
    bind_value<ProblemValue>(
        type,
        {field("operator", "str", &ProblemValue::op), field("m", "int", &ProblemValue::m),
         field("n", "int", &ProblemValue::n), field("k", "int", &ProblemValue::k),
         dtype("dtype", "torch.dtype", &ProblemValue::dtype), field("ranks", "int", &ProblemValue::ranks),
         field("num_sms", "int", &ProblemValue::num_sms), field("device", "str", &ProblemValue::device),
         field("f", "int", &ProblemValue::f), dtype("out", "torch.dtype | None", &ProblemValue::out),
         field("scales", "str", &ProblemValue::scales), field("nodes", "int", &ProblemValue::nodes)},
        6, ProblemValue{});
    type.def_prop_ro("key", &ProblemValue::key, "As the command line and stores have it (ops/problem.hpp).")
        .def_prop_ro("is_fp8", &is_fp8, "Whether its products are of float8_e4m3fn.")
        .def_prop_ro("out_dtype", &ProblemValue::out_dtype, "What its products make.",
                     nb::sig("def out_dtype(self) -> torch.dtype"))
        .def_prop_ro(
            "products",
            [](const ProblemValue& p) {
                if (p.f == 0) return nb::make_tuple(nb::make_tuple(p.m, p.n, p.k));
                return nb::make_tuple(nb::make_tuple(p.m, p.f, p.k), nb::make_tuple(p.m, p.n, p.f));
            },
            "(M, N, K) of each product, one after the other.",
            nb::sig("def products(self) -> tuple[tuple[int, int, int], ...]"));
}

}  // namespace syncopate::bindings
