// The steps of a kernel's rewriting, in the order in which emit takes them: what comes to stand at one place
// stands there in that order.
#pragma once

#include <cstdint>
#include <string>

#include "emit/form.hpp"
#include "emit/triton/edits.hpp"
#include "emit/triton/source_text.hpp"
#include "syncopate/fuse/model/program.hpp"
#include "syncopate/result.hpp"

namespace syncopate::emit::triton {

struct Rewriting {
    const fuse::BoundKernel& program;
    const Form& form;
    const SourceText& text;
    Edits& edits;

    [[nodiscard]] const kernel::triton::Sites& sites() const { return text.sites(); }
};

/// An expression for the slot whose tile the kernel's stores are of.
struct SlotOfStore {
    std::string name;               ///< empty: none is known
    std::uint32_t taken_until = 0;  ///< where it is read, if it is the user's own variable
    std::uint32_t taken_at = 0;     ///< from where on it is there
};

/// What is said of the elements that are added to pointers, so that Triton goes on loading and storing as
/// many bytes at once.
[[nodiscard]] inline std::string multiple_of(const InlineForm& form) {
    return form.rows_of_16 ? ", multiple=16" : "";
}

/// Where the kernel takes the id of a tile, it gets that of its slot, once the chunks have come that the tile
/// reads. Fails where there is no such place.
[[nodiscard]] Result<SlotOfStore> take_tiles(const Rewriting& to);

/// Nests the loops that can be cut in loops over phases; a helper that holds one gets the schedule and the
/// number of its first loop there.
[[nodiscard]] Status nest_loops(const Rewriting& to);

/// Where ranks run some of the tiles each, a persistent kernel's loop over tiles ends with the rank's slots.
[[nodiscard]] Status take_own_tiles(const Rewriting& to);

/// Whether a program may post for a tile when it comes to store the next one, so that it need not stand still
/// until its stores are complete.
[[nodiscard]] bool can_post_later(const Rewriting& to);

/// A post after the last store of a tile, and before each return on the way there.
[[nodiscard]] Status add_posts(const Rewriting& to, const SlotOfStore& slot, bool later);

/// Stores of what is sent inline go where the schedule says.
[[nodiscard]] Status redirect_stores(const Rewriting& to, const SlotOfStore& slot);

/// Loads of what is fetched inline come from where the schedule says: `sy_from`, which a tile's lines set.
[[nodiscard]] Status redirect_loads(const Rewriting& to);

/// Where the kernel returns, the count of programs that have ended.
void add_finish(const Rewriting& to, bool later);

}  // namespace syncopate::emit::triton
