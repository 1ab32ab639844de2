#include "trainer/inputs/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace keel::trainer {

// Ranks that come to the same cache share what is to be done, so threads of their own are of use to
// a rank that is alone on its node, and in no one's way otherwise.
TokenCache CacheOf(const Config& c) {
  TokenCache cache;
  cache.folder = c.data.cache_dir.value_or("");
  cache.threads = static_cast<int>(c.trainer.threads_per_rank > 0
                                       ? c.trainer.threads_per_rank
                                       : std::clamp(std::thread::hardware_concurrency(), 1u, 8u));
  cache.deadline_seconds = c.trainer.deadline_seconds;
  return cache;
}

Status CheckPositions(const model::ContextLength& longest, int64_t positions,
                      const std::string& keys) {
  if (positions <= longest.tokens) return Status::Ok();
  return Status(StatusCode::kConfig,
                fmt::format("{}: {} positions, {}", keys, positions, longest.reason));
}

Status CheckSizes(const Config& config, int64_t train, int64_t val) {
  if (train == 0)
    return Status(StatusCode::kInvalidData, "data.val_split leaves nothing to train on");
  if (config.data.val_split > 0 && val == 0) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("data.val_split {} sets none of the {} samples apart: nothing would "
                              "be validated; raise it, give data.val_files, or set it to 0",
                              config.data.val_split, train));
  }
  return Status::Ok();
}

Status NamingFiles(const Status& status, const std::string& key,
                   const std::vector<std::string>& files) {
  if (status.code() != StatusCode::kNotFound) return status;
  const bool shells = std::any_of(files.begin(), files.end(), [](const std::string& file) {
    return file.starts_with('~') || file.find_first_of("$*?[") != std::string::npos;
  });
  const Status named = status.WithContext(key);
  if (!shells) return named;
  return {named.code(), named.message() +
                            "; ~, variables and patterns are a shell's, and paths are opened as "
                            "they are written: list each file by its name"};
}

std::string BatchWarning(const Config& config, int64_t train) {
  const int64_t batch = config.data.train_batch_size;
  // RL has no shorter batch at the end of an epoch.
  const bool each_once = config.trainer.task != TaskKind::kRl &&
                         !config.trainer.total_training_steps && config.trainer.total_epochs <= 1;
  if (batch <= train || each_once) return "";
  return fmt::format(
      "data.train_batch_size {} is more than the {} samples to train on: a step takes samples "
      "several times; lower it, or give more rows",
      batch, train);
}

}  // namespace keel::trainer
