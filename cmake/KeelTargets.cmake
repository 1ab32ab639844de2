# Compile options of our own code, and the four functions with which each folder declares itself:
# keel_library, keel_program, keel_module, keel_test.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# What was compiled in one clone serves the next one, in whichever folder: paths count from the source folder.
find_program(KEEL_CCACHE ccache)
if(KEEL_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime"
      "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1 CCACHE_PCH_EXTSUM=1 CCACHE_COMPILERCHECK=content ${KEEL_CCACHE})
endif()

add_library(keel_options INTERFACE)
# -fPIC everywhere, programs too: the same precompiled headers serve all.
target_compile_options(keel_options INTERFACE -fPIC -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror
  "-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=")
target_include_directories(keel_options INTERFACE "${CMAKE_SOURCE_DIR}")
if(KEEL_SANITIZE)
  # What g++ 12 says of the standard library's own headers (std::regex) once they are instrumented is not so.
  target_compile_options(keel_options INTERFACE -fsanitize=${KEEL_SANITIZE} -fno-omit-frame-pointer
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(keel_options INTERFACE -fsanitize=${KEEL_SANITIZE})
endif()

# Half of a file's compiling is reading headers. So files are compiled by twelves (CMake's unity builds): that of all takes
# less than half the time, of one changed file more. And the headers of other projects that nearly all of them include
# are compiled once, which takes another 15 to 30 % off a file's time. OFF compiles each file by itself, and with all
# its headers, so that a missing include shows; ATen's, 8 s a file, stay precompiled.
option(KEEL_UNITY "Compile the files of a target by twelves" ON)
function(keel_unity target)
  if(KEEL_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
    # A type over one of an anonymous namespace is no fault where all of it is in .cc files.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

set(KEEL_PRECOMPILED <algorithm> <chrono> <cmath> <filesystem> <functional> <map> <memory> <optional> <set> <span> <string>
    <string_view> <thread> <utility> <vector> <fmt/format.h> <nlohmann/json.hpp>)

# keel_precompiled(name VERSION text HEADERS <a> … [DEPENDS …])
# Of targets whose options are the same. VERSION says which headers they are: ccache knows them by that, in place of
# their hundreds of megabytes, which no two folders have alike.
function(keel_precompiled name)
  cmake_parse_arguments(arg "" "VERSION" "HEADERS;DEPENDS" ${ARGN})
  # Not WRITE: that would make all of them anew after every configuration.
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/${name}.cc" CONTENT "// Carries precompiled headers.\n")
  file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${name}.dir/cmake_pch.hxx.gch.sum"
       CONTENT "${arg_VERSION} ${arg_HEADERS}" @ONLY)
  add_library(${name} OBJECT "${CMAKE_BINARY_DIR}/${name}.cc")
  target_link_libraries(${name} PRIVATE keel_options ${arg_DEPENDS})
  target_compile_options(${name} PRIVATE -fpch-preprocess)
  target_precompile_headers(${name} PRIVATE ${arg_HEADERS})
endfunction()

# keel_headers(target precompiled): with the headers that keel_precompiled made, where there are any.
function(keel_headers target precompiled)
  if(TARGET ${precompiled})
    # Where <string> is precompiled, GCC 12 takes the buffer within a string for the whole of a longer text.
    # KEEL_UNITY=OFF has these warnings, for all that needs no torch.
    target_compile_options(${target} PRIVATE -fpch-preprocess -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
    target_precompile_headers(${target} REUSE_FROM ${precompiled})
  endif()
endfunction()

# With libtorch or without, and the headers that are precompiled for that.
function(_keel_with_torch target torch without)
  if(torch)
    target_link_libraries(${target} PRIVATE torch::cpu)
    keel_headers(${target} keel_torch_pch)
  else()
    keel_headers(${target} ${without})
  endif()
endfunction()

# keel_cold(target): a quarter less time to compile, for what runs in no step, save or load: commands, what reads
# configurations, tests' own code.
function(keel_cold target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
endfunction()

# keel_library(name SOURCES a.cc … [DEPENDS keel_x fmt::fmt …] [TORCH] [COLD])
# DEPENDS are linked PUBLIC only as far as headers need them; folders' edges are checked by the
# include-layer test.
function(keel_library name)
  cmake_parse_arguments(arg "TORCH;COLD" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE keel_options)
  target_link_libraries(${name} PUBLIC ${arg_DEPENDS})
  keel_unity(${name})
  _keel_with_torch(${name} "${arg_TORCH}" keel_pch)
  if(arg_COLD)
    keel_cold(${name})
  endif()
  if(arg_TORCH)
    target_link_libraries(${name} INTERFACE torch::link)
  endif()
endfunction()

function(keel_program name)
  cmake_parse_arguments(arg "TORCH;COLD" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE keel_options ${arg_DEPENDS})
  keel_unity(${name})
  _keel_with_torch(${name} "${arg_TORCH}" keel_pch)
  if(arg_COLD)
    keel_cold(${name})
  endif()
endfunction()

# A shared object that the program opens itself (common/process/shared_module.h): beside it in the build tree. One
# that is installed goes to lib/keel/.
function(keel_module name)
  cmake_parse_arguments(arg "TORCH;COLD" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} SHARED ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE keel_options ${arg_DEPENDS})
  keel_unity(${name})
  _keel_with_torch(${name} "${arg_TORCH}" keel_pch)
  if(arg_COLD)
    keel_cold(${name})
  endif()
  # Not every linker writes one unless told; ranks, and the program and its module, are compared by it.
  target_link_options(${name} PRIVATE "LINKER:--build-id=sha1")
  # Installed, it finds its neighbours by where it lies, and libraries of a package that brings them beside it.
  target_link_options(${name} PRIVATE "LINKER:--disable-new-dtags")
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}" INSTALL_RPATH "$ORIGIN")
endfunction()

# keel_build_id(TARGET module MACRO): MACRO.h beside what is built of `TARGET`, with the module's build id.
function(keel_build_id target module macro)
  string(TOLOWER "${macro}.h" _file)
  set(_header "${CMAKE_CURRENT_BINARY_DIR}/build_ids/${_file}")
  add_custom_command(OUTPUT "${_header}" DEPENDS ${module} "${CMAKE_SOURCE_DIR}/cmake/BuildIdHeader.cmake" VERBATIM
    COMMAND ${CMAKE_COMMAND} -D "READELF=${CMAKE_READELF}" -D "MODULE=$<TARGET_FILE:${module}>" -D "NAME=${macro}"
      -D "HEADER=${_header}" -P "${CMAKE_SOURCE_DIR}/cmake/BuildIdHeader.cmake")
  target_sources(${target} PRIVATE "${_header}")
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_BINARY_DIR}/build_ids")
endfunction()

# The faster linker for the hundred test programs, where binutils has it.
find_program(KEEL_GOLD NAMES ld.gold)

# keel_test(name SOURCES … [DEPENDS …] [TORCH] [LABELS unit|dist|e2e|oracle|cuda] [TIMEOUT s]
#           [FIXTURES model_fixtures])
# A test program runs as one ctest entry; its GoogleTest cases share the start-up of libtorch.
function(keel_test name)
  cmake_parse_arguments(arg "TORCH" "TIMEOUT" "SOURCES;DEPENDS;LABELS;FIXTURES" ${ARGN})
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 900)
  endif()
  if(KEEL_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 4")
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE keel_options ${arg_DEPENDS} GTest::gtest GTest::gmock GTest::gtest_main)
  keel_unity(${name})
  # Their own code alone: what they test has the options that it ships with.
  keel_cold(${name})
  if(KEEL_GOLD AND NOT KEEL_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_link_options(${name} PRIVATE -fuse-ld=gold)
  endif()
  _keel_with_torch(${name} "${arg_TORCH}" keel_test_pch)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
    FIXTURES_REQUIRED "${arg_FIXTURES}"
    ENVIRONMENT "OMP_NUM_THREADS=1;KEEL_SOURCE_DIR=${CMAKE_SOURCE_DIR};KEEL_BINARY=${CMAKE_BINARY_DIR}/keel;KEEL_PYTHON=${KEEL_VENV}/bin/python;KEEL_FIXTURES=${CMAKE_BINARY_DIR}/fixtures")
endfunction()

# keel_device_path_test(test [ATEN] [WITHOUT case ...])
# The same program again with KEEL_DEVICE_PATHS=1: what a GPU would run, on the host
# (parallel/tensor/host_kernels.h). ATEN: and as a GPU would without Keel's own kernels. WITHOUT: cases
# about what kernels for hosts alone promise.
function(keel_device_path_test test)
  cmake_parse_arguments(arg "ATEN" "" "WITHOUT" ${ARGN})
  list(JOIN arg_WITHOUT ":" without)
  get_test_property(${test} ENVIRONMENT environment)
  get_test_property(${test} TIMEOUT timeout)
  get_test_property(${test} FIXTURES_REQUIRED fixtures)
  set(ways 1)
  if(arg_ATEN)
    list(APPEND ways aten)
  endif()
  foreach(way IN LISTS ways)
    set(name ${test}_device_paths)
    if(NOT way STREQUAL 1)
      set(name ${name}_${way})
    endif()
    add_test(NAME ${name} COMMAND ${test} "--gtest_filter=*-${without}")
    set_tests_properties(${name} PROPERTIES LABELS devicepath TIMEOUT ${timeout}
      FIXTURES_REQUIRED "${fixtures}" ENVIRONMENT "${environment};KEEL_DEVICE_PATHS=${way}")
  endforeach()
endfunction()

# keel_pretend_gpu_test(test [FILTER cases])
# The same program again on pretend GPUs (tests/support/pretend_gpu), all cases or those of GoogleTest's filter.
function(keel_pretend_gpu_test test)
  cmake_parse_arguments(arg "" "FILTER" "" ${ARGN})
  if(NOT TARGET keel_pretend_gpu)
    return()
  endif()
  if(NOT arg_FILTER)
    set(arg_FILTER "*")
  endif()
  # What the module shares with the program is found in it.
  set_target_properties(${test} PROPERTIES ENABLE_EXPORTS ON)
  add_dependencies(${test} keel_pretend_gpu)
  get_test_property(${test} ENVIRONMENT environment)
  get_test_property(${test} TIMEOUT timeout)
  add_test(NAME ${test}_pretend_gpu COMMAND ${test} "--gtest_filter=${arg_FILTER}")
  set_tests_properties(${test}_pretend_gpu PROPERTIES LABELS devicepath TIMEOUT ${timeout}
    ENVIRONMENT "${environment};KEEL_CUDA_MODULE=$<TARGET_FILE:keel_pretend_gpu>")
endfunction()
