#include "trainer/config/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "common/files/whole_file.h"
#include "trainer/config/config_actor.h"
#include "trainer/config/config_data.h"
#include "trainer/config/config_trainer.h"
#include "trainer/config/idle_settings.h"
#include "trainer/config/remarks.h"

namespace keel::trainer {

CommonSections CommonOf(const Config& config) {
  const ActorRolloutRefSection& section = config.actor_rollout_ref;
  return {config.trainer,         config.data,         section.model,
          section.actor.megatron, section.actor.optim, section.actor.checkpoint};
}

options::Schema MakeSchema(Config& c) {
  options::Schema s;
  AddTrainerOptions(c, s);
  AddDataOptions(c, s);

  AddActorOptions(c, s);
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
    // What stands within a map, as the model's own keys do, is one of its option's.
    const bool within = std::any_of(known.begin(), known.end(), [&](const std::string& path) {
      return key == path || key.starts_with(path + ".");
    });
    if (within) continue;
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
  const Result<std::string> text = ReadWholeFile(path);
  if (!text.ok()) {
    return Status(StatusCode::kNotFound,
                  fmt::format("configuration file: {}", text.status().message()));
  }
  LoadedConfig loaded;
  options::Schema schema = MakeSchema(loaded.config);
  if (const Status status = schema.Load({path, *text}, overrides); !status.ok())
    return Status(status.code(), status.message() + ForeignAdvice(schema, {path, *text}));
  PreferCommandLine(schema, loaded);
  for (std::string& idle : IdleSettings(loaded.config, schema))
    loaded.notes.push_back(std::move(idle));
  for (std::string& remark : Remarks(loaded.config)) loaded.notes.push_back(std::move(remark));
  loaded.resolved = schema.Dump(false);
  loaded.with_origins = schema.Dump(true);
  Config alone;
  options::Schema again = MakeSchema(alone);
  if (!again.Load({path, *text}, {}).ok() || again.Dump(false) != *text) loaded.by_hand = *text;
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
std::set<std::string> SampleKeys() { return KeysWith(&options::Option::of_samples); }

std::vector<std::string> ValidateConfig(const Config& c, int world) {
  std::vector<std::string> problems;
  const auto say = [&](std::string text) { problems.push_back(std::move(text)); };
  const auto& megatron = c.actor_rollout_ref.actor.megatron;

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
  // (RL deals out responses, of which there are more; see ValidateRlConfig.)
  if (c.trainer.task != TaskKind::kRl &&
      c.data.train_batch_size % (dp * c.data.micro_batch_size_per_gpu) != 0) {
    say(
        fmt::format("data.train_batch_size {} is not a multiple of dp {} x "
                    "data.micro_batch_size_per_gpu {} = {}",
                    c.data.train_batch_size, dp, c.data.micro_batch_size_per_gpu,
                    dp * c.data.micro_batch_size_per_gpu));
  }
  const bool in_turns = c.async_training.placement == Placement::kColocated;
  const int64_t replica = ReplicaRanks(c);
  if (c.trainer.task == TaskKind::kRl && in_turns && world % replica != 0)
    say(
        fmt::format("actor_rollout_ref.rollout.tensor_model_parallel_size: {} ranks do not divide "
                    "into replicas of {}",
                    world, replica));
  for (std::string& problem : ValidateRlConfig(c, dp)) say(std::move(problem));
  for (std::string& problem : ValidateRolloutConfig(c)) say(std::move(problem));
  for (std::string& problem : ValidateAsyncConfig(c)) say(std::move(problem));
  for (std::string& problem : ValidateTrainer(c)) say(std::move(problem));
  for (std::string& problem : ValidateSources(c)) say(std::move(problem));
  if (!c.data.val_files.empty() && c.data.val_split > 0)
    say("data.val_files and data.val_split are both given: give one");
  for (std::string& problem : ValidateActor(c)) say(std::move(problem));
  return problems;
}

}  // namespace keel::trainer
