#include "runtime/call/op_content.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>

#include "syncopate/digest.hpp"
#include "syncopate/fuse/model/json.hpp"

namespace syncopate::runtime {
namespace {

std::string text_of(const fuse::Schedule& schedule, const OpMemory& memory) {
    std::string text = fmt::format("{} slots, control block of {} words at {}", schedule.num_slots(),
                                   memory.control_words, memory.control_offset);
    for (std::size_t i = 0; i < schedule.tensors.size(); ++i) {
        text +=
            fmt::format("; {} {}{} at {}", schedule.tensors[i].name, plan::name_of(schedule.tensors[i].dtype),
                        plan::to_string(schedule.tensors[i].whole()), memory.tensor_offsets[i]);
    }
    return text;
}

/// A line for each piece.
Bytes digests_of(const std::vector<ContentPart>& pieces) {
    Bytes lines;
    for (const ContentPart& piece : pieces)
        lines += fmt::format("{} {}\n", digest(piece.text), piece.text.size());
    return lines;
}

/// Of ranks, where they begin and how many they are.
struct Ranks {
    std::size_t first = 0;
    std::size_t count = 0;
};

/// Those that must have the piece as `rank` has it.
Ranks alike(const ContentPart& piece, const Rendezvous& rendezvous, std::size_t rank) {
    if (!piece.of_node) return {0, static_cast<std::size_t>(rendezvous.size())};
    const auto of_node = static_cast<std::size_t>(rendezvous.ranks_of_node());
    return {rank / of_node * of_node, of_node};
}

/// A piece that two ranks should have alike and do not.
struct Difference {
    std::size_t piece = 0;
    std::size_t one = 0;
    std::size_t other = 0;
};

/// The first piece that differs somewhere, the same on all ranks; of its ranks, this one if it is one of them.
std::optional<Difference> difference(const std::vector<ContentPart>& pieces, const std::vector<Bytes>& all,
                                     const Rendezvous& rendezvous) {
    std::vector<std::vector<std::string_view>> lines;
    for (const Bytes& of_rank : all) {
        std::vector<std::string_view>& made = lines.emplace_back();
        for (std::string_view rest = of_rank; !rest.empty();) {
            const std::size_t end = std::min(rest.find('\n'), rest.size() - 1);
            made.push_back(rest.substr(0, end));
            rest.remove_prefix(end + 1);
        }
    }
    const auto line = [&](std::size_t rank, std::size_t piece) {
        return piece < lines[rank].size() ? lines[rank][piece] : std::string_view();
    };
    const auto own = static_cast<std::size_t>(rendezvous.rank());
    const std::size_t most = std::ranges::max(lines, {}, &std::vector<std::string_view>::size).size();
    for (std::size_t piece = 0; piece < most; ++piece) {
        std::optional<Difference> found;
        for (std::size_t rank = 0; rank < lines.size(); ++rank) {
            const Ranks ranks = alike(pieces[std::min(piece, pieces.size() - 1)], rendezvous, rank);
            const bool with_own = own >= ranks.first && own < ranks.first + ranks.count;
            const std::size_t one = with_own ? own : ranks.first;
            if (line(rank, piece) == line(one, piece)) continue;
            if (!found || (with_own && found->one != own)) found = Difference{piece, one, rank};
        }
        if (found) return found;
    }
    return std::nullopt;
}

/// What stands around character `at`.
std::string excerpt(std::string_view text, std::size_t at) {
    constexpr std::size_t kBefore = 40;
    constexpr std::size_t kAfter = 60;
    const std::size_t begin = at > kBefore ? at - kBefore : 0;
    std::string shown(text.substr(std::min(begin, text.size()), at - begin + kAfter));
    std::ranges::replace(shown, '\n', ' ');
    return fmt::format("{}{}{}", begin > 0 ? "…" : "", shown, begin + shown.size() < text.size() ? "…" : "");
}

}  // namespace

std::vector<ContentPart> content_of(const fuse::Schedule& schedule, const OpMemory& memory,
                                    const OpOptions& options) {
    std::vector<ContentPart> pieces{{"version", SYNCOPATE_VERSION}};
    for (const auto& [name, text] : options.content) pieces.push_back({name, text});
    const bool of_node = schedule.part.has_value();
    if (of_node) pieces.push_back({"program", schedule.part->made_of});
    pieces.push_back({"memory", text_of(schedule, memory), of_node});
    pieces.push_back({"schedule", fuse::to_json(schedule), of_node});
    return pieces;
}

Status agree_on_content(Rendezvous& rendezvous, const std::string& name,
                        const Result<std::vector<ContentPart>>& made, Milliseconds timeout) {
    const std::string label = fmt::format("op-{}", name);
    Result<std::vector<Bytes>> all = agree(
        rendezvous, label, made ? Result<Bytes>(digests_of(*made)) : Result<Bytes>(made.error()), timeout);
    if (!all) return all.error();
    const std::optional<Difference> found = difference(*made, *all, rendezvous);
    if (!found) return Done{};
    const ContentPart& mine = (*made)[std::min(found->piece, made->size() - 1)];
    all = agree(rendezvous, label + "-differs", mine.text, timeout);
    if (!all) return all.error();
    const std::string& one = (*all)[found->one];
    const std::string& other = (*all)[found->other];
    const auto at = static_cast<std::size_t>(std::ranges::mismatch(other, one).in1 - other.begin());
    return Error{
        fmt::format("op '{}': rank {} makes another op than rank {}: they differ first in the {}: rank {} "
                    "has {}, rank {} has {}; ranks must make the same ops in the same order, by the same "
                    "version",
                    name, found->other, found->one, mine.name, found->other, excerpt(other, at), found->one,
                    excerpt(one, at)),
        {.rank = rendezvous.rank()}};
}

}  // namespace syncopate::runtime
