#include "runtime/call/user_buffers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "syncopate/at.hpp"
#include "syncopate/fuse/inline/kernel_sums.hpp"
#include "syncopate/runtime/call/executors.hpp"
#include "syncopate/try.hpp"

namespace syncopate::runtime {
namespace {

/// Whether two boxes of one shape lie alike in memory. Strides of axes of one element mean nothing.
bool same_strides(const BoxView& a, const BoxView& b) {
    bool same = true;
    for (std::size_t i = 0; i < b.shape.size(); ++i)
        same = same && (b.shape[i] == 1 || a.strides[i] == b.strides[i]);
    return same;
}

/// Whether two boxes of one shape lie in the same memory.
bool same_place(const BoxView& a, const BoxView& b) { return a.address == b.address && same_strides(a, b); }

/// The box of all of `tensor`, where `view` is that of `region`: as if the memory went on before and after
/// it.
BoxView whole_of(const BoxView& view, const plan::Tensor& tensor, const plan::Region& region) {
    BoxView box{view.address, tensor.shape, view.strides};
    for (std::size_t axis = 0; axis < region.size(); ++axis) {
        box.address -=
            static_cast<std::uint64_t>(region[axis].begin * view.strides[axis]) * plan::size_of(tensor.dtype);
    }
    return box;
}

/// Whether the chunk engine carries it out, and adds nothing.
bool is_engine_copy(const fuse::Transfer& transfer) {
    return is_by_engine(transfer) && transfer.copy() != nullptr;
}

/// As UserBuffers::Key.
std::pair<std::int32_t, std::vector<std::int64_t>> key_of(std::int32_t tensor, const plan::Region& region) {
    std::pair<std::int32_t, std::vector<std::int64_t>> key{tensor, {}};
    for (const plan::Interval& interval : region)
        key.second.insert(key.second.end(), {interval.begin, interval.end});
    return key;
}

/// The box of `part`, which lies in `whole`, where `view` is that of `whole`.
BoxView part_of(const BoxView& view, const plan::Region& whole, const plan::Region& part,
                std::size_t element) {
    BoxView box = view;
    for (std::size_t axis = 0; axis < whole.size(); ++axis) {
        const std::int64_t skipped = part[axis].begin - whole[axis].begin;
        box.shape[axis] = part[axis].size();
        box.address += static_cast<std::uint64_t>(skipped * view.strides[axis]) * element;
    }
    return box;
}

}  // namespace

UserBuffers::UserBuffers(const SymmetricHeap& heap, const fuse::Schedule& schedule, const OpOptions& options,
                         const OpMemory& memory, CallExecutor& executor)
    : heap_(heap), schedule_(schedule), options_(options), memory_(memory), executor_(executor) {
    fetched_by_tiles_.assign(schedule_.tensors.size(), false);
    if (const auto sum = std::ranges::find_if(transfers(), fuse::is_kernel_sum); sum != transfers().end())
        kernel_sums_at_ = in_heap(sum->dst).address;
    if (schedule_.loads() && schedule_.loads()->own) {
        own_ = fuse::Place{rank(), schedule_.loads()->tensor, 0};  // any, unless some tile reads there
        for (const fuse::Slot& slot : schedule_.ranks[at(rank())].slots) {
            if (slot.from) own_ = slot.from;
        }
        own_home_ = in_heap({own_->tensor, schedule_.tensors[at(own_->tensor)].whole()});
        return;
    }
    for (const fuse::RankSchedule& other : schedule_.ranks) {
        for (const fuse::Slot& slot : other.slots) {
            if (slot.from && slot.from->rank == rank()) fetched_by_tiles_[at(slot.from->tensor)] = true;
        }
    }
}

void UserBuffers::CopyList::add(const StridedCopy& copy) {
    if (count_ < kOnStack) few_[count_] = &copy;
    if (count_ == kOnStack) many_.assign(few_, few_ + kOnStack);
    if (count_ >= kOnStack) many_.push_back(&copy);
    ++count_;
}

std::span<const StridedCopy* const> UserBuffers::CopyList::all() const {
    if (count_ <= kOnStack) return {few_, count_};
    return many_;
}

UserBuffers::CopyList UserBuffers::copies_of(const Buffers& buffers) const {
    CopyList list;
    for (const auto& [key, buffer] : buffers) {
        if (&buffers == &outputs_ && summed_to_ == key) continue;
        for (const StridedCopy& copy : is_read_in_place(key, buffer) ? buffer.borders : buffer.copies)
            list.add(copy);
    }
    return list;
}

bool UserBuffers::is_read_in_place(const Key& key, const Buffer& buffer) const {
    return buffer.spared && (!has_own_readers(key.first) || own_from_) &&
           (!buffer.engine_reads || engine_from_ == key);
}

Result<std::size_t> UserBuffers::place_of(std::string_view name, const plan::Region& region) {
    const auto tensor = std::ranges::find(schedule_.tensors, name, &plan::Tensor::name);
    if (tensor == schedule_.tensors.end())
        return Error{fmt::format("op '{}' has no tensor {}", options_.name, name)};
    if (region.size() != tensor->shape.size() || !plan::contains(tensor->whole(), region)) {
        return Error{fmt::format("op '{}': region {} is not in tensor {}", options_.name,
                                 plan::to_string(region), name)};
    }
    Key key = key_of(static_cast<std::int32_t>(tensor - schedule_.tensors.begin()), region);
    const auto [known, is_new] = numbers_.try_emplace(std::move(key), places_.size());
    if (is_new) {
        places_.push_back(std::make_unique<Place>(Place{.key = known->first,
                                                        .tensor = &*tensor,
                                                        .region = region,
                                                        .box = in_heap({known->first.first, region})}));
    }
    return known->second;
}

Result<std::optional<std::size_t>> UserBuffers::initial_place_of(std::string_view name) {
    if (!options_.initial) {
        return Error{fmt::format("op '{}', input {}: it is not said which region rank {} holds; give it, or "
                                 "OpOptions::initial",
                                 options_.name, name, rank()),
                     {.rank = rank()},
                     ErrorClass::usage};
    }
    const auto tensor = std::ranges::find(schedule_.tensors, name, &plan::Tensor::name);
    if (tensor == schedule_.tensors.end()) return std::optional<std::size_t>();
    const std::optional<plan::Region> box =
        initial_box(static_cast<std::int32_t>(tensor - schedule_.tensors.begin()));
    if (!box) return std::optional<std::size_t>();
    SYNCOPATE_TAKE(const std::size_t place, place_of(name, *box));
    return std::optional(place);
}

Status UserBuffers::require_strides(const Place& place, std::span<const std::int64_t> strides,
                                    const char* what) const {
    if (strides.size() != place.region.size()) {
        return Error{fmt::format("op '{}', {} {}: {} strides for {} axes", options_.name, what,
                                 place.tensor->name, strides.size(), place.region.size())};
    }
    if (strides.empty() || place.region.back().size() <= 1 || strides.back() == 1) return Done{};
    return Error{
        fmt::format("op '{}', {} {}: its last stride is {}, not 1; make it contiguous along its last axis",
                    options_.name, what, place.tensor->name, strides.back())};
}

UserBuffers::InputFacts UserBuffers::input_facts(const Place& place) const {
    const std::int32_t tensor = place.key.first;
    const plan::Region& region = place.region;
    InputFacts facts;
    facts.is_initial = region == initial_box(tensor).value_or(place.tensor->whole());
    // What a rank holds from the start of the tensor that its kernel is given is read there by nobody but the
    // tiles that read it where it is (fuse::load_given).
    const bool own_part =
        has_own_readers(tensor) && schedule_.loads()->tensor == tensor && region == initial_box(tensor);
    facts.spared = options_.kept_tensors && !fetched_by_tiles_[at(tensor)] &&
                   (own_part || std::ranges::find(*options_.kept_tensors, place.tensor->name) ==
                                    options_.kept_tensors->end());
    const auto reads = [&](const fuse::Transfer& transfer) {
        return transfer.src_rank == rank() && transfer.src.tensor == tensor &&
               plan::overlaps(transfer.src.region, region);
    };
    for (std::size_t other = 0; other < schedule_.ranks.size(); ++other) {
        if (other == static_cast<std::size_t>(rank())) continue;
        facts.spared = facts.spared && std::ranges::none_of(schedule_.ranks[other].transfers, reads);
    }
    const auto has = [&](const fuse::Transfer& transfer) {
        return plan::contains(region, transfer.src.region) && !is_written(tensor, transfer.src.region);
    };
    for (std::size_t index = 0; index < transfers().size(); ++index) {
        const fuse::Transfer& transfer = transfers()[index];
        if (!reads(transfer)) continue;
        const bool by_engine = is_engine_copy(transfer);
        facts.readers.push_back({.index = index, .by_engine = by_engine, .can = !by_engine && has(transfer)});
    }
    facts.engine_can = std::ranges::all_of(transfers(), [&](const fuse::Transfer& transfer) {
        return !is_engine_copy(transfer) || transfer.src_rank != rank() || transfer.src.tensor != tensor ||
               has(transfer);
    });
    for (const plan::Chunk& border : schedule_.ranks[at(rank())].borders) {
        if (border.tensor == tensor && plan::contains(region, border.region))
            facts.borders.push_back(&border);
    }
    return facts;
}

Status UserBuffers::set_input(std::size_t number, std::uint64_t address,
                              std::span<const std::int64_t> strides) {
    Place& place = *places_.at(number);
    SYNCOPATE_TRY(require_strides(place, strides, "input"));
    Buffer& input = inputs_[place.key];
    if (input.address == address && std::ranges::equal(input.strides, strides)) return Done{};

    if (!place.as_input) place.as_input = input_facts(place);
    const BoxView from{address, place.box.shape, {strides.begin(), strides.end()}};
    input.address = address;
    input.strides.assign(strides.begin(), strides.end());
    input.copies.clear();
    Result<std::vector<StridedCopy>> copies =
        copies_between(from, place.box, plan::size_of(place.tensor->dtype));
    Result<std::vector<StridedCopy>> borders = border_copies(place, from);
    if (!copies || !borders) {
        input.address = 0;
        return copies ? borders.error() : copies.error();
    }
    input.borders = *std::move(borders);
    input.spared = redirect_sources(place, from);
    input.engine_reads = engine_from_ == place.key;
    const bool tiles_read = has_own_readers(place.key.first);
    if (tiles_read) own_from_.reset();
    if (input.spared && tiles_read) {
        const bool alone = std::ranges::count_if(inputs_, [&](const auto& other) {
                               return other.first.first == place.key.first;
                           }) == 1;
        const BoxView whole = whole_of(from, *place.tensor, place.region);
        if (alone && serves_tiles(place, whole)) own_from_ = whole;
    }
    if (!same_place(from, place.box)) input.copies = std::move(copies).value();
    return Done{};
}

Result<std::vector<StridedCopy>> UserBuffers::border_copies(const Place& place, const BoxView& from) const {
    std::vector<StridedCopy> made;
    const std::size_t element = plan::size_of(place.tensor->dtype);
    for (const plan::Chunk* border : place.as_input->borders) {
        auto copies =
            copies_between(part_of(from, place.region, border->region, element), in_heap(*border), element);
        if (!copies) return copies;
        made.insert(made.end(), copies->begin(), copies->end());
    }
    return made;
}

std::optional<plan::Region> UserBuffers::initial_box(std::int32_t tensor) const {
    std::optional<plan::Region> box;
    if (!options_.initial) return box;
    for (const plan::Chunk& chunk : *options_.initial) {
        if (chunk.tensor != tensor || (box && box->size() != chunk.region.size())) continue;
        box = box ? plan::bounding_box(*box, chunk.region) : chunk.region;
    }
    return box;
}

bool UserBuffers::serves_tiles(const Place& place, const BoxView& from) const {
    if (!place.as_input->is_initial) return false;
    const auto element = static_cast<std::int64_t>(plan::size_of(place.tensor->dtype));
    constexpr std::int64_t kUnit = 16;  // bytes, of which a descriptor wants multiples; elements, as the
                                        // kernel is told
    if (schedule_.loads()->by_row) {
        return from.address % kUnit == 0 && from.strides.front() > 0 &&
               from.strides.front() * element % kUnit == 0;
    }
    const std::uint64_t heap = heap_.local(memory_.tensor_offsets[at(own_->tensor)]);
    return (from.address - heap) % static_cast<std::uint64_t>(kUnit * element) == 0 &&
           from.strides == in_heap({own_->tensor, place.tensor->whole()}).strides;
}

std::optional<FusedOp::OwnPlace> UserBuffers::own_place() const {
    if (!own_) return std::nullopt;
    const auto element = plan::size_of(schedule_.tensors[at(schedule_.loads()->tensor)].dtype);
    const BoxView& from = own_from_ ? *own_from_ : own_home_;
    FusedOp::OwnPlace place;
    place.pitch = static_cast<std::uint64_t>(from.strides.front()) * element;
    place.address = from.address + static_cast<std::uint64_t>(own_->rows) * place.pitch;
    const std::uint64_t heap = heap_.local(memory_.tensor_offsets[at(schedule_.loads()->tensor)]);
    place.elements = static_cast<std::int64_t>(place.address - heap) / static_cast<std::int64_t>(element);
    return place;
}

bool UserBuffers::redirect_sources(const Place& place, const BoxView& from) {
    const InputFacts& facts = *place.as_input;
    bool all = facts.spared;
    const std::size_t element = plan::size_of(place.tensor->dtype);
    std::optional<bool> engine;  // whether it reads the array
    for (const Reader& reader : facts.readers) {
        if (reader.by_engine) {
            if (!engine) engine = shift_engine(place, from);
            all = all && *engine;
            continue;
        }
        const plan::Region& sent = transfers()[reader.index].src.region;
        const bool done = reader.can && send_from(reader.index, part_of(from, place.region, sent, element));
        if (!done) send_from_heap(reader.index);  // it may have read the input before
        all = all && done;
    }
    return all;
}

bool UserBuffers::shift_engine(const Place& place, const BoxView& from) {
    const std::uint64_t distance = from.address - place.box.address;
    const bool good =
        place.as_input->engine_can && same_strides(from, place.box) && distance % device::kEngineUnit == 0;
    if (!executor_.shift_sources(place.key.first, good ? distance : 0))
        return false;  // it reads the heap, as ever
    engine_from_.reset();
    if (good) engine_from_ = place.key;
    return good;
}

bool UserBuffers::send_from(std::size_t index, const BoxView& source) {
    const fuse::Transfer& transfer = transfers()[index];
    const auto target = static_cast<std::size_t>(transfer.dst.tensor);
    Result<std::vector<StridedCopy>> copies =
        copies_between(source, memory_.box_of(heap_, schedule_, transfer.dst_rank, transfer.dst),
                       plan::size_of(schedule_.tensors[target].dtype));
    return copies && executor_.set_copies(index, std::move(copies).value());
}

void UserBuffers::send_from_heap(std::size_t index) {
    const fuse::Transfer& transfer = transfers()[index];
    send_from(index, in_heap(transfer.src));
}

void UserBuffers::clear_inputs() {
    const std::vector<fuse::Transfer>& transfers = this->transfers();
    for (std::size_t index = 0; index < transfers.size(); ++index) {
        const fuse::Transfer& transfer = transfers[index];
        const bool reads = transfer.src_rank == rank() && transfer.copy() != nullptr &&
                           std::ranges::any_of(inputs_, [&](const auto& input) {
                               return input.first.first == transfer.src.tensor;
                           });
        if (reads) send_from_heap(index);
    }
    if (engine_from_) (void)executor_.shift_sources(engine_from_->first, 0);
    engine_from_.reset();
    inputs_.clear();
    own_from_.reset();
}

bool UserBuffers::is_written(std::int32_t tensor, const plan::Region& region) const {
    const auto meets = [&](const plan::Chunk& chunk) {
        return chunk.tensor == tensor && plan::overlaps(chunk.region, region);
    };
    const auto& chunks = schedule_.ranks[at(rank())].chunks;
    if (std::ranges::any_of(chunks, [&](const fuse::MadeChunk& made) { return meets(made.chunk); }))
        return true;
    for (const fuse::RankSchedule& other : schedule_.ranks) {
        for (const fuse::Transfer& transfer : other.transfers) {
            if (transfer.dst_rank == rank() && meets(transfer.dst)) return true;
        }
    }
    return false;
}

Status UserBuffers::set_output(std::size_t number, std::uint64_t address,
                               std::span<const std::int64_t> strides) {
    Place& place = *places_.at(number);
    SYNCOPATE_TRY(require_strides(place, strides, "output"));
    Buffer& output = outputs_[place.key];
    if (output.address == address && std::ranges::equal(output.strides, strides)) return Done{};
    if (!place.as_output) place.as_output = output_facts(place);
    const BoxView to{address, place.box.shape, {strides.begin(), strides.end()}};
    output.address = address;
    output.strides.assign(strides.begin(), strides.end());
    output.copies.clear();
    Result<std::vector<StridedCopy>> copies =
        copies_between(place.box, to, plan::size_of(place.tensor->dtype));
    if (!copies) {
        output.address = 0;
        return copies.error();
    }
    const bool in_place = same_place(to, place.box);
    shift_sums(place, to);
    if (redirect_sums(place, to, in_place) || in_place) return Done{};
    output.copies = std::move(copies).value();
    return Done{};
}

UserBuffers::OutputFacts UserBuffers::output_facts(const Place& place) const {
    const std::int32_t tensor = place.key.first;
    const plan::Region& region = place.region;
    OutputFacts facts;
    std::vector<plan::Region> missing{region};
    facts.can_shift = std::ranges::all_of(transfers(), [&](const fuse::Transfer& sum) {
        if (sum.sum() == nullptr || (!is_by_engine(sum) && !fuse::is_kernel_sum(sum)) ||
            sum.dst.tensor != tensor)
            return false;
        plan::take(missing, sum.dst.region);
        return plan::contains(region, sum.dst.region) && !is_used_besides(sum);
    });
    facts.can_shift = facts.can_shift && missing.empty();
    missing = {region};
    for (std::size_t index = 0; index < transfers().size(); ++index) {
        const fuse::Transfer& sum = transfers()[index];
        if (executor_.sum_of(index) == nullptr || sum.dst.tensor != tensor ||
            !plan::overlaps(sum.dst.region, region))
            continue;
        // Only what is wholly of the output, and used by nothing else, need not be in the heap.
        const bool can = plan::contains(region, sum.dst.region) && !is_used_besides(sum);
        facts.sums.push_back({.index = index, .can = can});
        plan::take(missing, sum.dst.region);
    }
    facts.covered = missing.empty();
    return facts;
}

void UserBuffers::shift_sums(const Place& place, const BoxView& to) {
    const std::uint64_t distance = to.address - place.box.address;
    const bool good =
        place.as_output->can_shift && same_strides(to, place.box) && distance % device::kEngineUnit == 0;
    if (kernel_sums_at_) {
        kernel_shift_ = good ? distance : 0;
    } else if (!executor_.shift_sums(good ? distance : 0)) {
        return;
    }
    summed_to_.reset();
    if (good) summed_to_ = place.key;
}

std::optional<std::uint64_t> UserBuffers::sum_place() const {
    if (!kernel_sums_at_) return std::nullopt;
    return *kernel_sums_at_ + kernel_shift_;
}

bool UserBuffers::redirect_sums(const Place& place, const BoxView& to, bool in_place) {
    const OutputFacts& facts = *place.as_output;
    const std::size_t element = plan::size_of(place.tensor->dtype);
    bool all = true;
    for (const Made& made : facts.sums) {
        PreparedSum& prepared = *executor_.sum_of(made.index);
        prepared.bring_home();
        if (in_place) continue;
        const fuse::Transfer& sum = transfers()[made.index];
        all = made.can &&
              redirect(prepared, in_heap(sum.src), part_of(to, place.region, sum.dst.region, element)) && all;
    }
    if (in_place || (all && facts.covered)) return true;
    // Not all of it: then everything is copied at the end, from the heap.
    for (const Made& made : facts.sums) executor_.sum_of(made.index)->bring_home();
    return false;
}

bool UserBuffers::is_used_besides(const fuse::Transfer& sum) const {
    for (const fuse::RankSchedule& schedule : schedule_.ranks) {
        for (const fuse::Transfer& other : schedule.transfers) {
            if (&other == &sum) continue;
            if (other.src_rank == rank() && plan::overlaps(other.src, sum.dst)) return true;
            if (other.dst_rank == rank() && plan::overlaps(other.dst, sum.dst)) return true;
            if (other.sum() == nullptr) continue;
            for (const fuse::Source& source : other.sum()->sources) {
                if (source.rank == rank() && plan::overlaps(source.chunk, sum.dst)) return true;
            }
        }
    }
    return false;
}

}  // namespace syncopate::runtime
