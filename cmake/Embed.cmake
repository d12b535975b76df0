# Embeds share/topologies/*.json into the plan layer, as one generated source: data files that are found by name
# wherever the library is, also in a Python wheel. Changing or adding one configures anew.

function(syncopate_embed_topologies)
    file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/share/topologies/*.json)
    set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
    set(entries "")
    foreach(file IN LISTS files)
        get_filename_component(name ${file} NAME_WE)
        file(READ ${file} text)
        string(APPEND entries "    {\"${name}\", R\"topology(${text})topology\"},\n")
    endforeach()
    set(generated ${PROJECT_BINARY_DIR}/topology_shipped.cpp)
    file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT [[
// Generated from share/topologies/ by cmake/Embed.cmake.
#include "plan/topology/topology_shipped.hpp"

#include <array>

namespace syncopate::plan {

std::span<const ShippedTopology> shipped_topologies() {
    static constexpr auto kShipped = std::to_array<ShippedTopology>({
@entries@    });
    return kShipped;
}

}  // namespace syncopate::plan
]])
    target_sources(syncopate_plan PRIVATE ${generated})
endfunction()

# The same of share/machines/*.json, into the layer tune.
function(syncopate_embed_machines)
    file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/share/machines/*.json)
    set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
    set(entries "")
    foreach(file IN LISTS files)
        get_filename_component(name ${file} NAME_WE)
        file(READ ${file} text)
        string(APPEND entries "    {\"${name}\", R\"machine(${text})machine\"},\n")
    endforeach()
    set(generated ${PROJECT_BINARY_DIR}/machine_shipped.cpp)
    file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT [[
// Generated from share/machines/ by cmake/Embed.cmake.
#include "tune/machine_shipped.hpp"

#include <array>

namespace syncopate::tune {

std::span<const ShippedMachine> shipped_machines() {
    static constexpr auto kShipped = std::to_array<ShippedMachine>({
@entries@    });
    return kShipped;
}

}  // namespace syncopate::tune
]])
    target_sources(syncopate_tune PRIVATE ${generated})
endfunction()
