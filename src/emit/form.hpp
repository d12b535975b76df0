// What a schedule asks of the kernel of one of its stages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "syncopate/fuse/model/program.hpp"
#include "syncopate/fuse/model/schedule.hpp"

namespace syncopate::emit {

/// What is stored at other ranks, or fetched from them, by the tiles themselves.
struct InlineForm {
    std::string param;        ///< through which the kernel does it
    bool rows_of_16 = false;  ///< rows are multiples of 16 elements, and so is what is added to its pointers
    bool by_row = false;      ///< by coordinates of a descriptor; else by pointers
    bool own = false;  ///< fetched: only what the rank itself was given, through a parameter of its own
    std::int32_t copies = 1;  ///< stored: places of the tile that has most
};

struct Form {
    bool phased = false;           ///< loops wait in phases
    bool partial = false;          ///< ranks run some of the tiles each
    bool program_a_slot = false;   ///< … a program each, along x, however many axes the kernel's grid has
    bool produces = false;         ///< tiles make chunks
    bool awaits_chunks = false;    ///< some tile waits for what an op brings
    bool lets_next_start = false;  ///< the stage after it starts beside it
    bool can_wait = false;         ///< some chunk can wait until its tiles' programs store their next ones
    std::optional<InlineForm> stores;
    std::optional<InlineForm> loads;
};

[[nodiscard]] Form form_of(const fuse::BoundKernel& program, const fuse::Schedule& schedule,
                           std::size_t stage);

}  // namespace syncopate::emit
