#include <iterator>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/at.hpp"
#include "syncopate/json_text.hpp"
#include "syncopate/plan/json/json.hpp"
#include "syncopate/plan/model/ragged.hpp"

namespace syncopate::plan {
namespace {

class Writer {
public:
    explicit Writer(const Plan& plan) : plan_(plan) {
        for (const Tensor& tensor : plan.tensors) tensor_names_.push_back(json_quoted(tensor.name));
    }

    std::string write() {
        put("{{\"schema\": \"syncopate.plan/1\",\n \"mesh\": [");
        list(plan_.mesh.axes, ", ",
             [&](const Mesh::Axis& axis) { put("[{}, {}]", json_quoted(axis.name), axis.size); });
        put("]");
        if (!plan_.mesh.nodes.empty()) put(",\n \"nodes\": {}", json_quoted(plan_.mesh.nodes));
        put(",\n \"tensors\": {{");
        for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
            const Tensor& tensor = plan_.tensors[i];
            put("{}{}: {{\"shape\": [", i == 0 ? "" : ",\n             ", tensor_names_[i]);
            list(tensor.memory_shape(), ", ", [&](std::int64_t size) { put("{}", size); });
            put("], \"dtype\": \"{}\"", name_of(tensor.dtype));
            if (tensor.ragged) ragged(tensor);
            out_ += '}';
        }
        put("}}");
        holdings("initial", plan_.initial);
        if (!plan_.produced.empty()) holdings("produced", plan_.produced);
        holdings("final", plan_.final);
        put(",\n \"ranks\": [");
        for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
            put("{}\n  {{\"rank\": {}, \"ops\": [", rank == 0 ? "" : ",", rank);
            list(plan_.ranks[rank], ",", [&](const Op& op) {
                put("\n   ");
                write_op(op);
            });
            put("]}}");
        }
        put("]}}\n");
        return std::move(out_);
    }

private:
    template <typename... Args>
    void put(fmt::format_string<Args...> format, Args&&... args) {
        fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    }

    template <typename Items, typename Write>
    void list(const Items& items, std::string_view separator, Write write_item) {
        bool first = true;
        for (const auto& item : items) {
            if (!first) out_ += separator;
            first = false;
            write_item(item);
        }
    }

    void chunk_members(const Chunk& chunk) {
        put("\"tensor\": {}, \"region\": [", tensor_names_[at(chunk.tensor)]);
        const auto& of = plan_.tensors[at(chunk.tensor)].ragged;
        const std::size_t first = of ? static_cast<std::size_t>(of->axis) : chunk.region.size();
        const std::size_t last = of ? first + of->groups.size() : first;
        for (std::size_t axis = 0; axis < chunk.region.size(); ++axis) {
            if (axis > 0) out_ += axis > first && axis < last ? ", " : ",";
            if (axis == first) out_ += '{';
            if (axis >= first && axis < last) put("{}: ", json_quoted(of->groups[axis - first]));
            put("[{},{}]", chunk.region[axis].begin, chunk.region[axis].end);
            if (axis + 1 == last && of) out_ += '}';
        }
        out_ += ']';
    }

    void ragged(const Tensor& tensor) {
        const Ragged& of = *tensor.ragged;
        put(", \"ragged\": {{\"axis\": {}, \"groups\": {}, \"sizes\": [", of.axis,
            json_quoted(fmt::format("{}", fmt::join(of.groups, kGroupsTimes))));
        for (std::size_t i = 0; i < of.groups.size(); ++i)
            put("{}{}", i == 0 ? "" : ", ", tensor.shape[static_cast<std::size_t>(of.axis) + i]);
        put("], \"bound\": {}}}", of.bound);
    }

    void holdings(std::string_view key, const std::vector<Holding>& entries) {
        put(",\n \"{}\": [", key);
        list(entries, ",", [&](const Holding& holding) {
            put("\n  {{\"rank\": {}, ", holding.rank);
            chunk_members(holding.chunk);
            if (holding.partial) out_ += ", \"partial\": true";
            if (holding.of_all) {
                out_ += ", \"of\": \"all\"";
            } else if (!holding.of.empty()) {
                rank_list(", \"of\": [", holding.of);
            }
            out_ += '}';
        });
        out_ += ']';
    }

    void rank_list(std::string_view opening, const std::vector<std::int32_t>& ranks) {
        out_ += opening;
        list(ranks, ",", [&](std::int32_t rank) { put("{}", rank); });
        out_ += ']';
    }

    void write_op(const Op& op) {
        put("{{\"op\": \"{}\"", name_of(op.kind));
        if (op.kind == OpKind::collective) {
            put(", \"kind\": \"{}\"", name_of(op.collective));
            rank_list(", \"ranks\": [", *op.ranks);
        } else if (op.kind != OpKind::local) {
            put(", \"peer\": {}", op.peer);
        }
        out_ += ", \"src\": {";
        chunk_members(op.src);
        out_ += "}, \"dst\": {";
        chunk_members(op.dst);
        out_ += '}';
        if (!op.after.empty()) {
            out_ += ", \"after\": [";
            list(op.after, ",", [&](OpRef ref) { put("[{},{}]", ref.rank, ref.index); });
            out_ += ']';
        }
        if (op.reduce != Reduce::none) put(", \"reduce\": \"{}\"", name_of(op.reduce));
        if (!op.channel->empty()) put(", \"channel\": {}", json_quoted(*op.channel));
        if (op.backend != Backend::automatic) put(", \"backend\": \"{}\"", name_of(op.backend));
        out_ += '}';
    }

    const Plan& plan_;
    std::vector<std::string> tensor_names_;  ///< quoted
    std::string out_;
};

}  // namespace

std::string to_json(const Plan& plan) { return Writer(plan).write(); }

}  // namespace syncopate::plan
