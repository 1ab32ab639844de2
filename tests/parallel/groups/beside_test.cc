#include "parallel/groups/beside.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

namespace keel::parallel {
namespace {

// On a host; on a device by runs on the pretend GPU, whose threads begin with device 0.
TEST(Beside, WorkRunsOnAThreadOfItsOwnAndItsValueOrErrorComesBack) {
  const std::thread::id here = std::this_thread::get_id();
  std::future<bool> elsewhere =
      Beside(at::kCPU, [=] { return std::this_thread::get_id() != here; });
  EXPECT_TRUE(elsewhere.get());
  std::future<int> failing = Beside(at::kCPU, []() -> int { throw std::runtime_error("no"); });
  EXPECT_THROW(failing.get(), std::runtime_error);
}

}  // namespace
}  // namespace keel::parallel
