// Status and Result<T>: how Keel reports failures of I/O, peers and user files.
//
// Bugs and configuration errors are exceptions instead (keel::Error), caught once in main.
// Every message says what was expected, what was found, where, and what to do about it.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace keel {

enum class StatusCode {
  kOk,
  kUsage,             // the command line is wrong
  kConfig,            // the configuration is wrong
  kInvalidData,       // a file's content is not what its format says
  kNotFound,          // an input is missing
  kAlreadyExists,     // would overwrite
  kCannotCreate,      // an output cannot be made
  kIo,                // the operating system refused; errno in the message
  kExhausted,         // this process is short of memory or descriptors: EMFILE, ENFILE, ENOMEM
  kNoSpace,           // ENOSPC or EDQUOT
  kDataLoss,          // a checksum or a cover proof failed
  kDeadlineExceeded,  // a wait ran past its deadline
  kUnavailable,       // a peer or a device is not there
  kBusy,              // someone else, or an earlier request, has it
  kCancelled,
  kPreempted,  // asked to stop before the end; run again to go on from the last checkpoint
  kInternal,   // a bug
};

// What lies behind a code, where somebody acts by it. Messages say it in words of their own.
enum class StatusCause {
  kUnsaid,
  kMemory,  // of kExhausted: it is memory that has run out, and no limit of another kind
  kDenied,  // this process has no permission: EACCES, EPERM
};

// Lower-case name, as printed: "data loss".
std::string_view StatusCodeName(StatusCode code);

// The sysexits.h code a program ends with: kConfig -> 78, kInvalidData -> 65, kPreempted -> 75, ...
int ExitCodeFor(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  Status(StatusCode code, StatusCause cause, std::string message)
      : code_(code), cause_(cause), message_(std::move(message)) {}

  static Status Ok() { return {}; }
  // `operation` and `path` name what failed: "open", "/runs/a/manifest.json". Maps ENOSPC/EDQUOT
  // to kNoSpace, EMFILE/ENFILE/ENOMEM to kExhausted, ENOENT to kNotFound, EEXIST to
  // kAlreadyExists, others to kIo. The cause is kDenied for EACCES and EPERM, kMemory for ENOMEM.
  static Status FromErrno(int error, std::string_view operation, std::string_view path);
  // The same of fork and clone, whose EAGAIN is a limit of processes: kExhausted, which names it.
  static Status FromFork(int error, std::string_view operation, std::string_view path);

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  StatusCause cause() const { return cause_; }
  const std::string& message() const { return message_; }

  // The same status with "`context`: " before its message; ok stays ok.
  Status WithContext(std::string_view context) const;
  // "data loss: ..."; "ok" when ok.
  std::string ToString() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  StatusCause cause_ = StatusCause::kUnsaid;
  std::string message_;
};

// Thrown for bugs and for configuration errors; carries the status that main turns into an exit
// code.
class Error : public std::runtime_error {
 public:
  explicit Error(Status status)
      : std::runtime_error(status.ToString()), status_(std::move(status)) {}
  Error(StatusCode code, std::string message) : Error(Status(code, std::move(message))) {}
  const Status& status() const { return status_; }

 private:
  Status status_;
};

inline void ThrowIfError(const Status& status) {
  if (!status.ok()) throw Error(status);
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit by design
    if (status_.ok()) status_ = Status(StatusCode::kInternal, "Result built from an ok Status");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  const T& value() const& { return Checked().value(); }
  T& value() & { return const_cast<std::optional<T>&>(Checked()).value(); }
  T&& value() && { return std::move(const_cast<std::optional<T>&>(Checked()).value()); }
  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }

 private:
  const std::optional<T>& Checked() const {
    if (!value_) throw Error(status_);
    return value_;
  }
  Status status_;
  std::optional<T> value_;
};

// The value, or the error as an exception.
template <typename T>
T ValueOrThrow(Result<T> result) {
  return std::move(result).value();
}

#define KEEL_CONCAT_INNER(a, b) a##b
#define KEEL_CONCAT(a, b) KEEL_CONCAT_INNER(a, b)

#define KEEL_RETURN_IF_ERROR(expression)                                \
  do {                                                                  \
    if (::keel::Status keel_status = (expression); !keel_status.ok()) { \
      return keel_status;                                               \
    }                                                                   \
  } while (false)

// KEEL_ASSIGN_OR_RETURN(auto file, fs.Open(path));
#define KEEL_ASSIGN_OR_RETURN(declaration, expression) \
  KEEL_ASSIGN_OR_RETURN_IMPL(KEEL_CONCAT(keel_result_, __LINE__), declaration, expression)
#define KEEL_ASSIGN_OR_RETURN_IMPL(temporary, declaration, expression) \
  auto temporary = (expression);                                       \
  if (!temporary.ok()) return temporary.status();                      \
  declaration = std::move(temporary).value()

}  // namespace keel
