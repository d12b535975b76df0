#include <array>
#include <iterator>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/json_decoder.hpp"
#include "syncopate/json_text.hpp"
#include "syncopate/names.hpp"
#include "syncopate/plan/model/plan.hpp"
#include "syncopate/plan/topology/topology.hpp"

namespace syncopate::plan {
namespace {

constexpr double kLargest = 1e9;   // GB/s and µs: far beyond any machine
constexpr double kSlowest = 1e-6;  // GB/s
constexpr std::int32_t kMaxLinks = 1 << 20;
constexpr std::int32_t kMaxSwitches = 1 << 16;

class TopologyDecoder : private JsonDecoder {
public:
    using JsonDecoder::JsonDecoder;

    Result<Topology> decode() {
        if (!topology()) return error();
        return std::move(topology_);
    }

private:
    bool topology() {
        const JsonPath root;
        static constexpr std::array<JsonField, 12> kFields{{{"schema", true},
                                                            {"name", true},
                                                            {"about", false},
                                                            {"devices", true},
                                                            {"switches", false},
                                                            {"links", true},
                                                            {"engines", true},
                                                            {"local", false},
                                                            {"library", false},
                                                            {"start_us", false},
                                                            {"skew_us", false},
                                                            {"forwarding", false}}};
        std::array<Index, kFields.size()> at;
        if (!fields(0, root, kFields, at)) return false;
        const auto [schema, name, about, devices_at, switches_at, links_at, engines_at, local, library, start,
                    skew, forwarding] = at;
        std::string_view text;
        const JsonPath schema_path{&root, "schema"};
        if (!string(schema, schema_path, text)) return false;
        if (text != "syncopate.topology/1") {
            return fail(schema, schema_path,
                        "is \"" + escaped(text) + "\"; this version reads \"syncopate.topology/1\"");
        }
        if (!string(name, {&root, "name"}, text)) return false;
        topology_.name = text;
        if (has(about)) {
            if (!string(about, {&root, "about"}, text)) return false;
            topology_.about = text;
        }
        return devices(devices_at, {&root, "devices"}) &&
               (!has(switches_at) || switches(switches_at, {&root, "switches"})) &&
               links(links_at, {&root, "links"}) && engines(engines_at, {&root, "engines"}) &&
               (!has(local) || pair(local, {&root, "local"}, topology_.local_gbps, topology_.local_us)) &&
               (!has(library) ||
                pair(library, {&root, "library"}, topology_.library_gbps, topology_.library_us)) &&
               (!has(start) || microseconds(start, {&root, "start_us"}, topology_.start_us)) &&
               (!has(skew) || microseconds(skew, {&root, "skew_us"}, topology_.skew_us)) &&
               (!has(forwarding) || boolean(forwarding, {&root, "forwarding"}, topology_.forwarding));
    }

    bool devices(Index node, const JsonPath& path) {
        static constexpr std::array<JsonField, 4> kFields{
            {{"count", true}, {"node", false}, {"egress_gbps", false}, {"ingress_gbps", false}}};
        if (!list(node, path, "a list of {\"count\", …}", kMaxRanks)) return false;
        const bool decoded = each(node, path, [&](Index entry, const JsonPath& entry_path) {
            std::array<Index, kFields.size()> at;
            if (!fields(entry, entry_path, kFields, at)) return false;
            std::int32_t count = 0;
            Device device;
            if (!integer(at[0], {&entry_path, "count"}, 1, kMaxRanks, count) ||
                (has(at[1]) && !integer(at[1], {&entry_path, "node"}, 0, kMaxRanks - 1, device.node)) ||
                (has(at[2]) && !bandwidth(at[2], {&entry_path, "egress_gbps"}, device.egress_gbps)) ||
                (has(at[3]) && !bandwidth(at[3], {&entry_path, "ingress_gbps"}, device.ingress_gbps))) {
                return false;
            }
            if (topology_.num_devices() + count > kMaxRanks) {
                return fail(entry, entry_path, fmt::format("takes the topology above {} devices", kMaxRanks));
            }
            topology_.devices.insert(topology_.devices.end(), static_cast<std::size_t>(count), device);
            return true;
        });
        if (!decoded) return false;
        if (topology_.devices.empty()) return fail(node, path, "is empty; it needs at least one device");
        return true;
    }

    bool switches(Index node, const JsonPath& path) {
        if (!list(node, path, "a list of names", kMaxSwitches)) return false;
        return each(node, path, [&](Index entry, const JsonPath& entry_path) {
            std::string_view name;
            if (!string(entry, entry_path, name)) return false;
            if (name.empty()) return fail(entry, entry_path, "is an empty name");
            const auto vertex =
                topology_.num_devices() + static_cast<std::int32_t>(topology_.switches.size());
            if (!vertex_of_.emplace(name, vertex).second) {
                return fail(entry, entry_path, "names \"" + escaped(name) + "\" a second time");
            }
            topology_.switches.emplace_back(name);
            return true;
        });
    }

    bool links(Index node, const JsonPath& path) {
        static constexpr std::array<JsonField, 6> kFields{{{"from", true},
                                                           {"to", true},
                                                           {"gbps", true},
                                                           {"latency_us", false},
                                                           {"contended", false},
                                                           {"one_way", false}}};
        if (!list(node, path, "a list of {\"from\", \"to\", \"gbps\"}", kMaxLinks)) return false;
        return each(node, path, [&](Index entry, const JsonPath& entry_path) {
            std::array<Index, kFields.size()> at;
            if (!fields(entry, entry_path, kFields, at)) return false;
            const auto [from, to, gbps, latency, contended, one_way_at] = at;
            Link link;
            bool one_way = false;
            if (!vertex(from, {&entry_path, "from"}, link.from) ||
                !vertex(to, {&entry_path, "to"}, link.to) ||
                !bandwidth(gbps, {&entry_path, "gbps"}, link.gbps) ||
                (has(latency) && !microseconds(latency, {&entry_path, "latency_us"}, link.latency_us)) ||
                (has(contended) && !number(contended, {&entry_path, "contended"}, 0.01, 1, link.contended)) ||
                (has(one_way_at) && !boolean(one_way_at, {&entry_path, "one_way"}, one_way))) {
                return false;
            }
            if (link.from == link.to) return fail(entry, entry_path, "leads back to where it starts");
            topology_.links.push_back(link);
            if (!one_way) {
                std::swap(link.from, link.to);
                topology_.links.push_back(link);
            }
            return true;
        });
    }

    /// A device's number or a switch's name.
    bool vertex(Index node, const JsonPath& path, std::int32_t& out) {
        if (document_.type(node) == Type::string) {
            const std::string_view name = document_.text(node);
            const auto found = vertex_of_.find(name);
            if (found == vertex_of_.end()) {
                const std::string hint = did_you_mean(name, topology_.switches);
                return fail(node, path,
                            "names an unknown switch \"" + escaped(name) + "\"" +
                                (hint.empty() ? fmt::format("; the switches are {}",
                                                            fmt::join(topology_.switches, ", "))
                                              : hint));
            }
            out = found->second;
            return true;
        }
        if (document_.type(node) != Type::integer) {
            return fail(node, path,
                        "is " + document_.describe(node) + "; expected a device's number or a switch's name");
        }
        if (document_.integer(node) < 0 || document_.integer(node) >= topology_.num_devices()) {
            return fail(node, path,
                        fmt::format("is {}; the topology has devices 0 to {}", document_.integer(node),
                                    topology_.num_devices() - 1));
        }
        out = static_cast<std::int32_t>(document_.integer(node));
        return true;
    }

    bool engines(Index node, const JsonPath& path) {
        static constexpr std::array<JsonField, 3> kFields{
            {{"copy_engine", true}, {"sm", true}, {"network", false}}};
        std::array<Index, kFields.size()> at;
        return fields(node, path, kFields, at) &&
               engine(at[0], {&path, "copy_engine"}, false, topology_.copy_engine) &&
               engine(at[1], {&path, "sm"}, true, topology_.sm) &&
               (!has(at[2]) || engine(at[2], {&path, "network"}, false, topology_.network.emplace()));
    }

    bool engine(Index node, const JsonPath& path, bool of_blocks, Engine& out) {
        static constexpr std::array<JsonField, 10> kFields{{{"lanes", false},
                                                            {"per_peer", false},
                                                            {"push_us", false},
                                                            {"repeat_us", false},
                                                            {"pull_us", false},
                                                            {"post_us", false},
                                                            {"wait_us", false},
                                                            {"gbps", false},
                                                            {"blocks", false},
                                                            {"gbps_per_block", false}}};
        std::array<Index, kFields.size()> at;
        if (!fields(node, path, kFields, at)) return false;
        const auto [lanes, per_peer, push, repeat, pull, post, wait, gbps, blocks, per_block] = at;
        if (has(blocks) != has(per_block)) {
            return fail(node, path, "has one of \"blocks\" and \"gbps_per_block\"; it needs both or none");
        }
        if (has(blocks) && !of_blocks) return fail(blocks, {&path, "blocks"}, "belongs to sm only");
        return (!has(lanes) || integer(lanes, {&path, "lanes"}, 1, 1024, out.lanes)) &&
               (!has(per_peer) || boolean(per_peer, {&path, "per_peer"}, out.per_peer)) &&
               (!has(push) || microseconds(push, {&path, "push_us"}, out.push_us)) &&
               (!has(repeat) || microseconds(repeat, {&path, "repeat_us"}, out.repeat_us.emplace())) &&
               (!has(pull) || microseconds(pull, {&path, "pull_us"}, out.pull_us)) &&
               (!has(post) || microseconds(post, {&path, "post_us"}, out.post_us)) &&
               (!has(wait) || microseconds(wait, {&path, "wait_us"}, out.wait_us)) &&
               (!has(gbps) || bandwidth(gbps, {&path, "gbps"}, out.gbps)) &&
               (!has(blocks) || integer(blocks, {&path, "blocks"}, 1, 1 << 16, out.blocks)) &&
               (!has(per_block) || bandwidth(per_block, {&path, "gbps_per_block"}, out.gbps_per_block));
    }

    bool pair(Index node, const JsonPath& path, double& gbps, double& latency_us) {
        static constexpr std::array<JsonField, 2> kFields{{{"gbps", false}, {"latency_us", true}}};
        std::array<Index, kFields.size()> at;
        return fields(node, path, kFields, at) && (!has(at[0]) || bandwidth(at[0], {&path, "gbps"}, gbps)) &&
               microseconds(at[1], {&path, "latency_us"}, latency_us);
    }

    bool bandwidth(Index node, const JsonPath& path, double& out) {
        return number(node, path, kSlowest, kLargest, out);
    }
    bool microseconds(Index node, const JsonPath& path, double& out) {
        return number(node, path, 0, kLargest, out);
    }

    Topology topology_;
    std::unordered_map<std::string_view, std::int32_t> vertex_of_;  ///< switches; names lie in document_
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
    const Result<JsonDocument> document = JsonDocument::parse(text, file_name);
    if (!document) return document.error();
    return TopologyDecoder(*document, text, file_name, "the topology").decode();
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
