// Gradients that a GradBuffer has reduced, against their sums by brute force. All are whole
// numbers, so that no order of a sum matters.

#include "parallel/gradients/grad_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/ranks.h"

namespace keel::parallel {
namespace {

// An axis that Keel does not have.
constexpr Axis kMadeUp = static_cast<Axis>(3);

// A rank's parameters, in the order of the forward, whose gradients are summed over several sets of
// axes. With a pipeline, the first stage has the tied
// "embedding" and the last the tied "head".
struct ReducedStage {
  explicit ReducedStage(ParallelContext& context) {
    const bool piped = context.layout().pp() > 1;
    const int last = context.layout().pp() - 1;
    if (context.pp_rank() == 0) Add("embedding", {13, 6}).tied = piped;
    for (int layer = 0; layer < 3; ++layer) {
      Add("norm", {6}).gradient_sum_over = {Axis::kDp, Axis::kTp};
      Add("wide", {9, 6});
      Add("expert", {5, 6}).gradient_sum_over = {Axis::kDp, kMadeUp};
      Add("bias", {9});
      if (layer > 0) Add("head_norm", {4}).gradient_sum_over = {Axis::kTp, kMadeUp, Axis::kDp};
      Add("tall", {6, 11});
      // As with heads that do not divide: of another size on each TP rank, and, where there are
      // fewer key/value heads than ranks, the first two of three ranks hold the same.
      const int tp_rank = context.tp_rank();
      Add("uneven", {7 - 2 * tp_rank, 5 + tp_rank});
      if (context.layout().tp() > 1) {
        Parameter& shared = Add("shared", {6, 7});
        shared.tp_holders = {tp_rank % 2, tp_rank == 2 ? 1 : 2, true};
        Add("whole", {9}).replicated_over = {Axis::kDp, Axis::kTp};
      }
    }
    if (context.pp_rank() == last && piped) Add("head", {13, 6}).tied = true;
  }
  Parameter& Add(const std::string& name, const Dims& shape) {
    parameters.push_back(std::make_unique<Parameter>());
    Parameter& p = *parameters.back();
    p.name = name + std::to_string(parameters.size());
    p.shape = shape;
    list.push_back(&p);
    return p;
  }
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<Parameter*> list;
};

// What the backward of a micro-batch adds on a rank.
at::Tensor Contribution(int rank, int parameter, int microbatch, const Parameter& p) {
  const int64_t n = p.shape.elements();
  return at::remainder(at::arange(n, at::kFloat) * (2 * rank + 3) + 7 * parameter + 31 * microbatch,
                       29)
      .view(std::vector<int64_t>(p.shape.begin(), p.shape.end()));
}

// The ranks whose gradients of a parameter are summed: all those that differ from `rank` in its
// axes alone, and of a tied one those of the first and of the last stage.
std::vector<int> Summed(const Layout& layout, int rank, const Parameter& p) {
  std::vector<int> ranks;
  for (int other = 0; other < layout.world(); ++other) {
    bool sums = true;
    for (const AxisDegree& one : layout.axes()) {
      const int at = layout.CoordOf(other, one.axis);
      if (p.tied && one.axis == Axis::kPp) {
        sums = sums && (at == 0 || at == one.degree - 1);
      } else if (!p.gradient_sum_over.has(one.axis)) {
        const int mine = layout.CoordOf(rank, one.axis);
        const bool shares = p.tp_holders.shared && one.axis == Axis::kTp;
        sums = sums && (shares ? at / 2 == mine / 2 : at == mine);
      }
    }
    if (sums) ranks.push_back(other);
  }
  return ranks;
}

struct Case {
  Layout layout;
  int64_t bucket_bytes;
};

Case Of(int tp, int dp, int pp, int64_t bucket_bytes) {
  return {ValueOrThrow(Layout::Make(tp * dp * pp, tp, pp)), bucket_bytes};
}

class GradBufferTest : public ::testing::TestWithParam<Case> {};

TEST_P(GradBufferTest, OwnedGradientsAreTheSumsOverTheRanksThatShareThem) {
  const Case c = GetParam();
  std::mutex mutex;
  // By the rank of DP's first, parameter and row.
  std::map<std::tuple<int, int, int64_t>, int> owners;
  keel::testing::RunRanks(c.layout, [&](ParallelContext& context) {
    ReducedStage stage(context);
    const int first = context.layout().GroupRanks(context.rank(), Axis::kDp).front();
    WeightStore weights = GradBuffer::MakeStore(stage.list, context, {}, c.bucket_bytes);
    GradBuffer buffer(weights, context);
    constexpr int kMicrobatches = 2;
    for (int step = 0; step < 2; ++step) {
      buffer.ZeroGradients();
      for (int m = 0; m < kMicrobatches; ++m) {
        if (m + 1 == kMicrobatches) buffer.BeginLastMicrobatch();
        // Not quite in the order of the backward, and in another on each rank.
        std::vector<size_t> order(stage.list.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
        std::shuffle(order.begin(), order.end(),
                     std::mt19937(static_cast<unsigned>(9 * step + context.rank())));
        for (const size_t i : order) {
          Parameter& p = *stage.list[i];
          // Both copies of a tied weight are parameter -1.
          p.gradient.add_(
              Contribution(context.rank(), p.tied ? -1 : static_cast<int>(i), m + step, p));
          if (!p.tied) buffer.Ready(p);
        }
      }
      buffer.FinishReduction();

      const std::lock_guard lock(mutex);
      for (const OwnedSlice& slice : buffer.owned()) {
        const Parameter& p = *buffer.parameters()[static_cast<size_t>(slice.parameter)];
        at::Tensor expected = at::zeros_like(p.gradient);
        for (const int rank : Summed(context.layout(), context.rank(), p)) {
          for (int m = 0; m < kMicrobatches; ++m)
            expected += Contribution(rank, p.tied ? -1 : slice.parameter, m + step, p);
        }
        const int64_t rows = slice.row_end - slice.row_begin;
        const at::Tensor found =
            buffer.owned_gradients().narrow(0, slice.offset, rows * p.row_size());
        EXPECT_TRUE(at::equal(found, expected.narrow(0, slice.row_begin, rows).flatten()))
            << p.name << " of rank " << context.rank();
        // The values that belong to these gradients are the same rows of the weights.
        const at::Tensor values = p.value.narrow(0, slice.row_begin, rows);
        for (const GradBuffer::OwnedValues& piece : buffer.owned_values()) {
          if (slice.offset < piece.offset || slice.offset >= piece.offset + piece.values.numel())
            continue;
          EXPECT_EQ(piece.values.narrow(0, slice.offset - piece.offset, 1).const_data_ptr(),
                    values.const_data_ptr());
        }
        for (int64_t row = slice.row_begin; row < slice.row_end; ++row)
          ++owners[{first, slice.parameter, row}];
      }
      if (context.dp_rank() != 0) continue;
      for (size_t i = 0; i < stage.list.size(); ++i) {
        for (int64_t row = 0; row < stage.list[i]->rows(); ++row)
          owners.try_emplace({first, static_cast<int>(i), row}, 0);
      }
    }
  });
  for (const auto& [row, count] : owners)
    EXPECT_EQ(count, 2) << "in two steps, one rank of DP owns a row";
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, GradBufferTest,
    ::testing::Values(Of(1, 1, 1, 256), Of(1, 2, 1, 256), Of(1, 3, 1, 4096), Of(2, 1, 1, 256),
                      Of(2, 2, 1, 1 << 20), Of(2, 3, 1, 256), Of(1, 1, 2, 256), Of(1, 2, 2, 256),
                      Of(2, 2, 2, 256), Of(1, 2, 3, 256), Of(3, 1, 1, 256), Of(3, 2, 1, 512),
                      Case{Layout({{kMadeUp, 2}, {Axis::kDp, 2}}), 256},
                      Case{Layout({{Axis::kTp, 1}, {kMadeUp, 2}, {Axis::kDp, 1}}), 256},
                      Case{Layout({{Axis::kTp, 2}, {kMadeUp, 2}, {Axis::kDp, 2}}), 512},
                      Case{Layout({{Axis::kTp, 2}, {Axis::kDp, 2}, {Axis::kPp, 2}, {kMadeUp, 2}}),
                           256}));

// In whatever order a group sums a place of memory, copies that lie alike get the same bits.
TEST(GradBuffer, WhatSeveralTpRanksHoldLiesAlikeOnThem) {
  std::mutex mutex;
  using Place = std::tuple<std::string, int64_t, int64_t, int64_t>;  // name, offset, chunk, columns
  std::map<int, std::vector<Place>> places;                          // by TP rank
  keel::testing::RunRanks(3, 2, 1, [&](ParallelContext& context) {
    ReducedStage stage(context);
    const WeightStore weights = GradBuffer::MakeStore(stage.list, context, {}, 512);
    const std::lock_guard lock(mutex);
    std::vector<Place> mine;
    for (size_t i = 0; i < stage.list.size(); ++i) {
      const Parameter& p = *stage.list[i];
      if (!p.tp_holders.shared && !p.replicated_over.has(Axis::kTp) &&
          !p.gradient_sum_over.has(Axis::kTp)) {
        continue;
      }
      const ParameterPlace& place = weights.layout().places[i];
      const Bucket& bucket = weights.layout().buckets[static_cast<size_t>(place.bucket)];
      EXPECT_TRUE(bucket.late);
      mine.emplace_back(p.name, place.offset, bucket.chunk, p.row_size());
    }
    EXPECT_EQ(mine.size(), 11u);
    places[context.tp_rank()] = mine;
  });
  EXPECT_EQ(places[0], places[1]);
  EXPECT_EQ(places[0], places[2]);
}

TEST(GradBuffer, AParameterThatIsNotSummedOverDpIsRefused) {
  keel::testing::RunRanks(1, 1, 1, [](ParallelContext& context) {
    ReducedStage stage(context);
    stage.list[2]->gradient_sum_over = {kMadeUp};
    EXPECT_ANY_THROW(GradBuffer::MakeStore(stage.list, context, {}));
  });
}

}  // namespace
}  // namespace keel::parallel
