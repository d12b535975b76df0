// The analysis of one kernel for one set of arguments: run the first program, learn from it the grid and the
// tile axes, run every program, and put together what the kernel is. Internal to analyse*.cpp: one object,
// since each step needs what the evaluator found before it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernel/triton/evaluate/effort.hpp"
#include "kernel/triton/evaluate/evaluate.hpp"
#include "kernel/triton/footprints/cover.hpp"
#include "kernel/triton/footprints/partition.hpp"
#include "kernel/triton/footprints/tiles.hpp"
#include "kernel/triton/sites/sites.hpp"
#include "kernel/triton/syntax/directive.hpp"
#include "kernel/triton/syntax/syntax.hpp"
#include "syncopate/at.hpp"
#include "syncopate/kernel/model/kernel.hpp"
#include "syncopate/kernel/triton/analyse/analyse.hpp"
#include "syncopate/kernel/triton/sites/text.hpp"

namespace syncopate::kernel::triton {

class Analysis {
public:
    Analysis(Module& module, std::int32_t index, const Arguments& arguments,
             std::vector<Directive> directives, std::set<std::int32_t> functions, const Effort& effort)
        : module_(module),
          index_(index),
          function_(module.functions[at(index)]),
          arguments_(arguments),
          directives_(std::move(directives)),
          functions_(std::move(functions)),
          effort_(effort),
          evaluator_(module, index, arguments_, directives_, effort) {}

    Result<Kernel> run();
    /// What arguments may have to do with its failure, to follow the message; empty: nothing.
    [[nodiscard]] std::string hint() const { return evaluator_.hint_of_reals(); }
    /// Why `kernel`, what run() has returned, is what it is.
    std::vector<Note> notes(const Kernel& kernel);

private:
    /// A way to the grid, where the launch does not give it.
    enum class Way : std::uint8_t {
        given,
        loop,    ///< the stride of the loop over tiles
        stride,  ///< … of a loop that is none over tiles
        marked,  ///< by a directive
        single,  ///< stores follow from no program's id
        counts,  ///< the product of tile counts
        leaps,   ///< programs up to the first one that writes nothing, found in leaps
        nested,  ///< … on several axes, each only up to where the next one begins
        each,    ///< … one by one
    };

    // analyse.cpp
    Result<Kernel> with_tiles();
    Error with_hint(Error error);
    Result<Kernel> on_grid();
    Result<Kernel> finished(Kernel kernel);
    std::vector<const Parameter*> add_params(Kernel& kernel) const;
    Error no_tiles(const SourceRange& where, std::string why);
    [[nodiscard]] std::optional<std::pair<SourceRange, std::string>> objection_to_tiles() const;
    const Directive* directive(DirectiveKind kind) const;
    void forget();
    Status check_ids(const std::vector<std::int64_t>& ids);
    Status number_tiles(Kernel& kernel);

    // analyse_programs.cpp
    Status run_programs();
    std::int32_t line_axis();
    RunLine line_from(const std::array<std::int64_t, 3>& id, std::int32_t axis);
    Status run_along(std::int32_t axis);

    // analyse_search.cpp
    Result<bool> writes_at(const std::array<std::int64_t, 3>& id);
    Result<std::optional<plan::Region>> stores_at(const std::array<std::int64_t, 3>& id, std::size_t memory);
    std::int64_t elements_to_write() const;
    bool written_tensor_known() const;
    Result<std::optional<std::string>> search(std::size_t first_axis, bool one_by_one);
    Result<std::int64_t> leap(std::size_t axis);
    Result<std::int64_t> count_writers(std::size_t axis);
    Result<std::optional<std::string>> nest();
    bool wrote_all() const;

    // analyse_grid.cpp
    Status look_at(const std::array<std::int64_t, 3>& id);
    Result<std::vector<Way>> ways_to_a_grid();
    Result<std::optional<std::string>> propose(Way way);
    Result<std::optional<std::string>> count_programs();
    void note_used_axes();
    bool is_stated(Way way) const;
    bool numbers_none(std::int64_t id);
    std::optional<std::string> doubt(Kernel& kernel, Way way);
    Status check_given() const;
    Error needs_grid(const std::string& why) const;
    std::string values_hint() const;
    std::string strides_hint() const;
    std::string unknown_axes(const std::vector<std::size_t>& tiles) const;
    std::string who_store_twice(std::size_t memory, const plan::Region& region) const;

    // analyse_stores.cpp
    std::vector<std::size_t> leaving(std::int32_t memory, bool write) const;
    enum class Stored : std::uint8_t {
        any,    ///< by both tiles in any way
        plain,  ///< by no atomic
        mixed,  ///< by one of them by no atomic
    };
    std::optional<SharedStore> shared_store(std::int32_t memory, Stored how) const;
    std::array<std::int64_t, 3> program_of(std::size_t tile) const;
    std::array<bool, 3> differing_axes(const SharedStore& shared) const;
    bool may_differ(std::int32_t memory, const SharedStore& shared) const;
    bool orders_its_tiles(std::int32_t memory) const;
    std::string tensor_text(std::int32_t memory) const;
    std::string tile_text(std::size_t tile) const;
    std::vector<const Stmt*> statements() const;
    bool is_summed(std::int32_t memory) const;
    void add_warnings(Kernel& kernel, Text& text);

    // analyse_waits.cpp
    [[nodiscard]] bool awaits_tiles() const;
    [[nodiscard]] bool is_same_pointer(const Expr& call, const Expr& other) const;
    [[nodiscard]] bool is_lock(const Expr& call, std::int32_t memory) const;

    // analyse_ends.cpp
    void allow_probes();
    std::optional<bool> leaves_at(const std::array<std::int64_t, 3>& id, std::int32_t memory);
    bool has_mask(std::int32_t memory) const;
    std::int64_t masked_extent(std::int32_t memory, std::size_t axis);
    std::string ends_early(std::int32_t memory);

    // analyse_axes.cpp
    std::vector<TileAxis> counted_axes(std::uint64_t taint);
    static std::int64_t product(const std::vector<TileAxis>& axes);
    void name_counts(std::vector<TileAxis>& axes) const;
    void note_axes();
    void mark_products(const std::vector<Stmt*>& body, std::int32_t axis);
    std::optional<std::string> objection_to_grid(const std::vector<TileAxis>& axes) const;
    Status name_axes(Kernel& kernel);
    bool set_parts(Kernel& kernel);
    static std::int64_t distance(const Tile& from, const Tile& to);
    void set_programs(Kernel& kernel);
    std::string axis_names() const;
    static std::string axis_names(const std::vector<TileAxis>& axes);

    // analyse_notes.cpp
    void note_idle_programs(const Kernel& kernel, std::vector<Note>& all) const;
    void note_axes_found(const Kernel& kernel, std::vector<Note>& all);
    void note_loops(const Kernel& kernel, std::vector<Note>& all);

    // analyse_directives.cpp
    Status check_directives(Kernel& kernel);
    Error contradiction(const TileMaker::Beyond& beyond) const;
    std::optional<std::int64_t> watched(const Directive& d) const;
    Status check_block(const Directive& d) const;
    Status check_axis_count(const Directive& d, const Kernel& kernel) const;
    Status check_loop_count(const Directive& d, const Kernel& kernel, std::int64_t value) const;
    Result<std::int64_t> counted(const Directive& d) const;
    Status check_num_tiles(const Directive& d, const Kernel& kernel) const;
    const Directive& begin_of(const Directive& end) const;
    Status check_once(const Directive& d, const Kernel& kernel) const;
    void check_dispatch(const Directive& d, Kernel& kernel) const;
    Status check_epilogue(const Directive& d, const Kernel& kernel) const;
    Status check_pid_map(const Directive& d) const;
    Status check_stated(const Directive& d) const;
    Status check_any_order(const Directive& d, Kernel& kernel) const;
    Status check_tile_id(const Directive& d, const Kernel& kernel) const;
    std::int32_t last_line(const SourceRange& range) const;

    Module& module_;
    std::int32_t index_;
    const Function& function_;
    const Arguments& arguments_;
    std::vector<Directive> directives_;
    std::set<std::int32_t> functions_;
    Effort effort_;
    Evaluator evaluator_;
    std::optional<Evaluator::NoTiles> why_no_tiles_;  // the loop that looked like one over tiles is none
    std::array<std::int64_t, 3> grid_{1, 1, 1};
    bool persistent_ = false;
    std::array<bool, 3> leapt_{};            // the grid's extent along an axis was found in leaps
    std::array<bool, 3> asked_{};            // the kernel asks for the program's id along the axis
    std::array<bool, 3> used_{}, places_{};  // addresses, and those of stores, follow from the program's axis
    std::int64_t written_ = 0;               // elements that the program just looked at stores
    std::optional<Error> overflow_;          // of the first program looked at that has one
    std::array<std::int64_t, 3> overflow_at_{};
    std::int64_t counted_ =
        0;  // programs by the kernel's tile counts, of which some store outside of a tensor
    std::int64_t probing_ = -1;       // steps that looking beyond the grid may take yet; -1: it has not begun
    bool fails_ = false;              // the grid is inferred, and what follows from it is an error
    std::int64_t loop_programs_ = 0;  // what the stride of a loop over programs says of the grid
    std::vector<TileAxis> axes_;      // the tile space, when the counts make it up
    std::vector<TileAxis> parts_;     // counts that make up what tiles store, several the same
    std::map<std::string, std::string> axis_notes_;  // why there are axes that no count makes
    std::vector<TileAxis> named_;                    // all counts
    std::vector<TileAxis> placing_;  // those that say where a tile stores, or how many there are
    std::vector<std::string> block_texts_;
    std::vector<const Expr*> count_exprs_;
    std::vector<LoopSite> loop_sites_;
};

/// As `analyse` of analyse.hpp, within `effort`.
[[nodiscard]] Result<Kernel> analyse(const std::string& source, std::string file, const std::string& name,
                                     const Arguments& arguments, const Effort& effort);

}  // namespace syncopate::kernel::triton
