// The rows of backend.hpp, one function a backend.
#pragma once

#include "syncopate/fuse/model/backend.hpp"

namespace syncopate::fuse {

[[nodiscard]] BackendTraits copy_engine_row();
[[nodiscard]] BackendTraits chunk_engine_row(plan::Backend method);
[[nodiscard]] BackendTraits inline_row(plan::Backend access);
[[nodiscard]] BackendTraits nccl_row();
[[nodiscard]] BackendTraits host_row();
[[nodiscard]] BackendTraits channel_row();

}  // namespace syncopate::fuse
