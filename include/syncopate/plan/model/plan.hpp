// The communication plan: for each rank a list of ops that move chunks of tensors.
// A plan is a plain value. It says nothing about kernels or hardware.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/plan/model/region.hpp"
#include "syncopate/plan/model/short_list.hpp"
#include "syncopate/rare.hpp"
#include "syncopate/result.hpp"

namespace syncopate::plan {

enum class DType : std::uint8_t {
    bf16,
    fp16,
    fp32,
    fp64,
    fp8e4m3,
    fp8e5m2,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    boolean,
    fp8e4m3fnuz,
    fp8e5m2fnuz
};

inline constexpr std::size_t kNumDTypes = 17;

[[nodiscard]] std::size_t size_of(DType dtype);  ///< bytes of one element
[[nodiscard]] std::string_view name_of(DType dtype);
[[nodiscard]] std::optional<DType> dtype_from(std::string_view name);

/// Named axes; a rank is the row-major index of its coordinates (the last axis varies fastest).
struct Mesh {
    struct Axis {
        std::string name;
        std::int32_t size = 1;
        bool operator==(const Axis&) const = default;
    };
    std::vector<Axis> axes;
    /// The axis whose coordinate is a rank's node, the first one; "": all ranks are of one node. Ranks of a
    /// node map each other's memory; between nodes a channel carries chunks.
    std::string nodes{};

    [[nodiscard]] std::int32_t num_ranks() const;  ///< product of the axis sizes; 0 without axes
    [[nodiscard]] std::int32_t num_nodes() const { return nodes.empty() ? 1 : axes.front().size; }
    [[nodiscard]] std::int32_t ranks_of_node() const { return num_ranks() / num_nodes(); }
    [[nodiscard]] std::int32_t node_of(std::int32_t rank) const {
        return nodes.empty() ? 0 : rank / ranks_of_node();
    }
    bool operator==(const Mesh&) const = default;
};

/// An axis of which only a call knows the extent: its rows come in groups, each of which may have any number
/// of rows (ragged.hpp says where they lie).
struct Ragged {
    std::int32_t axis = 0;            ///< of the array in memory
    std::vector<std::string> groups;  ///< by what they are told apart: "rows_from_rank", "expert"
    std::int64_t rows = 0;            ///< for which there is memory
    std::int64_t bound = 0;           ///< that all groups of a rank have together, at most
    bool operator==(const Ragged&) const = default;
};

/// A logical global array. Sizes in elements.
struct Tensor {
    std::string name;
    /// In the place of a ragged axis stand as many axes as groups have names, with the number of groups along
    /// each: a region names groups, and two regions share a row exactly if they share a group.
    std::vector<std::int64_t> shape;
    DType dtype = DType::bf16;
    std::optional<Ragged> ragged{};

    [[nodiscard]] Region whole() const;
    [[nodiscard]] std::uint64_t bytes() const;  ///< of memory
    /// Of the array in memory: `shape`, with rows in the place of groups.
    [[nodiscard]] std::vector<std::int64_t> memory_shape() const;
    bool operator==(const Tensor&) const = default;
};

/// A region of a tensor, moved as a unit. `tensor` indexes Plan::tensors.
struct Chunk {
    std::int32_t tensor = -1;
    Region region;
    bool operator==(const Chunk&) const = default;
};
/// Of one tensor, and share at least one element.
[[nodiscard]] bool overlaps(const Chunk& a, const Chunk& b);

enum class OpKind : std::uint8_t { push, pull, local, collective };
enum class Reduce : std::uint8_t { none, sum, max };
enum class CollectiveKind : std::uint8_t {
    all_gather,
    reduce_scatter,
    all_reduce,
    all_to_all,
    broadcast,
    permute
};
/// How a transfer is carried out; `automatic` leaves the choice to fuse ("auto" in JSON).
enum class Backend : std::uint8_t {
    automatic,
    copy_engine,
    tma_dedicated,
    tma_inline,
    ldst_dedicated,
    ldst_inline,
    nccl,
    host,
    channel
};

inline constexpr std::size_t kNumOpKinds = 4;
inline constexpr std::size_t kNumReduces = 3;
inline constexpr std::size_t kNumCollectiveKinds = 6;
inline constexpr std::size_t kNumBackends = 9;

/// The names used in JSON, in messages and on the command line.
[[nodiscard]] std::string_view name_of(OpKind kind);
[[nodiscard]] std::string_view name_of(Reduce reduce);
[[nodiscard]] std::string_view name_of(CollectiveKind kind);
[[nodiscard]] std::string_view name_of(Backend backend);
[[nodiscard]] std::optional<Backend> backend_from(std::string_view name);

/// Names one op of the plan: the index-th op of a rank's list.
struct OpRef {
    std::int32_t rank = 0;
    std::int32_t index = 0;
    auto operator<=>(const OpRef&) const = default;
};

/// Ops, few.
using OpRefs = ShortList<OpRef, 2>;

/// One op, held by one rank (the owner). push: the owner's `src` goes to the peer's `dst`; pull: the
/// peer's `src` comes to the owner's `dst`; local: both are the owner's. It starts when every op in
/// `after` has completed.
///
/// Plans of many ranks have millions of them, and passes walk them all: what is rarely set costs a word.
struct Op {
    OpKind kind = OpKind::local;
    Reduce reduce = Reduce::none;
    Backend backend = Backend::automatic;
    CollectiveKind collective = CollectiveKind::all_gather;  ///< collective only
    std::int32_t peer = -1;                                  ///< push and pull only
    Chunk src;
    Chunk dst;
    OpRefs after;
    Rare<std::string> channel;
    Rare<std::vector<std::int32_t>> ranks;  ///< collective only
    bool operator==(const Op&) const = default;

    /// The rank whose memory `src` is in, when `owner` holds this op.
    [[nodiscard]] std::int32_t source_rank(std::int32_t owner) const {
        return kind == OpKind::pull ? peer : owner;
    }
    /// The rank whose memory `dst` is in, when `owner` holds this op.
    [[nodiscard]] std::int32_t destination_rank(std::int32_t owner) const {
        return kind == OpKind::push ? peer : owner;
    }
};

/// An entry of `initial`, `produced` or `final`.
struct Holding {
    std::int32_t rank = 0;
    Chunk chunk;
    bool partial = false;  ///< initial/produced: this rank's contribution to a reduction, not the value
    bool of_all = false;   ///< final: the reduction over all ranks
    /// Final: the reduction over exactly these ranks; empty with of_all false: the value.
    std::vector<std::int32_t> of;
    bool operator==(const Holding&) const = default;
};

struct Plan {
    Mesh mesh;
    std::vector<Tensor> tensors;
    std::vector<Holding> initial;        ///< what a rank holds before the first op
    std::vector<Holding> produced;       ///< what the kernel will write, tile by tile
    std::vector<Holding> final;          ///< what a rank must hold at the end
    std::vector<std::vector<Op>> ranks;  ///< one list per rank, indexed by rank
    bool operator==(const Plan&) const = default;

    [[nodiscard]] std::int32_t num_ranks() const { return static_cast<std::int32_t>(ranks.size()); }
    [[nodiscard]] const Op& op(OpRef ref) const { return ranks[ref.rank][ref.index]; }
    [[nodiscard]] std::optional<std::int32_t> find_tensor(std::string_view name) const;
    /// Bytes of `chunk`, whose tensor must exist; INT64_MAX if they would be more. Of groups: at most.
    [[nodiscard]] std::int64_t bytes(const Chunk& chunk) const;
};

/// An error about that op of the plan; with an index of -1 about that rank.
[[nodiscard]] Error error_at(OpRef ref, std::string message);

/// Limits that keep the analyses' memory bounded; from_json and the templates refuse more, and so does check.
inline constexpr std::int32_t kMaxRanks = 4096;
inline constexpr std::int32_t kMaxAxes = 16;                           ///< of a mesh, and of a tensor
inline constexpr std::int64_t kMaxOps = 1 << 24;                       ///< of the whole plan
inline constexpr std::int64_t kMaxCoordinate = std::int64_t{1} << 62;  ///< of a region, in either direction

}  // namespace syncopate::plan
