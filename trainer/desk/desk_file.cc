#include "trainer/desk/desk_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "common/files/whole_file.h"

namespace keel::trainer::desk {

namespace {

std::string PathIn(const std::string& folder) {
  return (std::filesystem::path(folder) / kDeskFileName).string();
}

}  // namespace

Status WriteDeskFile(const std::string& folder, const DeskAddress& address) {
  const std::string path = PathIn(folder);
  const std::string fresh = path + ".new";
  const std::string text = address.ToText() + "\n";
  (void)unlink(fresh.c_str());  // of an attempt that died, with whatever rights
  const int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return Status::FromErrno(errno, "creating", fresh);
  const ssize_t written = write(fd, text.data(), text.size());
  const int problem = written < 0 ? errno : ENOSPC;
  close(fd);
  if (written != static_cast<ssize_t>(text.size())) {
    (void)unlink(fresh.c_str());
    return Status::FromErrno(problem, "writing", fresh);
  }
  if (rename(fresh.c_str(), path.c_str()) != 0) {
    const int error = errno;
    (void)unlink(fresh.c_str());
    return Status::FromErrno(error, "renaming to", path);
  }
  return Status::Ok();
}

Result<DeskAddress> ReadDeskFile(const std::string& folder) {
  const std::string path = PathIn(folder);
  KEEL_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  Result<DeskAddress> address = DeskAddress::Parse(text);
  if (!address.ok()) return address.status().WithContext(path);
  return address;
}

void RemoveDeskFile(const std::string& folder) { (void)unlink(PathIn(folder).c_str()); }

}  // namespace keel::trainer::desk
