#include "trainer/run_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "checkpoint/hf_check.h"
#include "checkpoint/hf_model_dir.h"
#include "checkpoint/names.h"
#include "common/file_system.h"
#include "model/hf_tensors.h"
#include "model/layout_fit.h"
#include "trainer/metrics_file.h"
#include "trainer/rl/verifier_factory.h"

namespace keel::trainer {

namespace {

constexpr int64_t kMaxConfigFile = int64_t{64} << 20;

Status CheckPositions(const ModelSource& model, int64_t positions, const std::string& keys) {
  if (positions <= model.config.max_position_embeddings) return Status::Ok();
  return Status(StatusCode::kConfig,
                fmt::format("{}: {} positions, the model's max_position_embeddings is {}", keys,
                            positions, model.config.max_position_embeddings));
}

Status CheckLayout(const Config& config, const ModelSource& model) {
  const MegatronSection& megatron = config.actor_rollout_ref.actor.megatron;
  const auto tp = static_cast<int>(megatron.tensor_model_parallel_size);
  const auto problems = model::LayoutProblems(
      model.config, {tp, static_cast<int>(megatron.pipeline_model_parallel_size), false});
  if (!problems.empty())
    return Status(StatusCode::kConfig, fmt::format("{}", fmt::join(problems, "; ")));
  if (config.trainer.task != "rl") return Status::Ok();
  const auto rollout_tp =
      static_cast<int>(config.actor_rollout_ref.rollout.tensor_model_parallel_size.value_or(tp));
  const auto rollout = model::LayoutProblems(model.config, {rollout_tp, 1, true});
  if (rollout.empty()) return Status::Ok();
  return Status(StatusCode::kConfig,
                fmt::format("actor_rollout_ref.rollout: {}", fmt::join(rollout, "; ")));
}

// Without a tokenizer responses are ids: rules have nothing to read, and nothing may end them.
Status CheckRewards(const Config& config, const ModelSource& model) {
  if (config.trainer.task != "rl") return Status::Ok();
  const std::string& type = config.reward.type;
  if (model.tokenizer == nullptr && type != "command" && type != "http") {
    return Status(
        StatusCode::kConfig,
        fmt::format("reward.type is {}, a rule that reads the text of a response, but {}: there is "
                    "no text to read; set reward.type to command or http, whose samples then hold "
                    "prompt_ids and response_ids",
                    type, model.text.ids_only));
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
  if (config.trainer.task != "rl" || !config.critic.model.path) return Status::Ok();
  const std::string& directory = *config.critic.model.path;
  const std::string where = directory + "/config.json";
  const auto read = [&]() -> Result<model::HfConfig> {
    KEEL_ASSIGN_OR_RETURN(const auto fs,
                          OpenPosixFileSystem(directory, false, LinkPolicy::kFollow));
    KEEL_ASSIGN_OR_RETURN(const std::string text, ReadFile(*fs, "config.json", kMaxConfigFile));
    KEEL_ASSIGN_OR_RETURN(const Json json, ParseJson(text, where));
    return model::ParseHfConfig(json, where);
  };
  Result<model::HfConfig> found = read();
  if (!found.ok()) return found.status().WithContext("critic.model.path");
  model::HfConfig wanted = model.config;
  // A value head has no matrix to tie.
  found->tie_word_embeddings = wanted.tie_word_embeddings = false;
  if (found->Digest() == wanted.Digest()) return Status::Ok();
  return Status(StatusCode::kConfig,
                fmt::format("critic.model.path: {} describes another model than the actor's: {}; "
                            "expected {}",
                            where, found->Digest(), wanted.Digest()));
}

// Training and validation data from their files, or one from the other.
template <typename Set, typename Load>
Result<RunData<Set>> LoadBoth(const Config& config, const Load& load) {
  RunData<Set> data;
  KEEL_ASSIGN_OR_RETURN(data.train, load(config.data.train_files));
  if (!config.data.val_files.empty()) {
    KEEL_ASSIGN_OR_RETURN(data.val, load(config.data.val_files));
  }
  if (config.data.val_split > 0)
    data.val =
        data.train.SplitOff(config.data.val_split, static_cast<uint64_t>(config.trainer.seed));
  if (data.train.size() == 0)
    return Status(StatusCode::kInvalidData, "data.val_split leaves nothing to train on");
  if (config.data.val_split > 0 && data.val.size() == 0) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("data.val_split {} sets none of the {} samples apart: nothing would "
                              "be validated; raise it, give data.val_files, or set it to 0",
                              config.data.val_split, data.train.size()));
  }
  return data;
}

template <typename Set>
Status Report(const Result<RunData<Set>>& data, InputReport* report) {
  KEEL_RETURN_IF_ERROR(data.status());
  report->train_samples = data->train.size();
  report->val_samples = data->val.size();
  report->skipped_rows = data->train.skipped_rows();
  report->warnings = data->Warnings();
  return Status::Ok();
}

// That the weights can be opened, and their headers are whole.
// Names and shapes; the values are read where they are needed.
Status CheckWeights(const std::string& directory, const model::HfConfig& config, model::Head head) {
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, false, LinkPolicy::kFollow));
  KEEL_ASSIGN_OR_RETURN(const auto weights, checkpoint::HfModelDir::Open(*fs, "."));
  return checkpoint::CheckTensors(weights, model::TensorsOf(config, head));
}

// What a run reads and writes in its folder. A pipe would hold it up for ever, and neither that nor
// a device keeps what is written.
Status CheckFiles(const std::string& folder) {
  const auto fs = OpenPosixFileSystem(folder, false, LinkPolicy::kFollow);
  if (!fs.ok()) return Status::Ok();  // not there yet; or whoever opens it says why not
  for (const std::string_view name : {checkpoint::kLockName, checkpoint::kRunIdName,
                                      checkpoint::kRecordsName, kConfigName, kMetricsName}) {
    const Result<FileInfo> info = (*fs)->Stat(name);
    if (!info.ok() || info->kind == FileKind::kFile) continue;
    return Status(
        StatusCode::kConfig,
        fmt::format("trainer.default_local_dir: {} is {}, expected a regular file or nothing: move "
                    "it away, or give another folder",
                    (*fs)->Describe(name),
                    info->kind == FileKind::kDirectory ? "a directory" : "a pipe or device"));
  }
  return Status::Ok();
}

// That a folder is one, or can become one: nothing above it is a file.
Status CheckFolder(const std::string& key, const std::string& folder) {
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(folder, error);
  while (!std::filesystem::exists(there, error) && there.has_relative_path())
    there = there.parent_path();
  if (std::filesystem::is_directory(there, error)) return Status::Ok();
  return Status(StatusCode::kConfig, fmt::format("{}: {} is no directory and cannot be one: {} is "
                                                 "no directory; give another folder",
                                                 key, folder, there.string()));
}

Status CheckFolders(const TrainerSection& trainer) {
  KEEL_RETURN_IF_ERROR(CheckFolder("trainer.default_local_dir", trainer.default_local_dir));
  if (trainer.task != "rl") return Status::Ok();
  if (trainer.rollout_data_dir)
    KEEL_RETURN_IF_ERROR(CheckFolder("trainer.rollout_data_dir", *trainer.rollout_data_dir));
  if (trainer.validation_data_dir)
    KEEL_RETURN_IF_ERROR(CheckFolder("trainer.validation_data_dir", *trainer.validation_data_dir));
  std::error_code error;
  if (trainer.rollout_replay_dir &&
      !std::filesystem::is_directory(*trainer.rollout_replay_dir, error)) {
    return Status(
        StatusCode::kNotFound,
        fmt::format("trainer.rollout_replay_dir: {}: there is no such directory; give the "
                    "trainer.rollout_data_dir of an earlier run",
                    *trainer.rollout_replay_dir));
  }
  return Status::Ok();
}

}  // namespace

Status CheckRunPaths(const Config& config) {
  const std::string& folder = config.trainer.default_local_dir;
  KEEL_RETURN_IF_ERROR(CheckFolders(config.trainer));
  if (const auto run = OpenPosixFileSystem(folder, false);
      run.ok() && (*run)->Stat(checkpoint::kManifestName).ok()) {
    return Status(
        StatusCode::kConfig,
        fmt::format("trainer.default_local_dir: {} is a checkpoint itself, not the folder of "
                    "a run: give the folder that holds its global_step_<N>",
                    folder));
  }
  KEEL_RETURN_IF_ERROR(CheckFiles(folder));
  if (config.trainer.resume_mode != "resume_path") return Status::Ok();
  const auto fs = OpenPosixFileSystem(*config.trainer.resume_from_path, false);
  if (!fs.ok()) return fs.status().WithContext("trainer.resume_from_path");
  return (*fs)
      ->Stat(checkpoint::kManifestName)
      .status()
      .WithContext("trainer.resume_from_path: expected a checkpoint, <run folder>/global_step_<N>");
}

Result<ModelSource> OpenRunModel(const Config& config) {
  const ModelSection& section = config.actor_rollout_ref.model;
  ModelOptions options;
  if (config.data.tokenizer) {
    KEEL_ASSIGN_OR_RETURN(options.tokenizer, model::ParseTokenizerKind(*config.data.tokenizer));
  }
  KEEL_ASSIGN_OR_RETURN(
      ModelSource model,
      ResolveModel(section.path.value_or(""), section.config,
                   section.dtype == "bfloat16" ? DType::kBF16 : DType::kF32, options));
  KEEL_RETURN_IF_ERROR(CheckLayout(config, model));
  KEEL_RETURN_IF_ERROR(CheckRewards(config, model));
  KEEL_RETURN_IF_ERROR(CheckCriticModel(config, model));
  return model;
}

Result<RunData<Dataset>> LoadLmData(const Config& c, const ModelSource& model) {
  KEEL_RETURN_IF_ERROR(CheckPositions(model, c.data.max_length, "data.max_length"));
  DatasetOptions options;
  options.sft = c.trainer.task == "sft";
  options.max_length = c.data.max_length;
  options.truncation = ParseTruncation(c.data.truncation);
  options.vocab_size = model.config.vocab_size;
  options.keys = {c.data.text_key, c.data.prompt_key, c.data.response_key, c.data.messages_key};
  return LoadBoth<Dataset>(c, [&](const std::vector<std::string>& files) {
    return Dataset::Load(files, options, model.text);
  });
}

Result<RunData<rl::PreferenceSet>> LoadPreferenceData(const Config& c, const ModelSource& model) {
  // The last token is never an input.
  KEEL_RETURN_IF_ERROR(CheckPositions(model,
                                      c.data.max_prompt_length + c.data.max_response_length - 1,
                                      "data.max_prompt_length and data.max_response_length"));
  rl::PreferenceOptions options;
  options.max_prompt_length = c.data.max_prompt_length;
  options.max_response_length = c.data.max_response_length;
  options.truncation = ParseTruncation(c.data.truncation);
  options.vocab_size = model.config.vocab_size;
  options.prompt_key = c.data.prompt_key;
  options.chosen_key = c.data.chosen_key;
  options.rejected_key = c.data.rejected_key;
  return LoadBoth<rl::PreferenceSet>(c, [&](const std::vector<std::string>& files) {
    return rl::PreferenceSet::Load(files, options, model.text);
  });
}

Result<RunData<rl::PromptSet>> LoadPromptData(const Config& c, const ModelSource& model) {
  KEEL_RETURN_IF_ERROR(CheckPositions(model, c.data.max_prompt_length + c.data.max_response_length,
                                      "data.max_prompt_length and data.max_response_length"));
  rl::PromptOptions options;
  options.max_prompt_length = c.data.max_prompt_length;
  options.truncation = ParseTruncation(c.data.truncation);
  options.filter_overlong_prompts = c.data.filter_overlong_prompts;
  options.vocab_size = model.config.vocab_size;
  options.need_known_source = c.reward.type == "auto";
  options.question_instruction = c.data.question_instruction;
  options.strict_gsm8k = [&c](const std::string& source) {
    return rl::IsStrictGsm8k(c.reward, source);
  };
  options.prompt_key = c.data.prompt_key;
  options.answer_key = c.data.answer_key;
  options.source_key = c.data.reward_fn_key;
  return LoadBoth<rl::PromptSet>(c, [&](const std::vector<std::string>& files) {
    return rl::PromptSet::Load(files, options, model.text);
  });
}

Result<InputReport> CheckRunInputs(const Config& config) {
  KEEL_RETURN_IF_ERROR(CheckRunPaths(config));
  KEEL_ASSIGN_OR_RETURN(const ModelSource model, OpenRunModel(config));
  InputReport report;
  report.parameters = model.config.NumParameters();
  if (!model.directory.empty()) {
    KEEL_RETURN_IF_ERROR(CheckWeights(model.directory, model.config, model::Head::kVocabulary));
  }
  if (config.trainer.task == "rl" && config.critic.model.path) {
    KEEL_RETURN_IF_ERROR(CheckWeights(*config.critic.model.path, model.config, model::Head::kValue)
                             .WithContext("critic.model.path"));
  }
  if (config.trainer.task == "rl") {
    KEEL_RETURN_IF_ERROR(Report(LoadPromptData(config, model), &report));
  } else if (config.trainer.task == "dpo") {
    KEEL_RETURN_IF_ERROR(Report(LoadPreferenceData(config, model), &report));
  } else {
    KEEL_RETURN_IF_ERROR(Report(LoadLmData(config, model), &report));
  }
  return report;
}

}  // namespace keel::trainer
