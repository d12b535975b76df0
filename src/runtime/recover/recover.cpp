#include "syncopate/runtime/recover/recover.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/heap/fields.hpp"
#include "runtime/recover/round.hpp"
#include "syncopate/runtime/heap/group_memory.hpp"
#include "syncopate/runtime/heap/heap.hpp"
#include "syncopate/try.hpp"
#include "syncopate/whole_number.hpp"

namespace syncopate::runtime {
namespace {

using Heaps = std::vector<GroupMemory::Numbered>;

int place_of(const Rendezvous& store, const std::vector<int>& ranks) {
    const auto found = std::ranges::find(ranks, store.rank());
    return static_cast<int>(found - ranks.begin());
}

/// A heap and an op of it, in words that are alike on all ranks.
std::string name_of(const GroupMemory::Numbered& heap, std::uint64_t user, const HeapUser& what) {
    return fmt::format("{}.{}.{}.{}", heap.first, heap.second->stride(), user, what.identity());
}

class Recovery {
public:
    Recovery(const std::shared_ptr<Rendezvous>& group, const std::shared_ptr<Rendezvous>& to)
        : group_(group), heaps_(group->memory().alive()) {
        const std::shared_ptr<Rendezvous>& base = to == nullptr ? group : to;
        const auto part = std::dynamic_pointer_cast<PartOfGroup>(base);
        base_ = base;
        store_ = part == nullptr ? base : part->store();
    }

    Result<Recovered> run(Milliseconds deadline) {
        Status drained = drain();
        if (!drained) return drained.error();
        const auto before = std::dynamic_pointer_cast<PartOfGroup>(group_);
        RoundOptions options{.deadline = deadline, .is_late_comer = base_->is_late_comer()};
        bool left_out = false;
        if (before != nullptr && before->store() == store_) options.after = before->round();
        for (int attempt = 0;; ++attempt) {
            Result<Round> round = Round::enter(*store_, options, left_out);
            if (!round) return leave(round.error(), left_out);
            const auto part =
                std::make_shared<PartOfGroup>(store_, round->number(), round->prefix(), round->ranks());
            part->set_timeout(deadline);
            if (part->size() == group_->size()) part->set_ranks_of_node(group_->ranks_of_node());
            Result<bool> renewed = go_on(part);
            const bool all = round->conclude(static_cast<bool>(renewed));
            if (all && renewed) return finish(part, round->ranks(), *renewed);
            if (all || attempt == store_->size() + 1) {
                retire("was of a group that could not go on: recover again, or make a group anew");
                if (!renewed) return renewed.error();
                return Error{"the ranks that came to go on were lost again and again",
                             {.rank = store_->rank()},
                             ErrorClass::machine};
            }
        }
    }

private:
    // [P35]
    Status drain() {
        Status drained = Done{};
        const auto on_all = [&](const std::function<void(HeapUser&)>& what) {
            for (const auto& [number, heap] : heaps_) {
                for (const auto& [user, of_heap] : heap->users()) what(*of_heap);
            }
        };
        on_all([](HeapUser& user) { user.interrupt(); });
        on_all([&](HeapUser& user) {  // which may wait for a whole device, and so for the others
            if (Status ended = user.drain(); !ended) drained = ended;
        });
        return drained;
    }

    /// Renews what all have, or retires everything: whether it was renewed.
    Result<bool> go_on(const std::shared_ptr<PartOfGroup>& part) {
        std::string mine = fmt::format("{} {} {}", group_->rank(), group_->size(), group_->ranks_of_node());
        for (const GroupMemory::Numbered& heap : heaps_) {
            for (const auto& [user, what] : heap.second->users()) mine += ' ' + name_of(heap, user, *what);
        }
        SYNCOPATE_TAKE(const std::vector<Bytes> all, all_gather(*part, "recover", mine));
        bool alike = true;
        std::map<std::string, int, std::less<>> known;
        for (std::size_t rank = 0; rank < all.size(); ++rank) {
            const std::vector<std::string_view> words = fields_of(all[rank]);
            alike = alike && words.size() >= 3 && whole_number<std::size_t>(words[0]) == rank &&
                    whole_number<std::size_t>(words[1]) == all.size() &&
                    whole_number<int>(words[2]) == group_->ranks_of_node();
            for (std::size_t i = 3; i < words.size(); ++i) ++known[std::string(words[i])];
        }
        if (!alike) {
            retire(fmt::format(
                "was made in a group of {} ranks, which has gone on with {}{}: make it anew, and "
                "its graphs",
                group_->size(), part->size(), part->size() == group_->size() ? " of others" : ""));
            return false;
        }
        for (const GroupMemory::Numbered& heap : heaps_) {
            std::vector<HeapUser*> common;
            std::vector<HeapUser*> others;
            for (const auto& [user, what] : heap.second->users()) {
                const bool is_common = known[name_of(heap, user, *what)] == part->size();
                (is_common ? common : others).push_back(what);
            }
            const std::string why = "was not there on all ranks of its group when that went on: make it anew";
            if (common.empty()) {
                retire_heap(*heap.second, why);
                continue;
            }
            SYNCOPATE_TRY(heap.second->renew(part));
            for (HeapUser* user : others) user->retire(why);
            for (HeapUser* user : common) {
                SYNCOPATE_TRY(user->renew());
            }
            part->memory().add(heap.second);
        }
        return true;
    }

    /// Where the others have gone on, this rank joins them from now on, and does not decide.
    Error leave(const Error& error, bool left_out) {
        retire("was of a group that has not gone on with this rank: recover again, or make a group anew");
        if (left_out) base_->set_late_comer(true);
        return error;
    }

    Result<Recovered> finish(const std::shared_ptr<PartOfGroup>& part, std::vector<int> ranks, bool renewed) {
        part->set_timeout(group_->timeout());
        part->memory().share_budget(group_->memory());
        return Recovered{part, std::move(ranks), renewed};
    }

    void retire(const std::string& why) {
        for (const auto& [number, heap] : heaps_) retire_heap(*heap, why);
    }

    // [P36]
    static void retire_heap(SymmetricHeap& heap, const std::string& why) {
        const auto is_captured = [](const auto& user) { return user.second->was_captured(); };
        // Without memory to stand in, a replayed graph faults the GPU: no worse than what was asked for.
        (void)heap.retire(std::ranges::any_of(heap.users(), is_captured), why);
        for (const auto& [number, user] : heap.users()) user->retire(why);
    }

    std::shared_ptr<Rendezvous> group_;
    std::shared_ptr<Rendezvous> base_;
    std::shared_ptr<Rendezvous> store_;
    Heaps heaps_;
};

}  // namespace

PartOfGroup::PartOfGroup(std::shared_ptr<Rendezvous> store, int round, std::string prefix,
                         std::vector<int> ranks)
    : Rendezvous(place_of(*store, ranks), static_cast<int>(ranks.size())),
      store_(std::move(store)),
      round_(round),
      prefix_(std::move(prefix)) {}

Result<Recovered> recover(const std::shared_ptr<Rendezvous>& group, const std::shared_ptr<Rendezvous>& to,
                          Milliseconds deadline) {
    if (group == nullptr) return usage_error("there is no group to go on with");
    if (group->is_a_parents() || (to != nullptr && to->is_a_parents())) {
        return Error{"recover in a process that was forked after its group was made: its parent is the rank",
                     {.rank = group->rank()},
                     ErrorClass::usage};
    }
    return Recovery(group, to).run((to == nullptr ? group : to)->timeout(deadline));
}

}  // namespace syncopate::runtime
