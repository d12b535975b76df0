// Ragged: a user's own kernel over rows that come in groups (source rank × expert), of which only a call knows how many they
// are. Its front end has read it; it finds an expert's rows by an offsets tensor, which it loads on the device.
//
//     counts     this rank's counts, which the call brings, to all ranks
//     layout     where each group lies, the offsets that the user's kernel loads, and the tables of the two next stages
//     rows       this rank's rows are stored at their experts' ranks
//     NAME       the user's kernel: a tile starts when all rows of its expert are there; one that may be of any expert,
//                when all rows are
//     NAME …     further ones, each behind the one before: what they hand on, and what stays with the experts, lies in memory of
//                the user's; each may read the rows that came, too
//     back       what it makes is stored at the ranks of its rows        (where the plan says so)
//     take       and is copied from there to where the user wants it     (likewise)
//
// The kernels but the user's are python/syncopate/kernels/ragged.py. Which expert a tile is of is found in one of three ways:
//
//     by expert   a tile is of one expert, always: read from its footprint, with offsets that keep experts apart. That it
//                 stays among the expert's rows, from that it loads no other expert's offsets
//     in order    tiles are numbered expert after expert, so many for each block of so many rows, as loops over tiles and
//                 programs that look for their expert have them. Each call's slots are made by that, on the device
//     together    else what a program does is one tile, which waits for all rows
//
// Each is held against footprints where experts have few rows, none, or all (ragged_probes.hpp). That is no proof for all
// counts: a kernel could do otherwise at one that was not tried.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/emit/artifact.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/ops/mixture.hpp"
#include "syncopate/ops/parameters.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ops {

/// One tensor of a plan, of which the rows come in groups.
struct RaggedTensor {
    std::string name;
    std::int64_t columns = 0;
    std::int64_t rows = 0;  ///< for which there is memory
    plan::DType dtype = plan::DType::bf16;
    bool kept = false;  ///< of what comes: it is the user's until the next call
};

/// What a plan says of its rows in groups.
struct RaggedRows {
    std::int64_t ranks = 0;
    std::int64_t experts = 0;  ///< of all ranks
    std::int64_t own = 0;      ///< of each rank: rank r has experts [r · own, (r + 1) · own)
    std::int64_t bound = 0;    ///< rows that come to a rank at most
    RaggedTensor rows;
    std::optional<RaggedTensor> more;  ///< a second tensor of the same rows, which comes with the first
    std::optional<RaggedTensor> back;  ///< what is made of them, and goes back to where they came from
    std::string
        counts;  ///< that the call brings: row r, of the rows of rank r for each expert, is what rank r has

    /// Those that come.
    [[nodiscard]] std::vector<const RaggedTensor*> brought() const {
        std::vector<const RaggedTensor*> all{&rows};
        if (more) all.push_back(&*more);
        return all;
    }
};

/// Fails, with rank and op where it is about one, where the plan does anything but bring each group from its rank to its
/// expert's, and what is made of it back, by pushes.
[[nodiscard]] Result<RaggedRows> ragged_rows(const plan::Plan& plan);

/// How a parameter tells the kernel where rows lie (ragged_told.hpp draws them).
enum class RaggedForm : std::uint8_t { offsets, begins, ends, sizes, experts, rows, padded };

struct RaggedTold {
    std::string param;
    RaggedForm form = RaggedForm::offsets;
    std::int64_t block = 0;  ///< rows; 0: it is no table by block
};

/// "ends", …
[[nodiscard]] const char* name_of(RaggedForm form);

/// Tiles, or programs, numbered expert after expert: the one of id i is `i / apart % count`-th of all experts' tiles, of which
/// there are `columns` for each block of `rows` rows of an expert. rows 0: they are not.
struct RaggedOrder {
    std::int64_t rows = 0, columns = 0;
    std::int64_t apart = 1, count = 0;
};

/// A user's kernel as groups of tiles, an expert's each, and which tiles they are.
struct RaggedKernel {
    kernel::Kernel kernel;
    /// The parameters that the rows are, and their plan's tensors; the first kernel has some, one that follows may.
    std::vector<std::pair<std::string, std::string>> reads;
    std::vector<RaggedTold> told;
    std::string makes;                     ///< that goes back; where nothing does, one that it stores into
    std::vector<std::int64_t> made_shape;  ///< its shape, as the call has it
    /// Of a rank: its experts, or 1: any tile may read rows of all of them, and waits for all.
    std::int64_t groups = 0;
    /// What is hardly meant: of the kernel where one expert has all rows; and why each tile waits for all of them.
    std::vector<std::string> warnings;
    RaggedOrder order;
    /// Not 0: tiles read whole blocks of so many rows, from their expert's first one on, so that the last block reaches into the
    /// experts behind, whose rows they await, too. What lies behind all rows they read as it is.
    std::int64_t reads_on = 0;
    std::int64_t tiles = 0;  ///< of a call, at most
    // By tile, where `order` does not say it: its group, from 0 on in each rank, or -1 if it reads no rows; and with which of
    // an expert's rows it begins.
    std::vector<std::int32_t> expert_of;
    std::vector<std::int32_t> row_of;

    /// The plan's tensor whose rows the parameter is; "": of none.
    [[nodiscard]] std::string tensor_read(std::string_view param) const {
        for (const auto& [name, tensor] : reads)
            if (name == param) return tensor;
        return {};
    }
};

/// `stage`: its bindings have the parameter of the rows and that of the counts. Fails, naming file, line and parameter, where
/// a tile reads others than the rows that have come; where its launch has no tile for some of the rows that an expert may
/// have; and where the kernel takes the rows in another way than by a pointer.
[[nodiscard]] Result<RaggedKernel> ragged_kernel(const emit::StageText& stage, const RaggedRows& of);

/// The same of a kernel that follows: it begins when those before it have ended, reads what they have stored and any rows that
/// came, and may make what goes back.
[[nodiscard]] Result<RaggedKernel> ragged_follower(const emit::StageText& stage, const RaggedRows& of);

struct RaggedProgram {
    fuse::StagedProgram program;
    RaggedRows of;
    std::vector<RaggedKernel> users;  ///< the kernels are the stages from the fourth on
    /// Rows of the blocks that they are told of, and how many of these there are at most; 0: none are.
    std::int64_t block = 0, blocks = 0;
    MixtureSending sending;  ///< of the rows that come
    std::string made;        ///< the tensor that the last one stores into
    std::string taken;       ///< that the last stage stores into, where something goes back
};

inline constexpr std::int64_t kRaggedTile = 16;  ///< rows that go back together
inline constexpr std::size_t kRaggedStages = 3;  ///< before the user's first kernel

/// `stages`: the user's kernels, of which the first one reads the rows, and the last one makes what goes back. `programs`: of the
/// stages before them.
[[nodiscard]] Result<RaggedProgram> ragged_program(std::span<const emit::StageText> stages,
                                                   const plan::Plan& plan, std::int64_t programs);

/// Scratch of the kernels that holds RaggedKernel::expert_of and row_of of the first kernel before all calls.
inline constexpr const char* kRaggedExperts = "expert";
inline constexpr const char* kRaggedFirstRows = "row";

/// What the stages' kernels take (parameters.hpp), by stage. Of a user's kernel that is its tensors but those that lie in the heap.
/// A call's tensors: of the plan they have its names; of others `names`, by kernel of the user's and parameter. `beside`: the user's
/// first kernel starts while rows are sent.
[[nodiscard]] std::vector<Parameters> ragged_parameters(
    const RaggedProgram& program, bool beside, std::span<const std::map<std::string, std::string>> names);

/// What calls between two looks at kSeen (mixture.hpp) had that is wrong; "" where nothing is. `drops`: rows over the bound are not.
[[nodiscard]] std::string ragged_verdict(const std::string& counts, std::int64_t bound,
                                         std::span<const std::uint32_t> before,
                                         std::span<const std::uint32_t> now, bool drops);

}  // namespace syncopate::ops
