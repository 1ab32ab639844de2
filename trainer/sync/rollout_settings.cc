#include "trainer/sync/rollout_settings.h"

#include <algorithm>

namespace keel::trainer {

rollout::EngineOptions RolloutEngineOptions(const Config& config, int64_t longest) {
  const RolloutSection& r = config.actor_rollout_ref.rollout;
  rollout::EngineOptions options;
  options.scheduler.max_num_batched_tokens = r.max_num_batched_tokens;
  options.scheduler.max_num_seqs = r.max_num_seqs;
  options.scheduler.enable_chunked_prefill = r.enable_chunked_prefill;
  options.enable_prefix_caching = r.enable_prefix_caching;
  options.recompute_kv = config.async_training.recompute_kv;
  options.block_size = static_cast<int32_t>(r.block_size);
  options.kv_cache_bytes = r.kv_cache_megabytes.value_or(0) << 20;
  options.gpu_memory_utilization = r.gpu_memory_utilization;
  options.max_model_len = r.max_model_len.value_or(
      std::min(longest, config.data.max_prompt_length + config.data.max_response_length));
  options.calculate_log_probs = r.calculate_log_probs;
  options.logprobs_mode = r.logprobs_mode;
  options.batch_invariant = r.batch_invariant;
  options.enforce_eager = r.enforce_eager;
  return options;
}

rollout::SamplingParams TrainSampling(const Config& config) {
  const RolloutSection& r = config.actor_rollout_ref.rollout;
  rollout::SamplingParams p;
  p.temperature = r.temperature;
  p.top_k = r.top_k;
  p.top_p = r.top_p;
  p.min_p = r.min_p;
  p.repetition_penalty = r.repetition_penalty;
  p.ignore_eos = r.ignore_eos;
  p.max_tokens = config.data.max_response_length;
  p.seed = static_cast<uint64_t>(r.seed.value_or(config.trainer.seed));
  return p;
}

rollout::SamplingParams ValSampling(const Config& config) {
  const ValSamplingSection& v = config.actor_rollout_ref.rollout.val_kwargs;
  rollout::SamplingParams p = TrainSampling(config);
  p.temperature = v.do_sample ? v.temperature : 0;
  p.top_k = v.top_k;
  p.top_p = v.top_p;
  p.min_p = 0;
  return p;
}

parallel::Arithmetic ActorArithmetic(const Config& config, Logger& log) {
  const ActorRolloutRefSection& a = config.actor_rollout_ref;
  if (!a.rollout.batch_invariant) return parallel::Arithmetic::kTraining;
  const int64_t trains = a.actor.megatron.tensor_model_parallel_size;
  const int64_t generates = ReplicaRanks(config);
  if (trains != generates) {
    log.Warning(
        "actor_rollout_ref.rollout.batch_invariant: training sums over {} tensor-parallel ranks "
        "and generation over {}, so that their log-probabilities differ by rounding; over as "
        "many they are equal bit for bit",
        trains, generates);
  }
  return parallel::Arithmetic::kBatchInvariant;
}

}  // namespace keel::trainer
