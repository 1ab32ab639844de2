// The policy's and the critic's losses through the whole model: gradients of every weight under
// each layout equal those of one process.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "common/philox.h"
#include "model/decoder.h"
#include "parallel/gradients/grad_buffer.h"
#include "parallel/pipeline/pipeline_runner.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"
#include "trainer/algorithms/policy_loss.h"
#include "trainer/algorithms/value_loss.h"

namespace keel::trainer::rl {
namespace {

using keel::testing::RowsOfStep;
using keel::testing::TinyConfig;

struct Case {
  int tp, dp, pp;
  bool sequence_parallel;
  int microbatches;
  bool critic;
  bool tied = false;
};

struct Outcome {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;  // canonical, whole
};

// Numbers per token that depend on nothing but row and position.
at::Tensor PerToken(uint64_t stream, int64_t row, int64_t length, double scale) {
  const Philox rng(17, stream);
  std::vector<double> values;
  for (int64_t t = 0; t < length; ++t)
    values.push_back(scale * rng.Normal(static_cast<uint64_t>(row * 1000 + t)));
  return at::tensor(values, at::kDouble).to(at::kFloat);
}

Outcome Differentiate(const Case& c) {
  Outcome outcome;
  std::mutex mutex;
  const auto rows = RowsOfStep(3);
  LossDenominators counts;
  counts.tokens = keel::testing::LossTokens(rows);
  counts.sequences = keel::testing::kBatch;
  keel::testing::RunRanks(c.tp, c.dp, c.pp, [&](parallel::ParallelContext& context) {
    model::DecoderOptions options;
    options.stage = context.pp_rank();
    options.stages = c.pp;
    options.value_head = c.critic;
    model::Decoder decoder(TinyConfig(c.tied, model::Family::kQwen3),
                           {&context.tp(), c.sequence_parallel}, options);
    parallel::WeightStore weights = parallel::GradBuffer::MakeStore(decoder.parameters(), context,
                                                                    {at::kFloat, at::kCPU}, 8192);
    parallel::GradBuffer buffer(weights, context);
    decoder.Initialize(5);
    buffer.ZeroGradients();
    const auto batches = keel::testing::MicroBatches(rows, context.dp_rank(), c.dp, c.microbatches,
                                                     c.sequence_parallel ? c.tp : 1);
    const auto ready = [&](const parallel::Parameter& p) { buffer.Ready(p); };
    parallel::StageCallbacks callbacks;
    callbacks.activation_shape = [&](int m) -> std::vector<int64_t> {
      return {batches[static_cast<size_t>(m)].ids.size(0) / (c.sequence_parallel ? c.tp : 1), 32};
    };
    callbacks.forward = [&](int m, const at::Tensor& input) {
      const model::ModelBatch& batch = batches[static_cast<size_t>(m)];
      const at::Tensor hidden = decoder.Forward(input, batch, ready);
      if (!decoder.last_stage()) return hidden;
      const auto per_token = [&](uint64_t stream, double scale) {
        const int64_t each = keel::testing::kBatch / c.dp / c.microbatches;
        std::vector<at::Tensor> parts;
        for (size_t i = 0; i + 1 < batch.packing.boundaries.size(); ++i) {
          const int64_t row = context.dp_rank() * (keel::testing::kBatch / c.dp) + m * each +
                              static_cast<int64_t>(i);
          parts.push_back(PerToken(
              stream, row, batch.packing.boundaries[i + 1] - batch.packing.boundaries[i], scale));
        }
        return at::cat(parts);
      };
      const TokenLayout layout{batch.targets.ne(parallel::kIgnoreTarget), batch.packing.boundaries};
      if (c.critic) {
        const at::Tensor values = decoder.Values(hidden, ready);
        return ValueLoss({layout, values, per_token(1, 0.3), per_token(2, 1)}, {}, counts).loss;
      }
      const auto out = decoder.LogProbsWithGradient(hidden, batch.targets, 0.8, true, ready);
      PolicyLossOptions loss;
      loss.mode = PolicyLossMode::kGspo;
      loss.aggregation = LossAggregation::kSeqMeanTokenMean;
      loss.entropy_coeff = 0.05;
      loss.use_kl_loss = true;
      loss.kl_loss_coef = 0.1;
      PolicyLossInputs in;
      in.layout = layout;
      in.log_probs = out.log_probs;
      in.entropy = out.entropy;
      in.old_log_probs = -5 + per_token(3, 0.2);
      in.ref_log_probs = -5 + per_token(4, 0.2);
      in.advantages = per_token(5, 1);
      return PolicyLoss(in, loss, counts).loss;
    };
    callbacks.before_last_backward = [&] { buffer.BeginLastMicrobatch(); };
    parallel::PipelineRunner runner(context.pp_forward(), context.pp_backward(),
                                    at::TensorOptions().dtype(at::kFloat));
    const at::Tensor loss = runner.Train(c.microbatches, callbacks);
    buffer.FinishReduction();

    const std::lock_guard lock(mutex);
    if (decoder.last_stage() && context.tp_rank() == 0) outcome.loss += loss.item<double>();
    for (const parallel::OwnedSlice& slice : buffer.owned()) {
      const parallel::Parameter& p = *buffer.parameters()[static_cast<size_t>(slice.parameter)];
      if (p.replica) continue;
      const int64_t count = (slice.row_end - slice.row_begin) * p.row_size();
      const at::Tensor gradient =
          buffer.owned_gradients().narrow(0, slice.offset, count).view({-1, p.row_size()});
      for (const parallel::ParameterPiece& piece : p.pieces) {
        const int64_t begin = std::max(slice.row_begin, piece.row_begin);
        const int64_t end = std::min(slice.row_end, piece.row_begin + piece.box.size[0]);
        if (begin >= end) continue;
        at::Tensor& whole = outcome.gradients[piece.name];
        if (!whole.defined())
          whole = at::zeros({piece.shape[0], piece.shape.size() > 1 ? piece.shape[1] : 1});
        const bool wide = piece.shape.size() > 1;
        whole.narrow(0, piece.box.offset[0] + begin - piece.row_begin, end - begin)
            .narrow(1, wide ? piece.box.offset[1] : 0, wide ? piece.box.size[1] : 1)
            .copy_(gradient.narrow(0, begin - slice.row_begin, end - begin));
      }
    }
  });
  return outcome;
}

class ActorCriticTest : public ::testing::TestWithParam<Case> {};

TEST_P(ActorCriticTest, GradientsEqualTheSingleProcess) {
  const Case& c = GetParam();
  const Outcome expected = Differentiate({1, 1, 1, false, 1, c.critic, c.tied});
  const Outcome found = Differentiate(c);
  EXPECT_NEAR(found.loss, expected.loss, 1e-6 * std::max(1.0, std::fabs(expected.loss)));
  EXPECT_EQ(found.gradients.size(), expected.gradients.size());
  EXPECT_EQ(expected.gradients.count("score.weight"), c.critic ? 1u : 0u);
  EXPECT_EQ(expected.gradients.count("lm_head.weight"), c.critic || c.tied ? 0u : 1u);
  for (const auto& [name, gradient] : expected.gradients) {
    ASSERT_TRUE(found.gradients.count(name)) << name;
    const double scale = gradient.abs().max().item<double>();
    EXPECT_GT(scale, 0) << name;
    EXPECT_TRUE(at::allclose(found.gradients.at(name), gradient, 0, 1e-5 * scale))
        << name << ": differs by "
        << (found.gradients.at(name) - gradient).abs().max().item<double>() << " of " << scale;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ActorCriticTest,
    ::testing::Values(Case{1, 1, 1, false, 4, false}, Case{2, 1, 1, false, 2, false},
                      Case{2, 1, 2, true, 2, false, true}, Case{1, 2, 2, false, 4, false},
                      Case{1, 1, 1, false, 4, true}, Case{2, 1, 1, false, 2, true},
                      Case{2, 1, 2, true, 2, true, true}, Case{1, 2, 2, false, 4, true}));

}  // namespace
}  // namespace keel::trainer::rl
