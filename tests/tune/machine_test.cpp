#include "syncopate/tune/machine.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "syncopate/tune/measured.hpp"

namespace syncopate::tune {
namespace {

TEST(Machine, ThatComesWithSyncopateIsTheSameAfterJson) {
    EXPECT_EQ(machine_names(),
              (std::vector<std::string>{"h100x1", "h100x2", "h200x1", "h200x2", "h200x4", "h200x8"}));
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
    EXPECT_GT(usual.sm_mhz, 0);
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
    EXPECT_NE(message("\"sum_us\": {", "\"part_us\": {").find("part_us"), std::string::npos);
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
              "tables.sm_tflops: is no table of a machine");
    EXPECT_EQ(refusal(R"({"tables": {"engine_gbps": {"points": [[8, 1], [4, 1]], "source": ""}}})"),
              "tables.engine_gbps: 4 does not come after 8");
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

TEST(Measured, RefusesWhatIsNoFigure) {
    EXPECT_FALSE(measurement_from_json("[]"));
    EXPECT_FALSE(measurement_from_json(R"({"figures": {"speed": {"value": 1, "source": ""}}})"));
    EXPECT_FALSE(measurement_from_json(R"({"figures": {"tile_us": {"value": -1, "source": ""}}})"));
    EXPECT_FALSE(measurement_from_json(R"({"links": {"gbps": 0}})"));
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
