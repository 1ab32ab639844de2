// The moves of Residency on plain tensors: a random walk against a model of it, memory that really
// goes, failures half-way.

#include "trainer/engine/residency.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

#include "common/status.h"
#include "tests/support/slow_copies.h"
#include "trainer/engine/memory.h"

namespace keel::trainer {
namespace {

// An allocator that fails after `budget` allocations.
class Scarce final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (budget == 0) TORCH_CHECK(false, "the device is full");
    --budget;
    void* memory = std::malloc(bytes);
    return {memory, memory, &std::free, at::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  int budget = 1000;
};

at::Tensor TensorFrom(c10::Allocator& allocator, int64_t elements) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), elements * 4, &allocator, true);
  return at::empty({0}, at::kFloat).set_(storage, 0, {elements});
}

std::vector<float> Values(const at::Tensor& t) {
  const at::Tensor flat = t.contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

struct State {
  at::Tensor params = at::arange(5000, at::kFloat);
  at::Tensor view = params.narrow(0, 1000, 600).view({20, 30});
  at::Tensor grads = at::ones({5000}, at::kFloat);
  at::Tensor master = at::arange(3000, at::kFloat).neg();
  at::Tensor moment = at::arange(3000, at::kFloat).mul(0.5);
  Residency::Tensors tensors() const { return {{params}, {grads}, {master, moment}}; }
};

constexpr OffloadOptions kEverything = {true, true, true};

TEST(ResidencyTest, ARandomWalkKeepsTheValuesAndCountsOnlyRealMoves) {
  State s;
  Residency residency(s.tensors(), kEverything);
  std::vector<float> expected = Values(s.params);
  Place place = Place::kDevice;
  std::mt19937 chance(7);
  for (int i = 0; i < 2000; ++i) {
    double seconds = 0;
    bool moved = false;
    switch (chance() % 6) {
      case 0:
        seconds = residency.Load(StateClass::kParams);
        moved = place == Place::kHost;
        place = Place::kDevice;
        break;
      case 1:
        seconds = residency.LoadToRead(StateClass::kParams);
        moved = place == Place::kHost;
        if (moved) place = Place::kBoth;
        break;
      case 2:
        seconds = residency.Offload(StateClass::kParams);
        moved = place != Place::kHost;
        place = Place::kHost;
        break;
      case 3:
        seconds = residency.CopyToHost(StateClass::kParams);
        moved = place == Place::kDevice;
        if (moved) place = Place::kBoth;
        break;
      case 4: {  // an update of some elements, as the optimizer's
        if (place != Place::kDevice) continue;
        const auto at = static_cast<int64_t>(chance() % 5000);
        const auto value = static_cast<float>(chance() % 100000);
        s.params.data_ptr<float>()[at] = value;
        expected[static_cast<size_t>(at)] = value;
        continue;
      }
      default: {  // a load of a checkpoint through the view
        at::Tensor host = residency.HostView(s.view);
        host.fill_(static_cast<float>(i));
        std::fill_n(expected.begin() + 1000, 600, static_cast<float>(i));
        residency.HostChanged(StateClass::kParams);
      }
    }
    EXPECT_EQ(seconds > 0, moved);
    EXPECT_EQ(seconds == 0.0, !moved);
    ASSERT_EQ(residency.place(StateClass::kParams), place);
    ASSERT_EQ(residency.device_bytes(StateClass::kParams), place == Place::kHost ? 0 : 20000);
    ASSERT_EQ(Values(residency.HostView(s.params)), expected) << "step " << i;
    if (place != Place::kHost) {
      ASSERT_EQ(Values(s.params), expected);
      ASSERT_EQ(Values(s.view)[5], expected[1005]);
    }
  }
  EXPECT_EQ(residency.place(StateClass::kOptimizer), Place::kDevice) << "another class moved";
}

TEST(ResidencyTest, OffloadedStoragesHoldNoByteAndRefuseAccess) {
  State s;
  Residency residency(s.tensors(), kEverything);
  residency.Offload(StateClass::kOptimizer);
  EXPECT_EQ(s.master.storage().nbytes(), 0u);
  EXPECT_EQ(s.moment.storage().nbytes(), 0u);
  EXPECT_EQ(s.params.storage().nbytes(), 20000u);
  EXPECT_ANY_THROW(s.master.data_ptr<float>());
  EXPECT_EQ(s.master.numel(), 3000);
  residency.Load(StateClass::kOptimizer);
  EXPECT_EQ(s.master.data_ptr<float>()[2999], -2999.0f);
  EXPECT_EQ(s.moment.data_ptr<float>()[3], 1.5f);
}

TEST(ResidencyTest, GradientsComeBackAsZeros) {
  State s;
  Residency residency(s.tensors(), kEverything);
  EXPECT_GT(residency.Offload(StateClass::kGrads), 0);
  EXPECT_EQ(s.grads.storage().nbytes(), 0u);
  EXPECT_GT(residency.LoadToRead(StateClass::kGrads), 0);
  EXPECT_EQ(residency.place(StateClass::kGrads), Place::kDevice);
  EXPECT_TRUE(at::equal(s.grads, at::zeros({5000})));
  EXPECT_EQ(residency.CopyToHost(StateClass::kGrads), 0.0);
}

TEST(ResidencyTest, TheArenaIsTheSameInEveryCycle) {
  State s;
  Residency residency(s.tensors(), kEverything);
  const int64_t arena_bytes = residency.arena_bytes();
  // Each tensor begins a page of its own: weights, masters, moments.
  EXPECT_EQ(arena_bytes, (5 + 3 + 3) * 4096);
  residency.Offload(StateClass::kParams);
  const void* memory = residency.HostView(s.params).data_ptr();
  for (int cycle = 0; cycle < 100; ++cycle) {
    for (const StateClass c : {StateClass::kParams, StateClass::kGrads, StateClass::kOptimizer}) {
      residency.Load(c);
      residency.Offload(c);
      ASSERT_EQ(residency.device_bytes(c), 0);
    }
    ASSERT_EQ(residency.arena_bytes(), arena_bytes);
    ASSERT_EQ(residency.HostView(s.params).data_ptr(), memory);
  }
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(ResidencyTest, AHundredCyclesLeaveTheResidentMemoryAsItIs) {
  KeepLargeBlocks();  // as in a run: blocks come from the heap, where freed ones leave gaps
  constexpr int64_t kElements = int64_t{1} << 20;
  std::vector<at::Tensor> optimizer, between;
  for (int i = 0; i < 8; ++i) {
    optimizer.push_back(at::full({kElements}, i, at::kFloat));
    between.push_back(at::ones({1000 + i}, at::kFloat));
  }
  Residency residency({{at::ones({kElements}, at::kFloat)}, {}, optimizer}, kEverything);
  int64_t settled = 0;
  for (int cycle = 0; cycle < 100; ++cycle) {
    for (const StateClass c : {StateClass::kParams, StateClass::kOptimizer}) residency.Offload(c);
    between[static_cast<size_t>(cycle % 8)] = at::ones({1000 + cycle}, at::kFloat);
    for (const StateClass c : {StateClass::kParams, StateClass::kOptimizer}) residency.Load(c);
    if (cycle == 2) settled = ResidentBytes();
  }
  const auto now = static_cast<double>(ResidentBytes());
  EXPECT_NEAR(now, static_cast<double>(settled), 0.01 * now);
  for (int i = 0; i < 8; ++i)
    EXPECT_TRUE(optimizer[static_cast<size_t>(i)].eq(i).all().item<bool>()) << i;
}

TEST(ResidencyTest, StateThatCannotLeaveStaysInTorchsMemory) {
  State s;
  const void* params = s.params.data_ptr();
  const void* master = s.master.data_ptr();
  Residency residency(s.tensors(), {false, false, true});
  residency.Offload(StateClass::kOptimizer);
  residency.Load(StateClass::kOptimizer);
  EXPECT_EQ(s.params.data_ptr(), params);
  EXPECT_NE(s.master.data_ptr(), master);
  EXPECT_EQ(Values(s.master)[2999], -2999.0f);
}

TEST(ResidencyTest, WhatComesBackIsWhereItWasWhenItFirstCameBack) {
  State s;
  Residency residency(s.tensors(), kEverything);
  std::vector<const void*> places;
  for (int cycle = 0; cycle < 5; ++cycle) {
    for (const StateClass c : {StateClass::kParams, StateClass::kGrads, StateClass::kOptimizer}) {
      residency.Offload(c);
      residency.Load(c);
    }
    const std::vector<const void*> now = {s.params.data_ptr(), s.view.data_ptr(),
                                          s.grads.data_ptr(), s.moment.data_ptr()};
    if (cycle == 0) places = now;
    EXPECT_EQ(now, places);
  }
}

TEST(ResidencyTest, TensorsMayOutliveIt) {
  State s;
  { const Residency residency(s.tensors(), kEverything); }
  EXPECT_EQ(Values(s.moment)[3], 1.5f);
  s.moment.add_(1);
  EXPECT_EQ(Values(s.moment)[3], 2.5f);
}

TEST(ResidencyTest, OnlyWhatIsSwitchedOnHasRoom) {
  State s;
  Residency residency(s.tensors(), {false, false, true});
  EXPECT_EQ(residency.arena_bytes(), (3 + 3) * 4096);
  EXPECT_ANY_THROW(residency.Offload(StateClass::kParams));
  EXPECT_EQ(residency.place(StateClass::kParams), Place::kDevice);
  EXPECT_EQ(residency.CopyToHost(StateClass::kParams), 0.0);
  EXPECT_EQ(residency.HostView(s.view).data_ptr(), s.view.data_ptr()) << "a copy on a CPU";
  EXPECT_EQ(Residency(s.tensors(), {}).arena_bytes(), 0);
}

TEST(ResidencyTest, ALoadThatFindsTheDeviceFullCanBeTriedAgain) {
  Scarce device;
  State s;
  s.master = TensorFrom(device, 3000);
  s.moment = TensorFrom(device, 3000);
  s.master.fill_(3);
  s.moment.fill_(4);
  Residency residency(s.tensors(), kEverything);
  residency.Offload(StateClass::kOptimizer);
  for (const int budget : {0, 1}) {
    device.budget = budget;
    try {
      residency.Load(StateClass::kOptimizer);
      FAIL() << "loaded without memory";
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kUnavailable);
      for (const char* part : {"24000 bytes", "optimizer state", "the device is full"})
        EXPECT_NE(error.status().message().find(part), std::string::npos) << error.what();
    }
    EXPECT_EQ(residency.place(StateClass::kOptimizer), Place::kHost);
    EXPECT_EQ(residency.device_bytes(StateClass::kOptimizer), 0);
    EXPECT_EQ(Values(residency.HostView(s.moment)), std::vector<float>(3000, 4.0f));
  }
  device.budget = 2;
  residency.Load(StateClass::kOptimizer);
  EXPECT_EQ(Values(s.master), std::vector<float>(3000, 3.0f));
  EXPECT_EQ(Values(s.moment), std::vector<float>(3000, 4.0f));
}

TEST(ResidencyTest, AnArenaThatDoesNotFitIsRefusedWithItsSize) {
  try {
    const HostArena arena(int64_t{1} << 60, nullptr);
    FAIL() << "got an exbibyte";
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kUnavailable);
    for (const char* part : {"1152921504606846976 bytes", "optimizer_offload"})
      EXPECT_NE(error.status().message().find(part), std::string::npos) << error.what();
  }
}

TEST(ResidencyTest, TheHookComesBeforeEachOverwriteAndRelease) {
  State s;
  Residency residency(s.tensors(), kEverything);
  residency.Offload(StateClass::kParams);  // the arena's first content: 0, 1, 2, ...
  residency.Load(StateClass::kParams);
  struct Call {
    const void* begin;
    size_t bytes;
    float first;  // of what lies there at the time of the call
  };
  std::vector<Call> calls;
  residency.set_before_write([&](const void* begin, size_t bytes) {
    calls.push_back({begin, bytes, *static_cast<const float*>(begin)});
  });
  s.params.add_(10);
  const void* device = s.params.data_ptr();
  residency.Offload(StateClass::kParams);
  const void* host = residency.HostView(s.params).data_ptr();
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].begin, host);
  EXPECT_EQ(calls[0].bytes, 20000u);
  EXPECT_EQ(calls[0].first, 0.0f) << "called after the overwrite";
  EXPECT_EQ(calls[1].begin, device);
  EXPECT_EQ(calls[1].bytes, 20000u);
  EXPECT_EQ(calls[1].first, 10.0f) << "called after the release";
  // From both sides nothing is overwritten, only released.
  residency.LoadToRead(StateClass::kParams);
  calls.clear();
  residency.Offload(StateClass::kParams);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_NE(calls[0].begin, host);
  // A load of a checkpoint on both sides overwrites the device.
  residency.LoadToRead(StateClass::kParams);
  calls.clear();
  residency.HostView(s.params).fill_(7);
  residency.HostChanged(StateClass::kParams);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].begin, s.params.data_ptr());
  EXPECT_EQ(calls[0].first, 10.0f) << "called after the overwrite";
}

// Copies that take their time.
constexpr std::chrono::milliseconds kSlow{50};

TEST(ResidencyTest, ALoadThatFailsReleasesNoMemoryThatACopyStillWrites) {
  State s;
  testing::SlowCopies copies(kSlow);
  Residency residency(s.tensors(), kEverything, &copies);
  residency.Offload(StateClass::kOptimizer);
  const int64_t before = copies.done();
  int calls = 0;
  int64_t done_at_release = -1;
  residency.set_before_write([&](const void*, size_t) {
    ++calls;
    if (calls == 2) throw Error(StatusCode::kUnavailable, "a save of these bytes failed");
    if (calls == 3) done_at_release = copies.done();
  });
  EXPECT_THROW(residency.Load(StateClass::kOptimizer), Error);
  EXPECT_EQ(done_at_release, before + 1) << "released while the first copy was under way";
  // It can be tried again.
  residency.set_before_write(nullptr);
  residency.Load(StateClass::kOptimizer);
  EXPECT_EQ(Values(s.moment)[3], 1.5f);
}

TEST(ResidencyTest, ItsEndWaitsForCopiesIntoItsArena) {
  State s;
  testing::SlowCopies copies(kSlow);
  {
    Residency residency(s.tensors(), kEverything, &copies);
    residency.StartCopyToHost(std::array{StateClass::kOptimizer});
    EXPECT_LT(copies.done(), 2);
  }
  EXPECT_EQ(copies.done(), 2);
}

// A save copies the weights and not what they stand beside; that goes to the host once.
TEST(ResidencyTest, TheBaseGoesDownOnceAndNotForSaves) {
  State s;
  Residency::Tensors state = s.tensors();
  state.base = at::arange(4000, at::kFloat).mul(3);
  const at::Tensor base = state.base;
  const std::vector<float> values = Values(base);
  testing::SlowCopies copies(kSlow);
  Residency residency(state, kEverything, &copies);
  residency.StartCopyToHost(std::array{StateClass::kParams});
  ThrowIfError(residency.WaitArrived(residency.HostView(s.params).const_data_ptr(), 20000));
  EXPECT_EQ(copies.done(), 1) << "of the weights alone";
  EXPECT_EQ(residency.place(StateClass::kParams), Place::kBoth);
  EXPECT_TRUE(residency.HostHas(s.params));
  EXPECT_FALSE(residency.HostHas(base)) << "it has not gone down";
  // It is not lost where the weights have been copied already.
  residency.Offload(StateClass::kParams);
  EXPECT_EQ(copies.done(), 2);
  EXPECT_EQ(base.storage().nbytes(), 0u);
  residency.Load(StateClass::kParams);
  EXPECT_EQ(Values(base), values);
  residency.Offload(StateClass::kParams);
  EXPECT_EQ(copies.done(), 5) << "two came up; the weights may have changed, the base cannot";
  residency.LoadToRead(StateClass::kParams);
  EXPECT_TRUE(residency.HostHas(base));
  EXPECT_EQ(Values(base), values);
  EXPECT_EQ(Values(s.params), Values(at::arange(5000, at::kFloat)));
  // From outside it can: what a load writes there comes up.
  residency.HostView(base).fill_(7);
  residency.HostChanged(StateClass::kParams);
  EXPECT_EQ(base.min().item<float>(), 7);
}

// What an update writes first has left when its own pieces have, whatever array they are of.
TEST(ResidencyTest, AnUpdateIsHeldForThePiecesThatItWritesAlone) {
  constexpr int64_t kElements = int64_t{20} << 20;  // 80 MiB: three pieces
  Residency::Tensors state = {
      {at::ones({kElements / 2})}, {}, {at::ones({kElements}), at::ones({kElements})}};
  testing::SlowCopies copies(kSlow);
  Residency residency(state, {}, &copies);
  residency.StartCopyToHost(std::array{StateClass::kParams, StateClass::kOptimizer});
  residency.HoldUntilLeft(&copies, sizeof(copies));
  EXPECT_EQ(copies.holds(), 0) << "no copy is of this memory";
  for (const at::Tensor& written : {state.params[0], state.optimizer[0], state.optimizer[1]})
    residency.HoldUntilLeft(written.const_data_ptr(), 4096);
  EXPECT_EQ(copies.holds(), 3);
  EXPECT_GE(copies.done(), 3);
  EXPECT_LT(copies.done(), 6) << "of nine";
  const auto* last = state.optimizer[1].const_data_ptr<float>() + kElements - 1;
  residency.HoldUntilLeft(last, sizeof(float));
  EXPECT_EQ(copies.done(), 9);
}

TEST(ResidencyTest, WhatIsOffloadedGoesBackToTheDriver) {
  State s;
  testing::SlowCopies copies;
  Residency residency(s.tensors(), kEverything, &copies);
  residency.Offload(StateClass::kOptimizer);
  EXPECT_EQ(copies.releases(), 1);
  residency.Offload(StateClass::kOptimizer);  // it is there
  EXPECT_EQ(copies.releases(), 1);
  residency.Load(StateClass::kOptimizer);
  EXPECT_EQ(copies.releases(), 1);
}

TEST(ResidencyTest, PinnedMemoryThatNothingNeedsIsGivenBack) {
  State s;
  testing::SlowCopies copies;
  Residency residency(s.tensors(), {}, &copies);
  EXPECT_EQ(copies.pinned(), 0);
  residency.CopyToHost(StateClass::kParams);
  EXPECT_EQ(copies.pinned(), 1);
  residency.ForgetHost();
  EXPECT_EQ(copies.pinned(), 0);
  EXPECT_EQ(residency.place(StateClass::kParams), Place::kDevice);
  // It can come again, and stays while a class has nothing else.
  residency.CopyToHost(StateClass::kParams);
  residency.Offload(StateClass::kParams);
  residency.ForgetHost();
  EXPECT_EQ(copies.pinned(), 1);
  residency.Load(StateClass::kParams);
  EXPECT_EQ(Values(s.params)[4999], 4999.0f);
}

}  // namespace
}  // namespace keel::trainer
