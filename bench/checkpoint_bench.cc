#include "bench/checkpoint_bench.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "checkpoint/coordinator.h"
#include "checkpoint/names.h"
#include "common/clock.h"
#include "common/file_system.h"
#include "common/json.h"

namespace keel::bench {
namespace {

using checkpoint::Coordinator;

constexpr int64_t kBlock = int64_t{4} << 20;

struct Release {
  void operator()(std::byte* p) const { std::free(p); }
};
using Memory = std::unique_ptr<std::byte, Release>;

// Incompressible bytes on whole pages.
Memory RandomMemory(int64_t bytes, uint64_t seed) {
  const auto size = static_cast<size_t>((bytes + kBlock - 1) / kBlock * kBlock);
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(4096, size)));
  auto* words = reinterpret_cast<uint64_t*>(memory.get());
  uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
  for (size_t i = 0; i < size / 8; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    words[i] = x;
  }
  return memory;
}

// A decoder's state cut by rows over the ranks: bf16 weights, fp32 masters and two moments.
struct RankState {
  std::vector<Memory> memory;
  checkpoint::RoleState role;
};

RankState MakeRankState(int rank, int ranks, int64_t bytes) {
  RankState state;
  state.role.name = "actor";
  constexpr int64_t kColumns = 1024;
  constexpr int kTensors = 40;
  const int64_t rows =
      std::max<int64_t>(1, bytes / (14 * kColumns * kTensors));  // of this rank, per tensor
  const auto add = [&](ShardTable& table, const std::string& name, DType dtype) {
    const int64_t size = rows * kColumns * DTypeSize(dtype);
    state.memory.push_back(
        RandomMemory(size, state.memory.size() + 1000 * static_cast<size_t>(rank)));
    ThrowIfError(table.Add({name, dtype, Dims{rows * ranks, kColumns}},
                           Box{Dims{rank * rows, 0}, Dims{rows, kColumns}},
                           {state.memory.back().get(), Dims{kColumns, 1}}));
  };
  for (int t = 0; t < kTensors; ++t) {
    const std::string name = fmt::format("model.layers.{}.weight", t);
    add(state.role.model, name, DType::kBF16);
    for (const char* kind : {"master", "exp_avg", "exp_avg_sq"}) {
      add(state.role.optimizer, fmt::format("optimizer.{}.{}", kind, name), DType::kF32);
    }
  }
  return state;
}

void RunThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  std::vector<std::exception_ptr> failures(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        body(i);
      } catch (...) {
        failures[static_cast<size_t>(i)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

// GB/s of plain writes of the same bytes until fsync returns; nothing where it is not possible.
double WriteLimit(FileSystem& fs, int threads, int64_t bytes_each, bool direct) {
  const Memory block = RandomMemory(kBlock, 99);
  const int64_t blocks = std::max<int64_t>(1, bytes_each / kBlock);
  Stopwatch watch;
  bool possible = true;
  try {
    RunThreads(threads, [&](int t) {
      CreateOptions create;
      create.direct = direct;
      create.preallocate = blocks * kBlock;
      const auto file = ValueOrThrow(fs.Create(fmt::format("limit-{}", t), create));
      for (int64_t b = 0; b < blocks; ++b) {
        ThrowIfError(
            file->WriteAt(b * kBlock, std::span(block.get(), static_cast<size_t>(kBlock))));
      }
      ThrowIfError(file->Sync());
      ThrowIfError(file->Close());
    });
  } catch (const Error&) {
    possible = false;
  }
  const double seconds = watch.Elapsed();
  for (int t = 0; t < threads; ++t) (void)fs.Remove(fmt::format("limit-{}", t));
  return possible ? static_cast<double>(blocks * kBlock * threads) / 1e9 / seconds : 0;
}

struct SaveSample {
  double gb_per_s = 0;
  checkpoint::SaveRecord record;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : (values[(n - 1) / 2] + values[n / 2]) / 2;
}

// 95 % interval of the median by resampling.
std::pair<double, double> Interval(const std::vector<double>& values) {
  std::mt19937_64 random(1);
  std::vector<double> medians;
  for (int i = 0; i < 2000; ++i) {
    std::vector<double> sample;
    for (size_t j = 0; j < values.size(); ++j) sample.push_back(values[random() % values.size()]);
    medians.push_back(Median(sample));
  }
  std::sort(medians.begin(), medians.end());
  return {medians[50], medians[1949]};
}

Json Machine() {
  utsname name{};
  (void)uname(&name);
  return {{"kernel", name.release},
          {"cpus", std::thread::hardware_concurrency()},
          {"memory_bytes", static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE)}};
}

Json Measure(const CheckpointBenchOptions& options, FileSystem& fs) {
  const int64_t bytes_each = options.megabytes * 1'000'000 / options.ranks;
  std::vector<RankState> states(static_cast<size_t>(options.ranks));
  RunThreads(options.ranks, [&](int r) {
    states[static_cast<size_t>(r)] = MakeRankState(r, options.ranks, bytes_each);
  });
  int64_t bytes = 0;
  for (const RankState& state : states)
    bytes += state.role.model.bytes() + state.role.optimizer.bytes();

  checkpoint::LocalCoordinatorHub hub(options.ranks);
  LogOptions quiet;
  quiet.level = LogLevel::kWarning;
  Logger log(quiet);
  checkpoint::CheckpointOptions checkpoint_options;
  checkpoint_options.run_id = "bench";
  checkpoint_options.io = options.io;
  std::vector<std::unique_ptr<checkpoint::Checkpointer>> checkpointers;
  for (int r = 0; r < options.ranks; ++r) {
    checkpointers.push_back(std::make_unique<checkpoint::Checkpointer>(
        fs, hub.rank(r), SystemClock(), log, checkpoint_options));
  }
  const auto each = [&](const std::function<void(checkpoint::Checkpointer&, int)>& body) {
    RunThreads(options.ranks, [&](int r) { body(*checkpointers[static_cast<size_t>(r)], r); });
  };
  each([](checkpoint::Checkpointer& c, int) { ThrowIfError(c.Open()); });

  int64_t step = 0;
  const auto save = [&] {
    SaveSample sample;
    ++step;
    Stopwatch watch;
    each([&](checkpoint::Checkpointer& c, int r) {
      checkpoint::SaveRequest request;
      request.step = step;
      request.roles = {states[static_cast<size_t>(r)].role};
      request.layout = {{"ranks", options.ranks}};
      auto record = ValueOrThrow(c.Save(request));
      if (r == 0) sample.record = std::move(record);
    });
    sample.gb_per_s = static_cast<double>(bytes) / 1e9 / watch.Elapsed();
    return sample;
  };
  const auto load = [&] {
    Stopwatch watch;
    each([&](checkpoint::Checkpointer& c, int r) {
      checkpoint::LoadRequest request;
      request.roles = {states[static_cast<size_t>(r)].role};
      (void)ValueOrThrow(c.Load(request));
    });
    return static_cast<double>(bytes) / 1e9 / watch.Elapsed();
  };
  const auto forget = [&] { ThrowIfError(RemoveTree(fs, checkpoint::StepDirectory(step))); };

  // The first save plans, measures back-ends and faults the ring in: shown, not counted.
  Json first = save().record.ToJson();
  forget();
  Json rounds = Json::array();
  std::vector<double> ratios;
  for (int round = 0; round < options.rounds; ++round) {
    const auto limits = [&] {
      return std::pair(WriteLimit(fs, options.ranks, bytes_each, true),
                       WriteLimit(fs, options.ranks, bytes_each, false));
    };
    const auto [direct_a, buffered_a] = limits();
    const SaveSample a = save();
    forget();
    const SaveSample b = save();
    const double loaded = load();
    forget();
    const auto [direct_b, buffered_b] = limits();
    const double limit_a = std::max(direct_a, buffered_a);
    const double limit_b = std::max(direct_b, buffered_b);
    ratios.push_back(a.gb_per_s / limit_a);
    ratios.push_back(b.gb_per_s / limit_b);
    rounds.push_back({{"direct_gb_per_s", {direct_a, direct_b}},
                      {"buffered_gb_per_s", {buffered_a, buffered_b}},
                      {"save_gb_per_s", {a.gb_per_s, b.gb_per_s}},
                      {"load_gb_per_s", loaded},
                      {"save_record", b.record.ToJson()}});
  }
  each([](checkpoint::Checkpointer& c, int) { ThrowIfError(c.Close()); });
  const auto [low, high] = Interval(ratios);
  return {{"benchmark", "checkpoint"},
          {"command",
           fmt::format(
               "keel bench checkpoint --dir {} --megabytes {} --ranks {} --rounds {} --io {}",
               options.directory, options.megabytes, options.ranks, options.rounds, options.io)},
          {"machine", Machine()},
          {"bytes", bytes},
          {"first_save", std::move(first)},
          {"rounds", std::move(rounds)},
          {"ratio",
           {{"what", "rate of a synchronous save over the best plain write of the same round"},
            {"samples", ratios},
            {"median", Median(ratios)},
            {"interval_95", {low, high}}}}};
}

}  // namespace

int BenchCheckpoint(const CheckpointBenchOptions& options, std::ostream& out, std::ostream& err) {
  const std::string folder = fmt::format("{}/keel-bench-{}", options.directory, getpid());
  int code = 0;
  try {
    const auto fs = ValueOrThrow(OpenPosixFileSystem(folder, true));
    out << Measure(options, *fs).dump(2) << "\n";
  } catch (const Error& e) {
    err << "keel bench checkpoint: " << e.what() << "\n";
    code = ExitCodeFor(e.status().code());
  }
  if (const auto parent = OpenPosixFileSystem(options.directory, false); parent.ok()) {
    (void)RemoveTree(**parent, fmt::format("keel-bench-{}", getpid()));
  }
  return code;
}

void AddCheckpointBench(CLI::App& bench, int* exit_code) {
  const auto options = std::make_shared<CheckpointBenchOptions>();
  CLI::App* command =
      bench.add_subcommand("checkpoint", "A synchronous save against the disk's own rate");
  command->footer(
      "Examples:\n"
      "  keel bench checkpoint --dir runs\n"
      "  keel bench checkpoint --dir runs --megabytes 4000 --ranks 4\n"
      "  keel bench checkpoint --dir runs --io buffered --rounds 10");
  command->add_option("--dir", options->directory, "A directory on the disk to measure")
      ->capture_default_str();
  command->add_option("--megabytes", options->megabytes, "State over all ranks")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--ranks", options->ranks, "Threads that save together")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_option("--rounds", options->rounds, "Rounds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--io", options->io, "Back-end")
      ->check(CLI::IsMember({"auto", "buffered", "direct"}))
      ->capture_default_str();
  command->callback(
      [options, exit_code] { *exit_code = BenchCheckpoint(*options, std::cout, std::cerr); });
}

}  // namespace keel::bench
