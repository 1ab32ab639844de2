#include "trainer/config/config_actor.h"

#include <fmt/format.h>

#include "common/options/schema.h"
#include "trainer/config/config.h"

namespace keel::trainer {
namespace {

using options::Schema;
using Problems = std::vector<std::string>;

constexpr int64_t kChunkBytes = int64_t{4} << 20;  // docs/formats/index.md
constexpr int64_t kMostRank = 65536;               // of adapters; as model::AdapterSpec
constexpr int64_t kLeastStaging = 2 * kChunkBytes;

void AddAdapterOptions(ModelSection& m, Schema& s) {
  const std::string model = "actor_rollout_ref.model.";
  s.Add(model + "lora_rank", m.lora_rank,
        "Above 0: the model's weights stay as they are, and what learns is an adapter of this rank "
        "beside each matrix of `target_modules` (LoRA).")
      .Range(0, kMostRank);
  s.Add(model + "lora_alpha", m.lora_alpha,
        "What an adapter adds is multiplied by this over `lora_rank`.")
      .Above(0);
  s.Add(model + "lora_rank_stabilized", m.lora_rank_stabilized,
        "Over the root of `lora_rank` instead (rsLoRA).");
  s.Add(model + "target_modules", m.target_modules,
        "Which matrices have an adapter, by their modules' names ([q_proj, v_proj]); `all-linear` "
        "is all of attention and feed-forwards, without experts and routers.")
      .OrOne();
  s.Add(model + "exclude_modules", m.exclude_modules, "Which of these have none.").OrOne();
  s.Add(model + "lora_adapter_path", m.lora_adapter_path,
        "A directory with adapter_config.json and adapter_model.safetensors (PEFT's) whose "
        "adapters training goes on from, in place of new ones; it says rank, alpha and modules.")
      .PerNode();
}

void AddModelOptions(Config& c, Schema& s) {
  ModelSection& m = c.actor_rollout_ref.model;
  s.Add("actor_rollout_ref.model.path", m.path,
        "A Hugging Face directory with config.json and weights to start from.")
      .PerNode();
  s.Add("actor_rollout_ref.model.tokenizer_path", m.tokenizer_path,
        "A directory with the tokenizer and chat template to use in the place of the model's, or "
        "for "
        "a model of `model.config`.")
      .PerNode();
  s.Add("actor_rollout_ref.model.config", m.config,
        "Hugging Face's config.json keys, to start from random weights.");
  s.Add("actor_rollout_ref.model.dtype", m.dtype,
        "Of the weights; bfloat16 keeps fp32 masters in the optimizer.");
  s.Add(
      "actor_rollout_ref.model.enable_gradient_checkpointing", m.enable_gradient_checkpointing,
      "Recompute each block's activations in the backward: less memory, about a third more work.");
  AddAdapterOptions(m, s);
}

void AddMegatronOptions(Config& c, Schema& s) {
  MegatronSection& p = c.actor_rollout_ref.actor.megatron;
  const std::string megatron = "actor_rollout_ref.actor.megatron.";
  s.Add(megatron + "tensor_model_parallel_size", p.tensor_model_parallel_size,
        "Ranks that share each layer.")
      .Range(1, kMostRanks);
  s.Add(megatron + "pipeline_model_parallel_size", p.pipeline_model_parallel_size,
        "Stages the layers are divided into.")
      .Range(1, kMostRanks);
  s.Add(megatron + "sequence_parallel", p.sequence_parallel,
        "Split norms and residuals by tokens over the tensor-parallel ranks; without effect when "
        "there is one.");
  s.Add(megatron + "use_distributed_optimizer", p.use_distributed_optimizer,
        "Optimizer state is divided over the data-parallel ranks (ZeRO-1); false is refused, since "
        "it always is.");
  s.Add(megatron + "bucket_megabytes", p.bucket_megabytes,
        "Gradients reduced at a time; smaller overlaps more with the backward.")
      .Above(0)
      .Unit("MiB");
  s.Add(megatron + "param_offload", p.param_offload,
        "Weights to host memory between steps, when nothing uses them.");
  s.Add(megatron + "grad_offload", p.grad_offload,
        "Release the gradients' memory between steps; they are not copied, each step starts from "
        "zeros.");
  s.Add(megatron + "optimizer_offload", p.optimizer_offload,
        "Optimizer state to host memory, but for the update.");
}

void AddOptimOptions(Config& c, Schema& s) {
  OptimSection& o = c.actor_rollout_ref.actor.optim;
  const std::string optim = "actor_rollout_ref.actor.optim.";
  s.Add(optim + "lr", o.lr, "Peak learning rate; 0 changes no weights: a dry run.").Range(0);
  s.Add(optim + "betas", o.betas, "AdamW's decay rates of the two moments.").Range(0);
  s.Add(optim + "eps", o.eps, "AdamW's epsilon.").Above(0);
  s.Add(optim + "weight_decay", o.weight_decay, "Decoupled decay, on weights of two dims only.")
      .Range(0);
  s.Add(optim + "clip_grad", o.clip_grad, "Limit of the global gradient norm; 0 does not clip.")
      .Range(0);
  s.Add(optim + "lr_decay_style", o.lr_decay_style,
        "`wsd` holds the peak, then decays linearly over `lr_wsd_decay_steps`.");
  s.Add(optim + "lr_warmup_steps", o.lr_warmup_steps,
        "Linear from 0, the rate of the first step, to the peak, that of the first step after "
        "the warm-up, as in transformers and Megatron, though transformers' `warmup_stable_decay` "
        "begins at its `min_lr_ratio`; 0, or -1 as in verl: none.")
      .Range(-1)
      .Unit("steps");
  s.Add(
       optim + "lr_decay_steps", o.lr_decay_steps,
       "Steps, warm-up included, after which `min_lr` is reached; null: all, so that the last "
       "step is still above it. Behind `trainer.critic_warmup`, as in verl: the run ends that many "
       "steps before the schedule does.")
      .Range(1)
      .Unit("steps");
  s.Add(optim + "lr_wsd_decay_steps", o.lr_wsd_decay_steps,
        "Length of WSD's decay, or what the warm-up leaves of it; null: a tenth of all steps.")
      .Range(1)
      .Unit("steps");
  s.Add(optim + "min_lr", o.min_lr, "Where the decay ends.").Range(0);
}

void AddCheckpointOptions(Config& c, Schema& s) {
  CheckpointSection& k = c.actor_rollout_ref.actor.checkpoint;
  const std::string checkpoint = "actor_rollout_ref.actor.checkpoint.";
  s.Add(checkpoint + "save_contents", k.save_contents,
        "Parts of a checkpoint; `extra` is schedule, cursor and random state.");
  s.Add(checkpoint + "load_contents", k.load_contents, "Parts that a resume must find and takes.");
  s.Add(checkpoint + "load_allow_missing", k.load_allow_missing,
        "Patterns (fnmatch) of tensors, or of roles, that may be missing in the checkpoint, or be "
        "of another shape or dtype there, which keep this run's values, or be missing in this run, "
        "which are left out. A warning names them. All else must match.");
  s.Add(checkpoint + "async_save", k.async_save,
        "Save beside the training instead of stopping it.");
  s.Add(checkpoint + "dist_ckpt_workers", k.dist_ckpt_workers, "Threads that write, per rank.")
      .Range(1);
  s.Add(checkpoint + "staging.mode", k.staging.mode,
        "A background save copies the state beside the next step, or makes it wait.");
  s.Add(checkpoint + "staging.host_memory_cap", k.staging.host_memory_cap,
        "Memory of a rank for the copy; null: all that it saves. With less, copying follows the "
        "disk in waves.")
      .Range(kLeastStaging)
      .Unit("bytes");
  s.Add(checkpoint + "io", k.io, "`auto` chooses by a short measurement.");
  s.Add(checkpoint + "on_busy", k.on_busy, "A save that is due while one is in flight.");
}

void ValidateModelSource(const Config& c, Problems& problems) {
  const ModelSection& model = c.actor_rollout_ref.model;
  if (!model.path && model.config.empty()) {
    problems.push_back(
        "actor_rollout_ref.model.path is null and actor_rollout_ref.model.config is empty: give "
        "one");
  }
  if (model.path && !model.config.empty()) {
    problems.push_back(
        "actor_rollout_ref.model.path and actor_rollout_ref.model.config are both given: give one; "
        "on the command line ~actor_rollout_ref.model.config takes the other out");
  }
}

void ValidateAdapters(const Config& c, Problems& problems) {
  const ModelSection& model = c.actor_rollout_ref.model;
  if (!model.HasAdapters()) return;
  const std::string key = "actor_rollout_ref.model.";
  if (model.lora_rank > 0 && model.lora_adapter_path) {
    problems.push_back(key + "lora_rank and " + key +
                       "lora_adapter_path are both given: the adapters of the second say rank, "
                       "alpha and modules, so leave out the first, or the second for new adapters");
  }
  if (model.lora_rank > 0 && model.target_modules.empty())
    problems.push_back(key + "target_modules is empty: no weight would learn");
  if (checkpoint::Contents::Of(c.actor_rollout_ref.actor.checkpoint.save_contents).hf_model) {
    problems.push_back(
        "actor_rollout_ref.actor.checkpoint.save_contents: hf_model is of whole models, and with " +
        key +
        "lora_rank adapters alone are saved: keel ckpt export-hf makes a directory of a step");
  }
  if (c.actor_rollout_ref.ref.sync_ref_model) {
    problems.push_back("actor_rollout_ref.ref.sync_ref_model: the reference of a run with " + key +
                       "lora_rank is the model without its adapters, which stays as it is");
  }
}

void ValidateOptim(const Config& c, Problems& problems) {
  const OptimSection& optim = c.actor_rollout_ref.actor.optim;
  if (optim.betas.size() != 2 || optim.betas[0] >= 1 || optim.betas[1] >= 1) {
    problems.push_back("actor_rollout_ref.actor.optim.betas: expected two numbers in [0, 1)");
  }
  if (optim.min_lr > optim.lr && optim.lr_decay_style != LrDecayStyle::kConstant)
    problems.push_back(
        "actor_rollout_ref.actor.optim.min_lr is above actor_rollout_ref.actor.optim.lr");
  if (optim.lr_decay_steps && optim.lr_decay_style != LrDecayStyle::kConstant &&
      *optim.lr_decay_steps <= optim.lr_warmup_steps) {
    problems.push_back(
        fmt::format("actor_rollout_ref.actor.optim.lr_decay_steps {} counts the {} steps of "
                    "actor_rollout_ref.actor.optim.lr_warmup_steps, too, and leaves none to decay "
                    "in: the rate would fall to min_lr at once; raise it, or set it to null",
                    *optim.lr_decay_steps, optim.lr_warmup_steps));
  }
}

void ValidateCheckpoint(const Config& c, Problems& problems) {
  const CheckpointSection& section = c.actor_rollout_ref.actor.checkpoint;
  if (section.staging.host_memory_cap && *section.staging.host_memory_cap < kLeastStaging) {
    problems.push_back(
        fmt::format("actor_rollout_ref.actor.checkpoint.staging.host_memory_cap is {}, expected at "
                    "least {} bytes, two chunks",
                    *section.staging.host_memory_cap, kLeastStaging));
  }
  if (c.trainer.save_freq > 0 && section.save_contents.empty())
    problems.push_back("actor_rollout_ref.actor.checkpoint.save_contents is empty");
  if (c.trainer.resume_mode != ResumeKind::kDisable) {
    if (section.load_contents.empty()) {
      problems.push_back(
          "actor_rollout_ref.actor.checkpoint.load_contents is empty: set trainer.resume_mode to "
          "disable to begin anew");
    }
    checkpoint::Contents saved = checkpoint::Contents::Of(section.save_contents);
    for (const checkpoint::Content part : section.load_contents) {
      if (!saved[part]) {
        problems.push_back(
            fmt::format("actor_rollout_ref.actor.checkpoint.load_contents asks for {}, which "
                        "save_contents does not write",
                        NameOf(part)));
      }
    }
  }
}

}  // namespace

void AddActorOptions(Config& config, Schema& schema) {
  AddModelOptions(config, schema);
  AddMegatronOptions(config, schema);
  AddOptimOptions(config, schema);
  AddCheckpointOptions(config, schema);
}

std::vector<std::string> ValidateActor(const Config& config) {
  Problems problems;
  ValidateOptim(config, problems);
  ValidateModelSource(config, problems);
  ValidateAdapters(config, problems);
  ValidateCheckpoint(config, problems);
  return problems;
}

}  // namespace keel::trainer
