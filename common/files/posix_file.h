// PosixFile: a File of the operating system, and the descriptor that it owns.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/files/file_system.h"
#include "common/status.h"

namespace keel {

// Most bytes of one read or write call; Linux itself stops a little below 2 GiB.
inline constexpr size_t kMaxTransfer = size_t{1} << 30;

// A file descriptor, closed with the object; an error of that is lost.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  void Reset();
  int fd_ = -1;
};

// Calls again while a signal interrupts it.
template <typename Call>
auto Retry(const Call& call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

// "write /a/b: wrote nothing of 10 bytes".
Status WroteNothing(std::string_view operation, std::string_view name, size_t bytes);

class PosixFile : public File {
 public:
  // `name`: for messages.
  PosixFile(Descriptor fd, std::string name) : fd_(std::move(fd)), name_(std::move(name)) {}

  int descriptor() const { return fd_.get(); }
  const std::string& name() const { return name_; }
  // Ok, or the failure that nothing but Size can follow.
  const Status& dead() const { return dead_; }

  Status WriteAt(int64_t offset, std::span<const std::byte> data) override;
  Result<int64_t> ReadAt(int64_t offset, std::span<std::byte> data) const override;
  void Prefetch(int64_t offset, int64_t bytes) const override;
  void DropCached() const override;
  Status Truncate(int64_t size) override;
  Status Sync() override;
  Status Close() override;
  Result<int64_t> Size() const override;

 private:
  Descriptor fd_;
  std::string name_;
  Status dead_;  // the first failure of Sync or Close
};

}  // namespace keel
