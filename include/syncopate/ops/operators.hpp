// The table of operators: a row for each, which its own file fills (src/ops/NAME.cpp). All that the library
// knows of an operator by its name follows from its row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/ops/parameters.hpp"
#include "syncopate/ops/problem.hpp"
#include "syncopate/ops/program.hpp"
#include "syncopate/ops/strategy.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ops {

struct OperatorRow {
    /// What an operator's transfers are to its products.
    enum class Kind : std::uint8_t {
        gathers,    ///< all-gather before a product
        exchanges,  ///< all-to-all before a product
        scatters,   ///< reduce-scatter after a product
        reduces,    ///< all-reduce after a product
        sends,      ///< all-to-all after a product
        block,      ///< a gathered product and a scattered one
        other,      ///< has no products of its own here: attention, chains
    };
    using Products = std::vector<ProductShape> (*)(const Problem&);
    using Outlined = Result<Outline> (*)(const Problem&, const Strategy&, const Call&);
    using Programmed = Result<fuse::StagedProgram> (*)(const Problem&, const Strategy&, const Call&);
    using Parametrised = Result<std::vector<Parameters>> (*)(const Problem&, const Strategy&, const Call&);

    std::string_view name;
    Kind kind = Kind::other;
    std::vector<std::string_view> extents;  ///< required ones first, in the order of SPEC
    std::size_t required = 0;               ///< so many of them
    std::vector<std::int64_t> defaults;     ///< of the others
    std::vector<std::string_view> words;    ///< options that are words
    /// What a SPEC may ask of the strategy: its name there, and the strategy's (varied.hpp).
    std::vector<std::pair<std::string_view, std::string_view>> keys;
    std::vector<std::string_view> call;  ///< what a SPEC may say of the call: whole numbers
    bool equal_blocks = false;           ///< M has to be a multiple of the ranks
    bool routes = false;                 ///< rows go to experts, as a call says: a mixture of them
    bool scaled = false;                 ///< of kind other, and yet of products, which take fp8
    /// Why no program can do the problem; "" where one can.
    std::string (*objection)(const Problem&) = nullptr;
    Products products = nullptr;  ///< of one rank, one after another
    Outlined outline = nullptr;
    Programmed program = nullptr;
    /// Between the products, or in the first one, by name; none is always known.
    std::vector<std::string_view> activations{"relu", "gelu", "silu"};
    /// In the order of a call, those that it has.
    std::vector<std::string_view> operands{"x", "w", "w1", "w2", "bias", "scale_x", "scale_w", "y"};
    bool exact_rows = false;  ///< kernels are compiled for so many rows of a call, and no others
    /// By stage, of kernels that are not products; nullptr: they are, or launched from Python alone. Fails (usage) for a
    /// problem of which no process without Python makes calls.
    Parametrised parameters = nullptr;
    /// What kernels write down about calls in the scratch `seen`, words that only rise, or none.
    std::string_view seen;
    /// What is wrong in the calls between two readings of it; "" where nothing is. `drops`: the caller wants no more rows than the
    /// bound.
    std::string (*judge)(const Problem&, std::span<const std::uint32_t> before,
                         std::span<const std::uint32_t> now, bool drops) = nullptr;
};

[[nodiscard]] std::span<const OperatorRow> operators();
/// The row of a name; nullptr where there is none.
[[nodiscard]] const OperatorRow* operator_row(std::string_view name);

}  // namespace syncopate::ops
