#include "tools/launch/scratch_directory.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace keel::tools {

namespace {

constexpr const char* kPrefix = "keel_launch_";
constexpr const char* kLock = "/launcher";

// Directories without the lock's file are left alone: their launcher has yet to make it.
void RemoveThoseOfTheDead(FileSystem& base) {
  const auto entries = base.List(".");
  if (!entries.ok()) return;
  for (const FileInfo& entry : *entries) {
    if (!entry.name.starts_with(kPrefix) || !base.Stat(entry.name + kLock).ok()) continue;
    const auto lock = base.Lock(entry.name + kLock, "");
    if (lock.ok()) (void)RemoveTree(base, entry.name);
  }
}

}  // namespace

Result<std::unique_ptr<ScratchDirectory>> ScratchDirectory::MakeOnce() {
  const char* said = std::getenv("TMPDIR");
  const std::string folder = said != nullptr && *said != '\0' ? said : "/tmp";
  constexpr std::string_view kNeeded =
      "keel launch keeps files of the job in the folder that TMPDIR names, or /tmp: set it to one "
      "that can be written to";
  auto opened = OpenPosixFileSystem(folder, false);
  if (!opened.ok()) return opened.status().WithContext(kNeeded);
  std::unique_ptr<FileSystem> base = std::move(opened).value();
  RemoveThoseOfTheDead(*base);
  std::string path = base->Describe(std::string(kPrefix) + "XXXXXX");
  if (mkdtemp(path.data()) == nullptr)
    return Status::FromErrno(errno, "mkdtemp", path).WithContext(kNeeded);
  std::unique_ptr<ScratchDirectory> made(
      new ScratchDirectory(std::move(base), path.substr(path.rfind('/') + 1)));
  auto lock = made->base_->Lock(made->name_ + kLock, "");
  const StatusCode code = lock.status().code();
  if (code == StatusCode::kBusy || code == StatusCode::kNotFound) return lock.status();
  // Where the file system has no locks, nobody can take one for that of the dead either.
  if (lock.ok()) made->lock_ = std::move(lock).value();
  // Another launcher may have come in between the file and its lock.
  if (const auto kept = made->base_->Stat(made->name_ + kLock); !kept.ok()) return kept.status();
  return made;
}

Result<std::unique_ptr<ScratchDirectory>> ScratchDirectory::Make() {
  auto made = MakeOnce();
  for (int again = 0; again < 3 && !made.ok(); ++again) made = MakeOnce();
  return made;
}

ScratchDirectory::~ScratchDirectory() { (void)RemoveTree(*base_, name_); }

}  // namespace keel::tools
