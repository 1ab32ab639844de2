// What an import from TRL makes of the keys of GRPO.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/foreign/trl_fixture.h"
#include "trainer/foreign/trl_import.h"

namespace keel::trainer::foreign {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(TrlGrpoImport, GrpoCountsSamplesAndUpdates) {
  const auto made = ImportTrl("grpo.yaml",
                              "model_name_or_path: m\ndataset_name: d.jsonl\n"
                              "per_device_train_batch_size: 8\ngradient_accumulation_steps: 2\n"
                              "steps_per_generation: 8\nnum_generations: 4\nnum_iterations: 2\n"
                              "max_steps: 80\nsave_steps: 16\nbeta: 0.04\nepsilon_high: 0.28\n"
                              "loss_type: dr_grpo\nscale_rewards: none\ntop_k: 50\n"
                              "chat_template_kwargs: {enable_thinking: false}\n",
                              TrlMethod::kGrpo, 2);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const Config c = Loaded(made.value(), 2);
  // 8 x 2 ranks x 8 samples at a time are 32 prompts; 8 x 2 x 2 an update are 8.
  EXPECT_EQ(c.data.train_batch_size, 32);
  EXPECT_EQ(c.actor_rollout_ref.actor.loss.ppo_mini_batch_size, 8);
  EXPECT_EQ(c.actor_rollout_ref.actor.loss.ppo_micro_batch_size_per_gpu, 8);
  EXPECT_EQ(c.actor_rollout_ref.actor.loss.ppo_epochs, 2);
  // 4 updates a pass, 2 passes: a step here is 8 of TRL's.
  EXPECT_EQ(c.trainer.total_training_steps, 10);
  EXPECT_EQ(c.trainer.save_freq, 2);
  EXPECT_EQ(c.actor_rollout_ref.rollout.n, 4);
  EXPECT_EQ(c.actor_rollout_ref.rollout.top_k, 50);
  EXPECT_EQ(c.algorithm.adv_estimator, rl::AdvantageEstimator::kGrpo);
  EXPECT_FALSE(c.algorithm.norm_adv_by_std_in_grpo);
  EXPECT_TRUE(c.actor_rollout_ref.actor.loss.use_kl_loss);
  EXPECT_EQ(c.actor_rollout_ref.actor.loss.kl_loss_coef, 0.04);
  EXPECT_EQ(c.actor_rollout_ref.actor.loss.clip_ratio_low, 0.2);
  EXPECT_EQ(c.actor_rollout_ref.actor.loss.clip_ratio_high, 0.28);
  EXPECT_EQ(c.actor_rollout_ref.actor.loss.loss_agg_mode,
            rl::LossAggregation::kSeqMeanTokenSumNorm);
  EXPECT_EQ(c.data.apply_chat_template_kwargs, Json({{"enable_thinking", false}}));
  EXPECT_FALSE(c.actor_rollout_ref.rollout.val_kwargs.do_sample);  // nothing is validated
}

TEST(TrlGrpoImport, GrpoValidatesAsItTrains) {
  const auto of = [](const std::string& keys) {
    const auto made = ImportTrl("grpo.yaml",
                                "model_name_or_path: m\ndataset_name: d.jsonl\nmax_steps: 8\n"
                                "eval_strategy: steps\neval_steps: 4\n" +
                                    keys,
                                TrlMethod::kGrpo, 1);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return Loaded(made.value(), 1).actor_rollout_ref.rollout.val_kwargs;
  };
  const auto plain = of("");
  EXPECT_TRUE(plain.do_sample);
  EXPECT_EQ(plain.temperature, 1);
  EXPECT_EQ(plain.n, 8);
  EXPECT_EQ(plain.top_k, -1);
  const auto said = of("temperature: 0.7\ntop_p: 0.9\ntop_k: 40\nnum_generations_eval: 2\n");
  EXPECT_EQ(said.temperature, 0.7);
  EXPECT_EQ(said.n, 2);
  EXPECT_EQ(said.top_k, 40);
  EXPECT_EQ(said.top_p, 0.9);
}

TEST(TrlGrpoImport, CisposBoundIsOfTheRatioItself) {
  const auto made = ImportTrl("grpo.yaml",
                              "model_name_or_path: m\ndataset_name: d.jsonl\nloss_type: cispo\n"
                              "epsilon_high: 5.0\nmax_steps: 3\n",
                              TrlMethod::kGrpo);
  ASSERT_TRUE(made.ok());
  const Config c = Loaded(made.value());
  EXPECT_EQ(c.actor_rollout_ref.actor.loss.policy_loss.loss_mode, rl::PolicyLossMode::kCispo);
  EXPECT_EQ(c.actor_rollout_ref.actor.loss.clip_ratio_high, 4.0);
  EXPECT_EQ(c.actor_rollout_ref.actor.loss.clip_ratio_low, 1.0);
  // TRL takes epsilon for it, 0.2, with which next to nothing is learnt.
  const auto none = ImportTrl("grpo.yaml",
                              "model_name_or_path: m\ndataset_name: d.jsonl\nloss_type: cispo\n"
                              "max_steps: 3\n",
                              TrlMethod::kGrpo);
  ASSERT_TRUE(none.ok());
  EXPECT_THAT(none->unresolved,
              ElementsAre(HasSubstr("epsilon_high: of cispo it is the greatest ratio")));
  Loaded(none.value());
}

TEST(TrlGrpoImport, WhatBelongsToTheReferenceComesWithIt) {
  const std::string common =
      "model_name_or_path: m\ndataset_name: d.jsonl\nmax_steps: 80\nnum_iterations: 2\n"
      "sync_ref_model: true\nref_model_mixup_alpha: 0.9\nref_model_sync_steps: 64\n";
  const auto made =
      ImportTrl("grpo.yaml", common + "beta: 0.04\ntop_entropy_quantile: 0.2\n", TrlMethod::kGrpo);
  ASSERT_TRUE(made.ok());
  EXPECT_THAT(made.value().report, Not(HasSubstr("asked for")));
  const Config c = Loaded(made.value());
  EXPECT_TRUE(c.actor_rollout_ref.actor.loss.use_bias_correction_kl);  // TRL's default
  EXPECT_EQ(c.actor_rollout_ref.actor.loss.policy_loss.top_entropy_quantile, 0.2);
  EXPECT_TRUE(c.actor_rollout_ref.ref.sync_ref_model);
  EXPECT_EQ(c.actor_rollout_ref.ref.ref_model_mixup_alpha, 0.9);
  EXPECT_EQ(c.actor_rollout_ref.ref.ref_model_sync_steps, 32);  // a step here is 2 of TRL's
  // Without beta there is none.
  const auto without = ImportTrl("grpo.yaml", common, TrlMethod::kGrpo);
  ASSERT_TRUE(without.ok());
  EXPECT_THAT(without.value().yaml, HasSubstr("# NOT TAKEN: sync_ref_model: true"));
  const Config plain = Loaded(without.value());
  EXPECT_FALSE(plain.actor_rollout_ref.ref.sync_ref_model);
  EXPECT_FALSE(plain.actor_rollout_ref.actor.loss.use_bias_correction_kl);

  const auto dpo = ImportTrl("dpo.yaml", common + "use_weighting: true\n", TrlMethod::kDpo);
  ASSERT_TRUE(dpo.ok());
  EXPECT_THAT(dpo.value().yaml, HasSubstr("# NOT TAKEN: num_iterations"));
  const Config d = Loaded(dpo.value());
  EXPECT_TRUE(d.dpo.use_weighting);
  EXPECT_TRUE(d.actor_rollout_ref.ref.sync_ref_model);
  EXPECT_EQ(d.actor_rollout_ref.ref.ref_model_sync_steps, 64);
}

TEST(TrlGrpoImport, TheEntropysTargetAndTheOffPolicyMaskAreTaken) {
  const std::string common =
      "model_name_or_path: m\ndataset_name: d.jsonl\nmax_steps: 3\nentropy_coef: 0.01\n"
      "entropy_target: 1.5\nentropy_coef_max: 0.3\noff_policy_mask_threshold: 0.05\n";
  const auto made =
      ImportTrl("grpo.yaml", common + "use_adaptive_entropy: true\n", TrlMethod::kGrpo);
  ASSERT_TRUE(made.ok());
  EXPECT_THAT(made.value().report, Not(HasSubstr("asked for")));
  const ActorLossSection loss = Loaded(made.value()).actor_rollout_ref.actor.loss;
  EXPECT_TRUE(loss.use_adaptive_entropy);
  EXPECT_EQ(loss.entropy_coeff, 0.01);
  EXPECT_EQ(loss.entropy_coeff_min, 0.0);
  EXPECT_EQ(loss.entropy_coeff_max, 0.3);
  EXPECT_EQ(loss.entropy_coeff_delta, 0.005);
  EXPECT_EQ(loss.entropy_target, 1.5);
  EXPECT_EQ(loss.policy_loss.off_policy_mask_threshold, 0.05);
  // Without the first the others say nothing, there as here.
  const auto fixed = ImportTrl("grpo.yaml", common, TrlMethod::kGrpo);
  ASSERT_TRUE(fixed.ok());
  EXPECT_EQ(Loaded(fixed.value()).actor_rollout_ref.actor.loss.entropy_target, 0.2);
}

// Its bound and its choice of tokens would come to nothing in silence.
TEST(TrlGrpoImport, WhatASequencesRatioHasNotIsSaid) {
  const auto made = ImportTrl("grpo.yaml",
                              "model_name_or_path: m\ndataset_name: d.jsonl\nloss_type: grpo\n"
                              "importance_sampling_level: sequence\ndelta: 1.5\n"
                              "top_entropy_quantile: 0.5\nmax_steps: 3\n",
                              TrlMethod::kGrpo);
  ASSERT_TRUE(made.ok());
  EXPECT_THAT(made.value().yaml, HasSubstr("# NOT TAKEN: delta: 1.5"));
  EXPECT_THAT(made.value().yaml, HasSubstr("# NOT TAKEN: top_entropy_quantile: 0.5"));
  EXPECT_EQ(Loaded(made.value()).actor_rollout_ref.actor.loss.policy_loss.top_entropy_quantile, 1);
}

// TRL stops at it.
TEST(TrlGrpoImport, ALevelThatTrlDoesNotKnowIsSaid) {
  const auto made =
      ImportTrl("grpo.yaml",
                "model_name_or_path: m\ndataset_name: d.jsonl\nimportance_sampling_level: tokens\n",
                TrlMethod::kGrpo);
  ASSERT_TRUE(made.ok());
  EXPECT_THAT(made->yaml, HasSubstr("# NOT TAKEN: importance_sampling_level: tokens"));
}

}  // namespace
}  // namespace keel::trainer::foreign
