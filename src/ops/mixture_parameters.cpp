#include <fmt/format.h>

#include "ops/mixture.hpp"
#include "syncopate/ops/mixture.hpp"

namespace syncopate::ops {
namespace {

using Of = Parameter::Of;

/// The stages of a whole mixture, expert parallel, as moe.cpp has them.
enum Stage : std::int32_t { kCount, kLayout, kDispatch, kUp, kDown, kCombine, kStages };

class ParametersOf {
public:
    ParametersOf(const Problem& problem, const Strategy& strategy)
        : problem_(problem), of_(problem, strategy) {}

    [[nodiscard]] std::vector<Parameters> make() const {
        std::vector<Parameters> made(kStages, of_all());
        made[kUp]["w_ptr"] = weights("w1", of_.hidden, 2 * of_.inner);
        made[kDown]["w_ptr"] = weights("w2", of_.inner, of_.hidden);
        const auto stride = [&](Stage stage, const char* parameter, const char* tensor) {
            made[stage][parameter] = {.of = Of::stride, .name = tensor};
        };
        stride(kCount, "stride", "counts");
        stride(kDispatch, "stride", "X");
        stride(kDispatch, "stride_numbers", "origin");
        stride(kDown, "stride", "Y");
        return made;
    }

private:
    [[nodiscard]] Parameters of_all() const {
        const std::int64_t routes = of_.tokens * of_.topk;
        return {
            {"given_ptr", {.name = "x", .dtype = problem_.dtype, .shape = {of_.tokens, of_.hidden}}},
            {"ids_ptr", {.name = "topk_ids", .dtype = plan::DType::int64, .shape = {of_.tokens, of_.topk}}},
            {"weights_ptr",
             {.name = "topk_weights", .dtype = plan::DType::fp32, .shape = {of_.tokens, of_.topk}}},
            {"out_ptr",
             {.name = "y", .dtype = problem_.out, .shape = {of_.tokens, of_.hidden}, .written = true}},
            {"position_ptr", numbers("position", {of_.tokens, of_.topk})},
            {"sent_ptr", numbers("sent", {2, of_.experts})},
            {"order_ptr", numbers("order", {routes})},
            {"group_ptr", numbers("group", {of_.experts})},
            {"own_ptr", numbers("own", {2, of_.own})},
            {"status_ptr", numbers("status", {2})},
            {"seen_ptr", numbers(kSeen, {2})},
            // What is kept for a backward pass: nothing is.
            {"h_ptr", numbers("status", {2})},
            {"dispatch_ptr", {.of = Of::table, .stage = kDispatch}},
            {"up_ptr", {.of = Of::table, .stage = kUp}},
            {"down_ptr", {.of = Of::table, .stage = kDown}},
            {"rank", {.of = Of::rank}},
        };
    }

    [[nodiscard]] Parameter weights(const char* name, std::int64_t rows, std::int64_t columns) const {
        return {.name = name, .dtype = problem_.dtype, .shape = {of_.own, rows, columns}};
    }
    static Parameter numbers(const char* name, std::vector<std::int64_t> shape) {
        return {.of = Of::scratch, .name = name, .shape = std::move(shape)};
    }

    const Problem& problem_;
    MixtureSizes of_;
};

}  // namespace

Result<std::vector<Parameters>> mixture_parameters(const Problem& problem, const Strategy& strategy) {
    const auto refused = [](const std::string& what) {
        return Error{what + " are made from Python alone: sy.ops.moe", {}, ErrorClass::usage};
    };
    const std::string_view part = problem.word("part");
    if (!part.empty() && part != "whole") return refused(fmt::format("moe: calls of part={}", part));
    if (problem.word("parallel") == "tensor") return refused("moe: calls of tensor parallel experts");
    if (problem.scales != Scales::none) return refused("moe: calls of experts of fp8");
    return ParametersOf(problem, strategy).make();
}

}  // namespace syncopate::ops
