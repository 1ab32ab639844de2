#include "parallel/pipeline/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
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

// How a pair of stages meets over NCCL, whose operations a device queues while the hosts go on.
enum class Meeting {
  kBefore,            // connected before the first step
  kInTheStep,         // by the first message of a pair and direction: both hosts stand until then
  kInTheStepDrained,  // and until their devices have done what they were given
};

// A message queued on a device: a send waits for the computation that makes it.
struct Queued {
  bool send;
  size_t ready_after;  // computations of this stage
};

// Whether all stages come to the end of their lists. With `one_stream` a pair has one queue for
// both directions, as a c10d group has: then the heads of both sides must be of one message.
bool ComesToItsEnd(const std::vector<std::vector<Action>>& stages, Meeting meeting,
                   bool one_stream) {
  using Link = std::pair<int, bool>;                  // between stages n and n + 1; forward?
  using Queue = std::deque<std::pair<bool, Queued>>;  // forward?, of one side
  const size_t count = stages.size();
  std::vector<size_t> at(count, 0), computed(count, 0);
  std::map<Link, std::array<bool, 2>> arrived;  // the lower stage, the upper one
  std::map<std::pair<int, int>, Queue> queues;  // by stream and side
  std::vector<std::deque<std::optional<std::pair<Link, size_t>>>> compute(count);
  std::map<std::pair<Link, int>, size_t> given, received;  // receives by link and side
  const auto stream = [&](const Link& link) {
    return one_stream ? link.first * 2 : link.first * 2 + link.second;
  };
  const auto idle = [&](int s) {
    for (const auto& [key, queue] : queues)
      if (!queue.empty() && key.first / 2 + key.second == s) return false;
    return compute[static_cast<size_t>(s)].empty();
  };
  bool progress = true;
  while (progress) {
    progress = false;
    for (size_t s = 0; s < count; ++s) {
      const int stage = static_cast<int>(s);
      // 1. The host gives its device what it can.
      while (at[s] < stages[s].size()) {
        const Action& a = stages[s][at[s]];
        if (a.kind == ActionKind::kForward || a.kind == ActionKind::kBackward) {
          const bool forward = a.kind == ActionKind::kForward;
          const bool waits = forward ? s > 0 : s + 1 < count;
          std::optional<std::pair<Link, size_t>> needs;
          if (waits)
            needs = {{forward ? stage - 1 : stage, forward}, static_cast<size_t>(a.microbatch) + 1};
          compute[s].push_back(needs);
        } else {
          const bool forward =
              a.kind == ActionKind::kSendForward || a.kind == ActionKind::kRecvForward;
          const bool send =
              a.kind == ActionKind::kSendForward || a.kind == ActionKind::kSendBackward;
          const bool lower = forward == send;  // of the link's two stages
          const Link link{lower ? stage : stage - 1, forward};
          if (meeting != Meeting::kBefore) {
            auto& both = arrived[link];
            if (!both[0] || !both[1]) {
              if (meeting == Meeting::kInTheStepDrained && !idle(stage)) break;
              bool& mine = both[lower ? 0 : 1];
              if (!mine) progress = true;
              mine = true;
              if (!both[0] || !both[1]) break;
            }
          }
          queues[{stream(link), lower ? 0 : 1}].push_back(
              {forward, {send, computed[s] + compute[s].size()}});
        }
        ++at[s];
        progress = true;
      }
      // 2. The device computes what it has the input of.
      while (!compute[s].empty()) {
        const auto& needs = compute[s].front();
        const int side = needs && needs->first.second ? 1 : 0;
        if (needs && received[{needs->first, side}] < needs->second) break;
        compute[s].pop_front();
        ++computed[s];
        progress = true;
      }
    }
    // 3. Messages whose both ends are next.
    for (auto& [key, mine] : queues) {
      if (key.second != 0) continue;
      Queue& theirs = queues[{key.first, 1}];
      while (!mine.empty() && !theirs.empty()) {
        const auto& [forward, low] = mine.front();
        const auto& [their_forward, high] = theirs.front();
        if (forward != their_forward) break;
        const int lower = key.first / 2;
        const Queued& sender = low.send ? low : high;
        if (computed[static_cast<size_t>(low.send ? lower : lower + 1)] < sender.ready_after) break;
        ++received[{{lower, forward}, low.send ? 1 : 0}];
        mine.pop_front();
        theirs.pop_front();
        progress = true;
      }
    }
  }
  for (size_t s = 0; s < count; ++s)
    if (at[s] < stages[s].size() || !compute[s].empty()) return false;
  for (const auto& [key, queue] : queues)
    if (!queue.empty()) return false;
  return true;
}

// Of 2 to 8 stages with 1 to 16 micro-batches, those that hang.
std::set<std::pair<int, int>> Hanging(Meeting meeting, bool one_stream) {
  std::set<std::pair<int, int>> hanging;
  for (int count = 2; count <= 8; ++count) {
    for (int microbatches = 1; microbatches <= 16; ++microbatches) {
      std::vector<std::vector<Action>> all;
      for (int s = 0; s < count; ++s) all.push_back(Build1F1B(s, count, microbatches));
      if (!ComesToItsEnd(all, meeting, one_stream)) hanging.insert({count, microbatches});
    }
  }
  return hanging;
}

TEST(ScheduleTest, ConnectionsMadeBeforeTheStepNeverHangIt) {
  EXPECT_THAT(Hanging(Meeting::kBefore, false), ::testing::IsEmpty());
}

// Why they are made before, and why each direction has a connection of its own.
TEST(ScheduleTest, ConnectionsMadeInTheStepHangIt) {
  std::set<std::pair<int, int>> one_microbatch;
  for (int count = 2; count <= 8; ++count) one_microbatch.insert({count, 1});
  EXPECT_EQ(Hanging(Meeting::kInTheStep, false), one_microbatch);
  EXPECT_EQ(Hanging(Meeting::kInTheStepDrained, false).size(), 112u);
  EXPECT_THAT(Hanging(Meeting::kBefore, true), ::testing::IsSupersetOf(one_microbatch));
}

TEST(ScheduleTest, PrintsTheOrderOfComputation) {
  EXPECT_EQ(ToString(Build1F1B(0, 2, 3)), "F0 F1 B0 F2 B1 B2");
  EXPECT_EQ(ToString(Build1F1B(1, 2, 3)), "F0 B0 F1 B1 F2 B2");
  EXPECT_EQ(ToString(Build1F1B(0, 1, 2)), "F0 B0 F1 B1");
}

}  // namespace
}  // namespace keel::parallel
