// Calls of sy.ops' functions that look like an earlier one: from Python's tensors to the executable, by C++ alone. A call is known
// by all that it depends on: function, group, options, stream, and of each tensor shape, strides, dtype and device.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "bindings.hpp"
#include "gil.hpp"
#include "syncopate/runtime/executable/executable.hpp"
#include "tensor_view.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace syncopate::bindings {
namespace {

/// So many calls are known at once: who makes rows of every number would else keep them all.
constexpr std::size_t kMostKnown = 8192;
constexpr std::size_t kMostTensors = 8;

struct KnownCall {
    std::uint64_t token = 0;  ///< of the operator's entry (call/cache.py)
    nb::object entry;
    std::shared_ptr<runtime::Executable> executable;  ///< null: the vendors' libraries run, by Python
    /// By operand but the output: the call's tensor of this number; a negative one, -1 - i, is the transpose of i.
    std::vector<int> operands;
    std::vector<nb::object> called;  ///< what the key holds by address
    nb::object rows, columns;        ///< of the output
    nb::object dtype;                ///< of the output; None: as the first tensor
    std::uint64_t used = 0;
};

using Table = std::unordered_map<std::string, std::shared_ptr<KnownCall>>;

// The interpreter's lock guards both. Never destroyed: Python's are in it.
Table& table() {
    static auto* made = new Table;
    return *made;
}
std::uint64_t failed = 0;  ///< the token of the call that has raised last

nb::object& is_grad_enabled() {
    static auto* made = new nb::object(nb::module_::import_("torch").attr("is_grad_enabled"));
    return *made;
}

struct Name {
    PyObject* text;
    explicit Name(const char* name) : text(PyUnicode_InternFromString(name)) {}
};

/// Whether a level of torch's forward-mode derivatives is open, which calls do not carry.
bool in_forward_mode() {
    static auto* module = new nb::object(nb::module_::import_("torch.autograd.forward_ad"));
    static const Name name("_current_level");
    const nb::object level = nb::steal(PyObject_GetAttr(module->ptr(), name.text));
    if (!level.is_valid()) {  // of another torch: Python looks at each operand then
        PyErr_Clear();
        return true;
    }
    return PyLong_AsLong(level.ptr()) >= 0;
}

/// Tells autograd that a call writes it.
void mark_written(nb::handle out) {
    static auto* mark =
        new nb::object(nb::module_::import_("torch.autograd.graph").attr("increment_version"));
    (*mark)(out);
}

/// Whether autograd is to record a call of these.
bool asks_for_gradients(nb::handle tensors, nb::handle out) {
    static const Name name("requires_grad");
    if (is_grad_enabled()().is(nb::bool_(false))) return false;
    const auto asks = [&](PyObject* one) {
        if (one == Py_None) return false;
        const nb::object value = nb::steal(PyObject_GetAttr(one, name.text));
        if (!value.is_valid()) nb::raise_python_error();
        return !value.is(nb::bool_(false));
    };
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors.ptr()); ++i) {
        if (asks(PyTuple_GET_ITEM(tensors.ptr(), i))) return true;
    }
    return asks(out.ptr());
}

class Key {
public:
    void put(std::int64_t word) { key_.append(reinterpret_cast<const char*>(&word), sizeof(word)); }
    void put(PyObject* object) { put(static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(object))); }
    /// Texts and integers by what they say, all else by where it is.
    void put_named(PyObject* object) {
        if (PyUnicode_Check(object)) {
            Py_ssize_t size = 0;
            const char* text = PyUnicode_AsUTF8AndSize(object, &size);
            if (text == nullptr) nb::raise_python_error();
            put(static_cast<std::int64_t>(size));
            key_.append(text, static_cast<std::size_t>(size));
        } else if (PyLong_CheckExact(object)) {
            int beyond = 0;
            put(static_cast<std::int64_t>(PyLong_AsLongLongAndOverflow(object, &beyond)) - beyond);
        } else {
            put(object);
        }
    }
    void put(const PlainTensor& tensor) {
        put(static_cast<std::int64_t>(tensor.shape.size()));
        put(tensor.type);
        put(tensor.device);
        for (const std::int64_t extent : tensor.shape) put(extent);
        for (const std::int64_t stride : tensor.strides) put(stride);
    }
    [[nodiscard]] const std::string& text() const { return key_; }

private:
    std::string key_;
};

/// A call of a function: what it is called with, and the key.
struct Call {
    std::array<PlainTensor, kMostTensors> tensors;
    Key key;

    /// False: it is none that could be known.
    bool read(nb::handle called, nb::handle given) {
        const Py_ssize_t count = PyTuple_GET_SIZE(given.ptr());
        if (count < 1 || count > static_cast<Py_ssize_t>(kMostTensors)) return false;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(called.ptr()); ++i)
            key.put_named(PyTuple_GET_ITEM(called.ptr(), i));
        for (Py_ssize_t i = 0; i < count; ++i) {
            PyObject* one = PyTuple_GET_ITEM(given.ptr(), i);
            PlainTensor& tensor = tensors[static_cast<std::size_t>(i)];
            if (one == Py_None) {
                key.put(std::int64_t{-1});
                continue;
            }
            if (!tensor.read(one)) return false;
            key.put(tensor);
        }
        key.put(static_cast<std::int64_t>(tensors[0].current_stream()));
        return true;
    }
};

nb::object empty_like(const KnownCall& known, nb::handle x) {
    static const Name name("new_empty");
    static PyObject* const named = nb::make_tuple("dtype").release().ptr();
    PyObject* arguments[] = {x.ptr(), known.rows.ptr(), known.columns.ptr(), known.dtype.ptr()};
    PyObject* made =
        PyObject_VectorcallMethod(name.text, arguments, 3, known.dtype.is_none() ? nullptr : named);
    if (made == nullptr) nb::raise_python_error();
    return nb::steal(made);
}

/// The result; the entry of what the vendors' libraries run; None: no such call is known, and nothing has begun.
nb::object call_known(nb::handle called, nb::handle tensors, nb::object out) {
    if (table().empty()) return nb::none();
    Call call;
    if (!call.read(called, tensors)) return nb::none();
    const auto found = table().find(call.key.text());
    PlainTensor result;
    if (found == table().end() || (!out.is_none() && !result.read(out.ptr())) || in_forward_mode() ||
        asks_for_gradients(tensors, out))
        return nb::none();
    const std::shared_ptr<KnownCall> known = found->second;
    known->used = tick();
    if (known->executable == nullptr) return known->entry;
    const bool is_given = !out.is_none();
    if (!is_given) {
        out = empty_like(*known, nb::handle(PyTuple_GET_ITEM(tensors.ptr(), 0)));
        if (!result.read(out.ptr())) return nb::none();
    }
    if (!result.is_of(known->executable->operands().back().dtype) || result.device != call.tensors[0].device)
        return nb::none();
    std::array<runtime::CallTensor, kMostTensors + 1> given;
    std::array<std::array<std::int64_t, 4>, kMostTensors> turned;
    std::size_t count = 0;
    for (const int number : known->operands) {
        const PlainTensor& tensor = call.tensors[static_cast<std::size_t>(number < 0 ? -1 - number : number)];
        given[count] = {tensor.address, tensor.shape, tensor.strides};
        if (number < 0) {
            turned[count] = {tensor.shape[1], tensor.shape[0], tensor.strides[1], tensor.strides[0]};
            const std::span<const std::int64_t> both(turned[count]);
            given[count].shape = both.first(2), given[count].strides = both.last(2);
        }
        ++count;
    }
    given[count++] = {result.address, result.shape, result.strides};
    const std::span<const runtime::CallTensor> all(given.data(), count);
    runtime::Executable& executable = *known->executable;
    const std::optional<std::size_t> form = executable.takes(all);
    if (!form) return nb::none();
    if (is_given) mark_written(out);
    failed = known->token;
    Status ran = Done{};
    {
        const GilReleased released;
        ran = executable.run_taken(all, *form, call.tensors[0].current_stream());
    }
    if (!ran) failed = known->token;  // another thread's call may have been meanwhile
    unwrap(ran);
    return out;
}

void learn_call(nb::handle called, nb::handle tensors, std::uint64_t token, nb::object entry,
                std::shared_ptr<runtime::Executable> executable, const std::vector<int>& operands,
                std::int64_t rows, std::int64_t columns, nb::object dtype) {
    Call call;
    if (!call.read(called, tensors)) return;
    for (const int number : operands) {
        const auto index = static_cast<std::size_t>(number < 0 ? -1 - number : number);
        if (index >= kMostTensors || call.tensors[index].shape.empty() ||
            (number < 0 && call.tensors[index].shape.size() != 2))
            return;
    }
    auto made = std::make_shared<KnownCall>();
    made->token = token;
    made->entry = std::move(entry);
    made->executable = std::move(executable);
    made->operands = operands;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(called.ptr()); ++i)
        made->called.push_back(nb::borrow(PyTuple_GET_ITEM(called.ptr(), i)));
    made->rows = nb::int_(rows), made->columns = nb::int_(columns);
    made->dtype = std::move(dtype);
    Table gone;
    if (table().size() >= kMostKnown) gone.swap(table());
    table()[call.key.text()] = std::move(made);
}

template <typename Gone>
void drop_if(Gone is_gone) {
    std::vector<std::shared_ptr<KnownCall>> gone;  // they hold Python's objects
    for (auto it = table().begin(); it != table().end();) {
        if (!is_gone(*it->second)) {
            ++it;
            continue;
        }
        gone.push_back(std::move(it->second));
        it = table().erase(it);
    }
}

}  // namespace

void bind_functions(nb::module_& module) {
    module.def("call_known", &call_known, "called"_a, "tensors"_a, "out"_a = nb::none(),
               "A call of a function of sy.ops: `called`, a tuple of the function, its group and its "
               "options; `tensors`, a tuple "
               "that may hold None. The result; the cache's entry, of what the vendors' libraries run; None: "
               "no such call is "
               "known, and nothing has begun.");
    module.def(
        "learn_call", &learn_call, "called"_a, "tensors"_a, "token"_a, "entry"_a, "executable"_a.none(),
        "operands"_a, "rows"_a, "columns"_a, "dtype"_a.none(),
        "Such calls are known from now on. `operands`: the tensors' numbers as the executable takes them, -1 "
        "- i for the "
        "transpose of i; it takes the output last, [rows, columns] of `dtype`, or that of the first tensor.");
    module.def(
        "forget_calls",
        [](std::uint64_t token) { drop_if([&](const KnownCall& one) { return one.token == token; }); },
        "token"_a);
    module.def("forget_all_calls", [] { drop_if([](const KnownCall&) { return true; }); });
    module.def(
        "last_known_use",
        [](std::uint64_t token) {
            std::uint64_t last = 0;
            for (const auto& [_, one] : table())
                if (one->token == token) last = std::max(last, one->used);
            return last;
        },
        "token"_a);
    module.def("failed_call", [] { return failed; }, "The token of the known call that has raised last.");
}

}  // namespace syncopate::bindings
