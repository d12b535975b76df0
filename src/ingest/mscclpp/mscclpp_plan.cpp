#include "ingest/mscclpp/mscclpp_plan.hpp"
#include "syncopate/names.hpp"

#include <algorithm>
#include <array>
#include <tuple>

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

bool MscclppReader::read_header(Index name, Index collective, Index protocol, Index in_place,
                                MscclppPlan& plan) {
    const auto label = [&](Index node, std::string_view key, std::string& out) {
        std::string_view value;
        if (!has(node) || document_.type(node) == Type::null) return true;
        if (!string(node, {nullptr, key}, value)) return false;
        out = escaped(value);
        return true;
    };
    if (!label(name, "name", plan.name) || !label(collective, "collective", plan.collective) ||
        !label(protocol, "protocol", plan.protocol) ||
        !boolean(in_place, {nullptr, "inplace"}, plan.in_place))
        return false;
    return plan.protocol == "Simple" || plan.protocol == "LL" ||
           fail(protocol, {nullptr, "protocol"}, "is \"" + plan.protocol + "\"; expected Simple or LL");
}

bool MscclppReader::read_bytes(Index least, Index most, MscclppPlan& plan) {
    for (const auto& [node, key, word] :
         {std::tuple{least, "min_message_size", "from"}, std::tuple{most, "max_message_size", "to"}}) {
        if (!has(node)) continue;
        const bool whole = document_.type(node) == Type::integer;
        if (!whole && document_.type(node) != Type::other_number)  // 2^64 - 1 is one
            return fail(node, {nullptr, key}, "is " + document_.describe(node) + "; expected bytes");
        const std::string bytes =
            whole ? fmt::format("{}", document_.integer(node)) : std::string(document_.text(node));
        plan.bytes += fmt::format("{}{} {}", plan.bytes.empty() ? "" : " ", word, bytes);
    }
    return true;
}

bool MscclppReader::buffer(Index node, const JsonPath& path, Buffer& out) {
    std::string_view name;
    if (!string(node, path, name)) return false;
    const std::optional<Buffer> known = buffer_from(name);
    if (!known) return fail(node, path, "is " + document_.describe(node) + "; expected i, o or s");
    out = *known;
    return true;
}

bool MscclppReader::read_gpu(Index node, const JsonPath& path, std::span<const JsonField> known,
                             std::span<const Index> keys, MscclppPlan& plan) {
    MscclppGpu gpu;
    gpu.node = node;
    std::int32_t id = 0;
    if (!rank(keys[0], {&path, known[0].key}, id) ||
        !non_negative(keys[1], {&path, known[1].key}, gpu.input) ||
        !non_negative(keys[2], {&path, known[2].key}, gpu.output) ||
        !non_negative(keys[3], {&path, known[3].key}, gpu.scratch))
        return false;
    if (id != path.index)
        return fail(keys[0], {&path, known[0].key},
                    fmt::format("is {}; expected {}: ids count from 0", id, path.index));
    plan.gpus.push_back(std::move(gpu));
    return true;
}

bool MscclppReader::channel_type(Index node, const JsonPath& path, ChannelType& out) {
    std::string_view name;
    if (!string(node, path, name)) return false;
    const auto found = std::find(types_.begin(), types_.end(), name);
    if (found == types_.end())
        return fail(node, path,
                    fmt::format("is {}; expected {}, {} or {}", document_.describe(node), types_[0],
                                types_[1], types_[2]));
    out = static_cast<ChannelType>(found - types_.begin());
    return true;
}

bool MscclppReader::op_channel_type(Index node, const JsonPath& path, ChannelType& out) {
    if (!has(node)) return true;
    std::string_view name;
    return string(node, path, name) && (name == "none" || channel_type(node, path, out));
}

bool MscclppReader::read_channels_to(Index node, const JsonPath& path, ChannelType type, std::int32_t owner) {
    return list(node, path, "a list of ranks", 1 << 16, [&](Index n, const JsonPath& at) {
        std::int32_t peer = 0;
        if (!rank(n, at, peer)) return false;
        if (peer == owner) return fail(n, at, "is its own rank");
        const std::int64_t key =
            (static_cast<std::int64_t>(type) * kMaxImportRanks + owner) * kMaxImportRanks + peer;
        channels_[type][static_cast<std::size_t>(owner)].push_back({peer, channels_to_[key]++});
        return true;
    });
}

bool MscclppReader::read_group(Index node, const JsonPath& path, MscclppPlan& plan) {
    constexpr std::array<JsonField, 2> kKeys{{{"size", true}, {"ranks", true}}};
    std::array<Index, 2> keys{};
    std::int32_t size = 0;
    std::vector<std::int32_t> members;
    if (!fields(node, path, kKeys, keys) || !integer(keys[0], {&path, "size"}, 1, ranks_, size) ||
        !numbers(keys[1], {&path, "ranks"}, ranks_ - 1, members))
        return false;
    std::vector<std::int32_t> sorted = members;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
        return fail(keys[1], {&path, "ranks"}, "names a rank twice");
    if (members.size() != static_cast<std::size_t>(size))
        return fail(keys[1], {&path, "ranks"},
                    fmt::format("has {} ranks, and size is {}", members.size(), size));
    plan.groups.push_back(std::move(members));
    return true;
}

bool MscclppReader::threadblock_id(Index node, const JsonPath& path) {
    std::int32_t id = 0;
    if (!integer(node, {&path, "id"}, 0, 4095, id)) return false;
    return id == path.index ||
           fail(node, {&path, "id"}, fmt::format("is {}; expected {}: ids count from 0", id, path.index));
}

bool MscclppReader::read_barrier(Index node, const JsonPath& path, Index id, Index parties,
                                 std::string_view parties_key, MscclppOp& op) {
    if (!has(id) || !has(parties))
        return fail(node, path, fmt::format(R"(needs "barrier_id" and "{}")", parties_key));
    return integer(id, {&path, "barrier_id"}, 0, 1 << 16, op.barrier) &&
           integer(parties, {&path, parties_key}, 1, 4096, op.barrier_parties);
}

bool MscclppReader::numbers(Index node, const JsonPath& path, std::int64_t highest,
                            std::vector<std::int32_t>& out) {
    return integers(node, path, "a list of numbers", 1 << 16, 0, highest, out);
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

Origin MscclppReader::origin(Index node, const JsonPath& path, std::string_view name) {
    const std::size_t end = std::min(document_.end_offset(node), text_.size());
    if (end > line_offset_) {
        const auto from = text_.begin() + static_cast<std::ptrdiff_t>(line_offset_);
        line_ += static_cast<std::int32_t>(
            std::count(from, text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
        line_offset_ = end;
    }
    return {line_, fmt::format("{} ({})", path.to_string(), name)};
}

bool MscclppReader::count_op(Index node, const JsonPath& path) {
    return ++ops_ <= kMaxSteps ||
           fail(node, path, fmt::format("is op {} of the file; at most {} are allowed", ops_, kMaxSteps));
}

}  // namespace syncopate::ingest
