// A machine as JSON, schema syncopate.machine/1.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "syncopate/json_table.hpp"
#include "syncopate/json_text.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"
#include "syncopate/tune/machine/machine.hpp"

namespace syncopate::tune {
namespace {

constexpr std::string_view kSchema = "syncopate.machine/1";
constexpr double kLargest = 1e12;
constexpr std::int32_t kMostPoints = 1000;
constexpr std::int32_t kMostSms = 100'000;

/// A part of the file that holds figures.
enum class Part : std::uint8_t { figures, tables, network };

std::vector<FigureRow> rows_of(Part part) {
    if (part == Part::network) return {network_figures().begin(), network_figures().end()};
    std::vector<FigureRow> rows;
    for (const FigureRow& row : machine_figures()) {
        if ((row.curve != nullptr) == (part == Part::tables)) rows.push_back(row);
    }
    return rows;
}

/// Under which Machine::sources has it.
std::string source_of(Part part, const FigureRow& row) {
    return part == Part::network ? network_source(row.name) : std::string(row.name);
}

class MachineReader : public JsonReader {
public:
    using JsonReader::JsonReader;

    Result<Machine> machine() {
        const JsonPath root;
        const auto of = [this](Part part) { return [this, part](JsonAt at) { return figures(at, part); }; };
        if (!object({0, &root}, required("schema", schema(kSchema)), required("name", text(machine_.name)),
                    required("device", text(machine_.device)), optional("about", text(machine_.about)),
                    required("num_sms", integer(machine_.num_sms, 1, kMostSms)),
                    optional("measured", flag(machine_.measured)),
                    required("topology", [this](JsonAt at) { return topology(at); }),
                    optional("network", [this](JsonAt at) { return network(at); }),
                    required("figures", of(Part::figures)), required("tables", of(Part::tables))))
            return error();
        return std::move(machine_);
    }

private:
    bool topology(JsonAt at) {
        const bool named = document_.type(at.node) != Type::object;
        if (named && !text(machine_.topology_name)(at)) return false;
        Result<plan::Topology> made = named
                                          ? plan::find_topology(machine_.topology_name)
                                          : plan::topology_from_json(document_.compact(at.node), file_name_);
        if (!made)
            return named ? fail(made.error()) : fail(at, "is no topology: " + made.error().to_string());
        machine_.topology = *std::move(made);
        return true;
    }

    bool network(JsonAt at) {
        if (!figures(at, Part::network)) return false;
        Rates& rates = machine_.rates;
        if (rates.network_collective_gbps <= 0) rates.network_collective_gbps = rates.network_gbps;
        return rates.network_gbps > 0 || fail(at, "carries nothing: leave it out");
    }

    /// All that belongs to a part, each exactly once.
    bool figures(JsonAt at, Part part) {
        const std::vector<FigureRow> rows = rows_of(part);
        const bool known = entries(at, [&](std::string_view name, JsonAt here) {
            const auto row = std::ranges::find(rows, name, &FigureRow::name);
            if (row == rows.end() && is_retired(name)) {  // in files of before
                machine_.retired.emplace_back(name);
                return true;
            }
            if (row == rows.end()) return fail(key_of(here), "is no figure of a machine" + hint(name, rows));
            const auto [source, first] = machine_.sources.try_emplace(source_of(part, *row));
            return first ? figure(here, *row, source->second) : fail(key_of(here), "is given twice");
        });
        if (!known) return false;
        for (const FigureRow& row : rows) {
            if (row.figure == &Rates::network_collective_gbps) continue;  // files of before have none
            if (!machine_.sources.contains(source_of(part, row)))
                return fail(at, fmt::format("lacks \"{}\": {}", row.name, row.meaning));
        }
        return true;
    }

    /// Figures that machine files had, and nobody reads any more.
    static bool is_retired(std::string_view name) {
        static constexpr std::array<std::string_view, 33> kRetired{"copies_us",
                                                                   "engine_sum_ldst",
                                                                   "engine_us",
                                                                   "engine_walk_us",
                                                                   "gluon_beside_sums",
                                                                   "gluon_call_us",
                                                                   "gluon_filled",
                                                                   "gluon_fused_us",
                                                                   "gluon_memory_gbps",
                                                                   "gluon_narrow",
                                                                   "gluon_split_gbps",
                                                                   "gluon_split_us",
                                                                   "gluon_sum_gbps",
                                                                   "idle_gain",
                                                                   "kernel_sums_gbps",
                                                                   "kernel_sums_us",
                                                                   "last_us",
                                                                   "library_call_us",
                                                                   "library_load_gbps",
                                                                   "library_tile_us",
                                                                   "mixed_narrow",
                                                                   "packed_tile_us",
                                                                   "part_us",
                                                                   "poll_us",
                                                                   "pulled_last_gbps",
                                                                   "pulled_us",
                                                                   "read_us",
                                                                   "sent_us",
                                                                   "shared_kib",
                                                                   "sm_fp32_tflops",
                                                                   "sm_mhz",
                                                                   "sm_tf32_tflops",
                                                                   "stored_contended"};
        return std::ranges::find(kRetired, name) != kRetired.end();
    }

    static std::string hint(std::string_view name, const std::vector<FigureRow>& rows) {
        std::vector<std::string_view> known;
        for (const FigureRow& row : rows) known.push_back(row.name);
        return did_you_mean(name, known);
    }

    bool figure(JsonAt at, const FigureRow& row, std::string& source) {
        const auto unit = [&](JsonAt inner) {
            std::string given;
            return text(given)(inner) &&
                   (given == row.unit || fail(inner, fmt::format("is \"{}\"; it is measured in \"{}\"",
                                                                 escaped(given), row.unit)));
        };
        const bool is_table = row.curve != nullptr;
        const auto value = [&](JsonAt inner) {
            return is_table ? points(inner, machine_.rates.*row.curve)
                            : number(machine_.rates.*row.figure, 0, kLargest)(inner);
        };
        return object(at, required("unit", unit), required("source", text(source)),
                      required(is_table ? "points" : "value", value));
    }

    bool points(JsonAt at, Curve& curve) {
        const auto point = [&](JsonAt inner) {
            std::pair<double, double> made;
            if (!row(inner, "a pair of numbers", number(made.first, 0, kLargest),
                     number(made.second, 0, kLargest)))
                return false;
            if (!curve.points.empty() && made.first <= curve.points.back().first)
                return fail(inner, "does not come after the point before it");
            curve.points.push_back(made);
            return true;
        };
        return elements("a list of pairs", kMostPoints, point)(at) &&
               (!curve.points.empty() || fail(at, "is empty"));
    }

    Machine machine_;
};

}  // namespace

Result<Machine> machine_from_json(std::string_view text, const std::string& file_name) {
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file_name));
    return MachineReader(document, text, file_name, "the machine").machine();
}

std::string to_json(const Machine& machine) {
    std::string text = "{\"schema\": " + json_quoted(std::string(kSchema)) +
                       ",\n \"name\": " + json_quoted(machine.name) +
                       ",\n \"device\": " + json_quoted(machine.device);
    if (!machine.about.empty()) text += ",\n \"about\": " + json_quoted(machine.about);
    std::string topology = json_quoted(machine.topology_name);
    if (machine.topology_name.empty()) {
        topology = plan::to_json(machine.topology);
        while (topology.ends_with('\n')) topology.pop_back();
    }
    text += ",\n \"topology\": " + topology + fmt::format(",\n \"num_sms\": {}", machine.num_sms);
    if (!machine.measured) text += ",\n \"measured\": false";
    for (const auto& [part, name] :
         {std::pair(Part::network, "network"), {Part::figures, "figures"}, {Part::tables, "tables"}}) {
        if (part == Part::network && machine.rates.network_gbps <= 0) continue;
        text += fmt::format(",\n \"{}\": {{", name);
        std::string_view between = "\n";
        for (const FigureRow& row : rows_of(part)) {
            const auto source = machine.sources.find(source_of(part, row));
            std::string value;
            if (row.curve != nullptr) {
                for (const auto& [x, y] : (machine.rates.*row.curve).points)
                    value += fmt::format("{}[{}, {}]", value.empty() ? "" : ", ", x, y);
                value = "\"points\": [" + value + "]";
            } else {
                value = fmt::format("\"value\": {}", machine.rates.*row.figure);
            }
            text +=
                fmt::format("{}  \"{}\": {{{}, \"unit\": \"{}\", \"source\": {}}}", between, row.name, value,
                            row.unit, json_quoted(source == machine.sources.end() ? "" : source->second));
            between = ",\n";
        }
        text += "}";
    }
    return text + "}\n";
}

}  // namespace syncopate::tune
