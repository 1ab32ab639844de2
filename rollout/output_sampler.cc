#include "rollout/output_sampler.h"

#include <ATen/Parallel.h>

#include <map>
#include <utility>
#include <vector>

#include "parallel/tensor/send.h"
#include "parallel/tensor/tensor_parallel_layers.h"
#include "parallel/tensor/vocab_parallel_log_probs.h"
#include "rollout/device_sampler.h"

namespace keel::rollout {

std::vector<StepOutput> OutputsOf(const StepPlan& plan, model::DecodeBatch* batch) {
  std::vector<StepOutput> outputs;
  int64_t row = 0;
  for (const ScheduledTokens& work : plan.work) {
    Sequence* s = work.sequence;
    const bool prompt = s->request.sampling.wants_prompt();
    for (int64_t i = 0; i < work.count; ++i, ++row) {
      const int64_t position = work.begin + i;
      const bool last = work.sample && i + 1 == work.count;
      if (!last && !(prompt && position < s->prompt_size)) continue;
      batch->outputs.push_back(row);
      StepOutput output;
      output.sequence = s;
      output.position = position;
      output.sample = last;
      output.row = std::ssize(batch->outputs) - 1;
      outputs.push_back(output);
      if (!last) continue;
      for (Sequence* follower : work.followers) {
        output.sequence = follower;
        outputs.push_back(output);
      }
    }
  }
  for (StepOutput& output : outputs) {
    const Request& request = output.sequence->request;
    output.draw = {request.draws_as.value_or(request.prompt_id), request.sample,
                   output.sequence->generated()};
  }
  return outputs;
}

OutputSampler::OutputSampler(const OutputSamplerOptions& options)
    : options_(options), sampler_(options.logprobs_mode, options.vocabulary) {}

void OutputSampler::Sample(const at::Tensor& logits, int64_t first_row,
                           std::span<StepOutput> outputs, PromptLogits* prompt_logits) const {
  const bool by_device = ChosenByDevice(logits, first_row, outputs);
  if (!by_device) ChooseOnHost(logits, first_row, outputs, prompt_logits);
  // A device that has the whole vocabulary has said so already.
  if (options_.as_trainer && options_.logprobs_mode != LogProbsMode::kProcessed &&
      !(by_device && options_.tp == 1))
    SayAsTrainer(logits, first_row, outputs);
}

// Where the logits are, if that is enough for all of them.
bool OutputSampler::ChosenByDevice(const at::Tensor& logits, int64_t first_row,
                                   std::span<StepOutput> outputs) const {
  if (!HasDeviceSampler(logits.device())) return false;
  std::vector<TokenWanted> wanted;
  for (const StepOutput& output : outputs) {
    const SamplingParams& params = output.sequence->request.sampling;
    if (!IsForDeviceSampler(params)) return false;
    wanted.push_back({output.row - first_row, &params, output.draw});
  }
  auto chosen = ChooseOnDevice(logits, options_.vocabulary, options_.logprobs_mode, wanted);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (chosen[i].ok()) {
      outputs[i].chosen = *chosen[i];
    } else {
      outputs[i].error = chosen[i].status();
    }
  }
  return true;
}

void OutputSampler::ChooseOnHost(const at::Tensor& on_device, int64_t first_row,
                                 std::span<StepOutput> outputs, PromptLogits* prompt_logits) const {
  const at::Tensor logits = on_device.to(at::kCPU, at::kFloat);
  const auto count = static_cast<int64_t>(outputs.size());
  const auto vocabulary = static_cast<size_t>(logits.size(1));
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    Sampler::Workspace workspace;
    for (int64_t i = begin; i < end; ++i) {
      StepOutput& output = outputs[static_cast<size_t>(i)];
      const Sequence& s = *output.sequence;
      const std::span<const float> row(
          logits.data_ptr<float>() + (output.row - first_row) * logits.stride(0), vocabulary);
      const int64_t next = output.position + 1;
      if (s.request.sampling.wants_prompt() && next < s.prompt_size) {
        auto log_prob = LogProbOf(row, s.tokens[static_cast<size_t>(next)]);
        if (log_prob.ok()) {
          output.prompt_log_prob = *log_prob;
        } else {
          output.error = log_prob.status();
        }
      }
      if (const int64_t most = s.request.sampling.likeliest;
          most > 0 && (output.sample || next < s.prompt_size)) {
        auto likeliest = LikeliestOf(row, most);
        if (likeliest.ok()) {
          output.likeliest = *std::move(likeliest);
        } else {
          output.error = likeliest.status();
        }
      }
      if (!output.sample) continue;
      auto chosen = sampler_.Choose(row, s.request.sampling, output.draw, s.tokens, workspace);
      if (chosen.ok()) {
        output.chosen = *chosen;
      } else {
        output.error = chosen.status();
      }
    }
  });
  for (const StepOutput& output : outputs) {
    const Sequence& s = *output.sequence;
    if (!s.request.sampling.prompt_logits || output.position >= s.prompt_size) continue;
    at::Tensor& kept = (*prompt_logits)[s.arrival];
    if (!kept.defined()) kept = at::empty({s.prompt_size, logits.size(1)}, at::kFloat);
    kept.select(0, output.position).copy_(logits.select(0, output.row - first_row));
  }
}

// What a trainer says of the tokens that were chosen, in place of what the choice came upon.
void OutputSampler::SayAsTrainer(const at::Tensor& logits, int64_t first_row,
                                 std::span<StepOutput> outputs) const {
  std::map<double, std::vector<StepOutput*>> by_temperature;
  for (StepOutput& output : outputs) {
    if (!output.sample || !output.error.ok()) continue;
    const double temperature = output.sequence->request.sampling.temperature;
    const bool raw =
        options_.logprobs_mode == LogProbsMode::kRaw || temperature < kLeastTemperature;
    by_temperature[raw ? 1.0 : temperature].push_back(&output);
  }
  const int64_t part = parallel::VocabRowsPerRank(logits.size(1), options_.tp);
  for (const auto& [temperature, some] : by_temperature) {
    std::vector<int64_t> rows, chosen;
    for (const StepOutput* output : some) {
      rows.push_back(output->row - first_row);
      chosen.push_back(output->chosen.token);
    }
    const auto sent = [&](const std::vector<int64_t>& numbers) {
      return parallel::SentTo(logits.device(), at::tensor(numbers, at::kLong));
    };
    const at::Tensor log_probs = parallel::LogProbsOfWhole(logits.index_select(0, sent(rows)),
                                                           sent(chosen), temperature, part)
                                     .to(at::kCPU);
    for (size_t i = 0; i < some.size(); ++i)
      some[i]->chosen.log_prob = log_probs.const_data_ptr<float>()[i];
  }
}

}  // namespace keel::rollout
