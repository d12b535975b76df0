# Fuzz targets: tests/fuzz/LAYER/NAME.cpp, one each (tests/fuzz/target.hpp says what a target is). Included once before
# the layers, for the instrumentation that SYNCOPATE_FUZZ needs in them, and used after.
#
#   fuzz_NAME         with SYNCOPATE_FUZZ: libFuzzer with the address and undefined-behaviour sanitizers. clang only:
#                     scripts/fuzz NAME SECONDS builds and runs one.
#   fuzz_NAME_replay  with SYNCOPATE_TESTS: seeds and 200 mutations of them, as the test fuzz.NAME; with 2,000, of
#                     another random seed, as fuzz.sweep.NAME (ctest -C sweep)

set(fuzz_sanitizers address,undefined)
if(SYNCOPATE_FUZZ)
    if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "SYNCOPATE_FUZZ needs clang with libFuzzer; "
            "this is ${CMAKE_CXX_COMPILER_ID}: set CMAKE_C_COMPILER and CMAKE_CXX_COMPILER")
    endif()
    add_compile_options(-fsanitize=fuzzer-no-link,${fuzz_sanitizers} -fno-omit-frame-pointer
        -fno-sanitize-recover=all -g1)
    add_link_options(-fsanitize=${fuzz_sanitizers})
endif()

# syncopate_fuzz_targets(LAYER): all targets of a layer.
function(syncopate_fuzz_targets layer)
    file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/${layer}/*.cpp)
    foreach(source IN LISTS sources)
        get_filename_component(name ${source} NAME_WE)
        # Further seeds: NAME.seeds lists folders of the repository, one a line.
        set(seeds ${PROJECT_SOURCE_DIR}/tests/fuzz/${layer}/${name})
        if(EXISTS ${PROJECT_SOURCE_DIR}/tests/fuzz/${layer}/${name}.seeds)
            file(STRINGS ${PROJECT_SOURCE_DIR}/tests/fuzz/${layer}/${name}.seeds folders)
            list(TRANSFORM folders PREPEND ${PROJECT_SOURCE_DIR}/)
            list(APPEND seeds ${folders})
        endif()
        if(SYNCOPATE_FUZZ)
            add_executable(fuzz_${name} ${source})
            target_include_directories(fuzz_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src)
            target_link_libraries(fuzz_${name} PRIVATE syncopate_${layer} syncopate_warnings)
            target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
        endif()
        if(SYNCOPATE_TESTS)
            set(replay fuzz_${name}_replay)
            syncopate_test_program(${replay} ${source} ${PROJECT_SOURCE_DIR}/tests/fuzz/replay.cpp)
            target_include_directories(${replay} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/src)
            target_link_libraries(${replay} PRIVATE syncopate_${layer} syncopate_warnings)
            add_test(NAME fuzz.${name} COMMAND ${replay} --mutations 200 ${seeds})
            add_test(NAME fuzz.sweep.${name} CONFIGURATIONS sweep
                COMMAND ${replay} --mutations 2000 --seed 2 --max-seconds 60 ${seeds})
            set_tests_properties(fuzz.${name} fuzz.sweep.${name} PROPERTIES TIMEOUT 1800 LABELS "${layer};fuzz")
        endif()
    endforeach()
endfunction()
