// Where a Python has its packages, asked of the file system or of the interpreter itself.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace keel {

// The folders lib/python3.*/site-packages and dist-packages under the prefix of a Python, and those
// of its local/ as Debian has them; the newest Python first. Only folders that exist.
std::vector<std::filesystem::path> SitePackagesUnder(const std::filesystem::path& prefix);

// The first executable file of this name in the folders of `path`, which colons separate; a name
// with a slash is itself. "" when there is none.
std::string FindProgram(std::string_view name, std::string_view path);

// Starts the interpreter `python` and returns the folder from which it would import `package`,
// without importing it; "" when it has none, is no Python, or does not answer within ten seconds.
std::string FolderOfPythonPackage(const std::string& python, const std::string& package);

}  // namespace keel
