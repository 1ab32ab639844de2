#include "rollout/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>

namespace keel::rollout {
namespace {

Request MakeRequest(uint64_t prompt_id, int sample, int prompt, int64_t max_tokens) {
  Request request;
  request.prompt_id = prompt_id;
  request.sample = sample;
  for (int i = 0; i < prompt; ++i)
    request.prompt.push_back(
        static_cast<int32_t>((prompt_id * 31 + static_cast<uint64_t>(i)) % 97));
  request.sampling.max_tokens = max_tokens;
  return request;
}

// Runs requests to their end with a model of the cache in which each token's place remembers the
// tokens up to it and the weights that computed it: what a sequence reads must be its own history.
class Simulation {
 public:
  Simulation(const SchedulerOptions& options, int blocks, int block_size, bool caching,
             std::vector<int64_t> windows = {0})
      : options_(options),
        windows_(windows),
        blocks_(blocks, block_size, caching, windows),
        scheduler_(options, blocks_),
        memory_(static_cast<size_t>(blocks * block_size)) {}

  Sequence* Add(Request request) {
    const Status fits = scheduler_.CheckLengths(static_cast<int64_t>(request.prompt.size()),
                                                request.sampling.max_tokens);
    EXPECT_TRUE(fits.ok()) << fits.message();
    sequences_.push_back(
        std::make_unique<Sequence>(static_cast<int64_t>(sequences_.size()), std::move(request)));
    scheduler_.Add(sequences_.back().get());
    return sequences_.back().get();
  }

  // The next token is a function of the history alone.
  static int32_t Next(const Sequence& s) {
    uint32_t hash = static_cast<uint32_t>(s.request.sample);
    for (const int32_t token : s.tokens) hash = hash * 1000003u + static_cast<uint32_t>(token);
    return static_cast<int32_t>(hash % 97);
  }

  void NewWeights(bool keep) {
    if (keep) {
      scheduler_.PreemptUnbegun();
    } else {
      scheduler_.PreemptAll();
    }
    blocks_.SetVersion(++version_);
  }

  void Step() {
    const StepPlan plan = scheduler_.Schedule();
    ASSERT_FALSE(plan.work.empty()) << "stuck";
    for (const ScheduledTokens& work : plan.work) {
      Computed& own = computed_[work.sequence];
      if (own.preempted != work.sequence->preempted) own = {work.sequence->preempted, {}};
      // What was found is of the present weights; what it has kept stands there already.
      own.versions.resize(static_cast<size_t>(work.begin + work.count), version_);
      kept_ += own.versions.front() != version_;
      for (const Sequence* follower : work.followers)
        computed_[follower] = {follower->preempted, own.versions};
      const bool whole = std::count(own.versions.begin(), own.versions.end(), version_) ==
                         std::ssize(own.versions);
      EXPECT_TRUE(work.sequence->generated() > 0 || whole) << "it begins with two versions";
    }
    const int size = blocks_.block_size();
    for (const BlockCopy& copy : plan.copies) {
      for (int i = 0; i < size; ++i)
        memory_[static_cast<size_t>(copy.to * size + i)] =
            memory_[static_cast<size_t>(copy.from * size + i)];
    }
    int64_t tokens = 0;
    int64_t last_arrival = -1;
    bool waiting_part = false;
    std::set<const Sequence*> seen;
    for (const ScheduledTokens& work : plan.work) {
      Sequence& s = *work.sequence;
      EXPECT_TRUE(seen.insert(&s).second);
      tokens += work.count;
      EXPECT_GE(work.count, 1);
      EXPECT_EQ(work.begin + work.count, s.computed);
      // Arrival order within the running ones, then within the admitted ones.
      if (s.arrival < last_arrival) {
        EXPECT_FALSE(waiting_part) << "more than two runs of arrivals";
        waiting_part = true;
      }
      last_arrival = s.arrival;
      EXPECT_TRUE(options_.enable_chunked_prefill || s.computed == s.size());
      for (int64_t p = work.begin; p < work.begin + work.count; ++p)
        for (size_t group = 0; group < windows_.size(); ++group) At(s, group, p) = Known(s, p);
      EXPECT_EQ(work.sample, s.computed == s.size() && s.request.sampling.max_tokens > 0);
    }
    EXPECT_EQ(tokens, plan.tokens);
    EXPECT_LE(tokens, options_.max_num_batched_tokens);
    EXPECT_LE(scheduler_.running(), options_.max_num_seqs);
    // Attention reads every earlier place of the sequence that its window reaches.
    for (const ScheduledTokens& work : plan.work) {
      std::vector<const Sequence*> readers = {work.sequence};
      readers.insert(readers.end(), work.followers.begin(), work.followers.end());
      for (const Sequence* s : readers) {
        for (size_t group = 0; group < windows_.size(); ++group) {
          const int64_t window = windows_[group];
          for (int64_t p = window > 0 ? std::max<int64_t>(0, work.begin - window + 1) : 0;
               p < s->computed; ++p) {
            ASSERT_EQ(At(*s, group, p), Known(*s, p))
                << "position " << p << " of sequence " << s->arrival << " in group " << group;
          }
        }
      }
    }
    most_blocks_ = std::max(most_blocks_, blocks_.num_blocks() - blocks_.available());
    scheduler_.Computed(plan);
    for (const ScheduledTokens& work : plan.work) {
      std::vector<Sequence*> choosers;
      if (work.sample) choosers.push_back(work.sequence);
      choosers.insert(choosers.end(), work.followers.begin(), work.followers.end());
      for (Sequence* s : choosers) {
        s->tokens.push_back(Next(*s));
        if (s->generated() == s->request.sampling.max_tokens) End(s);
      }
      if (!work.sample && work.sequence->request.sampling.max_tokens == 0 &&
          work.sequence->computed == work.sequence->prompt_size)
        End(work.sequence);
    }
    ++steps_;
  }

  void Run() {
    while (!scheduler_.idle()) {
      Step();
      if (::testing::Test::HasFatalFailure()) return;
      ASSERT_LT(steps_, 100'000) << "no end";
    }
    EXPECT_EQ(blocks_.available(), blocks_.num_blocks()) << "blocks leaked";
    for (const auto& s : sequences_) {
      Sequence expected(0, s->request);
      for (int64_t i = 0; i < s->request.sampling.max_tokens; ++i)
        expected.tokens.push_back(Next(expected));
      EXPECT_EQ(s->tokens, expected.tokens);
    }
  }

  Scheduler& scheduler() { return scheduler_; }
  BlockManager& blocks() { return blocks_; }
  const std::vector<int64_t>& ended() const { return ended_; }
  int steps() const { return steps_; }
  int64_t most_blocks() const { return most_blocks_; }
  int64_t kept() const { return kept_; }  // steps of sequences with what older weights computed

 private:
  struct Computed {
    int64_t preempted = 0;
    std::vector<int> versions;  // of the weights, by token
  };
  // What is kept of a token: the text up to it, and how the text turned.
  std::vector<int32_t> Known(const Sequence& s, int64_t position) const {
    std::vector<int32_t> known(s.tokens.begin(), s.tokens.begin() + position + 1);
    known.push_back(options_.turns_at > 0 && s.size() > options_.turns_at ? -1 : -2);
    known.push_back(computed_.at(&s).versions.at(static_cast<size_t>(position)));
    return known;
  }
  std::vector<int32_t>& At(const Sequence& s, size_t group, int64_t position) {
    const int64_t size = blocks_.block_size();
    const int32_t block = s.table.blocks.at(group).at(static_cast<size_t>(position / size));
    return memory_.at(static_cast<size_t>(block * size + position % size));
  }
  void End(Sequence* s) {
    ended_.push_back(s->arrival);
    scheduler_.Remove(s);
  }

  SchedulerOptions options_;
  std::vector<int64_t> windows_;
  BlockManager blocks_;
  Scheduler scheduler_;
  std::vector<std::vector<int32_t>> memory_;  // by place
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<int64_t> ended_;
  int steps_ = 0;
  int64_t most_blocks_ = 0;
  int version_ = 0;
  std::map<const Sequence*, Computed> computed_;
  int64_t kept_ = 0;
};

TEST(SchedulerTest, SamplesOfAPromptShareItsBlocksAndComputeItOnce) {
  for (const bool caching : {true, false}) {
    Simulation run({64, 16, true}, 64, 4, caching);
    for (int sample = 0; sample < 8; ++sample) run.Add(MakeRequest(7, sample, 10, 5));
    run.Step();
    EXPECT_EQ(run.scheduler().running(), 8);
    EXPECT_EQ(run.blocks().num_blocks() - run.blocks().available(), 3);  // ten tokens, once
    run.Step();
    EXPECT_EQ(run.blocks().num_blocks() - run.blocks().available(), 2 + 8);  // their own ends
    run.Run();
    EXPECT_EQ(run.scheduler().prefix_hits(), 70);
    EXPECT_EQ(run.steps(), 5);
  }
}

TEST(SchedulerTest, APromptIsComputedInPartsBesideRunningSequences) {
  Simulation run({8, 4, true}, 64, 4, true);
  run.Add(MakeRequest(1, 0, 4, 20));
  run.Step();
  run.Add(MakeRequest(2, 0, 30, 1));
  run.Step();  // one token of the first, seven of the second
  EXPECT_EQ(run.scheduler().running(), 2);
  for (int i = 0; i < 4; ++i) run.Step();
  EXPECT_EQ(run.ended(), std::vector<int64_t>{1});
  run.Run();
}

TEST(SchedulerTest, EqualRequestsEndInTheOrderOfArrival) {
  Simulation run({16, 3, true}, 40, 4, true);
  for (uint64_t i = 0; i < 20; ++i) run.Add(MakeRequest(i, 0, 6, 4));
  run.Run();
  EXPECT_TRUE(std::is_sorted(run.ended().begin(), run.ended().end()));
}

TEST(SchedulerTest, TheYoungestGivesWayWhenBlocksRunOut) {
  Simulation run({64, 8, true}, 6, 4, false);
  Sequence* oldest = run.Add(MakeRequest(1, 0, 4, 17));
  Sequence* youngest = run.Add(MakeRequest(2, 0, 4, 17));
  run.Run();
  EXPECT_EQ(oldest->preempted, 0);
  EXPECT_GT(youngest->preempted, 0);
}

// A pool for the window, and no more, serves a text of any length, its prompt in parts.
TEST(SchedulerTest, AWindowNeedsNoMoreBlocksThanItReaches) {
  for (const bool caching : {true, false}) {
    Simulation run({64, 8, true}, 4, 4, caching, {10});
    Sequence* first = run.Add(MakeRequest(1, 0, 50, 60));
    run.Add(MakeRequest(2, 0, 30, 5));
    run.Add(MakeRequest(2, 1, 30, 5));
    run.Run();
    EXPECT_EQ(first->preempted, 0);
    EXPECT_LE(run.most_blocks(), 4);
    // With room for larger parts, and layers that see everything beside it.
    Simulation both({64, 8, true}, 28 + 4, 4, caching, {0, 10});
    both.Add(MakeRequest(1, 0, 50, 60));
    both.Run();
    EXPECT_LE(both.most_blocks(), 32);
  }
  BlockManager blocks(3, 4, true, {10});
  Scheduler scheduler({64, 8, true}, blocks);
  EXPECT_NE(scheduler.CheckLengths(50, 60).message().find("4 blocks"), std::string::npos);
}

TEST(SchedulerTest, WhatCanNeverBeServedIsRefusedWithTheReason) {
  BlockManager blocks(4, 4, true);
  Scheduler scheduler({8, 4, false}, blocks);
  EXPECT_NE(scheduler.CheckLengths(10, 8).message().find("5 blocks"), std::string::npos);
  EXPECT_NE(scheduler.CheckLengths(8, 2).message().find("max_num_batched_tokens 8"),
            std::string::npos);
  EXPECT_TRUE(scheduler.CheckLengths(5, 4).ok());
  EXPECT_THROW(Scheduler({0, 0, true}, blocks), Error);
}

TEST(SchedulerTest, RandomLoadsEndWithTheRightTokensWithinEveryBudget) {
  int64_t preemptions = 0, hits = 0, kept = 0;
  for (uint32_t seed = 0; seed < 240; ++seed) {
    std::mt19937 random(seed);
    const auto between = [&](int low, int high) {
      return low + static_cast<int>(random() % static_cast<uint32_t>(high - low + 1));
    };
    const int size = between(1, 6);
    const int longest = 36;
    const bool chunked = seed % 3 != 0;
    SchedulerOptions options;
    options.max_num_batched_tokens = chunked ? between(1, 40) : between(longest, 80);
    options.max_num_seqs = between(1, 10);
    options.turns_at = seed % 5 == 0 ? between(3, 30) : 0;
    options.enable_chunked_prefill = chunked;
    const std::vector<std::vector<int64_t>> kinds = {{0}, {5}, {0, 7}, {3, 0, 9}};
    const std::vector<int64_t>& windows = kinds[seed / 6 % 4];
    const BlockManager one(1, size, false, windows);
    const auto least = static_cast<int>(one.MostBlocks(longest, chunked ? 1 : longest));
    Simulation run(options, least + between(0, 20), size, seed % 2 == 0, windows);
    for (int i = between(3, 25); i > 0; --i) {
      const auto id = static_cast<uint64_t>(between(0, 6));
      const int prompt = 1 + static_cast<int>(id) * 3;
      Request request = MakeRequest(id, between(0, 5), prompt, between(1, longest - prompt));
      if (between(0, 9) == 0) {
        request.sampling.prompt_log_probs = true;
        request.sampling.max_tokens = 0;
      }
      run.Add(std::move(request));
      if (between(0, 2) == 0 && !run.scheduler().idle()) run.Step();
      if (between(0, 15) == 0) run.scheduler().PreemptAll();
      if (between(0, 7) == 0) run.NewWeights(seed / 2 % 2 == 0);
    }
    run.Run();
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
    preemptions += run.scheduler().preemptions();
    hits += run.scheduler().prefix_hits();
    kept += run.kept();
  }
  EXPECT_GT(preemptions, 100);  // or the loads were too light to say anything
  EXPECT_GT(hits, 1000);
  EXPECT_GT(kept, 1000);
}

}  // namespace
}  // namespace keel::rollout
