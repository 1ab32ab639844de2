#include "trainer/rl/batch_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/text.h"

namespace keel::trainer::rl {

void AddBatchMetrics(const RolloutBatch& batch, int64_t max_prompt, int64_t max_response,
                     StepLine* line) {
  std::vector<double> prompts, lengths;
  double cut = 0;
  double long_prompts = 0;
  for (const Response& r : batch.responses) {
    prompts.push_back(static_cast<double>(r.prompt.size()));
    lengths.push_back(static_cast<double>(r.tokens.size()));
    // A row's own bound (data.max_response_length_key) may be below that of all.
    cut += r.finish == "length" || static_cast<int64_t>(r.tokens.size()) >= max_response;
    long_prompts += static_cast<int64_t>(r.prompt.size()) >= max_prompt;
  }
  const auto n = static_cast<double>(std::max<size_t>(1, batch.responses.size()));
  line->SetSpread("response_length", lengths);
  line->Set("response_length/clip_ratio", cut / n);
  line->SetSpread("prompt_length", prompts);
  line->Set("prompt_length/clip_ratio", long_prompts / n);
  line->SetSpread("critic/score", batch.scores_that_count());
  // verl's names: those of which nothing came were given up.
  const double empty = static_cast<double>(std::count(lengths.begin(), lengths.end(), 0.0));
  std::erase(lengths, 0.0);
  line->SetSpread("response_length_non_aborted", lengths);
  line->Set("response_length_non_aborted/clip_ratio", lengths.empty() ? 0 : cut / (n - empty));
  line->Set("response/aborted_ratio", empty / n);
  const double generated = std::max<double>(1, static_cast<double>(batch.response_tokens()));
  line->Set("timing_per_token_ms/gen", line->Number("timing_s/gen") * 1000 / generated);
}

void AddRewardMetrics(const RolloutBatch& batch, StepLine* line) {
  std::map<std::string, std::pair<double, double>> sums;  // value, responses
  for (const Response& r : batch.responses) {
    if (r.failed()) continue;
    for (const auto& [name, value] : r.extra) {
      auto& [sum, count] = sums[name];
      sum += value;
      count += 1;
    }
  }
  size_t named = 0;
  for (const auto& [name, sum] : sums) {
    if (++named > kMostRewardNames) break;
    line->Set(fmt::format("reward/{}/mean", Printable(name, 60)), sum.first / sum.second);
  }
}

void AddTurnMetrics(const RolloutBatch& batch, StepLine* line) {
  std::vector<double> turns, rewards;
  turns::ToolUse sum;
  for (const Response& r : batch.responses) {
    turns.push_back(2.0 * static_cast<double>(r.given.size()) + 2.0);
    rewards.push_back(r.tools.reward());
    sum.calls += r.tools.calls;
    sum.errors += r.tools.errors;
    sum.timeouts += r.tools.timeouts;
    sum.truncated += r.tools.truncated;
  }
  line->SetSpread("num_turns", turns);
  line->SetSpread("tool_rewards", rewards);
  line->Set("tools/calls", sum.calls);
  line->Set("tools/errors", sum.errors);
  line->Set("tools/timeouts", sum.timeouts);
  line->Set("tools/truncated", sum.truncated);
}

}  // namespace keel::trainer::rl
