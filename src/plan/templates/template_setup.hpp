// What every template does before it moves anything: judges its arguments, finds its groups, cuts its shards.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plan/templates/algorithms.hpp"
#include "syncopate/plan/model/builder.hpp"
#include "syncopate/plan/templates/template_options.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

/// A template's arguments, judged. The builder has the tensor, as number 0, and nothing else.
struct Setup {
    std::string name;  ///< of the template, for messages
    Builder builder;
    Tensor tensor;
    TemplateOptions options;  ///< with the algorithm chosen
    std::vector<Team> teams;
    Cut cut;
    std::vector<Interval> shards;  ///< by position, along options.axis

    [[nodiscard]] std::int32_t size() const { return teams.front().size(); }
    [[nodiscard]] Chunk whole() const { return {0, tensor.whole()}; }
    /// The shard of a position; its region may be empty.
    [[nodiscard]] Chunk shard(std::int32_t position) const;
    [[nodiscard]] Script script(const Team& team);
    /// Says what a rank starts with, in `initial` or `produced`; nothing if it is empty.
    void start(std::int32_t rank, Chunk chunk, bool partial = false);
    /// What a rank ends with: the value, or the reduction over its team; nothing if it is empty.
    void end(std::int32_t rank, Chunk chunk);
    void end_reduced(const Team& team, std::int32_t rank, Chunk chunk);
    /// Staging space for `count` of the longest shard, or of the whole, on each rank.
    [[nodiscard]] Slots shard_slots(std::int64_t count, std::string_view suffix = ".staging");
    [[nodiscard]] Slots whole_slots(std::int64_t count);
    /// Refuses, before anything is built, what would be more than kMaxOps ops: the pieces go `times` times.
    [[nodiscard]] Status bounded(const std::vector<Region>& pieces, std::int64_t times) const;
    [[nodiscard]] std::vector<Region> shard_regions() const;
    /// The plan, with the template's name in front of what is wrong.
    [[nodiscard]] Result<Plan> finish(bool unordered = false);
};

/// Fails (ErrorClass::usage) with the template's name and what is wrong.
[[nodiscard]] Result<Setup> prepare(std::string_view name, const Mesh& mesh, const Tensor& tensor,
                                    const TemplateOptions& options);

}  // namespace syncopate::plan
