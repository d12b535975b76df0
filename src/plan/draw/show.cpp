#include "syncopate/plan/draw/show.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/at.hpp"
#include "syncopate/plan/model/notation.hpp"
#include "syncopate/plan/model/ragged.hpp"

namespace syncopate::plan {
namespace {

using Row = std::vector<std::string>;

/// Columns as wide as their longest cell, two spaces apart. A column without any content is left out.
std::string layout(const Row& header, const std::vector<Row>& rows) {
    std::vector<std::size_t> widths(header.size(), 0);
    for (const Row& row : rows) {
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    for (std::size_t i = 0; i < header.size(); ++i) {
        if (widths[i] > 0) widths[i] = std::max(widths[i], header[i].size());
    }
    std::string text;
    const auto put = [&](const Row& row) {
        std::string line;
        for (std::size_t i = 0; i < row.size(); ++i) {
            if (widths[i] > 0) line += fmt::format("  {:<{}}", row[i], widths[i]);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + "\n";
    };
    put(header);
    for (const Row& row : rows) put(row);
    return text;
}

template <typename List, typename T>
std::string joined(const List& items, std::size_t limit, std::string (*name)(const T&)) {
    std::string text;
    for (std::size_t i = 0; i < std::min(limit, items.size()); ++i)
        text += (i == 0 ? "" : " ") + name(items[i]);
    if (items.size() > limit) text += fmt::format(" +{}", items.size() - limit);
    return text;
}

/// "1 op", "3 ops"
std::string counted(std::size_t count, std::string_view noun) {
    return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

class Table {
public:
    Table(const Plan& plan, const TableOptions& options) : plan_(plan), options_(options) {}

    std::string text() {
        outline();
        holdings("initial", plan_.initial);
        holdings("produced", plan_.produced);
        holdings("final", plan_.final);
        const std::size_t shown = std::min(options_.max_ranks, plan_.ranks.size());
        for (std::size_t rank = 0; rank < shown; ++rank) ops(rank);
        if (shown < plan_.ranks.size()) {
            std::size_t left = 0;
            for (std::size_t rank = shown; rank < plan_.ranks.size(); ++rank)
                left += plan_.ranks[rank].size();
            text_ += fmt::format("\n… {}, {}\n", counted(plan_.ranks.size() - shown, "more rank"),
                                 counted(left, "op"));
        }
        return std::move(text_);
    }

private:
    void outline() {
        text_ += "mesh    ";
        for (const Mesh::Axis& axis : plan_.mesh.axes) text_ += fmt::format(" {}={}", axis.name, axis.size);
        std::size_t ops = 0;
        for (const std::vector<Op>& list : plan_.ranks) ops += list.size();
        text_ += fmt::format(" ({}, {})\n", counted(plan_.ranks.size(), "rank"), counted(ops, "op"));
        for (const Tensor& tensor : plan_.tensors) {
            const Chunk whole{plan_.find_tensor(tensor.name).value_or(0), tensor.whole()};
            text_ += fmt::format(
                "tensor   {}  {} {}  {}\n", tensor.name, fmt::join(tensor.memory_shape(), "x"),
                name_of(tensor.dtype),
                human_bytes(tensor.ragged ? static_cast<std::int64_t>(tensor.bytes()) : plan_.bytes(whole)));
            if (!tensor.ragged) continue;
            const Ragged& of = *tensor.ragged;
            text_ += fmt::format("           axis {} ragged: at most {} rows, of {}", of.axis, of.bound,
                                 fmt::join(of.groups, kGroupsTimes));
            for (std::size_t i = 0; i < of.groups.size(); ++i)
                text_ += fmt::format("{}{}", i == 0 ? " (" : kGroupsTimes,
                                     tensor.shape[static_cast<std::size_t>(of.axis) + i]);
            text_ += ")\n";
        }
    }

    bool has_tensor(const Chunk& chunk) const {
        return chunk.tensor >= 0 && static_cast<std::size_t>(chunk.tensor) < plan_.tensors.size();
    }

    std::string chunk_text(const Chunk& chunk) const {
        if (!has_tensor(chunk)) return "?" + to_string(chunk.region);
        return region_text(plan_.tensors[at(chunk.tensor)], chunk.region);
    }

    std::string bytes_text(const Chunk& chunk) const {
        if (!has_tensor(chunk)) return "?";
        const bool most = plan_.tensors[at(chunk.tensor)].ragged.has_value();
        return (most ? "≤ " : "") + human_bytes(plan_.bytes(chunk));
    }

    static std::string rank_name(const std::int32_t& rank) { return std::to_string(rank); }
    static std::string op_name(const OpRef& ref) { return fmt::format("{}:{}", ref.rank, ref.index); }

    void holdings(std::string_view title, const std::vector<Holding>& entries) {
        if (entries.empty()) return;
        std::vector<Row> rows;
        for (std::size_t i = 0; i < std::min(options_.max_holdings, entries.size()); ++i) {
            const Holding& entry = entries[i];
            std::string as = entry.partial ? "contribution" : "";
            if (entry.of_all) as = "reduction over all ranks";
            if (!entry.of.empty()) as = "reduction over ranks " + joined(entry.of, 8, rank_name);
            rows.push_back(
                {std::to_string(entry.rank), chunk_text(entry.chunk), bytes_text(entry.chunk), as});
        }
        text_ += fmt::format("\n{}\n{}", title, layout({"rank", "region", "bytes", "as"}, rows));
        if (rows.size() < entries.size()) text_ += fmt::format("  … {} more\n", entries.size() - rows.size());
    }

    void ops(std::size_t rank) {
        const std::vector<Op>& list = plan_.ranks[rank];
        std::int64_t bytes = 0;
        for (const Op& op : list) {
            if (!has_tensor(op.src) || __builtin_add_overflow(bytes, plan_.bytes(op.src), &bytes)) bytes = 0;
        }
        text_ += fmt::format("\nrank {} ({}{}{})\n", rank, counted(list.size(), "op"),
                             list.empty() ? "" : ", ", list.empty() ? "" : human_bytes(bytes));
        if (list.empty()) return;
        std::vector<Row> rows;
        for (std::size_t i = 0; i < std::min(options_.max_ops, list.size()); ++i)
            rows.push_back(row(i, list[i]));
        text_ += layout(
            {"op", "kind", "peer", "source", "destination", "bytes", "reduce", "after", "backend", "channel"},
            rows);
        if (rows.size() < list.size())
            text_ += fmt::format("  … {}\n", counted(list.size() - rows.size(), "more op"));
    }

    Row row(std::size_t index, const Op& op) const {
        const bool collective = op.kind == OpKind::collective;
        const bool has_peer = op.kind == OpKind::push || op.kind == OpKind::pull;
        return {std::to_string(index),
                std::string(collective ? name_of(op.collective) : name_of(op.kind)),
                has_peer ? std::to_string(op.peer) : (collective ? joined(*op.ranks, 8, rank_name) : ""),
                chunk_text(op.src),
                op.src == op.dst ? "same" : chunk_text(op.dst),
                bytes_text(op.src),
                op.reduce == Reduce::none ? "" : std::string(name_of(op.reduce)),
                joined(op.after, 4, op_name),
                std::string(name_of(op.backend)),
                *op.channel};
    }

    const Plan& plan_;
    const TableOptions& options_;
    std::string text_;
};

}  // namespace

std::string to_table(const Plan& plan, const TableOptions& options) { return Table(plan, options).text(); }

}  // namespace syncopate::plan
