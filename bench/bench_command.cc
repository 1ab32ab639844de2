// keel bench: measurements beside a peer and a limit taken in the same run.

#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <tuple>

#include "bench/index_bench.h"
#include "bench/scale_worker.h"
#include "common/file_system.h"
#include "common/json.h"
#include "common/status.h"
#include "tools/command.h"
#include "tools/torch_module.h"

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

void ManyBoxes(const std::string& what, const std::string& directory, int64_t boxes) {
  const auto fs = ValueOrThrow(OpenPosixFileSystem(directory, true));
  const std::string step = "global_step_1";
  Json answer = Json::object();
  if (what == "write") {
    bench::WriteManyBoxes(*fs, step, boxes);
  } else if (what == "save-plan") {
    answer = bench::MeasureSavePlan(boxes);
  } else {
    answer = bench::MeasureOpenAndPlan(*fs, step, what == "open-all");
  }
  fmt::print("{}\n", answer.dump());
}

void AddCheckpoint(CLI::App& bench) {
  struct Options {
    bool worker = false;
    bench::CheckpointWorkerOptions options;
    std::string many_boxes;  // what to do with a checkpoint of them
    int64_t boxes = 1'000'000;
  };
  auto c = std::make_shared<Options>();
  bench::CheckpointWorkerOptions& o = c->options;
  CLI::App* checkpoint = bench.add_subcommand(
      "checkpoint",
      "Saves and loads beside training, against PyTorch's (bench/run_checkpoint.py --help)");
  checkpoint->allow_extras();
  checkpoint->add_flag("--worker", c->worker, "Be a rank of the driver's");
  const std::string group = "Worker";
  const auto add = [&](const std::string& name, auto& value, const std::string& text) {
    return checkpoint->add_option(name, value, text)->group(group);
  };
  add("--checkpoints", o.directory, "Directory of the checkpoints");
  add("--state", o.state.kind, "decoder or small")->check(CLI::IsMember({"decoder", "small"}));
  add("--megabytes", o.state.megabytes, "State over all ranks");
  add("--products", o.products, "Matrix products a step");
  add("--threads", o.threads, "CPU threads of the products");
  add("--io", o.io, "Back-end")->check(CLI::IsMember({"auto", "buffered", "direct", "io_uring"}));
  add("--host-memory-cap", o.host_memory_cap, "Bytes of staging; 0: none");
  checkpoint
      ->add_flag("--optimizer-stable", o.optimizer_stable, "The optimizer is read where it lies")
      ->group(group);
  add("--load-threads", o.load_threads, "That read and verify");
  add("--writers", o.writers, "Threads that write");
  add("--keep", o.keep, "Checkpoints; 0: all");
  add("--many-boxes", c->many_boxes, "Instead of all that: measure an index")
      ->check(CLI::IsMember({"write", "open-all", "open-part", "save-plan"}));
  add("--boxes", c->boxes, "In that index");
  checkpoint->callback([c, checkpoint] {
    if (!c->many_boxes.empty()) return ManyBoxes(c->many_boxes, c->options.directory, c->boxes);
    if (c->worker) return LoadTorchModule().RunBenchWorker(c->options);
    BecomeDriver("run_checkpoint.py", checkpoint->remaining());
  });
}

void AddOffload(CLI::App& bench) {
  struct Offload {
    bool worker = false;
    bench::OffloadWorkerOptions options;
  };
  auto o = std::make_shared<Offload>();
  CLI::App* offload = bench.add_subcommand("offload",
                                           "Moves of the state between device and host against "
                                           "plain copies (bench/run_offload.py --help)");
  offload->allow_extras();
  offload->add_flag("--worker", o->worker, "Be a worker of the driver");
  offload->add_option("--dtype", o->options.dtype, "float32 or bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  const std::string group = "Worker";
  offload->add_option("--model-config", o->options.config, "config.json")->group(group);
  CLI::Option* threads = offload->add_option("--threads", o->options.threads, "CPU threads");
  offload->callback([o, offload, threads] {
    if (o->worker) return LoadTorchModule().RunBenchWorker(o->options);
    std::vector<std::string> arguments = {"--dtype", o->options.dtype};
    if (threads->count() > 0)
      arguments.insert(arguments.end(), {"--threads", std::to_string(o->options.threads)});
    for (const std::string& extra : offload->remaining()) arguments.push_back(extra);
    BecomeDriver("run_offload.py", arguments);
  });
}

void AddSync(CLI::App& bench) {
  struct Sync {
    bool worker = false;
    bench::SyncWorkerOptions options;
  };
  auto s = std::make_shared<Sync>();
  CLI::App* sync = bench.add_subcommand(
      "sync", "Weight sync against gather and broadcast (bench/run_sync.py --help)");
  sync->allow_extras();
  sync->add_flag("--worker", s->worker, "Be a rank of the driver's");
  sync->add_option("--dtype", s->options.dtype, "float32 or bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  const std::string group = "Worker";
  sync->add_option("--model-config", s->options.config, "config.json")->group(group);
  sync->add_option("--tp", s->options.tp, "Of the trainer")->group(group);
  sync->add_option("--pp", s->options.pp, "Of the trainer")->group(group);
  sync->add_option("--rollout-tp", s->options.rollout_tp, "Of the rollout")->group(group);
  sync->callback([s, sync] {
    if (s->worker) return LoadTorchModule().RunBenchWorker(s->options);
    std::vector<std::string> arguments = {"--dtype", s->options.dtype};
    for (const std::string& extra : sync->remaining()) arguments.push_back(extra);
    BecomeDriver("run_sync.py", arguments);
  });
}

void AddScale(CLI::App& bench) {
  struct Scale {
    bool worker = false;
    bench::ScaleWorkerOptions options;
  };
  auto s = std::make_shared<Scale>();
  CLI::App* scale = bench.add_subcommand(
      "scale",
      "What a save costs rank 0 of thousands, with made-up peers (bench/run_scale.py --help)");
  scale->allow_extras();
  scale->add_flag("--worker", s->worker, "Be the worker of the driver");
  const std::string group = "Worker";
  scale->add_option("--of", s->options.ranks, "Ranks of the job")->group(group);
  scale->add_option("--checkpoints", s->options.directory, "Directory")->group(group);
  scale->callback([s, scale] {
    if (s->worker) return bench::RunWorker(s->options);
    BecomeDriver("run_scale.py", scale->remaining());
  });
}

}  // namespace

void AddBenchCommand(CLI::App& app, CommandContext& /*context*/) {
  CLI::App* bench = app.add_subcommand("bench", "Measure Keel beside its peers");
  bench->require_subcommand(1);
  bench->footer(
      "Examples:\n"
      "  keel bench train --dtype bfloat16\n"
      "  keel bench checkpoint\n"
      "  keel bench sync --rounds 8\n"
      "  keel bench offload --threads 1\n"
      "  keel bench scale --ranks 1024\n"
      "  keel bench rl --model tiny --without-trl\n"
      "  keel bench rollout --dtype bfloat16 --markdown docs/benchmarks/rollout.md\n"
      "  keel bench train --dtype float32 --rounds 10 --markdown docs/benchmarks/train-float32.md");

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
    if (t->worker) return LoadTorchModule().RunBenchWorker(t->options);
    std::vector<std::string> arguments = {"--dtype", t->options.dtype};
    for (const std::string& extra : train->remaining()) arguments.push_back(extra);
    BecomeDriver("run_train.py", arguments);
  });

  AddCheckpoint(*bench);
  AddOffload(*bench);
  AddSync(*bench);
  AddScale(*bench);

  for (const auto& [name, script, text] :
       {std::tuple("crash-states", "run_crash_states.py",
                   "What a power cut at any call of a save leaves, beside PyTorch's "
                   "(bench/run_crash_states.py --help)"),
        std::tuple("rl", "run_rl.py",
                   "GRPO steps against TRL's, and what sync, offload and saves take of them "
                   "(bench/run_rl.py --help)"),
        std::tuple("torture", "run_torture.py",
                   "A job that is killed at random moments (bench/run_torture.py --help)")}) {
    CLI::App* command = bench->add_subcommand(name, text);
    command->allow_extras();
    command->callback([command, script = script] { BecomeDriver(script, command->remaining()); });
  }

  struct Rollout {
    bool worker = false;
    bench::RolloutWorkerOptions options;
  };
  auto r = std::make_shared<Rollout>();
  CLI::App* rollout = bench->add_subcommand(
      "rollout", "Generation tokens/s against transformers (bench/run_rollout.py --help)");
  rollout->allow_extras();
  rollout->add_flag("--worker", r->worker, "Be a worker of the driver");
  rollout->add_option("--model", r->options.model, "Hugging Face directory (worker)");
  rollout->add_option("--dtype", r->options.dtype, "float32 or bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  rollout->add_option("--threads", r->options.threads, "CPU threads (worker)");
  rollout->callback([r, rollout] {
    if (r->worker) return LoadTorchModule().RunBenchWorker(r->options);
    std::vector<std::string> arguments = {"--dtype", r->options.dtype};
    for (const std::string& extra : rollout->remaining()) arguments.push_back(extra);
    BecomeDriver("run_rollout.py", arguments);
  });

  CLI::App* startup = bench->add_subcommand(
      "startup", "Time to the first step and memory of a rank (bench/startup.py --help)");
  startup->allow_extras();
  startup->callback([startup] { BecomeDriver("startup.py", startup->remaining()); });
}

}  // namespace keel::tools
