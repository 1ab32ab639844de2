#include "common/process/shared_module.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <fstream>

#include "common/process/program_id.h"
#include "common/process/wheel_library.h"

namespace keel {

namespace {

// The loader waits for a pipe, and maps what a copy that was cut short does not have: to touch that
// would end the process without a word.
Status CheckWhole(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return Status::FromErrno(errno, "stat", path);
  if (!S_ISREG(info.st_mode))
    return Status(StatusCode::kUnavailable, path + " is not a regular file");
  ElfW(Ehdr) header{};
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof header);
  const uint64_t least = header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize;
  if (static_cast<uint64_t>(info.st_size) >= least) return Status::Ok();
  return Status(StatusCode::kUnavailable,
                path + " is cut off: it has " + std::to_string(info.st_size) +
                    " bytes, its header says " + std::to_string(least) + "; install it again");
}

}  // namespace

std::string ProgramPath() {
  std::array<char, 4096> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  return std::string(path.data(), size > 0 ? static_cast<size_t>(size) : 0);
}

std::string ProgramDirectory() {
  const std::string path = ProgramPath();
  return path.substr(0, path.rfind('/') + 1);
}

namespace {

Result<void*> Load(const std::string& path, int flags) {
  KEEL_RETURN_IF_ERROR(CheckWhole(path));
  void* handle = dlopen(path.c_str(), flags | RTLD_GLOBAL);
  if (handle != nullptr) return handle;
  const char* reason = dlerror();
  return Status(
      StatusCode::kUnavailable,
      path + " cannot be loaded (" + (reason != nullptr ? reason : "no reason given") + ")");
}

Status LoadItsWheel(const Wheel& wheel) {
  KEEL_ASSIGN_OR_RETURN(const std::string folder, FindWheel(wheel, PlacesOfThisProcess()));
  return LoadWheel(wheel, folder);
}

}  // namespace

Status CheckBuild(const SharedModule& module, const void* address, std::string_view build) {
  const std::string found = address != nullptr ? BuildId(address) : "none";
  if (found == build) return Status::Ok();
  return Status(StatusCode::kUnavailable, ProgramPath() + " and " + module.path +
                                              " are not of one build (the module's build id is " +
                                              found + ", the program was built with " +
                                              std::string(build) +
                                              "): install both from one build");
}

Status LoadLibrary(const std::string& path) { return Load(path, RTLD_LAZY).status(); }

Result<SharedModule> OpenModule(std::string_view file, Binding binding, const Wheel* wheel) {
  const std::string beside = ProgramDirectory() + std::string(file);
  const std::string installed = ProgramDirectory() + "../lib/keel/" + std::string(file);
  const bool is_beside = access(beside.c_str(), F_OK) == 0;
  const std::string& path = is_beside ? beside : installed;
  if (access(path.c_str(), F_OK) != 0) {
    return Status(StatusCode::kUnavailable,
                  "the module " + std::string(file) + " is missing: it is neither " + beside +
                      " nor " + installed + "; the installation is not whole, install Keel again");
  }
  // A build tree's knows where its libraries are; so do those of a folder that was packed with a
  // search path. Where they do not, as in a copied folder, they are looked for.
  const int when = binding == Binding::kNow ? RTLD_NOW : RTLD_LAZY;
  const bool named = wheel != nullptr && PlacesOfThisProcess().environment(wheel->variable);
  if (wheel != nullptr && (!is_beside || named)) KEEL_RETURN_IF_ERROR(LoadItsWheel(*wheel));
  auto handle = Load(path, when);
  if (!handle.ok() && wheel != nullptr && is_beside && !named && LoadItsWheel(*wheel).ok())
    handle = Load(path, when);
  if (!handle.ok()) return handle.status().WithContext("the module");
  return SharedModule{*handle, path};
}

}  // namespace keel
