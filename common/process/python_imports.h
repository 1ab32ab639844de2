// Which files a Python program is made of, beside the one that is named. Torch-free.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace keel {

// The Python files that `script` imports by its text, and that those import, by the names that they
// have in the first of `folders` that has them, or in the script's own folder where they are
// imported from there by a dot: {"helpers.py": "/rewards/helpers.py", "rules/math.py": ...}. Of a
// package that is imported, all. The installed packages of the interpreter, and what is imported
// under a name that the program makes up, are not seen; of more files than 2,000 the rest is not.
std::map<std::string, std::string> PythonImports(const std::string& script,
                                                 const std::vector<std::string>& folders);

// The folders of $PYTHONPATH, in order.
std::vector<std::string> PythonPathFolders();

}  // namespace keel
