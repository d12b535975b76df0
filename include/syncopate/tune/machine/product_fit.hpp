// Product fit: a machine's figures of the library's Gluon GEMM (gluon_tflops to gluon_tile_us) from the times of
// products by it. None of these can be timed by itself: a product's time is the longer of several.
//
// From the figures of another machine on each in turn is made more or less, by steps that halve, as long as
// the estimate comes nearer to the times. The same times give the same figures.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"

namespace syncopate::tune {

/// A product of 16 bits: one of several calls in a row whose weights come from memory.
struct TimedProduct {
    ProductShape shape;
    TileConfig tile;
    double us = 0;
};

struct ProductFit {
    std::map<std::string, double, std::less<>> figures;  ///< by name in machine_figures()
    double off = 0;                                      ///< of a time that counts, on average: 0.05 is 5 %
};

/// Nearest to the times of the tiles that are worth taking, and such that the quickest are ranked first
/// (gluon_tiles.hpp). `start.num_sms` made the products.
[[nodiscard]] ProductFit fit_gluon(const std::vector<TimedProduct>& timed, const Machine& start);

}  // namespace syncopate::tune
