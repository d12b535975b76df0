#include "syncopate/tune/machine/measured.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "syncopate/json_table.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"
#include "syncopate/tune/candidates/gluon_tiles.hpp"
#include "syncopate/tune/choose.hpp"

namespace syncopate::tune {
namespace {

constexpr double kLargest = 1e12;
constexpr std::int32_t kMost = 1 << 20;

class MeasurementReader : public JsonReader {
public:
    using JsonReader::JsonReader;

private:
    // Walks come before their users, who need their types.
    auto positive(double& out) {
        return [this, &out](JsonAt at) {
            return number(out, 0, kLargest)(at) && (out > 0 || fail(at, "is 0; expected a positive number"));
        };
    }
    auto positive(std::optional<double>& out) {
        return [this, &out](JsonAt at) { return positive(out.emplace())(at); };
    }
    /// Elements of one kind, each read by `read`.
    template <typename Timed>
    auto each_by(bool (MeasurementReader::*read)(JsonAt, Timed&), std::vector<Timed>& out) {
        return elements("a list", kMost,
                        [this, read, &out](JsonAt at) { return (this->*read)(at, out.emplace_back()); });
    }

public:
    Result<Measurement> measurement() {
        const JsonPath root;
        const auto links = [this](JsonAt at) {
            return object(at, optional("gbps", positive(made_.link_gbps)),
                          optional("push_us", positive(made_.link_push_us)),
                          optional("pull_us", positive(made_.link_pull_us)),
                          optional("repeat_us", positive(made_.link_repeat_us)),
                          optional("signal_us", positive(made_.signal_us)));
        };
        if (!object({0, &root}, optional("figures", [this](JsonAt at) { return figures(at); }),
                    optional("tables", [this](JsonAt at) { return tables(at); }), optional("links", links),
                    optional("products", each_by(&MeasurementReader::product, made_.products)),
                    optional("calls", each_by(&MeasurementReader::call, made_.calls))))
            return error();
        return std::move(made_);
    }

private:
    [[nodiscard]] bool is_figure(JsonAt at, std::string_view name, bool is_table) {
        const auto row = std::ranges::find(machine_figures(), name, &FigureRow::name);
        return (row != machine_figures().end() && (row->curve != nullptr) == is_table) ||
               fail(at, fmt::format("names {}, which is no {} of a machine", escaped(name),
                                    is_table ? "table" : "figure"));
    }

    bool twice(JsonAt at) { return fail(at, "is given twice"); }

    bool figures(JsonAt at) {
        return entries(at, [&](std::string_view name, JsonAt inner) {
            if (made_.figures.contains(std::string(name))) return twice(inner);
            MeasuredFigure& figure = made_.figures[std::string(name)];
            return is_figure(at, name, false) && object(inner, required("value", positive(figure.value)),
                                                        required("source", text(figure.source)));
        });
    }

    bool tables(JsonAt at) {
        return entries(at, [&](std::string_view name, JsonAt inner) {
            if (made_.tables.contains(std::string(name))) return twice(inner);
            MeasuredTable& table = made_.tables[std::string(name)];
            auto& points = table.curve.points;
            const auto point = [&](JsonAt pair) {
                const double before = points.empty() ? 0 : points.back().first;
                auto& [x, y] = points.emplace_back();
                return row(pair, "a pair of numbers", positive(x), number(y, 0, kLargest)) &&
                       (x > before ||
                        fail(pair, fmt::format("has {}, which does not come after {}", x, before)));
            };
            return is_figure(at, name, true) &&
                   object(inner, required("points", elements("points", kMost, point)),
                          required("source", text(table.source))) &&
                   (!points.empty() || fail(inner, "has no points"));
        });
    }

    bool product(JsonAt at, TimedProduct& made) {
        ProductShape& shape = made.shape;
        TileConfig& tile = made.tile;
        if (!row(at, "[M, N, K, block_m, block_n, block_k, stages, split_k, us]", integer(shape.m, 1),
                 integer(shape.n, 1), integer(shape.k, 1), integer(tile.block_m, 1), integer(tile.block_n, 1),
                 integer(tile.block_k, 1), integer(tile.stages, 1), integer(tile.split_k, 1),
                 positive(made.us)))
            return false;
        const std::string objection = gluon_objection({}, shape, tile);
        return objection.empty() || fail(at, "cannot be: " + objection);
    }

    bool call(JsonAt at, TimedCall& made) {
        std::string problem, strategy;
        return row(at, "[figure, problem, strategy, us]", text(made.figure), text(problem), text(strategy),
                   positive(made.us)) &&
               is_figure(at, made.figure, false) && take(at, parse_problem(problem), made.problem) &&
               take(at, strategy_from_json(strategy, "the strategy"), made.strategy);
    }
    template <typename T>
    bool take(JsonAt at, Result<T> read, T& out) {
        if (!read) return fail(at, "cannot be: " + read.error().message);
        out = *std::move(read);
        return true;
    }

    Measurement made_;
};

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
    const std::string file_name;
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file_name));
    return MeasurementReader(document, text, file_name, "the measurement").measurement();
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
