#include "tools/ckpt/ckpt_commands.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>

#include "checkpoint/read/verifier.h"
#include "checkpoint/run/lease.h"
#include "checkpoint/run/run_lock.h"
#include "common/json.h"
#include "tests/tools/ckpt_commands_fixture.h"
#include "tools/ckpt/ckpt_paths.h"

namespace keel::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(CkptCommands, LsShowsTheNewestFirst) {
  std::filesystem::create_directory(dir_ / "global_step_60");
  const Outcome run = Call(CkptLs, CkptLsOptions{dir_.path(), false});
  EXPECT_EQ(run.code, 0);
  EXPECT_LT(run.out.find("global_step_40"), run.out.find("global_step_20"));
  EXPECT_THAT(run.out, AllOf(HasSubstr("world2"), HasSubstr("model,optimizer,extra"),
                             HasSubstr("global_step_60 is not a valid checkpoint")));
  const Json json = Json::parse(Call(CkptLs, CkptLsOptions{dir_.path(), true}).out);
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[0]["step"], 40);
  EXPECT_EQ(json[2]["valid_manifest"], false);
  EXPECT_NE(Call(CkptLs, CkptLsOptions{dir_ / "nowhere", false}).code, 0);
}

TEST_F(CkptCommands, LsTellsWhatASaveCostAndWhatItIsWorth) {
  const auto fs = dir_.Open();
  cut_.Fill(MakeTrainingState(60));
  ThrowIfError(
      checkpoint::testing::SaveOn(*fs, cut_, 60, SmallOptions(),
                                  [](checkpoint::SaveRequest& request) { request.metric = 1.25; }));
  EXPECT_EQ(Call(CkptPin, {{dir_ / "global_step_20"}}).code, 0);
  std::filesystem::remove(dir_ / "global_step_40/actor/model/rank_00001.safetensors");
  WriteAll(dir_ / "checkpoints.jsonl",
           ReadAll(dir_ / "checkpoints.jsonl") + "{\"event\": \"save\", \"save_");  // cut off
  const Json json = Json::parse(Call(CkptLs, CkptLsOptions{dir_.path(), true}).out);
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[0]["step"], 60);
  EXPECT_EQ(json[0]["metric"], 1.25);
  EXPECT_GT(json[0]["blocked_s"].get<double>(), 0);
  EXPECT_EQ(json[0]["pinned"], false);
  EXPECT_EQ(json[1]["valid"], false);
  EXPECT_EQ(json[1]["valid_manifest"], true);
  EXPECT_EQ(json[2]["pinned"], true);
  EXPECT_EQ(json[2]["metric"], nullptr);
  const std::string table = Call(CkptLs, CkptLsOptions{dir_.path(), false}).out;
  EXPECT_THAT(table, AllOf(HasSubstr("BLOCKED"), HasSubstr("1.25"), HasSubstr(" ms"),
                           HasSubstr("pinned"), HasSubstr("global_step_40 is not a valid"),
                           HasSubstr("rank_00001.safetensors")));
}

// Nobody has pinned what a link leads to, and nobody can tell by the link.
TEST_F(CkptCommands, LsSaysOfNoLinkThatItIsPinned) {
  std::filesystem::create_directory_symlink("global_step_40", dir_ / "global_step_50");
  std::filesystem::create_symlink("nowhere", dir_ / "global_step_70");
  const Json json = Json::parse(Call(CkptLs, CkptLsOptions{dir_.path(), true}).out);
  std::map<int64_t, Json> pinned;
  for (const Json& one : json) pinned[one["step"]] = one["pinned"];
  EXPECT_EQ(pinned, (std::map<int64_t, Json>{{20, false}, {40, false}, {50, {}}, {70, {}}}));
}

TEST_F(CkptCommands, PinAndPrune) {
  const auto fs = dir_.Open();
  for (const int64_t step : {60, 80, 100}) {
    cut_.Fill(MakeTrainingState(static_cast<uint64_t>(step)));
    ThrowIfError(checkpoint::testing::SaveOn(
        *fs, cut_, step, SmallOptions(),
        [&](checkpoint::SaveRequest& request) { request.metric = static_cast<double>(step); }));
  }
  const auto steps = [&] {
    std::string text;
    for (const Json& one : Json::parse(Call(CkptLs, CkptLsOptions{dir_.path(), true}).out))
      text += one["step"].dump() + " ";
    return text;
  };
  const Outcome some = Call(CkptPin, {{dir_ / "global_step_20", dir_ / "global_step_30"}});
  EXPECT_EQ(some.code, 66);
  EXPECT_THAT(some.out, HasSubstr("pinned global_step_20"));
  EXPECT_THAT(some.err, HasSubstr("global_step_30"));

  CkptPruneOptions prune;
  prune.directory = dir_.path();
  prune.keep_best = 1;
  prune.dry_run = true;
  // These checkpoints have no configuration.
  const Outcome unsaid = Call(CkptPrune, prune);
  EXPECT_EQ(unsaid.code, ExitCodeFor(StatusCode::kUsage));
  EXPECT_THAT(unsaid.err, AllOf(HasSubstr("global_step_100 does not say whether its lowest"),
                                HasSubstr("give --metric-mode")));
  prune.metric_mode = "min";
  const Outcome planned = Call(CkptPrune, prune);
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(planned.out, AllOf(HasSubstr("would remove global_step_40 ("),
                                 HasSubstr("would remove global_step_80 (")));
  EXPECT_EQ(steps(), "100 80 60 40 20 ");
  prune.dry_run = false;
  const Outcome done = Call(CkptPrune, prune);
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(steps(), "100 60 20 ");  // the newest, the best, the pinned one
  prune.metric_mode = "max";
  EXPECT_EQ(Call(CkptUnpin, {{dir_ / "global_step_20"}}).code, 0);
  EXPECT_EQ(Call(CkptPrune, prune).code, 0);
  EXPECT_EQ(steps(), "100 ");
}

TEST_F(CkptCommands, PruneSaysWhyItLeftEachOfThem) {
  const auto fs = dir_.Open();
  for (const int64_t step : {60, 80}) {
    checkpoint::CheckpointOptions options = SmallOptions();
    if (step == 60) options.run_id = "other\n";
    ThrowIfError(checkpoint::testing::SaveOn(*fs, cut_, step, options));
  }
  std::filesystem::create_directory(dir_ / "global_step_100");
  EXPECT_EQ(Call(CkptPin, {{dir_ / "global_step_20"}}).code, 0);
  WriteAll(dir_ / "global_step_40/note.txt", "mine");
  CkptPruneOptions prune;
  prune.directory = dir_.path();
  // Whose folder it is cannot be told, and a guess would remove somebody's checkpoints.
  const Outcome unknown = Call(CkptPrune, prune);
  EXPECT_EQ(unknown.code, ExitCodeFor(StatusCode::kConfig));
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("are of several runs"), HasSubstr("global_step_60")));
  WriteAll(dir_ / "run_id", "test-run\n");
  const Outcome run = Call(CkptPrune, prune);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("left global_step_20: pinned\n"),
                             HasSubstr("left global_step_40: it holds 'note.txt'"),
                             HasSubstr("left global_step_60: of run 'other"),
                             HasSubstr("left global_step_80: kept by the rules\n"),
                             HasSubstr("left global_step_100: not a valid checkpoint: "),
                             HasSubstr("0 of 5 checkpoints removed")));

  WriteAll(dir_ / "run_id", "garbled\n");
  EXPECT_THAT(Call(CkptPrune, prune).out,
              HasSubstr("left global_step_80: of run 'test-run'; by " + dir_.path() +
                        "/run_id only those of 'garbled' may go"));
}

TEST_F(CkptCommands, PruneSaysThatWhatItLeftIsDamaged) {
  std::string bytes = ReadAll(dir_ / "global_step_40/actor/model/rank_00000.safetensors");
  bytes[bytes.size() - 5] ^= 1;
  WriteAll(dir_ / "global_step_40/actor/model/rank_00000.safetensors", bytes);
  CkptPruneOptions prune;
  prune.directory = dir_.path();
  prune.keep_latest = 1;
  const Outcome run = Call(CkptPrune, prune);
  EXPECT_THAT(run.out, AllOf(HasSubstr("left global_step_40: damaged, does not count\n"),
                             HasSubstr("left global_step_20: kept by the rules\n")));
}

TEST_F(CkptCommands, PruneLeavesARunningRunAlone) {
  const auto fs = dir_.Open();
  const auto held = ValueOrThrow(checkpoint::RunLock::Take(*fs, "the-other-run", SystemClock()));
  CkptPruneOptions prune;
  prune.directory = dir_.path();
  const Outcome refused = Call(CkptPrune, prune);
  EXPECT_EQ(refused.code, ExitCodeFor(StatusCode::kBusy));
  EXPECT_THAT(refused.err, AllOf(HasSubstr("held by the-other-run, host "), HasSubstr("in use")));
  EXPECT_TRUE(std::filesystem::exists(dir_ / "global_step_20"));
  prune.dry_run = true;
  EXPECT_EQ(Call(CkptPrune, prune).code, 0);
}

TEST_F(CkptCommands, PruneLeavesNothingInAFolderThatIsNoRun) {
  const TempDir other;
  CkptPruneOptions prune;
  prune.directory = other.path();
  EXPECT_EQ(Call(CkptPrune, prune).code, ExitCodeFor(StatusCode::kNotFound));
  EXPECT_TRUE(std::filesystem::is_empty(other.path()));
}

TEST_F(CkptCommands, InspectTellsWhatIsInside) {
  const Outcome run = Call(CkptInspect, CkptInspectOptions{dir_ / "global_step_40/", false, true});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("step      40"), HasSubstr("actor/model"),
                    HasSubstr("model.norm.weight BF16[16]"), HasSubstr("rank_00000.safetensors")));
  const Json json =
      Json::parse(Call(CkptInspect, CkptInspectOptions{dir_ / "global_step_40", true, true}).out);
  EXPECT_EQ(json["scopes"]["actor/model"]["list"]["model.norm.weight"]["shape"][0], 16);
}

TEST_F(CkptCommands, VerifyProvesEveryByte) {
  EXPECT_EQ(Call(CkptVerify, CkptVerifyOptions{dir_.path(), 2}).code, 0);
  EXPECT_EQ(Call(CkptVerify, CkptVerifyOptions{dir_ / "global_step_20", 1}).code, 0);

  FlipByte("global_step_20/actor/optimizer/rank_00001.safetensors", 9000);
  const Outcome damaged = Call(CkptVerify, CkptVerifyOptions{dir_.path(), 2});
  EXPECT_EQ(damaged.code, 1);
  EXPECT_THAT(damaged.out, AllOf(HasSubstr("global_step_40: ok"),
                                 HasSubstr("global_step_20: DAMAGED: 1 problem")));
  EXPECT_THAT(damaged.err,
              AllOf(HasSubstr("global_step_20/actor/optimizer/rank_00001.safetensors"),
                    HasSubstr("chunk 2"), HasSubstr("step 20"), HasSubstr("optimizer.")));
  EXPECT_EQ(Call(CkptVerify, CkptVerifyOptions{dir_ / "global_step_40", 2}).code, 0);

  // All damage at once, a file that is gone and one that was cut off included.
  std::filesystem::remove(dir_ / "global_step_20/actor/model/rank_00001.safetensors");
  std::filesystem::resize_file(dir_ / "global_step_20/actor/model/rank_00000.safetensors", 5000);
  const Outcome worse = Call(CkptVerify, CkptVerifyOptions{dir_ / "global_step_20", 2});
  EXPECT_EQ(worse.code, 1);
  EXPECT_THAT(worse.out, HasSubstr("DAMAGED: 3 problems"));
  EXPECT_THAT(worse.err,
              AllOf(HasSubstr("model/rank_00001.safetensors: file of step 20 is missing"),
                    HasSubstr("model/rank_00000.safetensors: has 5000 bytes"), HasSubstr("chunk 2"),
                    HasSubstr("it held tensors model.conv.weight")));

  std::filesystem::remove(dir_ / "global_step_40/manifest.json");
  EXPECT_EQ(Call(CkptVerify, CkptVerifyOptions{dir_ / "global_step_40", 2}).code, 1);
  const TempDir empty;
  EXPECT_GT(Call(CkptVerify, CkptVerifyOptions{empty.path(), 2}).code, 1);
}

TEST_F(CkptCommands, WhatRetentionRemovesMeanwhileIsNoDamage) {
  const auto run = OpenPosixFileSystem(dir_.path(), false);
  {
    const auto removal = checkpoint::LeaseForRemoval(**run, "global_step_20");
    ASSERT_TRUE(removal.ok()) << removal.status().ToString();
    const Outcome all = Call(CkptVerify, CkptVerifyOptions{dir_.path(), 2});
    EXPECT_EQ(all.code, 0) << all.err;
    EXPECT_THAT(all.out,
                AllOf(HasSubstr("global_step_40: ok"), HasSubstr("global_step_20: not verified: "),
                      HasSubstr("is being removed"), Not(HasSubstr("DAMAGED"))));
    const Outcome one = Call(CkptVerify, CkptVerifyOptions{dir_ / "global_step_20", 2});
    EXPECT_EQ(one.code, ExitCodeFor(StatusCode::kNotFound)) << one.out;

    // The others count as before.
    FlipByte("global_step_40/actor/optimizer/rank_00001.safetensors", 9000);
    EXPECT_EQ(Call(CkptVerify, CkptVerifyOptions{dir_.path(), 2}).code, 1);
  }
  EXPECT_THAT(Call(CkptVerify, CkptVerifyOptions{dir_.path(), 2}).out,
              HasSubstr("global_step_20: ok"));
  // Gone since its name was read; and one whose manifest alone is gone.
  const auto gone = checkpoint::VerifyCheckpoint(**run, "global_step_30", 1);
  EXPECT_EQ(gone.unproven, StatusCode::kNotFound);
  std::filesystem::remove(dir_ / "global_step_20/manifest.json");
  const auto damaged = checkpoint::VerifyCheckpoint(**run, "global_step_20", 1);
  EXPECT_EQ(damaged.unproven, StatusCode::kOk);
  EXPECT_FALSE(damaged.problems.empty());
}

// What a newer Keel has written, or what has a key that this one does not know.
TEST_F(CkptCommands, VerifyCallsWhatThisBuildDoesNotReadNoDamage) {
  const std::string path = dir_ / "global_step_20/manifest.json";
  const std::string good = ReadAll(path);
  for (const auto& [from, to, why] :
       {std::tuple{"\"format_version\": \"1.0\"", "\"format_version\": \"2.0\"",
                   "format_version is 2.0, this build reads 1.x: use a newer build"},
        std::tuple{"\"metric\": null", "\"metric\": null, \"later\": 1", "unknown key 'later'"}}) {
    std::string text = good;
    text.replace(text.find(from), std::string(from).size(), to);
    WriteAll(path, Sign(text));
    const Outcome one = Call(CkptVerify, CkptVerifyOptions{dir_ / "global_step_20", 1});
    EXPECT_EQ(one.code, ExitCodeFor(StatusCode::kInvalidData)) << one.out;
    EXPECT_THAT(one.out, AllOf(HasSubstr("global_step_20: not verified: "), HasSubstr(why),
                               Not(HasSubstr("DAMAGED"))));
    const Outcome all = Call(CkptVerify, CkptVerifyOptions{dir_.path(), 1});
    EXPECT_EQ(all.code, one.code);
    EXPECT_THAT(all.out, HasSubstr("global_step_40: ok"));
  }
  CkptPruneOptions prune;
  prune.directory = dir_.path();
  const Outcome pruned = Call(CkptPrune, prune);
  EXPECT_THAT(pruned.out, HasSubstr("left global_step_20: not a valid checkpoint: "));
  // Damage beside it is said by the status, too; and a text that is cut off is damage.
  FlipByte("global_step_40/actor/optimizer/rank_00001.safetensors", 9000);
  EXPECT_EQ(Call(CkptVerify, CkptVerifyOptions{dir_.path(), 1}).code, 1);
  WriteAll(path, good.substr(0, good.size() - 30));
  EXPECT_EQ(Call(CkptVerify, CkptVerifyOptions{dir_ / "global_step_20", 1}).code, 1);
}

TEST_F(CkptCommands, VerifyWarnsOfFilesThatAreNotOfIt) {
  EXPECT_EQ(Call(CkptPin, {{dir_ / "global_step_20"}}).code, 0);
  EXPECT_EQ(Call(CkptVerify, CkptVerifyOptions{dir_.path(), 1}).err, "");
  const std::string extra = "actor/model/rank_00002.safetensors";
  WriteAll(dir_ / ("global_step_40/" + extra), "x");
  WriteAll(dir_ / "global_step_40/note.txt", "x");
  for (const std::string& path : {dir_.path(), dir_ / "global_step_40"}) {
    const Outcome run = Call(CkptVerify, CkptVerifyOptions{path, 1});
    EXPECT_EQ(run.code, 0);
    EXPECT_THAT(run.out, HasSubstr("global_step_40: ok"));
    EXPECT_THAT(run.err, AllOf(HasSubstr("global_step_40: 2 files that are not of it"),
                               HasSubstr("among them " + extra)));
  }
}

TEST_F(CkptCommands, DiffSaysWhatDiffers) {
  const TempDir other;
  const auto fs = other.Open();
  Cut cut({3}, 7);
  cut.Fill(MakeTrainingState(40));
  ThrowIfError(checkpoint::testing::SaveOn(*fs, cut, 40, SmallOptions()));
  CkptDiffOptions diff;
  diff.a = dir_ / "global_step_40";
  diff.b = other / "global_step_40/";
  const Outcome equal = Call(CkptDiff, diff);
  EXPECT_EQ(equal.code, 0) << equal.err;
  EXPECT_THAT(equal.out, HasSubstr("equal: 31 tensors in both"));

  diff.a = dir_ / "global_step_20";
  const Outcome differ = Call(CkptDiff, diff);
  EXPECT_EQ(differ.code, 1);
  EXPECT_THAT(differ.out,
              AllOf(HasSubstr("actor/model: model.norm.weight BF16[16]: 16 of 16 elements differ"),
                    HasSubstr("trainer_state.json: differs")));
  diff.json = true;
  const Json json = Json::parse(Call(CkptDiff, diff).out);
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["tensors"][0]["scope"], "actor/model");
  EXPECT_EQ(json["files"][0]["path"], "trainer_state.json");
  diff.b = other / "global_step_60";
  EXPECT_EQ(Call(CkptDiff, diff).code, 66);
  WriteAll(other / "global_step_40/manifest.json", "{}");
  diff.b = other / "global_step_40";
  EXPECT_EQ(Call(CkptDiff, diff).code, 65);
}

TEST_F(CkptCommands, ReshardWritesTheSameValues) {
  const TempDir other;
  CkptReshardOptions reshard;
  reshard.source = dir_ / "global_step_40";
  reshard.run = other / "run";
  EXPECT_EQ(Call(CkptReshard, reshard).code, 64);  // neither --world nor --like
  reshard.world = 5;
  const Outcome done = Call(CkptReshard, reshard);
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("10 tensor files"));
  EXPECT_EQ(Call(CkptVerify, CkptVerifyOptions{other / "run", 1}).code, 0);
  CkptDiffOptions diff;
  diff.a = reshard.source;
  diff.b = other / "run/global_step_40";
  EXPECT_EQ(Call(CkptDiff, diff).code, 0);
  EXPECT_EQ(Call(CkptReshard, reshard).code, 73);  // does not overwrite

  reshard.source = dir_ / "global_step_20";
  reshard.world = 0;
  reshard.like = other / "run/global_step_40";
  // There it would be the newest, from which a run goes on, and before which retention removes.
  const Outcome back = Call(CkptReshard, reshard);
  EXPECT_EQ(back.code, 64);
  EXPECT_THAT(back.err, HasSubstr("would go back to the resharded step 20"));
  reshard.run = other / "earlier";
  EXPECT_EQ(Call(CkptReshard, reshard).code, 0);
  const Json like = Json::parse(
      Call(CkptInspect, CkptInspectOptions{other / "earlier/global_step_20", true}).out);
  EXPECT_EQ(like["layout"]["world"], 5);
}

TEST_F(CkptCommands, AReshardThatFailsLateLeavesNothingOfANewFolder) {
  FlipByte("global_step_40/actor/model/rank_00001.safetensors", 5000);
  const TempDir other;
  CkptReshardOptions reshard;
  reshard.source = dir_ / "global_step_40";
  reshard.run = other / "new/run/";
  reshard.world = 1;
  EXPECT_EQ(Call(CkptReshard, reshard).code, 65);
  EXPECT_TRUE(std::filesystem::is_empty(other.path()));

  // Of one that was there nothing goes.
  std::filesystem::create_directories(reshard.run);
  WriteAll(other / "new/run/run_id", "mine\n");
  EXPECT_EQ(Call(CkptReshard, reshard).code, 65);
  EXPECT_EQ(ReadAll(other / "new/run/run_id"), "mine\n");
}

TEST_F(CkptCommands, AFolderThatIsOfMoreThanTheCommandStays) {
  const TempDir other;
  const auto left = [&](const std::string& name, const std::function<void()>& meanwhile) {
    {
      const FolderToFill folder(other / name);
      std::filesystem::create_directory(other / name);
      WriteAll(other / (name + "/.keel-lock"), "");
      meanwhile();
    }
    return std::filesystem::exists(other / (name + "/.keel-lock"));
  };
  EXPECT_FALSE(left("nobody's", [] {}));
  EXPECT_TRUE(left("noted", [&] { WriteAll(other / "noted/note.txt", "mine"); }));
  EXPECT_TRUE(left("linked", [&] {
    std::filesystem::create_symlink(other / "noted/note.txt", other / "linked/run_id");
  }));
  std::unique_ptr<FileSystem> fs;
  std::unique_ptr<checkpoint::RunLock> lock;
  EXPECT_TRUE(left("used", [&] {
    fs = ValueOrThrow(OpenPosixFileSystem(other / "used", false));
    lock = ValueOrThrow(checkpoint::RunLock::Take(*fs, "the-other-run", SystemClock()));
  }));
}

TEST_F(CkptCommands, LsCountsWhatWasSetAside) {
  namespace fs = std::filesystem;
  EXPECT_THAT(Call(CkptLs, CkptLsOptions{dir_.path()}).out, Not(HasSubstr("set aside")));
  fs::copy(dir_ / "global_step_20", dir_ / "global_step_20.set-aside-1",
           fs::copy_options::recursive);
  fs::create_directory(dir_ / "global_step_40.set-aside-2");
  EXPECT_THAT(Call(CkptLs, CkptLsOptions{dir_.path()}).out,
              AllOf(HasSubstr("and 2 set aside"), HasSubstr("B and 1 of unknown size: nothing")));
  EXPECT_THAT(Call(CkptLs, CkptLsOptions{dir_ / "global_step_40"}).out,
              Not(HasSubstr("set aside")));
}

TEST_F(CkptCommands, LsOfACheckpointShowsIt) {
  const std::string step = dir_ / "global_step_40";
  for (const std::string& path : {step, step + "/"}) {
    const Outcome run = Call(CkptLs, CkptLsOptions{path});
    EXPECT_EQ(run.code, 0);
    EXPECT_THAT(run.out, AllOf(HasSubstr("global_step_40 "), HasSubstr("yes"),
                               Not(HasSubstr("global_step_20"))));
  }
  const Json json = Json::parse(Call(CkptLs, CkptLsOptions{step, true}).out);
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["step"], 40);
  EXPECT_EQ(json[0]["valid"], true);
  // Under another name, and damaged.
  std::filesystem::rename(step, dir_ / "kept");
  EXPECT_THAT(Call(CkptLs, CkptLsOptions{dir_ / "kept"}).out,
              AllOf(HasSubstr("kept "), HasSubstr("yes")));
  std::filesystem::remove(dir_ / "global_step_20/manifest.json");
  EXPECT_THAT(Call(CkptLs, CkptLsOptions{dir_ / "global_step_20"}).out,
              AllOf(HasSubstr("NO"), HasSubstr("global_step_20 is not a valid checkpoint")));
}

TEST_F(CkptCommands, LsOfALinkIsThatOfItsTarget) {
  namespace fs = std::filesystem;
  const TempDir other;
  for (const std::string& path : {dir_.path(), dir_ / "global_step_40"}) {
    const std::string link = other / "link";
    fs::create_directory_symlink(path, link);
    for (const std::string& name : {link, link + "/"}) {
      const Outcome run = Call(CkptLs, CkptLsOptions{name});
      EXPECT_EQ(run.code, 0) << run.err;
      EXPECT_EQ(run.out, Call(CkptLs, CkptLsOptions{path}).out);
      EXPECT_THAT(run.out, Not(HasSubstr("NO")));
    }
    fs::remove(link);
  }
  fs::create_symlink("nowhere", other / "global_step_7");
  const Outcome run = Call(CkptLs, CkptLsOptions{other / "global_step_7"});
  EXPECT_EQ(run.code, 66);
  EXPECT_THAT(run.err, HasSubstr("global_step_7 is a symbolic link to nowhere, which cannot be "
                                 "followed: No such file"));
}

TEST_F(CkptCommands, WhatIsOfAnotherKindIsNamed) {
  namespace fs = std::filesystem;
  const std::string step = dir_ / "global_step_40";
  const std::string manifest = step + "/manifest.json";
  const TempDir other;
  const auto refused = [&](const std::string& what) {
    CkptDiffOptions diff;
    diff.a = dir_ / "global_step_20";
    diff.b = step;
    CkptReshardOptions reshard;
    reshard.source = step;
    reshard.run = other / "run";
    reshard.world = 1;
    CkptExportOptions exports;
    exports.step = step;
    exports.output = other / "exported";
    for (const Outcome& run :
         {Call(CkptInspect, CkptInspectOptions{step}), Call(CkptDiff, diff),
          Call(CkptPin, {{step}}), Call(CkptReshard, reshard), Call(CkptExportHf, exports)}) {
      EXPECT_EQ(run.code, 65);
      EXPECT_THAT(run.err, AllOf(HasSubstr(what), HasSubstr("expected the ")));
    }
    const Outcome verified = Call(CkptVerify, CkptVerifyOptions{step, 1});
    EXPECT_EQ(verified.code, 1);
    EXPECT_THAT(verified.err, HasSubstr(what));
    EXPECT_TRUE(fs::is_empty(other.path()));
  };
  const std::string away = dir_ / "away";
  fs::rename(manifest, away);
  fs::create_symlink(away, manifest);
  refused("manifest.json: is a symbolic link");
  fs::remove(manifest);
  fs::create_directory(manifest);
  refused("manifest.json: is a directory");
  fs::remove(manifest);
  ASSERT_EQ(::mkfifo(manifest.c_str(), 0600), 0);
  refused("manifest.json: is a pipe");
  fs::remove(manifest);
  fs::rename(away, manifest);

  fs::rename(step, away);
  fs::create_directory_symlink(away, step);
  refused("global_step_40: is a symbolic link");
  EXPECT_EQ(Call(CkptUnpin, {{step}}).code, 65);

  fs::remove(step);
  WriteAll(step, "");
  EXPECT_EQ(Call(CkptInspect, CkptInspectOptions{step}).code, 65);
  for (const Outcome& run :
       {Call(CkptVerify, CkptVerifyOptions{step, 1}), Call(CkptLs, CkptLsOptions{step}),
        Call(CkptPrune, CkptPruneOptions{step})}) {
    EXPECT_EQ(run.code, 66);
    EXPECT_THAT(run.err, HasSubstr("global_step_40: is no directory, expected that of a run"));
  }
}

TEST_F(CkptCommands, TheCommandLineReachesThem) {
  int code = -1;
  CLI::App app;
  AddCkptCommands(app, &code);
  ::testing::internal::CaptureStdout();
  app.parse("ckpt verify --threads 1 " + dir_.path());
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr("global_step_20: ok"));
  EXPECT_EQ(code, 0);
  for (const char* name : {"ls", "inspect", "verify", "diff", "reshard", "pin", "unpin", "prune",
                           "export-hf", "import-hf"}) {
    EXPECT_THAT(app.get_subcommand("ckpt")->get_subcommand(name)->help(), HasSubstr("Examples:"));
  }
}

}  // namespace
}  // namespace keel::tools
