// Config: everything a run is told, as plain structs that mirror the YAML's paths (verl's names).
// The table in config.cc gives each field its range, unit and meaning. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/base/requests.h"
#include "checkpoint/format/contents.h"
#include "common/json.h"
#include "common/options/flat_values.h"
#include "common/options/schema.h"
#include "common/status.h"
#include "model/tokenizer/tokenizer_kind.h"
#include "trainer/config/choices.h"
#include "trainer/config/config_async.h"
#include "trainer/config/config_rl.h"
#include "trainer/config/config_rollout.h"
#include "trainer/data/choices.h"

namespace keel::trainer {

struct TrainerSection {
  std::optional<int64_t> nnodes;  // whose ranks train
  std::optional<int64_t> n_gpus_per_node;
  TaskKind task = TaskKind::kPretrain;
  std::string default_local_dir = "runs/default";
  std::optional<int64_t> total_training_steps;
  std::optional<double> total_epochs;
  int64_t save_freq = -1;
  int64_t test_freq = -1;
  bool val_before_train = false;
  std::optional<int64_t> max_ckpts_to_keep;
  bool remove_previous_ckpt_in_save = false;
  int64_t keep_best_ckpts = 0;
  BestMetric keep_best_metric = BestMetric::kLoss;
  BestMode keep_best_mode = BestMode::kMin;
  int64_t keep_every_steps = 0;
  ResumeKind resume_mode = ResumeKind::kAuto;
  std::optional<std::string> resume_from_path;
  bool adopt_foreign_checkpoints = false;
  int64_t seed = 1;
  DeviceKind device = DeviceKind::kAuto;
  bool deterministic = true;
  std::vector<LogSink> logger = {LogSink::kConsole, LogSink::kJsonl};
  std::optional<std::string> tensorboard_dir;
  std::optional<std::string> prometheus_file;
  int64_t log_freq = 1;
  int64_t max_consecutive_skips = 5;
  int64_t check_replicas = 0;
  double deadline_seconds = 120;
  int64_t threads_per_rank = 1;
  std::optional<std::string> rollout_data_dir;
  std::optional<std::string> validation_data_dir;
  std::optional<std::string> rollout_replay_dir;
  DiskCheck disk_check = DiskCheck::kRefuse;
  FileMode file_mode = FileMode::kUmask;
  std::optional<int64_t> max_failed_saves;
  std::optional<double> preemption_grace_seconds;
  std::optional<std::string> save_before_deadline;
  int64_t critic_warmup = 0;
};

struct DataSection {
  std::vector<std::string> train_files;
  std::vector<std::string> val_files;
  std::vector<Json> sources;  // {path, weight}: SourcesOf
  double val_split = 0;
  std::optional<model::TokenizerKind> tokenizer;
  std::optional<std::string> chat_template;
  Json apply_chat_template_kwargs = Json::object();
  TrainOn train_on = TrainOn::kAllAssistant;
  std::string text_key = "text";
  std::string prompt_key = "prompt";
  std::string response_key = "response";
  std::string messages_key = "messages";
  int64_t max_length = 512;
  Truncation truncation = Truncation::kError;
  std::optional<Packing> packing;
  std::optional<std::string> cache_dir;
  int64_t train_batch_size = 8;
  int64_t micro_batch_size_per_gpu = 1;
  bool shuffle = true;
  int64_t max_prompt_length = 512;
  int64_t max_response_length = 512;
  bool filter_overlong_prompts = false;
  std::string reward_fn_key = "data_source";
  std::string answer_key = "answer";
  std::optional<std::string> max_response_length_key;
  std::optional<std::string> question_instruction;
  std::string chosen_key = "chosen";
  std::string rejected_key = "rejected";
};

struct ModelSection {
  std::optional<std::string> path;
  std::optional<std::string> tokenizer_path;
  Json config = Json::object();
  WeightDtype dtype = WeightDtype::kFloat32;
  bool enable_gradient_checkpointing = false;
};

struct MegatronSection {
  int64_t tensor_model_parallel_size = 1;
  int64_t pipeline_model_parallel_size = 1;
  bool sequence_parallel = false;
  bool use_distributed_optimizer = true;
  double bucket_megabytes = 32;
  bool param_offload = false;
  bool grad_offload = false;
  bool optimizer_offload = false;
};

struct OptimSection {
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip_grad = 1.0;
  LrDecayStyle lr_decay_style = LrDecayStyle::kCosine;
  int64_t lr_warmup_steps = 0;
  std::optional<int64_t> lr_decay_steps;
  std::optional<int64_t> lr_wsd_decay_steps;
  double min_lr = 0;
};

struct CheckpointStagingSection {
  StagingMode mode = StagingMode::kOverlap;
  std::optional<int64_t> host_memory_cap;
};

struct CheckpointSection {
  std::vector<checkpoint::Content> save_contents = {
      checkpoint::Content::kModel, checkpoint::Content::kOptimizer, checkpoint::Content::kExtra};
  std::vector<checkpoint::Content> load_contents = save_contents;
  std::vector<std::string> load_allow_missing;
  bool async_save = true;
  int64_t dist_ckpt_workers = 1;
  CheckpointStagingSection staging;
  checkpoint::IoChoice io = checkpoint::IoChoice::kAuto;
  OnBusy on_busy = OnBusy::kWait;
};

struct ActorSection {
  MegatronSection megatron;
  OptimSection optim;
  CheckpointSection checkpoint;
  ActorLossSection loss;  // its keys stand directly under actor
};

struct ActorRolloutRefSection {
  ModelSection model;
  ActorSection actor;
  RolloutSection rollout;
  RefSection ref;
};

struct Config {
  TrainerSection trainer;
  DataSection data;
  ActorRolloutRefSection actor_rollout_ref;
  CriticSection critic;
  AlgorithmSection algorithm;
  rewards::RewardSection reward;
  DpoSection dpo;
  AsyncSection async_training;
};

// The table, bound to `config`, which must outlive it.
options::Schema MakeSchema(Config& config);

struct LoadedConfig {
  Config config;
  std::string resolved;            // YAML of all values, as given
  std::string with_origins;        // the same with a comment for each value's origin
  std::vector<std::string> notes;  // what of the file gave way to the command line, as sentences
};

// kConfig with every problem of file and overrides; kNotFound when there is no file. Paths are left
// as they are given: all of them, in the file and among the overrides, are relative to the working
// directory.
Result<LoadedConfig> LoadConfig(const std::string& path, const std::vector<std::string>& overrides);

// What differs between the resolved configuration that a checkpoint was saved with and this run's.
// A key that the release that saved it did not know counts as having had its default.
Result<std::vector<options::ValueChange>> ConfigChanges(const std::string& saved,
                                                        const std::string& now);

// The keys whose values may differ from node to node, such as paths; all others are the job's.
std::set<std::string> PerNodeKeys();
// The keys whose values are in no message, since they may hold passwords.
std::set<std::string> SecretKeys();

// "HH:MM:SS" in seconds; nothing when it is not of that form.
std::optional<int64_t> ParseRunTime(const std::string& text);

// What does not fit together, or is not in this release: every problem as a sentence that names the
// keys. `world` is the number of ranks.
std::vector<std::string> ValidateConfig(const Config& config, int world);

}  // namespace keel::trainer
