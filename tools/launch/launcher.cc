#include "tools/launch/launcher.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "common/json.h"
#include "parallel/rank_status.h"
#include "tools/launch/child.h"

namespace keel::tools {

namespace {

using Clock = std::chrono::steady_clock;

constexpr Clock::time_point kNever = Clock::time_point::max();

// Signals that are passed on to the ranks.
constexpr std::array kForwarded = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

void Say(const std::string& text) {
  fmt::print(stderr, "keel launch: {}\n", text);
  std::fflush(stderr);
}

// A directory that goes when the launcher ends.
class ScratchDirectory {
 public:
  static Result<std::unique_ptr<ScratchDirectory>> Make() {
    const char* base = std::getenv("TMPDIR");
    std::string path =
        std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/keel_launch_XXXXXX";
    if (mkdtemp(path.data()) == nullptr) return Status::FromErrno(errno, "mkdtemp", path);
    return std::unique_ptr<ScratchDirectory>(new ScratchDirectory(path));
  }
  ~ScratchDirectory() {
    for (const std::string& file : files_) unlink(file.c_str());
    rmdir(path_.c_str());
  }
  std::string File(const std::string& name) {
    files_.push_back(path_ + "/" + name);
    return files_.back();
  }

 private:
  explicit ScratchDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
  std::vector<std::string> files_;
};

Status MakeDirectoryTree(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    if (mkdir(path.substr(0, slash).c_str(), 0700) != 0 && errno != EEXIST)
      return Status::FromErrno(errno, "mkdir", path);
  }
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return Status::FromErrno(errno, "mkdir", path);
  return Status::Ok();
}

int ExitCodeOf(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string HowItEnded(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const char* name = sigabbrev_np(WTERMSIG(wait_status));
    return fmt::format("was killed by SIG{}",
                       name != nullptr ? name : std::to_string(WTERMSIG(wait_status)));
  }
  return fmt::format("ended with exit code {}", WEXITSTATUS(wait_status));
}

// Exits that a restart cannot heal: usage, data and configuration errors, and a clean preemption.
bool WorthRestarting(int code) {
  return code != 64 && code != 65 && code != 66 && code != 75 && code != 78;
}

// What a rank left in its error file.
struct ErrorReport {
  std::string message;
  int64_t timestamp = 0;
};

std::optional<ErrorReport> ReadErrorFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::stringstream text;
  text << file.rdbuf();
  const auto json = ParseJson(text.str(), path);
  if (!json.ok() || !json->contains("message")) return std::nullopt;
  const Json& message = (*json)["message"];
  ErrorReport report;
  if (message.is_string()) {
    report.message = message.get<std::string>();
  } else if (message.is_object()) {
    if (message.contains("message") && message["message"].is_string())
      report.message = message["message"].get<std::string>();
    if (message.contains("extraInfo") && message["extraInfo"].contains("timestamp")) {
      const Json& time = message["extraInfo"]["timestamp"];
      report.timestamp = time.is_string()   ? std::atoll(time.get<std::string>().c_str())
                         : time.is_number() ? time.get<int64_t>()
                                            : 0;
    }
  }
  return report;
}

struct Rank {
  int global = 0;
  std::string status_file;
  std::string error_file;
  std::string log_directory;
  std::optional<Child> child;
};

class NodeLauncher {
 public:
  NodeLauncher(const LaunchOptions& options, std::string address, int port, int signal_fd,
               ScratchDirectory& scratch)
      : options_(options),
        address_(std::move(address)),
        port_(port),
        signal_fd_(signal_fd),
        scratch_(scratch) {}

  Result<int> Run() {
    for (int attempt = 0;; ++attempt) {
      KEEL_ASSIGN_OR_RETURN(const int code, RunAttempt(attempt));
      if (code == 0 || forwarded_ != 0) return code;
      if (attempt >= options_.max_restarts) return code;
      if (!WorthRestarting(code)) {
        Say(fmt::format("exit code {} is not worth a restart", code));
        return code;
      }
      Say(fmt::format("restart {} of {}", attempt + 1, options_.max_restarts));
    }
  }

 private:
  Result<int> RunAttempt(int attempt) {
    std::vector<Rank> ranks(static_cast<size_t>(options_.nproc_per_node));
    first_failed_ = -1;
    for (int local = 0; local < options_.nproc_per_node; ++local) {
      Rank& rank = ranks[static_cast<size_t>(local)];
      const Status started = StartRank(rank, local, attempt);
      if (!started.ok()) {
        for (Rank& other : ranks) {
          if (other.child) other.child->Signal(SIGKILL);
        }
        return started;
      }
    }
    Watch(ranks);
    if (first_failed_ < 0) return 0;
    Summarize(ranks, attempt);
    return ExitCodeOf(ranks[static_cast<size_t>(first_failed_)].child->wait_status);
  }

  Status StartRank(Rank& rank, int local, int attempt) {
    const int world = options_.nnodes * options_.nproc_per_node;
    rank.global = options_.node_rank * options_.nproc_per_node + local;
    const std::string name = fmt::format("attempt_{}_rank_{}", attempt, rank.global);
    rank.status_file = scratch_.File(name + ".status");
    rank.error_file = scratch_.File(name + ".error.json");
    if (!options_.log_dir.empty()) {
      rank.log_directory =
          fmt::format("{}/{}/attempt_{}/{}", options_.log_dir, options_.run_id, attempt, local);
      KEEL_RETURN_IF_ERROR(MakeDirectoryTree(rank.log_directory));
      rank.error_file = rank.log_directory + "/error.json";
    }
    ChildSpec spec;
    spec.command = options_.command;
    spec.prefix = fmt::format("[rank{}]: ", rank.global);
    spec.log_directory = rank.log_directory;
    const auto& filter = options_.local_ranks_filter;
    spec.show = options_.tee &&
                (filter.empty() || std::find(filter.begin(), filter.end(), local) != filter.end());
    auto& env = spec.environment;
    env["RANK"] = std::to_string(rank.global);
    env["WORLD_SIZE"] = std::to_string(world);
    env["LOCAL_RANK"] = std::to_string(local);
    env["LOCAL_WORLD_SIZE"] = std::to_string(options_.nproc_per_node);
    env["GROUP_RANK"] = std::to_string(options_.node_rank);
    env["GROUP_WORLD_SIZE"] = std::to_string(options_.nnodes);
    env["ROLE_NAME"] = options_.role;
    env["ROLE_RANK"] = std::to_string(rank.global);
    env["ROLE_WORLD_SIZE"] = std::to_string(world);
    env["MASTER_ADDR"] = address_;
    env["MASTER_PORT"] = std::to_string(port_);
    env["TORCHELASTIC_RESTART_COUNT"] = std::to_string(attempt);
    env["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(options_.max_restarts);
    env["TORCHELASTIC_RUN_ID"] = options_.run_id;
    env["TORCHELASTIC_USE_AGENT_STORE"] = "True";
    env["TORCHELASTIC_ERROR_FILE"] = rank.error_file;
    env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1";
    env["KEEL_STATUS_FILE"] = rank.status_file;
    if (std::getenv("OMP_NUM_THREADS") == nullptr && options_.nproc_per_node > 1)
      env["OMP_NUM_THREADS"] = "1";
    KEEL_ASSIGN_OR_RETURN(Child child, Child::Start(spec));
    rank.child.emplace(std::move(child));
    return Status::Ok();
  }

  // Passes output on and reaps until every rank has ended and its output is read.
  void Watch(std::vector<Rank>& ranks) {
    Clock::time_point kill_at = kNever;
    while (true) {
      std::vector<pollfd> polled = {{signal_fd_, POLLIN, 0}};
      bool alive = false;
      for (Rank& rank : ranks) {
        alive = alive || !rank.child->ended;
        for (const int fd : {rank.child->stdout_fd(), rank.child->stderr_fd()}) {
          if (fd >= 0) polled.push_back({fd, POLLIN, 0});
        }
      }
      // A grandchild may hold a pipe open for ever; once all ranks are gone, what is there is read
      // and that is it.
      if (!alive) break;
      poll(polled.data(), polled.size(), 50);
      for (Rank& rank : ranks) rank.child->Drain();
      ReadSignals(ranks, kill_at);
      Reap(ranks, kill_at);
      if (Clock::now() >= kill_at) {
        for (Rank& rank : ranks) rank.child->Signal(SIGKILL);
        kill_at = kNever;
      }
    }
    for (Rank& rank : ranks) {
      rank.child->Signal(SIGKILL);  // whatever is left of the process group
      rank.child->Drain();
    }
  }

  void ReadSignals(std::vector<Rank>& ranks, Clock::time_point& kill_at) {
    signalfd_siginfo info{};
    while (read(signal_fd_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      const int number = static_cast<int>(info.ssi_signo);
      const bool again = forwarded_ == number && (number == SIGINT || number == SIGTERM);
      if (number != SIGUSR1 && number != SIGUSR2) forwarded_ = number;
      for (Rank& rank : ranks) {
        if (!rank.child->ended) rank.child->Signal(again ? SIGKILL : number);
      }
      if (number == SIGUSR1 || number == SIGUSR2) continue;
      if (kill_at == kNever) kill_at = Clock::now() + options_.shutdown_timeout;
    }
  }

  void Reap(std::vector<Rank>& ranks, Clock::time_point& kill_at) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      Child& child = *ranks[i].child;
      if (child.ended || waitpid(child.pid(), &child.wait_status, WNOHANG) != child.pid()) continue;
      child.ended = true;
      if (child.wait_status == 0) continue;
      if (first_failed_ >= 0) continue;
      first_failed_ = static_cast<int>(i);
      // All ranks leave with 75 after a preemption; give the others the time to.
      const bool preempted = ExitCodeOf(child.wait_status) == 75;
      if (!preempted && forwarded_ == 0) {
        for (Rank& rank : ranks) {
          if (!rank.child->ended) rank.child->Signal(SIGTERM);
        }
      }
      const auto grace =
          preempted || forwarded_ != 0 ? options_.shutdown_timeout : options_.failure_grace;
      if (kill_at == kNever) kill_at = Clock::now() + grace;
    }
  }

  void Summarize(const std::vector<Rank>& ranks, int attempt) {
    const Rank& first = ranks[static_cast<size_t>(first_failed_)];
    if (ExitCodeOf(first.child->wait_status) == 75) {
      Say("preempted: the state is saved; start again to go on (exit code 75)");
      return;
    }
    // The root cause is what was reported first; a rank that was killed could report nothing, and
    // came first.
    const Rank* cause = &first;
    std::optional<ErrorReport> report = ReadErrorFile(first.error_file);
    if (!WIFSIGNALED(first.child->wait_status)) {
      for (const Rank& rank : ranks) {
        const auto other = ReadErrorFile(rank.error_file);
        if (other && (!report || other->timestamp < report->timestamp)) {
          report = other;
          cause = &rank;
        }
      }
    }
    std::string where = "before its first step";
    if (const auto status = parallel::RankStatus::Read(cause->status_file)) {
      where = fmt::format("at step {} ({})", status->step, status->phase);
    }
    Say(fmt::format("attempt {}: rank {} {} {}; the other ranks were ended", attempt, cause->global,
                    HowItEnded(cause->child->wait_status), where));
    if (report) Say("root cause: " + report->message);
    if (!cause->log_directory.empty()) Say("its output: " + cause->log_directory);
  }

  const LaunchOptions& options_;
  std::string address_;
  int port_;
  int signal_fd_;
  ScratchDirectory& scratch_;
  int first_failed_ = -1;
  int forwarded_ = 0;
};

}  // namespace

std::vector<std::string> LaunchOptions::Validate() const {
  std::vector<std::string> problems;
  if (nnodes < 1) problems.push_back(fmt::format("--nnodes {}: expected at least 1", nnodes));
  if (nproc_per_node < 1)
    problems.push_back(fmt::format("--nproc-per-node {}: expected at least 1", nproc_per_node));
  if (node_rank < 0 || node_rank >= nnodes) {
    problems.push_back(fmt::format("--node-rank {}: expected 0 to {}", node_rank, nnodes - 1));
  }
  if (nnodes > 1 && (master_addr.empty() || master_port == 0)) {
    problems.push_back(
        "--nnodes above 1 needs --master-addr and --master-port (or --rdzv-endpoint), the same on "
        "every node");
  }
  if (command.empty()) problems.push_back("nothing to run: give a command, such as train CONFIG");
  if (!tee && log_dir.empty())
    problems.push_back("--redirects without --log-dir would lose the output");
  return problems;
}

Result<int> Launch(const LaunchOptions& options, const StartStore& start_store) {
  const auto problems = options.Validate();
  if (!problems.empty())
    return Status(StatusCode::kUsage, fmt::format("{}", fmt::join(problems, "; ")));
  const std::string address = options.master_addr.empty() ? "127.0.0.1" : options.master_addr;
  sigset_t forwarded;
  sigemptyset(&forwarded);
  for (const int number : kForwarded) sigaddset(&forwarded, number);
  sigset_t before;
  // Before the store starts its threads: they inherit the mask, so that the signals wait for
  // signalfd.
  pthread_sigmask(SIG_BLOCK, &forwarded, &before);
  const int signal_fd = signalfd(-1, &forwarded, SFD_NONBLOCK | SFD_CLOEXEC);
  if (signal_fd < 0) return Status::FromErrno(errno, "signalfd", "");
  const auto run = [&]() -> Result<int> {
    std::unique_ptr<StoreHost> store;
    int port = options.master_port;
    if (options.node_rank == 0) {
      KEEL_ASSIGN_OR_RETURN(store, start_store(address, options.master_port));
      port = store->port();
    }
    KEEL_ASSIGN_OR_RETURN(const auto scratch, ScratchDirectory::Make());
    return NodeLauncher(options, address, port, signal_fd, *scratch).Run();
  };
  Result<int> code = run();
  close(signal_fd);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return code;
}

}  // namespace keel::tools
