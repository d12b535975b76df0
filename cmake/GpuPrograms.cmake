# Programs for machines with GPUs, in bin/; they need a driver to run. syncopate_check_engine (tests/gpu/) is built wherever
# tests are, as all else; syncopate_bench_engine (bench/), which calls the driver itself, where there is CUDA.
syncopate_test_program(syncopate_check_engine ${PROJECT_SOURCE_DIR}/tests/gpu/check_engine.cpp
    ${PROJECT_SOURCE_DIR}/tests/runtime/engine_cases.cpp)
set(programs syncopate_check_engine)
if(cuda_include)
    syncopate_test_program(syncopate_bench_engine ${PROJECT_SOURCE_DIR}/bench/engine/engine.cpp)
    target_include_directories(syncopate_bench_engine PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_include_directories(syncopate_bench_engine SYSTEM PRIVATE ${cuda_include})
    list(APPEND programs syncopate_bench_engine)
endif()
foreach(program IN LISTS programs)
    target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(${program} PRIVATE syncopate_runtime syncopate_warnings)
endforeach()
