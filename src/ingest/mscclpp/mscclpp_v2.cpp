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
    using MscclppReader::error;

    Reader(const JsonDocument& document, std::string_view text, const std::string& file_name)
        : MscclppReader(document, text, file_name, {"memory", "port", "switch"}) {}

    bool read(MscclppPlan& plan) {
        const JsonPath root;
        // How threads and scratch are used does not change what moves; a plan that is filled in later does.
        const auto dynamic = [this](JsonAt at) {
            bool is_dynamic = false;
            return flag(is_dynamic)(at) && (!is_dynamic || fail(at, "is true: a template is no plan"));
        };
        const auto gpu = [&](JsonAt at, std::int32_t owner) { return read_gpu(at, owner, plan); };
        const auto block = [&](JsonAt at, std::int32_t owner) { return read_threadblock(at, owner, plan); };
        plan.version = 2;
        return object({0, &root}, optional("name", label(plan.name)),
                      required("collective", label(plan.collective)),
                      required("protocol", protocol(plan.protocol)), required("inplace", flag(plan.in_place)),
                      optional("dynamic", dynamic), optional("min_message_size", bytes("from", plan.bytes)),
                      optional("max_message_size", bytes("to", plan.bytes)),
                      required("gpus", gpus(gpu, block)), optional("num_threads_per_block", ignored),
                      optional("use_double_scratch_buffer", ignored), optional("buffer_alignment", ignored),
                      optional("reuse_resources", ignored), optional("dynamic_parameters", ignored));
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

    bool read_gpu(JsonAt at, std::int32_t owner, MscclppPlan& plan) {
        remote_.emplace_back();
        groups_.emplace_back();
        MscclppGpu& gpu = plan.gpus.emplace_back();
        gpu.node = at.node;
        std::int32_t semaphores = 0;
        const auto channel = [&](JsonAt inner) { return read_channel(inner, owner, plan); };
        const auto remote = [&](JsonAt inner) { return read_remote(inner, owner); };
        const auto semaphore = [&](JsonAt inner) {
            std::int64_t initial = 0;
            if (!object(inner, required("init_value", chunks(initial)))) return false;
            semaphore_counter(plan, owner, semaphores++, initial);
            return true;
        };
        return object(at, required("id", id(at)), required("input_chunks", chunks(gpu.input)),
                      required("output_chunks", chunks(gpu.output)),
                      required("scratch_chunks", chunks(gpu.scratch)),
                      required("channels", elements("a list of channels", 1 << 16, channel)),
                      required("remote_buffers", elements("a list of remote buffers", 1 << 16, remote)),
                      optional("semaphores", elements("a list of semaphores", 1 << 16, semaphore)),
                      required("threadblocks", [this](JsonAt inner) { return threadblocks_at(inner); }));
    }

    bool read_channel(JsonAt at, std::int32_t owner, MscclppPlan& plan) {
        // "type" and "buff" are the older spellings.
        ChannelType type = kMemory;
        Group group;
        std::int32_t types = 0, buffers = 0;
        bool connects = false, groups = false;
        const auto type_of = [&](JsonAt inner) { return ++types > 0 && channel_type(type)(inner); };
        const auto buffer_of = [&](JsonAt inner) { return ++buffers > 0 && buffer(group.buffer)(inner); };
        const auto connected = [&](JsonAt inner) {
            connects = true;
            return type == kSwitch || read_channels_to(inner, type, owner);
        };
        const auto rank_groups = [&](JsonAt inner) {
            groups = true;
            return type != kSwitch || elements("a list of groups", kMaxImportRanks, [&](JsonAt one) {
                       group.number = static_cast<std::int32_t>(plan.groups.size());
                       groups_.back().push_back(group);
                       return read_group(one, plan);
                   })(inner);
        };
        if (!object(at, optional("channel_type", type_of), optional("type", type_of),
                    optional("buffer_type", buffer_of), optional("buff", buffer_of),
                    optional("connected_to", connected), optional("rank_groups", rank_groups)))
            return false;
        if (types != 1) return fail(at, R"(needs "channel_type", once)");
        if (type != kSwitch) return connects || fail(at, "lacks \"connected_to\"");
        if (buffers != 1) return fail(at, R"(needs "buffer_type", once)");
        return groups || fail(at, "lacks \"rank_groups\"");
    }

    bool read_remote(JsonAt at, std::int32_t owner) {
        Remote& remote = remote_.back().emplace_back();
        const auto rank_of = [&](JsonAt inner) {
            return rank(remote.rank)(inner) && (remote.rank != owner || fail(inner, "is its own rank"));
        };
        const auto access = [&](JsonAt inner) {
            ChannelType type = kMemory;
            if (!channel_type(type)(inner)) return false;
            if (type != kSwitch) remote.access[type] = true;
            return true;
        };
        return object(at, required("rank", rank_of), required("type", buffer(remote.buffer)),
                      required("access_channel_types", elements("a list of channel types", 3, access)));
    }

    bool read_threadblock(JsonAt at, std::int32_t owner, MscclppPlan& plan) {
        Scope scope;
        scope.rank = owner;
        const auto me = static_cast<std::size_t>(owner);
        auto& ops = plan.gpus[me].threadblocks.emplace_back();
        const auto channel = [&](JsonAt inner) {
            return read_scope(inner, owner, "channel_type", "channel_ids", scope.channels,
                              [&](ChannelType type) {
                                  return type == kSwitch ? groups_[me].size() : channels_[type][me].size();
                              });
        };
        const auto remote = [&](JsonAt inner) {
            return read_scope(inner, owner, "access_channel_type", "remote_buffer_ids", scope.remote,
                              [&](ChannelType type) { return type == kSwitch ? 0 : remote_[me].size(); });
        };
        const auto op = [&](JsonAt inner) {
            return read_op(inner.node, *inner.path, scope, plan, ops, false);
        };
        return object(at, required("id", id(at)),
                      optional("channels", elements("a list of channels", 1 << 16, channel)),
                      optional("remote_buffer_refs", elements("a list of remote buffers", 1 << 16, remote)),
                      required("ops", elements("a list of ops", static_cast<std::int32_t>(kMaxSteps), op)));
    }

    /// {"channel_type": …, "channel_ids": […]}: what the threadblock's numbers of this type stand for.
    template <typename Lists, typename Count>
    bool read_scope(JsonAt at, std::int32_t owner, std::string_view type_key, std::string_view ids_key,
                    Lists& lists, Count count) {
        // Switch channels say once more which buffer they are for; "buff" is the older spelling.
        ChannelType type = kMemory;
        std::optional<Buffer> said;
        const auto buffer_of = [&](JsonAt inner) { return buffer(said.emplace())(inner); };
        const auto ids = [&](JsonAt inner) {
            const auto highest = static_cast<std::int64_t>(count(type)) - 1;
            if (document_.type(inner.node) == Type::array && document_.size(inner.node) == 0) return true;
            if (highest < 0) return fail(inner, "names something, and the gpu has none of that type");
            const std::size_t before = lists[type].size();
            if (!numbers(highest, lists[type])(inner)) return false;
            const auto& groups = groups_[static_cast<std::size_t>(owner)];
            for (std::size_t i = before; said && type == kSwitch && i < lists[type].size(); ++i) {
                if (groups[static_cast<std::size_t>(lists[type][i])].buffer != *said)
                    return fail(inner,
                                fmt::format("names switch channel {}, which is for another buffer than {}",
                                            lists[type][i], name_of(*said)));
            }
            return true;
        };
        return object(at, required(type_key, channel_type(type)), optional("buffer_type", buffer_of),
                      optional("buff", buffer_of), required(ids_key, ids));
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
            !count_op({node, &path}))
            return false;
        if (name == "pipeline")
            return read_pipeline(node, path, keys[10], keys[11], scope, plan, ops, nested);
        MscclppOp op;
        op.verb = mscclpp_verb(name);
        if (op.verb == nullptr) return fail(keys[0], {&path, "name"}, unknown_name(name));
        op.origin = origin({node, &path}, op.verb->name);
        ChannelType type = kMemory;
        if (!belongs(kKeys, keys, path, *op.verb)) return false;
        if ((has(keys[1]) && !by(keys[1], {&path, "channel_type"}, op_channel_type(type))) ||
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
        if (!by(keys[2], ids, numbers((1 << 16) - 1, channels))) return false;
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
        if (!by(keys[15], {&path, "buffer_type"}, buffer(said)) ||
            !by(keys[16], {&path, "buffer_offset"}, chunks(theirs.index)) ||
            !by(keys[17], {&path, "size"}, integer(theirs.count, 1, kMaxChunks)))
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
        std::int64_t unit = 0;
        std::int64_t count = 0;
        const auto walk = [&](JsonAt at) {
            return object(at, required("unit_size", integer(unit, 1, std::int64_t{1} << 40)),
                          required("num_chunks", integer(count, 1, kMaxChunks)));
        };
        if (!by(context, {&path, "iter_context"}, walk)) return false;
        if (!pipelined_)
            plan.warnings.emplace_back("a pipeline is taken to run once, as it does for chunks of one unit");
        pipelined_ = true;
        const auto op = [&](JsonAt at) { return read_op(at.node, *at.path, scope, plan, ops, true); };
        return by(inner, {&path, "ops"}, elements("a list of ops", static_cast<std::int32_t>(kMaxSteps), op));
    }

    bool read_refs(Index node, const JsonPath& path, const Scope& scope, ChannelType type,
                   std::vector<MscclppRef>& refs) {
        if (!has(node)) return true;
        return by(node, path, elements("a list of buffers", 4096, [&](JsonAt at) {
                      return read_ref(at.node, *at.path, scope, type, refs.emplace_back());
                  }));
    }

    bool read_ref(Index node, const JsonPath& path, const Scope& scope, ChannelType type, MscclppRef& ref) {
        ref.node = node;
        ref.rank = scope.rank;
        std::int32_t names = 0;
        const auto one_of = [&](auto walk) {
            return [&names, walk](JsonAt at) { return ++names > 1 || walk(at); };
        };
        const auto of_rank = [&](JsonAt at) {
            std::int32_t said = ref.rank;
            return rank(said)(at) &&
                   (said == ref.rank ||
                    fail(at, fmt::format("is {}, and the buffer is one of rank {}", said, ref.rank)));
        };
        const auto switched = [&](JsonAt at) { return read_switched(at, scope, ref); };
        const auto remote = [&](JsonAt at) { return read_remote_ref(at, scope, type, ref); };
        return object({node, &path}, required("index", chunks(ref.index)),
                      required("size", integer(ref.count, 1, kMaxChunks)),
                      optional("type", one_of(buffer(ref.buffer))), optional("buffer_id", one_of(remote)),
                      optional("switch_channel_id", one_of(switched)), optional("rank", of_rank)) &&
               (names == 1 ||
                fail(node, path, R"(needs one of "type", "buffer_id" and "switch_channel_id")"));
    }

    /// The buffer of a group's ranks.
    bool read_switched(JsonAt at, const Scope& scope, MscclppRef& ref) {
        std::int32_t number = 0;
        if (!local_number(at, scope.channels[kSwitch], "switch channels", number)) return false;
        const Group& group = groups_[static_cast<std::size_t>(scope.rank)][static_cast<std::size_t>(number)];
        ref.buffer = group.buffer;
        ref.group = group.number;
        return true;
    }
    bool read_remote_ref(JsonAt at, const Scope& scope, ChannelType type, MscclppRef& ref) {
        std::int32_t number = 0;
        if (type == kSwitch) return fail(at, "names a remote buffer, which a switch channel does not reach");
        if (!local_number(at, scope.remote[type], "remote buffers of its channel type", number)) return false;
        const Remote& remote =
            remote_[static_cast<std::size_t>(scope.rank)][static_cast<std::size_t>(number)];
        if (!remote.access[type])
            return fail(at, "names a remote buffer that this channel type may not access");
        ref.rank = remote.rank;
        ref.buffer = remote.buffer;
        return true;
    }

    /// The gpu's number behind a threadblock's own.
    bool local_number(JsonAt at, const std::vector<std::int32_t>& numbers, std::string_view what,
                      std::int32_t& out) {
        std::int64_t local = 0;
        if (!chunks(local)(at)) return false;
        if (static_cast<std::size_t>(local) >= numbers.size())
            return fail(at, fmt::format("is {}; the threadblock has {} {}", local, numbers.size(), what));
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
        return by(ids, at, elements("a list of channels", 1 << 12, [&](JsonAt one) {
                      std::int32_t number = 0;
                      if (!local_number(one, scope.channels[type], "channels of this type", number))
                          return false;
                      const auto channel = static_cast<std::size_t>(number);
                      op.counters.push_back(op.verb->waits ? wait_counter(plan, scope.rank, type, channel)
                                                           : signal_counter(plan, scope.rank, type, channel));
                      return true;
                  }));
    }

    /// Whether the channels of an op that moves data lead to ranks whose buffers it names.
    bool leads_to_buffers(Index ids, const JsonPath& path, const Scope& scope, ChannelType type,
                          const MscclppOp& op) {
        const auto is_of = [](std::int32_t peer) {
            return [peer](const MscclppRef& ref) { return ref.rank == peer; };
        };
        return by(
            ids, path, elements("a list of channels", 1 << 12, [&](JsonAt at) {
                std::int32_t number = 0;
                if (!local_number(at, scope.channels[type], "channels of this type", number)) return false;
                if (op.src.empty() && op.dst.empty()) return true;  // it leads to none, as a flush
                const std::int32_t peer =
                    channels_[type][static_cast<std::size_t>(scope.rank)][static_cast<std::size_t>(number)]
                        .peer;
                return std::ranges::any_of(op.src, is_of(peer)) || std::ranges::any_of(op.dst, is_of(peer)) ||
                       fail(at,
                            fmt::format("leads to rank {}, and the op names no buffer of that rank", peer));
            }));
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
        const auto walk = [&](JsonAt at) {
            return object(at, required("tbg_size", integer(op.slice.count, 1, 64)),
                          required("tb_id", [&](JsonAt id) {
                              return integer(op.slice.index, 0, op.slice.count - 1)(id);
                          }));
        };
        return by(node, {&path, "tbg_info"}, walk);
    }

    bool read_semaphores(Index node, Index ids, const JsonPath& path, const Scope& scope, MscclppPlan& plan,
                         MscclppOp& op) {
        const bool acquires = op.verb->name == "sem_acquire";
        const bool releases = op.verb->name == "sem_release";
        if (!acquires && !releases) return true;
        if (!has(ids)) return fail(node, path, "lacks \"semaphore_ids\"");
        const JsonPath at{&path, "semaphore_ids"};
        std::vector<std::int32_t> numbers_of;
        if (!by(ids, at, numbers((1 << 16) - 1, numbers_of))) return false;
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
