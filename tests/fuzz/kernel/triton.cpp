// The front end, from the bytes of a file to tiles: whatever they are, an analysis that is true to itself, or
// an error that names a place.
//
// The arguments are those of the command lines that a diagnostic's case begins with
// (tests/kernel/diagnostics/), where the input is one, so that they are mutated too; else they follow from
// the names of the parameters.
#include <algorithm>
#include <set>
#include <string>

#include "fuzz/target.hpp"
#include "kernel/triton/analyse/analysis.hpp"
#include "kernel/triton/syntax/syntax.hpp"
#include "syncopate/kernel/triton/sites/text.hpp"

namespace {

using namespace syncopate;
using fuzz::require;

/// "--args M=4,N=2 --tensor a_ptr=4x2:fp32 --grid 3": what parses of it.
kernel::Arguments arguments_of(std::string_view words) {
    kernel::Arguments made;
    std::string option;
    while (!words.empty()) {
        const std::size_t end = std::min(words.find_first_of(" \n"), words.size());
        const std::string word(words.substr(0, end));
        words.remove_prefix(std::min(end + 1, words.size()));
        if (option == "--args") {
            if (const auto scalars = kernel::parse_scalars(word)) made.scalars = *scalars;
        } else if (option == "--tensor") {
            if (const auto tensor = kernel::parse_tensor(word)) made.tensors.insert(*tensor);
        } else if (option == "--grid") {
            if (const auto grid = kernel::parse_grid(word)) made.grid = *grid;
        }
        option = word;
    }
    return made;
}

/// A launch that suits most matmul, softmax, normalisation and attention kernels, of few tiles: batches and
/// heads are among the scalars, and their product is the number of tiles.
kernel::Arguments arguments_for(const kernel::triton::Function& function) {
    static const std::set<std::string, std::less<>> kTensors{"Q", "V", "O", "Out", "X", "Y",
                                                             "W", "B", "L", "x",   "y"};
    kernel::Arguments made;
    for (const kernel::triton::Parameter& parameter : function.parameters) {
        const std::string& name = parameter.name;
        const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
        if (parameter.constant) {
            if (parameter.fallback == nullptr) made.scalars[name] = std::int64_t{has("BLOCK") ? 32 : 2};
        } else if (parameter.descriptor || has("desc")) {
            made.tensors[name] = {
                .shape = {96, 64}, .strides = {}, .dtype = plan::DType::bf16, .block = {32, 32}};
        } else if (has("ptr") || kTensors.contains(name)) {
            made.tensors[name] = {.shape = {96, 64}, .strides = {}, .dtype = plan::DType::fp32, .block = {}};
        } else if (parameter.fallback == nullptr) {
            const bool inner = has("stride") && (name.ends_with("k") || name.ends_with("n"));
            made.scalars[name] = std::int64_t{inner ? 1 : 20};
        }
    }
    return made;
}

/// A thousandth of what an analysis may cost otherwise: an input that takes longer than the next thousand is
/// not worth it, and what an analysis does when it gives up is tried too.
constexpr kernel::triton::Effort kEffort{
    .steps = 100'000, .programs = 4096, .boxes = 50'000, .memory = std::size_t{32} << 20};

template <std::size_t kFew>
void check_boxes(const kernel::ByParameter<kernel::SharedBoxes, kFew>& boxes,
                 const kernel::ByParameter<plan::Region, kFew>& bounds, const kernel::Kernel& kernel) {
    for (const auto& [name, parts] : boxes) {
        const std::vector<std::int64_t>& shape = kernel.arguments.tensors.at(name).shape;
        for (const plan::Region& part : parts) {
            require(part.size() == shape.size(), "a box has the axes of its tensor");
            for (std::size_t d = 0; d < part.size(); ++d) {
                require(part[d].begin >= 0 && part[d].begin < part[d].end && part[d].end <= shape[d],
                        "a box lies in its tensor");
            }
            require(plan::contains(bounds.at(name), part), "the bounding box contains each box");
        }
    }
}

void check_kernel(const kernel::Kernel& kernel) {
    const kernel::triton::Text& text = kernel::triton::text_of(kernel);
    const kernel::triton::Sites& sites = text.sites;
    const auto inside = [&](const kernel::triton::SourceRange& where) {
        require(where.begin <= where.end && where.end <= text.source.size(), "a site lies in the source");
    };
    inside(sites.function);
    inside(sites.name);
    inside(sites.parameters);
    inside(sites.body);
    for (const kernel::triton::TileIdSite& site : sites.tile_ids) inside(site.anchor);
    for (std::size_t i = 0; i < kernel.tiles.size(); ++i) {
        const kernel::Tile& tile = kernel.tiles[i];
        require(tile.id == static_cast<std::int64_t>(i), "tiles are numbered");
        require(tile.program >= 0 && tile.program < kernel.num_programs(), "a tile has a program");
        require(tile.coord.size() == kernel.axes.size(), "a tile has a coordinate for each axis");
        check_boxes(tile.read_boxes, tile.reads, kernel);
        check_boxes(tile.write_boxes, tile.writes, kernel);
    }
}

void check_error(const Error& error) {
    require(!error.message.empty(), "an error says what is wrong");
    require(error.message.find('\n') == std::string::npos, "a message is one line");
    if (error.location.line == 0) return;
    require(error.location.column > 0, "a line comes with a column");
    require(std::count(error.excerpt.begin(), error.excerpt.end(), '\n') == 1,
            "the source line and the caret");
    require(error.excerpt.find('^') != std::string::npos, "a caret");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    std::string_view text = fuzz::text_of(data, size);
    constexpr std::string_view kStart = "--- kernel.py\n";
    const std::size_t start = text.find(kStart);
    const bool given = start != std::string_view::npos;
    const std::string_view words = given ? text.substr(0, start) : std::string_view();
    if (given) text = text.substr(start + kStart.size(), text.find("--- expected\n") - start - kStart.size());
    const std::string source(text);

    const auto module = kernel::triton::Module::parse(source, "fuzz.py");
    if (!module) {
        check_error(module.error());
        return 0;
    }
    std::int32_t analysed = 0;
    for (std::size_t f = 0; f < (*module)->functions.size() && analysed < 4; ++f) {
        if (!(*module)->functions[f].jit) continue;
        if (const Status status = (*module)->parse_function(static_cast<std::int32_t>(f)); !status) {
            check_error(status.error());
            continue;
        }
        ++analysed;
        const kernel::triton::Function& function = (*module)->functions[f];
        const auto kernel = kernel::triton::analyse(
            source, "fuzz.py", function.name, given ? arguments_of(words) : arguments_for(function), kEffort);
        if (kernel)
            check_kernel(*kernel);
        else
            check_error(kernel.error());
    }
    return 0;
}
