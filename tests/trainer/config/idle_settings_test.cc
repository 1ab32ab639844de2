// Settings that nothing reads are said, with the switch that they are read with.

#include "trainer/config/idle_settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/trainer/data/tokens/scratch_folder.h"
#include "trainer/config/config.h"
#include "trainer/config/remarks.h"

namespace keel::trainer {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> Idle(const std::vector<std::string>& overrides) {
  const ScratchFolder folder;
  const std::string path = folder.Path("run.yaml");
  std::ofstream(path) << "{}\n";
  const LoadedConfig loaded = ValueOrThrow(LoadConfig(path, overrides));
  std::vector<std::string> notes = loaded.notes;
  for (const std::string& remark : Remarks(loaded.config)) std::erase(notes, remark);
  return notes;
}

// A setting, and what turns on that which reads it.
struct Case {
  std::vector<std::string> run;
  std::string setting, with;
};

const std::vector<Case>& Cases() {
  static const std::string actor = "actor_rollout_ref.actor.";
  static const std::string rollout = "actor_rollout_ref.rollout.";
  static const std::string correction = "algorithm.rollout_correction.";
  static const std::vector<std::string> rl = {"trainer.task=rl", "algorithm.adv_estimator=grpo"};
  static const std::vector<Case> cases = {
      {{"trainer.task=sft"}, rollout + "n=4", "trainer.task=rl"},
      {{"trainer.task=sft"}, actor + "clip_ratio=0.1", "trainer.task=rl"},
      {{"trainer.task=rl"}, "dpo.beta=0.2", "trainer.task=dpo"},
      {{"trainer.task=sft"}, "data.max_prompt_length=7", "trainer.task=dpo"},
      {rl, "critic.optim.lr=0.1", "critic.enable=true"},
      {rl, "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=3",
       "algorithm.use_kl_in_reward=true"},
      {{}, "actor_rollout_ref.model.lora_alpha=8", "actor_rollout_ref.model.lora_rank=4"},
      {{"trainer.task=rl", "algorithm.use_kl_in_reward=true",
        "actor_rollout_ref.model.lora_rank=4"},
       "actor_rollout_ref.ref.megatron.param_offload=true",
       "actor_rollout_ref.model.lora_rank=0"},
      {{"trainer.task=dpo"},
       "actor_rollout_ref.ref.ref_model_sync_steps=3",
       "actor_rollout_ref.ref.sync_ref_model=true"},
      {rl, actor + "kl_loss_coef=0.2", actor + "use_kl_loss=true"},
      {rl, "algorithm.kl_ctrl.kl_coef=0.2", "algorithm.use_kl_in_reward=true"},
      {{"trainer.task=rl", "algorithm.use_kl_in_reward=true"},
       "algorithm.kl_ctrl.horizon=77",
       "algorithm.kl_ctrl.type=adaptive"},
      {rl, "algorithm.filter_groups.max_num_gen_batches=3", "algorithm.filter_groups.enable=true"},
      {rl, correction + "rollout_is_threshold='3.0'", correction + "rollout_is=token"},
      {rl, correction + "rollout_rs_threshold='3.0'", correction + "rollout_rs=token_k1"},
      {rl, "reward.overlong_buffer.len=9", "reward.overlong_buffer.enable=true"},
      {rl, "data.max_length=77", "trainer.task=sft"},
      {{"trainer.task=pretrain"}, "data.train_on=last", "trainer.task=sft"},
      {{"trainer.task=pretrain"}, "data.truncation=skip", "trainer.task=sft"},
      {{"trainer.task=sft", "data.packing=wrapped"},
       "data.truncation=skip",
       "data.packing=best_fit"},
      {{"data.train_files=[a]"}, "trainer.test_freq=3", "data.val_split=0.1"},
      {{"trainer.task=rl", "reward.type=command", "reward.command=[score]"},
       "reward.format_score=0.5",
       "reward.type=exact"},
      {{"trainer.task=rl", "reward.type=math"}, "reward.method=flexible", "reward.type=gsm8k"},
      {rl, "reward.ca_file=a.pem", "reward.type=http"},
      {rl, "reward.python=python3", "reward.type=python"},
      {{"trainer.task=rl", actor + "policy_loss.loss_mode=gpg"},
       actor + "clip_ratio=0.1",
       actor + "policy_loss.loss_mode=vanilla"},
      {{"trainer.task=rl", actor + "policy_loss.loss_mode=gspo"},
       actor + "clip_ratio_c=10",
       actor + "policy_loss.loss_mode=vanilla"},
      {{"trainer.task=rl", actor + "clip_ratio_low=0.1", actor + "clip_ratio_high=0.3"},
       actor + "clip_ratio=0.4",
       actor + "clip_ratio_low=null"},
      {rl, actor + "tau_pos=2", actor + "policy_loss.loss_mode=sapo"},
      {rl, actor + "policy_loss.clip_cov_lb=2", actor + "policy_loss.loss_mode=clip_cov"},
      {rl, actor + "policy_loss.ppo_kl_coef=2", actor + "policy_loss.loss_mode=kl_cov"},
      {rl, actor + "policy_loss.dro_beta=2", actor + "policy_loss.loss_mode=dro"},
      {rl, actor + "policy_loss.vespo_k_pos=3", actor + "policy_loss.loss_mode=vespo"},
      {rl, actor + "entropy_target=2", actor + "use_adaptive_entropy=true"},
      {{"trainer.task=rl", "algorithm.adv_estimator=rloo"},
       "algorithm.norm_adv_by_std_in_grpo=false",
       "algorithm.adv_estimator=grpo"},
      {rl, "algorithm.lam=0.9", "algorithm.adv_estimator=gae"},
      {rl, "algorithm.gamma=0.9", "algorithm.adv_estimator=reinforce_plus_plus"},
      {rl, "reward.format_weight=2", "reward.format_pattern='<a>'"},
      {rl, rollout + "multi_turn.max_user_turns=3", rollout + "multi_turn.enable=true"},
      {rl, rollout + "val_kwargs.top_k=3", rollout + "val_kwargs.do_sample=true"},
      {{"trainer.task=rl", rollout + "kv_cache_megabytes=64"},
       rollout + "gpu_memory_utilization=0.9",
       rollout + "kv_cache_megabytes=null"},
      {rl, "async_training.port=4000", "async_training.placement=split"},
      {{}, actor + "optim.lr_wsd_decay_steps=4", actor + "optim.lr_decay_style=wsd"},
      {{actor + "optim.lr_decay_style=constant"},
       actor + "optim.min_lr=1e-5",
       actor + "optim.lr_decay_style=linear"},
      {{"trainer.task=rl"}, "critic.optim.min_lr=1e-6", "critic.optim.lr_decay_style=linear"},
      {{}, "trainer.keep_best_mode=max", "trainer.keep_best_ckpts=1"},
      {{}, "trainer.tensorboard_dir=t", "trainer.logger=[tensorboard]"},
      {{}, "trainer.prometheus_file=t", "trainer.logger=[prometheus]"},
      {{"trainer.logger=[jsonl]"}, "trainer.log_freq=4", "trainer.logger=[console]"},
      {{}, "trainer.trace.max_megabytes=4", "trainer.trace.enable=true"},
      {{}, "trainer.profile.ranks=[1]", "trainer.profile.steps=[2]"},
  };
  return cases;
}

TEST(IdleSettingsTest, EachIsSaidWhereItsSwitchIsOffAndNotWhereItIsOn) {
  for (const Case& c : Cases()) {
    std::vector<std::string> overrides = c.run;
    EXPECT_EQ(Idle(overrides), std::vector<std::string>()) << c.setting;
    overrides.push_back(c.setting);
    const std::vector<std::string> said = Idle(overrides);
    ASSERT_EQ(said.size(), 1u) << c.setting;
    const std::string key = c.setting.substr(0, c.setting.find('='));
    EXPECT_EQ(said[0].find(key + " (command line): no effect, since it is read with "), 0u)
        << said[0];
    overrides.push_back(c.with);
    for (const std::string& other : Idle(overrides))
      EXPECT_EQ(other.find(key), std::string::npos) << other;
  }
}

// So a switch that is added has a case here.
TEST(IdleSettingsTest, EveryKeyOfTheTableIsOneOfTheSchemasAndEverySwitchHasACase) {
  Config config;
  const options::Schema schema = MakeSchema(config);
  for (const Switch& one : Switches()) {
    for (const std::string& key : one.keys) {
      EXPECT_TRUE(std::any_of(schema.options().begin(), schema.options().end(),
                              [&](const options::Option& option) {
                                return key.ends_with('.') ? option.path.starts_with(key)
                                                          : option.path == key;
                              }))
          << key;
    }
  }
  std::set<std::string> switches;
  for (const Case& c : Cases()) {
    std::vector<std::string> overrides = c.run;
    overrides.push_back(c.setting);
    const std::string said = Idle(overrides).at(0);
    switches.insert(said.substr(said.find(" read with ")));
  }
  EXPECT_EQ(switches.size(), Switches().size());
}

TEST(IdleSettingsTest, SeveralOfOneSwitchAreOneSentenceAndAWiderSwitchComesFirst) {
  const std::vector<std::string> said = Idle(
      {"trainer.task=sft", "algorithm.kl_ctrl.kl_coef=0.2", "critic.optim.lr=1", "dpo.beta=1"});
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(said[0],
            "critic.optim.lr (command line), algorithm.kl_ctrl.kl_coef (command line): no effect, "
            "since they are read with trainer.task: rl alone");
  EXPECT_EQ(said[1],
            "dpo.beta (command line): no effect, since it is read with trainer.task: dpo alone");
}

TEST(IdleSettingsTest, FilesThatComeWithKeelHaveNone) {
  const fs::path folder = fs::path(std::getenv("KEEL_SOURCE_DIR")) / "configs";
  int files = 0;
  for (const fs::directory_entry& file : fs::directory_iterator(folder)) {
    if (file.path().extension() != ".yaml") continue;
    ++files;
    EXPECT_EQ(ValueOrThrow(LoadConfig(file.path(), {})).notes, std::vector<std::string>())
        << file.path();
  }
  EXPECT_GE(files, 5);
}

}  // namespace
}  // namespace keel::trainer
