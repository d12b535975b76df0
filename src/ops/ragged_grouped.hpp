// A user's kernel whose tiles only a call knows, as groups of them: an expert's, or all of a rank's, wait alike.
#pragma once

#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/ops/ragged.hpp"

namespace syncopate::ops {

/// `found`, with a tile for each group of each rank; a rank runs those of its own, each as often as the call's table says.
[[nodiscard]] kernel::Kernel grouped(kernel::Kernel found, const RaggedKernel& as, const RaggedRows& of);

}  // namespace syncopate::ops
