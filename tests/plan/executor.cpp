#include "plan/executor.hpp"

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include <fmt/format.h>

namespace syncopate::plan::test {
namespace {

/// Calls visit(row-major index) for each element of a region of a tensor, in row-major order.
template <typename Visit>
void for_each_element(const std::vector<std::int64_t>& shape, const Region& region, Visit visit) {
    std::vector<std::int64_t> at;
    for (const Interval& axis : region) at.push_back(axis.begin);
    for (;;) {
        std::int64_t index = 0;
        for (std::size_t axis = 0; axis < shape.size(); ++axis) index = index * shape[axis] + at[axis];
        visit(index);
        std::size_t axis = shape.size();
        while (axis > 0 && ++at[axis - 1] == region[axis - 1].end) {
            at[axis - 1] = region[axis - 1].begin;
            --axis;
        }
        if (axis == 0) return;
    }
}

float joined(Reduce reduce, float held, float arriving) {
    switch (reduce) {
        case Reduce::none: return arriving;
        case Reduce::sum: return held + arriving;
        case Reduce::max: return std::max(held, arriving);
    }
    return arriving;
}

/// Ops that run as one: a transfer, or all participants of a collective in the order of its ranks.
using Event = std::vector<OpRef>;

std::vector<Event> events_of(const Plan& plan) {
    std::vector<Event> events;
    std::map<std::pair<CollectiveKind, std::vector<std::int32_t>>, std::map<std::int32_t, std::vector<OpRef>>>
        calls;
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        const std::vector<Op>& list = plan.ranks[static_cast<std::size_t>(rank)];
        for (std::int32_t i = 0; i < static_cast<std::int32_t>(list.size()); ++i) {
            const Op& op = list[static_cast<std::size_t>(i)];
            if (op.kind == OpKind::collective) {
                calls[{op.collective, *op.ranks}][rank].push_back({rank, i});
            } else {
                events.push_back({{rank, i}});
            }
        }
    }
    for (const auto& [key, by_rank] : calls) {
        for (std::size_t n = 0; n < by_rank.begin()->second.size(); ++n) {
            Event& event = events.emplace_back();
            for (const std::int32_t rank : key.second) event.push_back(by_rank.at(rank)[n]);
        }
    }
    return events;
}

struct Graph {
    std::vector<Event> events;
    std::map<OpRef, std::size_t> event_of;
    std::vector<std::vector<std::size_t>> followers;
    std::vector<std::size_t> missing;  ///< how many each waits for

    explicit Graph(const Plan& plan) : events(events_of(plan)) {
        for (std::size_t event = 0; event < events.size(); ++event) {
            for (const OpRef ref : events[event]) event_of[ref] = event;
        }
        followers.resize(events.size());
        missing.resize(events.size(), 0);
        for (std::size_t event = 0; event < events.size(); ++event) {
            for (const OpRef ref : events[event]) {
                for (const OpRef before : plan.op(ref).after) {
                    followers[event_of.at(before)].push_back(event);
                    ++missing[event];
                }
            }
        }
    }
};

struct Write {
    std::int32_t rank;
    Chunk chunk;
    std::vector<float> values;
    Reduce reduce;
};

class Machine {
public:
    Machine(const Plan& plan, const Fill& fill) : plan_(plan) {
        for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
            auto& tensors = memory_.emplace_back();
            for (const Tensor& tensor : plan.tensors) {
                tensors.emplace_back(static_cast<std::size_t>(num_elements(tensor.whole())),
                                     std::numeric_limits<float>::quiet_NaN());
            }
        }
        for (const auto* holdings : {&plan.initial, &plan.produced}) {
            for (const Holding& holding : *holdings) {
                std::vector<float>& array = this->array(holding.rank, holding.chunk.tensor);
                for_each_element(shape(holding.chunk), holding.chunk.region, [&](std::int64_t element) {
                    array[static_cast<std::size_t>(element)] =
                        fill(holding.chunk.tensor, element, holding.partial ? holding.rank : -1);
                });
            }
        }
    }

    /// What an event will write, from what its sources hold now.
    std::vector<Write> start(const Event& event) {
        const Op& op = plan_.op(event.front());
        if (op.kind != OpKind::collective) {
            const std::int32_t owner = event.front().rank;
            return {{op.destination_rank(owner), op.dst, read(op.source_rank(owner), op.src), op.reduce}};
        }
        std::vector<Write> writes;
        const auto parts = static_cast<std::int64_t>(event.size());
        for (std::size_t to = 0; to < event.size(); ++to) {
            for (std::size_t from = 0; from < event.size(); ++from) {
                if (op.collective == CollectiveKind::broadcast && from != 0) continue;
                add_part(writes, from, to, event, parts);
            }
        }
        return writes;
    }

    void finish(const std::vector<Write>& writes) {
        for (const Write& write : writes) {
            std::vector<float>& array = this->array(write.rank, write.chunk.tensor);
            std::size_t next = 0;
            for_each_element(shape(write.chunk), write.chunk.region, [&](std::int64_t element) {
                float& held = array[static_cast<std::size_t>(element)];
                held = joined(write.reduce, held, write.values[next++]);
            });
        }
    }

    Memory take() { return std::move(memory_); }

private:
    const std::vector<std::int64_t>& shape(const Chunk& chunk) const {
        return plan_.tensors[static_cast<std::size_t>(chunk.tensor)].shape;
    }
    std::vector<float>& array(std::int32_t rank, std::int32_t tensor) {
        return memory_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(tensor)];
    }
    std::vector<float> read(std::int32_t rank, const Chunk& chunk) {
        std::vector<float> values;
        const std::vector<float>& array = this->array(rank, chunk.tensor);
        for_each_element(shape(chunk), chunk.region, [&](std::int64_t element) {
            values.push_back(array[static_cast<std::size_t>(element)]);
        });
        return values;
    }

    /// The n-th of `parts` equal parts of `whole` along the axis where it is so many times as long as `part`.
    static Region part_of(Region whole, const Region& part, std::size_t n, std::int64_t parts) {
        for (std::size_t axis = 0; axis < whole.size(); ++axis) {
            if (whole[axis].size() == part[axis].size()) continue;
            const std::int64_t size = whole[axis].size() / parts;
            whole[axis].begin += static_cast<std::int64_t>(n) * size;
            whole[axis].end = whole[axis].begin + size;
        }
        return whole;
    }

    void add_part(std::vector<Write>& writes, std::size_t from, std::size_t to, const Event& event,
                  std::int64_t parts) {
        const Op& source = plan_.op(event[from]);
        const Op& target = plan_.op(event[to]);
        Chunk src = source.src;
        Chunk dst = target.dst;
        const bool in_place = src.tensor == dst.tensor;
        Reduce reduce = Reduce::none;
        switch (source.collective) {
            case CollectiveKind::broadcast: break;
            case CollectiveKind::all_reduce:
                if (from > 0) reduce = target.reduce == Reduce::none ? Reduce::sum : target.reduce;
                break;
            case CollectiveKind::all_gather:
                dst.region = in_place ? src.region : part_of(dst.region, src.region, from, parts);
                break;
            case CollectiveKind::reduce_scatter:
                src.region = in_place ? dst.region : part_of(src.region, dst.region, to, parts);
                if (from > 0) reduce = target.reduce == Reduce::none ? Reduce::sum : target.reduce;
                break;
            case CollectiveKind::all_to_all:
                if (in_place) {
                    const std::optional<Region> common = intersect(src.region, dst.region);
                    if (!common) return;
                    src.region = dst.region = *common;
                } else {
                    Region unit = src.region;
                    unit[0].end = unit[0].begin + unit[0].size() / parts;
                    src.region = part_of(src.region, unit, to, parts);
                    dst.region = part_of(dst.region, unit, from, parts);
                }
                break;
            case CollectiveKind::permute: return;
        }
        writes.push_back({event[to].rank, dst, read(event[from].rank, src), reduce});
    }

    const Plan& plan_;
    Memory memory_;
};

}  // namespace

float small_integer(std::int32_t tensor, std::int64_t element, std::int32_t rank) {
    return static_cast<float>((element * 31 + tensor * 17 + (rank + 1) * 101) % 4093);
}

float rough_number(std::int32_t tensor, std::int64_t element, std::int32_t rank) {
    std::minstd_rand random(static_cast<std::uint32_t>(element * 7919 + tensor * 131 + rank + 2));
    random.discard(3);
    const float mantissa = static_cast<float>(random() % 100003) / 100003.0F + 0.5F;
    return std::ldexp(random() % 2 == 0 ? mantissa : -mantissa, static_cast<int>(random() % 12));
}

Memory execute(const Plan& plan, const Fill& fill, std::uint32_t seed) {
    std::minstd_rand random(seed + 1);
    Graph graph(plan);
    Machine machine(plan, fill);
    struct Running {
        std::size_t event;
        std::vector<Write> writes;
    };
    std::vector<std::size_t> ready;
    std::vector<Running> running;
    for (std::size_t event = 0; event < graph.events.size(); ++event) {
        if (graph.missing[event] == 0) ready.push_back(event);
    }
    const auto take = [&](auto& list) {
        std::swap(list[random() % list.size()], list.back());
        auto item = std::move(list.back());
        list.pop_back();
        return item;
    };
    while (!ready.empty() || !running.empty()) {
        if (running.empty() || (!ready.empty() && random() % 2 == 0)) {
            const std::size_t event = take(ready);
            running.push_back({event, machine.start(graph.events[event])});
        } else {
            const Running ended = take(running);
            machine.finish(ended.writes);
            for (const std::size_t follower : graph.followers[ended.event]) {
                if (--graph.missing[follower] == 0) ready.push_back(follower);
            }
        }
    }
    return machine.take();
}

std::string compare(const Plan& plan, const Memory& memory, const Fill& fill) {
    std::string wrong;
    for (const Holding& wanted : plan.final) {
        std::vector<std::int32_t> ranks = wanted.of;
        for (std::int32_t rank = 0; wanted.of_all && rank < plan.num_ranks(); ++rank) ranks.push_back(rank);
        const std::int32_t tensor = wanted.chunk.tensor;
        const std::vector<float>& array =
            memory[static_cast<std::size_t>(wanted.rank)][static_cast<std::size_t>(tensor)];
        for_each_element(plan.tensors[static_cast<std::size_t>(tensor)].shape, wanted.chunk.region,
                         [&](std::int64_t element) {
                             float expected = ranks.empty() ? fill(tensor, element, -1) : 0;
                             for (std::size_t i = 0; i < ranks.size(); ++i) {
                                 const float contribution = fill(tensor, element, ranks[i]);
                                 expected = i == 0 ? contribution : expected + contribution;
                             }
                             const float found = array[static_cast<std::size_t>(element)];
                             if (wrong.empty() && !(found == expected)) {
                                 wrong = fmt::format("rank {} tensor {} element {}: {} instead of {}",
                                                     wanted.rank, tensor, element, found, expected);
                             }
                         });
    }
    return wrong;
}

std::string race(const Plan& plan) {
    const Graph graph(plan);
    const std::size_t count = graph.events.size();
    // before[e][f]: f comes before e in every run.
    std::vector<std::vector<bool>> before(count, std::vector<bool>(count, false));
    std::vector<std::size_t> missing = graph.missing;
    std::vector<std::size_t> order;
    for (std::size_t event = 0; event < count; ++event) {
        if (missing[event] == 0) order.push_back(event);
    }
    for (std::size_t next = 0; next < order.size(); ++next) {
        for (const std::size_t follower : graph.followers[order[next]]) {
            before[follower][order[next]] = true;
            for (std::size_t event = 0; event < count; ++event) {
                if (before[order[next]][event]) before[follower][event] = true;
            }
            if (--missing[follower] == 0) order.push_back(follower);
        }
    }
    struct Access {
        std::size_t event;
        const Region* region;
        bool write;
        Reduce reduce;  // of a transfer's write
    };
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Access>> accesses;  // by rank and tensor
    for (std::size_t event = 0; event < count; ++event) {
        for (const OpRef ref : graph.events[event]) {
            const Op& op = plan.op(ref);
            accesses[{op.source_rank(ref.rank), op.src.tensor}].push_back(
                {event, &op.src.region, false, Reduce::none});
            accesses[{op.destination_rank(ref.rank), op.dst.tensor}].push_back(
                {event, &op.dst.region, true, op.kind == OpKind::collective ? Reduce::none : op.reduce});
        }
    }
    for (const auto& [place, list] : accesses) {
        for (std::size_t i = 0; i < list.size(); ++i) {
            for (std::size_t j = 0; j < i; ++j) {
                const Access& a = list[i];
                const Access& b = list[j];
                if (a.write && b.write && a.reduce == b.reduce && a.reduce != Reduce::none) continue;
                if (a.event == b.event || !(a.write || b.write) || before[a.event][b.event] ||
                    before[b.event][a.event] || !overlaps(*a.region, *b.region)) {
                    continue;
                }
                const OpRef first = graph.events[b.event].front();
                const OpRef second = graph.events[a.event].front();
                return fmt::format("{}:{} and {}:{} on rank {}, tensor {}", first.rank, first.index,
                                   second.rank, second.index, place.first, place.second);
            }
        }
    }
    return {};
}

}  // namespace syncopate::plan::test
