// What an agent does from a look for a fault on, where its rank has one: a run of the same calls in which it finds one there
// says it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "explore/recorded.hpp"
#include "explore/simulated_ranks.hpp"

namespace syncopate::explore {

class FaultPaths {
public:
    explicit FaultPaths(Recorded& recorded) : of_(recorded) {}

    /// In the run of these ranks, look `look` finds a fault: `told`, of another rank; else of its own.
    void observe(SimulatedRanks& ranks, std::size_t look, bool told);
    /// The call of the rank has ended, whose main fiber this is.
    void end_call(int fiber) {
        if (struck_.fiber == fiber) struck_.over = true;
    }
    /// After the run: keeps what has been seen. "", or what is wrong.
    [[nodiscard]] std::string take();

private:
    void take(const Event& event);
    void take_next_look(const Event& event);
    void take_join(const Event& event);
    void take_move();

    struct Struck {
        std::size_t look = 0;
        bool told = false;
        std::size_t seen = 0;
        int fiber = -1;
        std::size_t agent = 0;
        std::size_t moved = 0;  ///< the last step that moves
        bool has_come = false;
        bool over = false;
        Detour detour{};
        std::string wrong{};
    };

    Recorded& of_;
    Struck struck_;
    Looks looks_;
    std::map<std::uint64_t, std::vector<int>> started_;  ///< by owner: fibers
};

/// A wait that fails goes on as the look before it does. Of a model whose atoms are numbered.
void hand_on_paths(Model& model);

}  // namespace syncopate::explore
