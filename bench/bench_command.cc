// keel bench: measurements beside a peer and a limit taken in the same run.

#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "bench/checkpoint_bench.h"
#include "bench/train_worker.h"
#include "common/status.h"
#include "tools/command.h"

namespace keel::tools {

namespace {

// Becomes the Python driver of a benchmark, which starts workers of Keel and of its peer.
void BecomeDriver(const char* script, const std::vector<std::string>& arguments) {
  const std::string root = KEEL_SOURCE_DIR;
  std::vector<std::string> command = {root + "/.venv/bin/python", root + "/bench/" + script};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& text : command) argv.push_back(text.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  throw Error(StatusCode::kNotFound,
              fmt::format("{} cannot be started; the benchmarks run from a source tree set up by "
                          "tools/bootstrap.sh",
                          command[0]));
}

}  // namespace

void AddBenchCommand(CLI::App& app, CommandContext& context) {
  CLI::App* bench = app.add_subcommand("bench", "Measure Keel beside its peers");
  bench->require_subcommand(1);
  bench->footer(
      "Examples:\n"
      "  keel bench train --dtype bfloat16\n"
      "  keel bench checkpoint\n"
      "  keel bench train --dtype float32 --rounds 10 --markdown docs/benchmarks/train.md");

  struct Train {
    bool worker = false;
    bench::TrainWorkerOptions options;
  };
  auto t = std::make_shared<Train>();
  CLI::App* train = bench->add_subcommand(
      "train", "Training tokens/s and memory against transformers (bench/run_train.py --help)");
  train->allow_extras();
  train->add_flag("--worker", t->worker, "Be a worker of the driver");
  train->add_option("--model", t->options.model, "Hugging Face directory (worker)");
  train->add_option("--dtype", t->options.dtype, "float32 or bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  train->add_option("--sequence", t->options.sequence, "Tokens a sequence (worker)");
  train->add_option("--batch", t->options.batch, "Sequences a step (worker)");
  train->add_option("--threads", t->options.threads, "CPU threads (worker)");
  train->callback([t, train] {
    if (t->worker) return bench::RunTrainWorker(t->options);
    std::vector<std::string> arguments = {"--dtype", t->options.dtype};
    for (const std::string& extra : train->remaining()) arguments.push_back(extra);
    BecomeDriver("run_train.py", arguments);
  });

  bench::AddCheckpointBench(*bench, &context.exit_code);

  CLI::App* startup = bench->add_subcommand(
      "startup", "Time to the first step and memory of a rank (bench/startup.py --help)");
  startup->allow_extras();
  startup->callback([startup] { BecomeDriver("startup.py", startup->remaining()); });
}

}  // namespace keel::tools
