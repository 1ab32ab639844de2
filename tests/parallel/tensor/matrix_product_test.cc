// Products of every form the layers use, against ATen in double precision.

#include "parallel/tensor/matrix_product.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <thread>
#include <vector>

#include "common/process/signal_handler.h"
#include "common/status.h"

namespace keel::parallel {
namespace {

struct Shape {
  int64_t m, k, n;
};
const std::vector<Shape> kShapes = {{1, 1, 1},    {1, 64, 7},    {7, 64, 1},    {5, 1, 9},
                                    {16, 64, 64}, {33, 17, 129}, {130, 96, 65}, {64, 513, 48}};

// [rows, columns] in one of the layouts that reach a product.
at::Tensor Matrix(int64_t rows, int64_t columns, int layout, at::ScalarType dtype) {
  const auto random = [&](int64_t r, int64_t c) { return at::randn({r, c}).to(dtype); };
  switch (layout) {
    case 0:
      return random(rows, columns);
    case 1:
      return random(columns, rows).t();
    case 2:  // rows lie apart
      return random(rows, columns + 3).narrow(1, 2, columns);
    case 3:  // columns lie apart
      return random(columns, rows + 5).narrow(1, 1, rows).t();
    default:  // neither is contiguous
      return random(rows * 2, columns * 2).slice(0, 0, rows * 2, 2).slice(1, 0, columns * 2, 2);
  }
}
constexpr int kLayouts = 5;

double Tolerance(at::ScalarType dtype, int64_t k) {
  return (dtype == at::kBFloat16 ? 0.02 : 2e-6) * std::sqrt(static_cast<double>(k)) * 4;
}

// Largest difference to `expected` (double), in the result's own rounding.
double Error(const at::Tensor& found, const at::Tensor& expected) {
  return (found.to(at::kDouble) - expected).abs().max().item<double>();
}

TEST(MatrixProductTest, EqualsATenInDoublePrecision) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [m, k, n] : kShapes) {
      for (int layouts = 0; layouts < kLayouts * kLayouts; ++layouts) {
        const at::Tensor a = Matrix(m, k, layouts % kLayouts, dtype);
        const at::Tensor b = Matrix(k, n, layouts / kLayouts, dtype);
        const at::Tensor expected = at::mm(a.to(at::kDouble), b.to(at::kDouble));
        const auto where = ::testing::Message() << m << " x " << k << " x " << n << ", layouts "
                                                << layouts << ", " << dtype;
        const double tolerance = Tolerance(dtype, k);
        EXPECT_LT(Error(Product(a, b), expected), tolerance) << where;

        const at::Tensor bias = at::randn({n}).to(dtype);
        EXPECT_LT(Error(Product(a, b, &bias), expected + bias.to(at::kDouble)), 2 * tolerance)
            << where;

        for (const int layout : {0, 1, 2}) {
          at::Tensor out = Matrix(m, n, layout, dtype);
          const at::Tensor before = out.to(at::kDouble);
          AddProduct(out, a, b);
          EXPECT_LT(Error(out, before + expected), 2 * tolerance) << where;
          out.fill_(std::numeric_limits<float>::quiet_NaN());  // is not read
          ProductInto(out, a, b);
          EXPECT_LT(Error(out, expected), tolerance) << where;
        }
      }
    }
  }
}

TEST(MatrixProductTest, WhatLiesBesideARowStays) {
  at::Tensor buffer = at::full({6, 10}, 7.0F);
  at::Tensor out = buffer.narrow(1, 2, 5);
  ProductInto(out, at::ones({6, 3}), at::ones({3, 5}));
  EXPECT_TRUE(out.eq(3).all().item<bool>());
  EXPECT_TRUE(buffer.narrow(1, 0, 2).eq(7).all().item<bool>());
  EXPECT_TRUE(buffer.narrow(1, 7, 3).eq(7).all().item<bool>());
}

TEST(MatrixProductTest, AddsLowPrecisionProductsInTheSumsPrecision) {
  const at::Tensor a = at::randn({8, 64}).to(at::kBFloat16);
  const at::Tensor b = at::randn({64, 8}).to(at::kBFloat16);
  at::Tensor sum = at::full({8, 8}, 1000.25F);
  AddProduct(sum, a, b);
  EXPECT_LT(Error(sum, 1000.25 + at::mm(a, b).to(at::kDouble)), 1e-3);
}

TEST(MatrixProductTest, WidenedProductsAreRoundedOnce) {
  if (!WidensBf16()) GTEST_SKIP() << "this processor multiplies bf16 itself";
  at::manual_seed(4);
  const at::Tensor a = at::randn({130, 300}).to(at::kBFloat16);
  const at::Tensor b = at::randn({300, 65}).to(at::kBFloat16);
  const at::Tensor bias = at::randn({65}).to(at::kBFloat16);
  const at::Tensor exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  const auto differing = [](const at::Tensor& found, const at::Tensor& wanted) {
    EXPECT_EQ(found.scalar_type(), at::kBFloat16);
    return found.ne(wanted.to(at::kBFloat16)).sum().item<int64_t>();
  };
  // The fp32 sums stray from the exact ones by less than a thousandth of bf16's steps.
  constexpr int64_t kFew = 130 * 65 / 500;
  EXPECT_LE(differing(Product(a, b), exact), kFew);
  EXPECT_LE(differing(Product(a, b, &bias), exact + bias.to(at::kDouble)), kFew);
  at::Tensor out = at::randn({130, 65}).to(at::kBFloat16);
  const at::Tensor sum = out.to(at::kDouble) + exact;
  AddProduct(out, a, b);
  EXPECT_LE(differing(out, sum), kFew);
}

TEST(MatrixProductTest, EmptyMatricesAreATens) {
  EXPECT_EQ(Product(at::ones({0, 3}), at::ones({3, 4})).numel(), 0);
  EXPECT_TRUE(Product(at::ones({2, 0}), at::ones({0, 4})).eq(0).all().item<bool>());
}

TEST(MatrixProductTest, ShapesThatDoNotFitAreRefused) {
  at::Tensor wrong = at::ones({2, 5});
  EXPECT_THROW(Product(at::ones({2, 3}), at::ones({4, 5})), c10::Error);
  EXPECT_THROW(AddProduct(wrong, at::ones({3, 3}), at::ones({3, 5})), c10::Error);
}

// The layouts' bit-for-bit promises rest on this.
TEST(MatrixProductTest, RepeatsItselfBitForBitInAnyThread) {
  at::manual_seed(2);
  const at::Tensor a = at::randn({200, 300});
  const at::Tensor b = at::randn({300, 100});
  at::set_num_threads(1);
  const at::Tensor expected = Product(a, b);
  std::vector<at::Tensor> found(4);
  std::vector<std::thread> threads;
  for (at::Tensor& result : found) threads.emplace_back([&] { result = Product(a, b); });
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& result : found) EXPECT_TRUE(result.equal(expected));
}

std::atomic<int> signals{0};

// A signal's frame lies on the stack. What multiplies may use the stack pointer for other memory.
TEST(MatrixProductTest, ASignalDisturbsNoProduct) {
  at::manual_seed(3);
  const at::Tensor a = at::randn({128, 512});
  const at::Tensor b = at::randn({512, 1408});
  const at::Tensor expected = Product(a, b);
  ThrowIfError(HandleSignal(SIGUSR1, [](int) { ++signals; }));
  std::atomic<bool> over{false};
  std::thread sender([&] {
    while (!over) {
      kill(getpid(), SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  int wrong = 0;
  for (int i = 0; i < 20'000 && signals < 200; ++i) {
    const at::Tensor found = Product(a, b);
    wrong += at::equal(found, expected) ? 0 : 1;
  }
  over = true;
  sender.join();
  EXPECT_GE(signals, 200);
  EXPECT_EQ(wrong, 0);
}

// Ends this process, with 0 where a product says that there is no memory, once only `bytes` more
// than now are to be had.
void MultiplyWithin(rlim_t bytes) {
  const at::Tensor a = at::ones({4, 64});
  const at::Tensor b = at::ones({64, 4});
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  bytes += pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(2);
  try {
    (void)Product(a, b);
  } catch (const keel::Error& error) {
    std::exit(error.status().code() == StatusCode::kExhausted ? 0 : 3);
  }
  std::exit(4);
}

// Under a limit of the address space oneDNN crashed in its first product, where it makes kernels.
// In a process of its own, which has made none.
TEST(MatrixProductTest, NoRoomForKernelsIsAnErrorAndNoCrash) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  void* const library = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (library == nullptr) GTEST_SKIP() << "no oneDNN here";
  EXPECT_EXIT(MultiplyWithin(rlim_t{4} << 20), ::testing::ExitedWithCode(0), "");
}

// Nor does ATen take its place without a word where there is no room to load it: its sums are
// rounded in another way.
TEST(MatrixProductTest, NoRoomForTheLibraryIsAnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  if (!::testing::internal::InDeathTestChild() &&
      dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) == nullptr)
    GTEST_SKIP() << "no oneDNN here";
  EXPECT_EXIT(MultiplyWithin(rlim_t{4} << 20), ::testing::ExitedWithCode(0), "");
}

TEST(MatrixProductTest, ArithmeticNamesTheLibraryAndTheInstructionSets) {
  EXPECT_THAT(HostArithmetic(at::kFloat), ::testing::StartsWith(MatrixProductLibrary() + ", "));
  EXPECT_THAT(HostArithmetic(at::kFloat), ::testing::HasSubstr(at::get_cpu_capability()));
}

}  // namespace
}  // namespace keel::parallel
