#include "ops/ragged_grouped.hpp"

#include "syncopate/at.hpp"

namespace syncopate::ops {

kernel::Kernel grouped(kernel::Kernel found, const RaggedKernel& as, const RaggedRows& of) {
    found.most_slots = as.tiles;
    found.tiles.clear();
    found.loops.clear();
    found.accesses.clear();
    found.traversal.clear();
    found.tiles_differ = false;
    const std::int64_t groups = of.ranks * as.groups, each = of.own / as.groups;
    found.axes = {{"group", groups, 1}};
    // As the plan has them.
    const auto shape_of = [&](const RaggedTensor& tensor) {
        return std::vector<std::int64_t>{of.ranks, of.experts, tensor.columns};
    };
    for (const RaggedTold& told : as.told) found.arguments.tensors[told.param].values.clear();
    for (const auto& [param, tensor] : as.reads) {
        kernel::TensorArgument& read = found.arguments.tensors[param];
        read.shape = shape_of(tensor == of.rows.name ? of.rows : *of.more);
        read.strides.clear();
    }
    kernel::TensorArgument& stored = found.arguments.tensors[as.makes];
    stored.shape = of.back ? shape_of(*of.back) : std::vector<std::int64_t>{of.experts};
    stored.strides.clear();
    if (!of.back) {  // it lies where the user has it: what the plan counts is that it is made
        stored.block.clear();
        for (kernel::Param& param : found.params) {
            if (param.name != as.makes) continue;
            param.read = false;
            param.kind = kernel::ParamKind::pointer;
        }
    }
    for (std::int64_t group = 0; group < groups; ++group) {
        kernel::Tile& tile = found.tiles.emplace_back();
        tile.coord = {group};
        tile.id = tile.program = group;
        const plan::Interval experts{group * each, (group + 1) * each};
        plan::Region made{experts};
        if (of.back) made = {{0, of.ranks}, experts, {0, of.back->columns}};
        for (const auto& [param, tensor] : as.reads) {
            const std::int64_t columns = (tensor == of.rows.name ? of.rows : *of.more).columns;
            const plan::Region rows{{0, of.ranks}, experts, {0, columns}};
            tile.reads[param] = rows;
            tile.read_boxes[param] = kernel::SharedBoxes(std::vector<plan::Region>{rows});
        }
        tile.writes[as.makes] = made;
        tile.write_boxes[as.makes] = kernel::SharedBoxes(std::vector<plan::Region>{made});
    }
    return found;
}

}  // namespace syncopate::ops
