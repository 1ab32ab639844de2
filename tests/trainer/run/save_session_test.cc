#include "trainer/run/save_session.h"

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::trainer {
namespace {

using checkpoint::LocalCoordinatorHub;
using checkpoint::SaveResult;
using checkpoint::testing::ReadAll;
using checkpoint::testing::SimFileSystem;
using checkpoint::testing::TempDir;
using ::testing::HasSubstr;

// A door in the way of a disk's writes.
class Door {
 public:
  void Close() { Set(false); }
  void Open() { Set(true); }
  void Pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  void Set(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
};

LogOptions LogTo(const std::string& file) {
  LogOptions options;
  options.file = file;
  return options;
}

// A run of one rank and one tensor. Its saves are in flight for as long as the door is closed.
class SaveSessionTest : public ::testing::Test {
 protected:
  SaveSessionTest() {
    disk_->SetFault([this](int64_t, std::string_view operation, std::string_view) {
      if (operation != "write") return Status::Ok();
      door_.Pass();
      return full_ ? Status(StatusCode::kNoSpace, "the disk is full") : Status::Ok();
    });
    options_.save_contents = {checkpoint::Content::kModel};
  }
  ~SaveSessionTest() override {
    door_.Open();
    if (session_ != nullptr) (void)session_->Finish();
    if (checkpointer_ != nullptr) {
      EXPECT_TRUE(checkpointer_->Close().ok());
    }
  }

  SaveSession& Session() {
    if (session_ == nullptr) {
      checkpointer_ = std::make_unique<checkpoint::Checkpointer>(
          *disk_, hub_.rank(0), SystemClock(), log_, checkpoint::CheckpointOptions{});
      ThrowIfError(checkpointer_->Open());
      session_ = std::make_unique<SaveSession>(*checkpointer_, options_, log_);
    }
    return *session_;
  }
  checkpoint::SaveRequest At(int64_t step) {
    std::array<float, 4>& values = states_.emplace_back();
    values.fill(static_cast<float>(step));
    ShardTable table;
    ThrowIfError(table.Add({"w", DType::kF32, {4}}, Box::Whole({4}),
                           {reinterpret_cast<std::byte*>(values.data()), {1}}));
    checkpoint::SaveRequest request;
    request.step = step;
    request.roles = {{"actor", table, {}}};
    request.contents = checkpoint::Contents::Of({{checkpoint::Content::kModel}});
    return request;
  }
  // The trainer's way, on one rank. Whether a save of the step began.
  bool Save(int64_t step) {
    if (!Session().MakeRoom(step, Session().busy())) return false;
    Session().Save(At(step));
    return true;
  }
  // What is saved from here on stays in flight.
  void CloseTheDoor() {
    (void)Session();  // whose own files are written before
    door_.Close();
  }
  // The save in flight is over, and nobody has asked for it yet.
  void LetItEnd() {
    door_.Open();
    EXPECT_TRUE(checkpointer_->Wait().ok());
  }

  CheckpointSection options_;
  Door door_;
  std::atomic<bool> full_ = false;
  std::unique_ptr<SimFileSystem> disk_ = SimFileSystem().Mount();
  LocalCoordinatorHub hub_{1};
  const TempDir logged_;
  Logger log_{LogTo(logged_ / "log")};
  std::deque<std::array<float, 4>> states_;  // of each request
  std::unique_ptr<checkpoint::Checkpointer> checkpointer_;
  std::unique_ptr<SaveSession> session_;
};

// What a save costs is what it held up, and by how much the steps beside it were longer than the
// median of those beside which nothing was saved.
TEST_F(SaveSessionTest, ASaveCostsWhatTheStepsBesideItTookLonger) {
  for (const double seconds : {9.0, 1.0, 1.0, 1.0, 2.0})
    EXPECT_TRUE(Session().AfterStep(seconds).empty());
  CloseTheDoor();
  ASSERT_TRUE(Save(5));
  EXPECT_TRUE(Session().busy());
  EXPECT_TRUE(Session().AfterStep(1.25).empty());
  EXPECT_TRUE(Session().AfterStep(1.5).empty());
  LetItEnd();
  const std::vector<SaveResult> ended = Session().AfterStep(1.125);
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_TRUE(ended[0].status.ok());
  EXPECT_EQ(ended[0].record.step, 5);
  EXPECT_TRUE(ended[0].record.async);
  EXPECT_NEAR(ended[0].record.lost_s,
              ended[0].record.blocked_s - ended[0].record.fence_s + 0.25 + 0.5 + 0.125, 1e-9);
  EXPECT_EQ(Session().saved_step(), 5);
  EXPECT_TRUE(Session().AfterStep(1.0).empty()) << "each is told once";
}

// The steps beside a save are none of those that others are compared with.
TEST_F(SaveSessionTest, AStepBesideASaveIsNoMeasureOfTheOthers) {
  for (int i = 0; i < 4; ++i) (void)Session().AfterStep(1.0);
  for (const int64_t step : {4, 20}) {
    CloseTheDoor();
    ASSERT_TRUE(Save(step));
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(Session().AfterStep(3.0).empty());
    LetItEnd();
    const std::vector<SaveResult> ended = Session().AfterStep(3.0);
    ASSERT_EQ(ended.size(), 1U);
    EXPECT_NEAR(ended[0].record.lost_s,
                ended[0].record.blocked_s - ended[0].record.fence_s + 9 * 2.0, 1e-9);
  }
}

TEST_F(SaveSessionTest, BeforeThereIsAMeasureASaveCostsWhatItBlocked) {
  for (int i = 0; i < 2; ++i) (void)Session().AfterStep(1.0);
  ASSERT_TRUE(Save(2));
  LetItEnd();
  const std::vector<SaveResult> ended = Session().AfterStep(100.0);
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].record.lost_s, ended[0].record.blocked_s);
}

TEST_F(SaveSessionTest, ASaveThatIsDueWaitsForTheOneInFlight) {
  CloseTheDoor();
  ASSERT_TRUE(Save(1));
  std::thread later([this] { door_.Open(); });
  ASSERT_TRUE(Session().MakeRoom(2, true));
  later.join();
  Session().Save(At(2));
  const std::vector<SaveResult> ended = Session().Finish();
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_EQ(ended[0].record.step, 1);
  EXPECT_EQ(ended[1].record.step, 2);
  EXPECT_EQ(Session().counts().waited, 1);
  EXPECT_EQ(Session().counts().skipped + Session().counts().superseded, 0);
  EXPECT_FALSE(Session().busy());
}

TEST_F(SaveSessionTest, ASaveThatIsDueIsSkipped) {
  options_.on_busy = OnBusy::kSkip;
  CloseTheDoor();
  ASSERT_TRUE(Save(1));
  EXPECT_FALSE(Save(2));
  EXPECT_FALSE(Save(3));
  door_.Open();
  const std::vector<SaveResult> ended = Session().Finish();
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(Session().counts().skipped, 2);
  EXPECT_EQ(Session().counts().failed, 0);
  EXPECT_EQ(Session().saved_step(), 1);
  ASSERT_TRUE(Save(4));
  (void)Session().Finish();
  EXPECT_EQ(Session().saved_step(), 4);
}

// One that was given up is no failure; nor is the one that follows it given up.
TEST_F(SaveSessionTest, ASaveThatIsDueTakesThePlaceOfTheOneInFlight) {
  options_.on_busy = OnBusy::kSupersede;
  CloseTheDoor();
  ASSERT_TRUE(Save(1));
  // It hears that it is given up before its writes go on.
  std::thread later([this] {
    while (ReadAll(logged_ / "log").find("is asked to give way to that of step 2") ==
           std::string::npos)
      std::this_thread::yield();
    door_.Open();
  });
  ASSERT_TRUE(Save(2));
  later.join();
  EXPECT_EQ(Session().counts().superseded, 1);
  EXPECT_EQ(Session().last_status().code(), StatusCode::kCancelled);
  (void)Session().MakeRoom(3, true);
  EXPECT_EQ(Session().counts().waited, 1) << "two in a row are not given up";
  Session().Save(At(3));
  std::vector<int64_t> good;
  for (const SaveResult& result : Session().Finish())
    if (result.status.ok()) good.push_back(result.record.step);
  EXPECT_EQ(good, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(Session().counts().failed, 0);
  EXPECT_EQ(Session().saved_step(), 3);
}

TEST_F(SaveSessionTest, FailuresAreCountedUntilOneEndsWell) {
  for (const bool async : {true, false}) {
    options_.async_save = async;
    full_ = false;
    session_ = nullptr;
    if (checkpointer_ != nullptr) {
      ASSERT_TRUE(checkpointer_->Close().ok());
    }
    checkpointer_ = nullptr;
    const int64_t first = async ? 1 : 11;
    ASSERT_TRUE(Save(first));
    ASSERT_EQ(Session().Finish().size(), 1U);
    full_ = true;
    for (const int64_t step : {first + 1, first + 2}) {
      ASSERT_TRUE(Save(step));
      const std::vector<SaveResult> ended = Session().Finish();
      ASSERT_EQ(ended.size(), 1U) << step;
      EXPECT_EQ(ended[0].record.step, step);
      EXPECT_THAT(ended[0].status.message(), HasSubstr("the disk is full"));
    }
    EXPECT_EQ(Session().counts().failed_in_a_row, 2);
    EXPECT_EQ(Session().saved_step(), first);
    EXPECT_EQ(Session().last_status().code(), StatusCode::kNoSpace);
    full_ = false;
    ASSERT_TRUE(Save(first + 3));
    (void)Session().Finish();
    EXPECT_EQ(Session().counts().failed_in_a_row, 0);
    EXPECT_EQ(Session().counts().failed, 2);
    EXPECT_EQ(Session().saved_step(), first + 3);
    EXPECT_TRUE(Session().last_status().ok());
  }
}

// `blocking`: training goes on when all has been copied, and not when all has been written.
TEST_F(SaveSessionTest, ABlockingSaveReturnsWhenTheStateMayBeOverwritten) {
  options_.staging.mode = StagingMode::kBlocking;
  CloseTheDoor();
  ASSERT_TRUE(Save(1));
  EXPECT_TRUE(Session().busy());
  EXPECT_EQ(checkpointer_->WaitFree(states_.back().data(), sizeof(states_.back())), 0.0);
  states_.back().fill(-1);
  door_.Open();
  ASSERT_EQ(Session().Finish().size(), 1U);
  checkpoint::LoadRequest request;
  request.roles = At(0).roles;
  request.contents = checkpoint::Contents::Of({{checkpoint::Content::kModel}});
  ASSERT_TRUE(ValueOrThrow(checkpointer_->Load(request)).has_value());
  EXPECT_EQ(states_.back().front(), 1.0F);
}

// The last save of a run waits for the one in flight, and is on the disk when it returns.
TEST_F(SaveSessionTest, SaveAndWaitComesAfterTheOneInFlight) {
  CloseTheDoor();
  ASSERT_TRUE(Save(1));
  std::thread later([this] { door_.Open(); });
  Session().SaveAndWait(At(2));
  later.join();
  EXPECT_FALSE(Session().busy());
  EXPECT_EQ(Session().saved_step(), 2);
  const std::vector<SaveResult> ended = Session().AfterStep(1.0);
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_EQ(ended[0].record.step, 1);
  EXPECT_EQ(ended[1].record.step, 2);
}

}  // namespace
}  // namespace keel::trainer
