#include "tools/launch/job_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "tools/launch/assembly.h"

namespace keel::tools {

using Clock = std::chrono::steady_clock;

namespace {

double Seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

}  // namespace

// Between the launcher's thread and the link's.
struct JobLink::Mailbox {
  mutable std::mutex mutex;
  std::condition_variable changed;

  // To the link.
  bool news = false;  // any of these has changed
  int attempt = 0;
  bool failed = false;
  std::optional<NodeEnd> end;
  bool leave = false;
  bool quit = false;

  // From the link.
  bool joined = false;
  int first_attempt = 0;
  bool complete = false;
  Status status;
  Clock::time_point contact;  // the last round that went well
  bool told_to_end = false;
  bool main_node_ended = false;
  std::optional<Verdict> verdict;
  bool done = false;
};

// The link's thread.
class JobLink::Worker {
 public:
  Worker(JobLinkOptions options, Connect connect, std::shared_ptr<Mailbox> mailbox)
      : options_(std::move(options)),
        connect_(std::move(connect)),
        mailbox_(std::move(mailbox)),
        peers_(static_cast<size_t>(options_.nnodes)) {}

  void Run() {
    Status status;
    try {
      status = Work();
    } catch (const std::exception& error) {
      status = Status(StatusCode::kInternal, error.what());
    }
    const std::lock_guard lock(mailbox_->mutex);
    mailbox_->status = status;
    mailbox_->done = true;
    mailbox_->changed.notify_all();
  }

 private:
  struct Peer {
    std::string beat;
    Clock::time_point heard;
    std::optional<NodeEnd> end;
    bool lost = false;
  };

  Status Work() {
    KEEL_RETURN_IF_ERROR(Join());
    while (true) {
      std::unique_lock lock(mailbox_->mutex);
      mailbox_->changed.wait_for(lock, options_.interval, [&] { return mailbox_->news; });
      mailbox_->news = false;
      if (const int next = mailbox_->attempt; next != attempt_) {
        lock.unlock();
        KEEL_RETURN_IF_ERROR(BeginNext(next));
        lock.lock();
      }
      // Not before: others may wait for this node, and are to hear that it leaves.
      if (mailbox_->quit) return Status::Ok();
      const bool failed = mailbox_->failed;
      const std::optional<NodeEnd> end = mailbox_->end;
      const bool leave = mailbox_->leave;
      lock.unlock();
      if (leave) {
        const Status left = Leave();
        return left.ok() ? left : Lost(left);
      }
      if (const Status status = Exchange(failed, end); !status.ok()) return Lost(status);
      if (was_given_up_) {
        return Status(StatusCode::kUnavailable,
                      fmt::format("node {} was not heard of for too long, and the job at {} waits "
                                  "for another launcher in its place: start keel launch here again",
                                  options_.node, options_.address));
      }
      lock.lock();
      mailbox_->contact = Clock::now();
      if (mailbox_->attempt != attempt_) continue;  // begun meanwhile: what was heard is old
      mailbox_->told_to_end = told_;
      mailbox_->main_node_ended = main_node_ended_;
      mailbox_->verdict = verdict_;
    }
  }

  // The wait of one round; false when the launcher wants to be gone.
  bool Pause() {
    std::unique_lock lock(mailbox_->mutex);
    mailbox_->changed.wait_for(lock, options_.interval, [&] { return mailbox_->quit; });
    return !mailbox_->quit;
  }

  Status Lost(const Status& status) const { return StoreLost(options_, status); }

  // One round of an assembly: the last one went well.
  bool PauseAssembling() {
    {
      const std::lock_guard lock(mailbox_->mutex);
      mailbox_->contact = Clock::now();
    }
    return Pause();
  }

  Status Join() {
    const Clock::time_point deadline = Clock::now() + options_.join_deadline;
    while (store_ == nullptr) {
      auto store = connect_();
      if (store.ok()) {
        store_ = std::move(store).value();
      } else if (store.status().code() == StatusCode::kUsage) {
        return Status(StatusCode::kUsage,
                      fmt::format("node {} may not use the job's store at {}: {}", options_.node,
                                  options_.address, store.status().message()));
      } else if (Clock::now() > deadline) {
        return Status(
            StatusCode::kUnavailable,
            fmt::format("node {} could not reach the job's store at {} within {} s: start "
                        "keel launch with --node-rank 0 there, and check --master-addr "
                        "and --master-port ({})",
                        options_.node, options_.address, Seconds(options_.join_deadline),
                        store.status().message()));
      } else if (!Pause()) {
        return Status(StatusCode::kCancelled, "the launcher was told to end");
      }
    }
    assembly_.emplace(options_, *store_, [this] { return PauseAssembling(); });
    KEEL_ASSIGN_OR_RETURN(const int first, assembly_->TakePlace());
    std::vector<int> others;
    for (int node = 1; node < options_.nnodes; ++node) others.push_back(node);
    KEEL_RETURN_IF_ERROR(assembly_->Gather(first, others));
    BeginAttempt(first);
    const std::lock_guard lock(mailbox_->mutex);
    mailbox_->first_attempt = mailbox_->attempt = first;
    mailbox_->joined = mailbox_->complete = true;
    mailbox_->contact = Clock::now();
    return Status::Ok();
  }

  // The attempt after a verdict.
  Status BeginNext(int attempt) {
    const std::vector<int> awaited = verdict_ ? verdict_->awaited : std::vector<int>();
    BeginAttempt(attempt);
    if (awaited.empty()) return Status::Ok();
    KEEL_RETURN_IF_ERROR(assembly_->Gather(attempt, awaited));
    BeginAttempt(attempt);  // nobody was silent for too long while others were waited for
    const std::lock_guard lock(mailbox_->mutex);
    mailbox_->complete = true;
    return Status::Ok();
  }

  void BeginAttempt(int attempt) {
    attempt_ = attempt;
    sent_failure_ = sent_end_ = told_ = main_node_ended_ = false;
    order_ = NodeEnd::kUnreported;
    verdict_.reset();
    for (Peer& peer : peers_) {
      peer.heard = Clock::now();
      peer.end.reset();
      peer.lost = false;
    }
  }

  std::string Key(const std::string& name) const {
    return fmt::format("attempt_{}/{}", attempt_, name);
  }

  // Says what is to be said, hears what there is to hear.
  Status Exchange(bool failed, const std::optional<NodeEnd>& end) {
    if (failed && !sent_failure_) {
      KEEL_ASSIGN_OR_RETURN(order_, store_->Add(Key("failures"), 1));
      sent_failure_ = true;
    }
    if (end && !sent_end_) {
      NodeEnd complete = *end;
      complete.order = order_;
      KEEL_RETURN_IF_ERROR(
          store_->Set(Key(fmt::format("end/{}", options_.node)), complete.ToText()));
      peers_[static_cast<size_t>(options_.node)].end = complete;
      sent_end_ = true;
    }
    if (!told_) {
      KEEL_ASSIGN_OR_RETURN(const auto failures, store_->TryGet(Key("failures")));
      told_ = failures.has_value();
    }
    const bool due = Clock::now() >= next_beat_;
    if (due) next_beat_ = Clock::now() + kBeatInterval;
    if (options_.node == 0) return due || told_ || sent_end_ ? Gather() : Status::Ok();
    if (due) {
      KEEL_RETURN_IF_ERROR(store_->Add(fmt::format("beat/{}", options_.node), 1).status());
      KEEL_ASSIGN_OR_RETURN(const auto main_node, store_->TryGet(Key("end/0")));
      main_node_ended_ = main_node.has_value();
    }
    if (sent_end_ && !verdict_) {
      KEEL_ASSIGN_OR_RETURN(const auto text, store_->TryGet(Key("verdict")));
      if (text) {
        KEEL_ASSIGN_OR_RETURN(verdict_, Verdict::FromText(*text));
        const std::vector<int>& awaited = verdict_->awaited;
        if (std::find(awaited.begin(), awaited.end(), options_.node) != awaited.end())
          was_given_up_ = true;
      }
    }
    return Status::Ok();
  }

  // Node 0 looks after the others, and decides once all have ended.
  Status Gather() {
    std::vector<NodeEnd> ends;
    for (int node = 0; node < options_.nnodes; ++node) {
      Peer& peer = peers_[static_cast<size_t>(node)];
      if (node != 0 && !peer.end) KEEL_RETURN_IF_ERROR(Hear(node, peer));
      if (peer.end) ends.push_back(*peer.end);
    }
    if (verdict_ || ends.size() < peers_.size()) return Status::Ok();
    const Verdict verdict = Decide(ends, attempt_, options_.max_restarts);
    KEEL_RETURN_IF_ERROR(store_->Set(Key("verdict"), verdict.ToText()));
    verdict_ = verdict;
    return Status::Ok();
  }

  Status Hear(int node, Peer& peer) {
    KEEL_ASSIGN_OR_RETURN(const auto text, store_->TryGet(Key(fmt::format("end/{}", node))));
    if (text) {
      KEEL_ASSIGN_OR_RETURN(peer.end, NodeEnd::FromText(*text));
      return Status::Ok();
    }
    KEEL_ASSIGN_OR_RETURN(const auto beat, store_->TryGet(fmt::format("beat/{}", node)));
    if (beat && *beat != peer.beat) {
      peer.beat = *beat;
      peer.heard = Clock::now();
    }
    const auto limit = told_ ? std::min(options_.silence_limit, options_.failing_silence_limit)
                             : options_.silence_limit;
    if (Clock::now() - peer.heard <= limit) return Status::Ok();
    NodeEnd lost;
    lost.lost = true;
    KEEL_ASSIGN_OR_RETURN(lost.order, store_->Add(Key("failures"), 1));
    lost.failure = Failure{Blame::kFailed, ExitCodeFor(StatusCode::kUnavailable),
                           fmt::format("node {} was lost: its launcher was not heard of for {} s",
                                       node, Seconds(limit)),
                           "", ""};
    peer.end = lost;
    peer.lost = true;
    return Status::Ok();
  }

  Status Leave() {
    if (options_.node != 0) {
      // The store may close while it answers.
      static_cast<void>(store_->Add("left", 1));
      return Status::Ok();
    }
    const auto lost =
        std::count_if(peers_.begin(), peers_.end(), [](const Peer& p) { return p.lost; });
    do {
      KEEL_ASSIGN_OR_RETURN(const auto left, store_->TryGet("left"));
      if (std::atoll(left.value_or("0").c_str()) >= options_.nnodes - 1 - lost) break;
    } while (Pause());
    return Status::Ok();
  }

  const JobLinkOptions options_;
  const Connect connect_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::unique_ptr<JobStore> store_;
  std::vector<Peer> peers_;  // by node; on node 0, and its own entry elsewhere
  int attempt_ = 0;
  bool sent_failure_ = false;
  bool sent_end_ = false;
  bool told_ = false;
  bool main_node_ended_ = false;
  int64_t order_ = NodeEnd::kUnreported;
  std::optional<Verdict> verdict_;
  Clock::time_point next_beat_;
  std::optional<Assembly> assembly_;
  bool was_given_up_ = false;  // by node 0, while this node's launcher lives
};

JobLink::JobLink(JobLinkOptions options, Connect connect)
    : options_(std::move(options)), mailbox_(std::make_shared<Mailbox>()) {
  auto worker = std::make_shared<Worker>(options_, std::move(connect), mailbox_);
  thread_ = std::thread([worker] { worker->Run(); });
}

JobLink::~JobLink() {
  std::unique_lock lock(mailbox_->mutex);
  mailbox_->quit = mailbox_->news = true;
  mailbox_->changed.notify_all();
  const bool done = mailbox_->changed.wait_for(lock, options_.interval + std::chrono::seconds(1),
                                               [&] { return mailbox_->done; });
  lock.unlock();
  if (done) {
    thread_.join();
  } else {
    thread_.detach();  // stuck in the store; it owns all that it uses
  }
}

bool JobLink::joined() const {
  const std::lock_guard lock(mailbox_->mutex);
  return mailbox_->joined;
}

int JobLink::first_attempt() const {
  const std::lock_guard lock(mailbox_->mutex);
  return mailbox_->first_attempt;
}

bool JobLink::complete() const {
  const std::lock_guard lock(mailbox_->mutex);
  return mailbox_->complete;
}

Status JobLink::status() const {
  const std::lock_guard lock(mailbox_->mutex);
  if (!mailbox_->status.ok() || !mailbox_->joined) return mailbox_->status;
  const bool failing = mailbox_->failed || mailbox_->told_to_end;
  const auto limit = failing ? std::min(options_.silence_limit, options_.failing_silence_limit)
                             : options_.silence_limit;
  if (mailbox_->done || Clock::now() - mailbox_->contact <= limit) return Status::Ok();
  return Status(StatusCode::kUnavailable,
                fmt::format("node {} has had no answer for {} s from the job's store at {}, which "
                            "node 0's launcher serves: is that node up, and the network?",
                            options_.node, Seconds(limit), options_.address));
}

void JobLink::Begin(int attempt) {
  const std::lock_guard lock(mailbox_->mutex);
  mailbox_->attempt = attempt;
  mailbox_->failed = mailbox_->told_to_end = mailbox_->main_node_ended = false;
  mailbox_->complete = !mailbox_->verdict || mailbox_->verdict->awaited.empty();
  mailbox_->end.reset();
  mailbox_->verdict.reset();
  mailbox_->news = true;
  mailbox_->changed.notify_all();
}

void JobLink::ReportFailure() {
  const std::lock_guard lock(mailbox_->mutex);
  mailbox_->failed = mailbox_->news = true;
  mailbox_->changed.notify_all();
}

void JobLink::ReportEnd(NodeEnd end) {
  const std::lock_guard lock(mailbox_->mutex);
  mailbox_->end = std::move(end);
  mailbox_->news = true;
  mailbox_->changed.notify_all();
}

bool JobLink::told_to_end() const {
  const std::lock_guard lock(mailbox_->mutex);
  return mailbox_->told_to_end;
}

bool JobLink::main_node_ended() const {
  const std::lock_guard lock(mailbox_->mutex);
  return mailbox_->main_node_ended;
}

std::optional<Verdict> JobLink::verdict() const {
  const std::lock_guard lock(mailbox_->mutex);
  return mailbox_->verdict;
}

void JobLink::Leave(std::chrono::milliseconds deadline) {
  std::unique_lock lock(mailbox_->mutex);
  mailbox_->leave = mailbox_->news = true;
  mailbox_->changed.notify_all();
  mailbox_->changed.wait_for(lock, deadline, [&] { return mailbox_->done; });
}

}  // namespace keel::tools
