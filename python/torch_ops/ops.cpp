// torch.ops.syncopate.*: each op has four names, of which users know the first.
//
//   NAME            by grad mode to one of the next two; torch decomposes it wherever it traces (CompositeImplicitAutograd)
//   NAME_raw        without gradients: what graphs for inference call
//   NAME_recorded   the same kernel, with gradients, which are Python's (python/syncopate/torch/gradients.py)
//   NAME_setup      Python's: sets up and makes the first call of its kind, and leaves a recipe
//
// A call finds its recipe by all that it depends on: op, group, shapes, strides, dtypes, options, device, stream. Errors of
// the calls inside the first name come out of torch's C interface as a number only; so they wait in the thread
// for the outermost one, which throws them.
#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <set>
#include <shared_mutex>
#include <stdexcept>
#include <string_view>

#include <dlfcn.h>
#include <pthread.h>

#include "interface.hpp"
#include "recipes.hpp"
#include "values.hpp"

namespace syncopate::torch_ops {
namespace {

struct Op {
    const char* name;
    const char* arguments;  ///< of the schema
    const char* result;
    const char* letters;  ///< of the arguments (values.hpp)
    int module;           ///< place of the user's module, which only errors look at
    int rows;             ///< place of the graph's report
    int group;            ///< place of the group's name
    int activation;       ///< likewise; -1: it has none
};

constexpr const char* kTensor = "Tensor";
constexpr const char* kTensors = "Tensor[]";
constexpr const char* kPair = "(Tensor, Tensor)";

constexpr std::array<Op, 9> kOps{{
    {"all_gather_matmul",
     "Tensor x, Tensor w, str group_name, Tensor? bias=None, *, str activation='', int axis=0, str "
     "module='', str rows=''",
     kTensor, "TTstsiss", 6, 7, 2, 4},
    {"all_gather_matmuls",
     "Tensor x, Tensor[] ws, str group_name, Tensor[]? biases=None, *, bool return_gathered=False, int "
     "axis=0, "
     "str module='', str rows=''",
     kTensors, "TLslbiss", 6, 7, 2, -1},
    {"matmul_reduce_scatter",
     "Tensor x, Tensor w, str group_name, Tensor? bias=None, *, str module='', str rows=''", kTensor,
     "TTstss", 4, 5, 2, -1},
    {"matmul_all_reduce",
     "Tensor x, Tensor w, str group_name, Tensor? bias=None, *, bool replicated_grad=False, str module='', "
     "str rows=''",
     kTensor, "TTstbss", 5, 6, 2, -1},
    {"matmul_all_to_all",
     "Tensor x, Tensor w, str group_name, Tensor? bias=None, *, str module='', str rows=''", kTensor,
     "TTstss", 4, 5, 2, -1},
    {"all_to_all_matmul",
     "Tensor x, Tensor w, str group_name, Tensor? bias=None, *, str module='', str rows=''", kTensor,
     "TTstss", 4, 5, 2, -1},
    {"all_to_all_matmuls",
     "Tensor x, Tensor[] ws, str group_name, Tensor[]? biases=None, *, bool return_exchanged=False, str "
     "module='', str rows=''",
     kTensors, "TLslbss", 5, 6, 2, -1},
    {"feed_forward",
     "Tensor x, Tensor w1, Tensor w2, str group_name, *, str activation='', str module='', str rows=''",
     kTensor, "TTTssss", 5, 6, 3, 4},
    {"attention",
     "Tensor q, Tensor k, Tensor v, str group_name, *, bool causal=False, str kind='auto', int window=0, "
     "float? "
     "scale=None, str sharding='contiguous', int[]? cu_seqlens=None, int? bounded=None, int? length=None, "
     "str module='', str rows=''",
     kPair, "TTTsbsifsnjjss", 12, 13, 3, -1},
}};
constexpr std::size_t kMostArguments = 14;

std::string full_name(const Op& op, const char* suffix) {
    return std::string("syncopate::") + op.name + suffix;
}

bool returns_list(const Op& op) { return op.result == kTensors; }

/// Of a call that failed all the same.
void drop_results(const Op& op, const StableIValue* stack) {
    (void)take(returns_list(op) ? 'L' : 'T', stack[0]);
    if (op.result == kPair) (void)take('T', stack[1]);
}

// What a thread is in the middle of.
thread_local int nested = 0;                 ///< calls of a first name
thread_local std::exception_ptr waiting;     ///< for the outermost of these
thread_local const std::string* setting_up;  ///< the key of the call that a set-up op makes

std::atomic<std::int64_t> generation{0};
std::atomic<int> bypassed{0};
std::atomic<void (*)()> raise_pending{nullptr};
std::atomic<Resolve> resolve_ahead{
    nullptr};  ///< of programs that were compiled ahead, where there is no Python

std::shared_mutex rows_mutex;
/// As that of recipes.
[[maybe_unused]] const int of_forks = pthread_atfork([] { rows_mutex.lock(); }, [] { rows_mutex.unlock(); },
                                                     [] { new (&rows_mutex) std::shared_mutex; });
std::set<std::string>& known_rows() {
    static auto* made = new std::set<std::string>;
    return *made;
}

bool knows_rows(const std::string& rows) {
    if (rows.empty()) return true;
    const std::shared_lock lock(rows_mutex);
    return known_rows().contains(rows);
}

/// Writes a call's key: words, and texts between them.
class KeyWriter {
public:
    explicit KeyWriter(std::string& key) : key_(key) { key_.clear(); }
    ~KeyWriter() { flush(); }
    KeyWriter(const KeyWriter&) = delete;
    KeyWriter& operator=(const KeyWriter&) = delete;
    void put(std::int64_t word) {
        if (count_ == words_.size()) flush();
        words_[count_++] = word;
    }
    void put(const std::string& text) {
        put(static_cast<std::int64_t>(text.size()));
        flush();
        key_ += text;
    }

private:
    void flush() {
        key_.append(reinterpret_cast<const char*>(words_.data()), count_ * sizeof(std::int64_t));
        count_ = 0;
    }

    std::string& key_;
    std::array<std::int64_t, 64> words_;
    std::size_t count_ = 0;
};

/// The arguments of one call.
class Arguments {
public:
    Arguments(const Op& op, StableIValue* stack) : op_(op), count_(std::strlen(op.letters)) {
        for (std::size_t i = 0; i < count_; ++i) values_[i] = take(op.letters[i], stack[i]);
        for (std::size_t i = 0; i < count_; ++i) add_tensors(values_[i], op.letters[i]);
        require_tensors();
    }
    [[nodiscard]] std::span<const Tensor* const> tensors() const {
        return {tensors_.begin(), tensors_.size()};
    }
    [[nodiscard]] const std::string& module() const { return text(op_.module); }
    [[nodiscard]] const std::string& rows() const { return text(op_.rows); }
    [[nodiscard]] AskedCall asked() const {
        AskedCall call{op_.name, text(op_.group)};
        for (const Tensor* tensor : tensors_) {
            AskedTensor& added = call.tensors.emplace_back();
            if (tensor == nullptr) continue;
            const auto sizes = tensor->sizes(), strides = tensor->strides();
            added = {true,
                     {sizes.begin(), sizes.end()},
                     {strides.begin(), strides.end()},
                     tensor->dtype(),
                     tensor->device_type(),
                     tensor->device_index()};
        }
        if (op_.activation >= 0) call.activation = text(op_.activation);
        for (std::size_t i = 0; i < count_; ++i) {
            const auto* number = std::get_if<std::int64_t>(&values_[i]);
            const auto* truth = std::get_if<bool>(&values_[i]);
            const bool of_gradients = std::string_view(op_.name) == "matmul_all_reduce";  // replicated_grad
            call.plain = call.plain && (number == nullptr || *number == 0) &&
                         (truth == nullptr || !*truth || of_gradients);
        }
        return call;
    }
    [[nodiscard]] std::size_t size() const { return count_; }
    void give_all(StableIValue* stack) const {
        for (std::size_t i = 0; i < count_; ++i) stack[i] = give(op_.letters[i], values_[i]);
    }

    /// All that says how the call is carried out.
    void key(std::string& key, std::size_t number, std::uint64_t stream) const {
        KeyWriter writer(key);
        const auto put = [&](std::int64_t word) { writer.put(word); };
        put(static_cast<std::int64_t>(number));
        put(static_cast<std::int64_t>(stream));
        put(generation.load(std::memory_order_relaxed));
        for (std::size_t i = 0; i < count_; ++i) {
            if (static_cast<int>(i) == op_.module || static_cast<int>(i) == op_.rows) continue;
            if (const auto* one = std::get_if<std::string>(&values_[i])) {
                writer.put(*one);
            } else if (const auto* integer = std::get_if<std::int64_t>(&values_[i])) {
                put(1);
                put(*integer);
            } else if (const auto* truth = std::get_if<bool>(&values_[i])) {
                put(*truth ? 1 : 0);
            } else if (const auto* list = std::get_if<std::vector<Tensor>>(&values_[i])) {
                put(static_cast<std::int64_t>(list->size()));
            } else if (const auto* real = std::get_if<double>(&values_[i])) {
                put(1);
                put(std::bit_cast<std::int64_t>(*real));
            } else if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&values_[i])) {
                put(static_cast<std::int64_t>(integers->size()));
                for (const std::int64_t number_in : *integers) put(number_in);
            } else if (std::holds_alternative<std::monostate>(values_[i])) {
                put(-1);
            }
        }
        for (const Tensor* tensor : tensors_) {
            if (tensor == nullptr) {
                put(-1);
                continue;
            }
            const auto sizes = tensor->sizes(), strides = tensor->strides();
            put(static_cast<std::int64_t>(sizes.size()));
            put(tensor->dtype());
            put(tensor->device_type() * 1024 + tensor->device_index());
            for (const std::int64_t size : sizes) put(size);
            for (const std::int64_t stride : strides) put(stride);
        }
    }

private:
    [[nodiscard]] const std::string& text(int place) const {
        return std::get<std::string>(values_[static_cast<std::size_t>(place)]);
    }
    /// torch takes None for a tensor, too: one that is undefined.
    void require_tensors() const {
        for (std::size_t i = 0; i < count_; ++i) {
            const auto* tensor = op_.letters[i] == 'T' ? std::get_if<Tensor>(&values_[i]) : nullptr;
            if (tensor != nullptr && !tensor->is_defined())
                throw std::runtime_error(std::string(op_.name) + ": " + name_of(i) +
                                         ": expected a torch.Tensor, got None");
        }
    }
    /// Of the argument at that place of the schema.
    [[nodiscard]] std::string name_of(std::size_t place) const {
        std::string_view rest = op_.arguments;
        for (; place > 0; --place) rest.remove_prefix(rest.find(", ") + 2);
        rest = rest.substr(0, rest.find(','));
        return std::string(rest.substr(rest.rfind(' ') + 1));
    }
    void add_tensors(const Value& value, char letter) {
        if (const auto* one = std::get_if<Tensor>(&value))
            tensors_.push_back(one);
        else if (const auto* list = std::get_if<std::vector<Tensor>>(&value))
            for (const Tensor& tensor : *list) tensors_.push_back(&tensor);
        else if (letter == 't')
            tensors_.push_back(nullptr);
    }

    const Op& op_;
    std::size_t count_;
    std::array<Value, kMostArguments> values_;
    Few<const Tensor*, 8> tensors_;
};

std::uint64_t stream_of(const Tensor& tensor) {
    const TorchApi& api = torch_api();
    if (tensor.device_type() != api.aoti_torch_device_type_cuda()) return 0;
    if (api.aoti_torch_get_current_cuda_stream == nullptr)
        throw std::runtime_error("this torch has no CUDA streams");
    void* stream = nullptr;
    require(api.aoti_torch_get_current_cuda_stream(tensor.device_index(), &stream),
            "asking for the current stream");
    return reinterpret_cast<std::uint64_t>(stream);
}

void put_results(const Op& op, Results results, StableIValue* stack) {
    if (!returns_list(op)) {
        for (std::size_t i = 0; i < results.size(); ++i)
            stack[i] = reinterpret_cast<StableIValue>(results[i].release());
        return;
    }
    StableListHandle list = nullptr;
    require(torch_api().torch_new_list_reserve_size(results.size(), &list), "making a list");
    for (Tensor& tensor : results)
        require(torch_api().torch_list_push_back(list, reinterpret_cast<StableIValue>(tensor.release())),
                "making a list");
    stack[0] = reinterpret_cast<StableIValue>(list);
}

/// Throws what Python has left for this thread, if anything.
void throw_pending() {
    if (const auto raise = raise_pending.load(); raise != nullptr) raise();
}

/// Where there is no Python: by a program that was compiled ahead, or not at all.
void set_up_ahead(const Op& op, const Arguments& arguments, const std::string& key, std::uint64_t stream,
                  StableIValue* stack) {
    const Resolve resolve = resolve_ahead.load();
    if (resolve == nullptr)
        throw std::runtime_error(full_name(op, "") +
                                 ": nothing is set up for a call of these shapes, and without Python nothing "
                                 "can be; serve a bundle that has them (sy_torch_serve)");
    const std::string* before = std::exchange(setting_up, &key);
    try {
        resolve(arguments.asked());
    } catch (...) {
        setting_up = before;
        throw;
    }
    setting_up = before;
    const std::shared_ptr<Known> known = find(key);
    auto results =
        known == nullptr ? std::nullopt : carry_out(*known, arguments.tensors(), stream, arguments.module());
    if (!results)
        throw std::runtime_error(full_name(op, "") +
                                 ": the program of the bundle does not take tensors that lie like these");
    count(*known);
    put_results(op, std::move(*results), stack);
}

void set_up(const Op& op, const Arguments& arguments, const std::string& key, std::uint64_t stream,
            StableIValue* stack) {
    if (raise_pending.load() == nullptr) return set_up_ahead(op, arguments, key, stream, stack);
    arguments.give_all(stack);
    const std::string* before = std::exchange(setting_up, &key);
    const AOTITorchError failed =
        torch_api().torch_call_dispatcher(full_name(op, "_setup").c_str(), "", stack, kTorchVersion);
    setting_up = before;
    if (failed == 0) {
        try {
            throw_pending();
        } catch (...) {
            drop_results(op, stack);  // what stands for them
            throw;
        }
        return;
    }
    throw_pending();
    require(failed, full_name(op, "").c_str());
}

void run_raw(const Op& op, std::size_t number, StableIValue* stack) {
    const Arguments arguments(op, stack);
    thread_local std::string key;
    const std::uint64_t stream = stream_of(*arguments.tensors().front());
    arguments.key(key, number, stream);
    if (bypassed.load(std::memory_order_relaxed) == 0 && knows_rows(arguments.rows())) {
        if (const std::shared_ptr<Known> known = find(key)) {
            if (auto results = carry_out(*known, arguments.tensors(), stream, arguments.module())) {
                count(*known);
                put_results(op, std::move(*results), stack);
                return;
            }
        }
    }
    const std::string own = key;  // the set-up may make calls of its own
    set_up(op, arguments, own, stream, stack);
}

/// What a result is where an error waits for the outermost call.
void put_nothing(const Op& op, StableIValue* stack) {
    constexpr std::int64_t kNone[] = {0};
    Results results;
    for (int i = 0; i < (op.result == kPair ? 2 : 1); ++i)
        results.push_back(empty(kNone, 6, 0, 0));  // fp32 on the CPU: nobody looks at it
    put_results(op, std::move(results), stack);
}

void raw(std::size_t number, StableIValue* stack) {
    const Op& op = kOps[number];
    try {
        run_raw(op, number, stack);
    } catch (...) {
        if (nested == 0) throw;
        waiting = std::current_exception();
        put_nothing(op, stack);
    }
}

void first(std::size_t number, StableIValue* stack) {
    const Op& op = kOps[number];
    const bool recorded = torch_api().aoti_torch_grad_mode_is_enabled();
    static const std::array<std::pair<std::string, std::string>, kOps.size()> names = [] {
        std::array<std::pair<std::string, std::string>, kOps.size()> made;
        for (std::size_t i = 0; i < kOps.size(); ++i)
            made[i] = {full_name(kOps[i], "_raw"), full_name(kOps[i], "_recorded")};
        return made;
    }();
    const std::string& name = recorded ? names[number].second : names[number].first;
    ++nested;
    const AOTITorchError failed = torch_api().torch_call_dispatcher(name.c_str(), "", stack, kTorchVersion);
    --nested;
    if (waiting != nullptr) {
        if (failed == 0) drop_results(op, stack);
        if (nested > 0) {
            put_nothing(op, stack);
            return;
        }
        std::rethrow_exception(std::exchange(waiting, nullptr));
    }
    try {
        throw_pending();  // of Python's kernels around the raw one
    } catch (...) {
        if (failed == 0) drop_results(op, stack);
        throw;
    }
    require(failed, name.c_str());
}

// torch takes functions without a closure.
template <std::size_t Number>
void raw_of(StableIValue* stack, std::uint64_t, std::uint64_t) {
    raw(Number, stack);
}
template <std::size_t Number>
void first_of(StableIValue* stack, std::uint64_t, std::uint64_t) {
    first(Number, stack);
}

using Kernel = void (*)(StableIValue*, std::uint64_t, std::uint64_t);

template <std::size_t... Number>
std::array<std::pair<Kernel, Kernel>, sizeof...(Number)> kernels_of(std::index_sequence<Number...>) {
    return {{{&raw_of<Number>, &first_of<Number>}...}};
}

/// syncopate::_hold(Tensor x) -> int: a reference that a recipe will own, as a number.
void hold(StableIValue*, std::uint64_t, std::uint64_t) {
    // The argument is a reference already.
}

/// The arguments of the second and the third name, whose integers graphs always give: where one is left out, AOTInductor calls an
/// op that returns a list with it all the same, and the call fails ("Mismatch between ints consumed and num_ints"; torch 2.13).
std::string without_default_integers(std::string arguments) {
    for (const std::string name : {"int axis", "int window"}) {
        const std::string given = name + "=0";
        if (const std::size_t at = arguments.find(given); at != std::string::npos)
            arguments.replace(at, given.size(), name);
    }
    return arguments;
}

std::vector<std::pair<std::string, std::string>> schemas() {
    std::vector<std::pair<std::string, std::string>> all;
    for (const Op& op : kOps) {
        for (const std::string suffix : {"", "_raw", "_recorded", "_setup"}) {
            const bool inner = suffix == "_raw" || suffix == "_recorded";
            const std::string arguments = inner ? without_default_integers(op.arguments) : op.arguments;
            all.emplace_back(op.name + suffix + "(" + arguments + ") -> " + op.result, op.letters);
        }
    }
    all.emplace_back("_hold(Tensor x) -> int", "T");
    return all;
}

TorchLibraryHandle library_for(const char* key) {
    TorchLibraryHandle made = nullptr;
    require(torch_api().aoti_torch_library_init_impl("syncopate", key, __FILE__, __LINE__, &made),
            "registering ops");
    return made;  // for good
}

void register_ops(bool defined) {
    const TorchApi& api = torch_api();
    if (!defined) {
        TorchLibraryHandle library = nullptr;
        require(api.aoti_torch_library_init_def("syncopate", __FILE__, __LINE__, &library), "defining ops");
        for (const auto& [schema, _] : schemas())
            require(api.aoti_torch_library_def(library, schema.c_str()), "defining ops");
    }
    const auto kernels = kernels_of(std::make_index_sequence<kOps.size()>());
    const auto implement = [&](TorchLibraryHandle library, const std::string& name, Kernel kernel) {
        require(api.torch_library_impl(library, name.c_str(), kernel, kTorchVersion), "registering an op");
    };
    TorchLibraryHandle composite = library_for("CompositeImplicitAutograd");
    for (std::size_t i = 0; i < kOps.size(); ++i) implement(composite, kOps[i].name, kernels[i].second);
    for (const char* key : {"CPU", "CUDA"}) {
        TorchLibraryHandle library = library_for(key);
        for (std::size_t i = 0; i < kOps.size(); ++i) {
            implement(library, std::string(kOps[i].name) + "_raw", kernels[i].first);
            implement(library, std::string(kOps[i].name) + "_recorded", kernels[i].first);
        }
        implement(library, "_hold", &hold);
    }
}

/// Threads of a process without Python may come at once: none goes on before all are registered.
void start(bool defined) {
    static std::once_flag once;
    std::call_once(once, register_ops, defined);
}

const Interface kInterface{
    .add =
        [](Recipe recipe) {
            if (setting_up != nullptr)
                add(*setting_up, std::move(recipe));
            else
                (void)Known(std::move(recipe));  // which gives back what it holds
        },
    .drop = &drop,
    .drop_group = &drop_group,
    .drop_all = &drop_all,
    .set_generation = [](std::int64_t number) { generation.store(number); },
    .bypass = [](int change) { bypassed.fetch_add(change); },
    .last_use = &last_use,
    .tick = &tick,
    .counts = &counts,
    .clear_counts =
        [] {
            clear_counts();
            const std::unique_lock lock(rows_mutex);
            known_rows().clear();
        },
    .know_rows =
        [](const std::string& rows) {
            const std::unique_lock lock(rows_mutex);
            known_rows().insert(rows);
        },
    .schemas = &schemas,
    .start = &start,
    .is_nested = [] { return nested > 0; },
    .connect =
        [](RunExecutable run, void (*raise)()) {
            run_executable.store(run);
            raise_pending.store(raise);
        },
    .serve =
        [](RunExecutable run, Resolve resolve) {
            if (raise_pending.load() != nullptr) return false;
            run_executable.store(run);
            resolve_ahead.store(resolve);
            start(false);
            return true;
        },
};

/// In a program without Python the ops define themselves when the library is loaded.
[[gnu::constructor]] void start_without_python() {
    using IsInitialized = int (*)();
    const auto is_initialized = reinterpret_cast<IsInitialized>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
    if (is_initialized == nullptr || is_initialized() == 0) start(false);
}

}  // namespace
}  // namespace syncopate::torch_ops

extern "C" __attribute__((visibility("default"))) const syncopate::torch_ops::Interface*
syncopate_torch_ops() {
    return &syncopate::torch_ops::kInterface;
}
