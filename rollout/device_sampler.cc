#include "rollout/device_sampler.h"

#include <algorithm>
#include <cstring>

#include "parallel/tensor/device_kernels.h"
#include "parallel/tensor/send.h"

namespace keel::rollout {

namespace {

bool Greedy(const SamplingParams& params) { return params.temperature < kLeastTemperature; }

gpu::RowChoice RowChoiceOf(const TokenWanted& wanted, LogProbsMode mode) {
  const SamplingParams& params = *wanted.params;
  gpu::RowChoice choice;
  choice.row = static_cast<int32_t>(wanted.row);
  if (Greedy(params)) {
    choice.temperature = 0;
    return choice;
  }
  choice.uniform = UniformDraw(params.seed, wanted.draw);
  choice.top_p = params.top_p;
  choice.min_p = params.min_p;
  choice.top_k = static_cast<int32_t>(
      std::clamp<int64_t>(params.top_k, 0, std::numeric_limits<int32_t>::max()));
  choice.temperature = static_cast<float>(params.temperature);
  if (mode != LogProbsMode::kRaw) choice.policy_temperature = choice.temperature;
  return choice;
}

}  // namespace

bool HasDeviceSampler(const at::Device& device) { return parallel::KernelsFor(device).has_value(); }

bool IsForDeviceSampler(const SamplingParams& params) {
  return params.repetition_penalty == 1 && params.likeliest == 0 && !params.wants_prompt();
}

std::vector<Result<ChosenToken>> ChooseOnDevice(const at::Tensor& logits, size_t vocabulary,
                                                LogProbsMode mode,
                                                std::span<const TokenWanted> wanted) {
  const auto count = static_cast<int64_t>(wanted.size());
  const auto kernels = parallel::KernelsFor(logits);
  TORCH_CHECK(kernels.has_value(), "no kernel chooses tokens on ", logits.device());

  constexpr auto kBytes = static_cast<int64_t>(sizeof(gpu::RowChoice));
  at::Tensor choices = at::empty({count, kBytes}, at::kByte);
  auto* const by = reinterpret_cast<gpu::RowChoice*>(choices.data_ptr<uint8_t>());
  for (size_t i = 0; i < wanted.size(); ++i) by[i] = RowChoiceOf(wanted[i], mode);
  choices = parallel::SentTo(logits.device(), choices);

  // Tokens first, then their parts, so that one copy brings both.
  const at::Tensor chosen =
      at::empty({1 + gpu::kChoiceParts, count}, logits.options().dtype(at::kFloat));
  const at::Tensor parts = at::empty({count, gpu::kChoiceParts}, chosen.options());
  gpu::TokenChoice args;
  args.element = parallel::ElementOf(logits);
  args.count = count;
  args.columns = logits.size(1);
  args.vocabulary = static_cast<int64_t>(std::min(vocabulary, static_cast<size_t>(args.columns)));
  args.stride = logits.stride(0);
  args.logits = logits.const_data_ptr();
  args.choices = reinterpret_cast<const gpu::RowChoice*>(choices.const_data_ptr());
  args.tokens = static_cast<int32_t*>(chosen.data_ptr());
  args.parts = parts.data_ptr<float>();
  kernels->table.token_choice(args, kernels->stream);
  // The logarithm is PyTorch's, as the trainer's is.
  parts.select(1, gpu::kPolicySum).log_();
  parts.select(1, gpu::kDrawnSum).log_();
  chosen.narrow(0, 1, gpu::kChoiceParts).copy_(parts.t());
  const at::Tensor found = chosen.to(at::kCPU);

  const auto* const tokens = static_cast<const int32_t*>(found.const_data_ptr());
  const auto part = [&](gpu::ChoicePart which, size_t i) {
    return found.const_data_ptr<float>()[(1 + which) * count + static_cast<int64_t>(i)];
  };
  std::vector<Result<ChosenToken>> results;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (tokens[i] < 0) {
      // The host's way says which logit is the broken one.
      const at::Tensor row = logits.select(0, wanted[i].row).to(at::kCPU, at::kFloat).contiguous();
      const auto log_prob =
          LogProbOf({row.const_data_ptr<float>(), static_cast<size_t>(row.numel())}, 0);
      results.push_back(log_prob.ok()
                            ? Status(StatusCode::kInternal,
                                     "a device found no distribution in logits that make one")
                            : log_prob.status());
      continue;
    }
    const bool drawn = mode == LogProbsMode::kProcessed && !Greedy(*wanted[i].params);
    const float log_prob = drawn ? part(gpu::kDrawnDistance, i) - part(gpu::kDrawnSum, i)
                                 : part(gpu::kPolicyDistance, i) - part(gpu::kPolicySum, i);
    results.push_back(ChosenToken{tokens[i], log_prob});
  }
  return results;
}

}  // namespace keel::rollout
