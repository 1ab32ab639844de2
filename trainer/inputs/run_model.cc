#include "trainer/inputs/run_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "common/files/file_system.h"
#include "model/config/adapter_tensors.h"
#include "model/config/layout_fit.h"
#include "model/config/text_part.h"
#include "rewards/reward_functions.h"
#include "trainer/inputs/adapter_files.h"
#include "trainer/inputs/text_part_weights.h"

namespace keel::trainer {

namespace {

constexpr int64_t kMaxConfigFile = int64_t{64} << 20;

// What learns, where that is not the model.
Status TakeAdapters(const Config& config, ModelSource* model) {
  const ModelSection& section = config.actor_rollout_ref.model;
  if (!section.HasAdapters()) return Status::Ok();
  const std::string key = "actor_rollout_ref.model.";
  model::AdapterSpec& spec = model->config.adapter;
  if (section.lora_adapter_path) {
    model->adapter_directory = *section.lora_adapter_path;
    Result<AdapterConfig> read = OpenAdapters(model->adapter_directory, model->config);
    if (!read.ok()) return read.status().WithContext(key + "lora_adapter_path");
    spec = std::move(read->spec);
    KEEL_ASSIGN_OR_RETURN(model->adapter_base, ReadAdapterBase(model->adapter_directory));
    if (read->dropout > 0) {
      model->warnings.push_back(
          fmt::format("{}lora_adapter_path: its lora_dropout is {}, with which PEFT would train: "
                      "Keel computes no dropout",
                      key, read->dropout));
    }
    if (HasReference(config)) {
      model->warnings.push_back(
          key +
          "lora_adapter_path: the reference is the model without any adapters, not the one that "
          "the run begins with; keel ckpt merge-adapter makes a whole model of these, beside which "
          "new ones have that one for their reference");
    }
    return Status::Ok();
  }
  spec = {section.lora_rank, section.lora_alpha, section.lora_rank_stabilized,
          section.target_modules, section.exclude_modules};
  if (spec.targets == std::vector<std::string>{"all-linear"}) spec.targets.clear();
  std::vector<std::string> problems = model::AdapterProblems(model->config);
  if (problems.empty()) return Status::Ok();
  for (std::string& problem : problems) problem = key + problem;
  return Status(StatusCode::kConfig, fmt::format("{}", fmt::join(problems, "; ")));
}

Status CheckLayout(const Config& config, const ModelSource& model) {
  const MegatronSection& megatron = config.actor_rollout_ref.actor.megatron;
  const auto tp = static_cast<int>(megatron.tensor_model_parallel_size);
  const auto problems = model::LayoutProblems(
      model.config, {tp, static_cast<int>(megatron.pipeline_model_parallel_size)});
  if (!problems.empty())
    return Status(StatusCode::kConfig, fmt::format("{}", fmt::join(problems, "; ")));
  if (config.trainer.task != TaskKind::kRl) return Status::Ok();
  const auto rollout_tp =
      static_cast<int>(config.actor_rollout_ref.rollout.tensor_model_parallel_size.value_or(tp));
  const auto rollout = model::LayoutProblems(model.config, {rollout_tp, 1});
  if (rollout.empty()) return Status::Ok();
  return Status(StatusCode::kConfig,
                fmt::format("actor_rollout_ref.rollout: {}", fmt::join(rollout, "; ")));
}

// Without a tokenizer responses are ids: rules have nothing to read, and nothing may end them.
Status CheckRewards(const Config& config, const ModelSource& model) {
  if (config.trainer.task != TaskKind::kRl) return Status::Ok();
  KEEL_ASSIGN_OR_RETURN(const std::vector<rewards::RewardFunction> functions,
                        rewards::RewardFunctions(config.reward));
  for (const rewards::RewardFunction& function : functions) {
    const rewards::RewardType type = TypeOf(function.verifier);
    if (model.tokenizer != nullptr || !ReadsText(type)) continue;
    return Status(
        StatusCode::kConfig,
        fmt::format("{0}type is {1}, {2} that reads the text of a response, but {3}: there is no "
                    "text to read; set {0}type to command or http, whose samples then hold "
                    "prompt_ids and response_ids",
                    function.key, NameOf(type),
                    type == rewards::RewardType::kPython ? "a function" : "a rule",
                    model.text.ids_only));
  }
  if (model.tokenizer == nullptr && model.stop_ids.empty()) {
    return Status(
        StatusCode::kConfig,
        "neither config.json nor generation_config.json of the model has an eos_token_id: "
        "no response would end before data.max_response_length; name the id in "
        "config.json");
  }
  return Status::Ok();
}

// Weights do not show by which epsilon, base of the rotary embedding or heads they were trained:
// the critic is computed by the actor's, and is to be of the same.
Status CheckCriticModel(const Config& config, const ModelSource& model) {
  if (config.trainer.task != TaskKind::kRl || !config.critic.model.path) return Status::Ok();
  const std::string& directory = *config.critic.model.path;
  const std::string where = directory + "/config.json";
  const auto read = [&]() -> Result<model::HfConfig> {
    KEEL_ASSIGN_OR_RETURN(const auto fs,
                          OpenPosixFileSystem(directory, false, LinkPolicy::kFollow));
    KEEL_ASSIGN_OR_RETURN(const std::string text, ReadFile(*fs, "config.json", kMaxConfigFile));
    KEEL_ASSIGN_OR_RETURN(const Json json, ParseJson(text, where));
    KEEL_ASSIGN_OR_RETURN(auto part, model::TextPartOf(json, where));
    if (!part) return model::ParseHfConfig(json, where);
    KEEL_RETURN_IF_ERROR(SettleTextPart(*fs, &*part).status());
    return model::ParseHfConfig(part->json, where + ": text_config");
  };
  Result<model::HfConfig> found = read();
  if (!found.ok()) return found.status().WithContext("critic.model.path");
  model::HfConfig wanted = model.config;
  wanted.adapter = {};
  // A value head has no matrix to tie.
  found->tie_word_embeddings = wanted.tie_word_embeddings = false;
  if (found->Digest() == wanted.Digest()) return Status::Ok();
  return Status(StatusCode::kConfig,
                fmt::format("critic.model.path: {} describes another model than the actor's: {}; "
                            "expected {}",
                            where, found->Digest(), wanted.Digest()));
}

}  // namespace

Result<ModelSource> OpenRunModel(const Config& config) {
  const ModelSection& section = config.actor_rollout_ref.model;
  ModelOptions options;
  options.tokenizer = {config.data.tokenizer,
                       section.tokenizer_path.value_or(""),
                       {config.data.chat_template.value_or(""),
                        config.data.apply_chat_template_kwargs, config.data.train_on}};
  if (section.lora_adapter_path)
    TakeTextBesideAdapters(*section.lora_adapter_path, &options.tokenizer);
  KEEL_ASSIGN_OR_RETURN(
      ModelSource model,
      ResolveModel(section.path.value_or(""), section.config,
                   section.dtype == WeightDtype::kBfloat16 ? DType::kBF16 : DType::kF32, options));
  KEEL_RETURN_IF_ERROR(TakeAdapters(config, &model));
  KEEL_RETURN_IF_ERROR(CheckLayout(config, model));
  KEEL_RETURN_IF_ERROR(CheckRewards(config, model));
  KEEL_RETURN_IF_ERROR(CheckCriticModel(config, model));
  return model;
}

}  // namespace keel::trainer
