#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "fuse/json_names.hpp"
#include "syncopate/fuse/json.hpp"

namespace syncopate::fuse {
namespace {

template <typename Enum, std::size_t count>
std::string_view name_in(const std::array<std::pair<Enum, std::string_view>, count>& names, Enum value) {
    return std::ranges::find(names, value, &std::pair<Enum, std::string_view>::first)->second;
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

Json write(const StreamStep& step) {
    Json json{{"launch", name_in(kLaunches, step.launch)}, {"stream", step.stream}};
    if (!step.gates.empty()) json["gates"] = step.gates;
    if (!step.after.empty()) json["after"] = step.after;
    if (!step.awaited.empty()) json["awaited"] = write(step.awaited);
    if (!step.relayed.empty()) json["relayed"] = write(step.relayed);
    if (step.relay >= 0) json["relay"] = step.relay;
    if (step.await_after) json["await_after"] = *step.await_after;
    if (step.awaits_gate) json["awaits_gate"] = true;
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
    if (transfer.collective) json["collective"] = write(*transfer.collective, schedule);
    if (!transfer.peers.empty()) json["peers"] = transfer.peers;
    if (transfer.copy_stream != 0) json["copy_stream"] = transfer.copy_stream;
    json["waits"] = write(transfer.waits);
    json["posts"] = write(transfer.posts);
    if (transfer.step.launch != Launch::none) json["step"] = write(transfer.step);
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

/// One line for each kind of entry, and one for each transfer.
std::string text_of(const RankSchedule& rank, const Schedule& schedule) {
    Json signals = Json::array();
    for (const SignalMeaning& signal : rank.signals)
        signals.push_back({name_in(kSignalKinds, signal.kind), signal.op.rank, signal.op.index});
    Json slots = Json::array();
    for (const Slot& slot : rank.slots) slots.push_back(write(slot));
    std::string text = "{\"signals\": " + signals.dump() + ",\n   \"slots\": " + slots.dump();
    if (Json loads = write_loads(rank, schedule); !loads.empty()) text += ",\n   \"loads\": " + loads.dump();
    if (!rank.chunks.empty()) text += ",\n   \"chunks\": " + write_chunks(rank, schedule).dump();
    text += ",\n   \"transfers\": [";
    for (std::size_t n = 0; n < rank.transfers.size(); ++n)
        text += std::string(n == 0 ? "" : ",") + "\n    " + write(rank.transfers[n], schedule).dump();
    return text + "],\n   \"begin_posts\": " + write(rank.begin_posts).dump() +
           ", \"begin_waits\": " + write(rank.begin_waits).dump() +
           ", \"kernel_posts\": " + write(rank.kernel_posts).dump() +
           ", \"end_waits\": " + write(rank.end_waits).dump() +
           ", \"end_posts\": " + write(rank.end_posts).dump() +
           (rank.copies_start_first ? ", \"copies_start_first\": true" : "") +
           (rank.ends_with_sum ? ", \"ends_with_sum\": true" : "") + "}";
}

}  // namespace

std::string_view name_of(SignalMeaning::Kind kind) { return name_in(kSignalKinds, kind); }

std::string to_json(const Schedule& schedule) {
    Json mesh = Json::array();
    for (const auto& axis : schedule.mesh.axes) mesh.push_back({axis.name, axis.size});
    Json tensors = Json::object();
    for (const plan::Tensor& tensor : schedule.tensors) {
        tensors[tensor.name] = {{"shape", tensor.shape}, {"dtype", plan::name_of(tensor.dtype)}};
    }
    Json stages = Json::array();
    for (const StageSlots& stage : schedule.stages)
        stages.push_back({{"slots", stage.count}, {"phased", stage.phased}});
    std::string text =
        "{\"mesh\": " + mesh.dump() + ", \"tensors\": " + tensors.dump() + ", \"stages\": " + stages.dump();
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
    if (schedule.plain) text += ", \"plain\": true";
    text += ",\n \"ranks\": [";
    for (const RankSchedule& rank : schedule.ranks) {
        text += std::string(&rank == schedule.ranks.data() ? "" : ",") + "\n  " + text_of(rank, schedule);
    }
    return text + "]}";
}

}  // namespace syncopate::fuse
