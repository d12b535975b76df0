// Whether what tiles store makes up a tensor: each of its elements stored, and by one tile alone.
//
//      0        16       32
//      [ tile 0 )[ tile 1 )        partitioned
//      [ tile 0 )   [ tile 1 )     a gap
//      [   tile 0  )[ 1 ) 2 )      stored twice
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/plan/model/region.hpp"

namespace syncopate::kernel::triton {

struct Partition {
    bool known = true;                  ///< false: the boxes are too many to tell
    std::optional<plan::Region> gap;    ///< a part that no tile stores
    std::optional<plan::Region> twice;  ///< a part that several tiles store
};

/// How the boxes that the tiles write of parameter `param`, a tensor of this shape, lie in it.
[[nodiscard]] Partition partition_of(const std::vector<std::int64_t>& shape, const std::vector<Tile>& tiles,
                                     const std::string& param);

/// A box that a tile stores; those of one tile may overlap.
struct StoredBox {
    std::size_t tile = 0;
    plan::Region box;
    bool adds = false;  ///< by an atomic: two of these do not meet
};

/// Two tiles that store to one place.
struct SharedStore {
    std::size_t first = 0, second = 0;
    plan::Region box;  ///< within what both store
};

/// The first two tiles of these, in the order of the boxes, that store the same element of a tensor of this
/// shape; nullopt: there are none, or the boxes are too many to tell.
[[nodiscard]] std::optional<SharedStore> find_shared_store(const std::vector<std::int64_t>& shape,
                                                           const std::vector<StoredBox>& boxes);

}  // namespace syncopate::kernel::triton
