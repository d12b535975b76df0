// Templates: functions that write the plan of a well-known collective. They use nothing but the public
// Builder, so a user's own template is a function like these. Each has a header that draws who sends what
// when; here is the list of them, for who chooses one by name.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/templates/all_gather.hpp"
#include "syncopate/plan/templates/all_reduce.hpp"
#include "syncopate/plan/templates/all_to_all.hpp"
#include "syncopate/plan/templates/broadcast.hpp"
#include "syncopate/plan/templates/reduce_scatter.hpp"
#include "syncopate/plan/templates/ring.hpp"
#include "syncopate/plan/templates/template_options.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// A template as the command and the bindings see it.
struct Template {
    /// Options that not every template has; see TemplateOptions.
    enum Use : unsigned { kToAxis = 1, kRoot = 2, kSteps = 4, kReduce = 8, kPeerByPeer = 16 };

    std::string_view name;
    std::string_view summary;           ///< one line, without a full stop
    std::vector<Algorithm> algorithms;  ///< the default first
    unsigned uses = 0;
    Result<Plan> (*make)(const Mesh&, const Tensor&, const TemplateOptions&) = nullptr;
    std::optional<CollectiveKind> collective;  ///< what it carries out, where the schema has an op for that
};

/// All of them, in the order of the documentation.
[[nodiscard]] const std::vector<Template>& templates();

/// The one called `name`, or null.
[[nodiscard]] const Template* find_template(std::string_view name);

/// The one that carries out `kind`, or null.
[[nodiscard]] const Template* find_template(CollectiveKind kind);

/// The algorithm called `name`. Fails (ErrorClass::usage) where there is none: the message says which there are, of the
/// template called `of` if there is such a one.
[[nodiscard]] Result<Algorithm> parse_algorithm(std::string_view name, std::string_view of = {});

/// Calls the template called `name`. Fails (ErrorClass::usage) if there is none, and as the template does.
[[nodiscard]] Result<Plan> make_plan(std::string_view name, const Mesh& mesh, const Tensor& tensor,
                                     const TemplateOptions& options = {});

}  // namespace syncopate::plan
