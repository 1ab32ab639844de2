#include "tools/launch/launcher.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "common/clock.h"
#include "common/files/open_files.h"
#include "common/process/signal_handler.h"
#include "common/terminal.h"
#include "common/text.h"
#include "parallel/store/store_server.h"
#include "tools/launch/job_link.h"
#include "tools/launch/node_ranks.h"
#include "tools/launch/orphans.h"
#include "tools/launch/stop_requests.h"
#include "tools/launch/verdict.h"

namespace keel::tools {

namespace {

// For the other nodes to read the last verdict before node 0's store closes.
constexpr std::chrono::milliseconds kLeaveDeadline{10'000};

// Nodes that are started together are there sooner.
constexpr std::chrono::seconds kQuietWait{10};

void Say(const std::string& text) {
  WriteStderr(fmt::format("keel launch: {}\n", PrintableLines(text)));
  std::fflush(stderr);
}

// The lines of a message as one: "does not hold together: this; that".
std::string OneLine(std::string_view text) {
  std::string line;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view part = Trim(text.substr(begin, end - begin));
    begin = end + 1;
    if (part.empty()) continue;
    if (!line.empty()) line += line.back() == ':' ? " " : "; ";
    line += part;
  }
  return line;
}

class NodeLauncher {
 public:
  // `link` is null on a single node.
  NodeLauncher(const LaunchOptions& options, std::string address, int port, int signal_fd,
               ScratchDirectory& scratch, JobLink* link)
      : options_(options),
        address_(std::move(address)),
        port_(port),
        signal_fd_(signal_fd),
        scratch_(scratch),
        link_(link),
        stop_(options.shutdown_timeout) {}

  Result<int> Run() {
    KEEL_RETURN_IF_ERROR(WaitForOtherNodes(&JobLink::joined));
    if (stop_.number() != 0) return ToldToStop();
    for (int attempt = link_ != nullptr ? link_->first_attempt() : 0;; ++attempt) {
      if (link_ != nullptr) link_->Begin(attempt);
      KEEL_RETURN_IF_ERROR(WaitForOtherNodes(&JobLink::complete));
      if (link_ != nullptr && !link_->complete()) return ToldToStop();
      const NodeEnd end = RunAttempt(attempt);
      const Result<Verdict> verdict = Agree(end, attempt);
      if (!verdict.ok()) {
        // No word from the others. What is known here is all, unless it only follows from that.
        if (end.failure && end.failure->blame < Blame::kLostPeer)
          Announce(Decide(std::span(&end, 1), attempt, attempt), attempt);
        if (verdict.status().code() == StatusCode::kCancelled) return ToldToStop();
        return verdict.status();
      }
      Announce(*verdict, attempt);
      if (!verdict->restart) {
        if (link_ != nullptr) link_->Leave(kLeaveDeadline);
        return verdict->exit_code;
      }
      if (!verdict->awaited.empty()) {
        Say(fmt::format(
            "waits {} s for node(s) {} to come back: start keel launch there again, with "
            "the same flags (--rdzv-conf join_timeout=SECONDS sets how long)",
            options_.join_timeout.count() / 1000, fmt::join(verdict->awaited, ", ")));
      }
      Say(fmt::format("restart {} of {}", attempt + 1, options_.max_restarts));
    }
  }

 private:
  // While no rank runs here that could save and say 75.
  int ToldToStop() const {
    const int code = 128 + stop_.number();
    Say(
        fmt::format("told to stop by signal {} ({}) while it waited for other nodes: no rank runs "
                    "here, what was saved stays (exit code {})",
                    stop_.number(), strsignal(stop_.number()), code));
    return code;
  }

  // Until all are there, or a signal says not to.
  Status WaitForOtherNodes(bool (JobLink::*all_there)() const) {
    if (link_ == nullptr) return Status::Ok();
    const std::chrono::nanoseconds since = SystemClock().Monotonic();
    bool said = false;
    while (!(link_->*all_there)() && stop_.number() == 0) {
      if (!said && SystemClock().Monotonic() - since > kQuietWait) {
        said = true;
        Say(
            fmt::format("node {} of {} waits for the others at {}:{}, up to {} s (--rdzv-conf "
                        "join_timeout=SECONDS)",
                        options_.node_rank, options_.nnodes, address_, port_,
                        options_.join_timeout.count() / 1000));
      }
      KEEL_RETURN_IF_ERROR(link_->status());
      pollfd polled = {signal_fd_, POLLIN, 0};
      poll(&polled, 1, 50);
      ReadSignals(nullptr);
    }
    return Status::Ok();
  }

  // Starts the ranks, and watches until all have ended.
  NodeEnd RunAttempt(int attempt) {
    NodeEnd end;
    if (stop_.number() != 0) {
      // After the end of the last attempt was handed in: the others are about to begin this one.
      if (link_ != nullptr) link_->ReportFailure();
      end.last = true;
      end.failure = Failure{Blame::kFailed, 128 + stop_.number(),
                            fmt::format("node {} was told to stop", options_.node_rank), "", ""};
      return end;
    }
    NodeRanks ranks(options_, address_, port_, job_start_, attempt, scratch_);
    if (const Status started = ranks.Start(); !started.ok()) {
      if (link_ != nullptr) link_->ReportFailure();
      Failure& failure = end.failure.emplace();
      failure.exit_code = ExitCodeFor(started.code());
      failure.what = fmt::format("node {} could not start its ranks", options_.node_rank);
      failure.message = started.message();
      return end;
    }
    bool ending = false;
    while (ranks.alive()) {
      ranks.Pump(signal_fd_);
      ReadSignals(&ranks);
      if (ending) continue;
      // Rank 0, which has the desk, is on node 0.
      const bool elsewhere = options_.trainers.value_or(0) > 0 && link_ != nullptr &&
                             !ranks.trains() && link_->main_node_ended();
      if ((ranks.only_workers() || elsewhere) && ranks.first_failure() == 0) {
        // They have heard from the desk that the run is over, but for one that has just begun.
        ending = true;
        ranks.KillAfter(options_.failure_grace);
        continue;
      }
      const int code = ranks.first_failure();
      const bool preempted = code == ExitCodeFor(StatusCode::kPreempted);
      const bool others_failed =
          link_ != nullptr && (link_->told_to_end() || !link_->status().ok());
      ending = code != 0 || others_failed;
      if (!ending) continue;
      // All ranks leave by themselves after a preemption; give them the time to.
      if (preempted || stop_.number() != 0) {
        ranks.KillAfter(options_.shutdown_timeout.value_or(kShutdownTimeout));
      } else {
        ranks.Signal(SIGTERM);
        ranks.KillAfter(options_.failure_grace);
      }
      if (link_ != nullptr && code != 0 && !preempted) link_->ReportFailure();
    }
    ranks.Finish();
    end.failure = ranks.RootCause();
    end.last = stop_.number() != 0 || ranks.stopped() || ranks.all_work_alone();
    return end;
  }

  // Passes them on; true if one says not to wait for other nodes.
  bool ReadSignals(NodeRanks* ranks) {
    bool leave = false;
    signalfd_siginfo info{};
    while (read(signal_fd_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      const int number = static_cast<int>(info.ssi_signo);
      const auto grace = stop_.Add(number, StopRequests::Clock::now());
      leave = leave || (number != SIGUSR1 && number != SIGUSR2);
      if (ranks == nullptr) continue;
      ranks->Signal(number);
      if (grace) ranks->KillAfter(*grace);
    }
    return leave;
  }

  // What all nodes make of the attempt. An error when that cannot be known.
  Result<Verdict> Agree(const NodeEnd& end, int attempt) {
    if (link_ == nullptr) return Decide(std::span(&end, 1), attempt, options_.max_restarts);
    link_->ReportEnd(end);
    while (true) {
      if (const auto verdict = link_->verdict()) return *verdict;
      KEEL_RETURN_IF_ERROR(link_->status());
      pollfd polled = {signal_fd_, POLLIN, 0};
      poll(&polled, 1, 50);
      if (ReadSignals(nullptr))
        return Status(StatusCode::kCancelled, "told not to wait for the other nodes");
    }
  }

  void Announce(const Verdict& verdict, int attempt) {
    if (!verdict.cause) return;
    const Failure& cause = *verdict.cause;
    if (cause.blame == Blame::kPreempted) {
      Say("preempted: the state is saved, unless a rank says otherwise; start again to go on (exit "
          "code 75)");
      return;
    }
    const bool alone = options_.trainers == 0;
    Say(fmt::format("attempt {}: {}{}", attempt, cause.what,
                    alone ? "" : "; the other ranks were ended"));
    // On one line, so that whoever looks for it has all of it.
    if (!cause.message.empty()) Say("root cause: " + OneLine(cause.message));
    if (!cause.output.empty()) Say("its output: " + cause.output);
    if (!verdict.restart && attempt < options_.max_restarts && !alone)
      Say(fmt::format("no restart after exit code {}", verdict.exit_code));
  }

  const LaunchOptions& options_;
  const std::string address_;
  const int port_;
  const int signal_fd_;
  ScratchDirectory& scratch_;
  JobLink* const link_;
  const std::chrono::nanoseconds job_start_ = SystemClock().Monotonic();
  StopRequests stop_;
};

JobLinkOptions LinkOptions(const LaunchOptions& options) {
  JobLinkOptions link;
  link.node = options.node_rank;
  link.nnodes = options.nnodes;
  link.address = fmt::format("{}:{}", options.master_addr, options.master_port);
  link.agreement = fmt::format("--nnodes {} --nproc-per-node {} --max-restarts {}", options.nnodes,
                               options.nproc_per_node, options.max_restarts);
  link.max_restarts = options.max_restarts;
  link.join_deadline = options.join_timeout;
  link.silence_limit = options.silence_limit;
  return link;
}

// As node 0's launcher serves it: it outlives restarts.
Result<parallel::StoreServer> ServeStore(const LaunchOptions& options, const std::string& address) {
  parallel::StoreServerOptions store;
  store.host = parallel::WhereToListen(address, options.nnodes == 1);
  store.port = options.master_port;
  store.secret = options.job_secret;
  store.on_refusal = [left = 5](const std::string& peer, const std::string& why) mutable {
    if (left == 0) return;
    Say(fmt::format("{} asked for the job's store and was turned away: {}{}", peer, why,
                    --left == 0 ? " (further ones are not shown)" : ""));
  };
  // Three connections a rank; the launchers' own, and files, beside them.
  const int64_t sockets = int64_t{3} * options.nnodes * options.nproc_per_node + 256;
  if (const Status files = RaiseOpenFileLimit(sockets); !files.ok())
    Say("warning: " + files.message());
  const bool open = store.host.empty() && store.secret.empty();
  KEEL_ASSIGN_OR_RETURN(auto server, parallel::StoreServer::Start(std::move(store)));
  if (open) {
    Say(
        fmt::format("warning: whoever reaches port {} of this host can read and change what the "
                    "job's ranks tell each other: set KEEL_JOB_SECRET to the same secret on every "
                    "node, or keep the port inside the cluster",
                    server.port()));
  }
  return server;
}

Result<int> LaunchWithSignals(const LaunchOptions& options, int signal_fd) {
  parallel::StoreAddress store{options.master_addr.empty() ? "127.0.0.1" : options.master_addr,
                               options.master_port, options.job_secret};
  std::optional<parallel::StoreServer> server;
  if (options.node_rank == 0) {
    KEEL_ASSIGN_OR_RETURN(server, ServeStore(options, store.host));
    store.port = server->port();
  }
  KEEL_ASSIGN_OR_RETURN(const auto scratch, ScratchDirectory::Make());
  std::optional<JobLink> link;
  if (options.nnodes > 1) {
    link.emplace(LinkOptions(options), [store, id = options.run_id, limit = options.silence_limit] {
      return ConnectJobStore(store, id, limit);
    });
  }
  return NodeLauncher(options, store.host, store.port, signal_fd, *scratch, link ? &*link : nullptr)
      .Run();
}

}  // namespace

std::vector<std::string> LaunchOptions::Validate() const {
  std::vector<std::string> problems;
  if (nnodes < 1) problems.push_back(fmt::format("--nnodes {}: expected at least 1", nnodes));
  if (nproc_per_node < 1)
    problems.push_back(fmt::format("--nproc-per-node {}: expected at least 1", nproc_per_node));
  if (node_rank < 0 || node_rank >= nnodes) {
    problems.push_back(fmt::format("--node-rank {}: expected 0 to {}, one less than --nnodes",
                                   node_rank, nnodes - 1));
  }
  if (max_restarts < 0)
    problems.push_back(fmt::format("--max-restarts {}: expected at least 0", max_restarts));
  if (master_port < 0 || master_port > 65535)
    problems.push_back(fmt::format("--master-port {}: expected 0 to 65535", master_port));
  if (nnodes > 1 && (master_addr.empty() || master_port == 0)) {
    problems.push_back(
        "--nnodes above 1 needs --master-addr and --master-port (or --rdzv-endpoint), the same on "
        "every node");
  }
  for (const int rank : local_ranks_filter) {
    if (rank < 0 || rank >= nproc_per_node) {
      problems.push_back(
          fmt::format("--local-ranks-filter {}: expected 0 to {}", rank, nproc_per_node - 1));
    }
  }
  if (command.empty()) problems.push_back("nothing to run: give a command, such as train CONFIG");
  if (!tee && log_dir.empty())
    problems.push_back("--redirects without --log-dir would lose the output");
  return problems;
}

Result<int> Launch(const LaunchOptions& options) {
  const auto problems = options.Validate();
  if (!problems.empty())
    return Status(StatusCode::kUsage, fmt::format("{}", fmt::join(problems, "; ")));
  IgnoreBrokenPipes();  // of whoever reads the output
  KEEL_RETURN_IF_ERROR(AdoptOrphans());
  sigset_t forwarded;
  sigemptyset(&forwarded);
  for (const int number : kJobSignals) sigaddset(&forwarded, number);
  sigset_t before;
  // Before the store and the link start their threads: they inherit the mask, so that the signals
  // wait for signalfd.
  pthread_sigmask(SIG_BLOCK, &forwarded, &before);
  const int signal_fd = signalfd(-1, &forwarded, SFD_NONBLOCK | SFD_CLOEXEC);
  if (signal_fd < 0) return Status::FromErrno(errno, "signalfd", "");
  Result<int> code = LaunchWithSignals(options, signal_fd);
  close(signal_fd);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return code;
}

}  // namespace keel::tools
