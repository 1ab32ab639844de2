// What every task is told, of whatever kind it is: plain structs that mirror the YAML's paths
// (verl's names). config.h adds what some tasks alone read. Torch-free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/base/requests.h"
#include "checkpoint/format/contents.h"
#include "common/json.h"
#include "model/tokenizer/tokenizer_kind.h"
#include "trainer/config/choices.h"
#include "trainer/data/rows/choices.h"

namespace keel::trainer {

// What each rank notes of when it does what, for keel trace.
struct TraceSection {
  bool enable = false;
  std::vector<int64_t> steps;  // the first and the last; empty: all
  int64_t max_megabytes = 64;  // of a rank's files

  bool Covers(int64_t step) const {
    return steps.empty() || (step >= steps[0] && step <= steps[1]);
  }
};

// Of which steps, on which ranks, libtorch's profiler tells each operator.
struct ProfileSection {
  std::vector<int64_t> steps;
  std::vector<int64_t> ranks = {0};
};

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
  bool share_gpus = false;
  bool deterministic = true;
  std::vector<LogSink> logger = {LogSink::kConsole, LogSink::kJsonl};
  bool LogsTo(LogSink sink) const {
    return std::find(logger.begin(), logger.end(), sink) != logger.end();
  }
  std::optional<std::string> tensorboard_dir;
  std::optional<std::string> prometheus_file;
  int64_t log_freq = 1;
  int64_t log_val_generations = 2;
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
  TraceSection trace;
  ProfileSection profile;
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
  int64_t lora_rank = 0;
  double lora_alpha = 16;
  bool lora_rank_stabilized = false;
  std::vector<std::string> target_modules = {"all-linear"};
  std::vector<std::string> exclude_modules;
  std::optional<std::string> lora_adapter_path;
  bool HasAdapters() const { return lora_rank > 0 || lora_adapter_path; }
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

// What a run of any task reads, wherever in the configuration it stands; that must outlive this.
struct CommonSections {
  const TrainerSection& trainer;
  const DataSection& data;
  const ModelSection& model;
  const MegatronSection& megatron;
  const OptimSection& optim;
  const CheckpointSection& checkpoint;
};

}  // namespace keel::trainer
