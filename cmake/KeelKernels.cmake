# Finds nvcc of CUDA 13: that of the virtual environment (requirements-cuda.txt), else the system's.
#
#   KEEL_KERNELS_NVCC      nvcc, or empty: then there are no kernels of Keel's own, and PyTorch's operations run
#   KEEL_NVCC_REASON       why it is empty
#   keel_kernels(OUT a.cu …)  in OUT the objects of these files; what ptxas says of them is in *.ptxas.txt beside them

# SASS for these, and PTX of the first for GPUs that come later. The a: what this generation alone has.
set(KEEL_CUDA_ARCHITECTURES 80 90a 100a)

set(KEEL_NVCC "auto" CACHE STRING "nvcc of CUDA 13 for Keel's own kernels; auto: look for one; OFF: none")
# -lineinfo, for compute-sanitizer and Nsight, has the paths of the sources and of nvcc in it, which what is installed has not.
set(KEEL_NVCC_FLAGS "" CACHE STRING "more flags for nvcc, such as -lineinfo")
set(KEEL_KERNELS_NVCC "")
set(KEEL_NVCC_REASON "")
if(KEEL_NVCC STREQUAL "auto")
  unset(_nvcc CACHE)
  find_program(_nvcc nvcc NO_CACHE
    PATHS "${TORCH_SITE_PACKAGES}/nvidia/cu13/bin" NO_DEFAULT_PATH)
  find_program(_nvcc nvcc NO_CACHE PATHS /usr/local/cuda/bin)
  if(_nvcc)
    execute_process(COMMAND "${_nvcc}" --version OUTPUT_VARIABLE _version ERROR_QUIET)
    string(REGEX MATCH "release ([0-9]+)\\.([0-9]+)" _version "${_version}")
    if(NOT CMAKE_MATCH_1 EQUAL 13)
      set(KEEL_NVCC_REASON "${_nvcc} is ${_version}, not of CUDA 13")
    else()
      # It takes no compiler that is newer than it.
      set(_empty "${CMAKE_BINARY_DIR}/CMakeFiles/nvcc_check.cu")
      file(WRITE "${_empty}" "__global__ void Empty() {}\n")
      execute_process(COMMAND "${_nvcc}" -std=c++20 -ccbin=${CMAKE_CXX_COMPILER} -c "${_empty}" -o "${_empty}.o"
        RESULT_VARIABLE _result OUTPUT_VARIABLE _said ERROR_VARIABLE _said)
      if(_result EQUAL 0)
        set(KEEL_KERNELS_NVCC "${_nvcc}")
      else()
        string(REGEX REPLACE "\n.*" "" _said "${_said}")
        set(KEEL_NVCC_REASON "${_nvcc} does not work with ${CMAKE_CXX_COMPILER}: ${_said}")
      endif()
    endif()
  else()
    set(KEEL_NVCC_REASON "there is no nvcc (requirements-cuda.txt, or CUDA 13 of the system)")
  endif()
elseif(KEEL_NVCC)
  set(KEEL_KERNELS_NVCC "${KEEL_NVCC}")
else()
  set(KEEL_NVCC_REASON "KEEL_NVCC is OFF")
endif()

function(keel_kernels out)
  set(_flags -std=c++20 -O3 --fmad=false ${KEEL_NVCC_FLAGS} "-I${CMAKE_SOURCE_DIR}" "-ccbin=${CMAKE_CXX_COMPILER}"
    -Xcompiler=-fPIC,-Wall,-Wextra -Werror=all-warnings)
  foreach(_architecture IN LISTS KEEL_CUDA_ARCHITECTURES)
    list(APPEND _flags "-gencode=arch=compute_${_architecture},code=sm_${_architecture}")
  endforeach()
  list(GET KEEL_CUDA_ARCHITECTURES 0 _first)
  list(APPEND _flags "-gencode=arch=compute_${_first},code=compute_${_first}")
  set(_objects)
  foreach(_source IN LISTS ARGN)
    get_filename_component(_name "${_source}" NAME_WE)
    set(_base "${CMAKE_CURRENT_BINARY_DIR}/${_name}")
    add_custom_command(OUTPUT "${_base}.cu.o" BYPRODUCTS "${_base}.ptxas.txt" VERBATIM
      DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${_source}" "${CMAKE_SOURCE_DIR}/cmake/CompileKernels.cmake"
      DEPFILE "${_base}.cu.d" COMMENT "Compiling kernels ${_source}"
      COMMAND ${CMAKE_COMMAND} -D "LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}" -D "NVCC=${KEEL_KERNELS_NVCC}" -D "SOURCE=${CMAKE_CURRENT_SOURCE_DIR}/${_source}"
        -D "OBJECT=${_base}.cu.o" -D "DEPFILE=${_base}.cu.d" -D "REPORT=${_base}.ptxas.txt" -D "FLAGS=${_flags}"
        -P "${CMAKE_SOURCE_DIR}/cmake/CompileKernels.cmake")
    list(APPEND _objects "${_base}.cu.o")
  endforeach()
  set_source_files_properties(${_objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set(${out} "${_objects}" PARENT_SCOPE)
endfunction()
