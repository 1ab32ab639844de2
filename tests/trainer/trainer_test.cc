// Each task as its run sees it: from the data to the last step, on one rank, in this process.

#include "trainer/trainer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "common/json.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::trainer {
namespace {

using checkpoint::testing::Quiet;
using checkpoint::testing::TempDir;
using checkpoint::testing::WriteAll;

constexpr const char* kModel = R"({"model_type": "llama", "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 263, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true})";

std::string Rows(const std::string& task) {
  std::string rows;
  for (int i = 0; i < 12; ++i) {
    const std::string a = std::to_string(i * 7 % 10), b = std::to_string(i * 3 % 10);
    if (task == "dpo") {
      rows +=
          R"({"prompt": ")" + a + R"(=", "chosen": ")" + a + R"(", "rejected": ")" + b + "x\"}\n";
    } else if (task == "rl") {
      rows += R"({"prompt": ")" + a + R"(=", "answer": ")" + b + "\"}\n";
    } else {
      rows += R"({"text": ")" + a + b + a + " " + b + b + "\"}\n";
    }
  }
  return rows;
}

// What no other run of the same training has.
bool IsOfTheMachine(const std::string& name) {
  for (const char* prefix : {"time_metrics/", "timing_s/", "timing_per_token_ms/", "throughput",
                             "tflops", "mfu", "gemm_share", "memory/", "perf/", "checkpoint/"}) {
    if (name.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

class TaskTest : public ::testing::TestWithParam<std::string> {
 protected:
  TaskTest() { WriteAll(folder_ / "rows.jsonl", Rows(GetParam())); }

  RunEnd Train(const std::string& name, int64_t stop_requested = 0) {
    Json config;
    config["trainer"] = {{"task", GetParam()},
                         {"default_local_dir", folder_ / name},
                         {"total_training_steps", 4},
                         {"save_freq", 2},
                         {"test_freq", 2},
                         {"device", "cpu"},
                         {"logger", Json::array({"jsonl"})}};
    config["data"] = {{"train_files", Json::array({folder_ / "rows.jsonl"})},
                      {"val_files", Json::array({folder_ / "rows.jsonl"})},
                      {"tokenizer", "bytes"},
                      {"max_length", 16},
                      {"train_batch_size", 4}};
    if (GetParam() != "pretrain") {
      config["data"]["max_prompt_length"] = 8;
      config["data"]["max_response_length"] = 4;
    }
    config["actor_rollout_ref"]["model"] = {{"config", Json::parse(kModel)}, {"dtype", "float32"}};
    if (GetParam() == "rl") {
      config["reward"]["type"] = "exact";
      config["actor_rollout_ref"]["rollout"]["n"] = 2;
      config["algorithm"]["adv_estimator"] = "gae";  // with a critic
    }
    WriteAll(folder_ / "config.yaml", config.dump());
    TrainerInputs inputs;
    inputs.loaded = ValueOrThrow(LoadConfig(folder_ / "config.yaml", {}));
    const std::atomic<int64_t> stop = stop_requested;
    inputs.stop_requested = &stop;
    Logger log(Quiet());
    return RunTraining(inputs, log);
  }

  // Of every step and validation what does not depend on the machine: by step, in order.
  std::multimap<int64_t, std::string> Metrics(const std::string& name) const {
    std::multimap<int64_t, std::string> metrics;
    std::ifstream file(folder_ / (name + "/metrics.jsonl"));
    for (std::string line; std::getline(file, line);) {
      const Json json = Json::parse(line);
      Json kept = Json::object();
      for (const auto& [key, value] : json["data"].items())
        if (!IsOfTheMachine(key)) kept[key] = value;
      if (!kept.empty()) metrics.emplace(json["step"].get<int64_t>(), kept.dump());
    }
    return metrics;
  }

  TempDir folder_;
};

TEST_P(TaskTest, ARunThatIsStoppedSavesAndGoesOnBitForBit) {
  EXPECT_EQ(Train("straight"), RunEnd::kFinished);
  EXPECT_EQ(Train("stopped", /*stop_requested=*/1), RunEnd::kPreempted);
  EXPECT_EQ(Metrics("stopped").count(1), 1U);
  EXPECT_EQ(Metrics("stopped").size(), 1U) << "it goes on after the step in which it was asked";
  EXPECT_EQ(Train("stopped"), RunEnd::kFinished);
  EXPECT_EQ(Metrics("stopped"), Metrics("straight"));
  EXPECT_EQ(Metrics("straight").size(), 6U) << "four steps and two validations";
}

TEST_P(TaskTest, ARunThatIsDoneTrainsNoMore) {
  EXPECT_EQ(Train("run"), RunEnd::kFinished);
  const auto metrics = Metrics("run");
  EXPECT_EQ(Train("run"), RunEnd::kFinished);
  EXPECT_EQ(Metrics("run"), metrics);
}

INSTANTIATE_TEST_SUITE_P(Tasks, TaskTest, ::testing::Values("pretrain", "dpo", "rl"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace keel::trainer
