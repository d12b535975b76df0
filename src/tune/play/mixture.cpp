#include "syncopate/tune/play/mixture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/names.hpp"
#include "syncopate/tune/candidates/tiles.hpp"
#include "syncopate/whole_number.hpp"

namespace syncopate::tune {
namespace {

class Played {
public:
    Played(const Problem& problem, const Machine& machine, const TileConfig& tile, const Routing& routing)
        : problem_(problem),
          machine_(machine),
          tile_(tile),
          part_(problem.word("part")),
          is_tensor_parallel_(problem.word("parallel") == "tensor"),
          ranks_(static_cast<double>(problem.ranks)),
          hidden_(problem.extent("H")),
          inner_(problem.extent("F") / (is_tensor_parallel_ ? problem.ranks : 1)),
          own_(is_tensor_parallel_ ? problem.extent("E") : problem.extent("E") / problem.ranks),
          rows_(routing) {
        const std::int64_t experts = problem.extent("E");
        if (rows_.size() == at(experts)) return;
        is_known_ = false;
        const std::int64_t all = problem.extent("T") * problem.ranks * problem.extent("topk");
        rows_.assign(at(experts), all / experts);
        for (std::int64_t e = 0; e < all % experts; ++e) ++rows_[at(e)];
    }

    [[nodiscard]] Estimate run() const {
        const Rates& rates = machine_.rates;
        const bool sends = part_ != "combine";
        const bool returns = part_ != "dispatch";
        const bool multiplies = sends && returns;
        const double stages = (multiplies ? 6 : 3) + (is_tensor_parallel_ ? (multiplies ? 2 : 1) : 0);
        Estimate made;
        made.fixed = rates.call_us + (stages - 1) * rates.kernel_us;
        // Counts, rows, and rows that come back: each is handed over once.
        if (problem_.ranks > 1) made.fixed += (multiplies ? 3 : sends ? 2 : 1) * rates.fused_us;
        double back = 0;
        for (std::int32_t rank = 0; rank < problem_.ranks; ++rank) {
            const double up = product_us_of(rank, hidden_, inner_, 2);
            const double down = product_us_of(rank, inner_, hidden_, 1);
            if (multiplies) made.compute = std::max(made.compute, up + down);
            const double moved = moved_us(rank);
            made.communicate = std::max(made.communicate, moved);
            back = std::max(back, moved - (multiplies ? down : 0));
        }
        if (sends) made.exposed += made.communicate;
        if (returns) made.exposed += back + combined_us();
        if (multiplies) made.communicate *= 2;
        made.us = made.fixed + made.compute + made.exposed;
        return made;
    }

    /// Counts, rows and rows that come back by the library's all-to-all, around as many products. It is told in the pair's
    /// favour: its products are as quick, and the host takes no time to read the counts.
    [[nodiscard]] Estimate unfused() const {
        constexpr double kKernels =
            12;  // sorting, ordering rows on either side and back, two products, the sum
        const Rates& rates = machine_.rates;
        Estimate made;
        made.fixed = rates.call_us + (kKernels - 1) * rates.kernel_us;
        for (std::int32_t rank = 0; rank < problem_.ranks; ++rank) {
            made.compute = std::max(made.compute, product_us_of(rank, hidden_, inner_, 2) +
                                                      product_us_of(rank, inner_, hidden_, 1));
            double moved = 4 * over(2 * std::max(sum(rows_of(rank)), sum(rows_) / ranks_) * row_bytes(),
                                    rates.memory_gbps);
            const auto exchanged = [&](double bytes) {
                return rates.library_exchange_us.along(bytes / fuse::kMib);
            };
            if (problem_.ranks > 1) moved += exchanged(0) + 2 * exchanged(across(rank));
            made.communicate = std::max(made.communicate, moved);
        }
        made.exposed = made.communicate + combined_us();
        made.us = made.fixed + made.compute + made.exposed;
        return made;
    }

private:
    [[nodiscard]] std::span<const std::int64_t> rows_of(std::int32_t rank) const {
        return std::span(rows_).subspan(at(is_tensor_parallel_ ? 0 : rank * own_), at(own_));
    }
    static double sum(std::span<const std::int64_t> rows) {
        return static_cast<double>(std::reduce(rows.begin(), rows.end()));
    }
    [[nodiscard]] double row_bytes() const { return static_cast<double>(hidden_ * problem_.item()); }

    /// Rows from all ranks, or back to them: over the link what has another rank on its other end; all of it
    /// is read and written.
    [[nodiscard]] double moved_us(std::int32_t rank) const {
        const double own = sum(rows_of(rank));
        const double all = sum(rows_);
        if (is_tensor_parallel_) {  // tokens, and on each rank a row for each of their experts
            const double tokens = static_cast<double>(problem_.extent("T")) * row_bytes();
            const double sent = (ranks_ - 1) * tokens;
            const double link = machine_.rates.tile_store_gbps.at(sent / fuse::kMib);
            return std::max(over(sent, link),
                            over(ranks_ * tokens + all * row_bytes(), machine_.rates.memory_gbps));
        }
        const double within = 2 * std::max(own, all / ranks_) * row_bytes();
        const double gbps = machine_.rates.tile_store_gbps.at(across(rank) / fuse::kMib);
        return std::max(over(across(rank), gbps), over(within, machine_.rates.memory_gbps));
    }

    /// Bytes of rows that another rank sends or gets, of those that do more.
    [[nodiscard]] double across(std::int32_t rank) const {
        const double own = sum(rows_of(rank));
        return std::max(own * (ranks_ - 1), sum(rows_) - own) / ranks_ * row_bytes();
    }

    /// `products` of [rows, k] x [k, n] for each of a rank's experts, by the same tiles. An expert's weights are
    /// read once: its rows of tiles run side by side.
    [[nodiscard]] double product_us_of(std::int32_t rank, std::int64_t k, std::int64_t n,
                                       std::int64_t products) const {
        const double columns = std::ceil(static_cast<double>(n) / tile_.block_n);
        double tiles = 0, elements = 0;
        for (const std::int64_t rows : rows_of(rank)) {
            tiles += tiles_of(rows) * columns;
            const std::int64_t weights = rows > 0 ? products * k * n : 0;
            elements += static_cast<double>(weights + rows * (k + n));
        }
        const double one = tile_us(machine_, problem_.dtype, tile_, products * tile_.block_n, k);
        const double read = over(elements * static_cast<double>(problem_.item()), machine_.rates.memory_gbps);
        return std::max(std::ceil(tiles / machine_.num_sms) * one, read);
    }

    /// Down an expert's rows. Of an average, the last one is half full: nothing makes it end with a tile.
    [[nodiscard]] double tiles_of(std::int64_t rows) const {
        const double tiles = static_cast<double>(rows) / tile_.block_m;
        if (is_known_ || rows == 0) return std::ceil(tiles);
        return std::max(1.0, tiles + 0.5);
    }

    [[nodiscard]] double combined_us() const {
        const auto tokens = static_cast<double>(problem_.extent("T"));
        const auto topk = static_cast<double>(problem_.extent("topk"));
        if (is_tensor_parallel_)  // of all ranks' tokens, then the parts of the own ones
            return over(tokens * (ranks_ * (topk + 1) + ranks_ + 1) * row_bytes(),
                        machine_.rates.memory_gbps);
        return over(tokens * (topk + 1) * row_bytes(), machine_.rates.memory_gbps);
    }

    static double over(double bytes, double gbps) {
        if (bytes <= 0) return 0;
        return gbps <= 0 ? kUnknownUs : bytes / (gbps * kBytesPerUs);
    }

    const Problem& problem_;
    const Machine& machine_;
    TileConfig tile_;
    std::string_view part_;
    bool is_tensor_parallel_;
    double ranks_;
    std::int64_t hidden_, inner_;
    std::int64_t own_;  ///< experts of a rank
    Routing rows_;
    bool is_known_ = true;  ///< else they are averages
};

std::int64_t all_rows(const Problem& problem) {
    return problem.extent("T") * problem.ranks * problem.extent("topk");
}

/// So many rows, as many for each of these experts.
void share(std::span<std::int64_t> experts, std::int64_t rows) {
    const auto count = static_cast<std::int64_t>(experts.size());
    for (std::int64_t e = 0; e < count; ++e) experts[at(e)] = rows / count + (e < rows % count ? 1 : 0);
}

}  // namespace

Result<Routing> parse_routing(const Problem& problem, std::string_view text) {
    const auto refused = [](std::string message) { return usage_error("routing: " + std::move(message)); };
    if (!problem.is_mixture()) return refused(problem.op + " routes no rows");
    if (text == "random") return Routing{};
    const std::int64_t all = all_rows(problem);
    Routing rows(at(problem.extent("E")), 0);
    if (text == "balanced") {
        share(rows, all);
        return rows;
    }
    if (text == "skewed") {
        const std::int64_t first = rows.size() == 1 ? all : all / 2;
        rows.front() = first;
        if (rows.size() > 1) share(std::span(rows).subspan(1), all - first);
        return rows;
    }
    std::size_t expert = 0;
    for (std::string_view rest = text; !rest.empty(); ++expert) {
        const std::size_t comma = std::min(rest.find(','), rest.size());
        const std::int64_t value = whole_number<std::int64_t>(rest.substr(0, comma)).value_or(-1);
        if (value < 0)
            return refused(
                fmt::format("\"{}\": expected random, balanced, skewed, or the rows of each expert",
                            escaped(rest.substr(0, comma))));
        if (expert < rows.size()) rows[expert] = value;
        rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
    if (expert != rows.size())
        return refused(fmt::format("rows of {} experts, and there are E={}", expert, rows.size()));
    const std::int64_t sum = std::reduce(rows.begin(), rows.end());
    if (sum != all)
        return refused(fmt::format("{} rows, and {} tokens of {} ranks have {}", sum, problem.extent("T"),
                                   problem.ranks, all));
    return rows;
}

Estimate estimate_mixture(const Problem& problem, const Machine& machine, const Strategy& strategy,
                          const Routing& routing) {
    if (strategy.tiles.empty()) return {};
    const Played played(problem, machine, strategy.tiles.front(), routing);
    return strategy.placement == Placement::unfused ? played.unfused() : played.run();
}

}  // namespace syncopate::tune
