// Plans that others have published, read in place; skipped where their folder is not there.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ingest/imports.hpp"
#include "syncopate/io.hpp"
#include "syncopate/plan/json/json.hpp"

namespace syncopate::ingest {
namespace {

const std::string kFolder = std::string(SYNCOPATE_SOURCE_DIR) + "/../shared/plans/";

/// What is wrong with a file: part of its one error, or of one of its findings. Empty: nothing is.
struct Published {
    const char* file;
    const char* wrong;
};

void PrintTo(const Published& published, std::ostream* out) { *out << published.file; }

class PublishedPlans : public testing::TestWithParam<Published> {};

TEST_P(PublishedPlans, AreImportedAndVerifiedOrRefusedForATrueReason) {
    if (!std::filesystem::exists(kFolder)) GTEST_SKIP() << kFolder << " is not there";
    const std::string wrong = GetParam().wrong;
    const Result<std::string> text = read_file(kFolder + GetParam().file);
    ASSERT_TRUE(text) << text.error().to_string();
    const Result<Import> import = import_plan(*text, "file");
    if (!import) {
        ASSERT_FALSE(wrong.empty()) << import.error().to_string();
        EXPECT_NE(import.error().to_string().find(wrong), std::string::npos) << import.error().to_string();
        return;
    }
    const std::vector<std::string> findings = test::finding_texts(*import, "file");
    if (wrong.empty()) {
        EXPECT_TRUE(findings.empty()) << findings.front();
    } else {
        EXPECT_TRUE(std::any_of(findings.begin(), findings.end(), [&](const std::string& finding) {
            return finding.find(wrong) != std::string::npos;
        })) << (findings.empty() ? "no finding" : findings.front());
    }
    const Result<plan::Plan> again = plan::from_json(plan::to_json(import->plan));
    ASSERT_TRUE(again) << again.error().to_string();
    EXPECT_EQ(*again, import->plan);
}

INSTANTIATE_TEST_SUITE_P(
    MscclXml, PublishedPlans,
    testing::Values(
        Published{"msccl_xml/astrasim_allgather_hierarchical_8.xml", ""},
        Published{"msccl_xml/azure_hist_ndv5_ar-1k-512k.xml", ""},
        Published{"msccl_xml/azure_hist_ndv5_ar-4m.xml", ""},
        Published{"msccl_xml/azure_ncv4_ar_tree_12_LL.xml", ""},
        Published{"msccl_xml/azure_ndv4_a2a2ll.xml", ""}, Published{"msccl_xml/azure_ndv4_a2a4ll.xml", ""},
        Published{"msccl_xml/forestcoll_allgather_split2_k1_inst1.xml", ""},
        Published{"msccl_xml/forestcoll_reducescatter_split2_k1_inst1.xml", ""},
        Published{"msccl_xml/forestcoll_reducescatter_split_k1_inst1.xml", ""},
        Published{"msccl_xml/lyd_allreduce_a100_ring_ch4.xml", ""},
        Published{"msccl_xml/msccl_ar_64chunks_ll.xml", ""},
        // Chunk 14 of rank 15 is both passed on from rank 7 and received from rank 14.
        Published{"msccl_xml/msccltools_alltonext_2in_a.xml",
                  "file:401: rank 14 tb 5 step 0 (op 1): write_race: writes data[14336:15360] on rank 15"},
        Published{"msccl_xml/msccltools_ring_8_1.xml", ""},
        Published{"msccl_xml/rccl_alltoall-8n-0-9kb.xml", ""},
        Published{"msccl_xml/rccl_alltoall-8n-512kb-7mb.xml", ""},
        Published{"msccl_xml/rccl_alltoall-8n-9kb-190kb.xml", ""},
        Published{"msccl_xml/rccl_hist_allgather-8n-0-8kb.xml", ""},
        Published{"msccl_xml/rccl_hist_allgather-8n-8kb-128kb.xml", ""},
        Published{"msccl_xml/rccl_hist_allgather-allpairs-16n-16tb.xml", ""},
        Published{"msccl_xml/taccl_dgxa100_allgather_n16_i1.xml", ""},
        Published{"msccl_xml/taccl_mi300x_alltoall_n16.xml", ""},
        Published{"msccl_xml/taccl_mi300x_alltoall_n8.xml", ""},
        // A rewrite has dropped each rank's copy of its own chunk.
        Published{"msccl_xml/taccl_mi300x_alltoall_n8_original.xml",
                  "rank 0: final_not_reached: final[0]: data.output[0:1024] never arrives"},
        Published{"msccl_xml/teccl_a800_4gpu_allgather.xml", ""},
        // Peers receive from each other before they send.
        Published{"msccl_xml/teccl_nvswitch16_allgather_strict.xml",
                  "file:5: rank 0 tb 0 step 0: cycle: deadlock"},
        Published{"msccl_xml/tecclmsccl_test_allreduce_2.xml", ""}));

INSTANTIATE_TEST_SUITE_P(
    MscclppJson, PublishedPlans,
    testing::Values(
        // Threadblock 1 reads the half of a chunk that the other rank's threadblock 0 copied: their signals
        // are apart.
        Published{"mscclpp_json/head_reduce_tbg.json",
                  "rank 0 gpus[0].threadblocks[1].ops[6] (rres) (op 4): early_read"},
        Published{"mscclpp_json/v1_allreduce_2_rrs.json",
                  "file:56:23: gpus[0].threadblocks[0].ops[3].name is \"rrs\""},
        Published{"mscclpp_json/v1_allreduce_nvls_8.json", ""},
        Published{"mscclpp_json/v1_allreducepacket_smallsize_8.json", ""},
        Published{"mscclpp_json/v1_sendrecv_packet_2.json", ""},
        Published{"mscclpp_json/v2_allgather_2_name_null.json", ""},
        Published{"mscclpp_json/v2_allgather_2gpus_b.json", ""},
        Published{"mscclpp_json/v2_allgather_packet_4.json", "ops[0].name is \"tpkt\", of a dialect"},
        Published{"mscclpp_json/v2_allreduce_packet_8_mislabelled_allgather.json",
                  "ops[2] has \"output_channel_ids\""},
        Published{"mscclpp_json/v2_barrier_pipeline_2.json",
                  "barrier 0 is for 2 threadblocks, and 4 come to it"},
        Published{"mscclpp_json/v2_concrete_alltoallv_4.json", "ops[0].dst_buff[0] has \"offset\""},
        Published{"mscclpp_json/v2_dynamic_alltoallv_4_empty.json", "of a dialect beside version 2"},
        Published{"mscclpp_json/v2_multi_node_transfer_pkt_2.json", ""},
        Published{"mscclpp_json/v2_transitional_group_store_3.json", "ops[0] has \"src_chunk\""},
        Published{"mscclpp_json/v2_transitional_input_buffer_size_2.json", "gpus[0] has neither inputChunks"},
        Published{"mscclpp_json/v2_transitional_rrc_2.json", "ops[3].name is \"rrc\""}));

INSTANTIATE_TEST_SUITE_P(
    Negative, PublishedPlans,
    testing::Values(Published{"negative/mscclpp_pipeline_fragment.json", "is in no format"},
                    Published{"negative/mscclpp_test_not_json.json", "is in no format"},
                    Published{"negative/rccl_topo_8p1h.xml", "file:5: the file has the element <system>"},
                    Published{"negative/swing_latency.xml", "is in no format"}));

// TE-CCL's schedules are English sentences, a sketch and a topology are no plans.
INSTANTIATE_TEST_SUITE_P(
    OtherSchedules, PublishedPlans,
    testing::Values(
        Published{"other_schedules/taccl_alltoall_n8.sccl.json", ""},
        Published{"other_schedules/taccl_sketch_sk1_dgx2_n2.json", "is a sketch of TACCL"},
        Published{"other_schedules/taccl_topo_dgx2_1MB.json", "is a topology of TACCL"},
        Published{"other_schedules/teccl_dgx2_2ch_allgather_1MB.json", "is what TE-CCL's solver found"},
        Published{"other_schedules/teccl_input_mesh.json", "is an input of TE-CCL"},
        Published{"other_schedules/teccl_ndv2_2ch_alltoall_1MB.json", "is what TE-CCL's solver found"},
        Published{"other_schedules/teccl_ndv2_schedule.json", "is what TE-CCL's solver found"},
        Published{"other_schedules/teccl_nvswitch16_allgather_64MB_schedule.json",
                  "is what TE-CCL's solver found"}));

// One kind and one size each; the custom one was made from MSCCL XML. A simulator's settings are no plan.
INSTANTIATE_TEST_SUITE_P(
    Chakra, PublishedPlans,
    testing::Values(
        Published{"chakra/astrasim_custom_collective_system.json", "is in no format"},
        Published{"chakra/custom_allreduce.4.et", "import that XML, of which its metadata holds a copy"},
        Published{"chakra/micro_all_reduce_4.1.et", "is a Chakra execution trace (protobuf)"},
        Published{"chakra/micro_all_reduce_4.3.et", "is a Chakra execution trace (protobuf)"},
        Published{"chakra/micro_all_to_all_4.1.et", "is a Chakra execution trace (protobuf)"},
        Published{"chakra/micro_all_to_all_4.2.et", "is a Chakra execution trace (protobuf)"},
        Published{"chakra/micro_all_to_all_4.3.et", "is a Chakra execution trace (protobuf)"},
        Published{"chakra/micro_reduce_scatter_4.0.et", "is a Chakra execution trace (protobuf)"},
        Published{"chakra/micro_reduce_scatter_4.3.et", "is a Chakra execution trace (protobuf)"}));

TEST(Chakra, IsRefusedByNameWithWhatToDo) {
    constexpr char kNode[] =
        "\x07\x0a\x05"
        "0.0.4J\x08\x01\x12\x0a"
        "all_reduceR\x0d\x0a\x09"
        "comm_typeH\0";
    const std::string node(kNode, sizeof kNode - 1);
    for (const std::string& text : {node, std::string(R"({"schema": "1.1.1-chakra.0.0.4", "nodes": []})")}) {
        const Result<Import> import = import_plan(text, "trace.et");
        ASSERT_FALSE(import);
        EXPECT_NE(import.error().to_string().find("trace.et: is a Chakra execution trace ("),
                  std::string::npos);
        EXPECT_NE(import.error().message.find("syncopate plan make KIND --ranks N"), std::string::npos);
    }
}

/// No file is left out of the lists above.
TEST(PublishedPlansFolder, EveryFileIsJudged) {
    if (!std::filesystem::exists(kFolder)) GTEST_SKIP() << kFolder << " is not there";
    std::size_t files = 0;
    for (const char* folder : {"msccl_xml", "mscclpp_json", "negative", "other_schedules", "chakra"}) {
        for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(kFolder + folder))
            ++files;
    }
    EXPECT_EQ(files, 26U + 16U + 4U + 8U + 9U);
}

TEST(Import, SaysWhatAFileOfSyncopatesOwnIs) {
    const auto says = [](const char* text) {
        return import_plan(text, "file", Format::automatic, {}).error().to_string();
    };
    EXPECT_EQ(says(R"({"schema": "syncopate.plan/1"})"),
              "file: is a plan of Syncopate's own; `syncopate plan check` takes it as it is");
    EXPECT_EQ(says(R"({"schema": "syncopate.topology/1"})"),
              "file: is a topology, which --topology takes; it holds no plan");
}

}  // namespace
}  // namespace syncopate::ingest
