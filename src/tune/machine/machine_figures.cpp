// What each figure of a machine means: the schema of its file.
#include <array>

#include "syncopate/tune/machine/machine.hpp"

namespace syncopate::tune {

std::span<const FigureRow> machine_figures() {
    using R = Rates;
    constexpr std::string_view kUs = "us";
    constexpr std::string_view kGb = "GB/s";
    constexpr std::string_view kTf = "TFLOP/s";
    constexpr std::string_view kShare = "1";
    // clang-format off
    static constexpr std::array kRows{
        FigureRow{"sm_tflops", kTf, "16-bit products, one multiprocessor while all work", &R::sm_tflops},
        FigureRow{"sm_load_gbps", kGb, "operands into one multiprocessor while all load", &R::sm_load_gbps},
        FigureRow{"tile_us", kUs, "a tile's begin and end that nothing hides", &R::tile_us},
        FigureRow{"memory_gbps", kGb, "reading the device's memory", &R::memory_gbps},
        FigureRow{"cache_mib", "MiB", "the device's last cache: larger weights are read again by tiles that begin later", &R::cache_mib},
        FigureRow{"again_gbps", kGb, "the same: the rate of that, while other tiles multiply", &R::again_gbps},
        FigureRow{"call_us", kUs, "a replayed call that does nothing", &R::call_us},
        FigureRow{"kernel_us", kUs, "each further kernel of a call; what awaits peers, or begins beside a kernel, takes as long", &R::kernel_us},
        FigureRow{"fused_us", kUs, "what a fused kernel takes more than a plain one", &R::fused_us},
        FigureRow{"phase_us", kUs, "each further phase of a tile", &R::phase_us},
        FigureRow{"gluon_phase_us", kUs, "the same of the Gluon GEMM, whose loader waits while the ring is multiplied", &R::gluon_phase_us},
        FigureRow{"long_us", kUs, "of products that take so long the device's power limit slows the plain kernel down", &R::long_us},
        FigureRow{"long_plain", kShare, "the same, at that length: times what it takes in shorter calls; grows by its square root with each doubling", &R::long_plain},
        FigureRow{"beside_copies", kShare, "a product beside copies: times what it takes alone", &R::beside_copies},
        FigureRow{"beside_sums", kShare, "a product beside a kernel that sums: the same", &R::beside_sums},
        FigureRow{"sum_gbps", kGb, "a sum, read and written in a device's own memory", &R::sum_gbps},
        FigureRow{"sum_us", kUs, "each sum: its launch and its wait; what is sent and summed by nobody waits as long", &R::sum_us},
        FigureRow{"store_gbps", kGb, "sums stored at peers while nothing else runs", &R::store_gbps},
        FigureRow{"store_stall_gbps", kGb, "tiles stored at peers, as the product waits for them", &R::store_stall_gbps},
        FigureRow{"store_us", kUs, "what stores at peers take beside their bytes", &R::store_us},
        FigureRow{"read_gbps", kGb, "a sum that reads at a peer whose sum reads here", &R::read_gbps},
        FigureRow{"pulled_slow_gbps", kGb, "what kernels read at peers to sum it, over what they slow the product down by", &R::pulled_slow_gbps},
        FigureRow{"copied_part_us", kUs, "each further part of what a product makes that is copied", &R::copied_part_us},
        FigureRow{"engine_ldst", kShare, "the chunk engine's copies by loads and stores: times the rate of bulk copies", &R::engine_ldst},
        FigureRow{"crossing_gbps", kGb, "sums sent on by copies on three and more ranks, which meet each other", &R::crossing_gbps},
        FigureRow{"gluon_tflops", kTf, "the Gluon GEMM: 16-bit products, one multiprocessor while all work", &R::gluon_tflops},
        FigureRow{"gluon_load_gbps", kGb, "the same, and the vendor's product: operands into one multiprocessor", &R::gluon_load_gbps},
        FigureRow{"gluon_tile_us", kUs, "the same: a tile's begin and end", &R::gluon_tile_us},
        FigureRow{"copy_stream_gbps", kGb, "what one copy stream moves to a peer: the measure of arrivals", &R::copy_stream_gbps},
        FigureRow{"two_streams_mib", "MiB", "chunks that gain by a second copy stream, at most", &R::two_streams_mib},
        FigureRow{"summed_store_mib", "MiB", "a sum that stores itself at peers beside the product, at most", &R::summed_store_mib},
        FigureRow{"last_store_mib", "MiB", "the same of a rank's last sum", &R::last_store_mib},
        FigureRow{"part_rounds", kShare, "rounds of tiles that are worth a part of a sum", &R::part_rounds},
        FigureRow{"tile_store_gbps", "GB/s by MiB", "tiles stored at peers, by what leaves a rank", nullptr, &R::tile_store_gbps},
        FigureRow{"engine_gbps", "GB/s by blocks", "the chunk engine's copies beside a product", nullptr, &R::engine_gbps},
        FigureRow{"engine_sum_gbps", "GB/s by blocks", "its sums in bulk, read and stored at peers, beside a product", nullptr, &R::engine_sum_gbps},
        FigureRow{"attention_tflops", "TFLOP/s by head size", "the plain attention kernel, 16 bits, without a mask, one multiprocessor while all work", nullptr, &R::attention_tflops},
        FigureRow{"attention_gluon_tflops", "TFLOP/s by head size", "the same of the Gluon one; 0 where it does not run", nullptr, &R::attention_gluon_tflops},
        FigureRow{"attention_causal", "1 by head size", "attention under a causal mask: times the rate without one, of the pairs that it looks at", nullptr, &R::attention_causal},
        FigureRow{"library_gather_us", "us by MiB", "the vendor's all-gather as a call, by what comes into a rank", nullptr, &R::library_gather_us},
        FigureRow{"library_scatter_us", "us by MiB", "the vendor's reduce-scatter as a call, by what comes into a rank", nullptr, &R::library_scatter_us},
        FigureRow{"library_reduce_us", "us by MiB", "the vendor's all-reduce as a call whose result stays where it adds up, by what comes into a rank, in one of its two steps", nullptr, &R::library_reduce_us},
        FigureRow{"library_exchange_us", "us by MiB", "the vendor's all-to-all as a call, by what comes into a rank", nullptr, &R::library_exchange_us},
    };
    // clang-format on
    return kRows;
}

std::span<const FigureRow> network_figures() {
    static constexpr std::array kRows{
        FigureRow{"gbps", "GB/s", "sends of a device to another node, each way", &Rates::network_gbps},
        FigureRow{"us", "us",
                  "a send and its receive without their bytes, from when both may begin until what awaits "
                  "them goes on",
                  &Rates::network_us},
        FigureRow{"collective_gbps", "GB/s",
                  "what comes into a device from other nodes, and what leaves it, in the vendor's all-gather",
                  &Rates::network_collective_gbps},
    };
    return kRows;
}

std::string network_source(std::string_view name) { return "network." + std::string(name); }

}  // namespace syncopate::tune
