#include "trainer/run/task_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>

#include "common/fail_point.h"
#include "common/memory/host_memory.h"
#include "common/options/flat_values.h"
#include "common/text.h"
#include "trainer/engine/memory_forecast.h"
#include "trainer/engine/weights_digest.h"
#include "trainer/inputs/adapter_files.h"
#include "trainer/inputs/model_weights.h"
#include "trainer/inputs/run_data.h"
#include "trainer/run/group_channel.h"
#include "trainer/run/judged_by.h"
#include "trainer/run/memory_advice.h"
#include "trainer/run/shared_facts.h"

namespace keel::trainer {

TaskRunner::TaskRunner(const TrainerInputs& inputs, Logger& log)
    : inputs_(inputs),
      c_(inputs.loaded.config),
      connection_(inputs, log),
      job_(connection_.MakeJob()),
      course_(c_.trainer, c_.data),
      trace_(c_.trainer, log) {}

RunEnd TaskRunner::Run(Task& task) {
  task_ = &task;
  try {
    return Main();
  } catch (const std::exception& error) {
    // What is being saved is of a good step; its memory is gone when this task is.
    Status status = connection_.CauseOf(error);
    if (const std::string who = connection_.WhoHangs(error); !who.empty()) {
      status = Status(StatusCode::kDeadlineExceeded, fmt::format("{}; {}", status.message(), who));
    } else if (status.code() == StatusCode::kExhausted) {
      status = WithMemoryAdvice(status,
                                fmt::format("on rank {} at step {} ({})", inputs_.env.rank,
                                            job_.log().step(), job_.phase()),
                                room_);
    }
    const Error named(status);
    if (folder_ != nullptr) folder_->Abandon(named);
    folder_.reset();
    throw named;
  }
}

RunEnd TaskRunner::Main() {
  Phase("data");
  model_ = &task_->OpenModel();
  CheckRoom();
  job_.MakeHostKernels();
  LoadData();
  ThrowIfError(FailPoint("trainer.data"));
  const SharedFacts facts = Facts();
  Phase("connect");
  connection_.Connect(facts);
  job_.Attach(connection_.context(), connection_.device());
  CompareArithmetic();
  ThrowIfError(FailPoint("trainer.connected"));
  Phase("model");
  task_->BuildModels();
  if (model_->config.adapter.used()) DescribeAdapters();
  ThrowIfError(FailPoint("trainer.model"));
  OpenFolder();
  ThrowIfError(FailPoint("trainer.opened"));
  Resume();
  return Loop();
}

// Whether the state of this node's ranks fits into its memory at all.
void TaskRunner::CheckRoom() {
  const parallel::LaunchEnv& env = inputs_.env;
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

void TaskRunner::LoadData() {
  TaskData data = task_->LoadData();
  WarnOfData(model_->warnings);
  WarnOfData(data.train.warnings);
  WarnOfData(data.val.warnings);
  if (const std::string warning = BatchWarning(c_, data.train.size); !warning.empty())
    WarnOfData({warning});
  facts_ = std::move(data.facts);
  // No part of the model's digest: what the model computes does not depend on it.
  if (const model::HfConfig& config = model_->config; config.moe.experts > 0) {
    facts_["the balance loss of the model's config.json"] =
        config.output_router_logits
            ? fmt::format("router_aux_loss_coef {}", config.router_aux_loss_coef)
            : "none (output_router_logits)";
  }
  for (const checkpoint::Document& document : model_->documents) {
    facts_["content of " + std::filesystem::path(document.path).filename().string()] =
        "digest " + Hash128(std::as_bytes(std::span(document.content))).ToHex();
  }
  SetValidation(data.val);
  const auto seed = static_cast<uint64_t>(c_.trainer.seed);
  course_.Begin(data.train.mixture.empty() ? SampleOrder(data.train.size, seed, c_.data.shuffle)
                                           : SampleOrder(data.train.mixture, seed, c_.data.shuffle),
                data.epochs);
  identity_ = {data.train.digest.ToHex(), course_.order().size(), c_.trainer.seed, c_.data.shuffle,
               model_->tokenizer_digest};
  job_.log().Info("data: {} {} to train on, {} to validate on, {} rows left out; {} steps",
                  data.train.size, data.samples, data.val.size, data.train.skipped_rows,
                  course_.total_steps());
}

void TaskRunner::WarnOfData(const std::vector<std::string>& warnings) {
  // The same on every rank.
  if (!job_.rank0()) return;
  for (const std::string& warning : warnings) job_.log().Warning("{}", warning);
}

void TaskRunner::SetValidation(const TaskData::Set& val) {
  const bool wanted = c_.trainer.test_freq > 0 || c_.trainer.val_before_train;
  if (val.size == 0 && wanted && job_.rank0()) {
    job_.log().Warning(
        "nothing is validated, as trainer.test_freq or trainer.val_before_train asks for: there "
        "are no data.val_files, and data.val_split is 0");
  }
  if (val.size == 0) return;
  // The samples that data.val_split sets apart are in no other digest.
  facts_[c_.data.val_files.empty() ? "the samples that data.val_split sets apart"
                                   : "content of data.val_files"] =
      fmt::format("{} samples with digest {}", val.size, val.digest.ToHex());
}

// Data, model and tokenizer as this rank has read them: what its paths lead to.
SharedFacts TaskRunner::Facts() const {
  SharedFacts facts = facts_;
  facts["content of data.train_files"] =
      fmt::format("{} samples with digest {}", identity_.samples, identity_.digest);
  facts["model"] = fmt::format("config digest {}", model_->config.Digest());
  if (inputs_.env.world_size == 1) return facts;  // nobody to compare weights with
  const auto weights = [&](const char* key, const std::string& directory) {
    if (!directory.empty())
      facts[fmt::format("weights of {}", key)] = ValueOrThrow(WeightsFingerprint(directory));
  };
  weights("actor_rollout_ref.model.path", model_->directory);
  if (!model_->adapter_directory.empty()) {
    facts["adapters of actor_rollout_ref.model.lora_adapter_path"] =
        ValueOrThrow(AdapterFingerprint(model_->adapter_directory));
  }
  if (c_.trainer.task == TaskKind::kRl)
    weights("critic.model.path", c_.critic.model.path.value_or(""));
  return facts;
}

// Ranks that round in different ways make a run that is whole, and whose bits no run on machines of
// one kind has; so does a checkpoint that goes on elsewhere, which SayWhatChanged says.
void TaskRunner::CompareArithmetic() {
  const SharedFacts mine = RoundingFacts(job_.device(), job_.dtype());
  if (mine.empty()) return;
  const std::string differ =
      ValueOrThrow(CompareFacts(connection_.coordinator(), "arithmetic", mine, job_.deadline()));
  if (!differ.empty())
    WarnOfData(
        {"the ranks round in different ways: last bits are not those of one machine's" + differ});
  facts_.insert(mine.begin(), mine.end());
}

// Of the rows, and of rewards.
void TaskRunner::OpenFolder() {
  auto files = ValueOrThrow(OpenPosixFileSystem(c_.trainer.default_local_dir, true));
  folder_ = std::make_unique<RunFolder>(
      std::move(files), inputs_.loaded, connection_.coordinator(), job_.log(),
      RunFolderOptions{job_.deadline(), job_.device().str(),
                       inputs_.env.restart_count + inputs_.env.requeue_count, trace_.recorder(),
                       JudgedByOf(facts_)});
  folder_->Open();
  for (const Task::Role& role : task_->SavedRoles()) {
    role.engine->set_before_write([this](const void* begin, size_t bytes) {
      folder_->WaitFree(begin, bytes);
      task_->BeforeWrite(begin, bytes);
    });
  }
  job_.vote().set_mine([this] { return StepVote::Wishes{WantsToStop(), folder_->saves().busy()}; });
  if (c_.trainer.save_freq > 0) folder_->Prepare(Snapshot(), course_.total_steps());
}

void TaskRunner::DescribeAdapters() {
  job_.log().Info("adapters: {}", AdapterRemark(model_->config));
  TrainEngine& actor = *task_->SavedRoles().front().engine;
  base_ = AdapterBase{WeightsDigest(actor, TrainEngine::Which::kBase, job_.context().world()),
                      job_.dtype() == at::kBFloat16 ? DType::kBF16 : DType::kF32};
  const std::optional<AdapterBase>& theirs = model_->adapter_base;
  if (!theirs || theirs->digest == base_->digest) return;
  // Values of another type have another digest.
  if (theirs->dtype != base_->dtype) {
    job_.log().Warning(
        "{}: its adapters were trained beside {} and go on beside {}: whether the model is the "
        "same "
        "one is not compared",
        model_->adapter_directory, DTypeName(theirs->dtype), DTypeName(base_->dtype));
    return;
  }
  throw Error(
      StatusCode::kConfig,
      fmt::format("actor_rollout_ref.model.path: {}: the weights have digest {:016x}, those "
                  "beside which the adapters of {} were trained {:016x}: it is another "
                  "model; give that one, or leave {} out of their directory",
                  model_->directory, base_->digest, model_->adapter_directory, theirs->digest,
                  AdapterBase::kName));
}

// State of an earlier start, if asked for and there.
void TaskRunner::Resume() {
  checkpoint::LoadRequest request;
  request.contents = folder_->load_contents();
  request.allow_missing = c_.actor_rollout_ref.actor.checkpoint.load_allow_missing;
  request.config_digest = model_->config.Digest();
  const bool weights = request.contents.model || request.contents.hf_model;
  const std::vector<Task::Role> roles = task_->SavedRoles();
  std::vector<TrainEngine*> engines;
  for (const Task::Role& role : roles) engines.push_back(role.engine);
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
  const Task::Reference reference = task_->reference();
  if (record) CompareBase(*record);
  RunState state;
  if (record && request.contents.extra) {
    Task::Documents documents = record->documents;
    state = ValueOrThrow(ParseRunState(documents["trainer_state.json"],
                                       documents["data_state.json"], identity_, record->step));
    if (reference.digest != 0 && state.ref_digest != 0 && state.ref_digest != reference.digest) {
      throw Error(StatusCode::kConfig,
                  fmt::format("the reference's weights have digest {:016x}, those of the "
                              "checkpoint's run {:016x}: actor_rollout_ref.model.path or "
                              "trainer.seed is not what the run started from; give that again, or "
                              "begin a new run",
                              reference.digest, state.ref_digest));
    }
    if (reference.digest != 0 && state.ref_digest == 0) {
      job_.log().Info(
          "{} does not say which reference its run had: it is not compared with this run's",
          record->directory);
    }
    task_->RestoreDocuments(documents);
  }
  // How many updates made an optimizer's moments is theirs, whatever else is taken.
  if (!record || !request.contents.optimizer) {
    state.optimizer_steps = 0;
  } else {
    if (!request.contents.extra) state.optimizer_steps = OptimizerSteps(*record);
    task_->RestoreMoments(record->documents, record->step);
  }
  state.ref_digest = reference.digest;
  course_.Restore(state);
  if (record) {
    job_.log().Info("resumed from {} at step {} ({} samples consumed) in {:.2f} s",
                    record->directory, state.step, state.samples_consumed, record->total_s);
    SayWhatChanged(record->documents);
  } else if (folder_->resumes()) {
    job_.log().Info("no checkpoint in {}: starting from the beginning",
                    c_.trainer.default_local_dir);
  }
  task_->Restored(record.has_value());
  folder_->Begin(state.step, record);
  course_.set_start(folder_->start());
  trace_.Begin(job_.context(), state.step);
  job_.context().set_spans(trace_.recorder());
  course_.set_metrics(folder_->metrics());
}

// Adapters are those of the model that they were trained beside, whatever else is taken.
void TaskRunner::CompareBase(const checkpoint::LoadRecord& record) {
  if (!base_) return;
  const auto saved = record.documents.find(AdapterBase::kPath);
  if (saved == record.documents.end()) {
    job_.log().Info("{} does not say beside which model its adapters stand: it is not compared",
                    record.directory);
    return;
  }
  const AdapterBase theirs = ValueOrThrow(ParseAdapterBase(saved->second, AdapterBase::kPath));
  if (theirs.digest == base_->digest) return;
  throw Error(StatusCode::kConfig,
              fmt::format("the weights beside which the adapters stand have digest {:016x}, those "
                          "of the checkpoint's run {:016x}: actor_rollout_ref.model.path or "
                          "trainer.seed is not what the run started from; give that again, or "
                          "begin a new run",
                          base_->digest, theirs.digest));
}

// Of the actor's moments. Checkpoints without `extra` were once made without the number, too.
int64_t TaskRunner::OptimizerSteps(const checkpoint::LoadRecord& record) {
  const auto state = record.documents.find("trainer_state.json");
  if (state != record.documents.end()) return ValueOrThrow(OptimizerStepsOf(state->second));
  job_.log().Warning(
      "{} does not say how many updates made its optimizer's moments, which Adam corrects them by: "
      "they are taken to be {}, one a step",
      record.directory, record.step);
  return record.step;
}

std::optional<checkpoint::LoadRecord> TaskRunner::Load(checkpoint::LoadRequest request) {
  if (!folder_->resumes()) return std::nullopt;
  Phase("load");
  // The ranks hand each other what they read, as host memory.
  const auto host_group = connection_.MakeHostGroup("load");
  GroupChannel channel(host_group ? *host_group : job_.context().world());
  request.channel = &channel;
  auto record = folder_->Load(std::move(request));
  if (host_group) host_group->Shutdown();
  return record;
}

// To go on with other settings is a user's right, and a stale file's accident: each is said.
void TaskRunner::SayWhatChanged(const Task::Documents& documents) {
  const auto saved = documents.find("config.yaml");
  if (saved == documents.end()) return;  // an import: it was not trained by a configuration
  SayWhichContentsChanged(documents);
  const auto changes = ConfigChanges(saved->second, inputs_.loaded.resolved);
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

// The same names may lead to other files: rows to validate on, a reward's code.
void TaskRunner::SayWhichContentsChanged(const Task::Documents& documents) {
  const auto saved = documents.find("data_state.json");
  if (saved == documents.end()) return;
  for (const auto& [what, before] : ValueOrThrow(ContentsOf(saved->second))) {
    const auto now = facts_.find(what);
    if (now == facts_.end() || now->second == before) continue;
    job_.log().Warning("changed since the checkpoint was saved: {}: {} -> {}", Printable(what, 200),
                       Printable(before, 200), now->second);
  }
}

}  // namespace keel::trainer
