#include "syncopate/bundle/host_kernel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "syncopate/at.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/kernel/model/tile_boxes.hpp"
#include "syncopate/runtime/call/reduction.hpp"
#include "syncopate/runtime/host/table_player.hpp"
#include "syncopate/try.hpp"

namespace syncopate::bundle {
namespace {

const TileTensor* find(const Tile& tile, std::string_view parameter) {
    const auto found = std::ranges::find(tile.tensors, parameter, &TileTensor::parameter);
    return found == tile.tensors.end() ? nullptr : &*found;
}

std::int64_t at(const TileTensor& tensor, std::int64_t row, std::int64_t column) {
    return row * tensor.strides[0] + column * tensor.strides[1];
}

/// The library's product: c = act(a @ b + bias), of the box of c that the tile writes.
class Product {
public:
    Product(const Tile& tile, const std::string& activation, bool transposed)
        : a_(find(tile, "a_desc")),
          b_(find(tile, "b_desc")),
          c_(find(tile, "c_desc")),
          bias_(find(tile, "bias_ptr")),
          activation_(activation),
          transposed_(transposed) {}

    [[nodiscard]] bool is_whole() const { return a_ != nullptr && b_ != nullptr && c_ != nullptr; }

    void make() const {
        for (const plan::Region& box : c_->writes) make(box);
    }

private:
    void make(const plan::Region& box) const {
        const std::int64_t depth = a_->shape[1];
        for (std::int64_t m = box[0].begin; m < box[0].end; ++m) {
            for (std::int64_t n = box[1].begin; n < box[1].end; ++n) {
                float sum = 0;
                for (std::int64_t k = 0; k < depth; ++k) {
                    const std::int64_t b = transposed_ ? at(*b_, n, k) : at(*b_, k, n);
                    sum +=
                        element(a_->dtype, a_->address, at(*a_, m, k)) * element(b_->dtype, b_->address, b);
                }
                if (bias_ != nullptr)
                    sum += element(bias_->dtype, bias_->address,
                                   bias_->shape.size() == 2 ? at(*bias_, m, n) : n);
                set_element(c_->dtype, c_->address, at(*c_, m, n), activated(activation_, sum));
            }
        }
    }

    const TileTensor* a_;
    const TileTensor* b_;
    const TileTensor* c_;
    const TileTensor* bias_;
    const std::string& activation_;
    bool transposed_;
};

// fp8e4m3: sign, 4 bits of an exponent, 3 of a fraction; all ones: no number. There are no infinities.
constexpr std::uint8_t kNoE4m3 = 0x7f;

float e4m3_to_float(std::uint8_t bits) {
    const int exponent = (bits >> 3) & 15, fraction = bits & 7;
    if ((bits & kNoE4m3) == kNoE4m3) return std::numeric_limits<float>::quiet_NaN();
    const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                     : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    return (bits & 0x80) != 0 ? -size : size;
}

std::uint8_t float_to_e4m3(float value) {
    const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80 : 0);
    const float size = std::min(std::abs(value), kLargestE4m3);
    if (std::isnan(value)) return sign | kNoE4m3;
    if (size == 0) return sign;
    int exponent = 0;
    (void)std::frexp(size, &exponent);  // size < 2^exponent
    const int place = std::max(exponent + 6, 1);
    // Of so many units 8 and more have the exponent `place`, and 16 are the next one's first.
    const auto units = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - place)));
    return static_cast<std::uint8_t>(sign | (8 * (place - 1) + units));
}

/// Of one executable: where its stages' tensors are, call by call.
class HostStages {
public:
    HostStages(std::shared_ptr<const Planned> planned, std::vector<runtime::Operand> operands,
               runtime::FusedOp& op, TileKernel tiles)
        : planned_(std::move(planned)), operands_(std::move(operands)), op_(op), tiles_(std::move(tiles)) {}

    [[nodiscard]] Status run(std::span<const runtime::CallTensor> tensors) const {
        for (std::size_t stage = 0; stage < planned_->launch.stages.size(); ++stage) {
            SYNCOPATE_TAKE(Tile of_stage, tensors_of(stage, tensors));
            const fuse::Stage& fused = planned_->program.stages[stage];
            const Status played =
                runtime::play_table(op_, stage, [&](std::int64_t id, std::int32_t slot) -> Status {
                    const kernel::Tile& tile = fused.kernel.tiles[static_cast<std::size_t>(id)];
                    Tile here = of_stage;
                    here.tile = id;
                    for (TileTensor& tensor : here.tensors) {
                        const auto read = kernel::boxes_read(tile, tensor.parameter);
                        const auto written = kernel::boxes_written(tile, tensor.parameter);
                        tensor.reads.assign(read.begin(), read.end());
                        tensor.writes.assign(written.begin(), written.end());
                        go_where_it_loads(stage, slot, tensor);
                    }
                    // A tile that is stored in several places is made for each.
                    for (const std::int64_t offset : runtime::offsets_of(op_, stage, slot)) {
                        Tile there = here;
                        for (TileTensor& tensor : there.tensors) go_where_it_is_stored(stage, offset, tensor);
                        SYNCOPATE_TRY(make(there));
                    }
                    return Done{};
                });
            if (!played) return played;
        }
        return Done{};
    }

private:
    [[nodiscard]] Status make(const Tile& tile) const {
        if (tiles_) return tiles_(tile);
        static const std::string none;
        const auto& b =
            planned_->launch.stages[static_cast<std::size_t>(tile.stage)].arguments.tensors.at("b_desc");
        const auto& scalars = planned_->launch.stages[static_cast<std::size_t>(tile.stage)].arguments.scalars;
        const std::int64_t k = std::get<std::int64_t>(scalars.at("K"));
        const std::int64_t n = std::get<std::int64_t>(scalars.at("N"));
        // [N, K] or [K, N]; of a square one the operator says which.
        const bool transposed = k == n ? planned_->w_transposed : b.shape == std::vector<std::int64_t>{n, k};
        const Product product(tile, tile.stage == 0 ? planned_->activation : none, transposed);
        if (!product.is_whole()) return Error{"this operator has no kernel on host", {}, ErrorClass::usage};
        product.make();
        return Done{};
    }

    [[nodiscard]] bool is_bound(std::size_t stage, const TileTensor& tensor, std::int32_t number) const {
        const auto& bindings = planned_->launch.stages[stage].bindings;
        const auto bound = bindings.find(tensor.parameter);
        return bound != bindings.end() &&
               bound->second == op_.schedule().tensors[static_cast<std::size_t>(number)].name;
    }

    void go_where_it_loads(std::size_t stage, std::int32_t slot, TileTensor& tensor) const {
        const std::optional<fuse::Reach>& loads = op_.schedule().loads();
        if (!loads || tensor.reads.empty() || !is_bound(stage, tensor, loads->tensor)) return;
        const std::int64_t number = runtime::load_number_of(op_, stage, slot);
        const auto size = static_cast<std::int64_t>(plan::size_of(tensor.dtype));
        if (!loads->own) {
            tensor.address = reached(*loads, tensor, number);
        } else if (number != 0) {
            const std::optional<runtime::FusedOp::OwnPlace> own = op_.own_place();
            tensor.address = own->address;
            if (!tensor.strides.empty())
                tensor.strides.front() = static_cast<std::int64_t>(own->pitch) / size;
        }
    }

    void go_where_it_is_stored(std::size_t stage, std::int64_t offset, TileTensor& tensor) const {
        const std::optional<fuse::Reach>& stores = op_.schedule().stores();
        if (!stores || tensor.writes.empty() || !is_bound(stage, tensor, stores->tensor)) return;
        tensor.address = reached(*stores, tensor, offset);
    }

    /// `number` as its kernel takes it: rows from the begin of all heaps, or elements from its own place.
    [[nodiscard]] std::uint64_t reached(const fuse::Reach& reach, const TileTensor& tensor,
                                        std::int64_t number) const {
        const auto size = static_cast<std::int64_t>(plan::size_of(tensor.dtype));
        if (!reach.by_row) return tensor.address + static_cast<std::uint64_t>(number * size);
        return op_.flat_view().address + static_cast<std::uint64_t>(number * tensor.strides.front() * size);
    }

    [[nodiscard]] Result<Tile> tensors_of(std::size_t stage,
                                          std::span<const runtime::CallTensor> given) const {
        const emit::KernelLaunch& launch = planned_->launch.stages[stage];
        Tile made{.stage = static_cast<std::int32_t>(stage)};
        for (const auto& [parameter, tensor] : launch.arguments.tensors) {
            TileTensor& one = made.tensors.emplace_back(TileTensor{.parameter = parameter,
                                                                   .dtype = tensor.dtype,
                                                                   .shape = tensor.shape,
                                                                   .strides = tensor.strides});
            if (one.strides.empty()) one.strides = row_major(tensor.shape);
            if (const auto bound = launch.bindings.find(parameter); bound != launch.bindings.end()) {
                SYNCOPATE_TAKE(const std::uint64_t address, op_.tensor_address(bound->second));
                one.address = address;
                one.strides = row_major(tensor.shape);
                continue;
            }
            const auto named = planned_->names[stage].find(parameter);
            const std::string& name = named == planned_->names[stage].end() ? parameter : named->second;
            const auto operand = std::ranges::find(operands_, name, &runtime::Operand::name);
            if (operand == operands_.end())
                return Error{"a call has no tensor " + name, {}, ErrorClass::usage};
            const runtime::CallTensor& from = given[static_cast<std::size_t>(operand - operands_.begin())];
            one.address = from.address;
            one.strides.assign(from.strides.begin(), from.strides.end());
        }
        return made;
    }

    std::shared_ptr<const Planned> planned_;
    std::vector<runtime::Operand> operands_;
    runtime::FusedOp& op_;
    TileKernel tiles_;
};

}  // namespace

float element(plan::DType dtype, std::uint64_t address, std::int64_t index) {
    if (dtype == plan::DType::fp32) return reinterpret_cast<const float*>(address)[index];
    if (dtype == plan::DType::fp8e4m3) {
        static const auto values = [] {
            std::array<float, 256> made{};
            for (std::size_t bits = 0; bits < made.size(); ++bits)
                made[bits] = e4m3_to_float(static_cast<std::uint8_t>(bits));
            return made;
        }();
        return values[reinterpret_cast<const std::uint8_t*>(address)[index]];
    }
    const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(address)[index];
    return dtype == plan::DType::fp16 ? runtime::fp16_to_float(bits) : runtime::bf16_to_float(bits);
}

void set_element(plan::DType dtype, std::uint64_t address, std::int64_t index, float value) {
    if (dtype == plan::DType::fp32) {
        reinterpret_cast<float*>(address)[index] = value;
        return;
    }
    if (dtype == plan::DType::fp8e4m3) {
        reinterpret_cast<std::uint8_t*>(address)[index] = float_to_e4m3(value);
        return;
    }
    reinterpret_cast<std::uint16_t*>(address)[index] =
        dtype == plan::DType::fp16 ? runtime::float_to_fp16(value) : runtime::float_to_bf16(value);
}

float activated(const std::string& activation, float value) {
    if (activation == "relu") return std::max(value, 0.0F);
    if (activation == "silu") return value / (1.0F + std::exp(-value));
    if (activation != "gelu") return value;
    const float inner = 1.5957691216F * (value + 0.044715F * value * value * value);  // 2 sqrt(2 / pi)
    return value / (1.0F + std::exp(-inner));
}

Result<runtime::Executable::HostKernels> host_kernels(std::shared_ptr<const Planned> planned,
                                                      std::vector<runtime::Operand> operands,
                                                      runtime::FusedOp& op, TileKernel tiles) {
    const fuse::Schedule& schedule = op.schedule();
    if (fuse::kernel_summands(schedule) > 0)
        return Error{"its kernels' programs sum, which only GPUs do in a bundle", {}, ErrorClass::usage};
    if (!tiles) {
        for (const runtime::Operand& operand : operands) {
            const bool known = operand.dtype == plan::DType::bf16 || operand.dtype == plan::DType::fp16 ||
                               operand.dtype == plan::DType::fp32;
            if (!known)
                return Error{fmt::format("{}: on host products are of bf16, fp16 and fp32, not {}",
                                         operand.name, plan::name_of(operand.dtype)),
                             {},
                             ErrorClass::usage};
        }
    }
    auto stages =
        std::make_shared<const HostStages>(std::move(planned), std::move(operands), op, std::move(tiles));
    return runtime::Executable::HostKernels(
        [stages](std::span<const runtime::CallTensor> tensors) { return stages->run(tensors); });
}

}  // namespace syncopate::bundle
