#include "rollout/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/kernels/cpu_kernels.h"
#include "common/philox.h"

namespace keel::rollout {

namespace {

struct Softmax {
  float largest = 0;
  double log_sum = 0;  // of exp(logit - largest)
};

Result<Softmax> SoftmaxOf(std::span<const float> logits) {
  float statistics[3];
  const int64_t no_target = -1;
  const auto n = static_cast<int64_t>(logits.size());
  kernels::SoftmaxStatistics(logits.data(), n, 1, n, &no_target, statistics);
  if (!std::isfinite(statistics[0]) || !std::isfinite(statistics[1])) {
    const auto bad =
        std::find_if_not(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
    return Status(
        StatusCode::kDataLoss,
        fmt::format("the logit of token {} is {}, expected finite numbers: the weights or "
                    "the activations are broken",
                    bad - logits.begin(), bad == logits.end() ? statistics[0] : *bad));
  }
  return Softmax{statistics[0], std::log(static_cast<double>(statistics[1]))};
}

float LogProbOf(const Softmax& softmax, float logit) {
  const float distance = logit - softmax.largest;
  return static_cast<float>(static_cast<double>(distance) - softmax.log_sum);
}

// The distribution as unnormalised weights of some ids, in the order of ids.
struct Kept {
  std::span<const int32_t> ids;
  double total = 0;
};

// The likelier first, the lower id among equals.
auto Likelier(std::span<const float> logits) {
  return [logits](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
}

double MassOf(std::span<const int32_t> ids, std::span<const float> weights) {
  double mass = 0;
  for (const int32_t id : ids) mass += static_cast<double>(weights[static_cast<size_t>(id)]);
  return mass;
}

// Leaves in `ids` the fewest likeliest whose mass reaches top_p of all of theirs.
void KeepTopP(double top_p, std::span<const float> logits, std::span<const float> weights,
              std::vector<int32_t>* ids) {
  const double target = top_p * MassOf(*ids, weights);
  // Mostly few tokens hold the mass: sort them alone, and more only where they do not.
  for (size_t sorted = 64;; sorted *= 8) {
    sorted = std::min(sorted, ids->size());
    const auto end = ids->begin() + static_cast<std::ptrdiff_t>(sorted);
    if (end != ids->end()) std::nth_element(ids->begin(), end, ids->end(), Likelier(logits));
    std::sort(ids->begin(), end, Likelier(logits));
    double mass = 0;
    for (size_t i = 0; i < sorted; ++i) {
      mass += static_cast<double>(weights[static_cast<size_t>((*ids)[i])]);
      if (mass >= target) {
        ids->resize(i + 1);
        return;
      }
    }
    if (sorted == ids->size()) return;
  }
}

Kept Filter(const SamplingParams& p, std::span<const float> logits, std::span<const float> weights,
            std::vector<int32_t>* ids) {
  ids->resize(weights.size());
  std::iota(ids->begin(), ids->end(), 0);
  if (p.top_k > 0 && p.top_k < static_cast<int64_t>(ids->size())) {
    const auto end = ids->begin() + p.top_k;
    std::nth_element(ids->begin(), end, ids->end(), Likelier(logits));
    ids->erase(end, ids->end());
  }
  if (p.top_p < 1) KeepTopP(p.top_p, logits, weights, ids);
  if (p.min_p > 0) {
    // The likeliest weighs 1.
    std::erase_if(*ids, [&](int32_t id) {
      return static_cast<double>(weights[static_cast<size_t>(id)]) < p.min_p;
    });
  }
  std::sort(ids->begin(), ids->end());
  return {*ids, MassOf(*ids, weights)};
}

// The first id at which the running sum passes u * total.
int32_t Invert(const Kept& kept, std::span<const float> weights, double u) {
  const double target = u * kept.total;
  double sum = 0;
  int32_t last = kept.ids.front();
  for (const int32_t id : kept.ids) {
    const auto weight = static_cast<double>(weights[static_cast<size_t>(id)]);
    if (weight == 0) continue;
    last = id;
    sum += weight;
    if (sum > target) break;
  }
  return last;
}

// Weights of all ids, and their sum by strides, so that most of them need not be looked at again.
constexpr size_t kStride = 128;

double WeighAll(std::span<const float> logits, float largest, float scale,
                Sampler::Workspace* workspace) {
  const size_t n = logits.size();
  workspace->weights.resize(n);
  workspace->sums.clear();
  double total = 0;
  for (size_t i = 0; i < n; i += kStride) {
    workspace->sums.push_back(static_cast<double>(
        kernels::ExpDistance(&logits[i], static_cast<int64_t>(std::min(kStride, n - i)), largest,
                             scale, &workspace->weights[i])));
    total += workspace->sums.back();
  }
  return total;
}

int32_t InvertAll(const Sampler::Workspace& workspace, double target) {
  double sum = 0;
  double before = 0;  // the chosen stride
  size_t begin = 0;
  for (size_t s = 0; s < workspace.sums.size(); ++s) {
    if (workspace.sums[s] > 0) {
      begin = s * kStride;
      before = sum;
      if (sum + workspace.sums[s] > target) break;
    }
    sum += workspace.sums[s];
  }
  const size_t end = std::min(workspace.weights.size(), begin + kStride);
  size_t chosen = begin;
  for (size_t i = begin; i < end; ++i) {
    if (workspace.weights[i] == 0) continue;
    chosen = i;
    before += static_cast<double>(workspace.weights[i]);
    if (before > target) break;
  }
  return static_cast<int32_t>(chosen);
}

void Penalize(double penalty, std::span<const int32_t> context, std::span<const float> logits,
              std::vector<float>* out) {
  out->assign(logits.begin(), logits.end());
  const auto factor = static_cast<float>(penalty);
  for (const int32_t id : context) {
    // From the model's own logit: an id that occurs twice is penalised once.
    const auto i = static_cast<size_t>(id);
    if (i < logits.size()) (*out)[i] = logits[i] < 0 ? logits[i] * factor : logits[i] / factor;
  }
}

}  // namespace

double UniformDraw(uint64_t seed, const Draw& draw) {
  const uint64_t stream = Philox(seed, draw.prompt_id)
                              .Bits64(static_cast<uint64_t>(static_cast<uint32_t>(draw.sample)));
  return Philox(seed, stream).Uniform(static_cast<uint64_t>(draw.position));
}

Result<ChosenToken> Sampler::Choose(std::span<const float> logits, const SamplingParams& params,
                                    const Draw& draw, std::span<const int32_t> context,
                                    Workspace& workspace) const {
  KEEL_ASSIGN_OR_RETURN(const Softmax raw, SoftmaxOf(logits));
  std::span<const float> processed = logits;
  Softmax softmax = raw;
  if (params.repetition_penalty != 1) {
    Penalize(params.repetition_penalty, context, logits, &workspace.logits);
    processed = workspace.logits;
    KEEL_ASSIGN_OR_RETURN(softmax, SoftmaxOf(processed));
  }
  const std::span<const float> known = processed.first(std::min(vocabulary_, logits.size()));
  const bool padded = known.size() < logits.size();
  const float largest = padded ? *std::max_element(known.begin(), known.end()) : softmax.largest;
  ChosenToken chosen;
  double log_prob = 0;
  if (params.temperature < kLeastTemperature) {
    chosen.token =
        static_cast<int32_t>(std::find(known.begin(), known.end(), largest) - known.begin());
    log_prob = static_cast<double>(largest - softmax.largest) - softmax.log_sum;
  } else {
    const auto scale = static_cast<float>(1 / params.temperature);
    double total = WeighAll(known, largest, scale, &workspace);
    const double whole = total;
    const double u = UniformDraw(params.seed, draw);
    if (params.top_k > 0 || params.top_p < 1 || params.min_p > 0) {
      const Kept kept = Filter(params, known, workspace.weights, &workspace.ids);
      chosen.token = Invert(kept, workspace.weights, u);
      total = kept.total;
    } else {
      chosen.token = InvertAll(workspace, u * total);
    }
    const float logit = known[static_cast<size_t>(chosen.token)];
    log_prob = static_cast<double>((logit - largest) * scale) - std::log(total);
    if (mode_ == LogProbsMode::kPolicy) {
      // The same weights before a filter; those of all the model's own logits where some were left
      // out or a penalty made others.
      const bool same = params.repetition_penalty == 1 && !padded;
      const double of_policy = same ? whole : WeighAll(logits, raw.largest, scale, &workspace);
      const float own = logits[static_cast<size_t>(chosen.token)];
      log_prob = static_cast<double>((own - raw.largest) * scale) - std::log(of_policy);
    }
  }
  if (mode_ == LogProbsMode::kRaw ||
      (mode_ == LogProbsMode::kPolicy && params.temperature < kLeastTemperature)) {
    const float logit = logits[static_cast<size_t>(chosen.token)];
    log_prob = static_cast<double>(logit - raw.largest) - raw.log_sum;
  }
  chosen.log_prob = static_cast<float>(log_prob);
  return chosen;
}

Result<float> LogProbOf(std::span<const float> logits, int32_t token) {
  KEEL_ASSIGN_OR_RETURN(const Softmax softmax, SoftmaxOf(logits));
  return LogProbOf(softmax, logits[static_cast<size_t>(token)]);
}

Result<std::vector<ScoredToken>> LikeliestOf(std::span<const float> logits, int64_t count) {
  KEEL_ASSIGN_OR_RETURN(const Softmax softmax, SoftmaxOf(logits));
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + std::min<int64_t>(count, std::ssize(ids));
  std::partial_sort(ids.begin(), end, ids.end(), [&](int32_t a, int32_t b) {
    const float of_a = logits[static_cast<size_t>(a)], of_b = logits[static_cast<size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  std::vector<ScoredToken> likeliest;
  for (auto id = ids.begin(); id != end; ++id)
    likeliest.push_back({*id, LogProbOf(softmax, logits[static_cast<size_t>(*id)])});
  return likeliest;
}

}  // namespace keel::rollout
