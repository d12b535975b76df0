// Candidates as a table for people and as JSON for programs.
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "syncopate/at.hpp"
#include "syncopate/ingest/candidates/candidates.hpp"
#include "syncopate/names.hpp"

namespace syncopate::ingest {
namespace {

using Json = nlohmann::ordered_json;

std::string_view name_of(DotUse::Side side) {
    static constexpr std::array<std::string_view, 3> kNames{"lhs", "rhs", "result"};
    return kNames[at(side)];
}

std::string_view name_of(DotUse::Role role) {
    static constexpr std::array<std::string_view, 5> kNames{"unknown", "batch", "rows", "columns",
                                                            "contracted"};
    return kNames[at(role)];
}

std::string_view dimension_of(DotUse::Role role) {
    static constexpr std::array<std::string_view, 5> kNames{"", "batch", "M", "N", "K"};
    return kNames[at(role)];
}

/// ", at model.py:31"
std::string at_source(const std::string& source) {
    return source.empty() ? std::string() : ", at " + escaped(short_source(source), 60);
}

std::string sentence(const DotUse& dot) {
    std::string text =
        fmt::format("{} {} {}", dot.feeds ? "feeds" : "drains", escaped(dot.name), name_of(dot.side));
    if (dot.axis >= 0) {
        text += fmt::format(" axis {} ({})", dot.axis, dimension_of(dot.role));
    }
    text += fmt::format(": {}M={} N={} K={} {}", dot.batch == 1 ? "" : fmt::format("batch={} ", dot.batch),
                        dot.m, dot.n, dot.k, dot.dtype);
    if (!dot.through.empty()) text += fmt::format(" (through {})", fmt::join(dot.through, ", "));
    if (!dot.after.empty()) text += ", then " + dot.after;
    return text + at_source(dot.source);
}

std::string participants(const Candidate& candidate) {
    if (candidate.kind == "collective-permute" && !candidate.windowed && candidate.num_ranks > 0) {
        return fmt::format("{} pairs of {}", candidate.pairs.size(), candidate.num_ranks);
    }
    if (candidate.groups.empty()) return "-";
    if (candidate.groups.size() == 1) return fmt::format("{} ranks", candidate.groups[0].size());
    return fmt::format("{} × {} ranks", candidate.groups.size(), candidate.groups[0].size());
}

Json to_json(const DotUse& dot) {
    Json json{{"name", dot.name},
              {"line", dot.where.line},
              {"source", dot.source},
              {"feeds", dot.feeds},
              {"side", name_of(dot.side)},
              {"axis", dot.axis},
              {"role", name_of(dot.role)},
              {"batch", dot.batch},
              {"M", dot.m},
              {"N", dot.n},
              {"K", dot.k},
              {"dtype", dot.dtype},
              {"through", dot.through},
              {"after", dot.after}};
    return json;
}

Json to_json(const Candidate& candidate, std::size_t number) {
    Json json{{"number", number},
              {"kind", candidate.kind},
              {"name", candidate.name},
              {"computation", candidate.computation},
              {"line", candidate.where.line},
              {"column", candidate.where.column},
              {"source", candidate.source},
              {"async", candidate.async},
              {"windowed", candidate.windowed},
              {"in_loop", candidate.in_loop},
              {"trips", candidate.trips},
              {"ranks", candidate.num_ranks},
              {"groups", candidate.groups},
              {"pairs", candidate.pairs},
              {"reduce", plan::name_of(candidate.reduce)},
              {"chunks", candidate.chunks},
              {"operator", candidate.operator_name()},
              {"spec", candidate.spec()},
              {"problem", candidate.problem},
              {"why", candidate.why}};
    Json& exchanges = json["exchanges"] = Json::array();
    for (const Exchange& exchange : candidate.exchanges) {
        Json& made = exchanges.emplace_back(Json{{"tensor", exchange.tensor},
                                                 {"before", exchange.before.to_string()},
                                                 {"after", exchange.after.to_string()},
                                                 {"axis", exchange.axis},
                                                 {"dots", Json::array()}});
        for (const DotUse& dot : exchange.dots) made["dots"].push_back(to_json(dot));
    }
    return json;
}

}  // namespace

std::string short_source(const std::string& source) {
    const std::size_t slash = source.find_last_of("/\\");
    return slash == source.npos ? source : source.substr(slash + 1);
}

std::string candidates_table(const std::vector<Candidate>& candidates) {
    if (candidates.empty()) return "no collectives\n";
    std::size_t kind_width = 4;
    std::size_t who_width = 5;
    std::size_t name_width = 4;
    for (const Candidate& candidate : candidates) {
        kind_width = std::max(kind_width, candidate.kind.size() + (candidate.windowed ? 7 : 0));
        who_width = std::max(who_width, participants(candidate).size());
        name_width = std::max(name_width, std::min<std::size_t>(candidate.name.size(), 40));
    }
    std::string text = fmt::format("{:>3}  {:{}}  {:{}}  {:{}}  arrays, and the dots they feed or drain\n",
                                   "no", "kind", kind_width, "name", name_width, "ranks", who_width);
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        const Candidate& candidate = candidates[i];
        const std::string indent(3 + 2 + kind_width + 2 + name_width + 2 + who_width + 2, ' ');
        text += fmt::format("{:>3}  {:{}}  {:{}}  {:{}}  ", i,
                            candidate.kind + (candidate.windowed ? " (loop)" : ""), kind_width,
                            escaped(candidate.name, 40), name_width, participants(candidate), who_width);
        auto line = [&, first = true](const std::string& what) mutable {
            if (!first) text += indent;
            first = false;
            text += what + '\n';
        };
        std::string source = at_source(candidate.source);
        for (const Exchange& exchange : candidate.exchanges) {
            std::string what = escaped(exchange.tensor, 40) + " " + exchange.before.to_string();
            if (exchange.after != exchange.before) what += " -> " + exchange.after.to_string();
            if (exchange.axis >= 0)
                what += fmt::format(", {} chunks along axis {}", candidate.chunks, exchange.axis);
            line(what + std::exchange(source, {}));
            for (const DotUse& dot : exchange.dots) line("  " + sentence(dot));
        }
        if (candidate.in_loop && !candidate.windowed) {
            line(candidate.trips >= 0 ? fmt::format("  in a loop of {} iterations", candidate.trips)
                                      : "  in a loop whose number of iterations is not known");
        }
        if (const std::string name = candidate.operator_name(); !name.empty()) {
            const std::string spec = candidate.spec();
            line("  = " + name + (spec.empty() ? "" : ", run as " + spec));
        }
        for (const std::string& why : candidate.why) line("  " + why);
        if (!candidate.problem.empty()) line("  no plan: " + candidate.problem);
    }
    return text;
}

std::string candidates_json(const std::vector<Candidate>& candidates) {
    Json answer{{"candidates", Json::array()}};
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        answer["candidates"].push_back(to_json(candidates[i], i));
    }
    return answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace syncopate::ingest
