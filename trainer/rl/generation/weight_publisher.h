// WeightPublisher: gives rollout workers the trainer's weights, beside the next step's computing.
//
// A link is a process group of the ranks of one data-parallel replica of the trainers and one
// worker's; over each, WeightSync sends a version and proves that it arrived. A link that fails
// costs its worker and nothing else; the desk's word that a worker is lost ends what waits for it.
// A push that was started reads the weights until it ends: BeforeWrite, called with memory that is
// about to change, waits for it. Used from the training thread. Methods are collective over all
// ranks that train unless they say otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/groups/process_group.h"
#include "trainer/desk/desk.h"
#include "trainer/engine/train_engine.h"
#include "trainer/run/job.h"
#include "trainer/sync/rollout_model.h"
#include "trainer/sync/weight_sync.h"

namespace keel::trainer::rl {

class WeightPublisher {
 public:
  // `actor` must outlive this, and so must `desk`, which is rank 0's and null on the others.
  WeightPublisher(Job& job, TrainEngine& actor, const WeightSyncOptions& sync, desk::Desk* desk);
  ~WeightPublisher();  // waits for a push; not collective
  WeightPublisher(const WeightPublisher&) = delete;
  WeightPublisher& operator=(const WeightPublisher&) = delete;

  // With each worker that is there and has no link; then the present weights.
  void MakeLinks();

  // Weights of version `number` to all workers that have a link. Returns once they are theirs.
  // Throws Error(kDataLoss) unless their digest is `expected`, if that is not 0.
  WeightUpdate Publish(int64_t number, uint64_t expected);
  // The same without waiting, where these weights can be read while a step computes with them; they
  // cannot where they must be loaded first. What it returns is of the push that ended last;
  // `blocked` is all the training thread has waited for pushes since the last call.
  WeightUpdate Start(int64_t number);
  // Waits for a push that was started. Throws what it failed of, which is no worker's loss.
  void Settle();

  // Of what the trainer has: the newest number; its digest is 0 while its push is under way.
  const WeightVersion& version() const { return version_; }
  // The newest that has been proved to have arrived.
  const WeightVersion& proved() const { return proved_; }

  // Not collective.
  void BeforeWrite(const void* begin, size_t bytes);

 private:
  // A worker's, on the trainers that send to it; null on the others.
  struct Link {
    std::unique_ptr<std::atomic<bool>> given_up = std::make_unique<std::atomic<bool>>(false);
    std::unique_ptr<parallel::ProcessGroup> group;
    std::unique_ptr<WeightSync> sync;
    std::unique_ptr<WeightSync>
        base;  // of adapters: for what they stand beside, which is sent once
  };
  // What became of a link on the ranks of its replica.
  struct LinkEnd {
    std::string problem;  // "": none
    uint64_t digest = 0;
    WeightSyncReport report;  // of this rank
  };
  struct Outcome {
    uint64_t digest = 0;
    WeightUpdate update;
  };
  using Ends = std::map<int64_t, LinkEnd>;  // by worker

  // Of what a push sends, and of what adapters stand beside, which a link is made with.
  struct Tables {
    ShardTable own, base;
  };

  std::unique_ptr<parallel::ProcessGroup> MakeGroup(const std::string& name, std::vector<int> ranks,
                                                    bool cuda,
                                                    const std::atomic<bool>* given_up) const;
  // What `links` comes to, which this rank is doing at the links with `workers`. All ranks wait for
  // each other, however long one of them takes, and hear meanwhile whom the desk has given up.
  Ends Await(std::future<Ends> links, const std::vector<int64_t>& workers);
  // What `mine` comes to on all ranks of `group`; workers with a problem are dropped.
  Ends Gather(parallel::ProcessGroup& group, Ends mine);
  void MakeLink(int64_t worker, const std::vector<int>& trainers, const std::vector<int>& ranks,
                const Tables& tables);
  LinkEnd Send(int64_t worker, int64_t number, const ShardTable& table);
  LinkEnd SendBase(int64_t worker, const ShardTable& base);
  // `send` for each of them, at several links at a time.
  Ends OverLinks(const std::vector<int64_t>& workers,
                 const std::function<LinkEnd(int64_t worker)>& send);
  // Sends; the digest of what arrived, 0: nobody was there.
  Outcome Push(parallel::ProcessGroup& group, const std::vector<int64_t>& workers, int64_t number,
               const ShardTable& table);
  // The same, and the version counts. `steps`: see Desk::Steps.
  Outcome PushAndCount(parallel::ProcessGroup& group, const std::vector<int64_t>& workers,
                       int64_t number, uint64_t expected, const ShardTable& table,
                       const desk::Desk::StepCounts& steps);
  // Those that have a link, the same on every rank; others' links end.
  std::vector<int64_t> Linked();
  // Whether the weights lie where links read them.
  bool AtHand();
  Tables TablesHere();

  Job& job_;
  TrainEngine& actor_;
  const WeightSyncOptions sync_options_;
  desk::Desk* const desk_;
  // Of all that train, for pushes beside the step, since a group is one thread's; `words_`, of
  // host memory, is Await's.
  std::unique_ptr<parallel::ProcessGroup> beside_, words_;
  std::map<int64_t, Link> links_;  // by worker, the same on every rank
  WeightVersion version_, proved_;
  std::future<Outcome> push_;  // valid: one was started and not settled
  WeightUpdate last_;          // of the push that ended last
  double blocked_s_ = 0;       // until the next Start
};

}  // namespace keel::trainer::rl
