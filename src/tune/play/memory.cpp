#include "tune/play/memory.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "syncopate/plan/model/chunk_key.hpp"
#include "syncopate/plan/topology/topology.hpp"
#include "syncopate/tune/play/estimate.hpp"

namespace syncopate::tune {
namespace {

constexpr std::size_t kSlices = 8;
/// What was read between, as a share of the cache: so little that all of what was read before is still there,
/// and so much that none is. Shares that fit all-gathers of few rows in slices.
constexpr double kAllKept = 0.1;
constexpr double kAllLost = 0.77;

}  // namespace

double over(double bytes, double gbps) { return gbps <= 0 ? kUnknownUs : bytes / (gbps * plan::kBytesPerUs); }

double bytes_of(const kernel::Kernel& kernel, std::string_view param, const plan::Region& box) {
    if (box.empty() || plan::is_empty(box)) return 0;
    const auto found = kernel.arguments.tensors.find(std::string(param));
    const bool known = found != kernel.arguments.tensors.end();
    const double item = known ? static_cast<double>(plan::size_of(found->second.dtype)) : 2.0;
    return static_cast<double>(plan::num_elements(box)) * item;
}

Blocks blocks_of(const kernel::Kernel& kernel) {
    Blocks made;
    std::map<plan::ChunkKey, std::int32_t> known;  // the parameter's number stands for the tensor's
    for (const kernel::Tile& tile : kernel.tiles) {
        std::vector<Block>& own = made.of_tile.emplace_back();
        std::int32_t param_number = 0;
        for (const auto& [param, box] : tile.reads) {
            const auto [at, first] = known.try_emplace(plan::key_of({param_number++, box}), made.count);
            if (first) ++made.count;
            own.push_back({at->second, bytes_of(kernel, param, box)});
        }
    }
    return made;
}

Blocks blocks_of_runs(const kernel::Kernel& kernel, std::int32_t columns) {
    Blocks made{.of_tile = {}, .count = columns};
    std::map<std::int64_t, std::int32_t> rows;  // by the first one: the number
    for (const kernel::Tile& tile : kernel.tiles) {
        const auto box = tile.reads.find("a_desc");
        const std::int64_t first = box == tile.reads.end() ? 0 : box->second[0].begin;
        const auto [known, is_new] = rows.try_emplace(first, made.count);
        if (is_new) ++made.count;
        const double bytes = box == tile.reads.end() ? 0 : bytes_of(kernel, "a_desc", box->second);
        made.of_tile.push_back({{known->second, bytes}});
    }
    return made;
}

Memory::Memory(std::int32_t blocks, double gbps, double cache_bytes, bool phased)
    : gbps_(gbps), cache_bytes_(cache_bytes), slices_(phased ? kSlices : 1) {
    since_.assign(static_cast<std::size_t>(blocks) * slices_, 0);
    last_.assign(static_cast<std::size_t>(blocks) * slices_, -std::numeric_limits<double>::infinity());
}

void Memory::read(std::span<const Block> blocks, LoopPart part, double now, double us, double since) {
    const auto slices = static_cast<double>(slices_);
    double missed = 0;
    for (auto slice = static_cast<std::size_t>(part.from * slices); slice < slices_; ++slice) {
        const double begin = std::max(part.from, static_cast<double>(slice) / slices);
        const double end = std::min(part.from + part.share, static_cast<double>(slice + 1) / slices);
        if (end <= begin) break;
        const double when = now + us * (begin - part.from) / part.share;
        const double come = asked_ - std::max(0.0, free_ - when) * gbps_ * plan::kBytesPerUs;
        for (const Block& block : blocks) {
            double& by = since_[static_cast<std::size_t>(block.number) * slices_ + slice];
            double& last = last_[static_cast<std::size_t>(block.number) * slices_ + slice];
            const double bytes = block.bytes * (end - begin);
            if (last == -std::numeric_limits<double>::infinity()) once_ += bytes;
            const double between = (come - last) / cache_bytes_;
            const double lost = std::clamp((between - kAllKept) / (kAllLost - kAllKept), 0.0, 1.0);
            missed += bytes * (by == since ? lost : 1);
            by = since;
            last = std::max(last, come);
        }
    }
    if (missed <= 0) return;
    asked_ += missed;
    free_ = std::max(free_, now) + over(missed, gbps_);
}

}  // namespace syncopate::tune
