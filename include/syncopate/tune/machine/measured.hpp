// Measured: a machine file from what was measured on this machine, and from the nearest known machine for
// what was not. The source of each figure says which of the two it is.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "syncopate/result.hpp"
#include "syncopate/tune/machine/call_fit.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/machine/product_fit.hpp"

namespace syncopate::tune {

struct MeasuredFigure {
    double value = 0;
    std::string source;
};

struct MeasuredTable {
    Curve curve;
    std::string source;
};

/// What a measurement found.
struct Measurement {
    std::string device;
    std::int32_t devices = 1;
    std::int32_t num_sms = 0;
    std::map<std::string, MeasuredFigure, std::less<>> figures;  ///< by name of a figure that is no table
    std::optional<double> link_gbps;       ///< a copy engine to another device, for many bytes
    std::optional<double> link_push_us;    ///< its start-up
    std::optional<double> link_pull_us;    ///< the same where the destination asks for it
    std::optional<double> link_repeat_us;  ///< the same behind another one to the same device
    std::optional<double> signal_us;       ///< from a store of a word until another device sees it
    std::map<std::string, MeasuredTable, std::less<>> tables;  ///< by name of a figure that is a table
    std::vector<TimedProduct> products;  ///< by the Gluon kernel, to which its figures are fitted
    std::vector<TimedCall> calls;        ///< that give figures, each with those of the calls before
};

/// From JSON: {"figures": {NAME: {"value", "source"}}, "tables": {NAME: {"points": [[x, y]], "source"}},
/// "links": {"gbps", "push_us", "pull_us", "repeat_us", "signal_us"}, "products": [[M, N, K, block_m,
/// block_n, block_k, stages, split_k, us]], "calls": [[FIGURE, KEY of
/// the problem, STRATEGY as JSON, us]]}. Fails on an unknown figure, or one that is not positive, on points
/// that do not rise, on a product whose tiles the Gluon kernel does not take, and on a call that cannot be.
[[nodiscard]] Result<Measurement> measurement_from_json(std::string_view text);

/// The nearest known machine with what was measured in its place. `measured` is false where figures that take
/// several devices are the other machine's.
[[nodiscard]] Result<Machine> machine_of(const Measurement& measurement);

/// What ranks of several nodes have measured between them (network_figures).
struct Network {
    double gbps = 0;
    double us = 0;
    double collective_gbps = 0;
};
[[nodiscard]] Machine with_network(Machine machine, const Network& network, const std::string& source);

}  // namespace syncopate::tune
