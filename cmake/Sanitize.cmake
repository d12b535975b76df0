# The layers that read what others wrote (base, plan, ingest, kernel) once more under the address and undefined-behaviour
# sanitizers, linked with the object files of the ordinary tests: what is compiled anew is the product's own code only,
# and the reference checkers in the tests run at full speed. Built by the target `sanitized` alone (scripts/sanitize).
#
#   syncopate_LAYER_tests_sanitized, fuzz_NAME_replay_sanitized      for base, plan, ingest, kernel

# Sanitized objects come first on each link line, so that of inline functions in both the sanitized copy is taken.
# At -O0 compiling takes half as long as at -O1. null, alignment, vptr, object-size: what they find ends in a trap or in
# the address sanitizer anyway, and they are a third of the compilation.
set(sanitizers -fsanitize=address,undefined -fno-sanitize=null,alignment,vptr,object-size)

function(syncopate_sanitized_program name)
    add_executable(${name}_sanitized EXCLUDE_FROM_ALL
        $<TARGET_OBJECTS:syncopate_sanitized> $<TARGET_OBJECTS:${name}>)
    target_link_libraries(${name}_sanitized PRIVATE fmt pugixml tree_sitter_python ${ARGN})
    target_link_options(${name}_sanitized PRIVATE ${sanitizers})
    add_dependencies(sanitized ${name}_sanitized)
endfunction()

add_custom_target(sanitized)
add_library(syncopate_sanitized OBJECT EXCLUDE_FROM_ALL)
foreach(layer IN ITEMS base plan ingest kernel)
    get_target_property(sources syncopate_${layer} SOURCES)
    target_sources(syncopate_sanitized PRIVATE ${sources})
endforeach()
target_include_directories(syncopate_sanitized PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
set_target_properties(syncopate_sanitized PROPERTIES KEEPS_ITS_OPTIMISATION ON)  # its sources say -O1 for others
target_compile_definitions(syncopate_sanitized PRIVATE SYNCOPATE_VERSION="${PROJECT_VERSION}")
target_compile_options(syncopate_sanitized PRIVATE -O0 ${sanitizers} -fno-omit-frame-pointer -fno-sanitize-recover=all)
target_link_libraries(syncopate_sanitized PRIVATE fmt nlohmann_json pugixml tree_sitter_python)
if(SYNCOPATE_PRECOMPILED)
    target_precompile_headers(syncopate_sanitized PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.hpp)
endif()

foreach(layer IN ITEMS base plan ingest kernel)
    syncopate_sanitized_program(syncopate_${layer}_tests gtest_main)
    file(GLOB targets CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/${layer}/*.cpp)
    foreach(target IN LISTS targets)
        get_filename_component(name ${target} NAME_WE)
        syncopate_sanitized_program(fuzz_${name}_replay)
    endforeach()
endforeach()
