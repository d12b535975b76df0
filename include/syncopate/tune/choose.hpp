// Choose: the strategy of a problem, and the only place that chooses, for C++, Python and the command alike.
// The stored winner, where there is one that is legal; else the best by the estimate. A winner of other rows
// has to be the better one for these rows, too: by the estimate, corrected by how far off it was there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "syncopate/fuse/model/backend.hpp"
#include "syncopate/tune/machine/machine.hpp"
#include "syncopate/tune/ops.hpp"
#include "syncopate/tune/play/attention.hpp"

namespace syncopate::tune {

/// What a store of measured strategies answers.
struct Stored {
    Strategy strategy;
    double us = 0;          ///< as it was measured
    std::string note;       ///< where it comes from, for people: "tuned 2026-11-23 for 4096 rows"
    double usual_us = 0;    ///< of what is taken where nothing is stored, in the same search; 0: not known
    std::int64_t rows = 0;  ///< of the problem that it was measured with; 0: the same as here
};

/// Where winners of earlier searches are. A store that cannot be read answers nothing.
class Store {
public:
    Store() = default;
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;
    virtual ~Store() = default;
    /// The winner of the problem, or of the nearest number of rows with one that is legal here.
    [[nodiscard]] virtual std::optional<Stored> find(const Problem& problem) const = 0;
};

struct ChooseOptions {
    /// Whether the caller can run the unfused pair: it has a process group of the vendors' library.
    bool unfused = true;
    /// On the host none is faster than another: the default strategy, completed.
    fuse::Device device = fuse::Device::cuda;
    /// The device runs the Gluon kernels: a Hopper GPU.
    bool gluon = true;
    bool exact_fp32 = false;  ///< fp32 products without tf32
    /// The caller reads what is gathered, or exchanged, in the heap: tiles may not fetch it themselves.
    bool kept = false;
    /// And wants it in a tensor of its own: what that takes is added to the estimates.
    bool copied = false;
};

struct Choice {
    Strategy strategy;  ///< complete
    double us = 0;      ///< measured, or by the estimate
    bool measured = false;
    std::string note;  ///< why this one, for people
    /// That what tuning found is not taken, and why; "" where it is, or nothing was found.
    std::string warning;
};

/// Never fails: a problem of which nothing is known gets the default strategy, completed.
[[nodiscard]] Choice choose(const Problem& problem, const Machine& machine, const Store* store = nullptr,
                            const ChooseOptions& options = {});

/// Of attention, also where no SPEC says all of it. By the estimate its strategy has a kind and its `inner`, or is
/// unfused; the rest is open.
[[nodiscard]] Choice choose(const AttentionProblem& problem, const Machine& machine,
                            const Store* store = nullptr, const ChooseOptions& options = {});

/// `given` with everything that it leaves open: tiles, programs, backend, engine blocks, split.
[[nodiscard]] Strategy complete(const Problem& problem, const Machine& machine, const Strategy& given,
                                const ChooseOptions& options = {});

/// Why the runtime cannot carry out the (complete) strategy for the problem; "" where it can.
[[nodiscard]] std::string strategy_objection(const Problem& problem, const Strategy& strategy);

}  // namespace syncopate::tune
