// Launching a kernel that Triton compiled, from C++: its cubin, its arguments as Triton's own launcher lays
// them out (triton/backends/nvidia/driver.py and driver.c of Triton 3.6), its tensor maps.
//
// The parameters of a compiled kernel: the arguments that are neither constexpr nor specialised away, in
// order; a host tensor descriptor as a tensor map by value, then its shape (i32 each), then its strides (i64
// each); at the end, always, the addresses of the global scratch and of the profiler's scratch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "syncopate/result.hpp"
#include "syncopate/runtime/cuda/driver/cuda_driver.hpp"

namespace syncopate::runtime {

/// A CUtensorMap: 128 bytes. KernelArguments gives it the alignment that a launch needs.
struct TensorMap {
    std::array<std::uint64_t, 16> words{};
};

/// What a tensor map says; swizzle, element type and block as in one entry of Triton's metadata
/// `tensordesc_meta`.
struct TensorMapRequest {
    std::uint64_t address = 0;          ///< aligned to 16 bytes
    std::vector<std::int64_t> shape;    ///< elements, axis 0 first; 1 to 5 axes
    std::vector<std::int64_t> strides;  ///< elements; the last one 1
    std::vector<std::int64_t> block;    ///< elements per axis of one access
    std::int32_t element_bytes = 2;     ///< "elem_size"
    std::int32_t element_type = 0;      ///< "elem_type": Triton's number, which differs from the driver's
    std::int32_t swizzle = 0;           ///< "swizzle": CUtensorMapSwizzle
    bool pad_with_nan = false;          ///< padding == "nan"
    bool fp4_padded = false;            ///< "fp4_padded"
};

/// Needs a driver, but no context. Fails with what was asked for when the driver refuses it.
Result<TensorMap> make_tensor_map(const TensorMapRequest& request);

/// The arguments of a launch, copied in. Build it once and launch it again and again: a launch allocates nothing.
class KernelArguments {
public:
    /// Appends one argument, a number or a structure by value, and returns its index.
    template <typename T>
    std::size_t add(T value) {
        static_assert(std::is_trivially_copyable_v<T>);
        return append(&value, sizeof(T));
    }
    std::size_t add_pointer(std::uint64_t address) { return add(address); }
    std::size_t add_tensor_map(const TensorMap& map) { return append(&map, sizeof(map)); }
    /// A host tensor descriptor: the map, the shape and the strides, as the launcher passes them. The map's
    /// index.
    std::size_t add_descriptor(const TensorMap& map, std::span<const std::int64_t> shape,
                               std::span<const std::int64_t> strides);

    /// Gives argument `index` another value of the same type, between launches.
    template <typename T>
    void set(std::size_t index, const T& value) {
        static_assert(std::is_trivially_copyable_v<T>);
        replace(index, &value, sizeof(T));
    }

    [[nodiscard]] std::size_t size() const { return fields_.size(); }
    [[nodiscard]] const void* data(std::size_t index) const { return bytes() + fields_[index].offset; }
    [[nodiscard]] std::size_t bytes_of(std::size_t index) const { return fields_[index].bytes; }

private:
    struct Field {
        std::size_t offset;
        std::size_t bytes;
    };
    struct alignas(128) Block {
        std::byte bytes[128];
    };
    std::size_t append(const void* value, std::size_t bytes);
    void replace(std::size_t index, const void* value, std::size_t bytes);
    [[nodiscard]] std::byte* bytes() { return reinterpret_cast<std::byte*>(blocks_.data()); }
    [[nodiscard]] const std::byte* bytes() const {
        return reinterpret_cast<const std::byte*>(blocks_.data());
    }

    std::vector<Block> blocks_;
    std::vector<Field> fields_;
    std::size_t used_ = 0;
};

/// Programs of a launch.
struct Grid {
    std::uint32_t x = 1;
    std::uint32_t y = 1;
    std::uint32_t z = 1;
};

/// What Triton's metadata says about a compiled kernel.
struct KernelOptions {
    std::int32_t num_warps = 4;
    std::int32_t num_ctas = 1;             ///< programs of a cluster
    std::int32_t shared_bytes = 0;         ///< "shared": dynamic shared memory
    bool cooperative = false;              ///< "launch_cooperative_grid"
    bool programmatic = false;             ///< "launch_pdl"
    std::int64_t global_scratch_size = 0;  ///< bytes per program; descriptors made in the kernel live there
    std::int64_t global_scratch_align = 1;
    std::int64_t profile_scratch_size = 0;
    std::int64_t profile_scratch_align = 1;
    bool triton = true;  ///< append the two scratch addresses to the arguments
    /// It runs beside kernels that take all shared memory: a multiprocessor that it comes to first is set up
    /// for them, where otherwise they would have to wait until it has ended.
    bool beside = false;
};

class CudaKernel {
public:
    using Options = KernelOptions;

    /// `image` is a cubin, a fatbin or PTX (ended by a zero byte); loaded at once, not at the first launch.
    static Result<std::unique_ptr<CudaKernel>> load(std::shared_ptr<CudaContext> context,
                                                    std::span<const std::byte> image, const std::string& name,
                                                    const Options& options);
    ~CudaKernel();
    CudaKernel(const CudaKernel&) = delete;
    CudaKernel& operator=(const CudaKernel&) = delete;

    /// Enqueues the kernel. The scratch belongs to the kernel: launches of it must follow each other in
    /// stream order if it uses any. Allocates only when the scratch must grow, which fails while a graph is
    /// captured: see prepare(). `early`: it may start once the kernel before it in the stream has started and
    /// lets it (griddepcontrol); its own code then waits for what it needs of that kernel. `started`: a
    /// CUevent without timing, recorded when every block has started; 0: none.
    Status launch(Grid grid, CudaStream stream, const KernelArguments& arguments, bool early = false,
                  std::uint64_t started = 0);
    /// Makes the scratch large enough for `grid`.
    Status prepare(Grid grid);

    /// As `beside` does, of a kernel that is there.
    Status run_beside();

    [[nodiscard]] int registers() const { return registers_; }  ///< per thread
    /// Whether all programs of `grid` have a place on the GPU when nothing else runs there.
    [[nodiscard]] bool runs_at_once(Grid grid) const;
    /// How many blocks of `grid`, of whose programs `waiting` may stay where they are, are more than there are multiprocessors
    /// beside `free`, which these leave free, as blocks go first to such that have none.
    [[nodiscard]] std::uint64_t beyond(Grid grid, std::uint64_t waiting, int free) const;

private:
    struct Scratch;
    CudaKernel();
    [[nodiscard]] std::uint64_t blocks_of(Grid grid) const;
    std::shared_ptr<CudaContext> context_;
    Options options_;
    void* module_ = nullptr;    ///< CUmodule
    void* function_ = nullptr;  ///< CUfunction
    int registers_ = 0;
    int resident_ = 0;  ///< blocks of a multiprocessor
    int multiprocessors_ = 0;
    std::unique_ptr<Scratch> scratch_;
};

}  // namespace syncopate::runtime
