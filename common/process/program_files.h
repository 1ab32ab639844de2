// By which the programs that a user names are told apart: whether two ranks, or two starts of a
// run, would start the same.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace keel {

// Of the words of a command, which is its program and arguments, those that name a regular file
// here whose content says what the command does: the program itself, where it is named by a path
// and not searched in PATH, and arguments that end as scripts, archives of code and settings do
// (.py, .sh, .jar, .json, .yaml and the like). Others may be what it writes, such as a log. To each
// the digest of its content, or "cannot be read"; and to each file that a script of Python imports
// from its own folder or $PYTHONPATH (PythonImports), as "rules.py, which verify.py imports,". What
// else these files read is not looked at.
std::map<std::string, std::string> ProgramFileDigests(const std::vector<std::string>& command);

// The first of `begun` whose digest is another one in `now`, or is not there; empty: none is.
std::string FirstChanged(const std::map<std::string, std::string>& begun,
                         const std::map<std::string, std::string>& now);

// The digests of what PythonImports finds, by the names there.
std::map<std::string, std::string> ImportDigests(const std::string& script,
                                                 const std::vector<std::string>& folders);

}  // namespace keel
