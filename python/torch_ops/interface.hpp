// What the ops and who sets their calls up tell each other. The library (libsyncopate_torch.so) knows torch, and no
// executable; the extension, or a program in C++, makes executables and recipes, and hands them over by this table.
//
// A Recipe is how a call of an op with tensors of one kind is carried out: steps over numbered variables, of which the
// call's tensors are the first. So a fused call and the pair that takes its place are the same kind of data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace syncopate::torch_ops {

/// A tensor as an executable takes it; elements.
struct TensorArgument {
    std::uint64_t address = 0;
    const std::int64_t* sizes = nullptr;
    const std::int64_t* strides = nullptr;
    std::size_t axes = 0;
};

/// Runs an executable on `stream` (0 on host). False: it does not take these tensors, and has not begun. Throws what a caller of
/// the op is to see; `module`: the user's, for messages.
using RunExecutable = bool (*)(void* executable, const TensorArgument* tensors, std::size_t count,
                               std::uint64_t stream, const std::string& module);

/// A tensor of a call that has no recipe yet. Numbers are torch's.
struct AskedTensor {
    bool given = false;  ///< else an optional one that is left out
    std::vector<std::int64_t> sizes{};
    std::vector<std::int64_t> strides{};  ///< elements
    std::int32_t dtype = 0;
    std::int32_t device_type = 0;
    std::int32_t device_index = 0;
};

/// Such a call, as far as programs that were compiled ahead can make it.
struct AskedCall {
    std::string op;
    std::string group;                   ///< its name
    std::vector<AskedTensor> tensors{};  ///< in the order of the schema
    std::string activation{};
    bool plain = true;  ///< its other options are the defaults
};

/// Gives the call its recipe by Interface::add. Throws what a caller of the op is to see.
using Resolve = void (*)(const AskedCall& call);

struct StepArgument {
    enum class Kind : std::uint8_t { variable, integer, truth, text, integers, nothing };
    Kind kind = Kind::nothing;
    bool optional = false;  ///< in the op's schema
    std::int64_t number = 0;
    std::string text{};
    std::vector<std::int64_t> numbers{};
};

struct Step {
    enum class Kind : std::uint8_t {
        empty,       ///< variable `result` is a new tensor of `sizes`; dtype and device of variable `of`
        rows,        ///< variable `of` is copied, unless TMA can read its rows where they are
        contiguous,  ///< variable `of` is copied, unless it is contiguous
        run,         ///< the executable with `operands`
        call,  ///< the op `name` of torch's, with `arguments`; `result`: of its one result, -1: not kept
    };
    Kind kind = Kind::call;
    int of = -1;
    int result = -1;
    std::vector<std::int64_t> sizes{};
    std::int32_t dtype = -1;  ///< of `empty`, torch's number; -1: as `of`
    /// Variables; a negative one, -1 - v, is the transpose of v.
    std::vector<int> operands{};
    std::string name{};
    std::string overload{};
    std::vector<StepArgument> arguments{};
};

struct Recipe {
    std::string op;              ///< in the report
    std::string outcome;         ///< the same: "fused", or why not
    std::uint64_t token = 0;     ///< of who made it, who may drop it by that
    std::string group;           ///< its name: dropped with it
    void* executable = nullptr;  ///< of `run` steps
    std::function<void()> keep;  ///< holds what must live as long; never called
    int inputs = 0;              ///< variables that are the call's tensors, in the order of the schema
    int variables = 0;
    /// Variables that are the same tensors in each call: owned handles (AtenTensorHandle), by number.
    std::vector<std::pair<int, void*>> constants{};
    std::vector<Step> steps{};
    std::vector<int> results{};
};

/// How often calls were carried out by C++ alone.
struct Count {
    std::string op;
    std::string outcome;
    std::uint64_t calls = 0;
};

/// Rises with each change of what stands here.
inline constexpr std::uint32_t kInterfaceVersion = 2;

struct Interface {
    std::uint32_t version = kInterfaceVersion;
    /// Gives the call that this thread's set-up op is in the middle of its recipe.
    void (*add)(Recipe recipe) = nullptr;
    void (*drop)(std::uint64_t token) = nullptr;
    void (*drop_group)(const char* name) = nullptr;
    void (*drop_all)() = nullptr;
    /// Calls made in another generation do not find it (the deterministic mode).
    void (*set_generation)(std::int64_t generation) = nullptr;
    /// While not 0, every call goes through its set-up op.
    void (*bypass)(int change) = nullptr;
    /// When a recipe of this token was used last, of a clock that `tick` moves; 0: never.
    std::uint64_t (*last_use)(std::uint64_t token) = nullptr;
    std::uint64_t (*tick)() = nullptr;
    std::vector<Count> (*counts)() = nullptr;
    void (*clear_counts)() = nullptr;  ///< and all known rows
    /// Rows of the report that a graph has carried here: their op needs no set-up op for them any more.
    void (*know_rows)(const std::string& rows) = nullptr;
    /// (schema, letters) of each op, of which Python defines the ops.
    std::vector<std::pair<std::string, std::string>> (*schemas)() = nullptr;
    /// Registers the kernels; the schemas too unless `defined`.
    void (*start)(bool defined) = nullptr;
    /// Whether this thread is inside an op's first name, which raises what set-up ops and gradients leave (connect).
    bool (*is_nested)() = nullptr;
    void (*connect)(RunExecutable run, void (*raise_pending)()) = nullptr;
    /// In a process without Syncopate's Python: calls without a recipe ask `resolve`. Defines the ops where nobody has. False: Python
    /// sets calls up.
    bool (*serve)(RunExecutable run, Resolve resolve) = nullptr;
};

}  // namespace syncopate::torch_ops

extern "C" const syncopate::torch_ops::Interface* syncopate_torch_ops();
