#include "tools/launch/node_ranks.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>
#include <thread>
#include <tuple>
#include <utility>

#include "common/json.h"
#include "common/terminal.h"
#include "parallel/rank_status.h"
#include "tools/launch/orphans.h"

namespace keel::tools {

namespace {

using Clock = std::chrono::steady_clock;

// What was killed with the last rank is gone by then; a server that somebody means to go on is not.
constexpr std::chrono::milliseconds kOrphanGrace{500};

// Before a worker is started again that was `starts` times: one that fails at once fails again.
std::chrono::milliseconds PauseAfter(int starts) {
  constexpr std::chrono::milliseconds kFirst{200}, kLongest{30'000};
  return std::min(kLongest, kFirst * (1 << std::min(starts, 10)));
}

Status MakeDirectoryTree(const std::string& path) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    if (mkdir(path.substr(0, slash).c_str(), 0777) != 0 && errno != EEXIST)
      return Status::FromErrno(errno, "mkdir", path);
    if (slash == std::string::npos) return Status::Ok();
  }
}

int ExitCodeOf(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::string HowItEnded(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int number = WTERMSIG(wait_status);
    const char* name = sigabbrev_np(number);
    return fmt::format("was killed by SIG{}{}", name != nullptr ? name : std::to_string(number),
                       number == SIGBUS ? " (a file that it had mapped, of tokens say, was cut "
                                          "short or cannot be read, or /dev/shm is full)"
                                        : "");
  }
  return fmt::format("ended with exit code {}", WEXITSTATUS(wait_status));
}

// What a rank left in its error file.
struct ErrorReport {
  std::string message;
  int64_t timestamp = 0;  // seconds since 1970, 0: not said
};

std::optional<ErrorReport> ReadErrorFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::stringstream text;
  text << file.rdbuf();
  const auto json = ParseJson(text.str(), path);
  if (!json.ok() || !json->is_object() || !json->contains("message")) return std::nullopt;
  const Json& message = (*json)["message"];
  ErrorReport report;
  if (message.is_string()) {
    report.message = message.get<std::string>();
  } else if (message.is_object()) {
    if (message.contains("message") && message["message"].is_string())
      report.message = message["message"].get<std::string>();
    if (message.contains("extraInfo") && message["extraInfo"].is_object() &&
        message["extraInfo"].contains("timestamp")) {
      const Json& time = message["extraInfo"]["timestamp"];
      report.timestamp = time.is_string()   ? std::atoll(time.get<std::string>().c_str())
                         : time.is_number() ? time.get<int64_t>()
                                            : 0;
    }
  }
  return report;
}

// A signal that a program's own fault raises, whoever else sends signals.
bool IsOfACrash(int number) {
  return number == SIGSEGV || number == SIGBUS || number == SIGILL || number == SIGFPE ||
         number == SIGABRT || number == SIGTRAP || number == SIGSYS;
}

}  // namespace

struct NodeRanks::Rank {
  int global = 0;
  std::string status_file;
  std::string error_file;
  std::string log_directory;
  std::optional<Child> child;
  // Once it has failed.
  Blame blame = Blame::kFailed;
  int64_t time = 0;  // of its report, else of its end; seconds since 1970
  std::optional<ErrorReport> report;
  int starts = 0;                         // of a worker
  std::optional<Clock::time_point> next;  // when a worker is started again
};

NodeRanks::NodeRanks(const LaunchOptions& options, const std::string& address, int port,
                     std::chrono::nanoseconds job_start, int attempt, ScratchDirectory& scratch)
    : options_(options),
      address_(address),
      port_(port),
      job_start_(job_start),
      attempt_(attempt),
      scratch_(scratch),
      ranks_(static_cast<size_t>(options.nproc_per_node)) {}

NodeRanks::~NodeRanks() { Signal(SIGKILL); }

Status NodeRanks::Start() {
  for (int local = 0; local < options_.nproc_per_node; ++local) {
    const Status started = StartRank(ranks_[static_cast<size_t>(local)], local);
    if (started.ok()) continue;
    Signal(SIGKILL);
    return started.WithContext(fmt::format("local rank {}", local));
  }
  return Status::Ok();
}

Status NodeRanks::StartRank(Rank& rank, int local) {
  const int world = options_.nnodes * options_.nproc_per_node;
  rank.global = options_.node_rank * options_.nproc_per_node + local;
  const std::string name = fmt::format("attempt_{}_rank_{}", attempt_, rank.global);
  rank.status_file = scratch_.File(name + ".status");
  rank.error_file = scratch_.File(name + ".error.json");
  if (!options_.log_dir.empty()) {
    rank.log_directory =
        fmt::format("{}/{}/attempt_{}/{}", options_.log_dir, options_.run_id, attempt_, local);
    KEEL_RETURN_IF_ERROR(MakeDirectoryTree(rank.log_directory));
    rank.error_file = rank.log_directory + "/error.json";
  }
  ChildSpec spec;
  spec.command = options_.command;
  spec.prefix = fmt::format("[rank{}]: ", rank.global);
  spec.holds_signals = options_.own_command;
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
  const bool worker = IsWorker(rank);
  const int trainers = options_.trainers.value_or(0);
  const int first = worker ? trainers : 0;
  const int end = worker || trainers == 0 ? world : trainers;
  env["ROLE_NAME"] = !options_.trainers ? options_.role : worker ? "rollout" : "trainer";
  env["ROLE_RANK"] = std::to_string(rank.global - first);
  env["ROLE_WORLD_SIZE"] = std::to_string(end - first);
  if (trainers > 0) env["KEEL_TRAINERS"] = std::to_string(trainers);
  if (rank.starts > 0) env["KEEL_FAILPOINT"] = "";  // it has done what it was armed for
  env["MASTER_ADDR"] = address_;
  env["MASTER_PORT"] = std::to_string(port_);
  env["TORCHELASTIC_RESTART_COUNT"] = std::to_string(attempt_);
  env["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(options_.max_restarts);
  env["TORCHELASTIC_RUN_ID"] = options_.run_id;
  env["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  env["TORCHELASTIC_ERROR_FILE"] = rank.error_file;
  env["KEEL_STORE"] = fmt::format("{}:{}", address_, port_);
  env["KEEL_STATUS_FILE"] = rank.status_file;
  env["KEEL_JOB_START"] =
      std::to_string(std::chrono::duration_cast<std::chrono::seconds>(job_start_).count());
  // What the ranks say is shown on this terminal, behind the prefix. What goes to files as well has
  // its lines whole.
  const char* const said = std::getenv("COLUMNS");
  const int own = TerminalColumns(STDERR_FILENO);
  if (const int columns = own > 0 || said == nullptr ? own : std::atoi(said); columns > 0) {
    const int left = columns - DisplayWidth(spec.prefix);
    env["COLUMNS"] = spec.log_directory.empty() && left > 0 ? std::to_string(left) : "";
  }
  if (std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING") == nullptr)
    env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1";
  if (std::getenv("OMP_NUM_THREADS") == nullptr && options_.nproc_per_node > 1)
    env["OMP_NUM_THREADS"] = "1";
  KEEL_ASSIGN_OR_RETURN(Child child, Child::Start(spec));
  rank.child.emplace(std::move(child));
  return Status::Ok();
}

bool NodeRanks::IsWorker(const Rank& rank) const {
  return options_.trainers && rank.global >= *options_.trainers;
}

bool NodeRanks::all_work_alone() const { return options_.trainers == 0; }

bool NodeRanks::trains() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
    return !IsWorker(rank) && rank.child && !rank.child->ended;
  });
}

bool NodeRanks::starts_again() const {
  return !ending_ && !only_workers() && !(all_work_alone() && signalled_);
}

bool NodeRanks::only_workers() const { return !IsWorker(ranks_.front()) && !trains(); }

void NodeRanks::StartWorkersAgain() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    if (!rank.next || Clock::now() < *rank.next) continue;
    rank.next.reset();
    if (!starts_again()) continue;
    rank.child->Flush();
    if (const Status started = StartRank(rank, static_cast<int>(i)); !started.ok()) {
      // What it lacked, a descriptor say, may be there later.
      const bool last = all_work_alone() && rank.starts >= options_.max_restarts;
      const auto pause = PauseAfter(rank.starts++);
      if (!last) rank.next = Clock::now() + pause;
      WriteStderr(fmt::format("keel launch: rollout rank {} could not be started again{}: {}\n",
                              rank.global,
                              last ? ""
                                   : fmt::format(", and is tried in {:.1f} s",
                                                 static_cast<double>(pause.count()) / 1000),
                              started.message()));
    }
  }
}

bool NodeRanks::alive() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
    return (rank.child && !rank.child->ended) || (rank.next && starts_again());
  });
}

void NodeRanks::Pump(int wake_fd) {
  std::vector<pollfd> polled = {{wake_fd, POLLIN, 0}};
  for (const Rank& rank : ranks_) {
    for (const int fd : {rank.child->stdout_fd(), rank.child->stderr_fd()}) {
      if (fd >= 0) polled.push_back({fd, POLLIN, 0});
    }
  }
  poll(polled.data(), polled.size(), 50);
  for (Rank& rank : ranks_) rank.child->Drain();
  Reap();
  EndOrphans();
  StartWorkersAgain();
  if (Clock::now() >= kill_at_) {
    kill_at_ = Clock::time_point::max();
    Signal(SIGKILL);
  }
}

void NodeRanks::Reap() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    Child& child = *rank.child;
    if (child.ended || !child.Reap() || child.wait_status == 0) continue;
    const int code = ExitCodeOf(child.wait_status);
    const bool ends = ending_ || signalled_ || only_workers();
    if (all_work_alone() && !ends && !WorthRestarting(code)) {
      // The others are asked the same.
    } else if (all_work_alone() && !ends && rank.starts >= options_.max_restarts) {
      WriteStderr(
          fmt::format("keel launch: rollout rank {} {}{}; the others go on\n", rank.global,
                      HowItEnded(child.wait_status),
                      rank.starts > 0 ? fmt::format(" after {} restarts", rank.starts) : ""));
    } else if (IsWorker(rank) && !(all_work_alone() && ends)) {
      if (ends) continue;
      const auto pause = PauseAfter(rank.starts++);
      rank.next = Clock::now() + pause;
      WriteStderr(fmt::format("keel launch: rollout rank {} {}; it is started again in {:.1f} s\n",
                              rank.global, HowItEnded(child.wait_status),
                              static_cast<double>(pause.count()) / 1000));
      continue;
    }
    failed_.push_back(i);
    rank.report = ReadErrorFile(rank.error_file);
    rank.time = rank.report && rank.report->timestamp > 0 ? rank.report->timestamp : time(nullptr);
    if (WIFSIGNALED(child.wait_status) && signalled_ && !IsOfACrash(WTERMSIG(child.wait_status))) {
      rank.blame = Blame::kEnded;
    } else if (WIFSIGNALED(child.wait_status) && code != 128 + SIGABRT) {
      rank.blame = Blame::kKilled;
    } else if (code == ExitCodeFor(StatusCode::kPreempted)) {
      rank.blame = Blame::kPreempted;
    } else if (code == ExitCodeFor(StatusCode::kUnavailable)) {
      rank.blame = Blame::kLostPeer;
    }
  }
}

int NodeRanks::first_failure() const {
  for (const size_t i : failed_) {
    const int code = ExitCodeOf(ranks_[i].child->wait_status);
    if (!all_work_alone() || !WorthRestarting(code)) return code;
  }
  return 0;
}

void NodeRanks::Signal(int number) {
  // Those that joined another run leave it at SIGUSR1, too.
  const bool stops = number != SIGUSR2 && (number != SIGUSR1 || all_work_alone());
  if (stops) signalled_ = true;
  if (number == SIGKILL) ending_ = true;
  const bool trainers_first = stops && number != SIGKILL && !all_work_alone() && !only_workers();
  for (Rank& rank : ranks_) {
    if (!rank.child || rank.child->ended || (trainers_first && !ending_ && IsWorker(rank)))
      continue;
    rank.child->Signal(number);
  }
}

void NodeRanks::KillAfter(std::chrono::milliseconds grace) {
  ending_ = true;
  kill_at_ = std::min(kill_at_, Clock::now() + grace);
}

bool NodeRanks::EndOrphans() {
  return ReapOrphans([this](pid_t pid) {
    return std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
      return rank.child && !rank.child->ended && rank.child->pid() == pid;
    });
  });
}

void NodeRanks::Finish() {
  const auto end = Clock::now() + kOrphanGrace;
  while (EndOrphans() && Clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  for (Rank& rank : ranks_) {
    // A grandchild in a session of its own may hold a pipe open for ever: what is there is read,
    // and that is it.
    rank.child->Drain();
    rank.child->Flush();
  }
}

bool NodeRanks::stopped() const {
  return std::any_of(failed_.begin(), failed_.end(), [&](size_t i) {
    const auto status = parallel::RankStatus::Read(ranks_[i].status_file);
    return status && status->stopped;
  });
}

std::optional<Failure> NodeRanks::RootCause() const {
  if (failed_.empty()) return std::nullopt;
  // Among equals, the one that says that it failed earlier, else the one that was reaped earlier.
  return Describe(ranks_[*std::min_element(failed_.begin(), failed_.end(), [&](size_t a, size_t b) {
    return std::tuple(ranks_[a].blame, ranks_[a].time) <
           std::tuple(ranks_[b].blame, ranks_[b].time);
  })]);
}

Failure NodeRanks::Describe(const Rank& rank) const {
  std::string where;
  if (const auto status = parallel::RankStatus::Read(rank.status_file)) {
    where = fmt::format(" at step {} ({})", status->step, status->phase);
  }
  const std::string node =
      options_.nnodes > 1 ? fmt::format(" on node {}", options_.node_rank) : std::string();
  Failure failure;
  failure.blame = rank.blame;
  failure.exit_code = ExitCodeOf(rank.child->wait_status);
  failure.what =
      fmt::format("rank {}{} {}{}", rank.global, node, HowItEnded(rank.child->wait_status), where);
  if (rank.report) failure.message = rank.report->message;
  failure.output = rank.log_directory;
  return failure;
}

}  // namespace keel::tools
