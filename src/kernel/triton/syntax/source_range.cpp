#include "syncopate/kernel/triton/syntax/source_range.hpp"

#include <utility>

#include "syncopate/excerpt.hpp"

namespace syncopate::kernel::triton {

Error error_at(std::string_view source, const std::string& file, const SourceRange& range,
               std::string message) {
    Error error{std::move(message)};
    error.location.file = file;
    error.location.line = range.line;
    error.location.column = column_of(source, range.begin);
    error.excerpt = excerpt(source, range.begin, range.end);
    return error;
}

}  // namespace syncopate::kernel::triton
