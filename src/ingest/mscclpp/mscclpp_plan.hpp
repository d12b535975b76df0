// An MSCCL++ execution plan with all its indirections resolved: what versions 1 and 2 of the format have in
// common.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ingest/steps/buffers.hpp"
#include "syncopate/json_decoder.hpp"
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
class MscclppReader : protected JsonDecoder {
public:
    using JsonDecoder::error;

protected:
    /// Names of the channel types: memory, port and switch.
    using TypeNames = std::array<std::string_view, 3>;

    MscclppReader(const JsonDocument& document, std::string_view text, const std::string& file_name,
                  const TypeNames& types)
        : JsonDecoder(document, text, file_name), types_(types) {}

    /// A channel as its gpu lists it: a direction to a peer.
    struct Channel {
        std::int32_t peer = -1;
        std::int32_t nth = 0;  ///< among this gpu's channels of the type to that peer
    };
    enum ChannelType : std::uint8_t { kMemory, kPort, kSwitch };

    bool read_header(Index name, Index collective, Index protocol, Index in_place, MscclppPlan& plan);
    /// All gpus twice: ops name channels of other gpus, so that all channels come before any op.
    template <typename Resources, typename Threadblocks>
    bool read_gpus(Index gpus, Resources resources, Threadblocks threadblocks) {
        const JsonPath path{nullptr, "gpus"};
        if (!list(gpus, path, "a list of gpus", kMaxImportRanks)) return false;
        ranks_ = static_cast<std::int32_t>(document_.size(gpus));
        for (auto& channels : channels_) channels.resize(document_.size(gpus));
        return each(gpus, path, resources) && each(gpus, path, threadblocks);
    }
    /// The gpu at `node`, from the first four of its keys: its id, and the chunks of its input, output and
    /// scratch.
    bool read_gpu(Index node, const JsonPath& path, std::span<const JsonField> known,
                  std::span<const Index> keys, MscclppPlan& plan);
    /// A gpu's channels of one type to the ranks of a list.
    bool read_channels_to(Index node, const JsonPath& path, ChannelType type, std::int32_t owner);
    /// Adds the ranks of a multicast group to the plan's.
    bool read_group(Index node, const JsonPath& path, MscclppPlan& plan);
    /// A threadblock's id: its place in the list.
    bool threadblock_id(Index node, const JsonPath& path);
    bool read_barrier(Index node, const JsonPath& path, Index id, Index parties, std::string_view parties_key,
                      MscclppOp& op);
    bool non_negative(Index node, const JsonPath& path, std::int64_t& out) {
        return integer(node, path, 0, kMaxChunks, out);
    }
    /// For messages of which sizes the plan is.
    bool read_bytes(Index least, Index most, MscclppPlan& plan);
    bool buffer(Index node, const JsonPath& path, Buffer& out);
    bool rank(Index node, const JsonPath& path, std::int32_t& out) {
        return integer(node, path, 0, ranks_ - 1, out);
    }
    bool channel_type(Index node, const JsonPath& path, ChannelType& out);
    /// That of an op, which may lack it or say "none".
    bool op_channel_type(Index node, const JsonPath& path, ChannelType& out);
    /// A list of small numbers.
    bool numbers(Index node, const JsonPath& path, std::int64_t highest, std::vector<std::int32_t>& out);
    /// The counter that `owner` waits on for its channel `index`, and the one that it signals: the channel of
    /// the same number among the peer's channels to it. Counters are made when first named.
    std::int32_t wait_counter(MscclppPlan& plan, std::int32_t owner, ChannelType type, std::size_t index);
    std::int32_t signal_counter(MscclppPlan& plan, std::int32_t owner, ChannelType type, std::size_t index);
    std::int32_t semaphore_counter(MscclppPlan& plan, std::int32_t owner, std::int32_t id,
                                   std::int64_t initial);
    /// The place of a node, which must not be before that of the last call.
    Origin origin(Index node, const JsonPath& path, std::string_view name);
    /// False above kMaxSteps.
    bool count_op(Index node, const JsonPath& path);

    std::int32_t ranks_ = 0;
    std::vector<std::vector<Channel>> channels_[2];  ///< by type (memory, port), rank, number

private:
    std::int32_t counter(MscclppPlan& plan, const std::string& key, std::string what, std::int64_t initial);

    const TypeNames types_;
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
