#include "tests/checkpoint/simulation/oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "checkpoint/format/names.h"
#include "checkpoint/read/verifier.h"
#include "common/json.h"

namespace keel::checkpoint::testing {

int64_t Oracle::Begin(int64_t step) {
  saves_.push_back({step});
  return std::ssize(saves_) - 1;
}

// What is visible at this moment is durable too: the run directory was synced since.
void Oracle::Acknowledge(int64_t content) {
  Save& save = saves_.at(static_cast<size_t>(content));
  if (save.promised) return;
  for (const int64_t earlier : Unpromised()) {
    const bool visible = std::find(visible_.begin(), visible_.end(), earlier) != visible_.end();
    if (!visible || earlier == content) continue;
    saves_[static_cast<size_t>(earlier)].promised = true;
    promised_.push_back(earlier);
  }
  save.promised = true;
  promised_.push_back(content);
}

// Published after the last promised one, in order.
std::vector<int64_t> Oracle::Unpromised() const {
  std::vector<int64_t> contents;
  for (const int64_t content : published_) {
    if (saves_[static_cast<size_t>(content)].promised) {
      contents.clear();
    } else {
      contents.push_back(content);
    }
  }
  return contents;
}

std::string Oracle::Publish(const SimFileSystem& disk, const std::string& directory,
                            uint64_t digest) {
  const std::unique_ptr<SimFileSystem> mount = disk.Mount();
  const auto text = ReadFile(*mount, directory + "/trainer_state.json", 4096);
  if (!text.ok()) return directory + " is visible without trainer_state.json";
  const Json state = Json::parse(*text, nullptr, false);
  if (!state.is_object()) return directory + "/trainer_state.json is torn";
  const auto content = state.at("content").get<int64_t>();
  Save& save = saves_.at(static_cast<size_t>(content));
  if (directory != StepDirectory(save.step)) return directory + " holds a save of another step";
  if (save.published) return directory + " has changed since it became visible";
  const VerifyReport report = VerifyCheckpoint(*mount, directory, 1);
  if (!report.problems.empty()) {
    return fmt::format("{} is visible and not whole: {}", directory, report.problems.front());
  }
  save.published = true;
  save.digest = digest;
  by_digest_.emplace(digest, content);
  published_.push_back(content);
  return "";
}

// Whether the newest `keep_` of these are there; of a step only the last one counts.
bool Oracle::Holds(const std::vector<int64_t>& order, const std::map<int64_t, bool>& there) const {
  std::set<int64_t> steps;
  for (auto content = order.rbegin(); content != order.rend(); ++content) {
    if (keep_ > 0 && std::ssize(steps) == keep_) return true;
    if (!steps.insert(step_of(*content)).second) continue;
    if (!there.contains(*content)) return false;
  }
  return true;
}

std::string Oracle::CheckDisk(const SimFileSystem& disk, bool live) {
  std::map<int64_t, bool> there;  // content -> visible, or to be restored by the next start
  std::string tracker;
  bool tracked = false;
  for (const FileInfo& info : ValueOrThrow(disk.Mount()->List("."))) {
    if (info.name == kTrackerName) {
      tracker = disk.Content(info.name);
      tracked = true;
    }
    if (info.kind != FileKind::kDirectory) continue;
    const auto scratch = ParseScratchDirectory(info.name);
    const bool step = ParseStepDirectory(info.name).has_value();
    if (!step && !(scratch && scratch->kind == ScratchKind::kReplaced)) continue;
    const uint64_t digest = disk.Digest(info.name);
    auto found = by_digest_.find(digest);
    if (found == by_digest_.end() && step) {
      if (std::string problem = Publish(disk, info.name, digest); !problem.empty()) return problem;
      found = by_digest_.find(digest);
    }
    if (found == by_digest_.end()) continue;  // a replaced one that is being removed
    there[found->second] = there[found->second] || step;
  }
  if (live) {
    visible_.clear();
    for (const auto& [content, visible] : there) {
      if (visible) visible_.push_back(content);
    }
  }

  // What became visible and was not promised may count, the first of these first.
  std::vector<int64_t> order = promised_;
  bool holds = Holds(order, there);
  for (const int64_t content : Unpromised()) {
    if (holds) break;
    if (!there.contains(content)) continue;  // withdrawn, or gone with the power
    order.push_back(content);
    holds = Holds(order, there);
  }
  if (!holds) {
    std::string text = fmt::format("of the {} newest promised saves one is gone; there are",
                                   keep_ > 0 ? std::to_string(keep_) : "");
    for (const auto& [content, visible] : there)
      text += fmt::format(" {} (step {}{})", content, step_of(content), visible ? "" : ", aside");
    text += "; promised were";
    for (const int64_t content : promised_)
      text += fmt::format(" {} (step {})", content, step_of(content));
    return text;
  }
  if (tracked) {
    int64_t step = -1;
    const char* end = tracker.data() + tracker.size();
    const auto [stop, error] = std::from_chars(tracker.data(), end, step);
    if (error != std::errc() || std::string_view(stop, static_cast<size_t>(end - stop)) != "\n")
      return fmt::format("the tracker reads '{}'", tracker);
    const auto committed = [&](int64_t content) { return step_of(content) == step; };
    const bool is_there = std::any_of(there.begin(), there.end(),
                                      [&](const auto& one) { return committed(one.first); });
    if (!is_there)
      return fmt::format("the tracker names step {}, which is not there{}", step,
                         std::none_of(promised_.begin(), promised_.end(), committed)
                             ? ", and was never promised"
                             : "");
  }
  return "";
}

std::string Oracle::CheckNoDebris(const SimFileSystem& disk, bool disk_failed) const {
  static const std::set<std::string, std::less<>> kOurs = {
      std::string(kTrackerName), std::string(kRecordsName), std::string(kLockName)};
  for (const FileInfo& info : ValueOrThrow(disk.Mount()->List("."))) {
    if (disk_failed && info.name.find(".set-aside-") != std::string::npos) continue;
    if (!ParseStepDirectory(info.name) && !kOurs.contains(info.name))
      return info.name + " is left after a start";
  }
  return "";
}

std::string Oracle::CheckChosen(int64_t content, bool excused) const {
  if (excused) return "";
  if (promised_.empty()) return "";
  if (content == promised_.back()) return "";
  const std::vector<int64_t> later = Unpromised();
  if (std::find(later.begin(), later.end(), content) != later.end()) return "";
  return fmt::format("resumed from save {} (step {}), but save {} (step {}) was acknowledged",
                     content, content < 0 ? -1 : step_of(content), promised_.back(),
                     step_of(promised_.back()));
}

}  // namespace keel::checkpoint::testing
