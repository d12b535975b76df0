#include "runtime/cuda/engine/chunk_engine.hpp"

#if SYNCOPATE_HAS_CUDA

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "syncopate/fuse/passes/heap.hpp"

namespace syncopate::runtime {

Result<ChunkEngine> ChunkEngine::create(const DeviceModule& module, const CallPlan& plan,
                                        const fuse::RankSchedule& schedule, const OpOptions& options) {
    ChunkEngine engine(module);
    Result<EngineTable> table = make_engine_table(schedule, plan.transfers, plan.control());
    if (!table) return table.error();
    engine.table_ = std::move(table).value();
    engine.counts_ = plan.counts_blocks;
    engine.blocks_ = options.blocks();
    engine.kernel_ = engine.table_.in_bulk() ? module.engine_bulk : module.engine;
    if (const std::string name = sum_engine_name(engine.table_); !name.empty()) {
        Result<CUfunction> sums = module.engine_named(name);
        if (!sums) return sums.error();
        engine.kernel_ = *sums;
        engine.sums_ = true;
        engine.threads_ = device::kBlockEngineThreads;
    } else if (goes_at_once(engine.table_, engine.blocks_)) {
        Result<CUfunction> at_once = module.engine_named("sy_engine_at_once");
        if (!at_once) return at_once.error();
        engine.kernel_ = *at_once;
        engine.threads_ = device::kBlockEngineThreads;
    } else if (plan.counts_blocks) {
        return Error{fmt::format("op '{}': its blocks are to signal for themselves, and do not go at once",
                                 options.name)};
    }
    if (!engine.table_.moves()) {  // it only waits, in a corner of one multiprocessor
        engine.blocks_ = 1;
        engine.shared_bytes_ = 0;
    }
    return engine;
}

void ChunkEngine::add_to(DeviceLists& lists) {
    lists_ = {.ops = lists.add(table_.ops),
              .sources = lists.add(table_.sources),
              .copies = lists.add(table_.copies),
              .posts = lists.add(table_.posts),
              .waits = lists.add(table_.waits),
              .finished = lists.add(std::vector<std::uint32_t>(table_.num_counters, 0))};
}

void ChunkEngine::place(const DeviceBuffer& lists, const device::BoundaryArguments& begin, bool begins) {
    arguments_ = {.begin = begin,
                  .ops = lists_.ops.in(lists),
                  .sources = lists_.sources.in(lists),
                  .copies = lists_.copies.in(lists),
                  .posts = lists_.posts.in(lists),
                  .waits = lists_.waits.in(lists),
                  .finished = lists_.finished.in(lists),
                  .count = static_cast<std::uint32_t>(table_.ops.size()),
                  .begins = !empty() && begins ? 1u : 0u,
                  .counts = counts_ ? 1u : 0u};
}

bool ChunkEngine::shift_sources(std::int32_t tensor, std::uint64_t distance) {
    if (table_.shifted_tensor < 0 || table_.shifted_tensor != tensor) return false;
    arguments_.source_shift = distance;
    return true;
}

bool ChunkEngine::shift_sums(std::uint64_t distance) {
    if (!sums_ || !table_.copies.empty()) return false;
    arguments_.sum_shift = distance;
    return true;
}

Status ChunkEngine::launch(CUstream stream) const {
    device::EngineArguments arguments = arguments_;
    return module_->launch(kernel_, arguments, stream, blocks_, threads_, shared_bytes_);
}

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA
