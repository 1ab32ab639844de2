# cmake -D READELF=… -D MODULE=… -D NAME=… -D HEADER=… -P BuildIdHeader.cmake: a header with the build id that the
# linker gave the module, which the program holds against that of the file it finds when it runs.
execute_process(COMMAND "${READELF}" -n "${MODULE}" OUTPUT_VARIABLE _notes COMMAND_ERROR_IS_FATAL ANY)
if(NOT _notes MATCHES "Build ID: ([0-9a-f]+)")
  message(FATAL_ERROR "${MODULE} has no build id: its linker must be given --build-id")
endif()
file(WRITE "${HEADER}" "#pragma once\n#define ${NAME} \"${CMAKE_MATCH_1}\"\n")
