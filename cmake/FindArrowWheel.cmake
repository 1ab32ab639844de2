# Finds Arrow and its Parquet reader inside the pyarrow wheel of the virtual environment KEEL_VENV.
#
#   ArrowWheel_FOUND, ARROW_WHEEL_DIR; ARROW_LIBRARY, PARQUET_LIBRARY: names of the files
#   arrow::wheel   headers and libraries

file(GLOB _arrow_dirs "${KEEL_VENV}/lib/python3*/site-packages/pyarrow")
if(_arrow_dirs)
  list(GET _arrow_dirs 0 ARROW_WHEEL_DIR)
  file(GLOB _arrow_lib "${ARROW_WHEEL_DIR}/libarrow.so.*")
  file(GLOB _parquet_lib "${ARROW_WHEEL_DIR}/libparquet.so.*")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ArrowWheel REQUIRED_VARS ARROW_WHEEL_DIR _arrow_lib _parquet_lib)

if(ArrowWheel_FOUND AND NOT TARGET arrow::wheel)
  list(GET _arrow_lib 0 _arrow_lib)
  list(GET _parquet_lib 0 _parquet_lib)
  get_filename_component(ARROW_LIBRARY "${_arrow_lib}" NAME)
  get_filename_component(PARQUET_LIBRARY "${_parquet_lib}" NAME)
  add_library(arrow::wheel INTERFACE IMPORTED)
  target_link_libraries(arrow::wheel INTERFACE "${_parquet_lib}" "${_arrow_lib}")
  target_compile_options(arrow::wheel INTERFACE "SHELL:-isystem ${ARROW_WHEEL_DIR}/include")
  target_link_options(arrow::wheel INTERFACE
    "LINKER:--disable-new-dtags" "LINKER:--allow-shlib-undefined")
endif()
