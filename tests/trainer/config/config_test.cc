// What the configuration layer refuses, and how it says so.

#include "trainer/config/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/trainer/data/tokens/scratch_folder.h"
#include "trainer/config/config_data.h"

namespace keel::trainer {
namespace {

Status LoadText(const std::string& text, const std::vector<std::string>& overrides = {}) {
  Config config;
  return MakeSchema(config).Load({"run.yaml", text}, overrides);
}

// A key of the actor's is no advice for the rollout, nor for the critic.
TEST(ConfigTest, NoKeyOfAnotherRoleIsSuggested) {
  for (const char* text : {"actor_rollout_ref: {rollout: {mode: async}}\n",
                           "actor_rollout_ref: {ref: {strategy: x, lr: 1}}\n",
                           "critic: {clip_ratio: 1}\n", "critic: {optim: {use_kl_loss: true}}\n"}) {
    const Status status = LoadText(text);
    EXPECT_EQ(status.code(), StatusCode::kConfig) << text;
    EXPECT_EQ(status.message().find("did you mean actor_rollout_ref.actor"), std::string::npos)
        << status.message();
  }
}

TEST(ConfigTest, RefusalsNamePlaceExpectationAndWayOut) {
  struct Case {
    const char* text;
    std::vector<const char*> parts;
  };
  for (const Case& c : {
           Case{"trainer:\n  sed: 1\n",
                {"run.yaml:2:3: error: trainer.sed: unknown key", "  sed: 1",
                 "did you mean trainer.seed?"}},
           Case{"trainer:\n  seed: x\n",
                {"run.yaml:2:9:", "trainer.seed: expected an integer, got \"x\""}},
           Case{"trainer:\n  seed: \"1\"\n", {"expected an integer, got the string \"1\""}},
           Case{"trainer:\n  seed: 010\n", {"leading zeros"}},
           Case{"trainer:\n  seed: 1\n  seed: 2\n",
                {"run.yaml:3:3", "duplicate key \"seed\", first given at line 2"}},
           Case{"trainer: {task: pretrian}\n",
                {"expected one of pretrain, sft, dpo, rl", "did you mean pretrain?"}},
           Case{"data:\n  max_length: 1\n", {"data.max_length: expected at least 2, got 1"}},
           Case{"trainer:\n  val_before_train: yes\n",
                {"expected true or false", "write true or false"}},
           Case{"trainer:\n  val_before_train: \"True\"\n", {"expected true or false"}},
           Case{"trainer:\n  rollout_data_dir: None\n", {"a string or null", "write null"}},
           Case{"trainer:\n  default_local_dir: None\n", {"expected a string", "put it in quotes"}},
           Case{"data:\n  val_files: None\n", {"a list of strings", "write []"}},
           Case{"data:\n  val_files: null\n", {"a list of strings", "write []"}},
           Case{"a: &x 1\nb: *x\n", {"anchors", "aliases"}},
           Case{"trainer: !!map {}\n", {"tag"}},
           Case{"trainer: {<<: 1}\n", {"merge keys"}},
           Case{"trainer: 3\n", {"trainer: expected a map, got \"3\""}},
           Case{"data: {train_files: a.txt}\n", {"expected a list of strings", "write [a.txt]"}},
           Case{"trainer: [\n", {"run.yaml:"}},
           Case{"actor_rollout_ref:\n  model:\n    config: {\"a\\_b\": \"\\N\"}\n",
                {"run.yaml:3:14: error: \"a\\xa0b\"",
                 "run.yaml:3:22:", "an escape in it gives no UTF-8"}},
           Case{"actor_rollout_ref:\n  actor:\n    optim: {eps: 0}\n", {"expected above 0, got 0"}},
           Case{"seed: 3\n", {"seed: unknown key", "did you mean trainer.seed?"}},
           Case{"trainer: {lr: 3}\n", {"did you mean actor_rollout_ref.actor.optim.lr?"}},
           Case{"critic: {clip_grad: 3}\n", {"did you mean critic.optim.clip_grad?"}},
       }) {
    const Status status = LoadText(c.text);
    EXPECT_EQ(status.code(), StatusCode::kConfig) << c.text;
    for (const char* part : c.parts)
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  EXPECT_FALSE(LoadText(std::string(600, '[')).ok());
  EXPECT_FALSE(LoadText(std::string(2 << 20, ' ')).ok());
}

// Every choice of every key: what is parsed is what is printed, in this order, and nothing else.
TEST(ConfigTest, EveryChoiceIsPrintedAsItIsRead) {
  Config config;
  options::Schema schema = MakeSchema(config);
  int choices = 0;
  for (const options::Option& option : schema.options()) {
    const bool list = option.kind == options::Kind::kStringList;
    for (const std::string& choice : option.choices) {
      option.set(list ? Json::array({choice}) : Json(choice));
      EXPECT_EQ(option.get(), list && !option.or_one ? Json::array({choice}) : Json(choice))
          << option.path;
      ++choices;
    }
    if (option.choices.empty()) continue;
    const std::string wrong = list ? "[nonsense]" : "nonsense";
    EXPECT_NE(LoadText("", {option.path + "=" + wrong})
                  .message()
                  .find(fmt::format("{}: expected one of {}, got \"nonsense\"", option.path,
                                    fmt::join(option.choices, ", "))),
              std::string::npos)
        << option.path;
  }
  EXPECT_GT(choices, 100);
  for (const auto& [text, expected] :
       {std::pair{"algorithm.kl_penalty=k1+",
                  "expected one of kl, k1, abs, mse, k2, low_var_kl, k3, got"},
        {"actor_rollout_ref.actor.checkpoint.io=fast",
         "expected one of auto, buffered, direct, io_uring, got"},
        {"reward.type=sums",
         "expected one of auto, exact, arithmetic, countdown, gsm8k, math, command, http, python, "
         "got"}}) {
    EXPECT_NE(LoadText("", {text}).message().find(expected), std::string::npos) << text;
  }
}

TEST(ConfigTest, AllProblemsAreReportedAtOnce) {
  const Status status = LoadText("trainer: {seed: x, tas: sft}\ndata: {shuffle: 3}\n",
                                 {"data.max_length=y", "~nothing.here"});
  for (const char* part :
       {"trainer.seed", "trainer.tas", "data.shuffle", "data.max_length=y", "nothing.here"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

TEST(ConfigTest, OverridesAndResolvedDump) {
  Config config;
  options::Schema schema = MakeSchema(config);
  ASSERT_TRUE(
      schema
          .Load({"run.yaml", "trainer: {seed: 1e3, total_training_steps: 7}\n"},
                {"data.train_files=[a.txt, 'b c.txt']", "+trainer.task=sft",
                 "~trainer.total_training_steps", "actor_rollout_ref.model.config.hidden_size=64",
                 "actor_rollout_ref.actor.optim.lr=3e-4", "trainer.rollout_data_dir='None'"})
          .ok());
  EXPECT_EQ(config.trainer.seed, 1000);
  EXPECT_FALSE(config.trainer.total_training_steps);
  EXPECT_EQ(config.data.train_files, (std::vector<std::string>{"a.txt", "b c.txt"}));
  EXPECT_EQ(config.trainer.task, TaskKind::kSft);
  EXPECT_EQ(config.actor_rollout_ref.model.config["hidden_size"], 64);
  EXPECT_EQ(schema.Origin("trainer.seed"), "run.yaml:1");
  EXPECT_EQ(schema.Origin("trainer.task"), "command line");
  // The dump reads back to the same values, and says the same again.
  const std::string dump = schema.Dump(false);
  Config again;
  options::Schema second = MakeSchema(again);
  const Status status = second.Load({"dump.yaml", dump}, {});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(second.Dump(false), dump);
  EXPECT_EQ(again.actor_rollout_ref.actor.optim.lr, 3e-4);
}

// What verl's files and scripts, Hydra and Python write.
TEST(ConfigTest, PythonsTrueAndFalseAndVerlsMinusOneAreUnderstood) {
  Config config;
  ASSERT_TRUE(MakeSchema(config)
                  .Load({"run.yaml",
                         "trainer: {val_before_train: True, remove_previous_ckpt_in_save: TRUE}\n"
                         "data: {shuffle: FALSE}\n"
                         "critic: {optim: {lr_warmup_steps: -1}}\n"
                         "actor_rollout_ref: {model: {config: {tie_word_embeddings: True}}}\n"},
                        {"trainer.val_before_train=False",
                         "actor_rollout_ref.model.enable_gradient_checkpointing=True",
                         "actor_rollout_ref.actor.optim.lr_warmup_steps=-1"})
                  .ok());
  EXPECT_FALSE(config.trainer.val_before_train);
  EXPECT_TRUE(config.trainer.remove_previous_ckpt_in_save);
  EXPECT_FALSE(config.data.shuffle);
  EXPECT_TRUE(config.actor_rollout_ref.model.enable_gradient_checkpointing);
  EXPECT_EQ(config.actor_rollout_ref.model.config["tie_word_embeddings"], true);
  EXPECT_EQ(config.actor_rollout_ref.actor.optim.lr_warmup_steps, -1);
  EXPECT_FALSE(LoadText("", {"critic.optim.lr_warmup_steps=-2"}).ok());
}

// Everybody who gave a model to configs/sft.yaml was told to take its own small one out.
TEST(ConfigTest, AModelOfTheCommandLineTakesThePlaceOfTheFiles) {
  const ScratchFolder folder;
  const std::string path = folder.Path("model.yaml");
  const auto load = [&](const std::string& model, const std::vector<std::string>& overrides) {
    std::ofstream(path) << "trainer: {total_training_steps: 1}\ndata: {train_files: [x]}\n"
                           "actor_rollout_ref:\n  model: " +
                               model + "\n";
    return ValueOrThrow(LoadConfig(path, overrides));
  };
  const std::string small = "{config: {model_type: llama}}";
  const LoadedConfig given = load(small, {"actor_rollout_ref.model.path=/m"});
  EXPECT_TRUE(ValidateConfig(given.config, 1).empty());
  EXPECT_EQ(given.config.actor_rollout_ref.model.path, "/m");
  EXPECT_TRUE(given.config.actor_rollout_ref.model.config.empty());
  ASSERT_EQ(given.notes.size(), 1u);
  EXPECT_NE(given.notes[0].find("model.yaml:4"), std::string::npos) << given.notes[0];
  EXPECT_NE(given.resolved.find("config: {}"), std::string::npos);
  const LoadedConfig keys = load("{path: /m}", {"actor_rollout_ref.model.config.model_type=llama"});
  EXPECT_FALSE(keys.config.actor_rollout_ref.model.path);
  EXPECT_EQ(keys.notes.size(), 1u);
  // Where neither is the later word both are refused, with the way out.
  for (const LoadedConfig& both :
       {load("{path: /m, config: {model_type: llama}}", {}),
        load("{}", {"actor_rollout_ref.model.path=/m", "actor_rollout_ref.model.config.a=1"})}) {
    EXPECT_TRUE(both.notes.empty());
    ASSERT_EQ(ValidateConfig(both.config, 1).size(), 1u);
    EXPECT_NE(ValidateConfig(both.config, 1)[0].find("~actor_rollout_ref.model.config"),
              std::string::npos);
  }
  EXPECT_TRUE(load(small, {"actor_rollout_ref.model.config={}"})
                  .config.actor_rollout_ref.model.config.empty());
  std::remove(path.c_str());
}

TEST(ConfigTest, WhatDoesNotFitTogetherNamesBothKeys) {
  Config config;
  config.trainer.total_training_steps = 1;
  config.data.train_files = {"x"};
  config.actor_rollout_ref.model.config["model_type"] = "llama";
  EXPECT_TRUE(ValidateConfig(config, 1).empty());
  config.actor_rollout_ref.actor.megatron.tensor_model_parallel_size = 2;
  config.actor_rollout_ref.actor.megatron.pipeline_model_parallel_size = 2;
  const auto world = ValidateConfig(config, 6);
  ASSERT_FALSE(world.empty());
  EXPECT_NE(world[0].find("world size 6 != dp 1 x tp 2 x pp 2 = 4"), std::string::npos) << world[0];
  config.data.train_batch_size = 7;
  EXPECT_EQ(ValidateConfig(config, 8).size(), 1u);  // 7 over dp 2
  config.trainer.task = TaskKind::kRl;
  config.trainer.save_before_deadline = "90 minutes";
  config.actor_rollout_ref.actor.checkpoint.staging.host_memory_cap = 4096;
  EXPECT_EQ(ValidateConfig(config, 8).size(), 3u);
  // What generates in turns with training divides the same ranks, whatever layout trains.
  config.actor_rollout_ref.rollout.tensor_model_parallel_size = 3;
  const auto replicas = ValidateConfig(config, 8);
  ASSERT_EQ(replicas.size(), 4u);
  EXPECT_EQ(replicas[0],
            "actor_rollout_ref.rollout.tensor_model_parallel_size: 8 ranks do not divide into "
            "replicas of 3");
  config.async_training.placement = Placement::kSplit;
  for (const std::string& problem : ValidateConfig(config, 8))
    EXPECT_EQ(problem.find("replicas of 3"), std::string::npos) << problem;
}

TEST(ConfigTest, RatesThatWouldNotBeWhatIsWrittenAreRefused) {
  Config config;
  config.trainer.task = TaskKind::kRl;
  config.trainer.total_training_steps = 9;
  config.data.train_files = {"x"};
  config.actor_rollout_ref.model.config["model_type"] = "llama";
  config.algorithm.adv_estimator = rl::AdvantageEstimator::kGrpo;
  EXPECT_TRUE(ValidateConfig(config, 1).empty());
  OptimSection& actor = config.actor_rollout_ref.actor.optim;
  actor.lr_decay_style = LrDecayStyle::kCosine;
  actor.lr_warmup_steps = 4;
  actor.lr_decay_steps = 5;
  EXPECT_TRUE(ValidateConfig(config, 1).empty());
  actor.lr_decay_steps = 4;
  ASSERT_EQ(ValidateConfig(config, 1).size(), 1u);
  EXPECT_NE(ValidateConfig(config, 1)[0].find("lr_decay_steps 4 counts the 4"), std::string::npos);
  actor.lr_decay_style = LrDecayStyle::kConstant;
  EXPECT_TRUE(ValidateConfig(config, 1).empty());
  // A critic's, and a critic that there is none of.
  config.critic.model.path = "hf";
  EXPECT_EQ(ValidateConfig(config, 1).size(), 1u);
  config.algorithm.adv_estimator = rl::AdvantageEstimator::kGae;
  config.critic.optim.lr_decay_style = LrDecayStyle::kCosine;
  config.critic.optim.min_lr = 1;
  ASSERT_EQ(ValidateConfig(config, 1).size(), 1u);
  EXPECT_EQ(ValidateConfig(config, 1)[0], "critic.optim.min_lr is above critic.optim.lr");
}

// Of steps of more responses than five horizons the controller would change the coefficient's sign,
// and the checkpoint of such a step be refused.
TEST(ConfigTest, AHorizonThatOneStepPassesIsRefused) {
  Config config;
  config.trainer.task = TaskKind::kRl;
  config.data.train_batch_size = 64;
  config.actor_rollout_ref.rollout.n = 8;
  config.algorithm.use_kl_in_reward = true;
  config.algorithm.kl_ctrl.type = rl::KlControl::kAdaptive;
  config.algorithm.kl_ctrl.horizon = 102;
  ASSERT_EQ(ValidateRlConfig(config, 1).size(), 1u);
  EXPECT_EQ(ValidateRlConfig(config, 1)[0],
            "algorithm.kl_ctrl.horizon 102 is too short for steps of 512 responses "
            "(data.train_batch_size x actor_rollout_ref.rollout.n): one step could take the "
            "coefficient to 0 or below; raise it above 102.4");
  config.algorithm.kl_ctrl.horizon = 103;
  EXPECT_TRUE(ValidateRlConfig(config, 1).empty());
  config.algorithm.kl_ctrl = {rl::KlControl::kFixed, 0.1, 1, 0.1};
  EXPECT_TRUE(ValidateRlConfig(config, 1).empty());
}

TEST(ConfigTest, RlSettingsThatDoNotGoTogetherAreRefusedAtOnce) {
  Config config;
  config.trainer.task = TaskKind::kRl;
  config.data.train_batch_size = 8;
  EXPECT_TRUE(ValidateRlConfig(config, 2).empty());
  // Responses are dealt out, not prompts.
  config.actor_rollout_ref.actor.loss.ppo_mini_batch_size = 1;
  config.actor_rollout_ref.rollout.n = 4;
  EXPECT_TRUE(ValidateRlConfig(config, 4).empty());
  EXPECT_EQ(ValidateRlConfig(config, 8).size(), 1u);
  config.actor_rollout_ref.rollout.n = 1;
  config.critic.enable = false;  // gae
  config.trainer.critic_warmup = 3;
  config.actor_rollout_ref.actor.loss.ppo_mini_batch_size = 3;  // neither of 8 nor over dp 2
  config.actor_rollout_ref.actor.loss.loss_scale_factor = 7;
  config.algorithm.rollout_correction.rollout_is = rl::ImportanceLevel::kToken;
  config.algorithm.rollout_correction.rollout_is_threshold = "0";
  config.reward.type = rewards::RewardType::kHttp;
  config.reward.overlong_buffer = {true, 1000, 1};
  const auto problems = ValidateRlConfig(config, 2);
  for (const char* part :
       {"critic.enable", "trainer.critic_warmup", "data.train_batch_size 8 is not a multiple",
        "ppo_mini_batch_size 3 x actor_rollout_ref.rollout.n 1 = 3 responses", "loss_scale_factor",
        "rollout_is_threshold is '0'", "reward.url", "reward.overlong_buffer.len 1000"}) {
    EXPECT_TRUE(std::any_of(problems.begin(), problems.end(), [&](const std::string& p) {
      return p.find(part) != std::string::npos;
    })) << part;
  }
  EXPECT_EQ(problems.size(), 8u);
  config.algorithm.adv_estimator = rl::AdvantageEstimator::kRemax;
  config.algorithm.filter_groups.enable = true;
  config.algorithm.gamma = config.algorithm.lam = 0.5;
  const auto of_remax = ValidateRlConfig(config, 2);
  for (const char* sentence :
       {"algorithm.lam is of gae alone; algorithm.adv_estimator is remax: leave it at 1",
        "algorithm.gamma has no effect with algorithm.adv_estimator remax: leave it at 1",
        "algorithm.filter_groups.enable needs groups of samples, which remax does not have"}) {
    EXPECT_EQ(std::count(of_remax.begin(), of_remax.end(), sentence), 1) << sentence;
  }
  config.trainer.task = TaskKind::kSft;
  EXPECT_TRUE(ValidateRlConfig(config, 2).empty());
}

TEST(ConfigTest, WhatChangedBetweenTwoStartsIsNamed) {
  Config config;
  options::Schema schema = MakeSchema(config);
  const std::string before = schema.Dump(false);
  config.actor_rollout_ref.actor.optim.lr = 0.1;
  config.actor_rollout_ref.model.dtype = WeightDtype::kBfloat16;
  config.trainer.total_training_steps = 7;
  const auto changes = ValueOrThrow(ConfigChanges(before, schema.Dump(false)));
  const std::vector<options::ValueChange> expected = {
      {"actor_rollout_ref.actor.optim.lr", "0.001", "0.1"},
      {"actor_rollout_ref.model.dtype", "float32", "bfloat16"},
      {"trainer.total_training_steps", "null", "7"}};
  EXPECT_EQ(changes, expected);
}

TEST(ConfigTest, AKeyThatAnOlderReleaseDidNotKnowHadItsDefault) {
  Config config;
  options::Schema schema = MakeSchema(config);
  const std::string now = schema.Dump(false);
  std::string before = now;
  const size_t at = before.find("  check_replicas: 0\n");
  ASSERT_NE(at, std::string::npos);
  before.erase(at, std::string("  check_replicas: 0\n").size());
  before += "dropped:\n  key: 3\n";
  const std::vector<options::ValueChange> expected = {{"dropped.key", "3", std::nullopt}};
  EXPECT_EQ(ValueOrThrow(ConfigChanges(before, now)), expected);
  config.trainer.check_replicas = 5;
  EXPECT_EQ(ValueOrThrow(ConfigChanges(before, schema.Dump(false))).size(), 2u);
}

TEST(ConfigTest, PathsAreWhatNodesMayHaveOfTheirOwn) {
  const std::set<std::string> keys = PerNodeKeys();
  EXPECT_TRUE(keys.contains("data.train_files"));
  EXPECT_TRUE(keys.contains("trainer.default_local_dir"));
  EXPECT_FALSE(keys.contains("trainer.seed"));
  EXPECT_FALSE(keys.contains("actor_rollout_ref.model.config"));
}

TEST(ConfigTest, RunTimes) {
  EXPECT_EQ(ParseRunTime("00:00:00"), 0);
  EXPECT_EQ(ParseRunTime("01:02:03"), 3723);
  EXPECT_EQ(ParseRunTime("120:00:59"), 432059);
  for (const char* text : {"", "1:2:3", "01:60:00", "01:00:60", "-1:00:00", "01:00", "aa:00:00",
                           "01:00:0x", "01-00-00", "1 :00:00"}) {
    EXPECT_EQ(ParseRunTime(text), std::nullopt) << text;
  }
}

TEST(ConfigTest, RetentionRulesThatCannotWorkAreRefused) {
  Config config;
  config.trainer.total_training_steps = 100;
  config.data.train_files = {"x"};
  config.actor_rollout_ref.model.config["model_type"] = "llama";
  config.trainer.save_freq = 30;
  config.trainer.keep_every_steps = 60;
  const auto alone = ValidateConfig(config, 1);
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_NE(alone[0].find("max_ckpts_to_keep"), std::string::npos) << alone[0];
  config.trainer.max_ckpts_to_keep = 1;
  EXPECT_TRUE(ValidateConfig(config, 1).empty());
  config.trainer.keep_best_ckpts = 2;
  EXPECT_EQ(ValidateConfig(config, 1).size(), 2u);  // no validation data, and never validated
  config.data.val_split = 0.1;
  config.trainer.test_freq = 20;
  const auto between = ValidateConfig(config, 1);
  ASSERT_EQ(between.size(), 1u);
  EXPECT_NE(between[0].find("save_freq 30 is not a multiple of trainer.test_freq 20"),
            std::string::npos)
      << between[0];
  config.trainer.test_freq = 15;
  EXPECT_TRUE(ValidateConfig(config, 1).empty());
}

TEST(ConfigTest, SourcesAreReadAndWhatDoesNotFitIsNamed) {
  const ScratchFolder folder;
  const std::string path = folder.Path("sources.yaml");
  const auto load = [&](const std::string& sources) {
    std::ofstream(path) << "trainer: {total_training_steps: 1}\n"
                        << "data: {sources: " << sources << "}\n"
                        << "actor_rollout_ref: {model: {config: {model_type: llama}}}\n";
    return LoadConfig(path, {});
  };
  const auto loaded = load("[{path: a.jsonl, weight: 3}, {path: b.tokens}]");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  Config config = loaded->config;
  EXPECT_TRUE(ValidateConfig(config, 1).empty());
  const auto sources = ValueOrThrow(SourcesOf(config));
  ASSERT_EQ(sources.size(), 2u);
  EXPECT_EQ(sources[0].path, "a.jsonl");
  EXPECT_EQ(sources[0].weight, 3);
  EXPECT_EQ(sources[1].weight, 1);
  // What is written out loads back to the same.
  const std::string again = folder.Path("again.yaml");
  std::ofstream(again) << loaded->resolved;
  EXPECT_EQ(ValueOrThrow(LoadConfig(again, {})).config.data.sources, config.data.sources);

  EXPECT_NE(load("{path: a}").status().message().find("a list of maps"), std::string::npos);
  EXPECT_NE(load("[a.jsonl]").status().message().find("a list of maps"), std::string::npos);
  const auto problem = [&](const std::string& list) {
    const auto problems = ValidateConfig(ValueOrThrow(load(list)).config, 1);
    return problems.size() == 1 ? problems[0] : std::to_string(problems.size());
  };
  EXPECT_NE(problem("[{path: a, wieght: 2}]").find("data.sources[0]: wieght"), std::string::npos);
  EXPECT_NE(problem("[{path: a, weight: 0}]").find("above 0"), std::string::npos);
  EXPECT_NE(problem("[{path: a, weight: .inf}]").find("data.sources[0]"), std::string::npos);
  EXPECT_NE(problem("[{path: a}, {weight: 2}]").find("[1]: path is missing"), std::string::npos);
  EXPECT_NE(problem("[{path: a}, {path: b, weight: 1e-8}]").find("a millionth"), std::string::npos);
  config.data.train_files = {"x"};
  config.data.val_split = 0.1;
  config.trainer.total_training_steps.reset();
  config.trainer.total_epochs = 2;
  EXPECT_EQ(ValidateConfig(config, 1).size(), 3u);
  config = Config();
  config.trainer.task = TaskKind::kDpo;
  config.data.packing = Packing::kWrapped;
  config.data.cache_dir = "";
  std::string all;
  for (const std::string& text : ValidateConfig(config, 1)) all += text + "\n";
  EXPECT_NE(all.find("data.packing is of trainer.task pretrain and sft alone"), std::string::npos);
  EXPECT_NE(all.find("data.cache_dir is empty"), std::string::npos);
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// One rule for every key that is a path: nothing is made of it, so that the working directory is
// what it is relative to, wherever the file lies and whoever gave it.
TEST(ConfigTest, WhatIsNoFileIsNotWaitedFor) {
  const std::string pipe = testing::TempDir() + "keel_config_pipe";
  std::filesystem::remove(pipe);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& [path, what] :
       {std::pair(pipe, "is a pipe"), std::pair(std::string("/dev/zero"), "is a device"),
        std::pair(testing::TempDir(), "is a directory")}) {
    const Status status = LoadConfig(path, {}).status();
    EXPECT_EQ(status.code(), StatusCode::kNotFound);
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  }
  std::filesystem::remove(pipe);
}

TEST(ConfigTest, PathsAreLeftAsTheyAreGiven) {
  const std::string folder = testing::TempDir() + "keel_config_paths";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/run.yaml") << R"(trainer:
  default_local_dir: runs/x
  resume_from_path: runs/y/global_step_1
  rollout_data_dir: dumps
  validation_data_dir: val_dumps
  rollout_replay_dir: replay
data: {train_files: [a.jsonl, ../b.jsonl], val_files: [c.jsonl]}
actor_rollout_ref: {model: {path: hf}}
critic: {model: {path: critic_hf}}
)";
  const auto loaded = LoadConfig(folder + "/run.yaml", {"data.val_files=[d.jsonl]"});
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const Config& c = loaded->config;
  EXPECT_EQ(c.trainer.default_local_dir, "runs/x");
  EXPECT_EQ(c.trainer.resume_from_path, "runs/y/global_step_1");
  EXPECT_EQ(c.trainer.rollout_data_dir, "dumps");
  EXPECT_EQ(c.trainer.validation_data_dir, "val_dumps");
  EXPECT_EQ(c.trainer.rollout_replay_dir, "replay");
  EXPECT_EQ(c.data.train_files, (std::vector<std::string>{"a.jsonl", "../b.jsonl"}));
  EXPECT_EQ(c.data.val_files, std::vector<std::string>{"d.jsonl"});
  EXPECT_EQ(c.actor_rollout_ref.model.path, "hf");
  EXPECT_EQ(c.critic.model.path, "critic_hf");
}

TEST(ConfigTest, ThePageAndTheSchemaAreUpToDate) {
  const char* root = std::getenv("KEEL_SOURCE_DIR");
  ASSERT_NE(root, nullptr);
  Config config;
  const options::Schema schema = MakeSchema(config);
  EXPECT_NE(ReadText(std::string(root) + "/docs/configuration.md").find(schema.Markdown()),
            std::string::npos)
      << "run: keel config docs > docs/configuration.md";
  EXPECT_EQ(ReadText(std::string(root) + "/configs/keel.schema.json"),
            schema.JsonSchema().dump(2) + "\n")
      << "run: keel config schema > configs/keel.schema.json";
  for (const char* name : {"quickstart", "pretrain_text", "sft", "dpo"}) {
    const auto loaded =
        LoadConfig(std::string(root) + "/configs/" + name + ".yaml", {"data.train_files=[x]"});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    const auto& megatron = loaded->config.actor_rollout_ref.actor.megatron;
    const auto problems =
        ValidateConfig(loaded->config, static_cast<int>(megatron.tensor_model_parallel_size *
                                                        megatron.pipeline_model_parallel_size));
    EXPECT_TRUE(problems.empty()) << name << ": " << problems[0];
  }
}

}  // namespace
}  // namespace keel::trainer
