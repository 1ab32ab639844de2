#include "trainer/rl/generation/rollout_rank.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/fail_point.h"
#include "common/process/host_name.h"
#include "parallel/groups/beside.h"
#include "parallel/groups/context.h"
#include "parallel/groups/link_group.h"
#include "parallel/store/store.h"
#include "trainer/data/response_wire.h"
#include "trainer/desk/desk_client.h"
#include "trainer/desk/desk_file.h"
#include "trainer/desk/job_address.h"
#include "trainer/inputs/rl_inputs.h"
#include "trainer/inputs/run_model.h"
#include "trainer/inputs/run_turns.h"
#include "trainer/rl/generation/replica_meeting.h"
#include "trainer/rl/generation/rollout_options.h"
#include "trainer/rl/generation/sample_runner.h"
#include "trainer/rl/generation/split_generation.h"
#include "trainer/rl/generation/worker_trace.h"
#include "trainer/run/job_connection.h"
#include "trainer/run/shared_facts.h"
#include "trainer/sync/group_bytes.h"
#include "trainer/sync/replica_model.h"
#include "trainer/sync/rollout_settings.h"
#include "trainer/sync/weight_sync.h"

namespace keel::trainer::rl {

namespace {

using desk::Message;
using desk::SampleId;
using std::chrono::milliseconds;

// How long a worker with nothing to do waits for a word before it looks around.
constexpr milliseconds kIdle{100};
// The leader of a replica to its other ranks; no message of the desk is so short.
constexpr std::string_view kTakeUp = "";
constexpr std::string_view kSecretWanted =
    "no secret to join the run with: set KEEL_JOB_SECRET to that of its job, or run where its "
    "folder can be read by its user";
// Between two words of what it has done, at most.
constexpr milliseconds kBeat{1'000};
// Steps between two looks at how far the responses are.
constexpr int64_t kReportSteps = 16;

class RolloutRank {
 public:
  RolloutRank(const TrainerInputs& inputs, const JobRoles& roles, Logger& log)
      : inputs_(inputs),
        c_(inputs.loaded.config),
        log_(log),
        place_(JobConnection(inputs, log).MakeJob()),
        env_(inputs.env),
        tp_(RolloutTp(c_)),
        replica_((inputs.env.rank - roles.trainers) / tp_),
        seat_((inputs.env.rank - roles.trainers) % tp_),
        first_(roles.trainers + replica_ * tp_),
        source_(ValueOrThrow(OpenRunModel(c_))),
        turns_(ValueOrThrow(OpenRunTurns(c_, source_))),
        train_(TrainSampling(c_)),
        validation_(ValSampling(c_)),
        trace_(c_.trainer, log) {}

  RunEnd Run();

 private:
  // What it was assigned and has not handed in.
  struct Sample {
    desk::Assign order;
    int64_t reported = 0;  // tokens that the desk knows of
  };

  // New weights beside those that generate.
  struct Arrived {
    at::Tensor weights;
    uint64_t digest = 0;
  };

  // False: it was asked to stop before it had joined the job.
  bool JoinJob();
  desk::Joined AskToJoin();
  // kCancelled: it was asked to stop.
  Status ConnectDeskToJoin();
  Status ConnectDesk(const desk::DeskAddress& address);
  bool leads() const { return seat_ == 0; }
  bool stopping() const {
    return inputs_.stop_requested != nullptr && inputs_.stop_requested->load() != 0;
  }
  // As JoinJob.
  bool Connect();
  void Build();
  std::unique_ptr<parallel::ProcessGroup> MakeGroup(
      const std::string& name, std::vector<int> ranks, bool is_link = false,
      const std::atomic<bool>* given_up = nullptr) const;
  std::vector<Message> Hear(bool idle);
  // False: the run is over.
  bool Do(const Message& message);
  void LinkWith(const desk::LinkUp& link);
  void Receive(int64_t version);
  void TakeUp();
  void Serve(int64_t version, uint64_t digest);
  void Begin(const desk::Assign& order);
  void End(const desk::Conclude& order);
  void Step();
  void HandIn(const RunSample& done);
  void GiveBack();
  void Report(Sample* sample, const desk::Partial& so_far);
  // Responses that have `least` tokens or more that the desk does not know of.
  void Report(int64_t least);
  // What heartbeats tell. `up`: since it was built.
  void Note(std::chrono::steady_clock::duration up);
  // All that it knows, for others to go on with.
  void HandOver();

  const TrainerInputs& inputs_;
  const Config& c_;
  Logger& log_;
  const Job place_;          // its device and deadlines; never connected
  parallel::LaunchEnv env_;  // of the job
  const int tp_, replica_, seat_;
  int first_;  // rank of the replica, in the job
  const ModelSource source_;
  const std::unique_ptr<const RunTurns> turns_;
  const rollout::SamplingParams train_, validation_;
  WorkerTrace trace_;
  std::optional<parallel::Store> store_;
  std::unique_ptr<ReplicaModel> model_;
  std::unique_ptr<SampleRunner> runner_;
  // Of the first rank. Before the runner, which may wait for tools and verifiers to end, it goes,
  // so that others have this worker's samples meanwhile.
  std::unique_ptr<desk::DeskClient> desk_;
  std::unique_ptr<parallel::ProcessGroup> link_;
  std::unique_ptr<WeightSync> sync_;
  std::future<Arrived> arriving_;  // valid: weights are being received, or wait to be taken up
  int64_t arriving_version_ = 0;
  std::map<SampleId, Sample> samples_;
  int64_t steps_ = 0;
  std::chrono::steady_clock::duration idle_{0};  // of the engine
};

std::unique_ptr<parallel::ProcessGroup> RolloutRank::MakeGroup(
    const std::string& name, std::vector<int> ranks, bool is_link,
    const std::atomic<bool>* given_up) const {
  parallel::GroupOptions options;
  options.name = name;
  options.ranks = std::move(ranks);
  options.deadline = place_.deadline();
  options.cuda = !place_.device().is_cpu();
  options.by_host = c_.trainer.share_gpus;
  options.device_index = place_.device().index();
  options.is_link = is_link;
  options.local_address = parallel::LocalAddressTowards(env_.master_addr);
  return parallel::MakeLinkGroup(*store_, env_.rank, options, given_up);
}

bool RolloutRank::Connect() {
  if (!inputs_.join.empty()) return JoinJob();
  store_ = ValueOrThrow(parallel::Store::Connect(env_, place_.deadline()));
  if (!leads()) return true;
  ThrowIfError(ConnectDesk(ValueOrThrow(
      desk::DeskAddress::Parse(ValueOrThrow(store_->Get(kDeskKey, place_.deadline()))))));
  return true;
}

// The desk says where the job's store is, and as which of its ranks this replica comes. Ranks of a
// replica hear it over their own launcher's store, under a name of this start of theirs.
bool RolloutRank::JoinJob() {
  std::optional<parallel::Store> own;
  std::string key;
  if (tp_ > 1) {
    own = ValueOrThrow(parallel::Store::Connect(env_, place_.deadline()));
    key = ValueOrThrow(MeetReplica(*own, replica_, seat_, tp_, place_.deadline())) + "/joined";
  }
  std::string told;
  if (leads()) {
    const Status connected = ConnectDeskToJoin();
    if (connected.code() == StatusCode::kCancelled) {
      log_.Info("asked to stop before it had joined the run");
      told = desk::Encode(desk::Bye{true});
    } else {
      ThrowIfError(connected);
      told = desk::Encode(AskToJoin());
    }
    if (own) ThrowIfError(own->Set(key, told));
  } else {
    told = ValueOrThrow(own->Get(key, place_.deadline()));
  }
  const Message message = ValueOrThrow(desk::Decode(told));
  const auto* joined = std::get_if<desk::Joined>(&message);
  if (joined == nullptr) return false;
  first_ = static_cast<int>(joined->first);
  env_ = ValueOrThrow(desk::EnvOfJoined(inputs_.env, joined->job, first_ + seat_));
  store_ = ValueOrThrow(parallel::Store::Connect(env_, place_.deadline()));
  return true;
}

desk::Joined RolloutRank::AskToJoin() {
  ThrowIfError(desk_->Send(desk::Join{tp_}));
  const auto answer = ValueOrThrow(desk_->Receive(place_.deadline()));
  if (const auto* refused = answer ? std::get_if<desk::Refused>(&*answer) : nullptr)
    throw Error(refused->code, "the desk: " + refused->message);
  const auto* joined = answer ? std::get_if<desk::Joined>(&*answer) : nullptr;
  if (joined == nullptr)
    throw Error(StatusCode::kDeadlineExceeded, "the desk does not say how to join its job");
  return *joined;
}

// With the job's secret, where it has one; else with the one that stands in the run's folder. Each
// start of the trainers has another, which they write there when they wait for workers: until then
// the file is missing, or of the start before.
Status RolloutRank::ConnectDeskToJoin() {
  const auto [host, port] = ValueOrThrow(desk::ParseDeskAddress(inputs_.join));
  if (!inputs_.env.job_secret.empty()) return ConnectDesk({host, port, inputs_.env.job_secret});
  const std::string& folder = c_.trainer.default_local_dir;
  // One that is not there yet is made by the trainers.
  if (access(folder.c_str(), R_OK | X_OK) != 0 && errno != ENOENT) {
    return Status(StatusCode::kUsage,
                  fmt::format("{}: {}", kSecretWanted,
                              Status::FromErrno(errno, "reading", folder).message()));
  }
  const Stopwatch watch;
  std::optional<std::string> refused;
  std::string why;
  while (watch.Elapsed() * 1000 <= static_cast<double>(place_.deadline().count())) {
    if (stopping()) return Status(StatusCode::kCancelled, "told not to wait for the secret");
    const Result<desk::DeskAddress> file = desk::ReadDeskFile(folder);
    if (file.ok() && file->secret != refused) {
      const Status connected = ConnectDesk({host, port, file->secret});
      if (connected.code() != StatusCode::kUsage) return connected;
      refused = file->secret;
      why = connected.message();
    } else if (!file.ok() && why.empty()) {
      why = file.status().message();
    } else {
      std::this_thread::sleep_for(kIdle);
      continue;
    }
    log_.Info("waits for the run's trainers to write the secret of this start of theirs: {} ({})",
              why, kSecretWanted);
  }
  return Status(
      StatusCode::kUnavailable,
      fmt::format("no secret that the desk at {} takes came to {} within {} s ({}): has "
                  "the run ended, or is it another's desk, or another folder? {}",
                  inputs_.join, folder, place_.deadline().count() / 1000, why, kSecretWanted));
}

Status RolloutRank::ConnectDesk(const desk::DeskAddress& address) {
  const milliseconds silence(static_cast<int64_t>(c_.async_training.worker_timeout_seconds * 1000));
  KEEL_ASSIGN_OR_RETURN(
      desk_, desk::DeskClient::Connect(address, std::min(kBeat, silence / 5), place_.deadline(),
                                       [this] { return !inputs_.join.empty() && stopping(); }));
  // By then it has given this worker up.
  desk_->GiveUpAfter(silence);
  return Status::Ok();
}

void RolloutRank::Build() {
  std::vector<int> ranks;
  for (int i = 0; i < tp_; ++i) ranks.push_back(first_ + i);
  model::DecoderOptions decoder;
  decoder.dtype = place_.dtype();
  decoder.device = place_.device();
  model_ = std::make_unique<ReplicaModel>(
      tp_ == 1
          ? parallel::MakeSingleGroup("rollout")
          : MakeGroup(ValueOrThrow(MeetReplica(*store_, inputs_.join.empty() ? replica_ : first_,
                                               seat_, tp_, place_.deadline())),
                      ranks),
      source_.config, decoder);
  rollout::EngineOptions options = EngineOptionsOf(c_, source_);
  options.warn = [this](const std::string& text) { log_.Warning("{}", text); };
  model_->MakeEngine(options);
  const Status fits =
      model_->engine().CheckLengths(c_.data.max_prompt_length, c_.data.max_response_length);
  if (!fits.ok()) throw Error(StatusCode::kConfig, KvCacheAdvice(fits, c_));
  runner_ = std::make_unique<SampleRunner>(
      model_->engine(), model_->group(),
      SampleRunnerOptions{&c_.reward, source_.tokenizer.get(), turns_.get(), place_.device(),
                          [this](const std::string& text) { log_.Warning("{}", text); },
                          inputs_.stop_requested});
  if (!leads()) return;
  ThrowIfError(runner_->Start());
  desk::Hello hello;
  hello.name =
      fmt::format("{}{} (host {}, pid {}, rank{} {})", inputs_.join.empty() ? "" : "joined ",
                  replica_, HostName(), getpid(), tp_ == 1 ? "" : "s", fmt::join(ranks, ", "));
  hello.ranks = ranks;
  hello.capacity = model_->engine().options().scheduler.max_num_seqs;
  hello.facts = RolloutFacts(inputs_.loaded, place_.device(), source_, turns_.get());
  hello.facts.merge(RoundingFacts(place_.device(), place_.dtype()));
  ThrowIfError(FailPoint("worker.hello"));
  ThrowIfError(desk_->Send(hello));
}

// What has come, on all ranks of the replica. `idle`: it waits a moment for a word. Weights that
// have arrived by now are taken up first, by all ranks before the same step.
std::vector<Message> RolloutRank::Hear(bool idle) {
  std::vector<Message> heard;
  std::string packed;
  if (leads()) {
    if (arriving_.valid() && arriving_.wait_for(milliseconds(0)) == std::future_status::ready) {
      TakeUp();
      packed += desk::Frame(kTakeUp);
    }
    while (true) {
      auto message = desk_->Receive(idle && heard.empty() ? kIdle : milliseconds(0));
      // A desk that has closed the connection has said why before.
      if (!message.ok() && !heard.empty()) break;
      ThrowIfError(message.status());
      if (!*message) break;
      heard.push_back(std::move(**message));
    }
    if (stopping()) {
      HandOver();
      log_.Info("asked to stop: others go on with this worker's samples");
      heard = {desk::Bye{true}};
    }
    if (tp_ > 1) {
      for (const Message& message : heard) packed += desk::Frame(desk::Encode(message));
    }
  }
  if (tp_ == 1) return heard;
  packed = ShareBytes(model_->group(), packed, place_.device()).front();
  if (leads()) return heard;
  desk::FrameReader reader(desk::kMostFrameBytes);
  reader.Feed(packed);
  while (auto frame = ValueOrThrow(reader.Next())) {
    if (*frame == kTakeUp) {
      TakeUp();
    } else {
      heard.push_back(ValueOrThrow(desk::Decode(*frame)));
    }
  }
  return heard;
}

bool RolloutRank::Do(const Message& message) {
  if (const auto* assign = std::get_if<desk::Assign>(&message)) {
    Begin(*assign);
  } else if (const auto* conclude = std::get_if<desk::Conclude>(&message)) {
    End(*conclude);
  } else if (const auto* push = std::get_if<desk::Push>(&message)) {
    Receive(push->version);
  } else if (const auto* link = std::get_if<desk::LinkUp>(&message)) {
    LinkWith(*link);
  } else if (const auto* refused = std::get_if<desk::Refused>(&message)) {
    throw Error(refused->code, "the desk: " + refused->message);
  } else if (const auto* bye = std::get_if<desk::Bye>(&message)) {
    // The launcher of the job knows how it ends; that of workers which joined hears it from them.
    if (!bye->over && !inputs_.join.empty())
      throw Error(StatusCode::kUnavailable, "the trainers have ended before the run was over");
    return false;
  }
  return true;
}

void RolloutRank::LinkWith(const desk::LinkUp& link) {
  trace_.Now("link");
  std::vector<int> ranks = link.trainers;
  for (int i = 0; i < tp_; ++i) ranks.push_back(first_ + i);
  link_ = MakeGroup(link.group, ranks, true, leads() ? &desk_->gone() : nullptr);
  ThrowIfError(FailPoint("worker.linked"));
  WeightSyncOptions options;
  options.bucket_bytes =
      c_.actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes << 20;
  options.device = place_.device();
  sync_ = std::make_unique<WeightSync>(*link_, ShardTable(), model_->Table().WithoutViews(), 0, 1,
                                       options);
  if (!model_->has_adapters()) return;
  const ShardTable base = model_->BaseTable();
  WeightSync once(*link_, ShardTable(), base.WithoutViews(), 0, 1, options);
  ThrowIfError(once.Run(ShardTable(), base).status());
}

// Where workers are ahead of the training, the old weights go on generating meanwhile.
void RolloutRank::Receive(int64_t version) {
  TakeUp();
  if (c_.actor_rollout_ref.rollout.weight_sync == WeightSyncMode::kStaged ||
      c_.async_training.max_staleness > 0) {
    arriving_version_ = version;
    arriving_ = parallel::Beside(place_.device(), [this, version] {
      const ScopedSpan span(trace_.recorder(), "receive weights",
                            {.lane = SpanLane::kWeights, .step = version});
      const at::Tensor stage = model_->MakeStage();
      const WeightSyncReport report = ValueOrThrow(sync_->Run(ShardTable(), model_->Table(stage)));
      return Arrived{stage, report.digest};
    });
    return;
  }
  trace_.Now("receive weights");
  model_->engine().Invalidate("an update of its weights is under way or has failed");
  const WeightSyncReport report = ValueOrThrow(sync_->Run(ShardTable(), model_->Table()));
  Serve(version, report.digest);
}

// The weights that were being received, which it waits for, if there are any.
void RolloutRank::TakeUp() {
  if (!arriving_.valid()) return;
  trace_.Now("take up weights");
  const Arrived arrived = arriving_.get();
  model_->TakeStage(arrived.weights);
  Serve(arriving_version_, arrived.digest);
}

void RolloutRank::Serve(int64_t version, uint64_t digest) {
  ThrowIfError(FailPoint("worker.staged"));
  model_->engine().SetWeightVersion(version);
  trace_.Serve({env_.rank, env_.world_size, seat_}, version);  // the first version is for step 1
  if (leads()) ThrowIfError(desk_->Send(desk::Serving{version, digest}));
}

void RolloutRank::Begin(const desk::Assign& order) {
  // A sample of an earlier lease, that the desk has ended without this worker's last word.
  if (samples_.erase(order.id) > 0) runner_->Forget(order.id);
  samples_[order.id] = {order, order.so_far.size()};
  runner_->Begin(order.id, std::make_shared<const Prompt>(order.prompt),
                 order.stream == desk::Stream::kTrain ? train_ : validation_, order.so_far);
}

// It is whole with the next step, and the desk knows of its tokens should its score not come.
void RolloutRank::End(const desk::Conclude& order) {
  for (auto& [id, sample] : samples_) {
    if (sample.order.lease != order.lease || sample.order.stream != order.stream) continue;
    if (const std::optional<desk::Partial> so_far = runner_->SoFar(id)) Report(&sample, *so_far);
    runner_->EachScoring([&, &sample = sample, &id = id](const RunSample& done) {
      if (done.id == id) Report(&sample, done.whole);
    });
    runner_->Conclude(id);
  }
}

void RolloutRank::Step() {
  ThrowIfError(FailPoint("worker.step"));
  runner_->TakeGiven();
  // What a tool gave may reach beyond what these weights are to choose. They choose no token more,
  // whether the engine has room for the sample or not.
  GiveBack();
  runner_->Generate();
  GiveBack();
  if (++steps_ % kReportSteps == 0) Report(c_.async_training.partial_report_tokens);
}

// What has as many tokens as this version's weights are to choose.
void RolloutRank::GiveBack() {
  for (auto sample = samples_.begin(); sample != samples_.end();) {
    const auto& [id, held] = *sample;
    const std::optional<desk::Partial> so_far =
        held.order.until == desk::kToTheEnd ? std::nullopt : runner_->SoFar(id);
    if (!so_far || so_far->size() < held.order.until) {
      ++sample;
      continue;
    }
    const desk::Partial more = runner_->Take(id)->From(held.reported);
    if (leads()) {
      const desk::Assign& order = held.order;
      if (more.size() > 0)
        ThrowIfError(desk_->Send(desk::Progress{order.stream, order.lease, held.reported, more}));
      ThrowIfError(desk_->Send(desk::Back{order.stream, order.lease}));
    }
    sample = samples_.erase(sample);
  }
}

void RolloutRank::HandIn(const RunSample& done) {
  const Sample sample = samples_.extract(done.id).mapped();
  if (!leads()) return;
  desk::Done message;
  message.stream = sample.order.stream;
  message.lease = sample.order.lease;
  message.spans = done.whole.From(sample.reported).spans;
  message.response = EncodeResponses(std::span(&done.response, 1));
  if (sample.order.text) message.text = EncodeTexts(std::span(&done.response, 1));
  ThrowIfError(FailPoint("worker.done"));
  ThrowIfError(desk_->Send(message));
}

// What is not reported is generated again when this worker is lost.
void RolloutRank::Report(int64_t least) {
  if (!leads()) return;
  for (auto& [id, sample] : samples_) {
    const std::optional<desk::Partial> so_far = runner_->SoFar(id);
    if (so_far && so_far->size() - sample.reported >= least) Report(&sample, *so_far);
  }
}

void RolloutRank::Report(Sample* sample, const desk::Partial& so_far) {
  if (!leads() || so_far.size() == sample->reported) return;
  ThrowIfError(FailPoint("worker.progress"));
  ThrowIfError(desk_->Send(desk::Progress{sample->order.stream, sample->order.lease,
                                          sample->reported, so_far.From(sample->reported)}));
  sample->reported = so_far.size();
}

void RolloutRank::Note(std::chrono::steady_clock::duration up) {
  using std::chrono::microseconds;
  const rollout::EngineStats stats = model_->engine().stats();
  desk_->Note({std::chrono::duration_cast<microseconds>(up).count(),
               std::chrono::duration_cast<microseconds>(idle_).count(), stats.generated_tokens,
               stats.recomputed_tokens});
}

void RolloutRank::HandOver() {
  Report(1);
  // Whoever takes one of these up has its score to ask for, and nothing to generate.
  runner_->EachScoring([&](const RunSample& done) { Report(&samples_.at(done.id), done.whole); });
}

RunEnd RolloutRank::Run() {
  place_.MakeHostKernels();
  if (!Connect()) return RunEnd::kFinished;
  try {
    Build();
    log_.Info("rollout worker {} of {} rank(s): {} parameters", replica_, tp_,
              source_.config.NumParameters());
    const auto begun = std::chrono::steady_clock::now();
    auto looked = begun;
    bool was_idle = false;
    while (true) {
      const auto now = std::chrono::steady_clock::now();
      if (was_idle) idle_ += now - looked;
      looked = now;
      was_idle = model_->engine().idle();
      if (leads()) Note(now - begun);
      const bool waits = runner_->scoring() || arriving_.valid();
      if (runner_->idle()) trace_.Now(runner_->scoring() ? "wait for scores" : "wait for samples");
      for (const Message& message : Hear(runner_->idle() && !waits))
        if (!Do(message)) return RunEnd::kFinished;
      if (!runner_->idle()) {
        trace_.Now(model_->engine().idle() ? "wait for tools" : "generate");
        Step();
      } else if (waits) {
        usleep(1000);
      }
      for (const RunSample& done : runner_->Poll()) HandIn(done);
    }
  } catch (const Error& error) {
    if (desk_ == nullptr) throw;
    if (error.status().code() != StatusCode::kUnavailable) {
      (void)desk_->Send(desk::Failed{error.status().code(), error.status().message()});
    } else if (desk_->gone()) {
      ThrowIfError(desk_->Send(desk::Heartbeat()));  // says what the desk said last
    }
    throw;
  }
}

}  // namespace

RunEnd RunRolloutRank(const TrainerInputs& inputs, const JobRoles& roles, Logger& log) {
  return RolloutRank(inputs, roles, log).Run();
}

}  // namespace keel::trainer::rl
