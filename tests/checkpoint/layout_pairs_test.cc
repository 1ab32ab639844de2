// Every one of 31 ways to cut a model and its optimizer's state loads what any of them has saved,
// bit by bit, over shared memory and over the channel.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "tests/checkpoint/support/parallel_layouts.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

// {dp, tp, pp, vpp, ep, cp}
const std::vector<ParallelLayout> kLayouts = {
    {1, 1, 1, 1, 1, 1}, {2, 1, 1, 1, 1, 1}, {3, 1, 1, 1, 1, 1}, {5, 1, 1, 1, 1, 1},
    {7, 1, 1, 1, 1, 1}, {8, 1, 1, 1, 1, 1}, {1, 2, 1, 1, 1, 1}, {1, 4, 1, 1, 1, 1},
    {1, 8, 1, 1, 1, 1}, {2, 2, 1, 1, 1, 1}, {4, 2, 1, 1, 1, 1}, {3, 2, 1, 1, 1, 1},
    {1, 1, 2, 1, 1, 1}, {1, 1, 4, 1, 1, 1}, {1, 1, 8, 1, 1, 1}, {1, 1, 2, 2, 1, 1},
    {1, 1, 2, 4, 1, 1}, {1, 1, 4, 2, 1, 1}, {2, 2, 2, 1, 1, 1}, {2, 1, 2, 2, 1, 1},
    {1, 4, 2, 2, 1, 1}, {2, 1, 1, 1, 2, 1}, {4, 1, 1, 1, 4, 1}, {4, 2, 1, 1, 2, 1},
    {8, 1, 1, 1, 4, 1}, {1, 1, 1, 1, 1, 2}, {1, 2, 1, 1, 1, 4}, {2, 1, 2, 1, 2, 2},
    {3, 1, 1, 1, 3, 2}, {2, 2, 1, 1, 2, 2}, {1, 3, 2, 1, 1, 1}};

// The state of a job of this layout, and its tables.
struct Job {
  explicit Job(const ParallelLayout& layout) : cut(CutDecoder(layout)) {}
  Cut cut;
};

class LayoutPairs : public ::testing::Test {
 protected:
  LayoutPairs() : state_(DecoderState(11)) {
    for (const ParallelLayout& layout : kLayouts) {
      jobs_.push_back(std::make_unique<Job>(layout));
      jobs_.back()->cut.Fill(state_);
      disks_.push_back(std::make_unique<SimFileSystem>());
      ThrowIfError(SaveOn(*disks_.back(), jobs_.back()->cut, 1, SmallOptions()));
    }
  }

  // Empty memory of a layout, filled from a disk.
  std::string LoadInto(Cut& cut, FileSystem& disk, bool in_place, bool share_memory) {
    cut.Clear(0x5c);
    const auto loaded = LoadFrom(disk, cut, [&](LoadRequest& request) {
      request.in_place = in_place;
      request.share_memory = share_memory;
    });
    return loaded.ok() ? cut.FirstDifference(state_) : loaded.status().ToString();
  }

  const TrainingState state_;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<std::unique_ptr<SimFileSystem>> disks_;
};

TEST_F(LayoutPairs, AllPairsOfLayouts) {
  for (size_t a = 0; a < kLayouts.size(); ++a) {
    for (size_t b = 0; b < kLayouts.size(); ++b) {
      for (const bool share_memory : {true, false}) {
        ASSERT_EQ(LoadInto(jobs_[b]->cut, *disks_[a], (a + b) % 2 == 0, share_memory), "")
            << kLayouts[a].ToString() << " to " << kLayouts[b].ToString()
            << (share_memory ? " over shared memory" : " over the channel");
      }
    }
  }
}

TEST_F(LayoutPairs, ThereAndBackIsIdentical) {
  for (size_t a = 0; a < kLayouts.size(); ++a) {
    const size_t b = (a * 7 + 3) % kLayouts.size();
    SCOPED_TRACE(kLayouts[a].ToString() + " to " + kLayouts[b].ToString() + " and back");
    ASSERT_EQ(LoadInto(jobs_[b]->cut, *disks_[a], false, a % 2 == 0), "");
    SimFileSystem disk;
    ASSERT_EQ(SaveOn(disk, jobs_[b]->cut, 1, SmallOptions()).ToString(), "ok");
    ASSERT_EQ(LoadInto(jobs_[a]->cut, disk, true, a % 2 != 0), "");
    // Saved once more in the first layout, the files are the same ones.
    SimFileSystem again;
    ASSERT_EQ(SaveOn(again, jobs_[a]->cut, 1, SmallOptions()).ToString(), "ok");
    std::map<std::string, std::string> before, after;
    for (const auto& [files, disk_of] :
         {std::pair(&before, disks_[a].get()), std::pair(&after, &again)}) {
      for (const std::string& path : disk_of->AllFiles()) {
        if (path.ends_with(".safetensors")) files->emplace(path, disk_of->Content(path));
      }
    }
    ASSERT_FALSE(before.empty());
    EXPECT_EQ(before, after);
  }
}

}  // namespace
}  // namespace keel::checkpoint
