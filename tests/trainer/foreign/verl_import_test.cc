#include "trainer/foreign/verl_import.h"

#include <fmt/printf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/foreign/verl_fixture.h"
#include "trainer/foreign/verl_keys.h"

namespace keel::trainer::foreign {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// A launch with Megatron, of the shape of verl's examples: 39 overrides.
constexpr const char* kMegatronScript = R"(set -x
export CUDA_DEVICE_MAX_CONNECTIONS=1  # overlaps
mode="sync"
if [ "$mode" = "async" ]; then
    raw_chat="True"
fi
gsm8k=$HOME/data/gsm8k
files="['$gsm8k/train.parquet', '$HOME/data/math/train.parquet']"
prompt=$((1024 * 2))
DATA=(
    data.train_files="$files"      # two
    data.val_files="['$gsm8k/test.parquet']"
    data.return_raw_chat=$raw_chat
    data.train_batch_size=${BATCH:-1024}
    data.max_prompt_length=$prompt
    data.max_response_length=1024
    data.filter_overlong_prompts=True
    data.truncation='error'
)
python3 -m verl.trainer.main_ppo --config-path=config \
    --config-name='ppo_megatron_trainer.yaml'\
    algorithm.adv_estimator=grpo \
    "${DATA[@]}" \
    actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct \
    actor_rollout_ref.model.use_fused_kernels=False \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.mode=$mode \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 \
    actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=2 \
    actor_rollout_ref.ref.megatron.tensor_model_parallel_size=2 \
    algorithm.use_kl_in_reward=False \
    trainer.critic_warmup=0 \
    trainer.logger='["console","wandb"]' \
    trainer.project_name='grpo' \
    trainer.experiment_name="qwen2_7b_${mode}" \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=1 \
    trainer.save_freq=20 \
    trainer.test_freq=5 \
    trainer.total_epochs=15 $@
)";

// One with FSDP: 37.
constexpr const char* kFsdpScript = R"(
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files=$HOME/data/gsm8k/train.parquet \
    data.val_files=$HOME/data/gsm8k/test.parquet \
    data.train_batch_size=1024 \
    data.max_prompt_length=512 \
    data.max_response_length=1024 \
    data.filter_overlong_prompts=True \
    data.truncation='error' \
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.fsdp_config.param_offload=False \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.n=5 \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32 \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    algorithm.use_kl_in_reward=False \
    trainer.critic_warmup=0 \
    trainer.logger='["console","wandb"]' \
    trainer.project_name='grpo' \
    trainer.experiment_name='qwen3_8b' \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=1 \
    trainer.save_freq=20 \
    trainer.test_freq=5 \
    trainer.total_epochs=15 "$@"
)";

TEST(VerlImport, AScriptWithMegatronIsAnsweredWholeAndValid) {
  const Imported made = Made("run_megatron.sh", kMegatronScript);
  EXPECT_THAT(made.report, HasSubstr("39 of 39 keys are verl 0.9.1's"));
  EXPECT_THAT(made.report, Not(HasSubstr("asked for")));
  EXPECT_THAT(made.unresolved, IsEmpty());
  const LoadedText loaded = Load(made.yaml);
  ASSERT_EQ(loaded.problem, "") << made.yaml;
  EXPECT_THAT(ValidateConfig(loaded.config, 8), IsEmpty());
  const Config& c = loaded.config;
  EXPECT_EQ(c.trainer.task, TaskKind::kRl);
  EXPECT_THAT(c.data.train_files,
              ElementsAre("/home/u/data/gsm8k/train.parquet", "/home/u/data/math/train.parquet"));
  EXPECT_EQ(c.data.train_batch_size, 1024);
  EXPECT_EQ(c.data.max_prompt_length, 2048);
  EXPECT_EQ(c.trainer.default_local_dir, "checkpoints/grpo/qwen2_7b_sync");
  EXPECT_EQ(c.actor_rollout_ref.actor.megatron.pipeline_model_parallel_size, 2);
  EXPECT_TRUE(c.actor_rollout_ref.actor.loss.use_kl_loss);
  EXPECT_EQ(c.algorithm.adv_estimator, rl::AdvantageEstimator::kGrpo);
  EXPECT_FALSE(HasCritic(c));
  // What the script does not say is verl's default, and not Keel's.
  EXPECT_EQ(c.actor_rollout_ref.actor.optim.betas, (std::vector<double>{0.9, 0.999}));
  EXPECT_EQ(c.actor_rollout_ref.actor.optim.weight_decay, 0.01);
  EXPECT_EQ(c.actor_rollout_ref.actor.optim.lr_decay_style, LrDecayStyle::kConstant);
  EXPECT_EQ(c.actor_rollout_ref.model.dtype, WeightDtype::kBfloat16);
}

TEST(VerlImport, AScriptWithFsdpIsAnsweredWholeAndValid) {
  const Imported made = Made("run_fsdp.sh", kFsdpScript);
  EXPECT_THAT(made.report, HasSubstr("37 of 37 keys are verl 0.9.1's"));
  EXPECT_THAT(made.report, Not(HasSubstr("asked for")));
  EXPECT_THAT(made.unresolved, IsEmpty());
  const LoadedText loaded = Load(made.yaml);
  ASSERT_EQ(loaded.problem, "") << made.yaml;
  EXPECT_THAT(ValidateConfig(loaded.config, 8), IsEmpty());
  EXPECT_TRUE(loaded.config.actor_rollout_ref.actor.megatron.optimizer_offload);
  EXPECT_TRUE(loaded.config.actor_rollout_ref.ref.megatron.param_offload);
  EXPECT_EQ(loaded.config.actor_rollout_ref.actor.optim.lr, 1e-6);
}

TEST(VerlImport, ArgumentsOfTheScriptOverrideIt) {
  const Imported made = Made("run.sh", kFsdpScript,
                             {"trainer.total_epochs=3",
                              "+data.apply_chat_template_kwargs."
                              "enable_thinking=False"});
  const LoadedText loaded = Load(made.yaml);
  EXPECT_EQ(loaded.problem, "");
  EXPECT_EQ(loaded.config.trainer.total_epochs, 3);
  EXPECT_THAT(made.report, HasSubstr("give trainer.total_training_steps to have verl's number"));
  EXPECT_EQ(loaded.config.data.apply_chat_template_kwargs, Json({{"enable_thinking", false}}));
}

// Each value that is taken goes through the file and comes back as it was.
TEST(VerlImport, TakenValuesSurviveARoundTrip) {
  Config config;
  const options::Schema schema = MakeSchema(config);
  const KeyTable table(VerlRows());
  int compared = 0;
  for (const options::Option& option : schema.options()) {
    const auto row = table.keys().find(option.path);
    if (row == table.keys().end() || row->second->answer != Answer::kTaken) continue;
    std::string value;
    switch (option.kind) {
      case options::Kind::kBool:
        value = option.initial == Json(true) ? "False" : "True";
        break;
      case options::Kind::kInt:
        value = "3";
        break;
      case options::Kind::kDouble:
        value = "0.375";
        break;
      case options::Kind::kString:
        value = option.choices.empty() ? "a_text" : option.choices.back();
        break;
      case options::Kind::kStringList:
        value = option.choices.empty() ? "[a, b]" : "[" + option.choices.front() + "]";
        break;
      case options::Kind::kIntList:
        value = "[3, 4]";
        break;
      case options::Kind::kDoubleList:
        value = "[0.5, 0.25]";
        break;
      case options::Kind::kMap:
        value = "{a: 1}";
        break;
      case options::Kind::kMapList:
        continue;
    }
    if (option.path == "actor_rollout_ref.actor.clip_ratio_c") value = "2.5";
    if (option.path == "trainer.logger") continue;  // conversions_test.cc
    if (option.path == "trainer.task") continue;
    std::string text =
        "python -m verl.trainer.main_ppo critic.enable=True "
        "reward.custom_reward_function.path=f.py '" +
        option.path + "=" + value + "'";
    if (option.path == "trainer.resume_from_path") text += " trainer.resume_mode=resume_path";
    const Imported made = Made("run.sh", text);
    const LoadedText through = Load(made.yaml);
    ASSERT_EQ(through.problem, "") << option.path;
    Config direct;
    options::Schema alone = MakeSchema(direct);
    ASSERT_TRUE(alone.Load({"x", "trainer: {seed: 1}"}, {option.path + "=" + value}).ok())
        << option.path << value;
    Config whole;
    options::Schema round = MakeSchema(whole);
    ASSERT_TRUE(round.Load({"x", made.yaml}, {}).ok());
    const auto value_in = [&](const options::Schema& from) {
      for (const options::Option& each : from.options()) {
        if (each.path == option.path) return each.get();
      }
      return Json();
    };
    EXPECT_EQ(value_in(round), value_in(alone)) << option.path;
    ++compared;
  }
  EXPECT_GT(compared, 90);
}

TEST(VerlImport, WhatOnlyAShellKnowsIsNamedAndTheFileIsRefused) {
  const Imported made = Made("run.sh",
                             "python -m verl.trainer.main_ppo data.train_batch_size=$N "
                             "trainer.default_local_dir=runs/a "
                             "trainer.project_name=$(date)  # which nothing needs then\n");
  ASSERT_EQ(made.unresolved.size(), 1u);
  EXPECT_THAT(made.unresolved[0], HasSubstr("data.train_batch_size: $N"));
  EXPECT_THAT(Load(made.yaml).problem, HasSubstr("data.train_batch_size: expected an integer"));
}

TEST(VerlImport, SharesOfTheStepsAndOfTheRateAreWorkedOut) {
  const std::string launch = "python -m verl.trainer.main_ppo ";
  const std::string optim = "actor_rollout_ref.actor.optim.";
  const LoadedText loaded =
      Load(Made("a.sh", launch + "trainer.total_training_steps=200 " + optim +
                            "lr_warmup_steps_ratio=0.1 " + optim + "lr=2e-6 " + optim +
                            "lr_scheduler_type=cosine " + optim + "min_lr_ratio=0.1")
               .yaml);
  ASSERT_EQ(loaded.problem, "");
  EXPECT_EQ(loaded.config.actor_rollout_ref.actor.optim.lr_warmup_steps, 20);
  EXPECT_NEAR(loaded.config.actor_rollout_ref.actor.optim.min_lr, 2e-7, 1e-15);
  EXPECT_EQ(loaded.config.trainer.total_training_steps, 200);
  EXPECT_FALSE(loaded.config.trainer.total_epochs);
  // Without the number of steps a share of them is not known.
  EXPECT_THAT(Made("a.sh", launch + optim + "lr_warmup_steps_ratio=0.1").report,
              HasSubstr("asked for:\n  " + optim + "lr_warmup_steps_ratio: 0.1"));
}

TEST(VerlImport, APartOfAFileIsTakenWithVerlsDefaults) {
  const Imported made = Made("part.yaml",
                             "defaults: [ppo_trainer, _self_]\n"
                             "trainer:\n  total_training_steps: 5\n  val_before_train: no\n"
                             "actor_rollout_ref:\n  rollout: {n: 4}\n  model: {path: ~/m}\n");
  const LoadedText loaded = Load(made.yaml);
  ASSERT_EQ(loaded.problem, "") << made.yaml;
  EXPECT_EQ(loaded.config.actor_rollout_ref.rollout.n, 4);
  EXPECT_EQ(loaded.config.actor_rollout_ref.model.path, "/home/u/m");
  EXPECT_FALSE(loaded.config.trainer.val_before_train);
  EXPECT_EQ(loaded.config.actor_rollout_ref.actor.optim.lr, 1e-6);
  EXPECT_TRUE(HasCritic(loaded.config));
  EXPECT_EQ(loaded.config.critic.optim.weight_decay, 0.01);
  EXPECT_FALSE(loaded.config.trainer.nnodes);
}

// They were left out without a word.
TEST(VerlImport, OverridesBehindAFileGoBeforeIt) {
  const std::string file =
      "data: {train_batch_size: 64, train_files: [a.parquet]}\n"
      "actor_rollout_ref:\n  model: {path: m}\n";
  const Imported made = Made("part.yaml", file, {"data.train_batch_size=8", "trainer.n=oops", "x"});
  EXPECT_EQ(Load(made.yaml).config.data.train_batch_size, 8);
  EXPECT_THAT(made.report, HasSubstr("no keys of verl 0.9.1:\n  trainer.n: oops"));
  EXPECT_THAT(made.unresolved, ElementsAre("x is no key=value"));
}

// As in verl's examples/rollout_correction: the weights would be refused here.
TEST(VerlImport, WeightsThatVerlHasForMetricsAloneAreLeftOut) {
  const std::string start =
      "algorithm:\n  adv_estimator: grpo\n  rollout_correction:\n"
      "    bypass_mode: true\n    rollout_is: token\n    rollout_is_threshold: 3.0\n";
  const Imported clipped = Made("clipped.yaml", start + "    loss_type: ppo_clip\n");
  EXPECT_THAT(clipped.report, HasSubstr("rollout_is is left out"));
  const LoadedText loaded = Load(clipped.yaml);
  ASSERT_EQ(loaded.problem, "") << clipped.yaml;
  EXPECT_TRUE(loaded.config.algorithm.rollout_correction.bypass_mode);
  EXPECT_FALSE(loaded.config.algorithm.rollout_correction.rollout_is);
  const Imported reinforce = Made("reinforce.yaml", start + "    loss_type: reinforce\n");
  EXPECT_THAT(reinforce.report, Not(HasSubstr("rollout_is is left out")));
  EXPECT_EQ(Load(reinforce.yaml).config.algorithm.rollout_correction.rollout_is,
            rl::ImportanceLevel::kToken);
}

// verl's RolloutCorrectionConfig.bypass_ppo_clip_geo_rs and bypass_pg_geo_rs_token_tis.
TEST(VerlImport, RejectionWithinTheUpdateIsTaken) {
  const std::string start =
      "algorithm:\n  adv_estimator: grpo\n  rollout_correction:\n    bypass_mode: true\n"
      "    rollout_rs: seq_mean_k1\n    rollout_rs_threshold: 0.999_1.001\n";
  for (const char* loss : {"    loss_type: ppo_clip\n",
                           "    loss_type: reinforce\n    rollout_is: token\n"
                           "    rollout_is_threshold: 2.0\n"}) {
    const Imported made = Made("rejecting.yaml", start + loss);
    const LoadedText loaded = Load(made.yaml);
    ASSERT_EQ(loaded.problem, "") << made.yaml;
    EXPECT_TRUE(ValidateRlConfig(loaded.config, 1).empty());
    EXPECT_EQ(loaded.config.algorithm.rollout_correction.rollout_rs, "seq_mean_k1");
  }
}

// The folder of every experiment would be Keel's own default.
TEST(VerlImport, ANameThatIsNotKnownIsNoFolder) {
  const std::string launch =
      "python3 -m verl.trainer.main_ppo data.train_files=a trainer.project_name=p ";
  const Imported dated = Made("dated.sh", launch + "trainer.experiment_name=lr1-$(date +%m%d)");
  EXPECT_THAT(dated.unresolved, SizeIs(1));
  EXPECT_THAT(dated.report,
              HasSubstr("trainer.default_local_dir is not given, and verl makes it of"));
  const Imported named = Made("named.sh", launch + "trainer.experiment_name=lr1");
  EXPECT_THAT(named.yaml, HasSubstr("default_local_dir: checkpoints/p/lr1"));
  EXPECT_THAT(
      Made("given.sh", launch + "trainer.experiment_name=$(date) trainer.default_local_dir=runs/a")
          .report,
      Not(HasSubstr("trainer.default_local_dir is not given")));
}

// What DAPO takes off long responses would otherwise not be taken off, and nobody hear of it.
TEST(VerlImport, TheNamesOfDaposFirstScriptsAreTaken) {
  const Imported made = Made("dapo.sh", R"(python3 -m recipe.dapo.main_dapo \
    algorithm.adv_estimator=grpo algorithm.filter_groups.enable=True \
    algorithm.filter_groups.metric=seq_final_reward reward_model.reward_manager=dapo \
    data.train_files=a.parquet actor_rollout_ref.model.path=m \
    reward_model.overlong_buffer.enable=True +reward_model.overlong_buffer.len=4096 \
    reward_model.overlong_buffer.penalty_factor=0.5 reward_model.overlong_buffer.log=True)");
  EXPECT_THAT(made.yaml, HasSubstr("overlong_buffer:\n    enable: true"));
  EXPECT_THAT(made.yaml, HasSubstr("len: 4096"));
  EXPECT_THAT(made.yaml, HasSubstr("penalty_factor: 0.5"));
  EXPECT_THAT(made.report, Not(HasSubstr("of reward_model.enable")));
  EXPECT_THAT(made.yaml, Not(HasSubstr("seq_final_reward")));
  // `score` is the verifier's, before that.
  EXPECT_THAT(Made("score.sh",
                   "python3 -m verl.trainer.main_ppo algorithm.filter_groups.enable=True "
                   "algorithm.filter_groups.metric=score data.train_files=a")
                  .yaml,
              HasSubstr("metric: score"));
}

// A buffer that ends elsewhere, and a length of the rollout's own, are other runs.
TEST(VerlImport, LengthsThatDifferFromTheDatasAreNamed) {
  const std::string launch =
      "python -m verl.trainer.main_ppo data.max_response_length=1024 data.max_prompt_length=512 ";
  const std::string rollout = "actor_rollout_ref.rollout.";
  EXPECT_THAT(Made("a.sh", launch + "reward.reward_kwargs.max_resp_len=1024 " + rollout +
                               "response_length=1024 " + rollout + "prompt_length=512")
                  .report,
              Not(HasSubstr("asked for")));
  for (const std::string other :
       {"+reward.reward_kwargs.max_resp_len=8192", "+reward_model.reward_kwargs.max_resp_len=8192",
        "actor_rollout_ref.rollout.response_length=8192",
        "actor_rollout_ref.rollout.prompt_length=8192"})
    EXPECT_THAT(Made("a.sh", launch + other).report, HasSubstr("asked for:\n")) << other;
}

// Of Megatron's own settings, too, those that are another loss or another precision.
TEST(VerlImport, WhatChangesTheLossIsNoDetailOfMegatrons) {
  const std::string launch =
      "python -m verl.trainer.main_ppo "
      "+actor_rollout_ref.actor.megatron.override_transformer_config.";
  for (const std::string changes :
       {"moe_aux_loss_coeff=0.01", "moe_z_loss_coeff=0.001", "hidden_dropout=0.1", "fp8=hybrid"})
    EXPECT_THAT(Made("a.sh", launch + changes).report, HasSubstr("asked for:\n")) << changes;
  for (const std::string how : {"moe_aux_loss_coeff=0.0", "hidden_dropout=0.0", "fp8=null",
                                "moe_permute_fusion=True", "recompute_granularity=full"})
    EXPECT_THAT(Made("a.sh", launch + how).report, Not(HasSubstr("asked for"))) << how;
  EXPECT_THAT(Made("a.sh",
                   "python -m verl.trainer.main_ppo "
                   "actor_rollout_ref.rollout.agent.default_agent_loop=mine")
                  .report,
              HasSubstr("asked for:\n"));
}

// verl 0.9 chooses the loop of a response by its name alone.
TEST(VerlImport, TheLoopOfToolsIsTheirs) {
  const auto enabled = [](const std::string& loop) {
    const Imported made = Made("a.sh",
                               "python -m verl.trainer.main_ppo "
                               "actor_rollout_ref.rollout.multi_turn.tool_config_path=t.yaml "
                               "actor_rollout_ref.rollout.agent.default_agent_loop=" +
                                   loop);
    EXPECT_THAT(made.report, Not(HasSubstr("asked for"))) << loop;
    const LoadedText loaded = Load(made.yaml);
    EXPECT_EQ(loaded.problem, "") << loop;
    return loaded.config.actor_rollout_ref.rollout.multi_turn.enable;
  };
  EXPECT_TRUE(enabled("tool_agent"));
  EXPECT_FALSE(enabled("single_turn_agent"));
}

// verl's agent loop reads the temperature alone; its greedy validation is a temperature of 0.
TEST(VerlImport, AValidationDrawsByItsTemperature) {
  const std::string launch = "python -m verl.trainer.main_ppo ";
  const std::string validation = "actor_rollout_ref.rollout.val_kwargs.";
  const auto draws = [&](const std::string& words) {
    const LoadedText loaded = Load(Made("a.sh", launch + words).yaml);
    EXPECT_EQ(loaded.problem, "");
    return loaded.config.actor_rollout_ref.rollout.val_kwargs.do_sample;
  };
  EXPECT_TRUE(draws(validation + "temperature=0.6"));
  EXPECT_TRUE(draws(validation + "temperature=1.0 " + validation + "do_sample=False"));
  EXPECT_FALSE(draws(validation + "temperature=0"));
  EXPECT_FALSE(draws(""));
}

TEST(VerlImport, TheBufferIsOfTheManagerThatKnowsIt) {
  const std::string launch =
      "python -m verl.trainer.main_ppo reward.reward_kwargs.overlong_buffer_cfg.enable=True "
      "reward.reward_kwargs.overlong_buffer_cfg.len=64 ";
  const Imported naive = Made("a.sh", launch);
  EXPECT_THAT(naive.yaml, Not(HasSubstr("overlong_buffer")));
  EXPECT_THAT(naive.report, HasSubstr("overlong_buffer is left out"));
  for (const std::string manager :
       {"reward.reward_manager.name=dapo", "reward_model.reward_manager=dapo"})
    EXPECT_THAT(Made("a.sh", launch + manager).yaml, HasSubstr("len: 64")) << manager;
}

// verl's own examples have both, and its trainer looks at neither.
TEST(VerlImport, WhatVerlDoesNotLookAtIsLeftOut) {
  const std::string keys = "algorithm.lam=0.95 trainer.resume_from_path=checkpoints/ ";
  for (const std::string program : {"verl.trainer.main_ppo", "verl.trainer.main_ppo_sync"}) {
    const Imported made =
        Made("a.sh", "python -m " + program + " algorithm.adv_estimator=grpo " + keys);
    EXPECT_THAT(made.report, HasSubstr("algorithm.lam is left out"));
    EXPECT_THAT(made.report, HasSubstr("trainer.resume_from_path is left out"));
    EXPECT_THAT(made.yaml, Not(HasSubstr("resume_from_path")));
    EXPECT_EQ(Load(made.yaml).config.algorithm.lam, 1);
  }
  const Imported kept =
      Made("a.sh", "python -m verl.trainer.main_ppo trainer.resume_mode=resume_path " + keys);
  EXPECT_THAT(kept.yaml, HasSubstr("resume_from_path: checkpoints/"));
  EXPECT_EQ(Load(kept.yaml).config.algorithm.lam, 0.95);
}

TEST(VerlImport, TheOldNameOfTheScheduleIsTaken) {
  const LoadedText loaded =
      Load(Made("a.sh",
                "python -m verl.trainer.main_ppo actor_rollout_ref.actor.optim.warmup_style=cosine "
                "critic.optim.warmup_style=cosine actor_rollout_ref.actor.optim.min_lr_ratio=0.5")
               .yaml);
  ASSERT_EQ(loaded.problem, "");
  EXPECT_EQ(loaded.config.actor_rollout_ref.actor.optim.lr_decay_style, LrDecayStyle::kCosine);
  EXPECT_EQ(loaded.config.critic.optim.lr_decay_style, LrDecayStyle::kCosine);
  EXPECT_NEAR(loaded.config.actor_rollout_ref.actor.optim.min_lr, 5e-7, 1e-15);
}

TEST(VerlImport, WhatOlderVerlDidOtherwiseIsAskedFor) {
  const auto unresolved = [](const std::string& overrides) {
    return Made("a.sh", "python3 -m verl.trainer.main_ppo " + overrides + "\n").unresolved;
  };
  const std::string actor = "actor_rollout_ref.actor.";
  const std::string old = actor + "ppo_micro_batch_size=8 ";
  EXPECT_THAT(unresolved(old), ElementsAre(HasSubstr("use_kl_in_reward is not given"),
                                           HasSubstr("entropy_coeff is not given")));
  EXPECT_THAT(unresolved("algorithm.kl_ctrl.kl_coef=0.001"),
              ElementsAre(HasSubstr("use_kl_in_reward is not given")));
  EXPECT_THAT(unresolved(old + actor + "use_kl_loss=True " + actor + "entropy_coeff=0"), IsEmpty());
  EXPECT_THAT(unresolved(old + actor + "entropy_coeff=0 algorithm.kl_ctrl.kl_coef=0.0"), IsEmpty());
  EXPECT_THAT(unresolved(old + "algorithm.use_kl_in_reward=True"), IsEmpty());
  EXPECT_THAT(unresolved(actor + "ppo_micro_batch_size_per_gpu=8"), IsEmpty());
}

TEST(VerlImport, NamesOfForksAreTakenAndWhatTheyAddIsNamed) {
  const Imported imported = Made("a.sh", R"(python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n_agent=5 \
    actor_rollout_ref.rollout.n_val=3 actor_rollout_ref.rollout.val_temperature=0.6 \
    actor_rollout_ref.actor.loss_mode=clip_cov actor_rollout_ref.actor.clip_cov_ratio=0.001 \
    reward_model.structure_format_score=0.2 reward_model.model.path=rm
)");
  const LoadedText loaded = Load(imported.yaml);
  const auto& section = loaded.config.actor_rollout_ref;
  EXPECT_EQ(section.rollout.n, 5);
  EXPECT_EQ(section.rollout.val_kwargs.n, 3);
  EXPECT_EQ(section.rollout.val_kwargs.temperature, 0.6);
  EXPECT_EQ(section.actor.loss.policy_loss.loss_mode, rl::PolicyLossMode::kClipCov);
  EXPECT_EQ(section.actor.loss.policy_loss.clip_cov_ratio, 0.001);
  EXPECT_THAT(imported.yaml, HasSubstr("# NOT TAKEN: reward_model.structure_format_score"));
  EXPECT_THAT(imported.yaml, Not(HasSubstr("# NOT TAKEN: reward_model.model.path")));
}

TEST(VerlImport, ASectionGivenAsAMapIsItsKeys) {
  const Imported imported =
      Made("run.sh",
           "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.optim.weight_decay=0.5 "
           "'actor_rollout_ref.actor.optim={lr:1e-5,betas:[0.8,0.9]}' "
           "'+data.apply_chat_template_kwargs={enable_thinking:False}' "
           "'actor_rollout_ref.rollout.val_kwargs={temperature:0.7,top_p:0.9}'\n");
  const LoadedText loaded = Load(imported.yaml);
  EXPECT_EQ(loaded.problem, "");
  const auto& actor = loaded.config.actor_rollout_ref.actor;
  EXPECT_EQ(actor.optim.lr, 1e-5);
  EXPECT_EQ(actor.optim.betas, (std::vector<double>{0.8, 0.9}));
  EXPECT_EQ(actor.optim.weight_decay, 0.5);
  EXPECT_EQ(loaded.config.data.apply_chat_template_kwargs, Json({{"enable_thinking", false}}));
  EXPECT_EQ(loaded.config.actor_rollout_ref.rollout.val_kwargs.top_p, 0.9);
  EXPECT_TRUE(loaded.config.actor_rollout_ref.rollout.val_kwargs.do_sample);
  EXPECT_THAT(imported.report, Not(HasSubstr("no keys of")));
}

TEST(VerlImport, AFileWithoutAKeyOfVerlsIsRefused) {
  // A group's file of verl, whose keys stand elsewhere, and something else altogether.
  for (const char* text : {"_target_: a.B\nppo_mini_batch_size: 64\nclip_ratio: 0.1\n",
                           "name: job\nresources: {accelerators: H100}\nrun: |\n  python3 -m "
                           "verl.trainer.main_ppo data.train_batch_size=8\n"}) {
    const auto imported = ImportVerl("actor.yaml", text);
    EXPECT_EQ(imported.status().code(), StatusCode::kConfig);
    EXPECT_THAT(imported.status().message(), HasSubstr("actor.yaml: none of its 3 keys is verl"));
  }
  Made("run.sh", "python3 -m verl.trainer.main_ppo\n");
}

TEST(VerlImport, FilesThatAFileIsPutTogetherFromAreNamed) {
  const char* text = "defaults: [%s, _self_]\ndata: {train_batch_size: 8}\n";
  EXPECT_THAT(
      Made("a.yaml", "hydra: {searchpath: [x]}\n" + fmt::sprintf(text, "ppo_trainer")).unresolved,
      IsEmpty());
  EXPECT_THAT(
      Made("a.yaml", fmt::sprintf(text, "{actor@actor_rollout_ref.actor: dp_actor}")).unresolved,
      IsEmpty());
  EXPECT_THAT(Made("a.yaml", fmt::sprintf(text, "/my_base")).unresolved,
              ElementsAre(HasSubstr("defaults: the values of my_base are not here")));
}

// Each of them once asked for nothing, whatever it was.
TEST(VerlImport, WhatTheActorAsksForStandsFirst) {
  const std::string actor = "actor_rollout_ref.actor.";
  for (const std::string asked :
       {"ulysses_sequence_parallel_size=4", "profiler.enable=True", "router_replay.mode=R2",
        "megatron.router_replay.mode=R3", "veomni.router_replay.mode=R2"}) {
    const Imported imported =
        Made("run.sh", "python3 -m verl.trainer.main_ppo " + actor + asked + "\n");
    const std::string key = actor + asked.substr(0, asked.find('='));
    EXPECT_THAT(imported.yaml, HasSubstr("# NOT TAKEN: " + key + ": "));
  }
  // Others have the actor's.
  const Imported imported =
      Made("a.yaml",
           "actor_rollout_ref:\n  actor: {ulysses_sequence_parallel_size: 4}\n  ref:\n    "
           "ulysses_sequence_parallel_size: "
           "${oc.select:actor_rollout_ref.actor.ulysses_sequence_parallel_size,1}\n");
  EXPECT_THAT(imported.yaml, Not(HasSubstr("ref.ulysses")));
}

TEST(VerlImport, EpochsBesideStepsAreLeftOutWithAWord) {
  const std::string script =
      "python3 -m verl.trainer.main_ppo trainer.total_training_steps=100 trainer.total_epochs=";
  const Imported imported = Made("run.sh", script + "1\n");
  EXPECT_THAT(imported.report, HasSubstr("trainer.total_epochs is left out"));
  EXPECT_EQ(Load(imported.yaml).problem, "");
  EXPECT_THAT(imported.yaml, Not(HasSubstr("total_epochs")));
  EXPECT_THAT(
      Made("run.sh", "python3 -m verl.trainer.main_ppo trainer.total_training_steps=100\n").report,
      Not(HasSubstr("left out: trainer.total_training_steps")));
}

TEST(VerlImport, WhatYamlAloneHasAMeaningForIsText) {
  for (const std::string text : {"%d/train", "|", ">x", "!x"}) {
    const Imported imported = Made("run.sh",
                                   "python3 -m verl.trainer.main_ppo "
                                   "'+data.apply_chat_template_kwargs.v=" +
                                       text + "'\n");
    EXPECT_EQ(Load(imported.yaml).config.data.apply_chat_template_kwargs, Json({{"v", text}}));
  }
}

}  // namespace
}  // namespace keel::trainer::foreign
