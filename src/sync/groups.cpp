#include "sync/groups.hpp"

#include <algorithm>
#include <map>
#include <string>

#include <fmt/format.h>

#include "sync/block_values.hpp"
#include "syncopate/at.hpp"

namespace syncopate::sync {
namespace {

/// Numbers keys in the order in which they first come.
template <typename Key>
Groups numbered(const std::vector<Key>& keys) {
    std::map<Key, std::int32_t> numbers;
    Groups groups;
    groups.reserve(keys.size());
    for (const Key& key : keys)
        groups.push_back(numbers.emplace(key, static_cast<std::int32_t>(numbers.size())).first->second);
    return groups;
}

Groups grouped(const ChainStage& producer, PolicyKind kind, std::int64_t width) {
    std::vector<Block> keys;
    for (std::int64_t linear = 0; linear < producer.num_blocks(); ++linear) {
        const auto [x, y, z] = producer.block(linear);
        switch (kind) {
            case PolicyKind::row: keys.push_back({0, y, 0}); break;
            case PolicyKind::batched: keys.push_back({0, y, z}); break;
            case PolicyKind::strided: keys.push_back({x % width, y, z}); break;
            case PolicyKind::consecutive: keys.push_back({x / width, y, z}); break;
            default: keys.push_back({x, y, z}); break;
        }
    }
    return numbered(keys);
}

}  // namespace

Groups groups_of(const Policy& policy, const ChainStage& producer) {
    const std::int64_t nx = producer.grid[0];
    if (policy.kind == PolicyKind::strided)
        return grouped(producer, policy.kind, policy.stride == 0 ? (nx + 1) / 2 : policy.stride);
    if (policy.kind == PolicyKind::consecutive)
        return grouped(producer, policy.kind, policy.group == 0 ? (nx + 2) / 3 : policy.group);
    return grouped(producer, policy.kind, 1);
}

Result<Groups> groups_as_written(const Policy& policy, const ChainStage& producer) {
    const BlockExpression semaphore(*policy.semaphore);
    Groups groups;
    for (std::int64_t linear = 0; linear < producer.num_blocks(); ++linear) {
        const Block at = producer.block(linear);
        const Result<std::int64_t> value = semaphore.at(at);
        const std::string who =
            fmt::format("block ({}, {}, {}) of stage {}", at[0], at[1], at[2], producer.name);
        if (!value) return Error{fmt::format("the semaphore of {}: {}", who, value.error().message)};
        if (*value < 0 || *value >= kMostBlocks) {
            return Error{fmt::format("{} posts semaphore {}; semaphores are numbered from 0 to {}", who,
                                     *value, kMostBlocks - 1)};
        }
        groups.push_back(static_cast<std::int32_t>(*value));
    }
    return groups;
}

Groups groups_by_need(const Overlaps& needs, const ChainStage& producer) {
    std::vector<std::vector<std::int32_t>> needed_by(static_cast<std::size_t>(producer.num_blocks()));
    for (std::size_t of = 0; of < needs.blocks.size(); ++of) {
        for (const std::int32_t block : needs.blocks[of])
            needed_by[at(block)].push_back(static_cast<std::int32_t>(of));
    }
    Groups groups(needed_by.size(), -1);
    std::map<std::vector<std::int32_t>, std::int32_t> numbers;
    for (std::size_t block = 0; block < needed_by.size(); ++block) {
        if (needed_by[block].empty()) continue;
        groups[block] =
            numbers.emplace(needed_by[block], static_cast<std::int32_t>(numbers.size())).first->second;
    }
    return groups;
}

PolicyKind recognise(const Groups& groups, const ChainStage& producer) {
    for (const PolicyKind kind : {PolicyKind::row, PolicyKind::batched}) {
        if (grouped(producer, kind, 1) == groups) return kind;
    }
    if (grouped(producer, PolicyKind::tile, 1) == groups) return PolicyKind::tile;
    for (std::int64_t width = 2; width < producer.grid[0]; ++width) {
        if (producer.grid[0] % width != 0) continue;
        if (grouped(producer, PolicyKind::strided, width) == groups) return PolicyKind::strided;
        if (grouped(producer, PolicyKind::consecutive, width) == groups) return PolicyKind::consecutive;
    }
    return PolicyKind::custom;
}

}  // namespace syncopate::sync
