#include "common/files/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "common/files/posix_file.h"

namespace keel {

Result<std::string> ReadWholeFile(const std::string& path) {
  const Descriptor file(Retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (!file.valid()) return Status::FromErrno(errno, "open", path);
  std::string text;
  std::vector<char> buffer(size_t{1} << 16);
  while (true) {
    const ssize_t size = Retry([&] { return ::read(file.get(), buffer.data(), buffer.size()); });
    if (size < 0) return Status::FromErrno(errno, "read", path);
    if (size == 0) return text;
    text.append(buffer.data(), static_cast<size_t>(size));
  }
}

Status ReplaceWholeFile(const std::string& path, std::string_view text, mode_t mode) {
  const std::string fresh = path + ".tmp";
  ::unlink(fresh.c_str());  // of an attempt that died, with whatever rights
  Status status;
  {
    const Descriptor file(Retry([&] {
      return ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    }));
    if (!file.valid()) return Status::FromErrno(errno, "open", fresh);
    while (status.ok() && !text.empty()) {
      const ssize_t size = Retry([&] { return ::write(file.get(), text.data(), text.size()); });
      if (size <= 0) status = Status::FromErrno(size < 0 ? errno : ENOSPC, "write", fresh);
      if (size > 0) text.remove_prefix(static_cast<size_t>(size));
    }
  }
  if (status.ok() && std::rename(fresh.c_str(), path.c_str()) != 0)
    status = Status::FromErrno(errno, "rename to", path);
  if (!status.ok()) ::unlink(fresh.c_str());
  return status;
}

}  // namespace keel
