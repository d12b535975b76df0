#include "ops/product.hpp"

namespace syncopate::ops {

OperatorRow attention() {
    return {.name = "attention",
            .extents = {"S", "B", "H", "HKV", "D", "causal"},
            .required = 1,
            .defaults = {1, 32, 8, 128, 1},
            .words = {"kind", "sharding"}};
}

}  // namespace syncopate::ops
