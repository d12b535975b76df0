#include "bundle/host_mixture.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/bundle/host_kernel.hpp"
#include "syncopate/ops/mixture.hpp"
#include "syncopate/round_up.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle {

using runtime::TableSlot;

HostMixture::HostMixture(std::shared_ptr<const Planned> planned, std::vector<runtime::Operand> operands,
                         runtime::FusedOp& op, std::uint64_t scratch)
    : planned_(std::move(planned)),
      operands_(std::move(operands)),
      op_(op),
      scratch_(scratch_of(*planned_)),
      scratch_at_(scratch),
      ranks_(planned_->problem.ranks),
      tokens_(planned_->problem.extent("T")),
      experts_(planned_->problem.extent("E")),
      topk_(planned_->problem.extent("topk")),
      hidden_(planned_->problem.extent("H")),
      is_tensor_parallel_(planned_->problem.word("parallel") == "tensor"),
      inner_(planned_->problem.extent("F") / (is_tensor_parallel_ ? ranks_ : 1)),
      own_(is_tensor_parallel_ ? experts_ : experts_ / ranks_),
      first_(is_tensor_parallel_ ? 0 : op.rank() * own_),
      routes_(tokens_ * topk_),
      bound_(planned_->problem.extent("bound")),
      dtype_(planned_->problem.dtype),
      out_(planned_->problem.out),
      is_scaled_(planned_->problem.scales != ops::Scales::none),
      by_block_(planned_->problem.scales == ops::Scales::block),
      x_scales_(by_block_    ? ceil_div(hidden_, ops::kScaled)
                : is_scaled_ ? 1
                             : 0),
      tile_(planned_->strategy.tiles.front()) {
    const auto ids = std::ranges::find(operands_, "topk_ids", &runtime::Operand::name);
    int32_ids_ = ids != operands_.end() && ids->dtype == plan::DType::int32;
    const std::int64_t most = ranks_ * routes_;
    if (bound_ == 0 || bound_ > most) bound_ = most;
}

Status HostMixture::run(Tensors tensors) const {
    for (std::size_t stage = 0; stage < planned_->launch.stages.size(); ++stage) {
        const std::string& kernel = planned_->launch.stages[stage].kernel;
        const auto tile = [&](const TableSlot& slot) -> Status {
            if (kernel == layout()) return Done{};  // a slot of it only waits
            if (kernel == "moe_count") return count(slot, tensors);
            if (kernel == "moe_up") return up(slot, tensors);
            if (kernel == "moe_down") return down(slot, tensors);
            return make(kernel, slot, tensors);
        };
        SYNCOPATE_TRY(runtime::play_made_table(op_, stage, tile));
        if (!op_.poll()) return Done{};  // what a stage would read has not come: end_call says which
        if (kernel == layout()) {
            SYNCOPATE_TRY(lay_out(tensors));
        }
    }
    return Done{};
}

std::uint64_t HostMixture::given(Tensors tensors, std::string_view name) const {
    const auto operand = std::ranges::find(operands_, name, &runtime::Operand::name);
    return tensors[static_cast<std::size_t>(operand - operands_.begin())].address;
}

std::int64_t HostMixture::id_of(Tensors tensors, std::int64_t route) const {
    const std::uint64_t ids = given(tensors, "topk_ids");
    return int32_ids_ ? reinterpret_cast<const std::int32_t*>(ids)[route]
                      : reinterpret_cast<const std::int64_t*>(ids)[route];
}

std::int64_t HostMixture::expert_of(Tensors tensors, std::int64_t route) const {
    const std::int64_t id = id_of(tensors, route);
    return id < 0 || id >= experts_ ? experts_ : id;
}

Status HostMixture::make_slots(std::string_view kernel, const HostGroups& groups, const SlotCut& cut,
                               std::span<const std::int64_t> order) const {
    const auto& stages = planned_->launch.stages;
    const auto stage = std::ranges::find(stages, kernel, &emit::KernelLaunch::kernel);  // host_mixture saw it
    auto* const words =
        reinterpret_cast<std::int32_t*>(op_.table_address(static_cast<std::size_t>(stage - stages.begin())));
    return bundle::make_slots(words, groups, cut, order);
}

Status HostMixture::make_product_slots(const HostGroups& runs) const {
    const std::vector<std::int64_t> order = in_order(static_cast<std::int64_t>(runs.rows.size()));
    const auto cut = [&](std::int64_t columns) {
        return SlotCut{.first = first_, .rows = tile_.block_m, .columns = ceil_div(columns, tile_.block_n)};
    };
    SYNCOPATE_TRY(make_slots("moe_up", runs, cut(inner_), order));
    return make_slots("moe_down", runs, cut(hidden_), order);
}

void HostMixture::tell(std::int64_t over, std::uint32_t bad) const {
    tell_of_call({scratch<std::uint32_t>(ops::kSeen), ops::kSeenWords}, over, bad);
}

Status HostMixture::count(const TableSlot& slot, Tensors tensors) const {
    const std::int64_t expert = slot.tile % (experts_ + 1);
    std::int32_t so_far = 0;
    for (std::int64_t route = 0; route < routes_; ++route) {
        if (id_of(tensors, route) != ops::kNoRoute && expert_of(tensors, route) == expert)
            scratch<std::int32_t>("position")[route] = so_far++;
    }
    for (std::int64_t peer = 0; peer < ranks_; ++peer) {
        SYNCOPATE_TAKE(std::int32_t* const there, heap<std::int32_t>("counts", peer));
        there[rank() * (experts_ + 1) + expert] = so_far;
    }
    return Done{};
}

/// One element of rows @ w of an expert. w has `columns`, K is `depth`; of fp8 w's rows are K long, and a block of K is scaled before
/// it is added.
float HostMixture::product(std::uint64_t rows, std::int64_t row, std::int64_t depth, std::uint64_t w,
                           std::int64_t expert, std::int64_t columns, std::int64_t column, Factors of_rows,
                           Factors of_w) const {
    const auto value = [&](std::int64_t k) {
        const std::int64_t place =
            is_scaled_ ? (expert * columns + column) * depth + k : (expert * depth + k) * columns + column;
        return element(dtype_, rows, row * depth + k) * element(dtype_, w, place);
    };
    float sum = 0;
    const bool by_block = of_rows.by_block || of_w.by_block;
    const std::int64_t step = by_block ? tile_.block_k : depth;
    const std::int64_t per_row = ceil_div(depth, ops::kScaled);
    for (std::int64_t begin = 0; begin < depth; begin += step) {
        float part = 0;
        for (std::int64_t k = begin; k < std::min(begin + step, depth); ++k) part += value(k);
        const std::int64_t block = begin / ops::kScaled;
        float by = of_rows.by_block ? of_rows.values[row * per_row + block] : 1.0F;
        if (of_w.by_block)
            by *= of_w.values[(expert * ceil_div(columns, ops::kScaled) + column / ops::kScaled) * per_row +
                              block];
        sum += part * by;
    }
    if (is_scaled_ && !of_rows.by_block) sum *= of_rows.values[row];
    if (is_scaled_ && !of_w.by_block) sum *= of_w.values[expert * columns + column];
    return sum;
}

/// The rows of a slot's tile, and of `columns` in all those that it has: one(row, first, last).
template <typename Each>
void HostMixture::each(const TableSlot& slot, std::int64_t columns, const Each& one) const {
    const std::int64_t across = ceil_div(columns, tile_.block_n);
    const std::int64_t first = slot.tile % across * tile_.block_n;
    const std::int64_t last = std::min<std::int64_t>(first + tile_.block_n, columns);
    for (std::int64_t row = slot.tile / across; row < slot.tile / across + slot.rows; ++row)
        one(row, first, last);
}

Status HostMixture::up(const TableSlot& slot, Tensors tensors) const {
    SYNCOPATE_TAKE(const std::uint64_t x, op_.tensor_address("X"));
    SYNCOPATE_TAKE(const std::uint64_t a, op_.tensor_address("A"));
    const std::uint64_t w = given(tensors, "w1");
    Factors of_x{.by_block = by_block_}, of_w{.by_block = by_block_};
    float* of_a = nullptr;
    if (is_scaled_) {
        SYNCOPATE_TAKE(of_x.values, heap<const float>("x_scale", rank()));
        SYNCOPATE_TAKE(of_a, heap<float>("a_scale", rank()));
        of_w.values = reinterpret_cast<const float*>(given(tensors, "scale_w1"));
    }
    std::vector<float> made(at(tile_.block_n));
    each(slot, inner_, [&](std::int64_t row, std::int64_t first, std::int64_t last) {
        float most = 0;
        for (std::int64_t column = first; column < last; ++column) {
            const float gate = product(x, row, hidden_, w, slot.group, 2 * inner_, column, of_x, of_w);
            const float value =
                product(x, row, hidden_, w, slot.group, 2 * inner_, inner_ + column, of_x, of_w);
            float& one = made[at(column - first)];
            one = activated(planned_->activation, gate) * value;
            most = std::max(most, std::abs(one));
        }
        const float scale = !is_scaled_ || most == 0 ? 1.0F : most / kLargestE4m3;
        // A tile has the columns that share a scale.
        if (is_scaled_) of_a[row * ceil_div(inner_, ops::kScaled) + first / ops::kScaled] = scale;
        for (std::int64_t column = first; column < last; ++column)
            set_element(dtype_, a, row * inner_ + column, made[at(column - first)] / scale);
    });
    return Done{};
}

Status HostMixture::down(const TableSlot& slot, Tensors tensors) const {
    SYNCOPATE_TAKE(const std::uint64_t a, op_.tensor_address("A"));
    SYNCOPATE_TAKE(const std::int32_t* const origin, heap<const std::int32_t>("origin", rank()));
    SYNCOPATE_TAKE(const std::vector<std::uint64_t> y, back());
    const std::uint64_t w = given(tensors, "w2");
    Factors of_a{.by_block = true}, of_w{.by_block = by_block_};
    if (is_scaled_) {
        SYNCOPATE_TAKE(of_a.values, heap<const float>("a_scale", rank()));
        of_w.values = reinterpret_cast<const float*>(given(tensors, "scale_w2"));
    } else {
        of_a.by_block = false;
    }
    each(slot, hidden_, [&](std::int64_t row, std::int64_t first, std::int64_t last) {
        const std::int64_t from = origin[row];
        for (std::int64_t column = first; column < last; ++column)
            set_element(out_, y[at(from / routes_)], from % routes_ * hidden_ + column,
                        product(a, row, inner_, w, slot.group, hidden_, column, of_a, of_w));
    });
    return Done{};
}

Result<runtime::Executable::HostKernels> host_mixture(std::shared_ptr<const Planned> planned,
                                                      std::vector<runtime::Operand> operands,
                                                      runtime::FusedOp& op, std::uint64_t scratch) {
    if (planned->strategy.tiles.empty())
        return Error{"moe: its strategy says no tiles", {}, ErrorClass::usage};
    const auto& make =
        planned->problem.word("parallel") == "tensor" ? tensor_host_mixture : expert_host_mixture;
    const std::shared_ptr<const HostMixture> made = make(planned, std::move(operands), op, scratch);
    const auto known = made->kernels();
    if (!std::ranges::equal(planned->launch.stages, known, {}, &emit::KernelLaunch::kernel)) {
        std::vector<std::string> stages;
        for (const emit::KernelLaunch& stage : planned->launch.stages) stages.push_back(stage.kernel);
        return Error{fmt::format("moe: its program has the stages {}, and host has {}",
                                 fmt::join(stages, ", "), fmt::join(known, ", ")),
                     {},
                     ErrorClass::usage};
    }
    return runtime::Executable::HostKernels(
        [made](std::span<const runtime::CallTensor> tensors) { return made->run(tensors); });
}

}  // namespace syncopate::bundle
