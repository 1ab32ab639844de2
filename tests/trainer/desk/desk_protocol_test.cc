#include "trainer/desk/desk_protocol.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "turns/tool_use.h"

namespace keel::trainer::desk {
namespace {

Finished Whole(const SampleId& id, std::vector<int32_t> tokens, std::vector<VersionSpan> spans) {
  Finished finished;
  finished.response.position = id.position;
  finished.response.sample = id.sample;
  finished.response.tokens = std::move(tokens);
  finished.spans = std::move(spans);
  return finished;
}

DeskProtocol Desk(DeskOptions options, Ledger ledger = {}) {
  return ValueOrThrow(DeskProtocol::Make(std::move(options), std::move(ledger)));
}

// A worker that serves the newest version.
int64_t NewWorker(DeskProtocol& desk, int64_t capacity = 100) {
  const int64_t worker = desk.Join(capacity);
  ThrowIfError(desk.Serve(worker, desk.newest_version()));
  return worker;
}

std::vector<SampleId> IdsOf(const std::vector<Assignment>& assignments) {
  std::vector<SampleId> ids;
  for (const Assignment& one : assignments) ids.push_back(one.id);
  return ids;
}

TEST(DeskProtocolTest, ASynchronousStepIsOneBatchAtATime) {
  DeskProtocol desk = Desk({.batch = 2, .samples = {0, 1}});
  const int64_t early = desk.Join(10);
  EXPECT_TRUE(desk.Assign().empty()) << "no version is there";
  ThrowIfError(desk.Publish(1, 0));
  EXPECT_TRUE(desk.Assign().empty()) << "nobody serves it";
  ThrowIfError(desk.Serve(early, 1));
  const auto first = desk.Assign();
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(IdsOf(first.at(early)), (std::vector<SampleId>{{0, 0}, {0, 1}, {1, 0}, {1, 1}}));
  EXPECT_TRUE(desk.Assign().empty()) << "the next step's samples need its weights";
  for (const Assignment& one : first.at(early)) {
    EXPECT_FALSE(desk.Ready());
    EXPECT_TRUE(ValueOrThrow(desk.Finish(early, one.lease, Whole(one.id, {5}, {{0, 1}}))));
  }
  ASSERT_TRUE(desk.Ready());
  EXPECT_EQ(desk.counts().finished, 4);
  const std::vector<Finished> batch = desk.Take();
  ASSERT_EQ(batch.size(), 4U);
  EXPECT_EQ(batch[3].response.position, 1);
  EXPECT_EQ(batch[3].response.sample, 1);
  EXPECT_EQ(desk.ledger().frontier, 2);
  EXPECT_TRUE(desk.Assign().empty());
  ThrowIfError(desk.Publish(2, 1));
  EXPECT_TRUE(desk.Assign().empty());
  ThrowIfError(desk.Serve(early, 2));
  EXPECT_EQ(IdsOf(desk.Assign().at(early)).front(), (SampleId{2, 0}));
}

TEST(DeskProtocolTest, StalenessBoundsHowFarAheadAWorkerIs) {
  DeskProtocol desk = Desk({.batch = 1, .max_staleness = 2});
  ThrowIfError(desk.Publish(1, 0));
  const int64_t old = NewWorker(desk);
  EXPECT_EQ(IdsOf(desk.Assign().at(old)), (std::vector<SampleId>{{0, 0}, {1, 0}, {2, 0}}));
  // A step further the bound is the same for the old weights, and one more for new ones.
  EXPECT_TRUE(ValueOrThrow(desk.Finish(old, 1, Whole({0, 0}, {1}, {{0, 1}}))));
  desk.Take();
  ThrowIfError(desk.Publish(2, 1));
  EXPECT_TRUE(desk.Assign().empty());
  const int64_t fresh = NewWorker(desk);
  EXPECT_EQ(IdsOf(desk.Assign().at(fresh)), (std::vector<SampleId>{{3, 0}}));
}

TEST(DeskProtocolTest, WhoServesFirstLeavesOthersTheirShare) {
  DeskProtocol desk = Desk({.batch = 3, .samples = {0, 1, 2, 3}});
  const int64_t first = desk.Join(100), second = desk.Join(100), small = desk.Join(50);
  ThrowIfError(desk.Publish(1, 0));
  ThrowIfError(desk.Serve(first, 1));
  const auto begun = desk.Assign();
  // 12 samples, and two fifths of all room. A position's go together as long as they can.
  EXPECT_EQ(IdsOf(begun.at(first)),
            (std::vector<SampleId>{{0, 0}, {0, 1}, {0, 2}, {0, 3}, {1, 0}}));
  EXPECT_TRUE(desk.Assign().empty());
  ThrowIfError(desk.Serve(small, 1));
  EXPECT_EQ(desk.Assign().at(small).size(), 3U);
  // What the second one would have had is for the others, once it is gone, and each finished one
  // makes room.
  desk.Leave(second);
  const auto rest = desk.Assign();
  EXPECT_EQ(rest.at(first).size(), 3U);
  EXPECT_EQ(rest.at(small).size(), 1U);
  EXPECT_EQ(desk.counts().running, 12);
}

TEST(DeskProtocolTest, ALedgerOfARunThatAllowedMoreStalenessIsRefused) {
  Ledger ledger;
  ledger.steps = 5;
  ledger.versions = {{3, 3}, {4, 5}};
  ledger.samples[{0, 0}].partial = {{1}, {}, {{0, 3}}};
  EXPECT_TRUE(DeskProtocol::Make({.max_staleness = 2}, ledger).ok());
  const Status refused = DeskProtocol::Make({.max_staleness = 1}, ledger).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidData);
  EXPECT_NE(refused.message().find("2 steps old"), std::string::npos) << refused.message();
}

TEST(DeskProtocolTest, AStragglerHoldsNoStepBeforeItsLimit) {
  DeskProtocol desk = Desk({.batch = 1, .max_staleness = 2, .ready_first = true});
  ThrowIfError(desk.Publish(1, 0));
  const int64_t worker = NewWorker(desk);
  std::map<int64_t, int64_t> leases;  // by position
  const auto begin = [&] {
    std::vector<int64_t> positions;
    for (auto& [number, given] : desk.Assign()) {
      for (const Assignment& one : given) {
        leases[one.id.position] = one.lease;
        positions.push_back(one.id.position);
      }
    }
    return positions;
  };
  const auto finish = [&](int64_t position, int64_t version) {
    EXPECT_TRUE(ValueOrThrow(
        desk.Finish(worker, leases.at(position), Whole({position, 0}, {1}, {{0, version}}))));
  };
  const auto take = [&] { return desk.Take().at(0).response.position; };
  EXPECT_EQ(begin(), (std::vector<int64_t>{0, 1, 2}));
  finish(1, 1);
  finish(2, 1);
  ASSERT_TRUE(desk.Ready());
  EXPECT_EQ(take(), 1);
  EXPECT_EQ(desk.ledger().frontier, 0);
  EXPECT_EQ(desk.ledger().taken, std::set<int64_t>{1});
  EXPECT_EQ(desk.counts().put_off, 1);
  ThrowIfError(desk.Publish(2, 1));
  ThrowIfError(desk.Serve(worker, 2));
  EXPECT_EQ(begin(), std::vector<int64_t>{3});
  finish(3, 2);
  EXPECT_EQ(take(), 2) << "its limit is sooner than that of 3";
  // Weights of no updates began 0: the third step is the last that may train it.
  EXPECT_FALSE(desk.Ready()) << "3 is there, and 0 would be too old in the next step";
  ThrowIfError(desk.Publish(3, 2));
  ThrowIfError(desk.Serve(worker, 3));
  EXPECT_EQ(begin(), std::vector<int64_t>{4});
  finish(0, 1);
  EXPECT_EQ(take(), 0);
  EXPECT_EQ(desk.ledger().frontier, 3);
  EXPECT_TRUE(desk.ledger().taken.empty());
  EXPECT_EQ(desk.counts().put_off, 0);
  EXPECT_EQ(take(), 3);
}

TEST(DeskProtocolTest, WhatIsBegunNeverNeedsMoreStepsThanItHas) {
  // A slow worker of old weights and a fast one of newer ones: what the fast one begins counts.
  DeskProtocol desk = Desk({.batch = 2, .max_staleness = 1, .ready_first = true});
  ThrowIfError(desk.Publish(1, 0));
  const int64_t slow = NewWorker(desk, 2);
  EXPECT_EQ(IdsOf(desk.Assign().at(slow)), (std::vector<SampleId>{{0, 0}, {1, 0}}));
  const int64_t fast = NewWorker(desk);
  const auto given = desk.Assign().at(fast);
  EXPECT_EQ(IdsOf(given), (std::vector<SampleId>{{2, 0}, {3, 0}})) << "four are two steps' worth";
  for (const Assignment& one : given)
    EXPECT_TRUE(ValueOrThrow(desk.Finish(fast, one.lease, Whole(one.id, {1}, {{0, 1}}))));
  EXPECT_EQ(desk.Take().at(0).response.position, 2);
  EXPECT_TRUE(desk.Assign().empty()) << "the old weights' next step is full";
  ThrowIfError(desk.Publish(2, 1));
  ThrowIfError(desk.Serve(fast, 2));
  EXPECT_EQ(IdsOf(desk.Assign().at(fast)), (std::vector<SampleId>{{4, 0}, {5, 0}}));
}

TEST(DeskProtocolTest, WhatWasTakenOutOfTurnIsNotTakenAgain) {
  Ledger ledger;
  ledger.frontier = 1;
  ledger.taken = {2, 4};
  ledger.steps = 3;
  ledger.versions = {{3, 3}};
  for (const bool ready_first : {false, true}) {
    DeskProtocol desk = Desk({.batch = 2, .max_staleness = 1, .ready_first = ready_first}, ledger);
    EXPECT_EQ(desk.Due(3), 3);
    EXPECT_EQ(desk.Due(5), 4);
    const int64_t worker = NewWorker(desk);
    const auto given = desk.Assign().at(worker);
    EXPECT_EQ(IdsOf(given), (std::vector<SampleId>{{1, 0}, {3, 0}, {5, 0}, {6, 0}}));
    for (const Assignment& one : given) {
      if (one.id.position == 3) continue;
      EXPECT_TRUE(ValueOrThrow(desk.Finish(worker, one.lease, Whole(one.id, {1}, {{0, 3}}))));
    }
    EXPECT_EQ(desk.Ready(), ready_first);
    if (!ready_first) continue;
    EXPECT_EQ(desk.Take().at(1).response.position, 5);
    EXPECT_EQ(desk.ledger().frontier, 3);
    EXPECT_EQ(desk.ledger().taken, (std::set<int64_t>{4, 5}));
  }
  ledger.samples[{4, 0}] = {};
  EXPECT_EQ(DeskProtocol::Make({.max_staleness = 1}, ledger).status().code(),
            StatusCode::kInvalidData);
}

// Positions that weights of no updates began, and that are put off, are too old for an order in
// which others come first.
TEST(DeskProtocolTest, AnOrderInWhichSamplesWouldBeTooOldIsRefused) {
  Ledger ledger;
  ledger.steps = 1;
  ledger.versions = {{1, 0}, {2, 1}};
  ledger.samples[{1, 0}].partial = {{1}, {}, {{0, 1}}};
  ledger.samples[{0, 0}].partial = {{1}, {}, {{0, 2}}};
  EXPECT_TRUE(DeskProtocol::Make({.max_staleness = 1, .ready_first = true}, ledger).ok());
  const Status refused = DeskProtocol::Make({.max_staleness = 1}, ledger).status();
  EXPECT_NE(refused.message().find("position 1 would be 2 steps old"), std::string::npos)
      << refused.message();
  ledger.samples[{0, 0}].partial = {{1}, {}, {{0, 1}}};
  EXPECT_FALSE(DeskProtocol::Make({.max_staleness = 1, .ready_first = true}, ledger).ok());
}

TEST(DeskProtocolTest, AFilteredBatchIsNoStepOfItsOwn) {
  DeskProtocol desk = Desk({.batch = 2});
  ThrowIfError(desk.Publish(1, 0));
  const int64_t worker = NewWorker(desk);
  for (int64_t round = 0; round < 3; ++round) {
    const auto given = desk.Assign().at(worker);
    for (const Assignment& one : given)
      EXPECT_TRUE(ValueOrThrow(desk.Finish(worker, one.lease, Whole(one.id, {1}, {{0, 1}}))));
    EXPECT_EQ(desk.Take().size(), 2U);
    // Of the next step the present weights may not begin a sample; of this one they may.
    EXPECT_TRUE(desk.Assign().empty());
    EXPECT_EQ(desk.ledger().steps, 1);
    ThrowIfError(desk.More());
    EXPECT_EQ(desk.ledger().steps, 0);
    EXPECT_EQ(desk.ledger().frontier, 2 * (round + 1));
  }
}

TEST(DeskProtocolTest, WhatALostWorkerHadGoesOnElsewhere) {
  DeskProtocol desk = Desk({.batch = 1, .samples = {0, 1}});
  ThrowIfError(desk.Publish(1, 0));
  const int64_t first = NewWorker(desk);
  const auto given = desk.Assign().at(first);
  EXPECT_TRUE(ValueOrThrow(desk.Progress(first, given[0].lease, 0, {{7, 8}, {-1, -2}, {{0, 1}}})));
  EXPECT_FALSE(ValueOrThrow(desk.Progress(first, given[0].lease, 0, {{7, 8}, {-1, -2}, {{0, 1}}})))
      << "said twice";
  EXPECT_TRUE(ValueOrThrow(desk.Finish(first, given[1].lease, Whole({0, 1}, {9}, {{0, 1}}))));
  desk.Leave(first);
  EXPECT_EQ(desk.counts().waiting, 1);
  const int64_t second = NewWorker(desk);
  const auto again = desk.Assign().at(second);
  ASSERT_EQ(again.size(), 1U) << "a response that is there is not made again";
  EXPECT_EQ(again[0].so_far, (Partial{{7, 8}, {-1, -2}, {{0, 1}}}));
  EXPECT_EQ(desk.counts().reassigned_tokens, 2);
  // The lost one was not dead after all.
  EXPECT_FALSE(
      ValueOrThrow(desk.Finish(first, given[0].lease, Whole({0, 0}, {7, 8, 3}, {{0, 1}}))));
  EXPECT_FALSE(desk.Ready());
  EXPECT_TRUE(
      ValueOrThrow(desk.Finish(second, again[0].lease, Whole({0, 0}, {7, 8, 4}, {{0, 1}}))));
  EXPECT_EQ(desk.Take()[0].response.tokens, (std::vector<int32_t>{7, 8, 4}));
}

TEST(DeskProtocolTest, WhatAWorkerCannotSay) {
  DeskProtocol desk = Desk({.batch = 1, .max_staleness = 1});
  ThrowIfError(desk.Publish(1, 0));
  const int64_t worker = NewWorker(desk);
  const int64_t lease = desk.Assign().at(worker)[0].lease;
  EXPECT_TRUE(ValueOrThrow(desk.Progress(worker, lease, 0, {{7}, {-1}, {{0, 1}}})));
  const auto bad = [&](const Result<bool>& result) {
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidData);
  };
  bad(desk.Progress(worker, lease, 5, {{7}, {-1}, {{0, 1}}}));       // a hole
  bad(desk.Progress(worker, lease, 1, {{}, {}, {}}));                // nothing
  bad(desk.Progress(worker, lease, 1, {{7, 8}, {-1}, {{0, 1}}}));    // half of its numbers
  bad(desk.Progress(worker, lease, 1, {{7}, {-1}, {{0, 2}}}));       // of no version
  bad(desk.Progress(worker, lease, 1, {{7}, {-1}, {}}));             // of no version at all
  bad(desk.Finish(worker, lease, Whole({0, 0}, {8, 9}, {{0, 1}})));  // other tokens
  bad(desk.Finish(worker, lease, Whole({1, 0}, {7, 9}, {{0, 1}})));  // another sample
  ThrowIfError(desk.Publish(2, 0));
  bad(desk.Progress(worker, lease, 1, {{7}, {-1}, {{0, 2}}}));  // published, but not served by it
  EXPECT_FALSE(desk.Serve(worker, 3).ok());
  ThrowIfError(desk.Serve(worker, 2));
  EXPECT_FALSE(desk.Serve(worker, 1).ok());
  EXPECT_TRUE(ValueOrThrow(desk.Finish(worker, lease, Whole({0, 0}, {7, 9}, {{0, 2}}))));
  EXPECT_EQ(desk.Take()[0].spans, (std::vector<VersionSpan>{{0, 1}, {1, 2}}));
  EXPECT_FALSE(desk.Publish(2, 1).ok());
  EXPECT_FALSE(desk.Publish(3, 2).ok()) << "updates of a step that has not begun";
}

// What tools gave is part of a sample, wherever a report ends.
TEST(DeskProtocolTest, GivenTokensStayWhatTheyWere) {
  DeskProtocol desk = Desk({.batch = 1});
  ThrowIfError(desk.Publish(1, 0));
  const int64_t worker = NewWorker(desk);
  const int64_t lease = desk.Assign().at(worker)[0].lease;
  const auto bad = [&](const Result<bool>& said) {
    EXPECT_EQ(said.status().code(), StatusCode::kInvalidData);
  };
  bad(desk.Progress(worker, lease, 0, {{7}, {0}, {{0, 1}}, {{0, 2}}}));
  bad(desk.Progress(worker, lease, 0, {{7}, {0}, {{0, 1}}, {{0, 0}}}));
  EXPECT_TRUE(ValueOrThrow(
      desk.Progress(worker, lease, 0, {{7, 8}, {-1, 0}, {{0, 1}}, {{1, 2}}, "memory"})));
  const auto whole = [&](std::vector<TokenRange> given) {
    Finished finished = Whole({0, 0}, {7, 8, 9, 10}, {{0, 1}});
    finished.spans = {{0, 1}};
    finished.response.given = std::move(given);
    return finished;
  };
  bad(desk.Finish(worker, lease, whole({})));
  bad(desk.Finish(worker, lease, whole({{0, 2}})));
  bad(desk.Finish(worker, lease, whole({{1, 5}})));
  const auto& known = desk.ledger().samples.at({0, 0}).partial;
  EXPECT_EQ(known.given, (std::vector<TokenRange>{{1, 2}}));
  EXPECT_EQ(known.tool_memory, "memory");
  EXPECT_TRUE(ValueOrThrow(desk.Finish(worker, lease, whole({{1, 3}}))));
}

TEST(DeskProtocolTest, AResponseThatTakesTooLongIsEnded) {
  DeskProtocol desk = Desk({.batch = 3, .max_response_ms = 100});
  ThrowIfError(desk.Publish(1, 0));
  const int64_t worker = NewWorker(desk);
  const auto given = desk.Assign().at(worker);
  ASSERT_EQ(given.size(), 3U);
  EXPECT_TRUE(desk.Elapse(99).ask.empty());
  // The worker is asked for each, once, and ends one of them.
  const auto overdue = desk.Elapse(1);
  ASSERT_EQ(overdue.ask.size(), 3U);
  EXPECT_EQ(overdue.ask[0].lease, given[0].lease);
  EXPECT_TRUE(desk.Elapse(50).ask.empty());
  EXPECT_TRUE(ValueOrThrow(desk.Finish(worker, given[0].lease, Whole({0, 0}, {5}, {{0, 1}}))));
  // One of another it has told, and nothing of the third.
  turns::ToolMemory memory;
  memory.use = {2, 1, 0, 0, {0.25, -1}};
  EXPECT_TRUE(ValueOrThrow(desk.Progress(
      worker, given[1].lease, 0, {{7, 8, 9}, {-1, -2, 0}, {{0, 1}}, {{2, 3}}, memory.ToText()})));
  const auto late = desk.Elapse(50);
  EXPECT_EQ(late.ended, (std::vector<SampleId>{{1, 0}}));
  EXPECT_EQ(late.stuck, (std::set<int64_t>{worker}));
  EXPECT_FALSE(ValueOrThrow(desk.Finish(worker, given[1].lease, Whole({1, 0}, {7, 8, 9}, {}))))
      << "it was ended";
  desk.Leave(worker);
  // Whoever takes the third up is asked at once, and has its time. A resumed run goes on so.
  DeskProtocol resumed = Desk({.batch = 3, .max_response_ms = 100}, desk.ledger());
  const int64_t other = NewWorker(resumed);
  const auto again = resumed.Assign().at(other);
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(resumed.Elapse(1).ask.size(), 1U);
  EXPECT_TRUE(resumed.Elapse(99).stuck.empty());
  EXPECT_TRUE(ValueOrThrow(resumed.Finish(other, again[0].lease, Whole({2, 0}, {4}, {{0, 1}}))));
  EXPECT_EQ(desk.counts().overdue, 3);
  EXPECT_EQ(resumed.counts().overdue, 0) << "it was counted before";

  const std::vector<Finished> batch = resumed.Take();
  ASSERT_EQ(batch.size(), 3U);
  EXPECT_EQ(batch[0].response.error, "");
  const rl::Response& ended = batch[1].response;
  EXPECT_EQ(ended.tokens, (std::vector<int32_t>{7, 8})) << "it ends with a token of its own";
  EXPECT_EQ(ended.log_probs, (std::vector<float>{-1, -2}));
  EXPECT_TRUE(ended.given.empty());
  EXPECT_EQ(ended.tools, memory.use) << "what its tools were asked and gave";
  EXPECT_EQ(ended.finish, "length");
  EXPECT_EQ(ended.weight_version, 1);
  EXPECT_NE(ended.error.find("max_response_seconds 0.1"), std::string::npos) << ended.error;
  EXPECT_EQ(batch[1].spans, (std::vector<VersionSpan>{{0, 1}}));
}

TEST(DeskProtocolTest, TimeIsBoundedWhereItIsAskedForAlone) {
  DeskProtocol desk = Desk({});
  ThrowIfError(desk.Publish(1, 0));
  const int64_t worker = NewWorker(desk);
  EXPECT_EQ(desk.Assign().at(worker).size(), 1U);
  const auto overdue = desk.Elapse(INT64_MAX / 4);
  EXPECT_TRUE(overdue.ask.empty() && overdue.ended.empty() && overdue.stuck.empty());
  EXPECT_TRUE(desk.ledger().samples.empty());
}

TEST(DeskProtocolTest, ALedgerGoesOnWhereItWas) {
  DeskProtocol desk = Desk({.batch = 1, .max_staleness = 1});
  ThrowIfError(desk.Publish(1, 0));
  const int64_t worker = NewWorker(desk);
  const auto given = desk.Assign().at(worker);
  ASSERT_EQ(given.size(), 2U);
  EXPECT_TRUE(ValueOrThrow(desk.Finish(worker, given[1].lease, Whole({1, 0}, {4}, {{0, 1}}))));
  EXPECT_TRUE(ValueOrThrow(desk.Progress(worker, given[0].lease, 0, {{7}, {-1}, {{0, 1}}})));
  const Ledger saved = desk.ledger();
  DeskProtocol next = Desk({.batch = 1, .max_staleness = 1}, saved);
  EXPECT_EQ(next.counts().workers, 0);
  const int64_t other = NewWorker(next);
  const auto rest = next.Assign().at(other);
  ASSERT_EQ(rest.size(), 1U);
  EXPECT_EQ(rest[0].so_far.tokens, std::vector<int32_t>{7});
  EXPECT_TRUE(ValueOrThrow(next.Finish(other, rest[0].lease, Whole({0, 0}, {7}, {}))));
  EXPECT_EQ(next.Take()[0].spans, (std::vector<VersionSpan>{{0, 1}}));
  EXPECT_EQ(next.Take()[0].response.tokens, std::vector<int32_t>{4});

  // What cannot be of this run is refused, and named.
  const auto refused = [](Ledger ledger, const char* what,
                          DeskOptions options = {.max_staleness = 1}) {
    const auto made = DeskProtocol::Make(options, std::move(ledger));
    ASSERT_FALSE(made.ok()) << what;
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidData);
    EXPECT_NE(made.status().message().find(what), std::string::npos) << made.status().message();
  };
  Ledger bad = saved;
  bad.frontier = 1;
  refused(bad, "sample 0 of position 0");
  bad = saved;
  bad.versions = {{2, 0}};
  refused(bad, "tokens of a version that was not");
  bad = saved;
  bad.versions[2] = 5;
  refused(bad, "version 2");
  bad = saved;
  bad.samples[{1, 3}] = {};
  refused(bad, "sample 3 of position 1");
  bad = saved;
  bad.samples.at({0, 0}).partial.spans = {{0, 1}, {3, 2}};
  bad.versions[2] = 0;
  refused(bad, "a span begins behind its last token");
  bad = saved;
  bad.frontier = -1;
  refused(bad, "frontier -1");
}

}  // namespace
}  // namespace keel::trainer::desk
