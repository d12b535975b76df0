#include <iterator>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/json_table.hpp"
#include "syncopate/json_text.hpp"
#include "syncopate/names.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/try.hpp"

namespace syncopate::plan {
namespace {

constexpr double kLargest = 1e9;   // GB/s and µs: far beyond any machine
constexpr double kSlowest = 1e-6;  // GB/s
constexpr std::int32_t kMaxLinks = 1 << 20;
constexpr std::int32_t kMaxSwitches = 1 << 16;

class TopologyReader : public JsonReader {
public:
    using JsonReader::JsonReader;

private:
    // Before their users, who need their types.
    auto bandwidth(double& out) { return number(out, kSlowest, kLargest); }
    auto microseconds(double& out) { return number(out, 0, kLargest); }
    auto pair(double& gbps, double& latency_us) {
        return [this, &gbps, &latency_us](JsonAt at) {
            return object(at, optional("gbps", bandwidth(gbps)),
                          required("latency_us", microseconds(latency_us)));
        };
    }

public:
    bool value(JsonAt at, Topology& made) {
        const auto link = [&](JsonAt inner) { return this->link(inner, made); };
        return object(at, required("schema", schema("syncopate.topology/1")),
                      required("name", text(made.name)), optional("about", text(made.about)),
                      required("devices", [&](JsonAt inner) { return devices(inner, made); }),
                      optional("switches", elements("a list of names", kMaxSwitches,
                                                    [&](JsonAt inner) { return switch_of(inner, made); })),
                      required("links", elements("a list of {\"from\", \"to\", \"gbps\"}", kMaxLinks, link)),
                      required("engines", [&](JsonAt inner) { return engines(inner, made); }),
                      optional("local", pair(made.local_gbps, made.local_us)),
                      optional("library", pair(made.library_gbps, made.library_us)),
                      optional("start_us", microseconds(made.start_us)),
                      optional("skew_us", microseconds(made.skew_us)),
                      optional("forwarding", flag(made.forwarding)));
    }

private:
    bool devices(JsonAt at, Topology& made) {
        const auto device = [&](JsonAt inner) {
            std::int32_t count = 0;
            Device one;
            if (!object(inner, required("count", integer(count, 1, kMaxRanks)),
                        optional("node", integer(one.node, 0, kMaxRanks - 1)),
                        optional("egress_gbps", bandwidth(one.egress_gbps)),
                        optional("ingress_gbps", bandwidth(one.ingress_gbps))))
                return false;
            if (made.num_devices() + count > kMaxRanks)
                return fail(inner, fmt::format("takes the topology above {} devices", kMaxRanks));
            made.devices.insert(made.devices.end(), static_cast<std::size_t>(count), one);
            return true;
        };
        return elements("a list of {\"count\", …}", kMaxRanks, device)(at) &&
               (!made.devices.empty() || fail(at, "is empty; it needs at least one device"));
    }

    bool switch_of(JsonAt at, Topology& made) {
        std::string name;
        if (!text(name)(at)) return false;
        if (name.empty()) return fail(at, "is an empty name");
        const auto vertex = made.num_devices() + static_cast<std::int32_t>(made.switches.size());
        if (!vertex_of_.emplace(name, vertex).second)
            return fail(at, "names \"" + escaped(name) + "\" a second time");
        made.switches.push_back(std::move(name));
        return true;
    }

    bool link(JsonAt at, Topology& made) {
        Link link;
        bool one_way = false;
        const auto end = [&](std::int32_t& out) {
            return [this, &made, &out](JsonAt inner) { return vertex(inner, made, out); };
        };
        if (!object(
                at, required("from", end(link.from)), required("to", end(link.to)),
                required("gbps", bandwidth(link.gbps)), optional("latency_us", microseconds(link.latency_us)),
                optional("contended", number(link.contended, 0.01, 1)), optional("one_way", flag(one_way))))
            return false;
        if (link.from == link.to) return fail(at, "leads back to where it starts");
        made.links.push_back(link);
        if (!one_way) {
            std::swap(link.from, link.to);
            made.links.push_back(link);
        }
        return true;
    }

    /// A device's number or a switch's name.
    bool vertex(JsonAt at, const Topology& made, std::int32_t& out) {
        if (document_.type(at.node) == Type::string) {
            const std::string_view name = document_.text(at.node);
            const auto found = vertex_of_.find(std::string(name));
            if (found == vertex_of_.end()) {
                const std::string hint = did_you_mean(name, made.switches);
                return fail(at, "names an unknown switch \"" + escaped(name) + "\"" +
                                    (hint.empty() ? fmt::format("; the switches are {}",
                                                                fmt::join(made.switches, ", "))
                                                  : hint));
            }
            out = found->second;
            return true;
        }
        if (document_.type(at.node) != Type::integer)
            return fail(
                at, "is " + document_.describe(at.node) + "; expected a device's number or a switch's name");
        const std::int64_t number = document_.integer(at.node);
        if (number < 0 || number >= made.num_devices())
            return fail(
                at, fmt::format("is {}; the topology has devices 0 to {}", number, made.num_devices() - 1));
        out = static_cast<std::int32_t>(number);
        return true;
    }

    bool engines(JsonAt at, Topology& made) {
        return object(
            at, required("copy_engine", [&](JsonAt inner) { return engine(inner, false, made.copy_engine); }),
            required("sm", [&](JsonAt inner) { return engine(inner, true, made.sm); }),
            optional("network", [&](JsonAt inner) { return engine(inner, false, made.network.emplace()); }));
    }

    bool engine(JsonAt at, bool of_blocks, Engine& out) {
        const auto blocks = [&](JsonAt inner) {
            return of_blocks ? integer(out.blocks, 1, 1 << 16)(inner) : fail(inner, "belongs to sm only");
        };
        return object(
                   at, optional("lanes", integer(out.lanes, 1, 1024)),
                   optional("per_peer", flag(out.per_peer)), optional("push_us", microseconds(out.push_us)),
                   optional("repeat_us",
                            [&](JsonAt inner) { return microseconds(out.repeat_us.emplace())(inner); }),
                   optional("pull_us", microseconds(out.pull_us)),
                   optional("post_us", microseconds(out.post_us)),
                   optional("wait_us", microseconds(out.wait_us)), optional("gbps", bandwidth(out.gbps)),
                   optional("blocks", blocks), optional("gbps_per_block", bandwidth(out.gbps_per_block))) &&
               ((out.blocks > 0) == (out.gbps_per_block > 0) ||
                fail(at, "has one of \"blocks\" and \"gbps_per_block\"; it needs both or none"));
    }

    std::unordered_map<std::string, std::int32_t> vertex_of_;  ///< switches
};

/// ", "key": value", if it is not what reading takes for granted.
std::string optional_figure(std::string_view key, double value, double granted) {
    return value == granted ? std::string() : fmt::format(", \"{}\": {}", key, value);
}

std::string engine_text(const Engine& engine) {
    std::string text = fmt::format("{{\"lanes\": {}", engine.lanes);
    if (engine.per_peer) text += ", \"per_peer\": true";
    text += optional_figure("push_us", engine.push_us, 0) +
            (engine.repeat_us ? fmt::format(", \"repeat_us\": {}", *engine.repeat_us) : std::string()) +
            optional_figure("pull_us", engine.pull_us, 0) + optional_figure("post_us", engine.post_us, 0) +
            optional_figure("wait_us", engine.wait_us, 0) + optional_figure("gbps", engine.gbps, kUnlimited);
    if (engine.blocks > 0) {
        text += fmt::format(", \"blocks\": {}, \"gbps_per_block\": {}", engine.blocks, engine.gbps_per_block);
    }
    return text + "}";
}

}  // namespace

Result<Topology> topology_from_json(std::string_view text, const std::string& file_name) {
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file_name));
    TopologyReader reader(document, text, file_name, "the topology");
    const JsonPath root;
    Topology made;
    if (!reader.value({0, &root}, made)) return reader.error();
    return made;
}

std::string to_json(const Topology& topology) {
    std::string text =
        fmt::format("{{\"schema\": \"syncopate.topology/1\",\n \"name\": {}", json_quoted(topology.name));
    if (!topology.about.empty()) text += fmt::format(",\n \"about\": {}", json_quoted(topology.about));
    text += ",\n \"devices\": [";
    for (std::size_t at = 0; at < topology.devices.size();) {
        const Device& device = topology.devices[at];
        std::size_t end = at;
        while (end < topology.devices.size() && topology.devices[end] == device) ++end;
        text +=
            fmt::format("{}{{\"count\": {}, \"node\": {}", at == 0 ? "" : ",\n  ", end - at, device.node) +
            optional_figure("egress_gbps", device.egress_gbps, kUnlimited) +
            optional_figure("ingress_gbps", device.ingress_gbps, kUnlimited) + "}";
        at = end;
    }
    text += "],\n \"switches\": [";
    for (std::size_t i = 0; i < topology.switches.size(); ++i) {
        text += (i == 0 ? "" : ", ") + json_quoted(topology.switches[i]);
    }
    text += "],\n \"links\": [";
    const auto vertex = [&](std::int32_t v) {
        return v < topology.num_devices() ? std::to_string(v) : json_quoted(topology.vertex_name(v));
    };
    for (std::size_t at = 0; at < topology.links.size();) {
        const Link& link = topology.links[at];
        Link back = link;
        std::swap(back.from, back.to);
        const bool both = at + 1 < topology.links.size() && topology.links[at + 1] == back;
        text += fmt::format("{}\n  {{\"from\": {}, \"to\": {}, \"gbps\": {}", at == 0 ? "" : ",",
                            vertex(link.from), vertex(link.to), link.gbps) +
                optional_figure("latency_us", link.latency_us, 0) +
                optional_figure("contended", link.contended, 1) + (both ? "}" : ", \"one_way\": true}");
        at += both ? 2 : 1;
    }
    text += fmt::format("],\n \"engines\": {{\"copy_engine\": {},\n             \"sm\": {}",
                        engine_text(topology.copy_engine), engine_text(topology.sm));
    if (topology.network) {
        text += fmt::format(",\n             \"network\": {}", engine_text(*topology.network));
    }
    text += "}";
    text += fmt::format(",\n \"local\": {{\"gbps\": {}, \"latency_us\": {}}}", topology.local_gbps,
                        topology.local_us);
    text += fmt::format(",\n \"library\": {{\"latency_us\": {}{}}}", topology.library_us,
                        optional_figure("gbps", topology.library_gbps, kUnlimited));
    text += fmt::format(",\n \"start_us\": {},\n \"skew_us\": {},\n \"forwarding\": {}}}\n",
                        topology.start_us, topology.skew_us, topology.forwarding);
    return text;
}

}  // namespace syncopate::plan
