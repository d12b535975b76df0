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
