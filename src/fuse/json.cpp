#include "syncopate/fuse/json.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "syncopate/nesting.hpp"

namespace syncopate::fuse {
namespace {

using Json = nlohmann::ordered_json;
using Kind = SignalMeaning::Kind;

constexpr std::array<std::pair<Kind, std::string_view>, 5> kKinds{{{Kind::arrived, "arrived"},
                                                                   {Kind::consumed, "consumed"},
                                                                   {Kind::ready, "ready"},
                                                                   {Kind::fetched, "fetched"},
                                                                   {Kind::made, "made"}}};
constexpr std::array kBackends{plan::Backend::copy_engine, plan::Backend::tma_dedicated,
                               plan::Backend::tma_inline,  plan::Backend::ldst_dedicated,
                               plan::Backend::ldst_inline, plan::Backend::nccl,
                               plan::Backend::host};
constexpr std::array kCollectives{plan::CollectiveKind::all_gather, plan::CollectiveKind::reduce_scatter,
                                  plan::CollectiveKind::all_reduce, plan::CollectiveKind::all_to_all,
                                  plan::CollectiveKind::broadcast,  plan::CollectiveKind::permute};
constexpr std::array kReductions{plan::Reduce::none, plan::Reduce::sum, plan::Reduce::max};

std::string_view name_of(Kind kind) {
    return std::find_if(kKinds.begin(), kKinds.end(), [kind](const auto& k) { return k.first == kind; })
        ->second;
}

Json write(const std::vector<Wait>& waits) {
    Json json = Json::array();
    for (const Wait& wait : waits) json.push_back({wait.signal, wait.lag});
    return json;
}

Json write(const std::vector<Post>& posts) {
    Json json = Json::array();
    for (const Post& post : posts) json.push_back({post.rank, post.signal});
    return json;
}

Json write(const plan::Region& region) {
    Json json = Json::array();
    for (const plan::Interval& interval : region) json.push_back({interval.begin, interval.end});
    return json;
}

Json write(const plan::Chunk& chunk, const Schedule& schedule) {
    return {{"tensor", schedule.tensors[chunk.tensor].name}, {"region", write(chunk.region)}};
}

Json write(const Slot& slot) {
    Json row = Json::array({slot.tile});
    const auto append = [&row](const std::vector<Wait>& waits) {
        row.push_back(waits.size());
        for (const Wait& wait : waits) {
            row.push_back(wait.signal);
            row.push_back(wait.lag);
        }
    };
    append(slot.waits);
    for (const Phase& phase : slot.phases) {
        row.push_back(phase.iteration_end);
        append(phase.waits);
    }
    return row;
}

Json write(const Collective& collective, const Schedule& schedule) {
    Json json{{"kind", plan::name_of(collective.kind)}, {"number", collective.number}};
    if (collective.reduce != plan::Reduce::none) json["reduce"] = plan::name_of(collective.reduce);
    for (const Collective::Member& member : collective.members) {
        json["members"].push_back({{"op", {member.op.rank, member.op.index}},
                                   {"src", write(member.src, schedule)},
                                   {"dst", write(member.dst, schedule)}});
    }
    return json;
}

Json write(const Transfer& transfer, const Schedule& schedule) {
    Json json;
    json["op"] = {transfer.op.rank, transfer.op.index};
    json["backend"] = plan::name_of(transfer.backend);
    json["src_rank"] = transfer.src_rank;
    json["dst_rank"] = transfer.dst_rank;
    json["src"] = write(transfer.src, schedule);
    json["dst"] = write(transfer.dst, schedule);
    if (transfer.reduce != plan::Reduce::none) {
        json["reduce"] = plan::name_of(transfer.reduce);
        json["own"] = transfer.own;
    }
    for (const Source& source : transfer.sources)
        json["sources"].push_back({{"rank", source.rank}, {"chunk", write(source.chunk, schedule)}});
    for (const TileSum& tile : transfer.tiles)
        json["tiles"].push_back(Json::array({tile.slot, write(tile.region), tile.blocks}));
    if (transfer.collective) json["collective"] = write(*transfer.collective, schedule);
    if (!transfer.peers.empty()) json["peers"] = transfer.peers;
    if (transfer.copy_stream != 0) json["copy_stream"] = transfer.copy_stream;
    json["waits"] = write(transfer.waits);
    json["posts"] = write(transfer.posts);
    return json;
}

/// The slots whose tiles load from elsewhere: [slot, rank, tensor, rows].
Json write_loads(const RankSchedule& rank, const Schedule& schedule) {
    Json json = Json::array();
    for (std::size_t slot = 0; slot < rank.slots.size(); ++slot) {
        const std::optional<Place>& from = rank.slots[slot].from;
        if (from) json.push_back({slot, from->rank, schedule.tensors[from->tensor].name, from->rows});
    }
    return json;
}

Json write_chunks(const RankSchedule& rank, const Schedule& schedule) {
    std::vector<Json> slots(rank.chunks.size(), Json::array());
    for (std::size_t slot = 0; slot < rank.slots.size(); ++slot) {
        for (const std::int32_t chunk : rank.slots[slot].makes) slots[chunk].push_back(slot);
    }
    Json json = Json::array();
    for (std::size_t at = 0; at < rank.chunks.size(); ++at) {
        Json& entry = json.emplace_back(Json{{"chunk", write(rank.chunks[at].chunk, schedule)},
                                             {"posts", write(rank.chunks[at].posts)},
                                             {"slots", slots[at]}});
        if (Json counting = rank.chunks[at].counting; counting != slots[at])
            entry["counting"] = std::move(counting);
        if (rank.chunks[at].at_once) entry["at_once"] = true;
        for (const Place& store : rank.chunks[at].stores)
            entry["stores"].push_back({store.rank, schedule.tensors[store.tensor].name, store.rows});
    }
    return json;
}

/// What is thrown inside this file to leave the reader; never crosses its face.
struct Fault {
    std::string message;
};

/// A value and where it is, for messages.
class Reader {
public:
    Reader(const Json& json, std::string path) : json_(&json), path_(std::move(path)) {}

    [[noreturn]] void fail(const std::string& what) const { throw Fault{path_ + ": " + what}; }

    /// The members of an object: all of `required`, some of `optional`, no other.
    void expect_keys(std::initializer_list<std::string_view> required,
                     std::initializer_list<std::string_view> optional = {}) const {
        if (!json_->is_object()) fail("expected an object");
        for (const auto& item : json_->items()) {
            const auto known = [&](std::string_view key) { return item.key() == key; };
            if (std::none_of(required.begin(), required.end(), known) &&
                std::none_of(optional.begin(), optional.end(), known)) {
                fail("unknown key \"" + item.key() + "\"");
            }
        }
        for (const std::string_view key : required) {
            if (!json_->contains(std::string(key))) fail("missing key \"" + std::string(key) + "\"");
        }
    }
    [[nodiscard]] bool has(const std::string& key) const { return json_->contains(key); }
    [[nodiscard]] Reader at(const std::string& key) const {
        return {(*json_)[key], path_.empty() ? key : path_ + "." + key};
    }
    [[nodiscard]] Reader at(std::size_t index) const {
        return {(*json_)[index], path_ + "[" + std::to_string(index) + "]"};
    }
    [[nodiscard]] std::size_t length(std::optional<std::size_t> exactly = {}) const {
        if (!json_->is_array()) fail("expected an array");
        if (exactly && json_->size() != *exactly) fail("expected " + std::to_string(*exactly) + " entries");
        return json_->size();
    }
    [[nodiscard]] std::int64_t integer(std::int64_t low = std::numeric_limits<std::int64_t>::min(),
                                       std::int64_t high = std::numeric_limits<std::int64_t>::max()) const {
        if (!json_->is_number_integer()) fail("expected an integer");
        const auto value = json_->get<std::int64_t>();
        const bool wraps = json_->is_number_unsigned() && value < 0;
        if (wraps || value < low || value > high) {
            fail("expected an integer from " + std::to_string(low) + " to " + std::to_string(high));
        }
        return value;
    }
    [[nodiscard]] std::int32_t index_below(std::size_t end) const {
        return static_cast<std::int32_t>(integer(0, static_cast<std::int64_t>(end) - 1));
    }
    [[nodiscard]] std::string text() const {
        if (!json_->is_string()) fail("expected a string");
        return json_->get<std::string>();
    }
    [[nodiscard]] bool boolean() const {
        if (!json_->is_boolean()) fail("expected true or false");
        return json_->get<bool>();
    }
    [[nodiscard]] const Json& json() const { return *json_; }

private:
    const Json* json_;
    std::string path_;
};

std::vector<Wait> read_waits(const Reader& reader, std::size_t num_signals) {
    std::vector<Wait> waits;
    for (std::size_t at = 0; at < reader.length(); ++at) {
        const Reader pair = reader.at(at);
        (void)pair.length(2);
        waits.push_back({pair.at(std::size_t{0}).index_below(num_signals),
                         static_cast<std::int32_t>(pair.at(std::size_t{1}).integer(0, 1))});
    }
    return waits;
}

std::vector<Post> read_posts(const Reader& reader, const Schedule& schedule) {
    std::vector<Post> posts;
    for (std::size_t at = 0; at < reader.length(); ++at) {
        const Reader pair = reader.at(at);
        (void)pair.length(2);
        const std::int32_t rank = pair.at(std::size_t{0}).index_below(schedule.ranks.size());
        posts.push_back({rank, pair.at(std::size_t{1}).index_below(schedule.ranks[rank].signals.size())});
    }
    return posts;
}

std::int32_t read_tensor(const Reader& reader, const Schedule& schedule) {
    const std::string name = reader.text();
    const auto found = std::find_if(schedule.tensors.begin(), schedule.tensors.end(),
                                    [&](const plan::Tensor& tensor) { return tensor.name == name; });
    if (found == schedule.tensors.end()) reader.fail("there is no tensor " + name);
    return static_cast<std::int32_t>(found - schedule.tensors.begin());
}

/// Three entries of `row`, from the `first` on.
Place read_place(const Reader& row, std::size_t first, const Schedule& schedule) {
    return {row.at(first).index_below(schedule.ranks.size()), read_tensor(row.at(first + 1), schedule),
            row.at(first + 2).integer()};
}

std::vector<Place> read_stores(const Reader& reader, const Schedule& schedule) {
    if (!schedule.stores) reader.fail("the schedule has no \"stores\"");
    std::vector<Place> stores;
    for (std::size_t at = 0; at < reader.length(); ++at) {
        (void)reader.at(at).length(3);
        stores.push_back(read_place(reader.at(at), 0, schedule));
    }
    return stores;
}

void read_loads(const Reader& reader, const Schedule& schedule, RankSchedule& rank) {
    if (!schedule.loads) reader.fail("the schedule has no \"loads\"");
    for (std::size_t at = 0; at < reader.length(); ++at) {
        const Reader row = reader.at(at);
        (void)row.length(4);
        const std::int32_t slot = row.at(std::size_t{0}).index_below(rank.slots.size());
        rank.slots[static_cast<std::size_t>(slot)].from = read_place(row, 1, schedule);
    }
}

/// A region of tensor `tensor`.
plan::Region read_region(const Reader& reader, const Schedule& schedule, std::int32_t tensor) {
    const std::vector<std::int64_t>& shape = schedule.tensors[static_cast<std::size_t>(tensor)].shape;
    plan::Region region;
    for (std::size_t axis = 0; axis < reader.length(shape.size()); ++axis) {
        const Reader interval = reader.at(axis);
        (void)interval.length(2);
        const std::int64_t begin = interval.at(std::size_t{0}).integer(0, shape[axis]);
        region.push_back({begin, interval.at(std::size_t{1}).integer(begin, shape[axis])});
    }
    return region;
}

plan::Chunk read_chunk(const Reader& reader, const Schedule& schedule) {
    reader.expect_keys({"tensor", "region"});
    plan::Chunk chunk{read_tensor(reader.at("tensor"), schedule), {}};
    chunk.region = read_region(reader.at("region"), schedule, chunk.tensor);
    return chunk;
}

/// The tiles that do a sum.
void read_tiles(const Reader& reader, const Schedule& schedule, Transfer& sum) {
    if (!schedule.summed || sum.reduce == plan::Reduce::none)
        reader.fail("only sums of the tensor of \"summed\" are done by tiles");
    for (std::size_t at = 0; at < reader.length(); ++at) {
        const Reader row = reader.at(at);
        (void)row.length(3);
        const std::int32_t slot =
            row.at(std::size_t{0}).index_below(static_cast<std::size_t>(schedule.num_slots));
        sum.tiles.push_back({slot, read_region(row.at(std::size_t{1}), schedule, sum.dst.tensor),
                             static_cast<std::int32_t>(row.at(std::size_t{2}).integer(1, 1 << 20))});
        if (!contains(sum.dst.region, sum.tiles.back().region)) row.fail("not in the sum's destination");
    }
}

Slot read_slot(const Reader& row, const StageSlots& stage, std::size_t num_signals) {
    std::size_t at = 0;
    const std::size_t length = row.length();
    const auto next = [&]() -> Reader {
        if (at >= length) row.fail("the row ends too early");
        return row.at(at++);
    };
    const auto waits = [&] {
        const std::int64_t count = next().integer(0, static_cast<std::int64_t>(length));
        std::vector<Wait> result;
        for (std::int64_t n = 0; n < count; ++n) {
            const std::int32_t signal = next().index_below(num_signals);
            result.push_back({signal, static_cast<std::int32_t>(next().integer(0, 1))});
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
Enum read_name(const Reader& reader, const std::array<Enum, count>& values) {
    const std::string name = reader.text();
    for (const Enum value : values) {
        if (plan::name_of(value) == name) return value;
    }
    reader.fail("unknown name \"" + name + "\"");
}

Collective read_collective(const Reader& reader, const Schedule& schedule) {
    reader.expect_keys({"kind", "number", "members"}, {"reduce"});
    Collective collective;
    collective.kind = read_name(reader.at("kind"), kCollectives);
    collective.number =
        static_cast<std::int32_t>(reader.at("number").integer(0, std::numeric_limits<std::int32_t>::max()));
    if (reader.has("reduce")) collective.reduce = read_name(reader.at("reduce"), kReductions);
    const Reader members = reader.at("members");
    for (std::size_t at = 0; at < members.length(); ++at) {
        const Reader entry = members.at(at);
        entry.expect_keys({"op", "src", "dst"});
        (void)entry.at("op").length(2);
        collective.members.push_back(
            {{entry.at("op").at(std::size_t{0}).index_below(schedule.ranks.size()),
              static_cast<std::int32_t>(
                  entry.at("op").at(std::size_t{1}).integer(0, std::numeric_limits<std::int32_t>::max()))},
             read_chunk(entry.at("src"), schedule),
             read_chunk(entry.at("dst"), schedule)});
    }
    if (collective.members.empty()) members.fail("expected at least one");
    return collective;
}

Transfer read_transfer(const Reader& reader, const Schedule& schedule, std::size_t num_signals) {
    reader.expect_keys({"op", "backend", "src_rank", "dst_rank", "src", "dst", "waits", "posts"},
                       {"reduce", "own", "sources", "tiles", "collective", "copy_stream", "peers"});
    Transfer transfer;
    (void)reader.at("op").length(2);
    transfer.op.rank = reader.at("op").at(std::size_t{0}).index_below(schedule.ranks.size());
    transfer.op.index = static_cast<std::int32_t>(
        reader.at("op").at(std::size_t{1}).integer(0, std::numeric_limits<std::int32_t>::max()));
    transfer.backend = read_name(reader.at("backend"), kBackends);
    transfer.src_rank = reader.at("src_rank").index_below(schedule.ranks.size());
    transfer.dst_rank = reader.at("dst_rank").index_below(schedule.ranks.size());
    transfer.src = read_chunk(reader.at("src"), schedule);
    transfer.dst = read_chunk(reader.at("dst"), schedule);
    if (reader.has("reduce")) transfer.reduce = read_name(reader.at("reduce"), kReductions);
    if (reader.has("peers")) {
        const Reader peers = reader.at("peers");
        for (std::size_t at = 0; at < peers.length(); ++at)
            transfer.peers.push_back(peers.at(at).index_below(schedule.ranks.size()));
    }
    if (reader.has("copy_stream")) {
        transfer.copy_stream =
            static_cast<std::int32_t>(reader.at("copy_stream").integer(0, kMostCopyStreams - 1));
    }
    if (reader.has("own")) {
        transfer.own =
            static_cast<std::int32_t>(reader.at("own").integer(-1, std::numeric_limits<std::int32_t>::max()));
    }
    if (reader.has("sources")) {
        const Reader sources = reader.at("sources");
        for (std::size_t at = 0; at < sources.length(); ++at) {
            const Reader source = sources.at(at);
            source.expect_keys({"rank", "chunk"}, {});
            transfer.sources.push_back({source.at("rank").index_below(schedule.ranks.size()),
                                        read_chunk(source.at("chunk"), schedule)});
        }
    }
    if (reader.has("tiles")) read_tiles(reader.at("tiles"), schedule, transfer);
    if (reader.has("collective")) transfer.collective = read_collective(reader.at("collective"), schedule);
    transfer.waits = read_waits(reader.at("waits"), num_signals);
    transfer.posts = read_posts(reader.at("posts"), schedule);
    return transfer;
}

void read_signals(const Reader& reader, std::size_t num_ranks, std::vector<SignalMeaning>& signals) {
    for (std::size_t at = 0; at < reader.length(); ++at) {
        const Reader row = reader.at(at);
        (void)row.length(3);
        const std::string kind = row.at(std::size_t{0}).text();
        const auto found =
            std::find_if(kKinds.begin(), kKinds.end(), [&](const auto& k) { return k.second == kind; });
        if (found == kKinds.end()) row.fail("unknown kind of signal \"" + kind + "\"");
        signals.push_back(
            {found->first,
             {row.at(std::size_t{1}).index_below(num_ranks),
              static_cast<std::int32_t>(
                  row.at(std::size_t{2}).integer(-1, std::numeric_limits<std::int32_t>::max()))}});
    }
}

/// The chunks that the rank's tiles make, and by slot which of them.
/// Rising numbers of slots.
std::vector<std::int32_t> read_slots(const Reader& reader, const RankSchedule& rank) {
    std::vector<std::int32_t> slots;
    for (std::size_t n = 0; n < reader.length(); ++n) {
        const std::int32_t slot = reader.at(n).index_below(rank.slots.size());
        if (!slots.empty() && slot <= slots.back()) reader.at(n).fail("slots must rise");
        slots.push_back(slot);
    }
    return slots;
}

void read_chunks(const Reader& reader, const Schedule& schedule, RankSchedule& rank) {
    for (std::size_t at = 0; at < reader.length(); ++at) {
        const Reader entry = reader.at(at);
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

void read_rank(const Reader& reader, Schedule& schedule, RankSchedule& rank) {
    const std::size_t num_signals = rank.signals.size();
    const Reader slots = reader.at("slots");
    const std::size_t num_slots = slots.length(static_cast<std::size_t>(schedule.num_slots));
    std::vector<bool> taken(num_slots, false);  // by tile, tiles numbered over all stages
    for (std::size_t index = 0; index < schedule.num_stages(); ++index) {
        const StageSlots stage = schedule.stage(index);
        for (std::int64_t n = stage.first; n < stage.first + stage.count; ++n) {
            const Reader row = slots.at(static_cast<std::size_t>(n));
            rank.slots.push_back(read_slot(row, stage, num_signals));
            const auto tile = static_cast<std::size_t>(stage.first + rank.slots.back().tile);
            if (taken[tile]) row.fail("the tile is taken by an earlier slot");
            taken[tile] = true;
        }
    }
    if (reader.has("loads")) read_loads(reader.at("loads"), schedule, rank);
    if (reader.has("chunks")) read_chunks(reader.at("chunks"), schedule, rank);
    const Reader transfers = reader.at("transfers");
    for (std::size_t at = 0; at < transfers.length(); ++at) {
        rank.transfers.push_back(read_transfer(transfers.at(at), schedule, num_signals));
    }
    rank.begin_posts = read_posts(reader.at("begin_posts"), schedule);
    rank.begin_waits = read_waits(reader.at("begin_waits"), num_signals);
    rank.kernel_posts = read_posts(reader.at("kernel_posts"), schedule);
    rank.end_waits = read_waits(reader.at("end_waits"), num_signals);
    rank.end_posts = read_posts(reader.at("end_posts"), schedule);
}

/// The stages after the first, which follow each other up to the last slot.
void read_later(const Reader& reader, Schedule& schedule) {
    if (reader.length() == 0) reader.fail("expected at least one stage");
    std::int64_t next = 0;
    for (std::size_t at = 0; at < reader.length(); ++at) {
        const Reader entry = reader.at(at);
        entry.expect_keys({"first", "count", "phased"});
        const std::int64_t first = at == 0 ? entry.at("first").integer(0, schedule.num_slots)
                                           : entry.at("first").integer(next, next);
        const std::int64_t count = entry.at("count").integer(0, schedule.num_slots - first);
        schedule.later.push_back({first, count, entry.at("phased").boolean()});
        next = first + count;
    }
    if (next != schedule.num_slots) reader.fail("the stages end before the last slot");
}

/// Whether the kernel says where by rows; else by elements.
bool read_by_row(const Reader& reader) {
    const std::string by = reader.at("by").text();
    if (by != "row" && by != "element") reader.at("by").fail("expected \"row\" or \"element\"");
    return by == "row";
}

Schedule read_schedule(const Reader& reader) {
    reader.expect_keys({"mesh", "tensors", "num_slots", "phased", "ranks"},
                       {"stores", "loads", "later", "summed", "plain"});
    Schedule schedule;
    const Reader mesh = reader.at("mesh");
    for (std::size_t at = 0; at < mesh.length(); ++at) {
        (void)mesh.at(at).length(2);
        schedule.mesh.axes.push_back(
            {mesh.at(at).at(std::size_t{0}).text(),
             static_cast<std::int32_t>(
                 mesh.at(at).at(std::size_t{1}).integer(1, std::numeric_limits<std::int32_t>::max()))});
    }
    const Reader tensors = reader.at("tensors");
    if (!tensors.json().is_object()) tensors.fail("expected an object");
    for (const auto& item : tensors.json().items()) {
        const Reader entry = tensors.at(item.key());
        entry.expect_keys({"shape", "dtype"});
        const auto dtype = plan::dtype_from(entry.at("dtype").text());
        if (!dtype) entry.at("dtype").fail("unknown dtype \"" + entry.at("dtype").text() + "\"");
        plan::Tensor tensor{item.key(), {}, *dtype};
        for (std::size_t axis = 0; axis < entry.at("shape").length(); ++axis) {
            tensor.shape.push_back(entry.at("shape").at(axis).integer(0));
        }
        schedule.tensors.push_back(std::move(tensor));
    }
    schedule.num_slots = reader.at("num_slots").integer(0, std::numeric_limits<std::int32_t>::max());
    schedule.phased = reader.at("phased").boolean();
    if (reader.has("stores")) {
        const Reader stores = reader.at("stores");
        stores.expect_keys({"tensor", "by", "copies"});
        schedule.stores = StoreForm{read_tensor(stores.at("tensor"), schedule), read_by_row(stores),
                                    static_cast<std::int32_t>(stores.at("copies").integer(1, 1024))};
    }
    if (reader.has("loads")) {
        const Reader loads = reader.at("loads");
        loads.expect_keys({"tensor", "by"}, {"own"});
        schedule.loads = LoadForm{read_tensor(loads.at("tensor"), schedule), read_by_row(loads),
                                  loads.has("own") && loads.at("own").boolean()};
    }
    if (reader.has("plain")) schedule.plain = reader.at("plain").boolean();
    if (reader.has("summed")) schedule.summed = read_tensor(reader.at("summed"), schedule);
    if (reader.has("later")) read_later(reader.at("later"), schedule);

    const Reader ranks = reader.at("ranks");
    schedule.ranks.resize(ranks.length(static_cast<std::size_t>(schedule.mesh.num_ranks())));
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {  // posts name other ranks' signals
        ranks.at(rank).expect_keys({"signals", "slots", "transfers", "begin_posts", "begin_waits",
                                    "kernel_posts", "end_waits", "end_posts"},
                                   {"chunks", "loads"});
        read_signals(ranks.at(rank).at("signals"), schedule.ranks.size(), schedule.ranks[rank].signals);
    }
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
        read_rank(ranks.at(rank), schedule, schedule.ranks[rank]);
    }
    return schedule;
}

}  // namespace

std::string to_json(const Schedule& schedule) {
    Json mesh = Json::array();
    for (const auto& axis : schedule.mesh.axes) mesh.push_back({axis.name, axis.size});
    Json tensors = Json::object();
    for (const plan::Tensor& tensor : schedule.tensors) {
        tensors[tensor.name] = {{"shape", tensor.shape}, {"dtype", plan::name_of(tensor.dtype)}};
    }
    std::string text = "{\"mesh\": " + mesh.dump() + ", \"tensors\": " + tensors.dump() +
                       ", \"num_slots\": " + std::to_string(schedule.num_slots) +
                       ", \"phased\": " + (schedule.phased ? "true" : "false");
    if (!schedule.later.empty()) {
        Json later = Json::array();
        for (const StageSlots& stage : schedule.later)
            later.push_back({{"first", stage.first}, {"count", stage.count}, {"phased", stage.phased}});
        text += ", \"later\": " + later.dump();
    }
    if (schedule.stores) {
        const Json stores{{"tensor", schedule.tensors[schedule.stores->tensor].name},
                          {"by", schedule.stores->by_row ? "row" : "element"},
                          {"copies", schedule.stores->copies}};
        text += ", \"stores\": " + stores.dump();
    }
    if (schedule.loads) {
        Json loads{{"tensor", schedule.tensors[schedule.loads->tensor].name},
                   {"by", schedule.loads->by_row ? "row" : "element"}};
        if (schedule.loads->own) loads["own"] = true;
        text += ", \"loads\": " + loads.dump();
    }
    if (schedule.summed) text += ", \"summed\": " + Json(schedule.tensors[*schedule.summed].name).dump();
    if (schedule.plain) text += ", \"plain\": true";
    text += ",\n \"ranks\": [";
    for (std::size_t at = 0; at < schedule.ranks.size(); ++at) {
        const RankSchedule& rank = schedule.ranks[at];
        Json signals = Json::array();
        for (const SignalMeaning& signal : rank.signals) {
            signals.push_back({name_of(signal.kind), signal.op.rank, signal.op.index});
        }
        Json slots = Json::array();
        for (const Slot& slot : rank.slots) slots.push_back(write(slot));
        text += std::string(at == 0 ? "" : ",") + "\n  {\"signals\": " + signals.dump() +
                ",\n   \"slots\": " + slots.dump();
        if (Json loads = write_loads(rank, schedule); !loads.empty())
            text += ",\n   \"loads\": " + loads.dump();
        if (!rank.chunks.empty()) text += ",\n   \"chunks\": " + write_chunks(rank, schedule).dump();
        text += ",\n   \"transfers\": [";
        for (std::size_t n = 0; n < rank.transfers.size(); ++n) {
            text += std::string(n == 0 ? "" : ",") + "\n    " + write(rank.transfers[n], schedule).dump();
        }
        text += "],\n   \"begin_posts\": " + write(rank.begin_posts).dump() +
                ", \"begin_waits\": " + write(rank.begin_waits).dump() +
                ", \"kernel_posts\": " + write(rank.kernel_posts).dump() +
                ", \"end_waits\": " + write(rank.end_waits).dump() +
                ", \"end_posts\": " + write(rank.end_posts).dump() + "}";
    }
    return text + "]}";
}

Result<Schedule> schedule_from_json(std::string_view text, const std::string& file_name) {
    Location where;
    where.file = file_name;
    if (json_nesting(text) > kMaxJsonNesting)
        return Error{"nested more than " + std::to_string(kMaxJsonNesting) + " deep", where};
    const Json json = Json::parse(text.begin(), text.end(), nullptr, false);
    if (json.is_discarded()) return Error{"the schedule is not JSON", where};
    try {
        return read_schedule(Reader(json, ""));
    } catch (const Fault& fault) {
        return Error{fault.message, where};
    }
}

}  // namespace syncopate::fuse
