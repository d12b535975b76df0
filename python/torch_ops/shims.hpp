// The part of libtorch's stable C interface that the ops use (torch/csrc/inductor/aoti_torch/c/shim.h and
// torch/csrc/stable/c/shim.h), declared here so that building them takes no torch. tests/python/test_torch_abi.py compiles
// this beside the headers of the installed torch, which must agree with every line.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque*;
struct TorchLibraryOpaque;
using TorchLibraryHandle = TorchLibraryOpaque*;
struct StableListOpaque;
using StableListHandle = StableListOpaque*;
struct StringOpaque;
using StringHandle = StringOpaque*;
using AOTITorchError = int32_t;  // 0: success
using StableIValue = uint64_t;

// Libraries of ops.
AOTITorchError aoti_torch_library_init_def(const char* ns, const char* file, uint32_t line,
                                           TorchLibraryHandle* ret_new_torch_lib);
AOTITorchError aoti_torch_library_init_impl(const char* ns, const char* k, const char* file, uint32_t line,
                                            TorchLibraryHandle* ret_new_torch_lib);
AOTITorchError aoti_torch_library_def(TorchLibraryHandle self, const char* schema);
AOTITorchError torch_library_impl(TorchLibraryHandle self, const char* name,
                                  void (*fn)(StableIValue*, uint64_t, uint64_t),
                                  uint64_t extension_build_version);
AOTITorchError torch_call_dispatcher(const char* opName, const char* overloadName, StableIValue* stack,
                                     uint64_t extension_build_version);
bool aoti_torch_grad_mode_is_enabled();

// Tensors.
AOTITorchError aoti_torch_new_tensor_handle(AtenTensorHandle orig_handle, AtenTensorHandle* new_handle);
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor);
AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* ret_dim);
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** ret_sizes);
AOTITorchError aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** ret_strides);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* ret_dtype);
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t* ret_device_type);
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* ret_device_index);
AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle tensor, void** ret_data_ptr);
AOTITorchError aoti_torch_empty_strided(int64_t ndim, const int64_t* sizes_ptr, const int64_t* strides_ptr,
                                        int32_t dtype, int32_t device_type, int32_t device_index,
                                        AtenTensorHandle* ret_new_tensor);
size_t aoti_torch_dtype_element_size(int32_t dtype);
int32_t aoti_torch_device_type_cuda();
int32_t aoti_torch_memory_format_contiguous_format();

// Lists and strings.
AOTITorchError torch_new_list_reserve_size(size_t size, StableListHandle* ret);
AOTITorchError torch_list_size(StableListHandle list_handle, size_t* size);
AOTITorchError torch_list_get_item(StableListHandle list_handle, size_t index, StableIValue* element);
AOTITorchError torch_list_push_back(StableListHandle list_handle, StableIValue element);
AOTITorchError torch_delete_list(StableListHandle list_handle);
AOTITorchError torch_new_string_handle(const char* data, size_t length, StringHandle* handle);
AOTITorchError torch_delete_string(StringHandle handle);
AOTITorchError torch_string_length(StringHandle handle, size_t* length);
AOTITorchError torch_string_c_str(StringHandle handle, const char** data);

// Only of a torch with CUDA: libtorch_cuda.so.
AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** ret_stream);

// From 2.13 on.
const char* torch_exception_get_what_without_backtrace();
AOTITorchError torch_delete_stable_ivalue(StableIValue* value);

}  // extern "C"
