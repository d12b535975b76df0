#include "kernel/evaluate.hpp"

#include <algorithm>
#include <set>
#include <utility>

namespace syncopate::kernel {
namespace {

constexpr std::int64_t kMostSteps = 40'000'000;  // expressions and statements of one analysis
constexpr std::size_t kMostMemory = std::size_t{512} << 20;
constexpr std::size_t kMostBoxesInAll = 16'000'000;
constexpr std::size_t kStack = std::size_t{1} << 14;  // values of all frames

Value make_integer(std::int64_t value, bool runtime, std::uint64_t taint) {
    Value made;
    made.kind = ValueKind::integer;
    made.runtime = runtime;
    made.taint = taint;
    made.integer = value;
    return made;
}

}  // namespace

std::string quoted(const Module& module, const SourceRange& where) {
    std::string shown;
    bool space = false;
    for (const char c : module.text(where)) {
        if (c == ' ' || c == '\n' || c == '\t' || c == '\r') {
            space = true;
            continue;
        }
        if (space && !shown.empty()) shown += ' ';
        space = false;
        shown += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
        if (shown.size() > 80) return "`" + shown + "…`";
    }
    return "`" + shown + "`";
}

Evaluator::Evaluator(Module& module, std::int32_t kernel, const Arguments& arguments,
                     const std::vector<Directive>& directives)
    : module_(module),
      kernel_(module.functions[static_cast<std::size_t>(kernel)]),
      kernel_index_(kernel),
      arguments_(arguments),
      directives_(directives) {
    const std::size_t count = kernel_.parameters.size();
    param_read.resize(count);
    param_written.resize(count);
    param_descriptor.resize(count);
    param_pointer.resize(count);
    override_read_.resize(count);
    override_write_.resize(count);
    tensors.resize(count);
    stack_.resize(kStack);
    for (const Directive& directive : directives_) {
        if (directive.kind == DirectiveKind::reads)
            override_read_[static_cast<std::size_t>(directive.param)] = true;
        if (directive.kind == DirectiveKind::writes)
            override_write_[static_cast<std::size_t>(directive.param)] = true;
        const bool watched = directive.kind == DirectiveKind::axis_count ||
                             directive.kind == DirectiveKind::num_tiles ||
                             directive.kind == DirectiveKind::tile_id;
        if (watched && directive.statement != nullptr) watch_[directive.statement] = true;
    }
}

Status Evaluator::bind() {
    for (const auto& [name, value] : arguments_.scalars) {
        if (kernel_.slot(name) < 0 ||
            static_cast<std::size_t>(kernel_.slot(name)) >= kernel_.parameters.size()) {
            return module_.error(kernel_.name_range,
                                 "kernel `" + kernel_.name + "` has no parameter `" + name + "`");
        }
    }
    for (const auto& [name, tensor] : arguments_.tensors) {
        const std::int32_t slot = kernel_.slot(name);
        if (slot < 0 || static_cast<std::size_t>(slot) >= kernel_.parameters.size()) {
            return module_.error(kernel_.name_range,
                                 "kernel `" + kernel_.name + "` has no parameter `" + name + "`");
        }
        const SourceRange& where = kernel_.parameters[static_cast<std::size_t>(slot)].where;
        if (tensor.shape.empty() || tensor.shape.size() > kRank) {
            return module_.error(
                where, "tensor `" + name + "` needs 1 to 5 axes, not " + std::to_string(tensor.shape.size()));
        }
        if ((!tensor.strides.empty() && tensor.strides.size() != tensor.shape.size()) ||
            (!tensor.block.empty() && tensor.block.size() != tensor.shape.size())) {
            return module_.error(where, "tensor `" + name + "` needs one stride and one block size per axis");
        }
        constexpr std::int64_t kLargest = std::int64_t{1} << 40;
        const TensorView view(tensor);
        Wide last = 0;
        for (std::size_t d = 0; d < view.shape.size(); ++d)
            last += static_cast<Wide>(view.shape[d]) * view.strides[d];
        const auto large = [](std::int64_t x) { return x > kLargest; };
        if (last > kLargest || std::any_of(view.shape.begin(), view.shape.end(), large) ||
            std::any_of(view.strides.begin(), view.strides.end(), large)) {
            return module_.error(where, "tensor `" + name + "` spans more than 2^40 elements");
        }
        if (std::any_of(tensor.block.begin(), tensor.block.end(),
                        [](std::int64_t x) { return x > (std::int64_t{1} << 24); })) {
            return module_.error(where,
                                 "the block of descriptor `" + name + "` is larger than any shared memory");
        }
        const auto negative = [](std::int64_t x) { return x < 0; };
        if (std::any_of(tensor.shape.begin(), tensor.shape.end(), negative) ||
            std::any_of(tensor.strides.begin(), tensor.strides.end(), negative)) {
            return module_.error(where, "tensor `" + name + "` has a negative extent or stride");
        }
        if (std::any_of(tensor.block.begin(), tensor.block.end(), [](std::int64_t x) { return x < 1; })) {
            return module_.error(where, "the block of descriptor `" + name + "` has an extent below 1");
        }
    }
    Frame frame;
    frame.function = &kernel_;
    frame.slots = stack_.data();
    frame.is_kernel = true;
    for (std::size_t p = 0; p < kernel_.parameters.size(); ++p) {
        const Parameter& parameter = kernel_.parameters[p];
        const auto index = static_cast<std::int32_t>(p);
        Value value;
        const auto scalar = arguments_.scalars.find(parameter.name);
        const auto tensor = arguments_.tensors.find(parameter.name);
        const bool given = scalar != arguments_.scalars.end();
        if (given && tensor != arguments_.tensors.end()) {
            return module_.error(parameter.where,
                                 "parameter `" + parameter.name + "` is given both a value and a tensor");
        }
        if (tensor != arguments_.tensors.end()) {
            const TensorArgument& t = tensor->second;
            tensors[p] = TensorView(t);
            const auto rank = static_cast<std::int32_t>(t.shape.size());
            if (!t.block.empty() || parameter.descriptor) {
                if (t.block.empty()) {
                    return module_.error(parameter.where, "`" + parameter.name +
                                                              "` is a tensor descriptor: give its block "
                                                              "too, as in --tensor " +
                                                              parameter.name + "=512x256:bf16@128x64");
                }
                Descriptor* descriptor = arena_.make<Descriptor>();
                descriptor->param = index;
                descriptor->rank = rank;
                descriptor->host = true;
                for (std::int32_t d = 0; d < rank; ++d) {
                    descriptor->shape[d] = tensors[p].shape[static_cast<std::size_t>(d)];
                    descriptor->strides[d] = tensors[p].strides[static_cast<std::size_t>(d)];
                    descriptor->block[d] = t.block[static_cast<std::size_t>(d)];
                }
                value.kind = ValueKind::descriptor;
                value.descriptor = descriptor;
                param_descriptor[p] = true;
            } else {
                Block* block = arena_.make<Block>();
                block->param = index;
                value.kind = ValueKind::pointer;
                value.block = block;
                param_pointer[p] = true;
            }
        } else if (given || parameter.fallback != nullptr) {
            if (given) {
                const Scalar& s = scalar->second;
                if (const auto* b = std::get_if<bool>(&s))
                    value.kind = ValueKind::boolean, value.boolean = *b;
                else if (const auto* i = std::get_if<std::int64_t>(&s))
                    value = make_integer(*i, false, 0);
                else if (const auto* r = std::get_if<double>(&s))
                    value.kind = ValueKind::real, value.real = *r;
                else if (const auto* text = std::get_if<std::string>(&s))
                    value.kind = ValueKind::text, value.text = text;
                else
                    value.kind = ValueKind::none;
            } else {
                value = evaluate(*parameter.fallback, frame);
            }
            value.runtime = !parameter.constant;
        } else if (parameter.descriptor) {
            Descriptor* descriptor = arena_.make<Descriptor>();
            descriptor->param = index;
            descriptor->host = true;
            descriptor->known = false;
            value.kind = ValueKind::descriptor;
            value.descriptor = descriptor;
            param_descriptor[p] = true;
        } else if (!parameter.constant && parameter.name.find("ptr") != std::string::npos) {
            Block* block = arena_.make<Block>();
            block->param = index;
            value.kind = ValueKind::pointer;
            value.block = block;
            param_pointer[p] = true;
        } else {
            value.kind = ValueKind::missing;
            value.integer = index;
        }
        bound_.push_back(value);
        if (error_) return *error_;
    }
    bound_mark_ = arena_.mark();
    guesses_.resize(static_cast<std::size_t>(module_.num_loops));
    loops.resize(static_cast<std::size_t>(module_.num_loops));
    return Done{};
}

Status Evaluator::run(const std::array<std::int64_t, 3>& program, const std::array<std::int64_t, 3>& grid) {
    arena_.release(bound_mark_);
    program_ = program;
    grid_ = grid;
    linear_program_ = program[0] + std::max<std::int64_t>(grid[0], 1) *
                                       (program[1] + std::max<std::int64_t>(grid[1], 1) * program[2]);
    error_.reset();
    arithmetic_error = not_affine_ = in_tile_loop_ = false;
    stack_used_ = kernel_.slots.size();
    if (stack_used_ > stack_.size())
        return module_.error(kernel_.name_range, "the kernel has too many variables");
    Frame frame;
    frame.function = &kernel_;
    frame.slots = stack_.data();
    frame.is_kernel = true;
    std::copy(bound_.begin(), bound_.end(), stack_.begin());
    std::fill(stack_.begin() + static_cast<std::ptrdiff_t>(bound_.size()),
              stack_.begin() + static_cast<std::ptrdiff_t>(stack_used_), Value{});
    const std::size_t first_tile = found.tiles.size();
    control_ = 0;
    begin_tile(linear_program_);
    const std::size_t outer_begin = tile_begin_;
    const Flow flow = execute(kernel_.body, frame);
    if (flow == Flow::stop && error_) return *error_;
    if (found.tile_loop == nullptr) {
        end_tile(frame);
        if (error_) return *error_;
        if (last_in_body_ != nullptr &&
            (found.last_store == nullptr || last_in_body_->where.end > found.last_store->where.end)) {
            found.last_store = last_in_body_;
        }
        return Done{};
    }
    if (last_in_loop_ != nullptr) found.last_store = last_in_loop_;
    // What a persistent program touches outside its tile loop: reads belong to each of its tiles, writes to
    // the last.
    const std::size_t tiles_end = found.tiles.size();
    std::vector<TouchedBox> outer;
    const std::size_t inner_end = tiles_end > first_tile ? found.tiles.back().end : outer_begin;
    const std::size_t inner_begin = tiles_end > first_tile ? found.tiles[first_tile].begin : outer_begin;
    outer.assign(found.touched.begin() + static_cast<std::ptrdiff_t>(outer_begin),
                 found.touched.begin() + static_cast<std::ptrdiff_t>(inner_begin));
    outer.insert(outer.end(), found.touched.begin() + static_cast<std::ptrdiff_t>(inner_end),
                 found.touched.end());
    if (!outer.empty() && tiles_end > first_tile) {
        std::vector<TouchedBox> all(found.touched.begin() + static_cast<std::ptrdiff_t>(inner_begin),
                                    found.touched.begin() + static_cast<std::ptrdiff_t>(inner_end));
        found.touched.resize(outer_begin);
        for (std::size_t t = first_tile; t < tiles_end; ++t) {
            TileRecord& tile = found.tiles[t];
            const std::size_t begin = found.touched.size();
            for (std::size_t i = tile.begin; i < tile.end; ++i) found.touched.push_back(all[i - inner_begin]);
            for (const TouchedBox& box : outer) {
                if (!box.write || t + 1 == tiles_end) found.touched.push_back(box);
            }
            tile.begin = begin;
            tile.end = found.touched.size();
        }
    }
    return Done{};
}

Value Evaluator::fail(const SourceRange& where, std::string message) {
    if (!error_) error_ = module_.error(where, std::move(message));
    return {};
}

Value Evaluator::not_affine(const Expr& e) {
    if (trips_.empty()) {
        return fail(e.where, quoted(module_, e.where) + " is not a form of address that can be followed");
    }
    not_affine_ = true;  // the loop around is run iteration by iteration instead
    return {};
}

Value Evaluator::opaque(const Expr& why, std::uint64_t taint) {
    Value made;
    made.kind = ValueKind::opaque;
    made.runtime = true;
    made.taint = taint;
    made.why = &why;
    return made;
}

std::uint64_t Evaluator::new_source(const Expr& e, TaintSource source) {
    auto& node = const_cast<Expr&>(e);
    if (node.source < 0) {
        source.expr = &e;
        node.source = static_cast<std::int32_t>(sources.size());
        sources.push_back(source);
    }
    const std::uint64_t bit = std::uint64_t{1} << std::min(node.source, 63);
    if (source.kind == TaintSource::Kind::program_id) program_bits_ |= bit;
    if (source.kind == TaintSource::Kind::count) count_bits_ |= bit;
    return bit;
}

bool Evaluator::step(const SourceRange& where) {
    if (++steps_ > kMostSteps || arena_.bytes() > kMostMemory || found.touched.size() > kMostBoxesInAll) {
        fail(where,
             "the analysis gives up here: too many iterations; are the arguments those of a real launch?");
        return false;
    }
    return true;
}

Evaluator::Flow Evaluator::execute(const std::vector<Stmt*>& body, Frame& frame) {
    for (const Stmt* statement : body) {
        const std::int64_t stores = stores_;
        const Flow flow = execute(*statement, frame);
        if (stores_ != stores && silent_ == 0) {
            const bool in_scope = found.tile_loop != nullptr && &body == &found.tile_loop->body;
            const Stmt*& last = in_scope ? last_in_loop_ : last_in_body_;
            if ((in_scope || &body == &kernel_.body) &&
                (last == nullptr || statement->where.end > last->where.end)) {
                last = statement;
            }
        }
        if (flow != Flow::next) return flow;
    }
    return Flow::next;
}

Evaluator::Flow Evaluator::execute(const Stmt& statement, Frame& frame) {
    if (!step(statement.where)) return Flow::stop;
    switch (statement.kind) {
        case StmtKind::assign: {
            const Value value = evaluate(*statement.value, frame);
            if (stopped()) return Flow::stop;
            if (frame.is_kernel && value.kind == ValueKind::integer && !watch_.empty() &&
                watch_.contains(&statement)) {
                found.watched[&statement] = value.integer;
            }
            assign(*statement.target, value, frame);
            break;
        }
        case StmtKind::augment: {
            const Value before = evaluate(*statement.target, frame);
            const Value by = evaluate(*statement.value, frame);
            if (stopped()) return Flow::stop;
            const Value after = binary(*statement.target, statement.op, before, by);
            if (stopped()) return Flow::stop;
            assign(*statement.target, after, frame);
            break;
        }
        case StmtKind::expression:
            if (statement.value->kind == ExprKind::literal) break;  // a docstring
            (void)evaluate(*statement.value, frame);
            break;
        case StmtKind::branch: return branch(statement, frame);
        case StmtKind::for_loop: return for_loop(statement, frame);
        case StmtKind::while_loop: return while_loop(statement, frame);
        case StmtKind::give_back:
            frame.result = Value{};
            frame.result.kind = ValueKind::none;
            if (statement.value != nullptr) frame.result = evaluate(*statement.value, frame);
            return stopped() ? Flow::stop : Flow::returned;
        case StmtKind::pass:
        case StmtKind::assertion: break;
        case StmtKind::stop_loop: return Flow::stop_loop;
        case StmtKind::next_round: return Flow::next_round;
        case StmtKind::block: return execute(statement.body, frame);
        case StmtKind::unsupported:
            fail(statement.where,
                 "this statement is not supported in a kernel: " + quoted(module_, statement.where));
            break;
    }
    return stopped() ? Flow::stop : Flow::next;
}

void Evaluator::assign(const Expr& target, const Value& value, Frame& frame) {
    if (target.kind == ExprKind::name && target.slot >= 0) {
        frame.slots[target.slot] = value;
        return;
    }
    if (target.kind == ExprKind::tuple) {
        const auto size = static_cast<std::int32_t>(target.kids.size());
        if (value.kind == ValueKind::tuple && value.tuple->size != size) {
            fail(target.where,
                 std::to_string(value.tuple->size) + " values for " + std::to_string(size) + " variables");
            return;
        }
        for (std::int32_t i = 0; i < size; ++i) {
            Value item = value;  // of an unknown value every part is unknown
            if (value.kind == ValueKind::tuple) {
                item = value.tuple->items[i];
                item.taint |= value.taint;
            } else if (value.kind != ValueKind::opaque) {
                fail(target.where,
                     "the value assigned to " + quoted(module_, target.where) + " is not a tuple");
                return;
            }
            assign(*target.kids[static_cast<std::size_t>(i)], item, frame);
        }
        return;
    }
    if (target.kind == ExprKind::subscript || target.kind == ExprKind::attribute) {
        fail(target.where,
             "assignment to " + quoted(module_, target.where) + " is not supported in a kernel");
        return;
    }
    fail(target.where, "cannot assign to " + quoted(module_, target.where));
}

Evaluator::Flow Evaluator::branch(const Stmt& statement, Frame& frame) {
    const Value condition = evaluate(*statement.value, frame);
    if (stopped()) return Flow::stop;
    const std::optional<bool> taken = truth(*statement.value, condition);
    if (stopped()) return Flow::stop;
    const std::uint64_t control = control_;
    control_ |= condition.taint & ~count_bits_;
    Flow flow = Flow::next;
    if (taken) {
        flow = execute(*taken ? statement.body : statement.otherwise, frame);
    } else {
        // Which way depends on loaded data: both are run, and what they leave different is unknown.
        const std::size_t count = frame.function->slots.size();
        Value* before = arena_.make<Value>(count);
        std::copy_n(frame.slots, count, before);
        const Flow first = execute(statement.body, frame);
        if (first == Flow::stop) return control_ = control, Flow::stop;
        Value* after = arena_.make<Value>(count);
        std::copy_n(frame.slots, count, after);
        const Value result = frame.result;
        std::copy_n(before, count, frame.slots);
        const Flow second = execute(statement.otherwise, frame);
        if (second == Flow::stop) return control_ = control, Flow::stop;
        for (std::size_t i = 0; i < count; ++i) {
            if (!equal(after[i], frame.slots[i]))
                frame.slots[i] = opaque(*statement.value, after[i].taint | frame.slots[i].taint);
        }
        if (first == Flow::returned && second == Flow::returned) {
            if (!equal(result, frame.result)) frame.result = opaque(*statement.value, 0);
            flow = Flow::returned;
        }
    }
    control_ = control;
    return stopped() ? Flow::stop : flow;
}

bool Evaluator::has_stores(const std::vector<Stmt*>& body) const {
    std::vector<const std::vector<Stmt*>*> bodies{&body};
    std::set<std::int32_t> seen;
    for (std::size_t i = 0; i < bodies.size(); ++i) {
        for (const Stmt* s : flattened(*bodies[i])) {
            for (const Expr* e : flattened(s->value)) {
                if (e->kind != ExprKind::call && e->kind != ExprKind::method) continue;
                if (e->builtin == Builtin::store || e->builtin == Builtin::atomic ||
                    e->builtin == Builtin::descriptor_store || e->text == "scatter") {
                    return true;
                }
                if (e->function >= 0 && seen.insert(e->function).second) {
                    bodies.push_back(&module_.functions[static_cast<std::size_t>(e->function)].body);
                }
            }
        }
    }
    return false;
}

Evaluator::Flow Evaluator::for_loop(const Stmt& statement, Frame& frame) {
    const Value over = evaluate(*statement.value, frame);
    if (stopped()) return Flow::stop;
    if (over.kind == ValueKind::tuple) {
        for (std::int32_t i = 0; i < over.tuple->size; ++i) {
            assign(*statement.target, over.tuple->items[i], frame);
            const Flow flow = stopped() ? Flow::stop : execute(statement.body, frame);
            if (flow == Flow::stop_loop) break;
            if (flow == Flow::stop || flow == Flow::returned) return flow;
        }
        return Flow::next;
    }
    if (over.kind != ValueKind::iterable) {
        fail(statement.value->where,
             "a kernel's loop must run over range(…), not " + quoted(module_, statement.value->where));
        return Flow::stop;
    }
    const Iterable& range = *over.iterable;
    if (!range.known) {
        fail(statement.value->where, "how often the loop over " + quoted(module_, statement.value->where) +
                                         " runs depends on loaded data; only loops whose bounds follow from "
                                         "the arguments can be followed");
        return Flow::stop;
    }
    const Affine span = range.stop - range.start;
    if (!span.is_constant()) return (void)not_affine(*statement.value), Flow::stop;
    const std::int64_t step_size = range.step > 0 ? range.step : wrap_multiply(range.step, -1);
    const std::int64_t length = range.step > 0 ? span.constant : wrap_multiply(span.constant, -1);
    const std::int64_t trips = length <= 0 ? 0 : (length - 1) / step_size + 1;
    const bool over_tiles =
        frame.is_kernel && !in_tile_loop_ && trips_.empty() && (over.taint & program_bits_) != 0;
    if (over_tiles && has_stores(statement.body)) {
        if (range.step <= 0) {
            fail(statement.value->where, "a loop over tiles must count upwards");
            return Flow::stop;
        }
        found.bound_taint |= over.taint;
        return tile_loop(statement, frame, range);
    }
    if (trips == 0) return Flow::next;
    constexpr std::int64_t kMostTrips = std::int64_t{1} << 40;
    if (trips > kMostTrips || span.constant > kMostTrips || span.constant < -kMostTrips ||
        step_size > kMostTrips) {
        fail(statement.value->where,
             quoted(module_, statement.value->where) + " runs for longer than any launch");
        return Flow::stop;
    }
    around_.push_back(statement.loop);
    LoopRecord& record = loops[static_cast<std::size_t>(statement.loop)];
    if (silent_ == 0) {
        record.statement = &statement;
        record.in_kernel = frame.is_kernel;
        if (record.trips >= 0 && record.trips != trips) record.same_trips = false;
        record.trips = std::max(record.trips, trips);
    }
    const bool symbolic =
        !range.unrolled && trips_.size() < kSymbols && statement.target->kind == ExprKind::name;
    const Flow flow =
        symbolic ? all_rounds(statement, frame, range, trips) : each_round(statement, frame, range, trips);
    around_.pop_back();
    return flow;
}

Evaluator::Flow Evaluator::each_round(const Stmt& statement, Frame& frame, const Iterable& range,
                                      std::int64_t trips) {
    for (std::int64_t i = 0; i < trips; ++i) {
        const Affine at = range.start + wrap_multiply(range.step, i);
        Value index = make_integer(at.constant, true, 0);
        if (!at.is_constant()) {
            Block* block = arena_.make<Block>();
            block->base = at;
            index.kind = ValueKind::block;
            index.block = block;
        }
        index.runtime = !range.unrolled;
        assign(*statement.target, index, frame);
        const Flow flow = stopped() ? Flow::stop : execute(statement.body, frame);
        if (flow == Flow::stop_loop) break;
        if (flow == Flow::stop || flow == Flow::returned) return flow;
        if (!step(statement.where)) return Flow::stop;
    }
    return Flow::next;
}

// Runs the body once with the iteration as an unknown. What is carried around the loop is guessed to advance
// by a constant; the guess is proven when the body, started from the guess for iteration i, ends in that for
// i + 1.
Evaluator::Flow Evaluator::all_rounds(const Stmt& statement, Frame& frame, const Iterable& range,
                                      std::int64_t trips) {
    const int symbol = static_cast<int>(trips_.size());
    const std::size_t count = statement.assigned.size();
    Value* entry = arena_.make<Value>(count);
    for (std::size_t i = 0; i < count; ++i) {
        Value& slot = frame.slots[statement.assigned[i]];
        if (!statement.carried[i]) slot = Value{};  // left over from an earlier tile
        entry[i] = slot;
    }
    const std::size_t touched = found.touched.size(), advances = advances_.size();
    const std::uint64_t control = control_;
    trips_.push_back(trips);
    symbol_loops_.push_back(statement.loop);

    Value index;
    index.kind = ValueKind::block;
    index.runtime = true;
    Block* block = arena_.make<Block>();
    block->base = range.start;
    block->base.slope[symbol] = range.step;
    index.block = block;

    const auto leave = [&] {
        trips_.pop_back();
        symbol_loops_.pop_back();
        control_ = control;
    };
    const auto once = [&]() -> bool {
        frame.slots[statement.target->slot] = index;
        const Flow flow = execute(statement.body, frame);
        return flow == Flow::next || (flow == Flow::next_round);
    };
    std::vector<Guess>& guesses = guesses_[static_cast<std::size_t>(statement.loop)];
    bool proven = false;
    for (int attempt = guesses.empty() ? 1 : 0; attempt < 2 && !proven; ++attempt) {
        bool possible = true;
        if (attempt == 1) {
            // Probe: one silent run from the values at entry.
            ++silent_;
            possible = once();
            --silent_;
            if (error_) return leave(), Flow::stop;
            possible = possible && !not_affine_;
            guesses.assign(count, Guess{});
            for (std::size_t i = 0; i < count && possible; ++i) {
                if (statement.assigned[i] == statement.target->slot) continue;
                const auto made = guess(entry[i], frame.slots[statement.assigned[i]]);
                possible = made.has_value();
                if (made) guesses[i] = *made;
            }
        }
        if (possible) {
            for (std::size_t i = 0; i < count; ++i) {
                if ((guesses[i].kind == Guess::Kind::absent) != (entry[i].kind == ValueKind::undefined)) {
                    possible = statement.assigned[i] == statement.target->slot;
                    if (!possible) break;
                }
                Value& slot = frame.slots[statement.assigned[i]];
                slot = advanced(entry[i], guesses[i], symbol, 0);
                if (guesses[i].kind == Guess::Kind::lost) slot = opaque(*statement.value, entry[i].taint);
            }
            possible = possible && once() && !not_affine_;
            if (error_) return leave(), Flow::stop;
            for (std::size_t i = 0; i < count && possible; ++i) {
                const Guess& g = guesses[i];
                const Value& end = frame.slots[statement.assigned[i]];
                if (g.kind == Guess::Kind::absent || g.kind == Guess::Kind::lost ||
                    statement.assigned[i] == statement.target->slot)
                    continue;
                possible = equal(end, advanced(entry[i], g, symbol, 1));
            }
            proven = possible;
        }
        if (!proven) {
            not_affine_ = false;
            found.touched.resize(touched);
            advances_.resize(advances);
            guesses.clear();
            for (std::size_t i = 0; i < count; ++i) frame.slots[statement.assigned[i]] = entry[i];
        }
    }
    leave();
    if (!proven) return each_round(statement, frame, range, trips);
    if (silent_ == 0) {
        std::size_t kept = advances;
        for (std::size_t i = advances; i < advances_.size(); ++i) {
            if (advances_[i].first != statement.loop) {
                advances_[kept++] = advances_[i];
                continue;
            }
            const auto& [param, advance] = advances_[i].second;
            auto& slices = loops[static_cast<std::size_t>(statement.loop)].slices;
            const auto [slice, is_new] = slices.try_emplace(param, advance);
            Advance& known = slice->second;
            if (advance.several || !(known == advance)) known = Advance{};
        }
        advances_.resize(kept);
    }
    // After the loop, everything has the value that the last iteration left.
    for (const std::int32_t slot : statement.assigned) {
        frame.slots[slot] = substituted(frame.slots[slot], symbol, trips - 1);
    }
    return Flow::next;
}

Evaluator::Flow Evaluator::while_loop(const Stmt& statement, Frame& frame) {
    for (std::int64_t i = 0;; ++i) {
        const Value condition = evaluate(*statement.value, frame);
        if (stopped()) return Flow::stop;
        const std::optional<bool> go = truth(*statement.value, condition);
        if (stopped()) return Flow::stop;
        if (!go) {
            fail(statement.value->where, "whether the loop goes on depends on loaded data: " +
                                             quoted(module_, statement.value->where));
            return Flow::stop;
        }
        const bool over_tiles =
            frame.is_kernel && trips_.empty() && (condition.taint & program_bits_) != 0 &&
            (found.tile_loop == &statement || (!in_tile_loop_ && has_stores(statement.body)));
        // while tile_id < num_tiles: …; tile_id += step
        const Expr* compared =
            statement.value->kind == ExprKind::compare ? statement.value->kids[0] : nullptr;
        const bool names_id = compared != nullptr && compared->kind == ExprKind::name &&
                              compared->slot >= 0 && frame.slots[compared->slot].kind == ValueKind::integer;
        if (over_tiles && names_id) {
            if (i == 0) {
                if (found.tile_loop == nullptr) found.tile_loop = &statement;
                if (found.tile_loop != &statement) {
                    fail(statement.where, "the kernel has two loops over tiles; only one can be reordered");
                    return Flow::stop;
                }
                found.bound_taint |= condition.taint;
                note_carried_ids(statement, frame);
                found.tile_start = frame.slots[compared->slot].integer;
                const Value bound = evaluate(*statement.value->kids[1], frame);
                found.tile_stop = bound.kind == ValueKind::integer ? bound.integer : 0;
                found.tile_step = 0;
            }
            if (!*go) break;
            const std::int64_t id = frame.slots[compared->slot].integer;
            const Flow flow = one_tile(statement, frame, id);
            if (i == 0 && frame.slots[compared->slot].kind == ValueKind::integer)
                found.tile_step = wrap_add(frame.slots[compared->slot].integer, wrap_multiply(id, -1));
            if (flow == Flow::stop_loop) break;
            if (flow == Flow::stop || flow == Flow::returned) return flow;
            continue;
        }
        if (!*go) break;
        const Flow flow = execute(statement.body, frame);
        if (flow == Flow::stop_loop) break;
        if (flow == Flow::stop || flow == Flow::returned) return flow;
    }
    return Flow::next;
}

Evaluator::Flow Evaluator::tile_loop(const Stmt& statement, Frame& frame, const Iterable& range) {
    if (found.tile_loop != nullptr && found.tile_loop != &statement) {
        fail(statement.where, "the kernel has two loops over tiles; only one can be reordered");
        return Flow::stop;
    }
    if (statement.target->kind != ExprKind::name) {
        fail(statement.target->where, "the loop over tiles needs one variable");
        return Flow::stop;
    }
    found.tile_loop = &statement;
    found.tile_start = range.start.constant;
    found.tile_stop = range.stop.constant;
    found.tile_step = range.step;
    const std::uint64_t bit = new_source(*statement.target, {.kind = TaintSource::Kind::tile_loop});
    note_carried_ids(statement, frame);
    for (std::int64_t id = range.start.constant; id < range.stop.constant; id = wrap_add(id, range.step)) {
        frame.slots[statement.target->slot] = make_integer(id, true, bit);
        const Flow flow = one_tile(statement, frame, id);
        if (flow == Flow::stop_loop) break;
        if (flow == Flow::stop || flow == Flow::returned) return flow;
        if (!step(statement.where)) return Flow::stop;
    }
    return Flow::next;
}

Evaluator::Flow Evaluator::one_tile(const Stmt& statement, Frame& frame, std::int64_t id) {
    const std::size_t outer = tile_begin_;
    in_tile_loop_ = true;
    begin_tile(id);
    const Flow flow = execute(statement.body, frame);
    if (flow != Flow::stop) end_tile(frame);
    in_tile_loop_ = false;
    tile_begin_ = outer;
    return stopped() ? Flow::stop : flow;
}

/// Variables carried around the tile loop that started from the program id may be tile ids too: each place
/// that reads one, other than its own increment, becomes a source.
void Evaluator::note_carried_ids(const Stmt& statement, Frame& frame) {
    for (const std::int32_t slot : statement.assigned) {
        if (statement.kind == StmtKind::for_loop && slot == statement.target->slot) continue;
        const Value& value = frame.slots[slot];
        if (value.kind != ValueKind::integer || (value.taint & program_bits_) == 0) continue;
        for (const Stmt* s : flattened(statement.body)) {
            const bool is_own = (s->kind == StmtKind::assign || s->kind == StmtKind::augment) &&
                                s->target->kind == ExprKind::name && s->target->slot == slot;
            if (is_own) continue;
            for (const Expr* e : flattened(s->value)) {
                if (e->kind == ExprKind::name && e->slot == slot)
                    (void)new_source(*e, {.kind = TaintSource::Kind::carried_id});
            }
        }
    }
}

void Evaluator::begin_tile(std::int64_t id) {
    tile_id_ = id;
    tile_begin_ = found.touched.size();
    coord_.fill(-1);
}

void Evaluator::end_tile(Frame& frame) {
    const auto number = [&](const Expr* e) -> std::optional<std::int64_t> {
        const Value value = evaluate(*e, frame);
        if (stopped()) return std::nullopt;
        if (value.kind == ValueKind::integer) return value.integer;
        fail(e->where,
             quoted(module_, e->where) + " in the directive is not a whole number at the end of the tile");
        return std::nullopt;
    };
    for (const Directive& directive : directives_) {
        if (directive.kind == DirectiveKind::reads || directive.kind == DirectiveKind::writes) {
            const auto param = static_cast<std::size_t>(directive.param);
            const bool write = directive.kind == DirectiveKind::writes;
            (write ? param_written : param_read)[param] = true;
            const TensorView& tensor = tensors[param];
            if (tensor.shape.empty()) continue;
            if (directive.ranges.size() != tensor.shape.size()) {
                fail(directive.where, "the footprint has " + std::to_string(directive.ranges.size()) +
                                          " axes, tensor `" + kernel_.parameters[param].name + "` has " +
                                          std::to_string(tensor.shape.size()));
                return;
            }
            TouchedBox touched{directive.param, write, {}};
            bool empty = false;
            for (std::size_t d = 0; d < directive.ranges.size(); ++d) {
                plan::Interval& interval = touched.box[d];
                interval = {0, tensor.shape[d]};
                if (directive.ranges[d].begin != nullptr) {
                    const auto begin = number(directive.ranges[d].begin);
                    if (!begin) return;
                    if (directive.ranges[d].single)
                        interval.end = std::min(interval.end, wrap_add(*begin, 1));
                    interval.begin = std::max<std::int64_t>(0, *begin);
                }
                if (directive.ranges[d].end != nullptr) {
                    const auto end = number(directive.ranges[d].end);
                    if (!end) return;
                    interval.end = std::min(interval.end, *end);
                }
                empty = empty || interval.empty();
            }
            if (!empty) found.touched.push_back(touched);
        } else if (directive.kind == DirectiveKind::pid_map) {
            std::size_t axis = 0;
            for (const auto& [name, variable] : directive.mapping) {
                if (variable == nullptr || axis >= kMostAxes)
                    continue;  // lo..hi: an axis that the tile loops over
                const auto value = number(variable);
                if (!value) return;
                coord_[axis++] = *value;
            }
        }
    }
    found.tiles.push_back({tile_id_, linear_program_, tile_begin_, found.touched.size(), coord_});
}

bool Evaluator::equal(const Value& a, const Value& b) const {
    if (a.kind != b.kind) return false;
    switch (a.kind) {
        case ValueKind::undefined:
        case ValueKind::none: return true;
        case ValueKind::boolean: return a.boolean == b.boolean;
        case ValueKind::integer:
        case ValueKind::missing: return a.integer == b.integer;
        case ValueKind::real: return a.real == b.real;
        case ValueKind::text: return *a.text == *b.text;
        case ValueKind::block:
        case ValueKind::pointer: {
            const Block &x = *a.block, &y = *b.block;
            if (&x == &y) return true;
            if (x.param != y.param || x.rank != y.rank || !(x.base == y.base)) return false;
            for (std::int32_t j = 0; j < x.rank; ++j) {
                if (x.axes[j].extent != y.axes[j].extent || x.axes[j].count != y.axes[j].count) return false;
                if (x.axes[j].pieces == y.axes[j].pieces) continue;
                for (std::int32_t p = 0; p < x.axes[j].count; ++p) {
                    const Piece &u = x.axes[j].pieces[p], &v = y.axes[j].pieces[p];
                    if (u.begin != v.begin || u.end != v.end || u.step != v.step || !(u.base == v.base))
                        return false;
                }
            }
            return true;
        }
        case ValueKind::descriptor:
        case ValueKind::block_pointer: {
            const Descriptor &x = *a.descriptor, &y = *b.descriptor;
            return &x == &y || (x.param == y.param && x.rank == y.rank && x.host == y.host &&
                                x.base == y.base && x.shape == y.shape && x.strides == y.strides &&
                                x.block == y.block && x.offsets == y.offsets);
        }
        case ValueKind::tuple:
            if (a.tuple->size != b.tuple->size) return false;
            for (std::int32_t i = 0; i < a.tuple->size; ++i) {
                if (!equal(a.tuple->items[i], b.tuple->items[i])) return false;
            }
            return true;
        case ValueKind::lost_pointer: return a.lost->param == b.lost->param;
        case ValueKind::opaque: return true;  // unknown before, unknown after
        case ValueKind::mask: return a.mask == b.mask;
        case ValueKind::iterable: return a.iterable == b.iterable;
    }
    return false;
}

std::optional<Evaluator::Guess> Evaluator::guess(const Value& before, const Value& after) const {
    Guess made;
    if (before.kind == ValueKind::undefined) return made;
    made.kind = Guess::Kind::same;
    if (equal(before, after)) return made;
    made.kind = Guess::Kind::advance;
    if (before.kind == ValueKind::integer && after.kind == ValueKind::integer) {
        made.delta[0] = wrap_add(after.integer, wrap_multiply(before.integer, -1));
        return made;
    }
    if ((before.kind == ValueKind::block || before.kind == ValueKind::pointer) && after.kind == before.kind) {
        const Affine delta = after.block->base - before.block->base;
        if (!delta.is_constant()) return std::nullopt;
        made.delta[0] = delta.constant;
        return made;
    }
    if (before.kind == ValueKind::block_pointer && after.kind == before.kind) {
        for (int d = 0; d < kRank; ++d) {
            const Affine delta = after.descriptor->offsets[d] - before.descriptor->offsets[d];
            if (!delta.is_constant()) return std::nullopt;
            made.delta[d] = delta.constant;
        }
        return made;
    }
    made.kind = Guess::Kind::lost;
    const bool data =
        after.kind == ValueKind::opaque || after.kind == ValueKind::real || after.kind == ValueKind::mask;
    const bool was_data = before.kind != ValueKind::pointer && before.kind != ValueKind::lost_pointer;
    if (data && was_data) return made;
    return std::nullopt;
}

/// The carried value at iteration symbol + rounds, when it was `start` at iteration 0.
Value Evaluator::advanced(const Value& start, const Guess& guess, int symbol, std::int64_t rounds) {
    if (guess.kind != Guess::Kind::advance) return start;
    Value result = start;
    const auto move = [&](Affine a, std::int64_t delta) {
        a.constant = wrap_add(a.constant, wrap_multiply(delta, rounds));
        a.slope[symbol] = wrap_add(a.slope[symbol], delta);
        return a;
    };
    if (start.kind == ValueKind::integer) {
        Block* block = arena_.make<Block>();
        block->base = move({start.integer, {}}, guess.delta[0]);
        result.kind = ValueKind::block;
        result.block = block;
    } else if (start.kind == ValueKind::block || start.kind == ValueKind::pointer) {
        Block* block = arena_.make<Block>();
        *block = *start.block;
        block->base = move(block->base, guess.delta[0]);
        result.block = block;
    } else if (start.kind == ValueKind::block_pointer) {
        Descriptor* descriptor = arena_.make<Descriptor>();
        *descriptor = *start.descriptor;
        for (int d = 0; d < kRank; ++d) descriptor->offsets[d] = move(descriptor->offsets[d], guess.delta[d]);
        result.descriptor = descriptor;
    }
    return result;
}

Value Evaluator::substituted(const Value& value, int symbol, std::int64_t round) {
    Value result = value;
    const auto fix = [&](Affine a) {
        a.constant = wrap_add(a.constant, wrap_multiply(a.slope[symbol], round));
        a.slope[symbol] = 0;
        return a;
    };
    switch (value.kind) {
        case ValueKind::block:
        case ValueKind::pointer: {
            bool moves = value.block->base.slope[symbol] != 0;
            for (std::int32_t j = 0; j < value.block->rank; ++j) {
                for (std::int32_t p = 0; p < value.block->axes[j].count; ++p) {
                    moves = moves || value.block->axes[j].pieces[p].base.slope[symbol] != 0;
                }
            }
            if (!moves) return result;
            Block* block = arena_.make<Block>();
            *block = *value.block;
            block->base = fix(block->base);
            for (std::int32_t j = 0; j < block->rank; ++j) {
                BlockAxis& axis = block->axes[j];
                Piece* pieces = arena_.make<Piece>(static_cast<std::size_t>(axis.count));
                for (std::int32_t p = 0; p < axis.count; ++p) {
                    pieces[p] = axis.pieces[p];
                    pieces[p].base = fix(pieces[p].base);
                }
                axis.pieces = pieces;
            }
            if (value.kind == ValueKind::pointer) {
                result.block = block;
                return result;
            }
            const Value plain = from_block(block);
            result.kind = plain.kind;
            if (plain.kind == ValueKind::integer)
                result.integer = plain.integer;
            else
                result.block = plain.block;
            return result;
        }
        case ValueKind::mask: {
            Mask* mask = arena_.make<Mask>();
            *mask = *value.mask;
            for (MaskAxis& axis : mask->axes) {
                for (Affine& a : axis.lower) a = fix(a);
                for (Affine& a : axis.upper) a = fix(a);
            }
            result.mask = mask;
            return result;
        }
        case ValueKind::descriptor:
        case ValueKind::block_pointer: {
            Descriptor* descriptor = arena_.make<Descriptor>();
            *descriptor = *value.descriptor;
            descriptor->base = fix(descriptor->base);
            for (Affine& a : descriptor->offsets) a = fix(a);
            result.descriptor = descriptor;
            return result;
        }
        case ValueKind::tuple: {
            Tuple* tuple = arena_.make<Tuple>();
            tuple->size = value.tuple->size;
            tuple->items = arena_.make<Value>(static_cast<std::size_t>(tuple->size));
            for (std::int32_t i = 0; i < tuple->size; ++i)
                tuple->items[i] = substituted(value.tuple->items[i], symbol, round);
            result.tuple = tuple;
            return result;
        }
        default: return result;
    }
}

}  // namespace syncopate::kernel
