// Statements of kernels, from the bytes of a file to tiles: whatever they are, tiles that lie in their
// tensors, or an error that says what is wrong. Every scalar is 20 and every tensor has two axes.
#include <string>

#include "fuzz/target.hpp"
#include "syncopate/kernel/stated/statement.hpp"

namespace {

using namespace syncopate;
using fuzz::require;

/// What a launch costs at most here: the rest is not worth its time.
constexpr std::int64_t kMostWork = 50'000;

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto statement = kernel::stated::statement_from_json(fuzz::text_of(data, size), "fuzz.kernel.json");
    if (!statement) {
        require(!statement.error().message.empty(), "an error says what is wrong");
        return 0;
    }
    kernel::Arguments arguments;
    for (const std::string& name : statement->parameters) arguments.scalars[name] = std::int64_t{20};
    for (const auto* accesses : {&statement->reads, &statement->writes}) {
        for (const kernel::stated::Access& access : *accesses)
            arguments.tensors[access.param] = {
                .shape = {96, 64}, .strides = {}, .dtype = plan::DType::fp32, .block = {}};
    }
    const auto kernel = kernel::stated::analyse(*statement, arguments, kMostWork);
    if (!kernel) {
        require(!kernel.error().message.empty(), "an error says what is wrong");
        return 0;
    }
    for (std::size_t i = 0; i < kernel->tiles.size(); ++i) {
        const kernel::Tile& tile = kernel->tiles[i];
        require(tile.id == static_cast<std::int64_t>(i), "tiles are numbered");
        require(tile.program >= 0 && tile.program < kernel->num_programs(), "a tile has a program");
        check_boxes(tile.read_boxes, tile.reads, *kernel);
        check_boxes(tile.write_boxes, tile.writes, *kernel);
    }
    return 0;
}
