#include "tools/interruptible_reads.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <atomic>
#include <utility>

#include "common/process/signal_handler.h"

namespace keel::tools {

namespace {

std::atomic<int> came{0};  // the first signal

extern "C" void OnFirstEndSignal(int number) {
  int none = 0;
  came.compare_exchange_strong(none, number);
  ReleaseEndSignals(OnFirstEndSignal);  // a second one ends the program at once
}

Status Interrupted() {
  const int number = came.load();
  if (number == 0) return Status::Ok();
  return Status(
      StatusCode::kCancelled,
      fmt::format("ended by SIG{} before it was done; nothing of it stays", sigabbrev_np(number)));
}

class InterruptibleFile final : public ForwardingFile {
 public:
  using ForwardingFile::ForwardingFile;

  Result<int64_t> ReadAt(int64_t offset, std::span<std::byte> data) const override {
    KEEL_RETURN_IF_ERROR(Interrupted());
    return ForwardingFile::ReadAt(offset, data);
  }
};

}  // namespace

InterruptibleReads::InterruptibleReads(FileSystem& fs) : ForwardingFileSystem(fs) {
  HandleEndSignals(OnFirstEndSignal);
}

InterruptibleReads::~InterruptibleReads() {
  ReleaseEndSignals(OnFirstEndSignal);
  if (const int number = came.exchange(0)) raise(number);
}

Result<std::unique_ptr<File>> InterruptibleReads::Open(std::string_view path) const {
  KEEL_RETURN_IF_ERROR(Interrupted());
  KEEL_ASSIGN_OR_RETURN(std::unique_ptr<File> file, below().Open(path));
  return std::unique_ptr<File>(std::make_unique<InterruptibleFile>(std::move(file)));
}

}  // namespace keel::tools
