// What every JSON schema with a mesh and tensors has.
#pragma once

#include "syncopate/json_table.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::plan {

class PartsReader : public JsonReader {
public:
    using JsonReader::JsonReader;

protected:
    /// [[name, size], …]
    auto mesh(Mesh& out) {
        return [this, &out](JsonAt at) { return read_mesh(at, out); };
    }
    auto shape(Tensor& out) {
        return [this, &out](JsonAt at) { return read_shape(at, out); };
    }
    /// Fails, at its shape, which has been read, if the tensor's bytes do not fit 64 bits.
    auto dtype(Tensor& out) {
        return [this, &out](JsonAt at) { return read_dtype(at, out); };
    }
    template <typename Enum, std::size_t Count>
    auto one_of(Enum& out, std::string_view what) {
        return name(out, what, names_of<Enum, Count>());
    }

private:
    bool read_mesh(JsonAt at, Mesh& out);
    bool read_shape(JsonAt at, Tensor& out);
    bool read_dtype(JsonAt at, Tensor& out);

    Index shape_ = 0;  ///< of the tensor that is being read
};

}  // namespace syncopate::plan
