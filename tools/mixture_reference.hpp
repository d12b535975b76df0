// What a mixture of experts of a bundle makes, by plain loops. Routings differ from call to call; where the bundle has no bound
// some experts get many rows, and some none.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/bundle/bundle.hpp"

namespace syncopate::tools {

class MixtureReference {
public:
    /// `value`: an element of a tensor of a rank in a call.
    using Value = std::function<double(std::string_view name, int rank, int call, std::int64_t index)>;
    MixtureReference(const bundle::Bundle& made, std::int64_t tokens, Value value);

    /// An element of topk_ids or topk_weights; nullopt of other tensors.
    [[nodiscard]] std::optional<double> routed(std::string_view name, int rank, int call,
                                               std::int64_t index) const;
    /// An element of y. `round`: to what the operator makes.
    [[nodiscard]] double expected(int rank, int call, std::int64_t token, std::int64_t column,
                                  const std::function<double(double)>& round) const;
    /// Multiplications of an element.
    [[nodiscard]] double work() const;

private:
    [[nodiscard]] std::int64_t expert_of(int rank, int call, std::int64_t route) const;
    /// By rank and route of a call, whether it is not over the bound.
    [[nodiscard]] const std::vector<bool>& taken(int call) const;

    const bundle::Bundle& bundle_;
    Value value_;
    std::int64_t ranks_, experts_, topk_, hidden_, inner_, routes_, bound_;
    mutable std::pair<int, std::vector<bool>> taken_{-1, {}};
};

}  // namespace syncopate::tools
