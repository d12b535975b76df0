// `syncopate sync check`: judges a chain of dependent kernels on one GPU.
#include <iostream>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "syncopate/io.hpp"
#include "syncopate/sync/chain.hpp"
#include "syncopate/sync/check.hpp"
#include "tools/commands.hpp"

namespace syncopate::tools {
namespace {

using Json = nlohmann::ordered_json;

/// The policy of a link, and of `auto` what was found: "auto (row)".
std::string policy_text(const sync::Link& link) {
    std::string text(sync::name_of(link.policy));
    if (link.policy == sync::PolicyKind::automatic) text += fmt::format(" ({})", sync::name_of(link.found));
    return text;
}

Json semaphores_of(const sync::Chain& chain, const sync::Synchronization& made) {
    Json all = Json::array();
    for (const sync::Link& link : made.links) {
        Json one{
            {"stage", chain.stages[static_cast<std::size_t>(link.stage)].name},
            {"tensor", link.tensor},
            {"from", chain.stages[static_cast<std::size_t>(link.from)].name},
            {"policy", sync::name_of(link.policy == sync::PolicyKind::automatic ? link.found : link.policy)},
            {"auto", link.policy == sync::PolicyKind::automatic},
            {"lag", link.lag},
            {"count", 0},
            {"posts", Json::array()}};
        if (link.array >= 0) {
            const sync::SemaphoreArray& array = made.arrays[static_cast<std::size_t>(link.array)];
            one["count"] = array.posts.size();
            one["posts"] = array.posts;
        }
        all.push_back(std::move(one));
    }
    return all;
}

Json to_json(const sync::Chain* chain, const sync::Verdict& verdict) {
    Json answer{{"ok", verdict.ok()}, {"findings", Json::array()}, {"semaphores", Json::array()}};
    for (const sync::Finding& finding : verdict.findings) {
        answer["findings"].push_back({{"kind", sync::name_of(finding.kind)},
                                      {"stage", finding.stage.empty() ? Json() : Json(finding.stage)},
                                      {"block", finding.block[0] < 0 ? Json() : Json(finding.block)},
                                      {"message", finding.message}});
    }
    if (chain == nullptr) return answer;
    answer["semaphores"] = semaphores_of(*chain, verdict.synchronization);
    for (std::size_t stage = 0; stage < verdict.synchronization.order_kinds.size(); ++stage) {
        answer["orders"].push_back({{"stage", chain->stages[stage].name},
                                    {"order", sync::name_of(verdict.synchronization.order_kinds[stage])}});
    }
    return answer;
}

void print(const Json& answer) {
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
}

void describe(const std::string& path, const sync::Chain& chain, const sync::Synchronization& made) {
    std::int64_t blocks = 0;
    for (const sync::ChainStage& stage : chain.stages) blocks += stage.num_blocks();
    std::size_t semaphores = 0;
    for (const sync::SemaphoreArray& array : made.arrays) semaphores += array.posts.size();
    std::cout << fmt::format("ok: {}: {} stages, {} blocks, {} semaphores, no findings\n", path,
                             chain.stages.size(), blocks, semaphores);
    for (const sync::Link& link : made.links) {
        const std::size_t count =
            link.array < 0 ? 0 : made.arrays[static_cast<std::size_t>(link.array)].posts.size();
        std::cout << fmt::format("  {} awaits {} of {}: {}, {} semaphores{}\n",
                                 chain.stages[static_cast<std::size_t>(link.stage)].name, link.tensor,
                                 chain.stages[static_cast<std::size_t>(link.from)].name, policy_text(link),
                                 count, link.lag == 0 ? "" : ", of the call before");
    }
}

void check(const std::string& path, bool as_json) {
    const Result<std::string> text = read_file(path);
    if (!text) fail(text.error());
    const Result<sync::Chain> chain = sync::chain_from_json(*text, path);
    if (!chain) {
        if (!as_json) fail(chain.error());
        print(to_json(nullptr,
                      {{{sync::Finding::Kind::malformed, "", {-1, -1, -1}, chain.error().to_string()}}, {}}));
        throw Exit{static_cast<int>(ErrorClass::input)};
    }
    const sync::Verdict verdict = sync::check(*chain);
    if (as_json) {
        print(to_json(&*chain, verdict));
    } else if (verdict.ok()) {
        describe(path, *chain, verdict.synchronization);
    } else {
        for (const sync::Finding& finding : verdict.findings)
            std::cerr << "error: " << path << ": " << finding.to_string() << '\n';
    }
    if (!verdict.ok()) throw Exit{static_cast<int>(ErrorClass::input)};
}

}  // namespace

void register_sync_commands(CLI::App& app) {
    struct Arguments {
        std::string path;
        bool json = false;
    };
    CLI::App* group = app.add_subcommand("sync", "Judge chains of dependent kernels on one GPU");
    group->require_subcommand(1);
    CLI::App* command = group->add_subcommand(
        "check",
        "Verify a chain: no block reads too early, none waits for ever, none overwrites what is read");
    auto arguments = std::make_shared<Arguments>();
    command->add_option("chain", arguments->path, "Chain file")->required();
    command->add_flag("--json", arguments->json, "Print the findings and the semaphores as JSON");
    command->callback([arguments] { check(arguments->path, arguments->json); });
}

}  // namespace syncopate::tools
