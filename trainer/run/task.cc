#include "trainer/run/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>

#include "common/fail_point.h"
#include "common/host_memory.h"
#include "common/options/flat_values.h"
#include "trainer/engine/memory_forecast.h"
#include "trainer/inputs/model_weights.h"
#include "trainer/run/group_channel.h"

namespace keel::trainer {

RunEnd Task::Run() {
  try {
    return Main();
  } catch (const std::exception& error) {
    // What is being saved is of a good step; its memory is gone when this task is.
    Status status = job_.CauseOf(error);
    if (const std::string who = job_.WhoHangs(error); !who.empty()) {
      status = Status(StatusCode::kDeadlineExceeded, fmt::format("{}; {}", status.message(), who));
    } else if (status.code() == StatusCode::kExhausted) {
      status = Status(StatusCode::kExhausted,
                      fmt::format("{}, on rank {} at step {} ({}). {}", status.message(),
                                  job_.inputs().env.rank, job_.log().step(), job_.phase(), room_));
    }
    const Error named(status);
    if (folder_ != nullptr) folder_->Abandon(named);
    folder_.reset();
    throw named;
  }
}

RunEnd Task::Main() {
  Phase("data");
  model_ = &OpenModel();
  CheckRoom();
  LoadData();
  ThrowIfError(FailPoint("trainer.data"));
  const SharedFacts facts = Facts();
  Phase("connect");
  job_.Connect(facts);
  ThrowIfError(FailPoint("trainer.connected"));
  Phase("model");
  BuildModels();
  ThrowIfError(FailPoint("trainer.model"));
  OpenFolder();
  ThrowIfError(FailPoint("trainer.opened"));
  Resume();
  return Loop();
}

// Whether the state of this node's ranks fits into its memory at all.
void Task::CheckRoom() {
  const parallel::LaunchEnv& env = job_.inputs().env;
  const MemoryForecast forecast = ForecastTraining(c_, model_->config, env.world_size);
  room_ = fmt::format(
      "The run's state takes {} a rank ({}); the rest is data and activations, which grow with "
      "data.max_length and data.micro_batch_size_per_gpu: lower these, set "
      "actor_rollout_ref.model.enable_gradient_checkpointing, or use more ranks",
      FormatBytes(forecast.HostBytes(false)), forecast.ToString());
  const std::string warning = ValueOrThrow(CheckMemory(
      forecast, ReadHostMemory(), std::max(1, env.local_world_size), !job_.device().is_cpu()));
  if (!warning.empty() && env.local_rank == 0) job_.log().Warning("memory: {}", warning);
}

void Task::WarnOfData(const std::vector<std::string>& warnings) const {
  // The same on every rank.
  if (!job_.rank0()) return;
  for (const std::string& warning : warnings) job_.log().Warning("{}", warning);
}

void Task::SetData(const Digest128& digest, int64_t samples) {
  const auto seed = static_cast<uint64_t>(c_.trainer.seed);
  order_ = std::make_unique<SampleOrder>(samples, seed, c_.data.shuffle);
  identity_ = {digest.ToHex(), samples, c_.trainer.seed, c_.data.shuffle, model_->tokenizer_digest};
}

void Task::SetData(const Digest128& digest, const std::vector<SourceShare>& sources) {
  const auto seed = static_cast<uint64_t>(c_.trainer.seed);
  order_ = std::make_unique<SampleOrder>(sources, seed, c_.data.shuffle);
  identity_ = {digest.ToHex(), order_->size(), c_.trainer.seed, c_.data.shuffle,
               model_->tokenizer_digest};
}

void Task::SetValidation(const Digest128& digest, int64_t samples) {
  const bool wanted = c_.trainer.test_freq > 0 || c_.trainer.val_before_train;
  if (samples == 0 && wanted && job_.rank0()) {
    job_.log().Warning(
        "nothing is validated, as trainer.test_freq or trainer.val_before_train asks for: there "
        "are no data.val_files, and data.val_split is 0");
  }
  if (samples == 0) return;
  // The samples that data.val_split sets apart are in no other digest.
  AddFact(c_.data.val_files.empty() ? "the samples that data.val_split sets apart"
                                    : "content of data.val_files",
          fmt::format("{} samples with digest {}", samples, digest.ToHex()));
}

// Data, model and tokenizer as this rank has read them: what its paths lead to.
SharedFacts Task::Facts() const {
  SharedFacts facts = facts_;
  facts["content of data.train_files"] =
      fmt::format("{} samples with digest {}", identity_.samples, identity_.digest);
  facts["model"] = fmt::format("config digest {}", model_->config.Digest());
  for (const checkpoint::Document& document : model_->documents) {
    facts["content of " + std::filesystem::path(document.path).filename().string()] =
        "digest " + Hash128(std::as_bytes(std::span(document.content))).ToHex();
  }
  if (job_.inputs().env.world_size == 1) return facts;  // nobody to compare weights with
  const auto weights = [&](const char* key, const std::string& directory) {
    if (!directory.empty())
      facts[fmt::format("weights of {}", key)] = ValueOrThrow(WeightsFingerprint(directory));
  };
  weights("actor_rollout_ref.model.path", model_->directory);
  if (c_.trainer.task == TaskKind::kRl)
    weights("critic.model.path", c_.critic.model.path.value_or(""));
  return facts;
}

void Task::SetSteps() {
  if (c_.trainer.total_training_steps) {
    total_steps_ = *c_.trainer.total_training_steps;
    return;
  }
  const double samples = *c_.trainer.total_epochs * static_cast<double>(identity_.samples);
  total_samples_ = std::max<int64_t>(1, std::llround(samples));
  RecountSteps();
}

void Task::SetReference(TrainEngine& reference, uint64_t digest) {
  reference_ = &reference;
  ref_digest_ = digest;
}

void Task::OpenFolder() {
  auto files = ValueOrThrow(OpenPosixFileSystem(c_.trainer.default_local_dir, true));
  folder_ = std::make_unique<RunFolder>(
      std::move(files), job_.inputs().loaded, job_.coordinator(), job_.log(),
      RunFolderOptions{job_.deadline(), job_.device().str(), job_.inputs().env.restart_count});
  folder_->Open();
  for (const Role& role : SavedRoles()) {
    role.engine->set_before_write([this](const void* begin, size_t bytes) {
      folder_->WaitFree(begin, bytes);
      BeforeWrite(begin, bytes);
    });
  }
  job_.vote().set_mine([this] { return StepVote::Wishes{WantsToStop(), folder_->saves().busy()}; });
  if (c_.trainer.save_freq > 0) folder_->Prepare(Snapshot(), total_steps_);
}

// State of an earlier start, if asked for and there.
void Task::Resume() {
  checkpoint::LoadRequest request;
  request.contents = checkpoint::Contents::Of(job_.actor().checkpoint.load_contents);
  request.allow_missing = job_.actor().checkpoint.load_allow_missing;
  request.config_digest = model_->config.Digest();
  const bool weights = request.contents.model || request.contents.hf_model;
  const std::vector<Role> roles = SavedRoles();
  std::vector<TrainEngine*> engines;
  for (const Role& role : roles) engines.push_back(role.engine);
  std::optional<checkpoint::LoadRecord> record;
  TrainEngine::LoadInto(engines, [&](std::vector<TrainEngine::StateTables> tables) {
    for (size_t i = 0; i < roles.size(); ++i)
      request.roles.push_back({roles[i].name, tables[i].model, tables[i].optimizer});
    record = Load(request);
    return record ? TrainEngine::Written{weights, request.contents.optimizer}
                  : TrainEngine::Written{};
  });
  if (record && !weights) {
    job_.log().Warning(
        "actor_rollout_ref.actor.checkpoint.load_contents has neither model nor hf_model: the "
        "weights are those that this run began with, not those of {}",
        record->directory);
  }
  // A checkpoint without `extra`, or of another task, has weights alone to give.
  if (record && request.contents.extra) {
    Documents documents = record->documents;
    state_ = ValueOrThrow(ParseRunState(documents["trainer_state.json"],
                                        documents["data_state.json"], identity_, record->step));
    if (ref_digest_ != 0 && state_.ref_digest != 0 && state_.ref_digest != ref_digest_) {
      throw Error(StatusCode::kConfig,
                  fmt::format("the reference's weights have digest {:016x}, those of the "
                              "checkpoint's run {:016x}: actor_rollout_ref.model.path or "
                              "trainer.seed is not what the run started from; give that again, or "
                              "begin a new run",
                              ref_digest_, state_.ref_digest));
    }
    RestoreDocuments(documents);
  }
  state_.ref_digest = ref_digest_;
  if (record) {
    job_.log().Info("resumed from {} at step {} ({} samples consumed) in {:.2f} s",
                    record->directory, state_.step, state_.samples_consumed, record->total_s);
    SayWhatChanged(record->documents);
  } else if (folder_->resumes()) {
    job_.log().Info("no checkpoint in {}: starting from the beginning",
                    c_.trainer.default_local_dir);
  }
  Restored(record.has_value());
  folder_->Begin(state_.step, record);
}

std::optional<checkpoint::LoadRecord> Task::Load(checkpoint::LoadRequest request) {
  if (!folder_->resumes()) return std::nullopt;
  Phase("load");
  // The ranks hand each other what they read, as host memory.
  const auto host_group = job_.MakeHostGroup("load");
  GroupChannel channel(host_group ? *host_group : job_.context().world());
  request.channel = &channel;
  auto record = folder_->Load(std::move(request));
  if (host_group) host_group->Shutdown();
  return record;
}

// To go on with other settings is a user's right, and a stale file's accident: each is said.
void Task::SayWhatChanged(const Documents& documents) const {
  const auto saved = documents.find("config.yaml");
  if (saved == documents.end()) return;  // an import: it was not trained by a configuration
  const auto changes = ConfigChanges(saved->second, job_.inputs().loaded.resolved);
  if (!changes.ok()) {
    job_.log().Warning(
        "what has changed since the checkpoint was saved is not known: its config.yaml cannot be "
        "read: {}",
        changes.status().message());
    return;
  }
  const std::set<std::string> secret = SecretKeys();
  for (const options::ValueChange& change : *changes) {
    if (secret.contains(change.path)) {
      job_.log().Warning("changed since the checkpoint was saved: {}", change.path);
      continue;
    }
    job_.log().Warning("changed since the checkpoint was saved: {}: {} -> {}", change.path,
                       change.before.value_or("not there"), change.after.value_or("not there"));
  }
}

}  // namespace keel::trainer
