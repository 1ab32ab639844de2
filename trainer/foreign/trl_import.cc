#include "trainer/foreign/trl_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "trainer/algorithms/choices.h"
#include "trainer/config/choices.h"
#include "trainer/foreign/adapter_options.h"
#include "trainer/foreign/conversions.h"
#include "trainer/foreign/trl_arguments.h"

namespace keel::trainer::foreign {

namespace {

constexpr const char* kActor = "actor_rollout_ref.actor.";

void Refuse(Translation* translation, const std::string& key, const std::string& why) {
  if (AnsweredKey* answered = translation->Find(key)) {
    answered->answer = Answer::kNotSupported;
    answered->asked = true;
    answered->why = why;
  } else {
    translation->Unresolved(fmt::format("{}: {}", key, why));
  }
}

// Steps of TRL are updates. One of Keel's in RL is a generation with all its updates.
struct StepUnit {
  int64_t updates = 1;  // in a step here
  int64_t Steps(double updates_there) const {
    return static_cast<int64_t>(std::ceil(updates_there / static_cast<double>(updates)));
  }
};

// transformers' `constant` is without one, whatever is said; `constant_with_warmup` is not.
void WorkOutWarmup(const Arguments& a, const StepUnit& unit, double max_steps, Translation* t) {
  if (a.Text("lr_scheduler_type") == "constant") {
    for (const char* key : {"warmup_steps", "warmup_ratio"}) {
      if (AnsweredKey* answered = t->Find(key)) {
        answered->answer = Answer::kNotNeeded;
        answered->asked = false;
        answered->why = "lr_scheduler_type constant has no warm-up; constant_with_warmup has";
      }
    }
    return;
  }
  double warmup = a.Number("warmup_steps", 0);
  const std::string warmup_key = a.Number("warmup_ratio", 0) > 0 ? "warmup_ratio" : "warmup_steps";
  if (warmup_key == "warmup_ratio" && warmup == 0) warmup = a.Number("warmup_ratio", 0);
  if (warmup > 0 && warmup < 1 && max_steps <= 0) {
    Refuse(t, warmup_key, "a share of the steps: give warmup_steps as a number, or max_steps");
  } else if (warmup > 0) {
    if (warmup < 1) warmup = std::ceil(warmup * max_steps);
    t->Set(std::string(kActor) + "optim.lr_warmup_steps", unit.Steps(warmup), warmup_key);
    if (AnsweredKey* key = t->Find(warmup_key)) {
      key->answer = Answer::kRenamed;
      key->asked = false;
      key->target = std::string(kActor) + "optim.lr_warmup_steps";
    }
  }
}

// A step that no run comes to: trainer.save_freq saves at the end, too.
constexpr int64_t kAtTheEnd = 1'000'000'000;

// Weights in bf16 without autocast are in bf16, too; masters there are none of.
void WorkOutDtype(const Arguments& a, Translation* t) {
  const bool autocast = !a.Has("bf16") || a.Flag("bf16");
  if (autocast || (a.Text("dtype") != "bfloat16" && a.Text("dtype") != "torch.bfloat16")) return;
  t->Set("actor_rollout_ref.model.dtype", NameOf(WeightDtype::kBfloat16), "dtype");
  t->Note(
      "bf16: false with dtype: bfloat16 trains bf16 weights in TRL; here they have fp32 masters");
}

void WorkOutAdapters(const Arguments& a, Translation* t) {
  if (!a.Has("use_peft") || !a.Flag("use_peft")) return;
  AskedAdapters asked;
  asked.rank = a.Number("lora_r", 16);
  asked.alpha = a.Number("lora_alpha", 32);
  asked.rank_stabilized = a.Has("use_rslora") && a.Flag("use_rslora");
  asked.targets = a.Value("lora_target_modules");
  asked.from = "use_peft";
  if (asked.targets.is_array() && asked.targets.size() == 1) asked.targets = asked.targets[0];
  if (asked.targets.is_null()) {
    asked.targets = Json({"q_proj", "v_proj"});
    t->Note(
        "lora_target_modules is not given: q_proj and v_proj, as PEFT has it for most families");
  }
  TakeAdapters(asked, t);
  if (const double dropout = a.Number("lora_dropout", 0.05); dropout > 0)
    t->Note(
        fmt::format("lora_dropout: TRL trains with one of {}; Keel computes no dropout", dropout));
}

// How many steps an epoch has, and which rows its last ones.
void NoteEpochs(const Arguments& a, bool generates, bool by_steps, Translation* t) {
  const bool drops = a.Has("dataloader_drop_last") && a.Flag("dataloader_drop_last");
  const char* const there =
      generates ? "leaves out the prompts that do not fill its last batch"
      : drops   ? "leaves out the rows that do not fill its last batch (dataloader_drop_last)"
                : "ends with a smaller batch where its rows fill none";
  const char* const each = generates || drops ? "rounded down" : "rounded up";
  std::string note = fmt::format(
      "an epoch of TRL {}; here a batch runs on into the next epoch, so that from there on steps "
      "have other rows",
      there);
  if (!by_steps) {
    note += fmt::format(
        "; for TRL's number of steps, and its schedule, give trainer.total_training_steps: epochs "
        "times ({} / data.train_batch_size, {})",
        generates ? "prompts" : "rows", each);
  }
  t->Note(note);
}

void WorkOutSteps(const Arguments& a, const StepUnit& unit, Translation* t) {
  const double max_steps = a.Number("max_steps", -1);
  if (max_steps > 0) {
    t->Set("trainer.total_training_steps", unit.Steps(max_steps), "max_steps");
    t->Unset("trainer.total_epochs");
  }
  const auto every = [&](const std::string& key, double steps, int64_t otherwise) -> Json {
    if (steps > 0 && steps < 1 && max_steps > 0) steps = std::ceil(steps * max_steps);
    if (steps >= 1) return unit.Steps(steps);
    Refuse(t, key, "a share of the steps: give a number of steps, or max_steps");
    return otherwise;
  };
  const std::string save = a.Text("save_strategy");
  if (save == "steps") {
    t->Set("trainer.save_freq", every("save_steps", a.Number("save_steps", 500), kAtTheEnd),
           "save_steps");
  } else {
    t->Set("trainer.save_freq", kAtTheEnd,
           fmt::format("save_strategy: {}; at the end, as TRL's scripts save the model", save));
    if (a.Value("save_strategy") != Json("no") && a.Value("save_strategy") != Json(false))
      Refuse(t, "save_strategy", "save every so many steps: save_steps");
  }
  const std::string eval = a.Text("eval_strategy");
  if (eval == "steps") {
    const double steps = a.Number("eval_steps", a.Number("logging_steps", 10));
    t->Set("trainer.test_freq", every("eval_steps", steps, -1), "eval_steps");
    t->Note("eval_strategy: name the rows to validate on: data.val_files or data.val_split");
  } else if (eval == "epoch") {
    Refuse(t, "eval_strategy", "validate every so many steps: eval_steps");
  }
  WorkOutWarmup(a, unit, max_steps, t);
  double lines = a.Number("logging_steps", 10);
  if (lines > 0 && lines < 1) {
    lines = std::max(1.0, std::ceil(lines * max_steps));
    t->Set("trainer.log_freq", static_cast<int64_t>(lines), "logging_steps");
    if (max_steps <= 0)
      t->Note("logging_steps is a share of the steps, whose number is not known: each has a line");
  }
  if (unit.updates > 1) {
    t->Note(fmt::format(
        "a step here is one generation with its {} updates; TRL counts updates: its numbers of "
        "steps are divided by that",
        unit.updates));
    t->Set("trainer.log_freq", unit.Steps(std::max(1.0, lines)), "logging_steps");
  }
}

// transformers takes the rate itself, or its share of the highest one; only this schedule has it.
void WorkOutLeastRate(const Arguments& a, Translation* t) {
  const std::string least = "lr_scheduler_kwargs.min_lr";
  const std::string share = "lr_scheduler_kwargs.min_lr_rate";
  if (a.Text("lr_scheduler_type") != "cosine_with_min_lr") {
    for (const std::string& key : {least, share}) {
      if (a.Has(key)) Refuse(t, key, "of lr_scheduler_type cosine_with_min_lr alone");
    }
    return;
  }
  if (a.Has(least) == a.Has(share)) {
    Refuse(t, "lr_scheduler_type",
           "cosine_with_min_lr needs lr_scheduler_kwargs with one of min_lr and min_lr_rate");
    return;
  }
  const std::string target = std::string(kActor) + "optim.min_lr";
  if (a.Has(least)) {
    t->Set(target, a.Number(least, 0), least);
  } else {
    const Json highest = t->Get(std::string(kActor) + "optim.lr");
    t->Set(target, a.Number(share, 0) * highest.get<double>(), share + " x learning_rate");
  }
}

// Where the warm-up of that schedule is another in transformers. The steps are those of TRL.
void NoteStableWarmup(const Arguments& a, Translation* t) {
  const double max_steps = a.Number("max_steps", -1);
  double warmup = std::max(a.Number("warmup_steps", 0), 0.0);
  if (warmup == 0) warmup = a.Number("warmup_ratio", 0);
  if (warmup <= 0) return;
  if (a.Number("lr_scheduler_kwargs.min_lr_ratio", 0) > 0) {
    t->Note(
        "the warm-up of lr_scheduler_type warmup_stable_decay begins at min_lr_ratio x "
        "learning_rate in transformers, and at 0 here");
  }
  if (warmup < 1) warmup = std::ceil(warmup * max_steps);
  const double decay = a.Number("lr_scheduler_kwargs.num_decay_steps", 0);
  if (max_steps > 0 && warmup + decay > max_steps) {
    t->Note(fmt::format(
        "lr_scheduler_type warmup_stable_decay: warm-up and decay are more than the steps, {} + {} "
        "of {}: transformers leaves out the decay's first steps, and here it is shorter: lower "
        "num_decay_steps",
        warmup, decay, max_steps));
  }
}

// Of a schedule that holds its rate before it falls.
void WorkOutStableDecay(const Arguments& a, const StepUnit& unit, Translation* t) {
  const std::string steps = "lr_scheduler_kwargs.num_decay_steps";
  const std::string share = "lr_scheduler_kwargs.min_lr_ratio";
  if (a.Text("lr_scheduler_type") != "warmup_stable_decay") {
    for (const std::string& key : {steps, share}) {
      if (a.Has(key)) Refuse(t, key, "of lr_scheduler_type warmup_stable_decay alone");
    }
    return;
  }
  const std::string optim = std::string(kActor) + "optim.";
  if (a.Has(steps)) t->Set(optim + "lr_wsd_decay_steps", unit.Steps(a.Number(steps, 1)), steps);
  const double highest = t->Get(optim + "lr").get<double>();
  t->Set(optim + "min_lr", a.Number(share, 0) * highest, share + " x learning_rate");
  if (!a.Has("lr_scheduler_kwargs.decay_type")) {
    t->Note(
        "lr_scheduler_type warmup_stable_decay falls along a cosine in transformers, and linearly "
        "here");
  }
  NoteStableWarmup(a, t);
}

void WorkOutOptimizer(const Arguments& a, const StepUnit& unit, Translation* t) {
  t->Set(std::string(kActor) + "optim.betas",
         Json::array({a.Number("adam_beta1", 0.9), a.Number("adam_beta2", 0.999)}),
         "adam_beta1, adam_beta2");
  WorkOutLeastRate(a, t);
  WorkOutStableDecay(a, unit, t);
  if (t->Has("trainer.resume_from_path")) {
    t->Set("trainer.resume_mode", NameOf(ResumeKind::kPath), "resume_from_checkpoint");
  } else if (a.Value("resume_from_checkpoint") == Json(false) ||
             a.Value("resume_from_checkpoint").is_null()) {
    t->Note(
        "a run that is started again goes on from its newest checkpoint (trainer.resume_mode: "
        "auto), whatever TRL's default is");
  }
}

// TRL writes into the model's config whether there is such a loss; here the file says it, which is
// not read.
void NoteExperts(const Arguments& a, Translation* t) {
  if (a.Has("router_aux_loss_coef")) return;  // its row says it
  t->Note(
      "a model with experts: TRL adds the loss of their balance wherever router_aux_loss_coef is "
      "not 0, whatever the model says of output_router_logits; here it is added where the model "
      "says true: set output_router_logits: true in its config.json, for the same loss");
}

// Sequences of an optimizer step over all ranks, where a step is an update.
void WorkOutBatch(const Arguments& a, int64_t world, Translation* t) {
  const int64_t batch =
      a.Whole("per_device_train_batch_size", 8) * a.Whole("gradient_accumulation_steps", 1) * world;
  t->Set(
      "data.train_batch_size", batch,
      fmt::format("per_device_train_batch_size x gradient_accumulation_steps x {} ranks", world));
}

void WorkOutPacking(const Arguments& a, Translation* t) {
  if (!a.Flag("packing")) return;
  const std::string strategy = a.Text("packing_strategy");
  if (strategy == "wrapped") {
    // There documents are one text: attention and positions go over their ends.
    t->Set("data.packing", "stream", "packing_strategy wrapped");
    t->Note(
        "packing_strategy wrapped: samples are cut where TRL's are, every max_length tokens, and "
        "here each learns the token behind its last one, too, which is the next one's first; TRL "
        "begins anew every 1,000 rows");
  } else if (strategy == "bfd" || strategy == "ffd") {  // which was its name before
    t->Set("data.packing", "best_fit", "packing_strategy");
    t->Set("data.truncation", "right",
           "packing keeps the beginning of a row, whatever truncation_mode says");
    t->Note(
        "packing_strategy bfd: rows are cut to the same tokens, but which of them share a sample "
        "is not the same: TRL's bins hold max_length tokens and are of 1,000 rows at a time, here "
        "they hold max_length - 1 inputs, one fewer of each row than tokens, and are of all rows");
  } else {
    Refuse(t, "packing_strategy", "expected bfd or wrapped");
    Refuse(t, "packing", "rows are not packed, for want of a packing_strategy that is known");
  }
}

void WorkOutLength(const Arguments& a, Translation* t) {
  const auto length = AsNumber(a.Value("max_length"));
  if (a.Value("max_length").is_null())
    Refuse(t, "max_length", "rows have a longest length here: data.max_length");
  if (!length) return;
  if (t->Has("data.packing") && t->Get("data.packing") == "stream") {
    t->Set("data.max_length", std::llround(*length), "max_length");
  } else if (*length == 2) {
    Refuse(t, "max_length",
           "a row has two inputs at least, which are three tokens: give 3 or more");
  } else if (*length > 2) {
    t->Set("data.max_length", std::llround(*length) - 1, "max_length");
    t->Note(
        "data.max_length is of inputs, which a row has one fewer of than tokens: of those TRL's "
        "max_length is");
  }
}

constexpr std::string_view kTrlLearnsMore =
    "white space behind an answer's end, and in a completion of several messages all that is no "
    "answer (docs/from-trl.md)";

void WorkOutSft(const Arguments& a, Translation* t) {
  WorkOutPacking(a, t);
  WorkOutLength(a, t);
  if (a.Has("assistant_only_loss") && a.Flag("assistant_only_loss")) {
    t->Note(
        "of conversations and pairs the answers alone are learnt, as by TRL's completion_only_loss "
        "and assistant_only_loss, which learn besides: " +
        std::string(kTrlLearnsMore));
  } else {
    t->Note(
        "of a row of messages TRL learns all tokens, the user's too, where assistant_only_loss is "
        "not true; here its answers alone are learnt: trainer.task: pretrain learns all tokens");
    t->Note("of pairs the completion's tokens are learnt, of which TRL learns besides: " +
            std::string(kTrlLearnsMore));
  }
  const std::string path = a.Text("chat_template_path");
  if (!path.empty() && !path.ends_with(".jinja")) {
    Refuse(t, "chat_template_path",
           "a tokenizer's folder, or a name of a hub: give the file of its template, as FOLDER/"
           "chat_template.jinja");
    t->Unset("data.chat_template");
  }
}

void WorkOutDpo(const Arguments& a, Translation* t) {
  if (a.Number("label_smoothing", 0) > 0 &&
      (!a.Has("loss_type") || a.Value("loss_type").dump().find("\"sigmoid\"") != std::string::npos))
    t->Note("label_smoothing is of dpo.loss_type sigmoid too, which TRL does not smooth");
  const Json length = a.Value("max_length");
  if (AsNumber(length)) {
    // Earlier versions have a bound of the prompt, too.
    const Json prompt = a.Value("max_prompt_length");
    const bool prompts = AsNumber(prompt).has_value();
    t->Set("data.max_prompt_length", std::llround(*AsNumber(prompts ? prompt : length)),
           prompts ? "max_prompt_length" : "max_length");
    t->Set("data.max_response_length", std::llround(*AsNumber(length)), "max_length");
    t->Note(
        "max_length is of prompt and answer together in TRL; here each may be as long: lower "
        "data.max_prompt_length and data.max_response_length to save memory");
  } else {
    Refuse(t, "max_length", "give data.max_prompt_length and data.max_response_length");
  }
}

// `first` is the bound of the ratio that clipping has, 0 without one. TRL's `delta` bounds a ratio
// before the lesser of the two losses is taken: that of a positive advantage is bounded by the
// lower of both, that of a negative one by the higher.
void WorkOutSecondBound(const Arguments& a, double first, Translation* t) {
  const std::string actor = kActor;
  if (a.Value("delta").is_null()) {
    t->Set(actor + "clip_ratio_c", 1e9, "no bound, as without delta");
    return;
  }
  const double delta = a.Number("delta", 1e9);
  if (delta >= first) {
    t->Set(actor + "clip_ratio_c", delta, "delta");
  } else if (delta >= 1) {
    t->Set(actor + "clip_ratio_high", delta - 1, "delta - 1, which is below epsilon_high");
    t->Set(actor + "clip_ratio_c", first, "1 + epsilon_high, which is above delta");
  } else {
    Refuse(t, "delta", "a bound below 1, which no ratio has here: give more than 1 + epsilon_high");
    t->Set(actor + "clip_ratio_c", 1e9, "no bound, as without delta");
  }
}

void WorkOutGrpoLoss(const Arguments& a, Translation* t) {
  const std::string actor = kActor;
  const std::string type = a.Text("loss_type");
  std::string mode = "vanilla";
  std::string mean = "token-mean";
  if (type == "grpo" || type == "sapo") mean = "seq-mean-token-mean";
  if (type == "dr_grpo") mean = "seq-mean-token-sum-norm";
  if (type == "luspo") mean = "seq-mean-token-sum";
  if (type == "cispo" || type == "sapo" || type == "vespo") mode = type;
  const bool known = type == "grpo" || type == "dapo" || type == "bnpo" || type == "dr_grpo" ||
                     type == "luspo" || mode != "vanilla";
  if (!known) Refuse(t, "loss_type", "actor.policy_loss.loss_mode and actor.loss_agg_mode");
  if (type == "bnpo")
    t->Note("loss_type bnpo: the mean is over the tokens of all ranks, not of each");
  const double accumulated = a.Number("gradient_accumulation_steps", 1);
  if ((type == "dapo" || type == "cispo" || type == "vespo") &&
      a.Number("steps_per_generation", accumulated) > accumulated) {
    t->Note(
        fmt::format("loss_type {}: the mean is over the tokens of an update; TRL divides by "
                    "the mean of the updates of a generation",
                    type));
  }
  const std::string level = a.Text("importance_sampling_level");
  if (level == "sequence") {
    if (type == "grpo" || type == "luspo") {
      mode = "gspo";
    } else {
      Refuse(t, "importance_sampling_level", "sequence is for loss_type grpo and luspo (gspo)");
    }
  } else if (level != "token") {
    Refuse(t, "importance_sampling_level", "expected token or sequence");
  }
  t->Set(actor + "policy_loss.loss_mode", mode, "loss_type, importance_sampling_level");
  t->Set(actor + "loss_agg_mode", mean, "loss_type");
  // An upper bound of the ratio; of cispo the bound itself, of the others what is above 1.
  const double low = a.Number("epsilon", 0.2);
  const double high = a.Number("epsilon_high", low);
  t->Set(actor + "clip_ratio_low", mode == "cispo" ? 1.0 : low,
         mode == "cispo" ? "no lower bound" : "epsilon");
  if (mode == "cispo" && high < 1) {
    Refuse(t, "epsilon_high",
           fmt::format("of cispo it is the greatest ratio that counts, in the paper 5: give it, "
                       "since it is {} here",
                       high));
  } else {
    t->Set(actor + "clip_ratio_high", mode == "cispo" ? high - 1 : high,
           mode == "cispo" ? "epsilon_high - 1" : "epsilon_high");
  }
  // Neither of them would come to anything, where the ratio is of a whole sequence.
  if (mode == "gspo" && !a.Value("delta").is_null())
    Refuse(t, "delta", "gspo has no second bound: importance_sampling_level token has");
  if (mode == "gspo" && a.Number("top_entropy_quantile", 1) < 1) {
    Refuse(t, "top_entropy_quantile", "gspo learns from whole sequences");
    t->Unset(actor + "policy_loss.top_entropy_quantile");
  }
  WorkOutSecondBound(a, mode == "vanilla" ? 1 + high : 0, t);
  if (a.Flag("use_adaptive_entropy")) {
    for (const auto& [key, preset] :
         {std::pair("min", 0.0), std::pair("max", 1.0), std::pair("delta", 0.005)}) {
      const std::string there = fmt::format("entropy_coef_{}", key);
      t->Set(fmt::format("{}entropy_coeff_{}", actor, key), a.Number(there, preset), there);
    }
    t->Set(actor + "entropy_target", a.Number("entropy_target", 0.2), "entropy_target");
  }
  const double beta = a.Number("beta", 0);
  t->Set(actor + "use_kl_loss", beta > 0, "beta");
  if (beta > 0) {
    t->Set(actor + "kl_loss_type", NameOf(rl::KlName::kLowVarKl), "TRL's estimator");
    const Json corrected = a.Value("use_bias_correction_kl");
    t->Set(actor + "use_bias_correction_kl", corrected.is_null() ? Json(true) : corrected,
           corrected.is_null() ? "TRL's default" : "use_bias_correction_kl");
  } else if (a.Flag("sync_ref_model")) {
    Refuse(t, "sync_ref_model", "there is a reference with beta above 0 alone");
    t->Unset("actor_rollout_ref.ref.sync_ref_model");
  }
}

// TRL validates as it trains; a validation here takes the likeliest token unless it is told.
void WorkOutValidation(const Arguments& a, int64_t n, Translation* t) {
  const double temperature = a.Number("temperature", 1);
  if (!a.Has("eval_strategy") || a.Text("eval_strategy") == "no" || temperature == 0) return;
  const std::string rollout = "actor_rollout_ref.rollout.";
  const std::string validation = rollout + "val_kwargs.";
  t->Set(validation + "do_sample", true, "TRL validates as it trains");
  t->Set(validation + "temperature", temperature, "temperature");
  t->Set(validation + "n", a.Whole("num_generations_eval", n), "num_generations_eval");
  for (const char* key : {"top_k", "top_p"})
    if (t->Has(rollout + key)) t->Set(validation + key, t->Get(rollout + key), key);
}

Result<StepUnit> WorkOutGrpo(const Arguments& a, int64_t world, Translation* t) {
  WorkOutGrpoLoss(a, t);
  t->Set("algorithm.adv_estimator", NameOf(rl::AdvantageEstimator::kGrpo), "trl grpo");
  // Of samples: what TRL generates at a time, and what one update learns from.
  const int64_t device = a.Whole("per_device_train_batch_size", 8) * world;
  const int64_t gradient = a.Whole("gradient_accumulation_steps", 1);
  const int64_t update = device * gradient;
  const int64_t generated =
      a.Whole("generation_batch_size", device * a.Whole("steps_per_generation", gradient));
  const int64_t n = a.Whole("num_generations", 8);
  // As TRL's own checks (GRPOConfig.__post_init__).
  if (n < 2)
    return Status(
        StatusCode::kConfig,
        fmt::format("num_generations {}: TRL's advantages need at least 2 of a prompt", n));
  if (!a.Value("generation_batch_size").is_null() && !a.Value("steps_per_generation").is_null())
    return Status(StatusCode::kConfig,
                  "generation_batch_size and steps_per_generation: TRL takes one of them alone");
  if (update < 1 || generated % n != 0 || update % n != 0 || generated % update != 0) {
    return Status(
        StatusCode::kConfig,
        fmt::format(
            "{} samples are generated at a time and {} are learnt in an update over {} ranks "
            "(per_device_train_batch_size x gradient_accumulation_steps x ranks): each has to be a "
            "multiple of num_generations {}, and the first of the second; --world says the ranks",
            generated, update, world, n));
  }
  t->Set("data.train_batch_size", generated / n,
         fmt::format("prompts: {} samples / num_generations", generated));
  t->Set(std::string(kActor) + "ppo_mini_batch_size", update / n,
         fmt::format("prompts: {} samples an update / num_generations", update));
  t->Unset("data.micro_batch_size_per_gpu");
  t->Set(std::string(kActor) + "ppo_micro_batch_size_per_gpu",
         a.Whole("per_device_train_batch_size", 8), "per_device_train_batch_size");
  WorkOutValidation(a, n, t);
  if (a.Has("reward_funcs"))
    t->Note(
        "reward_funcs: a function with verl's signature (reward.custom_reward_function), a rule "
        "(reward.type), a program or a service has to take their place: docs/rewards.md");
  return StepUnit{generated / update * a.Whole("num_iterations", 1)};
}

}  // namespace

Result<Imported> ImportTrl(const ImportRequest& request, std::optional<TrlMethod> method,
                           const options::Schema& schema) {
  std::optional<ShellCommand> launch;
  std::set<std::string> from_environment;
  std::vector<std::string> cut_off;
  const bool names_it = request.file.text.find("trl ") != std::string::npos;
  if (IsScript(request.file) || (names_it && !IsNamedAsYaml(request.file))) {
    KEEL_ASSIGN_OR_RETURN(Launch found, FindTrlLaunch(request, &method));
    launch = std::move(found.command);
    from_environment = std::move(found.from_environment);
    cut_off = std::move(found.unresolved);
  }
  if (!method)
    return Status(StatusCode::kConfig, request.file.name +
                                           ": say which of TRL's trainers it is for: --method sft, "
                                           "dpo or grpo");

  const std::vector<Row> rows = TrlRows(*method);
  const KeyTable table(rows);
  GivenValues given(table, request.environment);
  std::vector<std::string> unresolved = std::move(cut_off), notes;
  if (launch) {
    AddArguments(*launch, table, &given, &unresolved);
  } else {
    KEEL_RETURN_IF_ERROR(given.AddFile(request.file));
    AddArguments(CommandOf(request.arguments), table, &given, &unresolved);
  }
  RenameEarlier(&given, &notes);
  const Arguments arguments(given);
  const int64_t ranks = request.world > 0 ? request.world : arguments.Whole("num_processes", 0);
  const int64_t world = std::max<int64_t>(1, ranks);
  Translation translation(fmt::format("{}'s {}", kTrl, NameOf(*method)), table, schema, given);
  translation.TakeAll();

  const TaskKind task = *method == TrlMethod::kSft   ? TaskKind::kSft
                        : *method == TrlMethod::kDpo ? TaskKind::kDpo
                                                     : TaskKind::kRl;
  translation.Set("trainer.task", NameOf(task), fmt::format("trl {}", NameOf(*method)));
  StepUnit unit;
  if (*method == TrlMethod::kGrpo) {
    KEEL_ASSIGN_OR_RETURN(unit, WorkOutGrpo(arguments, world, &translation));
  } else {
    WorkOutBatch(arguments, world, &translation);
    *method == TrlMethod::kSft ? WorkOutSft(arguments, &translation)
                               : WorkOutDpo(arguments, &translation);
  }
  WorkOutSteps(arguments, unit, &translation);
  NoteEpochs(arguments, *method == TrlMethod::kGrpo,
             translation.Has("trainer.total_training_steps"), &translation);
  WorkOutDtype(arguments, &translation);
  if (*method == TrlMethod::kGrpo && translation.Has("actor_rollout_ref.ref.sync_ref_model")) {
    translation.Set("actor_rollout_ref.ref.ref_model_sync_steps",
                    unit.Steps(arguments.Number("ref_model_sync_steps", 512)),
                    "ref_model_sync_steps");
  }
  WorkOutOptimizer(arguments, unit, &translation);
  NoteExperts(arguments, &translation);
  WorkOutAdapters(arguments, &translation);
  if (const std::string said = LoggersLeftOut(arguments.Value("report_to")); !said.empty())
    translation.Note("report_to: " + said);
  if (ranks <= 0) {
    translation.Note(
        "batches are those of one rank: TRL's are per device, and what starts its processes "
        "(accelerate, torchrun) is not read; --world says for how many ranks the file is");
  }
  for (const auto& [key, expected] : arguments.unread()) {
    unresolved.push_back(
        fmt::format("{}: expected {}, found {}", key, expected, arguments.Value(key).dump()));
  }
  ExpandHome(request.environment, schema, &translation);
  for (std::string& sentence : unresolved) translation.Unresolved(std::move(sentence));
  for (std::string& note : notes) translation.Note(std::move(note));
  KEEL_ASSIGN_OR_RETURN(Imported imported,
                        Finish(request, "import-trl", given, from_environment, translation));
  imported.world = world;
  return imported;
}

}  // namespace keel::trainer::foreign
