#include "tools/ckpt/ckpt_commands.h"

#include <iostream>
#include <memory>

#include "common/fail_point.h"
#include "tools/inference/device_flag.h"
#include "tools/number_check.h"
#include "trainer/config/choices.h"

namespace keel::tools {
namespace {

// A subcommand whose options live as long as the command line.
template <typename Options>
CLI::App* Add(CLI::App& parent, const char* name, const char* description, const char* examples,
              const std::shared_ptr<Options>& options,
              int (*run)(const Options&, std::ostream&, std::ostream&), int* exit_code) {
  CLI::App* command = parent.add_subcommand(name, description);
  command->footer(std::string("Examples:\n") + examples);
  command->callback([options, run, exit_code] {
    ThrowIfError(ArmFailPoints(0));
    *exit_code = run(*options, std::cout, std::cerr);
  });
  return command;
}

void AddOut(CLI::App& command, std::string* output) {
  command.add_option("--out", *output, "The directory to make; must not exist")->required();
}

void AddLs(CLI::App& ckpt, int* exit_code) {
  const auto options = std::make_shared<CkptLsOptions>();
  CLI::App* command =
      Add(ckpt, "ls", "List the checkpoints of a run, the newest commit first, or one of them",
          "  keel ckpt ls runs/quickstart\n"
          "  keel ckpt ls --json runs/quickstart\n"
          "  keel ckpt ls --json runs/quickstart | jq '.[0].step'",
          options, CkptLs, exit_code);
  command->add_option("DIR", options->directory, "The run's directory, or a step's")->required();
  command->add_flag("--json", options->json, "As JSON");
}

void AddInspect(CLI::App& ckpt, int* exit_code) {
  const auto options = std::make_shared<CkptInspectOptions>();
  CLI::App* command = Add(ckpt, "inspect", "Show what one checkpoint holds",
                          "  keel ckpt inspect runs/quickstart/global_step_120\n"
                          "  keel ckpt inspect --tensors runs/quickstart/global_step_120\n"
                          "  keel ckpt inspect --json --tensors runs/quickstart/global_step_120",
                          options, CkptInspect, exit_code);
  command->add_option("STEP", options->step, "A step's directory")->required();
  command->add_flag("--json", options->json, "As JSON");
  command->add_flag("--tensors", options->tensors, "Every tensor with its boxes");
}

void AddVerify(CLI::App& ckpt, int* exit_code) {
  const auto options = std::make_shared<CkptVerifyOptions>();
  CLI::App* command = Add(
      ckpt, "verify", "Prove every byte of a checkpoint, or of all of a run; exit 1 when damaged",
      "  keel ckpt verify runs/quickstart\n"
      "  keel ckpt verify runs/quickstart/global_step_120\n"
      "  keel ckpt verify --threads 1 runs/quickstart",
      options, CkptVerify, exit_code);
  command->add_option("PATH", options->path, "A run's directory or a step's")->required();
  command->add_option("--threads", options->threads, "Reading threads; 0: one per core")
      ->check(CLI::Range(0, 1024));
}

void AddDiff(CLI::App& ckpt, int* exit_code) {
  const auto options = std::make_shared<CkptDiffOptions>();
  CLI::App* command =
      Add(ckpt, "diff",
          "Say which tensors of two checkpoints differ, where and by how much, whatever their "
          "layouts; exit 0 when they are equal, 1 when not. Where both say the same digests, no "
          "byte is looked at: keel ckpt verify does that",
          "  keel ckpt diff runs/a/global_step_40 runs/b/global_step_40\n"
          "  keel ckpt diff --scope actor/model runs/a/global_step_40 runs/a/global_step_80\n"
          "  keel ckpt diff --json runs/a/global_step_40 runs/b/global_step_40",
          options, CkptDiff, exit_code);
  command->add_option("A", options->a, "A step's directory")->required();
  command->add_option("B", options->b, "Another")->required();
  command->add_option("--scope", options->scope,
                      "Only these tensors: <role>/model or <role>/optimizer");
  command->add_flag("--json", options->json, "As JSON");
  command->add_option("--threads", options->threads, "Reading threads; 0: one per core")
      ->check(CLI::Range(0, 1024));
}

void AddReshard(CLI::App& ckpt, int* exit_code) {
  const auto options = std::make_shared<CkptReshardOptions>();
  CLI::App* command =
      Add(ckpt, "reshard",
          "Rewrite a checkpoint into other files, value for value, as the same step of another "
          "run directory. Loading does not need it: any layout loads any files",
          "  keel ckpt reshard --world 1 runs/a/global_step_40 runs/a-one-file\n"
          "  keel ckpt reshard --world 8 runs/a/global_step_40 runs/a-8\n"
          "  keel ckpt reshard --like runs/b/global_step_10 runs/a/global_step_40 runs/a-as-b",
          options, CkptReshard, exit_code);
  command->add_option("STEP", options->source, "A step's directory")->required();
  command->add_option("RUN_DIR", options->run, "The run directory that gets it; made when missing")
      ->required();
  CLI::Option* world =
      command->add_option("--world", options->world, "Files of weights, and of optimizer state")
          ->check(CLI::Range(1, 1 << 20));
  command
      ->add_option("--like", options->like, "A step of the same model: its files are the pattern")
      ->excludes(world);
  command->add_option("--threads", options->threads, "Reading threads; 0: one per core")
      ->check(CLI::Range(0, 1024));
}

void AddPin(CLI::App& ckpt, int* exit_code) {
  const auto options = std::make_shared<CkptPinOptions>();
  CLI::App* command =
      Add(ckpt, "pin", "Keep checkpoints whatever retention, prune or a re-save would do",
          "  keel ckpt pin runs/quickstart/global_step_120\n"
          "  keel ckpt pin runs/quickstart/global_step_120 runs/quickstart/global_step_100\n"
          "  touch runs/quickstart/global_step_120/pinned      # the same",
          options, CkptPin, exit_code);
  command->add_option("STEP", options->steps, "Steps' directories")->required();
}

void AddUnpin(CLI::App& ckpt, int* exit_code) {
  const auto options = std::make_shared<CkptPinOptions>();
  CLI::App* command = Add(ckpt, "unpin", "Let retention have checkpoints again",
                          "  keel ckpt unpin runs/quickstart/global_step_120\n"
                          "  keel ckpt unpin runs/quickstart/global_step_*\n"
                          "  rm runs/quickstart/global_step_120/pinned         # the same",
                          options, CkptUnpin, exit_code);
  command->add_option("STEP", options->steps, "Steps' directories")->required();
}

void AddPrune(CLI::App& ckpt, int* exit_code) {
  const auto options = std::make_shared<CkptPruneOptions>();
  CLI::App* command =
      Add(ckpt, "prune",
          "Remove checkpoints of a run that is not going on; what is kept is the union of the "
          "rules, and whatever is pinned, being read, of another run, or newer than the "
          "newest one that verifies",
          "  keel ckpt prune --dry-run --keep-latest 3 runs/quickstart\n"
          "  keel ckpt prune --keep-latest 1 --keep-best 2 runs/quickstart\n"
          "  keel ckpt prune --keep-latest 2 --keep-every 1000 runs/quickstart",
          options, CkptPrune, exit_code);
  command->add_option("DIR", options->directory, "The run's directory")->required();
  command->add_option("--keep-latest", options->keep_latest, "So many of the newest commits")
      ->required()
      ->check(AtLeast(1));
  command->add_option("--keep-best", options->keep_best, "So many by the metric noted at the save")
      ->check(AtLeast(0));
  command
      ->add_option("--metric-mode", options->metric_mode,
                   "Whether the lowest or highest is best; by default what the newest checkpoint's "
                   "configuration says")
      ->check(CLI::IsMember(AllNames<trainer::BestMode>()));
  command->add_option("--keep-every", options->keep_every, "Steps that are a multiple of it")
      ->check(AtLeast(0));
  command->add_flag("--dry-run", options->dry_run,
                    "Say what would go; remove nothing, lock nothing");
}

void AddExportHf(CLI::App& ckpt, int* exit_code) {
  const auto options = std::make_shared<CkptExportOptions>();
  CLI::App* command =
      Add(ckpt, "export-hf", "Write one Hugging Face model directory from a checkpoint",
          "  keel ckpt export-hf runs/quickstart/global_step_120 exported\n"
          "  keel ckpt export-hf --max-shard-mb 2000 runs/quickstart/global_step_120 exported\n"
          "  keel ckpt export-hf --role critic runs/ppo/global_step_10 critic",
          options, CkptExportHf, exit_code);
  command->add_option("STEP", options->step, "A step's directory")->required();
  command->add_option("OUT", options->output, "The directory to make; must not exist")->required();
  command->add_option("--role", options->role, "Whose weights")->capture_default_str();
  command->add_option("--max-shard-mb", options->max_shard_mb, "Largest weights file, in megabytes")
      ->check(AtLeast(1))
      ->capture_default_str();
}

void AddImportHf(CLI::App& ckpt, int* exit_code) {
  const auto options = std::make_shared<CkptImportOptions>();
  CLI::App* command = Add(ckpt, "import-hf",
                          "Make a checkpoint, weights alone, from a Hugging Face model directory",
                          "  keel ckpt import-hf Qwen2.5-0.5B runs/sft\n"
                          "  keel ckpt import-hf --step 100 Qwen2.5-0.5B runs/sft\n"
                          "  keel ckpt import-hf --role critic Qwen2.5-0.5B runs/ppo",
                          options, CkptImportHf, exit_code);
  command->add_option("HF_DIR", options->source, "config.json and safetensors files")->required();
  command->add_option("RUN_DIR", options->run, "The run's directory; made when it is missing")
      ->required();
  command->add_option("--step", options->step, "The step's number")
      ->check(AtLeast(0))
      ->check(AtMost(int64_t{1} << 53))
      ->capture_default_str();
  command->add_option("--role", options->role, "Whose weights they become")
      ->check(CLI::IsMember({"actor", "critic"}))
      ->capture_default_str();
}

void AddImportGguf(CLI::App& ckpt, int* exit_code) {
  const auto options = std::make_shared<CkptImportGgufOptions>();
  CLI::App* command =
      Add(ckpt, "import-gguf",
          "Make a Hugging Face model directory, with tokenizer and template, from a GGUF file",
          "  keel ckpt import-gguf SmolLM2-135M-Instruct.Q4_1.gguf --out smollm2\n"
          "  keel ckpt import-gguf --dtype float32 SmolLM2-135M-Instruct.Q4_1.gguf --out smollm2\n"
          "  keel ckpt import-gguf --tokenizer-only ggml-vocab-qwen2.gguf --out qwen2-tokenizer",
          options, CkptImportGguf, exit_code);
  command->add_option("FILE", options->file, "A GGUF file, version 2 or 3")->required();
  AddOut(*command, &options->output);
  command
      ->add_option("--dtype", options->dtype,
                   "Of the weights (bfloat16 of a quantized file or one in BF16, else float32)")
      ->check(CLI::IsMember(AllNames<trainer::WeightDtype>()));
  command->add_flag("--tokenizer-only", options->tokenizer_only,
                    "Write tokenizer.json and tokenizer_config.json alone; the file may be a "
                    "vocabulary without a model");
}

void AddDequantizeHf(CLI::App& ckpt, int* exit_code) {
  const auto options = std::make_shared<CkptDequantizeOptions>();
  CLI::App* command =
      Add(ckpt, "dequantize-hf",
          "Make of a Hugging Face model directory with quantized weights (fp8, mxfp4) one that "
          "can be trained",
          "  keel ckpt dequantize-hf gpt-oss-20b --out gpt-oss-20b-bf16\n"
          "  keel ckpt dequantize-hf Qwen3-0.6B-FP8 --out qwen3-0.6b\n"
          "  keel ckpt dequantize-hf --dtype float32 Qwen3-0.6B-FP8 --out qwen3-0.6b-float32",
          options, CkptDequantizeHf, exit_code);
  command->add_option("HF_DIR", options->source, "config.json and safetensors files")->required();
  AddOut(*command, &options->output);
  command->add_option("--dtype", options->dtype, "Of what was quantized")
      ->check(CLI::IsMember(AllNames<trainer::WeightDtype>()))
      ->capture_default_str();
}

void AddMergeAdapter(CLI::App& ckpt, int* exit_code) {
  const auto options = std::make_shared<CkptMergeOptions>();
  CLI::App* command =
      Add(ckpt, "merge-adapter",
          "Make one Hugging Face model directory of a model and adapters (LoRA) beside it",
          "  keel ckpt merge-adapter runs/lora/global_step_20 --out merged\n"
          "  keel ckpt merge-adapter exported-adapter --out merged\n"
          "  keel ckpt merge-adapter exported-adapter --base Qwen2.5-0.5B --out merged",
          options, CkptMergeAdapter, exit_code);
  command
      ->add_option("ADAPTERS", options->adapters,
                   "A step of a run, or a directory with adapter_config.json")
      ->required();
  AddOut(*command, &options->output);
  AddBaseOption(*command, &options->base);
}

}  // namespace

void AddCkptCommands(CLI::App& app, int* exit_code) {
  CLI::App* ckpt = app.add_subcommand("ckpt", "List, verify and convert checkpoints");
  ckpt->require_subcommand(1);
  ckpt->footer(
      "Examples:\n"
      "  keel ckpt ls runs/quickstart\n"
      "  keel ckpt verify runs/quickstart\n"
      "  keel ckpt export-hf runs/quickstart/global_step_120 exported");

  AddLs(*ckpt, exit_code);
  AddInspect(*ckpt, exit_code);
  AddVerify(*ckpt, exit_code);
  AddDiff(*ckpt, exit_code);
  AddReshard(*ckpt, exit_code);
  AddPin(*ckpt, exit_code);
  AddUnpin(*ckpt, exit_code);
  AddPrune(*ckpt, exit_code);
  AddExportHf(*ckpt, exit_code);
  AddImportHf(*ckpt, exit_code);
  AddImportGguf(*ckpt, exit_code);
  AddDequantizeHf(*ckpt, exit_code);
  AddMergeAdapter(*ckpt, exit_code);
}

}  // namespace keel::tools
