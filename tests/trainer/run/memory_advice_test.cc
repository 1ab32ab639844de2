#include "trainer/run/memory_advice.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <new>
#include <system_error>

#include "common/guarded.h"

namespace keel::trainer {
namespace {

Status Advised(const Status& status) { return WithMemoryAdvice(status, "on rank 1", "Use less"); }

TEST(MemoryAdvice, IsGivenWhereMemoryHasRunOut) {
  EXPECT_EQ(Advised(StatusOf(std::bad_alloc())).ToString(),
            "exhausted: out of memory, on rank 1. Use less");
  EXPECT_EQ(Advised(Status::FromErrno(ENOMEM, "read", "f")).message(),
            "read f: Cannot allocate memory (errno 12), on rank 1. Use less");
}

TEST(MemoryAdvice, IsNotGivenForALimitOfAnotherKind) {
  for (const Status& limit :
       {Status::FromErrno(EMFILE, "open", "f"), Status::FromErrno(ENFILE, "open", "f"),
        Status::FromFork(EAGAIN, "fork", "keel"),
        StatusOf(
            std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)))}) {
    EXPECT_EQ(Advised(limit).ToString(), limit.ToString() + ", on rank 1");
  }
}

// A path with the words of another limit kept it away, and any other wording brought it.
TEST(MemoryAdvice, GoesByTheCauseAndNotByTheWords) {
  EXPECT_EQ(Advised(Status::FromErrno(ENOMEM, "read", "no thread/open files.jsonl")).message(),
            "read no thread/open files.jsonl: Cannot allocate memory (errno 12), on rank 1. Use "
            "less");
  EXPECT_EQ(Advised(Status(StatusCode::kExhausted, "no more sockets")).message(),
            "no more sockets, on rank 1");
}

}  // namespace
}  // namespace keel::trainer
