# Programs for machines with GPUs, in bin/: syncopate_check_engine (tests/gpu/) and syncopate_bench_engine (bench/). They
# are built wherever tests are, as all else, and need a driver to run.
add_executable(syncopate_check_engine ${PROJECT_SOURCE_DIR}/tests/gpu/check_engine.cpp
    ${PROJECT_SOURCE_DIR}/tests/runtime/engine_cases.cpp)
add_executable(syncopate_bench_engine ${PROJECT_SOURCE_DIR}/bench/engine/engine.cpp)
foreach(program IN ITEMS syncopate_check_engine syncopate_bench_engine)
    target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(${program} PRIVATE syncopate_runtime syncopate_warnings)
endforeach()
