#include "random_chains.hpp"

#include <algorithm>
#include <array>
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace syncopate::sync::test {
namespace {

constexpr std::int32_t kTensors = 3;
constexpr std::int32_t kExtent = 6;  // elements of each tensor

/// One range a·x + b·y + c : … + length.
struct Range {
    std::int32_t a, b, c, length;
    [[nodiscard]] std::string text() const {
        return fmt::format("{}*x+{}*y-1+{}:{}*x+{}*y+{}", a, b, c, a, b, c - 1 + length);
    }
    [[nodiscard]] std::uint64_t bits(std::int32_t x, std::int32_t y, std::int32_t tensor) const {
        std::uint64_t bits = 0;
        const std::int32_t begin = a * x + b * y - 1 + c;
        for (std::int32_t i = std::max(begin, 0); i < std::min(begin + length, kExtent); ++i)
            bits |= std::uint64_t{1} << (tensor * kExtent + i);
        return bits;
    }
};

class Maker {
public:
    explicit Maker(std::uint64_t seed) : random_(seed) {}

    RandomChain make() {
        made_.all_automatic = chance(3);
        const std::int32_t stages = 2 + pick(2);
        overlapped_ = chance(4);
        const bool any = !made_.all_automatic && chance(12);
        std::string text = R"({"schema": "syncopate.chain/1", "tensors": {"T0": [6], "T1": [6], "T2": [6]})";
        if (overlapped_) text += R"(, "calls": "overlapped")";
        if (any) text += R"(, "launch": "any")";
        text += ", \"stages\": [";
        std::int32_t left = overlapped_ ? 4 : 6;
        for (std::int32_t stage = 0; stage < stages; ++stage) {
            text += (stage == 0 ? "" : ", ") + stage_text(stage, left - (stages - 1 - stage));
            left -= static_cast<std::int32_t>(made_.touched.back().size());
        }
        made_.text = text + "]}";
        return std::move(made_);
    }

private:
    std::int32_t pick(std::int32_t below) {
        return static_cast<std::int32_t>(random_() % static_cast<unsigned>(below));
    }
    bool chance(std::int32_t one_in) { return pick(one_in) == 0; }

    Range range() { return {pick(4), pick(4), pick(3), 1 + pick(3)}; }

    std::string policy() {
        static constexpr std::array<const char*, 9> kNamed{"\"auto\"", "\"none\"",    "\"tile\"",
                                                           "\"row\"",  "\"strided\"", "\"consecutive\"",
                                                           "\"halo\"", "\"batched\"", "\"auto\""};
        if (made_.all_automatic) return "\"auto\"";
        switch (pick(4)) {
            case 0: return fmt::format(R"({{"policy": "row", "count": {}}})", pick(4));
            case 1:
                return fmt::format(R"({{"policy": "custom", "semaphore": "{}*x+{}*y"{}}})", pick(2), pick(2),
                                   chance(2) ? fmt::format(R"(, "count": {})", pick(4)) : "");
            default: return kNamed[static_cast<std::size_t>(pick(static_cast<std::int32_t>(kNamed.size())))];
        }
    }

    std::string stage_text(std::int32_t stage, std::int32_t most) {
        std::int32_t nx = 1 + pick(3);
        std::int32_t ny = 1 + pick(2);
        while (nx * ny > std::max(most, 1)) (ny > 1 ? ny : nx) -= 1;
        made_.touched.emplace_back(static_cast<std::size_t>(nx * ny));
        made_.blocks += nx * ny;
        std::string text = fmt::format(R"({{"name": "s{}", "grid": [{}, {}])", stage, nx, ny);
        if (!made_.all_automatic && chance(6)) text += R"(, "tickets": false)";
        text += order(nx * ny);
        // Mostly a chain: a stage reads what the one before writes; sometimes anything.
        const std::int32_t input = chance(4) ? pick(kTensors) : (stage + kTensors - 1) % kTensors;
        const std::int32_t output = chance(4) ? pick(kTensors) : stage;
        const bool early = !made_.all_automatic && chance(10);
        text += boxes("reads", input, nx, ny, [&](Touched& touched, std::uint64_t bits) {
            (early ? touched.early : touched.reads) |= bits;
        });
        const bool adds = !chance(5);
        text += boxes("writes", output, nx, ny, [&](Touched& touched, std::uint64_t bits) {
            touched.writes |= bits;
            touched.adds = adds;
        });
        if (adds) text += fmt::format(R"(, "adds": ["T{}"])", output);
        if (early) {
            text += fmt::format(R"(, "early": ["T{}"])", input);
        } else if (!chance(4)) {
            text += fmt::format(R"(, "waits": {{"T{}": {}}})", input, policy());
        }
        if (overlapped_ && !chance(3)) text += fmt::format(R"(, "guards": {{"T{}": {}}})", output, policy());
        return text + "}";
    }

    std::string order(std::int32_t blocks) {
        if (chance(3)) return R"(, "order": "auto")";
        if (chance(3)) return R"(, "order": "transposed")";
        if (chance(3)) return R"(, "order": {"order": "grouped", "rows": 1})";
        if (!chance(3)) return "";
        std::vector<std::int32_t> tiles;
        for (std::int32_t i = 0; i < blocks; ++i) tiles.push_back(i);
        std::ranges::shuffle(tiles, random_);
        return fmt::format(R"(, "order": {{"order": "custom", "tiles": [{}]}})", fmt::join(tiles, ", "));
    }

    template <typename Add>
    std::string boxes(const char* key, std::int32_t tensor, std::int32_t nx, std::int32_t ny,
                      const Add& add) {
        const std::int32_t count = chance(3) ? 2 : 1;
        std::vector<std::string> texts;
        for (std::int32_t i = 0; i < count; ++i) {
            const Range one = range();
            texts.push_back("[\"" + one.text() + "\"]");
            for (std::int32_t y = 0; y < ny; ++y) {
                for (std::int32_t x = 0; x < nx; ++x)
                    add(made_.touched.back()[static_cast<std::size_t>(y * nx + x)], one.bits(x, y, tensor));
            }
        }
        return fmt::format(R"(, "{}": {{"T{}": [{}]}})", key, tensor, fmt::join(texts, ", "));
    }

    std::mt19937_64 random_;
    RandomChain made_;
    bool overlapped_ = false;
};

}  // namespace

RandomChain random_chain(std::uint64_t seed) { return Maker(seed).make(); }

}  // namespace syncopate::sync::test
