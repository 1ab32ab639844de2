// Shares at every moment, by counting; and the order of a mixture as a function of the position.
#include "trainer/data/mixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "trainer/data/sample_order.h"

namespace keel::trainer {
namespace {

TEST(MixtureTest, EverySourceIsWithinOneSampleOfItsShareAtEveryMoment) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> weights(1 + random() % 12);
    for (double& weight : weights)
      weight = round % 3 == 0 ? std::exp2(static_cast<double>(random() % 14))
                              : 0.01 + static_cast<double>(random() % 1000);
    double sum = 0;
    for (const double weight : weights) sum += weight;
    Mixture mixture(weights);
    std::vector<int64_t> counts(weights.size());
    for (int64_t k = 0; k < 3000; ++k) {
      const Mixture::Draw draw = mixture.At(k);
      ASSERT_EQ(draw.index, counts[draw.source]++);
      for (size_t i = 0; i < weights.size(); ++i) {
        const double due = weights[i] / sum * static_cast<double>(k + 1);
        ASSERT_LT(std::abs(static_cast<double>(counts[i]) - due), 1.0)
            << "source " << i << " of " << weights.size() << " after " << k + 1;
      }
    }
  }
}

TEST(MixtureTest, TheDrawIsAFunctionOfThePosition) {
  const double weights[] = {5, 3, 1.5};
  Mixture forward(weights), jumping(weights);
  std::vector<Mixture::Draw> draws;
  for (int64_t k = 0; k < 500; ++k) draws.push_back(forward.At(k));
  for (const int64_t k : {499, 0, 250, 250, 251, 3, 400}) {
    const Mixture::Draw draw = jumping.At(k);
    EXPECT_EQ(draw.source, draws[static_cast<size_t>(k)].source);
    EXPECT_EQ(draw.index, draws[static_cast<size_t>(k)].index);
  }
}

TEST(MixtureTest, ASourceIsInItsOwnEpochsWhateverTheOthersAre) {
  SampleOrder both({{7, 2}, {30, 1}}, 5, true);
  SampleOrder alone({{7, 1}}, 5, true);
  std::vector<int64_t> first, second;
  for (int64_t k = 0; k < 63; ++k) {
    const int64_t sample = both.At(k);
    ASSERT_LT(sample, 37);
    (sample < 7 ? first : second).push_back(sample);
  }
  EXPECT_EQ(first.size(), 42u);
  for (size_t j = 0; j < first.size(); ++j) EXPECT_EQ(first[j], alone.At(static_cast<int64_t>(j)));
  for (size_t epoch = 0; epoch < 6; ++epoch) {
    const auto from = first.begin() + static_cast<std::ptrdiff_t>(7 * epoch);
    EXPECT_EQ(std::set<int64_t>(from, from + 7).size(), 7u);
  }
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 21u);
}

// Beyond what is held the order is computed, and still a permutation of each epoch.
TEST(MixtureTest, TheOrderOfManySamplesIsAPermutationThatIsNotHeld) {
  const int64_t size = (int64_t{1} << 25) + 12345;
  SampleOrder order(size, 9, true);
  std::vector<bool> seen(static_cast<size_t>(size));
  for (int64_t k = 0; k < 2000000; ++k) {
    const int64_t sample = order.At(k);
    ASSERT_GE(sample, 0);
    ASSERT_LT(sample, size);
    ASSERT_FALSE(seen[static_cast<size_t>(sample)]);
    seen[static_cast<size_t>(sample)] = true;
  }
  EXPECT_NE(order.At(0), order.At(size));
}

}  // namespace
}  // namespace keel::trainer
