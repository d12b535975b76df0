// Version 1 of the MSCCL++ execution plan (2024-04 to 2025-07).
#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "ingest/mscclpp/mscclpp_plan.hpp"
#include "syncopate/names.hpp"

namespace syncopate::ingest {
namespace {

/// Names of version 1 that differ from version 2's, and what version 2 calls the same. cpkt means the
/// opposite there.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kRenamed{{{"rs", "res"},
                                                                                 {"rrc", "rre"},
                                                                                 {"rrcs", "rres"},
                                                                                 {"rspkt", "respkt"},
                                                                                 {"rpkt", "repkt"},
                                                                                 {"tpkt", "cpkt"},
                                                                                 {"cpkt", "upkt"}}};
constexpr std::array<std::string_view, 13> kKept{
    "put", "pws", "pwsf", "get", "copy", "signal", "wait", "flush", "barrier", "nop", "glres", "re", "ppkt"};

class Reader : public MscclppReader {
public:
    Reader(const JsonDocument& document, std::string_view text, const std::string& file_name)
        : MscclppReader(document, text, file_name, {"sm", "proxy", "nvls"}) {}

    bool read(MscclppPlan& plan) {
        constexpr std::array<JsonField, 10> kKeys{{{"name", false},
                                                   {"collective", false},
                                                   {"colletive", false},
                                                   {"protocol", true},
                                                   {"inplace", true},
                                                   {"gpus", true},
                                                   {"num_threads_per_block", false},
                                                   {"use_double_scratch_buffer", false},
                                                   {"min_message_size", false},
                                                   {"max_message_size", false}}};
        std::array<Index, kKeys.size()> keys{};
        if (!fields(0, {}, kKeys, keys)) return false;
        if (has(keys[1]) == has(keys[2]))
            return fail(0, {}, R"(needs "collective" (or "colletive", as it was written until 2024))");
        if (!read_header(keys[0], has(keys[1]) ? keys[1] : keys[2], keys[3], keys[4], plan) ||
            !read_bytes(keys[8], keys[9], plan))
            return false;
        plan.version = 1;
        return read_gpus(
            keys[5], [&](Index node, const JsonPath& at) { return read_resources(node, at, plan); },
            [&](Index node, const JsonPath& at) { return read_threadblocks(node, at, plan); });
    }

private:
    /// Source and destination buffer, and type: what version 1 numbers channels within.
    using Kind = std::tuple<Buffer, Buffer, ChannelType>;
    /// A threadblock's own numbers, and the gpu's behind them.
    struct Scope {
        std::int32_t rank = 0;
        std::map<Kind, std::vector<std::int32_t>> channels;
    };

    static constexpr std::array<JsonField, 7> kGpuKeys{{{"id", true},
                                                        {"inputChunks", true},
                                                        {"outputChunks", true},
                                                        {"scratchChunks", true},
                                                        {"chunkGroups", false},
                                                        {"channels", true},
                                                        {"threadblocks", true}}};

    bool read_resources(Index node, const JsonPath& path, MscclppPlan& plan) {
        std::array<Index, kGpuKeys.size()> keys{};
        std::int64_t chunk_groups = 1;
        if (!fields(node, path, kGpuKeys, keys) || !read_gpu(node, path, kGpuKeys, keys, plan) ||
            (has(keys[4]) && !integer(keys[4], {&path, "chunkGroups"}, 1, kMaxChunks, chunk_groups)))
            return false;
        const auto owner = static_cast<std::int32_t>(path.index);
        by_buffers_.emplace_back();
        groups_.emplace_back();
        const JsonPath channels{&path, "channels"};
        return list(keys[5], channels, "a list of channels", 1 << 16,
                    [&](Index n, const JsonPath& at) { return read_channel(n, at, owner, plan); });
    }

    bool read_channel(Index node, const JsonPath& path, std::int32_t owner, MscclppPlan& plan) {
        constexpr std::array<JsonField, 6> kKeys{{{"type", true},
                                                  {"srcbuff", false},
                                                  {"dstbuff", false},
                                                  {"connectedTo", false},
                                                  {"buff", false},
                                                  {"rankGroups", false}}};
        std::array<Index, kKeys.size()> keys{};
        ChannelType type = kMemory;
        if (!fields(node, path, kKeys, keys) || !channel_type(keys[0], {&path, "type"}, type)) return false;
        if (type == kSwitch) {
            Buffer on = Buffer::input;
            if (!has(keys[4]) || !has(keys[5])) return fail(node, path, R"(needs "buff" and "rankGroups")");
            if (!buffer(keys[4], {&path, "buff"}, on)) return false;
            const JsonPath groups{&path, "rankGroups"};
            return list(keys[5], groups, "a list of groups", kMaxImportRanks,
                        [&](Index n, const JsonPath& at) {
                            groups_.back().push_back(static_cast<std::int32_t>(plan.groups.size()));
                            return read_group(n, at, plan);
                        });
        }
        Buffer src = Buffer::input;
        Buffer dst = Buffer::input;
        if (!has(keys[1]) || !has(keys[2]) || !has(keys[3]))
            return fail(node, path, R"(needs "srcbuff", "dstbuff" and "connectedTo")");
        if (!buffer(keys[1], {&path, "srcbuff"}, src) || !buffer(keys[2], {&path, "dstbuff"}, dst))
            return false;
        const auto& channels = channels_[type][static_cast<std::size_t>(owner)];
        std::size_t known = channels.size();
        if (!read_channels_to(keys[3], {&path, "connectedTo"}, type, owner)) return false;
        auto& numbers_of = by_buffers_.back()[{src, dst, type}];
        for (; known < channels.size(); ++known) numbers_of.push_back(static_cast<std::int32_t>(known));
        return true;
    }

    bool read_threadblocks(Index node, const JsonPath& path, MscclppPlan& plan) {
        std::array<Index, kGpuKeys.size()> keys{};
        if (!fields(node, path, kGpuKeys, keys)) return false;
        const auto owner = static_cast<std::int32_t>(path.index);
        const JsonPath blocks{&path, "threadblocks"};
        return list(keys[6], blocks, "a list of threadblocks", 4096,
                    [&](Index n, const JsonPath& at) { return read_threadblock(n, at, owner, plan); });
    }

    bool read_threadblock(Index node, const JsonPath& path, std::int32_t owner, MscclppPlan& plan) {
        constexpr std::array<JsonField, 3> kKeys{{{"id", true}, {"ops", true}, {"channels", false}}};
        std::array<Index, kKeys.size()> keys{};
        Scope scope;
        scope.rank = owner;
        if (!fields(node, path, kKeys, keys) || !threadblock_id(keys[0], path)) return false;
        const JsonPath channels{&path, "channels"};
        if (has(keys[2]) &&
            (!list(keys[2], channels, "a list of channels", 1 << 16) ||
             !each(keys[2], channels, [&](Index n, const JsonPath& at) { return read_scope(n, at, scope); })))
            return false;
        auto& ops = plan.gpus[static_cast<std::size_t>(owner)].threadblocks.emplace_back();
        const JsonPath list_path{&path, "ops"};
        return list(keys[1], list_path, "a list of ops", static_cast<std::int32_t>(kMaxSteps),
                    [&](Index n, const JsonPath& at) { return read_op(n, at, scope, plan, ops); });
    }

    bool read_scope(Index node, const JsonPath& path, Scope& scope) {
        constexpr std::array<JsonField, 5> kKeys{
            {{"src", true}, {"dst", true}, {"ctype", true}, {"cids", false}, {"cid", false}}};
        std::array<Index, kKeys.size()> keys{};
        Buffer src = Buffer::input;
        Buffer dst = Buffer::input;
        ChannelType type = kMemory;
        if (!fields(node, path, kKeys, keys) || !buffer(keys[0], {&path, "src"}, src) ||
            !buffer(keys[1], {&path, "dst"}, dst) || !channel_type(keys[2], {&path, "ctype"}, type))
            return false;
        if (has(keys[3]) == has(keys[4])) return fail(node, path, "needs \"cids\", once");
        const Index ids = has(keys[3]) ? keys[3] : keys[4];
        const JsonPath at{&path, has(keys[3]) ? "cids" : "cid"};
        const auto me = static_cast<std::size_t>(scope.rank);
        const auto& known = type == kSwitch ? groups_[me] : by_buffers_[me][{src, dst, type}];
        std::vector<std::int32_t> local;
        if (known.empty() && document_.type(ids) == Type::array && document_.size(ids) == 0) return true;
        if (known.empty()) return fail(ids, at, "names something, and the gpu has no such channel");
        if (!numbers(ids, at, static_cast<std::int64_t>(known.size()) - 1, local)) return false;
        auto& list_of = scope.channels[{src, dst, type}];
        for (const std::int32_t id : local) list_of.push_back(known[static_cast<std::size_t>(id)]);
        return true;
    }

    /// The keys of an op, by name.
    enum Key : std::size_t {
        kName,
        kCount,
        kType,
        kSrc,
        kSrcBuffer,
        kSrcOffset,
        kDst,
        kDstBuffer,
        kDstOffset,
        kSrcs,
        kDsts,
        kInBuffers,
        kIn,
        kOutBuffers,
        kOut,
        kDeps,
        kBarrier,
        kParties,
        kGroupIn,
        kGroupOut,
        kNumKeys
    };
    static constexpr std::array<JsonField, kNumKeys> kOpKeys{
        {{"name", true},    {"cnt", false},        {"ctype", false},
         {"src", false},    {"srcbuff", false},    {"srcoff", false},
         {"dst", false},    {"dstbuff", false},    {"dstoff", false},
         {"srcs", false},   {"dsts", false},       {"i_buff", false},
         {"i_cids", false}, {"o_buff", false},     {"o_cids", false},
         {"deps", false},   {"barrier_id", false}, {"nthread_blocks", false},
         {"gi_cid", false}, {"go_cid", false}}};
    using Keys = std::array<Index, kNumKeys>;

    bool read_op(Index node, const JsonPath& path, const Scope& scope, MscclppPlan& plan,
                 std::vector<MscclppOp>& ops) {
        Keys keys{};
        std::string_view name;
        if (!fields(node, path, kOpKeys, keys) || !string(keys[kName], {&path, "name"}, name) ||
            !count_op(node, path))
            return false;
        const auto renamed = std::find_if(kRenamed.begin(), kRenamed.end(),
                                          [&](const auto& row) { return row.first == name; });
        const bool kept = std::find(kKept.begin(), kKept.end(), name) != kKept.end();
        MscclppOp op;
        op.verb = renamed != kRenamed.end() ? mscclpp_verb(renamed->second)
                  : kept                    ? mscclpp_verb(name)
                                            : nullptr;
        if (op.verb == nullptr) {
            return fail(keys[kName], {&path, "name"},
                        name == "rrs"
                            ? "is \"rrs\", of a dialect before version 1 that no published reader takes"
                            : fmt::format("is \"{}\", which is no op of version 1", escaped(name)));
        }
        op.origin = origin(node, path, name);
        std::int64_t count = 1;
        if (has(keys[kCount]) && !integer(keys[kCount], {&path, "cnt"}, 1, kMaxChunks, count)) return false;
        ChannelType type = kMemory;
        if (!op_channel_type(keys[kType], {&path, "ctype"}, type)) return false;
        const bool ok = op.verb->signals && op.verb->data == MscclppData::none
                            ? read_counters(node, path, keys, scope, type, true, plan, op)
                        : op.verb->waits ? read_counters(node, path, keys, scope, type, false, plan, op)
                        : op.verb->name == "barrier"
                            ? read_barrier(node, path, keys[kBarrier], keys[kParties], "nthread_blocks", op)
                        : op.verb->data == MscclppData::multicast_reduce
                            ? read_multicast(node, path, keys, scope, count, op)
                        : op.verb->data != MscclppData::none
                            ? read_data(node, path, keys, scope, type, count, plan, op)
                            : true;
        if (!ok || !belongs(keys, path, name, *op.verb) || !read_deps(keys[kDeps], path)) return false;
        ops.push_back(std::move(op));
        return true;
    }

    /// Whether the op may have each key that it has: one that its verb does not look at may not stand there, as
    /// if it meant something. (src and dst repeat srcoff and dstoff.)
    bool belongs(const Keys& keys, const JsonPath& path, std::string_view name, const MscclppVerb& verb) {
        using enum MscclppData;
        const bool group = verb.data == multicast_reduce;
        const bool flush = verb.name == "flush";
        for (std::size_t k = 0; k < keys.size(); ++k) {
            bool may = true;
            switch (k) {
                case kBarrier:
                case kParties: may = verb.name == "barrier"; break;
                case kGroupIn:
                case kGroupOut: may = group; break;
                case kIn:
                case kInBuffers: may = group || verb.waits || verb.remote_src || verb.data == reduce; break;
                case kOut:
                case kOutBuffers:
                    may = group || flush || verb.signals || verb.remote_dst || verb.data == reduce;
                    break;
                case kSrcs: may = verb.data == reduce || (verb.data == pairwise && verb.remote_dst); break;
                case kDsts: may = verb.data == pairwise && verb.remote_src; break;
                case kSrcBuffer:
                case kSrcOffset:
                case kDstBuffer:
                case kDstOffset: may = verb.data != none; break;
                default: break;
            }
            if (has(keys[k]) && !may)
                return fail(keys[k], path,
                            fmt::format("has \"{}\", which means nothing to {}", kOpKeys[k].key, name));
        }
        return true;
    }

    /// A nop names the step before it, of its own threadblock: the order that it has anyway.
    bool read_deps(Index node, const JsonPath& path) {
        if (!has(node)) return true;
        const JsonPath at{&path, "deps"};
        return list(node, at, "a list of steps", 4096, [&](Index n, const JsonPath& p) {
            constexpr std::array<JsonField, 2> kKeys{{{"tb", true}, {"step", true}}};
            std::array<Index, 2> keys{};
            std::int64_t tb = 0;
            std::int64_t step = 0;
            if (!fields(n, p, kKeys, keys) || !non_negative(keys[0], {&p, "tb"}, tb) ||
                !non_negative(keys[1], {&p, "step"}, step))
                return false;
            // path is gpus[r].threadblocks[t].ops[i]: i, then ops, then t.
            if (tb != path.parent->parent->index || step >= path.index)
                return fail(n, p, "names no earlier step of its own threadblock; the runtime knows no other");
            return true;
        });
    }

    /// {"src": …, "dst": …}: the local and the remote buffer of the channels that an op uses.
    bool read_kind(Index node, const JsonPath& path, ChannelType type, Kind& out) {
        constexpr std::array<JsonField, 2> kKeys{{{"src", true}, {"dst", true}}};
        std::array<Index, 2> keys{};
        Buffer src = Buffer::input;
        Buffer dst = Buffer::input;
        if (!fields(node, path, kKeys, keys) || !buffer(keys[0], {&path, "src"}, src) ||
            !buffer(keys[1], {&path, "dst"}, dst))
            return false;
        out = {src, dst, type};
        return true;
    }

    /// [{"id": …, "off": …}]: channels of one kind; calls take(channel of the gpu, offset) for each.
    template <typename Take>
    bool read_channels(Index buffers, Index ids, const JsonPath& path, std::string_view buffers_key,
                       std::string_view ids_key, const Scope& scope, ChannelType type, Take take) {
        Kind kind;
        const JsonPath at{&path, ids_key};
        if (!read_kind(buffers, {&path, buffers_key}, type, kind)) return false;
        return list(ids, at, "a list of channels", 4096, [&](Index n, const JsonPath& p) {
            constexpr std::array<JsonField, 2> kKeys{{{"id", true}, {"off", false}}};
            std::array<Index, 2> keys{};
            std::int64_t id = 0;
            std::int64_t offset = 0;
            if (!fields(n, p, kKeys, keys) || !non_negative(keys[0], {&p, "id"}, id) ||
                (has(keys[1]) && !non_negative(keys[1], {&p, "off"}, offset)))
                return false;
            const auto known = scope.channels.find(kind);
            const std::size_t count = known == scope.channels.end() ? 0 : known->second.size();
            if (static_cast<std::size_t>(id) >= count)
                return fail(keys[0], {&p, "id"},
                            fmt::format("is {}; the threadblock has {} channels of this kind", id, count));
            return take(static_cast<std::size_t>(known->second[static_cast<std::size_t>(id)]), offset, n);
        });
    }

    /// The channels that an op signals on, or waits on.
    bool read_counters(Index node, const JsonPath& path, const Keys& keys, const Scope& scope,
                       ChannelType type, bool signals, MscclppPlan& plan, MscclppOp& op) {
        const auto buffers = signals ? kOutBuffers : kInBuffers;
        const auto ids = signals ? kOut : kIn;
        const std::string_view buffers_key = signals ? "o_buff" : "i_buff";
        const std::string_view ids_key = signals ? "o_cids" : "i_cids";
        if (!has(keys[buffers]) || !has(keys[ids]))
            return fail(node, path, fmt::format(R"(needs "{}" and "{}")", buffers_key, ids_key));
        if (type == kSwitch)
            return fail(node, path,
                        fmt::format("{} on a switch channel, which carries no signals",
                                    signals ? "signals" : "waits"));
        return read_channels(keys[buffers], keys[ids], path, buffers_key, ids_key, scope, type,
                             [&](std::size_t channel, std::int64_t, Index) {
                                 op.counters.push_back(signals
                                                           ? signal_counter(plan, scope.rank, type, channel)
                                                           : wait_counter(plan, scope.rank, type, channel));
                                 return true;
                             });
    }

    /// The chunks at `buffer` and `offset` of the own rank.
    bool read_local(Index node, const JsonPath& path, Index buffer_node, Index offset_node,
                    std::string_view buffer_key, std::string_view offset_key, const Scope& scope,
                    std::int64_t count, MscclppRef& ref) {
        ref.rank = scope.rank;
        ref.count = count;
        ref.node = node;
        if (!has(buffer_node) || !has(offset_node))
            return fail(node, path, fmt::format(R"(needs "{}" and "{}")", buffer_key, offset_key));
        return buffer(buffer_node, {&path, buffer_key}, ref.buffer) &&
               non_negative(offset_node, {&path, offset_key}, ref.index);
    }

    bool read_locals(Index node, const JsonPath& path, const Scope& scope, std::int64_t count,
                     std::vector<MscclppRef>& refs) {
        return list(node, path, "a list of chunks", 4096, [&](Index n, const JsonPath& at) {
            constexpr std::array<JsonField, 2> kKeys{{{"buff", true}, {"off", true}}};
            std::array<Index, 2> keys{};
            return fields(n, at, kKeys, keys) &&
                   read_local(n, at, keys[0], keys[1], "buff", "off", scope, count, refs.emplace_back());
        });
    }

    bool read_remotes(Index buffers, Index ids, const JsonPath& path, std::string_view buffers_key,
                      std::string_view ids_key, const Scope& scope, ChannelType type, std::int64_t count,
                      std::vector<MscclppRef>& refs) {
        Kind kind;
        if (type == kSwitch)
            return fail(ids, {&path, ids_key}, "names switch channels, which this op does not use");
        if (!has(buffers))
            return fail(ids, {&path, ids_key}, fmt::format("needs \"{}\" beside it", buffers_key));
        if (!read_kind(buffers, {&path, buffers_key}, type, kind)) return false;
        return read_channels(buffers, ids, path, buffers_key, ids_key, scope, type,
                             [&](std::size_t channel, std::int64_t offset, Index node) {
                                 MscclppRef& ref = refs.emplace_back();
                                 ref.rank =
                                     channels_[type][static_cast<std::size_t>(scope.rank)][channel].peer;
                                 ref.buffer = std::get<1>(kind);
                                 ref.index = offset;
                                 ref.count = count;
                                 ref.node = node;
                                 return true;
                             });
    }

    bool read_data(Index node, const JsonPath& path, const Keys& keys, const Scope& scope, ChannelType type,
                   std::int64_t count, MscclppPlan& plan, MscclppOp& op) {
        const bool reduces = op.verb->data == MscclppData::reduce;
        const auto local = [&](bool source, std::vector<MscclppRef>& refs) {
            return source ? read_local(node, path, keys[kSrcBuffer], keys[kSrcOffset], "srcbuff", "srcoff",
                                       scope, count, refs.emplace_back())
                          : read_local(node, path, keys[kDstBuffer], keys[kDstOffset], "dstbuff", "dstoff",
                                       scope, count, refs.emplace_back());
        };
        const auto remote_in = [&] {
            return read_remotes(keys[kInBuffers], keys[kIn], path, "i_buff", "i_cids", scope, type, count,
                                op.src);
        };
        const auto remote_out = [&] {
            return read_remotes(keys[kOutBuffers], keys[kOut], path, "o_buff", "o_cids", scope, type, count,
                                op.dst);
        };
        if (reduces) {
            // The accumulated chunk is src, or dst where the op adds to it in place.
            const bool has_src = has(keys[kSrcBuffer]);
            if (!local(has_src, op.src) || !local(false, op.dst)) return false;
            if (has(keys[kSrcs]) && !read_locals(keys[kSrcs], {&path, "srcs"}, scope, count, op.src))
                return false;
            if (op.verb->remote_src && !has(keys[kIn])) return fail(node, path, "lacks \"i_cids\"");
            if (has(keys[kIn]) && !remote_in()) return false;
            if (op.verb->remote_dst && !has(keys[kOut])) return fail(node, path, "lacks \"o_cids\"");
            return !has(keys[kOut]) || remote_out();
        }
        if (op.verb->remote_dst) {
            if (has(keys[kSrcs]) ? !read_locals(keys[kSrcs], {&path, "srcs"}, scope, count, op.src)
                                 : !local(true, op.src))
                return false;
            if (!has(keys[kOut])) return fail(node, path, "lacks \"o_cids\"");
            if (!remote_out()) return false;
            if (!op.verb->signals) return true;
            return read_counters(node, path, keys, scope, type, true, plan, op);
        }
        if (op.verb->remote_src) {
            if (!has(keys[kIn])) return fail(node, path, "lacks \"i_cids\"");
            return remote_in() &&
                   (has(keys[kDsts]) ? read_locals(keys[kDsts], {&path, "dsts"}, scope, count, op.dst)
                                     : local(false, op.dst));
        }
        return local(true, op.src) && local(false, op.dst);
    }

    bool read_multicast(Index node, const JsonPath& path, const Keys& keys, const Scope& scope,
                        std::int64_t count, MscclppOp& op) {
        if (!read_local(node, path, keys[kSrcBuffer], keys[kSrcOffset], "srcbuff", "srcoff", scope, count,
                        op.src.emplace_back()) ||
            !read_local(node, path, keys[kDstBuffer], keys[kDstOffset], "dstbuff", "dstoff", scope, count,
                        op.dst.emplace_back()))
            return false;
        const Index in = has(keys[kIn]) ? keys[kIn] : keys[kGroupIn];
        const Index out = has(keys[kOut]) ? keys[kOut] : keys[kGroupOut];
        if (!has(in) || !has(out)) return fail(node, path, R"(needs "i_cids" and "o_cids")");
        return read_switch(in, {&path, has(keys[kIn]) ? "i_cids" : "gi_cid"}, scope, op.src.back()) &&
               read_switch(out, {&path, has(keys[kOut]) ? "o_cids" : "go_cid"}, scope, op.dst.back());
    }

    /// The group of the one multicast channel that a list of channels, or a number, names.
    bool read_switch(Index node, const JsonPath& path, const Scope& scope, MscclppRef& ref) {
        std::int64_t id = 0;
        if (document_.type(node) == Type::array) {
            if (document_.size(node) != 1) return fail(node, path, "must name one channel");
            constexpr std::array<JsonField, 2> kKeys{{{"id", true}, {"off", false}}};
            std::array<Index, 2> keys{};
            const JsonPath at{&path, {}, 0};
            std::int64_t offset = ref.index;
            if (!fields(document_.first(node), at, kKeys, keys) || !non_negative(keys[0], {&at, "id"}, id) ||
                (has(keys[1]) && !non_negative(keys[1], {&at, "off"}, offset)))
                return false;
            if (offset != ref.index)
                return fail(keys[1], {&at, "off"},
                            fmt::format("is {}, and the op's own offset is {}", offset, ref.index));
        } else if (!non_negative(node, path, id)) {
            return false;
        }
        for (const auto& [kind, numbers_of] : scope.channels) {
            if (std::get<2>(kind) != kSwitch || static_cast<std::size_t>(id) >= numbers_of.size()) continue;
            if (std::get<0>(kind) != ref.buffer && std::get<1>(kind) != ref.buffer) continue;
            ref.group = numbers_of[static_cast<std::size_t>(id)];
            return true;
        }
        return fail(node, path,
                    fmt::format("names multicast channel {}, which the threadblock does not have", id));
    }

    std::vector<std::map<Kind, std::vector<std::int32_t>>> by_buffers_;  ///< by rank: numbers in channels_
    std::vector<std::vector<std::int32_t>> groups_;  ///< by rank: numbers in MscclppPlan::groups
};

}  // namespace

Result<MscclppPlan> read_mscclpp_v1(const JsonDocument& document, std::string_view text,
                                    const std::string& file_name) {
    Reader reader(document, text, file_name);
    MscclppPlan plan;
    if (!reader.read(plan)) return reader.error();
    return plan;
}

}  // namespace syncopate::ingest
