# One static library and one test program per layer, from the files in its folders.

add_library(syncopate_warnings INTERFACE)
target_compile_options(syncopate_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual>
    # A member left to its default initialiser is the normal way to write a value here.
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>
    # GCC 12 and 13 see these where there is nothing to see: in std::variant, std::string and range-for over a view.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread>
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:-Wno-dangling-reference>)
if(SYNCOPATE_WERROR)
    target_compile_options(syncopate_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()

# One precompiled header for all layers: it halves what a source costs beyond its own code.
if(SYNCOPATE_PRECOMPILED)
    add_library(syncopate_precompiled STATIC ${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp)
    target_link_libraries(syncopate_precompiled PRIVATE fmt syncopate_warnings)
    target_precompile_headers(syncopate_precompiled PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.hpp)
endif()
function(syncopate_use_precompiled target)
    if(SYNCOPATE_PRECOMPILED)
        target_precompile_headers(${target} REUSE_FROM syncopate_precompiled)
    endif()
endfunction()

# syncopate_layer(NAME): the library syncopate_NAME from src/NAME/**.cpp (base: src/*.cpp), linking the layer before it.
function(syncopate_layer name)
    if(name STREQUAL "base")
        file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.cpp)
    else()
        file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
    endif()
    if(sources)
        add_library(syncopate_${name} STATIC ${sources})
        target_include_directories(syncopate_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include PRIVATE ${PROJECT_SOURCE_DIR}/src)
        target_link_libraries(syncopate_${name} PRIVATE $<BUILD_INTERFACE:syncopate_warnings>)
        syncopate_use_precompiled(syncopate_${name})
        set(scope PUBLIC)
    else()
        add_library(syncopate_${name} INTERFACE)
        target_include_directories(syncopate_${name} INTERFACE ${PROJECT_SOURCE_DIR}/include)
        set(scope INTERFACE)
    endif()
    get_property(below GLOBAL PROPERTY syncopate_last_layer)
    if(below)
        target_link_libraries(syncopate_${name} ${scope} ${below})
    endif()
    set_property(GLOBAL PROPERTY syncopate_last_layer syncopate_${name})
endfunction()

# syncopate_link(NAME PUBLIC|PRIVATE LIBRARY…): what a layer uses from outside; nothing while it has no sources.
function(syncopate_link name scope)
    get_target_property(type syncopate_${name} TYPE)
    if(NOT type STREQUAL "INTERFACE_LIBRARY")
        target_link_libraries(syncopate_${name} ${scope} ${ARGN})
    endif()
endfunction()

# syncopate_layer_tests(NAME): syncopate_NAME_tests from tests/NAME/**.cpp, each test known to ctest by its own name.
function(syncopate_layer_tests name)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${name}/*.cpp)
    if(NOT sources)
        return()
    endif()
    add_executable(syncopate_${name}_tests ${sources})
    target_include_directories(syncopate_${name}_tests PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src)
    target_compile_definitions(syncopate_${name}_tests PRIVATE SYNCOPATE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    target_link_libraries(syncopate_${name}_tests PRIVATE
        syncopate_${name} nlohmann_json tree_sitter_python gtest_main syncopate_warnings)
    if(SYNCOPATE_PRECOMPILED)
        if(NOT TARGET syncopate_precompiled_tests)
            # A program, as the tests are: what is precompiled for libraries is compiled with other flags.
            add_executable(syncopate_precompiled_tests ${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp)
            target_link_libraries(syncopate_precompiled_tests PRIVATE fmt gtest_main syncopate_warnings)
            target_precompile_headers(syncopate_precompiled_tests PRIVATE ${PROJECT_SOURCE_DIR}/tests/precompiled.hpp)
        endif()
        target_precompile_headers(syncopate_${name}_tests REUSE_FROM syncopate_precompiled_tests)
    endif()
    gtest_discover_tests(syncopate_${name}_tests
        DISCOVERY_MODE PRE_TEST TEST_PREFIX "${name}." PROPERTIES TIMEOUT 120 LABELS ${name})
endfunction()
