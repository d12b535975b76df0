// What the templates have in common: who takes part, how shards are cut, and which algorithm moves them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/plan/model/plan.hpp"

namespace syncopate::plan {

/// Who sends what to whom. Each template's header draws those that it has.
enum class Algorithm : std::uint8_t {
    automatic,      ///< the template's first
    direct,         ///< straight from who has it to who wants it
    ring,           ///< round a ring, each to its successor
    bidirectional,  ///< round a ring both ways
    double_ring,    ///< rings inside the inner level, and rings between them
    hierarchical,   ///< direct on each of two levels, both at work at once
    one_shot,       ///< everyone fetches everything and reduces it all
    two_shot,       ///< each reduces a part, then hands it out
    chain,          ///< one after another
    tree,           ///< those who have it double each round
};

inline constexpr std::size_t kNumAlgorithms = 10;

/// The names of the command line; `automatic` is "auto".
[[nodiscard]] std::string_view name_of(Algorithm algorithm);
[[nodiscard]] std::optional<Algorithm> algorithm_from(std::string_view name);

/// The options of all templates. A template refuses one that it does not have, unless it is at its default.
struct TemplateOptions {
    std::int32_t axis = 0;         ///< the tensor axis along which shards, or chunks of a whole, are cut
    std::int32_t split = 1;        ///< chunks per shard, along `axis`
    bool pull = false;             ///< the destination reads, instead of the source writing
    std::int32_t minor_axis = -1;  ///< a second axis to cut along, e.g. K of a GEMM; -1: none
    std::int32_t minor_split = 1;  ///< slices along minor_axis, equal but for a remainder
    /// Or the slices' extents, in their order; together the tensor's. Empty: minor_split says.
    std::vector<std::int64_t> minor_sizes;
    /// direct all_gather: all minor slices for one peer before the next peer's, instead of every peer's first
    /// slice before any second one
    bool peer_by_peer = false;

    Algorithm algorithm = Algorithm::automatic;
    /// Mesh axes along which the collective runs: all ranks that differ only in these make one group, and
    /// every group does it at once. Empty: one group of all ranks.
    std::vector<std::string> over;
    /// Or one group of these ranks, in this order; the others take no part.
    std::vector<std::int32_t> group;
    /// The two-level algorithms: ranks of the inner level (a node), consecutive in the group, whose size it
    /// divides. 0: the size of the mesh's last axis, where the group runs over that and others.
    std::int32_t inner = 0;
    bool produced = false;      ///< what ranks start with is written by the kernel, tile by tile
    bool transient = false;     ///< what arrives is for the kernel only: `final` asks for nothing
    std::int32_t to_axis = -1;  ///< all_to_all: the axis along which shards lie afterwards; -1: the next one
    std::int32_t root = 0;      ///< broadcast: position in the group of who has the tensor
    std::int32_t steps = -1;    ///< ring: how often shards are passed on; -1: until all have seen all
    Reduce reduce = Reduce::sum;  ///< of the reducing ones: sum or max
    bool operator==(const TemplateOptions&) const = default;
};

/// [begin, end) cut into `parts` >= 1 consecutive intervals whose sizes differ by at most one; the first
/// (end - begin) % parts of them are the longer ones. With fewer elements than parts the last ones are empty.
[[nodiscard]] std::vector<Interval> split_evenly(std::int64_t begin, std::int64_t end, std::int32_t parts);

}  // namespace syncopate::plan
