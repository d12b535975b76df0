// Going on after a fault, without a rank that died, or with one that was started again in its place.
//
//   hello ──▶ members, decided once ──▶ heaps and ops renewed, or retired ──▶ outcome, decided once
//     ▲                                                                        │ failed: another round
//     └────────────────────────────────────────────────────────────────────────┘
//
// What ranks decide stands in their store under a key that is put once [P34], so that they never go on as two groups.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "syncopate/result.hpp"
#include "syncopate/runtime/heap/rendezvous.hpp"

namespace syncopate::runtime {

/// Some ranks of a store, with numbers of their own: a group that has gone on.
class PartOfGroup final : public Rendezvous {
public:
    /// `ranks`: of the store, rising; this process is one of them. `prefix` is theirs alone.
    PartOfGroup(std::shared_ptr<Rendezvous> store, int round, std::string prefix, std::vector<int> ranks);

    [[nodiscard]] const std::shared_ptr<Rendezvous>& store() const { return store_; }
    /// That made it, of the store's.
    [[nodiscard]] int round() const { return round_; }

    Status put(const std::string& key, const Bytes& value) override {
        return store_->put(prefix_ + key, value);
    }
    Result<Bytes> get(const std::string& key, Milliseconds timeout) override {
        return store_->get(prefix_ + key, timeout);
    }
    Result<Bytes> put_first(const std::string& key, const Bytes& value) override {
        return store_->put_first(prefix_ + key, value);
    }
    void erase(const std::string& key) override { store_->erase(prefix_ + key); }

private:
    std::shared_ptr<Rendezvous> store_;
    int round_;
    std::string prefix_;
};

/// A group that goes on.
struct Recovered {
    std::shared_ptr<Rendezvous> group;  ///< to make heaps and ops with; it keeps the store alive
    std::vector<int> ranks;             ///< by its rank: which it was in the store
    bool renewed =
        false;  ///< as many ranks as before, each the one it was: heaps and ops that all have go on
};

/// After a fault, on all ranks of `group` that are there; also on one that was started again, with what
/// FileRendezvous::rejoin gave it. What is in flight ends, its calls are lost [P35, P37]. Ranks that do not come within
/// `deadline` (the group's own) are left out, and fail when they come later. Where all ranks of the group go on, heaps keep
/// their addresses, and their ops take calls from the first one on, also by graphs that were captured before [P36]; else
/// they are retired: a call, check or poll of an op says so by name.
///
/// `to`: a new group of those who go on, maybe with others, where the store of the old one died with a rank. Who was in no
/// group before calls recover(to). A store without put_first takes all of its ranks, or fails on all.
///
/// No other thread may use the group meanwhile. Fails, with nothing in flight and the group as broken as it was: where the
/// others have gone on without this rank, where the store fails, or where no rank of the group came to one started again.
[[nodiscard]] Result<Recovered> recover(const std::shared_ptr<Rendezvous>& group,
                                        const std::shared_ptr<Rendezvous>& to = nullptr,
                                        Milliseconds deadline = kOfGroup);

}  // namespace syncopate::runtime
