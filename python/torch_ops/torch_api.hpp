// torch's functions (shims.hpp), found in the libtorch that the process has loaded: nothing is linked with it.
#pragma once

#include <string>

#include "shims.hpp"

// clang-format off: it never rests on these
// Of every torch that the ops take.
#define SYNCOPATE_TORCH_FUNCTIONS(F) \
    F(aoti_torch_library_init_def) \
    F(aoti_torch_library_init_impl) \
    F(aoti_torch_library_def) \
    F(torch_library_impl) \
    F(torch_call_dispatcher) \
    F(aoti_torch_grad_mode_is_enabled) \
    F(aoti_torch_new_tensor_handle) \
    F(aoti_torch_delete_tensor_object) \
    F(aoti_torch_get_dim) \
    F(aoti_torch_get_sizes) \
    F(aoti_torch_get_strides) \
    F(aoti_torch_get_dtype) \
    F(aoti_torch_get_device_type) \
    F(aoti_torch_get_device_index) \
    F(aoti_torch_get_data_ptr) \
    F(aoti_torch_empty_strided) \
    F(aoti_torch_dtype_element_size) \
    F(aoti_torch_device_type_cuda) \
    F(aoti_torch_memory_format_contiguous_format) \
    F(torch_new_list_reserve_size) \
    F(torch_list_size) \
    F(torch_list_get_item) \
    F(torch_list_push_back) \
    F(torch_delete_list) \
    F(torch_new_string_handle) \
    F(torch_delete_string) \
    F(torch_string_length) \
    F(torch_string_c_str)
// Of some; null elsewhere.
#define SYNCOPATE_TORCH_OPTIONAL_FUNCTIONS(F) \
    F(aoti_torch_get_current_cuda_stream) \
    F(torch_exception_get_what_without_backtrace) \
    F(torch_delete_stable_ivalue)
// clang-format on

namespace syncopate::torch_ops {

struct TorchApi {
#define SYNCOPATE_DECLARE(name) decltype(&::name) name = nullptr;
    SYNCOPATE_TORCH_FUNCTIONS(SYNCOPATE_DECLARE)
    SYNCOPATE_TORCH_OPTIONAL_FUNCTIONS(SYNCOPATE_DECLARE)
#undef SYNCOPATE_DECLARE
};

/// Throws std::runtime_error where the process has no libtorch, or one that lacks a function.
const TorchApi& torch_api();

/// The interface that the ops are written for: torch gives values as its release of this number did (2.11).
inline constexpr std::uint64_t kTorchVersion = (std::uint64_t{2} << 56) | (std::uint64_t{11} << 48);

/// Throws std::runtime_error for a call of torch's that failed.
void require(AOTITorchError code, const char* what);

}  // namespace syncopate::torch_ops
