#include "syncopate/tune/machine/measured.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "syncopate/names.hpp"
#include "syncopate/try.hpp"
#include "syncopate/tune/candidates/gluon_tiles.hpp"
#include "syncopate/tune/choose.hpp"

namespace syncopate::tune {
namespace {

bool is_positive(const nlohmann::json& value) {
    return value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() > 0;
}

bool is_figure(std::string_view name) {
    return std::ranges::any_of(
        machine_figures(), [&](const FigureRow& row) { return row.figure != nullptr && row.name == name; });
}

Status read_figures(const nlohmann::json& figures, Measurement& made) {
    for (const auto& [name, entry] : figures.items()) {
        if (!is_figure(name))
            return Error{fmt::format("figures.{}: is no figure of a machine", escaped(name))};
        if (!entry.is_object() || !entry.contains("value") || !is_positive(entry["value"]) ||
            !entry.contains("source") || !entry["source"].is_string())
            return Error{fmt::format("figures.{}: expected a positive value and its source", escaped(name))};
        made.figures[name] = {entry["value"].get<double>(), entry["source"].get<std::string>()};
    }
    return Done{};
}

Status read_tables(const nlohmann::json& tables, Measurement& made) {
    for (const auto& [name, entry] : tables.items()) {
        bool known = false;
        for (const FigureRow& row : machine_figures()) known |= row.curve != nullptr && row.name == name;
        if (!known) return Error{fmt::format("tables.{}: is no table of a machine", escaped(name))};
        if (!entry.is_object() || !entry.contains("points") || !entry["points"].is_array() ||
            entry["points"].empty() || !entry.contains("source") || !entry["source"].is_string())
            return Error{fmt::format("tables.{}: expected points and their source", escaped(name))};
        MeasuredTable& table = made.tables[name];
        table.source = entry["source"].get<std::string>();
        for (const auto& point : entry["points"]) {
            const bool pair = point.is_array() && point.size() == 2;
            if (!pair || !is_positive(point[0]) || !(is_positive(point[1]) || point[1] == 0))
                return Error{fmt::format(
                    "tables.{}: a point is a positive number and one that is not negative", escaped(name))};
            const double x = point[0].get<double>();
            if (!table.curve.points.empty() && x <= table.curve.points.back().first)
                return Error{fmt::format("tables.{}: {} does not come after {}", escaped(name), x,
                                         table.curve.points.back().first)};
            table.curve.points.emplace_back(x, point[1].get<double>());
        }
    }
    return Done{};
}

Result<TimedProduct> product_from(const nlohmann::json& entry) {
    constexpr std::size_t kMembers = 9;
    if (!entry.is_array() || entry.size() != kMembers || !std::ranges::all_of(entry, is_positive) ||
        !std::all_of(entry.begin(), entry.end() - 1,
                     [](const auto& value) { return value.is_number_integer(); }))
        return Error{"expected M, N, K, block_m, block_n, block_k, stages, split_k and a time, all positive"};
    TimedProduct product{
        .shape = {entry[0].get<std::int64_t>(), entry[1].get<std::int64_t>(), entry[2].get<std::int64_t>()},
        .us = entry.back().get<double>()};
    product.tile = {.block_m = entry[3].get<std::int32_t>(),
                    .block_n = entry[4].get<std::int32_t>(),
                    .block_k = entry[5].get<std::int32_t>(),
                    .stages = entry[6].get<std::int32_t>(),
                    .split_k = entry[7].get<std::int32_t>()};
    const std::string objection = gluon_objection({}, product.shape, product.tile);
    return objection.empty() ? Result<TimedProduct>(product) : Error{objection};
}

Result<TimedCall> call_from(const nlohmann::json& entry) {
    if (!entry.is_array() || entry.size() != 4 ||
        !std::all_of(entry.begin(), entry.end() - 1, [](const auto& value) { return value.is_string(); }) ||
        !is_positive(entry[3]))
        return Error{"expected a figure, a problem, a strategy, and a time that is positive"};
    TimedCall call{.figure = entry[0].get<std::string>(), .us = entry[3].get<double>()};
    if (!is_figure(call.figure))
        return Error{fmt::format("{}: is no figure of a machine", escaped(call.figure))};
    SYNCOPATE_TAKE(Problem problem, parse_problem(entry[1].get<std::string>()));
    SYNCOPATE_TAKE(Strategy strategy, strategy_from_json(entry[2].get<std::string>(), "the strategy"));
    call.problem = std::move(problem);
    call.strategy = std::move(strategy);
    return call;
}

/// What is measured of each kind, by `from`; a machine without any has no such list.
template <typename Timed>
Status read_list(const nlohmann::json& read, const char* name, Result<Timed> (*from)(const nlohmann::json&),
                 std::vector<Timed>& made) {
    if (!read.contains(name)) return Done{};
    const auto& list = read[name];
    if (!list.is_array()) return Error{fmt::format("{}: expected a list", name)};
    for (std::size_t at = 0; at < list.size(); ++at) {
        Result<Timed> one = from(list[at]);
        if (!one) return Error{fmt::format("{}[{}]: {}", name, at, one.error().message)};
        made.push_back(*std::move(one));
    }
    return Done{};
}

using Figures = std::map<std::string, MeasuredFigure, std::less<>>;

void add(const ProductFit& fit, const std::string& of, Figures& figures) {
    const std::string source =
        fmt::format("fitted to the times of {}: {:.0f} % off on average", of, 100 * fit.off);
    for (const auto& [name, value] : fit.figures) figures[name] = {value, source};
}

/// Adds the figures that the times of products give, where there are enough to tell these from each other.
void add_fitted(const Measurement& measurement, Machine machine, Figures& figures) {
    constexpr std::size_t kEnough = 12;
    for (const FigureRow& row : machine_figures()) {
        const auto measured = figures.find(row.name);
        if (row.figure != nullptr && measured != figures.end())
            machine.rates.*row.figure = measured->second.value;
    }
    const std::vector<TimedProduct>& gluon = measurement.products;
    if (gluon.size() >= kEnough && machine.rates.gluon_tflops > 0)
        add(fit_gluon(gluon, machine), fmt::format("{} tilings of products", gluon.size()), figures);
}

}  // namespace

Result<Measurement> measurement_from_json(std::string_view text) {
    const auto read = nlohmann::json::parse(text, nullptr, false);
    if (!read.is_object()) return Error{"a measurement is a JSON object with figures and links"};
    Measurement made;
    if (read.contains("figures")) {
        const Status figures = read_figures(read["figures"], made);
        if (!figures) return figures.error();
    }
    if (read.contains("tables")) {
        const Status tables = read_tables(read["tables"], made);
        if (!tables) return tables.error();
    }
    SYNCOPATE_TRY(read_list(read, "products", product_from, made.products));
    SYNCOPATE_TRY(read_list(read, "calls", call_from, made.calls));
    if (!read.contains("links")) return made;
    const auto& links = read["links"];
    const auto take = [&](const char* name, std::optional<double>& place) -> Status {
        if (!links.contains(name)) return Done{};
        if (!is_positive(links[name]))
            return Error{fmt::format("links.{}: expected a positive number", name)};
        place = links[name].get<double>();
        return Done{};
    };
    for (const Status& taken : {take("gbps", made.link_gbps), take("push_us", made.link_push_us),
                                take("pull_us", made.link_pull_us), take("repeat_us", made.link_repeat_us),
                                take("signal_us", made.signal_us)}) {
        if (!taken) return taken.error();
    }
    return made;
}

Machine with_network(Machine machine, const Network& network, const std::string& source) {
    machine.rates.network_gbps = network.gbps;
    machine.rates.network_us = network.us;
    machine.rates.network_collective_gbps = network.collective_gbps;
    for (const FigureRow& row : network_figures())
        machine.sources[network_source(row.name)] = "measured here: " + source;
    return machine;
}

Result<Machine> machine_of(const Measurement& measurement) {
    SYNCOPATE_TAKE(NearestMachine nearest,
                   nearest_shipped_machine(measurement.device, measurement.devices, measurement.num_sms));
    const std::string other = nearest.machine.name;
    Machine machine = std::move(nearest.machine);
    machine.name = fmt::format("measured x{}", measurement.devices);
    machine.device = measurement.device;
    machine.num_sms = measurement.num_sms;
    machine.about = fmt::format("{} x {}, measured by syncopate tune --measure-machine", measurement.devices,
                                measurement.device);
    Figures figures = measurement.figures;
    add_fitted(measurement, machine, figures);
    for (const TimedCall& call : measurement.calls)
        figures.erase(call.figure);  // starts at the other machine's
    for (const FigureRow& row : machine_figures()) {
        const auto measured = figures.find(row.name);
        std::string& source = machine.sources[std::string(row.name)];
        if (row.figure != nullptr && measured != figures.end()) {
            machine.rates.*row.figure = measured->second.value;
            source = "measured here: " + measured->second.source;
        } else if (const auto table = measurement.tables.find(row.name);
                   row.curve != nullptr && table != measurement.tables.end()) {
            machine.rates.*row.curve = table->second.curve;
            source = "measured here: " + table->second.source;
        } else {
            source = fmt::format("that of {}: {}", other, source);
        }
    }
    if (measurement.link_gbps) {
        for (plan::Link& link : machine.topology.links) link.gbps = *measurement.link_gbps;
        machine.topology_name.clear();
    }
    plan::Engine& copies = machine.topology.copy_engine;
    if (measurement.link_push_us) copies.push_us = *measurement.link_push_us;
    if (measurement.link_pull_us) copies.pull_us = *measurement.link_pull_us;
    if (measurement.link_repeat_us) copies.repeat_us = *measurement.link_repeat_us;
    if (measurement.signal_us) machine.topology.sm.wait_us = *measurement.signal_us;
    if (measurement.link_push_us || measurement.link_pull_us || measurement.signal_us)
        machine.topology_name.clear();
    if (machine.topology.num_devices() != measurement.devices || machine.topology_name.empty()) {
        machine.topology_name.clear();
        machine.topology.name = machine.name;
        machine.topology.about =
            measurement.link_gbps ? "links measured here, the rest " + other : "that of " + other;
    }
    for (const auto& [name, fit] : fit_calls(measurement.calls, machine)) {
        const auto row = std::ranges::find(machine_figures(), std::string_view(name), &FigureRow::name);
        machine.rates.*row->figure = fit.value;
        machine.sources[name] = "measured here: " + fit.source;
    }
    machine.measured = std::ranges::none_of(
        machine.sources, [](const auto& figure) { return figure.second.starts_with("that of "); });
    return machine;
}

}  // namespace syncopate::tune
