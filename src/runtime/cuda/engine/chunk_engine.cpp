#include "runtime/cuda/engine/chunk_engine.hpp"
#include "syncopate/try.hpp"

#if SYNCOPATE_HAS_CUDA

#include <algorithm>
#include <utility>

namespace syncopate::runtime {

Result<ChunkEngine> ChunkEngine::create(const DeviceModule& module, const CallPlan& plan,
                                        const fuse::RankSchedule& schedule) {
    ChunkEngine engine(module);
    SYNCOPATE_TAKE(EngineTable table, make_engine_table(schedule, plan.transfers, plan.control()));
    engine.table_ = std::move(table);
    using fuse::EngineKernel;
    engine.kind_ = schedule.engine;
    engine.blocks_ = plan.engine_blocks;
    switch (engine.kind_) {
        case EngineKernel::none: break;
        case EngineKernel::relays:  // in a corner of one multiprocessor
            engine.kernel_ = module.engine_bulk;
            engine.blocks_ = 1;
            engine.shared_bytes_ = 0;
            break;
        case EngineKernel::bulk: engine.kernel_ = module.engine_bulk; break;
        case EngineKernel::pieces: engine.kernel_ = module.engine; break;
        case EngineKernel::sums:
        case EngineKernel::at_once:
        case EngineKernel::counted: {
            const bool sums = engine.kind_ == EngineKernel::sums;
            SYNCOPATE_TAKE(CUfunction kernel,
                           module.engine_named(sums ? sum_engine_name(engine.table_) : "sy_engine_at_once"));
            engine.kernel_ = kernel;
            engine.threads_ = device::kBlockEngineThreads;
        }
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
                  .counts = kind_ == fuse::EngineKernel::counted ? 1u : 0u};
}

bool ChunkEngine::shift_sources(std::int32_t tensor, std::uint64_t distance) {
    if (table_.shifted_tensor < 0 || table_.shifted_tensor != tensor) return false;
    arguments_.source_shift = distance;
    return true;
}

bool ChunkEngine::shift_sums(std::uint64_t distance) {
    if (kind_ != fuse::EngineKernel::sums || !table_.copies.empty()) return false;
    arguments_.sum_shift = distance;
    return true;
}

Status ChunkEngine::launch(CUstream stream) const {
    device::EngineArguments arguments = arguments_;
    return module_->launch(kernel_, arguments, stream, blocks_, threads_, shared_bytes_);
}

}  // namespace syncopate::runtime

#endif  // SYNCOPATE_HAS_CUDA
