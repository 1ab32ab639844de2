#include "tools/launch/assembly.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <optional>

namespace keel::tools {

// What became of a gathering is said as one word and a text: "ok", "usage ...", "late ...",
// "stopped ...".

namespace {

double InSeconds(std::chrono::milliseconds time) {
  return static_cast<double>(time.count()) / 1000;
}

// What node 0 was started with, which those who come later are to have, too.
constexpr const char* kAgreement = "agreement";

Status Cancelled() { return {StatusCode::kCancelled, "the launcher was told to end"}; }

std::string TheyDiffer(int node, const std::string& its, const std::string& node_0s) {
  return fmt::format("node {} was started with {}, node 0 with {}: these must be the same", node,
                     its, node_0s);
}

}  // namespace

Status StoreLost(const JobLinkOptions& options, const Status& status) {
  return Status(StatusCode::kUnavailable,
                fmt::format("node {} has lost the job's store at {}, which node 0's launcher "
                            "serves: that launcher has ended, or the network between is down ({})",
                            options.node, options.address, status.message()));
}

std::string Assembly::Key(int attempt, const char* name) const {
  return fmt::format("attempt_{}/{}", attempt, name);
}

Status Assembly::Beat() {
  const auto now = std::chrono::steady_clock::now();
  if (options_.node == 0 || now < next_beat_) return Status::Ok();
  next_beat_ = now + kBeatInterval;
  return store_.Add(fmt::format("beat/{}", options_.node), 1).status();
}

Result<int> Assembly::TakePlace() {
  const auto deadline = std::chrono::steady_clock::now() + options_.join_deadline;
  KEEL_ASSIGN_OR_RETURN(const int64_t count,
                        store_.Add(fmt::format("join/{}/count", options_.node), 1));
  if (count == 1) return 0;
  KEEL_RETURN_IF_ERROR(CheckAgreement());  // a slip of a newcomer's ends nobody else
  // 1. Does the one before live? Then there is one too many.
  const std::string beat = fmt::format("beat/{}", options_.node);
  const std::string place = fmt::format("place/{}", options_.node);
  KEEL_ASSIGN_OR_RETURN(const auto first_beat, store_.TryGet(beat));
  while (options_.node != 0 && std::chrono::steady_clock::now() <= deadline) {
    KEEL_ASSIGN_OR_RETURN(const auto now, store_.TryGet(beat));
    if (now != first_beat) break;
    // 2. Node 0 has noticed that it does not, and waits for another. Of several one is taken.
    KEEL_ASSIGN_OR_RETURN(const auto open, store_.TryGet(place));
    if (open && !open->empty()) {
      KEEL_ASSIGN_OR_RETURN(const int64_t takers,
                            store_.Add(fmt::format("{}/{}/count", place, *open), 1));
      if (takers == 1) return std::atoi(open->c_str());
    }
    if (!pause_()) return Cancelled();
  }
  return Status(StatusCode::kUsage,
                fmt::format("another launcher has joined the job at {} with --node-rank {}: "
                            "every node needs a rank of its own, and every job its own "
                            "--master-port or --rdzv-id. A lost node's launcher can be started "
                            "again where --max-restarts leaves a restart",
                            options_.address, options_.node));
}

Status Assembly::Gather(int attempt, const std::vector<int>& nodes) {
  const auto deadline = std::chrono::steady_clock::now() + options_.join_deadline;
  const std::string joined = Key(attempt, "joined");
  if (options_.node == 0 && attempt == 0)
    KEEL_RETURN_IF_ERROR(store_.Set(kAgreement, options_.agreement));
  if (options_.node == 0 && attempt > 0) {
    for (const int node : nodes)
      KEEL_RETURN_IF_ERROR(store_.Set(fmt::format("place/{}", node), std::to_string(attempt)));
  }
  if (options_.node != 0) {
    KEEL_RETURN_IF_ERROR(
        store_.Set(Key(attempt, "join/") + std::to_string(options_.node), options_.agreement));
  }
  while (pause_()) {
    KEEL_RETURN_IF_ERROR(Beat());
    KEEL_ASSIGN_OR_RETURN(const auto answer, store_.TryGet(joined));
    if (answer) return Hear(attempt);
    if (options_.node != 0) {
      KEEL_RETURN_IF_ERROR(CheckAgreement());  // of a node that node 0 knows nothing of, too
      continue;
    }
    Outcome outcome;
    KEEL_ASSIGN_OR_RETURN(
        const bool decided,
        Decide(attempt, nodes, std::chrono::steady_clock::now() > deadline, outcome));
    if (!decided) continue;
    for (const int node : nodes)
      KEEL_RETURN_IF_ERROR(store_.Set(fmt::format("place/{}", node), ""));
    const char* word = outcome.code == StatusCode::kOk      ? "ok"
                       : outcome.code == StatusCode::kUsage ? "usage"
                                                            : "late";
    KEEL_RETURN_IF_ERROR(store_.Set(joined, fmt::format("{} {}", word, outcome.what)));
    if (outcome.code == StatusCode::kOk) return Status::Ok();
    for (int round = 0; round < 4 && pause_(); ++round) {  // for the others to read it
    }
    return Status(outcome.code, outcome.what);
  }
  // The nodes that wait need not do so any longer. Before the first attempt others may take this
  // place.
  if (attempt > 0) {
    const Status said = store_.Set(
        joined, fmt::format("stopped node {} was told to stop while the job waited for node(s) {}",
                            options_.node, fmt::join(nodes, ", ")));
    if (!said.ok()) return said;
  }
  return Cancelled();
}

Status Assembly::CheckAgreement() {
  if (options_.node == 0) return Status::Ok();
  KEEL_ASSIGN_OR_RETURN(const auto agreed, store_.TryGet(kAgreement));
  if (!agreed || *agreed == options_.agreement) return Status::Ok();
  return Status(StatusCode::kUsage, TheyDiffer(options_.node, options_.agreement, *agreed));
}

Status Assembly::Hear(int attempt) {
  KEEL_ASSIGN_OR_RETURN(const auto answer, store_.TryGet(Key(attempt, "joined")));
  const std::string text = answer.value_or("");
  const size_t space = text.find(' ');
  const std::string word = text.substr(0, space);
  if (word == "ok") return Status::Ok();
  const StatusCode code = word == "usage" ? StatusCode::kUsage : StatusCode::kUnavailable;
  return Status(code, space == std::string::npos ? text : text.substr(space + 1));
}

// On node 0. True once the outcome is known: all are there, one has other flags, or time is up.
Result<bool> Assembly::Decide(int attempt, const std::vector<int>& nodes, bool late,
                              Outcome& outcome) {
  std::vector<int> missing;
  for (const int node : nodes) {
    KEEL_ASSIGN_OR_RETURN(const auto agreement,
                          store_.TryGet(Key(attempt, "join/") + std::to_string(node)));
    if (!agreement) {
      missing.push_back(node);
    } else if (*agreement != options_.agreement) {
      outcome.code = StatusCode::kUsage;
      outcome.what = TheyDiffer(node, *agreement, options_.agreement);
    }
  }
  if (!outcome.what.empty() || missing.empty()) return true;
  if (!late) return false;
  outcome.code = StatusCode::kUnavailable;
  outcome.what = fmt::format(
      "node(s) {} did not {} the job at {} within {} s{}: start keel launch there, with the same "
      "{}",
      fmt::join(missing, ", "), attempt == 0 ? "join" : "come back to", options_.address,
      InSeconds(options_.join_deadline),
      attempt == 0 ? "" : fmt::format(", for restart {} of {}", attempt, options_.max_restarts),
      attempt == 0 ? "--rdzv-id" : "flags, before --rdzv-conf join_timeout=SECONDS is over");
  return true;
}

}  // namespace keel::tools
