# bench/nodes/set_up.cpp, and one program per bench/*.cpp where Google Benchmark is installed.

add_executable(bench_nodes_set_up ${PROJECT_SOURCE_DIR}/bench/nodes/set_up.cpp)
target_link_libraries(bench_nodes_set_up PRIVATE syncopate syncopate_warnings)

find_package(benchmark CONFIG)
if(NOT benchmark_FOUND)
    message(STATUS "Benchmarks: left out, for want of Google Benchmark (libbenchmark-dev)")
    return()
endif()
file(GLOB bench_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/*.cpp)
foreach(source IN LISTS bench_sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(bench_${name} ${source})
    target_include_directories(bench_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(bench_${name} PRIVATE syncopate benchmark::benchmark_main syncopate_warnings)
endforeach()
