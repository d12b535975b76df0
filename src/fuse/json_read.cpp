#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "fuse/json_names.hpp"
#include "fuse/json_reader.hpp"
#include "syncopate/fuse/json.hpp"
#include "syncopate/fuse/launch.hpp"
#include "syncopate/nesting.hpp"

namespace syncopate::fuse {
namespace {

std::vector<Wait> read_waits(const JsonReader& reader, std::size_t num_signals) {
    std::vector<Wait> waits;
    for (std::size_t at = 0; at < reader.length(); ++at) {
        const JsonReader pair = reader.at(at);
        (void)pair.length(2);
        waits.push_back(
            {pair.at(std::size_t{0}).index_below(num_signals), pair.at(std::size_t{1}).int32(0, 1)});
    }
    return waits;
}

std::vector<Post> read_posts(const JsonReader& reader, const Schedule& schedule) {
    std::vector<Post> posts;
    for (std::size_t at = 0; at < reader.length(); ++at) {
        const JsonReader pair = reader.at(at);
        (void)pair.length(2);
        const std::int32_t rank = pair.at(std::size_t{0}).index_below(schedule.ranks.size());
        posts.push_back({rank, pair.at(std::size_t{1}).index_below(schedule.ranks[rank].signals.size())});
    }
    return posts;
}

std::int32_t read_tensor(const JsonReader& reader, const Schedule& schedule) {
    const std::string name = reader.text();
    const auto found = std::find_if(schedule.tensors.begin(), schedule.tensors.end(),
                                    [&](const plan::Tensor& tensor) { return tensor.name == name; });
    if (found == schedule.tensors.end()) reader.fail("there is no tensor " + name);
    return static_cast<std::int32_t>(found - schedule.tensors.begin());
}

/// Three entries of `row`, from the `first` on.
Place read_place(const JsonReader& row, std::size_t first, const Schedule& schedule) {
    return {row.at(first).index_below(schedule.ranks.size()), read_tensor(row.at(first + 1), schedule),
            row.at(first + 2).integer()};
}

std::vector<Place> read_stores(const JsonReader& reader, const Schedule& schedule) {
    if (!schedule.stores) reader.fail("the schedule has no \"stores\"");
    std::vector<Place> stores;
    for (std::size_t at = 0; at < reader.length(); ++at) {
        (void)reader.at(at).length(3);
        stores.push_back(read_place(reader.at(at), 0, schedule));
    }
    return stores;
}

void read_loads(const JsonReader& reader, const Schedule& schedule, RankSchedule& rank) {
    if (!schedule.loads) reader.fail("the schedule has no \"loads\"");
    for (std::size_t at = 0; at < reader.length(); ++at) {
        const JsonReader row = reader.at(at);
        (void)row.length(4);
        const std::int32_t slot = row.at(std::size_t{0}).index_below(rank.slots.size());
        rank.slots[static_cast<std::size_t>(slot)].from = read_place(row, 1, schedule);
    }
}

/// A region of tensor `tensor`.
plan::Region read_region(const JsonReader& reader, const Schedule& schedule, std::int32_t tensor) {
    const std::vector<std::int64_t>& shape = schedule.tensors[static_cast<std::size_t>(tensor)].shape;
    plan::Region region;
    for (std::size_t axis = 0; axis < reader.length(shape.size()); ++axis) {
        const JsonReader interval = reader.at(axis);
        (void)interval.length(2);
        const std::int64_t begin = interval.at(std::size_t{0}).integer(0, shape[axis]);
        region.push_back({begin, interval.at(std::size_t{1}).integer(begin, shape[axis])});
    }
    return region;
}

plan::Chunk read_chunk(const JsonReader& reader, const Schedule& schedule) {
    reader.expect_keys({"tensor", "region"});
    plan::Chunk chunk{read_tensor(reader.at("tensor"), schedule), {}};
    chunk.region = read_region(reader.at("region"), schedule, chunk.tensor);
    return chunk;
}

Slot read_slot(const JsonReader& row, const StageSlots& stage, std::size_t num_signals) {
    std::size_t at = 0;
    const std::size_t length = row.length();
    const auto next = [&]() -> JsonReader {
        if (at >= length) row.fail("the row ends too early");
        return row.at(at++);
    };
    const auto waits = [&] {
        const std::int64_t count = next().integer(0, static_cast<std::int64_t>(length));
        std::vector<Wait> result;
        for (std::int64_t n = 0; n < count; ++n) {
            const std::int32_t signal = next().index_below(num_signals);
            result.push_back({signal, next().int32(0, 1)});
        }
        return result;
    };
    Slot slot;
    slot.tile = next().integer(0, stage.count - 1);
    slot.waits = waits();
    std::int64_t end = 0;
    while (at < length) {
        Phase phase;
        phase.iteration_end = next().integer(end);
        end = phase.iteration_end;
        phase.waits = waits();
        slot.phases.push_back(std::move(phase));
    }
    if (stage.phased && slot.phases.empty()) row.fail("a slot of a phased schedule needs at least one phase");
    return slot;
}

template <typename Enum, std::size_t count>
Enum read_name(const JsonReader& reader, const std::array<Enum, count>& values) {
    const std::string name = reader.text();
    for (const Enum value : values) {
        if (plan::name_of(value) == name) return value;
    }
    reader.fail("unknown name \"" + name + "\"");
}

/// The value with that name in a list of pairs.
template <typename Enum, std::size_t count>
Enum read_named(const JsonReader& reader, const std::array<std::pair<Enum, std::string_view>, count>& names) {
    const std::string name = reader.text();
    const auto found = std::ranges::find(names, name, &std::pair<Enum, std::string_view>::second);
    if (found == names.end()) reader.fail("unknown name \"" + name + "\"");
    return found->first;
}

Collective read_collective(const JsonReader& reader, const Schedule& schedule) {
    reader.expect_keys({"kind", "number", "members"}, {"reduce"});
    Collective collective;
    collective.kind = read_name(reader.at("kind"), kCollectives);
    collective.number = reader.at("number").int32(0);
    if (reader.has("reduce")) collective.reduce = read_name(reader.at("reduce"), kReductions);
    const JsonReader members = reader.at("members");
    for (std::size_t at = 0; at < members.length(); ++at) {
        const JsonReader entry = members.at(at);
        entry.expect_keys({"op", "src", "dst"});
        (void)entry.at("op").length(2);
        collective.members.push_back({{entry.at("op").at(std::size_t{0}).index_below(schedule.ranks.size()),
                                       entry.at("op").at(std::size_t{1}).int32(0)},
                                      read_chunk(entry.at("src"), schedule),
                                      read_chunk(entry.at("dst"), schedule)});
    }
    if (collective.members.empty()) members.fail("expected at least one");
    return collective;
}

/// Chunks and transfers that it names are checked once all are known (check_steps).
StreamStep read_step(const JsonReader& reader, std::size_t num_signals) {
    reader.expect_keys({"launch", "stream"},
                       {"gates", "after", "awaited", "relayed", "relay", "await_after", "awaits_gate"});
    constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
    StreamStep step;
    step.launch = read_named(reader.at("launch"), kLaunches);
    step.stream = static_cast<std::size_t>(reader.at("stream").int32(0, kMostCopyStreams));
    if (reader.has("gates")) {
        for (std::size_t at = 0; at < reader.at("gates").length(); ++at)
            step.gates.push_back(reader.at("gates").at(at).int32(0, kMost));
    }
    if (reader.has("after")) {
        for (std::size_t at = 0; at < reader.at("after").length(); ++at)
            step.after.push_back(static_cast<std::size_t>(reader.at("after").at(at).int32(0, kMost)));
    }
    if (reader.has("awaited")) step.awaited = read_waits(reader.at("awaited"), num_signals);
    if (reader.has("relayed")) step.relayed = read_waits(reader.at("relayed"), num_signals);
    if (reader.has("relay")) step.relay = reader.at("relay").int32(0, kMost);
    if (reader.has("await_after"))
        step.await_after = static_cast<std::size_t>(reader.at("await_after").int32(0, kMost));
    step.awaits_gate = reader.has("awaits_gate") && reader.at("awaits_gate").boolean();
    return step;
}

Transfer read_transfer(const JsonReader& reader, const Schedule& schedule, std::size_t num_signals) {
    reader.expect_keys({"op", "backend", "src_rank", "dst_rank", "src", "dst", "waits", "posts"},
                       {"reduce", "own", "sources", "collective", "copy_stream", "peers", "step"});
    Transfer transfer;
    (void)reader.at("op").length(2);
    transfer.op.rank = reader.at("op").at(std::size_t{0}).index_below(schedule.ranks.size());
    transfer.op.index = reader.at("op").at(std::size_t{1}).int32(0);
    transfer.backend = read_name(reader.at("backend"), kBackends);
    transfer.src_rank = reader.at("src_rank").index_below(schedule.ranks.size());
    transfer.dst_rank = reader.at("dst_rank").index_below(schedule.ranks.size());
    transfer.src = read_chunk(reader.at("src"), schedule);
    transfer.dst = read_chunk(reader.at("dst"), schedule);
    if (reader.has("reduce")) transfer.reduce = read_name(reader.at("reduce"), kReductions);
    if (reader.has("peers")) {
        const JsonReader peers = reader.at("peers");
        for (std::size_t at = 0; at < peers.length(); ++at)
            transfer.peers.push_back(peers.at(at).index_below(schedule.ranks.size()));
    }
    if (reader.has("copy_stream")) {
        transfer.copy_stream = reader.at("copy_stream").int32(0, kMostCopyStreams - 1);
    }
    if (reader.has("own")) {
        transfer.own = reader.at("own").int32(-1);
    }
    if (reader.has("sources")) {
        const JsonReader sources = reader.at("sources");
        for (std::size_t at = 0; at < sources.length(); ++at) {
            const JsonReader source = sources.at(at);
            source.expect_keys({"rank", "chunk"}, {});
            transfer.sources.push_back({source.at("rank").index_below(schedule.ranks.size()),
                                        read_chunk(source.at("chunk"), schedule)});
        }
    }
    if (reader.has("collective")) transfer.collective = read_collective(reader.at("collective"), schedule);
    transfer.waits = read_waits(reader.at("waits"), num_signals);
    transfer.posts = read_posts(reader.at("posts"), schedule);
    if (reader.has("step")) transfer.step = read_step(reader.at("step"), num_signals);
    return transfer;
}

void read_signals(const JsonReader& reader, std::size_t num_ranks, std::vector<SignalMeaning>& signals) {
    for (std::size_t at = 0; at < reader.length(); ++at) {
        const JsonReader row = reader.at(at);
        (void)row.length(3);
        signals.push_back(
            {read_named(row.at(std::size_t{0}), kSignalKinds),
             {row.at(std::size_t{1}).index_below(num_ranks), row.at(std::size_t{2}).int32(-1)}});
    }
}

/// Rising numbers of slots.
std::vector<std::int32_t> read_slots(const JsonReader& reader, const RankSchedule& rank) {
    std::vector<std::int32_t> slots;
    for (std::size_t n = 0; n < reader.length(); ++n) {
        const std::int32_t slot = reader.at(n).index_below(rank.slots.size());
        if (!slots.empty() && slot <= slots.back()) reader.at(n).fail("slots must rise");
        slots.push_back(slot);
    }
    return slots;
}

/// The chunks that the rank's tiles make, and by slot which of them.
void read_chunks(const JsonReader& reader, const Schedule& schedule, RankSchedule& rank) {
    for (std::size_t at = 0; at < reader.length(); ++at) {
        const JsonReader entry = reader.at(at);
        entry.expect_keys({"chunk", "posts", "slots"}, {"counting", "stores", "at_once"});
        const std::vector<std::int32_t> slots = read_slots(entry.at("slots"), rank);
        for (const std::int32_t slot : slots)
            rank.slots[static_cast<std::size_t>(slot)].makes.push_back(static_cast<std::int32_t>(at));
        MadeChunk chunk{read_chunk(entry.at("chunk"), schedule), slots,
                        read_posts(entry.at("posts"), schedule)};
        if (entry.has("counting")) {
            chunk.counting = read_slots(entry.at("counting"), rank);
            if (chunk.counting.empty() || !std::ranges::includes(slots, chunk.counting))
                entry.at("counting").fail("expected some of the chunk's slots");
        }
        if (entry.has("stores")) chunk.stores = read_stores(entry.at("stores"), schedule);
        chunk.at_once = entry.has("at_once") && entry.at("at_once").boolean();
        rank.chunks.push_back(std::move(chunk));
    }
}

/// What all steps of a rank have in common, and whether what steps name is there.
void read_streams(const JsonReader& reader, RankSchedule& rank) {
    const JsonReader transfers = reader.at("transfers");
    for (std::size_t at = 0; at < rank.transfers.size(); ++at) {
        const StreamStep& step = rank.transfers[at].step;
        rank.num_streams = std::max(rank.num_streams, step.stream + 1);
        rank.num_relays = std::max(rank.num_relays, step.relay + 1);
        if (std::string why = step_objection(rank, at); !why.empty()) transfers.at(at).fail(why);
    }
    if (rank.num_relays > static_cast<std::int32_t>(rank.transfers.size()))
        transfers.fail("relays without transfers");
    rank.copies_start_first = reader.has("copies_start_first") && reader.at("copies_start_first").boolean();
    rank.ends_with_sum = reader.has("ends_with_sum") && reader.at("ends_with_sum").boolean();
    if (rank.ends_with_sum && (rank.transfers.empty() || rank.transfers.back().reduce == plan::Reduce::none))
        reader.fail("\"ends_with_sum\", and the last transfer is no sum");
}

void read_rank(const JsonReader& reader, Schedule& schedule, RankSchedule& rank) {
    const std::size_t num_signals = rank.signals.size();
    const JsonReader slots = reader.at("slots");
    const std::size_t num_slots = slots.length(static_cast<std::size_t>(schedule.num_slots()));
    std::vector<bool> taken(num_slots, false);  // by tile, tiles numbered over all stages
    for (const StageSlots& stage : schedule.stages) {
        for (std::int64_t n = stage.first; n < stage.first + stage.count; ++n) {
            const JsonReader row = slots.at(static_cast<std::size_t>(n));
            rank.slots.push_back(read_slot(row, stage, num_signals));
            const auto tile = static_cast<std::size_t>(stage.first + rank.slots.back().tile);
            if (taken[tile]) row.fail("the tile is taken by an earlier slot");
            taken[tile] = true;
        }
    }
    if (reader.has("loads")) read_loads(reader.at("loads"), schedule, rank);
    if (reader.has("chunks")) read_chunks(reader.at("chunks"), schedule, rank);
    const JsonReader transfers = reader.at("transfers");
    for (std::size_t at = 0; at < transfers.length(); ++at) {
        rank.transfers.push_back(read_transfer(transfers.at(at), schedule, num_signals));
    }
    rank.begin_posts = read_posts(reader.at("begin_posts"), schedule);
    rank.begin_waits = read_waits(reader.at("begin_waits"), num_signals);
    rank.kernel_posts = read_posts(reader.at("kernel_posts"), schedule);
    rank.end_waits = read_waits(reader.at("end_waits"), num_signals);
    rank.end_posts = read_posts(reader.at("end_posts"), schedule);
    read_streams(reader, rank);
}

/// The stages, which follow each other.
std::vector<StageSlots> read_stages(const JsonReader& reader) {
    if (reader.length() == 0) reader.fail("expected at least one stage");
    std::vector<StageSlots> stages;
    std::int64_t next = 0;
    for (std::size_t at = 0; at < reader.length(); ++at) {
        const JsonReader entry = reader.at(at);
        entry.expect_keys({"slots", "phased"});
        const std::int64_t count =
            entry.at("slots").integer(0, std::numeric_limits<std::int32_t>::max() - next);
        stages.push_back({next, count, entry.at("phased").boolean()});
        next += count;
    }
    return stages;
}

/// Whether the kernel says where by rows; else by elements.
bool read_by_row(const JsonReader& reader) {
    const std::string by = reader.at("by").text();
    if (by != "row" && by != "element") reader.at("by").fail("expected \"row\" or \"element\"");
    return by == "row";
}

plan::Mesh read_mesh(const JsonReader& reader) {
    plan::Mesh mesh;
    for (std::size_t at = 0; at < reader.length(); ++at) {
        const JsonReader axis = reader.at(at);
        (void)axis.length(2);
        mesh.axes.push_back({axis.at(std::size_t{0}).text(), axis.at(std::size_t{1}).int32(1)});
    }
    return mesh;
}

std::vector<plan::Tensor> read_tensors(const JsonReader& reader) {
    if (!reader.json().is_object()) reader.fail("expected an object");
    std::vector<plan::Tensor> tensors;
    for (const auto& item : reader.json().items()) {
        const JsonReader entry = reader.at(item.key());
        entry.expect_keys({"shape", "dtype"});
        const JsonReader name = entry.at("dtype"), shape = entry.at("shape");
        const auto dtype = plan::dtype_from(name.text());
        if (!dtype) name.fail("unknown dtype \"" + name.text() + "\"");
        plan::Tensor& tensor = tensors.emplace_back(plan::Tensor{item.key(), {}, *dtype});
        for (std::size_t axis = 0; axis < shape.length(); ++axis)
            tensor.shape.push_back(shape.at(axis).integer(0));
    }
    return tensors;
}

Schedule read_schedule(const JsonReader& reader) {
    reader.expect_keys({"mesh", "tensors", "stages", "ranks"}, {"stores", "loads", "plain"});
    Schedule schedule;
    schedule.mesh = read_mesh(reader.at("mesh"));
    schedule.tensors = read_tensors(reader.at("tensors"));
    schedule.stages = read_stages(reader.at("stages"));
    if (reader.has("stores")) {
        const JsonReader stores = reader.at("stores");
        stores.expect_keys({"tensor", "by", "copies"});
        schedule.stores = StoreForm{read_tensor(stores.at("tensor"), schedule), read_by_row(stores),
                                    stores.at("copies").int32(1, 1024)};
    }
    if (reader.has("loads")) {
        const JsonReader loads = reader.at("loads");
        loads.expect_keys({"tensor", "by"}, {"own"});
        schedule.loads = LoadForm{read_tensor(loads.at("tensor"), schedule), read_by_row(loads),
                                  loads.has("own") && loads.at("own").boolean()};
    }
    if (reader.has("plain")) schedule.plain = reader.at("plain").boolean();
    const JsonReader ranks = reader.at("ranks");
    schedule.ranks.resize(ranks.length(static_cast<std::size_t>(schedule.mesh.num_ranks())));
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {  // posts name other ranks' signals
        ranks.at(rank).expect_keys({"signals", "slots", "transfers", "begin_posts", "begin_waits",
                                    "kernel_posts", "end_waits", "end_posts"},
                                   {"chunks", "loads", "copies_start_first", "ends_with_sum"});
        read_signals(ranks.at(rank).at("signals"), schedule.ranks.size(), schedule.ranks[rank].signals);
    }
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
        read_rank(ranks.at(rank), schedule, schedule.ranks[rank]);
    }
    return schedule;
}

}  // namespace

Result<Schedule> schedule_from_json(std::string_view text, const std::string& file_name) {
    Location where;
    where.file = file_name;
    if (json_nesting(text) > kMaxJsonNesting)
        return Error{"nested more than " + std::to_string(kMaxJsonNesting) + " deep", where};
    const Json json = Json::parse(text.begin(), text.end(), nullptr, false);
    if (json.is_discarded()) return Error{"the schedule is not JSON", where};
    try {
        return read_schedule(JsonReader(json, ""));
    } catch (const JsonFault& fault) {
        return Error{fault.message, where};
    }
}

}  // namespace syncopate::fuse
