// What tests look at in an import.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "syncopate/ingest/ingest.hpp"

namespace syncopate::ingest::test {

/// One op as text: "push 0->1 A[0:4] -> A[0:4] sum after 0:1 1:0", rows of axis 0 only.
inline std::string op_text(const plan::Plan& plan, std::int32_t rank, std::size_t index) {
    const plan::Op& op = plan.ranks[static_cast<std::size_t>(rank)][index];
    const auto chunk = [&](const plan::Chunk& c) {
        return fmt::format("{}[{}:{}]", plan.tensors[static_cast<std::size_t>(c.tensor)].name,
                           c.region[0].begin, c.region[0].end);
    };
    std::string text = std::string(plan::name_of(op.kind));
    if (op.kind != plan::OpKind::local)
        text += fmt::format(" {}->{}", op.source_rank(rank), op.destination_rank(rank));
    text += " " + chunk(op.src) + " -> " + chunk(op.dst);
    if (op.reduce != plan::Reduce::none) text += " " + std::string(plan::name_of(op.reduce));
    plan::OpRefs after = op.after;
    std::sort(after.begin(), after.end());
    if (!after.empty()) text += " after";
    for (const plan::OpRef ref : after) text += fmt::format(" {}:{}", ref.rank, ref.index);
    return text;
}

/// All ops of a plan, rank 0's first.
inline std::vector<std::string> op_texts(const plan::Plan& plan) {
    std::vector<std::string> texts;
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        for (std::size_t i = 0; i < plan.ranks[static_cast<std::size_t>(rank)].size(); ++i)
            texts.push_back(op_text(plan, rank, i));
    }
    return texts;
}

/// What check_import says, one line each.
inline std::vector<std::string> finding_texts(const Import& import, const std::string& file_name = "t") {
    std::vector<std::string> texts;
    for (const Finding& finding : check_import(import)) texts.push_back(finding.to_string(file_name));
    return texts;
}

/// One row a chunk, so that rows are chunk numbers.
inline ImportOptions rows(std::int64_t chunks) {
    ImportOptions options;
    options.tensor = plan::Tensor{"A", {chunks}, plan::DType::fp32};
    return options;
}

}  // namespace syncopate::ingest::test
