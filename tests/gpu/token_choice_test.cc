// The kernel of sampling against its definition in fp64, and against the choice on a host.

#include "gpu/token_choice.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "rollout/sampler.h"
#include "tests/gpu/bodies.h"

namespace keel::gpu {
namespace {

struct Chosen {
  at::Tensor tokens, parts;
};

Chosen ChosenBy(const KernelTable& table, const at::Tensor& logits, int64_t vocabulary,
                const std::vector<RowChoice>& choices) {
  const auto count = static_cast<int64_t>(choices.size());
  Chosen chosen{at::full({count}, -2, at::kInt), at::full({count, kChoiceParts}, NAN)};
  TokenChoice a;
  a.element = parallel::ElementOf(logits);
  a.count = count;
  a.columns = logits.size(1);
  a.vocabulary = vocabulary;
  a.stride = logits.stride(0);
  a.logits = logits.const_data_ptr();
  // A tensor's memory, which a device sees, too.
  const at::Tensor bytes =
      at::from_blob(const_cast<RowChoice*>(choices.data()),
                    {count * static_cast<int64_t>(sizeof(RowChoice))}, at::kByte)
          .clone();
  a.choices = static_cast<const RowChoice*>(bytes.const_data_ptr());
  a.tokens = chosen.tokens.data_ptr<int32_t>();
  a.parts = chosen.parts.data_ptr<float>();
  table.token_choice(a, nullptr);
  return chosen;
}

Chosen ChosenInBothOrders(const at::Tensor& logits, int64_t vocabulary,
                          const std::vector<RowChoice>& choices) {
  const auto found = InBothOrders([&](const KernelTable& table) {
    const Chosen chosen = ChosenBy(table, logits, vocabulary, choices);
    return std::vector<at::Tensor>{chosen.tokens, chosen.parts};
  });
  return {found[0], found[1]};
}

// The distribution by definition: sort by logit and id, cut, by ids again. Sums to 1.
std::vector<double> Distribution(const std::vector<double>& logits, const RowChoice& by) {
  const size_t n = logits.size();
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (by.top_k > 0 && by.top_k < static_cast<int64_t>(n))
    order.resize(static_cast<size_t>(by.top_k));
  const auto weight = [&](size_t id) {
    return std::exp((logits[id] - logits[order[0]]) / static_cast<double>(by.temperature));
  };
  double total = 0, before = 0, sum = 0;
  for (const size_t id : order) total += weight(id);
  std::vector<double> kept(n, 0);
  for (const size_t id : order) {
    if (by.top_p < 1 && before >= by.top_p * total) break;
    before += weight(id);
    if (weight(id) >= by.min_p) sum += kept[id] = weight(id);
  }
  for (double& p : kept) p /= sum;
  return kept;
}

std::vector<double> RowOf(const at::Tensor& logits, int64_t row, int64_t vocabulary) {
  const at::Tensor wide = logits[row].narrow(0, 0, vocabulary).to(at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + vocabulary};
}

// That a draw of `by.uniform` from the distribution is `token`, but for rounding of `slack`.
void ExpectDrawn(const std::vector<double>& distribution, int32_t token, const RowChoice& by,
                 double slack = 1e-5) {
  ASSERT_GE(token, 0);
  ASSERT_LT(static_cast<size_t>(token), distribution.size());
  const double p = distribution[static_cast<size_t>(token)];
  const double below = std::accumulate(distribution.begin(), distribution.begin() + token, 0.0);
  EXPECT_GT(p, 0) << "token " << token << " was left out";
  EXPECT_GE(by.uniform, below - slack) << token;
  EXPECT_LE(by.uniform, below + p + slack) << token;
}

RowChoice Drawn(std::mt19937* random, int64_t vocabulary, int32_t row) {
  const auto u = [&] { return std::uniform_real_distribution<double>()(*random); };
  RowChoice by;
  by.row = row;
  by.uniform = u();
  by.temperature = static_cast<float>(0.1 + 2 * u());
  by.policy_temperature = by.temperature;
  if (u() < 0.5) by.top_k = static_cast<int32_t>(1 + u() * 1.2 * static_cast<double>(vocabulary));
  if (u() < 0.5) by.top_p = 0.01 + 0.99 * u();
  if (u() < 0.3) by.min_p = u();
  return by;
}

struct ChoiceCase {
  int64_t rows, columns, vocabulary;
  bool ties;  // logits of few values
};

constexpr ChoiceCase kChoiceCases[] = {
    {4, 1, 1, false},      {6, 24, 24, false},     {6, 24, 24, true},    {5, 300, 299, false},
    {5, 1001, 1001, true}, {3, 5000, 4990, false}, {3, 5000, 5000, true}};

TEST(TokenChoiceKernel, DrawsFromTheDistributionByItsDefinition) {
  std::mt19937 random(5);
  for (const ChoiceCase& c : kChoiceCases) {
    for (const at::ScalarType type : kTypes) {
      at::Tensor logits = Draw(static_cast<uint64_t>(c.columns), {c.rows, c.columns}) * 3;
      if (c.ties) logits = logits.round();
      logits = logits.to(type);
      std::vector<RowChoice> choices;
      for (int i = 0; i < 40; ++i)
        choices.push_back(Drawn(&random, c.vocabulary, static_cast<int32_t>(i % c.rows)));
      const Chosen found = ChosenInBothOrders(logits, c.vocabulary, choices);
      for (size_t i = 0; i < choices.size(); ++i) {
        SCOPED_TRACE(std::to_string(c.columns) + " columns, choice " + std::to_string(i));
        const RowChoice& by = choices[i];
        const std::vector<double> row = RowOf(logits, by.row, c.vocabulary);
        const std::vector<double> distribution = Distribution(row, by);
        const auto token = found.tokens[static_cast<int64_t>(i)].item<int32_t>();
        ExpectDrawn(distribution, token, by);
        const at::Tensor parts = found.parts[static_cast<int64_t>(i)].to(at::kDouble);
        const double drawn =
            parts[kDrawnDistance].item<double>() - std::log(parts[kDrawnSum].item<double>());
        EXPECT_NEAR(drawn, std::log(distribution[static_cast<size_t>(token)]), 1e-5);
        const at::Tensor whole =
            logits[by.row].to(at::kDouble) / static_cast<double>(by.policy_temperature);
        EXPECT_NEAR(
            parts[kPolicyDistance].item<double>() - std::log(parts[kPolicySum].item<double>()),
            at::log_softmax(whole, 0)[token].item<double>(), 1e-5);
      }
    }
  }
}

// Each draw of the same row: the tokens that the host chooses, where no rounding decides.
TEST(TokenChoiceKernel, ChoosesWhatTheHostChooses) {
  std::mt19937 random(9);
  constexpr int64_t kVocabulary = 4000;
  const at::Tensor logits = Draw(3, {8, kVocabulary}) * 4;
  std::vector<RowChoice> choices;
  std::vector<int32_t> expected;
  for (int i = 0; i < 400; ++i) {
    RowChoice by = Drawn(&random, kVocabulary, i % 8);
    rollout::SamplingParams params;
    params.seed = 11;
    params.temperature = static_cast<double>(by.temperature);
    params.top_k = by.top_k > 0 ? by.top_k : -1;
    params.top_p = by.top_p;
    params.min_p = by.min_p;
    const rollout::Draw draw{static_cast<uint64_t>(i), i % 3, i};
    by.uniform = rollout::UniformDraw(params.seed, draw);
    choices.push_back(by);
    rollout::Sampler::Workspace workspace;
    const std::span<const float> row(logits.const_data_ptr<float>() + by.row * kVocabulary,
                                     static_cast<size_t>(kVocabulary));
    expected.push_back(ValueOrThrow(rollout::Sampler(rollout::LogProbsMode::kPolicy)
                                        .Choose(row, params, draw, {}, workspace))
                           .token);
  }
  const Chosen found = ChosenInBothOrders(logits, kVocabulary, choices);
  int other = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    other += found.tokens[static_cast<int64_t>(i)].item<int32_t>() != expected[i] ? 1 : 0;
  EXPECT_LE(other, 1);
}

TEST(TokenChoiceKernel, TakesTheFirstOfTheLikeliestAtTemperatureZero) {
  at::Tensor logits = at::zeros({3, 777});
  logits[0][500] = 2;
  logits[0][300] = 2;
  logits[0][776] = 5;  // no token: the vocabulary is padded
  logits[1] -= 3;
  logits[1][0] = -0.0;
  logits[1][9] = 0.0;
  logits[2].fill_(-INFINITY);
  logits[2][700] = -4;
  std::vector<RowChoice> choices(3);
  for (size_t i = 0; i < choices.size(); ++i) {
    choices[i].row = static_cast<int32_t>(i);
    choices[i].temperature = 0;
  }
  const Chosen found = ChosenInBothOrders(logits, 776, choices);
  EXPECT_TRUE(at::equal(found.tokens, at::tensor({300, 0, 700}, at::kInt))) << found.tokens;
}

TEST(TokenChoiceKernel, SaysWhereThereIsNoDistribution) {
  const at::Tensor logits = Draw(1, {4, 100});
  logits[0][17] = NAN;
  logits[1][99] = INFINITY;
  logits[2].fill_(-INFINITY);
  std::vector<RowChoice> choices(4);
  for (size_t i = 0; i < choices.size(); ++i) choices[i].row = static_cast<int32_t>(i);
  const Chosen found = ChosenInBothOrders(logits, 100, choices);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(found.tokens[i].item<int32_t>(), -1) << i;
  EXPECT_GE(found.tokens[3].item<int32_t>(), 0);
}

// The first two parts of a choice are what the trainer makes of the same logits.
TEST(TokenChoiceKernel, LeavesTheBitsOfTokenStatistics) {
  const at::Tensor logits = Draw(7, {3, 1000}) * 3;
  std::vector<RowChoice> choices(3);
  for (size_t i = 0; i < choices.size(); ++i) {
    choices[i].row = static_cast<int32_t>(i);
    choices[i].uniform = 0.3;
    choices[i].temperature = choices[i].policy_temperature = 0.7f;
  }
  const KernelTable& table = HostKernelTable();
  const Chosen found = ChosenBy(table, logits, 1000, choices);
  const at::Tensor targets = found.tokens.to(at::kLong);
  const at::Tensor statistics = at::empty({3, 3});
  table.token_statistics(
      {parallel::ElementOf(logits), 3, 1000, 1000, logits.const_data_ptr(),
       targets.const_data_ptr<int64_t>(), 0.7f, false, statistics.data_ptr<float>()},
      nullptr);
  EXPECT_TRUE(at::equal(found.parts.select(1, kPolicySum), statistics.select(1, 1)));
  EXPECT_TRUE(at::equal(found.parts.select(1, kPolicyDistance),
                        (statistics.select(1, 2) - statistics.select(1, 0)) / 0.7f));
}

// The first of its lane's part, or the whole of one.
TEST(TokenChoiceKernel, ALogitThatIsNoNumberMakesNoDistribution) {
  at::Tensor logits = Draw(6, {2, 301});
  logits[0][3] = NAN;
  logits[1].narrow(0, 16, 8).fill_(NAN);
  std::vector<RowChoice> choices(4);
  for (int i = 0; i < 4; ++i) {
    choices[static_cast<size_t>(i)].row = i / 2;
    choices[static_cast<size_t>(i)].temperature = i % 2 == 0 ? 0.0f : 1.0f;
  }
  const Chosen found = ChosenInBothOrders(logits, 301, choices);
  EXPECT_TRUE(at::equal(found.tokens, at::full({4}, -1, at::kInt))) << found.tokens;
}

}  // namespace
}  // namespace keel::gpu
