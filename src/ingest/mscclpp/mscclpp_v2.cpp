// Version 2 of the MSCCL++ execution plan (since 2025-07).
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "ingest/mscclpp/mscclpp_plan.hpp"
#include "syncopate/names.hpp"

namespace syncopate::ingest {
namespace {

class Reader : public MscclppReader {
public:
    Reader(const JsonDocument& document, std::string_view text, const std::string& file_name)
        : MscclppReader(document, text, file_name, {"memory", "port", "switch"}) {}

    bool read(MscclppPlan& plan) {
        constexpr std::array<JsonField, 13> kKeys{{{"name", false},
                                                   {"collective", true},
                                                   {"protocol", true},
                                                   {"inplace", true},
                                                   {"gpus", true},
                                                   {"num_threads_per_block", false},
                                                   {"use_double_scratch_buffer", false},
                                                   {"min_message_size", false},
                                                   {"max_message_size", false},
                                                   {"buffer_alignment", false},
                                                   {"reuse_resources", false},
                                                   {"dynamic", false},
                                                   {"dynamic_parameters", false}}};
        std::array<Index, kKeys.size()> keys{};
        if (!fields(0, {}, kKeys, keys) || !read_header(keys[0], keys[1], keys[2], keys[3], plan))
            return false;
        plan.version = 2;
        // How threads and scratch are used does not change what moves; a plan that is filled in later does.
        bool dynamic = false;
        if (has(keys[11]) && !boolean(keys[11], {nullptr, "dynamic"}, dynamic)) return false;
        if (dynamic) return fail(keys[11], {nullptr, "dynamic"}, "is true: a template is no plan");
        if (!read_bytes(keys[7], keys[8], plan)) return false;
        return read_gpus(
            keys[4], [&](Index node, const JsonPath& at) { return read_resources(node, at, plan); },
            [&](Index node, const JsonPath& at) { return read_threadblocks(node, at, plan); });
    }

private:
    /// A peer's buffer that this gpu may touch.
    struct Remote {
        std::int32_t rank = 0;
        Buffer buffer = Buffer::input;
        bool access[2] = {false, false};  ///< by channel type
    };
    struct Group {
        Buffer buffer = Buffer::input;
        std::int32_t number = -1;  ///< in MscclppPlan::groups
    };
    /// What a threadblock's own numbers stand for.
    struct Scope {
        std::int32_t rank = 0;
        std::vector<std::int32_t> channels[3];  ///< by type: number on the gpu
        std::vector<std::int32_t> remote[2];    ///< by type: number among the gpu's remote buffers
    };

    static constexpr std::array<JsonField, 8> kGpuKeys{{{"id", true},
                                                        {"input_chunks", true},
                                                        {"output_chunks", true},
                                                        {"scratch_chunks", true},
                                                        {"threadblocks", true},
                                                        {"channels", true},
                                                        {"remote_buffers", true},
                                                        {"semaphores", false}}};

    bool read_resources(Index node, const JsonPath& path, MscclppPlan& plan) {
        std::array<Index, kGpuKeys.size()> keys{};
        if (!fields(node, path, kGpuKeys, keys) || !read_gpu(node, path, kGpuKeys, keys, plan)) return false;
        const auto owner = static_cast<std::int32_t>(path.index);
        remote_.emplace_back();
        groups_.emplace_back();
        const JsonPath channels{&path, "channels"};
        const JsonPath remotes{&path, "remote_buffers"};
        if (!list(keys[5], channels, "a list of channels", 1 << 16) ||
            !each(keys[5], channels,
                  [&](Index n, const JsonPath& at) { return read_channel(n, at, owner, plan); }) ||
            !list(keys[6], remotes, "a list of remote buffers", 1 << 16) ||
            !each(keys[6], remotes, [&](Index n, const JsonPath& at) { return read_remote(n, at, owner); }))
            return false;
        if (!has(keys[7])) return true;
        const JsonPath semaphores{&path, "semaphores"};
        std::int32_t number = 0;
        return list(keys[7], semaphores, "a list of semaphores", 1 << 16, [&](Index n, const JsonPath& at) {
            constexpr std::array<JsonField, 1> kKeys{{{"init_value", true}}};
            std::array<Index, 1> value{};
            std::int64_t initial = 0;
            if (!fields(n, at, kKeys, value) || !non_negative(value[0], {&at, "init_value"}, initial))
                return false;
            semaphore_counter(plan, owner, number++, initial);
            return true;
        });
    }

    bool read_channel(Index node, const JsonPath& path, std::int32_t owner, MscclppPlan& plan) {
        // "type" and "buff" are the older spellings.
        constexpr std::array<JsonField, 6> kKeys{{{"channel_type", false},
                                                  {"type", false},
                                                  {"connected_to", false},
                                                  {"buffer_type", false},
                                                  {"buff", false},
                                                  {"rank_groups", false}}};
        std::array<Index, kKeys.size()> keys{};
        ChannelType type = kMemory;
        if (!fields(node, path, kKeys, keys)) return false;
        if (has(keys[0]) == has(keys[1])) return fail(node, path, R"(needs "channel_type", once)");
        if (!channel_type(has(keys[0]) ? keys[0] : keys[1], {&path, has(keys[0]) ? "channel_type" : "type"},
                          type))
            return false;
        if (type != kSwitch) {
            if (!has(keys[2])) return fail(node, path, "lacks \"connected_to\"");
            return read_channels_to(keys[2], {&path, "connected_to"}, type, owner);
        }
        if (has(keys[3]) == has(keys[4])) return fail(node, path, R"(needs "buffer_type", once)");
        Group group;
        if (!buffer(has(keys[3]) ? keys[3] : keys[4], {&path, has(keys[3]) ? "buffer_type" : "buff"},
                    group.buffer))
            return false;
        if (!has(keys[5])) return fail(node, path, "lacks \"rank_groups\"");
        const JsonPath groups{&path, "rank_groups"};
        return list(keys[5], groups, "a list of groups", kMaxImportRanks, [&](Index n, const JsonPath& at) {
            group.number = static_cast<std::int32_t>(plan.groups.size());
            groups_.back().push_back(group);
            return read_group(n, at, plan);
        });
    }

    bool read_remote(Index node, const JsonPath& path, std::int32_t owner) {
        constexpr std::array<JsonField, 3> kKeys{
            {{"rank", true}, {"type", true}, {"access_channel_types", true}}};
        std::array<Index, kKeys.size()> keys{};
        Remote remote;
        if (!fields(node, path, kKeys, keys) || !rank(keys[0], {&path, "rank"}, remote.rank) ||
            !buffer(keys[1], {&path, "type"}, remote.buffer))
            return false;
        if (remote.rank == owner) return fail(keys[0], {&path, "rank"}, "is its own rank");
        const JsonPath types{&path, "access_channel_types"};
        if (!list(keys[2], types, "a list of channel types", 3) ||
            !each(keys[2], types, [&](Index n, const JsonPath& at) {
                ChannelType type = kMemory;
                if (!channel_type(n, at, type)) return false;
                if (type != kSwitch) remote.access[type] = true;
                return true;
            }))
            return false;
        remote_.back().push_back(remote);
        return true;
    }

    bool read_threadblocks(Index node, const JsonPath& path, MscclppPlan& plan) {
        std::array<Index, kGpuKeys.size()> keys{};
        if (!fields(node, path, kGpuKeys, keys)) return false;
        const auto owner = static_cast<std::int32_t>(path.index);
        const JsonPath blocks{&path, "threadblocks"};
        return list(keys[4], blocks, "a list of threadblocks", 4096,
                    [&](Index n, const JsonPath& at) { return read_threadblock(n, at, owner, plan); });
    }

    bool read_threadblock(Index node, const JsonPath& path, std::int32_t owner, MscclppPlan& plan) {
        constexpr std::array<JsonField, 4> kKeys{
            {{"id", true}, {"ops", true}, {"channels", false}, {"remote_buffer_refs", false}}};
        std::array<Index, kKeys.size()> keys{};
        Scope scope;
        scope.rank = owner;
        if (!fields(node, path, kKeys, keys) || !threadblock_id(keys[0], path)) return false;
        const auto me = static_cast<std::size_t>(owner);
        const JsonPath channels{&path, "channels"};
        if (has(keys[2]) && (!list(keys[2], channels, "a list of channels", 1 << 16) ||
                             !each(keys[2], channels, [&](Index n, const JsonPath& at) {
                                 return read_scope(n, at, owner, "channel_type", "channel_ids",
                                                   scope.channels, [&](ChannelType type) {
                                                       return type == kSwitch ? groups_[me].size()
                                                                              : channels_[type][me].size();
                                                   });
                             })))
            return false;
        const JsonPath remotes{&path, "remote_buffer_refs"};
        if (has(keys[3]) && (!list(keys[3], remotes, "a list of remote buffers", 1 << 16) ||
                             !each(keys[3], remotes, [&](Index n, const JsonPath& at) {
                                 return read_scope(n, at, owner, "access_channel_type", "remote_buffer_ids",
                                                   scope.remote, [&](ChannelType type) {
                                                       return type == kSwitch ? 0 : remote_[me].size();
                                                   });
                             })))
            return false;
        auto& ops = plan.gpus[me].threadblocks.emplace_back();
        const JsonPath list_path{&path, "ops"};
        return list(keys[1], list_path, "a list of ops", static_cast<std::int32_t>(kMaxSteps),
                    [&](Index n, const JsonPath& at) { return read_op(n, at, scope, plan, ops, false); });
    }

    /// {"channel_type": …, "channel_ids": […]}: what the threadblock's numbers of this type stand for.
    template <typename Lists, typename Count>
    bool read_scope(Index node, const JsonPath& path, std::int32_t owner, std::string_view type_key,
                    std::string_view ids_key, Lists& lists, Count count) {
        // Switch channels say once more which buffer they are for; "buff" is the older spelling.
        const std::array<JsonField, 4> known{
            {{type_key, true}, {ids_key, true}, {"buffer_type", false}, {"buff", false}}};
        std::array<Index, 4> keys{};
        ChannelType type = kMemory;
        if (!fields(node, path, known, keys) || !channel_type(keys[0], {&path, type_key}, type)) return false;
        std::optional<Buffer> said;
        for (const std::size_t k : {2, 3}) {
            Buffer of = Buffer::input;
            if (!has(keys[k])) continue;
            if (!buffer(keys[k], {&path, known[k].key}, of)) return false;
            said = of;
        }
        const auto highest = static_cast<std::int64_t>(count(type)) - 1;
        if (document_.type(keys[1]) == Type::array && document_.size(keys[1]) == 0) return true;
        if (highest < 0)
            return fail(keys[1], {&path, ids_key}, "names something, and the gpu has none of that type");
        const std::size_t before = lists[type].size();
        if (!numbers(keys[1], {&path, ids_key}, highest, lists[type])) return false;
        const auto& groups = groups_[static_cast<std::size_t>(owner)];
        for (std::size_t i = before; said && type == kSwitch && i < lists[type].size(); ++i) {
            if (groups[static_cast<std::size_t>(lists[type][i])].buffer != *said)
                return fail(keys[1], {&path, ids_key},
                            fmt::format("names switch channel {}, which is for another buffer than {}",
                                        lists[type][i], name_of(*said)));
        }
        return true;
    }

    bool read_op(Index node, const JsonPath& path, const Scope& scope, MscclppPlan& plan,
                 std::vector<MscclppOp>& ops, bool nested) {
        constexpr std::array<JsonField, 18> kKeys{{{"name", true},
                                                   {"channel_type", false},
                                                   {"channel_ids", false},
                                                   {"src_buff", false},
                                                   {"dst_buff", false},
                                                   {"reduce_op", false},
                                                   {"tbg_info", false},
                                                   {"barrier_id", false},
                                                   {"num_threadblocks", false},
                                                   {"semaphore_ids", false},
                                                   {"iter_context", false},
                                                   {"ops", false},
                                                   {"deps", false},
                                                   {"src_chunk", false},
                                                   {"dst_chunk", false},
                                                   {"buffer_type", false},
                                                   {"buffer_offset", false},
                                                   {"size", false}}};
        std::array<Index, kKeys.size()> keys{};
        std::string_view name;
        if (!fields(node, path, kKeys, keys) || !string(keys[0], {&path, "name"}, name) ||
            !count_op(node, path))
            return false;
        if (name == "pipeline")
            return read_pipeline(node, path, keys[10], keys[11], scope, plan, ops, nested);
        MscclppOp op;
        op.verb = mscclpp_verb(name);
        if (op.verb == nullptr) return fail(keys[0], {&path, "name"}, unknown_name(name));
        op.origin = origin(node, path, op.verb->name);
        ChannelType type = kMemory;
        if (!belongs(kKeys, keys, path, *op.verb)) return false;
        if (!op_channel_type(keys[1], {&path, "channel_type"}, type) ||
            !read_flat(node, path, keys, scope, op) ||
            !read_refs(keys[3], {&path, "src_buff"}, scope, type, op.src) ||
            !read_refs(keys[4], {&path, "dst_buff"}, scope, type, op.dst) ||
            !read_counters(node, keys[2], path, scope, type, plan, op) || !read_reduce(keys[5], path, op) ||
            !read_slice(keys[6], path, op) ||
            (op.verb->name == "barrier" &&
             !read_barrier(node, path, keys[7], keys[8], "num_threadblocks", op)) ||
            !read_semaphores(node, keys[9], path, scope, plan, op))
            return false;
        if (name == "cpkt" && op.src.size() == 1 && op.dst.size() == 1 &&
            op.src[0].buffer == Buffer::scratch && op.dst[0].buffer != Buffer::scratch &&
            op.dst[0].rank == scope.rank) {
            op.verb = mscclpp_verb("upkt");
            if (!warned_)
                plan.warnings.emplace_back(
                    "cpkt from scratch to another buffer is taken as upkt, which it was called early on");
            warned_ = true;
        }
        ops.push_back(std::move(op));
        return true;
    }

    /// Whether the op may have each key that it has: one that its verb does not look at may not stand there, as
    /// if it meant something.
    template <typename Fields, typename Keys>
    bool belongs(const Fields& known, const Keys& keys, const JsonPath& path, const MscclppVerb& verb) {
        using enum MscclppData;
        const bool group = verb.data == multicast_load || verb.data == multicast_store;
        const bool reduces =
            verb.data == reduce || verb.data == multicast_reduce || verb.data == multicast_load;
        const bool barrier = verb.name == "barrier";
        const auto flat = [&](std::size_t k) {
            return k == 13 ? verb.data == multicast_store : k == 14 ? verb.data == multicast_load : group;
        };
        for (std::size_t k = 3; k < keys.size(); ++k) {
            const bool may = k == 3 || k == 4   ? verb.data != none
                             : k == 5           ? reduces
                             : k == 6           ? true
                             : k == 7 || k == 8 ? barrier
                             : k == 9           ? verb.name.starts_with("sem_")
                             : k < 13           ? false
                                                : flat(k);
            if (!has(keys[k]) || may) continue;
            if (k == 12 && document_.type(keys[k]) == Type::array && document_.size(keys[k]) == 0) continue;
            if (k == 5 && has(keys[13]))
                return fail(keys[k], path,
                            "has \"src_chunk\" beside \"reduce_op\", of a dialect before version 2: a store "
                            "reduces nothing");
            return fail(keys[k], path,
                        fmt::format("has \"{}\", which means nothing to {}", known[k].key, verb.name));
        }
        return true;
    }

    /// A group load or store as the DSL writes it: "buffer_type", "buffer_offset" and "size" are the part of the
    /// group's buffer that "channel_ids" names, "dst_chunk" or "src_chunk" the rank's own.
    template <typename Keys>
    bool read_flat(Index node, const JsonPath& path, const Keys& keys, const Scope& scope, MscclppOp& op) {
        const bool loads = has(keys[14]);
        if (!loads && !has(keys[13]))
            return !(has(keys[15]) || has(keys[16]) || has(keys[17])) ||
                   fail(node, path,
                        R"(has an offset of a group's buffer, and no "src_chunk" or "dst_chunk")");
        if (has(keys[3]) || has(keys[4]))
            return fail(node, path, "names its buffers twice, in chunks and in lists of buffers");
        if (!has(keys[2]) || !has(keys[15]) || !has(keys[16]) || !has(keys[17]))
            return fail(node, path, R"(needs "channel_ids", "buffer_type", "buffer_offset" and "size")");
        const JsonPath ids{&path, "channel_ids"};
        std::vector<std::int32_t> channels;
        if (!numbers(keys[2], ids, (1 << 16) - 1, channels)) return false;
        const std::vector<std::int32_t>& mine = scope.channels[kSwitch];
        if (channels.size() != 1 || static_cast<std::size_t>(channels[0]) >= mine.size())
            return fail(keys[2], ids,
                        fmt::format("names no one of the threadblock's {} switch channels", mine.size()));
        const Group& group = groups_[static_cast<std::size_t>(scope.rank)]
                                    [static_cast<std::size_t>(mine[static_cast<std::size_t>(channels[0])])];
        Buffer said = Buffer::input;
        MscclppRef theirs;
        theirs.node = node;
        theirs.rank = scope.rank;
        theirs.buffer = group.buffer;
        theirs.group = group.number;
        if (!buffer(keys[15], {&path, "buffer_type"}, said) ||
            !non_negative(keys[16], {&path, "buffer_offset"}, theirs.index) ||
            !integer(keys[17], {&path, "size"}, 1, kMaxChunks, theirs.count))
            return false;
        if (said != group.buffer)
            return fail(keys[15], {&path, "buffer_type"}, "is not the buffer that the switch channel is for");
        MscclppRef own;
        if (!read_ref(keys[loads ? 14 : 13], {&path, loads ? "dst_chunk" : "src_chunk"}, scope, kSwitch, own))
            return false;
        (loads ? op.src : op.dst).push_back(theirs);
        (loads ? op.dst : op.src).push_back(own);
        return true;
    }

    static std::string unknown_name(std::string_view name) {
        constexpr std::array<std::string_view, 12> kDialect{"rrc",   "rrcs",          "rs",   "rspkt",
                                                            "rpkt",  "tpkt",          "rrs",  "rsignal",
                                                            "rwait", "pipeline_loop", "rlxs", "rlxw"};
        if (std::find(kDialect.begin(), kDialect.end(), name) != kDialect.end()) {
            return fmt::format(
                "is \"{}\", of a dialect between versions 1 and 2, in which op names mean other things",
                name);
        }
        return fmt::format("is \"{}\", which is no op of version 2", escaped(name));
    }

    /// The ops inside run for one unit of data after another. With chunks of one unit, which this takes for
    /// granted, they run once.
    bool read_pipeline(Index node, const JsonPath& path, Index context, Index inner, const Scope& scope,
                       MscclppPlan& plan, std::vector<MscclppOp>& ops, bool nested) {
        if (nested) return fail(node, path, "is a pipeline inside a pipeline");
        if (!has(context) || !has(inner)) return fail(node, path, R"(needs "iter_context" and "ops")");
        constexpr std::array<JsonField, 2> kKeys{{{"unit_size", true}, {"num_chunks", true}}};
        std::array<Index, 2> keys{};
        const JsonPath at{&path, "iter_context"};
        std::int64_t unit = 0;
        std::int64_t chunks = 0;
        if (!fields(context, at, kKeys, keys) ||
            !integer(keys[0], {&at, "unit_size"}, 1, std::int64_t{1} << 40, unit) ||
            !integer(keys[1], {&at, "num_chunks"}, 1, kMaxChunks, chunks))
            return false;
        if (!pipelined_)
            plan.warnings.emplace_back("a pipeline is taken to run once, as it does for chunks of one unit");
        pipelined_ = true;
        const JsonPath inside{&path, "ops"};
        return list(inner, inside, "a list of ops", static_cast<std::int32_t>(kMaxSteps),
                    [&](Index n, const JsonPath& p) { return read_op(n, p, scope, plan, ops, true); });
    }

    bool read_refs(Index node, const JsonPath& path, const Scope& scope, ChannelType type,
                   std::vector<MscclppRef>& refs) {
        if (!has(node)) return true;
        return list(node, path, "a list of buffers", 4096, [&](Index n, const JsonPath& at) {
            return read_ref(n, at, scope, type, refs.emplace_back());
        });
    }

    bool read_ref(Index node, const JsonPath& path, const Scope& scope, ChannelType type, MscclppRef& ref) {
        constexpr std::array<JsonField, 6> kKeys{{{"index", true},
                                                  {"size", true},
                                                  {"type", false},
                                                  {"buffer_id", false},
                                                  {"switch_channel_id", false},
                                                  {"rank", false}}};
        std::array<Index, kKeys.size()> keys{};
        ref.node = node;
        ref.rank = scope.rank;
        if (!fields(node, path, kKeys, keys) || !non_negative(keys[0], {&path, "index"}, ref.index) ||
            !integer(keys[1], {&path, "size"}, 1, kMaxChunks, ref.count))
            return false;
        if ((has(keys[2]) ? 1 : 0) + (has(keys[3]) ? 1 : 0) + (has(keys[4]) ? 1 : 0) != 1)
            return fail(node, path, R"(needs one of "type", "buffer_id" and "switch_channel_id")");
        if (!resolve(keys, path, scope, type, ref)) return false;
        std::int32_t said = ref.rank;
        if (has(keys[5]) && !rank(keys[5], {&path, "rank"}, said)) return false;
        return said == ref.rank ||
               fail(keys[5], {&path, "rank"},
                    fmt::format("is {}, and the buffer is one of rank {}", said, ref.rank));
    }

    /// Which buffer of which rank, or of which group's ranks, a reference names.
    template <typename Keys>
    bool resolve(const Keys& keys, const JsonPath& path, const Scope& scope, ChannelType type,
                 MscclppRef& ref) {
        if (has(keys[2])) return buffer(keys[2], {&path, "type"}, ref.buffer);
        const auto me = static_cast<std::size_t>(scope.rank);
        std::int32_t number = 0;
        if (has(keys[4])) {
            const JsonPath at{&path, "switch_channel_id"};
            if (!local_number(keys[4], at, scope.channels[kSwitch], "switch channels", number)) return false;
            const Group& group = groups_[me][static_cast<std::size_t>(number)];
            ref.buffer = group.buffer;
            ref.group = group.number;
            return true;
        }
        const JsonPath at{&path, "buffer_id"};
        if (type == kSwitch)
            return fail(keys[3], at, "names a remote buffer, which a switch channel does not reach");
        if (!local_number(keys[3], at, scope.remote[type], "remote buffers of its channel type", number))
            return false;
        const Remote& remote = remote_[me][static_cast<std::size_t>(number)];
        if (!remote.access[type])
            return fail(keys[3], at, "names a remote buffer that this channel type may not access");
        ref.rank = remote.rank;
        ref.buffer = remote.buffer;
        return true;
    }

    /// The gpu's number behind a threadblock's own.
    bool local_number(Index node, const JsonPath& path, const std::vector<std::int32_t>& numbers,
                      std::string_view what, std::int32_t& out) {
        std::int64_t local = 0;
        if (!non_negative(node, path, local)) return false;
        if (static_cast<std::size_t>(local) >= numbers.size())
            return fail(node, path,
                        fmt::format("is {}; the threadblock has {} {}", local, numbers.size(), what));
        out = numbers[static_cast<std::size_t>(local)];
        return true;
    }

    bool read_counters(Index node, Index ids, const JsonPath& path, const Scope& scope, ChannelType type,
                       MscclppPlan& plan, MscclppOp& op) {
        const bool used = op.verb->signals || op.verb->waits;
        if (used && !has(ids)) return fail(node, path, "lacks \"channel_ids\"");
        const JsonPath at{&path, "channel_ids"};
        if (!used && (type == kSwitch || !has(ids)))
            return !has(ids) || is(ids, at, Type::array, "a list of numbers");
        if (!used) return leads_to_buffers(ids, at, scope, type, op);
        if (type == kSwitch) return fail(ids, at, "names switch channels, which carry no signals");
        return list(ids, at, "a list of channels", 1 << 12, [&](Index n, const JsonPath& p) {
            std::int32_t number = 0;
            if (!local_number(n, p, scope.channels[type], "channels of this type", number)) return false;
            const auto channel = static_cast<std::size_t>(number);
            op.counters.push_back(op.verb->waits ? wait_counter(plan, scope.rank, type, channel)
                                                 : signal_counter(plan, scope.rank, type, channel));
            return true;
        });
    }

    /// Whether the channels of an op that moves data lead to ranks whose buffers it names.
    bool leads_to_buffers(Index ids, const JsonPath& path, const Scope& scope, ChannelType type,
                          const MscclppOp& op) {
        const auto is_of = [](std::int32_t peer) {
            return [peer](const MscclppRef& ref) { return ref.rank == peer; };
        };
        return list(ids, path, "a list of channels", 1 << 12, [&](Index n, const JsonPath& at) {
            std::int32_t number = 0;
            if (!local_number(n, at, scope.channels[type], "channels of this type", number)) return false;
            if (op.src.empty() && op.dst.empty()) return true;  // it leads to none, as a flush
            const std::int32_t peer =
                channels_[type][static_cast<std::size_t>(scope.rank)][static_cast<std::size_t>(number)].peer;
            return std::ranges::any_of(op.src, is_of(peer)) || std::ranges::any_of(op.dst, is_of(peer)) ||
                   fail(n, at,
                        fmt::format("leads to rank {}, and the op names no buffer of that rank", peer));
        });
    }

    bool read_reduce(Index node, const JsonPath& path, MscclppOp& op) {
        if (!has(node)) return true;
        std::string_view name;
        if (!string(node, {&path, "reduce_op"}, name)) return false;
        if (name == "max") op.reduces_max = true;
        return name == "sum" || name == "max" ||
               fail(node, {&path, "reduce_op"},
                    "is " + document_.describe(node) + "; a plan reduces by sum or max");
    }

    bool read_slice(Index node, const JsonPath& path, MscclppOp& op) {
        if (!has(node)) return true;
        constexpr std::array<JsonField, 2> kKeys{{{"tb_id", true}, {"tbg_size", true}}};
        std::array<Index, 2> keys{};
        const JsonPath at{&path, "tbg_info"};
        return fields(node, at, kKeys, keys) && integer(keys[1], {&at, "tbg_size"}, 1, 64, op.slice.count) &&
               integer(keys[0], {&at, "tb_id"}, 0, op.slice.count - 1, op.slice.index);
    }

    bool read_semaphores(Index node, Index ids, const JsonPath& path, const Scope& scope, MscclppPlan& plan,
                         MscclppOp& op) {
        const bool acquires = op.verb->name == "sem_acquire";
        const bool releases = op.verb->name == "sem_release";
        if (!acquires && !releases) return true;
        if (!has(ids)) return fail(node, path, "lacks \"semaphore_ids\"");
        const JsonPath at{&path, "semaphore_ids"};
        std::vector<std::int32_t> numbers_of;
        if (!numbers(ids, at, (1 << 16) - 1, numbers_of)) return false;
        for (const std::int32_t id : numbers_of) {
            const auto before = plan.counters.size();
            const std::int32_t counter = semaphore_counter(plan, scope.rank, id, 0);
            if (plan.counters.size() != before)
                return fail(ids, at, fmt::format("names semaphore {}, which the gpu does not list", id));
            (acquires ? op.acquired : op.released).push_back(counter);
        }
        return true;
    }

    std::vector<std::vector<Remote>> remote_;  ///< by rank
    std::vector<std::vector<Group>> groups_;   ///< by rank: its multicast channels
    bool warned_ = false;
    bool pipelined_ = false;
};

}  // namespace

Result<MscclppPlan> read_mscclpp_v2(const JsonDocument& document, std::string_view text,
                                    const std::string& file_name) {
    Reader reader(document, text, file_name);
    MscclppPlan plan;
    if (!reader.read(plan)) return reader.error();
    return plan;
}

}  // namespace syncopate::ingest
