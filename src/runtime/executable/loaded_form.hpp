// A form of an executable's kernels with its arguments, as they were for the last call: what a call changes is
// written in place.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "syncopate/runtime/executable/executable.hpp"

namespace syncopate::runtime {

class LoadedForm {
public:
    /// Error (usage): an argument that names what is not there.
    static Result<std::unique_ptr<LoadedForm>> load(FusedOp& op, std::span<const Operand> operands, Form form,
                                                    std::vector<std::shared_ptr<CudaKernel>> kernels);
    ~LoadedForm();
    LoadedForm(const LoadedForm&) = delete;
    LoadedForm& operator=(const LoadedForm&) = delete;

    [[nodiscard]] const Form& form() const { return form_; }
    [[nodiscard]] std::span<const FusedOp::StageLaunch> launches() const { return launches_; }
    /// Writes the arguments for these tensors, and for where the op's inputs and outputs are now.
    Status take(std::span<const CallTensor> tensors);

private:
    /// An argument that may be another one in the next call.
    struct Changing {
        std::size_t stage = 0;
        std::size_t argument = 0;  ///< of KernelArguments
        const Argument* what = nullptr;
        std::uint64_t address = 0;  ///< that it has now; 0: none yet
        std::uint64_t pitch = 0;    ///< bytes from row to row, of Memory::Of::own
        TensorMapRequest map{};     ///< of a descriptor, for these
    };

    explicit LoadedForm(FusedOp& op, Form form) : op_(op), form_(std::move(form)) {}
    Status lay_out(std::span<const Operand> operands);
    Status allocate_workspaces();
    Status add(std::size_t stage, const Argument& argument, std::span<const Operand> operands);
    [[nodiscard]] Result<std::uint64_t> address_of(const Memory& memory, std::size_t stage,
                                                   std::span<const CallTensor> tensors) const;
    Status change(Changing& changing, std::span<const CallTensor> tensors);
    /// The descriptor, made in the context of the op's device.
    [[nodiscard]] Result<TensorMap> encoded(const TensorMapRequest& request) const;
    Status change_map(Changing& changing, std::uint64_t address, std::uint64_t pitch);

    FusedOp& op_;
    Form form_;
    std::vector<std::shared_ptr<CudaKernel>> kernels_;
    std::vector<KernelArguments> arguments_;  ///< by stage
    std::vector<FusedOp::StageLaunch> launches_;
    std::vector<Changing> changing_;
    std::vector<std::pair<std::uint64_t, std::shared_ptr<void>>> workspaces_;  ///< address, owner
};

}  // namespace syncopate::runtime
