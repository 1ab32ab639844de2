// Whose checkpoints a run goes on from: its own, unless somebody says otherwise; and what becomes
// of a directory whose id is lost.
#include "checkpoint/run/run_identity.h"

#include <gmock/gmock.h>

#include "checkpoint/format/names.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

class RunIdentity : public ::testing::Test {
 protected:
  void Save(int64_t step, const std::string& run) {
    CheckpointOptions options = SmallOptions();
    options.run_id = run;
    ThrowIfError(SaveOn(disk_, cut_, step, options));
  }
  // As run `run`; "": as the directory says.
  Result<std::optional<LoadRecord>> Load(const std::string& run, bool adopt = false,
                                         const std::string& path = "") {
    LoadSetup setup;
    setup.views = {&disk_};
    setup.options = SmallOptions();
    setup.options.run_id = run;
    setup.options.adopt_foreign = adopt;
    setup.change = [&](int, LoadRequest& request) {
      request.resume_path = path;
      return true;
    };
    LoadOutcome outcome = LoadRanks(cut_, setup);
    if (!outcome.statuses[0].ok()) return outcome.statuses[0];
    return std::move(outcome.records[0]);
  }
  std::string Id() const { return disk_.Content(std::string(kRunIdName)); }

  SimFileSystem disk_;
  Cut cut_{{1}, 1, ModelSize::kTiny};
};

TEST_F(RunIdentity, AnotherRunsCheckpointIsNoCandidate) {
  Save(8, "mine");
  Save(16, "theirs");  // a later step, and the newer commit
  EXPECT_EQ(ValueOrThrow(Load("mine"))->step, 8);
  EXPECT_THAT(ValueOrThrow(Load("mine"))->skipped, IsEmpty());  // it is not damaged
  EXPECT_EQ(ValueOrThrow(Load("mine", true))->step, 16);
  EXPECT_EQ(ValueOrThrow(Load("mine", false, "global_step_16"))->step, 16);
  EXPECT_EQ(ValueOrThrow(Load("theirs"))->step, 16);
}

TEST_F(RunIdentity, WhereThereAreOnlyOthersTheStartIsRefused) {
  Save(8, "theirs");
  Save(16, "their\nothers");
  const Status refused = Load("mine").status();
  EXPECT_EQ(refused.code(), StatusCode::kConfig);
  EXPECT_THAT(
      refused.message(),
      AllOf(HasSubstr("global_step_8 (run theirs)"), HasSubstr("global_step_16"), HasSubstr("mine"),
            HasSubstr("adopt_foreign"), HasSubstr("load one by its step"), Not(HasSubstr("\n"))));
  EXPECT_EQ(ValueOrThrow(Load("mine", true))->step, 16);
  // Its own, damaged, does not change that.
  Save(20, "mine");
  disk_.SetContent("global_step_20/manifest.json", "{}");
  const Status damaged = Load("mine").status();
  EXPECT_EQ(damaged.code(), StatusCode::kConfig);
  EXPECT_THAT(damaged.message(), HasSubstr("global_step_20: "));
}

// Whose states have none of its roles, it can neither load nor replace.
TEST_F(RunIdentity, AFolderOfAnotherKindOfProgramIsRefused) {
  Save(8, "mine");
  Save(9, "theirs");
  const auto save = [&](const std::string& run, const std::string& role) {
    CheckpointOptions options = SmallOptions();
    options.run_id = run;
    options.role = role;
    options.max_ckpts_to_keep = 1;
    return SaveOn(disk_, cut_, 10, options);
  };
  const Status refused = save("mine", "state");
  EXPECT_EQ(refused.code(), StatusCode::kConfig);
  EXPECT_THAT(refused.message(),
              AllOf(HasSubstr("global_step_8 holds the roles"), HasSubstr("no 'state'")));
  EXPECT_TRUE(disk_.Stat("global_step_8").ok());
  ThrowIfError(save("new", "state"));  // others' are not looked at
  ThrowIfError(save("mine", "actor"));
  EXPECT_FALSE(disk_.Stat("global_step_8").ok());
}

TEST_F(RunIdentity, AnImportIsOfNoRun) {
  Save(0, std::string(kImportedRunId));
  EXPECT_EQ(ValueOrThrow(Load("mine"))->step, 0);
  EXPECT_EQ(ValueOrThrow(Load(""))->step, 0);
  EXPECT_EQ(Id().size(), 33U);  // a new one
}

TEST_F(RunIdentity, ALostIdIsThatOfTheCheckpoints) {
  Save(0, std::string(kImportedRunId));
  Save(8, "mine");
  Save(16, "mine");
  Save(24, "mine");
  disk_.SetContent("global_step_24/manifest.json", "{}");  // says nothing any more
  EXPECT_EQ(ValueOrThrow(Load(""))->step, 16);
  EXPECT_EQ(Id(), "mine\n");
  // And of an empty file, as of none.
  disk_.SetContent(std::string(kRunIdName), "");
  EXPECT_EQ(ValueOrThrow(Load(""))->step, 16);
  EXPECT_EQ(Id(), "mine\n");
}

TEST_F(RunIdentity, WhatIsNoIdIsNotTakenForOne) {
  Save(8, "mine");
  const auto set = [&](std::string_view content) {
    disk_.SetContent(std::string(kRunIdName), std::string(content));
  };
  // Of a power cut, or an editor.
  for (const std::string_view nothing :
       {std::string_view("\0\0\0\0", 4), std::string_view(" \n")}) {
    set(nothing);
    EXPECT_EQ(ValueOrThrow(Load(""))->step, 8);
    EXPECT_EQ(Id(), "mine\n");
  }
  for (const std::string_view padded : {"mine \r\n", " mine"}) {
    set(padded);
    EXPECT_EQ(ValueOrThrow(Load(""))->step, 8);
  }
  // With the first every save would fail; whoever has the second has no checkpoints of his own.
  for (const std::string_view wrong : {"\xff\xfe", "import\n", "two words", "a\nb", "\x1b[31m"}) {
    set(wrong);
    const Status refused = Load("").status();
    EXPECT_EQ(refused.code(), StatusCode::kConfig) << wrong;
    EXPECT_THAT(refused.message(), AllOf(HasSubstr("is no id of a run"), Not(HasSubstr("\x1b"))));
  }
}

TEST_F(RunIdentity, WithoutAnIdWhatCannotBeReadDoesNotBecomeAnothers) {
  Save(8, "mine");
  disk_.SetFault([](int64_t, std::string_view operation, std::string_view path) {
    const bool manifest = operation == "open" && path.ends_with(kManifestName);
    return manifest ? Status(StatusCode::kIo, "manifest.json: Permission denied") : Status::Ok();
  });
  EXPECT_EQ(Load("").status().code(), StatusCode::kIo);
  disk_.SetFault({});  // as the refusal asks for
  EXPECT_EQ(ValueOrThrow(Load(""))->step, 8);
  EXPECT_EQ(Id(), "mine\n");
}

TEST_F(RunIdentity, ALostIdThatTheCheckpointsDisagreeAboutIsAskedFor) {
  Save(8, "mine");
  Save(16, "theirs");
  const Status refused = Load("").status();
  EXPECT_EQ(refused.code(), StatusCode::kConfig);
  EXPECT_THAT(refused.message(),
              AllOf(HasSubstr("global_step_16 (run theirs), global_step_8 (run mine)"),
                    HasSubstr("adopt_foreign")));
  EXPECT_EQ(disk_.Mount()->Stat(kRunIdName).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ValueOrThrow(Load("", true))->step, 16);
  EXPECT_EQ(Id(), "theirs\n");
}

TEST_F(RunIdentity, AFullDiskThatDoesNotTakeTheIdIsNoReasonNotToStart) {
  Save(8, "mine");
  disk_.SetFault([](int64_t, std::string_view operation, std::string_view path) {
    const bool grows = operation == "create" && path.starts_with(kRunIdName);
    return grows ? Status(StatusCode::kNoSpace, "run_id: no space left") : Status::Ok();
  });
  EXPECT_EQ(ValueOrThrow(Load(""))->step, 8);
}

}  // namespace
}  // namespace keel::checkpoint
