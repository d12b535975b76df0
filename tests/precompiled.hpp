// What nearly every test includes, precompiled once for all test programs (cmake/Layers.cmake).
#pragma once

#include <gtest/gtest.h>

#include "../cmake/precompiled.hpp"
