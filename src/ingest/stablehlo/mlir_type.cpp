#include "ingest/stablehlo/mlir_type.hpp"

#include <string>
#include <string_view>

#include <fmt/format.h>

namespace syncopate::ingest {
namespace {

/// HLO's name of an MLIR element type: i32 is s32, f8E4M3FN is f8e4m3fn.
std::string element_type(std::string_view mlir) {
    if (mlir == "i1") return "pred";
    if (mlir.starts_with("ui")) return "u" + std::string(mlir.substr(2));
    if (mlir.starts_with("si")) return "s" + std::string(mlir.substr(2));
    if (mlir.size() > 1 && mlir[0] == 'i' && mlir[1] >= '0' && mlir[1] <= '9')
        return "s" + std::string(mlir.substr(1));
    std::string name(mlir);
    for (char& c : name) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    return name;
}

/// NAME or NAME<…>, with the dialect's '!' if it has one: HLO's name of it if there is one, else as it is
/// written.
bool parse_element_type(TextCursor& at, std::string& out) {
    const std::size_t start = (at.skip_blanks(), at.offset());
    const bool dialect = at.take("!");
    const std::string_view name = at.name();
    if (name.empty()) return at.fail_at(start, "expected a type, found " + at.found());
    if (at.peek_raw() == '<' && !at.skip_balanced(true)) return false;
    const std::string_view written = at.since(start);
    if (dialect) {
        // A token orders; of other types of dialects it is known only that they are no arrays.
        out = name.ends_with("token") ? std::string("token") : std::string(written);
    } else if (written == "complex<f32>" || written == "complex<f64>") {
        out = written == "complex<f32>" ? "c64" : "c128";
    } else {
        out = name == written ? element_type(name) : std::string(written);
    }
    return true;
}

}  // namespace

bool parse_mlir_type(TextCursor& at, Shape& out, int depth) {
    if (depth >= kMaxProgramNesting) {
        return at.fail(fmt::format("types nested more than {} deep", kMaxProgramNesting));
    }
    const std::size_t begin = (at.skip_blanks(), at.offset());
    const std::string_view name = at.name();
    if (name != "tensor" && name != "tuple") {
        at.seek(begin);
        return parse_element_type(at, out.dtype);
    }
    if (!at.expect("<", "after " + std::string(name))) return false;
    if (name == "tuple") {
        out.tuple = true;
        if (at.take(">")) return true;
        do {
            if (out.elements.size() >= 65536) return at.fail("a tuple with too many elements");
            if (!parse_mlir_type(at, out.elements.emplace_back(), depth + 1)) return false;
        } while (at.take(","));
        return at.expect(">", "after a tuple's elements");
    }
    // 4x?x8xf32: sizes, each followed by an 'x'.
    for (;;) {
        const std::size_t start = (at.skip_blanks(), at.offset());
        std::int64_t size = -1;
        if (!at.take("?")) {
            const auto said = at.integer();
            if (!said) break;
            if (*said < 0) return at.fail_at(start, "an axis of negative size");
            size = *said;
        }
        if (at.peek_raw() != 'x') return at.fail("expected 'x' after an axis' size, found " + at.found());
        at.advance();
        if (out.dims.size() >= kMaxShapeAxes) return at.fail("an array with too many axes");
        out.dims.push_back(size);
    }
    at.take("*x");  // unranked
    if (!parse_element_type(at, out.dtype)) return false;
    if (out.dtype.starts_with('!')) out.dtype.erase(0, 1);  // quant.uniform<i8:f32, …>: elements of an array
    if (at.take(",")) {                                     // an encoding
        while (at.peek() != '>') {
            const char c = at.peek();
            if (c == '\0') return at.fail("a type that is never closed");
            if (c == '<' || c == '(' || c == '[' || c == '{') {
                if (!at.skip_balanced(true)) return false;
            } else {
                at.advance();
            }
        }
    }
    return at.expect(">", "after a tensor's element type");
}

}  // namespace syncopate::ingest
