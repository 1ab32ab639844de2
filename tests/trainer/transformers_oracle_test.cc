// The model, its gradients and three AdamW steps against transformers and torch.optim.AdamW, for
// each family and layout. Fixtures: tests/oracles/make_model_fixtures.py.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <mutex>

#include "common/json.h"
#include "tests/support/nightly.h"
#include "tests/support/ranks.h"
#include "tests/trainer/model_fixture.h"
#include "trainer/engine/train_engine.h"

namespace keel::trainer {
namespace {

using model::ModelBatch;
at::Tensor Narrow(at::Tensor tensor, const Box& box) {
  for (int d = 0; d < box.dims(); ++d) tensor = tensor.narrow(d, box.offset[d], box.size[d]);
  return tensor;
}

at::Tensor ShardTensor(const ShardTable& table, const Shard& shard) {
  const std::vector<int64_t> size(shard.box.size.begin(), shard.box.size.end());
  const std::vector<int64_t> strides(shard.view.strides.begin(), shard.view.strides.end());
  EXPECT_EQ(table.tensor_of(shard).dtype, DType::kF32);
  return at::from_blob(shard.view.data, size, strides, at::kFloat);
}

double MaxDifference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

ModelBatch BatchOf(const Tensors& reference) {
  ModelBatch batch;
  batch.ids = reference.at("input_ids").to(at::kLong);
  batch.targets = reference.at("targets").to(at::kLong);
  const at::Tensor boundaries = reference.at("cu_seqlens").to(at::kLong);
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < boundaries.numel(); ++i) {
    batch.packing.boundaries.push_back(boundaries[i].item<int64_t>());
    if (i == 0) continue;
    const int64_t length =
        batch.packing.boundaries.back() - batch.packing.boundaries[static_cast<size_t>(i) - 1];
    for (int64_t p = 0; p < length; ++p) positions.push_back(p);
  }
  batch.packing.positions = at::tensor(positions, at::kInt);
  return batch;
}

// Sequence parallelism needs the tokens to divide: one more sequence of ignored tokens.
ModelBatch Padded(ModelBatch batch, int64_t multiple) {
  const int64_t tokens = batch.ids.size(0);
  const int64_t extra = (multiple - tokens % multiple) % multiple;
  if (extra == 0) return batch;
  const at::Tensor padding = at::zeros({extra}, at::kLong);
  batch.ids = at::cat({batch.ids, padding});
  batch.targets = at::cat({batch.targets, padding.add(parallel::kIgnoreTarget)});
  batch.packing.positions = at::cat({batch.packing.positions, at::arange(extra, at::kInt)});
  batch.packing.boundaries.push_back(tokens + extra);
  return batch;
}

// A model of each family, of each way to stretch positions and of each kind of window.
struct Family {
  const char* model;
  bool of_layouts;  // whether more than one layout says something
};
constexpr Family kFamilies[] = {
    {"llama_rope_linear", false},
    {"llama_rope_dynamic", true},
    {"llama_rope_yarn", false},
    {"llama_rope_yarn_mscale", false},
    {"llama_rope_longrope", true},
    {"mistral", false},
    {"mistral_window", true},
    {"qwen2_window", false},
    {"smollm3", true},
    {"gemma2", true},
    {"gemma3", true},
    {"olmo2", true},
    {"olmo3", true},
    {"qwen3_moe", true},
    {"qwen3_moe_balance", true},
    {"mixtral", true},
    {"mixtral_balance", true},
    {"phi3", true},
    {"phi3_longrope", true},
    {"granite", true},
    {"seed_oss", true},
    {"seed_oss_out_bias", false},
    {"arcee", true},
    {"qwen2_moe", true},
    {"qwen2_moe_balance", true},
    {"exaone4", true},
    {"exaone4_whole", false},
    {"gemma", true},
    {"olmoe", true},
    {"olmoe_balance", true},
    {"glm", true},
    {"glm4", true},
    {"ernie4_5", true},
    {"ministral", true},
    {"cwm", true},
    {"internlm3", false},
    {"granite_hybrid", true},
    {"granite_hybrid_nope", true},
    {"hunyuan", true},
    {"glm4_moe", true},
    {"glm4_moe_plain", false},
    {"dots1", true},
    {"minimax_m2", true},
    {"deepseek_v2", true},
    {"deepseek_v2_lite", true},
    {"deepseek_v3", true},
    {"deepseek_v3_plain", false},
    {"glm4_moe_lite", false},
    {"youtu", true},
    {"gpt_oss", true},
    {"gpt_oss_balance", true},
    {"qwen3_next", true},
    {"qwen3_5", true},
    {"qwen3_5_moe", true},
    {"cohere", true},
    {"cohere2", true},
    {"starcoder2", true},
    {"starcoder2_plain", false},
    {"stablelm", true},
    {"stablelm_parallel", true},
    {"nemotron", true},
    {"gpt_neox", true},
    {"gpt_neox_serial", true},
    {"ministral3", true},
    {"ministral3_window", false},
    {"helium", true},
    {"jais2", true},
    {"vaultgemma", true},
    {"solar_open", true},
    {"gpt2", true},
    {"gpt2_untied", false},
    {"gpt_neo", true},
    {"opt", true},
    {"opt_bare", false},
    {"gpt_bigcode", true},
    {"gpt_bigcode_heads", false},
    {"phi", true},
    {"phi_tied", true},
    {"gptj", true},
};

struct Case {
  std::string model;
  int tp;
  int pp;
  bool sequence_parallel;
  bool recompute;
};

// Where keys are not turned, what is added to all of them changes no softmax: the gradient is the
// rounding of sums that come to 0.
bool HasNoGradient(const model::HfConfig& config, const std::string& tensor) {
  return config.Layer(0).rope == model::RopeChoice::kNone && tensor.ends_with("k_proj.bias");
}

class TransformersOracleTest : public ::testing::TestWithParam<Case> {};

TEST_P(TransformersOracleTest, LogitsLossGradientsAndThreeSteps) {
  const Case& c = GetParam();
  const Fixture fixture = LoadFixture(c.model);
  const int64_t tokens = fixture.reference.at("input_ids").size(0);
  const int64_t counted =
      fixture.reference.at("targets").ne(parallel::kIgnoreTarget).sum().item<int64_t>();
  std::mutex mutex;  // GoogleTest's assertions are used from all ranks

  keel::testing::RunRanks(c.tp, 1, c.pp, [&](parallel::ParallelContext& context) {
    TrainEngineOptions options;
    options.sequence_parallel = c.sequence_parallel;
    options.recompute = c.recompute;
    options.adamw = {0.9, 0.95, 1e-8, 0.1};
    options.clip_grad = 1.0;
    TrainEngine engine(context, fixture.config, options);
    engine.LoadInto([&](const TrainEngine::StateTables& tables) -> TrainEngine::Written {
      const std::lock_guard lock(mutex);
      Fill(tables.model, fixture.weights);
      return {.weights = true};
    });
    const ModelBatch batch = Padded(BatchOf(fixture.reference), c.sequence_parallel ? c.tp : 1);

    if (c.pp == 1) {
      const at::NoGradGuard no_grad;
      const at::Tensor logits =
          engine.decoder().Logits(engine.decoder().Forward({}, batch)).narrow(0, 0, tokens);
      const std::lock_guard lock(mutex);
      EXPECT_LT(MaxDifference(logits, fixture.reference.at("logits")), 2e-5);
    }

    for (int step = 0; step < 3; ++step) {
      const StepResult result = engine.Step({batch}, counted, 1e-3, step + 1);
      const std::lock_guard lock(mutex);
      const double loss = fixture.summary["losses"][static_cast<size_t>(step)].get<double>();
      const double norm = fixture.summary["grad_norms"][static_cast<size_t>(step)].get<double>();
      // The first is the forward alone; the others stand on the updates before them.
      EXPECT_NEAR(result.loss, loss, (step == 0 ? 1e-6 : 1e-5) * loss) << "step " << step;
      EXPECT_NEAR(result.grad_norm, norm, 1e-4 * norm) << "step " << step;
      EXPECT_FALSE(result.skipped);
      if (step > 0) continue;
      for (const parallel::Parameter* p : engine.decoder().parameters()) {
        if (p->constant) continue;
        for (const parallel::ParameterPiece& piece : p->pieces) {
          const at::Tensor whole = fixture.reference.at("grad." + piece.name);
          const at::Tensor mine = p->gradient.narrow(0, piece.row_begin, p->RowsOf(piece));
          at::Tensor expected = Narrow(whole, piece.box);
          if (piece.transposed) expected = expected.t();
          const double error = (mine - expected.reshape(mine.sizes())).norm().item<double>();
          if (HasNoGradient(fixture.config, piece.name)) {
            EXPECT_LE(error, 1e-6 * norm) << piece.name;
            continue;
          }
          // An expert that no token chose has none.
          EXPECT_LE(error, 0.5e-4 * whole.norm().item<double>()) << piece.name;
        }
      }
    }

    const std::lock_guard lock(mutex);
    ShardTable weights, moments;
    engine.LoadInto([&](TrainEngine::StateTables tables) -> TrainEngine::Written {
      weights = std::move(tables.model);
      moments = std::move(tables.optimizer);
      return {};  // they are only read
    });
    for (const Shard& shard : weights.shards()) {
      const std::string& name = weights.tensor_of(shard).name;
      const at::Tensor expected = Narrow(fixture.reference.at("step3." + name), shard.box);
      const at::Tensor difference = (ShardTensor(weights, shard) - expected).abs();
      if (!fixture.reference.contains("grad." + name)) {  // a constant
        EXPECT_EQ(difference.max().item<double>(), 0) << name;
        continue;
      }
      // Adam divides by the gradient's size: where that is near eps the quotient is rounding noise,
      // and only the three steps' rate bounds the difference. Elsewhere each element is held.
      const at::Tensor clear =
          Narrow(fixture.reference.at("grad." + name), shard.box).abs().gt(1e-5);
      EXPECT_LT((difference * clear).max().item<double>(), 1e-5) << name;
      EXPECT_LT(difference.max().item<double>(), 3e-3) << name;
      EXPECT_LT((difference * clear).norm().item<double>(), 2e-5 * expected.norm().item<double>())
          << name;
    }
    for (const Shard& shard : moments.shards()) {
      const std::string name =
          moments.tensor_of(shard).name.substr(std::string("optimizer.").size());
      const at::Tensor expected = Narrow(fixture.reference.at(name), shard.box);
      const double scale = fixture.reference.at(name).abs().max().item<double>();
      if (HasNoGradient(fixture.config, name.substr(name.find('.') + 1))) continue;
      // 0 of an expert that no token chose.
      EXPECT_LE(MaxDifference(ShardTensor(moments, shard), expected), 5e-4 * scale) << name;
    }
  });
}

// What an export writes is the model that was read, whichever way its file spelled it.
TEST(TransformersOracle, AnExportedConfigIsTheSameModel) {
  for (const Family& family : kFamilies) {
    const Fixture fixture = LoadFixture(family.model);
    const Json written = model::ToHfJson(fixture.config, DType::kF32);
    const auto again = ValueOrThrow(model::ParseHfConfig(written, family.model));
    EXPECT_EQ(again.Digest(), fixture.config.Digest());
    const Json over = model::ToHfJson(fixture.config, DType::kF32, &written);
    EXPECT_EQ(ValueOrThrow(model::ParseHfConfig(over, family.model)).Digest(),
              fixture.config.Digest());
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* name : {"llama", "llama_3_layers", "llama_attention_bias", "llama_head_dim",
                           "llama_rope_scaled", "llama_rope_scaled_v4", "llama_tied", "qwen2",
                           "qwen2_tied", "qwen2_v4", "qwen3", "qwen3_tied"}) {
    cases.push_back({name, 1, 1, false, false});
    cases.push_back({name, 2, 1, false, false});
    cases.push_back({name, 2, 1, true, false});
    cases.push_back({name, 1, 2, false, true});
    cases.push_back({name, 2, 2, true, true});
    cases.push_back({name, 2, 2, false, false});
  }
  // Heads, feed-forward width and vocabulary that no number of ranks divides, and fewer key-value
  // heads than ranks.
  for (const char* name :
       {"llama_9_heads", "llama_15_heads", "qwen2_14_heads", "qwen3_6_heads", "phi3_9_heads"}) {
    cases.push_back({name, 1, 1, false, false});
    for (const int tp : {2, 3, 4}) {
      cases.push_back({name, tp, 1, false, false});
      cases.push_back({name, tp, 1, true, true});
      cases.push_back({name, tp, 2, tp == 3, false});
    }
  }
  for (const Family& family : kFamilies) {
    cases.push_back({family.model, 1, 1, false, false});
    if (!family.of_layouts) continue;
    cases.push_back({family.model, 2, 1, false, false});
    cases.push_back({family.model, 2, 2, true, true});
    cases.push_back({family.model, 4, 2, false, false});
    cases.push_back({family.model, 4, 1, true, false});
    cases.push_back({family.model, 1, 2, false, true});
  }
  // Norms over heads that several ranks hold, and that are dealt out unevenly.
  cases.push_back({"olmo2", 3, 1, true, false});
  cases.push_back({"olmo2", 4, 1, false, true});
  // The routers' sums carried over stages, with and without recompute, and experts of which no rank
  // has as many columns as another.
  for (const char* name : {"qwen3_moe_balance", "mixtral_balance", "qwen2_moe_balance"}) {
    cases.push_back({name, 1, 2, false, false});
    cases.push_back({name, 3, 1, true, false});
  }
  // What a device runs in place of a host is the same under every cut.
  if (std::getenv("KEEL_DEVICE_PATHS") != nullptr && !testing::Nightly())
    std::erase_if(cases,
                  [](const Case& c) { return c.tp * c.pp > 1 && !(c.tp == 2 && c.pp == 2); });
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, TransformersOracleTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) {
                           const Case& c = test.param;
                           return c.model + "_tp" + std::to_string(c.tp) + "_pp" +
                                  std::to_string(c.pp) + (c.sequence_parallel ? "_sp" : "") +
                                  (c.recompute ? "_recompute" : "");
                         });

}  // namespace
}  // namespace keel::trainer
