#include "trainer/engine/memory_forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "model/config/adapter_tensors.h"
#include "model/config/head_split.h"

namespace keel::trainer {

namespace {

constexpr double kFp32 = 4;
// What a sequence of a step takes at the very least, as lists of its tokens, however short it is.
constexpr double kLeastPerSequence = 128;

// Parameters of the fullest of `tp` ranks, as doubles: hostile shapes overflow integers.
struct Counts {
  std::vector<double> layers;
  double vocabulary = 0, whole = 0;

  explicit Counts(const model::HfConfig& c, int64_t tp = 1) {
    const auto d = [](int64_t value) { return static_cast<double>(value); };
    const model::HeadSplit most = model::LargestHeadSplit(c, static_cast<int>(tp));
    const double attention = c.AttentionWeights(most.heads.size, most.kv_heads.size);
    for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
      const model::LayerSpec spec = c.Layer(i);
      const double shared = 3 * d(most.shared.size) + (spec.moe.shared_width > 0 ? 1 : 0);
      const double ffn = spec.ffn == model::FfnKind::kMoe
                             ? d(spec.moe.experts) * (3 * d(most.expert.size) + 1) + shared
                             : (spec.ffn == model::FfnKind::kPlain ? 2 : 3) * d(most.ffn.size);
      const double mixer =
          spec.mixer == model::Mixer::kDeltaRule ? c.DeltaWeights(most.delta.size) : attention;
      layers.push_back(mixer + d(c.hidden_size) * (ffn + 2));
    }
    vocabulary = std::ceil(d(c.vocab_size) / d(tp)) * d(c.hidden_size);
    whole = std::accumulate(layers.begin(), layers.end(), 0.0) +
            vocabulary * (c.tie_word_embeddings ? 1 : 2);
  }
};

// Of a rank's weights those of the pipeline stage with most of them: the first and the last have
// the vocabulary, too.
double LargestStage(const Counts& n, const model::HfConfig& model, double pp) {
  const auto each = static_cast<size_t>(std::ceil(static_cast<double>(n.layers.size()) / pp));
  double sum =
      std::accumulate(n.layers.begin(), n.layers.begin() + static_cast<int64_t>(each), 0.0);
  double most = sum;
  for (size_t i = each; i < n.layers.size(); ++i) {
    sum += n.layers[i] - n.layers[i - each];
    most = std::max(most, sum);
  }
  const double ends = pp == 1 && !model.tie_word_embeddings ? 2 : 1;
  return most + ends * n.vocabulary;
}

}  // namespace

double MemoryForecast::HostBytes(bool gpu) const {
  double sum = 0;
  for (const Part& part : parts) {
    if (!gpu || !part.on_device) sum += part.bytes;
  }
  return sum;
}

std::string MemoryForecast::ToString() const {
  std::vector<std::string> texts;
  for (const Part& part : parts) {
    if (part.bytes > 0) texts.push_back(fmt::format("{} {}", part.name, FormatBytes(part.bytes)));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

MemoryForecast ForecastTraining(const Config& config, const model::HfConfig& model, int world) {
  const ActorSection& actor = config.actor_rollout_ref.actor;
  const int64_t tp = actor.megatron.tensor_model_parallel_size;
  const auto pp = static_cast<double>(actor.megatron.pipeline_model_parallel_size);
  const double dp = std::max(1.0, world / (static_cast<double>(tp) * pp));
  const bool bf16 = config.actor_rollout_ref.model.dtype == WeightDtype::kBfloat16;
  const double weight = bf16 ? 2 : kFp32;
  const double state = 2 * kFp32 + (bf16 ? kFp32 : 0);  // moments, and masters of bf16
  const double mine = LargestStage(Counts(model, tp), model, pp);
  // Of adapters as many as if no rank had a part of one.
  double learns = mine;
  if (model.adapter.used()) {
    learns = 0;
    for (const TensorInfo& tensor : model::AdapterTensorsOf(model))
      learns += static_cast<double>(tensor.shape.elements()) / pp;
  }
  const double weights = model.adapter.used() ? mine + learns : mine;
  const bool rl = config.trainer.task == TaskKind::kRl;
  const bool dpo = config.trainer.task == TaskKind::kDpo;

  MemoryForecast forecast;
  const auto add = [&](std::string name, double bytes, bool on_device) {
    forecast.parts.push_back({std::move(name), bytes, on_device});
  };
  const auto add_trained = [&](const std::string& of, double all, double trained) {
    add(of + "weights", all * weight, true);
    add(of + "gradients", trained * kFp32 * (dp > 1 ? 1 + 1 / dp : 1), true);
    add(of + "optimizer state", trained / dp * state, true);
  };
  add_trained("", weights, learns);
  double saved_weights = learns;
  if (rl && HasCritic(config)) {
    add_trained("critic's ", mine, mine);
    saved_weights += mine;
  }
  // With adapters it is the model without them.
  if (HasReference(config) && !model.adapter.used())
    add("reference's weights", mine * weight, true);
  if (rl) {
    const RolloutSection& rollout = config.actor_rollout_ref.rollout;
    const int64_t rollout_tp = rollout.tensor_model_parallel_size.value_or(tp);
    // With the trainer's own layout the rollout uses its memory.
    if (rollout_tp != tp || pp > 1)
      add("rollout's weights", Counts(model, rollout_tp).whole * weight, true);
    add("rollout's keys and values",
        static_cast<double>(rollout.kv_cache_megabytes.value_or(0)) * (1 << 20), true);
  }
  const double samples = rl ? static_cast<double>(config.actor_rollout_ref.rollout.n) : dpo ? 2 : 1;
  add("a step's sequences (data.train_batch_size)",
      static_cast<double>(config.data.train_batch_size) * samples / dp * kLeastPerSequence, false);
  if (config.trainer.save_freq > 0 && actor.checkpoint.async_save) {
    const double saved = saved_weights / dp * (weight + state);
    const auto& cap = actor.checkpoint.staging.host_memory_cap;
    add("staging of saves", cap ? std::min(saved, static_cast<double>(*cap)) : saved, false);
  }
  return forecast;
}

MemoryForecast ForecastInference(const model::HfConfig& model, double bytes_per_weight,
                                 double kv_cache_bytes) {
  return {{{"weights", Counts(model).whole * bytes_per_weight, false},
           {"keys and values", kv_cache_bytes, false}}};
}

Result<std::string> CheckMemory(const MemoryForecast& forecast, const HostMemory& memory, int ranks,
                                bool gpu) {
  const double one = forecast.HostBytes(gpu);
  const double all = one * ranks;
  const std::string advice =
      "use more ranks (tensor or pipeline parallel), bfloat16, a smaller model or batch, or less "
      "of actor_rollout_ref.actor.checkpoint.staging.host_memory_cap and "
      "actor_rollout_ref.rollout.kv_cache_megabytes";
  const auto exceeds = [](double bytes, int64_t limit) {
    return limit != HostMemory::kUnknown && bytes > static_cast<double>(limit);
  };
  if (exceeds(one, memory.address_space)) {
    return Status(
        StatusCode::kExhausted, StatusCause::kMemory,
        fmt::format("this run's state takes {} a rank ({}), and the limit of a process's address "
                    "space (ulimit -v) is {}: raise it, or {}",
                    FormatBytes(one), forecast.ToString(),
                    FormatBytes(static_cast<double>(memory.address_space)), advice));
  }
  const std::string what = fmt::format(
      "this run's state takes {} a rank ({}){}", FormatBytes(one), forecast.ToString(),
      ranks > 1 ? fmt::format(", {} for the {} ranks of this node", FormatBytes(all), ranks) : "");
  if (exceeds(all, memory.total)) {
    return Status(StatusCode::kExhausted, StatusCause::kMemory,
                  fmt::format("{}, and this machine, or its control group, has {}: {}", what,
                              FormatBytes(static_cast<double>(memory.total)), advice));
  }
  if (exceeds(all, memory.available)) {
    return fmt::format("{}, {} are available now, without what the data and activations take", what,
                       FormatBytes(static_cast<double>(memory.available)));
  }
  return std::string();
}

}  // namespace keel::trainer
