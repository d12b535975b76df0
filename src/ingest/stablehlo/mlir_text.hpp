// MLIR's text as a tree of operations, without knowing the dialects: enough structure for a reader that looks
// for a few operations among many. Both the generic form, `"stablehlo.add"(%0, %1) : (…) -> …`, and custom
// forms are taken; of a custom form the operands are the values that it names, in order.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ingest/program/text_cursor.hpp"
#include "ingest/stablehlo/mlir_locations.hpp"
#include "ingest/stablehlo/mlir_type.hpp"
#include "syncopate/ingest/program/tensor_program.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ingest {

struct MlirOp;

struct MlirArgument {
    std::string_view name;  ///< with its '%'
    Shape type;
};

struct MlirRegion {
    std::vector<MlirArgument> arguments;  ///< of the first block
    std::vector<MlirOp> ops;              ///< of all blocks
};

struct MlirUse {
    std::string_view name;  ///< with its '%'
    std::int64_t result = 0;
    std::size_t offset = 0;
};

/// An attribute, or a keyword of a custom form with what follows it; `value` is the text between.
struct MlirAttribute {
    std::string_view name;
    std::string_view value;
    std::size_t offset = 0;  ///< of the value
};

struct MlirOp {
    std::string_view name;  ///< "stablehlo.add"
    std::size_t offset = 0;
    std::vector<std::pair<std::string_view, std::int64_t>> results;  ///< name with '%', how many
    std::vector<MlirUse> operands;
    std::vector<MlirAttribute> attributes;
    std::vector<std::string_view> words;  ///< of a custom form: "LT", "SIGNED"
    std::string_view symbol;              ///< the first @name
    std::vector<MlirRegion> regions;
    std::vector<Shape> result_types;
    std::string_view location;  ///< what stands in loc(…); empty: none

    [[nodiscard]] const MlirAttribute* find(std::string_view attribute) const {
        for (const MlirAttribute& each : attributes) {
            if (each.name == attribute) return &each;
        }
        return nullptr;
    }
    [[nodiscard]] std::int64_t num_results() const {
        std::int64_t count = 0;
        for (const auto& result : results) count += result.second;
        return count;
    }
};

/// The operations at the top of the text; the aliases of locations go into `aliases`. The views point into the
/// text. Fails at the first place that cannot be
/// told apart. Linear in the text, but for lines that are looked ahead at.
[[nodiscard]] Result<std::vector<MlirOp>> parse_mlir(std::string_view text, const std::string& file_name,
                                                     MlirAliases& aliases);

}  // namespace syncopate::ingest
