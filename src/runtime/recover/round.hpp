// One attempt of a group's ranks to go on [P34]: who is there, decided once, and whether it came to its end, decided
// once. Keys of round r in the store:
//
//   recover.r.hello.RANK   the process that came as this rank; "": it has left
//   recover.r.members      RANK:PROCESS of those who go on; by who has seen all ranks, or has waited long enough
//   recover.r.done.RANK    its part is done
//   recover.r.outcome      "done", by who has seen all done; "failed", by who has not, or could not do its part
#pragma once

#include <string>
#include <vector>

#include "syncopate/result.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {

struct RoundOptions {
    Milliseconds deadline{0};    ///< for ranks to come, and again for each part to be done
    int after = -1;              ///< the round that made this rank's group
    bool is_late_comer = false;  ///< may not decide: those who are there do
};

class Round {
public:
    /// The first round that has no outcome yet, once its members are decided and this process is one of them. `left_out`: that
    /// it fails since the others have gone on without this rank.
    static Result<Round> enter(Rendezvous& store, const RoundOptions& options, bool& left_out);

    [[nodiscard]] int number() const { return number_; }
    [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }
    /// Of the members' own keys.
    [[nodiscard]] std::string prefix() const;
    /// The outcome, once it is decided: whether all members' parts are done. `is_done`: this one's.
    [[nodiscard]] bool conclude(bool is_done);

private:
    Round(Rendezvous& store, const RoundOptions& options);
    [[nodiscard]] std::string key(const std::string& name) const;
    /// What stands there now.
    [[nodiscard]] Bytes look(const std::string& name) const;
    /// Puts it first, or takes what is there; an error of class usage where the store cannot.
    Result<Bytes> decide(const std::string& name, const Bytes& value);
    Status skip_past();
    [[nodiscard]] bool may_come_to_next() const;
    /// Until the members are decided.
    Result<Bytes> await_members();
    Status take(const Bytes& members);
    /// The error of a rank that is none of the members.
    [[nodiscard]] Error left_out(const Bytes& members);

    Rendezvous* store_;
    RoundOptions options_;
    std::string process_;
    int number_ = 0;
    bool left_out_ = false;
    std::vector<int> ranks_;
};

}  // namespace syncopate::runtime
