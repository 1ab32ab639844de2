#include "common/status.h"

#include <cerrno>
#include <cstring>
#include <new>

namespace keel {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kUsage:
      return "usage";
    case StatusCode::kConfig:
      return "configuration";
    case StatusCode::kInvalidData:
      return "invalid data";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kAlreadyExists:
      return "already exists";
    case StatusCode::kCannotCreate:
      return "cannot create";
    case StatusCode::kIo:
      return "I/O error";
    case StatusCode::kExhausted:
      return "exhausted";
    case StatusCode::kNoSpace:
      return "no space";
    case StatusCode::kDataLoss:
      return "data loss";
    case StatusCode::kDeadlineExceeded:
      return "deadline exceeded";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kBusy:
      return "busy";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kPreempted:
      return "preempted";
    case StatusCode::kInternal:
      return "internal error";
  }
  return "unknown";
}

int ExitCodeFor(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return 0;
    case StatusCode::kUsage:
      return 64;  // EX_USAGE
    case StatusCode::kInvalidData:
    case StatusCode::kDataLoss:
      return 65;  // EX_DATAERR
    case StatusCode::kNotFound:
      return 66;  // EX_NOINPUT
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kBusy:
      return 69;  // EX_UNAVAILABLE
    case StatusCode::kInternal:
    case StatusCode::kCancelled:
      return 70;  // EX_SOFTWARE
    case StatusCode::kExhausted:
      return 71;  // EX_OSERR
    case StatusCode::kAlreadyExists:
    case StatusCode::kCannotCreate:
      return 73;  // EX_CANTCREAT
    case StatusCode::kIo:
    case StatusCode::kNoSpace:
      return 74;  // EX_IOERR
    case StatusCode::kPreempted:
      return 75;  // EX_TEMPFAIL, and nothing else: the state is saved, run again
    case StatusCode::kConfig:
      return 78;  // EX_CONFIG
  }
  return 70;
}

Status Status::FromErrno(int error, std::string_view operation, std::string_view path) {
  StatusCode code = StatusCode::kIo;
  if (error == ENOSPC || error == EDQUOT) code = StatusCode::kNoSpace;
  if (error == EMFILE || error == ENFILE || error == ENOMEM) code = StatusCode::kExhausted;
  if (error == ENOENT) code = StatusCode::kNotFound;
  if (error == EEXIST) code = StatusCode::kAlreadyExists;
  std::string message(operation);
  message.append(" ").append(path).append(": ").append(std::strerror(error));
  message.append(" (errno ").append(std::to_string(error)).append(")");
  return Status(code, std::move(message));
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) return *this;
  return Status(code_, std::string(context) + ": " + message_);
}

Status StatusOf(const std::exception& error) {
  if (const auto* const known = dynamic_cast<const Error*>(&error)) return known->status();
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return Status(StatusCode::kExhausted, "out of memory");
  std::string_view text = error.what();
  // torch's forms of a stack, of a failed check, and of an allocation that failed.
  for (const std::string_view stack :
       {"\nException raised from ", "\nframe #", "\nC++ CapturedTraceback:"})
    text = text.substr(0, text.find(stack));
  for (const std::string_view sign :
       {"can't allocate memory", "out of memory", "not enough memory"}) {
    if (text.find(sign) == std::string_view::npos) continue;
    // "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory:
    // you tried to allocate 64 bytes. Error code 12 (Cannot allocate memory)"
    const size_t asked = text.find("tried to allocate ");
    const size_t end = text.find_first_of(".\n", asked == std::string_view::npos ? 0 : asked);
    return Status(StatusCode::kExhausted,
                  asked == std::string_view::npos
                      ? std::string(text.substr(0, text.find('\n')))
                      : "out of memory: " + std::string(text.substr(asked, end - asked)));
  }
  return Status(StatusCode::kInternal, std::string(text));
}

std::string Status::ToString() const {
  if (ok()) return "ok";
  return std::string(StatusCodeName(code_)) + ": " + message_;
}

}  // namespace keel
