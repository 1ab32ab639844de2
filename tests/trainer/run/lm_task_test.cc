// The task of pre-training and SFT over samples that come from no file.

#include "trainer/run/lm_task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/hash.h"
#include "common/json.h"
#include "tests/checkpoint/support/test_support.h"
#include "trainer/run/task_runner.h"

namespace keel::trainer {
namespace {

using checkpoint::testing::Quiet;
using checkpoint::testing::TempDir;
using checkpoint::testing::WriteAll;

constexpr const char* kModel = R"({"model_type": "llama", "hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 32, "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true})";

// Sample i is i + 3 tokens i, i + 1, ...; it remembers which of them were asked for.
class Counted : public SampleSet {
 public:
  explicit Counted(int64_t size) : size_(size) {}

  int64_t size() const override { return size_; }
  Sample Get(int64_t index) const override {
    asked_.push_back(index);
    Sample sample;
    sample.id = id(index);
    sample.tokens.resize(static_cast<size_t>(index) + 3);
    std::iota(sample.tokens.begin(), sample.tokens.end(), static_cast<int32_t>(index));
    sample.learn.assign(sample.tokens.size(), 1);
    return sample;
  }
  int64_t targets(int64_t index) const override { return index + 2; }
  int64_t inputs(int64_t index) const override { return index + 2; }
  int64_t id(int64_t index) const override { return 100 + index; }
  int64_t skipped_rows() const override { return 0; }
  const std::vector<std::string>& warnings() const override { return warnings_; }
  const Digest128& digest() const override { return digest_; }
  const std::vector<SourceShare>& mixture() const override { return mixture_; }

  std::vector<int64_t> TakeAsked() { return std::exchange(asked_, {}); }

 private:
  int64_t size_;
  mutable std::vector<int64_t> asked_;
  std::vector<std::string> warnings_;
  Digest128 digest_;
  std::vector<SourceShare> mixture_;
};

class Given : public LmInputs {
 public:
  Given(int64_t train, int64_t val) : train_(train), val_(val) {
    model_.config = ValueOrThrow(model::ParseHfConfig(Json::parse(kModel), "model"));
  }

  const ModelDescription& OpenModel() override {
    calls_.push_back("model");
    if (!bad_model_.empty()) throw Error(StatusCode::kConfig, bad_model_);
    return model_;
  }
  Samples LoadSamples() override {
    calls_.push_back("samples");
    if (!bad_samples_.empty()) throw Error(StatusCode::kInvalidData, bad_samples_);
    return {train_, val_};
  }

  Counted train_, val_;
  ModelDescription model_;
  std::string bad_model_, bad_samples_;
  std::vector<std::string> calls_;
};

class LmTaskTest : public ::testing::Test {
 protected:
  RunEnd Train(LmInputs& given, const Json& trainer, const std::string& name = "run") {
    Json config;
    config["trainer"] = {{"task", "pretrain"},
                         {"default_local_dir", folder_ / name},
                         {"device", "cpu"},
                         {"logger", Json::array({"jsonl"})}};
    config["trainer"].update(trainer);
    // Never opened: the samples are given.
    config["data"] = {{"train_files", Json::array({folder_ / "none.jsonl"})},
                      {"val_files", Json::array({folder_ / "none.jsonl"})},
                      {"max_length", 16},
                      {"train_batch_size", 4},
                      {"micro_batch_size_per_gpu", 2}};
    config["actor_rollout_ref"]["model"] = {{"config", Json::parse(kModel)}, {"dtype", "float32"}};
    WriteAll(folder_ / "config.yaml", config.dump());
    TrainerInputs inputs;
    inputs.loaded = ValueOrThrow(LoadConfig(folder_ / "config.yaml", {}));
    Logger log(Quiet());
    TaskRunner runner(inputs, log);
    return runner.Run(*MakeLmTask(runner.job(), runner.course(), given));
  }

  std::vector<Json> Metrics(const std::string& key) const {
    std::vector<Json> values;
    std::ifstream file(folder_ / "run/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const Json data = Json::parse(line)["data"];
      if (data.contains(key)) values.push_back(data[key]);
    }
    return values;
  }

  TempDir folder_;
};

TEST_F(LmTaskTest, EachEpochAsksForEachSampleOnceInTheOrderOfItsSeed) {
  Given given(10, 0);
  EXPECT_EQ(Train(given, {{"total_epochs", 2}, {"seed", 5}}), RunEnd::kFinished);
  EXPECT_EQ(given.calls_, (std::vector<std::string>{"model", "samples"}));
  const std::vector<int64_t> asked = given.train_.TakeAsked();
  SampleOrder order(10, 5, true);
  std::vector<int64_t> wanted;
  for (int64_t k = 0; k < 20; ++k) wanted.push_back(order.At(k));
  EXPECT_EQ(asked, wanted);
  EXPECT_EQ(Metrics("data/samples_consumed"), (std::vector<Json>{4, 8, 12, 16, 20}));
  // Of samples that have index + 2 inputs each: 65 an epoch.
  EXPECT_EQ(Metrics("n_tokens_seen").back(), 130);
  std::vector<int64_t> ids;
  for (int64_t k = 16; k < 20; ++k) ids.push_back(100 + order.At(k));
  EXPECT_EQ(Metrics("data/sample_digest").back(), Hash128(std::as_bytes(std::span(ids))).ToHex());
}

TEST_F(LmTaskTest, ALastBatchThatIsShortTakesWhatIsLeft) {
  Given given(6, 0);
  EXPECT_EQ(Train(given, {{"total_epochs", 1}}), RunEnd::kFinished);
  std::vector<int64_t> asked = given.train_.TakeAsked();
  std::sort(asked.begin(), asked.end());
  EXPECT_EQ(asked, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(Metrics("data/samples_consumed"), (std::vector<Json>{4, 6}));
}

TEST_F(LmTaskTest, ValidationReadsAllInOrderAndTakesNothing) {
  Given given(8, 5);
  EXPECT_EQ(Train(given, {{"total_training_steps", 2}, {"test_freq", 1}}), RunEnd::kFinished);
  EXPECT_EQ(given.val_.TakeAsked(), (std::vector<int64_t>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4}));
  EXPECT_EQ(given.train_.TakeAsked().size(), 8U);
  EXPECT_EQ(Metrics("validation_metrics/global_avg_loss").size(), 2U);
}

TEST_F(LmTaskTest, BadInputEndsTheRunBeforeItsFolderIsMade) {
  for (const bool model : {true, false}) {
    Given given(8, 0);
    (model ? given.bad_model_ : given.bad_samples_) = "not this one";
    try {
      Train(given, {{"total_training_steps", 1}}, "refused");
      ADD_FAILURE() << "it ran";
    } catch (const Error& error) {
      EXPECT_EQ(error.status().message(), "not this one");
      EXPECT_EQ(error.status().code(), model ? StatusCode::kConfig : StatusCode::kInvalidData);
    }
    EXPECT_EQ(given.calls_.size(), model ? 1U : 2U);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "refused"));
  }
}

}  // namespace
}  // namespace keel::trainer
