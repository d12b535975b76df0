// A machine: the measured rates and latencies of what runs a problem. Every figure that the estimate
// (estimate.hpp) uses stands in a machine file, with its unit and its source, and none in the code.
//
//     {"schema": "syncopate.machine/1", "name": "h200x8", "device": "NVIDIA H200", "about": "…",
//      "topology": "h200x8", "num_sms": 132, "measured": true,
//      "network": {"gbps": {"value": 50, "unit": "GB/s", "source": "…"}, "us": {…}},
//      "figures": {"sm_tflops": {"value": 5.68, "unit": "TFLOP/s", "source": "…"}, …},
//      "tables": {"engine_gbps": {"unit": "GB/s by blocks", "source": "…", "points": [[4, 174], [8, 340]]}}}
//
// Links and engines of transfers are the topology's figures (plan/topology): a name, or an object of schema
// syncopate.topology/1. The machine is one node; `network`, which a file need not have, is what joins several of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/fuse/model/cost.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/result.hpp"

namespace syncopate::tune {

/// Measured pairs (x, y) in rising order of x.
struct Curve {
    std::vector<std::pair<double, double>> points;
    /// Between two points the line that joins them, beyond the ends the end's y. 0 without points.
    [[nodiscard]] double at(double x) const;
    /// The same, but beyond the last point the line of the last two goes on.
    [[nodiscard]] double along(double x) const;
    bool operator==(const Curve&) const = default;
};

using plan::kBytesPerUs;
inline constexpr double kFlopsPerUs = 1e6;  ///< of 1 TFLOP/s

/// µs, GB/s (10^9 bytes a second) and TFLOP/s. What each means is said in machine_figures().
/// Those by which fuse chooses are Costs.
struct Rates : fuse::Costs {
    double sm_load_gbps = 0;
    double memory_gbps = 0;
    double cache_mib = 0;
    double again_gbps = 0;
    double call_us = 0;
    double kernel_us = 0;
    double fused_us = 0;
    double phase_us = 0;
    double gluon_phase_us = 0;
    double long_us = 0;
    double long_plain = 0;
    double beside_copies = 1;
    double beside_sums = 0;
    double sum_gbps = 0;
    double sum_us = 0;
    double store_gbps = 0;
    double store_stall_gbps = 0;
    double store_us = 0;
    double read_gbps = 0;
    double pulled_slow_gbps = 0;
    double copied_part_us = 0;
    double engine_ldst = 0;
    double crossing_gbps = 0;
    double gluon_tflops = 0;
    double gluon_load_gbps = 0;
    double gluon_tile_us = 0;
    double network_gbps = 0;  ///< 0: nothing is known of several nodes
    double network_us = 0;
    double network_collective_gbps = 0;
    Curve attention_tflops;
    Curve attention_gluon_tflops;
    Curve attention_causal;
    Curve tile_store_gbps;
    Curve engine_gbps;
    Curve engine_sum_gbps;
    Curve library_gather_us;
    Curve library_scatter_us;
    Curve library_reduce_us;
    Curve library_exchange_us;

    /// GB/s of sums by so many blocks of the chunk engine.
    [[nodiscard]] double engine_sums(std::int32_t blocks) const;
    bool operator==(const Rates&) const = default;
};

/// One row for each figure of Rates: the schema of a machine file's "figures" and "tables".
struct FigureRow {
    std::string_view name;
    std::string_view unit;
    std::string_view meaning;
    double Rates::* figure = nullptr;  ///< one of the two
    Curve Rates::* curve = nullptr;
};
[[nodiscard]] std::span<const FigureRow> machine_figures();
/// Likewise of "network"; Machine::sources has them as "network.NAME".
[[nodiscard]] std::span<const FigureRow> network_figures();
[[nodiscard]] std::string network_source(std::string_view name);

struct Machine {
    std::string name;
    std::string device;  ///< as the driver calls it
    std::string about;
    plan::Topology topology;
    std::string topology_name;  ///< "" where the file holds the topology itself
    std::int32_t num_sms = 0;
    bool measured = true;  ///< false: some figures are another machine's; their sources say so
    Rates rates;
    std::map<std::string, std::string, std::less<>> sources;  ///< by name of a figure: where it comes from
    std::vector<std::string> retired;  ///< figures of its file, of before, that nobody reads any more

    [[nodiscard]] std::int32_t num_devices() const { return topology.num_devices(); }
    bool operator==(const Machine&) const = default;
};

/// The machine in `text`. Strict: an unknown, missing or repeated key, a wrong type or unit, or a figure out
/// of range is an error at its line.
[[nodiscard]] Result<Machine> machine_from_json(std::string_view text, const std::string& file_name = {});
/// One figure a line, with a trailing newline; machine_from_json gives an equal one back.
[[nodiscard]] std::string to_json(const Machine& machine);

/// What is to be said of such figures; "" where there are none.
[[nodiscard]] std::string retired_message(const Machine& machine);

/// What `--machine` takes: the name of one that comes with Syncopate ("h200x8"), or a file (a name with / or
/// .json); or a machine's own text, `{…`. Fails (ErrorClass::usage) listing the names, or with what is wrong in the file.
[[nodiscard]] Result<Machine> find_machine(const std::string& name);
[[nodiscard]] std::vector<std::string> machine_names();  ///< of those that come with Syncopate, sorted

/// A machine for so many ranks of a device, and what is to be said about it.
struct NearestMachine {
    Machine machine;
    std::string message;  ///< "" where it is that machine; else why another one stands for it
};
/// Machine files of a process, as texts.
struct MachineTexts {
    std::string named;     ///< the one of SYNCOPATE_MACHINE; "" where it is not set
    std::string measured;  ///< the one that was measured here (measured_machine_path); "" where there is none
    std::string unread;    ///< why that one is not used; "" where it can be read
    bool operator==(const MachineTexts&) const = default;
};
/// Of this process, now. Fails where SYNCOPATE_MACHINE is wrong.
[[nodiscard]] Result<MachineTexts> machine_texts();

/// The machine file named by SYNCOPATE_MACHINE; else the one that was measured here (measured_machine_path);
/// else, of those that come with Syncopate, the nearest: of the same device if there is one, with as many
/// GPUs or the next larger number. `device` as the driver calls it, "" where nobody knows; `num_sms` 0
/// likewise. Fails where a named file is wrong.
[[nodiscard]] Result<NearestMachine> nearest_machine(std::string_view device, std::int32_t ranks,
                                                     std::int32_t num_sms = 0);
/// The same of another process, by its files.
[[nodiscard]] Result<NearestMachine> nearest_machine_of(const MachineTexts& texts, std::string_view device,
                                                        std::int32_t ranks, std::int32_t num_sms = 0);
/// The same on all hosts: what one of them measured of itself is left out.
[[nodiscard]] Result<NearestMachine> nearest_machine_of_hosts(std::string_view device, std::int32_t ranks,
                                                              std::int32_t num_sms = 0);
/// The same of those that come with Syncopate only.
[[nodiscard]] Result<NearestMachine> nearest_shipped_machine(std::string_view device, std::int32_t ranks,
                                                             std::int32_t num_sms = 0);

/// Where `tune --measure-machine` writes, and nearest_machine looks: machine.json in the cache folder
/// (cache_folder.hpp). "" where there is none.
[[nodiscard]] std::string measured_machine_path();

}  // namespace syncopate::tune
