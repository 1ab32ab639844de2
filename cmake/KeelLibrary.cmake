# The checkpoint subsystem as others use it: a shared library with its headers and a CMake package, and a
# Python module. Both are installed by components of their own, `library` and `python`.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Headers that are installed: the public ones and all that they include.
set(KEEL_PUBLIC_HEADERS common/tensors/box.h common/tensors/dtype.h common/status.h library/state.h library/state_checkpointer.h
  library/torch_state.h)
set(KEEL_PYTHON_DIR "lib/keel/python" CACHE STRING "Where the Python module is installed, below the prefix")
option(KEEL_WITH_PYTHON "Build the Python module where Python's and pybind11's headers are" ON)

# libkeel_checkpoint.so, Keel::checkpoint, find_package(Keel COMPONENTS checkpoint). What it is linked with is
# in it or named by it: who links it needs nothing else to compile.
function(keel_checkpoint_library)
  file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/shared.cc" CONTENT "// All of it is in keel_library_state.\n")
  add_library(keel_checkpoint_shared SHARED "${CMAKE_CURRENT_BINARY_DIR}/shared.cc")
  add_library(Keel::checkpoint ALIAS keel_checkpoint_shared)
  target_link_libraries(keel_checkpoint_shared PRIVATE keel_options $<LINK_LIBRARY:WHOLE_ARCHIVE,keel_library_state>)
  target_link_options(keel_checkpoint_shared PRIVATE
    "LINKER:--version-script=${CMAKE_CURRENT_SOURCE_DIR}/exports.map" "LINKER:--build-id=sha1")
  set_target_properties(keel_checkpoint_shared PROPERTIES
    OUTPUT_NAME keel_checkpoint EXPORT_NAME checkpoint
    LINK_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/exports.map"
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
  target_compile_features(keel_checkpoint_shared INTERFACE cxx_std_20)

  # <keel/library/state.h>: the tree's own paths below keel/, in the headers' own #includes too.
  set(_include "${CMAKE_BINARY_DIR}/include")
  foreach(header ${KEEL_PUBLIC_HEADERS})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/${header}")
    file(READ "${CMAKE_SOURCE_DIR}/${header}" _text)
    string(REGEX REPLACE "#include \"(common|library)/([a-z_/]+\\.h)\"" "#include <keel/\\1/\\2>" _text "${_text}")
    file(CONFIGURE OUTPUT "${_include}/keel/${header}" CONTENT "${_text}" @ONLY)
  endforeach()
  target_include_directories(keel_checkpoint_shared INTERFACE
    "$<BUILD_INTERFACE:${_include}>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")

  set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/Keel")
  configure_package_config_file("${CMAKE_SOURCE_DIR}/cmake/KeelConfig.cmake.in" "${CMAKE_BINARY_DIR}/KeelConfig.cmake"
    INSTALL_DESTINATION "${_package}")
  write_basic_package_version_file("${CMAKE_BINARY_DIR}/KeelConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
  install(TARGETS keel_checkpoint_shared EXPORT KeelCheckpoint
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library NAMELINK_COMPONENT library)
  install(DIRECTORY "${_include}/keel" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT library)
  install(EXPORT KeelCheckpoint NAMESPACE Keel:: FILE KeelCheckpointTargets.cmake DESTINATION "${_package}"
    COMPONENT library)
  install(FILES "${CMAKE_BINARY_DIR}/KeelConfig.cmake" "${CMAKE_BINARY_DIR}/KeelConfigVersion.cmake"
    DESTINATION "${_package}" COMPONENT library)
endfunction()

# build/…/python/keel: the package, and the extension for the virtual environment's Python, or the system's
# where there is none.
function(keel_python_module)
  set(_why "")
  if(NOT KEEL_WITH_PYTHON)
    set(_why "KEEL_WITH_PYTHON is OFF")
  elseif(KEEL_SANITIZE)
    set(_why "not with sanitizers, which Python itself would need")
  else()
    if(EXISTS "${KEEL_VENV}/bin/python")
      set(Python_EXECUTABLE "${KEEL_VENV}/bin/python")
    endif()
    find_package(Python 3.9 COMPONENTS Interpreter Development.Module)
    find_path(KEEL_PYBIND11_INCLUDE pybind11/pybind11.h)
    if(NOT Python_Development.Module_FOUND)
      set(_why "no headers of Python (Debian: python3-dev)")
    elseif(NOT KEEL_PYBIND11_INCLUDE)
      set(_why "no headers of pybind11 (Debian: pybind11-dev)")
    endif()
  endif()
  if(_why)
    message(STATUS "Python module: not built: ${_why}")
    return()
  endif()
  message(STATUS "Python module: for ${Python_EXECUTABLE}, Python ${Python_VERSION}")

  set(_package "${CMAKE_BINARY_DIR}/python/keel")
  add_library(keel_python MODULE "${CMAKE_SOURCE_DIR}/python/checkpoint_module.cc")
  target_link_libraries(keel_python PRIVATE keel_options keel_library_state)
  target_include_directories(keel_python SYSTEM PRIVATE ${Python_INCLUDE_DIRS} "${KEEL_PYBIND11_INCLUDE}")
  # Python opens it for itself alone; nothing but its entry is anybody else's. In the wheel it finds the system's
  # libraries, and these each other, beside the program's modules.
  target_link_options(keel_python PRIVATE "LINKER:--exclude-libs,ALL" "LINKER:--build-id=sha1" "LINKER:--disable-new-dtags")
  set_target_properties(keel_python PROPERTIES INSTALL_RPATH "$ORIGIN/../keel_program/lib/keel"
    PREFIX "" OUTPUT_NAME _checkpoint SUFFIX ".${Python_SOABI}.so" CXX_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY "${_package}")
  foreach(file __init__.py checkpointer.py kinds.py memory.py objects.py peers.py tree.py)
    configure_file("${CMAKE_SOURCE_DIR}/python/keel/${file}" "${_package}/${file}" COPYONLY)
    install(FILES "${CMAKE_SOURCE_DIR}/python/keel/${file}" DESTINATION "${KEEL_PYTHON_DIR}/keel" COMPONENT python)
  endforeach()
  install(TARGETS keel_python LIBRARY DESTINATION "${KEEL_PYTHON_DIR}/keel" COMPONENT python)
endfunction()
