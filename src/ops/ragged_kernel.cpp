#include <algorithm>
#include <limits>
#include <set>
#include <span>

#include <fmt/format.h>

#include "ops/ragged_bind.hpp"
#include "ops/ragged_grouped.hpp"
#include "ops/ragged_order.hpp"
#include "ops/ragged_probes.hpp"
#include "ops/ragged_told.hpp"
#include "syncopate/at.hpp"
#include "syncopate/emit/language.hpp"
#include "syncopate/kernel/model/tile_boxes.hpp"
#include "syncopate/ops/ragged.hpp"
#include "syncopate/round_up.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

using kernel::Kernel;
using kernel::ParamKind;
using kernel::Tile;
using plan::Interval;
using plan::Region;

class Grouping {
public:
    Grouping(const emit::StageText& stage, const RaggedRows& of, bool follows)
        : stage_(stage), of_(of), follows_(follows) {}

    Result<RaggedKernel> make() {
        SYNCOPATE_TRY(bind_parameters(stage_, of_, follows_, made_));
        if (of_.own * of_.bound > std::numeric_limits<std::int32_t>::max())
            return Error{fmt::format("{} experts of up to {} rows are more than offsets of 32 bits number",
                                     of_.own, of_.bound),
                         {.file = stage_.file}};
        // Not those of rows that lie apart, as they lie in no call.
        Offsets first(at(of_.own) + 1, of_.bound);
        first.front() = 0;
        SYNCOPATE_TAKE(const Kernel usual, analysed(first));
        SYNCOPATE_TRY(check_parameters(usual, made_));
        SYNCOPATE_TAKE(Kernel found, follows_ ? behind(first) : in_some_way(first, usual));
        made_.warnings.insert(made_.warnings.end(), usual.warnings.begin(), usual.warnings.end());
        found.warnings.clear();
        made_.made_shape = found.arguments.tensors[made_.makes].shape;
        made_.kernel = grouped(std::move(found), made_, of_);
        return std::move(made_);
    }

private:
    /// How it is known whose rows a tile reads; see ragged.hpp.
    enum class Way : std::uint8_t { by_expert, in_order, together };

    Result<Kernel> in_some_way(const Offsets& first, const Kernel& usual) {
        std::optional<Error> why;  // not by expert, or not in order
        const auto no = [&](const Error& error) {
            if (!why) why = error;
        };
        made_.groups = of_.own;
        const bool by_block =
            std::ranges::any_of(made_.told, [](const RaggedTold& told) { return is_by_block(told.form); });
        // Descriptors load whole blocks, also where an expert's rows end within one.
        const std::int64_t block = most_rows_read(usual, read_by_blocks(usual));
        Offsets single(first.size(), 1);
        single.front() = 0;
        SYNCOPATE_TAKE(const Kernel one, analysed(single));
        // Else it has no tiles for rows that do not come.
        const bool by_counts = usual.persistent && one.tiles.size() != usual.tiles.size();
        for (const std::int64_t reads_on : std::set<std::int64_t>{0, block}) {
            made_.reads_on = reads_on;
            made_.order = {};
            if (!by_block && !by_counts) {
                way_ = Way::by_expert;
                Result<Kernel> found = by_expert();
                if (found) return found;
                if (!usual.persistent) no(found.error());
            }
            way_ = Way::in_order;
            made_.expert_of.clear(), made_.row_of.clear();
            Result<Kernel> found = in_order(first, usual, one);
            if (found) return found;
            no(found.error());
        }
        // Which expert's rows a tile reads may hang on all counts: then it waits for all rows.
        way_ = Way::together;
        made_.order = {};
        made_.reads_on = 0;
        made_.groups = 1;
        Result<Kernel> found = together(first);
        if (!found) return *why;
        made_.warnings.push_back(
            fmt::format("{}. So each tile waits for the rows of all experts", why->message));
        return found;
    }

    /// What the kernel does where experts' rows lie so.
    [[nodiscard]] Result<Kernel> analysed(const Offsets& offsets) const {
        kernel::Arguments arguments = stage_.arguments;
        // Apart, experts have more rows than there is memory for.
        const std::int64_t rows = way_ == Way::by_expert ? of_.own * of_.bound : of_.rows.rows;
        const auto lies = [&](const std::string& param, const RaggedTensor& as) {
            kernel::TensorArgument& given = arguments.tensors[param];
            given = {.shape = {rows, as.columns},
                     .strides = {},
                     .dtype = as.dtype,
                     .block = std::move(given.block)};
        };
        for (const auto& [param, tensor] : made_.reads)
            lies(param, tensor == of_.rows.name ? of_.rows : *of_.more);
        if (of_.back) lies(made_.makes, *of_.back);
        for (const RaggedTold& told : made_.told)
            arguments.tensors[told.param] = table_of(told, offsets, of_.bound);
        return emit::language_of(stage_.file)
            .analyse_as(stage_.source, stage_.file, stage_.name, arguments,
                        way_ == Way::together ? kernel::Tiles::programs : kernel::Tiles::walks);
    }

    Result<Kernel> by_expert() {
        // Every expert has all rows that it may have: then each tile that could ever have some reads them.
        Offsets apart;
        for (std::int64_t expert = 0; expert <= of_.own; ++expert) apart.push_back(expert * of_.bound);
        SYNCOPATE_TAKE(Kernel found, analysed(apart));
        SYNCOPATE_TRY(find_experts(found, apart));
        bool stays = true;
        for (const Offsets& offsets : offsets_by_expert(of_.own, of_.bound, blocks_of(found))) {
            SYNCOPATE_TAKE(const Kernel other, analysed(offsets));
            SYNCOPATE_TRY(check(other, offsets));
            stays = stays && std::ranges::all_of(other.tiles, [&](const Tile& tile) {
                        return begins_where_found(tile, offsets);
                    });
        }
        // Else no tile is known to have nothing to read of few rows.
        if (!stays) std::ranges::fill(made_.row_of, 0);
        made_.tiles = static_cast<std::int64_t>(found.tiles.size());
        return found;
    }

    /// Whether a tile that reads rows begins with the one of its expert that it was found to begin with.
    [[nodiscard]] bool begins_where_found(const Tile& tile, const Offsets& offsets) const {
        const std::int32_t expert = made_.expert_of[at(tile.id)];
        std::int64_t first = std::numeric_limits<std::int64_t>::max();
        each_read(tile, [&](const Region& box) { first = std::min(first, box[0].begin); });
        if (expert < 0 || first == std::numeric_limits<std::int64_t>::max()) return true;
        return first - offsets[at(expert)] == made_.row_of[at(tile.id)];
    }

    /// Of the rows that the tile reads, by whichever parameter.
    template <typename Each>
    void each_read(const Tile& tile, const Each& each) const {
        for (const auto& [param, tensor] : made_.reads) {
            for (const Region& box : kernel::boxes_read(tile, param)) each(box);
        }
    }

    Result<Kernel> in_order(const Offsets& first, const Kernel& found, const Kernel& one) {
        std::optional<Error> why;
        for (const RaggedOrder& order : orders_of(found, one, made_.reads)) {
            made_.order = order;
            const Status enough = check_enough(found), good = enough ? check_all(found, first) : enough;
            if (!good) {
                if (!why) why = good.error();
                continue;
            }
            made_.tiles = found.persistent ? most_blocks(of_.own, of_.bound, order.rows) * order.columns
                                           : static_cast<std::int64_t>(found.tiles.size());
            return found;
        }
        if (why) return *why;
        return wrong(found, "its tiles are not numbered expert after expert, nor of one expert each");
    }

    Result<Kernel> together(const Offsets& first) {
        SYNCOPATE_TAKE(Kernel found, analysed(first));
        made_.expert_of.assign(found.tiles.size(), 0);
        made_.row_of.assign(found.tiles.size(), 0);
        made_.tiles = static_cast<std::int64_t>(found.tiles.size());
        SYNCOPATE_TRY(check_all(found, first));
        return found;
    }

    /// Those before have waited for all rows.
    Result<Kernel> behind(const Offsets& first) {
        way_ = Way::together;
        made_.groups = 1;
        if (of_.back || !made_.reads.empty()) return together(first);
        SYNCOPATE_TAKE(Kernel found, analysed(first));
        made_.tiles = static_cast<std::int64_t>(found.tiles.size());
        return found;
    }

    /// For rows of all experts that there may be, `found` with those of the first of it.
    Status check_all(const Kernel& found, const Offsets& first) const {
        SYNCOPATE_TRY(check_covered(found, first));
        const std::vector<std::int64_t> blocks = blocks_of(found);
        std::set<std::int64_t> most_of{16, 32, 64, 128, 256};
        most_of.insert(blocks.begin(), blocks.end());
        if (way_ == Way::in_order) most_of = {made_.order.rows};
        for (const Offsets& offsets : offsets_together(of_.own, of_.bound, blocks, most_of)) {
            SYNCOPATE_TAKE(const Kernel other, analysed(offsets));
            SYNCOPATE_TRY(check_covered(other, offsets));
        }
        return Done{};
    }

    Status check_covered(const Kernel& found, const Offsets& offsets) const {
        SYNCOPATE_TRY(check(found, offsets));
        if (follows_) return Done{};
        std::vector<bool> read(at(offsets.back()), false);
        for (const Tile& tile : found.tiles) {
            const Interval own = rows_of(expert_of(tile, offsets), offsets);
            each_read(tile, [&](const Region& box) {
                const std::int64_t begin = std::max(box[0].begin, own.begin);
                const std::int64_t end = std::min(box[0].end, own.end);
                if (begin < end) std::fill(read.begin() + begin, read.begin() + end, true);
            });
        }
        const auto missing = std::ranges::find(read, false);
        if (missing == read.end()) return Done{};
        return wrong(found,
                     fmt::format("no tile reads row {} where experts have {} rows: launch programs for "
                                 "all rows that may come (the bound of {} is {})",
                                 missing - read.begin(), lengths_of(offsets), of_.rows.name, of_.bound));
    }

    /// Whose rows a tile reads; -1: nobody's.
    [[nodiscard]] std::int32_t expert_of(const Tile& tile, const Offsets& offsets) const {
        if (way_ == Way::in_order) return expert_in(made_.order, tile.id, offsets);
        return made_.expert_of[at(tile.id)];
    }
    /// Which rows a tile may touch.
    [[nodiscard]] Interval rows_of(std::int32_t expert, const Offsets& offsets) const {
        if (way_ == Way::together) return {0, offsets.back()};
        return expert < 0 ? Interval{} : Interval{offsets[at(expert)], offsets[at(expert) + 1]};
    }

    /// Of which expert each tile is, and of which rows.
    Status find_experts(const Kernel& found, const Offsets& apart) {
        made_.expert_of.assign(found.tiles.size(), -1);
        made_.row_of.assign(found.tiles.size(), 0);
        std::vector<std::vector<bool>> read(at(of_.own), std::vector<bool>(at(of_.bound), false));
        for (const Tile& tile : found.tiles) {
            std::optional<std::pair<std::int64_t, std::int64_t>> both;  // of a tile that is of two experts
            each_read(tile, [&](const Region& box) {
                const std::int64_t first = box[0].begin / of_.bound;
                // `check` looks at how far a block reaches into the experts behind.
                const std::int64_t last = made_.reads_on > 0 ? first : (box[0].end - 1) / of_.bound;
                std::int32_t& expert = made_.expert_of[at(tile.id)];
                std::int32_t& row = made_.row_of[at(tile.id)];
                const auto begin = static_cast<std::int32_t>(box[0].begin - apart[at(first)]);
                if (first != last || (expert >= 0 && expert != first)) {
                    if (!both) both = {expert >= 0 ? expert : first, last};
                    return;
                }
                row = expert < 0 ? begin : std::min(row, begin);
                expert = static_cast<std::int32_t>(first);
                std::vector<bool>& of_expert = read[at(first)];
                std::fill(of_expert.begin() + begin,
                          of_expert.begin() + std::min(box[0].end - apart[at(first)], of_.bound), true);
            });
            if (both)
                return wrong(
                    found,
                    fmt::format("tile {} reads rows of expert {} and of expert {}: a tile is to be of one",
                                tile.id, both->first, both->second));
        }
        for (std::int64_t expert = 0; expert < of_.own; ++expert) {
            const auto missing = std::ranges::find(read[at(expert)], false);
            if (missing == read[at(expert)].end()) continue;
            return wrong(found,
                         fmt::format("no tile reads row {} of expert {}, and an expert may have {} rows (the "
                                     "bound of {}): launch "
                                     "programs for all of them",
                                     missing - read[at(expert)].begin(), expert, of_.bound, of_.rows.name));
        }
        return check(found, apart);
    }

    /// That tiles are each of its expert alone, where the rows lie so.
    Status check(const Kernel& found, const Offsets& offsets) const {
        if (way_ == Way::in_order)
            SYNCOPATE_TRY(check_number(found, offsets));
        else if (found.tiles.size() != made_.expert_of.size())
            return wrong(found, fmt::format("it has {} tiles, and {} where experts' rows begin elsewhere",
                                            made_.expert_of.size(), found.tiles.size()));
        const Reads by_blocks = read_by_blocks(found);
        for (const Tile& tile : found.tiles) {
            const std::int32_t expert = expert_of(tile, offsets);
            const Interval rows = rows_of(expert, offsets);
            Interval reached = rows;
            if (way_ == Way::together) reached.end = of_.rows.rows;
            if (made_.reads_on > 0 && expert >= 0)
                reached.end = rows.begin + ceil_div(rows.end - rows.begin, made_.reads_on) * made_.reads_on;
            for (const auto& read : made_.reads) {
                const Interval& there = std::ranges::count(by_blocks, read) > 0 ? reached : rows;
                SYNCOPATE_TRY(check_within(found, tile, read.first, kernel::boxes_read(tile, read.first),
                                           there, offsets));
            }
            for (const RaggedTold& told : made_.told) {
                if (way_ == Way::by_expert && expert >= 0)
                    SYNCOPATE_TRY(check_within(found, tile, told.param, kernel::boxes_read(tile, told.param),
                                               entries_of(told.form, expert), offsets));
            }
            if (of_.back)
                SYNCOPATE_TRY(check_within(found, tile, made_.makes, kernel::boxes_written(tile, made_.makes),
                                           rows, offsets));
        }
        return of_.back ? check_made(found, offsets) : Done{};
    }

    /// Whose rows it reads by descriptors alone.
    [[nodiscard]] Reads read_by_blocks(const Kernel& found) const {
        Reads made = made_.reads;
        std::erase_if(made, [&](const auto& read) {
            return std::ranges::any_of(found.accesses, [&](const kernel::ParamAccess& access) {
                return access.param == read.first && !access.stores &&
                       access.by == kernel::ParamAccess::By::pointers;
            });
        });
        return made;
    }

    /// That its grid has numbers for all tiles that there can be.
    Status check_enough(const Kernel& found) const {
        const RaggedOrder& order = made_.order;
        const std::int64_t most = most_blocks(of_.own, of_.bound, order.rows) * order.columns;
        if (found.persistent || most <= order.count) return Done{};
        return wrong(found,
                     fmt::format("it has {} tiles, and rows of {} experts may take {}: launch programs for "
                                 "all rows that may come (the bound of {} is {})",
                                 order.count, of_.own, most, of_.rows.name, of_.bound));
    }

    /// As many tiles as its numbering says.
    Status check_number(const Kernel& found, const Offsets& offsets) const {
        const std::int64_t total = tiles_in(made_.order, offsets);
        if (found.persistent ? static_cast<std::int64_t>(found.tiles.size()) == total
                             : total <= made_.order.count)
            return Done{};
        return wrong(found, fmt::format("it has {} tiles where experts have {} rows, and not {}, {} for each "
                                        "{} rows of an expert",
                                        found.tiles.size(), lengths_of(offsets), total, made_.order.columns,
                                        made_.order.rows));
    }

    Status check_within(const Kernel& found, const Tile& tile, const std::string& name,
                        std::span<const Region> boxes, const Interval& own, const Offsets& offsets) const {
        const bool table = made_.tensor_read(name).empty() && name != made_.makes;
        for (const Region& box : boxes) {
            if (box[0].begin >= own.begin && box[0].end <= own.end) continue;
            const std::int32_t expert = expert_of(tile, offsets);
            return wrong(
                found,
                fmt::format("tile {} is of {}, which has {} {} to {}, and {} {} to {} where experts have {} "
                            "rows",
                            tile.id, expert < 0 ? std::string("no expert") : fmt::format("expert {}", expert),
                            table ? "entries" : "rows", own.begin, own.end - 1,
                            name == made_.makes ? "stores into" : "reads", box[0].begin, box[0].end - 1,
                            lengths_of(offsets)),
                name);
        }
        return Done{};
    }

    /// All of what goes back is stored.
    Status check_made(const Kernel& found, const Offsets& offsets) const {
        std::vector<std::vector<Region>> missing;
        for (std::int32_t group = 0; group < made_.groups; ++group)
            missing.push_back({Region{rows_of(group, offsets), {0, of_.back->columns}}});
        for (const Tile& tile : found.tiles) {
            const std::int32_t expert = expert_of(tile, offsets);
            if (expert < 0) continue;
            if (tile.inexact_writes.contains(made_.makes))
                return wrong(found,
                             "which of its elements a tile stores depends on data, and all of them go back",
                             made_.makes);
            for (const Region& box : kernel::boxes_written(tile, made_.makes))
                plan::take(missing[at(expert)], box);
        }
        for (std::int64_t expert = 0; expert < made_.groups; ++expert) {
            for (const Region& left : missing[at(expert)]) {
                if (plan::is_empty(left)) continue;
                return wrong(found,
                             fmt::format("of expert {}'s rows no tile stores {} where experts have {} rows",
                                         expert, plan::to_string(left), lengths_of(offsets)),
                             made_.makes);
            }
        }
        return Done{};
    }

    [[nodiscard]] Error wrong(const Kernel& found, std::string message, const std::string& name = {}) const {
        const std::string& usual = made_.reads.empty() ? made_.makes : made_.reads.front().first;
        const kernel::Param* param = found.find_param(name.empty() ? usual : name);
        return kernel::error_at(*param, fmt::format("{}: {}", param->name, std::move(message)));
    }

    [[nodiscard]] std::vector<std::int64_t> blocks_of(const Kernel& found) const {
        return ops::blocks_of(found, made_.reads, of_.back ? made_.makes : std::string());
    }

    const emit::StageText& stage_;
    const RaggedRows& of_;
    const bool follows_;
    RaggedKernel made_;
    Way way_ = Way::in_order;
};

}  // namespace

Result<RaggedKernel> ragged_kernel(const emit::StageText& stage, const RaggedRows& of) {
    return Grouping(stage, of, false).make();
}

Result<RaggedKernel> ragged_follower(const emit::StageText& stage, const RaggedRows& of) {
    return Grouping(stage, of, true).make();
}

}  // namespace syncopate::ops
