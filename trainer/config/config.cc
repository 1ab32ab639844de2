#include "trainer/config/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "trainer/config/config_data.h"

namespace keel::trainer {
namespace {

constexpr int64_t kChunkBytes = int64_t{4} << 20;  // docs/formats/index.md
constexpr int64_t kLeastStaging = 2 * kChunkBytes;

}  // namespace

CommonSections CommonOf(const Config& config) {
  const ActorRolloutRefSection& section = config.actor_rollout_ref;
  return {config.trainer,         config.data,         section.model,
          section.actor.megatron, section.actor.optim, section.actor.checkpoint};
}

options::Schema MakeSchema(Config& c) {
  options::Schema s;
  TrainerSection& t = c.trainer;
  s.Add(
      "trainer.task", t.task,
      "What to train: `pretrain` on text, `sft` on answers alone, `dpo` on preferred and rejected "
      "answers, or `rl` on rewards.");
  s.Add("trainer.default_local_dir", t.default_local_dir,
        "The run's folder: metrics, checkpoints, resolved configuration.")
      .PerNode();
  s.Add("trainer.total_training_steps", t.total_training_steps,
        "Optimizer steps to train; or give `total_epochs`.")
      .Range(1);
  s.Add("trainer.total_epochs", t.total_epochs,
        "Passes over the data, when `total_training_steps` is null.")
      .Above(0);
  s.Add("trainer.save_freq", t.save_freq,
        "Save every so many steps, and at the end; -1 or 0: never.")
      .Range(-1)
      .Unit("steps");
  s.Add("trainer.test_freq", t.test_freq, "Validate every so many steps, and at the end; -1 never.")
      .Range(-1)
      .Unit("steps");
  s.Add("trainer.val_before_train", t.val_before_train, "Validate once before the first step.");
  s.Add("trainer.max_ckpts_to_keep", t.max_ckpts_to_keep,
        "Newest checkpoints that stay; null keeps all. An older one goes only after a newer one "
        "has been verified.")
      .Range(1);
  s.Add("trainer.remove_previous_ckpt_in_save", t.remove_previous_ckpt_in_save,
        "The same as `max_ckpts_to_keep: 1`.");
  s.Add("trainer.keep_best_ckpts", t.keep_best_ckpts,
        "So many of the best checkpoints by `keep_best_metric` stay besides the newest; 0: none.")
      .Range(0);
  s.Add("trainer.keep_best_metric", t.keep_best_metric,
        "Which validation result a checkpoint is judged by. It is that of the saved step itself.");
  s.Add("trainer.keep_best_mode", t.keep_best_mode, "Whether the lowest or the highest is best.");
  s.Add("trainer.keep_every_steps", t.keep_every_steps,
        "Checkpoints of steps that are a multiple of it stay besides the newest; 0: none.")
      .Range(0)
      .Unit("steps");
  s.Add("trainer.resume_mode", t.resume_mode,
        "`auto`: from the newest valid checkpoint, if there is any; `disable`: from the start; "
        "`resume_path`: from `resume_from_path` or not at all.");
  s.Add("trainer.resume_from_path", t.resume_from_path,
        "A checkpoint, `<run folder>/global_step_<N>`, or a link to one, for `resume_mode: "
        "resume_path`.")
      .PerNode();
  s.Add(
      "trainer.adopt_foreign_checkpoints", t.adopt_foreign_checkpoints,
      "Take checkpoints of other runs in the run's folder for this run's when it resumes. Without "
      "it they are named and left alone, and a folder that holds no others is refused.");
  s.Add("trainer.seed", t.seed, "Of the initial weights and the order of the data.").Range(0);
  s.Add("trainer.device", t.device,
        "`auto` takes CUDA where every rank has a GPU of its own, and otherwise the CPU on all.");
  s.Add("trainer.share_gpus", t.share_gpus,
        "More ranks of a node than it has GPUs, which they share by turns. What ranks send each "
        "other goes by way of their hosts, over gloo, since NCCL does not serve this: slow, and "
        "for trying a layout out.");
  s.Add("trainer.deterministic", t.deterministic,
        "On CUDA, operations that give the same bits every time, so that a resumed run is the run "
        "that went on: some are slower, and one that has no such way ends the run by name. On a "
        "CPU it is always so.");
  const std::string exported =
      "Keel itself sends nothing to a service; log with jsonl, and send it with "
      "tools/export_{}.py RUN, during the run or after it";
  s.Add("trainer.logger", t.logger,
        "Where metrics go: the console, `metrics.jsonl`, TensorBoard's event files, a file for "
        "Prometheus' node exporter.")
      .Answer("wandb", fmt::format(fmt::runtime(exported), "wandb"))
      .Answer("mlflow", fmt::format(fmt::runtime(exported), "mlflow"))
      .Answer("file", "write jsonl");
  s.Add("trainer.tensorboard_dir", t.tensorboard_dir,
        "Where the `tensorboard` logger writes; null: `tensorboard` in the run's folder.")
      .PerNode();
  s.Add("trainer.prometheus_file", t.prometheus_file,
        "The file of the `prometheus` logger, `<name>.prom` in node exporter's folder; null: "
        "`metrics.prom` in the run's folder.")
      .PerNode();
  s.Add("trainer.log_freq", t.log_freq, "A console line every so many steps.")
      .Range(1)
      .Unit("steps");
  s.Add("trainer.log_val_generations", t.log_val_generations,
        "RL: so many prompts of each validation are on the console, with an answer and its reward, "
        "cut to a few lines; always the first ones.")
      .Range(0)
      .Unit("prompts");
  s.Add("trainer.max_consecutive_skips", t.max_consecutive_skips,
        "Stop after so many steps in a row whose loss or gradient norm was not finite; such steps "
        "update nothing, and a save that is due at one waits for the next that does.")
      .Range(1)
      .Unit("steps");
  s.Add("trainer.check_replicas", t.check_replicas,
        "Compare the weights that several ranks hold, by digests, at the start, before every save, "
        "and every so many steps; 0: at the start and before saves; -1: never. A difference ends "
        "the run before it is saved.")
      .Range(-1)
      .Unit("steps");
  s.Add("trainer.nnodes", t.nnodes,
        "Nodes whose ranks train, with `placement: split` under a launcher that knows no roles "
        "(torchrun, srun): the job's first; null: with `--roles`, or all.")
      .Range(1);
  s.Add("trainer.n_gpus_per_node", t.n_gpus_per_node, "Ranks that train on each of these nodes.")
      .Range(1);
  s.Add("trainer.deadline_seconds", t.deadline_seconds,
        "How long any wait for a peer may take before the run ends with an error that names it.")
      .Range(0.01, 1e6)
      .Unit("seconds");
  s.Add("trainer.threads_per_rank", t.threads_per_rank,
        "CPU threads for tensor operations of one rank; 0 takes what the environment gives.")
      .Range(0, 1024)  // some of the libraries that they run in have tables of so many
      .PerNode();

  s.Add("trainer.rollout_data_dir", t.rollout_data_dir,
        "RL: where each step's prompts, responses, log-probabilities and scores are written, a "
        "file a step. A file that cannot be written is warned of, and the run goes on.")
      .PerNode();
  s.Add("trainer.validation_data_dir", t.validation_data_dir, "RL: the same of validations.")
      .PerNode();
  s.Add("trainer.rollout_replay_dir", t.rollout_replay_dir,
        "RL: train on the responses that an earlier run wrote to its `rollout_data_dir`, without "
        "generating or scoring.")
      .PerNode();
  s.Add("trainer.disk_check", t.disk_check,
        "When the checkpoints that will be kept, and one more, do not fit on the disk: end at the "
        "start, or only say so.");
  s.Add("trainer.file_mode", t.file_mode,
        "Who may get at what the run writes: whoever the `umask` lets, of these nobody but the "
        "`group` and the owner, or the `owner` alone.");
  s.Add("trainer.max_failed_saves", t.max_failed_saves,
        "End the run, with an error, when so many saves in a row have failed and one at its last "
        "step has failed too; null: train on to the end, however many fail.")
      .Range(1);
  s.Add("trainer.preemption_grace_seconds", t.preemption_grace_seconds,
        "Time between SIGTERM or SIGUSR1 and the end that follows. A last save that past ones show "
        "will not fit is not started; null: always save.")
      .Above(0)
      .Unit("seconds");
  s.Add(
      "trainer.save_before_deadline", t.save_before_deadline,
      "`HH:MM:SS` of run time by which a last save must be done, such as a batch job's limit; the "
      "run then ends as if preempted. Under keel launch the time since that was started, whatever "
      "it restarted.");
  s.Add("trainer.critic_warmup", t.critic_warmup,
        "RL: first steps in which the critic alone learns.")
      .Range(0)
      .Unit("steps");

  s.Add("trainer.trace.enable", t.trace.enable,
        "Note when each rank does what, in `trace/` of the run's folder, for `keel trace`.");
  s.Add("trainer.trace.steps", t.trace.steps,
        "`[first, last]`, the steps of which that is noted; empty: all.")
      .Range(1);
  s.Add("trainer.trace.max_megabytes", t.trace.max_megabytes,
        "Of each rank's notes; what is older than the newest half makes room.")
      .Range(1, 1 << 20)
      .Unit("MiB");
  s.Add("trainer.profile.steps", t.profile.steps,
        "Steps of which libtorch's profiler writes each operator, to `profile/` of the run's "
        "folder; they take longer than others.")
      .Range(1);
  s.Add("trainer.profile.ranks", t.profile.ranks, "On which ranks it does.").Range(0);

  AddDataOptions(c, s);

  ModelSection& m = c.actor_rollout_ref.model;
  s.Add("actor_rollout_ref.model.path", m.path,
        "A Hugging Face directory with config.json and weights to start from.")
      .PerNode();
  s.Add("actor_rollout_ref.model.tokenizer_path", m.tokenizer_path,
        "A directory with the tokenizer and chat template to use in the place of the model's, or "
        "for "
        "a model of `model.config`.")
      .PerNode();
  s.Add("actor_rollout_ref.model.config", m.config,
        "Hugging Face's config.json keys, to start from random weights.");
  s.Add("actor_rollout_ref.model.dtype", m.dtype,
        "Of the weights; bfloat16 keeps fp32 masters in the optimizer.");
  s.Add(
      "actor_rollout_ref.model.enable_gradient_checkpointing", m.enable_gradient_checkpointing,
      "Recompute each block's activations in the backward: less memory, about a third more work.");

  MegatronSection& p = c.actor_rollout_ref.actor.megatron;
  const std::string megatron = "actor_rollout_ref.actor.megatron.";
  s.Add(megatron + "tensor_model_parallel_size", p.tensor_model_parallel_size,
        "Ranks that share each layer.")
      .Range(1, kMostRanks);
  s.Add(megatron + "pipeline_model_parallel_size", p.pipeline_model_parallel_size,
        "Stages the layers are divided into.")
      .Range(1, kMostRanks);
  s.Add(megatron + "sequence_parallel", p.sequence_parallel,
        "Split norms and residuals by tokens over the tensor-parallel ranks; without effect when "
        "there is one.");
  s.Add(megatron + "use_distributed_optimizer", p.use_distributed_optimizer,
        "Optimizer state is divided over the data-parallel ranks (ZeRO-1).");
  s.Add(megatron + "bucket_megabytes", p.bucket_megabytes,
        "Gradients reduced at a time; smaller overlaps more with the backward.")
      .Above(0)
      .Unit("MiB");
  s.Add(megatron + "param_offload", p.param_offload,
        "Weights to host memory between steps, when nothing uses them.");
  s.Add(megatron + "grad_offload", p.grad_offload,
        "Release the gradients' memory between steps; they are not copied, each step starts from "
        "zeros.");
  s.Add(megatron + "optimizer_offload", p.optimizer_offload,
        "Optimizer state to host memory, but for the update.");

  OptimSection& o = c.actor_rollout_ref.actor.optim;
  const std::string optim = "actor_rollout_ref.actor.optim.";
  s.Add(optim + "lr", o.lr, "Peak learning rate; 0 changes no weights: a dry run.").Range(0);
  s.Add(optim + "betas", o.betas, "AdamW's decay rates of the two moments.").Range(0);
  s.Add(optim + "eps", o.eps, "AdamW's epsilon.").Above(0);
  s.Add(optim + "weight_decay", o.weight_decay, "Decoupled decay, on weights of two dims only.")
      .Range(0);
  s.Add(optim + "clip_grad", o.clip_grad, "Limit of the global gradient norm; 0 does not clip.")
      .Range(0);
  s.Add(optim + "lr_decay_style", o.lr_decay_style,
        "`wsd` holds the peak, then decays linearly over `lr_wsd_decay_steps`.");
  s.Add(optim + "lr_warmup_steps", o.lr_warmup_steps,
        "Linear from 0, the rate of the first step, to the peak, that of the first step after "
        "the warm-up, as in transformers and Megatron; 0, or -1 as in verl: none.")
      .Range(-1)
      .Unit("steps");
  s.Add(optim + "lr_decay_steps", o.lr_decay_steps,
        "Steps, warm-up included, after which `min_lr` is reached; null: all, so that the last "
        "step is still above it.")
      .Range(1)
      .Unit("steps");
  s.Add(optim + "lr_wsd_decay_steps", o.lr_wsd_decay_steps,
        "Length of WSD's decay; null: a tenth of all steps.")
      .Range(1)
      .Unit("steps");
  s.Add(optim + "min_lr", o.min_lr, "Where the decay ends.").Range(0);

  CheckpointSection& k = c.actor_rollout_ref.actor.checkpoint;
  const std::string checkpoint = "actor_rollout_ref.actor.checkpoint.";
  s.Add(checkpoint + "save_contents", k.save_contents,
        "Parts of a checkpoint; `extra` is schedule, cursor and random state.");
  s.Add(checkpoint + "load_contents", k.load_contents, "Parts that a resume must find and takes.");
  s.Add(checkpoint + "load_allow_missing", k.load_allow_missing,
        "Patterns (fnmatch) of tensors, or of roles, that may be missing in the checkpoint, which "
        "keep this run's values, or in this run, which are left out. All else must match.");
  s.Add(checkpoint + "async_save", k.async_save,
        "Save beside the training instead of stopping it.");
  s.Add(checkpoint + "dist_ckpt_workers", k.dist_ckpt_workers, "Threads that write, per rank.")
      .Range(1);
  s.Add(checkpoint + "staging.mode", k.staging.mode,
        "A background save copies the state beside the next step, or makes it wait.");
  s.Add(checkpoint + "staging.host_memory_cap", k.staging.host_memory_cap,
        "Memory of a rank for the copy; null: all that it saves. With less, copying follows the "
        "disk in waves.")
      .Range(kLeastStaging)
      .Unit("bytes");
  s.Add(checkpoint + "io", k.io, "`auto` chooses by a short measurement.");
  s.Add(checkpoint + "on_busy", k.on_busy, "A save that is due while one is in flight.");

  AddActorRlOptions(c, s);  // the rest of actor_rollout_ref: a root's keys stand together
  AddRolloutOptions(c, s);
  AddRlOptions(c, s);
  AddAsyncOptions(c, s);
  return s;
}

// A model is given by its path or by its configuration. Where the file gives one and the command
// line the other, the command line's is meant.
void PreferCommandLine(const options::Schema& schema, LoadedConfig& loaded) {
  const std::string path_key = "actor_rollout_ref.model.path";
  const std::string config_key = "actor_rollout_ref.model.config";
  ModelSection& model = loaded.config.actor_rollout_ref.model;
  if (!model.path || model.config.empty()) return;
  const bool path = schema.Origin(path_key) == options::kCommandLine;
  const bool config = schema.Origin(config_key) == options::kCommandLine;
  if (path == config) return;  // ValidateConfig refuses both
  if (path) {
    model.config = Json::object();
  } else {
    model.path.reset();
  }
  loaded.notes.push_back(fmt::format("{} of the command line takes the place of {} ({})",
                                     path ? path_key : config_key, path ? config_key : path_key,
                                     schema.Origin(path ? config_key : path_key)));
}

// A line on how to bring another trainer's file here, for one that looks like it; else "".
std::string ForeignAdvice(const options::Schema& schema, const options::Source& file) {
  constexpr int kMany = 8;  // unknown keys; one's own mistakes are fewer
  const Result<options::FlatValues> values = options::Flatten(file);
  if (!values.ok()) return "";
  std::set<std::string> known;
  for (const options::Option& option : schema.options()) known.insert(option.path);
  int unknown = 0, unknown_roots = 0;
  for (const auto& [key, value] : values.value()) {
    if (known.contains(key)) continue;
    ++unknown;
    unknown_roots += key.find('.') == std::string::npos ? 1 : 0;
  }
  if (unknown < kMany) return "";
  if (2 * unknown_roots > unknown)
    return fmt::format("\nif this is a file of TRL: keel config import-trl {} makes Keel's of it",
                       file.name);
  return fmt::format("\nif this is a file of verl: keel config import-verl {} makes Keel's of it",
                     file.name);
}

Result<LoadedConfig> LoadConfig(const std::string& path,
                                const std::vector<std::string>& overrides) {
  std::error_code error;
  const std::filesystem::file_status found = std::filesystem::status(path, error);
  // What whoever starts us has opened may be a pipe; one with a name may never be written to, and a
  // device may never end.
  const bool opened_for_us = path == "/dev/stdin" || path.starts_with("/dev/fd/");
  const bool readable = std::filesystem::is_regular_file(found) || opened_for_us;
  if (std::filesystem::exists(found) && !readable) {
    return Status(StatusCode::kNotFound,
                  fmt::format("configuration file {}: is {}, expected a regular file", path,
                              std::filesystem::is_directory(found) ? "a directory"
                              : std::filesystem::is_fifo(found)    ? "a pipe"
                                                                   : "a device or a socket"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return Status(StatusCode::kNotFound,
                  fmt::format("configuration file {}: cannot be opened", path));
  }
  std::stringstream text;
  text << file.rdbuf();
  LoadedConfig loaded;
  options::Schema schema = MakeSchema(loaded.config);
  if (const Status status = schema.Load({path, text.str()}, overrides); !status.ok())
    return Status(status.code(), status.message() + ForeignAdvice(schema, {path, text.str()}));
  PreferCommandLine(schema, loaded);
  loaded.resolved = schema.Dump(false);
  loaded.with_origins = schema.Dump(true);
  return loaded;
}

Result<std::vector<options::ValueChange>> ConfigChanges(const std::string& saved,
                                                        const std::string& now) {
  Config config;
  KEEL_ASSIGN_OR_RETURN(const options::FlatValues defaults,
                        options::Flatten({"defaults", MakeSchema(config).Dump(false)}));
  KEEL_ASSIGN_OR_RETURN(options::FlatValues before,
                        options::Flatten({"the checkpoint's config.yaml", saved}));
  KEEL_ASSIGN_OR_RETURN(options::FlatValues after, options::Flatten({"config.yaml", now}));
  for (const auto& [path, value] : defaults) {
    if (!before.contains(path) && after.contains(path)) before[path] = value;
  }
  return options::Changes(before, after);
}

namespace {

std::set<std::string> KeysWith(bool options::Option::*mark) {
  Config config;
  const options::Schema schema = MakeSchema(config);
  std::set<std::string> keys;
  for (const options::Option& option : schema.options()) {
    if (option.*mark) keys.insert(option.path);
  }
  return keys;
}

}  // namespace

std::set<std::string> PerNodeKeys() { return KeysWith(&options::Option::per_node); }
std::set<std::string> SecretKeys() { return KeysWith(&options::Option::secret); }

std::optional<int64_t> ParseRunTime(const std::string& text) {
  const auto digits = [&](size_t at) {
    return std::isdigit(static_cast<unsigned char>(text[at])) != 0 ? text[at] - '0' : -100;
  };
  if (text.size() < 8 || text[text.size() - 3] != ':' || text[text.size() - 6] != ':')
    return std::nullopt;
  int64_t hours = 0;
  for (size_t i = 0; i + 6 < text.size(); ++i) hours = 10 * hours + digits(i);
  const int64_t minutes = 10 * digits(text.size() - 5) + digits(text.size() - 4);
  const int64_t seconds = 10 * digits(text.size() - 2) + digits(text.size() - 1);
  if (hours < 0 || hours > 100'000 || minutes < 0 || minutes > 59 || seconds < 0 || seconds > 59)
    return std::nullopt;
  return hours * 3600 + minutes * 60 + seconds;
}

std::vector<std::string> ValidateConfig(const Config& c, int world) {
  std::vector<std::string> problems;
  const auto say = [&](std::string text) { problems.push_back(std::move(text)); };
  const auto& megatron = c.actor_rollout_ref.actor.megatron;
  const auto& section = c.actor_rollout_ref.actor.checkpoint;
  const auto& optim = c.actor_rollout_ref.actor.optim;

  // Not in this release: one place, so that lifting a limit is one line.
  if (!megatron.use_distributed_optimizer)
    say("actor_rollout_ref.actor.megatron.use_distributed_optimizer: false is not supported; the "
        "state is always divided over data-parallel ranks");

  const int64_t tp = megatron.tensor_model_parallel_size;
  const int64_t pp = megatron.pipeline_model_parallel_size;
  int64_t dp = world / (tp * pp);
  if (dp * tp * pp != world) {
    say(fmt::format(
        "world size {} != dp {} x tp {} x pp {} = {}: start a multiple of {} ranks, or change "
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size or "
        "pipeline_model_parallel_size",
        world, std::max<int64_t>(1, dp), tp, pp, std::max<int64_t>(1, dp) * tp * pp, tp * pp));
    dp = std::max<int64_t>(1, dp);
  }
  if (c.data.train_batch_size % (dp * c.data.micro_batch_size_per_gpu) != 0) {
    say(
        fmt::format("data.train_batch_size {} is not a multiple of dp {} x "
                    "data.micro_batch_size_per_gpu {} = {}",
                    c.data.train_batch_size, dp, c.data.micro_batch_size_per_gpu,
                    dp * c.data.micro_batch_size_per_gpu));
  }
  for (std::string& problem : ValidateRlConfig(c, dp)) say(std::move(problem));
  for (std::string& problem : ValidateRolloutConfig(c)) say(std::move(problem));
  for (std::string& problem : ValidateAsyncConfig(c)) say(std::move(problem));
  if (!c.trainer.total_training_steps && !c.trainer.total_epochs) {
    say("trainer.total_training_steps and trainer.total_epochs are both null: give one");
  }
  if (c.trainer.total_training_steps && c.trainer.total_epochs) {
    say("trainer.total_training_steps and trainer.total_epochs are both given: give one");
  }
  if (c.trainer.resume_mode == ResumeKind::kPath && !c.trainer.resume_from_path) {
    say("trainer.resume_mode is resume_path, but trainer.resume_from_path is null");
  }
  if (c.trainer.resume_mode != ResumeKind::kPath && c.trainer.resume_from_path) {
    say(
        fmt::format("trainer.resume_from_path is given, but trainer.resume_mode is {}: set it to "
                    "resume_path",
                    NameOf(c.trainer.resume_mode)));
  }
  if (c.trainer.save_before_deadline && !ParseRunTime(*c.trainer.save_before_deadline)) {
    say(fmt::format("trainer.save_before_deadline is '{}', expected HH:MM:SS",
                    *c.trainer.save_before_deadline));
  }
  const std::vector<int64_t>& traced = c.trainer.trace.steps;
  if (!traced.empty() && (traced.size() != 2 || traced[0] > traced[1])) {
    say("trainer.trace.steps: expected [first, last], two steps in their order, or none");
  }
  if (section.staging.host_memory_cap && *section.staging.host_memory_cap < kLeastStaging) {
    say(
        fmt::format("actor_rollout_ref.actor.checkpoint.staging.host_memory_cap is {}, expected at "
                    "least {} bytes, two chunks",
                    *section.staging.host_memory_cap, kLeastStaging));
  }
  for (std::string& problem : ValidateSources(c)) say(std::move(problem));
  if (!c.data.val_files.empty() && c.data.val_split > 0)
    say("data.val_files and data.val_split are both given: give one");
  if (optim.betas.size() != 2 || optim.betas[0] >= 1 || optim.betas[1] >= 1) {
    say("actor_rollout_ref.actor.optim.betas: expected two numbers in [0, 1)");
  }
  if (optim.min_lr > optim.lr && optim.lr_decay_style != LrDecayStyle::kConstant)
    say("actor_rollout_ref.actor.optim.min_lr is above actor_rollout_ref.actor.optim.lr");
  if (optim.lr_decay_steps && optim.lr_decay_style != LrDecayStyle::kConstant &&
      *optim.lr_decay_steps <= optim.lr_warmup_steps) {
    say(
        fmt::format("actor_rollout_ref.actor.optim.lr_decay_steps {} counts the {} steps of "
                    "actor_rollout_ref.actor.optim.lr_warmup_steps, too, and leaves none to decay "
                    "in: the rate would fall to min_lr at once; raise it, or set it to null",
                    *optim.lr_decay_steps, optim.lr_warmup_steps));
  }
  const auto& model = c.actor_rollout_ref.model;
  if (!model.path && model.config.empty()) {
    say("actor_rollout_ref.model.path is null and actor_rollout_ref.model.config is empty: give "
        "one");
  }
  if (model.path && !model.config.empty()) {
    say("actor_rollout_ref.model.path and actor_rollout_ref.model.config are both given: give one; "
        "on the command line ~actor_rollout_ref.model.config takes the other out");
  }
  const auto& t = c.trainer;
  if ((t.keep_best_ckpts > 0 || t.keep_every_steps > 0) && !t.max_ckpts_to_keep &&
      !t.remove_previous_ckpt_in_save) {
    say("trainer.keep_best_ckpts and trainer.keep_every_steps add to trainer.max_ckpts_to_keep, "
        "which is null and keeps all: give the number of newest checkpoints to keep");
  }
  if (t.keep_best_ckpts > 0) {
    if (t.keep_best_metric == BestMetric::kReward && t.task != TaskKind::kRl)
      say("trainer.keep_best_metric: val/reward is of trainer.task rl alone");
    if (c.data.val_files.empty() && c.data.val_split == 0)
      say("trainer.keep_best_ckpts needs validation data: give data.val_files or data.val_split");
    // A save between two validations would have no result of its own.
    if (t.test_freq <= 0 || (t.save_freq > 0 && t.save_freq % t.test_freq != 0)) {
      say(fmt::format(
          "trainer.keep_best_ckpts needs a validation at each save: trainer.save_freq {} "
          "is not a multiple of trainer.test_freq {}",
          t.save_freq, t.test_freq));
    }
  }
  if (c.trainer.save_freq > 0 && section.save_contents.empty())
    say("actor_rollout_ref.actor.checkpoint.save_contents is empty");
  if (c.trainer.resume_mode != ResumeKind::kDisable) {
    if (section.load_contents.empty()) {
      say("actor_rollout_ref.actor.checkpoint.load_contents is empty: set trainer.resume_mode to "
          "disable to begin anew");
    }
    checkpoint::Contents saved = checkpoint::Contents::Of(section.save_contents);
    for (const checkpoint::Content part : section.load_contents) {
      if (!saved[part]) {
        say(
            fmt::format("actor_rollout_ref.actor.checkpoint.load_contents asks for {}, which "
                        "save_contents does not write",
                        NameOf(part)));
      }
    }
  }
  return problems;
}

}  // namespace keel::trainer
