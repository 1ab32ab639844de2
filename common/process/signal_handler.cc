#include "common/process/signal_handler.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
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

// What signals do that process 1 does not handle otherwise.
extern "C" void EndProcessOne(int number) { std::_Exit(128 + number); }

bool EndsProgram(int number) {
  return HandledBy(number, SIG_DFL) || HandledBy(number, EndProcessOne);
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
    if (EndsProgram(number)) (void)HandleSignal(number, handler);
}

void ReleaseEndSignals(void (*handler)(int)) {
  for (const int number : kEndSignals)
    if (HandledBy(number, handler)) std::signal(number, ::getpid() == 1 ? EndProcessOne : SIG_DFL);
}

void EndBySignal(int number) {
  if (::getpid() == 1) EndProcessOne(number);
  std::signal(number, SIG_DFL);
  std::raise(number);
}

void HearEndSignalsAsProcessOne() {
  if (::getpid() == 1) HandleEndSignals(EndProcessOne);
}

void IgnoreBrokenPipes() {
  if (HandledBy(SIGPIPE, SIG_DFL)) std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace keel
