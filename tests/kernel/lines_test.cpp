// Programs evaluated many at once against every program evaluated alone: the same kernel, or the same error, bit
// for bit.
#include <filesystem>
#include <optional>
#include <random>
#include <sstream>

#include "kernel/launches.hpp"
#include "kernel/support.hpp"
#include "kernel/triton/analyse/analysis.hpp"

namespace syncopate::kernel::triton::test {
namespace {

std::string written(const SourceRange& range) {
    return std::to_string(range.begin) + "-" + std::to_string(range.end) + "@" + std::to_string(range.line) +
           ":" + std::to_string(range.column) + " ";
}

/// Everything that an analysis found, as text.
std::string written(const Result<Kernel>& result) {
    if (!result) return "error: " + result.error().to_string();
    const Kernel& k = *result;
    std::ostringstream out;
    for (const Param& p : k.params) out << p.name << static_cast<int>(p.kind) << p.read << p.written << " ";
    for (const TileAxis& a : k.axes) out << a.name << "=" << a.count << "x" << a.block << " ";
    out << k.grid[0] << "," << k.grid[1] << "," << k.grid[2] << "\n";
    const auto boxes = [&](const auto& all) {
        for (const auto& [name, parts] : all) {
            out << " " << name;
            for (const plan::Region& part : parts) out << plan::to_string(part);
        }
    };
    for (const Tile& t : k.tiles) {
        out << t.id << "@" << t.program << ":";
        for (const std::int64_t c : t.coord) out << c << ",";
        boxes(t.read_boxes);
        out << " |";
        boxes(t.write_boxes);
        for (const std::string& name : t.inexact_reads) out << " r~" << name;
        for (const std::string& name : t.inexact_writes) out << " w~" << name;
        for (const auto& [name, region] : t.reads) out << " r " << name << plan::to_string(region);
        for (const auto& [name, region] : t.writes) out << " w " << name << plan::to_string(region);
        out << "\n";
    }
    const Sites& s = sites_of(k);
    out << written(s.last_store) << written(s.stored) << written(s.tile_loop_header) << k.persistent
        << s.early_return;
    for (const TileIdSite& site : s.tile_ids) {
        out << " id" << static_cast<int>(site.kind) << written(site.anchor) << site.guards_reads
            << site.guards_writes;
        for (const std::string& v : site.variables) out << v << ",";
    }
    for (const LoopSite& site : s.loops) out << " loop " << written(site.header) << site.bound;
    for (const Loop& loop : k.loops) {
        out << " " << loop.variable << loop.trips << loop.divisible;
        for (const LoopSlice& slice : loop.slices)
            out << " " << slice.param << slice.dim << ":" << slice.base << "+" << slice.step << "x"
                << slice.extent;
    }
    for (const ParamAccess& one : k.accesses)
        out << " " << one.param << one.stores << static_cast<int>(one.by) << one.given << one.rows
            << one.fixed;
    return out.str();
}

void expect_same(const std::string& text, const Arguments& args, const std::string& name = "") {
    const std::string at_once = written(analyse(text, "kernel.py", name, args, Effort{}));
    const std::string alone = written(analyse(text, "kernel.py", name, args, Effort{.lines = false}));
    EXPECT_EQ(at_once, alone) << text;
}

TEST(Lines, GivesTheExamplesTheSameTiles) {
    for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{200, 144, 96}, {64, 64, 32}, {1000, 300, 70}}) {
        expect_same(example("matmul_pointers.py"), pointers(m, n, k));
        expect_same(example("matmul_persistent_device_tma.py"), descriptors(m, n, k, false));
        expect_same(example("matmul_persistent_host_tma.py"), descriptors(m, n, k, true));
    }
}

// tests/kernel/corpus_launches.txt:
//   TRITON_INTERPRET=1 PYTHONPATH=python:tests python bench/kernel_analyse_corpus.py FILE 300
TEST(Lines, GivesLaunchesOfTheCorpusTheSameTiles) {
    const std::string root = std::string(SYNCOPATE_SOURCE_DIR) + "/";
    const auto lines = read_file(root + "tests/kernel/corpus_launches.txt");
    ASSERT_TRUE(lines.ok());
    std::istringstream stream(*lines);
    int count = 0;
    for (std::string line; std::getline(stream, line); ++count) {
        const std::optional<Launch> launch = launch_of(line);
        ASSERT_TRUE(launch.has_value()) << line;
        const auto source = read_file(root + launch->file);
        ASSERT_TRUE(source.ok()) << line;
        const auto at_once =
            analyse(*source, root + launch->file, launch->kernel, launch->arguments, Effort{});
        const auto alone =
            analyse(*source, root + launch->file, launch->kernel, launch->arguments, Effort{.lines = false});
        ASSERT_TRUE(at_once.ok()) << line << "\n" << at_once.error().to_string();
        EXPECT_TRUE(written(at_once) == written(alone)) << line;
    }
    EXPECT_GT(count, 80);
}

TEST(Lines, ForgetsWhenItIsFullAndGoesOn) {
    Arguments args =
        pointers(64 * 120, 64 * 110, 96);  // values of more than what is kept from program to program
    expect_same(example("matmul_pointers.py"), args);
}

/// Random kernels: statements that mix the program's ids, blocks, masks, loops, branches and helpers.
class Writer {
public:
    explicit Writer(unsigned seed) : random_(seed) {}

    std::string kernel() {
        text_ =
            "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef split(i, n, G: "
            "tl.constexpr):\n"
            "    if i > n:\n        return i - n, G\n    return i // G, i % G\n\n\n"
            "@triton.jit\ndef gather(p, r, n, m):\n    s = tl.zeros((8,), tl.float32)\n"
            "    for j in range(0, n, 8):\n        s += tl.load(p + r + j, mask=r + j < m)\n    return "
            "s\n\n\n"
            "@triton.jit\ndef k(x_ptr, y_ptr, n, m, B: tl.constexpr, S: tl.constexpr):\n"
            "    p = tl.program_id(0)\n    q = tl.program_id(1)\n";
        numbers_ = {"p", "q", "n", "m", "B", "p", "q"};
        blocks_ = {"tl.arange(0, 8)"};
        const bool persistent = below(4) == 0;
        if (persistent) {
            text_ += "    for t in range(p, n, S):\n";
            numbers_.emplace_back("t");
            indent_ = 8;
        }
        const int statements = 6 + below(10);
        for (int i = 0; i < statements; ++i) statement(2);
        line("tl.store(y_ptr + " + (persistent ? std::string("t") : std::string("(p * 3 + q)")) +
             " * 8 + tl.arange(0, 8), 0.0)");
        return text_;
    }

private:
    int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }
    const std::string& pick(const std::vector<std::string>& from) {
        return from[static_cast<std::size_t>(below(static_cast<int>(from.size())))];
    }
    void line(const std::string& text) {
        text_ += std::string(static_cast<std::size_t>(indent_), ' ') + text + "\n";
    }

    std::string number(int depth = 2) {
        if (depth == 0 || below(3) == 0) return below(4) == 0 ? std::to_string(1 + below(9)) : pick(numbers_);
        const std::string a = number(depth - 1), b = number(depth - 1), c = std::to_string(1 + below(7));
        switch (below(8)) {
            case 0: return "(" + a + " + " + b + ")";
            case 1: return "(" + a + " - " + b + ")";
            case 2: return "(" + a + " * " + c + ")";
            case 3: return "(" + a + " // " + c + ")";
            case 4: return "(" + a + " % " + c + ")";
            case 5: return "min(" + a + ", " + b + ")";
            case 6: return "tl.cdiv(" + a + ", " + c + ")";
            default: return "(" + a + " if " + b + " > " + c + " else " + c + ")";
        }
    }
    std::string block() {
        const std::string& a = pick(blocks_);
        switch (below(6)) {
            case 0: return "(" + a + " + " + number() + ")";
            case 1: return "(" + a + " * " + std::to_string(1 + below(3)) + ")";
            case 2: return "((" + a + " + " + number(1) + ") % " + std::to_string(5 + below(40)) + ")";
            case 3: return "(" + number(1) + " + " + a + ")";
            case 4:
                return "tl.where(" + a + " < " + number(1) + ", " + a + ", " + std::to_string(below(20)) +
                       ")";
            default: return "(" + a + " + " + pick(blocks_) + ")";
        }
    }
    std::string name(const char* kind) { return kind + std::to_string(next_++); }

    void statement(int depth) {
        switch (below(depth > 0 ? 12 : 8)) {
            case 0:
            case 1: {
                const std::string made = name("i");
                line(made + " = " + number());
                numbers_.push_back(made);
                break;
            }
            case 2:
            case 3: {
                const std::string made = name("b");
                line(made + " = " + block());
                blocks_.push_back(made);
                break;
            }
            case 4:
                line(name("v") + " = tl.load(x_ptr + " + block() + ", mask=" + pick(blocks_) + " < " +
                     number(1) + ")");
                break;
            case 5:
                line(name("v") + " = tl.load(x_ptr + " + block() +
                     "[:, None] * 4 + tl.arange(0, 4)[None, :])");
                break;
            case 6: line("tl.store(y_ptr + " + block() + ", 1.0)"); break;
            case 7: {
                const std::string a = name("i"), b = name("i");
                line(a + ", " + b + " = split(" + number(1) + ", " + number(1) + ", " +
                     std::to_string(1 + below(5)) + ")");
                numbers_.push_back(a);
                numbers_.push_back(b);
                break;
            }
            case 8: {  // a loop that carries an index and a pointer
                const std::string i = name("i"), at = name("a"), by = name("j");
                line(i + " = " + number(1));
                line(at + " = x_ptr + " + block());
                line("for " + by + " in range(" + number(1) + ", " + number(1) + " % 9):");
                const auto numbers = numbers_, blocks = blocks_;
                indent_ += 4;
                numbers_.push_back(by);
                numbers_.push_back(i);
                statement(depth - 1);
                line(name("v") + " = tl.load(" + at + " + " + (below(2) == 0 ? by : i) + ")");
                line(at + " += " + std::to_string(1 + below(9)));
                line(i + (below(3) == 0 ? " *= 2" : " += " + std::to_string(below(5))));
                indent_ -= 4;
                numbers_ = numbers, blocks_ = blocks;
                break;
            }
            case 9: {
                line("if " + number(1) + " > " + number(1) + ":");
                const auto numbers = numbers_, blocks = blocks_;
                indent_ += 4;
                statement(depth - 1);
                statement(depth - 1);
                indent_ -= 4;
                numbers_ = numbers, blocks_ = blocks;
                break;
            }
            case 10:
                line(name("v") + " = gather(x_ptr, " + block() + ", " + number(1) + " % 33, " + number(1) +
                     ")");
                break;
            default: {
                const std::string& b = pick(blocks_);
                if (b.find('(') == std::string::npos) line(b + " += " + number(1));
                break;
            }
        }
    }

    std::mt19937 random_;
    std::string text_;
    std::vector<std::string> numbers_, blocks_;
    int indent_ = 4;
    int next_ = 0;
};

TEST(Lines, GivesRandomKernelsTheSameTilesOrTheSameError) {
    int analysed = 0;
    for (unsigned seed = 0; seed < 400; ++seed) {
        const std::string text = Writer(seed).kernel();
        std::mt19937 random(seed);
        Arguments args = arguments(
            "n=" + std::to_string(random() % 40) + ",m=" + std::to_string(random() % 200) +
                ",B=" + std::to_string(1 + random() % 16) + ",S=" + std::to_string(1 + random() % 3),
            {random() % 2 == 0 ? "x_ptr=300:fp32" : "x_ptr=20x15:fp32", "y_ptr=40x8:fp32"});
        args.grid = {static_cast<std::int64_t>(1 + random() % 11),
                     static_cast<std::int64_t>(1 + random() % 5), 1};
        expect_same(text, args, "k");
        if (analyse(text, "kernel.py", "k", args).ok()) ++analysed;
        if (testing::Test::HasFailure()) return;
    }
    EXPECT_GT(analysed, 100);
}

TEST(Lines, GivesLinesOfProgramsTheSameTiles) {
    const auto copy = [](const std::string& ids, const std::string& row, const std::string& column) {
        return source("x_ptr, y_ptr, M, N, B: tl.constexpr, G: tl.constexpr",
                      ids + "    r = " + row + " * B + tl.arange(0, B)\n    c = " + column +
                          " * B + tl.arange(0, B)\n    at = r[:, None] * N + c[None, :]\n"
                          "    mask = (r[:, None] < M) & (c[None, :] < N)\n"
                          "    x = tl.load(x_ptr + (r % M)[:, None] * N + (c % N)[None, :])\n"
                          "    for k in range(0, 3):\n        x += tl.load(x_ptr + at + k, mask=mask)\n"
                          "    tl.store(y_ptr + at, x, mask=mask)\n");
    };
    const std::string linear = "    pid = tl.program_id(0)\n    cols = tl.cdiv(N, B)\n";
    const std::string grouped = linear +
                                "    rows = tl.cdiv(M, B)\n    group = pid // (G * cols)\n"
                                "    size = min(rows - group * G, G)\n"
                                "    m = group * G + (pid % (G * cols)) % size\n"
                                "    n = (pid % (G * cols)) // size\n";
    const std::string axes = "    m = tl.program_id(1)\n    n = tl.program_id(0)\n";
    const std::string early = axes + "    if n > m + 2:\n        return\n";
    Arguments args = arguments("M=75,N=93,B=8,G=4", {"x_ptr=75x93:fp32", "y_ptr=75x93:fp32"});
    args.grid = {120, 1, 1};
    expect_same(copy(linear, "(pid // cols)", "(pid % cols)"), args);
    expect_same(copy(linear, "(pid % 10)", "(pid // 10)"), args);
    expect_same(copy(linear, "((pid + 5) // cols)", "(11 - pid % cols)"), args);
    expect_same(copy(grouped, "m", "n"), args);
    args.grid = {12, 10, 1};
    expect_same(copy(axes, "m", "n"), args);
    expect_same(copy(axes, "n", "m"), args);
    expect_same(copy(axes, "tl.maximum(m - n, 0)", "tl.minimum(n, 5)"), args);
    expect_same(copy(early, "m", "n"), args);
    args.grid = {5, 4, 6};
    expect_same(
        copy("    m = tl.program_id(2) * 2\n    n = tl.program_id(1) * 3 + tl.program_id(0)\n", "m", "n"),
        args);
}

/// A convolution of `taps` x `taps` by `stride` as a product, NHWC or NCHW, its padding masked.
std::string convolution(const std::string& x, const std::string& y) {
    return source(
        "x_ptr, y_ptr, N, H, W, C, OH, OW, S: tl.constexpr, P: tl.constexpr, D: tl.constexpr, "
        "R: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr",
        "    p = tl.program_id(0) * BM + tl.arange(0, BM)\n    o = tl.arange(0, BK)\n"
        "    n, rest = p // (OH * OW), p % (OH * OW)\n    row, col = rest // OW, rest % OW\n"
        "    acc = tl.zeros((BM, BK), tl.float32)\n    for tap in range(R * R):\n"
        "        r, c = row * S + tap // R * D - P, col * S + tap % R * D - P\n"
        "        inside = (p < N * OH * OW) & (r >= 0) & (r < H) & (c >= 0) & (c < W)\n"
        "        for k in range(0, C, BK):\n            ch = k + tl.arange(0, BK)\n"
        "            acc += tl.load(x_ptr + " +
            x + ", mask=inside[:, None])\n    tl.store(y_ptr + " + y +
            ", acc, mask=(p < N * OH * OW)[:, None])\n");
}

const std::array<std::string, 2> kRowsLast{
    convolution("((n * H + r) * W + c)[:, None] * C + ch[None, :]", "p[:, None] * BK + o[None, :]"),
    convolution("n[:, None] * (C * H * W) + ch[None, :] * (H * W) + (r * W + c)[:, None]",
                "n[:, None] * (BK * OH * OW) + o[None, :] * (OH * OW) + rest[:, None]")};

/// Its launch; `nchw`: the channels in front.
Arguments convolved(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c, std::int64_t stride,
                    std::int64_t padding, std::int64_t dilation, std::int64_t taps, std::int64_t block,
                    bool nchw) {
    const auto out = [&](std::int64_t extent) {
        return (extent + 2 * padding - dilation * (taps - 1) - 1) / stride + 1;
    };
    const auto text = [](std::int64_t number) { return std::to_string(number); };
    const std::string oh = text(out(h)), ow = text(out(w));
    const auto shape = [&](const std::string& rows, const std::string& columns, const std::string& channels) {
        return text(n) + "x" + (nchw ? channels + "x" : "") + rows + "x" + columns +
               (nchw ? "" : "x" + channels) + ":fp16";
    };
    Arguments made =
        arguments("N=" + text(n) + ",H=" + text(h) + ",W=" + text(w) + ",C=" + text(c) + ",OH=" + oh +
                      ",OW=" + ow + ",S=" + text(stride) + ",P=" + text(padding) + ",D=" + text(dilation) +
                      ",R=" + text(taps) + ",BM=" + text(block) + ",BK=4",
                  {"x_ptr=" + shape(text(h), text(w), text(c)), "y_ptr=" + shape(oh, ow, "4")});
    made.grid = {(n * out(h) * out(w) + block - 1) / block, 1, 1};
    return made;
}

TEST(Lines, GivesConvolutionsTheSameTiles) {
    for (const bool nchw : {false, true}) {
        const std::string& text = kRowsLast[nchw ? 1 : 0];
        expect_same(text, convolved(24, 6, 8, 8, 1, 1, 1, 3, 16, nchw));  // 6 blocks in 2 images
        expect_same(text, convolved(16, 7, 9, 4, 1, 1, 1, 3, 8, nchw));   // 63 blocks in 8
        expect_same(text, convolved(9, 12, 10, 8, 2, 1, 1, 3, 4, nchw));
        expect_same(text, convolved(9, 9, 9, 4, 1, 2, 2, 3, 8, nchw));
        expect_same(text, convolved(10, 8, 8, 4, 1, 2, 1, 5, 32, nchw));
        expect_same(text, convolved(10, 8, 6, 8, 1, 0, 1, 1, 16, nchw));
        expect_same(text, convolved(1, 40, 41, 4, 1, 1, 1, 3, 8, nchw));  // a row is 5 blocks and 1 pixel
        expect_same(text, convolved(5, 10, 10, 4, 3, 1, 1, 2, 2, nchw));
    }
}

// By lines of programs whole images apart, and each access of a tap one for all channels: so many steps do for 1,568
// programs alone otherwise.
TEST(Lines, TakesFewStepsForManyTilesOfAConvolution) {
    for (const bool nchw : {false, true}) {
        const Result<Kernel> kernel = analyse(kRowsLast[nchw ? 1 : 0], "kernel.py", "",
                                              convolved(512, 56, 56, 64, 1, 1, 1, 3, 128, nchw),
                                              Effort{.steps = 4'000'000, .steps_a_program = 0});
        ASSERT_TRUE(kernel.ok()) << kernel.error().to_string();
        EXPECT_EQ(kernel->tiles.size(), 12'544U);
    }
}

// Conditions that tiles of a line differ in, and a first program that has no line.
TEST(Lines, GivesTilesOnBelowAndAboveADiagonalTheSame) {
    const auto copy = [](const std::string& ids, const std::string& condition) {
        return source(
            "x_ptr, y_ptr, N: tl.constexpr, B: tl.constexpr",
            ids +
                "    r = row * B + tl.arange(0, B)\n    c = column * B + tl.arange(0, B)\n"
                "    at = r[:, None] * N + c[None, :]\n    tl.store(y_ptr + at, tl.load(x_ptr + at), "
                "mask=" +
                condition + ")\n");
    };
    const std::string triangle =
        "    pid = tl.program_id(0)\n    row = 0\n    first = 0\n    while first + row + 1 <= pid:\n"
        "        first += row + 1\n        row += 1\n    column = pid - first\n";
    const std::string square = "    pid = tl.program_id(0)\n    row = pid // 9\n    column = pid % 9\n";
    Arguments args = arguments("N=72,B=8", {"x_ptr=72x72:fp32", "y_ptr=72x72:fp32"});
    for (const std::string condition :
         {"c[None, :] <= r[:, None]", "c[None, :] < r[:, None] + 1", "r[:, None] > c[None, :] + 11",
          "r[:, None] >= c[None, :]", "c[None, :] == r[:, None]", "c[None, :] != r[:, None]",
          "(c[None, :] <= r[:, None]) & (r[:, None] < 70)", "c[None, :] * 2 <= r[:, None]"}) {
        args.grid = {45, 1, 1};
        expect_same(copy(triangle, condition), args);
        args.grid = {81, 1, 1};
        expect_same(copy(square, condition), args);
    }
}

// Accesses that are put together before each program gets its own: what is touched is what one by one is.
TEST(Lines, GivesManyRoundsOfALineTheSameElements) {
    for (const std::string step : {"k", "k // 2", "k * 3 % 7", "31 - k"}) {
        const std::string text =
            source("x_ptr, w_ptr, y_ptr, N, B: tl.constexpr",
                   "    m = tl.program_id(1)\n    c = tl.program_id(0) * B + tl.arange(0, B)\n"
                   "    x = tl.zeros((B,), dtype=tl.float32)\n    for k in tl.static_range(32):\n"
                   "        x += tl.load(x_ptr + m * 32 + " +
                       step + ") * tl.load(w_ptr + (" + step +
                       ") * N + c, mask=c < N)\n    tl.store(y_ptr + m * N + c, x, mask=c < N)\n");
        Arguments args = arguments("N=93,B=8", {"x_ptr=5x32:fp32", "w_ptr=32x93:fp32", "y_ptr=5x93:fp32"});
        args.grid = {12, 5, 1};
        const Result<Kernel> lines = analyse(text, "kernel.py", "", args, Effort{});
        const Result<Kernel> alone = analyse(text, "kernel.py", "", args, Effort{.lines = false});
        ASSERT_TRUE(lines.ok() && alone.ok());
        ASSERT_EQ(lines->tiles.size(), alone->tiles.size());
        for (std::size_t t = 0; t < lines->tiles.size(); ++t) {
            const Tile &a = lines->tiles[t], &b = alone->tiles[t];
            EXPECT_EQ(a.writes.at("y_ptr"), b.writes.at("y_ptr")) << text;
            for (const std::string name : {"x_ptr", "w_ptr"}) {
                EXPECT_EQ(a.reads.at(name), b.reads.at(name)) << text;
                for (const auto& [these, those] :
                     {std::pair(a.read_boxes, b.read_boxes), std::pair(b.read_boxes, a.read_boxes)}) {
                    const auto all = these.find(name), others = those.find(name);
                    if (all == these.end()) continue;
                    std::vector<plan::Region> left(all->second.begin(), all->second.end());
                    ASSERT_NE(others, those.end()) << text;
                    for (const plan::Region& box : others->second) plan::take(left, box);
                    EXPECT_TRUE(left.empty()) << name << " of tile " << t << " of " << text;
                }
            }
        }
    }
}

// Weights of 4 bits, each round of them by its own: 100,000 tiles.
TEST(Lines, KeepsFewAccessesOfManyRoundsInManyPrograms) {
    const std::string text =
        source("w_ptr, y_ptr, N, B: tl.constexpr",
               "    c = tl.program_id(0) * B + tl.arange(0, B)\n    x = tl.zeros((B,), dtype=tl.float32)\n"
               "    for k in tl.static_range(64):\n        x += tl.load(w_ptr + k * N + c)\n"
               "    tl.store(y_ptr + c, x)\n");
    Arguments args = arguments("N=800000,B=8", {"w_ptr=64x800000:fp32", "y_ptr=800000:fp32"});
    args.grid = {100000, 1, 1};
    const Result<Kernel> found = analyse(text, "kernel.py", "", args, Effort{});
    ASSERT_TRUE(found.ok()) << found.error().to_string();
    EXPECT_EQ(found->tiles.size(), 100000U);
    EXPECT_EQ(found->tiles[99999].reads.at("w_ptr"), (plan::Region{{0, 64}, {799992, 800000}}));
}

TEST(Lines, GivesLinesOfNumbersThatDoNotFitTheSameError) {
    Arguments args = arguments("n=40", {"y_ptr=40:fp32"});
    args.grid = {40, 1, 1};
    for (const std::string grow : {"i *= 2", "i += 1 << 57", "i *= 1 << 30"})
        expect_same(
            source("y_ptr, n",
                   "    p = tl.program_id(0)\n    i = p + n\n    for j in tl.static_range(80):\n        " +
                       grow + "\n    tl.store(y_ptr + p, 0.0)\n"),
            args);
}

TEST(Lines, GivesTilesOfPersistentKernelsTheSame) {
    const auto copy = [](const std::string& before, const std::string& loop, const std::string& tile,
                         const std::string& after = "") {
        return source(
            "x_ptr, y_ptr, M, N, B: tl.constexpr, S: tl.constexpr",
            "    pid = tl.program_id(0)\n    cols = tl.cdiv(N, B)\n    tiles = tl.cdiv(M, B) * cols\n" +
                before + "    " + loop + ":\n        r = (" + tile +
                " // cols) * B + tl.arange(0, B)\n        c = (t % cols) * B + tl.arange(0, B)\n"
                "        r = tl.where(r < M, r, 0)\n        at = r[:, None] * N + c[None, :]\n"
                "        x = tl.load(x_ptr + at, mask=(c < N)[None, :])\n"
                "        tl.store(y_ptr + at, x, mask=(r < M)[:, None] & (c < N)[None, :])\n" +
                after);
    };
    Arguments args = arguments("M=75,N=93,B=8,S=7", {"x_ptr=75x93:fp32", "y_ptr=75x93:fp32"});
    args.grid = {7, 1, 1};
    const std::string strided = "for t in range(pid, tiles, S)", more = "        u += S\n";
    expect_same(copy("", strided, "t"), args);
    expect_same(copy("    t = pid\n", "while t < tiles", "t", "        t += S\n"), args);
    expect_same(copy("    t = pid\n", "while t < tiles", "t", "        t += S + t // 50\n"), args);
    expect_same(copy("    u = pid\n", strided, "u", more), args);
    expect_same(copy("    u = pid + S\n", strided, "(u - S)", more), args);
    expect_same(copy("    u = pid\n", strided, "u", more + more), args);
    expect_same(copy("    u = pid * 2\n", strided, "u", more), args);
    expect_same(copy("    u = tl.load(x_ptr + pid * 2)\n", strided, "t"), args);
    expect_same(copy("", strided, "(t + tl.program_id(0) * 0)"), args);
    expect_same(copy("", strided, "(t + tl.program_id(0))"), args);
    expect_same(copy("    if pid > 4:\n        return\n", strided, "t"), args);
    expect_same(copy("", strided, "t", "    tl.store(y_ptr + pid, 1.0)\n"), args);
    args.grid = {18, 1, 1};
    const std::string band = "for t in range(pid * S, min(pid * S + S, tiles))";
    expect_same(copy("", band, "t"), args);
    args.grid = {7, 2, 1};
    expect_same(copy("", strided, "t"), args);
    expect_same(copy("    x_ptr += tl.program_id(1) * 3\n", strided, "t"), args);
}

TEST(Lines, GivesLinesOfKernelsThatStateFootprintsTheSameTiles) {
    const auto gather = [](const std::string& range, const std::string& extra) {
        return source("x_ptr, i_ptr, y_ptr, n, B: tl.constexpr",
                      "    # @sy.reads x_ptr[" + range + "]\n    pid = tl.program_id(0)\n    m = pid // 5\n" +
                          extra +
                          "    r = pid * B + tl.arange(0, B)\n    i = tl.load(i_ptr + r, mask=r < n)\n"
                          "    if i_first > 3:\n        tl.store(y_ptr + r, 0.0, mask=r < n)\n"
                          "    tl.store(y_ptr + r, tl.load(x_ptr + i), mask=r < n)\n");
    };
    Arguments args = arguments("n=93,B=4", {"x_ptr=93:fp32", "i_ptr=93:int32", "y_ptr=93:fp32"});
    args.grid = {24, 1, 1};
    const std::string loaded = "    i_first = tl.load(i_ptr + pid)\n", known = "    i_first = 4\n";
    for (const std::string range :
         {":", "pid * B:(pid + 1) * B", "pid", "m * 20:m * 20 + pid", "90 - pid * 4:"}) {
        expect_same(gather(range, known), args);
        expect_same(gather(range, loaded), args);
        expect_same(gather(range, loaded + "    if i_first < 0:\n        return\n"), args);
    }
}

TEST(Lines, GivesTheDiagnosedKernelsTheSameError) {
    const std::filesystem::path folder =
        std::filesystem::path(SYNCOPATE_SOURCE_DIR) / "tests/kernel/diagnostics";
    int seen = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        const Result<std::string> text = read_file(entry.path().string());
        ASSERT_TRUE(text.ok());
        if (text->find("gives up here") != std::string::npos) continue;  // takes seconds, and counts steps
        const std::size_t begin = text->find("--- kernel.py\n") + 14;
        const std::string kernel = text->substr(begin, text->find("--- expected\n") - begin);
        expect_same(kernel, arguments("n=64,B=16", {"x_ptr=64:fp32", "y_ptr=64:fp32"}));
        ++seen;
    }
    EXPECT_GT(seen, 30);
}

}  // namespace
}  // namespace syncopate::kernel::triton::test
