// Collectives and the transfers that carry them out. A plan may leave a collective to a library ("direct"),
// or have it replaced by transfers, spliced in where it stood: those of a template, or those that a search
// finds for a topology ("synth", synthesise.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/templates/template_options.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// What becomes of a collective. Another way to find the transfers is another value here, and another case in
/// expand() of src/plan/lower/lower_collective.cpp.
enum class Lowering : std::uint8_t {
    direct,       ///< it stays: a library executes it
    templated,    ///< "template": the transfers of a template
    synthesised,  ///< "synth": those that a search finds for a topology
};

[[nodiscard]] std::string_view name_of(Lowering lowering);
[[nodiscard]] std::optional<Lowering> lowering_from(std::string_view name);

/// What becomes of some collectives; with neither kind nor op of all.
struct LowerRule {
    std::optional<CollectiveKind> kind;  ///< those of this kind
    std::optional<OpRef> op;             ///< the one that this op is part of
    Lowering with = Lowering::templated;
};

/// A rule as it is written on the command line: "synth", "all_reduce=direct", or "2:5=template" for the
/// collective that op 5 of rank 2 is part of. Fails (ErrorClass::usage) saying what is expected.
[[nodiscard]] Result<LowerRule> parse_lower_rule(std::string_view text);

struct LowerOptions {
    Lowering with = Lowering::templated;
    /// For each collective whose template has it; the others take their default. Refused if none has it.
    Algorithm algorithm = Algorithm::automatic;
    std::int32_t split = 1;  ///< chunks per piece, along its first axis that is long enough; where all is
                             ///< synthesised also 0: as many as the search finds fastest
    bool pull = false;       ///< not where anything is synthesised
    std::int32_t inner = 0;  ///< as in TemplateOptions: of the list of ranks of each collective
    std::vector<LowerRule> rules;  ///< of several that fit, the last one counts
    /// synth: the machine; rank r is its device r. Nobody but a collective's ranks passes its data on, and
    /// each is searched for as if it had the machine to itself.
    std::optional<Topology> topology;
    std::uint64_t seed = 0;  ///< synth: another one may find other transfers; the same one finds the same
};

/// `plan` with every collective replaced as `options` say. The transfers of a collective stand where its op
/// stood in the list of each rank. Where a source must stay whole, they work in staging tensors of their own.
///
/// What is kept of the order that check.hpp gives a collective:
/// - Each transfer waits for what the ops of its two ranks waited for, by itself or through another transfer.
/// - Who waited for the op of a rank waits for the transfers that deliver there, or, where none does, for
/// what that
///   op waited for.
/// - Any two ops of the plan that touch the same data, one of them writing, stay in their order, if they had
/// one. So a rank whose part has come goes on while others still wait; nothing else can tell the difference.
///
/// Fails (ErrorClass::input, at the rank and op) if check() has a finding, if participants ask for different
/// reductions, or if what a collective writes overlaps what it reads elsewhere or writes twice; and
/// (ErrorClass::usage) if the options do not fit the collectives, the topology has no way between two ranks
/// of one, or more than kMaxOps ops come out. Near-linear in ops, but for the search (synthesise.hpp).
[[nodiscard]] Result<Plan> lower_collectives(const Plan& plan, const LowerOptions& options = {});

/// The plan that the template `name` makes, with one collective op on each rank instead of transfers; in
/// place. Of the options only axis, over, group, root, reduce, to_axis and produced matter. Fails
/// (ErrorClass::usage) as the template does, if it has no op in the schema (ring, double_ring), or if a shard
/// is empty, since an op must move something.
[[nodiscard]] Result<Plan> make_collective(std::string_view name, const Mesh& mesh, const Tensor& tensor,
                                           const TemplateOptions& options = {});

}  // namespace syncopate::plan
