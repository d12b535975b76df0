#include "syncopate/plan/templates/templates.hpp"

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/at.hpp"
#include "syncopate/names.hpp"

namespace syncopate::plan {
namespace {

constexpr std::array<std::string_view, kNumAlgorithms> kAlgorithms{
    "auto",         "direct",   "ring",     "bidirectional", "double_ring",
    "hierarchical", "one_shot", "two_shot", "chain",         "tree"};

}  // namespace

std::string_view name_of(Algorithm algorithm) { return kAlgorithms[at(algorithm)]; }

std::optional<Algorithm> algorithm_from(std::string_view name) {
    const auto* const found = std::find(kAlgorithms.begin(), kAlgorithms.end(), name);
    if (found == kAlgorithms.end()) return std::nullopt;
    return static_cast<Algorithm>(found - kAlgorithms.begin());
}

const std::vector<Template>& templates() {
    using A = Algorithm;
    static const std::vector<Template> kTemplates{
        {"all_gather",
         "every rank ends with the shards of all",
         {A::direct, A::ring, A::bidirectional, A::double_ring, A::hierarchical},
         Template::kPeerByPeer,
         all_gather,
         CollectiveKind::all_gather},
        {"reduce_scatter",
         "every rank ends with its shard, reduced over all",
         {A::direct, A::ring, A::hierarchical},
         Template::kReduce,
         reduce_scatter,
         CollectiveKind::reduce_scatter},
        {"all_reduce",
         "every rank ends with the whole, reduced over all",
         {A::two_shot, A::one_shot, A::ring, A::hierarchical},
         Template::kReduce,
         all_reduce,
         CollectiveKind::all_reduce},
        {"all_to_all",
         "shards along one axis become shards along another",
         {A::direct, A::hierarchical},
         Template::kToAxis,
         all_to_all,
         CollectiveKind::all_to_all},
        {"broadcast",
         "every rank ends with what one had",
         {A::direct, A::chain, A::tree},
         Template::kRoot,
         broadcast,
         CollectiveKind::broadcast},
        {"ring",
         "shards are passed on round a ring, as in ring attention",
         {A::ring, A::bidirectional},
         Template::kSteps,
         ring,
         std::nullopt},
        {"double_ring",
         "the same in rings inside nodes, and between them",
         {A::double_ring},
         0,
         double_ring,
         std::nullopt},
    };
    return kTemplates;
}

const Template* find_template(std::string_view name) {
    const auto found = std::find_if(templates().begin(), templates().end(),
                                    [&](const Template& one) { return one.name == name; });
    return found == templates().end() ? nullptr : &*found;
}

const Template* find_template(CollectiveKind kind) {
    const auto found = std::find_if(templates().begin(), templates().end(),
                                    [&](const Template& one) { return one.collective == kind; });
    return found == templates().end() ? nullptr : &*found;
}

Result<Algorithm> parse_algorithm(std::string_view name, std::string_view of) {
    if (const std::optional<Algorithm> found = algorithm_from(name)) return *found;
    std::vector<std::string_view> known{name_of(Algorithm::automatic)};
    if (const Template* self = find_template(of)) {
        for (const Algorithm algorithm : self->algorithms) known.push_back(name_of(algorithm));
    } else {
        for (std::size_t i = 1; i < kNumAlgorithms; ++i) known.push_back(name_of(static_cast<Algorithm>(i)));
    }
    return usage_error(fmt::format("there is no algorithm \"{}\"; there are {}{}", escaped(name),
                                   fmt::join(known, ", "), did_you_mean(name, known)));
}

Result<Plan> make_plan(std::string_view name, const Mesh& mesh, const Tensor& tensor,
                       const TemplateOptions& options) {
    if (const Template* found = find_template(name)) return found->make(mesh, tensor, options);
    std::vector<std::string_view> names;
    for (const Template& one : templates()) names.push_back(one.name);
    const std::string hint = did_you_mean(name, names);
    return usage_error(
        fmt::format("there is no template \"{}\"{}", name,
                    hint.empty() ? fmt::format("; there are: {}", fmt::join(names, ", ")) : hint));
}

}  // namespace syncopate::plan
