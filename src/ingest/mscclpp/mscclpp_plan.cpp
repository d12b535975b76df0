#include "ingest/mscclpp/mscclpp_plan.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace syncopate::ingest {
namespace {

constexpr std::array<std::string_view, 3> kTypeNames{"memory", "port", "switch"};

using enum MscclppData;

constexpr std::array kVerbs{
    MscclppVerb{.name = "nop"},
    MscclppVerb{.name = "flush"},
    MscclppVerb{.name = "barrier"},
    MscclppVerb{.name = "sem_acquire"},
    MscclppVerb{.name = "sem_release"},
    MscclppVerb{.name = "signal", .signals = true},
    MscclppVerb{.name = "wait", .waits = true},
    MscclppVerb{.name = "rlxsignal", .signals = true, .relaxed = true},
    MscclppVerb{.name = "rlxwait", .waits = true, .relaxed = true},
    MscclppVerb{.name = "put", .data = pairwise, .remote_dst = true},
    MscclppVerb{.name = "pws", .data = pairwise, .signals = true, .remote_dst = true},
    MscclppVerb{.name = "pwsf", .data = pairwise, .signals = true, .remote_dst = true},
    MscclppVerb{.name = "get", .data = pairwise, .remote_src = true},
    MscclppVerb{.name = "copy", .data = pairwise},
    MscclppVerb{.name = "re", .data = reduce},
    MscclppVerb{.name = "res", .data = reduce, .remote_dst = true},
    MscclppVerb{.name = "rre", .data = reduce, .remote_src = true},
    MscclppVerb{.name = "rres", .data = reduce, .remote_src = true, .remote_dst = true},
    MscclppVerb{.name = "ppkt", .data = pairwise, .packets_written = true, .remote_dst = true},
    MscclppVerb{
        .name = "rppkt", .data = pairwise, .packets_read = true, .packets_written = true, .remote_dst = true},
    MscclppVerb{.name = "cpkt", .data = pairwise, .packets_written = true},
    MscclppVerb{.name = "upkt", .data = pairwise, .packets_read = true},
    MscclppVerb{.name = "repkt", .data = reduce, .packets_read = true},
    MscclppVerb{
        .name = "respkt", .data = reduce, .packets_read = true, .packets_written = true, .remote_dst = true},
    MscclppVerb{.name = "recpkt", .data = reduce, .packets_read = true, .packets_written = true},
    MscclppVerb{
        .name = "recspkt", .data = reduce, .packets_read = true, .packets_written = true, .remote_dst = true},
    MscclppVerb{.name = "glres", .data = multicast_reduce},
    MscclppVerb{.name = "glre", .data = multicast_load},
    MscclppVerb{.name = "gstore", .data = multicast_store},
    MscclppVerb{.name = "gstorepkt", .data = multicast_store, .packets_written = true},
};

}  // namespace

const MscclppVerb* mscclpp_verb(std::string_view name) {
    const auto found = std::find_if(kVerbs.begin(), kVerbs.end(),
                                    [&](const MscclppVerb& known) { return known.name == name; });
    return found == kVerbs.end() ? nullptr : &*found;
}

bool MscclppReader::read_bytes(JsonAt at, std::string_view word, std::string& out) {
    const bool whole = document_.type(at.node) == Type::integer;
    if (!whole && document_.type(at.node) != Type::other_number)  // 2^64 - 1 is one
        return fail(at, "is " + document_.describe(at.node) + "; expected bytes");
    out += fmt::format("{}{} {}", out.empty() ? "" : " ", word, document_.compact(at.node));
    return true;
}

bool MscclppReader::read_buffer(JsonAt at, Buffer& out) {
    std::string_view name;
    if (!string(at.node, *at.path, name)) return false;
    const std::optional<Buffer> known = buffer_from(name);
    if (!known) return fail(at, "is " + document_.describe(at.node) + "; expected i, o or s");
    out = *known;
    return true;
}

bool MscclppReader::read_channel_type(JsonAt at, ChannelType& out) {
    std::string_view name;
    if (!string(at.node, *at.path, name)) return false;
    const auto found = std::ranges::find(types_, name);
    if (found == types_.end())
        return fail(at, fmt::format("is {}; expected {}, {} or {}", document_.describe(at.node), types_[0],
                                    types_[1], types_[2]));
    out = static_cast<ChannelType>(found - types_.begin());
    return true;
}

bool MscclppReader::read_channels_to(JsonAt at, ChannelType type, std::int32_t owner) {
    return elements("a list of ranks", 1 << 16, [&](JsonAt inner) {
        std::int32_t peer = 0;
        if (!rank(peer)(inner)) return false;
        if (peer == owner) return fail(inner, "is its own rank");
        const std::int64_t key =
            (static_cast<std::int64_t>(type) * kMaxImportRanks + owner) * kMaxImportRanks + peer;
        channels_[type][static_cast<std::size_t>(owner)].push_back({peer, channels_to_[key]++});
        return true;
    })(at);
}

bool MscclppReader::read_group(JsonAt at, MscclppPlan& plan) {
    std::int32_t size = 0;
    std::vector<std::int32_t>& members = plan.groups.emplace_back();
    const auto ranks = [&](JsonAt inner) {
        if (!numbers(ranks_ - 1, members)(inner)) return false;
        std::vector<std::int32_t> sorted = members;
        std::ranges::sort(sorted);
        if (std::ranges::adjacent_find(sorted) != sorted.end()) return fail(inner, "names a rank twice");
        return members.size() == static_cast<std::size_t>(size) ||
               fail(inner, fmt::format("has {} ranks, and size is {}", members.size(), size));
    };
    return object(at, required("size", integer(size, 1, ranks_)), required("ranks", ranks));
}

bool MscclppReader::read_barrier(Index node, const JsonPath& path, Index id, Index parties,
                                 std::string_view parties_key, MscclppOp& op) {
    if (!has(id) || !has(parties))
        return fail(node, path, fmt::format(R"(needs "barrier_id" and "{}")", parties_key));
    return by(id, {&path, "barrier_id"}, integer(op.barrier, 0, 1 << 16)) &&
           by(parties, {&path, parties_key}, integer(op.barrier_parties, 1, 4096));
}

std::int32_t MscclppReader::counter(MscclppPlan& plan, const std::string& key, std::string what,
                                    std::int64_t initial) {
    const auto [at, is_new] = counters_.try_emplace(key, static_cast<std::int32_t>(plan.counters.size()));
    if (is_new) plan.counters.push_back({std::move(what), initial});
    return at->second;
}

std::int32_t MscclppReader::wait_counter(MscclppPlan& plan, std::int32_t owner, ChannelType type,
                                         std::size_t index) {
    const Channel& channel = channels_[type][static_cast<std::size_t>(owner)][index];
    return counter(plan,
                   fmt::format("{} {}<-{} {}", static_cast<int>(type), owner, channel.peer, channel.nth),
                   fmt::format("{} channel {} from rank {} to rank {}", kTypeNames[type], channel.nth,
                               channel.peer, owner),
                   0);
}

std::int32_t MscclppReader::signal_counter(MscclppPlan& plan, std::int32_t owner, ChannelType type,
                                           std::size_t index) {
    const Channel& channel = channels_[type][static_cast<std::size_t>(owner)][index];
    return counter(plan,
                   fmt::format("{} {}<-{} {}", static_cast<int>(type), channel.peer, owner, channel.nth),
                   fmt::format("{} channel {} from rank {} to rank {}", kTypeNames[type], channel.nth, owner,
                               channel.peer),
                   0);
}

std::int32_t MscclppReader::semaphore_counter(MscclppPlan& plan, std::int32_t owner, std::int32_t id,
                                              std::int64_t initial) {
    return counter(plan, fmt::format("semaphore {} {}", owner, id),
                   fmt::format("semaphore {} of rank {}", id, owner), initial);
}

Origin MscclppReader::origin(JsonAt at, std::string_view name) {
    const std::size_t end = std::min(document_.end_offset(at.node), text_.size());
    if (end > line_offset_) {
        const auto from = text_.begin() + static_cast<std::ptrdiff_t>(line_offset_);
        line_ += static_cast<std::int32_t>(
            std::count(from, text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
        line_offset_ = end;
    }
    return {line_, fmt::format("{} ({})", at.path->to_string(), name)};
}

bool MscclppReader::count_op(JsonAt at) {
    return ++ops_ <= kMaxSteps ||
           fail(at, fmt::format("is op {} of the file; at most {} are allowed", ops_, kMaxSteps));
}

}  // namespace syncopate::ingest
