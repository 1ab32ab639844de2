#include "common/fail_point.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/text.h"

namespace keel {
namespace {

constexpr std::string_view kNames[] = {
    "commit.aside",
    "commit.aside_synced",
    "commit.begin",
    "commit.debris",
    "commit.directories_synced",
    "commit.manifest",
    "commit.renamed",
    "commit.replaced_removed",
    "commit.synced",
    "export.begin",
    "export.renamed",
    "export.synced",
    "load.applied",
    "load.chosen",
    "load.documents",
    "load.opened",
    "load.planned",
    "load.read",
    "load.verified",
    "plan.make",
    "publish.documents",
    "publish.guard",
    "publish.hf_model",
    "publish.index",
    "retain.renamed",
    "retain.start",
    "retain.synced",
    "rl.experience",
    "rl.rollout",
    "rollout.step",
    "save.begin",
    "save.collect",
    "save.conclude",
    "save.finish",
    "save.order",
    "save.outcome",
    "save.read_back",
    "save.report",
    "save.staged",
    "save.tracker",
    "save.write",
    "step.begin",
    "step.end",
    "step.gradients",
    "step.update",
    "step.updated",
    "sync.begin",
    "sync.done",
    "sync.round",
    "trainer.close",
    "trainer.connected",
    "trainer.data",
    "trainer.model",
    "trainer.opened",
    "worker.done",
    "worker.hello",
    "worker.linked",
    "worker.progress",
    "worker.staged",
    "worker.step",
    "writer.closed",
    "writer.create",
    "writer.fsync",
    "writer.last",
    "writer.write",
};

enum class Action { kKill, kKillParent, kStop, kThrow, kDelay, kErrno };

struct Armed {
  std::string_view name;  // of kNames
  std::optional<int64_t> n;
  Action action = Action::kKill;
  int64_t value = 0;  // errno, or milliseconds
  int64_t hits = 0;
};

struct State {
  std::atomic<bool> any{false};
  std::mutex mutex;
  std::vector<Armed> armed;
};

State& TheState() {
  static State state;
  return state;
}

constexpr std::array<std::pair<std::string_view, int>, 6> kErrnos = {{{"ENOSPC", ENOSPC},
                                                                      {"EIO", EIO},
                                                                      {"EDQUOT", EDQUOT},
                                                                      {"EROFS", EROFS},
                                                                      {"EMFILE", EMFILE},
                                                                      {"EINTR", EINTR}}};

std::optional<int64_t> Number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

bool ParseAction(std::string_view text, Armed* armed) {
  if (text == "kill")
    armed->action = Action::kKill;
  else if (text == "kill_parent")
    armed->action = Action::kKillParent;
  else if (text == "stop")
    armed->action = Action::kStop;
  else if (text == "throw")
    armed->action = Action::kThrow;
  else if (text.starts_with("delay=")) {
    const auto ms = Number(text.substr(6));
    if (!ms) return false;
    armed->action = Action::kDelay;
    armed->value = *ms;
  } else {
    const auto* found = std::find_if(kErrnos.begin(), kErrnos.end(),
                                     [&](const auto& e) { return e.first == text; });
    if (found == kErrnos.end()) return false;
    armed->action = Action::kErrno;
    armed->value = found->second;
  }
  return true;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

}  // namespace

std::span<const std::string_view> FailPointNames() { return kNames; }

Status ArmFailPoints(int rank) {
  const char* text = std::getenv("KEEL_FAILPOINT");  // NOLINT(concurrency-mt-unsafe): at start
  return text == nullptr ? Status::Ok() : ArmFailPoints(text, rank);
}

Status ArmFailPoints(std::string_view text, int rank) {
  std::vector<Armed> armed;
  for (const std::string_view entry : Split(text, ',')) {
    if (entry.empty()) continue;
    const auto refuse = [&](std::string_view why) {
      return Status(
          StatusCode::kUsage,
          fmt::format("KEEL_FAILPOINT: '{}': {}; expected name:rank:n:action", entry, why));
    };
    const std::vector<std::string_view> parts = Split(entry, ':');
    if (parts.size() != 4) return refuse(fmt::format("{} parts", parts.size()));
    const auto* name = std::find(std::begin(kNames), std::end(kNames), parts[0]);
    if (name == std::end(kNames)) {
      const std::string nearest = Closest(parts[0], {std::begin(kNames), std::end(kNames)});
      return refuse(fmt::format("there is no fail point '{}'{}", parts[0],
                                nearest.empty() ? "" : fmt::format(" (nearest: {})", nearest)));
    }
    Armed one;
    one.name = *name;
    const auto wanted = Number(parts[1]);
    if (!wanted && parts[1] != "*") return refuse("the rank is neither a number nor *");
    one.n = Number(parts[2]);
    if ((!one.n && parts[2] != "*") || one.n == 0) return refuse("n is neither from 1 nor *");
    if (!ParseAction(parts[3], &one)) return refuse("unknown action");
    if (!wanted || *wanted == rank) armed.push_back(one);
  }
  State& state = TheState();
  const std::lock_guard lock(state.mutex);
  state.armed = std::move(armed);
  state.any.store(!state.armed.empty());
  return Status::Ok();
}

Status FailPoint(std::string_view name) {
  State& state = TheState();
  if (!state.any.load(std::memory_order_relaxed)) return Status::Ok();
  std::optional<Armed> due;
  {
    const std::lock_guard lock(state.mutex);
    for (Armed& one : state.armed) {
      if (one.name == name && (++one.hits == one.n || !one.n)) due = one;
    }
  }
  if (!due) return Status::Ok();
  switch (due->action) {
    case Action::kKill:
      (void)kill(getpid(), SIGKILL);
      for (;;) pause();
    case Action::kKillParent:
      (void)kill(getppid(), SIGKILL);
      for (;;) pause();
    case Action::kStop:
      (void)kill(getpid(), SIGSTOP);
      return Status::Ok();
    case Action::kThrow:
      throw std::runtime_error(fmt::format("thrown at fail point {}", name));
    case Action::kDelay:
      std::this_thread::sleep_for(std::chrono::milliseconds(due->value));
      return Status::Ok();
    case Action::kErrno:
      return Status::FromErrno(static_cast<int>(due->value), "fail point", name);
  }
  return Status::Ok();
}

}  // namespace keel
