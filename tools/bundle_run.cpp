#include "tools/bundle_run.hpp"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "syncopate/bundle/bundle.hpp"
#include "syncopate/bundle/host_kernel.hpp"
#include "syncopate/bundle/loaded.hpp"
#include "syncopate/io.hpp"
#include "syncopate/ops/operators.hpp"
#include "syncopate/runtime/heap/heap.hpp"
#include "syncopate/try.hpp"
#include "tools/bundle_reference.hpp"
#include "tools/commands.hpp"
#include "tools/python_command.hpp"

namespace syncopate::tools {
namespace {

using runtime::Bytes;
using runtime::Device;
using runtime::Milliseconds;

/// The store through which threads meet.
class ThreadStore {
public:
    void put(const std::string& key, const Bytes& value) {
        {
            const std::lock_guard lock(mutex_);
            values_[key] = value;
        }
        changed_.notify_all();
    }
    Bytes get(const std::string& key, Milliseconds timeout) {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, timeout, [&] { return values_.contains(key); }))
            throw std::runtime_error("nothing at " + key);
        return values_.at(key);
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, Bytes> values_;
};

/// A rank's tensors of a call, in memory of its device.
class CallData {
public:
    static Result<CallData> make(Device device, const std::vector<runtime::Operand>& operands) {
        CallData made;
        std::uint64_t bytes = 0;
        for (const runtime::Operand& operand : operands) {
            made.offsets_.push_back(bytes);
            made.shapes_.push_back(operand.shape);
            made.strides_.push_back(bundle::row_major(operand.shape));
            made.bytes_.push_back(plan::Tensor{"", operand.shape, operand.dtype}.bytes());
            bytes += (made.bytes_.back() + 255) / 256 * 256;
        }
        auto alone = std::make_shared<runtime::CallbackRendezvous>(
            0, 1, [](const std::string&, const Bytes&) {},
            [](const std::string&, Milliseconds) { return Bytes(); });
        SYNCOPATE_TAKE(auto memory, runtime::SymmetricHeap::create(device, std::move(alone),
                                                                   std::max<std::uint64_t>(bytes, 1)));
        made.memory_ = std::move(memory);
        return made;
    }

    [[nodiscard]] std::vector<runtime::CallTensor> tensors() const {
        std::vector<runtime::CallTensor> all;
        for (std::size_t i = 0; i < offsets_.size(); ++i)
            all.push_back({memory_->local(offsets_[i]), shapes_[i], strides_[i]});
        return all;
    }
    Status write(std::size_t index, const std::string& content) {
        return memory_->write(memory_->local(offsets_[index]), content.data(), content.size());
    }
    Result<std::string> read(std::size_t index) const {
        std::string content(bytes_[index], '\0');
        SYNCOPATE_TRY(memory_->read(memory_->local(offsets_[index]), content.data(), content.size()));
        return content;
    }

private:
    std::shared_ptr<runtime::SymmetricHeap> memory_;
    std::vector<std::uint64_t> offsets_;
    std::vector<std::uint64_t> bytes_;
    std::vector<std::vector<std::int64_t>> shapes_;
    std::vector<std::vector<std::int64_t>> strides_;
};

/// Of grouped kernels, how many rows a rank has for each expert: other ones in each call, and never more than may come.
std::string counts_of(const ops::RaggedRows& of, int rank, int call) {
    const std::int64_t most = std::min(of.rows.rows, of.bound / of.ranks) / of.experts;
    std::string bytes(static_cast<std::size_t>(of.experts) * sizeof(std::int32_t), '\0');
    auto* const counts = reinterpret_cast<std::int32_t*>(bytes.data());
    for (std::int64_t expert = 0; expert < of.experts; ++expert)
        counts[expert] = static_cast<std::int32_t>((expert * 7 + rank * 5 + call * 3) % (most + 1));
    return bytes;
}

/// What of a program on host is the caller's: here nobody makes it.
Status make_no_tile(const bundle::Tile& /*tile*/) { return Done{}; }

/// The calls with one number of rows on a rank, each of them right where that is checked.
struct RowsRun {
    std::string what;
    std::int64_t rows = 0;
    double prepared_ms = 0;
    std::uint64_t bytes = 0;  ///< of the rank's device
};

/// One rank of a run.
class RankRun {
public:
    RankRun(std::shared_ptr<const bundle::Bundle> made, const BundleRunOptions& options, int rank,
            ThreadStore& store)
        : bundle_(std::move(made)), options_(options), rank_(rank), store_(store) {}

    Status run(const std::vector<std::int64_t>& rows, std::vector<RowsRun>& runs) {
        const Device device = bundle_->on_host() ? Device{} : Device{Device::Kind::cuda, rank_};
        auto rendezvous = std::make_shared<runtime::CallbackRendezvous>(
            rank_, bundle_->ranks(),
            [this](const std::string& key, const Bytes& value) { store_.put(key, value); },
            [this](const std::string& key, Milliseconds timeout) { return store_.get(key, timeout); });
        if (bundle_->op) rendezvous->set_ranks_of_node(bundle_->ranks() / bundle_->op->problem.nodes);
        SYNCOPATE_TAKE(auto loaded, bundle::Loaded::open(bundle_, device, rendezvous));
        for (const std::int64_t count : rows) {
            const auto started = std::chrono::steady_clock::now();
            bundle::PrepareOptions of_rank{.max_delay_us = 200, .seed = static_cast<std::uint64_t>(rank_)};
            if (bundle_->grouped) of_rank.tiles = make_no_tile;
            auto prepared = loaded->prepare(count, of_rank);
            if (!prepared) return prepared.error();
            const std::chrono::duration<double, std::milli> ready =
                std::chrono::steady_clock::now() - started;
            SYNCOPATE_TRY(call(**prepared, device, count));
            runs.push_back({(*prepared)->planned().what, count, ready.count(), (*prepared)->needs().all()});
            SYNCOPATE_TRY((*prepared)->destroy());
        }
        return Done{};
    }

private:
    Status call(bundle::Prepared& prepared, Device device, std::int64_t rows) {
        SYNCOPATE_TAKE(CallData data, CallData::make(device, prepared.operands()));
        const OperatorReference reference(*bundle_, rows);
        for (int index = 0; index < options_.calls; ++index) {
            for (std::size_t i = 0; i < prepared.operands().size(); ++i) {
                const runtime::Operand& operand = prepared.operands()[i];
                const ops::RaggedProgram* const grouped = prepared.planned().grouped.get();
                const std::string content =
                    grouped != nullptr && operand.name == grouped->of.counts
                        ? counts_of(grouped->of, rank_, index)
                        : reference.content(operand.name, operand.dtype, operand.shape, rank_, index);
                SYNCOPATE_TRY(data.write(i, content));
            }
            const std::vector<runtime::CallTensor> tensors = data.tensors();
            SYNCOPATE_TRY(prepared.run(tensors, 0));
            SYNCOPATE_TRY(prepared.check());
            if (!options_.check) continue;
            const runtime::Operand& last = prepared.operands().back();
            SYNCOPATE_TAKE(const std::string y, data.read(prepared.operands().size() - 1));
            SYNCOPATE_TRY(reference.compare(y, last.dtype, last.shape, rank_, index));
        }
        return Done{};
    }

    std::shared_ptr<const bundle::Bundle> bundle_;
    const BundleRunOptions& options_;
    int rank_;
    ThreadStore& store_;
};

/// Triton's interpreter runs what no CPU code is there for.
[[noreturn]] void run_folder_by_python(const bundle::Bundle& made, const BundleRunOptions& options) {
    std::string folder = (std::filesystem::temp_directory_path() / "syncopate-bundle-XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) fail(machine_error(folder + ": cannot be made"));
    constexpr std::string_view kFolder = "folder/";
    for (const auto& [name, content] : made.sections) {
        const std::filesystem::path path(name);
        if (!name.starts_with(kFolder) || std::ranges::find(path, "..") != path.end()) continue;
        const std::filesystem::path target = std::filesystem::path(folder) / name.substr(kFolder.size());
        std::error_code error;
        std::filesystem::create_directories(target.parent_path(), error);
        if (Status written = write_file_atomically(target.string(), content); !written) fail(written.error());
    }
    std::vector<std::string> words{folder, "--device=host", "--calls=" + std::to_string(options.calls)};
    if (options.check) words.emplace_back("--check");
    if (options.json) words.emplace_back("--json");
    const pid_t child = ::fork();
    if (child < 0) fail(machine_error("a process cannot be started"));
    if (child == 0) run_python("syncopate.command.run", words);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    std::error_code error;
    std::filesystem::remove_all(folder, error);
    throw Exit{WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
}

std::vector<std::int64_t> rows_to_run(const bundle::Bundle& made, const BundleRunOptions& options) {
    if (!made.op) return {0};
    if (!options.rows.empty()) return options.rows;
    std::vector<std::int64_t> rows;
    const bool equal = ops::operator_row(made.op->problem.op)->equal_blocks;
    for (const bundle::Bucket& bucket : made.op->buckets) rows.push_back(bucket.rows);
    // One that was never seen.
    if (made.op->takes_exact_rows()) return rows;
    const std::int64_t less = equal ? made.ranks() : 3;
    if (rows.back() > less && std::ranges::find(rows, rows.back() - less) == rows.end())
        rows.push_back(rows.back() - less);
    return rows;
}

void print(const bundle::Bundle& made, const BundleRunOptions& options, const std::vector<RowsRun>& runs,
           const Status& end) {
    if (!options.json) {
        for (const RowsRun& run : runs)
            std::cout << fmt::format(
                "{}: {} calls, prepared in {:.1f} ms, {} bytes of each rank's device{}\n", run.what,
                options.calls, run.prepared_ms, run.bytes,
                options.check ? ", right"
                : made.grouped && made.on_host()
                    ? ", with tiles that nobody made: on host they are the caller's"
                    : "");
        return;
    }
    nlohmann::ordered_json answer{{"ok", static_cast<bool>(end)},
                                  {"ranks", made.ranks()},
                                  {"checked", options.check},
                                  {"runs", nlohmann::ordered_json::array()}};
    for (const RowsRun& run : runs)
        answer["runs"].push_back({{"what", run.what},
                                  {"rows", run.rows},
                                  {"calls", options.calls},
                                  {"prepared_ms", run.prepared_ms},
                                  {"bytes", run.bytes}});
    if (!end) answer["error"] = end.error().to_string();
    std::cout << answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
}

}  // namespace

void run_bundle(const BundleRunOptions& options) {
    const auto made = std::make_shared<const bundle::Bundle>(take(bundle::read_bundle(options.file)));
    if (!made->op && !options.rows.empty())
        fail(Error{"--rows: a user's program has the rows that it was fused for",
                   {.file = options.file},
                   ErrorClass::usage});
    if (made->folder && made->on_host()) run_folder_by_python(*made, options);
    if (made->is_users() && options.check)
        fail(
            Error{"--check: what a user's program makes is known to the user alone: `syncopate run DIR "
                  "--device cuda --check` "
                  "compares it with the kernel alone",
                  {.file = options.file},
                  ErrorClass::usage});
    const std::vector<std::int64_t> rows = rows_to_run(*made, options);
    ThreadStore store;
    const auto ranks = static_cast<std::size_t>(made->ranks());
    std::vector<Status> ends(ranks, Status(Done{}));
    std::vector<std::vector<RowsRun>> runs(ranks);
    {
        std::vector<std::jthread> threads;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            threads.emplace_back([&, rank] {
                ends[rank] = RankRun(made, options, static_cast<int>(rank), store).run(rows, runs[rank]);
            });
        }
    }
    const auto failed = std::ranges::find_if(ends, [](const Status& end) { return !end; });
    const Status end = failed == ends.end() ? Status(Done{}) : *failed;
    print(*made, options, runs.front(), end);
    if (!end) fail(end.error());
}

}  // namespace syncopate::tools
