#include "ingest/steps/placement.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "syncopate/at.hpp"

namespace syncopate::ingest {
namespace {

/// Rows of memory whose data came from consecutive places; `op` wrote them last.
struct Run {
    std::int64_t end;
    std::int64_t from;  ///< place of the first row's data
    plan::OpRef op;
};

/// One rank's tensor.
class Memory {
public:
    using Runs = std::vector<std::pair<std::int64_t, Run>>;

    /// What is known of the rows, clipped to them.
    [[nodiscard]] Runs read(plan::Interval rows) const {
        Runs found;
        auto at = runs_.upper_bound(rows.begin);
        if (at != runs_.begin()) --at;
        for (; at != runs_.end() && at->first < rows.end; ++at) {
            const std::int64_t begin = std::max(at->first, rows.begin);
            const std::int64_t end = std::min(at->second.end, rows.end);
            if (begin < end)
                found.push_back({begin, {end, at->second.from + (begin - at->first), at->second.op}});
        }
        return found;
    }

    void write(plan::Interval rows, const Runs& runs) {
        split(rows.begin);
        split(rows.end);
        runs_.erase(runs_.lower_bound(rows.begin), runs_.lower_bound(rows.end));
        for (const auto& [begin, run] : runs) runs_[begin] = run;
    }

private:
    void split(std::int64_t row) {
        auto at = runs_.lower_bound(row);
        if (at == runs_.begin()) return;
        --at;
        if (at->second.end <= row) return;
        Run rest = at->second;
        rest.from += row - at->first;
        at->second.end = row;
        runs_[row] = rest;
    }

    std::map<std::int64_t, Run> runs_;  ///< by first row; disjoint
};

/// The plan's ops, each after what it waits for (Kahn).
std::vector<plan::OpRef> in_order(const plan::Plan& plan) {
    std::vector<std::vector<std::vector<plan::OpRef>>> followers(plan.ranks.size());
    std::vector<std::vector<std::size_t>> missing(plan.ranks.size());
    std::vector<plan::OpRef> order;
    for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank)
        followers[rank].resize(plan.ranks[rank].size());
    for (std::int32_t rank = 0; rank < plan.num_ranks(); ++rank) {
        const auto& ops = plan.ranks[at(rank)];
        for (std::int32_t i = 0; static_cast<std::size_t>(i) < ops.size(); ++i) {
            const plan::Op& op = ops[at(i)];
            missing[at(rank)].push_back(op.after.size());
            if (op.after.empty()) order.push_back({rank, i});
            for (const plan::OpRef earlier : op.after)
                followers[at(earlier.rank)][at(earlier.index)].push_back({rank, i});
        }
    }
    for (std::size_t next = 0; next < order.size(); ++next) {
        const plan::OpRef op = order[next];
        for (const plan::OpRef later : followers[at(op.rank)][at(op.index)]) {
            if (--missing[at(later.rank)][at(later.index)] == 0) order.push_back(later);
        }
    }
    return order;
}

constexpr plan::OpRef kNoOp{-1, -1};

class Execution {
public:
    Execution(const Buffers& buffers, Import& import) : buffers_(buffers), import_(import) {
        for (const Placed& held : buffers.held())
            memory(held.where.rank, held.where.tensor)
                .write(held.where.rows, {{held.where.rows.begin, {held.where.rows.end, held.from, kNoOp}}});
    }

    void run(plan::OpRef ref) {
        const plan::Op& op = import_.plan.op(ref);
        const plan::Interval from = op.src.region.front();
        const plan::Interval to = op.dst.region.front();
        Memory::Runs runs = memory(op.source_rank(ref.rank), op.src.tensor).read(from);
        for (auto& [begin, run] : runs) {
            begin += to.begin - from.begin;
            run.end += to.begin - from.begin;
            run.op = ref;
        }
        Memory& target = memory(op.destination_rank(ref.rank), op.dst.tensor);
        if (op.reduce == plan::Reduce::none) return target.write(to, runs);
        judge_reduction(ref, runs, target.read(to));
    }

    void judge(const Placed& wanted) {
        for (const auto& [begin, run] :
             memory(wanted.where.rank, wanted.where.tensor).read(wanted.where.rows)) {
            const std::int64_t expected = wanted.from + (begin - wanted.where.rows.begin);
            if (run.from == expected) continue;
            add(plan::Finding::Kind::final_not_reached, wanted.where.rank, run.op,
                fmt::format("leaves {} in {}, where {} belongs", chunk_at(0, run.from),
                            chunk_at(wanted.where.tensor, begin), chunk_at(0, expected)));
            return;  // one finding tells enough
        }
    }

private:
    Memory& memory(std::int32_t rank, std::int32_t tensor) { return memories_[{rank, tensor}]; }

    /// "chunk 3 of data.output". Tensor 0 is the one that the input lies in.
    [[nodiscard]] std::string chunk_at(std::int32_t tensor, std::int64_t row) const {
        const std::int64_t rows = buffers_.rows_per_chunk();
        const std::string from = row % rows == 0 ? "" : fmt::format(" (from its row {} on)", row % rows);
        return fmt::format("chunk {}{} of {}", row / rows, from, import_.plan.tensors[at(tensor)].name);
    }

    void judge_reduction(plan::OpRef ref, const Memory::Runs& arriving, const Memory::Runs& held) {
        for (const auto& [begin, run] : arriving) {
            for (const auto& [other_begin, other] : held) {
                const std::int64_t row = std::max(begin, other_begin);
                if (row >= std::min(run.end, other.end)) continue;
                const std::int64_t a = run.from + (row - begin);
                const std::int64_t b = other.from + (row - other_begin);
                if (a == b) continue;
                add(plan::Finding::Kind::final_not_reached, ref.rank, ref,
                    fmt::format("adds {} to {}", chunk_at(0, a), chunk_at(0, b)));
                return;
            }
        }
    }

    void add(plan::Finding::Kind kind, std::int32_t rank, plan::OpRef op, std::string message) {
        if (op == kNoOp) {
            import_.findings.push_back({{kind, rank, -1, "the end " + std::move(message)}, {}});
            return;
        }
        import_.findings.push_back(
            {{kind, op.rank, op.index, std::move(message)}, import_.origins[at(op.rank)][at(op.index)]});
    }

    const Buffers& buffers_;
    Import& import_;
    std::map<std::pair<std::int32_t, std::int32_t>, Memory> memories_;  // by rank and tensor
};

}  // namespace

void check_placement(const Buffers& buffers, Import& import) {
    if (buffers.wanted().empty()) return;
    Execution execution(buffers, import);
    for (const plan::OpRef op : in_order(import.plan)) execution.run(op);
    for (const Placed& wanted : buffers.wanted()) execution.judge(wanted);
}

}  // namespace syncopate::ingest
