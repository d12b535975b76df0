#include "recipes.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <stdexcept>
#include <unordered_map>

#include <pthread.h>

namespace syncopate::torch_ops {
namespace {

/// So many calls are known at once: who makes rows of every number would else keep them all.
constexpr std::size_t kMostKnown = 8192;

std::shared_mutex mutex;
std::unordered_map<std::string, std::shared_ptr<Known>>& table() {
    static auto* made =
        new std::unordered_map<std::string, std::shared_ptr<Known>>;  // never destroyed: Python's are in it
    return *made;
}
std::map<std::pair<std::string, std::string>, std::shared_ptr<std::atomic<std::uint64_t>>>& counters() {
    static auto* made =
        new std::map<std::pair<std::string, std::string>, std::shared_ptr<std::atomic<std::uint64_t>>>;
    return *made;
}
std::atomic<std::uint64_t> now{1};

/// A fork may come while another thread, which its child does not have, holds the lock.
[[maybe_unused]] const int of_forks =
    pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { new (&mutex) std::shared_mutex; });

void drop_if(const std::function<bool(const Recipe&)>& gone) {
    std::vector<std::shared_ptr<Known>>
        dropped;  // destroyed without the lock: they may hold Python's objects
    {
        const std::unique_lock lock(mutex);
        for (auto it = table().begin(); it != table().end();) {
            if (!gone(it->second->recipe)) {
                ++it;
                continue;
            }
            dropped.push_back(std::move(it->second));
            it = table().erase(it);
        }
    }
}

bool is_contiguous(const Tensor& tensor) {
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    std::int64_t apart = 1;
    for (std::size_t axis = sizes.size(); axis-- > 0; apart *= sizes[axis]) {
        if (sizes[axis] == 0) return true;
        if (sizes[axis] > 1 && strides[axis] != apart) return false;
    }
    return true;
}

/// Whether TMA reads this matrix where it is, or its transpose if that is how it lies: rows contiguous, none over another, each
/// beginning at a multiple of 16 bytes.
bool has_rows(const Tensor& tensor) {
    const auto sizes = tensor.sizes(), strides = tensor.strides();
    if (sizes.size() != 2 || sizes[0] == 0 || sizes[1] == 0) return true;
    const auto element = static_cast<std::int64_t>(torch_api().aoti_torch_dtype_element_size(tensor.dtype()));
    const auto fits = [&](std::size_t row, std::size_t column) {
        const bool apart = strides[row] >= sizes[column] || sizes[row] <= 1;
        return apart && strides[column] == 1 && strides[row] * element % 16 == 0;
    };
    return (fits(0, 1) || fits(1, 0)) && tensor.address() % 16 == 0;
}

Tensor cloned(const Tensor& tensor) {
    StableIValue stack[2] = {give_tensor(tensor),
                             reinterpret_cast<StableIValue>(new StableIValue(static_cast<StableIValue>(
                                 torch_api().aoti_torch_memory_format_contiguous_format())))};
    call("aten::clone", "", stack);
    return Tensor(reinterpret_cast<AtenTensorHandle>(stack[0]));
}

/// The variables of one call: borrowed ones, and those that it makes.
class Variables {
public:
    Variables(const Known& known, std::span<const Tensor* const> inputs)
        : borrowed_(static_cast<std::size_t>(known.recipe.variables)),
          made_(static_cast<std::size_t>(known.recipe.variables)) {
        std::copy(inputs.begin(), inputs.end(), borrowed_.begin());
        for (std::size_t i = 0; i < known.constants.size(); ++i)
            borrowed_[static_cast<std::size_t>(known.recipe.constants[i].first)] = &known.constants[i];
    }
    const Tensor& at(int number) const {
        const auto index = static_cast<std::size_t>(number);
        const Tensor* found = made_[index] ? &made_[index] : borrowed_[index];
        if (found == nullptr || !*found) throw std::runtime_error("a recipe reads what it has not made");
        return *found;
    }
    [[nodiscard]] bool has(int number) const {
        const auto index = static_cast<std::size_t>(number);
        return made_[index] || (borrowed_[index] != nullptr && *borrowed_[index]);
    }
    void set(int number, Tensor made) { made_[static_cast<std::size_t>(number)] = std::move(made); }
    Tensor result(int number) {
        Tensor& made = made_[static_cast<std::size_t>(number)];
        return made ? std::move(made) : at(number).another();
    }

private:
    static constexpr std::size_t kUsual = 8;
    Few<const Tensor*, kUsual> borrowed_;
    Few<Tensor, kUsual> made_;
};

StableIValue given(const StepArgument& argument, const Variables& variables) {
    using Kind = StepArgument::Kind;
    StableIValue value = 0;
    switch (argument.kind) {
        case Kind::variable: value = give_tensor(variables.at(static_cast<int>(argument.number))); break;
        case Kind::integer: value = static_cast<StableIValue>(argument.number); break;
        case Kind::truth: value = argument.number != 0 ? 1 : 0; break;
        case Kind::text: value = give_text(argument.text); break;
        case Kind::integers: {
            StableListHandle list = nullptr;
            require(torch_api().torch_new_list_reserve_size(argument.numbers.size(), &list), "making a list");
            for (const std::int64_t number : argument.numbers)
                require(torch_api().torch_list_push_back(list, static_cast<StableIValue>(number)),
                        "making a list");
            value = reinterpret_cast<StableIValue>(list);
            break;
        }
        case Kind::nothing: return 0;
    }
    return argument.optional ? reinterpret_cast<StableIValue>(new StableIValue(value)) : value;
}

void call_step(const Step& step, Variables& variables) {
    std::vector<StableIValue> stack;
    for (const StepArgument& argument : step.arguments) stack.push_back(given(argument, variables));
    if (stack.empty()) stack.push_back(0);
    call(step.name.c_str(), step.overload.c_str(), stack);
    Tensor result(reinterpret_cast<AtenTensorHandle>(stack[0]));
    if (step.result >= 0) variables.set(step.result, std::move(result));
}

bool run_step(const Known& known, const Step& step, const Variables& variables, std::uint64_t stream,
              const std::string& module) {
    constexpr std::size_t kMost = 16;
    TensorArgument tensors[kMost];
    std::int64_t turned[kMost][4];
    if (step.operands.size() > kMost) throw std::runtime_error("an executable of too many operands");
    for (std::size_t i = 0; i < step.operands.size(); ++i) {
        const int number = step.operands[i];
        const Tensor& tensor = variables.at(number < 0 ? -1 - number : number);
        const auto sizes = tensor.sizes(), strides = tensor.strides();
        tensors[i] = {tensor.address(), sizes.data(), strides.data(), sizes.size()};
        if (number >= 0) continue;
        std::int64_t* both = turned[i];
        both[0] = sizes[1], both[1] = sizes[0], both[2] = strides[1], both[3] = strides[0];
        tensors[i].sizes = both, tensors[i].strides = both + 2;
    }
    const RunExecutable run = run_executable.load();
    return run != nullptr && run(known.recipe.executable, tensors, step.operands.size(), stream, module);
}

}  // namespace

std::atomic<RunExecutable> run_executable{nullptr};

Known::Known(Recipe made) : recipe(std::move(made)) {
    for (const auto& [number, handle] : recipe.constants)
        constants.emplace_back(static_cast<AtenTensorHandle>(handle));
    for (const Tensor& constant : constants) constant.ask();
}

Known::~Known() = default;

std::optional<Results> carry_out(Known& known, std::span<const Tensor* const> inputs, std::uint64_t stream,
                                 const std::string& module) {
    const Recipe& recipe = known.recipe;
    Variables variables(known, inputs);
    for (const Step& step : recipe.steps) {
        switch (step.kind) {
            case Step::Kind::empty: {
                const Tensor& of = variables.at(step.of);
                variables.set(step.result, empty(step.sizes, step.dtype < 0 ? of.dtype() : step.dtype,
                                                 of.device_type(), of.device_index()));
                break;
            }
            case Step::Kind::rows:
                if (!has_rows(variables.at(step.of))) variables.set(step.of, cloned(variables.at(step.of)));
                break;
            case Step::Kind::contiguous:
                if (!is_contiguous(variables.at(step.of)))
                    variables.set(step.of, cloned(variables.at(step.of)));
                break;
            case Step::Kind::run:
                if (!run_step(known, step, variables, stream, module)) return std::nullopt;
                break;
            case Step::Kind::call: call_step(step, variables); break;
        }
    }
    Results results;
    for (const int number : recipe.results) results.push_back(variables.result(number));
    return results;
}

std::shared_ptr<Known> find(const std::string& key) {
    const std::shared_lock lock(mutex);
    const auto found = table().find(key);
    return found == table().end() ? nullptr : found->second;
}

void add(const std::string& key, Recipe recipe) {
    auto known = std::make_shared<Known>(std::move(recipe));
    std::vector<std::shared_ptr<Known>> gone;
    const std::unique_lock lock(mutex);
    auto& calls = counters()[{known->recipe.op, known->recipe.outcome}];
    if (calls == nullptr) calls = std::make_shared<std::atomic<std::uint64_t>>(0);
    known->calls = calls;
    if (table().size() >= kMostKnown) {
        for (auto& [_, one] : table()) gone.push_back(std::move(one));
        table().clear();
    }
    std::shared_ptr<Known>& place = table()[key];
    gone.push_back(std::exchange(place, std::move(known)));
}

void drop(std::uint64_t token) {
    drop_if([&](const Recipe& recipe) { return recipe.token == token; });
}

void drop_group(const char* name) {
    drop_if([&](const Recipe& recipe) { return recipe.group == name; });
}

void drop_all() {
    drop_if([](const Recipe&) { return true; });
}

std::uint64_t last_use(std::uint64_t token) {
    const std::shared_lock lock(mutex);
    std::uint64_t last = 0;
    for (const auto& [_, known] : table()) {
        if (known->recipe.token == token) last = std::max(last, known->used.load(std::memory_order_relaxed));
    }
    return last;
}

std::uint64_t tick() { return now.fetch_add(1, std::memory_order_relaxed); }

void count(Known& known) {
    known.used.store(tick(), std::memory_order_relaxed);
    known.calls->fetch_add(1, std::memory_order_relaxed);
}

std::vector<Count> counts() {
    const std::shared_lock lock(mutex);
    std::vector<Count> all;
    for (const auto& [name, calls] : counters()) {
        if (const std::uint64_t made = calls->load(); made > 0)
            all.push_back({name.first, name.second, made});
    }
    return all;
}

void clear_counts() {
    const std::shared_lock lock(mutex);
    for (const auto& [_, calls] : counters()) calls->store(0);
}

}  // namespace syncopate::torch_ops
