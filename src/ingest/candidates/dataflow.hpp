// Where a value of a tensor program comes from and goes to, through what moves or renames elements but does
// not compute: reshapes, transposes, conversions, tuples, fusions, calls and asynchronous pairs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "syncopate/ingest/program/tensor_program.hpp"

namespace syncopate::ingest {

/// An instruction of the program.
struct Site {
    std::int32_t computation = -1;
    std::int32_t instruction = -1;
    auto operator<=>(const Site&) const = default;
};

/// Uses and callers, looked up in both directions. Holds a reference to the program.
class Dataflow {
public:
    explicit Dataflow(const TensorProgram& program);

    [[nodiscard]] const Instruction& at(Site site) const {
        return program_.computations[static_cast<std::size_t>(site.computation)]
            .instructions[static_cast<std::size_t>(site.instruction)];
    }
    /// The instruction of a computation whose value is the result.
    [[nodiscard]] std::int32_t root(std::int32_t computation) const {
        return program_.computations[static_cast<std::size_t>(computation)].root;
    }
    /// Who reads the value; a user that reads it twice is listed once.
    [[nodiscard]] const std::vector<std::int32_t>& users(Site site) const {
        return users_[static_cast<std::size_t>(site.computation)][static_cast<std::size_t>(site.instruction)];
    }
    /// The instructions that call a computation.
    [[nodiscard]] const std::vector<Site>& callers(std::int32_t computation) const {
        return callers_[static_cast<std::size_t>(computation)];
    }

    /// A value met on the way. `axis` is where the followed axis has got to; -1: its parts are no boxes here.
    struct Meeting {
        Site site;
        std::size_t operand = 0;  ///< forward: which operand of `site` the value is
        std::int64_t axis = -1;
        std::vector<std::string> through;  ///< opcodes in between, in the order of the program
        bool enters = false;  ///< forward: `site` is a loop whose steps make something else of it
    };

    /// Every instruction that reads the value at `from` (element `element` of it if that is a tuple), with
    /// only transparent ones in between; and a loop, where the value goes into its next step. `parts`: how many
    /// equal parts `axis` is cut into. At most kMaxMeetings.
    [[nodiscard]] std::vector<Meeting> readers(Site from, std::optional<std::int64_t> element,
                                               std::int64_t axis, std::int64_t parts) const;
    /// The instruction that computes operand `operand` of `to`, with only transparent ones in between.
    [[nodiscard]] std::optional<Meeting> maker(Site to, std::size_t operand, std::int64_t axis,
                                               std::int64_t parts) const;

    /// The computation's instructions for its argument `number`.
    [[nodiscard]] std::vector<Site> parameters(std::int32_t computation, std::int64_t number) const;
    /// The instruction whose value the "parameter" or "captured" at `site` is; nullopt where several or none
    /// pass one.
    [[nodiscard]] std::optional<Site> passed(Site site) const;
    /// The tuple that goes into the loop of whose body or condition `parameter` is the argument, if the body
    /// gives its element `index` back unchanged.
    [[nodiscard]] std::optional<Site> invariant(Site parameter, std::int64_t index) const;

    static constexpr std::size_t kMaxMeetings = 64;
    static constexpr std::size_t kMaxSteps = 4096;  ///< of one search
    static constexpr std::size_t kMaxThrough = 64;  ///< reshapes and the like that are followed in a row
    static constexpr std::size_t kMaxStepsInAll = 1 << 22;  ///< of all searches; later ones find nothing

private:
    const TensorProgram& program_;
    std::vector<std::vector<std::vector<std::int32_t>>> users_;
    std::vector<std::vector<Site>> callers_;
    std::map<Site, std::vector<Site>> captures_;  // in regions, of a value outside of them
    mutable std::size_t steps_ = 0;               // of all searches so far
};

/// Whether the instruction's result is that of the one computation that it calls on its operands.
[[nodiscard]] bool is_wrapper(const Instruction& instruction);

/// Whether the instruction gives its first operand's elements in their places: a copy, a conversion, a barrier.
[[nodiscard]] bool renames(const Instruction& instruction);

/// Where `axis` of an array of shape `from`, cut into `parts` equal parts, is after a row-major reshape to
/// `to`: the axis of `to` of which each part is a box, or -1 if there is none.
[[nodiscard]] std::int64_t axis_after_reshape(const std::vector<std::int64_t>& from,
                                              const std::vector<std::int64_t>& to, std::int64_t axis,
                                              std::int64_t parts);

}  // namespace syncopate::ingest
