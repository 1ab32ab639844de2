#include "bench/checkpoint_worker.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "bench/disk_limits.h"
#include "bench/training_state.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/format/names.h"
#include "checkpoint/read/step_reader.h"
#include "common/clock.h"
#include "common/files/file_system.h"
#include "common/json.h"
#include "common/log.h"
#include "common/memory/page_memory.h"
#include "common/process/program_id.h"
#include "common/process/thread_priority.h"
#include "parallel/groups/process_group.h"
#include "parallel/launch_env.h"
#include "parallel/store/store.h"
#include "trainer/engine/memory.h"
#include "trainer/run/group_channel.h"
#include "trainer/run/store_coordinator.h"

namespace keel::bench {
namespace {

constexpr int64_t kProductSize = 1024;

LogOptions Quiet() {
  LogOptions options;
  options.level = LogLevel::kWarning;
  return options;
}

checkpoint::CheckpointOptions CheckpointOptionsOf(const CheckpointWorkerOptions& o) {
  checkpoint::CheckpointOptions options;
  options.run_id = "bench";
  // The worker's command line takes such names alone.
  options.io = ParseName<checkpoint::IoChoice>(o.io).value_or(checkpoint::IoChoice::kAuto);
  options.load_threads = o.load_threads;
  options.dist_ckpt_workers = o.writers;
  if (o.host_memory_cap > 0) options.host_memory_cap = o.host_memory_cap;
  if (o.keep > 0) options.max_ckpts_to_keep = o.keep;
  return options;
}

Through ThroughOf(const std::string& name) {
  return name == "memory" ? Through::kMemory : Through::kBuffer;
}

class Worker {
 public:
  Worker(const CheckpointWorkerOptions& options, const parallel::LaunchEnv& env,
         const parallel::Store& store)
      : options_(options),
        rank_(env.rank),
        world_(env.world_size),
        log_(Quiet()),
        fs_(ValueOrThrow(OpenPosixFileSystem(options.directory, true))),
        coordinator_(ValueOrThrow(store.Clone()), env.rank, env.world_size),
        group_(MakeGroup(store, env)),
        state_(options.state, Cut::kRows, env.rank, env.world_size),
        a_(at::empty({kProductSize, kProductSize}, at::kFloat).uniform_(-1, 1)),
        b_(at::empty({kProductSize, kProductSize}, at::kFloat).uniform_(-1, 1)),
        product_(at::empty({kProductSize, kProductSize}, at::kFloat)) {}

  Json Ready() const {
    return {{"ready", true},
            {"name", "keel"},
            {"pid", getpid()},
            {"rank", rank_},
            {"bytes", state_.bytes()},
            {"versions", {{"keel", std::string(ProgramVersion())}, {"torch", "2.11.0"}}}};
  }

  Json Answer(const std::string& line) {
    std::istringstream words(line);
    std::string name, argument, through;
    words >> name >> argument >> through;
    const std::map<std::string, std::function<Json()>> commands = {
        {"open", [&] { return Open(); }},
        {"steps", [&] { return Steps(std::stoll(argument), false); }},
        {"steps_with_save", [&] { return Steps(std::stoll(argument), true); }},
        {"steps_with_copy", [&] { return StepsWithCopy(std::stoll(argument)); }},
        {"save", [&] { return Save(); }},
        {"load", [&] { return Load(argument); }},
        {"verify", [&] { return Verify(); }},
        {"forget", [&] { return Forget(); }},
        {"commits", [&] { return Commits(std::stoll(argument)); }},
        {"commit_floor", [&] { return CommitFloor(std::stoll(argument)); }},
        {"drop_pages", [&] { return DropPages(); }},
        {"write_limit", [&] { return WriteLimit(argument, ThroughOf(through)); }},
        {"read_limit", [&] { return ReadLimit(ThroughOf(argument)); }},
    };
    const auto command = commands.find(name);
    if (command == commands.end()) return {{"error", "unknown command " + line}};
    return command->second();
  }

  void Close() {
    if (checkpointer_ != nullptr) ThrowIfError(checkpointer_->Close());
    group_->Shutdown();
  }

 private:
  static std::unique_ptr<parallel::ProcessGroup> MakeGroup(const parallel::Store& store,
                                                           const parallel::LaunchEnv& env) {
    if (env.world_size == 1) return parallel::MakeSingleGroup("world");
    parallel::GroupOptions options;
    options.name = "world";
    for (int r = 0; r < env.world_size; ++r) options.ranks.push_back(r);
    return parallel::MakeProcessGroup(store, env.rank, options);
  }

  checkpoint::SaveRequest Request() {
    checkpoint::SaveRequest request;
    request.step = ++saves_;
    request.roles = {state_.Role()};
    request.roles[0].optimizer_stable = options_.optimizer_stable;
    request.layout = {{"dp", world_}};
    return request;
  }

  // Takes the directory and pays what a run pays once.
  Json Open() {
    const Stopwatch watch;
    checkpointer_ = std::make_unique<checkpoint::Checkpointer>(*fs_, coordinator_, SystemClock(),
                                                               log_, CheckpointOptionsOf(options_));
    ThrowIfError(checkpointer_->Open());
    const checkpoint::DiskForecast forecast = ValueOrThrow(checkpointer_->Prepare(Request(), true));
    return {{"seconds", watch.Elapsed()},
            {"checkpoint_bytes", forecast.checkpoint_bytes},
            {"staging_bytes", checkpointer_->staging_bytes()}};
  }

  // True while any rank says so. Stands where a step reduces its gradients.
  bool Any(bool mine) {
    at::Tensor flag = at::full({1}, mine ? 1.0 : 0.0, at::kFloat);
    group_->AllReduce(flag, parallel::ReduceOp::kMax);
    return flag.item<float>() > 0;
  }

  bool Step(bool saving) {
    for (int i = 0; i < options_.products; ++i) at::mm_out(product_, a_, b_);
    const bool any = Any(saving && checkpointer_->busy());
    state_.Update([&](const at::Tensor& tensor) {
      if (saving) checkpointer_->WaitFree(tensor.data_ptr(), tensor.nbytes());
    });
    return any;
  }

  // `count` steps; with a save that begins before the first of them, as many more as it lasts.
  Json Steps(int64_t count, bool with_save) {
    std::vector<double> seconds;
    int64_t in_flight = 0;
    double blocked = 0;
    group_->Barrier();
    const Stopwatch watch;
    if (with_save) {
      const Stopwatch call;
      ThrowIfError(checkpointer_->StartSave(Request()));
      blocked = call.Elapsed();
    }
    for (bool busy = with_save; busy || static_cast<int64_t>(seconds.size()) < count;) {
      const Stopwatch step;
      busy = Step(with_save);
      if (busy) ++in_flight;
      seconds.push_back(step.Elapsed());
    }
    Json answer = {
        {"seconds", watch.Elapsed()}, {"steps", seconds.size()}, {"step_seconds", seconds}};
    if (!with_save) return answer;
    ThrowIfError(checkpointer_->Wait());
    const std::vector<checkpoint::SaveResult> results = checkpointer_->Finished();
    ThrowIfError(results.at(0).status);
    const checkpoint::SaveRecord& record = results[0].record;
    answer["blocked_s"] = blocked;
    answer["fence_s"] = record.fence_s;
    answer["durable_s"] = record.total_s;
    answer["steps_in_flight"] = in_flight;
    answer["record"] = record.ToJson();
    return answer;
  }

  // Steps beside each of which the state is copied and nothing else: what no save that lets the
  // state change in the meantime can do without. Its update waits for the copy.
  Json StepsWithCopy(int64_t count) {
    if (copy_ == nullptr) {
      copy_ = AllocatePages(state_.bytes());
      if (copy_ == nullptr) return {{"error", "no memory for a copy of the state"}};
      std::memset(copy_.get(), 1, static_cast<size_t>(state_.bytes()));
    }
    std::vector<double> seconds;
    group_->Barrier();
    for (int64_t i = 0; i < count; ++i) {
      const Stopwatch step;
      std::thread copier([this] {
        RunInBackground();
        CopyState();
      });
      for (int p = 0; p < options_.products; ++p) at::mm_out(product_, a_, b_);
      (void)Any(false);
      copier.join();
      state_.Update([](const at::Tensor&) {});
      seconds.push_back(step.Elapsed());
    }
    return {{"step_seconds", seconds}};
  }

  void CopyState() {
    constexpr size_t kAtOnce = size_t{128} << 10;
    std::byte* to = copy_.get();
    const checkpoint::RoleState role = state_.Role();
    for (const ShardTable* table : {&role.model, &role.optimizer}) {
      for (const Shard& shard : table->shards()) {
        const auto bytes =
            static_cast<size_t>(shard.box.elements() * DTypeSize(table->tensor_of(shard).dtype));
        for (size_t at = 0; at < bytes; at += kAtOnce)
          std::memcpy(to + at, shard.view.data + at, std::min(kAtOnce, bytes - at));
        to += bytes;
      }
    }
  }

  Json Save() {
    const checkpoint::SaveRequest request = Request();
    group_->Barrier();
    const Stopwatch watch;
    const checkpoint::SaveRecord record = ValueOrThrow(checkpointer_->Save(request));
    return {{"seconds", watch.Elapsed()}, {"bytes", state_.bytes()}, {"record", record.ToJson()}};
  }

  // Into other memory than the state's, cut in this way.
  Json Load(const std::string& how) {
    const Cut cut =
        how == "columns" ? Cut::kColumns : (how == "uneven" ? Cut::kUneven : Cut::kRows);
    const TrainingState into(options_.state, cut, rank_, world_);
    trainer::GroupChannel channel(*group_);
    checkpoint::LoadRequest request;
    request.roles = {into.Role()};
    request.channel = &channel;
    request.in_place = true;  // as a run does at its start, and as torch does
    group_->Barrier();
    const Stopwatch watch;
    const std::optional<checkpoint::LoadRecord> record = ValueOrThrow(checkpointer_->Load(request));
    const double seconds = watch.Elapsed();
    if (!record) throw Error(StatusCode::kNotFound, "there is no checkpoint to load");
    Json times = record->ToJson();
    times.erase("manifest");
    return {{"seconds", seconds}, {"bytes", into.bytes()}, {"record", std::move(times)}};
  }

  // What a save holds that went on while the state changed is the state at its call, bit by bit.
  Json Verify() {
    const std::vector<Digest128> expected = state_.Digests();
    ThrowIfError(checkpointer_->StartSave(Request()));
    for (bool busy = true; busy;) busy = Step(true);
    ThrowIfError(checkpointer_->Wait());
    for (const checkpoint::SaveResult& result : checkpointer_->Finished())
      ThrowIfError(result.status);
    const bool changed = state_.Digests() != expected;
    const TrainingState into(options_.state, Cut::kRows, rank_, world_);
    checkpoint::LoadRequest request;
    request.roles = {into.Role()};
    (void)ValueOrThrow(checkpointer_->Load(request));
    return {{"one_step", changed && into.Digests() == expected}};
  }

  Json Forget() {
    group_->Barrier();
    if (rank_ == 0) {
      for (const FileInfo& entry : ValueOrThrow(fs_->List("."))) {
        if (checkpoint::ParseStepDirectory(entry.name)) ThrowIfError(RemoveTree(*fs_, entry.name));
      }
    }
    group_->Barrier();
    return Json::object();
  }

  Json Commits(int64_t count) {
    std::vector<double> seconds;
    std::map<std::string, std::vector<double>> parts;
    for (int64_t i = 0; i < count; ++i) {
      const checkpoint::SaveRequest request = Request();
      group_->Barrier();
      const Stopwatch watch;
      const checkpoint::SaveRecord record = ValueOrThrow(checkpointer_->Save(request));
      seconds.push_back(watch.Elapsed());
      parts["planned_s"].push_back(record.planned_s);
      parts["written_s"].push_back(record.written_s);
      parts["commit_s"].push_back(record.commit_s);
      parts["verified_s"].push_back(record.verified_s);
    }
    return {{"seconds", seconds}, {"parts", parts}};
  }

  // What the disk alone takes for the bytes of all ranks; rank 0 measures.
  Json CommitFloor(int64_t count) {
    std::vector<double> seconds;
    for (int64_t i = 0; rank_ == 0 && i < count; ++i)
      seconds.push_back(ValueOrThrow(CommitSeconds(*fs_, "floor", world_ * state_.bytes())));
    group_->Barrier();
    return {{"seconds", seconds}};
  }

  // Of the newest checkpoint, so that the next load is one from the disk.
  Json DropPages() {
    if (rank_ == 0) {
      const std::string directory = checkpoint::StepDirectory(saves_);
      const checkpoint::StepReader reader =
          ValueOrThrow(checkpoint::StepReader::Open(*fs_, directory));
      for (int f = 0; f < reader.index().files(); ++f) {
        const std::string path =
            fmt::format("{}/{}/{}", options_.directory, directory, reader.index().file(f).path);
        const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
        const bool dropped = file >= 0 && ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0;
        if (file >= 0) ::close(file);
        if (!dropped) throw Error(StatusCode::kIo, "the pages of " + path + " are not let go");
      }
    }
    group_->Barrier();
    return Json::object();
  }

  Json WriteLimit(const std::string& backend, Through through) {
    const auto io = ParseName<checkpoint::IoBackend>(backend);
    if (!io) return {{"error", "unknown back-end " + backend}};
    const int64_t bytes = state_.bytes();
    group_->Barrier();
    const Result<double> seconds =
        WriteSeconds(*fs_, fmt::format("limit-{}", rank_), bytes, *io, through);
    if (!seconds.ok()) return {{"seconds", nullptr}, {"why", seconds.status().ToString()}};
    return {{"seconds", *seconds}, {"bytes", bytes}};
  }

  // The newest checkpoint's files, shared out among the ranks; read to as much memory as they take,
  // or to one buffer.
  Json ReadLimit(Through through) {
    const std::string directory = checkpoint::StepDirectory(saves_);
    const checkpoint::StepReader reader =
        ValueOrThrow(checkpoint::StepReader::Open(*fs_, directory));
    std::vector<std::string> paths;
    for (int f = rank_; f < reader.index().files(); f += world_) {
      paths.push_back(fmt::format("{}/{}", directory, reader.index().file(f).path));
    }
    group_->Barrier();
    const ReadTotal total = ValueOrThrow(ReadAndHash(*fs_, paths, options_.load_threads, through));
    return {{"seconds", total.seconds}, {"bytes", total.bytes}};
  }

  const CheckpointWorkerOptions& options_;
  const int rank_;
  const int world_;
  Logger log_;
  std::unique_ptr<FileSystem> fs_;
  trainer::StoreCoordinator coordinator_;
  std::unique_ptr<parallel::ProcessGroup> group_;
  TrainingState state_;
  at::Tensor a_, b_, product_;
  PageMemory copy_;
  int64_t saves_ = 0;
  std::unique_ptr<checkpoint::Checkpointer> checkpointer_;  // last: uses the above
};

void Print(const Json& json) {
  fmt::print("{}\n", json.dump());
  std::fflush(stdout);
}

}  // namespace

void RunWorker(const CheckpointWorkerOptions& options) {
  trainer::KeepLargeBlocks();
  at::set_num_threads(options.threads);
  parallel::SilenceStoreWarnings();
  const auto env = ValueOrThrow(parallel::DetectLaunchEnv(parallel::ProcessEnvironment()));
  const auto store = ValueOrThrow(parallel::Store::Connect(env, std::chrono::minutes(2)));
  Worker worker(options, env, store);
  Print(worker.Ready());
  std::string line;
  while (std::getline(std::cin, line) && line != "quit") Print(worker.Answer(line));
  worker.Close();
}

}  // namespace keel::bench
