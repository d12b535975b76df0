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

# syncopate_test_program(NAME SOURCE…): a program that only the target `tests` builds.
function(syncopate_test_program name)
    add_executable(${name} EXCLUDE_FROM_ALL ${ARGN})
    add_dependencies(tests ${name})
    syncopate_optimise_less(${name})
endfunction()

# Where compiling takes longer than running, a third of it is saved by optimising less: tests, and what runs once for a
# plan or a kernel. syncopate_optimise_less(TARGET [FOLDER…]): all of it, or only its sources in src/FOLDER.
function(syncopate_optimise_less target)
    if(NOT CMAKE_CXX_FLAGS_RELEASE MATCHES "-O[23]")
        return()
    elseif(NOT ARGN)
        target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
    endif()
    foreach(folder IN LISTS ARGN)
        get_target_property(sources ${target} SOURCES)
        list(FILTER sources INCLUDE REGEX "/src/${folder}/")
        if(NOT sources)
            message(FATAL_ERROR "${target} has no sources in src/${folder}")
        endif()
        set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS
            "$<$<AND:$<CONFIG:Release>,$<NOT:$<BOOL:$<TARGET_PROPERTY:KEEPS_ITS_OPTIMISATION>>>>:-O1>")
    endforeach()
endfunction()

# One precompiled header for all test programs of the layers.
function(syncopate_use_precompiled_tests target)
    if(NOT SYNCOPATE_PRECOMPILED)
        return()
    endif()
    if(NOT TARGET syncopate_precompiled_tests)
        # A program, as the tests are: what is precompiled for libraries is compiled with other flags.
        syncopate_test_program(syncopate_precompiled_tests ${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp)
        target_link_libraries(syncopate_precompiled_tests PRIVATE fmt gtest_main syncopate_warnings)
        target_precompile_headers(syncopate_precompiled_tests PRIVATE ${PROJECT_SOURCE_DIR}/tests/precompiled.hpp)
    endif()
    target_precompile_headers(${target} REUSE_FROM syncopate_precompiled_tests)
endfunction()

# syncopate_layer_tests(NAME [LIBRARY…]): syncopate_NAME_tests from tests/NAME/**.cpp, of these libraries or of the layer NAME. ctest runs it in a few shards, NAME.0 and so
# on: a process for each test would cost more than most tests do. Tests with Sweep in their names go over every size, or
# many random cases; they are the shards NAME.sweep.0 and so on, which `ctest -C sweep` adds.
function(syncopate_layer_tests name)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${name}/*.cpp)
    if(NOT sources)
        return()
    endif()
    if(name MATCHES "^(fuse|explore)$")  # they compare with the plan's own executor
        list(APPEND sources ${PROJECT_SOURCE_DIR}/tests/plan/executor.cpp)
    endif()
    set(program syncopate_${name}_tests)
    syncopate_test_program(${program} ${sources})
    target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src)
    target_compile_definitions(${program} PRIVATE SYNCOPATE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    set(tested ${ARGN})
    if(NOT tested)
        set(tested syncopate_${name})
    endif()
    target_link_libraries(${program} PRIVATE
        ${tested} nlohmann_json sqlite tree_sitter_python gtest_main syncopate_warnings)
    syncopate_use_precompiled_tests(${program})
    set(shards 4)
    math(EXPR last "${shards} - 1")
    foreach(kind IN ITEMS plain sweep)
        foreach(shard RANGE ${last})
            if(kind STREQUAL "sweep")
                set(test ${name}.sweep.${shard})
                add_test(NAME ${test} CONFIGURATIONS sweep COMMAND ${program} --gtest_brief=1 --gtest_filter=*Sweep*)
            else()
                set(test ${name}.${shard})
                add_test(NAME ${test} COMMAND ${program} --gtest_brief=1 --gtest_filter=-*Sweep*)
            endif()
            # The time limit is there for what hangs; a shard takes seconds, a sweep minutes.
            # What takes long begins first, also where ctest has not seen any yet.
            set(cost 0)
            if(name MATCHES "^(explore|runtime|fuse|tune)$")
                set(cost 60)
            endif()
            set_tests_properties(${test} PROPERTIES TIMEOUT 1800 COST ${cost} LABELS "${name};${kind}"
                ENVIRONMENT "GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${shard}")
        endforeach()
    endforeach()
endfunction()
