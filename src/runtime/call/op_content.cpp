#include "runtime/call/op_content.hpp"

#include <fmt/format.h>

#include <algorithm>
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

/// A line for each part.
Bytes digests_of(const std::vector<ContentPart>& parts) {
    Bytes lines;
    for (const ContentPart& part : parts)
        lines += fmt::format("{} {}\n", digest(part.text), part.text.size());
    return lines;
}

/// How many lines both begin with.
std::size_t common_lines(std::string_view one, std::string_view other) {
    const auto [end, ignored] = std::ranges::mismatch(one, other);
    return static_cast<std::size_t>(std::count(one.begin(), end, '\n'));
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
    std::vector<ContentPart> parts{{"version", SYNCOPATE_VERSION}};
    for (const auto& [name, text] : options.content) parts.push_back({name, text});
    parts.push_back({"memory", text_of(schedule, memory)});
    parts.push_back({"schedule", fuse::to_json(schedule)});
    return parts;
}

Status agree_on_content(Rendezvous& rendezvous, const std::string& name,
                        const Result<std::vector<ContentPart>>& made, Milliseconds timeout) {
    const std::string label = fmt::format("op-{}", name);
    Result<std::vector<Bytes>> all = agree(
        rendezvous, label, made ? Result<Bytes>(digests_of(*made)) : Result<Bytes>(made.error()), timeout);
    if (!all) return all.error();
    const auto is_first = [&](const Bytes& lines) { return lines == all->front(); };
    if (std::ranges::all_of(*all, is_first)) return Done{};
    std::size_t part = made->size() - 1;
    for (const Bytes& lines : *all) {
        if (!is_first(lines)) part = std::min(part, common_lines(lines, all->front()));
    }
    const ContentPart& mine = (*made)[part];
    all = agree(rendezvous, label + "-differs", mine.name + '\0' + mine.text, timeout);
    if (!all) return all.error();
    const auto own = static_cast<std::size_t>(rendezvous.rank());
    const auto differs = [&](const Bytes& text) { return text != (*all)[own]; };
    const auto theirs = std::ranges::find_if(*all, differs);
    const auto [first, ignored] = std::ranges::mismatch(*theirs, (*all)[own]);
    const auto at = static_cast<std::size_t>(first - theirs->begin()) - mine.name.size() - 1;
    const auto other = static_cast<int>(theirs - all->begin());
    const std::string text = theirs->substr(std::min(theirs->size(), theirs->find('\0') + 1));
    return Error{
        fmt::format("op '{}': rank {} makes another op than rank {}: they differ first in the {}: rank {} "
                    "has {}, rank {} has {}; ranks must make the same ops in the same order, by the same "
                    "version",
                    name, other, own, mine.name, other, excerpt(text, at), own, excerpt(mine.text, at)),
        {.rank = rendezvous.rank()}};
}

}  // namespace syncopate::runtime
