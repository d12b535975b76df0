#include "ingest/stablehlo/mlir_locations.hpp"

#include <fmt/format.h>

#include "ingest/program/text_cursor.hpp"

namespace syncopate::ingest {

std::string line_of(std::string_view location, const MlirAliases& aliases) {
    static const std::string kNoFile;
    constexpr int kMostSteps = 64;  // aliases may name each other in a ring
    for (int step = 0; step < kMostSteps; ++step) {
        TextCursor at(location, kNoFile);
        if (at.take("#")) {
            const auto found = aliases.find(at.name(true));
            if (found == aliases.end()) return {};
            location = found->second;
        } else if (at.peek() == '"') {
            const std::size_t begin = at.offset() + 1;
            if (!at.skip_string()) return {};
            const std::string_view name = location.substr(begin, at.offset() - 1 - begin);
            if (at.take(":")) {
                const auto line = at.integer();
                return line && *line > 0 ? fmt::format("{}:{}", name, *line) : std::string();
            }
            if (!at.take("(")) return {};  // a name alone
            location.remove_prefix(at.offset());
        } else if (at.take("loc") || at.take("callsite")) {
            if (!at.take("(")) return {};
            location.remove_prefix(at.offset());
        } else if (at.take("fused")) {
            if (at.peek() == '<' && !at.skip_balanced(true)) return {};
            if (!at.take("[")) return {};
            location.remove_prefix(at.offset());
        } else {
            return {};
        }
    }
    return {};
}

}  // namespace syncopate::ingest
