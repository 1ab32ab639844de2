#include "trainer/desk/step_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace keel::trainer::desk {

int64_t StepOrder::Due(int64_t position) const {
  const auto behind = ledger_.taken.lower_bound(position);
  const int64_t before = position - ledger_.frontier - std::distance(ledger_.taken.begin(), behind);
  return ledger_.steps + before / options_.batch;
}

StepOrder::Limits StepOrder::LimitsOfBegun() const {
  Limits limits;
  for (const auto& [id, entry] : ledger_.samples) {
    const auto& spans = entry.finished ? entry.finished->spans : entry.partial.spans;
    if (!spans.empty()) Begin(id.position, spans.front().version, &limits);
  }
  return limits;
}

void StepOrder::Begin(int64_t position, int64_t version, Limits* limits) const {
  const int64_t limit = ledger_.versions.at(version) + options_.max_staleness;
  const auto [at, fresh] = limits->emplace(position, limit);
  if (!fresh) at->second = std::min(at->second, limit);
}

bool StepOrder::Fits(int64_t position, int64_t steps, const Limits& limits) const {
  const int64_t begun = std::ssize(limits) + (limits.contains(position) ? 0 : 1);
  return begun <= options_.batch * (steps + options_.max_staleness - ledger_.steps + 1);
}

// By the steps that train them when nothing is waited for.
Status StepOrder::CheckAges() const {
  std::vector<std::pair<int64_t, int64_t>> begun;  // limit, position
  for (const auto& [position, limit] : LimitsOfBegun()) begun.emplace_back(limit, position);
  if (options_.ready_first) std::sort(begun.begin(), begun.end());
  for (size_t i = 0; i < begun.size(); ++i) {
    const auto& [limit, position] = begun[i];
    const int64_t due = options_.ready_first
                            ? ledger_.steps + static_cast<int64_t>(i) / options_.batch
                            : Due(position);
    if (due <= limit) continue;
    return Status(
        StatusCode::kInvalidData,
        fmt::format("position {} would be {} steps old when it is trained, "
                    "max_staleness is {}",
                    position, due - limit + options_.max_staleness, options_.max_staleness));
  }
  return Status::Ok();
}

std::vector<int64_t> StepOrder::NextInOrder() const {
  std::vector<int64_t> batch;
  for (int64_t position = ledger_.frontier; std::ssize(batch) < options_.batch; ++position) {
    if (!ledger_.open(position)) continue;
    for (const int sample : options_.samples) {
      const auto known = ledger_.samples.find({position, sample});
      if (known == ledger_.samples.end() || !known->second.finished) return {};
    }
    batch.push_back(position);
  }
  return batch;
}

std::vector<int64_t> StepOrder::NextReady(Limits limits) const {
  // 1. The complete ones, soonest limit first. One without tokens could not be generated: the step
  //    is to hear of it.
  std::map<int64_t, size_t> finished;  // samples, by position
  for (const auto& [id, entry] : ledger_.samples) finished[id.position] += entry.finished ? 1 : 0;
  std::vector<std::pair<int64_t, int64_t>> complete;  // limit, position
  for (const auto& [position, samples] : finished) {
    if (samples < options_.samples.size()) continue;
    const auto limit = limits.find(position);
    complete.emplace_back(limit == limits.end() ? -1 : limit->second, position);
  }
  if (std::ssize(complete) < options_.batch) return {};
  std::sort(complete.begin(), complete.end());
  complete.resize(static_cast<size_t>(options_.batch));
  // 2. Those that stay, complete or not, have steps enough.
  std::vector<int64_t> batch;
  for (const auto& [limit, position] : complete) {
    batch.push_back(position);
    limits.erase(position);
  }
  std::vector<int64_t> rest;
  for (const auto& [position, limit] : limits) rest.push_back(limit);
  std::sort(rest.begin(), rest.end());
  for (size_t i = 0; i < rest.size(); ++i) {
    if (rest[i] < ledger_.steps + 1 + static_cast<int64_t>(i) / options_.batch) return {};
  }
  std::sort(batch.begin(), batch.end());
  return batch;
}

}  // namespace keel::trainer::desk
