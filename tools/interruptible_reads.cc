#include "tools/interruptible_reads.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <array>
#include <atomic>
#include <utility>

#include "common/process/signal_handler.h"

namespace keel::tools {

namespace {

constexpr std::array kEndSignals = {SIGINT, SIGTERM, SIGHUP};

std::atomic<int> came{0};  // the first signal

extern "C" void OnFirstEndSignal(int number) {
  int none = 0;
  came.compare_exchange_strong(none, number);
  for (const int each : kEndSignals) {
    struct sigaction now {};
    if (sigaction(each, nullptr, &now) == 0 && now.sa_handler == OnFirstEndSignal)
      signal(each, SIG_DFL);
  }
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
  for (const int number : kEndSignals) {
    struct sigaction now {};
    if (sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_DFL)
      (void)HandleSignal(number, OnFirstEndSignal);
  }
}

InterruptibleReads::~InterruptibleReads() {
  for (const int number : kEndSignals) {
    struct sigaction now {};
    if (sigaction(number, nullptr, &now) == 0 && now.sa_handler == OnFirstEndSignal)
      signal(number, SIG_DFL);
  }
  if (const int number = came.exchange(0)) raise(number);
}

Result<std::unique_ptr<File>> InterruptibleReads::Open(std::string_view path) const {
  KEEL_RETURN_IF_ERROR(Interrupted());
  KEEL_ASSIGN_OR_RETURN(std::unique_ptr<File> file, below().Open(path));
  return std::unique_ptr<File>(std::make_unique<InterruptibleFile>(std::move(file)));
}

}  // namespace keel::tools
