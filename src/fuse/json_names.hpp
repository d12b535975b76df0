// The words of a schedule as JSON, which both its writer and its reader go by.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "syncopate/fuse/schedule.hpp"
#include "syncopate/plan/model/plan.hpp"

namespace syncopate::fuse {

using Json = nlohmann::ordered_json;

inline constexpr std::array<std::pair<SignalMeaning::Kind, std::string_view>, 5> kSignalKinds{
    {{SignalMeaning::Kind::arrived, "arrived"},
     {SignalMeaning::Kind::consumed, "consumed"},
     {SignalMeaning::Kind::ready, "ready"},
     {SignalMeaning::Kind::fetched, "fetched"},
     {SignalMeaning::Kind::made, "made"}}};
inline constexpr std::array<std::pair<Launch, std::string_view>, 6> kLaunches{{{Launch::none, "none"},
                                                                               {Launch::local, "local"},
                                                                               {Launch::before, "before"},
                                                                               {Launch::early, "early"},
                                                                               {Launch::late, "late"},
                                                                               {Launch::sums, "sums"}}};
inline constexpr std::array kBackends{plan::Backend::copy_engine, plan::Backend::tma_dedicated,
                                      plan::Backend::tma_inline,  plan::Backend::ldst_dedicated,
                                      plan::Backend::ldst_inline, plan::Backend::nccl,
                                      plan::Backend::host};
inline constexpr std::array kCollectives{
    plan::CollectiveKind::all_gather, plan::CollectiveKind::reduce_scatter, plan::CollectiveKind::all_reduce,
    plan::CollectiveKind::all_to_all, plan::CollectiveKind::broadcast,      plan::CollectiveKind::permute};
inline constexpr std::array kReductions{plan::Reduce::none, plan::Reduce::sum, plan::Reduce::max};

}  // namespace syncopate::fuse
