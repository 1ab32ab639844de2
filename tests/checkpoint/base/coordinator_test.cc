#include "checkpoint/base/coordinator.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <new>
#include <optional>
#include <thread>
#include <vector>

#include "tests/checkpoint/support/test_support.h"
#include "tests/checkpoint/support/weighing_coordinator.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RunRanks;
using testing::Weighing;
using namespace std::chrono_literals;

TEST(Coordinator, AllGatherGivesEveryoneAllInRankOrder) {
  for (const int world : {1, 2, 5}) {
    RunRanks(world, [world](int rank, Coordinator& coordinator) {
      for (int round = 0; round < 20; ++round) {
        const auto all = AllGather(coordinator, "g" + std::to_string(round),
                                   std::to_string(rank) + std::string(1, '\0'), 10s);
        ASSERT_TRUE(all.ok()) << all.status().ToString();
        ASSERT_EQ(static_cast<int>(all->size()), world);
        for (int r = 0; r < world; ++r)
          EXPECT_EQ((*all)[static_cast<size_t>(r)], std::to_string(r) + std::string(1, '\0'));
      }
    });
  }
}

TEST(Coordinator, BroadcastIsRankZerosValueOrFailure) {
  RunRanks(3, [](int rank, Coordinator& coordinator) {
    EXPECT_EQ(*Broadcast(coordinator, "b", rank == 0 ? "zero" : "mine", 10s), "zero");
    const Result<std::string> failure =
        rank == 0 ? Result<std::string>(Status(StatusCode::kNoSpace, "disk full"))
                  : Result<std::string>(std::string("mine"));
    const auto got = BroadcastResult(coordinator, "f", failure, 10s);
    EXPECT_EQ(got.status().code(), StatusCode::kNoSpace);
    EXPECT_EQ(got.status().message(), "disk full");
  });
}

TEST(Coordinator, AResultArrivesWholeOrIsSaidToBeNone) {
  const std::string value = EncodeResult(Status::Ok(), "value");
  EXPECT_EQ(*DecodeResult(value, "report"), "value");
  const Status full(StatusCode::kNoSpace, StatusCause::kDenied, "disk full");
  const std::string failure = EncodeResult(full, "not sent");
  const Status sent = DecodeResult(failure, "report").status();
  EXPECT_EQ(sent.code(), StatusCode::kNoSpace);
  EXPECT_EQ(sent.cause(), StatusCause::kDenied);
  EXPECT_EQ(sent.message(), "disk full");
  const auto refused = [](std::string_view bytes) {
    const auto result = DecodeResult(bytes, "report");
    EXPECT_EQ(result.status().code(), StatusCode::kInternal);
    EXPECT_EQ(result.status().message(), "a peer sent a malformed report");
  };
  for (size_t size = 0; size < value.size(); ++size) refused(value.substr(0, size));
  for (size_t size = 0; size < failure.size(); ++size) refused(failure.substr(0, size));
  refused(value + "x");
  refused("\xff" + failure.substr(1));  // a code that there is not
  refused(failure.substr(0, 8) + "\xff" + failure.substr(9));  // and such a cause
}

// Another coordinator, in which each trip counts.
class CountingTrips final : public Coordinator {
 public:
  CountingTrips(Coordinator& inner, bool batches) : inner_(inner), batches_(batches) {}
  int rank() const override { return inner_.rank(); }
  int world() const override { return inner_.world(); }
  Status Put(std::string_view key, std::string_view value) override {
    ++trips_;
    return inner_.Put(key, value);
  }
  Result<std::string> Get(std::string_view key, std::chrono::milliseconds deadline) override {
    ++trips_;
    return inner_.Get(key, deadline);
  }
  Status Delete(std::string_view key) override {
    ++trips_;
    return inner_.Delete(key);
  }
  Result<std::vector<std::optional<std::string>>> Look(
      const std::vector<std::string>& keys, std::chrono::milliseconds patience) override {
    if (!batches_) return std::vector<std::optional<std::string>>();
    trips_ += patience.count() > 0 ? 2 : 1;
    return inner_.Look(keys, patience);
  }
  int trips() const { return trips_; }

 private:
  Coordinator& inner_;
  const bool batches_;
  int trips_ = 0;
};

std::string NumberOf(int rank) { return "k/" + std::to_string(rank); }

TEST(PeerKeys, WhatHasComeIsFetchedManyAtATime) {
  constexpr int kWorld = 1000;
  for (const bool batches : {true, false}) {
    LocalCoordinatorHub hub(kWorld);
    for (int r = 1; r < kWorld; ++r)
      ASSERT_TRUE(hub.rank(r).Put(NumberOf(r), std::to_string(r)).ok());
    CountingTrips counting(hub.rank(0), batches);
    PeerKeys keys(counting, 10s, NumberOf);
    for (int r = 1; r < kWorld; ++r) ASSERT_EQ(*keys.Get(r), std::to_string(r));
    EXPECT_LT(counting.trips(), batches ? 30 : kWorld);
  }
}

TEST(PeerKeys, WhoComesOneByOneCostsLittleMore) {
  constexpr int kWorld = 200;
  LocalCoordinatorHub hub(kWorld);
  CountingTrips counting(hub.rank(0), true);
  PeerKeys keys(counting, 16ms, NumberOf);  // 2 ms for those that come together
  for (int r = 1; r < kWorld; ++r) {
    ASSERT_TRUE(hub.rank(r).Put(NumberOf(r), std::to_string(r)).ok());
    ASSERT_EQ(*keys.Get(r), std::to_string(r));
  }
  EXPECT_LT(counting.trips(), 2 * kWorld);
}

TEST(PeerKeys, WhoIsLateIsWaitedForByItself) {
  LocalCoordinatorHub hub(6);
  for (const int r : {1, 2, 4}) ASSERT_TRUE(hub.rank(r).Put(NumberOf(r), std::to_string(r)).ok());
  PeerKeys keys(hub.rank(0), 80ms, NumberOf);
  EXPECT_EQ(*keys.Get(1), "1");
  EXPECT_EQ(*keys.Get(2), "2");
  std::vector<std::string> waited;
  const Result<std::string> late = keys.Get(3, [&](const std::string& key) {
    waited.push_back(key);
    return Result<std::string>(Status(StatusCode::kDeadlineExceeded, "not there"));
  });
  EXPECT_EQ(late.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(waited, ElementsAre("k/3"));
  EXPECT_EQ(*keys.Get(4), "4");
  ASSERT_TRUE(hub.rank(5).Put(NumberOf(5), "5").ok());
  EXPECT_EQ(*keys.Get(5), "5");
}

TEST(Coordinator, AnAnnouncementStaysUntilItIsRetracted) {
  LocalCoordinatorHub hub(2);
  EXPECT_EQ(*Announce(hub.rank(0), "a", std::string("zero"), 10s), "zero");  // nobody has read it
  EXPECT_EQ(*Announce(hub.rank(1), "a", std::string("mine"), 10s), "zero");
  EXPECT_TRUE(hub.rank(0).Get("a/all", 0ms).ok());
  Retract(hub.rank(1), "a");  // is rank 0's to do
  EXPECT_TRUE(hub.rank(0).Get("a/all", 0ms).ok());
  Retract(hub.rank(0), "a");
  EXPECT_FALSE(hub.rank(0).Get("a/all", 0ms).ok());
}

TEST(Coordinator, SettleWaitsUntilAllHaveRead) {
  RunRanks(3, [](int rank, Coordinator& coordinator) {
    const Result<std::string> failure(Status(StatusCode::kNoSpace, "disk full"));
    const auto got = Announce(coordinator, "s", failure, 10s);
    EXPECT_EQ(got.status().code(), StatusCode::kNoSpace) << rank;
    Settle(coordinator, "s", 10s);
    if (rank != 0) return;
    for (const char* key : {"s/all", "s/read/1", "s/read/2"})
      EXPECT_FALSE(coordinator.Get(key, 0ms).ok()) << key;
  });
}

TEST(Coordinator, ConsultAnswersEachRankByItself) {
  for (const int world : {1, 2, 5}) {
    RunRanks(world, [](int rank, Coordinator& coordinator) {
      const std::string mine = "from " + std::to_string(rank);
      const auto answered = Consult(
          coordinator, "c", mine,
          [](std::vector<std::string> values) {
            for (size_t r = 0; r < values.size(); ++r) values[r] += ", to " + std::to_string(r);
            return Result<std::vector<std::string>>(std::move(values));
          },
          10s);
      EXPECT_EQ(*answered, mine + ", to " + std::to_string(rank));
      const auto failed = Consult(
          coordinator, "f", mine,
          [](const std::vector<std::string>&) {
            return Result<std::vector<std::string>>(Status(StatusCode::kNoSpace, "disk full"));
          },
          10s);
      EXPECT_EQ(failed.status().code(), StatusCode::kNoSpace);
      EXPECT_EQ(failed.status().message(), "disk full");
      for (const char* tag : {"c", "f"}) {
        for (const char* key : {"in", "to"}) {
          EXPECT_FALSE(coordinator.Get(fmt::format("{}/{}/{}", tag, key, rank), 0ms).ok());
        }
      }
    });
  }
}

// The others waited for an answer that nobody was going to give.
TEST(Coordinator, ConsultTellsEveryoneWhatWasThrown) {
  RunRanks(3, [](int /*rank*/, Coordinator& coordinator) {
    const auto answered = Consult(
        coordinator, "thrown", "mine",
        [](const std::vector<std::string>&) -> Result<std::vector<std::string>> {
          throw std::bad_alloc();
        },
        10s);
    EXPECT_EQ(answered.status().ToString(), "exhausted: out of memory");
  });
}

TEST(Coordinator, ConsultNamesALateRankToEveryone) {
  RunRanks(3, [](int rank, Coordinator& coordinator) {
    if (rank == 2) return;  // never comes
    const auto answered = Consult(
        coordinator, "late", "mine",
        [](std::vector<std::string> values) {
          return Result<std::vector<std::string>>(std::move(values));
        },
        1000ms);  // within which rank 0 has begun, too
    EXPECT_EQ(answered.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(answered.status().message(), AllOf(HasSubstr("rank 2"), HasSubstr("1000 ms")));
  });
}

TEST(Coordinator, AgreeOnNamesTheLowestFailingRank) {
  RunRanks(4, [](int rank, Coordinator& coordinator) {
    EXPECT_TRUE(AgreeOn(coordinator, "fine", Status::Ok(), 10s).ok());
    const Status mine =
        rank >= 2 ? Status(StatusCode::kIo, "disk " + std::to_string(rank)) : Status::Ok();
    const Status all = AgreeOn(coordinator, "bad", mine, 10s);
    EXPECT_EQ(all.code(), StatusCode::kIo);
    EXPECT_EQ(all.message(), "rank 2: disk 2");
  });
}

// Every rank was told what every rank had said: at 16,384 of them 6.4 GB.
TEST(Coordinator, AVerdictIsAsShortForManyRanksAsForTwo) {
  for (const int world : {2, 64}) {
    RunRanks(world, [](int /*rank*/, Coordinator& coordinator) {
      Weighing weighing(coordinator);
      EXPECT_TRUE(AgreeOn(weighing, "fine", Status::Ok(), 10s).ok());
      EXPECT_LE(weighing.longest(), 64u);
    });
  }
}

TEST(Coordinator, ALateRankIsNamedToEveryoneWithinTheDeadlines) {
  RunRanks(3, [](int rank, Coordinator& coordinator) {
    if (rank == 2) return;  // never comes
    const Status status = AgreeOn(coordinator, "late", Status::Ok(), 1000ms);
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("rank 2"), HasSubstr("late"), HasSubstr("1000 ms")));
  });
}

// Each within the deadline of the one before it, but not all within one: all hear that, before they
// end by their own wait.
TEST(Coordinator, RanksThatComeOneByOneHaveOneDeadlineTogether) {
  RunRanks(4, [](int rank, Coordinator& coordinator) {
    std::this_thread::sleep_for(rank * 400ms);
    const Status status = AgreeOn(coordinator, "slow", Status::Ok(), 600ms);
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(status.message(), HasSubstr("waiting for rank"));
  });
}

TEST(Coordinator, GetWaitsAndSaysHowLong) {
  LocalCoordinatorHub hub(2);
  const auto missing = hub.rank(1).Get("nothing", 20ms);
  EXPECT_EQ(missing.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(missing.status().message(),
              AllOf(HasSubstr("nothing"), HasSubstr("20 ms"), HasSubstr("rank 1")));
  std::thread later([&] { ThrowIfError(hub.rank(0).Put("key", "value")); });
  EXPECT_EQ(*hub.rank(1).Get("key", 10s), "value");
  later.join();
  ThrowIfError(hub.rank(1).Delete("key"));
  EXPECT_FALSE(hub.rank(0).Get("key", 1ms).ok());
}

// Where nothing ever appears, and no time passes.
class Barren final : public Coordinator {
 public:
  int rank() const override { return 1; }
  int world() const override { return 2; }
  Status Put(std::string_view, std::string_view) override { return Status::Ok(); }
  Result<std::string> Get(std::string_view, std::chrono::milliseconds deadline) override {
    waits.push_back(deadline);
    return Status(StatusCode::kDeadlineExceeded, "nothing");
  }
  Status Delete(std::string_view) override { return Status::Ok(); }
  std::vector<std::chrono::milliseconds> waits;
};

// Twice a second, by every rank, for as long as the slowest rank took.
TEST(Coordinator, WhoWaitsLongAsksSeldom) {
  Barren nothing;
  HurriedCoordinator patient(nothing, SystemClock());
  EXPECT_EQ(patient.Get("key", 60s).status().code(), StatusCode::kDeadlineExceeded);
  std::chrono::milliseconds sum{0};
  for (const auto wait : nothing.waits) {
    EXPECT_LE(wait, 4s);
    sum += wait;
  }
  EXPECT_EQ(sum, 60s);
  EXPECT_LE(nothing.waits.size(), 20u);
  // Whoever is in a hurry only looks.
  nothing.waits.clear();
  patient.HurryUntil(SystemClock().Monotonic() - 1s);
  EXPECT_EQ(patient.Get("key", 60s).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(nothing.waits, std::vector<std::chrono::milliseconds>{0ms});
}

TEST(Coordinator, KeysAreGoneWhenAllHaveReadThem) {
  LocalCoordinatorHub hub(2);
  std::thread other([&] { EXPECT_TRUE(AllGather(hub.rank(1), "t", "b", 10s).ok()); });
  EXPECT_TRUE(AllGather(hub.rank(0), "t", "a", 10s).ok());
  other.join();
  for (const char* key : {"t/in/1", "t/all", "t/read/1"})
    EXPECT_FALSE(hub.rank(0).Get(key, 0ms).ok()) << key;
}

}  // namespace
}  // namespace keel::checkpoint
