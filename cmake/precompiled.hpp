// What nearly every source includes, precompiled once for all layers (cmake/Layers.cmake). Sources still
// include what they use: SYNCOPATE_PRECOMPILED=OFF builds without it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
