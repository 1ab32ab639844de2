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
// the digest of its content, or "cannot be read". What these files read in turn is not looked at.
std::map<std::string, std::string> ProgramFileDigests(const std::vector<std::string>& command);

}  // namespace keel
