#include "trainer/algorithms/rollout_correction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace keel::trainer::rl {

namespace {

constexpr double kLogBound = 20;  // of log ratios before exp

// Mean, extremes and deviation of what the mask selects.
struct Moments {
  double sum = 0, squares = 0;
  double count = 0;
  double max = -std::numeric_limits<double>::infinity();
  double min = std::numeric_limits<double>::infinity();

  void Add(double x) {
    sum += x;
    squares += x * x;
    count += 1;
    max = std::max(max, x);
    min = std::min(min, x);
  }
  double mean() const { return sum / count; }
  double deviation() const {  // n
    return std::sqrt(std::max(0.0, squares / count - mean() * mean()));
  }
};

double SampleDeviation(const std::vector<double>& values) {  // n - 1
  if (values.size() < 2) return 0;
  double mean = 0;
  for (const double v : values) mean += v;
  mean /= static_cast<double>(values.size());
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

// Sequences with at least one token of the policy: the others say nothing and are not counted.
class Batch {
 public:
  Batch(const PackedView& view, std::span<const float> trainer, std::span<const float> rollout)
      : view_(view), trainer_(trainer), rollout_(rollout) {
    CheckPacked(view);
    if (trainer.size() != view.tokens() || rollout.size() != view.tokens()) {
      throw Error(StatusCode::kInternal,
                  fmt::format("rollout correction: expected {} log-probabilities, found {} of the "
                              "trainer and {} of the rollout",
                              view.tokens(), trainer.size(), rollout.size()));
    }
    for (size_t s = 0; s < view.sequences(); ++s) {
      if (PolicyTokens(view, s) > 0) sequences_.push_back(s);
    }
  }

  const PackedView& view() const { return view_; }
  const std::vector<size_t>& sequences() const { return sequences_; }
  double trainer(size_t t) const { return trainer_[t]; }
  double rollout(size_t t) const { return rollout_[t]; }
  double log_ratio(size_t t) const { return trainer(t) - rollout(t); }
  template <typename Body>
  void ForTokens(size_t s, Body&& body) const {
    for (size_t t = view_.begin(s); t < view_.end(s); ++t) {
      if (view_.mask[t] != 0) body(t);
    }
  }
  template <typename Body>
  void ForTokens(Body&& body) const {
    for (const size_t s : sequences_) ForTokens(s, body);
  }

 private:
  PackedView view_;
  std::span<const float> trainer_, rollout_;
  std::vector<size_t> sequences_;
};

double Bounded(double log_ratio) { return std::clamp(log_ratio, -kLogBound, kLogBound); }

void Weigh(const Batch& batch, const RolloutCorrectionOptions& options, RolloutCorrection& out) {
  const size_t n = batch.view().tokens();
  auto& metrics = out.metrics;
  std::vector<double> raw(n, 0);
  std::vector<double> weights(n, 0);
  std::vector<double> log_sums;  // by sequence
  for (const size_t s : batch.sequences()) {
    double sum = 0;
    batch.ForTokens(s, [&](size_t t) { sum += batch.log_ratio(t); });
    log_sums.push_back(sum);
    batch.ForTokens(s, [&](size_t t) {
      raw[t] =
          std::exp(Bounded(options.level == ImportanceLevel::kSequence ? sum : batch.log_ratio(t)));
      const bool keep = raw[t] <= options.upper && raw[t] >= options.lower.value_or(0);
      weights[t] = options.lower ? (keep ? raw[t] : 0) : std::min(raw[t], options.upper);
    });
  }

  // 1. Metrics of the weights as applied, and of how often the bounds were passed.
  const double lower = options.lower.value_or(1 / options.upper);
  Moments applied;
  double high = 0, low = 0, outside = 0;
  batch.ForTokens([&](size_t t) {
    applied.Add(weights[t]);
    high += raw[t] > options.upper;
    low += raw[t] < lower;
    outside += options.lower && (raw[t] < lower || raw[t] > options.upper);
  });
  const auto sequences = static_cast<double>(batch.sequences().size());
  metrics["rollout_is_mean"] = applied.mean();
  if (options.level == ImportanceLevel::kSequence) {
    const auto [smallest, largest] = std::minmax_element(log_sums.begin(), log_sums.end());
    metrics["rollout_is_max"] = std::exp(std::min(*largest, kLogBound));
    metrics["rollout_is_min"] = std::exp(*smallest);
    double above = 0, below = 0;
    for (const double sum : log_sums) {
      above += sum > std::log(options.upper);
      below += sum < std::log(lower);
    }
    metrics["rollout_is_ratio_fraction_high"] = above / sequences;
    metrics["rollout_is_ratio_fraction_low"] = below / sequences;
  } else {
    metrics["rollout_is_max"] = applied.max;
    metrics["rollout_is_min"] = applied.min;
    metrics["rollout_is_ratio_fraction_high"] = high / applied.count;
    metrics["rollout_is_ratio_fraction_low"] = low / applied.count;
  }
  metrics["rollout_is_std"] = applied.count > 1 ? applied.deviation() : 0;
  const double mean_square = applied.squares / applied.count;
  metrics["rollout_is_eff_sample_size"] =
      mean_square > 0 ? applied.mean() * applied.mean() / mean_square : 0;
  if (options.lower) metrics["rollout_is_oob_ratio"] = outside / applied.count;

  // 2. The same by sequence.
  std::vector<double> sequence_means;
  Moments by_sequence;
  double seq_high = 0, seq_low = 0, deviation = 0;
  for (const size_t s : batch.sequences()) {
    Moments of_weights, of_raw;
    batch.ForTokens(s, [&](size_t t) {
      of_weights.Add(weights[t]);
      of_raw.Add(raw[t]);
    });
    sequence_means.push_back(of_weights.mean());
    by_sequence.Add(of_weights.mean());
    deviation = std::max(deviation, std::fabs(of_weights.mean() - 1));
    seq_high += of_raw.mean() > options.upper;
    seq_low += of_raw.mean() < lower;
  }
  metrics["rollout_is_seq_mean"] = by_sequence.mean();
  metrics["rollout_is_seq_std"] = SampleDeviation(sequence_means);
  metrics["rollout_is_seq_max"] = by_sequence.max;
  metrics["rollout_is_seq_min"] = by_sequence.min;
  metrics["rollout_is_seq_max_deviation"] = deviation;
  metrics["rollout_is_seq_fraction_high"] = seq_high / sequences;
  metrics["rollout_is_seq_fraction_low"] = seq_low / sequences;

  // 3. A mean of 1, if asked for: over tokens, or over sequences.
  if (options.batch_normalize) {
    const double mean =
        options.level == ImportanceLevel::kToken ? applied.mean() : by_sequence.mean();
    const bool usable = mean > 1e-8;
    if (usable) batch.ForTokens([&](size_t t) { weights[t] /= mean; });
    metrics["rollout_is_batch_norm_factor"] = usable ? mean : 1;
  }
  out.weights.assign(weights.begin(), weights.end());
}

double TokenEstimate(KlEstimator estimator, double log_ratio) {
  const double safe = Bounded(log_ratio);
  if (estimator == KlEstimator::kK1) return -safe;
  return estimator == KlEstimator::kK2 ? 0.5 * safe * safe : std::exp(safe) - 1 - safe;
}

// Clears in `keep` what the rule rejects.
void Reject(const Batch& batch, const RejectionRule& rule, std::vector<uint8_t>& keep,
            std::map<std::string, double>& metrics) {
  const RejectionTraits traits = TraitsOf(rule.test);
  const bool k1 = traits.estimator == KlEstimator::kK1;
  const bool by_token = traits.scope == RejectionScope::kToken;
  const double upper = k1 ? std::log(rule.upper) : rule.upper;
  const double lower = k1 ? std::log(rule.lower) : 0;
  const auto passes = [&](double x) { return x <= upper && (!k1 || x >= lower); };
  const std::string prefix = fmt::format("rollout_rs_{}", NameOf(rule.test));

  Moments statistic, clamped, by_sequence;
  std::vector<double> sequence_values;
  double high = 0, low = 0, seq_high = 0, seq_low = 0, deviation = 0;
  double tokens_out = 0, sequences_out = 0;
  for (const size_t s : batch.sequences()) {
    Moments estimates;
    batch.ForTokens(
        s, [&](size_t t) { estimates.Add(TokenEstimate(traits.estimator, batch.log_ratio(t))); });
    const double value = traits.scope == RejectionScope::kSum   ? estimates.sum
                         : traits.scope == RejectionScope::kMax ? estimates.max
                                                                : estimates.mean();
    bool whole = true;
    batch.ForTokens(s, [&](size_t t) {
      const double x = by_token ? TokenEstimate(traits.estimator, batch.log_ratio(t)) : value;
      statistic.Add(x);
      clamped.Add(std::clamp(x, lower, upper));
      high += x > upper;
      low += k1 && x < lower;
      if (passes(x)) return;
      keep[t] = 0;
      whole = false;
      tokens_out += 1;
    });
    sequences_out += !whole;
    sequence_values.push_back(value);
    by_sequence.Add(value);
    seq_high += value > upper;
    seq_low += k1 && value < lower;
    deviation = std::max(deviation, std::fabs(value));
  }
  const auto sequences = static_cast<double>(batch.sequences().size());
  metrics[prefix + "_mean"] = statistic.mean();
  metrics[prefix + "_max"] = by_token ? statistic.max : by_sequence.max;
  metrics[prefix + "_min"] = by_token ? statistic.min : by_sequence.min;
  metrics[prefix + "_fraction_high"] = by_token ? high / statistic.count : seq_high / sequences;
  metrics[prefix + "_fraction_low"] = by_token ? low / statistic.count : seq_low / sequences;
  metrics[prefix + "_std"] = clamped.count > 1 ? clamped.deviation() : 0;
  metrics[prefix + "_seq_mean"] = by_sequence.mean();
  metrics[prefix + "_seq_std"] = SampleDeviation(sequence_values);
  metrics[prefix + "_seq_max"] = by_sequence.max;
  metrics[prefix + "_seq_min"] = by_sequence.min;
  metrics[prefix + "_seq_max_deviation"] = deviation;
  metrics[prefix + "_seq_fraction_high"] = seq_high / sequences;
  if (k1) metrics[prefix + "_seq_fraction_low"] = seq_low / sequences;
  metrics[prefix + "_masked_fraction"] = tokens_out / statistic.count;
  metrics[prefix + "_seq_masked_fraction"] = sequences_out / sequences;
}

// Clears in `keep`, of the tokens that it has, those with the largest squares, earlier ones first
// among equals, until the mean square of the rest is below the threshold; one token stays.
void BoundSecondMoment(const Batch& batch, double threshold, std::vector<uint8_t>& keep,
                       std::map<std::string, double>& metrics) {
  std::vector<std::pair<double, size_t>> squares;
  double sum = 0;
  batch.ForTokens([&](size_t t) {
    if (keep[t] == 0) return;
    const double ratio = batch.log_ratio(t);
    squares.emplace_back(ratio * ratio, t);
    sum += ratio * ratio;
  });
  if (squares.empty()) return;
  std::stable_sort(squares.begin(), squares.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  const auto count = static_cast<double>(squares.size());
  metrics["m2po_second_moment"] = sum / count;
  // Of the rest, from the small ones up: what is subtracted from a large sum leaves nothing of
  // them.
  std::vector<double> rest(squares.size() + 1, 0);
  for (size_t i = squares.size(); i-- > 0;) rest[i] = rest[i + 1] + squares[i].first;
  size_t out = 0;
  while (out + 1 < squares.size() &&
         rest[out] / static_cast<double>(squares.size() - out) >= threshold)
    ++out;
  for (size_t i = 0; i < out; ++i) keep[squares[i].second] = 0;
  metrics["m2po_second_moment_kept"] = rest[out] / (count - static_cast<double>(out));
  metrics["m2po_masked_fraction"] = static_cast<double>(out) / count;
}

std::map<std::string, double> GapMetrics(const Batch& batch) {
  std::map<std::string, double> metrics;
  Moments kl, k3, squares;
  Moments training_ppl, training_log, rollout_ppl, rollout_log, difference, ratio, chi_seq;
  double absolute = 0;
  for (const size_t s : batch.sequences()) {
    Moments trainer, rollout;
    batch.ForTokens(s, [&](size_t t) {
      trainer.Add(batch.trainer(t));
      rollout.Add(batch.rollout(t));
      const double log_ratio = batch.log_ratio(t);
      kl.Add(-log_ratio);
      k3.Add(std::exp(log_ratio) - log_ratio - 1);
      squares.Add(std::exp(2 * Bounded(log_ratio)));
    });
    training_ppl.Add(std::exp(-trainer.mean()));
    training_log.Add(-trainer.mean());
    rollout_ppl.Add(std::exp(-rollout.mean()));
    rollout_log.Add(-rollout.mean());
    const double gap = rollout.mean() - trainer.mean();
    difference.Add(gap);
    absolute += std::fabs(gap);
    ratio.Add(std::exp(gap));
    chi_seq.Add(std::exp(2 * Bounded(trainer.sum - rollout.sum)));
  }
  metrics["training_ppl"] = training_ppl.mean();
  metrics["training_log_ppl"] = training_log.mean();
  metrics["kl"] = kl.mean();
  metrics["k3_kl"] = k3.mean();
  metrics["rollout_ppl"] = rollout_ppl.mean();
  metrics["rollout_log_ppl"] = rollout_log.mean();
  metrics["log_ppl_diff"] = difference.mean();
  metrics["log_ppl_abs_diff"] = absolute / difference.count;
  metrics["log_ppl_diff_max"] = difference.max;
  metrics["log_ppl_diff_min"] = difference.min;
  metrics["ppl_ratio"] = ratio.mean();
  metrics["chi2_token"] = squares.mean() - 1;
  metrics["chi2_seq"] = chi_seq.mean() - 1;
  return metrics;
}

std::map<std::string, double> Prefixed(const std::map<std::string, double>& metrics) {
  std::map<std::string, double> out;
  for (const auto& [name, value] : metrics) out["rollout_corr/" + name] = value;
  return out;
}

}  // namespace

RolloutCorrection CorrectRollout(const PackedView& responses, std::span<const float> trainer,
                                 std::span<const float> rollout,
                                 const RolloutCorrectionOptions& options) {
  const Batch batch(responses, trainer, rollout);
  RolloutCorrection out;
  out.mask.assign(responses.mask.begin(), responses.mask.end());
  if (batch.sequences().empty()) {
    if (options.level) out.weights.assign(responses.tokens(), 0.0f);
    return out;
  }
  if (options.level) Weigh(batch, options, out);
  if (!options.rules.empty()) {
    for (const RejectionRule& rule : options.rules) Reject(batch, rule, out.mask, out.metrics);
    double tokens = 0, rejected = 0, sequences_out = 0;
    for (const size_t s : batch.sequences()) {
      bool whole = true;
      batch.ForTokens(s, [&](size_t t) {
        tokens += 1;
        rejected += out.mask[t] == 0;
        whole = whole && out.mask[t] != 0;
      });
      sequences_out += !whole;
    }
    out.metrics["rollout_rs_masked_fraction"] = rejected / tokens;
    out.metrics["rollout_rs_seq_masked_fraction"] =
        sequences_out / static_cast<double>(batch.sequences().size());
  }
  if (options.m2po_threshold)
    BoundSecondMoment(batch, *options.m2po_threshold, out.mask, out.metrics);
  out.metrics.merge(GapMetrics(batch));
  out.metrics = Prefixed(out.metrics);
  return out;
}

std::map<std::string, double> RolloutGapMetrics(const PackedView& responses,
                                                std::span<const float> trainer,
                                                std::span<const float> rollout) {
  const Batch batch(responses, trainer, rollout);
  if (batch.sequences().empty()) return {};
  return Prefixed(GapMetrics(batch));
}

}  // namespace keel::trainer::rl
