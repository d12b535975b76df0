#include "runtime/engine_cases.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "syncopate/emit/table.hpp"
#include "syncopate/fuse/passes/engine.hpp"
#include "syncopate/fuse/passes/heap.hpp"
#include "syncopate/fuse/passes/launch.hpp"
#include "syncopate/runtime/call/reduction.hpp"
#include "syncopate/runtime/call/strided_copy.hpp"

namespace syncopate::runtime::testing {
namespace {

using Kind = fuse::SignalMeaning::Kind;
using plan::Backend;
using plan::Chunk;
using plan::DType;
using plan::Region;

/// Adds transfers, and the signals that keep ranks from overtaking each other: all begin together, and a call
/// ends on a rank when everything that touches its memory is done.
class Maker {
public:
    Maker(int size, std::vector<plan::Tensor> tensors) {
        schedule_.mesh.axes = {{"gpu", size}};
        schedule_.tensors = std::move(tensors);
        schedule_.ranks.resize(static_cast<std::size_t>(size));
        for (int to = 0; to < size; ++to) {
            for (int from = 0; from < size; ++from) {
                if (from == to) continue;
                of(from).begin_posts.push_back({to, static_cast<std::int32_t>(of(to).signals.size())});
                of(to).begin_waits.push_back({static_cast<std::int32_t>(of(to).signals.size()), 0});
                of(to).signals.push_back({Kind::ready, {from, -1}});
            }
        }
    }
    [[nodiscard]] int size() const { return static_cast<int>(schedule_.ranks.size()); }
    [[nodiscard]] fuse::RankSchedule& of(int rank) { return schedule_.ranks[static_cast<std::size_t>(rank)]; }

    /// `rank` carries it out, after the ops `after`. Its own number.
    plan::OpRef add(int rank, fuse::Transfer transfer, const std::vector<plan::OpRef>& after = {}) {
        transfer.op = {rank, static_cast<std::int32_t>(of(rank).transfers.size())};
        std::set<int> told{transfer.src_rank, transfer.dst_rank};
        if (const fuse::Sum* sum = transfer.sum()) {
            for (const fuse::Source& source : sum->sources) told.insert(source.rank);
            told.insert(sum->peers.begin(), sum->peers.end());
        }
        for (int other = 0; other < size(); ++other) {
            if (!told.contains(other)) continue;
            const Wait wait{signal_of(other, transfer.op), 0};
            transfer.posts.push_back({other, wait.signal});
            of(other).end_waits.push_back(wait);
        }
        for (const plan::OpRef& op : after) transfer.waits.push_back({signal_of(rank, op), 0});
        of(rank).transfers.push_back(std::move(transfer));
        return of(rank).transfers.back().op;
    }

    fuse::Schedule take() {
        return fuse::lay_out_heap(
            fuse::decide_engine(fuse::launch(std::move(schedule_)), fuse::Device::host, 8));
    }

private:
    using Wait = fuse::Wait;
    std::int32_t signal_of(int rank, plan::OpRef op) {
        std::vector<fuse::SignalMeaning>& signals = of(rank).signals;
        for (std::size_t i = 0; i < signals.size(); ++i) {
            if (signals[i].kind == Kind::arrived && signals[i].op == op) return static_cast<std::int32_t>(i);
        }
        signals.push_back({Kind::arrived, op});
        return static_cast<std::int32_t>(signals.size()) - 1;
    }
    fuse::Schedule schedule_;
};

fuse::Transfer copy(Backend backend, int from, const Chunk& src, int to, const Chunk& dst) {
    return {.backend = backend, .src_rank = from, .dst_rank = to, .src = src, .dst = dst};
}

int next(int rank, int size, int step = 1) { return (rank + step) % size; }

/// Each rank sends region `region` of S to the same place of the next rank's D.
fuse::Schedule push_box(int size, Backend backend, DType dtype, const std::vector<std::int64_t>& shape,
                        const Region& region, bool pull = false) {
    Maker maker(size, {{"S", shape, dtype}, {"D", shape, dtype}});
    for (int rank = 0; rank < size; ++rank) {
        const int peer = next(rank, size);
        maker.add(rank, pull ? copy(backend, peer, {0, region}, rank, {1, region})
                             : copy(backend, rank, {0, region}, peer, {1, region}));
    }
    return maker.take();
}

/// To all others, each into its own rows.
fuse::Schedule broadcast(int size, Backend backend, std::int64_t rows) {
    Maker maker(size, {{"S", {rows, 40}, DType::fp32}, {"D", {size, rows, 40}, DType::fp32}});
    for (int rank = 0; rank < size; ++rank) {
        for (int step = 0; step < size; ++step) {
            maker.add(rank, copy(backend, rank, {0, {{0, rows}, {0, 40}}}, next(rank, size, step),
                                 {1, {{rank, rank + 1}, {0, rows}, {0, 40}}}));
        }
    }
    return maker.take();
}

/// Pulled by the one backend, then passed on by the other, as soon as it is there.
fuse::Schedule forward(int size, Backend first, Backend second, std::int64_t rows) {
    const Region all{{0, rows}, {0, 64}};
    Maker maker(
        size,
        {{"S", {rows, 64}, DType::int32}, {"D", {rows, 64}, DType::int32}, {"E", {rows, 64}, DType::int32}});
    for (int rank = 0; rank < size; ++rank) {
        const auto pulled = maker.add(rank, copy(first, next(rank, size), {0, all}, rank, {1, all}));
        maker.add(rank, copy(second, rank, {1, all}, next(rank, size), {2, all}), {pulled});
    }
    return maker.take();
}

/// An op of no bytes carries on a signal: S goes to the next rank's D, then nothing is sent, then D is passed
/// on by who was sent nothing.
fuse::Schedule empty(int size, Backend backend) {
    const Region all{{0, 33}, {0, 16}};
    const Region none{{0, 0}, {0, 16}};
    Maker maker(size,
                {{"S", {33, 16}, DType::fp32}, {"D", {33, 16}, DType::fp32}, {"E", {33, 16}, DType::fp32}});
    std::vector<plan::OpRef> sent;
    for (int rank = 0; rank < size; ++rank) {
        const auto first = maker.add(rank, copy(backend, rank, {0, all}, next(rank, size), {1, all}));
        sent.push_back(maker.add(rank, copy(backend, rank, {0, none}, next(rank, size), {1, none}), {first}));
    }
    for (int rank = 0; rank < size; ++rank) {
        const int from = next(rank, size, size - 1);
        maker.add(rank, copy(backend, rank, {1, all}, rank, {2, all}),
                  {sent[static_cast<std::size_t>(from)]});
    }
    return maker.take();
}

/// More ops than fit into shared memory.
fuse::Schedule many(int size, Backend backend, std::int64_t count) {
    Maker maker(size, {{"S", {count, 4}, DType::fp32}, {"D", {count, 4}, DType::fp32}});
    for (std::int64_t row = 0; row < count; ++row) {
        const Region one{{row, row + 1}, {0, 4}};
        for (int rank = 0; rank < size; ++rank)
            maker.add(rank, copy(backend, rank, {0, one}, next(rank, size), {1, one}));
    }
    return maker.take();
}

/// Contributions come into slots; the sum begins when they are there. `own`: the destination counts, too.
fuse::Schedule staged_sum(int size, Backend backend, DType dtype, plan::Reduce reduce, bool own,
                          std::int64_t rows) {
    const Region all{{0, rows}, {0, 48}};
    Maker maker(size, {{"S", {rows, 48}, dtype}, {"D", {rows, 48}, dtype}, {"T", {size, rows, 48}, dtype}});
    std::vector<std::vector<plan::OpRef>> come(static_cast<std::size_t>(size));
    const std::int32_t slots = own ? size - 1 : size;
    for (int rank = 0; rank < size; ++rank) {
        for (int step = own ? 1 : 0; step < size; ++step) {
            const int to = next(rank, size, step);
            const int slot = own && rank > to ? rank - 1 : rank;
            come[static_cast<std::size_t>(to)].push_back(maker.add(
                rank, copy(backend, rank, {0, all}, to, {2, {{slot, slot + 1}, {0, rows}, {0, 48}}})));
        }
    }
    for (int rank = 0; rank < size && slots > 0; ++rank) {
        fuse::Transfer sum = copy(backend, rank, {2, {{0, slots}, {0, rows}, {0, 48}}}, rank, {1, all});
        sum.work = fuse::Sum{.reduce = reduce, .own = own ? rank : -1};
        maker.add(rank, std::move(sum), come[static_cast<std::size_t>(rank)]);
    }
    return maker.take();
}

/// Read from the other ranks' S and added up in rank order, `times` regions of each.
fuse::Schedule direct_sum(int size, Backend backend, DType dtype, plan::Reduce reduce, bool own, int times,
                          const std::vector<std::int64_t>& shape, const Region& region) {
    std::vector<std::int64_t> source{times};
    source.insert(source.end(), shape.begin(), shape.end());
    Maker maker(size, {{"S", source, dtype}, {"D", shape, dtype}});
    for (int rank = 0; rank < size; ++rank) {
        fuse::Sum sum{.reduce = reduce, .own = own ? rank * times : -1};
        for (int from = 0; from < size; ++from) {
            for (int time = 0; time < times; ++time) {
                Region read{{time, time + 1}};
                read.insert(read.end(), region.begin(), region.end());
                if (from != rank || !own) sum.sources.push_back({from, {0, read}});
            }
        }
        fuse::Transfer transfer = copy(backend, rank, {1, region}, rank, {1, region});
        transfer.work = std::move(sum);
        maker.add(rank, std::move(transfer));
    }
    return maker.take();
}

/// Each rank sums its rows of all ranks' S, in two parts, and stores them in every rank's D.
fuse::Schedule sum_for_all(int size, Backend backend, DType dtype, std::int64_t rows) {
    const std::int64_t columns = 136;
    const plan::Tensor tensor{"S", {2 * rows * size, columns}, dtype};
    Maker maker(size, {tensor, {"D", tensor.shape, dtype}});
    for (int rank = 0; rank < size; ++rank) {
        for (std::int64_t part = 2 * rank; part < 2 * rank + 2; ++part) {
            const Region region{{part * rows, (part + 1) * rows}, {part % 2 * 8, columns}};
            fuse::Sum sum;
            for (int from = 0; from < size; ++from) sum.sources.push_back({from, {0, region}});
            for (int step = 1; step < size; ++step) sum.peers.push_back(next(rank, size, step));
            fuse::Transfer transfer = copy(backend, rank, {1, region}, rank, {1, region});
            transfer.work = std::move(sum);
            maker.add(rank, std::move(transfer));
        }
    }
    return maker.take();
}

std::uint64_t mixed(std::uint64_t value) {  // splitmix64
    value += 0x9e37'79b9'7f4a'7c15u;
    value = (value ^ (value >> 30)) * 0xbf58'476d'1ce4'e5b9u;
    value = (value ^ (value >> 27)) * 0x94d0'49bb'1331'11ebu;
    return value ^ (value >> 31);
}

std::uint64_t bytes_of(const plan::Tensor& tensor) {
    return static_cast<std::uint64_t>(plan::num_elements(tensor.whole())) * plan::size_of(tensor.dtype);
}

}  // namespace

std::vector<EngineCase> engine_cases(int size, int scale) {
    std::vector<EngineCase> cases;
    const std::int64_t rows = 64 * scale;
    const auto add = [&](std::string name, fuse::Schedule schedule) {
        cases.push_back({std::move(name), std::move(schedule)});
    };
    for (const Backend backend : {Backend::tma_dedicated, Backend::ldst_dedicated}) {
        const std::string by = std::string(plan::name_of(backend)) + " ";
        const auto push = [&](const std::string& name, DType dtype, const std::vector<std::int64_t>& shape,
                              const Region& region) {
            add(by + name, push_box(size, backend, dtype, shape, region));
        };
        push("pushes 16 bytes", DType::fp32, {4}, {{0, 4}});
        push("pushes whole rows", DType::bf16, {rows + 1, 520}, {{1, rows + 1}, {0, 520}});
        push("pushes narrow columns", DType::bf16, {rows, 136}, {{0, rows}, {8, 32}});
        push("pushes columns wider than a piece", DType::fp32, {7, 9000}, {{1, 7}, {4, 8804}});
        push("pushes a box of three levels", DType::int32, {6, rows, 24}, {{1, 5}, {3, rows - 4}, {4, 20}});
        push("pushes planes of wide rows", DType::int32, {3, 5, 8200}, {{0, 3}, {1, 4}, {8, 8200}});
        add(by + "pulls", push_box(size, backend, DType::fp16, {rows, 64}, {{0, rows}, {0, 64}}, true));
        add(by + "broadcasts", broadcast(size, backend, rows));
        add(by + "forwards", forward(size, backend, backend, rows));
        add(by + "carries on a signal by an op of no bytes", empty(size, backend));
        add(by + "does more ops than fit into shared memory", many(size, backend, 300));
        for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32, DType::int32}) {
            for (const plan::Reduce reduce : {plan::Reduce::sum, plan::Reduce::max}) {
                const std::string what =
                    std::string(plan::name_of(reduce)) + " of " + std::string(plan::name_of(dtype));
                add(by + "stages a " + what, staged_sum(size, backend, dtype, reduce, true, rows));
                add(by + "reads from peers a " + what, direct_sum(size, backend, dtype, reduce, size > 1, 1,
                                                                  {rows, 2056}, {{0, rows}, {0, 2056}}));
            }
        }
        add(by + "stages a sum without an own summand",
            staged_sum(size, backend, DType::bf16, plan::Reduce::sum, false, rows));
        add(by + "sums boxes of three levels",
            direct_sum(size, backend, DType::bf16, plan::Reduce::sum, size > 1, 1, {4, rows, 72},
                       {{0, 3}, {2, rows}, {8, 64}}));
        for (const DType dtype : {DType::bf16, DType::fp32}) {
            const std::string what = " of " + std::string(plan::name_of(dtype)) + " for all ranks";
            add(by + "stores sums" + what, sum_for_all(size, backend, dtype, rows));
        }
        add(by + "sums more boxes than lanes",
            direct_sum(size, backend, DType::fp32, plan::Reduce::sum, false, (40 + size - 1) / size, {5, 520},
                       {{0, 5}, {0, 520}}));
    }
    add("forwards from bulk to ldst", forward(size, Backend::tma_dedicated, Backend::ldst_dedicated, rows));
    add("forwards from ldst to bulk", forward(size, Backend::ldst_dedicated, Backend::tma_dedicated, rows));
    add("forwards from the copy engine to bulk",
        forward(size, Backend::copy_engine, Backend::tma_dedicated, rows));
    return cases;
}

EngineCase engine_case_without_end(int size) {
    fuse::Schedule schedule =
        push_box(size, Backend::tma_dedicated, DType::fp32, {64, 64}, {{0, 64}, {0, 64}});
    fuse::RankSchedule& first = schedule.ranks[0];
    first.transfers[0].waits.push_back({static_cast<std::int32_t>(first.signals.size()), 0});
    first.signals.push_back({Kind::ready, {size - 1, -1}});
    return {"waits for what nobody posts", fuse::lay_out_heap(std::move(schedule))};
}

Memory memory_before(const fuse::Schedule& schedule, int rank, std::uint32_t call) {
    Memory memory;
    for (std::size_t t = 0; t < schedule.tensors.size(); ++t) {
        const plan::Tensor& tensor = schedule.tensors[t];
        const std::size_t element = plan::size_of(tensor.dtype);
        std::vector<std::byte>& bytes = memory.emplace_back(bytes_of(tensor));
        for (std::size_t i = 0; i < bytes.size() / element; ++i) {
            const std::uint64_t random = mixed(i ^ (static_cast<std::uint64_t>(call) << 40) ^
                                               (static_cast<std::uint64_t>(rank) << 56) ^ (t << 36));
            const float value =
                static_cast<float>(static_cast<std::int32_t>(random & 0xffff) - 0x8000) * 0x1p-13f;
            const auto put = [&](auto bits) { std::memcpy(bytes.data() + i * element, &bits, sizeof(bits)); };
            switch (tensor.dtype) {
                case DType::bf16: put(float_to_bf16(value)); break;
                case DType::fp16: put(float_to_fp16(value)); break;
                case DType::fp32: put(value * (1.0f + static_cast<float>(random >> 60))); break;
                default: put(static_cast<std::int32_t>(random >> 32)); break;
            }
        }
    }
    return memory;
}

void run_reference(const fuse::Schedule& schedule, std::vector<Memory>& memory) {
    const auto box_of = [&](int rank, const Chunk& chunk) {
        const auto tensor = static_cast<std::size_t>(chunk.tensor);
        return view_of(
            schedule.tensors[tensor], chunk.region,
            reinterpret_cast<std::uint64_t>(memory[static_cast<std::size_t>(rank)][tensor].data()));
    };
    std::set<std::pair<int, std::int32_t>> posted;  // rank, signal
    const auto perform = [&](int rank, const fuse::Transfer& transfer) {
        const plan::DType dtype = schedule.tensors[static_cast<std::size_t>(transfer.dst.tensor)].dtype;
        const BoxView to = box_of(transfer.dst_rank, transfer.dst);
        if (const fuse::Sum* sum = transfer.sum()) {
            std::vector<BoxView> sources;
            for (const fuse::Source& source : sum->sources)
                sources.push_back(box_of(source.rank, source.chunk));
            Result<PreparedSum> prepared =
                sources.empty() ? prepare_sum(box_of(rank, transfer.src), to, dtype, sum->reduce, sum->own)
                                : prepare_sum(sources, to, dtype, sum->reduce, sum->own);
            for (const std::int32_t peer : sum->peers)
                prepared->copies.push_back(box_of(peer, transfer.dst).address - to.address);
            sum_on_host(*prepared);
        } else {
            const auto copies =
                copies_between(box_of(transfer.src_rank, transfer.src), to, plan::size_of(dtype));
            for (const StridedCopy& one : copies.value()) copy_on_host(one);
        }
        for (const fuse::Post& post : transfer.posts) posted.insert({post.rank, post.signal});
    };
    std::set<plan::OpRef> done;
    for (bool moved = true; std::exchange(moved, false);) {
        for (int rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
            for (const fuse::Transfer& transfer : schedule.ranks[static_cast<std::size_t>(rank)].transfers) {
                const bool over = std::ranges::all_of(transfer.waits, [&](const fuse::Wait& wait) {
                    return posted.contains({rank, wait.signal});
                });
                if (!over || !done.insert(transfer.op).second) continue;
                perform(rank, transfer);
                moved = true;
            }
        }
    }
}

std::string run_call(FusedOp& op, const Memory& before, const Memory& expected) {
    SymmetricHeap& heap = *op.heap();
    const std::vector<plan::Tensor>& tensors = op.schedule().tensors;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
        const std::uint64_t address = op.tensor_address(tensors[t].name).value();
        if (Status put = heap.write(address, before[t].data(), before[t].size()); !put)
            return put.error().to_string();
    }
    if (Status begun = op.begin_call(); !begun) return begun.error().to_string();
    // What the fused kernel does at its end.
    if (heap.device().kind == Device::Kind::cuda) {
        if (Status over = heap.cuda_context()->synchronize(); !over) return over.error().to_string();
        std::uint32_t epoch = 0;
        const std::uint64_t word = op.control_address() + 4 * emit::control::epoch;
        if (Status got = heap.read(word, &epoch, sizeof(epoch)); !got) return got.error().to_string();
        ++epoch;
        if (Status put = heap.write(word, &epoch, sizeof(epoch)); !put) return put.error().to_string();
    }
    if (Status ended = op.end_call(); !ended) return ended.error().to_string();
    if (Status over = op.synchronize(); !over) return over.error().to_string();
    if (Status good = op.check(); !good) return good.error().to_string();
    for (std::size_t t = 0; t < tensors.size(); ++t) {
        std::vector<std::byte> got(before[t].size());
        const std::uint64_t address = op.tensor_address(tensors[t].name).value();
        if (Status read = heap.read(address, got.data(), got.size()); !read) return read.error().to_string();
        if (got == expected[t]) continue;
        const auto first = std::ranges::mismatch(got, expected[t]).in1 - got.begin();
        return "tensor " + tensors[t].name + " is wrong from byte " + std::to_string(first) + " on";
    }
    return {};
}

}  // namespace syncopate::runtime::testing
