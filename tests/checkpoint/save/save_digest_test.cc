// The digest of a role's weights that a save takes of what it copies, and what a request cost.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "checkpoint/format/names.h"
#include "checkpoint/read/step_reader.h"
#include "common/tensors/tensor_digest.h"
#include "tests/checkpoint/save/async_rank.h"

namespace keel::checkpoint {
namespace {

using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

// Of whole tensors, one after the other.
uint64_t DigestOf(const GlobalState& state) {
  uint64_t sum = 0;
  for (const auto& [name, tensor] : state) {
    const Box whole = Box::Whole(tensor.info.shape);
    std::vector<std::byte> bytes = tensor.bytes;
    sum += DigestWeight(name) * BoxDigest(tensor.info.shape, tensor.info.dtype, whole, whole,
                                          {bytes.data(), ContiguousStrides(tensor.info.shape)});
  }
  return sum;
}

std::string Text(uint64_t digest) { return fmt::format("{:016x}", digest); }

// Asks for the digest, and for a document that holds it.
void AskForDigest(SaveRequest& request) {
  request.digest_role = request.roles.front().name;
  if (!request.documents.empty())
    request.documents.push_back({"digest.json", Text(0), true, &Text});
}

std::string SavedDigest(SimFileSystem& disk, int64_t step) {
  return disk.Content(fmt::format("global_step_{}/digest.json", step));
}

TEST(SaveDigest, IsOfTheStepsWeightsWhoeverWritesThem) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SimFileSystem disk;
    Cut cut({1 + static_cast<int>(seed % 4), seed % 2 == 0, seed % 3 != 0, true}, seed);
    CheckpointOptions options = SmallOptions();
    options.dist_ckpt_workers = 1 + static_cast<int>(seed % 3);
    if (seed % 2 == 1) options.host_memory_cap = 2 * options.chunk_bytes;
    const TrainingState state = MakeTrainingState(seed);
    cut.Fill(state);
    Job(disk, cut, options, [&](int, Rank& job) {
      for (int64_t step = 1; step <= 3; ++step) {  // the second and third are copied ahead
        SaveRequest request = job.Request(step);
        AskForDigest(request);
        ThrowIfError(job->StartSave(std::move(request)));
        job.Train(MakeTrainingState(seed + static_cast<uint64_t>(step)));
        EXPECT_EQ(job.End().status.ToString(), "ok") << "seed " << seed;
      }
    });
    for (int64_t step = 1; step <= 3; ++step) {
      const auto trained = MakeTrainingState(seed + static_cast<uint64_t>(step) - 1);
      EXPECT_EQ(SavedDigest(disk, step), Text(DigestOf(trained.model))) << "seed " << seed;
    }
  }
}

// All hold the box, each writes some of its rows: it was counted once for each of them.
TEST(SaveDigest, OfABoxThatSeveralRanksWriteIsTakenOnce) {
  auto [state, cut] = MakeStateOfOneBox();
  SimFileSystem disk;
  ThrowIfError(SaveOn(disk, cut, 1, SmallOptions(), AskForDigest));
  const StepReader reader = ValueOrThrow(StepReader::Open(disk, StepDirectory(1)));
  const Index& index = reader.index();
  ASSERT_EQ(index.tensor(index.FindTensor(index.FindScope("actor/model"), "most")).box_count, 4);
  EXPECT_EQ(SavedDigest(disk, 1), Text(DigestOf(state.model)));
}

TEST(SaveDigest, OfASaveThatBlocksAndOfOneWithoutWeights) {
  SimFileSystem disk;
  Cut cut({2}, 3);
  const TrainingState state = MakeTrainingState(3);
  cut.Fill(state);
  ThrowIfError(SaveOn(disk, cut, 1, SmallOptions(), AskForDigest));
  EXPECT_EQ(SavedDigest(disk, 1), Text(DigestOf(state.model)));
  ThrowIfError(SaveOn(disk, cut, 2, SmallOptions(), [](SaveRequest& request) {
    AskForDigest(request);
    request.contents.model = false;
  }));
  EXPECT_EQ(SavedDigest(disk, 2), Text(0));
}

TEST(SaveRecord, WhatTheRequestCostIsPartOfWhatTheSaveDid) {
  constexpr double kTaken = 1000;
  for (const bool async : {false, true}) {
    SimFileSystem disk;
    Cut cut({2}, 4);
    cut.Fill(MakeTrainingState(4));
    Job(disk, cut, SmallOptions(), [&](int, Rank& job) {
      SaveRequest request = job.Request(1);
      request.taken_s = kTaken;
      SaveRecord record;
      if (async) {
        ThrowIfError(job->StartSave(std::move(request)));
        record = job.End().record;
      } else {
        record = ValueOrThrow(job->Save(request));
      }
      EXPECT_GE(record.blocked_s, kTaken);
      EXPECT_LT(record.total_s, kTaken);
    });
  }
}

}  // namespace
}  // namespace keel::checkpoint
