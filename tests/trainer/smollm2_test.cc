// A real model whose heads do not divide against transformers: logits, and the tokens that it
// writes. Run by tests/oracles/smollm2_test.py, which makes the folder that KEEL_SMOLLM2 names.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "common/json.h"
#include "tests/support/ranks.h"
#include "tests/support/safetensors_fixture.h"
#include "trainer/sync/rollout_model.h"

namespace keel::trainer {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

Json ReadJson(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return ValueOrThrow(ParseJson(text.str(), path));
}

struct Model {
  model::HfConfig config;
  Tensors weights, reference;
  Json rows;
};

const Model& TheModel(const std::string& folder) {
  static const Model model = [&] {
    Model m;
    const std::string config = folder + "/hf/config.json";
    m.config = ValueOrThrow(model::ParseHfConfig(ReadJson(config), config));
    for (const auto& entry : std::filesystem::directory_iterator(folder + "/hf")) {
      if (entry.path().extension() != ".safetensors") continue;
      for (const auto& [name, tensor] : keel::testing::ReadSafetensors(entry.path()))
        m.weights[name] = tensor.to(at::kFloat);
    }
    m.reference = keel::testing::ReadSafetensors(folder + "/logits.safetensors");
    m.rows = ReadJson(folder + "/generate.json");
    return m;
  }();
  return model;
}

void Fill(const ShardTable& table, const Tensors& whole) {
  for (const Shard& shard : table.shards()) {
    const TensorInfo& info = table.tensor_of(shard);
    const at::Tensor& tensor = whole.at(info.name);
    ASSERT_EQ(Dims(tensor.sizes()), info.shape) << info.name;
    CopyBox(shard.box, Box::Whole(info.shape),
            {static_cast<std::byte*>(tensor.data_ptr()), ContiguousStrides(info.shape)}, shard.box,
            shard.view, 4);
  }
}

model::ModelBatch BatchOf(const std::vector<int64_t>& ids) {
  model::ModelBatch batch;
  const auto n = static_cast<int64_t>(ids.size());
  batch.ids = at::tensor(ids, at::kLong);
  batch.targets = at::full({n}, parallel::kIgnoreTarget, at::kLong);
  batch.packing.positions = at::arange(n, at::kInt);
  batch.packing.boundaries = {0, n};
  return batch;
}

struct Case {
  int tp, pp, rollout_tp;
};

class SmolLm2Test : public ::testing::TestWithParam<Case> {};

TEST_P(SmolLm2Test, LogitsAndGreedyTokensAreThoseOfTransformers) {
  const char* const folder = std::getenv("KEEL_SMOLLM2");
  if (folder == nullptr)
    GTEST_SKIP()
        << "KEEL_SMOLLM2 is not set: run tests/oracles/smollm2_test.py under KEEL_NIGHTLY=1";
  const Model& real = TheModel(folder);
  const Case& c = GetParam();
  std::vector<rollout::Request> requests;
  std::vector<model::ModelBatch> batches;
  for (const Json& row : real.rows) {
    rollout::Request& request = requests.emplace_back();
    request.prompt = row["input_ids"].get<std::vector<int32_t>>();
    request.prompt_id = requests.size();
    request.sampling.temperature = 0;
    request.sampling.max_tokens = static_cast<int64_t>(row["output_ids"].size());
    auto ids = row["input_ids"].get<std::vector<int64_t>>();
    for (const Json& id : row["output_ids"]) ids.push_back(id.get<int64_t>());
    batches.push_back(BatchOf(ids));
  }
  std::mutex mutex;
  double worst = 0;
  keel::testing::RunRanks(c.tp, 1, c.pp, [&](parallel::ParallelContext& context) {
    TrainEngineOptions options;
    options.inference = true;
    TrainEngine engine(context, real.config, options);
    engine.LoadInto([&](const TrainEngine::StateTables& tables) -> TrainEngine::Written {
      const std::lock_guard lock(mutex);
      Fill(tables.model, real.weights);
      return {.weights = true};
    });
    engine.Evaluate(batches, [&](int row, const at::Tensor& hidden,
                                 const model::Decoder::ReadyCallback&) {
      const at::Tensor logits = engine.decoder().Logits(hidden);
      const at::Tensor& expected = real.reference.at("logits." + std::to_string(row));
      const double error = ((logits - expected).abs().max() / expected.abs().max()).item<double>();
      const std::lock_guard lock(mutex);
      worst = std::max(worst, error);
      return at::zeros({});
    });

    RolloutModelOptions rollout;
    rollout.tp = c.rollout_tp;
    rollout.engine.max_model_len = 256;
    RolloutModel model(context, real.config, engine, rollout);
    model.Update();
    model.Prepare();
    const auto completions = model.engine().Generate(requests);
    model.Leave();
    const std::lock_guard lock(mutex);
    ASSERT_EQ(completions.size(), real.rows.size());
    for (size_t i = 0; i < completions.size(); ++i) {
      EXPECT_EQ(completions[i].tokens, real.rows[i]["output_ids"].get<std::vector<int32_t>>())
          << "prompt " << i;
    }
  });
  std::printf("largest relative distance of a logit: %.2e\n", worst);
  EXPECT_LE(worst, 1e-4);
  EXPECT_GT(worst, 0);
}

INSTANTIATE_TEST_SUITE_P(Layouts, SmolLm2Test,
                         ::testing::Values(Case{1, 1, 1}, Case{2, 1, 2}, Case{3, 1, 3},
                                           Case{1, 2, 2}, Case{4, 1, 2}),
                         [](const auto& one) {
                           return "tp" + std::to_string(one.param.tp) + "_pp" +
                                  std::to_string(one.param.pp) + "_to_tp" +
                                  std::to_string(one.param.rollout_tp);
                         });

}  // namespace
}  // namespace keel::trainer
