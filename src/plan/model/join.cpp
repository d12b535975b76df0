#include "syncopate/plan/model/join.hpp"
#include "syncopate/try.hpp"

#include <cstdint>
#include <string>

namespace syncopate::plan {
namespace {

Status add_tensor(Plan& plan, const Tensor& tensor) {
    if (plan.find_tensor(tensor.name))
        return Error{"tensor " + tensor.name + " is in an earlier one already"};
    plan.tensors.push_back(tensor);
    return Done{};
}

void append(std::vector<Holding>& to, const std::vector<Holding>& from, std::int32_t first_tensor) {
    for (Holding holding : from) {
        holding.chunk.tensor += first_tensor;
        to.push_back(std::move(holding));
    }
}

}  // namespace

Result<Plan> join(const std::vector<Plan>& parts, const std::vector<Tensor>& tensors) {
    if (parts.empty()) return Error{"no plan to join"};
    Plan whole;
    whole.mesh = parts.front().mesh;
    whole.ranks.resize(parts.front().ranks.size());
    for (std::size_t at = 0; at < parts.size(); ++at) {
        const Plan& part = parts[at];
        const std::string where = "plan " + std::to_string(at + 1) + ": ";
        if (part.mesh != whole.mesh || part.ranks.size() != whole.ranks.size())
            return Error{where + "its mesh is not that of plan 1"};
        const auto first_tensor = static_cast<std::int32_t>(whole.tensors.size());
        for (const Tensor& tensor : part.tensors) {
            if (Status added = add_tensor(whole, tensor); !added) return Error{where + added.error().message};
        }
        append(whole.initial, part.initial, first_tensor);
        append(whole.produced, part.produced, first_tensor);
        append(whole.final, part.final, first_tensor);
        std::vector<std::int32_t> first_op;
        for (const std::vector<Op>& ops : whole.ranks)
            first_op.push_back(static_cast<std::int32_t>(ops.size()));
        for (std::size_t rank = 0; rank < part.ranks.size(); ++rank) {
            for (Op op : part.ranks[rank]) {
                op.src.tensor += first_tensor;
                op.dst.tensor += first_tensor;
                for (OpRef& other : op.after) other.index += first_op[static_cast<std::size_t>(other.rank)];
                whole.ranks[rank].push_back(std::move(op));
            }
        }
    }
    for (const Tensor& tensor : tensors) {
        SYNCOPATE_TRY(add_tensor(whole, tensor));
    }
    return whole;
}

}  // namespace syncopate::plan
