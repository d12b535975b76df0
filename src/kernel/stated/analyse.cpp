// From a statement to what a kernel is: every tile with what it touches, the loops, and how tensors are
// reached.
#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <ranges>
#include <utility>
#include <variant>

#include "kernel/stated/footprint.hpp"
#include "syncopate/at.hpp"
#include "syncopate/kernel/stated/statement.hpp"
#include "syncopate/kernel/triton/analyse/analyse.hpp"
#include "syncopate/names.hpp"
#include "syncopate/try.hpp"

namespace syncopate::kernel::stated {
namespace {

using affine::Expression;
using affine::Form;

constexpr std::int64_t kMostTiles = std::int64_t{1} << 20;
constexpr std::int64_t kMostTrips = std::int64_t{1} << 31;

bool has(const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
}

/// By key; what has the same stays in its order. `keys`: by number.
void sort_stably(const std::vector<std::int64_t>& keys, std::vector<std::int64_t>& numbers) {
    const auto key = [&](std::int64_t number) { return keys[at(number)]; };
    const auto [least, most] = std::ranges::minmax(keys);
    const std::uint64_t apart = static_cast<std::uint64_t>(most) - static_cast<std::uint64_t>(least);
    if (apart >= keys.size()) {
        std::ranges::stable_sort(numbers, {}, key);
        return;
    }
    std::vector<std::size_t> next(apart + 2, 0);  // where one of a key goes
    for (const std::int64_t number : numbers) ++next[static_cast<std::size_t>(key(number) - least) + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    const std::vector<std::int64_t> before = numbers;
    for (const std::int64_t number : before) numbers[next[at(key(number) - least)]++] = number;
}

/// One launch of a stated kernel.
class Statements {
public:
    Statements(const Statement& statement, const Arguments& arguments, std::int64_t most_work)
        : statement_(statement), arguments_(arguments), most_work_(most_work) {}

    Result<Kernel> run() {
        kernel_.file = statement_.file;
        kernel_.name = statement_.kernel;
        kernel_.arguments = arguments_;
        kernel_.line = line_of_kernel();
        take_numbers();
        SYNCOPATE_TRY(count_tiles());
        SYNCOPATE_TRY(count_loops());
        SYNCOPATE_TRY(bind_accesses());
        SYNCOPATE_TRY(make_tiles());
        SYNCOPATE_TRY(order_tiles());
        name_axes();
        add_params();
        add_loops();
        add_accesses();
        const auto text = std::make_shared<Text>();
        text->source = statement_.source;
        kernel_.origin = text;
        return std::move(kernel_);
    }

private:
    /// Of the function in the text; 0 where it is not found.
    [[nodiscard]] std::int32_t line_of_kernel() const {
        for (const std::string before : {"def ", "void "}) {
            const std::size_t at = statement_.source.find(before + statement_.kernel + "(");
            if (at == std::string::npos) continue;
            return 1 + static_cast<std::int32_t>(
                           std::count(statement_.source.begin(),
                                      statement_.source.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
        }
        return 0;
    }

    /// The whole numbers among the arguments, and known elements of tensors, under their parameters' names.
    void take_numbers() {
        for (const auto& [name, value] : arguments_.scalars) {
            if (const auto* number = std::get_if<std::int64_t>(&value))
                coordinates_.numbers[name] = Form::number(*number);
            else if (const auto* truth = std::get_if<bool>(&value))
                coordinates_.numbers[name] = Form::number(*truth ? 1 : 0);
        }
        for (const auto& [name, tensor] : arguments_.tensors) {
            if (!tensor.values.empty()) coordinates_.lists[name] = tensor.values;
        }
    }

    [[nodiscard]] Error about(Error error) const {
        error.location.file = statement_.file;
        error.location.line = kernel_.line;
        error.message = "statement of " + statement_.kernel + ": " + error.message;
        return error;
    }

    Status count_tiles() {
        std::int64_t all = 1;
        for (const auto& [name, text] : statement_.tiles) {
            const auto expression = Expression::parse(text, "the count of tile axis " + name);
            if (!expression) return about(expression.error());
            const auto count = expression->number(coordinates_.numbers);
            if (!count) return about(count.error());
            if (*count < 1 || *count > kMostTiles || all * *count > kMostTiles) {
                return about(Error{"the count of tile axis " + name + ": `" + text + "` is " +
                                   std::to_string(*count) + "; there are from 1 to " +
                                   std::to_string(kMostTiles) + " tiles"});
            }
            all *= *count;
            kernel_.axes.push_back({name, *count, 0});
            coordinates_.names.push_back(name);
        }
        if (kernel_.axes.empty()) return about(Error{"tiles: it needs at least one axis"});
        coordinates_.tiles = kernel_.axes.size();
        return Done{};
    }

    Status count_loops() {
        for (const auto& [name, text] : statement_.loops) {
            const auto expression = Expression::parse(text, "the count of loop " + name);
            if (!expression) return about(expression.error());
            Result<Number> trips = Number::make(*expression, coordinates_);
            if (!trips) return about(trips.error());
            if (!trips->is_constant() || has(statement_.any_order, name)) kernel_.tiles_differ = true;
            trips_.push_back(*std::move(trips));
        }
        for (const auto& [name, text] : statement_.loops) coordinates_.names.push_back(name);
        return Done{};
    }

    Status bind_accesses() {
        for (const bool writes : {false, true}) {
            for (const Access& access : writes ? statement_.writes : statement_.reads) {
                const auto tensor = arguments_.tensors.find(access.param);
                if (tensor == arguments_.tensors.end()) continue;  // not given: it has no footprint
                Result<Footprint> made =
                    Footprint::make(access, writes ? "writes" : "reads", coordinates_, tensor->second);
                if (!made) return about(made.error());
                (writes ? writes_ : reads_).push_back(*std::move(made));
            }
        }
        return Done{};
    }

    /// Programs that share a tile, or slots of a call.
    [[nodiscard]] Result<std::int64_t> number_of(const std::string& text, const char* what,
                                                 std::int64_t most = kMostTiles) const {
        const auto expression = Expression::parse(text, what);
        if (!expression) return about(expression.error());
        const auto number = expression->number(coordinates_.numbers);
        if (!number) return about(number.error());
        if (*number < 1 || *number > most)
            return about(Error{std::string(what) + ": `" + text + "` is " + std::to_string(*number)});
        return *number;
    }

    Status make_tiles() {
        std::int64_t count = 1;
        for (const TileAxis& axis : kernel_.axes) count *= axis.count;
        SYNCOPATE_TAKE(const auto sharing, number_of(statement_.split, "split"));
        if (!statement_.ragged.empty()) {
            SYNCOPATE_TAKE(const auto most, number_of(statement_.ragged, "ragged"));
            if (sharing > 1 || most < count)
                return about(Error{"ragged: " + std::to_string(most) + " slots for " + std::to_string(count) +
                                   " groups: each has one at least, and no programs share one"});
            kernel_.most_slots = most;
            kernel_.starts_next = statement_.starts_next;
        }
        if (!statement_.operations.empty()) {
            constexpr std::int64_t kMostOperations = std::int64_t{1} << 52;  // exact as a double
            SYNCOPATE_TAKE(const std::int64_t operations,
                           number_of(statement_.operations, "operations", kMostOperations));
            kernel_.operations = static_cast<double>(operations);
        }
        kernel_.grid = arguments_.grid.value_or(std::array<std::int64_t, 3>{count * sharing, 1, 1});
        kernel_.persistent = true;
        const std::int64_t programs = kernel_.num_programs();
        if (programs % sharing != 0 || programs < 1) {
            return about(Error{"a grid of " + std::to_string(programs) + " programs, of which " +
                               std::to_string(sharing) + " share each tile, has to be a multiple of that"});
        }
        kernel_.programs_per_tile = sharing;
        kernel_.sums = !statement_.sums.empty();
        kernel_.head_start = !statement_.head_start.empty() && sharing == 1;
        kernel_.tiles.reserve(static_cast<std::size_t>(count));
        std::vector<std::int64_t> coord(kernel_.axes.size(), 0);
        std::vector<std::int64_t> trips(trips_.size(), 0);
        most_trips_.assign(trips_.size(), 0);
        for (std::int64_t id = 0; id < count; ++id) {
            for (std::size_t loop = 0; loop < trips.size(); ++loop) {
                const auto at = trips_[loop].at(coordinates_, coord);
                if (!at) return about(at.error());
                if (*at > kMostTrips)
                    return about(Error{"the count of loop " + statement_.loops[loop].first + " is " +
                                       std::to_string(*at)});
                trips[loop] = std::max<std::int64_t>(0, *at);
                most_trips_[loop] = std::max(most_trips_[loop], trips[loop]);
            }
            Tile& tile = kernel_.tiles.emplace_back();
            tile.coord = coord;
            tile.id = id;
            if (kernel_.tiles_differ) note_trips(trips, tile);
            if (Status status = touch(reads_, trips, tile, tile.reads, tile.read_boxes, tile.inexact_reads);
                !status)
                return status;
            if (kernel_.tiles_differ) {
                SYNCOPATE_TRY(note_loop_reads(trips, tile));
            }
            if (Status status =
                    touch(writes_, trips, tile, tile.writes, tile.write_boxes, tile.inexact_writes);
                !status)
                return status;
            for (std::size_t axis = coord.size(); axis-- > 0;) {
                if (++coord[axis] < kernel_.axes[axis].count) break;
                coord[axis] = 0;
            }
        }
        return Done{};
    }

    /// How often the tile's loops run. Tiles alike share it.
    void note_trips(const std::vector<std::int64_t>& trips, Tile& tile) {
        if (std::ranges::all_of(trips, [](std::int64_t count) { return count == 0; })) return;
        std::shared_ptr<const std::vector<std::int64_t>>& known = known_trips_[trips];
        if (known == nullptr) known = std::make_shared<const std::vector<std::int64_t>>(trips);
        tile.trips = known;
    }

    /// What the tile reads, by loop.
    Status note_loop_reads(std::span<const std::int64_t> trips, Tile& tile) {
        std::map<std::string, std::vector<LoopRead>> found;
        for (Footprint& footprint : reads_) {
            const Result<const Touched*> touched = footprint.at(coordinates_, tile.coord, trips, work_);
            if (!touched) return about(touched.error());
            if ((*touched)->boxes.empty()) continue;
            Result<LoopRead> read = footprint.loop_read(coordinates_, tile.coord, **touched);
            if (!read) return about(read.error());
            found[footprint.param()].push_back(*std::move(read));
        }
        for (auto& [param, reads] : found) {
            tile.loop_reads[param] = std::make_shared<const std::vector<LoopRead>>(std::move(reads));
        }
        return Done{};
    }

    /// What tiles are sorted by first, second, …: by tile.
    Result<std::vector<std::int64_t>> sort_keys(const std::string& text) const {
        const auto expression = Expression::parse(text, "order");
        if (!expression) return about(expression.error());
        Coordinates of_tiles = coordinates_;
        of_tiles.names.resize(of_tiles.tiles);
        const auto number = Number::make(*expression, of_tiles);
        if (!number) return about(number.error());
        std::vector<std::size_t> axes;  // that it follows from
        for (std::size_t axis = 0; axis < of_tiles.tiles; ++axis) {
            if (expression->mentions(of_tiles.names[axis])) axes.push_back(axis);
        }
        const bool alone = axes.size() == 1;
        std::vector<std::optional<std::int64_t>> known(
            alone ? static_cast<std::size_t>(kernel_.axes[axes.front()].count) : 0);
        affine::Names names = of_tiles.forms_at(std::vector<std::int64_t>(of_tiles.tiles, 0));
        std::vector<std::int64_t> keys;
        keys.reserve(kernel_.tiles.size());
        for (const Tile& tile : kernel_.tiles) {
            std::optional<std::int64_t> own;
            std::optional<std::int64_t>& key = alone ? known[at(tile.coord[axes.front()])] : own;
            if (!key) {
                const auto at = number->at(of_tiles, tile.coord, names);
                if (!at) return about(at.error());
                key = *at;
            }
            keys.push_back(*key);
        }
        return keys;
    }

    /// Which tile runs when, and so in which program.
    Status order_tiles() {
        if (!statement_.order.empty()) {
            kernel_.traversal.resize(kernel_.tiles.size());
            std::iota(kernel_.traversal.begin(), kernel_.traversal.end(), 0);
        }
        for (const std::string& text : std::views::reverse(statement_.order)) {
            SYNCOPATE_TAKE(const auto keys, sort_keys(text));
            sort_stably(keys, kernel_.traversal);
        }
        for (std::size_t position = 0; position < kernel_.tiles.size(); ++position) {
            kernel_.tiles[at(kernel_.tile_at(position))].program =
                static_cast<std::int64_t>(position) % kernel_.num_programs();
        }
        if (statement_.numbered_by_order) renumber();
        return Done{};
    }

    /// Tiles by their place in the traversal.
    void renumber() {
        std::vector<Tile> tiles;
        tiles.reserve(kernel_.tiles.size());
        for (std::size_t position = 0; position < kernel_.tiles.size(); ++position) {
            tiles.push_back(std::move(kernel_.tiles[at(kernel_.tile_at(position))]));
            tiles.back().id = static_cast<std::int64_t>(position);
        }
        kernel_.tiles = std::move(tiles);
        kernel_.traversal.clear();
    }

    template <std::size_t kFew>
    Status touch(std::vector<Footprint>& footprints, std::span<const std::int64_t> trips, const Tile& tile,
                 ByParameter<plan::Region, kFew>& around, ByParameter<SharedBoxes, kFew>& boxes,
                 std::set<std::string>& inexact) {
        around.reserve(footprints.size());
        boxes.reserve(footprints.size());
        for (Footprint& footprint : footprints) {
            const Result<const Touched*> touched = footprint.at(coordinates_, tile.coord, trips, work_);
            if (!touched) return about(touched.error());
            if (work_ > most_work_)
                return about(
                    Error{"its footprints have too many parts: state larger tiles, or fewer iterations"});
            const Touched& found = **touched;
            if (found.boxes.empty()) continue;
            const std::string& param = footprint.param();
            if (!found.exact) inexact.insert(param);
            SharedBoxes& known = boxes[param];
            plan::Region& box_around = around[param];
            if (known.empty()) {
                known = found.boxes;
                box_around = found.around;
                continue;
            }
            std::vector<plan::Region> all = known;
            for (const plan::Region& box : found.boxes) {
                std::vector<plan::Region> parts{box};
                for (const plan::Region& one : known) plan::take(parts, one);
                all.insert(all.end(), parts.begin(), parts.end());
            }
            known = SharedBoxes(std::move(all));
            box_around = plan::bounding_box(box_around, found.around);
        }
        return Done{};
    }

    /// Block sizes, from how far footprints move from tile to tile: what is written says it best.
    void name_axes() {
        for (std::size_t axis = 0; axis < kernel_.axes.size(); ++axis) {
            for (const std::vector<Footprint>* footprints : {&writes_, &reads_}) {
                for (const Footprint& footprint : *footprints) {
                    if (kernel_.axes[axis].block == 0) kernel_.axes[axis].block = footprint.step(axis);
                }
            }
            if (kernel_.axes[axis].block == 0) kernel_.axes[axis].block = 1;
        }
    }

    void add_params() {
        for (const std::string& name : statement_.parameters) {
            Param& param = kernel_.params.emplace_back();
            param.name = name;
            param.where.file = statement_.file;
            param.where.line = kernel_.line;
            const auto is_it = [&](const Access& access) { return access.param == name; };
            param.read = std::ranges::any_of(statement_.reads, is_it);
            param.written = std::ranges::any_of(statement_.writes, is_it);
            param.sent = has(statement_.sends, name);
            if (const auto tensor = arguments_.tensors.find(name); tensor != arguments_.tensors.end())
                param.kind = tensor->second.block.empty() ? ParamKind::pointer : ParamKind::descriptor;
            else if (has(statement_.constants, name))
                param.kind = ParamKind::constant;
            else if (param.read || param.written)
                param.kind = ParamKind::pointer;
        }
    }

    void add_loops() {
        for (std::size_t i = 0; i < trips_.size(); ++i) {
            Loop& loop = kernel_.loops.emplace_back();
            loop.variable = statement_.loops[i].first;
            loop.trips = most_trips_[i];
            loop.divisible = true;
            loop.any_order = has(statement_.any_order, loop.variable);
            if (kernel_.tiles_differ) continue;  // Tile::loop_reads says it
            for (const Footprint& footprint : reads_) {
                const auto same = [&](const Footprint& other) { return other.param() == footprint.param(); };
                if (std::ranges::count_if(reads_, same) > 1) continue;  // one of them may begin elsewhere
                if (const auto slice = footprint.slice(coordinates_, i)) loop.slices.push_back(*slice);
            }
        }
    }

    void add_accesses() {
        const bool takes_own = has(statement_.parameters, "sy_own");
        for (const bool writes : {false, true}) {
            for (const Access& access : writes ? statement_.writes : statement_.reads) {
                const auto tensor = arguments_.tensors.find(access.param);
                if (tensor == arguments_.tensors.end()) continue;
                const std::vector<std::int64_t>& block = tensor->second.block;
                ParamAccess& made = kernel_.accesses.emplace_back();
                made.param = access.param;
                made.stores = writes;
                made.by = block.empty() ? ParamAccess::By::pointers : ParamAccess::By::descriptor;
                made.given = !block.empty() && takes_own;
                if (!takes_own)
                    made.not_own =
                        statement_.kernel + " has no parameter sy_own that leads to the rank's own part";
                made.rows = block.empty() ? 0 : block.front();
                made.line = kernel_.line;
                if (!has(statement_.placed, access.param)) {
                    made.fixed = statement_.kernel + " does not state that it " +
                                 (writes ? "stores " : "loads ") + access.param +
                                 " where its slot says: add it to `placed` if it does";
                }
            }
        }
    }

    const Statement& statement_;
    const Arguments& arguments_;
    std::int64_t most_work_;
    std::int64_t work_ = 0;
    Kernel kernel_;
    Coordinates coordinates_;
    std::vector<Number> trips_;  ///< by loop
    std::vector<std::int64_t> most_trips_;
    std::map<std::vector<std::int64_t>, std::shared_ptr<const std::vector<std::int64_t>>> known_trips_;
    std::vector<Footprint> reads_, writes_;
};

/// Whether the tensors that are given are the kernel's.
Status check_names(const Statement& statement, const Arguments& arguments) {
    for (const auto& [name, tensor] : arguments.tensors) {
        if (!has(statement.parameters, name))
            return Error{"kernel " + statement.kernel + " has no parameter " + escaped(name)};
    }
    for (const std::vector<Access>* accesses : {&statement.reads, &statement.writes}) {
        for (const Access& access : *accesses) {
            const auto given = arguments.scalars.find(access.param);
            if (given != arguments.scalars.end() && !std::holds_alternative<NoneValue>(given->second))
                return Error{statement.kernel + " is stated to " +
                             (accesses == &statement.reads ? "read " : "write ") + access.param +
                             ", which is a number here"};
        }
    }
    return Done{};
}

}  // namespace

Result<Kernel> analyse(const Statement& statement, const Arguments& arguments, std::int64_t most_work) {
    SYNCOPATE_TRY(check_names(statement, arguments));
    return Statements(statement, arguments, most_work).run();
}

Result<Kernel> analyse(const std::string& json, std::string file, const std::string& name,
                       const Arguments& arguments) {
    SYNCOPATE_TAKE(const Statement statement, statement_from_json(json, file));
    if (!name.empty() && name != statement.kernel) {
        Location where;
        where.file = std::move(file);
        return Error{"it states kernel " + statement.kernel + ", not " + escaped(name), where};
    }
    return analyse(statement, arguments);
}

Result<Explained> analyse_and_explain(const std::string& json, std::string file, const std::string& name,
                                      const Arguments& arguments) {
    SYNCOPATE_TAKE(Kernel kernel, analyse(json, std::move(file), name, arguments));
    Explained made{std::move(kernel), {}, {}};
    for (const Loop& loop : made.kernel.loops) {
        std::string line = "loop " + loop.variable + ": " + std::to_string(loop.trips) + " iterations";
        for (const LoopSlice& slice : loop.slices) {
            line += "; " + slice.param + "[axis " + std::to_string(slice.dim) + "] from " +
                    std::to_string(slice.base) + " by " + std::to_string(slice.step) + ", " +
                    std::to_string(slice.extent) + " each";
        }
        made.places.push_back(std::move(line));
    }
    made.notes.push_back(
        {made.kernel.line, "stated: tiles, loops and footprints are those of its statement"});
    return made;
}

Result<std::vector<ImportedFile>> imported_files(const std::string& json, const std::string& file) {
    SYNCOPATE_TAKE(const Statement statement, statement_from_json(json, file));
    if (!statement.file.ends_with(".py")) return std::vector<ImportedFile>{};
    const std::filesystem::path source = std::filesystem::path(file).parent_path() / statement.file;
    return triton::imported_files(statement.source, source.string());
}

}  // namespace syncopate::kernel::stated
