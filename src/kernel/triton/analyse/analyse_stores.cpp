// What a kernel surely does and can hardly mean: its accesses leave their tensor, or two of its tiles store the
// same element, so that what is left there depends on which one comes last. Nothing is said of what may only
// be (a mask that data decides), nor of atomics alone, nor where a kernel may order its tiles itself.
#include <algorithm>
#include <set>
#include <string>

#include "kernel/triton/analyse/analysis.hpp"
#include "kernel/triton/footprints/partition.hpp"
#include "syncopate/at.hpp"

namespace syncopate::kernel::triton {
namespace {

/// "tile 3", of a kernel whose programs are tiles on several axes "program (1, 0, 0)".
std::string text_of_tile(bool persistent, const std::array<std::int64_t, 3>& grid, std::int64_t id,
                         std::int64_t program) {
    if (persistent || (grid[1] == 1 && grid[2] == 1)) return "tile " + std::to_string(id);
    return "program (" + std::to_string(program % grid[0]) + ", " +
           std::to_string(program / grid[0] % grid[1]) + ", " + std::to_string(program / grid[0] / grid[1]) +
           ")";
}

std::string text_of_two(const std::string& first, const std::string& second, const std::string& param,
                        const plan::Region& box) {
    return first + " and " + second + " both store " + param + plan::to_string(box) +
           ", and nothing orders them: let one tile store it, or add to it by tl.atomic_add";
}

/// Of these tiles, by what they surely write to `param`.
std::optional<SharedStore> shared_store_of(const Kernel& kernel, const std::string& param,
                                           const std::set<std::int64_t>& tiles) {
    std::vector<StoredBox> boxes;
    for (const std::int64_t id : tiles) {
        const Tile& tile = kernel.tiles[at(id)];
        const auto written = tile.write_boxes.find(param);
        if (written == tile.write_boxes.end() || tile.inexact_writes.contains(param)) continue;
        for (const plan::Region& box : written->second) boxes.push_back({static_cast<std::size_t>(id), box});
    }
    return find_shared_store(kernel.arguments.tensors.at(param).shape, boxes);
}

}  // namespace

std::vector<std::string> warnings_of(const Kernel& kernel, const std::vector<std::set<std::int64_t>>& tiles) {
    std::vector<std::string> warnings = kernel.warnings;
    const auto name = [&](std::size_t tile) {
        return text_of_tile(kernel.persistent, kernel.grid, kernel.tiles[tile].id,
                            kernel.tiles[tile].program);
    };
    for (const Text::Leaving& leaving : text_of(kernel).leaving) {
        const auto is_run = [&](std::size_t tile) {
            return std::ranges::any_of(tiles, [&](const auto& of_rank) {
                return of_rank.contains(static_cast<std::int64_t>(tile));
            });
        };
        const auto first = std::ranges::find_if(leaving.tiles, is_run);
        const auto told = std::ranges::find(warnings, leaving.warning);
        if (told == warnings.end()) continue;
        if (first == leaving.tiles.end())
            warnings.erase(told);
        else
            *told = leaving.at + ": " + name(*first) + leaving.said;
    }
    for (const Text::StoredTwice& twice : text_of(kernel).stored_twice) {
        std::erase(warnings, twice.warning);
        for (const std::set<std::int64_t>& of_rank : tiles) {
            const auto shared = shared_store_of(kernel, twice.param, of_rank);
            if (!shared) continue;
            warnings.push_back(
                twice.at + ": " +
                text_of_two(name(shared->first), name(shared->second), twice.param, shared->box));
            break;
        }
    }
    return warnings;
}

/// The tiles that surely touch memory outside of a tensor, by loads or by stores.
std::vector<std::size_t> Analysis::leaving(std::int32_t memory, bool write) const {
    const Findings& found = evaluator_.found;
    std::vector<std::size_t> tiles;
    for (std::size_t t = 0; t < found.tiles.size(); ++t) {
        for (std::size_t i = found.tiles[t].begin; i < found.tiles[t].end; ++i) {
            const Touch& touch = found.touched[i];
            if (!touch.leaves || touch.param != memory || touch.write != write || touch.shadow) continue;
            tiles.push_back(t);
            break;
        }
    }
    return tiles;
}

/// Two tiles that surely store the same element.
std::optional<SharedStore> Analysis::shared_store(std::int32_t memory, Stored how) const {
    const Findings& found = evaluator_.found;
    const std::vector<std::int64_t>& shape = evaluator_.tensors[at(memory)].shape;
    std::vector<StoredBox> boxes;
    const auto adds = [&](const Touch& touch) { return touch.param == memory && touch.adds; };
    if (how == Stored::mixed && std::ranges::none_of(found.touched, adds)) return std::nullopt;
    for (std::size_t t = 0; t < found.tiles.size(); ++t) {
        for (std::size_t i = found.tiles[t].begin; i < found.tiles[t].end; ++i) {
            const Touch& touch = found.touched[i];
            if (touch.param != memory || !touch.write || touch.shadow || !touch.exact) continue;
            if (how == Stored::plain && touch.adds) continue;
            for (std::uint32_t b = touch.begin; b < touch.end; ++b) {
                const Box box = moved_box(found, touch, b);
                boxes.push_back(
                    {t, plan::Region(box.begin(), box.begin() + static_cast<std::ptrdiff_t>(shape.size())),
                     how == Stored::mixed && touch.adds});
            }
        }
    }
    return find_shared_store(shape, boxes);
}

std::array<std::int64_t, 3> Analysis::program_of(std::size_t tile) const {
    const std::int64_t program = evaluator_.found.tiles[tile].program;
    return {program % grid_[0], program / grid_[0] % grid_[1], program / grid_[0] / grid_[1]};
}

/// The axes of the launch along which the programs of the two tiles lie apart.
std::array<bool, 3> Analysis::differing_axes(const SharedStore& shared) const {
    const auto first = program_of(shared.first), second = program_of(shared.second);
    return {first[0] != second[0], first[1] != second[1], first[2] != second[2]};
}

/// Whether the two tiles may store different values: not where neither what is stored, nor where, follows from
/// the ids in which their programs differ.
bool Analysis::may_differ(std::int32_t memory, const SharedStore& shared) const {
    if (persistent_) return true;
    const std::array<bool, 3> apart = differing_axes(shared);
    const std::uint64_t taint = evaluator_.param_store_taint[at(memory)];
    for (std::size_t i = 0; i < evaluator_.sources.size(); ++i) {
        const TaintSource& source = evaluator_.sources[i];
        if (source.kind == TaintSource::Kind::program_id && apart[at(source.grid_axis)] &&
            (taint >> std::min<std::size_t>(i, 63) & 1) != 0)
            return true;
    }
    return false;
}

/// Whether tiles may take turns: by atomics on other memory, or in a `while` that reads what the kernel stores.
bool Analysis::orders_its_tiles(std::int32_t memory) const {
    const bool atomics = std::ranges::any_of(evaluator_.found.accesses, [&](const auto& access) {
        return access.first.second != memory && access.second.loads && access.second.stores;
    });
    if (atomics) return true;
    bool shares = false;
    for (std::size_t m = 0; m < evaluator_.param_written.size(); ++m)
        shares = shares || (evaluator_.param_written[m] && evaluator_.param_read[m]);
    return shares &&
           std::ranges::any_of(statements(), [](const Stmt* s) { return s->kind == StmtKind::while_loop; });
}

/// All statements of the kernel and of the functions that it calls.
std::vector<const Stmt*> Analysis::statements() const {
    std::vector<const Stmt*> all(function_.body.begin(), function_.body.end());
    for (const std::int32_t f : functions_) {
        if (f == index_) continue;
        const std::vector<Stmt*>& body = module_.functions[at(f)].body;
        all.insert(all.end(), body.begin(), body.end());
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
        for (const std::vector<Stmt*>* inside : {&all[i]->body, &all[i]->otherwise})
            all.insert(all.end(), inside->begin(), inside->end());
    }
    return all;
}

/// Whether all atomics on the memory are sums whose old values nobody reads: others are how tiles hand over, and
/// a store beside them may be meant.
bool Analysis::is_summed(std::int32_t memory) const {
    std::set<const Expr*> unread;
    for (const Stmt* s : statements())
        if (s->kind == StmtKind::expression) unread.insert(s->value);
    return std::ranges::all_of(evaluator_.found.accesses, [&](const auto& access) {
        const auto& [call, of] = access.first;
        const bool atomic = of == memory && access.second.loads && access.second.stores;
        return !atomic || (call->text.ends_with("atomic_add") && unread.contains(call));
    });
}

/// "x_ptr (shape 4x7, strides 7,1)"
std::string Analysis::tensor_text(std::int32_t memory) const {
    const TensorView& tensor = evaluator_.tensors[at(memory)];
    std::string shape, strides;
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
        shape += (d == 0 ? "" : "x") + std::to_string(tensor.shape[d]);
        strides += (d == 0 ? "" : ",") + std::to_string(tensor.given_strides[d]);
    }
    return evaluator_.memory_names[at(memory)] + " (shape " + shape + ", strides " + strides + ")";
}

std::string Analysis::tile_text(std::size_t tile) const {
    return text_of_tile(persistent_, grid_, evaluator_.found.tiles[tile].id,
                        evaluator_.found.tiles[tile].program);
}

void Analysis::add_warnings(Kernel& kernel, Text& made) {
    const auto warn = [&](std::int32_t memory, bool write, const std::string& text) {
        const Sites& sites = text_of(kernel).sites;
        const std::vector<AccessSite>& all = write ? sites.stores : sites.loads;
        const auto site = std::ranges::find(all, evaluator_.memory_names[at(memory)], &AccessSite::param);
        const Location where = module_.error(site == all.end() ? sites.name : site->call, {}).location;
        const std::string at = where.file + ":" + std::to_string(where.line);
        kernel.warnings.push_back(at + ": " + text);
        return at;
    };
    const auto count = static_cast<std::int32_t>(evaluator_.tensors.size());
    // Inside the tensor all the same.
    for (const auto& [memory, step] : evaluator_.odd_rows) {
        const auto is_it = [step = step](const auto& scalar) {
            const auto* value = std::get_if<std::int64_t>(&scalar.second);
            return value != nullptr && *value == step && scalar.first.find("stride") != std::string::npos;
        };
        const auto scalar = std::ranges::find_if(arguments_.scalars, is_it);
        if (scalar == arguments_.scalars.end() || !leaving(memory, false).empty() ||
            !leaving(memory, true).empty())
            continue;
        warn(memory, !evaluator_.param_read[at(memory)],
             "the rows of a block lie `" + scalar->first + "=" + std::to_string(step) +
                 "` elements apart, which is no stride of " + tensor_text(memory) +
                 ": give the shape and strides that it has in a launch");
    }
    for (std::int32_t memory = 0; memory < count; ++memory) {
        for (const bool write : {false, true}) {
            std::vector<std::size_t> tiles = leaving(memory, write);
            if (tiles.empty()) continue;
            const std::string said = (write ? " stores to" : " loads from") +
                                     std::string(" memory outside of ") + tensor_text(memory) +
                                     ": give the shape and strides that it has in a launch";
            const std::string at = warn(memory, write, tile_text(tiles.front()) + said);
            for (std::size_t& tile : tiles) tile = static_cast<std::size_t>(evaluator_.found.tiles[tile].id);
            made.leaving.push_back({std::move(tiles), said, kernel.warnings.back(), at});
            break;
        }
    }
    for (std::int32_t memory = 0; memory < count; ++memory) {
        const auto p = static_cast<std::size_t>(memory);
        if (!evaluator_.param_written[p] || evaluator_.tensors[p].shape.empty()) continue;
        if (const std::string early = ends_early(memory); !early.empty()) warn(memory, true, early);
    }
    for (std::int32_t memory = 0; memory < count; ++memory) {
        const auto p = static_cast<std::size_t>(memory);
        if (!evaluator_.param_written[p] || evaluator_.tensors[p].shape.empty() || orders_its_tiles(memory))
            continue;
        const std::string& param = evaluator_.memory_names[p];
        const auto shared = shared_store(memory, Stored::plain);
        const auto mixed = shared || !is_summed(memory) ? std::nullopt : shared_store(memory, Stored::mixed);
        if (mixed)
            warn(memory, true,
                 tile_text(mixed->first) + " stores " + param + plan::to_string(mixed->box) + ", which " +
                     tile_text(mixed->second) +
                     " changes by an atomic, and nothing orders them: let both do it by atomics");
        if (!shared || !may_differ(memory, *shared)) continue;
        const std::string at =
            warn(memory, true,
                 text_of_two(tile_text(shared->first), tile_text(shared->second), param, shared->box));
        made.stored_twice.push_back({param, kernel.warnings.back(), at});
    }
}

}  // namespace syncopate::kernel::triton
