// keel_bench: measurements beside a peer and a limit taken in the same run. `keel bench` becomes
// this program.
//
//   keel_bench NAME ARGUMENT...        becomes the driver, bench/run_NAME.py
//   keel_bench worker NAME OPTION...   is a worker, which a driver starts (bench/peers/README.md)

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "bench/index_worker.h"
#include "bench/scale_worker.h"
#include "bench/tokenizer_worker.h"
#include "bench/worker.h"
#include "common/guarded.h"
#include "common/process/shared_module.h"
#include "common/status.h"
#include "common/text.h"
#include "tools/usage.h"

namespace {

struct Benchmark {
  const char* name;
  const char* what;
};
constexpr Benchmark kBenchmarks[] = {
    {"async", "Split placement against the colocated run, and what to expect of larger pools"},
    {"checkpoint", "Saves and loads beside training, against PyTorch's"},
    {"offload", "Moves of the state between device and host, against plain copies"},
    {"pymodule", "Saves of the Python module beside a PyTorch loop, against DCP's async_save"},
    {"rl", "GRPO steps against TRL's, and what sync, offload and saves take of them"},
    {"rollout", "Generation tokens/s, against transformers"},
    {"scale", "What a save and a load cost rank 0 of thousands, with made-up peers"},
    {"startup", "Time to the first step, and memory of a rank"},
    {"sync", "Weight sync, against gather and broadcast"},
    {"tokenizer", "Encoding, against tokenizers and tiktoken"},
    {"torture", "Jobs whose processes are killed at random moments, and what is left of them"},
    {"train", "Training tokens/s and memory, against transformers"},
};

// Those that need no torch; see torch_workers.cc for the others.
constexpr keel::bench::WorkerEntry kWorkers[] = {
    {"index", keel::bench::AddIndexWorker},
    {"scale", keel::bench::AddScaleWorker},
    {"tokenizer", keel::bench::AddTokenizerWorker},
};

// The Python of the source tree that this program was built from, which starts the workers of Keel
// and of its peer.
void BecomeDriver(std::string_view name, const std::vector<std::string>& arguments) {
  const std::filesystem::path root =
      (std::filesystem::path(keel::ProgramDirectory()) / KEEL_SOURCE_FROM_HERE).lexically_normal();
  std::vector<std::string> command = {root / ".venv/bin/python",
                                      root / fmt::format("bench/run_{}.py", name)};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& text : command) argv.push_back(text.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  throw keel::Error(
      keel::StatusCode::kNotFound,
      fmt::format("{} cannot be started; the benchmarks run from a source tree set up "
                  "by tools/bootstrap.sh",
                  command[0]));
}

int RunWorker(int argc, char** argv) {
  if (const keel::bench::WorkerEntry* worker = keel::bench::FindWorker(kWorkers, argv[0]))
    return keel::bench::RunWorker(*worker, argc, argv);
  const auto module =
      keel::ValueOrThrow(keel::OpenModule("libkeel_bench_torch.so", keel::Binding::kLazy));
  const auto run =
      reinterpret_cast<int (*)(int, char**)>(dlsym(module.handle, "keel_bench_torch_worker"));
  const int code = run(argc, argv);
  // As keel does: to take down torch's global objects is work for nothing.
  std::fflush(nullptr);
  std::_Exit(code);
}

int Run(int argc, char** argv) {
  if (argc > 2 && std::string_view(argv[1]) == "worker") return RunWorker(argc - 2, argv + 2);
  CLI::App app{"Measures Keel beside its peers.", "keel bench"};
  app.require_subcommand(1);
  app.footer(
      "`keel bench NAME --help` says what is measured, and how.\n\n"
      "Examples:\n"
      "  keel bench train --dtype bfloat16 --markdown docs/benchmarks/train-bfloat16.md\n"
      "  keel bench checkpoint --only load --quick\n"
      "  keel bench rl --model tiny --without-trl");
  for (const Benchmark& one : kBenchmarks) {
    CLI::App* benchmark = app.add_subcommand(one.name, one.what);
    // All that follows is for the driver, --help too.
    benchmark->set_help_flag();
    benchmark->prefix_command();
    benchmark->callback([&one, benchmark] { BecomeDriver(one.name, benchmark->remaining()); });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return keel::tools::AnswerParseError(app, argc, argv, error);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(argc, argv);
  } catch (const std::exception& error) {
    const keel::Status status = keel::StatusOf(error);
    fmt::print(stderr, "keel_bench: {}\n", keel::PrintableLines(status.ToString()));
    return keel::ExitCodeFor(status.code());
  }
}
