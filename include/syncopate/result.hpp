// A value or the error that took its place. Every function of the compiler that can fail returns one;
// exceptions are thrown only at the outer faces (the command, the Python bindings).
#pragma once

#include <cassert>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace syncopate {

/// Where an error is: a file position (line and column count from 1), a rank and op, or nothing.
struct Location {
    std::string file;         ///< as the user named it; "-" for standard input; empty when unknown
    std::int32_t line = 0;    ///< 1-based; 0 when unknown
    std::int32_t column = 0;  ///< 1-based; 0 when unknown
    std::int32_t rank = -1;   ///< of a plan; -1 when the error is not about one rank
    std::int32_t op = -1;     ///< index in that rank's list; -1 when it is not about one op
    bool of_plan = false;     ///< about a plan as a whole: who read it from a file knows which one

    /// "file:line:col", "rank R op I", or "" — the parts that are known.
    [[nodiscard]] std::string to_string() const;
};

/// The exit codes of the command.
enum class ErrorClass : std::uint8_t {
    input = 1,    ///< the input is wrong
    usage = 2,    ///< the command line is wrong
    machine = 3,  ///< the machine lacks something (a GPU, memory, a library)
};

/// What is wrong, where, and what would make it right.
struct Error {
    std::string message;
    Location location{};
    ErrorClass error_class = ErrorClass::input;
    /// The line of the text that it is about, and a caret below (excerpt.hpp); may be empty.
    std::string excerpt;

    /// "LOCATION: message" and, on the lines after it, the excerpt; without a trailing newline.
    [[nodiscard]] std::string to_string() const;
};

[[nodiscard]] inline Error usage_error(std::string message) {
    return {std::move(message), {}, ErrorClass::usage, {}};
}
[[nodiscard]] inline Error machine_error(std::string message) {
    return {std::move(message), {}, ErrorClass::machine, {}};
}

/// Either a T or an Error. Test it before use: `if (!result) return result.error();`
template <typename T>
class [[nodiscard]] Result {
public:
    Result(T value) : state_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
    Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

    [[nodiscard]] bool ok() const { return state_.index() == 0; }
    explicit operator bool() const { return ok(); }

    [[nodiscard]] const T& value() const& {
        assert(ok());
        return std::get<0>(state_);
    }
    [[nodiscard]] T& value() & {
        assert(ok());
        return std::get<0>(state_);
    }
    [[nodiscard]] T&& value() && {
        assert(ok());
        return std::get<0>(std::move(state_));
    }
    [[nodiscard]] const Error& error() const {
        assert(!ok());
        return std::get<1>(state_);
    }

    const T& operator*() const& { return value(); }
    T& operator*() & { return value(); }
    T&& operator*() && { return std::move(*this).value(); }
    const T* operator->() const { return &value(); }
    T* operator->() { return &value(); }

private:
    std::variant<T, Error> state_;
};

/// The result of a function that returns nothing but can fail.
struct Done {};
using Status = Result<Done>;

}  // namespace syncopate
