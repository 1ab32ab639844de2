// What the configuration chooses among, but for what the parts below name themselves: enums with
// their names. Torch-free.
#pragma once

#include "common/enum_names.h"

namespace keel::trainer {

// trainer.task
enum class TaskKind { kPretrain, kSft, kDpo, kRl };
constexpr auto NamesOf(TaskKind) {
  using enum TaskKind;
  return EnumNames<TaskKind>({{kPretrain, "pretrain"}, {kSft, "sft"}, {kDpo, "dpo"}, {kRl, "rl"}});
}

// trainer.keep_best_metric
enum class BestMetric { kLoss, kPerplexity, kReward };
constexpr auto NamesOf(BestMetric) {
  using enum BestMetric;
  return EnumNames<BestMetric>(
      {{kLoss, "val/loss"}, {kPerplexity, "val/perplexity"}, {kReward, "val/reward"}});
}

// trainer.keep_best_mode
enum class BestMode { kMin, kMax };
constexpr auto NamesOf(BestMode) {
  using enum BestMode;
  return EnumNames<BestMode>({{kMin, "min"}, {kMax, "max"}});
}

// trainer.resume_mode
enum class ResumeKind {
  kAuto,     // from the newest valid checkpoint, if there is any
  kDisable,  // from the start
  kPath,     // from trainer.resume_from_path
};
constexpr auto NamesOf(ResumeKind) {
  using enum ResumeKind;
  return EnumNames<ResumeKind>({{kAuto, "auto"}, {kDisable, "disable"}, {kPath, "resume_path"}});
}

// trainer.device
enum class DeviceKind { kAuto, kCpu, kCuda };
constexpr auto NamesOf(DeviceKind) {
  using enum DeviceKind;
  return EnumNames<DeviceKind>({{kAuto, "auto"}, {kCpu, "cpu"}, {kCuda, "cuda"}});
}

// trainer.logger
enum class LogSink { kConsole, kJsonl, kTensorboard, kPrometheus };
constexpr auto NamesOf(LogSink) {
  using enum LogSink;
  return EnumNames<LogSink>({{kConsole, "console"},
                             {kJsonl, "jsonl"},
                             {kTensorboard, "tensorboard"},
                             {kPrometheus, "prometheus"}});
}

// trainer.disk_check
enum class DiskCheck { kRefuse, kWarn };
constexpr auto NamesOf(DiskCheck) {
  using enum DiskCheck;
  return EnumNames<DiskCheck>({{kRefuse, "refuse"}, {kWarn, "warn"}});
}

// trainer.file_mode
enum class FileMode { kUmask, kGroup, kOwner };
constexpr auto NamesOf(FileMode) {
  using enum FileMode;
  return EnumNames<FileMode>({{kUmask, "umask"}, {kGroup, "group"}, {kOwner, "owner"}});
}
// The permissions that it takes besides the umask.
constexpr unsigned TakenPermissions(FileMode mode) {
  switch (mode) {
    case FileMode::kUmask:
      return 0;
    case FileMode::kGroup:
      return 0007;
    case FileMode::kOwner:
      return 0077;
  }
  return 0077;
}

// dtype, of the model's weights and of the rollout's
enum class WeightDtype { kFloat32, kBfloat16 };
constexpr auto NamesOf(WeightDtype) {
  using enum WeightDtype;
  return EnumNames<WeightDtype>({{kFloat32, "float32"}, {kBfloat16, "bfloat16"}});
}

// optim.lr_decay_style; see trainer/engine/lr_schedule.h.
enum class LrDecayStyle { kConstant, kLinear, kCosine, kWsd };
constexpr auto NamesOf(LrDecayStyle) {
  using enum LrDecayStyle;
  return EnumNames<LrDecayStyle>(
      {{kConstant, "constant"}, {kLinear, "linear"}, {kCosine, "cosine"}, {kWsd, "wsd"}});
}

// checkpoint.staging.mode
enum class StagingMode { kOverlap, kBlocking };
constexpr auto NamesOf(StagingMode) {
  using enum StagingMode;
  return EnumNames<StagingMode>({{kOverlap, "overlap"}, {kBlocking, "blocking"}});
}

// checkpoint.on_busy
enum class OnBusy { kWait, kSkip, kSupersede };
constexpr auto NamesOf(OnBusy) {
  using enum OnBusy;
  return EnumNames<OnBusy>({{kWait, "wait"}, {kSkip, "skip"}, {kSupersede, "supersede"}});
}

// rollout.weight_sync
enum class WeightSyncMode {
  kInPlace,  // over the old weights
  kStaged,   // beside them
};
constexpr auto NamesOf(WeightSyncMode) {
  using enum WeightSyncMode;
  return EnumNames<WeightSyncMode>({{kInPlace, "in_place"}, {kStaged, "staged"}});
}

// rollout.verify_sync
enum class VerifySync { kOff, kFirst, kEvery };
constexpr auto NamesOf(VerifySync) {
  using enum VerifySync;
  return EnumNames<VerifySync>({{kOff, "off"}, {kFirst, "first"}, {kEvery, "every"}});
}

}  // namespace keel::trainer
