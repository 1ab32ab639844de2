// The program that runs a Python reward function: the text of python_runner.py, which the build
// puts into the binary, so that no file of the source tree is searched for at run time.
#pragma once

namespace keel::rewards {

extern const char* const kPythonRunner;

}  // namespace keel::rewards
