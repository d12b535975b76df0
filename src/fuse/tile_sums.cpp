#include "syncopate/fuse/tile_sums.hpp"

#include <algorithm>
#include <utility>

#include "fuse/kernel_accesses.hpp"
#include "syncopate/kernel/model/tile_boxes.hpp"

namespace syncopate::fuse {
namespace {

using plan::Region;

/// What `tile` writes within `destination`; empty if it writes nothing there.
Region written(const kernel::Tile& tile, const std::string& param, const Region& destination) {
    Region around;
    for (const Region& box : kernel::boxes_written(tile, param)) {
        if (overlaps(box, destination)) around = around.empty() ? box : bounding_box(around, box);
    }
    return around;
}

/// Why the tiles' boxes are not whole blocks of the descriptor that together are one box.
std::string objection_to_boxes(const Program& program, const kernel::Param& param,
                               const Region& destination) {
    const auto argument = program.kernel.arguments.tensors.find(param.name);
    if (argument == program.kernel.arguments.tensors.end() || argument->second.block.size() != 2)
        return "the block of " + param.name + " is not known";
    const std::vector<std::int64_t>& block = argument->second.block;
    std::int64_t covered = 0;
    for (const kernel::Tile& tile : program.kernel.tiles) {
        const std::string name = "tile " + std::to_string(tile.id);
        const Region around = written(tile, param.name, destination);
        if (around.empty()) continue;
        if (tile.inexact_writes.contains(param.name)) return name + " writes where data says";
        std::int64_t elements = 0;
        for (const Region& box : kernel::boxes_written(tile, param.name)) {
            elements += num_elements(box);
            for (std::size_t axis = 0; axis < 2; ++axis) {
                if (box[axis].size() % std::max<std::int64_t>(block[axis], 1) == 0) continue;
                return name + " writes " + to_string(box) + ", not whole blocks of " +
                       std::to_string(block[0]) + " x " + std::to_string(block[1]);
            }
        }
        if (elements != num_elements(around)) return name + " does not write one box";
        if (!contains(destination, around))
            return name + " writes " + to_string(around) +
                   ", not all of which is summed: cut where tiles end";
        covered += elements;
    }
    return covered == num_elements(destination) ? "" : "not each element is written by one tile";
}

/// The kernel's tensor that holds the own contribution to a sum: the destination, or what a local copy brings
/// there from the same place; -1 if there is none.
std::int32_t own_tensor(const Program& program, const Lowered& lowered, plan::OpRef ref) {
    const plan::Op& sum = program.plan.op(ref);
    const auto own = lowered.own.find(ref);
    if (own == lowered.own.end() || own->second < 0) return -1;
    const auto writers = lowered.writers.find(ref);
    if (writers == lowered.writers.end()) return sum.dst.tensor;
    const plan::OpRef writer = writers->second.front();
    const plan::Op& op = program.plan.op(writer);
    const bool brings = writers->second.size() == 1 && writer.rank == ref.rank &&
                        op.kind == plan::OpKind::local && op.src.region == sum.dst.region &&
                        op.dst == sum.dst;
    return brings ? op.src.tensor : -1;
}

}  // namespace

std::string tile_sum_objection(const Program& program, const Lowered& lowered, plan::OpRef ref) {
    const plan::Op& op = program.plan.op(ref);
    if (op.reduce != plan::Reduce::sum || op.kind != plan::OpKind::local || lowered.direct.contains(ref))
        return "tiles add contributions that are staged on their rank";
    const plan::DType dtype = program.plan.tensors[static_cast<std::size_t>(op.dst.tensor)].dtype;
    if (dtype != plan::DType::bf16 && dtype != plan::DType::fp16 && dtype != plan::DType::fp32)
        return "tiles add bf16, fp16 and fp32";
    const std::int32_t tensor = own_tensor(program, lowered, ref);
    const kernel::Param* param = tensor < 0 ? nullptr : writer_of(program, tensor);
    const bool produced = is_made(program.plan, ref.rank, {tensor, op.dst.region}, true);
    if (param == nullptr || !produced) return "tiles add to what the kernel itself makes";
    if (param->read) return param->name + " is also read, or added to, by the kernel";
    if (param->kind != kernel::ParamKind::descriptor)
        return param->name +
               " is a pointer: tiles add where they store through a descriptor made on the host";
    if (op.dst.region.size() != 2) return "tiles add to tensors of two axes";
    const Region& staged = op.src.region;
    if (staged[1].size() != op.dst.region[0].size() || staged[2].size() != op.dst.region[1].size())
        return "its contributions are staged in another shape";
    std::string why = objection_to_calls(program.kernel, *param, plan::Backend::tma_inline, Access::store);
    if (why.empty()) why = objection_to_boxes(program, *param, op.dst.region);
    return why;
}

std::map<plan::OpRef, TiledSum> sum_in_tiles(const Program& program, const Lowered& lowered) {
    std::map<plan::OpRef, TiledSum> result;
    std::int32_t from = -1, to = -1;
    for (std::int32_t rank = 0; rank < program.plan.num_ranks(); ++rank) {
        const std::vector<plan::Op>& list = program.plan.ranks[static_cast<std::size_t>(rank)];
        for (std::int32_t index = 0; index < static_cast<std::int32_t>(list.size()); ++index) {
            const plan::Op& op = list[static_cast<std::size_t>(index)];
            if (op.kind != plan::OpKind::local || op.reduce == plan::Reduce::none) continue;
            const plan::OpRef ref{rank, index};
            const std::int32_t tensor = own_tensor(program, lowered, ref);
            if ((from >= 0 && (tensor != from || op.dst.tensor != to)) ||
                !tile_sum_objection(program, lowered, ref).empty())
                return {};
            from = tensor;
            to = op.dst.tensor;
            TiledSum& sum = result[ref];
            sum.tensor = tensor;
            if (const auto writers = lowered.writers.find(ref); writers != lowered.writers.end())
                sum.writer = writers->second.front();
            const kernel::Param* param = writer_of(program, tensor);
            const std::vector<std::int64_t>& block = program.kernel.arguments.tensors.at(param->name).block;
            for (const kernel::Tile& tile : program.kernel.tiles) {
                Region region = written(tile, param->name, op.dst.region);
                if (region.empty()) continue;
                const auto blocks = static_cast<std::int32_t>(num_elements(region) / (block[0] * block[1]));
                sum.tiles.push_back({tile.id, std::move(region), blocks});
            }
        }
    }
    return result;
}

}  // namespace syncopate::fuse
