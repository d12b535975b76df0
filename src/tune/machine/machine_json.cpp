// A machine as JSON, schema syncopate.machine/1.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "syncopate/json_decoder.hpp"
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

class MachineDecoder : private JsonDecoder {
public:
    using JsonDecoder::JsonDecoder;

    Result<Machine> decode(std::string_view topology_text) {
        topology_text_ = topology_text;
        if (!machine()) return topology_error_ ? *topology_error_ : error();
        return std::move(machine_);
    }

private:
    bool machine() {
        const JsonPath root;
        static constexpr std::array<JsonField, 10> kFields{{{"schema", true},
                                                            {"name", true},
                                                            {"device", true},
                                                            {"about", false},
                                                            {"topology", true},
                                                            {"num_sms", true},
                                                            {"measured", false},
                                                            {"network", false},
                                                            {"figures", true},
                                                            {"tables", true}}};
        std::array<Index, kFields.size()> at;
        if (!fields(0, root, kFields, at)) return false;
        const auto [schema, name, device, about, topology, num_sms, measured, network, figures, tables] = at;
        std::string_view text;
        const JsonPath schema_path{&root, "schema"};
        if (!string(schema, schema_path, text)) return false;
        if (text != kSchema) {
            return fail(schema, schema_path,
                        fmt::format("is \"{}\"; this version reads \"{}\"", escaped(text), kSchema));
        }
        if (!string(name, {&root, "name"}, text)) return false;
        machine_.name = text;
        if (!string(device, {&root, "device"}, text)) return false;
        machine_.device = text;
        if (has(about)) {
            if (!string(about, {&root, "about"}, text)) return false;
            machine_.about = text;
        }
        return integer(num_sms, {&root, "num_sms"}, 1, kMostSms, machine_.num_sms) &&
               (!has(measured) || boolean(measured, {&root, "measured"}, machine_.measured)) &&
               topology_at(topology, {&root, "topology"}) &&
               (!has(network) || network_at(network, {&root, "network"})) &&
               entries(figures, {&root, "figures"}, Part::figures) &&
               entries(tables, {&root, "tables"}, Part::tables);
    }

    bool topology_at(Index node, const JsonPath& path) {
        if (document_.type(node) == Type::object) {
            Result<plan::Topology> made = plan::topology_from_json(topology_text_, machine_.name);
            if (!made) return fail(node, path, "is no topology: " + made.error().to_string());
            machine_.topology = *std::move(made);
            return true;
        }
        std::string_view text;
        if (!string(node, path, text)) return false;
        machine_.topology_name = text;
        Result<plan::Topology> found = plan::find_topology(machine_.topology_name);
        if (!found) {
            topology_error_ = found.error();
            return fail(node, path, "is unknown");
        }
        machine_.topology = *std::move(found);
        return true;
    }

    bool network_at(Index node, const JsonPath& path) {
        if (!entries(node, path, Part::network)) return false;
        Rates& rates = machine_.rates;
        if (rates.network_collective_gbps <= 0) rates.network_collective_gbps = rates.network_gbps;
        if (rates.network_gbps > 0) return true;
        return fail(node, path, "carries nothing: leave it out");
    }

    /// All that belongs to a part, each exactly once.
    bool entries(Index node, const JsonPath& path, Part part) {
        if (!is(node, path, Type::object, "an object")) return false;
        const std::vector<FigureRow> rows = rows_of(part);
        const bool known = members(node, path, [&](Index key, Index value, const JsonPath& here) {
            const auto row = std::ranges::find(rows, here.key, &FigureRow::name);
            if (row == rows.end() && is_retired(here.key)) {  // in files of before
                machine_.retired.emplace_back(here.key);
                return true;
            }
            if (row == rows.end()) return fail(key, here, "is no figure of a machine" + hint(here.key, rows));
            const std::string source = source_of(part, *row);
            if (machine_.sources.contains(source)) return fail(key, here, "is given twice");
            return entry(value, here, *row, source);
        });
        if (!known) return false;
        for (const FigureRow& row : rows) {
            if (row.figure == &Rates::network_collective_gbps) continue;  // files of before have none
            if (!machine_.sources.contains(source_of(part, row)))
                return fail(node, path, fmt::format("lacks \"{}\": {}", row.name, row.meaning));
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

    bool entry(Index node, const JsonPath& path, const FigureRow& row, const std::string& source) {
        static constexpr std::array<JsonField, 3> kValue{{{"value", true}, {"unit", true}, {"source", true}}};
        static constexpr std::array<JsonField, 3> kPoints{
            {{"points", true}, {"unit", true}, {"source", true}}};
        std::array<Index, 3> at;
        if (!fields(node, path, row.curve != nullptr ? kPoints : kValue, at)) return false;
        std::string_view text;
        const JsonPath unit_path{&path, "unit"};
        if (!string(at[1], unit_path, text)) return false;
        if (text != row.unit) {
            return fail(at[1], unit_path,
                        fmt::format("is \"{}\"; it is measured in \"{}\"", escaped(text), row.unit));
        }
        if (!string(at[2], {&path, "source"}, text)) return false;
        machine_.sources.emplace(source, text);
        if (row.curve != nullptr) return points(at[0], {&path, "points"}, machine_.rates.*row.curve);
        return number(at[0], {&path, "value"}, 0, kLargest, machine_.rates.*row.figure);
    }

    bool points(Index node, const JsonPath& path, Curve& curve) {
        if (!list(node, path, "a list of pairs", kMostPoints)) return false;
        const bool read = each(node, path, [&](Index pair, const JsonPath& pair_path) {
            std::pair<double, double> point;
            if (!tuple(pair, pair_path, "a pair of numbers")) return false;
            const Index second = document_.next(document_.first(pair));
            if (!number(document_.first(pair), pair_path, 0, kLargest, point.first) ||
                !number(second, pair_path, 0, kLargest, point.second))
                return false;
            if (!curve.points.empty() && point.first <= curve.points.back().first)
                return fail(pair, pair_path, "does not come after the point before it");
            curve.points.push_back(point);
            return true;
        });
        if (read && curve.points.empty()) return fail(node, path, "is empty");
        return read;
    }

    Machine machine_;
    std::string_view topology_text_;
    std::optional<Error> topology_error_;
};

/// The "topology" object's own text; "" where it is none.
std::string topology_text(std::string_view text) {
    const auto whole = nlohmann::ordered_json::parse(text, nullptr, false);
    if (!whole.is_object() || !whole.contains("topology") || !whole["topology"].is_object()) return {};
    return whole["topology"].dump();
}

}  // namespace

Result<Machine> machine_from_json(std::string_view text, const std::string& file_name) {
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file_name));
    const std::string topology = topology_text(text);
    return MachineDecoder(document, text, file_name, "the machine").decode(topology);
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
