// syncopate kernel show: what the front end knows of a kernel, for people and (--json) for programs.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "syncopate/emit/language.hpp"
#include "syncopate/io.hpp"
#include "syncopate/kernel/model/explained.hpp"
#include "syncopate/kernel/model/unwritten.hpp"
#include "tools/commands.hpp"

namespace syncopate::tools {
namespace {

using nlohmann::ordered_json;

std::string_view name_of(kernel::ParamKind kind) {
    switch (kind) {
        case kernel::ParamKind::scalar: return "scalar";
        case kernel::ParamKind::constant: return "constexpr";
        case kernel::ParamKind::pointer: return "pointer";
        case kernel::ParamKind::descriptor: return "descriptor";
    }
    return "";
}

std::string_view access_of(const kernel::Param& param) {
    if (param.read && param.written) return "readwrite";
    return param.read ? "read" : param.written ? "write" : "none";
}

ordered_json json_of(const plan::Region& region) {
    ordered_json ranges = ordered_json::array();
    for (const plan::Interval& interval : region) ranges.push_back({interval.begin, interval.end});
    return ranges;
}

ordered_json json_of(const kernel::Kernel& k, bool boxes) {
    ordered_json out;
    out["kernel"] = k.name;
    out["axes"] = ordered_json::array();
    for (const kernel::TileAxis& axis : k.axes) {
        out["axes"].push_back({{"name", axis.name}, {"count", axis.count}, {"block", axis.block}});
    }
    out["params"] = ordered_json::array();
    for (const kernel::Param& param : k.params) {
        out["params"].push_back(
            {{"name", param.name}, {"kind", name_of(param.kind)}, {"access", access_of(param)}});
    }
    out["tiles"] = ordered_json::array();
    const auto regions = [](const auto& all) {
        ordered_json made = ordered_json::object();
        for (const auto& [name, region] : all) made[name] = json_of(region);
        return made;
    };
    const auto unions = [](const auto& all) {
        ordered_json made = ordered_json::object();
        for (const auto& [name, parts] : all) {
            made[name] = ordered_json::array();
            for (const plan::Region& part : parts) made[name].push_back(json_of(part));
        }
        return made;
    };
    for (const kernel::Tile& tile : k.tiles) {
        ordered_json entry;
        entry["coord"] = ordered_json::object();
        for (std::size_t a = 0; a < tile.coord.size(); ++a) entry["coord"][k.axes[a].name] = tile.coord[a];
        entry["program"] = tile.program;
        entry["reads"] = regions(tile.reads);
        entry["writes"] = regions(tile.writes);
        if (boxes) {
            entry["read_boxes"] = unions(tile.read_boxes);
            entry["write_boxes"] = unions(tile.write_boxes);
        }
        if (!tile.inexact_reads.empty() || !tile.inexact_writes.empty())
            entry["inexact"] = {{"reads", tile.inexact_reads}, {"writes", tile.inexact_writes}};
        out["tiles"].push_back(std::move(entry));
    }
    out["warnings"] = k.warnings;
    return out;
}

std::string text_of(const kernel::Explained& explained, bool boxes) {
    const kernel::Kernel& k = explained.kernel;
    std::string out = fmt::format("{} ({}:{})\n", k.name, k.file, k.line);
    for (const kernel::Param& param : k.params) {
        if (param.kind == kernel::ParamKind::pointer || param.kind == kernel::ParamKind::descriptor) {
            const bool touched = param.read || param.written;
            const bool given = !touched || k.arguments.tensors.contains(param.name) ||
                               k.arguments.tensors.lower_bound(param.name + "[") !=
                                   k.arguments.tensors.lower_bound(param.name + "\\");
            out += fmt::format("  {:<12} {}, {}{}\n", param.name, name_of(param.kind), access_of(param),
                               given ? std::string()
                                     : "; what is touched of it is not known: give --tensor " + param.name +
                                           "=512x256:bf16");
        }
    }
    out += "tile space:";
    for (const kernel::TileAxis& axis : k.axes)
        out += fmt::format(" {} = {} × {}", axis.name, axis.count, axis.block);
    if (k.axes.empty()) out += " a list";
    out += fmt::format("; {} tiles on {} programs ({} × {} × {}){}\n", k.tiles.size(), k.num_programs(),
                       k.grid[0], k.grid[1], k.grid[2], k.persistent ? ", persistent" : "");
    for (const std::string& place : explained.places) out += place + "\n";
    if (!explained.notes.empty()) out += "why:\n";
    for (const kernel::Note& note : explained.notes)
        out += fmt::format("  line {}: {}\n", note.line, note.text);
    constexpr std::size_t kShown = 8;
    for (std::size_t i = 0; i < std::min(k.tiles.size(), kShown); ++i) {
        const kernel::Tile& tile = k.tiles[i];
        out += fmt::format("tile {}", tile.id);
        for (std::size_t a = 0; a < tile.coord.size(); ++a)
            out += fmt::format(" {}={}", k.axes[a].name, tile.coord[a]);
        out += fmt::format(" (program {})\n", tile.program);
        const auto list = [&](const char* verb, const auto& bounding, const auto& unions,
                              const auto& inexact) {
            for (const auto& [name, region] : bounding) {
                out += fmt::format("  {} {}", verb, name);
                if (!boxes)
                    out += plan::to_string(region);
                else
                    for (const plan::Region& part : unions.at(name)) out += " " + plan::to_string(part);
                out += inexact.contains(name) ? "  (at most)\n" : "\n";
            }
        };
        list("reads ", tile.reads, tile.read_boxes, tile.inexact_reads);
        list("writes", tile.writes, tile.write_boxes, tile.inexact_writes);
    }
    if (k.tiles.size() > kShown) out += fmt::format("… and {} more tiles\n", k.tiles.size() - kShown);
    return out;
}

struct ShowOptions {
    std::string file;
    std::vector<std::string> args;
    std::vector<std::string> tensors;
    std::vector<std::string> values;
    std::string grid;
    std::int32_t num_sms = 0;
    bool json = false;
    bool boxes = false;
};

template <typename T>
T or_fail(Result<T> result) {
    if (!result) fail(result.error());
    return std::move(*result);
}

void show(const ShowOptions& options) {
    std::string path = as_given(options.file);
    std::string name;
    // FILE.py:NAME or FILE.py:NAME@LINE; a colon elsewhere (C:\…) belongs to the path.
    if (const std::size_t colon = path.rfind(':');
        colon != std::string::npos && path.find_first_of("/\\.", colon) == std::string::npos) {
        name = path.substr(colon + 1);
        path.resize(colon);
    }
    kernel::Arguments arguments;
    arguments.num_sms = options.num_sms;
    for (const std::string& text : options.args) {
        for (auto& [key, value] : or_fail(kernel::parse_scalars(text))) {
            if (!arguments.scalars.emplace(key, value).second)
                fail(usage_error("`" + key + "` is given twice"));
        }
    }
    for (const std::string& text : options.tensors) {
        auto [key, tensor] = or_fail(kernel::parse_tensor(text));
        if (!arguments.tensors.emplace(key, std::move(tensor)).second)
            fail(usage_error("tensor `" + key + "` is given twice"));
    }
    for (const std::string& text : options.values) {
        auto [key, values] = or_fail(kernel::parse_values(text));
        if (const Status status = kernel::set_values(arguments, key, std::move(values)); !status)
            fail(status.error());
    }
    if (!options.grid.empty()) arguments.grid = or_fail(kernel::parse_grid(options.grid));
    const std::string source = or_fail(read_file(path));
    const kernel::Explained explained =
        or_fail(emit::language_of(path).explain(source, path, name, arguments));
    const kernel::Kernel& analysed = explained.kernel;
    const std::string out =
        options.json
            ? json_of(analysed, options.boxes).dump(-1, ' ', false, ordered_json::error_handler_t::replace) +
                  "\n"
            : text_of(explained, options.boxes);
    std::fwrite(out.data(), 1, out.size(), stdout);
    for (const std::string& warning : analysed.warnings) std::cerr << "warning: " << warning << '\n';
    if (options.grid.empty()) return;
    for (const std::string& warning : kernel::left_unwritten(analysed))
        std::cerr << "warning: " << warning << '\n';
}

}  // namespace

void register_kernel_commands(CLI::App& app) {
    CLI::App* group = app.add_subcommand("kernel", "Read Triton kernels");
    group->require_subcommand(1);
    CLI::App* command =
        group->add_subcommand("show", "Print a kernel's tile space and what each tile reads and writes");
    auto options = std::make_shared<ShowOptions>();
    command->add_option("file", options->file, "FILE.py or FILE.py:NAME (- for standard input)")->required();
    command->add_option("--args", options->args, "Values of scalar parameters: M=512,N=512,BLOCK_M=128,…");
    command->add_option("--tensor", options->tensors,
                        "A tensor: a_ptr=512x256:bf16[:STRIDES][@BLOCK]; may be repeated");
    command->add_option(
        "--values", options->values,
        "The elements of an integer tensor, where the host knows them: cu_seqlens=0,137,2178, or =@FILE; "
        "may be repeated");
    command->add_option("--grid", options->grid,
                        "Programs of the launch, where they do not follow from the kernel: 3,2,2");
    command->add_option("--num-sms", options->num_sms, "What a grid that asks for the number of SMs gets")
        ->check(CLI::Range(1, 1 << 20));
    command->add_flag("--json", options->json, "Print JSON");
    command->add_flag("--boxes", options->boxes,
                      "Print the disjoint boxes that are touched, too: a bounding box may span a gap");
    command->callback([options] { show(*options); });
}

}  // namespace syncopate::tools
