// Gluon fit: a machine's figures of the library's Gluon GEMM (gluon_tflops to gluon_call_us) from the times
// of products by it, in many tiles. No figure can be timed by itself: a tile's time is the longer of several.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "syncopate/tune/machine.hpp"
#include "syncopate/tune/problem.hpp"
#include "syncopate/tune/strategy.hpp"

namespace syncopate::tune {

/// A product of 16 bits, one of several calls in a row whose weights come from memory.
struct TimedProduct {
    ProductShape shape;
    TileConfig tile;
    double us = 0;
};

struct GluonFit {
    std::map<std::string, double, std::less<>> figures;  ///< by name in machine_figures()
    double off = 0;  ///< of a time that is worth it, on average: 0.05 is 5 %
};

/// The figures by which the estimate (gluon_tiles.hpp) is nearest to the times of the tiles that are worth
/// taking, and ranks the quickest first: from those of `start` on, whose num_sms made the products, each in
/// turn is made more or less, by steps that halve. The same times give the same figures.
[[nodiscard]] GluonFit fit_gluon(const std::vector<TimedProduct>& timed, const Machine& start);

}  // namespace syncopate::tune
