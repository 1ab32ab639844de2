#include "trainer/algorithms/rollout_correction_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace keel::trainer::rl {

namespace {

std::vector<std::string> SplitTrimmed(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    std::string part = text.substr(begin, end - begin);
    const size_t first = part.find_first_not_of(" \t");
    if (first != std::string::npos) {
      parts.push_back(part.substr(first, part.find_last_not_of(" \t") - first + 1));
    }
    begin = end + 1;
  }
  return parts;
}

std::optional<double> Positive(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value) || value <= 0) return std::nullopt;
  return value;
}

struct Bounds {
  std::optional<double> lower;
  double upper = 0;
};

// "2.0" or "0.5_2.0".
std::optional<Bounds> ParseBounds(const std::string& text) {
  const size_t bar = text.find('_');
  Bounds bounds;
  if (bar != std::string::npos) {
    bounds.lower = Positive(text.substr(0, bar));
    if (!bounds.lower) return std::nullopt;
  }
  const auto upper = Positive(bar == std::string::npos ? text : text.substr(bar + 1));
  if (!upper || (bounds.lower && *bounds.lower > *upper)) return std::nullopt;
  bounds.upper = *upper;
  return bounds;
}

}  // namespace

Result<RolloutCorrectionOptions> RolloutCorrectionOptions::Parse(
    std::optional<ImportanceLevel> rollout_is, const std::string& rollout_is_threshold,
    bool batch_normalize, const std::string& rollout_rs, const std::string& rollout_rs_threshold) {
  const std::string root = "algorithm.rollout_correction.";
  RolloutCorrectionOptions options;
  std::vector<std::string> problems;
  options.level = rollout_is;
  options.batch_normalize = batch_normalize;
  if (const auto bounds = ParseBounds(rollout_is_threshold)) {
    options.upper = bounds->upper;
    options.lower = bounds->lower;
  } else {
    problems.push_back(fmt::format(
        "{}rollout_is_threshold is '{}', expected a positive number, or two as lower_upper", root,
        rollout_is_threshold));
  }

  const std::vector<std::string> names = SplitTrimmed(rollout_rs, ',');
  std::vector<std::string> thresholds = SplitTrimmed(rollout_rs_threshold, ',');
  if (names.empty() && !thresholds.empty())
    problems.push_back(root + "rollout_rs_threshold is given, but rollout_rs is null");
  if (!names.empty() && thresholds.size() != 1 && thresholds.size() != names.size()) {
    problems.push_back(fmt::format(
        "{}rollout_rs_threshold has {} entries: expected one for all, or one for each of "
        "the {} in rollout_rs",
        root, thresholds.size(), names.size()));
    return Status(StatusCode::kConfig, fmt::format("{}", fmt::join(problems, "; ")));
  }
  if (thresholds.size() == 1) thresholds.resize(names.size(), thresholds[0]);
  for (size_t i = 0; i < names.size(); ++i) {
    const std::optional<RejectionTest> test = ParseName<RejectionTest>(names[i]);
    if (!test) {
      problems.push_back(fmt::format("{}rollout_rs: '{}' is not one of {}", root, names[i],
                                     fmt::join(AllNames<RejectionTest>(), ", ")));
      continue;
    }
    const auto bounds = ParseBounds(thresholds[i]);
    const bool k1 = TraitsOf(*test).estimator == KlEstimator::kK1;
    if (!bounds || (bounds->lower && !k1)) {
      problems.push_back(fmt::format(
          "{}rollout_rs_threshold: '{}' for {}: expected {}", root, thresholds[i], names[i],
          k1 ? "a positive number, or two as lower_upper" : "one positive number"));
      continue;
    }
    options.rules.push_back({*test, bounds->lower.value_or(1 / bounds->upper), bounds->upper});
    if (k1 && options.rules.back().lower > options.rules.back().upper) {
      problems.push_back(
          fmt::format("{}rollout_rs_threshold: '{}' for {}: its reciprocal is larger", root,
                      thresholds[i], names[i]));
    }
  }
  if (!problems.empty())
    return Status(StatusCode::kConfig, fmt::format("{}", fmt::join(problems, "; ")));
  return options;
}

}  // namespace keel::trainer::rl
