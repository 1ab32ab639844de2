// What algorithm.rollout_correction asks for, parsed from its texts. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/enum_names.h"
#include "common/status.h"
#include "trainer/algorithms/choices.h"

namespace keel::trainer::rl {

// What is held against a bound: an estimate of each token, or a sequence's sum, mean or largest.
enum class RejectionTest {
  kTokenK1,
  kTokenK2,
  kTokenK3,
  kSeqSumK1,
  kSeqSumK2,
  kSeqSumK3,
  kSeqMeanK1,
  kSeqMeanK2,
  kSeqMeanK3,
  kSeqMaxK2,
  kSeqMaxK3,
};
constexpr auto NamesOf(RejectionTest) {
  using enum RejectionTest;
  return EnumNames<RejectionTest>({{kTokenK1, "token_k1"},
                                   {kTokenK2, "token_k2"},
                                   {kTokenK3, "token_k3"},
                                   {kSeqSumK1, "seq_sum_k1"},
                                   {kSeqSumK2, "seq_sum_k2"},
                                   {kSeqSumK3, "seq_sum_k3"},
                                   {kSeqMeanK1, "seq_mean_k1"},
                                   {kSeqMeanK2, "seq_mean_k2"},
                                   {kSeqMeanK3, "seq_mean_k3"},
                                   {kSeqMaxK2, "seq_max_k2"},
                                   {kSeqMaxK3, "seq_max_k3"}});
}

enum class RejectionScope { kToken, kSum, kMean, kMax };
struct RejectionTraits {
  RejectionScope scope = RejectionScope::kToken;
  KlEstimator estimator = KlEstimator::kK1;
};
constexpr RejectionTraits TraitsOf(RejectionTest test) {
  switch (test) {
    case RejectionTest::kTokenK1:
      return {RejectionScope::kToken, KlEstimator::kK1};
    case RejectionTest::kTokenK2:
      return {RejectionScope::kToken, KlEstimator::kK2};
    case RejectionTest::kTokenK3:
      return {RejectionScope::kToken, KlEstimator::kK3};
    case RejectionTest::kSeqSumK1:
      return {RejectionScope::kSum, KlEstimator::kK1};
    case RejectionTest::kSeqSumK2:
      return {RejectionScope::kSum, KlEstimator::kK2};
    case RejectionTest::kSeqSumK3:
      return {RejectionScope::kSum, KlEstimator::kK3};
    case RejectionTest::kSeqMeanK1:
      return {RejectionScope::kMean, KlEstimator::kK1};
    case RejectionTest::kSeqMeanK2:
      return {RejectionScope::kMean, KlEstimator::kK2};
    case RejectionTest::kSeqMeanK3:
      return {RejectionScope::kMean, KlEstimator::kK3};
    case RejectionTest::kSeqMaxK2:
      return {RejectionScope::kMax, KlEstimator::kK2};
    case RejectionTest::kSeqMaxK3:
      return {RejectionScope::kMax, KlEstimator::kK3};
  }
  return {};
}

// One criterion of rejection and its bounds. For k1 the bounds are of the ratio rollout / trainer,
// for the others `upper` is of the estimate itself.
struct RejectionRule {
  RejectionTest test = RejectionTest::kTokenK1;
  double lower = 0;
  double upper = 0;
};

struct RolloutCorrectionOptions {
  std::optional<ImportanceLevel> level;  // nothing: no weights
  double upper = 2;                      // of the weights
  std::optional<double> lower;  // given: weights outside become 0; else larger ones are cut
  bool batch_normalize = false;
  std::vector<RejectionRule> rules;  // all must hold
  // Tokens with the largest squared log ratios are left out until the mean square of the rest is
  // below this (M2PO: Zheng et al. 2025, arXiv 2510.01161).
  std::optional<double> m2po_threshold = std::nullopt;

  // From the configuration's values; "" for null. kConfig with every problem.
  static Result<RolloutCorrectionOptions> Parse(std::optional<ImportanceLevel> rollout_is,
                                                const std::string& rollout_is_threshold,
                                                bool batch_normalize, const std::string& rollout_rs,
                                                const std::string& rollout_rs_threshold);
};

}  // namespace keel::trainer::rl
