// Which checkpoint of a run is to be served, as saves and removals change what is there.
#include "tools/serve/run_watch.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/format/names.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::tools {
namespace {

using namespace keel::checkpoint::testing;  // NOLINT: the helpers of checkpoints' tests
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// While it lives, folders can be listed, and files in them cannot be opened.
class FewDescriptors {
 public:
  FewDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(0);
    close(next);
    const rlimit few{static_cast<rlim_t>(next) + 2, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

class RunWatchTest : public ::testing::Test {
 protected:
  void Save(int64_t step, uint64_t seed = 1) {
    const auto files = ValueOrThrow(OpenPosixFileSystem(folder_.path(), true));
    ThrowIfError(SaveOn(*files, {{1}, seed, ModelSize::kTiny}, step, SmallOptions()));
  }
  void Remove(int64_t step) {
    std::filesystem::remove_all(std::filesystem::path(folder_.path()) /
                                checkpoint::StepDirectory(step));
  }
  // The step that takes the place of what is served, or 0.
  int64_t Next() {
    const auto found = ValueOrThrow(watch_->Look(served_));
    return found ? found->step : 0;
  }
  void ServeNext() {
    served_ = ValueOrThrow(watch_->Look(served_)).value();
    watch_->Serve(*served_);
  }

  TempDir folder_;
  std::vector<std::string> said_;
  std::unique_ptr<RunWatch> watch_ = ValueOrThrow(RunWatch::Open(
      folder_.path(), false, [this](const std::string& warning) { said_.push_back(warning); }));
  std::optional<RunStep> served_;
};

TEST_F(RunWatchTest, AFolderThatIsNotThereYetMayCome) {
  const std::string folder = folder_.path() + "/later";
  EXPECT_EQ(RunWatch::Open(folder, false, {}).status().code(), StatusCode::kNotFound);
  const auto watch = ValueOrThrow(RunWatch::Open(folder, true, {}));
  EXPECT_EQ(watch->Look({}).status().code(), StatusCode::kNotFound);
  std::filesystem::create_directory(folder);
  EXPECT_FALSE(ValueOrThrow(watch->Look({})).has_value());
}

TEST_F(RunWatchTest, TheNewestIsServed) {
  EXPECT_EQ(Next(), 0);
  Save(1);
  Save(2);
  ServeNext();
  EXPECT_EQ(served_->name, "global_step_2");
  EXPECT_EQ(Next(), 0);
  Save(3);
  EXPECT_EQ(Next(), 3);
  EXPECT_TRUE(said_.empty());
}

// Retention removes it, and there are newer ones which cannot be: it is served on, and nothing
// older.
TEST_F(RunWatchTest, WhatIsServedMayBeRemovedWhereNewerOnesArePassedOver) {
  Save(1);
  Save(2);
  ServeNext();
  Save(3);
  watch_->Refuse(*ValueOrThrow(watch_->Look(served_)), Status(StatusCode::kConfig, "another"));
  Remove(2);
  EXPECT_EQ(Next(), 0);
  Save(4);
  EXPECT_EQ(Next(), 4);
  EXPECT_THAT(said_, ElementsAre(HasSubstr("global_step_3 is passed over")));
}

TEST_F(RunWatchTest, ARunThatWentBackIsFollowed) {
  Save(1);
  Save(2);
  ServeNext();
  Remove(2);
  EXPECT_EQ(Next(), 1);
  Save(2, 7);  // the second commit again, of other weights
  ServeNext();
  EXPECT_EQ(served_->step, 2);
  EXPECT_EQ(Next(), 0);
}

TEST_F(RunWatchTest, OneThatMayComeIsFoundAgain) {
  Save(1);
  ServeNext();
  Save(2);
  const RunStep two = *ValueOrThrow(watch_->Look(served_));
  for (int i = 0; i < 9; ++i) {
    watch_->Refuse(two, Status(StatusCode::kUnavailable, "not now"));
    EXPECT_EQ(Next(), 2);
  }
  EXPECT_EQ(watch_->skipped(), 0);
  watch_->Refuse(two, Status(StatusCode::kConfig, "never"));
  EXPECT_EQ(Next(), 0);
  EXPECT_EQ(watch_->skipped(), 1);
  EXPECT_THAT(said_, ElementsAre(HasSubstr("passed over for now: unavailable: not now"),
                                 HasSubstr("passed over: configuration: never")));
}

TEST_F(RunWatchTest, DamageIsBelievedTheThirdTime) {
  Save(1);
  const RunStep one = *ValueOrThrow(watch_->Look({}));
  for (const StatusCode code : {StatusCode::kDataLoss, StatusCode::kInvalidData}) {
    EXPECT_EQ(Next(), 1);
    watch_->Refuse(one, Status(code, "damaged"));
  }
  EXPECT_EQ(Next(), 1);
  EXPECT_EQ(watch_->skipped(), 0);
  watch_->Refuse(one, Status(StatusCode::kDataLoss, "damaged"));
  EXPECT_EQ(Next(), 0);
  EXPECT_EQ(watch_->skipped(), 1);
}

TEST_F(RunWatchTest, OneThatIsPutOffWaitsUntilAnotherIsServed) {
  Save(1);
  Save(2);
  watch_->PutOff(*ValueOrThrow(watch_->Look({})));
  ServeNext();
  EXPECT_EQ(served_->step, 1);
  EXPECT_EQ(Next(), 2);
  watch_->PutOff(*ValueOrThrow(watch_->Look(served_)));
  EXPECT_EQ(Next(), 0);
  watch_->CallBack();
  EXPECT_EQ(Next(), 2);
}

// Also where it stands below what is served, as after a run went back.
TEST_F(RunWatchTest, AManifestThatIsDamagedIsSaidAndCountedOnce) {
  Save(5);
  ServeNext();
  Save(2);
  const auto manifest = std::filesystem::path(folder_.path()) / "global_step_2/manifest.json";
  std::filesystem::resize_file(manifest, 10);
  for (int look = 1; look <= 5; ++look) {
    EXPECT_EQ(Next(), 0);
    EXPECT_EQ(watch_->in_doubt(), look < RunWatch::kReads);
    EXPECT_EQ(watch_->skipped(), look < RunWatch::kReads ? 0 : 1);
  }
  EXPECT_THAT(said_, ElementsAre(HasSubstr("global_step_2 is passed over: ")));
  // Another save of the step may be damaged, too.
  Remove(2);
  EXPECT_EQ(Next(), 0);
  Save(2);
  std::filesystem::resize_file(manifest, 10);
  for (int look = 0; look < 5; ++look) EXPECT_EQ(Next(), 0);
  EXPECT_EQ(watch_->skipped(), 2);
}

TEST_F(RunWatchTest, AManifestThatCannotBeReadNowIsReadLater) {
  Save(1);
  for (int look = 0; look < 5; ++look) {
    const FewDescriptors few;
    EXPECT_EQ(Next(), 0);
    EXPECT_TRUE(watch_->in_doubt());
  }
  EXPECT_EQ(Next(), 1);
  EXPECT_FALSE(watch_->in_doubt());
  EXPECT_EQ(watch_->skipped(), 0);
  EXPECT_THAT(said_, ElementsAre(HasSubstr("global_step_1 is passed over for now: ")));
}

}  // namespace
}  // namespace keel::tools
