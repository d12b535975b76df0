#include "ingest/candidates/neighbours.hpp"

#include <algorithm>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "syncopate/names.hpp"

namespace syncopate::ingest {
namespace {

/// A product that is no dot: of groups of rows, a convolution, a library's.
bool is_other_product(const Instruction& by) {
    if (by.opcode == "dot" || by.opcode == "ragged-dot" || by.opcode == "scaled-dot" ||
        by.opcode == "convolution")
        return true;
    if (by.opcode != "custom-call") return false;
    std::string target = by.target;
    for (char& c : target) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    for (const std::string_view word : {"matmul", "gemm", "conv", "attention", "fmha"}) {
        if (target.find(word) != target.npos) return true;
    }
    return false;
}

/// The name of the dot behind a neighbour; empty if there is none.
std::string dot_behind(const Dataflow& flow, const Neighbour& neighbour) {
    const auto name = [&](const Dataflow::Meeting& met) {
        return flow.at(met.site).dot ? flow.at(met.site).name : std::string();
    };
    if (neighbour.forward) {
        for (const Dataflow::Meeting& met : flow.readers(neighbour.site, std::nullopt, -1, 1)) {
            if (!name(met).empty()) return name(met);
        }
        return {};
    }
    constexpr std::size_t kMostOperands = 8;
    const std::size_t operands = std::min(flow.at(neighbour.site).operands.size(), kMostOperands);
    for (std::size_t k = 0; k < operands; ++k) {
        const auto from = flow.maker(neighbour.site, k, -1, 1);
        if (from && !name(*from).empty()) return name(*from);
    }
    return {};
}

/// Empty if there is nothing to say.
std::string sentence(const Dataflow& flow, const Neighbour& neighbour, bool first) {
    const Instruction& by = flow.at(neighbour.site);
    const std::string_view verb = neighbour.forward ? "feeds" : "drains";
    if (by.dot) {
        return fmt::format("{} {}, which is no product of two arrays that it takes part in", verb, named(by));
    }
    if (is_other_product(by)) {
        return fmt::format("{} {}, a product of a kind that is not taken", verb, named(by));
    }
    if (neighbour.enters)
        return fmt::format("feeds no dot that is taken: the steps of {} make something else of it",
                           named(by));
    if (by.opcode == "while" && neighbour.forward) {
        // Where the loop itself was looked at, that has been said.
        return first ? fmt::format("feeds no dot of its step: the next step of {} reads it", named(by)) : "";
    }
    const std::string dot = dot_behind(flow, neighbour);
    if (dot.empty()) return {};
    return fmt::format("{} no dot: {} computes between it and {}", verb, named(by), escaped(dot, 40));
}

}  // namespace

void note_neighbours(const Dataflow& flow, const std::vector<Neighbour>& neighbours,
                     std::vector<std::string>& why) {
    constexpr std::size_t kMost = 4;
    for (const Neighbour& neighbour : neighbours) {
        if (why.size() >= kMost) return;
        std::string said = sentence(flow, neighbour, why.empty());
        if (!said.empty() && std::find(why.begin(), why.end(), said) == why.end()) {
            why.push_back(std::move(said));
        }
    }
}

std::string named(const Instruction& instruction) {
    return fmt::format("{} ({})", escaped(instruction.name, 40), escaped(instruction.opcode, 40));
}

}  // namespace syncopate::ingest
