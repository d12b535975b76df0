// Whether the sides of a schedule meet: channel.hpp declares it.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fuse/passes/circle.hpp"
#include "syncopate/fuse/passes/channel.hpp"

#include "syncopate/at.hpp"

namespace syncopate::fuse {
namespace {

struct Pair {
    const Transfer* send = nullptr;
    const Transfer* receive = nullptr;
};

std::string name_of(const Transfer& transfer) {
    return fmt::format("op {} of rank {}", transfer.op.index, transfer.op.rank);
}

/// Why sides are no pairs, each of one round on two nodes; or are not listed by rounds.
std::string pair_objection(const Schedule& schedule, bool& any) {
    std::map<std::int32_t, Pair> pairs;
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
        const Transfer* last = nullptr;
        for (const Transfer& transfer : schedule.ranks[rank].transfers) {
            const Channel* const side = transfer.channel();
            if (side == nullptr) continue;
            if (last != nullptr && last->channel()->round > side->round)
                return fmt::format("{} is of round {}, behind one of round {}", name_of(transfer),
                                   side->round, last->channel()->round);
            last = &transfer;
            Pair& pair = pairs[side->number];
            const Transfer*& place = side->sends ? pair.send : pair.receive;
            const std::int32_t own = side->sends ? transfer.src_rank : transfer.dst_rank;
            if (place != nullptr || own != static_cast<std::int32_t>(rank))
                return fmt::format("{} is a second side of its kind, or on a wrong rank", name_of(transfer));
            place = &transfer;
        }
    }
    any = !pairs.empty();
    if (schedule.part) return {};  // the other sides are of ranks that it says nothing of
    for (const auto& [number, pair] : pairs) {
        if (pair.send == nullptr || pair.receive == nullptr)
            return fmt::format("{} has no {}: its rank would wait for ever",
                               name_of(pair.send != nullptr ? *pair.send : *pair.receive),
                               pair.send != nullptr ? "receive" : "send");
        const Transfer& send = *pair.send;
        const Transfer& receive = *pair.receive;
        const bool alike = send.src_rank == receive.src_rank && send.dst_rank == receive.dst_rank &&
                           plan::num_elements(send.src.region) == plan::num_elements(receive.dst.region);
        if (!alike || send.channel()->round != receive.channel()->round)
            return fmt::format("{} and {} do not meet: they differ in ranks, size or round", name_of(send),
                               name_of(receive));
        if (schedule.mesh.node_of(send.src_rank) == schedule.mesh.node_of(send.dst_rank))
            return fmt::format("{} stays within a node", name_of(send));
    }
    return {};
}

/// Transfers and made chunks of all ranks, and what awaits what. The sides of a round are one event: each rank's
/// begin together, and those of other ranks that they wait for do.
class Events {
public:
    explicit Events(const Schedule& schedule) : schedule_(schedule) {
        for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) add(rank);
        for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) link(rank);
        for (auto round = rounds_.begin(); round != rounds_.end() && std::next(round) != rounds_.end();
             ++round)
            edges_.emplace_back(round->second, std::next(round)->second);
    }

    [[nodiscard]] std::string objection() const {
        const Followers followers(names_.size(), [&](auto&& edge) {
            for (const auto& [from, to] : edges_) edge(from, to);
        });
        const std::vector<std::int32_t> sorted = topological_order(followers);
        if (sorted.size() == names_.size()) return {};
        std::string text = "a send would never start: ";
        const std::vector<std::int32_t> circle = circle_of(followers, sorted);
        for (const std::int32_t event : circle) text += names_[at(event)] + " awaits ";
        return text + names_[at(circle.front())];
    }

private:
    using Signal = std::pair<std::int32_t, std::int32_t>;  ///< rank, signal

    std::int32_t event(std::string name) {
        names_.push_back(std::move(name));
        return static_cast<std::int32_t>(names_.size()) - 1;
    }

    void add(std::size_t rank) {
        const RankSchedule& own = schedule_.ranks[rank];
        std::vector<std::int32_t>& transfers = transfers_.emplace_back();
        for (const Transfer& transfer : own.transfers) {
            if (const Channel* const side = transfer.channel()) {
                const auto [found, is_new] = rounds_.try_emplace(side->round, 0);
                if (is_new)
                    found->second = event(fmt::format("round {} ({})", side->round, name_of(transfer)));
                transfers.push_back(found->second);
            } else {
                transfers.push_back(event(name_of(transfer)));
            }
            for (const Post& post : transfer.posts)
                posted_[{post.rank, post.signal}].push_back(transfers.back());
        }
        std::vector<std::int32_t>& chunks = chunks_.emplace_back();
        for (std::size_t chunk = 0; chunk < own.chunks.size(); ++chunk) {
            chunks.push_back(event(fmt::format("chunk {} of rank {}'s kernel", chunk, rank)));
            for (const Post& post : own.chunks[chunk].posts)
                posted_[{post.rank, post.signal}].push_back(chunks.back());
        }
    }

    void await(std::size_t rank, const std::vector<Wait>& waits, std::int32_t by) {
        for (const Wait& wait : waits) {
            const auto found = posted_.find({static_cast<std::int32_t>(rank), wait.signal});
            if (wait.lag != 0 || found == posted_.end()) continue;
            for (const std::int32_t poster : found->second) {
                if (poster != by) edges_.emplace_back(poster, by);
            }
        }
    }

    void link(std::size_t rank) {
        const RankSchedule& own = schedule_.ranks[rank];
        std::map<std::size_t, std::int32_t> last;  // by stream
        for (std::size_t index = 0; index < own.transfers.size(); ++index) {
            const Transfer& transfer = own.transfers[index];
            const std::int32_t one = transfers_[rank][index];
            await(rank, transfer.waits, one);
            for (const std::size_t other : transfer.step.after) {
                if (other < index && transfers_[rank][other] != one)
                    edges_.emplace_back(transfers_[rank][other], one);
            }
            if (transfer.step.launch == Launch::none || transfer.channel() != nullptr) continue;
            if (const auto [found, first] = last.try_emplace(transfer.step.stream, one); !first)
                edges_.emplace_back(std::exchange(found->second, one), one);
        }
        // One program may run them all, one after another.
        std::optional<std::int32_t> before;
        for (std::size_t number = 0; number < own.slots.size(); ++number) {
            const Slot& slot = own.slots[number];
            const std::int32_t one = event(fmt::format("slot {} of rank {}'s kernel", number, rank));
            if (before) edges_.emplace_back(*before, one);
            before = one;
            await(rank, slot.waits, one);
            for (const Phase& phase : slot.phases) await(rank, phase.waits, one);
            for (const std::int32_t chunk : slot.makes) edges_.emplace_back(one, chunks_[rank][at(chunk)]);
        }
    }

    const Schedule& schedule_;
    std::vector<std::string> names_;
    std::vector<std::pair<std::int32_t, std::int32_t>> edges_;
    std::vector<std::vector<std::int32_t>> transfers_, chunks_;  ///< by rank
    std::map<std::int32_t, std::int32_t> rounds_;
    std::map<Signal, std::vector<std::int32_t>> posted_;
};

/// A signal is a word of memory, which only ranks of its node write.
std::string post_objection(const Schedule& schedule) {
    for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
        const RankSchedule& own = schedule.ranks[rank];
        const std::int32_t node = schedule.mesh.node_of(static_cast<std::int32_t>(rank));
        const auto is_far = [&](const Post& post) { return schedule.mesh.node_of(post.rank) != node; };
        const auto any = [&](const std::vector<Post>& posts) { return std::ranges::any_of(posts, is_far); };
        bool far = any(own.begin_posts) || any(own.kernel_posts) || any(own.end_posts);
        for (const Transfer& transfer : own.transfers) far = far || any(transfer.posts);
        for (const MadeChunk& chunk : own.chunks) far = far || any(chunk.posts);
        if (far)
            return fmt::format("rank {} would post to a rank of another node, whose memory it does not map",
                               rank);
    }
    return {};
}

}  // namespace

std::string channel_objection(const Schedule& schedule) {
    bool any = false;
    if (std::string why = pair_objection(schedule, any); !why.empty()) return why;
    if (schedule.mesh.num_nodes() > 1) {
        if (std::string why = post_objection(schedule); !why.empty()) return why;
    }
    return any ? Events(schedule).objection() : std::string();
}

std::int64_t waits_for_channel(const Schedule& schedule, std::int32_t rank, std::size_t stage) {
    if (schedule.mesh.num_nodes() == 1) return 0;
    const std::int32_t of_node = schedule.mesh.ranks_of_node(), first = rank / of_node * of_node;
    const auto receives = [](const Transfer& transfer) {
        return transfer.channel() != nullptr && !transfer.channel()->sends;
    };
    bool some_come = false;
    for (std::int32_t near = first; near < first + of_node; ++near)
        some_come = some_come || std::ranges::any_of(schedule.ranks[at(near)].transfers, receives);
    if (!some_come) return 0;
    const RankSchedule& own = schedule.ranks[at(rank)];
    const auto of_op = [&](const Wait& wait) {
        const SignalMeaning::Kind kind = own.signals[at(wait.signal)].kind;
        return wait.lag == 0 && kind != SignalMeaning::Kind::ready;
    };
    return std::ranges::count_if(schedule.slots_of(own, stage), [&](const Slot& slot) {
        return std::ranges::any_of(slot.waits, of_op) ||
               std::ranges::any_of(
                   slot.phases, [&](const Phase& phase) { return std::ranges::any_of(phase.waits, of_op); });
    });
}

}  // namespace syncopate::fuse
