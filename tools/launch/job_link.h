// JobLink: what the launchers of a job's nodes tell each other, through the store at node 0.
//
// A thread of its own talks to the store, since a call to a store that has fallen silent may block
// for minutes; the methods only exchange what that thread has to say and what it has heard. Used
// from one thread. Per attempt: the first failure on any node tells all to end their ranks; each
// node then hands in its end; node 0 gathers them and publishes the verdict. A node that is silent
// for too long counts as lost; a launcher that is started there again takes its place in the next
// attempt. The keys are described in job_link_options.h.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/status.h"
#include "tools/launch/job_link_options.h"
#include "tools/launch/job_store.h"
#include "tools/launch/verdict.h"

namespace keel::tools {

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
  // Once joined: the attempt with which this node begins. 0, or where it takes the place of a lost
  // one a later one.
  int first_attempt() const;
  // An error that names the store's address, once the job cannot be joined or the store is lost.
  Status status() const;

  // Forgets the last attempt. The next five are about this one.
  void Begin(int attempt);
  // All nodes are there for it. Not before those that the last verdict awaits have come back.
  bool complete() const;
  // A rank of this node has failed: the other nodes are told to end theirs.
  void ReportFailure();
  // All ranks of this node have ended. `end.order` is filled in on the way.
  void ReportEnd(NodeEnd end);
  bool told_to_end() const;
  // Not on node 0: that one has handed in its end.
  bool main_node_ended() const;
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
