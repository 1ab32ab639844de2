#include "trainer/config/config_trainer.h"

#include <fmt/format.h>

#include <cctype>

#include "common/options/schema.h"
#include "trainer/config/config.h"

namespace keel::trainer {
namespace {

using options::Schema;
using Problems = std::vector<std::string>;

void AddLengthOptions(TrainerSection& t, Schema& s) {
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
}

// What stays of what is saved, and what a start begins from.
void AddKeptOptions(TrainerSection& t, Schema& s) {
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
}

void AddDeviceOptions(TrainerSection& t, Schema& s) {
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
}

void AddLoggerOptions(TrainerSection& t, Schema& s) {
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
}

// What is compared, counted and waited for while it trains.
void AddWatchOptions(TrainerSection& t, Schema& s) {
  s.Add(
       "trainer.max_consecutive_skips", t.max_consecutive_skips,
       "Stop after so many updates in a row, of the actor or of the critic, whose loss or gradient "
       "norm was not finite; such an update changes nothing, and a save that is due at its step "
       "waits for the next step without.")
      .Range(1)
      .Unit("updates");
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
}

void AddRecordOptions(TrainerSection& t, Schema& s) {
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
}

// What a full disk, a failed save and a preemption end in.
void AddEndOptions(TrainerSection& t, Schema& s) {
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
}

void AddTraceOptions(TrainerSection& t, Schema& s) {
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
}

void ValidateKept(const Config& c, Problems& problems) {
  const TrainerSection& t = c.trainer;
  if ((t.keep_best_ckpts > 0 || t.keep_every_steps > 0) && !t.max_ckpts_to_keep &&
      !t.remove_previous_ckpt_in_save) {
    problems.push_back(
        "trainer.keep_best_ckpts and trainer.keep_every_steps add to trainer.max_ckpts_to_keep, "
        "which is null and keeps all: give the number of newest checkpoints to keep");
  }
  if (t.keep_best_ckpts > 0) {
    if (t.keep_best_metric == BestMetric::kReward && t.task != TaskKind::kRl)
      problems.push_back("trainer.keep_best_metric: val/reward is of trainer.task rl alone");
    if (c.data.val_files.empty() && c.data.val_split == 0)
      problems.push_back(
          "trainer.keep_best_ckpts needs validation data: give data.val_files or data.val_split");
    // A save between two validations would have no result of its own.
    if (t.test_freq <= 0 || (t.save_freq > 0 && t.save_freq % t.test_freq != 0)) {
      problems.push_back(fmt::format(
          "trainer.keep_best_ckpts needs a validation at each save: trainer.save_freq {} "
          "is not a multiple of trainer.test_freq {}",
          t.save_freq, t.test_freq));
    }
  }
}

}  // namespace

void AddTrainerOptions(Config& config, Schema& s) {
  TrainerSection& t = config.trainer;
  AddLengthOptions(t, s);
  AddKeptOptions(t, s);
  AddDeviceOptions(t, s);
  AddLoggerOptions(t, s);
  AddWatchOptions(t, s);
  AddRecordOptions(t, s);
  AddEndOptions(t, s);
  s.Add("trainer.critic_warmup", t.critic_warmup,
        "RL: first steps in which the critic alone learns; the actor's learning rate begins its "
        "schedule behind them. verl's number is one more: its actor learns from that step on.")
      .Range(0)
      .Unit("steps");
  AddTraceOptions(t, s);
}

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

std::vector<std::string> ValidateTrainer(const Config& c) {
  Problems problems;
  const TrainerSection& t = c.trainer;
  if (!t.total_training_steps && !t.total_epochs) {
    problems.push_back(
        "trainer.total_training_steps and trainer.total_epochs are both null: give one");
  }
  if (t.total_training_steps && t.total_epochs) {
    problems.push_back(
        "trainer.total_training_steps and trainer.total_epochs are both given: give one");
  }
  if (t.resume_mode == ResumeKind::kPath && !t.resume_from_path) {
    problems.push_back("trainer.resume_mode is resume_path, but trainer.resume_from_path is null");
  }
  if (t.resume_mode != ResumeKind::kPath && t.resume_from_path) {
    problems.push_back(
        fmt::format("trainer.resume_from_path is given, but trainer.resume_mode is {}: set it to "
                    "resume_path",
                    NameOf(t.resume_mode)));
  }
  if (t.save_before_deadline && !ParseRunTime(*t.save_before_deadline)) {
    problems.push_back(fmt::format("trainer.save_before_deadline is '{}', expected HH:MM:SS",
                                   *t.save_before_deadline));
  }
  const std::vector<int64_t>& traced = t.trace.steps;
  if (!traced.empty() && (traced.size() != 2 || traced[0] > traced[1])) {
    problems.push_back(
        "trainer.trace.steps: expected [first, last], two steps in their order, or none");
  }
  ValidateKept(c, problems);
  return problems;
}

}  // namespace keel::trainer
