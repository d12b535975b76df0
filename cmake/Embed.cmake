# syncopate_embed_shipped(LAYER FOLDER NAME HEADER): embeds share/FOLDER/*.json into a layer, as one generated source:
# data files that are found by name wherever the library is, also in a Python wheel. Changing or adding one configures
# anew. The header declares struct ShippedNAME {name, text} and the span shipped_FOLDER().
function(syncopate_embed_shipped layer folder name header)
    file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/share/${folder}/*.json)
    set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
    set(entries "")
    foreach(file IN LISTS files)
        get_filename_component(stem ${file} NAME_WE)
        file(READ ${file} text)
        string(APPEND entries "    {\"${stem}\", R\"shipped(${text})shipped\"},\n")
    endforeach()
    set(generated ${PROJECT_BINARY_DIR}/shipped_${folder}.cpp)
    file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT [[
// Generated from share/@folder@/ by cmake/Embed.cmake.
#include "@header@"

#include <array>

namespace syncopate::@layer@ {

std::span<const Shipped@name@> shipped_@folder@() {
    static constexpr auto kShipped = std::to_array<Shipped@name@>({
@entries@    });
    return kShipped;
}

}  // namespace syncopate::@layer@
]])
    target_sources(syncopate_${layer} PRIVATE ${generated})
endfunction()

# syncopate_embed_costs(MACHINE): the figures of fuse::Costs, read from share/machines/MACHINE.json, as usual_costs()
# (fuse/model/cost.hpp), for whoever names no machine. Changing the file configures anew.
function(syncopate_embed_costs machine)
    set(file ${PROJECT_SOURCE_DIR}/share/machines/${machine}.json)
    set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(READ ${file} text)
    set(entries "")
    foreach(name copy_stream_gbps sm_tflops tile_us two_streams_mib summed_store_mib
                 last_store_mib part_rounds)
        string(JSON value GET "${text}" figures ${name} value)
        string(APPEND entries "        .${name} = ${value},\n")
    endforeach()
    set(generated ${PROJECT_BINARY_DIR}/usual_costs.cpp)
    file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT [[
// Generated from share/machines/@machine@.json by cmake/Embed.cmake.
#include "syncopate/fuse/model/cost.hpp"

namespace syncopate::fuse {

const Costs& usual_costs() {
    static constexpr Costs kCosts{
@entries@    };
    return kCosts;
}

}  // namespace syncopate::fuse
]])
    target_sources(syncopate_fuse PRIVATE ${generated})
endfunction()
