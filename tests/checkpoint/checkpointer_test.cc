#include "checkpoint/checkpointer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/format/manifest.h"
#include "checkpoint/format/names.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

std::vector<std::string> Names(const FileSystem& fs, std::string_view path = ".") {
  std::vector<std::string> names;
  for (const FileInfo& info : ValueOrThrow(fs.List(path))) names.push_back(info.name);
  return names;
}

// Saves states of several seeds as steps 10, 20, ... into a simulated disk.
std::unique_ptr<SimFileSystem> DiskWithSteps(Cut& cut, std::initializer_list<uint64_t> seeds) {
  auto disk = std::make_unique<SimFileSystem>();
  int64_t step = 0;
  for (const uint64_t seed : seeds) {
    cut.Fill(MakeTrainingState(seed));
    ThrowIfError(SaveOn(*disk, cut, step += 10, SmallOptions()));
  }
  return disk;
}

TEST(Checkpointer, AnyLayoutToAnyOther) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const TrainingState state = MakeTrainingState(seed);
    SimFileSystem disk;
    Cut from({1 + static_cast<int>(seed % 5), seed % 2 == 0, seed % 3 != 0, true}, seed);
    from.Fill(state);
    ASSERT_EQ(SaveOn(disk, from, 7, SmallOptions()).ToString(), "ok") << "seed " << seed;
    Cut to({1 + static_cast<int>((seed / 5) % 6), seed % 3 == 0, seed % 2 != 0, true}, seed + 1000);
    to.Clear(0x5a);
    const auto loaded = LoadFrom(disk, to);
    ASSERT_TRUE(loaded.ok()) << "seed " << seed << ": " << loaded.status().ToString();
    ASSERT_TRUE(loaded->has_value());
    EXPECT_EQ((*loaded)->step, 7);
    EXPECT_EQ((*loaded)->documents.at("trainer_state.json"), "{\"step\": 7}\n");
    EXPECT_EQ(to.FirstDifference(state), "") << "seed " << seed;
  }
}

// What looks like a failed download in a model's folder is a caller's own text here.
TEST(Checkpointer, ADocumentIsAnyText) {
  for (const std::string text :
       {"", "<?xml version='1.0'?>", "<html>", "version https://git-lfs.github.com/spec/v1\n"}) {
    SimFileSystem disk;
    Cut cut({1}, 1, ModelSize::kTiny);
    ThrowIfError(SaveOn(disk, cut, 1, SmallOptions(), [&](SaveRequest& request) {
      if (!request.documents.empty()) request.documents[0].content = text;
    }));
    const auto loaded = ValueOrThrow(LoadFrom(disk, cut));
    ASSERT_TRUE(loaded) << text;
    EXPECT_EQ(loaded->documents.at("trainer_state.json"), text);
  }
}

TEST(Checkpointer, RealDiskWithEachBackEnd) {
  for (const IoChoice io :
       {IoChoice::kBuffered, IoChoice::kDirect, IoChoice::kIoUring, IoChoice::kAuto}) {
    const TempDir dir;
    const auto fs = dir.Open();
    if (const Status refused = fs->MakeWriteQueue(1).status();
        io == IoChoice::kIoUring && !refused.ok()) {
      std::cerr << "NOT TESTED: " << refused.ToString() << "\n";
      continue;
    }
    const TrainingState state = MakeTrainingState(3);
    Cut cut({3}, 5);
    cut.Fill(state);
    CheckpointOptions options = SmallOptions();
    options.io = io;
    const Status saved = SaveOn(*fs, cut, 40, options);
    if ((io == IoChoice::kDirect || io == IoChoice::kIoUring) && saved.code() == StatusCode::kIo)
      continue;  // not on this file system
    ASSERT_EQ(saved.ToString(), "ok") << NameOf(io);
    EXPECT_EQ(ReadAll(dir / "latest_checkpointed_iteration.txt"), "40\n");
    EXPECT_THAT(Names(*fs), Contains("global_step_40"));
    EXPECT_THAT(Names(*fs, "global_step_40/actor/model"), Contains("rank_00001.safetensors"));
    EXPECT_THAT(ReadAll(dir / "checkpoints.jsonl"),
                AllOf(HasSubstr("\"event\":\"save\""), HasSubstr("\"step\":40")));
    cut.Clear(1);
    ASSERT_EQ(LoadFrom(*fs, cut).status().ToString(), "ok") << NameOf(io);
    EXPECT_EQ(cut.FirstDifference(state), "") << NameOf(io);
  }
}

TEST(Checkpointer, NothingThereIsNotAnError) {
  SimFileSystem disk;
  Cut cut({2}, 1);
  const auto loaded = LoadFrom(disk, cut);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_FALSE(loaded->has_value());
}

TEST(Checkpointer, ReplicasAreWrittenOnceAndInBalance) {
  // Four ranks that hold all of it: each tensor is in exactly one file.
  SimFileSystem disk;
  Cut cut({1}, 1);
  const TrainingState state = MakeTrainingState(1);
  cut.Fill(state);
  Cut four({4}, 1);
  for (int r = 0; r < 4; ++r) {
    auto& part = four.model[static_cast<size_t>(r)];
    part = RankPart();
    for (const TensorInfo& tensor : SampleModel()) part.AddBox(tensor, Box::Whole(tensor.shape), r);
  }
  four.Fill(state);
  ThrowIfError(SaveOn(disk, four, 1, SmallOptions()));
  int64_t bytes = 0;
  for (int r = 0; r < 4; ++r) {
    const std::string path =
        "global_step_1/actor/model/rank_0000" + std::to_string(r) + ".safetensors";
    bytes += ValueOrThrow(disk.Stat(path)).size - 4096;
  }
  int64_t expected = 0;
  for (const auto& [name, tensor] : state.model)
    expected += static_cast<int64_t>(tensor.bytes.size());
  EXPECT_EQ(bytes, expected);
}

TEST(Checkpointer, TheTrackerIsOnlyAHint) {
  Cut cut({2}, 1);
  const auto disk = DiskWithSteps(cut, {1, 2});
  for (const char* content : {"20\n", "10\n", "", "999\n", "abc", "-1\n", "20"}) {
    disk->SetContent("latest_checkpointed_iteration.txt", content);
    const auto loaded = LoadFrom(*disk, cut);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    EXPECT_EQ((*loaded)->step, 20) << content;
  }
  disk->Erase("latest_checkpointed_iteration.txt");
  EXPECT_EQ((*LoadFrom(*disk, cut))->step, 20);
}

TEST(Checkpointer, ResumePathIsThatOneOrAnError) {
  Cut cut({2}, 1);
  const auto disk = DiskWithSteps(cut, {1, 2});
  const auto older = LoadFrom(*disk, cut, [](LoadRequest& r) { r.resume_path = "global_step_10"; });
  ASSERT_TRUE(older.ok()) << older.status().ToString();
  EXPECT_EQ((*older)->step, 10);
  EXPECT_EQ(cut.FirstDifference(MakeTrainingState(1)), "");
  disk->SetContent("global_step_10/trainer_state.json", "{}");
  const auto damaged =
      LoadFrom(*disk, cut, [](LoadRequest& r) { r.resume_path = "global_step_10"; });
  EXPECT_EQ(damaged.status().code(), StatusCode::kDataLoss);
  const auto missing =
      LoadFrom(*disk, cut, [](LoadRequest& r) { r.resume_path = "global_step_30"; });
  EXPECT_FALSE(missing.ok());
  const auto outside =
      LoadFrom(*disk, cut, [](LoadRequest& r) { r.resume_path = "../global_step_10"; });
  EXPECT_EQ(outside.status().code(), StatusCode::kInvalidData);
}

TEST(Checkpointer, AnotherModelIsAnErrorNotAFallback) {
  Cut cut({2}, 1);
  const auto disk = DiskWithSteps(cut, {1, 2});
  const auto loaded = LoadFrom(*disk, cut, [](LoadRequest& r) { r.config_digest = "config-b"; });
  EXPECT_EQ(loaded.status().code(), StatusCode::kConfig);
  EXPECT_THAT(loaded.status().message(),
              AllOf(HasSubstr("global_step_20"), HasSubstr("another model"), HasSubstr("config-a"),
                    HasSubstr("config-b")));
}

TEST(Checkpointer, MissingAndUnknownTensorsAreAllListed) {
  Cut cut({2}, 1);
  const auto disk = DiskWithSteps(cut, {1});
  // Two tensors that were never saved, one of another shape.
  Cut wrong({2}, 1);
  wrong.model[1].AddBox({"model.extra.a", DType::kF32, Dims{4}}, Box::Whole(Dims{4}));
  wrong.model[1].AddBox({"model.extra.b", DType::kF32, Dims{4}}, Box::Whole(Dims{4}));
  wrong.Clear(0x11);
  const auto missing = LoadFrom(*disk, wrong);
  EXPECT_FALSE(missing.ok());
  EXPECT_NE(missing.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(missing.status().message(),
              AllOf(HasSubstr("model.extra.a"), HasSubstr("model.extra.b"),
                    HasSubstr("actor/model"), HasSubstr("global_step_10")));
  // Live memory is as it was.
  EXPECT_EQ(static_cast<int>((*wrong.model[0].memory[0])[0]), 0x11);

  const auto allowed =
      LoadFrom(*disk, wrong, [](LoadRequest& r) { r.allow_missing = {"model.extra.*"}; });
  ASSERT_TRUE(allowed.ok()) << allowed.status().ToString();
  EXPECT_EQ(static_cast<int>((*wrong.model[1].memory.back())[3]), 0x11);

  Cut fewer({1}, 1);
  for (auto* part : {&fewer.model[0], &fewer.optimizer[0]}) *part = RankPart();
  const TensorInfo one = SampleModel()[0];
  fewer.model[0].AddBox(one, Box::Whole(one.shape));
  const auto unknown = LoadFrom(*disk, fewer, [](LoadRequest& r) { r.contents.optimizer = false; });
  EXPECT_EQ(unknown.status().code(), StatusCode::kConfig);
  EXPECT_THAT(unknown.status().message(),
              AllOf(HasSubstr("no place for"), HasSubstr("model.norm.weight")));

  const auto role = LoadFrom(*disk, cut, [](LoadRequest& r) { r.roles[0].name = "critic"; });
  EXPECT_EQ(role.status().code(), StatusCode::kConfig);
  EXPECT_THAT(role.status().message(), HasSubstr("critic"));
}

// A save without tensors is of use to who wants none.
TEST(Checkpointer, ProgressAlone) {
  SimFileSystem disk;
  Cut cut({2}, 1);
  cut.Fill(MakeTrainingState(1));
  ThrowIfError(SaveOn(disk, cut, 10, SmallOptions(), [](SaveRequest& request) {
    request.contents = {false, false, true, false};
  }));
  const auto loaded = LoadFrom(disk, cut, [](LoadRequest& r) {
    r.contents = {false, false, true, false};
  });
  ThrowIfError(loaded.status());
  EXPECT_EQ((*loaded)->step, 10);
  EXPECT_THAT(LoadFrom(disk, cut).status().message(), HasSubstr("holds no model"));
}

TEST(Checkpointer, ContentsSelectWhatIsSavedAndLoaded) {
  SimFileSystem disk;
  Cut cut({2}, 1);
  const TrainingState state = MakeTrainingState(1);
  cut.Fill(state);
  ThrowIfError(
      SaveOn(disk, cut, 5, SmallOptions(), [](SaveRequest& r) { r.contents.optimizer = false; }));
  EXPECT_THAT(Names(disk, "global_step_5/actor"), Not(Contains("optimizer")));
  const auto all = LoadFrom(disk, cut);
  EXPECT_EQ(all.status().code(), StatusCode::kConfig);
  EXPECT_THAT(all.status().message(), HasSubstr("holds no optimizer"));
  cut.Clear(0);
  const auto model = LoadFrom(disk, cut, [](LoadRequest& r) {
    r.contents.optimizer = false;
    r.contents.extra = false;
  });
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_FALSE((*model)->documents.contains("trainer_state.json"));
  for (const RankPart& part : cut.model) EXPECT_EQ(part.FirstDifference(state.model), "");
}

TEST(Checkpointer, TheSameStepIsReplaced) {
  Cut cut({2}, 1);
  const auto disk = DiskWithSteps(cut, {1, 2});
  const TrainingState fresh = MakeTrainingState(3);
  cut.Fill(fresh);
  ASSERT_EQ(SaveOn(*disk, cut, 20, SmallOptions()).ToString(), "ok");
  cut.Clear(0);
  EXPECT_EQ((*LoadFrom(*disk, cut))->step, 20);
  EXPECT_EQ(cut.FirstDifference(fresh), "");
  for (const std::string& name : Names(*disk))
    EXPECT_FALSE(name.starts_with(".old") || name.starts_with(".trash")) << name;
}

TEST(Checkpointer, AForeignDirectoryOfTheSameNameIsSetAside) {
  Cut cut({1}, 1);
  SimFileSystem disk;
  ThrowIfError(disk.MakeDirectory("global_step_10"));
  disk.SetContent("global_step_10/notes.txt", "mine");
  cut.Fill(MakeTrainingState(1));
  ASSERT_EQ(SaveOn(disk, cut, 10, SmallOptions()).ToString(), "ok");
  EXPECT_EQ((*LoadFrom(disk, cut))->step, 10);
  std::string aside;
  for (const std::string& name : Names(disk)) {
    if (name.starts_with("global_step_10.set-aside-")) aside = name;
  }
  ASSERT_NE(aside, "");
  EXPECT_EQ(disk.Content(aside + "/notes.txt"), "mine");
}

TEST(Checkpointer, ARunThatWentBackResumesFromWhatItDidLast) {
  Cut cut({2}, 1);
  const auto disk = DiskWithSteps(cut, {1, 2, 3});  // 10, 20, 30
  const TrainingState again = MakeTrainingState(4);
  cut.Fill(again);
  CheckpointOptions options = SmallOptions();
  options.max_ckpts_to_keep = 2;
  ThrowIfError(SaveOn(*disk, cut, 15, options));  // after going back to 10
  cut.Clear(0);
  EXPECT_EQ((*LoadFrom(*disk, cut))->step, 15);
  EXPECT_EQ(cut.FirstDifference(again), "");
  std::vector<std::string> steps;
  for (const std::string& name : Names(*disk)) {
    if (name.starts_with("global_step_")) steps.push_back(name);
  }
  EXPECT_THAT(steps, ElementsAre("global_step_15", "global_step_30"));
}

TEST(Checkpointer, RetentionKeepsTheNewestAndTouchesNothingForeign) {
  for (const int keep : {1, 2, 5}) {
    SimFileSystem disk;
    ThrowIfError(disk.MakeDirectory("global_step_3"));  // no manifest: not ours
    disk.SetContent("global_step_3/keep.txt", "mine");
    ThrowIfError(disk.MakeDirectory(".tmp-backup"));
    disk.SetContent("global_step_x", "mine");
    Cut cut({2}, 1);
    CheckpointOptions options = SmallOptions();
    if (keep == 1) {
      options.remove_previous_ckpt_in_save = true;
    } else {
      options.max_ckpts_to_keep = keep;
    }
    for (int64_t step = 10; step <= 80; step += 10) {
      cut.Fill(MakeTrainingState(static_cast<uint64_t>(step)));
      ThrowIfError(SaveOn(disk, cut, step, options));
      std::vector<std::string> expected;
      for (int64_t s = std::max<int64_t>(10, step - 10 * (keep - 1)); s <= step; s += 10) {
        expected.push_back("global_step_" + std::to_string(s));
      }
      std::vector<std::string> found;
      for (const std::string& name : Names(disk)) {
        if (name.starts_with("global_step_") && name != "global_step_3" && name != "global_step_x")
          found.push_back(name);
      }
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(found, expected);
    }
    EXPECT_EQ(disk.Content("global_step_3/keep.txt"), "mine");
    EXPECT_EQ(disk.Content("global_step_x"), "mine");
    EXPECT_THAT(Names(disk), Contains(".tmp-backup"));
  }
}

// Flips one bit of what is written into a file of this name, after it was digested.
SimFileSystem::Tamper FlipIn(std::string name, int64_t from = 1) {
  return [name, from](std::string_view path, int64_t offset, std::span<char> written) {
    if (path.starts_with(".tmp-") && path.ends_with(name) && offset >= from)
      written[written.size() / 2] ^= 4;
  };
}

TEST(Checkpointer, DamageBetweenMemoryAndDiskIsFoundAtLoad) {
  Cut cut({2}, 1);
  const auto disk = DiskWithSteps(cut, {1});
  cut.Fill(MakeTrainingState(2));
  disk->SetTamper(FlipIn("model/rank_00001.safetensors"));
  ThrowIfError(SaveOn(*disk, cut, 20, SmallOptions()));
  disk->SetTamper({});
  const auto loaded = LoadFrom(*disk, cut);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ((*loaded)->step, 10);
  EXPECT_EQ(cut.FirstDifference(MakeTrainingState(1)), "");
  ASSERT_EQ((*loaded)->skipped.size(), 1u);
  EXPECT_EQ((*loaded)->skipped[0].directory, "global_step_20");
  EXPECT_THAT((*loaded)->skipped[0].reason,
              AllOf(HasSubstr("rank_00001.safetensors"), HasSubstr("chunk"), HasSubstr("step 20"),
                    HasSubstr("model.")));
}

TEST(Checkpointer, NothingOlderGoesBeforeTheNewOneWasReadBack) {
  // With keep 1 the old one is all there is: the new one is read back before its commit.
  Cut cut({2}, 1);
  const auto disk = DiskWithSteps(cut, {1});
  CheckpointOptions options = SmallOptions();
  options.remove_previous_ckpt_in_save = true;
  cut.Fill(MakeTrainingState(2));
  const auto whole_model = [](SaveRequest& request) { request.contents.hf_model = true; };
  const auto only_whole_model = [](SaveRequest& request) {
    request.contents.hf_model = true;
    request.contents.model = false;
  };
  // Of every rank's files, of rank 0's own texts, and of the model that it assembles.
  for (const std::string name :
       {"optimizer/rank_00000.safetensors", "index.bin", "actor/huggingface/config.json",
        "trainer_state.json", "actor/huggingface/model.safetensors"}) {
    for (const auto& change : {std::function<void(SaveRequest&)>(whole_model),
                               std::function<void(SaveRequest&)>(only_whole_model)}) {
      disk->SetTamper(FlipIn(name, name.ends_with(".safetensors") ? 1 : 0));
      const Status failed = SaveOn(*disk, cut, 20, options, change);
      EXPECT_EQ(failed.code(), StatusCode::kDataLoss) << name;
      EXPECT_THAT(failed.message(), AllOf(HasSubstr(name), HasSubstr("not what was written")));
      EXPECT_THAT(Names(*disk), AllOf(Contains("global_step_10"), Not(Contains("global_step_20"))));
    }
  }
  disk->SetTamper({});
  ThrowIfError(SaveOn(*disk, cut, 20, options));
  EXPECT_THAT(Names(*disk), AllOf(Contains("global_step_20"), Not(Contains("global_step_10"))));
}

TEST(Checkpointer, WhatDoesNotVerifyRightAfterItsCommitIsWithdrawn) {
  Cut cut({2}, 1);
  const auto disk = DiskWithSteps(cut, {1});
  for (const std::string_view name : {kIndexName, kManifestName}) {
    disk->SetTamper(FlipIn(std::string(name), 0));
    // All are kept: nothing is read back before.
    const Status failed = SaveOn(*disk, cut, 20, SmallOptions());
    EXPECT_FALSE(failed.ok()) << name;
    EXPECT_THAT(failed.message(), HasSubstr("right after its commit"));
    disk->SetTamper({});
    EXPECT_THAT(Names(*disk), Not(Contains("global_step_20")));
    EXPECT_THAT(Names(*disk), Not(Contains(::testing::StartsWith(".tmp-"))));
    EXPECT_EQ(disk->Content(std::string(kTrackerName)), "10\n");
    EXPECT_EQ((*LoadFrom(*disk, cut))->step, 10);
  }
  ThrowIfError(SaveOn(*disk, cut, 20, SmallOptions()));
  EXPECT_EQ(disk->Content(std::string(kTrackerName)), "20\n");
}

TEST(Checkpointer, TwoRunsCannotShareADirectory) {
  const TempDir dir;
  const auto fs = dir.Open();
  const auto again = dir.Open();
  Logger log(Quiet());
  LocalCoordinatorHub hub(1);
  Checkpointer first(*fs, hub.rank(0), SystemClock(), log, SmallOptions());
  ThrowIfError(first.Open());
  LocalCoordinatorHub other(1);
  Checkpointer second(*again, other.rank(0), SystemClock(), log, SmallOptions());
  const Status refused = second.Open();
  EXPECT_EQ(refused.code(), StatusCode::kBusy);
  char host[256] = {};
  ASSERT_EQ(gethostname(host, sizeof(host) - 1), 0);
  EXPECT_THAT(refused.message(),
              AllOf(HasSubstr(dir.path() + " is in use; "), HasSubstr(dir / ".keel-lock"),
                    HasSubstr(fmt::format("held by run {}, host {}, pid {}, since 2",
                                          SmallOptions().run_id, host, getpid()))));
  ThrowIfError(first.Close());
  ThrowIfError(second.Open());
  ThrowIfError(second.Close());
}

TEST(Checkpointer, OneThatIsAbandonedLeavesTheDirectoryToTheNext) {
  const TempDir dir;
  const auto fs = dir.Open();
  const auto again = dir.Open();
  Logger log(Quiet());
  LocalCoordinatorHub hub(1), other(1);
  Checkpointer first(*fs, hub.rank(0), SystemClock(), log, SmallOptions());
  ThrowIfError(first.Open());
  Checkpointer second(*again, other.rank(0), SystemClock(), log, SmallOptions());
  EXPECT_EQ(second.Open().code(), StatusCode::kBusy);
  ThrowIfError(first.Abandon());
  ThrowIfError(second.Open());
  ThrowIfError(second.Close());
}

TEST(Checkpointer, TheFirstOpenMakesTheRunsIdUnderItsLock) {
  const TempDir dir;
  const auto fs = dir.Open();
  const auto again = dir.Open();
  Logger log(Quiet());
  CheckpointOptions options = SmallOptions();
  options.run_id = "";
  LocalCoordinatorHub hub(1), other(1);
  Checkpointer first(*fs, hub.rank(0), SystemClock(), log, options);
  ThrowIfError(first.Open());
  const std::string id = ValueOrThrow(ReadFile(*fs, kRunIdName, 64));
  EXPECT_EQ(id.size(), 33u);
  // One that starts at the same time makes no other.
  Checkpointer second(*again, other.rank(0), SystemClock(), log, options);
  EXPECT_EQ(second.Open().code(), StatusCode::kBusy);
  EXPECT_EQ(ValueOrThrow(ReadFile(*fs, kRunIdName, 64)), id);
  ThrowIfError(first.Close());
  ThrowIfError(second.Open());
  EXPECT_EQ(ValueOrThrow(ReadFile(*fs, kRunIdName, 64)), id);
  ThrowIfError(second.Close());
}

TEST(Checkpointer, ARunsIdThatCannotBeReadIsNotMadeAnew) {
  SimFileSystem disk;
  Logger log(Quiet());
  CheckpointOptions options = SmallOptions();
  options.run_id = "";
  Cut cut({2}, 1);
  cut.Fill(MakeTrainingState(1));
  ThrowIfError(SaveOn(disk, cut, 10, options));
  const std::string id = disk.Content(std::string(kRunIdName));
  EXPECT_EQ(ValueOrThrow(ReadManifest(disk, "global_step_10")).run_id + "\n", id);
  disk.SetFault([](int64_t, std::string_view operation, std::string_view path) {
    return operation == "open" && path == kRunIdName ? Status(StatusCode::kIo, "run_id: no answer")
                                                     : Status::Ok();
  });
  LocalCoordinatorHub hub(1);
  Checkpointer checkpointer(disk, hub.rank(0), SystemClock(), log, options);
  const Status refused = checkpointer.Open();
  EXPECT_EQ(refused.code(), StatusCode::kIo);
  EXPECT_THAT(refused.message(), HasSubstr("no answer"));
  disk.SetFault({});
  EXPECT_EQ(disk.Content(std::string(kRunIdName)), id);
  ThrowIfError(checkpointer.Open());  // and the lock was let go
  ThrowIfError(checkpointer.Close());
}

// As on two nodes whose file systems are two, where the second folder is a copy of the first, or
// empty: rank 0 opened its own, and then every save failed.
TEST(Checkpointer, ADirectoryThatRanksDoNotShareIsRefusedByTheNameOfTheRank) {
  for (const bool copied : {false, true}) {
    SimFileSystem disks[2];
    if (copied) {
      for (SimFileSystem& disk : disks) {
        Cut cut({1}, 1);
        ThrowIfError(SaveOn(disk, cut, 10, SmallOptions()));
      }
      disks[1].SetContent(std::string(kLockName), "run test-run, host other, pid 7, since then");
    }
    RunRanks(2, [&](int rank, Coordinator& coordinator) {
      Logger log(Quiet());
      Checkpointer checkpointer(disks[rank], coordinator, SystemClock(), log, SmallOptions());
      ThrowIfError(checkpointer.Open());
      const Status refused = checkpointer.CheckOneFolder();
      EXPECT_EQ(refused.code(), StatusCode::kConfig);
      EXPECT_THAT(refused.message(), AllOf(HasSubstr("rank 1: "), HasSubstr(kLockName),
                                           HasSubstr("All ranks need one folder")));
      ThrowIfError(checkpointer.Close());
    });
    LocalCoordinatorHub hub(1);
    Logger log(Quiet());
    Checkpointer again(disks[0], hub.rank(0), SystemClock(), log, SmallOptions());
    ThrowIfError(again.Open());  // the lock was let go
    ThrowIfError(again.Close());
  }
}

// As on a node that has mounted the folder read-only: each save failed, as late as that.
TEST(Checkpointer, ADirectoryThatARankCannotWriteToIsRefusedByTheNameOfTheRank) {
  SimFileSystem disk;
  RunRanks(2, [&](int rank, Coordinator& coordinator) {
    Logger log(Quiet());
    const std::unique_ptr<SimFileSystem> mount = disk.Mount();
    if (rank == 1) {
      mount->SetFault([](int64_t, std::string_view operation, std::string_view path) {
        return operation == "append" && path == kLockName
                   ? Status(StatusCode::kIo, "Read-only file system")
                   : Status::Ok();
      });
    }
    Checkpointer checkpointer(*mount, coordinator, SystemClock(), log, SmallOptions());
    ThrowIfError(checkpointer.Open());
    const Status refused = checkpointer.CheckOneFolder();
    EXPECT_EQ(refused.code(), StatusCode::kConfig);
    EXPECT_THAT(refused.message(), AllOf(HasSubstr("rank 1: "), HasSubstr("Read-only file system"),
                                         HasSubstr("for writing on every node")));
    ThrowIfError(checkpointer.Close());
  });
}

TEST(CheckpointOptions, AllProblemsAtOnce) {
  CheckpointOptions options;
  options.load_threads = 0;
  options.max_ckpts_to_keep = 0;
  options.chunk_bytes = 1000;
  options.deadline = std::chrono::seconds(1'000'001);
  EXPECT_EQ(Validate(options).size(), 4u);
  EXPECT_THAT(Validate(options), Contains("deadline is 1000001000 ms, expected 1 ms to 1000000 s"));
  EXPECT_TRUE(Validate(SmallOptions()).empty());
}

}  // namespace
}  // namespace keel::checkpoint
