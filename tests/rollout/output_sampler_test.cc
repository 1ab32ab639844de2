// Rows of a step's logits: who waits for which, and that what is made of each is what the choice of
// one token says of it.

#include "rollout/output_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <utility>

#include "parallel/tensor/tensor_parallel_layers.h"
#include "parallel/tensor/vocab_parallel_log_probs.h"

namespace keel::rollout {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kRowsOfStep = 6, kColumnsOfStep = 600;
constexpr size_t kIds = 590;

SamplingParams Told() {
  SamplingParams params;
  params.temperature = 0.7;
  params.prompt_logits = true;
  params.likeliest = 4;
  params.seed = 3;
  return params;
}
SamplingParams GreedyToken() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}
SamplingParams Penalized() {
  SamplingParams params;
  params.repetition_penalty = 1.3;
  params.top_k = 50;
  return params;
}

// A step of six rows: a prompt of three tokens that is told of, with a sequence that follows it;
// the beginning of another prompt; a sequence that goes on.
struct SomeStep {
  SomeStep()
      : told(Add(3, 0, Told())),
        follower(Add(3, 0, Penalized())),
        begun(Add(5, 0, {})),
        going_on(Add(4, 2, GreedyToken())) {
    plan.work = {
        {told, 0, 3, true, {follower}}, {begun, 0, 2, false, {}}, {going_on, 5, 1, true, {}}};
    outputs = OutputsOf(plan, &batch);
  }
  Sequence* Add(int32_t prompt, int32_t response, const SamplingParams& sampling) {
    const auto arrival = static_cast<int64_t>(sequences.size());
    Request request;
    request.prompt_id = static_cast<uint64_t>(100 + arrival);
    request.sample = static_cast<int>(arrival);
    for (int32_t i = 0; i < prompt; ++i) request.prompt.push_back(7 * i + 3);
    request.sampling = sampling;
    for (int32_t i = 0; i < response; ++i) request.so_far.tokens.push_back(11 * i + 5);
    if (arrival == 1) request.draws_as = 5;
    return sequences.emplace_back(std::make_unique<Sequence>(arrival, std::move(request))).get();
  }

  std::vector<std::unique_ptr<Sequence>> sequences;
  Sequence *told, *follower, *begun, *going_on;
  StepPlan plan;
  model::DecodeBatch batch;
  std::vector<StepOutput> outputs;
};

// Of the rows that the step asks for.
at::Tensor LogitsOf(const SomeStep& step) {
  at::manual_seed(9);
  const at::Tensor all = at::randn({kRowsOfStep, kColumnsOfStep}) * 3;
  return all.index_select(0, at::tensor(step.batch.outputs, at::kLong));
}

std::span<const float> RowOf(const at::Tensor& logits, int64_t row) {
  return {logits.const_data_ptr<float>() + row * kColumnsOfStep,
          static_cast<size_t>(kColumnsOfStep)};
}

TEST(OutputSamplerTest, RowsAreThoseThatSomebodyWaitsFor) {
  const SomeStep step;
  EXPECT_THAT(step.batch.outputs, ElementsAre(0, 1, 2, 5));
  ASSERT_EQ(step.outputs.size(), 5u);
  const std::vector<Sequence*> whose = {step.told, step.told, step.told, step.follower,
                                        step.going_on};
  const std::vector<int64_t> rows = {0, 1, 2, 2, 3}, positions = {0, 1, 2, 2, 5};
  for (size_t i = 0; i < whose.size(); ++i) {
    const StepOutput& output = step.outputs[i];
    EXPECT_EQ(output.sequence, whose[i]) << i;
    EXPECT_EQ(output.row, rows[i]) << i;
    EXPECT_EQ(output.position, positions[i]) << i;
    EXPECT_EQ(output.sample, i >= 2) << i;
    EXPECT_EQ(output.draw.position, output.sequence->generated()) << i;
    EXPECT_EQ(output.draw.sample, output.sequence->request.sample) << i;
  }
  EXPECT_EQ(step.outputs[2].draw.prompt_id, 100u);
  EXPECT_EQ(step.outputs[3].draw.prompt_id, 5u);  // Request::draws_as
  EXPECT_EQ(step.outputs[4].draw.position, 2);
}

// Whether the logits come at once or a row at a time.
TEST(OutputSamplerTest, EachRowIsChosenOfAndToldOfByItself) {
  for (const int64_t at_once : {4, 1}) {
    SomeStep step;
    const at::Tensor logits = LogitsOf(step);
    const OutputSampler sampler({.vocabulary = kIds});
    PromptLogits prompt_logits;
    size_t next = 0;
    for (int64_t row = 0; row < logits.size(0); row += at_once) {
      const size_t begin = next;
      while (next < step.outputs.size() && step.outputs[next].row < row + at_once) ++next;
      sampler.Sample(logits.narrow(0, row, at_once), row,
                     std::span(step.outputs).subspan(begin, next - begin), &prompt_logits);
    }
    ASSERT_EQ(next, step.outputs.size());
    Sampler::Workspace workspace;
    for (size_t i = 0; i < step.outputs.size(); ++i) {
      const StepOutput& output = step.outputs[i];
      const Sequence& s = *output.sequence;
      const std::span<const float> row = RowOf(logits, output.row);
      ASSERT_TRUE(output.error.ok()) << output.error.ToString();
      ASSERT_EQ(output.prompt_log_prob.has_value(), i < 2) << i;
      if (i < 2) {
        EXPECT_EQ(*output.prompt_log_prob,
                  ValueOrThrow(LogProbOf(row, s.tokens[static_cast<size_t>(output.position + 1)])));
      }
      EXPECT_EQ(output.likeliest,
                i < 3 ? ValueOrThrow(LikeliestOf(row, 4)) : std::vector<ScoredToken>());
      if (!output.sample) continue;
      const ChosenToken chosen =
          ValueOrThrow(Sampler(LogProbsMode::kPolicy, kIds)
                           .Choose(row, s.request.sampling, output.draw, s.tokens, workspace));
      EXPECT_EQ(output.chosen.token, chosen.token) << i;
      EXPECT_NEAR(output.chosen.log_prob, chosen.log_prob, 1e-5) << i;
    }
    ASSERT_EQ(prompt_logits.size(), 1u);
    EXPECT_TRUE(at::equal(prompt_logits.at(step.told->arrival), logits.narrow(0, 0, 3)));
  }
}

TEST(OutputSamplerTest, LogitsThatAreNoNumbersAreErrorsOfTheirRowAlone) {
  SomeStep step;
  at::Tensor logits = LogitsOf(step);
  logits[2][17] = std::numeric_limits<float>::quiet_NaN();
  PromptLogits prompt_logits;
  OutputSampler({}).Sample(logits, 0, step.outputs, &prompt_logits);
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    const bool bad = step.outputs[i].row == 2;
    EXPECT_EQ(step.outputs[i].error.code(), bad ? StatusCode::kDataLoss : StatusCode::kOk) << i;
  }
}

TEST(OutputSamplerTest, ATrainerOverSeveralRanksSaysTheBits) {
  for (const LogProbsMode mode :
       {LogProbsMode::kPolicy, LogProbsMode::kRaw, LogProbsMode::kProcessed}) {
    SomeStep step, plain;
    const at::Tensor logits = LogitsOf(step);
    PromptLogits prompt_logits;
    OutputSampler({.logprobs_mode = mode}).Sample(logits, 0, plain.outputs, &prompt_logits);
    OutputSampler({.logprobs_mode = mode, .as_trainer = true, .tp = 2})
        .Sample(logits, 0, step.outputs, &prompt_logits);
    for (size_t i = 2; i < step.outputs.size(); ++i) {
      const StepOutput& output = step.outputs[i];
      EXPECT_EQ(output.chosen.token, plain.outputs[i].chosen.token);
      if (mode == LogProbsMode::kProcessed) {
        EXPECT_EQ(output.chosen.log_prob, plain.outputs[i].chosen.log_prob) << i;
        continue;
      }
      const double asked = output.sequence->request.sampling.temperature;
      const at::Tensor said = parallel::LogProbsOfWhole(
          logits.narrow(0, output.row, 1), at::tensor({int64_t{output.chosen.token}}, at::kLong),
          mode == LogProbsMode::kRaw || asked == 0 ? 1.0 : asked,
          parallel::VocabRowsPerRank(kColumnsOfStep, 2));
      EXPECT_EQ(output.chosen.log_prob, said.item<float>()) << i;
    }
  }
}

}  // namespace
}  // namespace keel::rollout
