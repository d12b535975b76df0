// What every JSON schema with a mesh and tensors has.
#pragma once

#include "syncopate/json_decoder.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::plan {

/// Methods return false once an error is recorded, as those of the base do.
class PartsDecoder : protected JsonDecoder {
public:
    using JsonDecoder::JsonDecoder;

protected:
    /// [[name, size], …]
    bool mesh(Index node, const JsonPath& path, Mesh& out);
    /// Fails after shape and dtype if the tensor's bytes do not fit 64 bits.
    bool bytes_fit(Index node, const JsonPath& path, const Tensor& tensor);
};

}  // namespace syncopate::plan
