// The layout of the schedule table and of the control block (syncopate/emit/layout.hpp) as constants for
// Python: _syncopate.layout. What is built from them there has no numbers of its own.
#include "syncopate/emit/layout.hpp"
#include "bindings.hpp"

namespace nb = nanobind;

namespace syncopate::bindings {

void bind_layout(nb::module_& module) {
    nb::module_ layout = module.def_submodule(
        "layout",
        "Words of the schedule table and of the control block; drawn in syncopate/emit/layout.hpp.");

    namespace control = emit::control;
    layout.attr("EPOCH") = control::epoch;
    layout.attr("FINISHED") = control::finished;
    layout.attr("LOADED") = control::loaded;
    layout.attr("DEADLINE_MS") = control::deadline_ms;
    layout.attr("FAULT") = control::fault;
    layout.attr("FAULT_SEEN") = control::fault_seen;
    layout.attr("FAULT_EPOCH") = control::fault_epoch;
    layout.attr("FAULT_WHERE") = control::fault_where;
    layout.attr("FAULT_CALL") = control::fault_call;
    layout.attr("FAULT_CLAIM") = control::fault_claim;
    layout.attr("CLAIMING") = control::claiming;
    layout.attr("MOST_BETWEEN_NS") = control::most_between_ns;
    layout.attr("PUBLISHED") = control::published;
    layout.attr("RANK") = control::rank;
    layout.attr("MIRROR") = control::mirror;
    layout.attr("FIRST_BLOCK") = control::first_block;
    layout.attr("NEXT_BLOCK") = control::next_block;
    layout.attr("NUM_RANKS") = control::num_ranks;
    layout.attr("MIRROR_BEGUN") = control::mirror_begun;
    layout.attr("MIRROR_FAULT") = control::mirror_fault;
    layout.attr("MIRROR_SEEN") = control::mirror_seen;
    layout.attr("FAULT_OF_PEER") = control::fault_of_peer;
    layout.attr("FIRST_SIGNAL") = control::first_signal;
    layout.attr("SIGNAL_STRIDE") = control::signal_stride;
    layout.attr("GATE") = control::gate;

    layout.attr("AT_KERNEL_SUM") = control::at_transfer(0);

    namespace table = emit::table;
    layout.attr("NUM_SLOTS") = table::num_slots;
    layout.attr("NUM_KERNEL_POSTS") = table::num_kernel_posts;
    layout.attr("KERNEL_POSTS") = table::kernel_posts;
    layout.attr("NUM_PROGRAMS") = table::num_programs;
    layout.attr("TRACE") = table::trace;
    layout.attr("TRACE_ENDS") = table::trace_ends;
    layout.attr("LOADS") = table::loads;
    layout.attr("SUM") = table::sum;
    layout.attr("OTHER") = table::other;
    layout.attr("HEAD_START") = table::head_start;
    layout.attr("SUM_WAITS") = table::sum_waits;
    layout.attr("SUM_ELEMENTS") = table::sum_elements;
    layout.attr("SUM_SUMMANDS") = table::sum_summands;
    layout.attr("SUM_PLACES") = table::sum_places;
    layout.attr("FIRST_SLOT") = table::first_slot;
    layout.attr("PAIR_WORDS") = table::pair_words;
    layout.attr("SLOT_WORDS") = table::slot_words;
    layout.attr("SLOT_TILE") = table::slot_tile;
    layout.attr("SLOT_WAITS") = table::slot_waits;
    layout.attr("SLOT_PHASES") = table::slot_phases;
    layout.attr("SLOT_MAKES") = table::slot_makes;
    layout.attr("SLOT_STORE") = table::slot_store;
    layout.attr("SLOT_GROUP") = table::slot_group;
    layout.attr("SLOT_ROWS") = table::slot_rows;
    layout.attr("GROUPS") = table::groups;
    layout.attr("MADE_GROUPS") = table::made_groups;
    layout.attr("LOOPS") = table::loops;
    layout.attr("GRID") = table::grid;
    layout.attr("PHASE_WORDS") = table::phase_words;
    layout.attr("PHASE_BEGIN") = table::phase_begin;
    layout.attr("PHASE_WAITS") = table::phase_waits;
    layout.attr("MADE_WORDS") = table::made_words;
    layout.attr("MADE_COUNTER") = table::made_counter;
    layout.attr("MADE_TILES") = table::made_tiles;
    layout.attr("MADE_POSTS") = table::made_posts;
    layout.attr("WAIT_COUNT_SHIFT") = table::wait_count_shift;
    layout.attr("MADE_GATES") = table::made_gates;
    layout.attr("MADE_TOLD") = table::made_told;
    layout.attr("AT_ONCE") = table::at_once;
    layout.attr("TRACE_WAIT") = table::trace_wait;
    layout.attr("TRACE_START") = table::trace_start;
    layout.attr("TRACE_PLACE") = table::trace_place;
    layout.attr("OWN_BASE") = table::own_base;
}

}  // namespace syncopate::bindings
