// An MSCCL++ execution plan with all its indirections resolved: what versions 1 and 2 of the format have in
// common.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include "ingest/steps/buffers.hpp"
#include "syncopate/json_table.hpp"
#include "syncopate/names.hpp"
#include "syncopate/result.hpp"

namespace syncopate::ingest {

/// What a data op does. A pairwise op takes dst[k] = src[k], or the one src there is for every k. A reducing
/// one takes dst[0] = src[0] + src[1] + …, then each further dst = dst[0]. A multicast one reduces what the ranks of
/// a group have, into each of them or (load) into its own rank; or it stores to each of them.
enum class MscclppData : std::uint8_t {
    none,
    pairwise,
    reduce,
    multicast_reduce,
    multicast_load,
    multicast_store
};

/// An op by its name, as version 2 spells it.
struct MscclppVerb {
    std::string_view name;
    MscclppData data = MscclppData::none;
    bool packets_read = false;     ///< waits for each source (reduce: each but the first) to come as packets
    bool packets_written = false;  ///< writes packets (reduce: into each destination but the first)
    bool signals = false;
    bool waits = false;
    bool relaxed = false;     ///< the signal or wait orders, and publishes nothing
    bool remote_src = false;  ///< may read other ranks (reduce: all but the first source)
    bool remote_dst = false;  ///< may write other ranks (reduce: all but the first destination)
};

/// The verb of this name in version 2, or null.
[[nodiscard]] const MscclppVerb* mscclpp_verb(std::string_view name);

/// Chunks of a buffer of one rank, or of each rank of a multicast group.
struct MscclppRef {
    std::int32_t rank = 0;
    Buffer buffer = Buffer::input;
    std::int64_t index = 0;
    std::int64_t count = 0;
    std::int32_t group = -1;  ///< multicast: one of MscclppPlan::groups
    JsonDocument::Index node = 0;
};

/// One slice of an op that several threadblocks share.
struct MscclppSlice {
    std::int32_t index = 0;
    std::int32_t count = 1;
};

struct MscclppOp {
    const MscclppVerb* verb = nullptr;  ///< null: only barrier or semaphores
    std::vector<MscclppRef> src, dst;
    std::vector<std::int32_t> counters;  ///< signalled or awaited (MscclppPlan::counters)
    bool reduces_max = false;
    MscclppSlice slice;
    std::int32_t barrier = -1;  ///< id within the rank; -1: none
    std::int32_t barrier_parties = 0;
    std::vector<std::int32_t> acquired;  ///< semaphores, as counters
    std::vector<std::int32_t> released;
    Origin origin;
};

/// Something that is added to and taken from: one direction of a channel, or a semaphore.
struct MscclppCounter {
    std::string what;  ///< "memory channel 0 from rank 2", "semaphore 1"
    std::int64_t initial = 0;
};

struct MscclppGpu {
    std::int64_t input = 0;  ///< chunks
    std::int64_t output = 0;
    std::int64_t scratch = 0;
    std::vector<std::vector<MscclppOp>> threadblocks;
    JsonDocument::Index node = 0;
};

struct MscclppPlan {
    std::int32_t version = 0;
    std::string name;
    std::string collective;
    std::string protocol;
    std::string bytes;  ///< for messages of which sizes: "from 0 to 1048576"; empty: not said
    bool in_place = false;
    std::vector<MscclppGpu> gpus;
    std::vector<MscclppCounter> counters;
    std::vector<std::vector<std::int32_t>> groups;  ///< of multicast channels: their ranks
    std::vector<std::string> warnings;
};

/// What both versions' readers use: all but the numbers and names by which an op finds channels and buffers.
class MscclppReader : public JsonReader {
protected:
    /// Names of the channel types: memory, port and switch.
    using TypeNames = std::array<std::string_view, 3>;

    MscclppReader(const JsonDocument& document, std::string_view text, const std::string& file_name,
                  const TypeNames& types)
        : JsonReader(document, text, file_name), types_(types) {}

    /// A channel as its gpu lists it: a direction to a peer.
    struct Channel {
        std::int32_t peer = -1;
        std::int32_t nth = 0;  ///< among this gpu's channels of the type to that peer
    };
    enum ChannelType : std::uint8_t { kMemory, kPort, kSwitch };

    static bool ignored(JsonAt) { return true; }
    /// A name, which may be null.
    auto label(std::string& out) {
        return [this, &out](JsonAt at) {
            if (document_.type(at.node) == Type::null) return true;
            if (!text(out)(at)) return false;
            out = escaped(out);
            return true;
        };
    }
    auto protocol(std::string& out) {
        return [this, &out](JsonAt at) {
            return label(out)(at) &&
                   (out == "Simple" || out == "LL" || fail(at, "is \"" + out + "\"; expected Simple or LL"));
        };
    }
    /// For messages of which sizes the plan is.
    auto bytes(std::string_view word, std::string& out) {
        return [this, word, &out](JsonAt at) { return read_bytes(at, word, out); };
    }
    /// All gpus by resources(where it is, number); then the threadblocks of each by block(where one is, its
    /// gpu): ops name channels of other gpus, so that all channels come before any op. `resources` keeps where
    /// threadblocks are (threadblocks_at).
    template <typename Resources, typename Threadblock>
    auto gpus(Resources resources, Threadblock block) {
        return [this, resources, block](JsonAt at) {
            if (!is(at.node, *at.path, Type::array, "a list of gpus")) return false;
            ranks_ = static_cast<std::int32_t>(document_.size(at.node));
            for (auto& channels : channels_) channels.resize(document_.size(at.node));
            const auto gpu = [&](JsonAt inner) {
                return resources(inner, static_cast<std::int32_t>(inner.path->index));
            };
            if (!elements("a list of gpus", kMaxImportRanks, gpu)(at)) return false;
            for (std::int32_t number = 0; number < ranks_; ++number) {
                const JsonPath of{at.path, {}, number}, path{&of, "threadblocks"};
                const auto one = [&](JsonAt inner) { return block(inner, number); };
                const JsonAt blocks{threadblocks_[static_cast<std::size_t>(number)], &path};
                if (!elements("a list of threadblocks", 4096, one)(blocks)) return false;
            }
            return true;
        };
    }
    bool threadblocks_at(JsonAt at) {
        threadblocks_.push_back(at.node);
        return true;
    }
    /// A place in a list.
    auto id(JsonAt of) {
        return [this, of](JsonAt at) {
            std::int32_t number = 0;
            return integer(number, 0, 4095)(at) &&
                   (number == of.path->index ||
                    fail(at, fmt::format("is {}; expected {}: ids count from 0", number, of.path->index)));
        };
    }
    /// A number that is not negative.
    auto chunks(std::int64_t& out) { return integer(out, 0, kMaxChunks); }
    auto rank(std::int32_t& out) { return integer(out, 0, ranks_ - 1); }
    auto buffer(Buffer& out) {
        return [this, &out](JsonAt at) { return read_buffer(at, out); };
    }
    auto channel_type(ChannelType& out) {
        return [this, &out](JsonAt at) { return read_channel_type(at, out); };
    }
    /// That of an op, which may say "none".
    auto op_channel_type(ChannelType& out) {
        return [this, &out](JsonAt at) {
            const bool none = document_.type(at.node) == Type::string && document_.text(at.node) == "none";
            return none || read_channel_type(at, out);
        };
    }
    /// A gpu's channels of one type to the ranks of a list.
    bool read_channels_to(JsonAt at, ChannelType type, std::int32_t owner);
    bool read_barrier(Index node, const JsonPath& path, Index id, Index parties, std::string_view parties_key,
                      MscclppOp& op);
    /// Walks what was found as a field of an op.
    template <typename Walk>
    static bool by(Index node, const JsonPath& path, const Walk& walk) {
        return walk(JsonAt{node, &path});
    }
    /// Adds the ranks of a multicast group to the plan's.
    bool read_group(JsonAt at, MscclppPlan& plan);
    /// A list of small numbers.
    auto numbers(std::int64_t highest, std::vector<std::int32_t>& out) {
        return integers("a list of numbers", 1 << 16, 0, highest, out);
    }
    /// The counter that `owner` waits on for its channel `index`, and the one that it signals: the channel of
    /// the same number among the peer's channels to it. Counters are made when first named.
    std::int32_t wait_counter(MscclppPlan& plan, std::int32_t owner, ChannelType type, std::size_t index);
    std::int32_t signal_counter(MscclppPlan& plan, std::int32_t owner, ChannelType type, std::size_t index);
    std::int32_t semaphore_counter(MscclppPlan& plan, std::int32_t owner, std::int32_t id,
                                   std::int64_t initial);
    /// The place of a node, which must not be before that of the last call.
    Origin origin(JsonAt at, std::string_view name);
    /// False above kMaxSteps.
    bool count_op(JsonAt at);

    std::int32_t ranks_ = 0;
    std::vector<std::vector<Channel>> channels_[2];  ///< by type (memory, port), rank, number

private:
    bool read_bytes(JsonAt at, std::string_view word, std::string& out);
    bool read_buffer(JsonAt at, Buffer& out);
    bool read_channel_type(JsonAt at, ChannelType& out);
    std::int32_t counter(MscclppPlan& plan, const std::string& key, std::string what, std::int64_t initial);

    const TypeNames types_;
    std::vector<Index> threadblocks_;  ///< by gpu: the list
    std::size_t line_offset_ = 0;
    std::int32_t line_ = 1;
    std::int64_t ops_ = 0;
    std::unordered_map<std::string, std::int32_t> counters_;
    /// By type, owner and peer: how many so far.
    std::unordered_map<std::int64_t, std::int32_t> channels_to_;
};

/// A document whose gpus[0] has inputChunks.
[[nodiscard]] Result<MscclppPlan> read_mscclpp_v1(const JsonDocument& document, std::string_view text,
                                                  const std::string& file_name);
/// A document whose gpus[0] has input_chunks.
[[nodiscard]] Result<MscclppPlan> read_mscclpp_v2(const JsonDocument& document, std::string_view text,
                                                  const std::string& file_name);

}  // namespace syncopate::ingest
