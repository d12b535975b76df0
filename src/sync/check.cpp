#include "syncopate/sync/check.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "sync/orders.hpp"
#include "sync/overlaps.hpp"
#include "sync/replay.hpp"
#include "syncopate/at.hpp"
#include "syncopate/names.hpp"

namespace syncopate::sync {
namespace {

constexpr std::int64_t kMostSteps = 400'000'000;
constexpr std::int64_t kMostPairs = std::int64_t{1} << 28;
constexpr std::int64_t kPairsOfOpen = 16;  // that one that a replay has to settle counts for: it is kept
constexpr std::int64_t kStepsToCount = 40'000'000;  // to say how many more blocks a finding is about

class Checker {
public:
    Checker(const Chain& chain, const Generated& generated)
        : chain_(chain), generated_(generated), calls_(chain, generated.synchronization) {
        for (const std::vector<std::int32_t>& order : generated.synchronization.orders)
            places_.push_back(places_in(order));
    }

    std::vector<Finding> run() && {
        find_conflicts();
        replay();
        find_deadlocks();
        std::ranges::stable_sort(findings_, {}, [](const Finding& finding) { return finding.kind; });
        return std::move(findings_);
    }

private:
    using Node = Unrolled::Node;

    /// What a finding is about; one for each.
    struct Subject {
        Finding::Kind kind;
        std::size_t stage;  ///< of the later block
        std::size_t from;   ///< of the earlier block
        std::string tensor;
        bool reads;          ///< the later block reads
        bool writes;         ///< the earlier block writes
        std::int32_t calls;  ///< between the two
        auto operator<=>(const Subject&) const = default;
    };
    struct Found {
        std::int64_t block = -1;  ///< the later one
        std::int64_t earlier = -1;
        std::set<std::int64_t> blocks;  ///< all later ones
        bool unproved = false;          ///< the budget was spent before anything was found
    };

    [[nodiscard]] const Footprints& boxes(std::size_t stage, std::size_t tensor) const {
        return generated_.boxes[stage * chain_.tensors.size() + tensor];
    }

    void find_conflicts() {
        std::size_t tensor = 0;
        for (const auto& [name, extents] : chain_.tensors) {
            for (std::size_t later = 0; later < chain_.stages.size(); ++later) {
                for (std::size_t earlier = 0; earlier < chain_.stages.size(); ++earlier) {
                    const Footprints& of_later = boxes(later, tensor);
                    const Footprints& of_earlier = boxes(earlier, tensor);
                    find(name, later, of_later.reads, true, earlier, of_earlier.writes, true);
                    find(name, later, of_later.writes, false, earlier, of_earlier.reads, false);
                    find(name, later, of_later.writes, false, earlier, of_earlier.writes, true);
                    if (pairs_ <= kMostPairs) continue;
                    add(Finding::Kind::malformed, later, -1,
                        fmt::format("too large to judge: {} takes the chain above {} pairs of blocks that "
                                    "share elements",
                                    name, kMostPairs));
                    return;
                }
            }
            ++tensor;
        }
    }

    void find(const std::string& tensor, std::size_t later, const BlockBoxes& of_later, bool reads,
              std::size_t earlier, const BlockBoxes& of_earlier, bool writes) {
        if (of_later.empty() || of_earlier.empty()) return;
        const bool between_calls = calls_.num_calls() > 1;
        if (earlier > later && !between_calls) return;
        if (pairs_ > kMostPairs) return;
        const Overlaps shared = overlaps(of_later, of_earlier, kMostPairs - pairs_);
        pairs_ += shared.listed;
        const auto kind = reads ? Finding::Kind::early_read : Finding::Kind::overwrite;
        const auto add_all = [&](std::int32_t call, std::int32_t calls, auto&& comes_earlier) {
            const Subject subject{kind, later, earlier, tensor, reads, writes, calls};
            std::vector<std::int64_t> settled(shared.blocks.size(), -1);  // by class: a block that awaits all
            for (std::int64_t block = 0; block < chain_.stages[later].num_blocks(); ++block) {
                std::int64_t& alike = settled[at(shared.class_of[at(block)])];
                if (alike >= 0 && awaits_alike(subject, alike, block)) continue;
                bool all = true;
                for (const std::int32_t other : shared.of(block)) {
                    if (!comes_earlier(other, block)) {
                        all = false;
                        continue;
                    }
                    if (++pairs_ > kMostPairs) return;
                    all = judge(subject, call + calls, block, call, other) && all;
                }
                if (all) alike = block;
            }
        };
        for (std::int32_t call = 0; call < calls_.num_calls(); ++call) {
            if (earlier < later) {
                add_all(call, 0, [](std::int32_t, std::int64_t) { return true; });
            } else if (earlier == later && (reads || !writes || !chain_.stages[later].is_added_to(tensor))) {
                add_all(call, 0, [&](std::int32_t other, std::int64_t block) {
                    return places_[later][at(other)] < places_[later][at(block)];
                });
            }
            if (call + 1 < calls_.num_calls())
                add_all(call, 1, [](std::int32_t, std::int64_t) { return true; });
        }
    }

    /// The later block must not pass its waits before the earlier one has completed. Whether it awaits it
    /// directly.
    bool judge(const Subject& subject, std::int32_t later_call, std::int64_t later, std::int32_t earlier_call,
               std::int32_t earlier) {
        if (subject.reads && chain_.stages[subject.stage].is_early(subject.tensor)) {
            blame(subject, later, earlier);
            return false;
        }
        if (is_awaited(subject, later, earlier)) return true;
        const Node node = calls_.node(later_call, subject.stage, later);
        if (calls_.waits(node).empty()) {
            blame(subject, later, earlier);
            return false;
        }
        open_[calls_.node(earlier_call, subject.from, earlier)].push_back(
            {subject_number(subject), node, later, earlier});
        pairs_ += kPairsOfOpen;
        return false;
    }

    /// Whether one of the later block's semaphores counts all who post it, the earlier block among them. That
    /// settles it where calls are ordered.
    [[nodiscard]] bool is_awaited(const Subject& subject, std::int64_t later, std::int32_t earlier) {
        if (calls_.num_calls() > 1) return false;
        const std::vector<Link>& links = generated_.synchronization.links;
        for (std::size_t i = 0; i < links.size(); ++i) {
            const Link& link = links[i];
            if (!may_settle(link, subject)) continue;
            const SemaphoreArray& array = generated_.synchronization.arrays[at(link.array)];
            const std::int32_t semaphore = array.of_block[at(earlier)];
            if (semaphore >= 0 && counts_of(i, later)[at(semaphore)] >= array.posts[at(semaphore)]) {
                return true;
            }
        }
        return false;
    }

    [[nodiscard]] static bool may_settle(const Link& link, const Subject& subject) {
        return link.stage == static_cast<std::int32_t>(subject.stage) && link.array >= 0 && link.lag == 0 &&
               link.from == static_cast<std::int32_t>(subject.from);
    }

    /// Whether what one block awaits directly another one does, too.
    [[nodiscard]] bool awaits_alike(const Subject& subject, std::int64_t one, std::int64_t other) const {
        return std::ranges::all_of(generated_.synchronization.links, [&](const Link& link) {
            return !may_settle(link, subject) || link.waits[at(one)] == link.waits[at(other)];
        });
    }

    /// By semaphore: for how many posts of it a block waits by a link; -1: not at all. Pairs come by their
    /// later block, so the last answer is kept.
    const std::vector<std::int32_t>& counts_of(std::size_t link_number, std::int64_t block) {
        if (awaited_.empty()) awaited_.resize(generated_.synchronization.links.size());
        const Link& link = generated_.synchronization.links[link_number];
        Awaited& known = awaited_[link_number];
        if (known.block == block) return known.counts;
        known.counts.resize(generated_.synchronization.arrays[at(link.array)].posts.size(), -1);
        const auto set = [&](std::int64_t of, bool awaits) {
            for (const Wait& wait : link.waits[at(of)]) {
                const auto semaphore = static_cast<std::size_t>(wait.semaphore);
                if (semaphore >= known.counts.size()) continue;  // nobody posts it
                known.counts[semaphore] = awaits ? std::max(known.counts[semaphore], wait.count) : -1;
            }
        };
        if (known.block >= 0) set(known.block, false);
        set(block, true);
        known.block = block;
        return known.counts;
    }

    void blame(const Subject& subject, std::int64_t later, std::int64_t earlier) {
        Found& found = found_[subject];
        const std::vector<std::int32_t>& places = places_[subject.stage];
        const bool first = found.block < 0 || places[at(later)] < places[at(found.block)];
        if (first) found.block = later, found.earlier = earlier;
        found.blocks.insert(later);
    }

    std::int32_t subject_number(const Subject& subject) {
        const auto [at, added] =
            subject_numbers_.emplace(subject, static_cast<std::int32_t>(subjects_.size()));
        if (added) subjects_.push_back(subject);
        return at->second;
    }

    /// What no wait settles directly: runs that hold the earlier block.
    void replay() {
        std::int64_t steps = 0;
        for (const auto& [held, pairs] : open_) {
            const bool only_counts = std::ranges::all_of(pairs, [&](const Pair& pair) {
                const auto found = found_.find(subjects_[at(pair.subject)]);
                return found != found_.end() && found->second.block >= 0;
            });
            if (steps > (only_counts ? kStepsToCount : kMostSteps)) {
                if (only_counts) continue;
                for (const Pair& pair : pairs) found_[subjects_[at(pair.subject)]].unproved = true;
                continue;
            }
            steps += calls_.effort();
            const std::vector<bool> passes = calls_.passing(held);
            for (const Pair& pair : pairs) {
                if (passes[at(pair.node)]) blame(subjects_[at(pair.subject)], pair.later, pair.earlier);
            }
        }
        for (const auto& [subject, found] : found_) report(subject, found);
        report_unproved();
    }

    [[nodiscard]] std::string name_of_block(std::size_t stage, std::int64_t block) const {
        const auto [x, y, z] = chain_.stages[stage].block(block);
        return fmt::format("block ({}, {}, {}) of stage {}", x, y, z, chain_.stages[stage].name);
    }

    /// The first box that the two blocks share.
    [[nodiscard]] std::string shared_box(const Subject& subject, const Found& found) const {
        const auto tensor = static_cast<std::size_t>(
            std::distance(chain_.tensors.begin(), chain_.tensors.find(subject.tensor)));
        const Footprints& later = boxes(subject.stage, tensor);
        const Footprints& earlier = boxes(subject.from, tensor);
        const auto at = [](const BlockBoxes& boxes, std::int64_t block) -> const std::vector<plan::Region>& {
            return boxes[static_cast<std::size_t>(block)];
        };
        for (const plan::Region& mine : at(subject.reads ? later.reads : later.writes, found.block)) {
            for (const plan::Region& other :
                 at(subject.writes ? earlier.writes : earlier.reads, found.earlier)) {
                if (const auto box = plan::intersect(mine, other))
                    return subject.tensor + plan::to_string(*box);
            }
        }
        return subject.tensor;
    }

    /// "it awaits nothing of it", "it awaits semaphore 0 until 4 posts, and 8 blocks post it".
    [[nodiscard]] std::string what_it_awaits(const Subject& subject, const Found& found) const {
        if (subject.reads && chain_.stages[subject.stage].is_early(subject.tensor))
            return fmt::format("{} is among its early inputs, which are read before its waits",
                               subject.tensor);
        for (const Link& link : generated_.synchronization.links) {
            if (link.stage != static_cast<std::int32_t>(subject.stage) || link.array < 0 ||
                link.from != static_cast<std::int32_t>(subject.from)) {
                continue;
            }
            const SemaphoreArray& array = generated_.synchronization.arrays[at(link.array)];
            const std::int32_t posted = array.of_block[at(found.earlier)];
            const std::vector<Wait>& waits = link.waits[at(found.block)];
            for (const Wait& wait : waits) {
                if (wait.semaphore == posted) {
                    const std::int32_t posts = array.posts[at(posted)];
                    const bool stands_in = wait.count >= posts && calls_.num_calls() > 1;
                    return fmt::format(
                        "it awaits {} of the {} posts on semaphore {}{}", wait.count, posts, posted,
                        stands_in ? ", and a post of the next call can stand in for one of this call: "
                                    "guard what is overwritten"
                                  : "");
                }
            }
            if (!waits.empty())
                return fmt::format("it awaits semaphore {}, and that block posts semaphore {}",
                                   waits.front().semaphore, posted);
        }
        return fmt::format("it awaits nothing of stage {}", chain_.stages[subject.from].name);
    }

    /// One finding: a chain that is too large is so in many places.
    void report_unproved() {
        const auto is_unproved = [](const auto& entry) {
            return entry.second.block < 0 && entry.second.unproved;
        };
        const auto first = std::ranges::find_if(found_, is_unproved);
        if (first == found_.end()) return;
        const auto others = std::ranges::count_if(found_, is_unproved) - 1;
        add(Finding::Kind::malformed, first->first.stage, -1,
            fmt::format(
                "too large to judge: what it touches of {} and no wait settles takes more than {} steps{}",
                first->first.tensor, kMostSteps,
                others > 0 ? fmt::format(" (and {} more pairs of stages alike)", others) : ""));
    }

    void report(const Subject& subject, const Found& found) {
        if (found.block < 0) return;
        const std::string other = name_of_block(subject.from, found.earlier);
        const std::string when = subject.calls == 0 ? "" : " in the call before";
        const bool of_one_stage =
            subject.writes && !subject.reads && subject.calls == 0 && subject.stage == subject.from;
        std::string message =
            of_one_stage
                ? fmt::format(
                      "it writes {}, as {} does, and nothing orders the two: what is left depends on "
                      "which one comes last; where both add to it, name {} among the stage's \"adds\"",
                      shared_box(subject, found), other, subject.tensor)
                : fmt::format("it {} {} before {} has {}{}; {}", subject.reads ? "reads" : "writes",
                              shared_box(subject, found), other, subject.writes ? "written it" : "read it",
                              when, what_it_awaits(subject, found));
        if (found.blocks.size() > 1)
            message += fmt::format(" (and {} more blocks alike)", found.blocks.size() - 1);
        add(subject.kind, subject.stage, found.block, std::move(message));
    }

    void find_deadlocks() {
        const std::vector<Unrolled::Stuck> stuck = calls_.stuck();
        for (std::size_t stage = 0; stage < chain_.stages.size(); ++stage) {
            std::int64_t first = -1;
            std::int64_t count = 0;
            Node at = Unrolled::kNobody;
            for (std::int32_t call = 0; call < calls_.num_calls() && first < 0; ++call) {
                for (const std::int32_t block : generated_.synchronization.orders[stage]) {
                    const Node node = calls_.node(call, stage, block);
                    if (stuck[static_cast<std::size_t>(node)].wait < 0) continue;
                    ++count;
                    if (first < 0) first = block, at = node;
                }
            }
            if (first < 0) continue;
            const Unrolled::Stuck& how = stuck[static_cast<std::size_t>(at)];
            const Unrolled::NodeWait& wait = calls_.waits(at)[static_cast<std::size_t>(how.wait)];
            std::string message = fmt::format(
                "it awaits {} posts of a semaphore that {} while it holds its multiprocessor", wait.threshold,
                how.posts == 0 ? std::string("may get none") : fmt::format("may get only {}", how.posts));
            if (chain_.launch == Chain::Start::any)
                message += ": nothing makes the stages before it start first (launch: any)";
            if (count > 1) message += fmt::format(" (and {} more blocks alike)", count - 1);
            add(Finding::Kind::deadlock, stage, first, std::move(message));
        }
    }

    void add(Finding::Kind kind, std::size_t stage, std::int64_t block, std::string message) {
        Finding finding{kind, chain_.stages[stage].name, {-1, -1, -1}, std::move(message)};
        if (block >= 0) finding.block = chain_.stages[stage].block(block);
        findings_.push_back(std::move(finding));
    }

    struct Pair {
        std::int32_t subject;
        Node node;  ///< the later block
        std::int64_t later;
        std::int64_t earlier;
    };

    const Chain& chain_;
    const Generated& generated_;
    Unrolled calls_;
    std::vector<std::vector<std::int32_t>> places_;  ///< by stage and block
    std::map<Node, std::vector<Pair>> open_;         ///< by the earlier block
    struct Awaited {
        std::int64_t block = -1;
        std::vector<std::int32_t> counts;
    };

    std::vector<Awaited> awaited_;  ///< by link
    std::int64_t pairs_ = 0;        ///< of blocks that share elements, so far
    std::vector<Subject> subjects_;
    std::map<Subject, std::int32_t> subject_numbers_;
    std::map<Subject, Found> found_;
    std::vector<Finding> findings_;
};

}  // namespace

std::string_view name_of(Finding::Kind kind) {
    constexpr std::array<std::string_view, 4> kNames{"malformed", "early_read", "deadlock", "overwrite"};
    return kNames[at(kind)];
}

std::string Finding::to_string() const {
    std::string where = stage.empty() ? std::string() : "stage " + escaped(stage);
    if (block[0] >= 0) where += fmt::format(" block ({}, {}, {})", block[0], block[1], block[2]);
    return fmt::format("{}{}{}: {}", where, where.empty() ? "" : ": ", name_of(kind), message);
}

Verdict check(const Chain& chain) {
    Generated generated = generate(chain);
    Verdict verdict;
    for (Malformed& malformed : generated.malformed) {
        Finding finding{Finding::Kind::malformed, "", {-1, -1, -1}, std::move(malformed.message)};
        if (malformed.stage >= 0) {
            const ChainStage& stage = chain.stages[at(malformed.stage)];
            finding.stage = stage.name;
            if (malformed.block >= 0) finding.block = stage.block(malformed.block);
        }
        verdict.findings.push_back(std::move(finding));
    }
    if (!verdict.findings.empty()) return verdict;
    verdict.findings = Checker(chain, generated).run();
    verdict.synchronization = std::move(generated.synchronization);
    return verdict;
}

}  // namespace syncopate::sync
