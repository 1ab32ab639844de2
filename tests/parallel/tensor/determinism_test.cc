#include "parallel/tensor/determinism.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace keel::parallel {
namespace {

TEST(DeterminismTest, IsAskedOfPyTorchAndOfCuBlas) {
  const at::Context& context = at::globalContext();
  unsetenv("CUBLAS_WORKSPACE_CONFIG");
  UseDeterministicKernels(true);
  EXPECT_TRUE(context.deterministicAlgorithms());
  EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly())
      << "an operation without a way is refused";
  EXPECT_FALSE(context.deterministicFillUninitializedMemory());
  EXPECT_TRUE(context.deterministicCuDNN());
  EXPECT_FALSE(context.benchmarkCuDNN());
  const char* workspace = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  ASSERT_NE(workspace, nullptr);
  EXPECT_EQ(std::string(workspace), ":4096:8");
  // The user's own is kept.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8", 1);
  UseDeterministicKernels(true);
  EXPECT_EQ(std::string(std::getenv("CUBLAS_WORKSPACE_CONFIG")), ":16:8");
  UseDeterministicKernels(false);
  EXPECT_FALSE(context.deterministicAlgorithms());
  EXPECT_FALSE(context.deterministicCuDNN());
}

}  // namespace
}  // namespace keel::parallel
