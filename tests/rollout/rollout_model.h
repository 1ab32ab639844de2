// A small model with its weights, and what the engine must agree with: the training forward over
// whole sequences.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "model/decoder.h"
#include "parallel/gradients/weight_store.h"
#include "parallel/groups/process_group.h"
#include "rollout/engine.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace keel::testing {

class RolloutModel {
 public:
  // On this rank alone.
  explicit RolloutModel(model::Family family = model::Family::kLlama, bool tied = false,
                        at::ScalarType dtype = at::kFloat,
                        parallel::Arithmetic arithmetic = parallel::Arithmetic::kTraining)
      : alone_(parallel::MakeSingleGroup("alone")) {
    Make(family, tied, dtype, {alone_.get(), false, arithmetic});
  }
  // Split over `tp`; sequence parallelism as a trainer has it.
  RolloutModel(model::Family family, bool tied, at::ScalarType dtype, parallel::ProcessGroup& tp,
               bool sequence_parallel,
               parallel::Arithmetic arithmetic = parallel::Arithmetic::kTraining) {
    Make(family, tied, dtype, {&tp, sequence_parallel, arithmetic});
  }

  model::Decoder& decoder() { return *decoder_; }
  parallel::ProcessGroup& group() { return *group_; }
  rollout::Engine MakeEngine(const rollout::EngineOptions& options = {}) {
    return {*decoder_, *group_, options};
  }

  // log p(token i + 1 | tokens up to i), [n - 1], as the trainer computes it.
  std::vector<float> TrainerLogProbs(const std::vector<int32_t>& tokens, double temperature = 1) {
    const at::NoGradGuard no_grad;
    model::ModelBatch batch = Batch(tokens);
    const at::Tensor all = decoder_
                               ->LogProbsWithGradient(decoder_->Forward({}, batch), batch.targets,
                                                      temperature, /*with_entropy=*/false)
                               .log_probs.cpu();
    const float* begin = all.data_ptr<float>();
    return {begin, begin + tokens.size() - 1};
  }
  // The largest distance of what completions say of their tokens from what the trainer does.
  double WorstGap(const std::vector<rollout::Request>& requests,
                  const std::vector<rollout::Completion>& completions, double temperature = 1) {
    double worst = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<int32_t> tokens = requests[i].prompt;
      const std::vector<int32_t>& response = completions[i].tokens;
      tokens.insert(tokens.end(), response.begin(), response.end());
      const auto trainer = TrainerLogProbs(tokens, temperature);
      EXPECT_EQ(completions[i].log_probs.size(), response.size());
      for (size_t t = 0; t < completions[i].log_probs.size(); ++t) {
        worst = std::max(worst,
                         std::abs(static_cast<double>(completions[i].log_probs[t]) -
                                  static_cast<double>(trainer[requests[i].prompt.size() - 1 + t])));
      }
    }
    return worst;
  }
  // How far fp32 may be apart. Where states are, norms are of two or three values in this model,
  // and those that are nearly 0 magnify how products were rounded.
  double RoundingGap() const { return decoder_->kv_shape().recurrent_layers() > 0 ? 1e-4 : 1e-5; }
  // [n, vocabulary] fp32, on the host.
  at::Tensor TrainerLogits(const std::vector<int32_t>& tokens) {
    const at::NoGradGuard no_grad;
    return decoder_->Logits(decoder_->Forward({}, Batch(tokens))).to(at::kCPU, at::kFloat);
  }
  std::vector<int32_t> GreedyByRecompute(std::vector<int32_t> tokens, int count) {
    std::vector<int32_t> response;
    for (int i = 0; i < count; ++i) {
      const at::Tensor logits = TrainerLogits(tokens);
      response.push_back(static_cast<int32_t>(
          logits[static_cast<int64_t>(tokens.size()) - 1].argmax().item<int64_t>()));
      tokens.push_back(response.back());
    }
    return response;
  }
  // Other weights in the same storage, as an optimizer step leaves them.
  void ChangeWeights(uint64_t seed) { decoder_->Initialize(seed); }

 private:
  void Make(model::Family family, bool tied, at::ScalarType dtype,
            const parallel::TensorParallel& tp) {
    group_ = tp.group;
    model::HfConfig config = TinyConfig(tied, family);
    config.initializer_range = 0.25;  // so that texts differ
    model::DecoderOptions options;
    options.dtype = dtype;
    options.device = device_;
    decoder_ = std::make_unique<model::Decoder>(config, tp, options);
    weights_ = std::make_unique<parallel::WeightStore>(
        decoder_->parameters(), parallel::WeightStoreOptions{dtype, device_});
    decoder_->Initialize(11);
  }

  model::ModelBatch Batch(const std::vector<int32_t>& tokens) {
    // Sequence parallelism needs a length that TP divides; what is added is its own sequence.
    const auto n = static_cast<int64_t>(tokens.size());
    const int64_t pad = n % group_->size() == 0 ? 0 : group_->size() - n % group_->size();
    model::ModelBatch batch;
    batch.ids = at::zeros({n + pad}, at::kLong);
    batch.ids.narrow(0, 0, n).copy_(at::tensor(tokens, at::kInt));
    batch.targets = at::full({n + pad}, parallel::kIgnoreTarget, at::kLong);
    batch.targets.narrow(0, 0, n - 1).copy_(batch.ids.narrow(0, 1, n - 1));
    batch.packing.positions = at::cat({at::arange(n, at::kInt), at::arange(pad, at::kInt)});
    batch.packing.boundaries = {0, n};
    if (pad > 0) batch.packing.boundaries.push_back(n + pad);
    for (at::Tensor* tensor : {&batch.ids, &batch.targets, &batch.packing.positions})
      *tensor = tensor->to(device_);
    return batch;
  }

  // A pretend GPU where KEEL_CUDA_MODULE names the module of some.
  const at::Device device_ = LoneDevice();
  std::unique_ptr<parallel::ProcessGroup> alone_;
  parallel::ProcessGroup* group_ = nullptr;
  std::unique_ptr<model::Decoder> decoder_;
  std::unique_ptr<parallel::WeightStore> weights_;
};

// Prompts of mixed lengths, some with a beginning in common.
inline std::vector<rollout::Request> MixedRequests(int count, double temperature,
                                                   int64_t max_tokens = 12) {
  std::vector<rollout::Request> requests;
  for (int i = 0; i < count; ++i) {
    rollout::Request request;
    request.prompt_id = static_cast<uint64_t>(i / 2);
    request.sample = i % 2;
    const int group = i / 2;
    const int length = 1 + group * 7 % 33;
    for (int t = 0; t < length; ++t)
      request.prompt.push_back(
          static_cast<int32_t>(t < 9 ? t * 5 + group % 3 : (t * t + group) % 131));
    request.sampling.temperature = temperature;
    request.sampling.max_tokens = 1 + (max_tokens + i) % max_tokens;
    request.sampling.seed = 5;
    requests.push_back(request);
  }
  return requests;
}

// Tokens, and log-probabilities bit for bit.
inline void ExpectSame(const std::vector<rollout::Completion>& a,
                       const std::vector<rollout::Completion>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(a[i].error.ok()) << a[i].error.message();
    EXPECT_EQ(a[i].tokens, b[i].tokens) << what << ", request " << i;
    EXPECT_EQ(a[i].log_probs, b[i].log_probs) << what << ", request " << i;
    EXPECT_EQ(a[i].finish, b[i].finish);
  }
}

// A cache of so many blocks, and raw log-probabilities.
inline rollout::EngineOptions SmallCache(int64_t tokens, int64_t sequences, int64_t blocks,
                                         int32_t block_size, const model::Decoder& model) {
  rollout::EngineOptions options;
  options.scheduler.max_num_batched_tokens = tokens;
  options.scheduler.max_num_seqs = sequences;
  options.block_size = block_size;
  options.kv_cache_bytes = blocks * block_size * model.kv_shape().bytes_per_token();
  options.logprobs_mode = rollout::LogProbsMode::kRaw;
  return options;
}

}  // namespace keel::testing
