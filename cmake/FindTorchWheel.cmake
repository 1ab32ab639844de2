# Finds libtorch inside the pip wheel of a virtual environment, without running Python and without
# the wheel's own TorchConfig (which insists on a CUDA toolkit).
#
#   KEEL_VENV            the virtual environment
#   torch::cpu           headers (after the system's, since the wheel bundles another fmt) and libraries
#   torch::link          libraries alone
#   torch::cuda_headers  the CUDA and NCCL headers of the wheel's dependencies; not there for a wheel without CUDA
#   TorchWheel_VERSION, TORCH_WHEEL_DIR, TORCH_SITE_PACKAGES

file(GLOB _torch_dirs "${KEEL_VENV}/lib/python3*/site-packages/torch")
if(_torch_dirs)
  list(GET _torch_dirs 0 TORCH_WHEEL_DIR)
  get_filename_component(TORCH_SITE_PACKAGES "${TORCH_WHEEL_DIR}" DIRECTORY)
  file(STRINGS "${TORCH_WHEEL_DIR}/version.py" _line REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" TorchWheel_VERSION "${_line}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchWheel
  REQUIRED_VARS TORCH_WHEEL_DIR
  VERSION_VAR TorchWheel_VERSION
  REASON_FAILURE_MESSAGE "no torch wheel in ${KEEL_VENV}: run tools/bootstrap.sh")

if(TorchWheel_FOUND AND NOT TARGET torch::cpu)
  if(NOT TorchWheel_VERSION MATCHES "^2\\.11\\.")
    message(FATAL_ERROR "Keel is built against torch 2.11, found ${TorchWheel_VERSION} in ${TORCH_WHEEL_DIR}")
  endif()
  set(_lib "${TORCH_WHEEL_DIR}/lib")
  add_library(torch::link INTERFACE IMPORTED)
  # The wheel's own OpenMP runtime, so that there is one in the process; at::parallel_for needs it.
  target_link_libraries(torch::link INTERFACE "${_lib}/libtorch_cpu.so" "${_lib}/libc10.so" "${_lib}/libgomp.so.1")
  # DT_RPATH, not RUNPATH: the wheel's own libraries find their neighbours through it. CMake itself writes the
  # wheel's folder, for the build tree alone: what is installed looks for one (common/process/wheel_library.h).
  target_link_options(torch::link INTERFACE
    "LINKER:--disable-new-dtags" "LINKER:--allow-shlib-undefined")

  add_library(torch::cpu INTERFACE IMPORTED)
  target_link_libraries(torch::cpu INTERFACE torch::link)
  # TORCH_CHECK's messages name files by their path within the source tree, not by ours.
  target_compile_options(torch::cpu INTERFACE -fopenmp "-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/="
    "SHELL:-idirafter ${TORCH_WHEEL_DIR}/include"
    "SHELL:-idirafter ${TORCH_WHEEL_DIR}/include/torch/csrc/api/include")
  target_compile_definitions(torch::cpu INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)

  # Of a wheel for the CPU alone there are none.
  if(EXISTS "${_lib}/libtorch_cuda.so" AND EXISTS "${TORCH_SITE_PACKAGES}/nvidia/cu13/include/cuda_runtime_api.h")
    add_library(torch::cuda_headers INTERFACE IMPORTED)
    target_compile_options(torch::cuda_headers INTERFACE
      "SHELL:-idirafter ${TORCH_SITE_PACKAGES}/nvidia/nccl/include"
      "SHELL:-idirafter ${TORCH_SITE_PACKAGES}/nvidia/cu13/include")
  endif()
endif()
