#include "common/process/signal_handler.h"

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <string>

namespace keel {
namespace {

// A frame holds all registers: up to 11 KiB with AMX.
constexpr size_t kStackBytes = size_t{64} << 10;

Status TakeStack() {
  alignas(64) static std::byte stack[kStackBytes];
  stack_t now{};
  if (sigaltstack(nullptr, &now) == 0 && (now.ss_flags & SS_DISABLE) == 0) return Status::Ok();
  stack_t own{};
  own.ss_sp = stack;
  own.ss_size = sizeof stack;
  if (sigaltstack(&own, nullptr) != 0) return Status::FromErrno(errno, "sigaltstack", "");
  return Status::Ok();
}

bool HandledBy(int number, void (*handler)(int)) {
  struct sigaction now {};
  return sigaction(number, nullptr, &now) == 0 && now.sa_handler == handler;
}

}  // namespace

Status HandleSignal(int number, void (*handler)(int)) {
  KEEL_RETURN_IF_ERROR(TakeStack());
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  sigemptyset(&action.sa_mask);
  if (sigaction(number, &action, nullptr) != 0)
    return Status::FromErrno(errno, "sigaction", std::to_string(number));
  return Status::Ok();
}

void HandleEndSignals(void (*handler)(int)) {
  for (const int number : kEndSignals)
    if (HandledBy(number, SIG_DFL)) (void)HandleSignal(number, handler);
}

void ReleaseEndSignals(void (*handler)(int)) {
  for (const int number : kEndSignals)
    if (HandledBy(number, handler)) std::signal(number, SIG_DFL);
}

void IgnoreBrokenPipes() {
  if (HandledBy(SIGPIPE, SIG_DFL)) std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace keel
