#include "syncopate/fuse/model/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "syncopate/at.hpp"
#include "syncopate/fuse/passes/engine.hpp"
#include "syncopate/fuse/passes/launch.hpp"
#include "syncopate/json_table.hpp"
#include "syncopate/plan/model/ragged.hpp"
#include "syncopate/try.hpp"

namespace syncopate::fuse {
namespace {

constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::array<std::string_view, 5> kSignalKinds{"arrived", "consumed", "ready", "fetched", "made"};
constexpr std::array<std::string_view, 6> kLaunches{"none", "local", "before", "early", "late", "sums"};
constexpr std::array<std::string_view, 7> kEngines{"none", "relays",  "bulk",   "pieces",
                                                   "sums", "at_once", "counted"};
constexpr std::array<std::string_view, 2> kBy{"element", "row"};

/// A slot as a row of integers (json.hpp).
std::vector<std::int64_t> row_of(const Slot& slot) {
    std::vector<std::int64_t> row{slot.tile};
    const auto append = [&row](const std::vector<Wait>& waits) {
        row.push_back(static_cast<std::int64_t>(waits.size()));
        for (const Wait& wait : waits) row.insert(row.end(), {wait.signal, wait.lag});
    };
    append(slot.waits);
    for (const Phase& phase : slot.phases) {
        row.insert(row.end(), {phase.loop, phase.iteration_begin, phase.iteration_end});
        append(phase.waits);
    }
    return row;
}

/// The slot that a row means; nullopt: none. `num_signals`: of its rank.
std::optional<Slot> slot_of(std::span<const std::int64_t> row, const StageSlots& stage,
                            std::size_t num_signals) {
    bool good = true;
    const auto next = [&](std::int64_t low, std::int64_t high) {
        const std::int64_t number = row.empty() ? -1 : row.front();
        good = good && !row.empty() && number >= low && number <= high;
        if (good) row = row.subspan(1);
        return good ? number : low;
    };
    const auto waits = [&] {
        std::vector<Wait> made;
        for (auto count = next(0, static_cast<std::int64_t>(row.size()) / 2); count > 0 && good; --count) {
            const auto signal = next(0, static_cast<std::int64_t>(num_signals) - 1);
            made.push_back({static_cast<std::int32_t>(signal), static_cast<std::int32_t>(next(0, 1))});
        }
        return made;
    };
    Slot slot;
    slot.tile = next(0, std::max(stage.tiles, stage.count) - 1);
    slot.waits = waits();
    while (good && !row.empty()) {
        constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
        Phase phase;
        phase.loop = static_cast<std::int32_t>(
            next(slot.phases.empty() ? 0 : slot.phases.back().loop, stage.loops - 1));
        phase.iteration_begin = next(0, kAny);
        phase.iteration_end = next(phase.iteration_begin, kAny);
        phase.waits = waits();
        slot.phases.push_back(std::move(phase));
    }
    return good && !(stage.phased && slot.phases.empty()) ? std::optional(std::move(slot)) : std::nullopt;
}

/// The members of a schedule. `Json`: JsonReader or JsonWriter; `Value`: Schedule, or what is written, const.
template <typename Json, typename Value>
class ScheduleTable : public Json {
public:
    template <typename... Arguments>
    explicit ScheduleTable(Value& schedule, Arguments&&... arguments)
        : Json(std::forward<Arguments>(arguments)...), schedule_(schedule) {}

    bool schedule(JsonAt at) {
        return this->object(
            at, required("mesh", [this](JsonAt inner) { return mesh(inner); }),
            optional("nodes", !schedule_.mesh.nodes.empty(), [this](JsonAt inner) { return nodes(inner); }),
            required("tensors", [this](JsonAt inner) { return tensors(inner); }),
            required("stages", [this](JsonAt inner) { return stages(inner); }),
            required("heap", of(schedule_.heap)),
            optional("engine_blocks", schedule_.engine_blocks != 8,
                     this->integer(schedule_.engine_blocks, 1, kMostEngineBlocks)),
            optional("part", schedule_.part.has_value(), [this](JsonAt inner) { return part(inner); }),
            required("ranks", [this](JsonAt inner) { return ranks(inner); }));
    }

private:
    bool mesh(JsonAt at) {
        return all(schedule_.mesh.axes)(at) &&
               expect(
                   at, [&] { return !schedule_.mesh.axes.empty(); }, "is empty; expected at least one axis");
    }

    /// The first rank of a part; it can be looked at, and not run from.
    bool part(JsonAt at) {
        if constexpr (Json::kReads)
            return this->fail(at, "says that only one node's ranks are here: write the schedule of all");
        else
            return this->integer(schedule_.part->first, 0, schedule_.mesh.num_ranks() - 1)(at);
    }

    /// The mesh's axis of nodes.
    bool nodes(JsonAt at) {
        return this->text(schedule_.mesh.nodes)(at) &&
               expect(
                   at, [&] { return schedule_.mesh.axes.front().name == schedule_.mesh.nodes; },
                   "is not the first axis of the mesh");
    }

    // Walks of what a table of this class says.

    template <typename T>
    auto of(T& value_of) {
        return [this, &value_of](JsonAt at) { return value(at, value_of); };
    }
    template <typename T>
    auto maybe(T& optional_value) {
        return [this, &optional_value](JsonAt at) {
            if constexpr (Json::kReads) optional_value.emplace();
            return value(at, *optional_value);
        };
    }
    template <typename T>
    auto all(T& values) {
        return this->list(values, [this](JsonAt at, auto& element) { return value(at, element); });
    }
    template <typename T>
    auto each_on_a_line(T& values) {
        return this->lines(values, [this](JsonAt at, auto& element) { return value(at, element); });
    }
    template <typename T>
    auto numbers(T& values, std::int64_t low, std::int64_t high) {
        return this->list(values, [this, low, high](JsonAt at, auto& number) {
            return this->integer(number, low, high)(at);
        });
    }
    template <typename T>
    auto ranks_of(T& values) {
        return this->list(values, [this](JsonAt at, auto& number) { return rank(number)(at); });
    }
    template <typename T>
    auto rank(T& number) {
        return this->integer(number, 0, static_cast<std::int64_t>(schedule_.mesh.num_ranks()) - 1);
    }
    template <typename T>
    auto tensor(T& index) {
        return [this, &index](JsonAt at) {
            if constexpr (Json::kReads) {
                std::string name;
                if (!this->text(name)(at)) return false;
                const auto found = std::ranges::find(schedule_.tensors, name, &plan::Tensor::name);
                index = static_cast<std::int32_t>(found - schedule_.tensors.begin());
                return found != schedule_.tensors.end() ||
                       this->fail(at, "names the tensor \"" + escaped(name) + "\", of which there is none");
            } else {
                return this->text(schedule_.tensors[static_cast<std::size_t>(index)].name)(at);
            }
        };
    }
    /// Of what has been read; nothing is asked of what is written.
    template <typename Good>
    bool expect([[maybe_unused]] JsonAt at, [[maybe_unused]] Good good,
                [[maybe_unused]] std::string_view problem) {
        if constexpr (Json::kReads) return good() || this->fail(at, std::string(problem));
        return true;
    }

    // The parts, from the smallest on.

    bool value(JsonAt at, JsonOf<plan::Mesh::Axis> auto& axis) {
        return this->row(at, "[name, size]", this->text(axis.name),
                         this->integer(axis.size, 1, plan::kMaxRanks));
    }
    bool value(JsonAt at, JsonOf<Wait> auto& wait) {
        return this->row(at, "[signal, lag]",
                         this->integer(wait.signal, 0, static_cast<std::int64_t>(num_signals()) - 1),
                         this->integer(wait.lag, 0, 1));
    }
    bool value(JsonAt at, JsonOf<Post> auto& post) {
        const auto exists = [&] {
            return static_cast<std::size_t>(post.signal) < num_signals_[static_cast<std::size_t>(post.rank)];
        };
        return this->row(at, "[rank, signal]", rank(post.rank), this->integer(post.signal, 0, kMost)) &&
               expect(at, exists, "names a signal that the rank does not have");
    }
    bool value(JsonAt at, JsonOf<CountedSignal> auto& counted) {
        return this->row(at, "[signal, posts]",
                         this->integer(counted.signal, 0, static_cast<std::int64_t>(num_signals()) - 1),
                         this->integer(counted.posts, 1, kMost));
    }
    bool value(JsonAt at, JsonOf<plan::OpRef> auto& op) {
        return this->row(at, "[rank, op]", rank(op.rank), this->integer(op.index, 0, kMost));
    }
    bool value(JsonAt at, JsonOf<SignalMeaning> auto& signal) {
        return this->row(at, "[kind, rank, op]", this->name(signal.kind, "kind of signal", kSignalKinds),
                         rank(signal.op.rank), this->integer(signal.op.index, -1, kMost));
    }
    bool value(JsonAt at, JsonOf<Place> auto& place) {
        return this->row(at, "[rank, tensor, rows]", rank(place.rank), tensor(place.tensor),
                         this->integer(place.rows));
    }
    bool value(JsonAt at, JsonOf<plan::Interval> auto& interval) {
        return this->row(at, "[begin, end]", this->integer(interval.begin), this->integer(interval.end));
    }
    bool value(JsonAt at, JsonOf<plan::Chunk> auto& chunk) {
        const auto lies_within = [&] {
            const plan::Tensor& whole = schedule_.tensors[static_cast<std::size_t>(chunk.tensor)];
            return chunk.region.size() == whole.shape.size() &&
                   std::ranges::all_of(chunk.region, [](auto i) { return i.begin <= i.end; }) &&
                   plan::contains(whole.whole(), chunk.region);
        };
        return this->object(at, required("tensor", tensor(chunk.tensor)),
                            required("region", all(chunk.region))) &&
               expect(at, lies_within, "is no region of its tensor");
    }
    bool value(JsonAt at, JsonOf<Source> auto& source) {
        return this->object(at, required("rank", rank(source.rank)), required("chunk", of(source.chunk)));
    }
    bool value(JsonAt at, JsonOf<Heap> auto& heap) {
        constexpr std::int64_t kLargest = std::int64_t{1} << 48;
        return this->object(at, required("tensors", numbers(heap.tensors, 0, kLargest)),
                            required("control", this->integer(heap.control, 0, kLargest)),
                            required("control_words", this->integer(heap.control_words, 0, kLargest)),
                            required("bytes", this->integer(heap.bytes, 0, kLargest)),
                            required("alignment", this->integer(heap.alignment, 1, kLargest)));
    }
    bool value(JsonAt at, JsonOf<Reach> auto& reach) {
        return this->object(at, required("tensor", tensor(reach.tensor)),
                            required("by", this->name(reach.by_row, "way", kBy)),
                            optional("own", reach.own, this->flag(reach.own)));
    }
    bool value(JsonAt at, JsonOf<plan::Ragged> auto& ragged) {
        const auto names = [this](JsonAt inner, auto& name_of_group) {
            return this->text(name_of_group)(inner);
        };
        return this->object(at, required("axis", this->integer(ragged.axis, 0, plan::kMaxAxes)),
                            required("groups", this->list(ragged.groups, names)),
                            required("rows", this->integer(ragged.rows, 1, plan::kMaxCoordinate)),
                            required("bound", this->integer(ragged.bound, 1, plan::kMaxCoordinate))) &&
               expect(
                   at,
                   [&] {
                       return plan::ragged_objection({"", schedule_.tensors.back().shape,
                                                      schedule_.tensors.back().dtype, ragged})
                           .empty();
                   },
                   "is no ragged axis of its tensor");
    }
    bool value(JsonAt at, JsonOf<HeadStart> auto& head) {
        return this->object(at, required("programs", this->integer(head.programs, 1, kMost)),
                            required("rounds", this->integer(head.rounds, 1, kMost)));
    }
    bool value(JsonAt at, JsonOf<Collective::Member> auto& member) {
        return this->object(at, required("op", of(member.op)), required("src", of(member.src)),
                            required("dst", of(member.dst)));
    }
    bool value(JsonAt at, JsonOf<Collective> auto& collective) {
        constexpr std::size_t kKinds = plan::kNumCollectiveKinds;
        return this->object(
                   at,
                   required("kind", this->name(collective.kind, "collective",
                                               names_of<plan::CollectiveKind, kKinds>())),
                   required("number", this->integer(collective.number, 0, kMost)),
                   optional("reduce", collective.reduce != plan::Reduce::none, reduction(collective.reduce)),
                   required("members", all(collective.members))) &&
               expect(at, [&] { return !collective.members.empty(); }, "has no members");
    }
    /// Chunks and transfers that it names are checked once all are known (step_objection).
    bool value(JsonAt at, JsonOf<StreamStep> auto& step) {
        return this->object(at, required("launch", this->name(step.launch, "place to launch", kLaunches)),
                            required("stream", this->integer(step.stream, 0, kMostCopyStreams + 1)),
                            optional("gates", !step.gates.empty(), numbers(step.gates, 0, kMost)),
                            optional("after", !step.after.empty(), numbers(step.after, 0, kMost)),
                            optional("awaited", !step.awaited.empty(), all(step.awaited)),
                            optional("relayed", !step.relayed.empty(), all(step.relayed)),
                            optional("relay", step.relay >= 0, this->integer(step.relay, 0, kMost)),
                            optional("await_after", step.await_after.has_value(), maybe(step.await_after)),
                            optional("awaits_gate", step.awaits_gate, this->flag(step.awaits_gate)));
    }
    bool value(JsonAt at, JsonOf<std::size_t> auto& index) { return this->integer(index, 0, kMost)(at); }
    template <typename T>
    auto reduction(T& reduce) {
        return this->name(reduce, "reduction", names_of<plan::Reduce, plan::kNumReduces>());
    }
    bool value(JsonAt at, JsonOf<Copy> auto& copy) {
        return this->object(at, required("stream", this->integer(copy.stream, 0, kMostCopyStreams - 1)));
    }
    bool value(JsonAt at, JsonOf<Sum> auto& sum) {
        return this->object(at, required("reduce", reduction(sum.reduce)),
                            required("own", this->integer(sum.own, -1, kMost)),
                            optional("sources", !sum.sources.empty(), all(sum.sources)),
                            optional("peers", !sum.peers.empty(),
                                     numbers(sum.peers, 0, schedule_.mesh.num_ranks() - 1))) &&
               expect(at, [&] { return sum.reduce != plan::Reduce::none; }, "does not say how it reduces");
    }
    bool value(JsonAt at, JsonOf<Channel> auto& channel) {
        return this->object(at, optional("sends", channel.sends, this->flag(channel.sends)),
                            required("number", this->integer(channel.number, 0, kMost)),
                            required("round", this->integer(channel.round, 0, kMost)));
    }
    /// What a transfer does; a copy unless it says otherwise.
    template <typename Work>
    auto work(JsonOf<Transfer> auto& transfer) {
        return [this, &transfer](JsonAt at) {
            if constexpr (Json::kReads) {
                if (transfer.copy() == nullptr || transfer.copy()->stream != 0)
                    return this->fail(at, "is a second thing that the transfer does");
                transfer.work = Work{};
            }
            return value(at, std::get<Work>(transfer.work));
        };
    }
    bool value(JsonAt at, JsonOf<Transfer> auto& transfer) {
        const auto decided = [&] { return transfer.backend != plan::Backend::automatic; };
        const Copy* copy = transfer.copy();
        return this->object(
                   at, required("op", of(transfer.op)),
                   required("backend", this->name(transfer.backend, "backend",
                                                  names_of<plan::Backend, plan::kNumBackends>())),
                   required("src_rank", rank(transfer.src_rank)),
                   required("dst_rank", rank(transfer.dst_rank)), required("src", of(transfer.src)),
                   required("dst", of(transfer.dst)),
                   optional("copy", copy != nullptr && copy->stream != 0, work<Copy>(transfer)),
                   optional("sum", transfer.sum() != nullptr, work<Sum>(transfer)),
                   optional("collective", transfer.collective() != nullptr, work<Collective>(transfer)),
                   optional("channel", transfer.channel() != nullptr, work<Channel>(transfer)),
                   required("waits", all(transfer.waits)), required("posts", all(transfer.posts)),
                   optional("step", transfer.step.launch != Launch::none, of(transfer.step))) &&
               expect(at, decided, "leaves its backend open");
    }

    bool value(JsonAt at, JsonOf<RankSchedule> auto& rank) {
        if constexpr (Json::kReads) at_rank_ = static_cast<std::size_t>(at.path->index);
        const bool loads = std::ranges::any_of(rank.slots, [](const Slot& s) { return s.from.has_value(); });
        return this->object(
                   at, required("signals", all(rank.signals)),
                   required("slots", [&](JsonAt inner) { return slots(inner, rank); }),
                   optional("loads", loads, [&](JsonAt inner) { return slots_loading(inner, rank); }),
                   optional("chunks", !rank.chunks.empty(),
                            [&](JsonAt inner) { return chunks(inner, rank); }),
                   required("transfers", each_on_a_line(rank.transfers)),
                   optional("borders", !rank.borders.empty(), all(rank.borders)),
                   required("begin_posts", all(rank.begin_posts)),
                   required("begin_waits", all(rank.begin_waits)),
                   required("kernel_posts", all(rank.kernel_posts)),
                   required("end_waits", all(rank.end_waits)), required("end_posts", all(rank.end_posts)),
                   optional("counted", !rank.counted.empty(), all(rank.counted)),
                   optional("engine", rank.engine != EngineKernel::none,
                            this->name(rank.engine, "kernel of the chunk engine", kEngines)),
                   optional("takes_turns", rank.takes_turns, this->flag(rank.takes_turns)),
                   optional("copies_start_first", rank.copies_start_first,
                            this->flag(rank.copies_start_first)),
                   optional("ends_with_sum", rank.ends_with_sum, this->flag(rank.ends_with_sum))) &&
               streams(at, rank);
    }

    bool slots(JsonAt at, JsonOf<RankSchedule> auto& rank) {
        std::vector<std::vector<std::int64_t>> rows;
        for (const Slot& slot : rank.slots) rows.push_back(row_of(slot));
        const auto row = [this](JsonAt inner, auto& numbers_of) {
            return numbers(numbers_of, 0, std::numeric_limits<std::int64_t>::max())(inner);
        };
        if (!this->list(rows, row)(at)) return false;
        if constexpr (Json::kReads) {
            // Where ranks run some of the tiles each, a rank may have fewer.
            const bool partial = schedule_.stages.size() == 1 && schedule_.stages.front().is_partial();
            const auto most = static_cast<std::size_t>(schedule_.num_slots());
            if (partial ? rows.size() > most : rows.size() != most)
                return this->fail(at, fmt::format("has {} entries; the stages have {} slots", rows.size(),
                                                  schedule_.num_slots()));
            for (const StageSlots& stage : schedule_.stages) {
                std::vector<bool> taken(static_cast<std::size_t>(std::max(stage.tiles, stage.count)), false);
                const std::int64_t end =
                    std::min(stage.first + stage.count, static_cast<std::int64_t>(rows.size()));
                for (std::int64_t n = stage.first; n < end; ++n) {
                    auto slot = slot_of(rows[static_cast<std::size_t>(n)], stage, num_signals());
                    if (!slot) return this->fail(at, fmt::format("[{}] is no slot of its stage", n));
                    if (taken[static_cast<std::size_t>(slot->tile)])
                        return this->fail(at, fmt::format("[{}] has a tile that an earlier slot has", n));
                    taken[static_cast<std::size_t>(slot->tile)] = true;
                    rank.slots.push_back(*std::move(slot));
                }
            }
        }
        return true;
    }

    /// The slots whose tiles load from elsewhere: [slot, rank, tensor, rows].
    bool slots_loading(JsonAt at, JsonOf<RankSchedule> auto& rank_of) {
        std::vector<std::pair<std::int64_t, Place>> rows;
        for (std::size_t slot = 0; slot < rank_of.slots.size(); ++slot) {
            if (const auto& from = rank_of.slots[slot].from) rows.emplace_back(slot, *from);
        }
        const auto row = [&](JsonAt inner, auto& entry) {
            auto& place = entry.second;
            return this->row(inner, "[slot, rank, tensor, rows]",
                             this->integer(entry.first, 0, schedule_.num_slots() - 1), rank(place.rank),
                             tensor(place.tensor), this->integer(place.rows));
        };
        if (!this->list(rows, row)(at)) return false;
        if constexpr (Json::kReads) {
            for (const auto& [slot, place] : rows) rank_of.slots[static_cast<std::size_t>(slot)].from = place;
        }
        return expect(
            at, [&] { return schedule_.loads().has_value(); }, "come without the stage's \"loads\"");
    }

    /// The chunks that the rank's tiles make, and by slot which of them.
    bool chunks(JsonAt at, JsonOf<RankSchedule> auto& rank) {
        std::vector<std::vector<std::int32_t>> writing(rank.chunks.size());  // slots, by chunk
        for (std::size_t slot = 0; slot < rank.slots.size(); ++slot) {
            for (const std::int32_t chunk : rank.slots[slot].makes)
                writing[static_cast<std::size_t>(chunk)].push_back(static_cast<std::int32_t>(slot));
        }
        std::size_t number = 0;
        const auto entry = [&](JsonAt inner, JsonOf<MadeChunk> auto& chunk) {
            if constexpr (Json::kReads) writing.emplace_back();
            std::vector<std::int32_t>& slots = writing[number];
            const bool apart = chunk.counting != slots;
            if (!this->object(inner, required("chunk", of(chunk.chunk)), required("posts", all(chunk.posts)),
                              required("slots", rising_slots(slots)),
                              optional("counting", apart, rising_slots(chunk.counting)),
                              optional("at_once", chunk.at_once, this->flag(chunk.at_once)),
                              optional("stores", !chunk.stores.empty(), all(chunk.stores)),
                              optional("sent", !chunk.sent.empty(), ranks_of(chunk.sent)))) {
                return false;
            }
            if constexpr (Json::kReads) {
                if (chunk.counting.empty()) chunk.counting = slots;
                for (const std::int32_t slot : slots)
                    rank.slots[static_cast<std::size_t>(slot)].makes.push_back(
                        static_cast<std::int32_t>(number));
            }
            ++number;
            return expect(
                       inner, [&] { return std::ranges::includes(slots, chunk.counting); },
                       "counts slots that do not write into it") &&
                   expect(
                       inner, [&] { return chunk.stores.empty() || schedule_.stores().has_value(); },
                       "has stores, and its stage has no \"stores\"");
        };
        return this->lines(rank.chunks, entry)(at);
    }
    template <typename T>
    auto rising_slots(T& slots) {
        return [this, &slots](JsonAt at) {
            return numbers(slots, 0, schedule_.num_slots() - 1)(at) &&
                   expect(
                       at, [&] { return std::ranges::is_sorted(slots, std::less_equal()); },
                       "are slots that do not rise");
        };
    }

    /// What all steps of a rank have in common, and whether what steps name is there.
    bool streams([[maybe_unused]] JsonAt at, [[maybe_unused]] JsonOf<RankSchedule> auto& rank) {
        if constexpr (Json::kReads) {
            for (std::size_t n = 0; n < rank.transfers.size(); ++n) {
                const StreamStep& step = rank.transfers[n].step;
                rank.num_streams = std::max(rank.num_streams, step.stream + 1);
                rank.num_relays = std::max(rank.num_relays, step.relay + 1);
                if (const std::string why = step_objection(rank, n); !why.empty())
                    return this->fail(at, fmt::format("cannot carry out transfers[{}]: {}", n, why));
            }
            if (rank.num_relays > static_cast<std::int32_t>(rank.transfers.size()))
                return this->fail(at, "has relays without transfers");
            if (rank.ends_with_sum &&
                (rank.transfers.empty() || rank.transfers.back().step.launch != Launch::sums))
                return this->fail(at, "\"ends_with_sum\", and the last transfer is no sum of a stream");
        }
        return true;
    }

    /// {"A": {"shape": [512, 256], "dtype": "bf16"}, …}
    bool tensors(JsonAt at) {
        const auto members = [this](JsonAt inner, JsonOf<plan::Tensor> auto& tensor) {
            return this->object(
                inner, required("shape", numbers(tensor.shape, 0, std::numeric_limits<std::int64_t>::max())),
                required("dtype",
                         this->name(tensor.dtype, "dtype", names_of<plan::DType, plan::kNumDTypes>())),
                optional("ragged", tensor.ragged.has_value(), maybe(tensor.ragged)));
        };
        if constexpr (Json::kReads) {
            return this->entries(at, [&](std::string_view name, JsonAt inner) {
                if (std::ranges::find(schedule_.tensors, name, &plan::Tensor::name) !=
                    schedule_.tensors.end())
                    return this->fail(inner, "is defined a second time");
                schedule_.tensors.push_back({std::string(name), {}, plan::DType::bf16});
                return members(inner, schedule_.tensors.back());
            });
        } else {
            return this->write_all(
                schedule_.tensors, "",
                [&](const plan::Tensor& tensor) {
                    return this->put(json_quoted(tensor.name) + ":") && members(at, tensor);
                },
                "{}");
        }
    }

    /// The stages, which follow each other.
    bool stages(JsonAt at) {
        if constexpr (Json::kReads) schedule_.stages.clear();
        std::int64_t first = 0;
        const auto stage = [&](JsonAt inner, JsonOf<StageSlots> auto& slots) {
            if constexpr (Json::kReads) slots.first = first;
            if (!this->object(
                    inner, required("slots", this->integer(slots.count, 0, kMost - first)),
                    required("phased", this->flag(slots.phased)),
                    optional("overlaps", slots.overlaps, this->flag(slots.overlaps)),
                    optional("loops", slots.loops != 1, this->integer(slots.loops, 1, 64)),
                    optional("head_start", slots.head_start.rounds > 0, of(slots.head_start)),
                    optional("tiles", slots.is_partial(), this->integer(slots.tiles, 1, kMost)),
                    optional("own_grid", slots.program_a_slot(), numbers(slots.own_grid, 1, kMost)),
                    optional("most_slots", slots.most_slots > 0, this->integer(slots.most_slots, 1, kMost)),
                    optional("stores", slots.stores.has_value(), maybe(slots.stores)),
                    optional("loads", slots.loads.has_value(), maybe(slots.loads)))) {
                return false;
            }
            first += slots.count;
            return expect(
                inner, [&] { return slots.head_start.slots() <= slots.count; },
                "has a head start of more slots than it has");
        };
        const auto is_alone = [](const StageSlots& slots) { return slots.stores || slots.loads; };
        return this->list(schedule_.stages, stage)(at) &&
               expect(
                   at, [&] { return !schedule_.stages.empty(); }, "is empty; expected at least one stage") &&
               expect(
                   at,
                   [&] {
                       return schedule_.stages.size() == 1 ||
                              std::ranges::none_of(schedule_.stages, is_alone);
                   },
                   "has several stages, and only one alone may have \"stores\" or \"loads\"");
    }

    bool ranks(JsonAt at) {
        if constexpr (Json::kReads) {
            if (!this->is(at.node, *at.path, JsonDocument::Type::array, "a list of ranks")) return false;
            if (this->document_.size(at.node) != static_cast<std::size_t>(schedule_.mesh.num_ranks()))
                return this->fail(at, fmt::format("has {} entries; the mesh has {} ranks",
                                                  this->document_.size(at.node), schedule_.mesh.num_ranks()));
            // Posts name other ranks' signals, which may come later.
            this->each(at.node, *at.path, [&](JsonDocument::Index node, const JsonPath&) {
                num_signals_.push_back(count_of_signals(node));
                return true;
            });
        }
        return each_on_a_line(schedule_.ranks)(at);
    }
    [[nodiscard]] std::size_t count_of_signals(JsonDocument::Index rank) const {
        const JsonDocument& document = this->document_;
        if (document.type(rank) != JsonDocument::Type::object) return 0;
        for (auto key = document.first(rank); key != document.end(rank);) {
            const auto node = document.next(key);
            if (document.text(key) == "signals" && document.type(node) == JsonDocument::Type::array)
                return document.size(node);
            key = document.next(node);
        }
        return 0;
    }
    /// Of the rank that is being read.
    [[nodiscard]] std::size_t num_signals() const { return Json::kReads ? num_signals_[at_rank_] : 0; }

    Value& schedule_;
    std::size_t at_rank_ = 0;
    std::vector<std::size_t> num_signals_;  ///< of each rank
};

}  // namespace

std::string_view name_of(SignalMeaning::Kind kind) { return kSignalKinds[at(kind)]; }

std::string to_json(const Schedule& schedule) {
    ScheduleTable<JsonWriter, const Schedule> table(schedule);
    table.schedule({});
    return table.take();
}

Result<Schedule> schedule_from_json(const JsonDocument& document, std::string_view text,
                                    const std::string& file_name, JsonAt at) {
    Schedule schedule;
    ScheduleTable<JsonReader, Schedule> table(schedule, document, text, file_name, "the schedule");
    if (!table.schedule(at)) return table.error();
    return schedule;
}

Result<Schedule> schedule_from_json(std::string_view text, const std::string& file_name) {
    SYNCOPATE_TAKE(const JsonDocument document, JsonDocument::parse(text, file_name));
    const JsonPath root;
    return schedule_from_json(document, text, file_name, {0, &root});
}

}  // namespace syncopate::fuse
