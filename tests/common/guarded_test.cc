#include "common/guarded.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

namespace keel {
namespace {

TEST(Guarded, OfExceptionsOfOtherLibraries) {
  // As torch's allocator, its checks and its GPU allocator word it.
  const auto of = [](const std::string& text) { return StatusOf(std::runtime_error(text)); };
  const Status memory =
      of("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
         "memory: you "
         "tried to allocate 4398046511104 bytes. Error code 12 (Cannot allocate memory)\nframe #0: "
         "c10::ThrowEnforceNotMet(char const*) + 0x52\nframe #1: <unknown function>");
  EXPECT_EQ(memory.code(), StatusCode::kExhausted);
  EXPECT_EQ(memory.message(), "out of memory: tried to allocate 4398046511104 bytes");
  const Status gpu =
      of("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 80 GiB");
  EXPECT_EQ(gpu.code(), StatusCode::kExhausted);
  EXPECT_EQ(memory.cause(), StatusCause::kMemory);
  EXPECT_EQ(gpu.cause(), StatusCause::kMemory);
  const Status check =
      of("sizes do not agree\nException raised from f at a.cc:3 (most recent call)");
  EXPECT_EQ(check.ToString(), "internal error: sizes do not agree");
  const Status thread =
      StatusOf(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again)));
  EXPECT_EQ(thread.code(), StatusCode::kExhausted);
  EXPECT_EQ(thread.cause(), StatusCause::kUnsaid);
  EXPECT_NE(thread.message().find("ulimit -u"), std::string::npos) << thread.message();
  EXPECT_EQ(StatusOf(std::bad_alloc()).ToString(), "exhausted: out of memory");
  EXPECT_EQ(StatusOf(Error(StatusCode::kBusy, "later")).ToString(), "busy: later");
  EXPECT_EQ(Guarded([]() -> Status { throw std::bad_alloc(); }).code(), StatusCode::kExhausted);
}

}  // namespace
}  // namespace keel
