#include "parallel/rank_status.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace keel::parallel {

struct RankStatus::Record {
  int64_t set;  // 1 once written
  int64_t step;
  std::array<char, 24> phase;
  int64_t stopped;  // 1: it was told to
};

RankStatus::RankStatus(const std::string& path) {
  if (path.empty()) return;
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  // On the disk now: a page that finds no room when it is first written ends its process.
  if (posix_fallocate(fd, 0, sizeof(Record)) == 0) {
    void* memory = mmap(nullptr, sizeof(Record), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory != MAP_FAILED) record_ = static_cast<Record*>(memory);
  }
  close(fd);
}

RankStatus::~RankStatus() {
  if (record_ != nullptr) munmap(record_, sizeof(Record));
}

void RankStatus::Set(int64_t step, std::string_view phase) {
  if (record_ == nullptr) return;
  record_->step = step;
  std::array<char, 24> text{};
  std::copy_n(phase.begin(), std::min(phase.size(), text.size() - 1), text.begin());
  record_->phase = text;
  record_->set = 1;
}

void RankStatus::SetStopped() {
  if (record_ != nullptr) record_->stopped = 1;
}

std::optional<RankStatus::Reading> RankStatus::Read(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return std::nullopt;
  Record record{};
  const ssize_t size = read(fd, &record, sizeof record);
  close(fd);
  if (size != static_cast<ssize_t>(sizeof record) || record.set != 1) return std::nullopt;
  return Reading{
      record.step,
      std::string(record.phase.data(), strnlen(record.phase.data(), record.phase.size())),
      record.stopped == 1};
}

}  // namespace keel::parallel
