#include "bench/scale_worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "bench/scale_peers.h"
#include "bench/scale_state.h"
#include "bench/worker_protocol.h"
#include "checkpoint/base/peer_channel.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/format/names.h"
#include "checkpoint/load/loader.h"
#include "checkpoint/save/save_planner.h"
#include "checkpoint/save/saver.h"
#include "checkpoint/save/snapshot.h"
#include "checkpoint/save/source_fence.h"
#include "common/clock.h"
#include "common/files/forwarding_file_system.h"
#include "common/log.h"

namespace keel::bench {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kPatience = 600'000ms;
constexpr int kSaves = 2;
constexpr int kLoadingRanks = 8;

double CpuOfProcess() {
  rusage usage{};
  (void)getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// The process of all peers; ended with this.
class PeersProcess {
 public:
  explicit PeersProcess(const ScalePeersOptions& options) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw Error(Status::FromErrno(errno, "pipe", "peers"));
    const pid_t parent = getpid();
    child_ = fork();
    if (child_ < 0) throw Error(Status::FromErrno(errno, "fork", "peers"));
    if (child_ == 0) {
      close(ends[0]);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      try {
        RunScalePeers(options, [&](int port) {
          [[maybe_unused]] const ssize_t written = write(ends[1], &port, sizeof port);
        });
      } catch (const std::exception& error) {
        fmt::print(stderr, "the peers: {}\n", error.what());
        _exit(1);
      }
      _exit(0);
    }
    close(ends[1]);
    if (read(ends[0], &port_, sizeof port_) != sizeof port_) port_ = 0;
    close(ends[0]);
    if (port_ == 0) throw Error(StatusCode::kUnavailable, "the peers did not begin");
  }
  ~PeersProcess() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  PeersProcess(const PeersProcess&) = delete;
  PeersProcess& operator=(const PeersProcess&) = delete;
  int port() const { return port_; }

 private:
  pid_t child_ = -1;
  int port_ = 0;
};

// Memory that is all zeros and takes none.
class Zeros {
 public:
  explicit Zeros(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* const at =
        mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw Error(Status::FromErrno(errno, "mmap", "rank 0's state"));
    at_ = static_cast<std::byte*>(at);
  }
  ~Zeros() { munmap(at_, bytes_); }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;
  std::byte* data() const { return at_; }

 private:
  size_t bytes_;
  std::byte* at_ = nullptr;
};

// How even the plan is, by the files of all ranks.
Json Evenness(const std::vector<int64_t>& bytes) {
  int64_t total = 0;
  for (const int64_t one : bytes) total += one;
  const double mean = static_cast<double>(total) / static_cast<double>(bytes.size());
  return {{"total_bytes", total},
          {"largest_of_mean",
           static_cast<double>(*std::max_element(bytes.begin(), bytes.end())) / mean}};
}

// A file that has a size and nothing in it.
class HollowFile final : public ForwardingFile {
 public:
  using ForwardingFile::ForwardingFile;
  Status WriteAt(int64_t offset, std::span<const std::byte> data) override {
    const int64_t end = offset + static_cast<int64_t>(data.size());
    for (int64_t size = size_; size < end && !size_.compare_exchange_weak(size, end);) {
    }
    return Status::Ok();
  }
  Status Truncate(int64_t size) override {
    size_ = size;
    return Status::Ok();
  }
  Status Sync() override { return ForwardingFile::Truncate(size_); }
  Result<int64_t> Size() const override { return size_.load(); }

 private:
  std::atomic<int64_t> size_{0};
};

// Counts what a rank asks of the file system, which has room for everything, and keeps no tensors.
class CountingFileSystem final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  int64_t stats() const { return stats_; }
  int64_t opened() const { return opened_; }

  Result<std::unique_ptr<File>> Create(std::string_view path,
                                       const CreateOptions& /*options*/) override {
    KEEL_ASSIGN_OR_RETURN(std::unique_ptr<File> made, below().Create(path, {}));
    if (!path.ends_with(".safetensors")) return made;
    return std::unique_ptr<File>(std::make_unique<HollowFile>(std::move(made)));
  }
  Result<std::unique_ptr<File>> Open(std::string_view path) const override {
    ++opened_;
    return below().Open(path);
  }
  Result<FileInfo> Stat(std::string_view path) const override {
    ++stats_;
    return below().Stat(path);
  }
  Result<int64_t> FreeBytes() const override { return int64_t{1} << 60; }

 private:
  mutable std::atomic<int64_t> stats_{0}, opened_{0};
};

Json Save(int number, StoreCoordinator& coordinator, checkpoint::Saver& saver,
          const checkpoint::RoleState& role, const CountingFileSystem& fs) {
  checkpoint::SaveRequest request;
  request.step = number + 1;
  request.roles = {role};
  checkpoint::SourceFence fence;
  checkpoint::Snapshot snapshot(request, false, fence);
  checkpoint::SaveRecord record;
  const Traffic before = coordinator.traffic();
  const double waited = coordinator.waited_s();
  const int64_t stats = fs.stats();
  const double cpu = CpuOfProcess();
  const Stopwatch watch;
  ThrowIfError(saver.Run(SaveTag(number), snapshot, &record));
  const Traffic& now = coordinator.traffic();
  std::vector<int64_t> bytes;
  for (const checkpoint::RankRecord& one : record.ranks) bytes.push_back(one.bytes);
  const double total = watch.Elapsed();
  Json json = Evenness(bytes);
  json["messages"] = now.messages - before.messages;
  json["sent"] = now.sent - before.sent;
  json["received"] = now.received - before.received;
  json["stats"] = fs.stats() - stats;
  json["total_s"] = total;
  // Without what the peers take to answer, on the same cores, and rank 0's own data.
  json["waited_s"] = coordinator.waited_s() - waited;
  json["written_s"] = record.written_s + record.fsync_s;
  json["planned_s"] = record.planned_s;
  json["commit_s"] = record.commit_s;
  json["own_s"] = total - (coordinator.waited_s() - waited) - record.written_s - record.fsync_s;
  json["cpu_s"] = CpuOfProcess() - cpu;
  return json;
}

// A few ranks that load what was saved. It ends as soon as they read, for there is nothing in the
// files: what comes before is what grows with the ranks that saved.
Json Load(FileSystem& fs, Logger& log, const ScaleJob& job) {
  checkpoint::LocalCoordinatorHub hub(kLoadingRanks);
  checkpoint::LocalChannelHub channels(kLoadingRanks);
  std::vector<std::unique_ptr<CountingFileSystem>> disks;
  std::vector<float> memory(static_cast<size_t>(job.model.hidden));
  std::vector<std::thread> ranks;
  for (int r = 0; r < kLoadingRanks; ++r) disks.push_back(std::make_unique<CountingFileSystem>(fs));
  const Stopwatch watch;
  for (int r = 0; r < kLoadingRanks; ++r) {
    ranks.emplace_back([&, r] {
      checkpoint::Loader loader(*disks[static_cast<size_t>(r)], hub.rank(r), log, {});
      checkpoint::LoadRequest request;
      request.resume_path = checkpoint::StepDirectory(kSaves);
      request.allow_missing = {"*"};
      request.contents.extra = false;
      request.channel = &channels.rank(r);
      request.in_place = true;
      checkpoint::RoleState& role = request.roles.emplace_back();
      role.name = "actor";
      const Dims shape{job.model.hidden};
      ThrowIfError(role.model.Add({"model.norm.weight", DType::kBF16, shape}, Box::Whole(shape),
                                  {reinterpret_cast<std::byte*>(memory.data()), Dims{1}}));
      (void)loader.Load("load", request);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  int64_t most_stats = 0, most_opened = 0;
  for (int r = 1; r < kLoadingRanks; ++r) {
    most_stats = std::max(most_stats, disks[static_cast<size_t>(r)]->stats());
    most_opened = std::max(most_opened, disks[static_cast<size_t>(r)]->opened());
  }
  return {{"ranks", kLoadingRanks},
          {"total_s", watch.Elapsed()},
          {"stats_of_rank_0", disks[0]->stats()},
          {"stats_of_a_peer", most_stats},
          {"opened_by_a_peer", most_opened}};
}

struct ScaleOptions {
  int ranks = 1024;
  std::string directory;
};

// Forks, so it is called while there is one thread.
void RunScaleWorker(const ScaleOptions& options) {
  const ScaleJob job = ScaleJob::Of(options.ranks);
  const auto disk = ValueOrThrow(OpenPosixFileSystem(options.directory, true));
  CountingFileSystem fs(*disk);
  PeersProcess peers({options.ranks, kSaves, options.directory});
  const auto store = ValueOrThrow(
      parallel::StoreClient::Connect({"127.0.0.1", peers.port(), ""}, kPatience, kPatience));
  StoreCoordinator coordinator(*store, 0, options.ranks);
  LogOptions logging;
  logging.level = LogLevel::kError;
  Logger log(logging);
  checkpoint::CheckpointOptions saving;
  saving.run_id = "bench";
  saving.io = checkpoint::IoChoice::kBuffered;
  saving.deadline = kPatience;
  const Clock& clock = SystemClock();
  Json answer = {
      {"ranks", options.ranks}, {"model", job.model.name}, {"layout", job.layout.ToString()}};
  ThrowIfError(store->Wait({std::string(kPeersAreReady)}, kPatience));
  {
    const ScaleState state(job);
    const Zeros zeros(ScaleState::LargestShard(state.Of(0)));
    const checkpoint::RoleState role = state.Of(0, zeros.data());
    checkpoint::Saver saver(fs, coordinator, clock, log, saving, [] { return Status::Ok(); });
    answer["first"] = Save(0, coordinator, saver, role, fs);
    answer["again"] = Save(1, coordinator, saver, role, fs);
    answer["index_bytes"] = ValueOrThrow(fs.Stat(fmt::format("{}/{}", checkpoint::StepDirectory(1),
                                                             checkpoint::kIndexName)))
                                .size;
    answer["peak_bytes"] = StatusBytes("VmHWM:");
  }
  ThrowIfError(store->Wait({std::string(kPeersAreDone)}, kPatience));
  answer["peers"] = Json::parse(ValueOrThrow(store->Get(kPeersAreDone)));
  ThrowIfError(store->Set("bench/end", "1"));
  answer["load"] = Load(*disk, log, job);
  Answer(answer);
}

}  // namespace

void AddScaleWorker(CLI::App& worker) {
  auto o = std::make_shared<ScaleOptions>();
  worker.add_option("--of", o->ranks)->required();
  worker.add_option("--checkpoints", o->directory)->required();
  worker.callback([o] { RunScaleWorker(*o); });
}

}  // namespace keel::bench
