# Compiles one .cu file, keeps what ptxas says of each kernel (registers, shared memory, spills), and fails where
# one spills registers to memory. Run with cmake -P by cmake/KeelKernels.cmake.
#
#   LAUNCHER (a list, that of the compiler; may be empty), NVCC, SOURCE, OBJECT, DEPFILE, REPORT, FLAGS (a list)

execute_process(COMMAND ${LAUNCHER} "${NVCC}" ${FLAGS} -Xptxas=-v -MD -MF "${DEPFILE}" -c "${SOURCE}" -o "${OBJECT}"
  RESULT_VARIABLE result OUTPUT_VARIABLE said ERROR_VARIABLE said)
file(WRITE "${REPORT}" "${said}")
if(NOT result EQUAL 0)
  file(REMOVE "${OBJECT}")
  message(FATAL_ERROR "${SOURCE} does not compile:\n${said}")
endif()
string(REGEX MATCHALL "[^\n]*[1-9][0-9]* bytes spill[^\n]*" spills "${said}")
if(spills)
  file(REMOVE "${OBJECT}")
  message(FATAL_ERROR "${SOURCE}: a kernel spills registers to memory; ${REPORT} says which:\n${spills}")
endif()
