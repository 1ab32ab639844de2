#include "trainer/foreign/verl_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "common/text.h"
#include "trainer/algorithms/choices.h"
#include "trainer/config/choices.h"
#include "trainer/foreign/adapter_options.h"
#include "trainer/foreign/conversions.h"
#include "trainer/foreign/verl_keys.h"

namespace keel::trainer::foreign {

namespace {

// "key: value" and "{a:1}" of Hydra's grammar as YAML: a colon within brackets needs no space
// there.
std::string HydraAsYaml(const std::string& text) {
  if (!text.starts_with('{') && !text.starts_with('[')) return text;
  std::string yaml;
  char quote = '\0';
  for (size_t i = 0; i < text.size(); ++i) {
    yaml += text[i];
    if (quote != '\0') {
      if (text[i] == quote) quote = '\0';
    } else if (text[i] == '\'' || text[i] == '"') {
      quote = text[i];
    } else if (text[i] == ':' && text.compare(i, 3, "://") != 0) {
      yaml += ' ';
    }
  }
  return yaml;
}

// Hydra's value: YAML's but for what YAML would read as more than a text.
Json HydraValue(const std::string& text) {
  if (text.empty()) return Json("");
  if (text.starts_with("${")) return Json(text);
  std::string plain;  // \${x} is ${x}
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() && text[i + 1] == '$') continue;
    plain += text[i];
  }
  constexpr std::string_view kYamlsOwn = "%|>!";  // a directive, a block, a tag
  if (kYamlsOwn.find(plain[0]) != std::string_view::npos) return Json(plain);
  const Result<Json> value = ValueOfText(HydraAsYaml(plain), false);
  const bool list = plain.starts_with('[') || plain.starts_with('{');
  if (!value.ok() || (value.value().is_structured() && !list)) return Json(plain);
  return value.value();
}

bool IsMainPpo(const std::string& word) {
  return word == "verl.trainer.main_ppo" || word == "verl.trainer.main_ppo_sync" ||
         word == "main_ppo.py" || word.ends_with("verl/trainer/main_ppo.py") ||
         word == "recipe.dapo.main_dapo" || word == "recipe.dapo.src.main_dapo" ||
         word.ends_with("main_dapo.py");
}

// A launch's words as values.
void AddOverrides(const ShellCommand& launch, GivenValues* given,
                  std::vector<std::string>* unresolved, std::vector<std::string>* notes) {
  for (size_t i = 0; i < launch.words.size(); ++i) {
    const ShellWord& word = launch.words[i];
    std::string text = word.text;
    if (text.starts_with("--")) {
      const size_t equals = text.find('=');
      const std::string flag = text.substr(0, equals);
      std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
      // Hydra's others (--multirun, --resolve) stand alone.
      const bool valued = flag.starts_with("--config-") || flag == "--cfg" || flag == "--package";
      if (valued && equals == std::string::npos && i + 1 < launch.words.size())
        value = launch.words[++i].text;
      if (flag == "--config-name" && value.ends_with(".yaml")) value.resize(value.size() - 5);
      if (flag == "--config-name" && value != "ppo_trainer" && value != "ppo_megatron_trainer")
        unresolved->push_back(
            fmt::format("{} {}: the values of that file are not here: have verl print what it runs "
                        "with (--cfg job), and import that",
                        flag, value));
      continue;
    }
    if (text.starts_with("~")) {
      given->Remove(text.substr(1, text.find('=') - 1));
      notes->push_back(fmt::format("{} takes a key out", text));
      continue;
    }
    while (text.starts_with('+')) text.erase(0, 1);
    const size_t equals = text.find('=');
    if (Trim(text).empty()) continue;  // a backslash before a blank: the command ends there
    if (equals == std::string::npos || equals == 0) {
      const std::string why = word.not_known.empty() ? "" : ": " + word.not_known.front();
      unresolved->push_back(fmt::format("{}{} is no key=value{}", LineOf(word), text, why));
      continue;
    }
    const std::string value = text.substr(equals + 1);
    given->AddLeaves({text.substr(0, equals),
                      word.not_known.empty() ? HydraValue(value) : Json(value), word.not_known});
  }
}

// What a file of Hydra's is put together from, beside verl's own files.
void NameOtherFiles(const GivenValues& given, std::vector<std::string>* unresolved) {
  const Result<std::optional<Json>> defaults = given.Value("defaults");
  if (!defaults.ok() || !defaults.value() || !defaults.value()->is_array()) return;
  for (const Json& item : *defaults.value()) {
    std::string name = item.is_string() ? item.get<std::string>() : "_self_";
    if (name.starts_with('/')) name.erase(0, 1);
    if (name != "_self_" && name != "ppo_trainer" && name != "ppo_megatron_trainer")
      unresolved->push_back(
          fmt::format("defaults: the values of {} are not here: have verl print what it runs with "
                      "(--cfg job), and import that",
                      name));
  }
}

double NumberOr(const GivenValues& given, const std::string& key, double otherwise) {
  const Result<std::optional<Json>> value = given.Value(key);
  const bool is_number = value.ok() && value.value() && value.value()->is_number();
  return is_number ? value.value()->get<double>() : otherwise;
}

std::string TextOr(const GivenValues& given, const std::string& key, const std::string& otherwise) {
  const Result<std::optional<Json>> value = given.Value(key);
  const bool is_text = value.ok() && value.value() && value.value()->is_string();
  return is_text ? value.value()->get<std::string>() : otherwise;
}

// A key that the table calls not supported, of which something was made after all.
void Made(Translation* translation, const std::string& key, const std::string& target) {
  AnsweredKey* answered = translation->Find(key);
  if (answered == nullptr) return;
  answered->answer = target == key ? Answer::kTaken : Answer::kRenamed;
  answered->asked = false;
  answered->target = target;
}

// Shares that verl gives of the steps and of the rate.
void WorkOutShares(const GivenValues& given, const std::string& role, Translation* translation) {
  const std::string optim = role + ".optim.";
  const double steps = NumberOr(given, "trainer.total_training_steps", 0);
  const double ratio = NumberOr(given, optim + "lr_warmup_steps_ratio", 0);
  if (ratio > 0 && NumberOr(given, optim + "lr_warmup_steps", -1) <= 0) {
    if (steps > 0) {
      translation->Set(optim + "lr_warmup_steps", static_cast<int64_t>(ratio * steps),
                       fmt::format("{} of {} steps", ratio, steps));
      Made(translation, optim + "lr_warmup_steps_ratio", optim + "lr_warmup_steps");
    } else if (AnsweredKey* key = translation->Find(optim + "lr_warmup_steps_ratio")) {
      key->why =
          "give optim.lr_warmup_steps: without trainer.total_training_steps the number of steps is "
          "known when the data is read";
    }
  }
  std::string style = "constant";
  for (const char* key : {"lr_decay_style", "lr_scheduler_type", "warmup_style"})
    style = TextOr(given, optim + key, style);
  for (const char* name : {"min_lr_ratio", "min_lr_factor"}) {
    const double share = NumberOr(given, optim + name, 0);
    if (share <= 0) continue;
    if (style != "constant")
      translation->Set(optim + "min_lr", share * NumberOr(given, optim + "lr", 0),
                       fmt::format("{} of the rate", share));
    Made(translation, optim + name, optim + "min_lr");
  }
  if (Result<Json> wsd = AsDecayStyle(Json(style));
      wsd.ok() && wsd.value() == Json(NameOf(LrDecayStyle::kWsd)) &&
      TextOr(given, optim + "lr_wsd_decay_style", "exponential") != "linear")
    translation->Note(optim +
                      "lr_wsd_decay_style: Keel's wsd decays linearly, verl's exponentially");
}

void SayLoggers(const GivenValues& given, Translation* translation) {
  const Result<std::optional<Json>> loggers = given.Value("trainer.logger");
  if (!loggers.ok() || !loggers.value()) return;
  const std::string said = LoggersLeftOut(*loggers.value());
  if (!said.empty()) translation->Note("trainer.logger: " + said);
}

// With bypass_mode and the clipped loss verl has the weights of rollout_is for its metrics alone.
void LeaveOutBypassedWeights(Translation* translation) {
  const std::string correction = "algorithm.rollout_correction.";
  const auto says = [&](const char* key, const Json& value) {
    return translation->Has(correction + key) && translation->Get(correction + key) == value;
  };
  if (!says("bypass_mode", true) || says("loss_type", NameOf(rl::BypassLoss::kReinforce)) ||
      !translation->Has(correction + "rollout_is") || says("rollout_is", nullptr))
    return;
  for (const char* key : {"rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize"})
    translation->Unset(correction + key);
  translation->Note(correction +
                    "rollout_is is left out: with bypass_mode and loss_type ppo_clip verl has its "
                    "weights for metrics alone, since the ratio is to the rollout already");
}

// verl's validation draws where its temperature is above 0, whatever val_kwargs.do_sample says.
void SampleByTemperature(const GivenValues& given, Translation* translation) {
  const std::string section = "actor_rollout_ref.rollout.val_kwargs.";
  if (NumberOr(given, section + "temperature", 0) <= 0) return;
  if (translation->Has(section + "do_sample") &&
      translation->Get(section + "do_sample") == Json(true))
    return;
  translation->Set(section + "do_sample", true, "verl's temperature alone decides");
}

// What verl does not look at beside other keys, and Keel refuses beside them.
void LeaveOutIdle(bool gae, Translation* translation) {
  const auto leave_out = [&](const char* key, const std::string& why) {
    if (!translation->Has(key) || translation->Get(key).is_null()) return;
    translation->Unset(key);
    translation->Note(fmt::format("{} is left out: {}", key, why));
  };
  const Json mode = translation->Has("trainer.resume_mode")
                        ? translation->Get("trainer.resume_mode")
                        : Json("auto");
  if (mode != Json("resume_path"))
    leave_out("trainer.resume_from_path", "trainer.resume_mode is not resume_path");
  if (!gae) leave_out("algorithm.lam", "algorithm.adv_estimator is not gae");
}

// Only verl's reward manager dapo knows of the buffer.
void LeaveOutUnknownBuffer(const GivenValues& given, const std::string& preset_manager,
                           Translation* translation) {
  std::string manager = preset_manager;
  for (const char* key : {"reward_model.reward_manager", "reward.reward_manager.name"}) {
    if (given.Has(key)) manager = TextOr(given, key, manager);
  }
  const std::string buffer = "reward.overlong_buffer.";
  if (manager != "naive" || !translation->Has(buffer + "enable")) return;
  for (const char* key : {"enable", "len", "penalty_factor"}) translation->Unset(buffer + key);
  translation->Note(
      "reward.overlong_buffer is left out: verl's reward manager naive takes nothing off long "
      "responses, only dapo does (reward.reward_manager.name)");
}

// What verl did otherwise before it had a key for it: to take today's default would be another run.
void AskWhatOlderVerlDid(const GivenValues& given, Translation* translation) {
  if (given.Has("algorithm.use_kl_in_reward")) return;  // of 2025-04 or later
  const std::string actor = "actor_rollout_ref.actor.";
  const auto has_one = [&](std::initializer_list<const char*> keys) {
    return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return given.Has(key); });
  };
  const bool by_old_names =
      has_one({"actor_rollout_ref.actor.ppo_micro_batch_size", "critic.ppo_micro_batch_size",
               "actor_rollout_ref.ref.log_prob_micro_batch_size",
               "actor_rollout_ref.rollout.log_prob_micro_batch_size"});
  const bool speaks_of_kl = has_one({"algorithm.kl_ctrl.kl_coef", "algorithm.kl_ctrl.type"});
  const Result<std::optional<Json>> kl_loss = given.Value(actor + "use_kl_loss");
  const bool has_kl_loss = kl_loss.ok() && kl_loss.value() == Json(true);
  const bool has_kl = NumberOr(given, "algorithm.kl_ctrl.kl_coef", 0.001) != 0;
  if ((by_old_names || speaks_of_kl) && has_kl && !has_kl_loss) {
    translation->Unresolved(
        "algorithm.use_kl_in_reward is not given: verl of before April 2025 took the KL from the "
        "reward where actor.use_kl_loss is not set, later ones do not; give "
        "algorithm.use_kl_in_reward=True for the former, False for the latter");
  }
  if (by_old_names && !given.Has(actor + "entropy_coeff")) {
    translation->Unresolved(
        actor +
        "entropy_coeff is not given: verl of before April 2025, whose names of batch sizes these "
        "are, had 0.001, later ones have 0; give the one that is meant");
  }
}

// Megatron's engine has keys of its own for adapters, and other defaults.
void WorkOutAdapters(const GivenValues& given, Translation* translation) {
  const std::string model = "actor_rollout_ref.model.", lora = model + "lora.";
  const auto value_or = [&](const std::string& key, Json otherwise) {
    const Result<std::optional<Json>> value = given.Value(key);
    return value.ok() && value.value() ? *value.value() : otherwise;
  };
  AskedAdapters asked;
  asked.from = "lora.rank";
  asked.rank = NumberOr(given, lora + "rank", 0);
  asked.alpha = NumberOr(given, lora + "alpha", 32);
  asked.targets = value_or(lora + "target_modules",
                           Json({"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"}));
  asked.excluded = value_or(lora + "exclude_modules", Json());
  asked.path = value_or(lora + "adapter_path", Json());
  if (asked.rank > 0) {
    TakeAdapters(asked, translation);
    translation->Note(
        lora +
        "rank: q, k and v, and gate and up, have an adapter each here; Megatron's stand beside "
        "linear_qkv and linear_fc1 as they are, so that these share an A");
  }
  if (!value_or(model + "lora_adapter_path", Json()).is_string()) return;
  for (const char* key : {"lora_rank", "lora_alpha", "target_modules", "exclude_modules"})
    if (translation->Has(model + key)) translation->Unset(model + key);
  if (NumberOr(given, model + "lora_rank", 0) > 0)
    translation->Note(model +
                      "lora_rank is left out: rank, alpha and modules are those of the adapters "
                      "that lora_adapter_path names");
}

// Keel's own default would be one folder for every experiment, the second of which goes on from the
// first.
void AskForTheFolder(const GivenValues& given, Translation* translation) {
  const std::string key = "trainer.default_local_dir";
  const Result<std::optional<Json>> folder = given.Value(key);
  if (given.Has(key) || folder.ok()) return;
  translation->Unresolved(
      fmt::format("{} is not given, and verl makes it of trainer.project_name and "
                  "trainer.experiment_name: {}: give each run a folder of its own",
                  key, folder.status().message()));
}

}  // namespace

Result<Imported> ImportVerl(const ImportRequest& request, const options::Schema& schema) {
  const KeyTable table(VerlRows());
  GivenValues given(table, request.environment);
  std::vector<std::string> unresolved, notes;
  std::set<std::string> from_environment;
  std::string manager = "naive";
  if (IsScript(request.file)) {
    const auto is_launch = [&](const std::string& word, const std::string&) {
      if (word.find("main_dapo") != std::string::npos) manager = "dapo";
      return IsMainPpo(word);
    };
    KEEL_ASSIGN_OR_RETURN(Launch launch,
                          FindLaunch(request, "python -m verl.trainer.main_ppo", is_launch));
    from_environment = std::move(launch.from_environment);
    unresolved = std::move(launch.unresolved);
    AddOverrides(launch.command, &given, &unresolved, &notes);
  } else {
    KEEL_RETURN_IF_ERROR(given.AddFile(request.file));
    NameOtherFiles(given, &unresolved);
    AddOverrides(CommandOf(request.arguments), &given, &unresolved, &notes);
  }

  Translation translation(kVerl, table, schema, given);
  const Result<std::optional<Json>> enable = given.Value("critic.enable");
  const bool gae = TextOr(given, "algorithm.adv_estimator", "gae") == "gae";
  const bool critic = gae || (enable.ok() && enable.value() && *enable.value() == Json(true));
  if (!critic) {
    translation.LeaveOut("critic.", "algorithm.adv_estimator needs no critic");
    translation.LeaveOut("trainer.critic_warmup",
                         "there is no critic to wait for: the actor learns from the first step on, "
                         "which in verl it does from that one on");
  }
  translation.TakeAll();

  translation.Set("trainer.task", NameOf(TaskKind::kRl), "what main_ppo does");
  // The only default in which verl's engines differ, and Keel has a key for it.
  for (const std::string role : {"actor_rollout_ref.actor", "critic"}) {
    const bool veomni = TextOr(given, "model_engine", "") == "veomni" && (critic || role[0] == 'a');
    if (veomni && !given.Has(role + ".optim.lr_scheduler_type"))
      translation.Set(role + ".optim.lr_decay_style", NameOf(LrDecayStyle::kCosine),
                      "VeOmni's default");
  }
  if (translation.Has("trainer.total_training_steps") &&
      !translation.Get("trainer.total_training_steps").is_null()) {
    translation.Unset("trainer.total_epochs");
    if (given.Has("trainer.total_epochs"))
      translation.Note(
          "trainer.total_epochs is left out: trainer.total_training_steps is given. verl ends with "
          "the epochs where those are fewer steps: then give these alone");
  } else if (given.Has("trainer.total_epochs")) {
    translation.Note(
        "trainer.total_epochs: verl leaves out the rows that do not fill an epoch's last batch, "
        "and here a batch runs on into the next epoch, which may be more steps, and a schedule "
        "that is as much longer: give trainer.total_training_steps to have verl's number, epochs "
        "times "
        "rows / data.train_batch_size rounded down");
  }
  AskWhatOlderVerlDid(given, &translation);
  AskForTheFolder(given, &translation);
  WorkOutAdapters(given, &translation);
  LeaveOutBypassedWeights(&translation);
  LeaveOutIdle(gae, &translation);
  SampleByTemperature(given, &translation);
  LeaveOutUnknownBuffer(given, manager, &translation);
  WorkOutShares(given, "actor_rollout_ref.actor", &translation);
  if (critic) WorkOutShares(given, "critic", &translation);
  SayLoggers(given, &translation);
  const std::string function = "reward.custom_reward_function.";
  if (!translation.Has(function + "path") || translation.Get(function + "path").is_null()) {
    if (translation.Has(function + "name")) translation.Unset(function + "name");
    translation.Note(
        "rewards are those of Keel's rule for each row's data_source (docs/rewards.md): of gsm8k "
        "and of MATH it compares values, where verl compares texts, so that more answers are right "
        "here (#### $42, 34.0); a function of reward.custom_reward_function may call verl's own");
  }
  // Either says how many ranks there are; neither leaves it to the launcher.
  const double nodes = NumberOr(given, "trainer.nnodes", 1);
  const double gpus = NumberOr(given, "trainer.n_gpus_per_node", 8);
  const bool said = given.Has("trainer.nnodes") || given.Has("trainer.n_gpus_per_node");
  if (!said) {
    translation.Unset("trainer.nnodes");
    translation.Unset("trainer.n_gpus_per_node");
  } else {
    translation.Note(fmt::format(
        "verl starts {0} x {1} ranks, and so does: keel launch --nnodes {0} --nproc-per-node {1} "
        "train RUN.yaml",
        nodes, gpus));
  }
  ExpandHome(request.environment, schema, &translation);
  for (std::string& sentence : unresolved) translation.Unresolved(std::move(sentence));
  for (std::string& note : notes) translation.Note(std::move(note));
  KEEL_ASSIGN_OR_RETURN(Imported imported,
                        Finish(request, "import-verl", given, from_environment, translation));
  imported.world = request.world > 0 ? request.world : static_cast<int64_t>(nodes * gpus);
  return imported;
}

}  // namespace keel::trainer::foreign
