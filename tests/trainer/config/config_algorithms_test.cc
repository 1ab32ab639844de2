// What of the choices among RL's and DPO's algorithms does not go together is refused by its keys.

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "trainer/config/config.h"

namespace keel::trainer {
namespace {

bool Named(const std::vector<std::string>& problems, const std::string& part) {
  return std::any_of(problems.begin(), problems.end(), [&](const std::string& problem) {
    return problem.find(part) != std::string::npos;
  });
}

// Every key of a single loss or estimator, off its default beside another.
TEST(ConfigAlgorithmsTest, KeysOfAnotherLossOrEstimatorAreRefusedByName) {
  Config config;
  config.trainer.task = TaskKind::kRl;
  config.algorithm.adv_estimator = rl::AdvantageEstimator::kGrpo;
  ActorLossSection& loss = config.actor_rollout_ref.actor.loss;
  PolicyLossSection& own = loss.policy_loss;
  EXPECT_TRUE(ValidateRlConfig(config, 1).empty());
  loss.tau_pos = loss.tau_neg = 3;
  own.clip_cov_ratio = own.clip_cov_lb = own.clip_cov_ub = own.kl_cov_ratio = own.ppo_kl_coef = 0.3;
  own.vespo_k_pos = own.vespo_k_neg = own.vespo_lambda_pos = own.vespo_lambda_neg = 0.3;
  own.dro_beta = 0.3;
  config.algorithm.gdpo_reward_keys = {"form"};
  auto problems = ValidateRlConfig(config, 1);
  EXPECT_EQ(problems.size(), 13u);
  EXPECT_TRUE(Named(problems,
                    "actor.policy_loss.kl_cov_ratio is of policy_loss.loss_mode kl_cov "
                    "alone, which is vanilla: leave it at 0.0002"));
  EXPECT_TRUE(Named(problems, "actor.tau_neg is of policy_loss.loss_mode sapo alone"));
  EXPECT_TRUE(Named(problems, "gdpo_reward_weights are of gdpo alone"));
  loss = {};
  own.loss_mode = rl::PolicyLossMode::kSapo;
  loss.loss_agg_mode = rl::LossAggregation::kSeqMeanTokenSum;
  config.algorithm.adv_estimator = rl::AdvantageEstimator::kGdpo;
  config.algorithm.gdpo_reward_weights = {1, 2};
  config.algorithm.use_kl_in_reward = true;
  problems = ValidateRlConfig(config, 1);
  EXPECT_EQ(problems.size(), 3u);
  EXPECT_TRUE(Named(problems, "set it to seq-mean-token-mean"));
  EXPECT_TRUE(Named(problems, "has 2 numbers for the 1 of algorithm.gdpo_reward_keys"));
  EXPECT_TRUE(Named(problems, "algorithm.use_kl_in_reward changes the score"));
  loss.loss_agg_mode = rl::LossAggregation::kSeqMeanTokenMean;
  config.algorithm.gdpo_reward_weights = {};
  config.algorithm.use_kl_in_reward = false;
  EXPECT_TRUE(ValidateRlConfig(config, 1).empty());
}

TEST(ConfigAlgorithmsTest, BypassAndItsLossesGoTogetherOrAreRefused) {
  Config config;
  config.trainer.task = TaskKind::kRl;
  config.algorithm.adv_estimator = rl::AdvantageEstimator::kGrpo;
  rl::PolicyLossMode& mode = config.actor_rollout_ref.actor.loss.policy_loss.loss_mode;
  RolloutCorrectionSection& correction = config.algorithm.rollout_correction;
  correction.loss_type = rl::BypassLoss::kReinforce;
  EXPECT_TRUE(Named(ValidateRlConfig(config, 1), "reinforce is of bypass_mode alone"));
  correction.bypass_mode = true;
  correction.rollout_is = rl::ImportanceLevel::kToken;
  EXPECT_TRUE(ValidateRlConfig(config, 1).empty());
  mode = rl::PolicyLossMode::kBypassMode;
  EXPECT_TRUE(ValidateRlConfig(config, 1).empty());
  mode = rl::PolicyLossMode::kGspo;
  EXPECT_TRUE(Named(ValidateRlConfig(config, 1), "loss_mode gspo are two losses"));
  mode = rl::PolicyLossMode::kVanilla;
  correction.rollout_is_batch_normalize = true;
  EXPECT_TRUE(Named(ValidateRlConfig(config, 1), "rollout_is_batch_normalize is not supported"));
  correction = {};
  correction.bypass_mode = true;
  correction.m2po_threshold = 0.04;
  EXPECT_TRUE(Named(ValidateRlConfig(config, 1), "m2po_threshold compares"));
  correction.m2po_threshold = std::nullopt;
  correction.rollout_rs = "token_k1";
  correction.rollout_rs_threshold = "2.0";
  EXPECT_TRUE(ValidateRlConfig(config, 1).empty());
  mode = rl::PolicyLossMode::kKlCov;
  EXPECT_TRUE(Named(ValidateRlConfig(config, 1), "loss_mode kl_cov chooses among all tokens"));
  mode = rl::PolicyLossMode::kVanilla;
  double& quantile = config.actor_rollout_ref.actor.loss.policy_loss.top_entropy_quantile;
  quantile = 0.2;
  EXPECT_TRUE(Named(ValidateRlConfig(config, 1), "top_entropy_quantile chooses among all tokens"));
  quantile = 1;
  correction = {};
  config.algorithm.adv_estimator = rl::AdvantageEstimator::kOptimalTokenBaseline;
  EXPECT_TRUE(ValidateRlConfig(config, 1).empty());
  correction.bypass_mode = true;
  EXPECT_TRUE(Named(ValidateRlConfig(config, 1), "optimal_token_baseline needs the trainer's own"));
  correction = {};
  correction.rollout_is = rl::ImportanceLevel::kSequence;
  mode = rl::PolicyLossMode::kVespo;
  EXPECT_TRUE(Named(ValidateRlConfig(config, 1), "rollout_is sequence would count"));
}

TEST(ConfigAlgorithmsTest, DpoLossesThatDoNotGoTogetherAreRefused) {
  using enum rl::DpoLossType;
  Config config;
  config.trainer.task = TaskKind::kDpo;
  const DpoSection initial;
  DpoSection& dpo = config.dpo;
  const auto problems = [&](DpoSection section) {
    dpo = std::move(section);
    return ValidateRlConfig(config, 1);
  };
  EXPECT_TRUE(problems(initial).empty());
  DpoSection section = initial;
  section.loss_type = {};
  EXPECT_TRUE(Named(problems(section), "dpo.loss_type is empty"));
  section.loss_type = {kHinge, kHinge};
  EXPECT_TRUE(Named(problems(section), "names a loss twice"));
  section.loss_type = {kSigmoid, kSft};
  EXPECT_TRUE(problems(section).empty());
  section.loss_weights = {1};
  EXPECT_TRUE(Named(problems(section), "has 1 numbers for the 2"));
  section.loss_weights = {0, 0};
  EXPECT_TRUE(Named(problems(section), "nothing would be learnt"));
  section.loss_weights = {};
  section.sft_loss_weight = 0.5;
  EXPECT_TRUE(Named(problems(section), "set one of them only"));
  section = initial;
  section.label_smoothing = 0.1;
  section.loss_type = {kHinge, kIpo};
  EXPECT_TRUE(Named(problems(section), "no meaning with dpo.loss_type hinge, ipo"));
  section.loss_type = {kSigmoid, kRobust};
  EXPECT_TRUE(Named(problems(section), "which TRL does not smooth"));
  section.loss_type = {kExoPair, kRobust, kAot, kAotUnpaired, kHinge};
  EXPECT_TRUE(problems(section).empty());
  section.label_smoothing = 0.5;
  EXPECT_TRUE(Named(problems(section), "below 0.5 with dpo.loss_type robust"));
  section.label_smoothing = 0;
  EXPECT_TRUE(Named(problems(section), "above 0 with dpo.loss_type exo_pair"));
  section = initial;
  section.f_divergence_type = rl::FDivergence::kJsDivergence;
  EXPECT_TRUE(problems(section).empty());
  section.loss_type = {kSigmoid, kNcaPair};
  EXPECT_TRUE(Named(problems(section), "js_divergence has no meaning with dpo.loss_type nca_pair"));
  section = initial;
  section.f_alpha_divergence_coef = 0.3;
  section.discopop_tau = 0.3;
  EXPECT_EQ(problems(section).size(), 2u);
}

}  // namespace
}  // namespace keel::trainer
