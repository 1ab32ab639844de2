#include "trainer/run/rank_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

namespace keel::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<Status> Agree(int world, const std::function<SharedFacts(int)>& facts_of,
                          std::chrono::milliseconds deadline = std::chrono::seconds(20)) {
  checkpoint::LocalCoordinatorHub hub(world);
  std::vector<Status> found(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      found[static_cast<size_t>(r)] = AgreeOnFacts(hub.rank(r), facts_of(r), deadline);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return found;
}

TEST(RankAgreementTest, TheSameEverywhereIsFine) {
  for (const Status& status : Agree(5, [](int) { return SharedFacts{{"trainer.seed", "3"}}; }))
    EXPECT_TRUE(status.ok()) << status.message();
}

TEST(RankAgreementTest, EveryRankHearsWhatDiffersAndWhere) {
  const auto found = Agree(6, [](int rank) {
    SharedFacts facts = {{"trainer.seed", "3"}, {"optim.lr", rank % 2 == 0 ? "0.001" : "0.1"}};
    if (rank == 4) facts["content of data.train_files"] = "20 samples";
    return facts;
  });
  for (const Status& status : found) {
    EXPECT_EQ(status.code(), StatusCode::kConfig);
    EXPECT_EQ(status.message(), found[0].message());
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("optim.lr: 0.001 on ranks 0, 2, 4; 0.1 on ranks 1, 3, 5"),
                      HasSubstr("content of data.train_files: not there on ranks 0-3, 5; "
                                "20 samples on rank 4"),
                      Not(HasSubstr("trainer.seed"))));
  }
}

TEST(RankAgreementTest, WhatMayDifferIsToldToAll) {
  checkpoint::LocalCoordinatorHub hub(3);
  std::vector<std::string> told(3, "nothing");
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      const auto deadline = std::chrono::seconds(20);
      const SharedFacts same = {{"arithmetic", "AVX2"}};
      EXPECT_EQ(ValueOrThrow(CompareFacts(hub.rank(r), "first", same, deadline)), "");
      const SharedFacts mine = {{"arithmetic", r == 1 ? "AVX512" : "AVX2"}};
      told[static_cast<size_t>(r)] =
          ValueOrThrow(CompareFacts(hub.rank(r), "second", mine, deadline));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : told)
    EXPECT_EQ(text, "\n  arithmetic: AVX2 on ranks 0, 2; AVX512 on rank 1");
}

TEST(RankAgreementTest, LongValuesAreShownWhereTheyDiffer) {
  const auto found = Agree(3, [](int rank) {
    const std::string same(4000, 'x');
    return SharedFacts{{"reward.command", same + (rank == 1 ? "exit(1)" : "exit(0)") + same}};
  });
  EXPECT_THAT(found[2].message(), AllOf(HasSubstr("exit(0)"), HasSubstr("exit(1)"),
                                        HasSubstr("on ranks 0, 2"), HasSubstr("on rank 1")));
  EXPECT_LT(found[2].message().size(), 1000u);
}

TEST(RankAgreementTest, ManyKindsOfRanksAndManyFactsAreBounded) {
  const auto found = Agree(30, [](int rank) {
    SharedFacts facts;
    for (int i = 0; i < 40; ++i) facts["fact" + std::to_string(i)] = std::to_string(rank);
    return facts;
  });
  EXPECT_THAT(found[17].message(), AllOf(HasSubstr("and 16 more"), HasSubstr("of 30 kinds")));
  EXPECT_LT(found[17].message().size(), 8000u);
}

TEST(RankAgreementTest, ForeignTextIsMadePrintable) {
  const auto found = Agree(2, [](int rank) {
    return SharedFacts{{"reward.command", rank == 0 ? "a" : "b\x1b[31m\n2026 info  all is well"}};
  });
  EXPECT_EQ(found[0].message().find('\x1b'), std::string::npos);
  EXPECT_EQ(found[0].message().find("\n2026"), std::string::npos);
}

TEST(RankAgreementTest, ARankThatDoesNotComeIsNamed) {
  checkpoint::LocalCoordinatorHub hub(2);
  const Status status =
      AgreeOnFacts(hub.rank(0), SharedFacts{{"a", "1"}}, std::chrono::milliseconds(20));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("rank 1"));
}

TEST(RankAgreementTest, RankRangesAreShort) {
  EXPECT_EQ(RankRanges({}), "");
  EXPECT_EQ(RankRanges({4}), "4");
  EXPECT_EQ(RankRanges({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
}

}  // namespace
}  // namespace keel::trainer
