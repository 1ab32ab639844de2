// Desk: where an asynchronous or split RL run's samples are: asks workers for them, over
// connections that these open, and hands whole batches to the step.
//
// On trainer rank 0. A thread of its own moves bytes and drives DeskProtocol, which owns the
// ledgers; the training thread opens streams of samples, publishes versions and takes batches. What
// a worker does wrong, or its end, costs the worker: its samples go to others. Torch-free. Methods
// are for any thread; what they do to links and versions, for one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/log.h"
#include "common/status.h"
#include "trainer/desk/desk_streams.h"
#include "trainer/desk/messages.h"

namespace keel::trainer::desk {

struct DeskSettings {
  std::string host;                          // to listen at; "": all interfaces
  std::string secret;                        // that workers prove
  std::chrono::milliseconds worker_timeout;  // of silence, after which one is lost
  int port = 0;                              // 0: any free one
  int64_t min_workers = 1;                   // see For::kWorkers
  int64_t first_rank = 0;                    // of workers that join
  std::string job;                           // what these hear: see Joined
  std::map<std::string, std::string> facts;  // that workers must have, too
  // What decides how the ranks that train round: a worker with another value is warned of.
  std::map<std::string, std::string> rounding;
};

class Desk {
 public:
  static Result<std::unique_ptr<Desk>> Start(DeskSettings settings, Logger& log);
  ~Desk();  // says Bye to all, and whether the run is over
  Desk(const Desk&) = delete;
  Desk& operator=(const Desk&) = delete;
  int port() const;

  // Streams. `ledger`: what a checkpoint holds of it, or its first position and steps.
  // kInvalidData: that cannot be of this stream.
  Status Open(Stream stream, StreamOptions options, Ledger ledger);
  void Close(Stream stream);
  bool Has(Stream stream) const;
  // The stream's next batch; see DeskProtocol.
  using Batch = StreamBatch;
  Batch Take(Stream stream);
  void More(Stream stream);
  Ledger LedgerOf(Stream stream) const;

  // All steps of the run are done.
  void Finish();

  // Workers. Those that have said hello and have no link; then what becomes of each: a group to
  // make, or its end with `why`. Links are made and pushes done while it hears of them.
  struct Newcomer {
    int64_t worker = 0;
    std::string name;
    std::vector<int> ranks;
  };
  std::vector<Newcomer> Newcomers() const;
  std::vector<int64_t> Linked() const;
  // Whether it has said hello and was not lost since.
  bool IsThere(int64_t worker) const;
  void TellLink(int64_t worker, const LinkUp& link);
  void TellPush(int64_t worker, int64_t version);
  void Drop(int64_t worker, const std::string& why);

  using StepCounts = desk::StepCounts;
  StepCounts Steps() const;
  // Weights of `version`, with the updates of `steps`, have arrived at every linked worker that was
  // not dropped. A worker that says another digest is dropped.
  Status Publish(int64_t version, uint64_t digest, const StepCounts& steps);

  // Waits until the stream's next batch is whole; for newer weights, until the stream's schedule
  // wants those that there are no more (DeskProtocol::Settled); or until min_workers are linked.
  // Ends sooner where a newcomer is there or `patience` is over. Throws what a worker says no
  // worker of this run can do (kConfig).
  enum class For { kBatch, kWeights, kWorkers };
  enum class Event { kNothing, kReady, kNewcomer };
  Event Wait(Stream stream, For what, std::chrono::milliseconds patience);
  // How long there has been no worker that serves; 0: there is one.
  std::chrono::milliseconds alone() const;

  struct Counts {
    DeskProtocol::Counts samples;   // of the stream
    int64_t workers = 0;            // that are linked
    int64_t lost = 0;               // since the start
    int64_t reassigned_tokens = 0;  // since then, of all streams
    double up_s = 0, idle_s = 0;  // since then, of all workers: there, and with nothing to generate
    int64_t tokens = 0;           // since then, of all workers
    int64_t recomputed_tokens = 0;  // likewise, computed again by a worker that had computed them
  };
  Counts counts(Stream stream) const;

 private:
  class Impl;
  explicit Desk(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace keel::trainer::desk
