// JobLink: what the launchers of a job's nodes tell each other, through the store at node 0.
//
// A thread of its own talks to the store, since a call to a store that has fallen silent may block
// for minutes; the methods only exchange what that thread has to say and what it has heard. Used
// from one thread. Per attempt: the first failure on any node tells all to end their ranks; each
// node then hands in its end; node 0 gathers them and publishes the verdict. A node that is silent
// for too long counts as lost. The keys are described in job_link.cc.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/status.h"
#include "tools/launch/verdict.h"

namespace keel::tools {

// A client of the job's key-value store. Not thread-safe.
class JobStore {
 public:
  virtual ~JobStore() = default;
  virtual Status Set(const std::string& key, const std::string& value) = 0;
  // Nothing while the key does not exist; an error when the store is gone.
  virtual Result<std::optional<std::string>> TryGet(const std::string& key) = 0;
  // The sum; a key that does not exist counts as 0.
  virtual Result<int64_t> Add(const std::string& key, int64_t amount) = 0;
};

struct JobLinkOptions {
  int node = 0;
  int nnodes = 1;
  std::string address;    // of the store, for messages
  std::string agreement;  // the flags that must be the same on every node, as text
  int max_restarts = 0;
  std::chrono::milliseconds join_deadline{600'000};  // for all nodes to be there
  std::chrono::milliseconds silence_limit{60'000};   // after which a node counts as lost
  // The same once a failure is known: nothing is left to lose but the time of the others.
  std::chrono::milliseconds failing_silence_limit{10'000};
  std::chrono::milliseconds interval{250};  // between two looks at the store
};

class JobLink {
 public:
  // Tries once to connect, for a few seconds at most. Called from the link's thread.
  using Connect = std::function<Result<std::unique_ptr<JobStore>>()>;

  // Starts to join the job.
  JobLink(JobLinkOptions options, Connect connect);
  // Leaves a thread that is stuck in the store behind after `interval` and a second.
  ~JobLink();
  JobLink(const JobLink&) = delete;
  JobLink& operator=(const JobLink&) = delete;

  // All nodes are there and agree on their flags.
  bool joined() const;
  // An error that names the store's address, once the job cannot be joined or the store is lost.
  Status status() const;

  // Forgets the last attempt. The next four are about this one.
  void Begin(int attempt);
  // A rank of this node has failed: the other nodes are told to end theirs.
  void ReportFailure();
  // All ranks of this node have ended. `end.order` is filled in on the way.
  void ReportEnd(NodeEnd end);
  bool told_to_end() const;
  std::optional<Verdict> verdict() const;

  // After the last verdict. Node 0 waits for the others to have read it, so that its store may
  // close.
  void Leave(std::chrono::milliseconds deadline);

 private:
  struct Mailbox;
  class Worker;

  const JobLinkOptions options_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::thread thread_;
};

}  // namespace keel::tools
