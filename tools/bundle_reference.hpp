// What an operator of a bundle makes, by plain loops: data for its tensors, small whole numbers that every dtype
// holds and of which sums are exact in any order, and the products of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "syncopate/bundle/bundle.hpp"
#include "syncopate/result.hpp"
#include "tools/mixture_reference.hpp"

namespace syncopate::tools {

class OperatorReference {
public:
    /// `rows`: of the operator; a user's program has data and no reference.
    OperatorReference(const bundle::Bundle& made, std::int64_t rows);

    /// A tensor of `rank` in a call, of these extents; of outputs, what nobody makes.
    [[nodiscard]] std::string content(std::string_view name, plan::DType dtype,
                                      const std::vector<std::int64_t>& shape, int rank, int call) const;
    /// Compares y of `rank`, or some thousand elements of it, bit by bit; with an activation, or of a mixture of fp8, within its
    /// rounding.
    [[nodiscard]] Status compare(const std::string& y, plan::DType dtype,
                                 const std::vector<std::int64_t>& shape, int rank, int call) const;

private:
    [[nodiscard]] double product(int rank, int call, std::int64_t row, std::int64_t column) const;
    [[nodiscard]] double x_of_row(int call, std::int64_t row, std::int64_t k, int rank) const;
    struct Element {
        double value = 0;
        double within = 0;
    };
    [[nodiscard]] Element expected(int rank, int call, std::int64_t row, std::int64_t column) const;
    [[nodiscard]] double of_products(int rank, int call, std::int64_t row, std::int64_t column) const;
    [[nodiscard]] double rounded(double value) const;

    const bundle::Bundle& bundle_;
    ops::Problem problem_;
    std::optional<MixtureReference> mixture_;
    std::vector<ops::ProductShape> products_;
};

}  // namespace syncopate::tools
