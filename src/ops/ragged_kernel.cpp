#include <algorithm>
#include <limits>
#include <span>

#include <fmt/format.h>

#include "ops/ragged_probes.hpp"
#include "syncopate/at.hpp"
#include "syncopate/emit/language.hpp"
#include "syncopate/kernel/model/tile_boxes.hpp"
#include "syncopate/ops/ragged.hpp"
#include "syncopate/try.hpp"

namespace syncopate::ops {
namespace {

using kernel::Kernel;
using kernel::Tile;
using plan::Interval;
using plan::Region;

class Grouping {
public:
    Grouping(const emit::StageText& stage, const RaggedRows& of) : stage_(stage), of_(of) {}

    Result<RaggedKernel> make() {
        SYNCOPATE_TRY(find_parameters());
        if (of_.own * of_.bound > std::numeric_limits<std::int32_t>::max())
            return about(fmt::format("{} experts of up to {} rows are more than offsets of 32 bits number",
                                     of_.own, of_.bound));
        // Every expert has all rows that it may have: then each tile that could ever have some reads them.
        Offsets apart;
        for (std::int64_t expert = 0; expert <= of_.own; ++expert) apart.push_back(expert * of_.bound);
        SYNCOPATE_TAKE(Kernel found, analysed(apart));
        SYNCOPATE_TRY(check_kernel(found));
        made_.groups = of_.own;
        const Status by_expert = check_by_expert(found, apart);
        if (!by_expert) {
            // Which expert's rows a tile reads may hang on all counts: then it waits for all rows.
            together_ = true;
            made_.groups = 1;
            made_.expert_of.assign(found.tiles.size(), 0);
            made_.row_of.assign(found.tiles.size(), 0);
            if (!check_together(found)) return by_expert.error();
            made_.warnings.push_back(
                fmt::format("{}. So each tile waits for the rows of all experts", by_expert.error().message));
        }
        // Not those of rows that lie apart, as they lie in no call.
        Offsets first(at(of_.own) + 1, of_.bound);
        first.front() = 0;
        SYNCOPATE_TAKE(const Kernel usual, analysed(first));
        made_.warnings.insert(made_.warnings.end(), usual.warnings.begin(), usual.warnings.end());
        found.warnings.clear();
        made_.kernel = grouped(std::move(found));
        return std::move(made_);
    }

private:
    Status find_parameters() {
        for (const auto& [param, tensor] : stage_.bindings) {
            std::string* place = tensor == of_.rows.name                ? &made_.reads
                                 : tensor == of_.counts                 ? &made_.offsets
                                 : of_.back && tensor == of_.back->name ? &made_.makes
                                                                        : nullptr;
            if (place == nullptr)
                return about(fmt::format("bind: the plan has no tensor {} for {}", tensor, param));
            if (!place->empty())
                return about(fmt::format("bind: {} and {} are both bound to {}", *place, param, tensor));
            *place = param;
        }
        if (made_.reads.empty()) return unbound(of_.rows.name, "its rows would be read by nobody");
        if (made_.offsets.empty())
            return unbound(of_.counts, "by it the kernel is given where each expert's rows begin");
        if (of_.back && made_.makes.empty()) return unbound(of_.back->name, "nobody would make its rows");
        return Done{};
    }

    [[nodiscard]] Error unbound(const std::string& tensor, const char* why) const {
        return about(fmt::format("bind: no parameter is bound to {}: {}", tensor, why));
    }

    [[nodiscard]] Error about(std::string message) const {
        return Error{std::move(message), {.file = stage_.file}};
    }

    /// What the kernel does where experts' rows lie so.
    [[nodiscard]] Result<Kernel> analysed(const Offsets& offsets) const {
        kernel::Arguments arguments = stage_.arguments;
        const std::int64_t rows = of_.own * of_.bound;
        arguments.tensors[made_.reads] = {
            .shape = {rows, of_.rows.columns}, .strides = {}, .dtype = of_.rows.dtype, .block = {}};
        if (of_.back)
            arguments.tensors[made_.makes] = {
                .shape = {rows, of_.back->columns}, .strides = {}, .dtype = of_.back->dtype, .block = {}};
        arguments.tensors[made_.offsets] = {.shape = {of_.own + 1},
                                            .strides = {},
                                            .dtype = plan::DType::int32,
                                            .block = {},
                                            .values = offsets};
        return emit::language_of(stage_.file).analyse(stage_.source, stage_.file, stage_.name, arguments);
    }

    Status check_kernel(const Kernel& found) {
        for (const std::string& name : {made_.reads, made_.offsets}) {
            const kernel::Param* param = found.find_param(name);
            if (param == nullptr || param->kind != kernel::ParamKind::pointer)
                return about(fmt::format("bind: {} is no pointer of {}: rows in groups are read by pointers",
                                         name, found.name));
            if (!param->read)
                return kernel::error_at(
                    *param,
                    fmt::format("{} is not read: it has {}", name,
                                name == made_.reads ? "the rows that come" : "where experts' rows begin"));
            if (param->written)
                return kernel::error_at(*param, fmt::format("{} is stored into: it is the plan's", name));
        }
        for (const kernel::Param& param : found.params) {
            if (param.written && !param.read && param.kind == kernel::ParamKind::pointer &&
                made_.makes.empty())
                made_.makes = param.name;
        }
        const kernel::Param* made = made_.makes.empty() ? nullptr : found.find_param(made_.makes);
        if (made != nullptr && (made->kind != kernel::ParamKind::pointer || !made->written || made->read))
            return kernel::error_at(
                *made, fmt::format("{}: its rows go back: it is to be stored into by a pointer, and not read",
                                   made_.makes));
        if (made_.makes.empty())
            return about(fmt::format("{} stores by no pointer that it does not read, too", found.name));
        if (found.persistent || found.programs_per_tile != 1 ||
            at(found.num_programs()) != found.tiles.size())
            return Error{fmt::format("{} runs several tiles a program: rows in groups take a kernel with a "
                                     "program for each tile",
                                     found.name),
                         {.file = found.file, .line = found.line}};
        return Done{};
    }

    Status check_by_expert(const Kernel& found, const Offsets& apart) {
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
        return Done{};
    }

    /// Whether a tile that reads rows begins with the one of its expert that it was found to begin with.
    [[nodiscard]] bool begins_where_found(const Tile& tile, const Offsets& offsets) const {
        const std::int32_t expert = made_.expert_of[at(tile.id)];
        const std::span<const Region> boxes = kernel::boxes_read(tile, made_.reads);
        if (expert < 0 || boxes.empty()) return true;
        const auto first = std::ranges::min(boxes, {}, [](const Region& box) { return box[0].begin; });
        return first[0].begin - offsets[at(expert)] == made_.row_of[at(tile.id)];
    }

    Status check_together(const Kernel& found) const {
        for (const Offsets& offsets : offsets_together(of_.own, of_.bound, blocks_of(found))) {
            SYNCOPATE_TAKE(const Kernel other, analysed(offsets));
            SYNCOPATE_TRY(check(other, offsets));
            std::vector<bool> read(at(offsets.back()), false);
            for (const Tile& tile : other.tiles) {
                for (const Region& box : kernel::boxes_read(tile, made_.reads))
                    std::fill(read.begin() + box[0].begin, read.begin() + box[0].end, true);
            }
            if (std::ranges::find(read, false) != read.end()) return wrong(other, "no tile reads some row");
        }
        return Done{};
    }

    /// Which rows a tile may touch, and which of the offsets.
    [[nodiscard]] Interval rows_of(std::int32_t expert, const Offsets& offsets) const {
        if (together_) return {0, offsets.back()};
        return expert < 0 ? Interval{} : Interval{offsets[at(expert)], offsets[at(expert) + 1]};
    }
    [[nodiscard]] Interval offsets_of(std::int32_t expert) const {
        return together_ ? Interval{0, of_.own + 1} : Interval{expert, expert + 2};
    }

    /// Of which expert each tile is, and of which rows.
    Status find_experts(const Kernel& found, const Offsets& apart) {
        made_.expert_of.assign(found.tiles.size(), -1);
        made_.row_of.assign(found.tiles.size(), 0);
        std::vector<std::vector<bool>> read(at(of_.own), std::vector<bool>(at(of_.bound), false));
        for (const Tile& tile : found.tiles) {
            for (const Region& box : kernel::boxes_read(tile, made_.reads)) {
                const std::int64_t first = box[0].begin / of_.bound, last = (box[0].end - 1) / of_.bound;
                std::int32_t& expert = made_.expert_of[at(tile.id)];
                std::int32_t& row = made_.row_of[at(tile.id)];
                const auto begin = static_cast<std::int32_t>(box[0].begin - apart[at(first)]);
                if (first != last || (expert >= 0 && expert != first))
                    return wrong(
                        found, fmt::format(
                                   "tile {} reads rows of expert {} and of expert {}: a tile is to be of one",
                                   tile.id, expert >= 0 ? expert : first, last));
                row = expert < 0 ? begin : std::min(row, begin);
                expert = static_cast<std::int32_t>(first);
                std::vector<bool>& of_expert = read[at(first)];
                std::fill(of_expert.begin() + begin, of_expert.begin() + (box[0].end - apart[at(first)]),
                          true);
            }
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
        if (found.tiles.size() != made_.expert_of.size())
            return wrong(found, fmt::format("it has {} tiles, and {} where experts' rows begin elsewhere",
                                            made_.expert_of.size(), found.tiles.size()));
        for (const Tile& tile : found.tiles) {
            const std::int32_t expert = made_.expert_of[at(tile.id)];
            const Interval rows = rows_of(expert, offsets);
            SYNCOPATE_TRY(
                check_within(found, tile, made_.reads, kernel::boxes_read(tile, made_.reads), rows, offsets));
            if (expert >= 0)
                SYNCOPATE_TRY(check_within(found, tile, made_.offsets,
                                           kernel::boxes_read(tile, made_.offsets), offsets_of(expert),
                                           offsets));
            if (of_.back)
                SYNCOPATE_TRY(check_within(found, tile, made_.makes, kernel::boxes_written(tile, made_.makes),
                                           rows, offsets));
        }
        return of_.back ? check_made(found, offsets) : Done{};
    }

    Status check_within(const Kernel& found, const Tile& tile, const std::string& name,
                        std::span<const Region> boxes, const Interval& own, const Offsets& offsets) const {
        for (const Region& box : boxes) {
            if (box[0].begin >= own.begin && box[0].end <= own.end) continue;
            return wrong(
                found,
                fmt::format(
                    "tile {} is of {}, which has {} {} to {}, and {} {} to {} where experts have {} rows",
                    tile.id,
                    made_.expert_of[at(tile.id)] < 0 ? std::string("no expert")
                                                     : fmt::format("expert {}", made_.expert_of[at(tile.id)]),
                    name == made_.offsets ? "offsets" : "rows", own.begin, own.end - 1,
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
            if (made_.expert_of[at(tile.id)] < 0) continue;
            if (tile.inexact_writes.contains(made_.makes))
                return wrong(found,
                             "which of its elements a tile stores depends on data, and all of them go back",
                             made_.makes);
            for (const Region& box : kernel::boxes_written(tile, made_.makes))
                plan::take(missing[at(made_.expert_of[at(tile.id)])], box);
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
        const kernel::Param* param = found.find_param(name.empty() ? made_.reads : name);
        return kernel::error_at(*param, fmt::format("{}: {}", param->name, std::move(message)));
    }

    static std::vector<std::int64_t> blocks_of(const Kernel& found) {
        std::vector<std::int64_t> blocks;
        for (const kernel::TileAxis& axis : found.axes) blocks.push_back(axis.block);
        return blocks;
    }

    /// Of a group, an expert or all of a rank's, tiles wait alike; on a rank run those of its own. Each is made of what the
    /// call's table says.
    [[nodiscard]] Kernel grouped(Kernel found) const {
        found.most_slots = static_cast<std::int64_t>(found.tiles.size());
        found.tiles.clear();
        found.loops.clear();
        found.accesses.clear();
        found.traversal.clear();
        found.tiles_differ = false;
        const std::int64_t groups = of_.ranks * made_.groups, each = of_.own / made_.groups;
        found.axes = {{"group", groups, 1}};
        // As the plan has them.
        const auto shape_of = [&](const RaggedTensor& of) {
            return std::vector<std::int64_t>{of_.ranks, of_.experts, of.columns};
        };
        found.arguments.tensors[made_.reads].shape = shape_of(of_.rows);
        found.arguments.tensors[made_.offsets].values.clear();
        kernel::TensorArgument& stored = found.arguments.tensors[made_.makes];
        stored.shape = of_.back ? shape_of(*of_.back) : std::vector<std::int64_t>{of_.experts};
        stored.strides.clear();
        for (std::int64_t group = 0; group < groups; ++group) {
            Tile& tile = found.tiles.emplace_back();
            tile.coord = {group};
            tile.id = tile.program = group;
            const Interval experts{group * each, (group + 1) * each};
            const Region rows{{0, of_.ranks}, experts, {0, of_.rows.columns}};
            Region made{experts};
            if (of_.back) made = {{0, of_.ranks}, experts, {0, of_.back->columns}};
            tile.reads[made_.reads] = rows;
            tile.read_boxes[made_.reads] = kernel::SharedBoxes(std::vector<Region>{rows});
            tile.writes[made_.makes] = made;
            tile.write_boxes[made_.makes] = kernel::SharedBoxes(std::vector<Region>{made});
        }
        return found;
    }

    const emit::StageText& stage_;
    const RaggedRows& of_;
    RaggedKernel made_;
    bool together_ = false;  ///< any tile may read all rows
};

}  // namespace

Result<RaggedKernel> ragged_kernel(const emit::StageText& stage, const RaggedRows& of) {
    return Grouping(stage, of).make();
}

}  // namespace syncopate::ops
