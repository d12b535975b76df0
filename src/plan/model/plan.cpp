#include "syncopate/plan/model/plan.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace syncopate::plan {
namespace {

struct DTypeRow {
    std::string_view name;
    std::size_t bytes;
};

// Each table is indexed by its enum, in the order of the declaration.
constexpr std::array<DTypeRow, kNumDTypes> kDTypes{{{"bf16", 2},
                                                    {"fp16", 2},
                                                    {"fp32", 4},
                                                    {"fp64", 8},
                                                    {"fp8e4m3", 1},
                                                    {"fp8e5m2", 1},
                                                    {"int8", 1},
                                                    {"int16", 2},
                                                    {"int32", 4},
                                                    {"int64", 8},
                                                    {"uint8", 1},
                                                    {"uint16", 2},
                                                    {"uint32", 4},
                                                    {"uint64", 8},
                                                    {"bool", 1},
                                                    {"fp8e4m3fnuz", 1},
                                                    {"fp8e5m2fnuz", 1}}};
constexpr std::array<std::string_view, kNumOpKinds> kOpKinds{"push", "pull", "local", "collective"};
constexpr std::array<std::string_view, kNumReduces> kReduces{"none", "sum", "max"};
constexpr std::array<std::string_view, kNumCollectiveKinds> kCollectiveKinds{
    "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "permute"};
constexpr std::array<std::string_view, kNumBackends> kBackends{
    "auto",        "copy_engine", "tma_dedicated", "tma_inline", "ldst_dedicated",
    "ldst_inline", "nccl",        "host",          "channel"};

}  // namespace

std::size_t size_of(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].bytes; }
std::string_view name_of(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)].name; }
std::string_view name_of(OpKind kind) { return kOpKinds[static_cast<std::size_t>(kind)]; }
std::string_view name_of(Reduce reduce) { return kReduces[static_cast<std::size_t>(reduce)]; }
std::string_view name_of(CollectiveKind kind) { return kCollectiveKinds[static_cast<std::size_t>(kind)]; }
std::string_view name_of(Backend backend) { return kBackends[static_cast<std::size_t>(backend)]; }

std::optional<DType> dtype_from(std::string_view name) {
    for (std::size_t i = 0; i < kDTypes.size(); ++i) {
        if (kDTypes[i].name == name) return static_cast<DType>(i);
    }
    return std::nullopt;
}

std::optional<Backend> backend_from(std::string_view name) {
    const auto* const found = std::find(kBackends.begin(), kBackends.end(), name);
    if (found == kBackends.end()) return std::nullopt;
    return static_cast<Backend>(found - kBackends.begin());
}

std::int32_t Mesh::num_ranks() const {
    if (axes.empty()) return 0;
    std::int32_t product = 1;
    for (const Axis& axis : axes) {
        if (axis.size <= 0) return 0;
        if (__builtin_mul_overflow(product, axis.size, &product))
            return std::numeric_limits<std::int32_t>::max();
    }
    return product;
}

bool overlaps(const Chunk& a, const Chunk& b) { return a.tensor == b.tensor && overlaps(a.region, b.region); }

Region Tensor::whole() const {
    Region region(shape.size());
    std::transform(shape.begin(), shape.end(), region.begin(),
                   [](std::int64_t size) { return Interval{0, size}; });
    return region;
}

std::vector<std::int64_t> Tensor::memory_shape() const {
    if (!ragged) return shape;
    std::vector<std::int64_t> made = shape;
    const auto first = made.begin() + ragged->axis;
    made.insert(made.erase(first, first + static_cast<std::ptrdiff_t>(ragged->groups.size())), ragged->rows);
    return made;
}

std::uint64_t Tensor::bytes() const {
    Region memory;
    for (const std::int64_t size : memory_shape()) memory.push_back({0, size});
    return static_cast<std::uint64_t>(num_elements(memory)) * size_of(dtype);
}

std::optional<std::int32_t> Plan::find_tensor(std::string_view name) const {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const Tensor& tensor) { return tensor.name == name; });
    if (found == tensors.end()) return std::nullopt;
    return static_cast<std::int32_t>(found - tensors.begin());
}

std::int64_t Plan::bytes(const Chunk& chunk) const {
    const Tensor& tensor = tensors[static_cast<std::size_t>(chunk.tensor)];
    const auto element = static_cast<std::int64_t>(size_of(tensor.dtype));
    std::int64_t total = 0;
    Region held = chunk.region;
    if (tensor.ragged && held.size() == tensor.shape.size() &&
        !is_empty(held)) {  // what is shown may be unsound
        for (std::size_t group = 0; group < tensor.ragged->groups.size(); ++group)
            held[static_cast<std::size_t>(tensor.ragged->axis) + group] = {0, 1};
        held[static_cast<std::size_t>(tensor.ragged->axis)] = {0, tensor.ragged->bound};
    }
    if (__builtin_mul_overflow(num_elements(held), element, &total)) {
        return std::numeric_limits<std::int64_t>::max();
    }
    return total;
}

Error error_at(OpRef ref, std::string message) {
    return Error{std::move(message), {.rank = ref.rank, .op = ref.index}};
}

}  // namespace syncopate::plan
