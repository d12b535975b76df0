// What a mixture of experts of a bundle makes, by plain loops. Routings differ from call to call, and some calls are filled up with
// routes that add nothing; where the bundle has no bound some experts get many rows, and some none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "syncopate/bundle/bundle.hpp"

namespace syncopate::tools {

class MixtureReference {
public:
    /// `value`: an element of a tensor of a rank in a call.
    using Value = std::function<double(std::string_view name, int rank, int call, std::int64_t index)>;
    MixtureReference(const bundle::Bundle& made, std::int64_t tokens, Value value);

    /// An element of topk_ids, topk_weights or of scales, which are powers of two; nullopt of other tensors.
    [[nodiscard]] std::optional<double> routed(std::string_view name, int rank, int call,
                                               std::int64_t index) const;
    /// An element of y, and how far from it who rounds some of its terms the other way may be: of fp8 what the first product makes has
    /// three bits, and of tensor parallel experts each rank's part is rounded, of which the sum may be small.
    struct Element {
        double value = 0;
        double room = 0;
    };
    /// `round`: to what the operator makes.
    [[nodiscard]] Element expected(int rank, int call, std::int64_t token, std::int64_t column,
                                   const std::function<double(double)>& round) const;
    [[nodiscard]] bool is_scaled() const { return problem_.scales != ops::Scales::none; }
    /// Multiplications of an element.
    [[nodiscard]] double work() const;

private:
    using Rounds = std::function<double(double)>;
    /// The expert of a route; -1: none.
    [[nodiscard]] std::int64_t expert_of(int rank, int call, std::int64_t route) const;
    /// By rank and route of a call, whether it is not over the bound.
    [[nodiscard]] const std::vector<bool>& taken(int call) const;

    /// What expert `here` of rank `there` makes of a token's row, [inner], as it is kept.
    [[nodiscard]] const std::vector<double>& inner(int rank, int call, std::int64_t token, int there,
                                                   std::int64_t here, const Rounds& round) const;
    [[nodiscard]] std::vector<double> make_inner(int rank, int call, std::int64_t token, int there,
                                                 std::int64_t here, const Rounds& round) const;
    /// An element of a matrix of expert `here` of rank `there`, with its factor.
    [[nodiscard]] double weight(const char* name, int there, std::int64_t here, std::int64_t k,
                                std::int64_t column) const;
    /// What rank `there` makes of a route, before its weight; the squares of its terms are added to `squares`.
    [[nodiscard]] double row(int rank, int call, std::int64_t token, int there, std::int64_t here,
                             std::int64_t column, const Rounds& round, double& squares) const;

    const bundle::Bundle& bundle_;
    const ops::Problem& problem_;
    Value value_;
    bool is_tensor_parallel_, by_block_;
    std::int64_t ranks_, experts_, topk_, hidden_;
    std::int64_t inner_;  ///< of F what a rank has
    std::int64_t own_;    ///< experts of which it has weights
    std::int64_t routes_, bound_;
    mutable std::pair<int, std::vector<bool>> taken_{-1, {}};
    /// By call, rank, token, and the expert's rank and number.
    mutable std::map<std::tuple<int, int, std::int64_t, int, std::int64_t>, std::vector<double>> known_;
};

}  // namespace syncopate::tools
