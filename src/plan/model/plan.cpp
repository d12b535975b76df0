#include "syncopate/plan/model/plan.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <string>

#include "syncopate/at.hpp"

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
/// As Triton, PyTorch, NumPy, JAX, HLO and LLVM spell them, in small letters.
struct OtherName {
    std::string_view name, ours;
};
constexpr std::array kOtherNames = std::to_array<OtherName>({
    {"bfloat16", "bf16"},
    {"float16", "fp16"},
    {"half", "fp16"},
    {"f16", "fp16"},
    {"float32", "fp32"},
    {"float", "fp32"},
    {"f32", "fp32"},
    {"float64", "fp64"},
    {"double", "fp64"},
    {"f64", "fp64"},
    {"float8_e4m3fn", "fp8e4m3"},
    {"fp8e4m3fn", "fp8e4m3"},
    {"f8e4m3fn", "fp8e4m3"},
    {"float8e4nv", "fp8e4m3"},
    {"fp8e4nv", "fp8e4m3"},
    {"float8_e5m2", "fp8e5m2"},
    {"f8e5m2", "fp8e5m2"},
    {"float8e5", "fp8e5m2"},
    {"fp8e5", "fp8e5m2"},
    {"float8_e4m3fnuz", "fp8e4m3fnuz"},
    {"f8e4m3fnuz", "fp8e4m3fnuz"},
    {"float8e4b8", "fp8e4m3fnuz"},
    {"fp8e4b8", "fp8e4m3fnuz"},
    {"float8_e5m2fnuz", "fp8e5m2fnuz"},
    {"f8e5m2fnuz", "fp8e5m2fnuz"},
    {"float8e5b16", "fp8e5m2fnuz"},
    {"fp8e5b16", "fp8e5m2fnuz"},
    {"i8", "int8"},
    {"s8", "int8"},
    {"i16", "int16"},
    {"s16", "int16"},
    {"short", "int16"},
    {"i32", "int32"},
    {"s32", "int32"},
    {"int", "int32"},
    {"i64", "int64"},
    {"s64", "int64"},
    {"long", "int64"},
    {"u8", "uint8"},
    {"u16", "uint16"},
    {"u32", "uint32"},
    {"u64", "uint64"},
    {"int1", "bool"},
    {"i1", "bool"},
    {"bool_", "bool"},
    {"pred", "bool"},
});
constexpr std::array<std::string_view, 8> kModules{"torch.", "tl.",  "triton.language.", "np.",
                                                   "numpy.", "jnp.", "jax.numpy.",       "ml_dtypes."};
constexpr std::array<std::string_view, kNumOpKinds> kOpKinds{"push", "pull", "local", "collective"};
constexpr std::array<std::string_view, kNumReduces> kReduces{"none", "sum", "max"};
constexpr std::array<std::string_view, kNumCollectiveKinds> kCollectiveKinds{
    "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "permute"};
constexpr std::array<std::string_view, kNumBackends> kBackends{
    "auto",        "copy_engine", "tma_dedicated", "tma_inline", "ldst_dedicated",
    "ldst_inline", "nccl",        "host",          "channel"};

}  // namespace

std::size_t size_of(DType dtype) { return kDTypes[at(dtype)].bytes; }
std::string_view name_of(DType dtype) { return kDTypes[at(dtype)].name; }
std::string_view name_of(OpKind kind) { return kOpKinds[at(kind)]; }
std::string_view name_of(Reduce reduce) { return kReduces[at(reduce)]; }
std::string_view name_of(CollectiveKind kind) { return kCollectiveKinds[at(kind)]; }
std::string_view name_of(Backend backend) { return kBackends[at(backend)]; }

std::optional<DType> dtype_from(std::string_view name) {
    const std::size_t dot = name.find_last_of('.');
    const std::size_t begin = dot == std::string_view::npos ? 0 : dot + 1;
    if (begin > 0 && std::ranges::find(kModules, name.substr(0, begin)) == kModules.end())
        return std::nullopt;
    std::string word(name.substr(begin));
    for (char& letter : word) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    // There float and int are Python's: of 64 bits, or of as many as the machine says.
    const std::string_view module = name.substr(0, begin);
    const bool pythons = module.starts_with("n") || module.starts_with("j");
    if (pythons && (word == "float" || word == "int")) return std::nullopt;
    const auto* const other = std::ranges::find(kOtherNames, std::string_view(word), &OtherName::name);
    const std::string_view ours = other == kOtherNames.end() ? std::string_view(word) : other->ours;
    const auto* const row = std::ranges::find(kDTypes, ours, &DTypeRow::name);
    if (row == kDTypes.end()) return std::nullopt;
    return static_cast<DType>(row - kDTypes.begin());
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
    const Tensor& tensor = tensors[at(chunk.tensor)];
    const auto element = static_cast<std::int64_t>(size_of(tensor.dtype));
    std::int64_t total = 0;
    Region held = chunk.region;
    if (tensor.ragged && held.size() == tensor.shape.size() &&
        !is_empty(held)) {  // what is shown may be unsound
        for (std::size_t group = 0; group < tensor.ragged->groups.size(); ++group)
            held[static_cast<std::size_t>(tensor.ragged->axis) + group] = {0, 1};
        held[at(tensor.ragged->axis)] = {0, tensor.ragged->bound};
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
