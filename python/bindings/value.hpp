// Values of C++ as Python values: made of their fields by place or by name, immutable, equal by what they hold, printed as
// the call that makes them without what is as usual. dataclasses.replace, fields and asdict take them for theirs.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncopate/names.hpp"

namespace syncopate::bindings {

template <typename T>
struct Field {
    std::string name;
    std::string type;  ///< in Python's words
    std::string doc;
    std::function<nanobind::object(const T&)> get;
    std::function<void(T&, nanobind::handle)> set;
};

/// A field that is a member.
template <typename T, typename M>
Field<T> field(const char* name, const char* type, M T::* member, const char* doc = "") {
    return {name, type, doc, [=](const T& value) { return nanobind::cast(value.*member); },
            [=](T& value, nanobind::handle given) { value.*member = nanobind::cast<M>(given); }};
}

/// A member that Python has as a tuple.
template <typename T, typename E>
Field<T> fields_of(const char* name, const char* type, std::vector<E> T::* member, const char* doc = "") {
    Field<T> made = field(name, type, member, doc);
    made.get = [=](const T& value) -> nanobind::object {
        return nanobind::tuple(nanobind::cast(value.*member));
    };
    return made;
}

/// `__init__`'s signature, for editors and type checkers.
template <typename T>
std::string signature_of(const std::vector<Field<T>>& fields, std::size_t required, const T& usual) {
    std::string text = "def __init__(self";
    for (std::size_t i = 0; i < fields.size(); ++i) {
        text += ", " + fields[i].name + ": " + fields[i].type;
        if (i >= required) text += std::string(" = ") + nanobind::repr(fields[i].get(usual)).c_str();
    }
    return text + ") -> None";
}

/// The value that a call makes; TypeError for what no field takes. `usual` has what is not said, but for the first `required`
/// fields.
template <typename T>
T made_of(const std::vector<Field<T>>& fields, std::size_t required, T usual, const nanobind::args& places,
          const nanobind::kwargs& names) {
    namespace nb = nanobind;
    std::size_t taken = 0;
    for (std::size_t i = 0; i < fields.size(); ++i) {
        const Field<T>& one = fields[i];
        const bool named = names.contains(one.name.c_str());
        if (i >= places.size() && !named) {
            if (i < required) throw nb::type_error((one.name + " is missing").c_str());
            continue;
        }
        ++taken;
        const nb::object given = named ? nb::object(names[one.name.c_str()]) : nb::object(places[i]);
        try {
            one.set(usual, given);
        } catch (const std::bad_cast&) {
            const std::string said = nb::isinstance<nb::str>(given)
                                         ? std::string("the string \"") + nb::str(given).c_str() + "\""
                                         : nb::repr(given).c_str();
            throw nb::type_error((one.name + " is " + said + "; expected " + one.type).c_str());
        }
    }
    if (taken == places.size() + names.size()) return usual;
    std::vector<std::string_view> known;
    for (const Field<T>& one : fields) known.emplace_back(one.name);
    for (const auto& [name, given] : names) {
        const std::string word = nb::cast<std::string>(name);
        if (std::find(known.begin(), known.end(), word) == known.end())
            throw nb::type_error(("there is no field '" + word + "'" + did_you_mean(word, known)).c_str());
    }
    throw nb::type_error("a field is given twice, by its place and by its name, or there are too many");
}

/// `whole`: what follows of one field for another.
template <typename T>
void bind_value(
    nanobind::class_<T>& type, std::vector<Field<T>> fields, std::size_t required, const T& usual,
    const std::function<void(T&)>& whole = [](T&) {}) {
    namespace nb = nanobind;
    static const std::string signature = signature_of(fields, required, usual);  // one a type
    type.def(
        "__init__",
        [=](T* made, const nb::args& places, const nb::kwargs& names) {
            T value = made_of(fields, required, usual, places, names);
            whole(value);
            new (made) T(std::move(value));
        },
        nb::sig(signature.c_str()));
    nb::list names;
    for (const Field<T>& one : fields) {
        names.append(nb::str(one.name.c_str()));
        static std::vector<std::string> signatures;
        type.def_prop_ro(
            one.name.c_str(), one.get,
            nb::sig(signatures.emplace_back("def " + one.name + "(self) -> " + one.type).c_str()),
            one.doc.c_str());
    }
    const auto values = [=](const T& value) {
        nb::list made;
        for (const Field<T>& one : fields) made.append(one.get(value));
        return nb::tuple(made);
    };
    type.def(
            "__eq__",
            [](const T& value, nb::handle other) {
                return nb::isinstance<T>(other) && value == nb::cast<const T&>(other);
            },
            nb::arg().none())
        .def("__hash__", [=](const T& value) { return nb::hash(values(value)); })
        .def("__reduce__", [=](const T& value) { return nb::make_tuple(nb::type<T>(), values(value)); })
        .def("__repr__", [=](const T& value) {
            std::string said;
            for (std::size_t i = 0; i < fields.size(); ++i) {
                const nb::object given = fields[i].get(value);
                if (i >= required && given.equal(fields[i].get(usual))) continue;
                said += (said.empty() ? "" : ", ") + fields[i].name + "=" + nb::repr(given).c_str();
            }
            return std::string(nb::cast<nb::str>(nb::type<T>().attr("__name__")).c_str()) + "(" + said + ")";
        });
    type.attr("__dataclass_fields__") = nb::module_::import_("dataclasses")
                                            .attr("make_dataclass")("Fields", names)
                                            .attr("__dataclass_fields__");
}

}  // namespace syncopate::bindings
