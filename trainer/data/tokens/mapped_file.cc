#include "trainer/data/tokens/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "common/text.h"

namespace keel::trainer {

namespace {

int64_t Modified(const struct stat& info) {
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

}  // namespace

Result<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  const std::string name = Printable(path);
  Descriptor fd(Retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (!fd.valid()) return Status::FromErrno(errno, "open", name);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return Status::FromErrno(errno, "stat", name);
  if (!S_ISREG(info.st_mode) || info.st_size == 0) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: {}", name,
                              S_ISREG(info.st_mode) ? "is empty" : "expected a regular file"));
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return Status::FromErrno(errno, "map", name);
  return std::unique_ptr<MappedFile>(new MappedFile(path, std::move(fd), Modified(info),
                                                    {static_cast<const std::byte*>(memory), size}));
}

Status MappedFile::CheckUnchanged() const {
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0) return Status::FromErrno(errno, "stat", Printable(path_));
  if (info.st_size == std::ssize(bytes_) && Modified(info) == modified_) return Status::Ok();
  return Status(
      StatusCode::kDataLoss,
      fmt::format("{}: was written to while this run reads it ({} bytes before, {} now): the rest "
                  "of it may be other data; put it back and resume, and replace such files by "
                  "rename",
                  Printable(path_), bytes_.size(), info.st_size));
}

MappedFile::~MappedFile() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

void MappedFile::Release(int64_t offset, int64_t count) const {
  // A fault maps as much as the page cache has in one piece, which is up to a huge page.
  constexpr int64_t kHugePage = int64_t{2} << 20;
  const auto base = reinterpret_cast<intptr_t>(bytes_.data());
  const intptr_t from = std::max(base, (base + offset) / kHugePage * kHugePage);
  const intptr_t to = std::min(base + std::ssize(bytes_),
                               (base + offset + count + kHugePage - 1) / kHugePage * kHugePage);
  ::madvise(reinterpret_cast<void*>(from), static_cast<size_t>(to - from), MADV_DONTNEED);
}

}  // namespace keel::trainer
