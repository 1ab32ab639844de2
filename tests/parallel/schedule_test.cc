#include "parallel/schedule.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <utility>

namespace keel::parallel {
namespace {

using Channel = std::pair<int, bool>;  // receiving stage, forward?

// Runs all stages against each other with asynchronous sends and in-order channels. Returns the
// largest number of micro-batches that held activations on each stage; fails on a deadlock, on a
// message that does not match the posted receive, or on a backward before its forward.
std::vector<int> Simulate(const std::vector<std::vector<Action>>& stages, int microbatches) {
  const int count = static_cast<int>(stages.size());
  std::vector<size_t> at(stages.size(), 0);
  std::map<Channel, std::deque<int>> sent;
  std::map<Channel, std::deque<int>> posted;
  std::vector<std::vector<int>> state(stages.size(), std::vector<int>(microbatches, 0));
  std::vector<int> live(stages.size(), 0), peak(stages.size(), 0);
  bool progress = true;
  while (progress) {
    progress = false;
    for (int s = 0; s < count; ++s) {
      auto& position = at[static_cast<size_t>(s)];
      const auto& actions = stages[static_cast<size_t>(s)];
      while (position < actions.size()) {
        const Action& a = actions[position];
        auto& mine = state[static_cast<size_t>(s)][static_cast<size_t>(a.microbatch)];
        const auto take = [&](bool forward) {
          auto& p = posted[{s, forward}];
          auto& q = sent[{s, forward}];
          if (p.empty()) {
            ADD_FAILURE() << "compute before its receive was posted";
            return false;
          }
          if (q.empty()) return false;
          EXPECT_EQ(p.front(), a.microbatch);
          EXPECT_EQ(q.front(), a.microbatch);
          p.pop_front();
          q.pop_front();
          return true;
        };
        bool done = true;
        switch (a.kind) {
          case ActionKind::kRecvForward:
            posted[{s, true}].push_back(a.microbatch);
            break;
          case ActionKind::kRecvBackward:
            posted[{s, false}].push_back(a.microbatch);
            break;
          case ActionKind::kSendForward:
            EXPECT_EQ(mine, 1);
            sent[{s + 1, true}].push_back(a.microbatch);
            break;
          case ActionKind::kSendBackward:
            EXPECT_EQ(mine, 2);
            sent[{s - 1, false}].push_back(a.microbatch);
            break;
          case ActionKind::kForward:
            if (s > 0) done = take(true);
            if (done) {
              EXPECT_EQ(mine, 0);
              mine = 1;
              peak[static_cast<size_t>(s)] =
                  std::max(peak[static_cast<size_t>(s)], ++live[static_cast<size_t>(s)]);
            }
            break;
          case ActionKind::kBackward:
            if (s + 1 < count) done = take(false);
            if (done) {
              EXPECT_EQ(mine, 1);
              mine = 2;
              --live[static_cast<size_t>(s)];
            }
            break;
        }
        if (!done) break;
        ++position;
        progress = true;
      }
    }
  }
  for (int s = 0; s < count; ++s) {
    EXPECT_EQ(at[static_cast<size_t>(s)], stages[static_cast<size_t>(s)].size())
        << "stage " << s << " of " << count << " hangs with " << microbatches << " micro-batches";
  }
  return peak;
}

TEST(ScheduleTest, OneForwardOneBackwardNeverDeadlocksAndBoundsActivations) {
  for (int stages = 1; stages <= 6; ++stages) {
    for (int microbatches = 1; microbatches <= 9; ++microbatches) {
      std::vector<std::vector<Action>> all;
      for (int s = 0; s < stages; ++s) all.push_back(Build1F1B(s, stages, microbatches));
      const std::vector<int> peak = Simulate(all, microbatches);
      for (int s = 0; s < stages; ++s) {
        EXPECT_LE(peak[static_cast<size_t>(s)], std::min(stages - s, microbatches));
        int forwards = 0, backwards = 0;
        for (const Action& a : all[static_cast<size_t>(s)]) {
          forwards += a.kind == ActionKind::kForward;
          backwards += a.kind == ActionKind::kBackward;
        }
        EXPECT_EQ(forwards, microbatches);
        EXPECT_EQ(backwards, microbatches);
      }
    }
  }
}

TEST(ScheduleTest, ForwardOnlyNeverDeadlocks) {
  for (int stages = 1; stages <= 5; ++stages) {
    std::vector<std::vector<Action>> all;
    for (int s = 0; s < stages; ++s) all.push_back(BuildForwardOnly(s, stages, 4));
    Simulate(all, 4);
  }
}

TEST(ScheduleTest, PrintsTheOrderOfComputation) {
  EXPECT_EQ(ToString(Build1F1B(0, 2, 3)), "F0 F1 B0 F2 B1 B2");
  EXPECT_EQ(ToString(Build1F1B(1, 2, 3)), "F0 B0 F1 B1 F2 B2");
  EXPECT_EQ(ToString(Build1F1B(0, 1, 2)), "F0 B0 F1 B1");
}

}  // namespace
}  // namespace keel::parallel
