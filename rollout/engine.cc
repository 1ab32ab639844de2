#include "rollout/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>

#include "model/config/context_length.h"
#include "parallel/tensor/vocab_chunks.h"
#include "rollout/kv_capacity.h"
#include "rollout/request_check.h"

namespace keel::rollout {

namespace {

using SteadyClock = std::chrono::steady_clock;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

// Where the text ends for one of the stop strings; npos when it goes on.
size_t StopAt(const std::string& text, const std::vector<std::string>& stops) {
  size_t at = std::string::npos;
  for (const std::string& stop : stops) at = std::min(at, text.find(stop));
  return at;
}

// A special token has no text, in which a stop string that is its name would never be found: its id
// ends the response.
void StopAtNamedTokens(const model::Tokenizer& tokenizer, SamplingParams* sampling) {
  for (const std::string& stop : sampling->stop) {
    const auto id = tokenizer.IdOf(stop);
    if (!id || !tokenizer.IsSpecial(*id)) continue;
    std::vector<int32_t>& ids = sampling->stop_token_ids;  // has it where a request comes again
    if (std::find(ids.begin(), ids.end(), *id) == ids.end()) ids.push_back(*id);
  }
}

// Of a part of a response.
std::string TextOf(const model::Tokenizer& tokenizer, const Request& request,
                   std::span<const int32_t> tokens) {
  const bool goes_on = request.sampling.continues_prompt;
  return (goes_on ? tokenizer.LeadOf(request.prompt, tokens) : "") + tokenizer.Decode(tokens);
}

size_t VocabularyOf(const model::Tokenizer* tokenizer) {
  return tokenizer != nullptr ? static_cast<size_t>(tokenizer->vocab_size())
                              : std::numeric_limits<size_t>::max();
}

}  // namespace

std::vector<std::string> EngineOptions::Validate() const {
  std::vector<std::string> problems = scheduler.Validate();
  if (block_size < 1)
    problems.push_back(fmt::format("block_size is {}, expected at least 1", block_size));
  if (kv_cache_bytes < 0)
    problems.push_back(fmt::format("kv_cache_bytes is {}, expected at least 0", kv_cache_bytes));
  if (!(gpu_memory_utilization > 0 && gpu_memory_utilization <= 1))
    problems.push_back(fmt::format("gpu_memory_utilization is {}, expected a number in (0, 1]",
                                   gpu_memory_utilization));
  if (max_model_len < 0)
    problems.push_back(fmt::format("max_model_len is {}, expected at least 0", max_model_len));
  return problems;
}

Engine::Engine(model::Decoder& model, parallel::ProcessGroup& tp, const EngineOptions& options)
    : model_(model),
      options_(options),
      version_(options.weight_version),
      sampler_({options.logprobs_mode, VocabularyOf(options.tokenizer),
                options.batch_invariant && options.calculate_log_probs, model.tp()}) {
  const auto problems = options.Validate();
  if (!problems.empty())
    throw Error(StatusCode::kConfig, fmt::format("rollout: {}", fmt::join(problems, "; ")));
  const model::ContextLength longest = model::LongestGenerated(model.config());
  if (options_.max_model_len == 0) options_.max_model_len = longest.tokens;
  if (options_.max_model_len > longest.tokens) {
    throw Error(StatusCode::kConfig, fmt::format("rollout: max_model_len is {}, and {}",
                                                 options_.max_model_len, longest.reason));
  }
  const model::KvShape shape = model.kv_shape();
  if (options_.batch_invariant && shape.recurrent_layers() > 0 && !shape.device.is_cpu()) {
    throw Error(StatusCode::kConfig,
                "rollout: batch_invariant: layers with linear attention compute a prompt in chunks "
                "on a GPU, so that a token's bits depend on how it is cut: set it to false");
  }
  groups_ = GroupsOf(shape, options_.max_model_len);
  KvCapacity room = CapacityOf({.bytes = options_.kv_cache_bytes,
                                .gpu_memory_utilization = options_.gpu_memory_utilization,
                                .max_num_seqs = options_.scheduler.max_num_seqs,
                                .max_model_len = options_.max_model_len,
                                .at_once = options_.scheduler.max_num_batched_tokens,
                                .block_size = options_.block_size},
                               shape, groups_);
  room = LeastCapacity(room, tp, shape.device);
  const int64_t blocks = room.blocks;
  if (room.states > 0 && room.states < options_.scheduler.max_num_seqs) {
    if (options_.warn) {
      options_.warn(fmt::format(
          "the rollout's cache has room for the states of {} sequences at a time, of {} bytes "
          "each, rather than max_num_seqs {}: enlarge it (kv_cache_megabytes) to generate for more",
          room.states, shape.bytes_per_sequence(), options_.scheduler.max_num_seqs));
    }
    options_.scheduler.max_num_seqs = room.states;
  }
  blocks_ = std::make_unique<BlockManager>(static_cast<int32_t>(blocks), options_.block_size,
                                           options_.enable_prefix_caching, groups_.windows,
                                           static_cast<int32_t>(room.states));
  blocks_->SetVersion(version_);
  if (const model::RopeSpec& rope = model.config().rope; rope.type == model::RopeType::kLongrope)
    options_.scheduler.turns_at = rope.original_positions;
  scheduler_ = std::make_unique<Scheduler>(options_.scheduler, *blocks_);
  cache_ = std::make_unique<KvCache>(shape, groups_, blocks, options_.block_size, room.states);
  if (!options_.enforce_eager) {
    graphs_ =
        std::make_unique<DecodeGraphs>(model_, *cache_, options_.max_model_len, options_.warn);
  }
  stats_.num_blocks = blocks;
  stats_.cache_bytes = cache_->bytes();
}

Engine::~Engine() = default;

Status Engine::CheckLengths(int64_t prompt, int64_t response) const {
  if (response > 0 && prompt >= options_.max_model_len) {
    return {StatusCode::kInvalidData,
            fmt::format("the prompt has {} tokens, which leaves no room for a response within {}",
                        prompt, options_.max_model_len)};
  }
  return scheduler_->CheckLengths(prompt, response);
}

void Engine::Add(Request request) {
  const int64_t room = options_.max_model_len - static_cast<int64_t>(request.prompt.size());
  if (room > 0) request.sampling.max_tokens = std::min(request.sampling.max_tokens, room);
  if (options_.tokenizer != nullptr) StopAtNamedTokens(*options_.tokenizer, &request.sampling);
  Status status = CheckRequest(
      request, {model_.config().vocab_size, options_.max_model_len, options_.tokenizer != nullptr,
                options_.calculate_log_probs, version_});
  if (status.ok()) status = CheckLengths(std::ssize(request.prompt), request.sampling.max_tokens);
  if (!status.ok()) {
    Completion completion;
    completion.prompt_id = request.prompt_id;
    completion.sample = request.sample;
    completion.finish = FinishReason::kError;
    completion.weight_version = completion.newest_weight_version = version_;
    completion.error =
        status.WithContext(fmt::format("prompt {}, sample {}", request.prompt_id, request.sample));
    ready_.push_back(std::move(completion));
    return;
  }
  const int64_t arrival = arrivals_++;
  auto sequence = std::make_unique<Sequence>(arrival, std::move(request));
  Sequence* const added = sequence.get();
  scheduler_->Add(added);
  sequences_.emplace(arrival, std::move(sequence));
  if (added->generated() == 0) return;
  if (const auto reason = EndOf(*added)) ready_.push_back(Finish(added, *reason, {}));
}

bool Engine::idle() const { return sequences_.empty() && ready_.empty(); }

void Engine::RequireReady() const {
  if (!invalid_.empty()) {
    throw Error(StatusCode::kUnavailable,
                fmt::format("the rollout engine does not generate, since its weights are not whole "
                            "({}): synchronise the weights again",
                            invalid_));
  }
  if (cache_->released()) {
    throw Error(StatusCode::kUnavailable,
                "the rollout engine's KV cache is released: call RestoreCache() first");
  }
}

void Engine::Append(StepOutput& output) {
  Sequence& s = *output.sequence;
  if (output.prompt_log_prob) {
    s.prompt_log_probs.resize(static_cast<size_t>(s.prompt_size - 1));
    s.prompt_log_probs[static_cast<size_t>(output.position)] = *output.prompt_log_prob;
    if (s.request.sampling.likeliest > 0) {
      s.prompt_likeliest.resize(s.prompt_log_probs.size());
      s.prompt_likeliest[static_cast<size_t>(output.position)] = std::move(output.likeliest);
    }
  }
  if (!output.sample) return;
  s.tokens.push_back(output.chosen.token);
  if (options_.calculate_log_probs) s.log_probs.push_back(output.chosen.log_prob);
  if (s.request.sampling.likeliest > 0) s.likeliest.push_back(std::move(output.likeliest));
  if (s.spans.empty() || s.spans.back().version != version_)
    s.spans.push_back({s.generated() - 1, version_});
  ++stats_.generated_tokens;
}

std::optional<FinishReason> Engine::EndOf(const Sequence& s) const {
  const SamplingParams& p = s.request.sampling;
  // What was given ends nothing.
  if (!s.turn().empty()) {
    const int32_t last = s.tokens.back();
    const auto holds = [&](const std::vector<int32_t>& ids) {
      return std::find(ids.begin(), ids.end(), last) != ids.end();
    };
    if (holds(p.stop_token_ids) || (!p.ignore_eos && holds(options_.eos_token_ids)))
      return FinishReason::kStop;
    if (!p.stop.empty() &&
        StopAt(TextOf(*options_.tokenizer, s.request, s.turn()), p.stop) != std::string::npos)
      return FinishReason::kStop;
  }
  const bool prompt_computed = s.generated() > 0 || s.computed >= s.prompt_size;
  if (s.generated() >= p.max_tokens && prompt_computed) return FinishReason::kLength;
  return std::nullopt;
}

Completion Engine::Finish(Sequence* s, FinishReason reason, Status error) {
  Completion c;
  c.prompt_id = s->request.prompt_id;
  c.sample = s->request.sample;
  c.finish = reason;
  c.weight_version = s->spans.empty() ? version_ : s->spans.front().version;
  c.newest_weight_version = s->spans.empty() ? version_ : s->spans.back().version;
  c.spans = std::move(s->spans);
  c.tokens.assign(s->response().begin(), s->response().end());
  c.given = s->request.so_far.given;
  c.tool_memory = s->request.so_far.tool_memory;
  c.log_probs = std::move(s->log_probs);
  c.prompt_log_probs = std::move(s->prompt_log_probs);
  c.likeliest = std::move(s->likeliest);
  c.prompt_likeliest = std::move(s->prompt_likeliest);
  c.error = std::move(error);
  if (options_.tokenizer != nullptr) {
    const std::string turn = TextOf(*options_.tokenizer, s->request, s->turn());
    c.text = TextOf(*options_.tokenizer, s->request, c.tokens);
    const size_t stop = StopAt(turn, s->request.sampling.stop);
    if (stop != std::string::npos) c.text->resize(c.text->size() - (turn.size() - stop));
  }
  if (auto logits = prompt_logits_.extract(s->arrival)) c.prompt_logits = logits.mapped();
  scheduler_->Remove(s);
  sequences_.erase(s->arrival);
  return c;
}

std::vector<Completion> Engine::Step() {
  RequireReady();
  std::vector<Completion> done = std::move(ready_);
  ready_.clear();
  if (sequences_.empty()) return done;

  // 1. What to compute.
  const StepPlan plan = scheduler_->Schedule();
  if (plan.work.empty())
    throw Error(StatusCode::kInternal, "the rollout scheduler found nothing to do for its queue");
  stats_.most_blocks = std::max(stats_.most_blocks, blocks_->num_blocks() - blocks_->available());
  cache_->Copy(plan.copies);
  model::DecodeBatch batch;
  batch.ids.reserve(static_cast<size_t>(plan.tokens));
  batch.arithmetic = options_.arithmetic();
  for (const ScheduledTokens& work : plan.work) {
    const auto first = work.sequence->tokens.begin() + work.begin;
    batch.ids.insert(batch.ids.end(), first, first + work.count);
    batch.sequences.push_back({work.begin, work.count, work.sequence->size(),
                               work.sequence->table.blocks, work.sequence->table.state});
  }
  std::vector<StepOutput> outputs = OutputsOf(plan, &batch);

  // 2. The forward, then logits for some rows at a time.
  const auto start = SteadyClock::now();
  std::optional<at::Tensor> replayed;
  if (graphs_ != nullptr) replayed = graphs_->Decode(batch);
  if (replayed) ++stats_.replayed_steps;
  const at::Tensor hidden = replayed ? *replayed : model_.Decode(batch, *cache_);
  cache_->CopyStates(plan.state_copies);
  stats_.forward_seconds += SecondsSince(start);
  // On a device, too, so many that the host waits for few parts' tokens.
  const int64_t most =
      std::max<int64_t>(1, parallel::DefaultChunkBytes(hidden.device()) /
                               (model_.config().vocab_size * int64_t{sizeof(float)}));
  size_t next = 0;
  for (int64_t row = 0; row < hidden.size(0); row += most) {
    const int64_t rows = std::min(most, hidden.size(0) - row);
    const auto head_start = SteadyClock::now();
    const at::Tensor logits =
        model_.DecodeLogits(hidden.narrow(0, row, rows), options_.arithmetic());
    stats_.forward_seconds += SecondsSince(head_start);
    const auto sampling_start = SteadyClock::now();
    const size_t begin = next;
    while (next < outputs.size() && outputs[next].row < row + rows) ++next;
    sampler_.Sample(logits, row, std::span(outputs).subspan(begin, next - begin), &prompt_logits_);
    stats_.sampling_seconds += SecondsSince(sampling_start);
  }
  scheduler_->Computed(plan);

  // 3. What has ended.
  ++stats_.steps;
  stats_.computed_tokens += plan.tokens;
  stats_.most_running = std::max(stats_.most_running, scheduler_->running());
  std::vector<Sequence*> touched;
  std::map<int64_t, Status> failed;
  for (StepOutput& output : outputs) {
    if (output.error.ok()) {
      Append(output);
    } else {
      failed.emplace(output.sequence->arrival, output.error);
    }
    if (touched.empty() || touched.back() != output.sequence) touched.push_back(output.sequence);
  }
  for (Sequence* s : touched) {
    const std::string who =
        fmt::format("prompt {}, sample {}", s->request.prompt_id, s->request.sample);
    if (const auto error = failed.find(s->arrival); error != failed.end()) {
      done.push_back(Finish(s, FinishReason::kError, error->second.WithContext(who)));
    } else if (const auto reason = EndOf(*s)) {
      done.push_back(Finish(s, *reason, {}));
    }
  }
  return done;
}

Sequence* Engine::Find(uint64_t prompt_id, int sample) const {
  for (const auto& [arrival, sequence] : sequences_) {
    if (sequence->request.prompt_id == prompt_id && sequence->request.sample == sample)
      return sequence.get();
  }
  return nullptr;
}

std::optional<Partial> Engine::SoFar(uint64_t prompt_id, int sample) const {
  const Sequence* found = Find(prompt_id, sample);
  return found != nullptr ? std::optional(found->so_far()) : std::nullopt;
}

std::optional<SampleView> Engine::Look(uint64_t prompt_id, int sample) const {
  const Sequence* found = Find(prompt_id, sample);
  if (found == nullptr) return std::nullopt;
  return SampleView{found->response(), found->log_probs, found->prompt_log_probs, found->likeliest,
                    found->prompt_likeliest};
}

std::optional<Partial> Engine::Take(uint64_t prompt_id, int sample) {
  Sequence* const found = Find(prompt_id, sample);
  if (found == nullptr) return std::nullopt;
  Partial so_far = found->so_far();
  prompt_logits_.erase(found->arrival);
  scheduler_->Remove(found);
  sequences_.erase(found->arrival);
  return so_far;
}

void Engine::Forget(uint64_t prompt_id, int sample) {
  (void)Take(prompt_id, sample);
  std::erase_if(ready_, [&](const Completion& completion) {
    return completion.prompt_id == prompt_id && completion.sample == sample;
  });
}

std::vector<Completion> Engine::Generate(std::vector<Request> requests) {
  std::map<std::pair<uint64_t, int>, std::vector<size_t>> places;
  for (size_t i = 0; i < requests.size(); ++i)
    places[{requests[i].prompt_id, requests[i].sample}].push_back(i);
  std::vector<Completion> completions(requests.size());
  for (Request& request : requests) Add(std::move(request));
  while (!idle()) {
    for (Completion& completion : Step()) {
      const auto place = places.find({completion.prompt_id, completion.sample});
      if (place == places.end() || place->second.empty()) continue;
      completions[place->second.front()] = std::move(completion);
      place->second.erase(place->second.begin());
    }
  }
  return completions;
}

void Engine::SetWeightVersion(int64_t version) {
  if (version < version_) {
    throw Error(
        StatusCode::kInternal,
        fmt::format("weight version {} after {}: versions never decrease", version, version_));
  }
  if (options_.recompute_kv) {
    scheduler_->PreemptAll();
  } else {
    scheduler_->PreemptUnbegun();
  }
  blocks_->SetVersion(version);
  version_ = version;
  invalid_.clear();
}

void Engine::Invalidate(std::string reason) {
  invalid_ = reason.empty() ? "no reason given" : std::move(reason);
}

void Engine::ReleaseCache() {
  scheduler_->PreemptAll();
  blocks_->SetVersion(version_);
  cache_->Release();
}

void Engine::RestoreCache() { cache_->Restore(); }

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  if (graphs_ != nullptr) stats.recordings = graphs_->recorded();
  stats.running = scheduler_->running();
  stats.waiting = scheduler_->waiting();
  stats.held_blocks = blocks_->num_blocks() - blocks_->available();
  stats.found_tokens = scheduler_->prefix_hits();
  stats.preemptions = scheduler_->preemptions();
  stats.recomputed_tokens = scheduler_->recomputed();
  return stats;
}

}  // namespace keel::rollout
