#include "common/files/whole_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
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

}  // namespace keel
