// A bundle: what was compiled ahead, for a process that has no compiler and no Python. An operator of the
// library, for buckets of rows; or a user's program that `syncopate fuse -o DIR` wrote; or a user's grouped kernels, of whose
// rows only a call knows how many they are (ops/ragged.hpp).
//
//   section            holds
//   manifest.json      all below but the bytes (schema syncopate.bundle/1)
//   kernels/N.cubin    the code of kernel N
//   folder/NAME        of a user's program: its files. schedule.json is what is run, the others are for reading
//                      Of grouped kernels launches.json is: their files, read again, say what each tile reads
//   source/NAME        of an operator: the sources that were compiled, for reading
//
// An operator's schedules are not taken from the file: the passes make them anew for the rows of the day, in less
// time than reading takes (program.hpp). A kernel names where its arguments come from, so that it serves all ranks
// and all rows of its bucket.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/bundle/container.hpp"
#include "syncopate/emit/artifact.hpp"
#include "syncopate/kernel/model/arguments.hpp"
#include "syncopate/ops/problem.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/ops/strategy.hpp"
#include "syncopate/result.hpp"
#include "syncopate/runtime/cuda/driver/launch.hpp"

namespace syncopate::bundle {

/// Of a device without code of its own: kernels are run by the CPU.
inline constexpr std::string_view kHost = "host";

/// A parameter of a compiled kernel, as a launch passes it. Its value is what the program's stage has of that name: a
/// number, or a tensor; and of a name that begins with sy_, what the runtime gives.
struct CompiledParameter {
    std::string name;
    std::string kind;  ///< as in Triton's signature: "i32", "fp32", "*bf16", "tensordesc"
    // Of a descriptor, as its entry of tensordesc_meta.
    std::vector<std::int64_t> block{};  ///< of one access of its map
    std::vector<std::int64_t>
        descriptor{};  ///< of the descriptor, as the program states it: it may take several accesses
    std::int32_t element_bytes = 0;
    std::int32_t element_type = 0;
    std::int32_t swizzle = 0;
    bool pad_with_nan = false;
    bool map_alone = false;  ///< no shape and strides behind it
};

struct CompiledKernel {
    std::string section;  ///< of its cubin
    std::string entry;    ///< its name there
    runtime::KernelOptions options;
    std::vector<CompiledParameter> parameters;  ///< in the order of a launch
    /// By name what is compiled in. Numbers that a launch passes are not among them.
    std::map<std::string, kernel::Scalar> constants;
    std::vector<std::string> multiples_of_16;  ///< parameters: numbers, and addresses in bytes
    std::uint64_t workspace = 0;               ///< bytes for its parameter sy_workspace
};

/// What an emitted kernel is emitted for, by name (traits.hpp): programs of other rows with the same may be run by
/// it.
using Traits = std::map<std::string, std::int64_t>;

/// Kernels for some schedules.
struct Variant {
    std::vector<Traits> traits;         ///< by stage
    std::vector<std::int32_t> kernels;  ///< by stage: Bundle::kernels
};

/// Rows up to `rows`, as far as the strategy takes them: a bucket after it, maybe of as many rows, takes the others. Of a
/// mixture of experts: `rows` tokens of each rank, and no others, as its kernels are compiled for them.
struct Bucket {
    std::int64_t rows = 0;
    ops::Strategy strategy;  ///< complete
    std::vector<Variant> variants;
};

struct OperatorPart {
    ops::Problem problem;  ///< of the largest bucket's rows
    ops::Call call;
    std::string activation;
    bool drops = false;           ///< of a mixture: rows over its bound add nothing, instead of an error
    bool int32_ids = false;       ///< of a mixture: its topk_ids, else int64
    std::vector<Bucket> buckets;  ///< rising

    /// With the dtype of its ids.
    [[nodiscard]] ops::Call called() const;
    /// Whether a bucket is of its own rows alone.
    [[nodiscard]] bool takes_exact_rows() const;
};

/// A user's program. Its launch is read when it is prepared: it may be long.
struct FolderPart {
    std::int32_t ranks = 0;
    std::vector<std::int32_t> kernels;  ///< by stage; none on host
};

/// A user's grouped kernels. folder/launches.json has what they are called with and their plan.
struct GroupedPart {
    std::int32_t ranks = 0;
    std::int64_t programs = 1;  ///< of the stages before them
    bool drops = false;         ///< rows over the bound are left out, instead of an error
    ops::Strategy strategy;
    /// By kernel of the user's and parameter the name of the call's tensor, where that is another one.
    std::vector<std::map<std::string, std::string>> names;
    std::vector<std::int32_t> kernels;  ///< by stage; none on host
};

struct Bundle {
    std::string name;     ///< "all_gather_matmul:N=…", or the kernels' names
    std::string made_by;  ///< "syncopate 0.1.0, triton 3.6.0"
    std::string arch;     ///< "sm_90", or kHost
    std::vector<CompiledKernel> kernels;
    std::optional<OperatorPart> op;  ///< one of the three is there
    std::optional<FolderPart> folder;
    std::optional<GroupedPart> grouped;
    Sections sections;  ///< all but the manifest
    std::string file;   ///< for messages

    [[nodiscard]] bool on_host() const { return arch == kHost; }
    [[nodiscard]] std::int32_t ranks() const {
        return op ? op->problem.ranks : folder ? folder->ranks : grouped->ranks;
    }
    /// Whether on host its tiles are the caller's functions.
    [[nodiscard]] bool is_users() const { return !op; }
};

[[nodiscard]] std::string manifest_to_json(const Bundle& bundle);
/// Strict: the manifest alone, without sections. Fails with its place in `file`.
[[nodiscard]] Result<Bundle> manifest_from_json(std::string_view text, const std::string& file);

/// The file's bytes, and a bundle from them. Besides what the container refuses: a manifest that is missing or wrong,
/// a section that it names and the file lacks, one that nothing names, code that is none.
[[nodiscard]] std::string to_bytes(const Bundle& bundle);
[[nodiscard]] Result<Bundle> from_bytes(std::string_view bytes, const std::string& file);
[[nodiscard]] Result<Bundle> read_bundle(const std::string& file);
/// In one piece, or not at all.
Status write_bundle(const Bundle& bundle, const std::string& file);

/// What `syncopate bundle show` prints.
[[nodiscard]] std::string describe(const Bundle& bundle);

/// The bucket for so many rows. Fails where the bundle has none.
[[nodiscard]] Result<const Bucket*> bucket_of(const Bundle& bundle, std::int64_t rows);

}  // namespace syncopate::bundle
