#include "common/status.h"

#include <cerrno>
#include <cstring>

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
  StatusCause cause = StatusCause::kUnsaid;
  if (error == EACCES || error == EPERM) cause = StatusCause::kDenied;
  if (error == ENOMEM) cause = StatusCause::kMemory;
  std::string message(operation);
  message.append(" ").append(path).append(": ").append(std::strerror(error));
  message.append(" (errno ").append(std::to_string(error)).append(")");
  if (error == EMFILE) message.append(": raise the limit of open files (ulimit -n)");
  return Status(code, cause, std::move(message));
}

Status Status::FromFork(int error, std::string_view operation, std::string_view path) {
  Status status = FromErrno(error, operation, path);
  if (error != EAGAIN) return status;
  return Status(
      StatusCode::kExhausted,
      status.message() + ": raise the limit of processes (ulimit -u, or the container's pids.max)");
}

Status Status::WithContext(std::string_view context) const {
  if (ok()) return *this;
  return Status(code_, cause_, std::string(context) + ": " + message_);
}

std::string Status::ToString() const {
  if (ok()) return "ok";
  return std::string(StatusCodeName(code_)) + ": " + message_;
}

}  // namespace keel
