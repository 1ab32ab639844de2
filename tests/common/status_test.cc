#include "common/status.h"

#include <gmock/gmock.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>

#include "common/tensors/dtype.h"

namespace keel {
namespace {

using ::testing::HasSubstr;

constexpr int kCodes = static_cast<int>(StatusCode::kInternal) + 1;

TEST(Status, NamesAndExitCodes) {
  std::set<std::string_view> names;
  for (int i = 0; i < kCodes; ++i) {
    const auto code = static_cast<StatusCode>(i);
    names.insert(StatusCodeName(code));
    EXPECT_NE(StatusCodeName(code), "unknown");
    const int exit = ExitCodeFor(code);
    EXPECT_EQ(exit == 0, code == StatusCode::kOk);
    EXPECT_TRUE(exit == 0 || (exit >= 64 && exit <= 78)) << exit;  // those of sysexits.h
    // Whoever requeues a job on 75 must not do so for anything else.
    EXPECT_EQ(exit == 75, code == StatusCode::kPreempted) << StatusCodeName(code);
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kCodes));
  EXPECT_EQ(ExitCodeFor(StatusCode::kConfig), 78);
  EXPECT_EQ(ExitCodeFor(StatusCode::kInvalidData), 65);
  EXPECT_EQ(ExitCodeFor(StatusCode::kNotFound), 66);
  EXPECT_EQ(ExitCodeFor(StatusCode::kUsage), 64);
}

TEST(Status, FromErrno) {
  const Status status = Status::FromErrno(ENOENT, "open", "/runs/a");
  EXPECT_EQ(status.message(), "open /runs/a: No such file or directory (errno 2)");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(Status::FromErrno(ENOSPC, "write", "f").code(), StatusCode::kNoSpace);
  EXPECT_EQ(Status::FromErrno(EDQUOT, "write", "f").code(), StatusCode::kNoSpace);
  EXPECT_EQ(Status::FromErrno(EEXIST, "create", "f").code(), StatusCode::kAlreadyExists);
  for (const int other : {EIO, EACCES, EPERM, ENOTDIR, ELOOP, EROFS, 9999}) {
    EXPECT_EQ(Status::FromErrno(other, "open", "f").code(), StatusCode::kIo) << other;
  }
  for (const int denied : {EACCES, EPERM}) {
    const Status closed = Status::FromErrno(denied, "open", "f").WithContext("a");
    EXPECT_EQ(closed.cause(), StatusCause::kDenied) << denied;
  }
  EXPECT_EQ(Status::FromErrno(ENOMEM, "open", "f").cause(), StatusCause::kMemory);
  for (const int other : {EIO, EMFILE, ENFILE, ENOENT})
    EXPECT_EQ(Status::FromErrno(other, "open", "f").cause(), StatusCause::kUnsaid) << other;
}

TEST(Status, AProcessThatCannotBeStartedForALimitNamesIt) {
  const Status status = Status::FromFork(EAGAIN, "fork", "keel");
  EXPECT_EQ(status.code(), StatusCode::kExhausted);
  EXPECT_EQ(status.message(),
            "fork keel: Resource temporarily unavailable (errno 11): raise the limit of processes "
            "(ulimit -u, or the container's pids.max)");
  EXPECT_EQ(Status::FromFork(ENOMEM, "fork", "keel").code(), StatusCode::kExhausted);
  EXPECT_EQ(Status::FromFork(ENOENT, "fork", "keel").code(), StatusCode::kNotFound);
}

TEST(Status, ContextComesFirstAndOkStaysOk) {
  const Status status(StatusCode::kDataLoss, "chunk 3 differs");
  EXPECT_EQ(status.ToString(), "data loss: chunk 3 differs");
  EXPECT_EQ(status.WithContext("a.safetensors").message(), "a.safetensors: chunk 3 differs");
  EXPECT_EQ(status.WithContext("a").code(), StatusCode::kDataLoss);
  EXPECT_TRUE(Status::Ok().WithContext("a").ok());
  EXPECT_EQ(Status::Ok().ToString(), "ok");
}

TEST(Result, HoldsAValueOrAnError) {
  Result<std::unique_ptr<int>> good(std::make_unique<int>(3));
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(**good, 3);
  EXPECT_TRUE(good.status().ok());
  const std::unique_ptr<int> taken = std::move(good).value();
  EXPECT_EQ(*taken, 3);
  const Result<int> bad(Status(StatusCode::kIo, "x"));
  ASSERT_FALSE(bad.ok());
  try {
    (void)*bad;
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kIo);
    EXPECT_STREQ(error.what(), "I/O error: x");
  }
  // An error that is none is a bug, not a value.
  EXPECT_EQ(Result<int>(Status::Ok()).status().code(), StatusCode::kInternal);
}

Result<int> Half(int value) {
  if (value % 2 != 0) return Status(StatusCode::kInvalidData, std::to_string(value) + " is odd");
  return value / 2;
}
Result<int> Quarter(int value) {
  KEEL_ASSIGN_OR_RETURN(const int half, Half(value));
  KEEL_ASSIGN_OR_RETURN(const int quarter, Half(half));
  KEEL_RETURN_IF_ERROR(quarter > 100 ? Status(StatusCode::kUsage, "large") : Status::Ok());
  return quarter;
}

TEST(Result, MacrosPassErrorsOn) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().message(), "3 is odd");
  EXPECT_EQ(Quarter(7).status().message(), "7 is odd");
  EXPECT_EQ(Quarter(404).status().code(), StatusCode::kUsage);
}

TEST(DType, NamesSizesAndBack) {
  const std::pair<const char*, int64_t> all[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"I16", 2}, {"U16", 2}, {"F16", 2}, {"BF16", 2},
      {"I32", 4},  {"U32", 4}, {"F32", 4}, {"F64", 8}, {"I64", 8}, {"U64", 8}};
  for (size_t i = 0; i < std::size(all); ++i) {
    const auto dtype = static_cast<DType>(i);  // the numbers are on disk
    EXPECT_EQ(DTypeName(dtype), all[i].first);
    EXPECT_EQ(DTypeSize(dtype), all[i].second);
    EXPECT_EQ(*ParseDType(all[i].first), dtype);
  }
  for (const char* other : {"", "bf16", "F8_E4M3", "F32 ", "F\n"}) {
    EXPECT_EQ(ParseDType(other).status().code(), StatusCode::kInvalidData) << other;
  }
  EXPECT_THAT(ParseDType("F\n").status().message(), HasSubstr("unknown dtype \"F\\x0a\""));
  for (const char* quantized : {"F4", "F6_E2M3", "F8_E4M3", "F8_E8M0"})
    EXPECT_THAT(ParseDType(quantized).status().message(), HasSubstr("dequantize them first"));
}

}  // namespace
}  // namespace keel
