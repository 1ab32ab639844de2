#include "trainer/config/config_rollout.h"

#include <fmt/format.h>

#include "trainer/config/config.h"

namespace keel::trainer {

namespace {

void AddSamplingOptions(Config& c, options::Schema& s) {
  RolloutSection& r = c.actor_rollout_ref.rollout;
  const std::string rollout = "actor_rollout_ref.rollout.";
  s.Add(rollout + "n", r.n, "Samples of each prompt; they share the prompt's blocks.").Range(1);
  s.Add(rollout + "temperature", r.temperature,
        "Of sampling in training; 0 takes the likeliest token.")
      .Range(0)
      .OfSamples();
  s.Add(rollout + "top_k", r.top_k, "Draw from so many of the likeliest tokens; -1: from all.")
      .Range(-1)
      .OfSamples();
  s.Add(rollout + "top_p", r.top_p, "Draw from the fewest likeliest tokens that hold this mass.")
      .Range(0, 1)
      .OfSamples();
  s.Add(rollout + "min_p", r.min_p, "Leave out tokens below this share of the likeliest.")
      .Range(0, 1)
      .OfSamples();
  s.Add(rollout + "repetition_penalty", r.repetition_penalty,
        "Above 1, tokens of the prompt and of the response so far become less likely.")
      .Above(0)
      .OfSamples();
  s.Add(rollout + "ignore_eos", r.ignore_eos,
        "Go on after an end of text, to the response's full length.")
      .OfSamples();
  s.Add(rollout + "seed", r.seed,
        "Of the draws, which depend on nothing but it, the prompt, the sample and the position; "
        "null: `trainer.seed`.")
      .Range(0)
      .OfSamples();
}

void AddEngineOptions(Config& c, options::Schema& s) {
  RolloutSection& r = c.actor_rollout_ref.rollout;
  const std::string rollout = "actor_rollout_ref.rollout.";
  s.Add(rollout + "max_num_batched_tokens", r.max_num_batched_tokens,
        "Tokens of one forward: a token of each running sequence, and parts of new prompts.")
      .Range(1)
      .Unit("tokens");
  s.Add(rollout + "max_num_seqs", r.max_num_seqs, "Sequences that run at a time.").Range(1);
  s.Add(rollout + "max_model_len", r.max_model_len,
        "Tokens of prompt and response at most; null: `data.max_prompt_length` and "
        "`data.max_response_length` together, which RL needs.")
      .Range(1)
      .Unit("tokens");
  s.Add(rollout + "enable_chunked_prefill", r.enable_chunked_prefill,
        "Compute long prompts in parts, beside running sequences; false needs "
        "`max_num_batched_tokens` to hold a whole sequence.");
  s.Add(rollout + "enable_prefix_caching", r.enable_prefix_caching,
        "Find the keys and values of a prefix that the same weights have computed before.");
  s.Add(rollout + "block_size", r.block_size, "Tokens of a block of the KV cache.")
      .Range(1)
      .Unit("tokens");
  s.Add(rollout + "kv_cache_megabytes", r.kv_cache_megabytes,
        "Memory of a rank for keys and values, and for states; null: on CPU what `max_num_seqs` "
        "sequences need, at "
        "most 1 GiB; on CUDA by `gpu_memory_utilization`.")
      .Range(1)
      .Unit("MiB");
  s.Add(rollout + "gpu_memory_utilization", r.gpu_memory_utilization,
        "Share of the free device memory for keys and values, on CUDA.")
      .Range(0, 1);
  s.Add(rollout + "free_cache_engine", r.free_cache_engine,
        "Give the KV cache's memory back while the model is trained.");
  s.Add(rollout + "tensor_model_parallel_size", r.tensor_model_parallel_size,
        "Ranks that share each layer in generation; null: the actor's.")
      .Range(1, kMostRanks);
  s.Add(rollout + "dtype", r.dtype,
        "Of weights and cache in generation; null: the model's. Another is not in this release.");
}

void AddLogProbOptions(Config& c, options::Schema& s) {
  RolloutSection& r = c.actor_rollout_ref.rollout;
  const std::string rollout = "actor_rollout_ref.rollout.";
  s.Add(rollout + "calculate_log_probs", r.calculate_log_probs,
        "Keep the log-probability of each token as it was chosen.")
      .OfSamples();
  s.Add(rollout + "logprobs_mode", r.logprobs_mode,
        "`policy_logprobs`: under softmax(logits / temperature), what the trainer computes, "
        "whatever penalty and filters the token was drawn by; `raw_logprobs`: under softmax("
        "logits); `processed_logprobs`: under the distribution the token was drawn from, after "
        "penalty, temperature and filters.")
      .OfSamples();
  s.Add(
      rollout + "batch_invariant", r.batch_invariant,
      "Log-probabilities equal bit for bit whatever else is in the batch, and those of training, "
      "whose forward is then computed as generation's; with as many tensor-parallel ranks in both. "
      "The former is always so on CPU with up to two; else, and in training, it costs speed.");
  s.Add(rollout + "enforce_eager", r.enforce_eager,
        "Give a GPU each step of generation operation by operation, in place of a recorded step's "
        "replay (CUDA graphs).");
}

void AddSyncOptions(Config& c, options::Schema& s) {
  RolloutSection& r = c.actor_rollout_ref.rollout;
  const std::string rollout = "actor_rollout_ref.rollout.";
  s.Add(rollout + "checkpoint_engine.update_weights_bucket_megabytes",
        r.checkpoint_engine.update_weights_bucket_megabytes,
        "Weights that a rank sends, and receives, at a time on their way to the rollout; two such "
        "buffers are all the memory a sync takes.")
      .Range(1)
      .Unit("MiB");
  s.Add(rollout + "weight_sync", r.weight_sync,
        "`in_place`: over the old weights; a sync that fails leaves an engine that refuses to "
        "generate. `staged`: beside them, at the cost of a second copy of the rank's shard; so it "
        "is in "
        "any case where workers are ahead of the training (async_training.max_staleness).");
  s.Add(rollout + "verify_sync", r.verify_sync,
        "Overwrite the rollout's weights with NaN before a sync, to prove that it brings all of "
        "them. Digests of what arrived are compared in any case.");
}

void AddTurnOptions(Config& c, options::Schema& s) {
  RolloutSection& r = c.actor_rollout_ref.rollout;
  const std::string rollout = "actor_rollout_ref.rollout.";
  const std::string turns = rollout + "multi_turn.";
  s.Add(turns + "enable", r.multi_turn.enable,
        "RL: responses of several turns: the model calls tools, sees what they say, and goes on "
        "(docs/tools.md).")
      .OfSamples();
  s.Add(turns + "tool_config_path", r.multi_turn.tool_config_path,
        "YAML file of the tools, in verl's shape: `tools`, each with `config` (`command` or `url`, "
        "`timeout_seconds`, `num_workers`) and `tool_schema`.");
  s.Add(turns + "interaction_config_path", r.multi_turn.interaction_config_path,
        "YAML file of the environments, in verl's shape: `interaction`, each with `name` and "
        "`config` as a tool's. A row with `extra_info.interaction_kwargs` is for the one of its "
        "`name`, which answers each turn without a call.");
  s.Add(turns + "max_assistant_turns", r.multi_turn.max_assistant_turns,
        "Turns that the model writes in a response at most; null: as many as "
        "`data.max_response_length` holds.")
      .Range(1)
      .OfSamples();
  s.Add(turns + "max_user_turns", r.multi_turn.max_user_turns,
        "Turns of tools and environments in a response at most; null likewise.")
      .Range(1)
      .OfSamples();
  s.Add(turns + "max_parallel_calls", r.multi_turn.max_parallel_calls,
        "Calls of one turn that are made; those behind them are not.")
      .Range(1)
      .OfSamples();
  s.Add(turns + "max_tool_response_length", r.multi_turn.max_tool_response_length,
        "A tool's text is cut to so many characters.")
      .Range(1)
      .Unit("characters")
      .OfSamples();
  s.Add(turns + "tool_response_truncate_side", r.multi_turn.tool_response_truncate_side,
        "Which side of a text that is too long stays; `middle`: both ends.")
      .OfSamples();
  s.Add(turns + "format", r.multi_turn.format,
        "How the model writes calls: `auto` as its chat template does, `hermes` (also Qwen's), "
        "`llama3_json`, `mistral`, `qwen3_coder`, `granite`, `olmo3`, `deepseek`.")
      .OfSamples();
  s.Add(turns + "add_tool_rewards", r.multi_turn.add_tool_rewards,
        "Add the rewards that tools and environments gave to the verifier's score.")
      .OfSamples();
}

void AddValidationOptions(Config& c, options::Schema& s) {
  RolloutSection& r = c.actor_rollout_ref.rollout;
  const std::string rollout = "actor_rollout_ref.rollout.";
  const std::string val = rollout + "val_kwargs.";
  s.Add(val + "n", r.val_kwargs.n, "Samples of each prompt in validation.").Range(1);
  s.Add(val + "temperature", r.val_kwargs.temperature, "Likewise, with `do_sample`.").Range(0);
  s.Add(val + "top_k", r.val_kwargs.top_k, "Likewise.").Range(-1);
  s.Add(val + "top_p", r.val_kwargs.top_p, "Likewise.").Range(0, 1);
  s.Add(val + "do_sample", r.val_kwargs.do_sample, "False: the likeliest token, always.");
}

}  // namespace

void AddRolloutOptions(Config& c, options::Schema& s) {
  AddSamplingOptions(c, s);
  AddEngineOptions(c, s);
  AddLogProbOptions(c, s);
  AddSyncOptions(c, s);
  AddTurnOptions(c, s);
  AddValidationOptions(c, s);
}

namespace {

// "top_p 0.95, top_k 20": what makes tokens be drawn from another distribution than
// softmax(logits / temperature), which the trainer knows alone; "" when nothing does.
std::string FiltersOf(const RolloutSection& r) {
  std::vector<std::string> all;
  if (r.top_p < 1) all.push_back(fmt::format("top_p {}", r.top_p));
  if (r.top_k > 0) all.push_back(fmt::format("top_k {}", r.top_k));
  if (r.min_p > 0) all.push_back(fmt::format("min_p {}", r.min_p));
  if (r.repetition_penalty != 1)
    all.push_back(fmt::format("repetition_penalty {}", r.repetition_penalty));
  return fmt::format("{}", fmt::join(all, ", "));
}

// Why the log-probabilities that the rollout keeps are not those that the trainer computes; "" when
// they are.
std::string ApartFromTrainer(const RolloutSection& r) {
  switch (r.logprobs_mode) {
    case rollout::LogProbsMode::kPolicy:
      return "";
    case rollout::LogProbsMode::kRaw:
      return r.temperature == 1 ? "" : fmt::format("temperature {}", r.temperature);
    case rollout::LogProbsMode::kProcessed:
      return FiltersOf(r);
  }
  return "";
}

void CheckLogProbs(const Config& c, std::vector<std::string>* problems) {
  const RolloutSection& r = c.actor_rollout_ref.rollout;
  const RolloutCorrectionSection& correction = c.algorithm.rollout_correction;
  if (r.temperature == 0) {
    problems->push_back(
        "actor_rollout_ref.rollout.temperature is 0: all samples of a prompt would be the same, "
        "and no log-probability could be trained on; give a number above 0");
  }
  const char* const wants = correction.wants();
  if (wants != nullptr && !r.calculate_log_probs) {
    problems->push_back(
        fmt::format("algorithm.rollout_correction.{} needs the rollout's log-probabilities: set "
                    "actor_rollout_ref.rollout.calculate_log_probs to true",
                    wants));
  }
  const std::string apart = ApartFromTrainer(r);
  if (!r.calculate_log_probs || apart.empty()) return;
  std::vector<std::string> comparers;
  if (wants != nullptr) comparers.push_back(fmt::format("algorithm.rollout_correction.{}", wants));
  // Without the rollout's it takes the trainer's own before the update.
  if (c.actor_rollout_ref.actor.loss.policy_loss.off_policy_mask_threshold)
    comparers.push_back("actor_rollout_ref.actor.policy_loss.off_policy_mask_threshold");
  for (const std::string& key : comparers) {
    problems->push_back(fmt::format(
        "{} compares the rollout's log-probabilities with the trainer's, but with "
        "actor_rollout_ref.rollout.logprobs_mode {} and {} they are of another distribution, so "
        "that every token would seem off policy: set logprobs_mode to policy_logprobs",
        key, NameOf(r.logprobs_mode), apart));
  }
}

void CheckMultiTurn(const RolloutSection& r, std::vector<std::string>* problems) {
  if (!r.multi_turn.enable) return;
  const std::string rollout = "actor_rollout_ref.rollout.";
  if (!r.multi_turn.tool_config_path && !r.multi_turn.interaction_config_path) {
    problems->push_back(rollout + "multi_turn.enable needs " + rollout +
                        "multi_turn.tool_config_path, the file that lists the tools, or " +
                        rollout + "multi_turn.interaction_config_path, that of environments");
  }
  if (r.ignore_eos) {
    problems->push_back(rollout + "multi_turn.enable with " + rollout +
                        "ignore_eos: no turn would end; set ignore_eos to false");
  }
}

}  // namespace

std::vector<std::string> RolloutRemarks(const Config& c) {
  std::vector<std::string> remarks;
  const RolloutSection& r = c.actor_rollout_ref.rollout;
  if (const std::string filters = FiltersOf(r); !filters.empty()) {
    remarks.push_back(
        fmt::format("actor_rollout_ref.rollout has {}: tokens are drawn from what these leave, but "
                    "log-probabilities, entropy, KL and importance ratios are of the whole "
                    "distribution, softmax(logits / temperature)",
                    filters));
  }
  if (const std::string apart = ApartFromTrainer(r); r.calculate_log_probs && !apart.empty()) {
    remarks.push_back(fmt::format(
        "actor_rollout_ref.rollout.logprobs_mode is {}: with {} the rollout's log-probabilities "
        "are not of the trainer's distribution, which is what training/rollout_* and "
        "rollout_corr/* will show; policy_logprobs makes them comparable",
        NameOf(r.logprobs_mode), apart));
  }
  return remarks;
}

std::vector<std::string> ValidateRolloutConfig(const Config& c) {
  std::vector<std::string> problems;
  const RolloutSection& r = c.actor_rollout_ref.rollout;
  const std::string rollout = "actor_rollout_ref.rollout.";
  const auto check_filters = [&](const std::string& prefix, int64_t top_k, double top_p) {
    if (top_k == 0)
      problems.push_back(prefix + "top_k is 0: give -1 for all tokens, or at least 1");
    if (top_p == 0) problems.push_back(prefix + "top_p is 0: expected a number in (0, 1]");
  };
  check_filters(rollout, r.top_k, r.top_p);
  check_filters(rollout + "val_kwargs.", r.val_kwargs.top_k, r.val_kwargs.top_p);
  const WeightDtype dtype = c.actor_rollout_ref.model.dtype;
  if (r.dtype.value_or(dtype) != dtype) {
    problems.push_back(
        fmt::format("{}dtype {} is not supported where actor_rollout_ref.model.dtype "
                    "is {}: what generates are the weights that are trained",
                    rollout, NameOf(*r.dtype), NameOf(dtype)));
  }
  if (r.gpu_memory_utilization == 0)
    problems.push_back(rollout + "gpu_memory_utilization is 0: expected a number in (0, 1]");
  const ValSamplingSection& v = r.val_kwargs;
  if (v.n > 1 && (!v.do_sample || v.temperature == 0)) {
    problems.push_back(fmt::format(
        "{0}val_kwargs.n is {1} {2}: the samples would be the same", rollout, v.n,
        v.do_sample ? "at temperature 0" : "without " + rollout + "val_kwargs.do_sample"));
  }
  // verl samples there, whatever its do_sample says.
  if (v.temperature > 0 && !v.do_sample) {
    problems.push_back(
        fmt::format("{0}val_kwargs.temperature is {1} without {0}val_kwargs.do_sample, and the "
                    "likeliest token would be taken: set do_sample to true, or leave it at 0",
                    rollout, v.temperature));
  }
  const int64_t longest =
      r.max_model_len.value_or(c.data.max_prompt_length + c.data.max_response_length);
  if (!r.enable_chunked_prefill && longest > r.max_num_batched_tokens) {
    problems.push_back(
        fmt::format("{0}max_num_batched_tokens {1} does not hold a sequence of {2} tokens, which "
                    "{0}enable_chunked_prefill: false needs",
                    rollout, r.max_num_batched_tokens, longest));
  }
  if (c.trainer.task != TaskKind::kRl) return problems;
  if (longest < c.data.max_prompt_length + c.data.max_response_length) {
    problems.push_back(
        fmt::format("{}max_model_len {} does not hold a prompt of data.max_prompt_length {} with a "
                    "response of data.max_response_length {}: raise it, or leave it null",
                    rollout, longest, c.data.max_prompt_length, c.data.max_response_length));
  }
  CheckLogProbs(c, &problems);
  CheckMultiTurn(r, &problems);
  return problems;
}

}  // namespace keel::trainer
