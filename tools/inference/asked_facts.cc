#include "tools/inference/asked_facts.h"

#include <fmt/format.h>

#include "common/json.h"

namespace keel::tools {

trainer::SharedFacts FactsOf(const rollout::SamplingParams& sampling) {
  return {{"--temperature", fmt::format("{}", sampling.temperature)},
          {"--top-k", fmt::format("{}", sampling.top_k)},
          {"--top-p", fmt::format("{}", sampling.top_p)},
          {"--min-p", fmt::format("{}", sampling.min_p)},
          {"--repetition-penalty", fmt::format("{}", sampling.repetition_penalty)},
          {"--max-new-tokens", fmt::format("{}", sampling.max_tokens)},
          {"--stop", Json(sampling.stop).dump(-1, ' ', true, Json::error_handler_t::replace)},
          {"--seed", fmt::format("{}", sampling.seed)}};
}

trainer::SharedFacts EngineFacts(int64_t max_num_seqs, int64_t cache_megabytes) {
  return {{"--max-num-seqs", fmt::format("{}", max_num_seqs)},
          {"--kv-cache-megabytes", fmt::format("{}", cache_megabytes)}};
}

}  // namespace keel::tools
