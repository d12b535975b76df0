#include "syncopate/tune/machine/machine.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "syncopate/cache_folder.hpp"
#include "syncopate/io.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"
#include "tune/machine/machine_shipped.hpp"

namespace syncopate::tune {
namespace {

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
}

/// How far a machine is from what is asked for: another device first, then too few GPUs, then too many.
struct Distance {
    bool other_device = false;
    bool too_few = false;
    std::int64_t ranks = 0;
    std::int64_t sms = 0;
    auto operator<=>(const Distance&) const = default;
};

Distance distance(const Machine& machine, std::string_view device, std::int32_t ranks, std::int32_t num_sms) {
    const std::int64_t more = machine.num_devices() - ranks;
    return {.other_device = !device.empty() && device != machine.device,
            .too_few = more < 0,
            .ranks = std::abs(more),
            .sms = num_sms == 0 ? 0 : std::abs(std::int64_t{machine.num_sms} - num_sms)};
}

}  // namespace

double Curve::at(double x) const {
    if (points.empty()) return 0;
    return along(std::min(x, points.back().first));
}

double Curve::along(double x) const {
    if (points.empty()) return 0;
    if (points.size() == 1 || x <= points.front().first) return points.front().second;
    auto right = std::find_if(points.begin() + 1, points.end(), [&](const auto& p) { return p.first >= x; });
    if (right == points.end()) --right;
    const auto left = right - 1;
    const double share = (x - left->first) / (right->first - left->first);
    return left->second + share * (right->second - left->second);
}

std::vector<std::string> machine_names() {
    std::vector<std::string> names;
    for (const ShippedMachine& shipped : shipped_machines()) names.emplace_back(shipped.name);
    std::sort(names.begin(), names.end());
    return names;
}

double Rates::engine_sums(std::int32_t blocks) const {
    if (engine_sum_gbps.points.empty()) return 0;
    // A block has so many bytes on their way: fewer than were measured are slower by as many.
    const auto [fewest, gbps] = engine_sum_gbps.points.front();
    return blocks < fewest ? gbps * blocks / fewest : engine_sum_gbps.at(blocks);
}

namespace {

struct MachineText {
    std::string text;
    std::string file;  ///< for errors
};

Result<MachineText> text_of(const std::string& name) {
    for (const ShippedMachine& shipped : shipped_machines()) {
        if (shipped.name == name) return MachineText{std::string(shipped.text), fmt::format("{}.json", name)};
    }
    if (name.starts_with('{')) return MachineText{name, "the ranks' machine"};
    if (name == "-" || name.find('/') != std::string::npos || name.ends_with(".json")) {
        SYNCOPATE_TAKE(std::string text, read_file(name));
        return MachineText{std::move(text), name};
    }
    const std::vector<std::string> names = machine_names();
    const std::string hint = did_you_mean(name, names);
    return usage_error(fmt::format(
        "there is no machine \"{}\"{}", name,
        hint.empty()
            ? fmt::format("; there are {}, and files (a name with / or .json)", fmt::join(names, ", "))
            : hint));
}

}  // namespace

Result<Machine> find_machine(const std::string& name) {
    SYNCOPATE_TAKE(const MachineText found, text_of(name));
    return machine_from_json(found.text, found.file);
}

std::string retired_message(const Machine& machine) {
    if (machine.retired.empty()) return {};
    return fmt::format(
        "of {}'s file nobody reads {} any more; `syncopate tune --measure-machine` writes one anew",
        machine.name, fmt::join(machine.retired, ", "));
}

std::string measured_machine_path() {
    const std::filesystem::path folder = cache_folder();
    return folder.empty() ? std::string() : (folder / "machine.json").string();
}

namespace {

/// The nearest of `known` and of those that come with Syncopate. Among equals the first.
Result<NearestMachine> nearest_of(std::vector<Machine> known, std::string_view device, std::int32_t ranks,
                                  std::int32_t num_sms) {
    for (const std::string& name : machine_names()) {
        SYNCOPATE_TAKE(Machine machine, find_machine(name));
        // What joins the nodes of that one, which nobody may have measured, says nothing of this one's.
        for (const FigureRow& row : network_figures()) {
            machine.rates.*row.figure = 0;
            machine.sources.erase(network_source(row.name));
        }
        known.push_back(std::move(machine));
    }
    const auto nearest =
        std::min_element(known.begin(), known.end(), [&](const Machine& a, const Machine& b) {
            return distance(a, device, ranks, num_sms) < distance(b, device, ranks, num_sms);
        });
    const Distance off = distance(*nearest, device, ranks, num_sms);
    std::string message;
    if (off.other_device) {
        message = fmt::format(
            "no machine with {} has been measured; {} stands for it. `syncopate tune "
            "--measure-machine` measures this one",
            device, nearest->name);
    } else if (off.ranks != 0) {
        message = fmt::format("{} GPUs have not been measured; {} stands for them", ranks, nearest->name);
    }
    return NearestMachine{*nearest, message};
}

NearestMachine named_machine(Machine machine) {
    std::string message = retired_message(machine);
    return {std::move(machine), std::move(message)};
}

}  // namespace

Result<NearestMachine> nearest_shipped_machine(std::string_view device, std::int32_t ranks,
                                               std::int32_t num_sms) {
    return nearest_of({}, device, ranks, num_sms);
}

Result<NearestMachine> nearest_machine_of_hosts(std::string_view device, std::int32_t ranks,
                                                std::int32_t num_sms) {
    const std::string named = environment("SYNCOPATE_MACHINE");
    if (named.empty()) return nearest_shipped_machine(device, ranks, num_sms);
    SYNCOPATE_TAKE(Machine machine, find_machine(named));
    return named_machine(std::move(machine));
}

Result<MachineTexts> machine_texts() {
    MachineTexts texts;
    if (const std::string named = environment("SYNCOPATE_MACHINE"); !named.empty()) {
        SYNCOPATE_TAKE(MachineText found, text_of(named));
        SYNCOPATE_TRY(machine_from_json(found.text, found.file));
        texts.named = std::move(found.text);
        return texts;
    }
    std::error_code missing;
    const std::string path = measured_machine_path();
    if (path.empty() || !std::filesystem::exists(path, missing)) return texts;
    Result<std::string> text = read_file(path);
    const Result<Machine> measured = text ? machine_from_json(*text, path) : Result<Machine>(text.error());
    if (measured) {
        texts.measured = *std::move(text);
    } else {
        texts.unread = fmt::format("{}; it is not used. `syncopate tune --measure-machine` writes it anew",
                                   measured.error().to_string());
    }
    return texts;
}

Result<NearestMachine> nearest_machine_of(const MachineTexts& texts, std::string_view device,
                                          std::int32_t ranks, std::int32_t num_sms) {
    if (!texts.named.empty()) {
        SYNCOPATE_TAKE(Machine machine, machine_from_json(texts.named, "the ranks' machine"));
        return named_machine(std::move(machine));
    }
    std::vector<Machine> measured;
    if (!texts.measured.empty()) {
        SYNCOPATE_TAKE(measured.emplace_back(),
                       machine_from_json(texts.measured, "the ranks' measured machine"));
    }
    SYNCOPATE_TAKE(NearestMachine nearest, nearest_of(std::move(measured), device, ranks, num_sms));
    const std::string said = texts.unread.empty() ? retired_message(nearest.machine) : texts.unread;
    if (!said.empty()) nearest.message = nearest.message.empty() ? said : said + "; " + nearest.message;
    return nearest;
}

Result<NearestMachine> nearest_machine(std::string_view device, std::int32_t ranks, std::int32_t num_sms) {
    SYNCOPATE_TAKE(const MachineTexts texts, machine_texts());
    return nearest_machine_of(texts, device, ranks, num_sms);
}

}  // namespace syncopate::tune
