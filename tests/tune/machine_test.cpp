#include "syncopate/tune/machine/machine.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <tuple>

#include "syncopate/tune/candidates/gluon_tiles.hpp"
#include "syncopate/tune/candidates/tiles.hpp"
#include "syncopate/tune/choose.hpp"
#include "syncopate/tune/machine/measured.hpp"
#include "syncopate/tune/machine/product_fit.hpp"
#include "syncopate/tune/play/estimate.hpp"

namespace syncopate::tune {
namespace {

TEST(Machine, ThatComesWithSyncopateIsTheSameAfterJson) {
    EXPECT_EQ(machine_names(), (std::vector<std::string>{"h100x1", "h100x2", "h100x4", "h200x1", "h200x2",
                                                         "h200x4", "h200x8"}));
    for (const std::string& name : machine_names()) {
        const Result<Machine> machine = find_machine(name);
        ASSERT_TRUE(machine) << machine.error().to_string();
        EXPECT_EQ(machine->name, name);
        const Result<Machine> again = machine_from_json(to_json(*machine));
        ASSERT_TRUE(again) << again.error().to_string();
        EXPECT_EQ(*again, *machine);
        for (const FigureRow& row : machine_figures())
            EXPECT_TRUE(machine->sources.contains(row.name)) << row.name;
    }
}

TEST(Machine, OfEightH200sHasTheFiguresByWhichFuseChoosesWhereNobodyNamesOne) {
    const fuse::Costs& usual = fuse::usual_costs();
    EXPECT_EQ(usual, static_cast<const fuse::Costs&>(find_machine("h200x8")->rates));
    EXPECT_GT(usual.sm_tflops, 0);
    EXPECT_GT(usual.part_rounds, 0);
}

TEST(Machine, IsRefusedWithThePathOfWhatIsWrong) {
    const std::string good = to_json(*find_machine("h200x2"));
    const auto message = [&](const std::string& old, const std::string& now) {
        std::string text = good;
        const std::size_t at = text.find(old);
        EXPECT_NE(at, std::string::npos) << old;
        text.replace(at, old.size(), now);
        const Result<Machine> machine = machine_from_json(text, "m.json");
        EXPECT_FALSE(machine) << old << " -> " << now;
        return machine ? std::string() : machine.error().to_string();
    };
    EXPECT_NE(message("machine/1", "machine/9").find("this version reads"), std::string::npos);
    EXPECT_NE(message("\"tile_us\"", "\"tile_uss\"").find("did you mean \"tile_us\"?"), std::string::npos);
    EXPECT_NE(message("\"unit\": \"us\"", "\"unit\": \"ms\"").find("it is measured in \"us\""),
              std::string::npos);
    EXPECT_NE(message("[[4, ", "[[40, ").find("does not come after"), std::string::npos);
    EXPECT_NE(message("\"topology\": \"h200x2\"", "\"topology\": \"h300\"").find("h300"), std::string::npos);
    EXPECT_NE(message("\"sum_us\": {", "\"read_gbps\": {").find("read_gbps"), std::string::npos);
}

TEST(Machine, HasEveryFigure) {
    const Result<Machine> machine = machine_from_json(
        R"({"schema": "syncopate.machine/1", "name": "n", "device": "d", "topology": "h200x2", "num_sms": 1,
            "figures": {}, "tables": {}})");
    ASSERT_FALSE(machine);
    EXPECT_NE(machine.error().message.find("figures lacks \"sm_tflops\""), std::string::npos)
        << machine.error().message;
}

TEST(Machine, ThatWasNotMeasuredIsToldFromOneThatWas) {
    const Result<NearestMachine> same = nearest_machine("NVIDIA H200", 4, 132);
    ASSERT_TRUE(same) << same.error().to_string();
    EXPECT_EQ(same->machine.name, "h200x4");
    EXPECT_EQ(same->message, "");
    const Result<NearestMachine> between = nearest_machine("NVIDIA H200", 3, 132);
    EXPECT_EQ(between->machine.name, "h200x4");
    EXPECT_EQ(between->message, "3 GPUs have not been measured; h200x4 stands for them");
    const Result<NearestMachine> many = nearest_machine("NVIDIA H200", 16, 132);
    EXPECT_EQ(many->machine.name, "h200x8");
    const Result<NearestMachine> other = nearest_machine("NVIDIA B300", 8, 148);
    EXPECT_EQ(other->machine.name, "h200x8");
    EXPECT_NE(other->message.find("no machine with NVIDIA B300 has been measured; h200x8 stands for it"),
              std::string::npos);
}

TEST(Machine, MayBeAFile) {
    const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "machine_test";
    std::filesystem::create_directories(folder);
    const std::string path = (folder / "mine.json").string();
    Machine machine = *find_machine("h200x2");
    machine.name = "mine";
    std::ofstream(path) << to_json(machine);
    EXPECT_EQ(*find_machine(path), machine);
    EXPECT_NE(find_machine("h20x8").error().message.find("did you mean \"h200x8\"?"), std::string::npos);
    std::filesystem::remove_all(folder);
}

TEST(Machine, MeasuredByAnOlderVersionIsNotUsedAndSaidToBe) {
    const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "machine_old";
    std::filesystem::create_directories(folder);
    ASSERT_EQ(::setenv("SYNCOPATE_CACHE_DIR", folder.c_str(), 1), 0);
    std::string text = to_json(*find_machine("h200x4"));
    text.replace(text.find("\"cache_mib\""), 11, "\"cache_size\"");
    std::ofstream(folder / "machine.json") << text;
    const Result<NearestMachine> nearest = nearest_machine("NVIDIA H200", 4, 132);
    EXPECT_EQ(::unsetenv("SYNCOPATE_CACHE_DIR"), 0);
    std::filesystem::remove_all(folder);
    ASSERT_TRUE(nearest) << nearest.error().to_string();
    EXPECT_EQ(nearest->machine.name, "h200x4");
    EXPECT_NE(nearest->message.find("cache_size"), std::string::npos) << nearest->message;
    EXPECT_NE(nearest->message.find("it is not used"), std::string::npos) << nearest->message;
}

TEST(Machine, ThatCannotBeReadIsNotUsedAndSaidToBe) {
    const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "machine_unread";
    std::filesystem::create_directories(folder / "machine.json");
    ASSERT_EQ(::setenv("SYNCOPATE_CACHE_DIR", folder.c_str(), 1), 0);
    const Result<MachineTexts> texts = machine_texts();
    const Result<NearestMachine> nearest = nearest_machine("NVIDIA H200", 4, 132);
    EXPECT_EQ(::unsetenv("SYNCOPATE_CACHE_DIR"), 0);
    std::filesystem::remove_all(folder);
    ASSERT_TRUE(texts && nearest);
    EXPECT_EQ(texts->measured, "");
    EXPECT_EQ(nearest->machine.name, "h200x4");
    EXPECT_NE(nearest->message.find("it is not used"), std::string::npos) << nearest->message;
}

TEST(Machine, OfSeveralHostsIsNotWhatOneOfThemMeasuredUnlessItIsNamed) {
    const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "machine_of_hosts";
    std::filesystem::create_directories(folder);
    ASSERT_EQ(::setenv("SYNCOPATE_CACHE_DIR", folder.c_str(), 1), 0);
    Machine mine = *find_machine("h200x4");
    mine.name = "mine";
    std::ofstream(folder / "machine.json") << to_json(mine);
    EXPECT_EQ(nearest_machine("NVIDIA H200", 4, 132)->machine.name, "mine");
    EXPECT_EQ(nearest_machine_of_hosts("NVIDIA H200", 4, 132)->machine.name, "h200x4");
    ASSERT_EQ(::setenv("SYNCOPATE_MACHINE", (folder / "machine.json").c_str(), 1), 0);
    EXPECT_EQ(nearest_machine_of_hosts("NVIDIA H200", 4, 132)->machine.name, "mine");
    EXPECT_EQ(::unsetenv("SYNCOPATE_MACHINE"), 0);
    EXPECT_EQ(::unsetenv("SYNCOPATE_CACHE_DIR"), 0);
    std::filesystem::remove_all(folder);
}

TEST(Measured, TakesTablesAndTheLinksSignals) {
    Result<Measurement> measurement = measurement_from_json(
        R"({"tables": {"engine_gbps": {"points": [[4, 150], [8, 290]], "source": "copies"}},
            "links": {"pull_us": 9, "repeat_us": 2, "signal_us": 1.5}})");
    ASSERT_TRUE(measurement) << measurement.error().to_string();
    measurement->device = "NVIDIA H200";
    measurement->devices = 2;
    measurement->num_sms = 132;
    const Result<Machine> machine = machine_of(*measurement);
    ASSERT_TRUE(machine) << machine.error().to_string();
    EXPECT_EQ(machine->rates.engine_gbps.at(8), 290);
    EXPECT_EQ(machine->sources.find("engine_gbps")->second, "measured here: copies");
    EXPECT_TRUE(machine->sources.find("engine_sum_gbps")->second.starts_with("that of h200x2: "));
    EXPECT_EQ(machine->topology.copy_engine.pull_us, 9);
    EXPECT_EQ(machine->topology.copy_engine.repeat_us, 2);
    EXPECT_EQ(machine->topology.sm.wait_us, 1.5);
    const Result<Machine> again = machine_from_json(to_json(*machine));
    ASSERT_TRUE(again) << again.error().to_string();
    EXPECT_EQ(again->topology.sm.wait_us, 1.5);
    EXPECT_TRUE(measurement_from_json(
        R"({"tables": {"attention_gluon_tflops": {"points": [[64, 0]], "source": "it runs on Hopper only"}}})"));
    const auto refusal = [](const char* text) { return measurement_from_json(text).error().message; };
    EXPECT_EQ(refusal(R"({"tables": {"sm_tflops": {"points": [[1, 1]], "source": ""}}})"),
              "tables names sm_tflops, which is no table of a machine");
    EXPECT_EQ(refusal(R"({"tables": {"engine_gbps": {"points": [[8, 1], [4, 1]], "source": ""}}})"),
              "tables.engine_gbps.points[1] has 4, which does not come after 8");
}

/// Of a table of bench/results: lines of M,N,K,"64x128x64/8 split 2",us.
std::vector<TimedProduct> timed_products(const std::string& table) {
    std::ifstream file(std::string(SYNCOPATE_SOURCE_DIR) + "/bench/results/" + table);
    std::vector<TimedProduct> made;
    for (std::string line; std::getline(file, line);) {
        std::istringstream cells(line);
        std::string m, n, k, name, us;
        for (std::string* cell : {&m, &n, &k, &name, &us}) std::getline(cells, *cell, ',');
        TileConfig tile;
        char rest[16] = "";
        const int read = std::sscanf(name.c_str(), "%dx%dx%d/%d%15[^,]", &tile.block_m, &tile.block_n,
                                     &tile.block_k, &tile.stages, rest);
        if (read < 4 || (read == 5 && std::sscanf(rest, " split %d", &tile.split_k) != 1)) continue;
        const ProductShape shape{std::stol(m), std::stol(n), std::stol(k)};
        if (gluon_objection({}, shape, tile).empty()) made.push_back({shape, tile, std::stod(us)});
    }
    return made;
}

TEST(Measured, FitsTheGluonKernelsFiguresToProducts) {
    for (const auto& [table, own, other, count] : {std::tuple("gemm_1xH100.csv", "h100x1", "h200x1", 200U),
                                                   std::tuple("gemm_1xH200.csv", "h200x1", "h100x1", 400U)}) {
        const std::vector<TimedProduct> timed = timed_products(table);
        EXPECT_GT(timed.size(), count) << table;
        Machine start = *find_machine(other);                            // another machine's figures
        start.rates.memory_gbps = find_machine(own)->rates.memory_gbps;  // measured by itself
        const ProductFit fit = fit_gluon(timed, start);
        EXPECT_LT(fit.off, 0.1) << table;
        EXPECT_EQ(fit.figures.size(), 3U);
        EXPECT_EQ(fit_gluon(timed, start).figures, fit.figures);
        // As the choice takes them: of each shape the tiles that are ranked first.
        Machine machine = start;
        for (const FigureRow& row : machine_figures()) {
            if (const auto found = fit.figures.find(row.name); found != fit.figures.end())
                machine.rates.*row.figure = found->second;
        }
        double lost = 0;
        std::map<std::string, std::vector<const TimedProduct*>> shapes;
        for (const TimedProduct& product : timed)
            shapes[fmt::format("{} {} {}", product.shape.m, product.shape.n, product.shape.k)].push_back(
                &product);
        for (const auto& [shape, products] : shapes) {
            const auto rank = [&](const TimedProduct* product) {
                return gluon_rank(machine, {}, product->shape, product->tile, machine.num_sms);
            };
            lost += std::ranges::min(products, {}, rank)->us /
                    std::ranges::min(products, {}, [](const auto* product) { return product->us; })->us;
        }
        EXPECT_LT(lost / static_cast<double>(shapes.size()), 1.02) << table;
    }
}

TEST(Measured, TakesTheFittedFiguresOfEnoughProducts) {
    std::string text = R"({"products": [)";
    for (int i = 0; i < 12; ++i) {
        const int rows = 64 << (i % 3);
        text += fmt::format("{}[{}, 4096, {}, 64, 64, 128, 6, 1, {}]", i == 0 ? "" : ", ", rows,
                            1024 * (1 + i), 9 + i);
    }
    Result<Measurement> measurement = measurement_from_json(text + "]}");
    ASSERT_TRUE(measurement) << measurement.error().to_string();
    measurement->device = "NVIDIA H200";
    measurement->devices = 2;
    measurement->num_sms = 132;
    const Machine machine = machine_of(*measurement).value();
    EXPECT_TRUE(
        machine.sources.at("gluon_load_gbps").starts_with("measured here: fitted to the times of 12 tilings"))
        << machine.sources.at("gluon_load_gbps");
    EXPECT_NE(machine.rates.gluon_load_gbps, find_machine("h200x2")->rates.gluon_load_gbps);
    measurement->products.pop_back();
    EXPECT_TRUE(machine_of(*measurement).value().sources.at("gluon_load_gbps").starts_with("that of h200x2"));
    const auto refusal = [](const char* products) {
        return measurement_from_json(fmt::format(R"({{"products": {}}})", products)).error().message;
    };
    EXPECT_EQ(refusal("[[64, 64, 64, 48, 64, 128, 6, 1, 9.5]]"),
              "products[0] cannot be: the Gluon kernel's tiles have 16, 32, 64, 128 or 192 rows, not 48");
    for (const char* wrong : {"[[64, 64]]", "[[64, 64, 64, 64, 64, 128, 6, 1, 0]]", "[3]",
                              "[[64.5, 64, 64, 64, 64, 128, 6, 1, 9]]"})
        EXPECT_TRUE(refusal(wrong).starts_with("products[0]")) << wrong << ": " << refusal(wrong);
    EXPECT_EQ(
        refusal("[3]"),
        "products[0] is the number 3; expected [M, N, K, block_m, block_n, block_k, stages, split_k, us]");
    EXPECT_EQ(refusal("3"), "products is the number 3; expected a list");
}

TimedCall timed_call(const Machine& machine, const char* figure, const char* problem, const char* strategy) {
    TimedCall call{.figure = figure, .problem = parse_problem(problem, 2, 132).value()};
    call.strategy = complete(call.problem, machine, strategy_from_json(strategy).value());
    call.us = estimate(call.problem, machine, call.strategy).us;
    return call;
}

TEST(CallFit, FindsTheFiguresThatTheCallsWereMadeWith) {
    const Machine start = *find_machine("h200x2");
    Machine other = start;
    other.rates.fused_us *= 1.7;
    other.rates.sum_us *= 5;  // further than a figure goes
    const std::vector<TimedCall> timed{
        timed_call(other, "fused_us", "all_gather_matmul:M=256,N=1792,K=4096",
                   R"({"kernel": "plain", "backend": "tma_dedicated"})"),
        timed_call(other, "sum_us", "matmul_reduce_scatter:M=1024,N=4096,K=1792",
                   R"({"kernel": "plain", "backend": "copy_engine", "split": 1})")};
    const auto found = fit_calls(timed, start);
    ASSERT_EQ(found.size(), timed.size());
    EXPECT_NEAR(found.at("fused_us").value / other.rates.fused_us, 1, 1e-3);
    EXPECT_NEAR(found.at("sum_us").value / start.rates.sum_us, 4, 1e-3);
    EXPECT_NE(found.at("sum_us").source.find("% off with the nearest one"), std::string::npos);
    EXPECT_EQ(found.at("fused_us").source.find("% off"), std::string::npos) << found.at("fused_us").source;
}

TEST(Measured, TakesFiguresFromCallsAndRefusesWhatIsNone) {
    const auto read = [](const char* calls) {
        return measurement_from_json(
            fmt::format(R"({{"figures": {{"sum_us": {{"value": 300, "source": "x"}}}},
                                                     "calls": {}}})",
                        calls));
    };
    Result<Measurement> measurement = read(
        R"([["sum_us", "matmul_reduce_scatter:M=1024,N=4096,K=1792,ranks=2,sms=132",
             "{\"backend\": \"copy_engine\", \"split\": 1, \"tiles\": [{\"block_m\": 128, \"block_n\": 256, \"block_k\": 64, \"stages\": 4}]}", 60]])");
    ASSERT_TRUE(measurement) << measurement.error().to_string();
    measurement->device = "NVIDIA H200";
    measurement->devices = 2;
    measurement->num_sms = 132;
    const Machine machine = machine_of(*measurement).value();
    EXPECT_LT(machine.rates.sum_us, 300) << "the call counts";
    EXPECT_TRUE(machine.sources.at("sum_us").starts_with("measured here: matmul_reduce_scatter:M=1024"))
        << machine.sources.at("sum_us");
    const auto refusal = [&](const char* calls) { return read(calls).error().message; };
    EXPECT_EQ(refusal("3"), "calls is the number 3; expected a list");
    EXPECT_EQ(refusal(R"([["sum_us", "x", "{}"]])"),
              "calls[0] is a list of 3; expected [figure, problem, strategy, us]");
    EXPECT_EQ(refusal(R"([["speed", "x", "{}", 1]])"),
              "calls[0] names speed, which is no figure of a machine");
    EXPECT_TRUE(refusal(R"([["sum_us", "x", "{}", 1]])").starts_with("calls[0] cannot be: "))
        << "an unknown operator";
    EXPECT_TRUE(refusal(R"([["sum_us", "all_gather_matmul:M=64,N=64,K=64", "{\"speed\": 1}", 1]])")
                    .starts_with("calls[0] cannot be: "));
}

TEST(Measured, TakesWhatWasMeasuredAndMarksTheRest) {
    Result<Measurement> measurement = measurement_from_json(
        R"({"figures": {"sm_tflops": {"value": 7.5, "source": "a product"}}, "links": {"gbps": 800, "push_us": 3}})");
    ASSERT_TRUE(measurement) << measurement.error().to_string();
    measurement->device = "NVIDIA B300";
    measurement->devices = 8;
    measurement->num_sms = 148;
    const Result<Machine> machine = machine_of(*measurement);
    ASSERT_TRUE(machine) << machine.error().to_string();
    EXPECT_EQ(machine->rates.sm_tflops, 7.5);
    EXPECT_EQ(machine->sources.find("sm_tflops")->second, "measured here: a product");
    EXPECT_EQ(machine->rates.sum_us, find_machine("h200x8")->rates.sum_us);
    EXPECT_TRUE(machine->sources.find("sum_us")->second.starts_with("that of h200x8: "));
    EXPECT_FALSE(machine->measured);
    EXPECT_EQ(machine->topology.links.front().gbps, 800);
    EXPECT_EQ(machine->num_sms, 148);
    const Result<Machine> again = machine_from_json(to_json(*machine));
    ASSERT_TRUE(again) << again.error().to_string();
    EXPECT_EQ(*again, *machine);
}

TEST(Machine, LoadsFilesThatStillHaveFiguresWhichNobodyReads) {
    std::string text = to_json(*find_machine("h200x2"));
    const std::string_view figures = "\"figures\": {";
    const std::size_t at = text.find(figures);
    ASSERT_NE(at, std::string::npos);
    text.insert(at + figures.size(), R"("poll_us": {"value": 1, "unit": "us", "source": "of before"},)");
    const Result<Machine> machine = machine_from_json(text);
    ASSERT_TRUE(machine) << machine.error().to_string();
    EXPECT_EQ(
        retired_message(*machine),
        "of h200x2's file nobody reads poll_us any more; `syncopate tune --measure-machine` writes one anew");
    Machine rest = *machine;
    rest.retired.clear();
    EXPECT_EQ(rest, *find_machine("h200x2"));
    EXPECT_EQ(retired_message(rest), "");
}

TEST(Measured, RefusesWhatIsNoFigure) {
    EXPECT_FALSE(measurement_from_json("[]"));
    EXPECT_FALSE(measurement_from_json(R"({"figures": {"speed": {"value": 1, "source": ""}}})"));
    EXPECT_FALSE(measurement_from_json(R"({"figures": {"tile_us": {"value": -1, "source": ""}}})"));
    EXPECT_FALSE(measurement_from_json(R"({"links": {"gbps": 0}})"));
}

TEST(Rates, OfSumsByFewerBlocksThanWereMeasuredFallWithThem) {
    Rates rates;
    EXPECT_EQ(rates.engine_sums(8), 0);
    rates.engine_sum_gbps = {{{4, 80}, {8, 160}, {16, 240}}};
    EXPECT_DOUBLE_EQ(rates.engine_sums(2), 40) << "a block has so many bytes on their way";
    EXPECT_DOUBLE_EQ(rates.engine_sums(12), 200);
    EXPECT_DOUBLE_EQ(rates.engine_sums(64), 240);
}

TEST(Curve, IsALineBetweenItsPoints) {
    const Curve curve{{{2, 10}, {4, 20}, {8, 30}}};
    EXPECT_DOUBLE_EQ(curve.at(1), 10);
    EXPECT_DOUBLE_EQ(curve.at(3), 15);
    EXPECT_DOUBLE_EQ(curve.at(16), 30);
    EXPECT_DOUBLE_EQ(curve.along(16), 50);
    EXPECT_DOUBLE_EQ(Curve{}.at(1), 0);
}

}  // namespace
}  // namespace syncopate::tune
