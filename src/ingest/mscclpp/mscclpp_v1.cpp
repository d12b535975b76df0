// Version 1 of the MSCCL++ execution plan (2024-04 to 2025-07).
#include <algorithm>
#include <array>
#include <map>
#include <optional>
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
    using MscclppReader::error;

    Reader(const JsonDocument& document, std::string_view text, const std::string& file_name)
        : MscclppReader(document, text, file_name, {"sm", "proxy", "nvls"}) {}

    bool read(MscclppPlan& plan) {
        const JsonPath root;
        std::int32_t collectives = 0;
        const auto collective = [&](JsonAt at) { return ++collectives > 0 && label(plan.collective)(at); };
        const auto once = [&](JsonAt at) {
            const JsonPath& whole = *at.path->parent;
            return collectives == 1 ||
                   fail({0, &whole}, R"(needs "collective" (or "colletive", as it was written until 2024))");
        };
        const auto gpu = [&](JsonAt at, std::int32_t owner) { return read_gpu(at, owner, plan); };
        const auto block = [&](JsonAt at, std::int32_t owner) { return read_threadblock(at, owner, plan); };
        plan.version = 1;
        return object(
            {0, &root}, optional("name", label(plan.name)), optional("collective", collective),
            optional("colletive", collective), required("protocol", protocol(plan.protocol)),
            required("inplace", flag(plan.in_place)), optional("min_message_size", bytes("from", plan.bytes)),
            optional("max_message_size", bytes("to", plan.bytes)),
            required("gpus", [&](JsonAt at) { return once(at) && gpus(gpu, block)(at); }),
            optional("num_threads_per_block", ignored), optional("use_double_scratch_buffer", ignored));
    }

private:
    /// Source and destination buffer, and type: what version 1 numbers channels within.
    using Kind = std::tuple<Buffer, Buffer, ChannelType>;
    /// A threadblock's own numbers, and the gpu's behind them.
    struct Scope {
        std::int32_t rank = 0;
        std::map<Kind, std::vector<std::int32_t>> channels;
    };

    bool read_gpu(JsonAt at, std::int32_t owner, MscclppPlan& plan) {
        by_buffers_.emplace_back();
        groups_.emplace_back();
        MscclppGpu& gpu = plan.gpus.emplace_back();
        gpu.node = at.node;
        std::int64_t chunk_groups = 1;
        const auto channel = [&](JsonAt inner) { return read_channel(inner, owner, plan); };
        return object(at, required("id", id(at)), required("inputChunks", chunks(gpu.input)),
                      required("outputChunks", chunks(gpu.output)),
                      required("scratchChunks", chunks(gpu.scratch)),
                      optional("chunkGroups", integer(chunk_groups, 1, kMaxChunks)),
                      required("channels", elements("a list of channels", 1 << 16, channel)),
                      required("threadblocks", [this](JsonAt inner) { return threadblocks_at(inner); }));
    }

    bool read_channel(JsonAt at, std::int32_t owner, MscclppPlan& plan) {
        ChannelType type = kMemory;
        std::optional<Buffer> src, dst, on;
        bool connects = false, groups = false;
        const auto given = [this](std::optional<Buffer>& out) {
            return [this, &out](JsonAt inner) { return buffer(out.emplace())(inner); };
        };
        const auto connected = [&](JsonAt inner) {
            connects = true;
            if (!src || !dst || type == kSwitch) return true;
            const auto& channels = channels_[type][static_cast<std::size_t>(owner)];
            std::size_t known = channels.size();
            if (!read_channels_to(inner, type, owner)) return false;
            auto& numbers_of = by_buffers_.back()[{*src, *dst, type}];
            for (; known < channels.size(); ++known) numbers_of.push_back(static_cast<std::int32_t>(known));
            return true;
        };
        const auto rank_groups = [&](JsonAt inner) {
            groups = true;
            return type != kSwitch || elements("a list of groups", kMaxImportRanks, [&](JsonAt group) {
                       groups_.back().push_back(static_cast<std::int32_t>(plan.groups.size()));
                       return read_group(group, plan);
                   })(inner);
        };
        if (!object(at, required("type", channel_type(type)), optional("srcbuff", given(src)),
                    optional("dstbuff", given(dst)), optional("connectedTo", connected),
                    optional("buff", given(on)), optional("rankGroups", rank_groups)))
            return false;
        if (type == kSwitch) return (on && groups) || fail(at, R"(needs "buff" and "rankGroups")");
        return (src && dst && connects) || fail(at, R"(needs "srcbuff", "dstbuff" and "connectedTo")");
    }

    bool read_threadblock(JsonAt at, std::int32_t owner, MscclppPlan& plan) {
        Scope scope;
        scope.rank = owner;
        auto& ops = plan.gpus[static_cast<std::size_t>(owner)].threadblocks.emplace_back();
        const auto channel = [&](JsonAt inner) { return read_scope(inner, scope); };
        const auto op = [&](JsonAt inner) { return read_op(inner.node, *inner.path, scope, plan, ops); };
        return object(at, required("id", id(at)),
                      optional("channels", elements("a list of channels", 1 << 16, channel)),
                      required("ops", elements("a list of ops", static_cast<std::int32_t>(kMaxSteps), op)));
    }

    bool read_scope(JsonAt at, Scope& scope) {
        Buffer src = Buffer::input;
        Buffer dst = Buffer::input;
        ChannelType type = kMemory;
        std::int32_t lists = 0;
        const auto ids = [&](JsonAt inner) {
            ++lists;
            const auto me = static_cast<std::size_t>(scope.rank);
            const auto& known = type == kSwitch ? groups_[me] : by_buffers_[me][{src, dst, type}];
            std::vector<std::int32_t> local;
            if (known.empty() && document_.type(inner.node) == Type::array && document_.size(inner.node) == 0)
                return true;
            if (known.empty()) return fail(inner, "names something, and the gpu has no such channel");
            if (!numbers(static_cast<std::int64_t>(known.size()) - 1, local)(inner)) return false;
            auto& list_of = scope.channels[{src, dst, type}];
            for (const std::int32_t id : local) list_of.push_back(known[static_cast<std::size_t>(id)]);
            return true;
        };
        return object(at, required("src", buffer(src)), required("dst", buffer(dst)),
                      required("ctype", channel_type(type)), optional("cids", ids), optional("cid", ids)) &&
               (lists == 1 || fail(at, "needs \"cids\", once"));
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
            !count_op({node, &path}))
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
        op.origin = origin({node, &path}, name);
        std::int64_t count = 1;
        if (has(keys[kCount]) && !by(keys[kCount], {&path, "cnt"}, integer(count, 1, kMaxChunks)))
            return false;
        ChannelType type = kMemory;
        if (has(keys[kType]) && !by(keys[kType], {&path, "ctype"}, op_channel_type(type))) return false;
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
        if (!ok || !belongs(keys, path, name, *op.verb) ||
            (has(keys[kDeps]) &&
             !by(keys[kDeps], {&path, "deps"}, [this](JsonAt at) { return read_deps(at); })))
            return false;
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
    bool read_deps(JsonAt at) {
        return elements("a list of steps", 4096, [&](JsonAt inner) {
            std::int64_t tb = 0;
            std::int64_t step = 0;
            if (!object(inner, required("tb", chunks(tb)), required("step", chunks(step)))) return false;
            // gpus[r].threadblocks[t].ops[i].deps: i, then ops, then t.
            const JsonPath& op = *at.path->parent;
            return (tb == op.parent->parent->index && step < op.index) ||
                   fail(inner, "names no earlier step of its own threadblock; the runtime knows no other");
        })(at);
    }

    /// {"src": …, "dst": …}: the local and the remote buffer of the channels that an op uses.
    auto kind(ChannelType type, Kind& out) {
        return [this, type, &out](JsonAt at) {
            auto& [src, dst, of] = out;
            of = type;
            return object(at, required("src", buffer(src)), required("dst", buffer(dst)));
        };
    }

    /// [{"id": …, "off": …}]: channels of one kind; calls take(channel of the gpu, offset) for each.
    template <typename Take>
    bool read_channels(Index buffers, Index ids, const JsonPath& path, std::string_view buffers_key,
                       std::string_view ids_key, const Scope& scope, ChannelType type, Take take) {
        Kind of;
        if (!by(buffers, {&path, buffers_key}, kind(type, of))) return false;
        const auto known = scope.channels.find(of);
        const std::size_t count = known == scope.channels.end() ? 0 : known->second.size();
        return by(
            ids, {&path, ids_key}, elements("a list of channels", 4096, [&](JsonAt at) {
                std::int64_t number = 0;
                std::int64_t offset = 0;
                const auto id = [&](JsonAt inner) {
                    return chunks(number)(inner) &&
                           (static_cast<std::size_t>(number) < count ||
                            fail(inner, fmt::format("is {}; the threadblock has {} channels of this kind",
                                                    number, count)));
                };
                return object(at, required("id", id), optional("off", chunks(offset))) &&
                       take(static_cast<std::size_t>(known->second[static_cast<std::size_t>(number)]), offset,
                            at.node);
            }));
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
        return by(buffer_node, {&path, buffer_key}, buffer(ref.buffer)) &&
               by(offset_node, {&path, offset_key}, chunks(ref.index));
    }

    bool read_locals(Index node, const JsonPath& path, const Scope& scope, std::int64_t count,
                     std::vector<MscclppRef>& refs) {
        return by(node, path, elements("a list of chunks", 4096, [&](JsonAt at) {
                      MscclppRef& ref = refs.emplace_back();
                      ref.rank = scope.rank;
                      ref.count = count;
                      ref.node = at.node;
                      return object(at, required("buff", buffer(ref.buffer)),
                                    required("off", chunks(ref.index)));
                  }));
    }

    bool read_remotes(Index buffers, Index ids, const JsonPath& path, std::string_view buffers_key,
                      std::string_view ids_key, const Scope& scope, ChannelType type, std::int64_t count,
                      std::vector<MscclppRef>& refs) {
        Kind of;
        if (type == kSwitch)
            return fail(ids, {&path, ids_key}, "names switch channels, which this op does not use");
        if (!has(buffers))
            return fail(ids, {&path, ids_key}, fmt::format("needs \"{}\" beside it", buffers_key));
        if (!by(buffers, {&path, buffers_key}, kind(type, of))) return false;
        return read_channels(buffers, ids, path, buffers_key, ids_key, scope, type,
                             [&](std::size_t channel, std::int64_t offset, Index node) {
                                 MscclppRef& ref = refs.emplace_back();
                                 ref.rank =
                                     channels_[type][static_cast<std::size_t>(scope.rank)][channel].peer;
                                 ref.buffer = std::get<1>(of);
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
            const auto offset = [&](JsonAt at) {
                std::int64_t off = 0;
                return chunks(off)(at) &&
                       (off == ref.index ||
                        fail(at, fmt::format("is {}, and the op's own offset is {}", off, ref.index)));
            };
            const auto channel = [&](JsonAt at) {
                return object(at, required("id", chunks(id)), optional("off", offset));
            };
            if (!by(node, path, elements("a list of channels", 1, channel))) return false;
        } else if (!by(node, path, chunks(id))) {
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
