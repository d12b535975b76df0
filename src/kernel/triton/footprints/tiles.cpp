#include "kernel/triton/footprints/tiles.hpp"
#include "syncopate/at.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

namespace syncopate::kernel::triton {
namespace {

constexpr std::size_t kMostToMerge = 32;

/// Adds a box to a union of disjoint ones.
void unite(std::vector<plan::Region>& boxes, plan::Region box) {
    for (const plan::Region& known : boxes) {
        if (plan::contains(known, box)) return;
    }
    std::vector<plan::Region> parts{std::move(box)};
    for (const plan::Region& known : boxes) plan::take(parts, known);
    for (plan::Region& part : parts) boxes.push_back(std::move(part));
}

/// The union of two boxes when it is a box: they agree on all axes but one, where they touch.
bool join(plan::Region& a, const plan::Region& b) {
    std::size_t differing = a.size();
    for (std::size_t d = 0; d < a.size(); ++d) {
        if (a[d] == b[d]) continue;
        if (differing != a.size()) return false;
        differing = d;
    }
    if (differing == a.size()) return true;
    plan::Interval& x = a[differing];
    const plan::Interval& y = b[differing];
    if (x.end != y.begin && y.end != x.begin) return false;
    x = {std::min(x.begin, y.begin), std::max(x.end, y.end)};
    return true;
}

void simplify(std::vector<plan::Region>& boxes) {
    for (bool again = boxes.size() > 1 && boxes.size() <= kMostToMerge; again;) {
        again = false;
        for (std::size_t i = 0; i < boxes.size() && !again; ++i) {
            for (std::size_t j = i + 1; j < boxes.size() && !again; ++j) {
                if (!join(boxes[i], boxes[j])) continue;
                boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(j));
                again = true;
            }
        }
    }
    std::sort(boxes.begin(), boxes.end(), [](const plan::Region& a, const plan::Region& b) {
        return std::lexicographical_compare(
            a.begin(), a.end(), b.begin(), b.end(),
            [](const plan::Interval& x, const plan::Interval& y) { return x.begin < y.begin; });
    });
}

/// Makes one of boxes that differ along one axis at most, where they meet or overlap.
void put_together(std::vector<plan::Region>& boxes) {
    for (std::size_t axis = boxes.front().size(); axis-- > 0;) {
        const auto order = [axis](const plan::Region& a, const plan::Region& b) {
            for (std::size_t d = 0; d < a.size(); ++d) {
                if (d == axis || a[d] == b[d]) continue;
                return std::pair(a[d].begin, a[d].end) < std::pair(b[d].begin, b[d].end);
            }
            return a[axis].begin < b[axis].begin;
        };
        if (!std::is_sorted(boxes.begin(), boxes.end(), order)) std::sort(boxes.begin(), boxes.end(), order);
        std::size_t last = 0;
        for (std::size_t i = 1; i < boxes.size(); ++i) {
            plan::Region &known = boxes[last], &box = boxes[i];
            bool joins = box[axis].begin <= known[axis].end;
            for (std::size_t d = 0; joins && d < box.size(); ++d) joins = d == axis || box[d] == known[d];
            if (joins)
                known[axis].end = std::max(known[axis].end, box[axis].end);
            else if (++last != i)
                boxes[last] = std::move(box);
        }
        boxes.resize(last + 1);
    }
}

/// Many boxes as disjoint ones: cut along the first axis where any of them begins or ends, the other axes
/// within each slab likewise, equal neighbours put together again.
std::vector<plan::Region> disjoint(const std::vector<plan::Region>& boxes, std::size_t axis) {
    std::vector<plan::Region> made;
    std::vector<std::int64_t> cuts;
    for (const plan::Region& box : boxes) cuts.insert(cuts.end(), {box[axis].begin, box[axis].end});
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<const plan::Region*> starting;
    for (const plan::Region& box : boxes) starting.push_back(&box);
    std::sort(starting.begin(), starting.end(), [&](const plan::Region* a, const plan::Region* b) {
        return (*a)[axis].begin < (*b)[axis].begin;
    });
    std::size_t next = 0, last_begin = 0;
    std::vector<const plan::Region*> open;
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
        std::erase_if(open, [&](const plan::Region* box) { return (*box)[axis].end <= cuts[c]; });
        while (next < starting.size() && (*starting[next])[axis].begin == cuts[c])
            open.push_back(starting[next++]);
        if (open.empty()) {
            last_begin = made.size();
            continue;
        }
        std::vector<plan::Region> slab;
        if (axis + 1 == boxes.front().size()) {
            slab.push_back(*open.front());
        } else {
            std::vector<plan::Region> inside;
            for (const plan::Region* box : open) inside.push_back(*box);
            slab = disjoint(inside, axis + 1);
        }
        for (plan::Region& part : slab) part[axis] = {cuts[c], cuts[c + 1]};
        const bool joins =
            made.size() - last_begin == slab.size() && !slab.empty() &&
            std::equal(slab.begin(), slab.end(), made.begin() + static_cast<std::ptrdiff_t>(last_begin),
                       [&](const plan::Region& a, const plan::Region& b) {
                           return b[axis].end == a[axis].begin &&
                                  std::equal(a.begin() + static_cast<std::ptrdiff_t>(axis) + 1, a.end(),
                                             b.begin() + static_cast<std::ptrdiff_t>(axis) + 1);
                       });
        if (joins) {
            for (std::size_t i = last_begin; i < made.size(); ++i) made[i][axis].end = cuts[c + 1];
        } else {
            last_begin = made.size();
            for (plan::Region& part : slab) made.push_back(std::move(part));
        }
    }
    return made;
}

}  // namespace

TileMaker::TileMaker(const Findings& found, const std::vector<std::string>& names,
                     const std::vector<TensorView>& tensors, std::vector<std::int32_t> loops)
    : found_(found), names_(names), tensors_(tensors), loops_(std::move(loops)) {
    for (const std::int32_t loop : loops_)
        num_loops_ = std::max(num_loops_, static_cast<std::size_t>(loop + 1));
    uneven_.resize(num_loops_);
}

/// How often the tile runs each loop.
void TileMaker::note_trips(Tile& tile, const TileRecord& record) {
    if (num_loops_ == 0) return;
    std::vector<std::int64_t> trips(num_loops_, 0);
    for (std::size_t i = record.begin; i < record.end; ++i) {
        const Touch& ran = found_.touched[i];
        if (ran.param >= 0) continue;
        const Walk& walk = found_.walks[at(ran.walk)];
        const std::int32_t loop = loops_[at(walk.loop)];
        if (loop < 0) continue;
        std::int64_t& known = trips[at(loop)];
        if (known != 0 && known != walk.trips) uneven_[at(loop)] = true;
        known = walk.trips;
    }
    auto& shared = trips_[trips];
    if (shared == nullptr) shared = std::make_shared<const std::vector<std::int64_t>>(trips);
    tile.trips = shared;
}

/// What the touches read by loop.
void TileMaker::add_reads(Union& made, std::span<const std::uint32_t> touches) const {
    if (num_loops_ == 0) return;
    const auto loop_of = [&](const Touch& touch) {
        if (touch.walk < 0) return -1;
        return loops_[at(found_.walks[at(touch.walk)].loop)];
    };
    const bool in_loops =
        std::ranges::any_of(touches, [&](std::uint32_t i) { return loop_of(found_.touched[i]) >= 0; });
    if (!in_loops) return;
    for (const std::uint32_t i : touches) {
        const Touch& touch = found_.touched[i];
        if (touch.shadow) continue;
        LoopRead read;
        if (read.loop = loop_of(touch); read.loop >= 0) {
            const Walk& walk = found_.walks[at(touch.walk)];
            read.dim = walk.dim;
            read.base = walk.base + (walk.dim >= 0 && walk.dim == touch.along ? touch.by : 0);
            read.step = walk.step;
            read.extent = walk.extent;
        }
        const auto same = std::ranges::find_if(made.reads, [&](const LoopRead& known) {
            return known.loop == read.loop && known.dim == read.dim && known.base == read.base &&
                   known.step == read.step && known.extent == read.extent;
        });
        LoopRead& to = same == made.reads.end() ? made.reads.emplace_back(std::move(read)) : *same;
        const std::size_t rank = tensors_[at(touch.param)].shape.size();
        for (std::uint32_t b = touch.begin; b < touch.end; ++b) {
            const Box box = box_of(touch, b);
            to.boxes.emplace_back(box.begin(), box.begin() + static_cast<std::ptrdiff_t>(rank));
        }
    }
    for (LoopRead& read : made.reads) {
        std::vector<plan::Region> boxes;
        if (read.boxes.size() > kMostToMerge) {
            put_together(read.boxes);
            boxes = disjoint(read.boxes, 0);
        } else {
            for (plan::Region& box : read.boxes) unite(boxes, std::move(box));
        }
        simplify(boxes);
        read.boxes = std::move(boxes);
    }
}

Tile TileMaker::make(const TileRecord& record) {
    Tile tile;
    tile.id = record.id;
    tile.program = record.program;
    note_trips(tile, record);
    // By parameter, in the order of the accesses.
    order_.clear();
    for (std::size_t i = record.begin; i < record.end; ++i)
        if (found_.touched[i].param >= 0) order_.push_back(static_cast<std::uint32_t>(i));
    const auto place = [&](std::uint32_t i) {
        return 2 * found_.touched[i].param + (found_.touched[i].write ? 1 : 0);
    };
    const auto before = [&](std::uint32_t a, std::uint32_t b) {
        return std::pair(place(a), a) < std::pair(place(b), b);
    };
    if (!std::is_sorted(order_.begin(), order_.end(), before))
        std::sort(order_.begin(), order_.end(), before);
    std::array<std::size_t, 2> parameters{};  // that are read, that are written: at most
    for (std::size_t i = 0; i < order_.size(); ++i) {
        if (i == 0 || place(order_[i]) != place(order_[i - 1]))
            ++parameters[found_.touched[order_[i]].write ? 1 : 0];
    }
    tile.reads.reserve(parameters[0]), tile.read_boxes.reserve(parameters[0]);
    tile.writes.reserve(parameters[1]), tile.write_boxes.reserve(parameters[1]);
    for (std::size_t first = 0, end = 0; first < order_.size(); first = end) {
        while (end < order_.size() && place(order_[end]) == place(order_[first])) ++end;
        const Touch& touch = found_.touched[order_[first]];
        const Union& all = united(std::span(order_).subspan(first, end - first));
        if (all.beyond && !beyond_) beyond_ = Beyond{touch.param, touch.write, *all.beyond, record.id};
        if (all.boxes.empty()) continue;
        const std::string& name = names_[at(touch.param)];
        const auto note = [&](auto& boxes, auto& around) {
            boxes[name] = SharedBoxes(std::shared_ptr<const SharedBoxes::List>(unions_, &all.boxes));
            around[name] = all.around;
        };
        touch.write ? note(tile.write_boxes, tile.writes) : note(tile.read_boxes, tile.reads);
        if (!touch.write && !all.reads.empty()) {
            tile.loop_reads[name] = std::shared_ptr<const std::vector<LoopRead>>(unions_, &all.reads);
        }
        if (!all.exact) (touch.write ? tile.inexact_writes : tile.inexact_reads).insert(name);
    }
    return tile;
}

Box moved_box(const Findings& found, const Touch& touch, std::uint32_t b) {
    Box box = found.boxes[b];
    if (touch.along >= 0) {
        plan::Interval& moved = box[at(touch.along)];
        moved = {moved.begin + touch.by, moved.end + touch.by};
    }
    return box;
}

/// The one box that exact accesses come to where each box continues, or repeats, those before it.
std::optional<Box> TileMaker::one_box(std::span<const std::uint32_t> touches, std::size_t rank) const {
    std::optional<Box> all;
    for (const std::uint32_t i : touches) {
        const Touch& touch = found_.touched[i];
        if (touch.shadow || !touch.exact) return std::nullopt;
        for (std::uint32_t b = touch.begin; b < touch.end; ++b) {
            const Box box = box_of(touch, b);
            if (!all) {
                all = box;
                continue;
            }
            std::size_t differing = rank;
            for (std::size_t d = 0; d < rank; ++d) {
                if ((*all)[d] == box[d]) continue;
                if (differing != rank) return std::nullopt;
                differing = d;
            }
            if (differing == rank) continue;
            plan::Interval& known = (*all)[differing];
            if (known.end < box[differing].begin || box[differing].end < known.begin) return std::nullopt;
            known = {std::min(known.begin, box[differing].begin), std::max(known.end, box[differing].end)};
        }
    }
    return all;
}

/// Identifies the touches of one tile of a parameter, moved back by `back`.
void TileMaker::push_key(std::span<const std::uint32_t> touches, std::int64_t back) {
    key_.clear();
    for (const std::uint32_t i : touches) {
        const Touch& touch = found_.touched[i];
        key_.push_back(static_cast<std::uint64_t>(touch.begin) << 32 | touch.end);
        key_.push_back(static_cast<std::uint64_t>(touch.param) << 3 | (touch.write ? 4U : 0U) |
                       (touch.exact ? 2U : 0U) | (touch.shadow ? 1U : 0U) |
                       static_cast<std::uint64_t>(touch.along + 1) << 48);
        key_.push_back(static_cast<std::uint64_t>(touch.by - back));
        key_.push_back(static_cast<std::uint64_t>(touch.walk + 1));
    }
}

/// What these touches, all of one parameter and all loads or all stores, come to. Tiles share accesses, and
/// with them their unions.
const TileMaker::Union& TileMaker::united(std::span<const std::uint32_t> touches) {
    const Touch& first = found_.touched[touches.front()];
    const bool all_move = std::all_of(touches.begin(), touches.end(), [&](std::uint32_t i) {
        return found_.touched[i].along == first.along;
    });
    if (all_move && first.along >= 0) return moved(touches);
    push_key(touches, 0);
    const auto [known, is_new] = known_.try_emplace(key_, unions_->size());
    if (!is_new) return (*unions_)[known->second];
    Union& made = unions_->emplace_back();
    unite_all(made, touches);
    add_reads(made, touches);
    return made;
}

/// … where all of them are moved along one axis: the union of another tile of the line, moved.
const TileMaker::Union& TileMaker::moved(std::span<const std::uint32_t> touches) {
    const Touch& first = found_.touched[touches.front()];
    push_key(touches, first.by);
    const auto [known, is_new] = known_moved_.try_emplace(key_, moved_.size());
    if (is_new) {
        Moved& like = moved_.emplace_back();
        like.first = unions_->size();
        like.by = first.by;
        like.made.push_back(static_cast<std::uint32_t>(like.first + 1));
        Union& made = unions_->emplace_back();
        unite_all(made, touches);
        add_reads(made, touches);
        return made;
    }
    Moved& like = moved_[known->second];
    const std::int64_t by = first.by - like.by;
    if (like.unit == 0) like.unit = by;
    const std::int64_t index = like.unit != 0 ? by / like.unit : 0;
    constexpr std::int64_t kMost = std::int64_t{1} << 20;
    const bool kept = index >= 0 && index < kMost && index * like.unit == by;
    if (kept && static_cast<std::size_t>(index) >= like.made.size())
        like.made.resize(static_cast<std::size_t>(index) + 1);
    if (kept && like.made[at(index)] != 0) return (*unions_)[like.made[at(index)] - 1];
    if (kept) like.made[at(index)] = static_cast<std::uint32_t>(unions_->size() + 1);
    Union& made = unions_->emplace_back((*unions_)[like.first]);
    const auto d = static_cast<std::size_t>(first.along);
    const auto move = [&](plan::Interval& interval) { interval = {interval.begin + by, interval.end + by}; };
    for (plan::Region& box : made.boxes) move(box[d]);
    if (!made.boxes.empty()) move(made.around[d]);
    if (made.beyond) move((*made.beyond)[d]);
    for (LoopRead& read : made.reads) {
        if (read.dim == first.along) read.base += by;
        for (plan::Region& box : read.boxes) move(box[d]);
    }
    return made;
}

void TileMaker::unite_all(Union& made, std::span<const std::uint32_t> touches) const {
    const auto param = static_cast<std::size_t>(found_.touched[touches.front()].param);
    const std::size_t rank = tensors_[param].shape.size();
    std::size_t count = 0;
    for (const std::uint32_t i : touches) count += found_.touched[i].end - found_.touched[i].begin;
    // A box that may be too large is none the worse where another, surely touched, contains it.
    const auto surely_touched = [&](const Box& loose) {
        constexpr std::size_t kMost = 256;
        if (count > kMost) return false;
        for (const std::uint32_t i : touches) {
            const Touch& touch = found_.touched[i];
            if (!touch.exact) continue;
            for (std::uint32_t b = touch.begin; b < touch.end; ++b) {
                const Box sure = box_of(touch, b);
                bool inside = true;
                for (std::size_t d = 0; d < rank && inside; ++d)
                    inside = sure[d].begin <= loose[d].begin && sure[d].end >= loose[d].end;
                if (inside) return true;
            }
        }
        return false;
    };
    if (const std::optional<Box> box = one_box(touches, rank)) {
        made.around.assign(box->begin(), box->begin() + static_cast<std::ptrdiff_t>(rank));
        made.boxes.assign(1, made.around);
        return;
    }
    std::vector<plan::Region> boxes;
    for (const std::uint32_t i : touches) {
        const Touch& touch = found_.touched[i];
        if (touch.shadow) continue;
        for (std::uint32_t b = touch.begin; b < touch.end; ++b) {
            const Box box = box_of(touch, b);
            made.exact = made.exact && (touch.exact || surely_touched(box));
            plan::Region region(box.begin(), box.begin() + static_cast<std::ptrdiff_t>(rank));
            if (boxes.empty() || count > kMostToMerge)
                boxes.push_back(std::move(region));
            else
                unite(boxes, std::move(region));
        }
    }
    if (boxes.size() > kMostToMerge) {
        put_together(boxes);
        boxes = disjoint(boxes, 0);
    }
    simplify(boxes);
    if (!boxes.empty()) made.around = boxes.front();
    for (const plan::Region& box : boxes) made.around = plan::bounding_box(made.around, box);
    made.boxes = std::move(boxes);
    find_beyond(made, touches);
}

/// Where a stated footprint stands for accesses that were followed, what these surely touch lies in it.
void TileMaker::find_beyond(Union& made, std::span<const std::uint32_t> touches) const {
    for (const std::uint32_t i : touches) {
        const Touch& touch = found_.touched[i];
        if (!touch.shadow || !touch.exact) continue;
        const std::size_t rank = tensors_[at(touch.param)].shape.size();
        for (std::uint32_t b = touch.begin; b < touch.end; ++b) {
            const Box box = box_of(touch, b);
            std::vector<plan::Region> left{
                plan::Region(box.begin(), box.begin() + static_cast<std::ptrdiff_t>(rank))};
            if (plan::is_empty(left.front())) continue;
            for (const plan::Region& stated : made.boxes) plan::take(left, stated);
            if (left.empty()) continue;
            made.beyond = left.front();
            return;
        }
    }
}

bool set_recorded_coordinates(Kernel& kernel, const std::vector<TileRecord>& records) {
    const std::size_t rank = kernel.axes.size();
    if (rank == 0 || rank > kMostAxes) return false;
    std::int64_t total = 1;
    for (const TileAxis& axis : kernel.axes) total *= axis.count;
    if (total != static_cast<std::int64_t>(kernel.tiles.size())) return false;
    std::vector<bool> taken(kernel.tiles.size());
    for (const TileRecord& record : records) {
        std::int64_t index = 0;
        for (std::size_t a = 0; a < rank; ++a) {
            if (record.coord[a] < 0 || record.coord[a] >= kernel.axes[a].count) return false;
            index = index * kernel.axes[a].count + record.coord[a];
        }
        if (taken[at(index)]) return false;
        taken[at(index)] = true;
    }
    for (std::size_t i = 0; i < records.size(); ++i) {
        kernel.tiles[i].coord.assign(records[i].coord.begin(),
                                     records[i].coord.begin() + static_cast<std::ptrdiff_t>(rank));
    }
    return true;
}

void order_axes_by_writes(Kernel& kernel) {
    const std::size_t rank = kernel.axes.size();
    if (rank < 2 || kernel.tiles.empty()) return;
    // The tiles at 0, and at 1 along one axis.
    const auto tile_at = [&](std::size_t axis) -> const Tile* {
        for (const Tile& tile : kernel.tiles) {
            bool here = true;
            for (std::size_t a = 0; a < rank; ++a) here = here && tile.coord[a] == (a == axis ? 1 : 0);
            if (here) return &tile;
        }
        return nullptr;
    };
    const Tile* origin = tile_at(rank);
    if (origin == nullptr) return;
    for (const auto& [param, box] : origin->writes) {
        std::vector<std::pair<std::size_t, std::size_t>> places;  // (axis of the tensor, axis of the tiles)
        for (std::size_t a = 0; a < rank; ++a) {
            const Tile* next = kernel.axes[a].count > 1 ? tile_at(a) : nullptr;
            if (next == nullptr || !next->writes.contains(param)) break;
            const plan::Region& moved = next->writes.at(param);
            std::vector<std::size_t> along;
            for (std::size_t d = 0; d < box.size(); ++d)
                if (moved[d].begin != box[d].begin) along.push_back(d);
            if (along.size() == 1) places.emplace_back(along[0], a);
        }
        if (places.size() != rank) continue;
        std::sort(places.begin(), places.end());
        for (std::size_t a = 0; a + 1 < rank; ++a)
            if (places[a].first == places[a + 1].first) return;
        const std::vector<TileAxis> axes = kernel.axes;
        for (std::size_t a = 0; a < rank; ++a) kernel.axes[a] = axes[places[a].second];
        for (Tile& tile : kernel.tiles) {
            const TileCoord coord = tile.coord;
            for (std::size_t a = 0; a < rank; ++a) tile.coord[a] = coord[places[a].second];
        }
        return;
    }
}

bool set_coordinates_by_writes(Kernel& kernel, const std::vector<TileAxis>& named) {
    if (kernel.tiles.empty()) return false;
    for (const auto& [param, first] : kernel.tiles.front().writes) {
        const std::size_t rank = first.size();
        if (rank > kMostAxes) continue;
        std::vector<std::vector<std::int64_t>> begins(rank);
        bool everywhere = true;
        for (const Tile& tile : kernel.tiles) {
            const auto written = tile.writes.find(param);
            if (written == tile.writes.end()) {
                everywhere = false;
                break;
            }
            for (std::size_t d = 0; d < rank; ++d) begins[d].push_back(written->second[d].begin);
        }
        if (!everywhere) continue;
        std::int64_t total = 1;
        std::vector<TileAxis> axes;
        static const std::vector<std::vector<std::string>> defaults{
            {}, {"M"}, {"M", "N"}, {"B", "M", "N"}, {"A", "B", "M", "N"}};
        std::size_t next = 0;
        for (std::size_t d = 0; d < rank; ++d) {
            std::sort(begins[d].begin(), begins[d].end());
            begins[d].erase(std::unique(begins[d].begin(), begins[d].end()), begins[d].end());
            TileAxis axis{defaults[rank][d], static_cast<std::int64_t>(begins[d].size()), first[d].size()};
            if (axis.count > 1) axis.block = begins[d][1] - begins[d][0];
            everywhere = everywhere && (axis.count == 1 || axis.block >= first[d].size());  // none overlap
            total *= axis.count;
            const auto same = std::find_if(
                named.begin() + static_cast<std::ptrdiff_t>(next), named.end(), [&](const TileAxis& n) {
                    return n.count == axis.count && (axis.count == 1 || n.block == axis.block);
                });
            if (same != named.end()) {
                axis = *same;
                next = static_cast<std::size_t>(same - named.begin()) + 1;
            }
            axes.push_back(axis);
        }
        if (!everywhere || total != static_cast<std::int64_t>(kernel.tiles.size())) continue;
        for (std::size_t a = 0; a + 1 < rank; ++a) {
            for (std::size_t b = a + 1; b < rank; ++b) {
                if (axes[a].name == axes[b].name) axes[b].name += std::to_string(b);
            }
        }
        std::vector<bool> taken(kernel.tiles.size());
        std::vector<TileCoord> coords;
        bool one_to_one = true;
        for (const Tile& tile : kernel.tiles) {
            TileCoord coord;
            std::int64_t index = 0;
            for (std::size_t d = 0; d < rank; ++d) {
                const auto& sorted = begins[d];
                coord.push_back(
                    std::lower_bound(sorted.begin(), sorted.end(), tile.writes.at(param)[d].begin) -
                    sorted.begin());
                index = index * axes[d].count + coord.back();
            }
            one_to_one = one_to_one && !taken[at(index)];
            taken[at(index)] = true;
            coords.push_back(std::move(coord));
        }
        if (!one_to_one) continue;
        kernel.axes = std::move(axes);
        for (std::size_t i = 0; i < kernel.tiles.size(); ++i) kernel.tiles[i].coord = std::move(coords[i]);
        return true;
    }
    return false;
}

}  // namespace syncopate::kernel::triton
