#include "trainer/rl/generation/sample_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/text.h"
#include "common/wire.h"
#include "rewards/verifier_factory.h"
#include "trainer/rl/generation/scored_response.h"
#include "trainer/sync/group_bytes.h"
#include "turns/tools_file.h"

namespace keel::trainer::rl {

namespace {

// How long a rank with nothing to generate waits at a time for its tools.
constexpr std::chrono::milliseconds kToolPatience{20};

// A signal for every process of a run reaches them one after another.
constexpr std::chrono::milliseconds kStopGrace{500};

desk::SampleId IdOf(const rollout::Completion& done) {
  return {static_cast<int64_t>(done.prompt_id), done.sample};
}

desk::Partial PartialOf(const rollout::Completion& done) {
  return {done.tokens, done.log_probs, done.spans, done.given, done.tool_memory};
}

// extra_info.tools_kwargs.<tool>.create_kwargs, as verl's rows have them.
Json CreateKwargs(const Json& extra_info, const std::string& tool) {
  Json found = extra_info;
  for (const std::string& key : {std::string("tools_kwargs"), tool, std::string("create_kwargs")}) {
    if (!found.is_object() || !found.contains(key)) return Json::object();
    found = Json(found[key]);
  }
  return found;
}

}  // namespace

SampleRunner::SampleRunner(rollout::Engine& engine, parallel::ProcessGroup& group,
                           const SampleRunnerOptions& options)
    : engine_(engine), group_(group), options_(options) {
  const rewards::RewardSection& reward = *options.reward;
  const rewards::RewardPool::Factory factory = ValueOrThrow(rewards::MakeVerifierFactory(reward));
  if (!leads()) return;
  rewards_ = std::make_unique<rewards::RewardPool>(static_cast<int>(reward.num_workers),
                                                   rewards::PoolBatch(reward), factory);
  if (options.turns == nullptr) return;
  std::vector<turns::ToolSpec> servers = options.turns->tools;
  servers.insert(servers.end(), options.turns->environments.begin(),
                 options.turns->environments.end());
  tools_ = std::make_unique<turns::ToolPool>(servers);
}

SampleRunner::~SampleRunner() = default;

Status SampleRunner::Start() {
  if (rewards_ != nullptr) KEEL_RETURN_IF_ERROR(rewards_->Start());
  return tools_ != nullptr ? tools_->Start() : Status::Ok();
}

void SampleRunner::Begin(const desk::SampleId& id, std::shared_ptr<const Prompt> prompt,
                         const rollout::SamplingParams& sampling, desk::Partial so_far) {
  rollout::Request request;
  request.prompt_id = static_cast<uint64_t>(id.position);
  request.sample = id.sample;
  request.prompt = prompt->tokens;
  request.sampling = SamplingOf(*prompt, id.sample, sampling);
  request.so_far = std::move(so_far);
  std::string environment;
  if (options_.turns != nullptr) {
    environment = ValueOrThrow(
        turns::EnvironmentOf(prompt->extra_info, turns::NamesOf(options_.turns->environments)));
  }
  running_[id] = {std::move(prompt), request.sampling, std::move(environment)};
  engine_.Add(std::move(request));
}

bool SampleRunner::idle() const { return engine_.idle() && waiting_.empty(); }

void SampleRunner::Step() {
  TakeGiven();
  Generate();
}

void SampleRunner::TakeGiven() {
  if (waiting_.empty()) return;  // of which every rank knows
  std::vector<Given> given;
  if (leads()) {
    AskTools();
    HearTools();
    given = TakeRounds();
    if (stopping() && !lost_.empty()) LeaveOpen(lost_.size(), "tools", "calls");
  }
  for (Given& one : Share(std::move(given))) GoOn(std::move(one));
}

bool SampleRunner::stopping() const {
  return options_.stop_requested != nullptr && options_.stop_requested->load() != 0;
}

void SampleRunner::Generate() {
  if (engine_.idle()) return;
  for (rollout::Completion& done : engine_.Step()) EndTurn(std::move(done));
}

void SampleRunner::AskTools() {
  for (auto& [id, waiting] : waiting_) {
    for (turns::ToolRequest& request : waiting.round->Due()) {
      const auto place = static_cast<size_t>(request.id);
      const Json& extra_info = running_.at(id).prompt->extra_info;
      request.extra_info = extra_info;
      request.create_kwargs = request.to_environment
                                  ? extra_info.value("interaction_kwargs", Json::object())
                                  : CreateKwargs(extra_info, request.tool);
      calls_[tools_->Submit(std::move(request))] = {id, place};
    }
  }
}

void SampleRunner::HearTools() {
  const bool nothing_else =
      engine_.idle() && std::none_of(waiting_.begin(), waiting_.end(),
                                     [](const auto& one) { return one.second.round->done(); });
  const Stopwatch watch;
  std::vector<turns::ToolReply> replies =
      tools_->Poll(nothing_else ? kToolPatience : std::chrono::milliseconds(0));
  if (nothing_else) tools_wait_s_ += watch.Elapsed();
  for (turns::ToolReply& reply : replies) {
    if (reply.gone) {
      lost_.push_back({std::move(reply), std::chrono::steady_clock::now()});
    } else {
      TakeReply(std::move(reply));
    }
  }
  TakeLost();
}

void SampleRunner::TakeReply(turns::ToolReply reply) {
  const auto call = calls_.extract(reply.id);
  if (call.empty()) return;  // of a sample that was taken out
  const auto& [id, place] = call.mapped();
  turns::ToolRound& round = *waiting_.at(id).round;
  if (!reply.problem.empty()) Warn(id, round.calls()[place], reply);
  round.Take(place, std::move(reply));
}

template <typename Answer>
std::vector<Answer> SampleRunner::TakeDue(std::vector<Lost<Answer>>* lost) {
  const auto due = std::chrono::steady_clock::now() - kStopGrace;
  std::vector<Answer> all;
  for (Lost<Answer>& one : *lost)
    if (one.at <= due) all.push_back(std::move(one.answer));
  std::erase_if(*lost, [&](const Lost<Answer>& one) { return one.at <= due; });
  return all;
}

void SampleRunner::TakeLost() {
  std::erase_if(lost_, [&](const auto& lost) { return !calls_.contains(lost.answer.id); });
  if (stopping()) return;
  for (turns::ToolReply& reply : TakeDue(&lost_)) TakeReply(std::move(reply));
}

void SampleRunner::HearScores(std::vector<rewards::RewardResult> results) {
  const auto now = std::chrono::steady_clock::now();
  for (rewards::RewardResult& result : results) {
    if (result.gone) {
      lost_scores_.push_back({std::move(result), now});
    } else {
      TakeResult(std::move(result));
    }
  }
  std::erase_if(lost_scores_, [&](const auto& lost) { return !scoring_.contains(lost.answer.id); });
  if (lost_scores_.empty()) return;
  if (stopping()) return LeaveOpen(lost_scores_.size(), "verifiers", "samples");
  for (rewards::RewardResult& result : TakeDue(&lost_scores_)) TakeResult(std::move(result));
}

void SampleRunner::LeaveOpen(size_t open, const char* who, const char* what) {
  if (std::exchange(left_, true) || !options_.warn) return;
  options_.warn(
      fmt::format("asked to stop, and {} have ended, or are out of reach, with {} {} open: they "
                  "have not failed, and whoever goes on with these samples asks again",
                  who, open, what));
}

void SampleRunner::LeaveIfStopping() {
  const bool leaves = leads() && stopping();
  if (group_.size() == 1) {
    left_ |= leaves;
    return;
  }
  left_ |= !ShareBytes(group_, leaves ? "1" : "", options_.device).front().empty();
}

void SampleRunner::Leave() {
  std::vector<desk::SampleId> all;
  for (const auto& [id, running] : running_) all.push_back(id);
  for (const auto& [number, sample] : scoring_) all.push_back(sample.id);
  for (const RunSample& sample : ended_) all.push_back(sample.id);
  for (const desk::SampleId& id : all) Forget(id);
  lost_.clear();
  lost_scores_.clear();
  left_ = false;
}

void SampleRunner::Warn(const desk::SampleId& id, const turns::ToolCall& call,
                        const turns::ToolReply& reply) {
  int64_t shown = 1;
  for (++tools_failed_; shown < tools_failed_;) shown *= 10;
  if (shown != tools_failed_ || !options_.warn) return;
  const char* const what = reply.ok()            ? "counts all the same"
                           : call.to_environment ? "failed, and the response ends there"
                                                 : "failed, and the model is told so";
  options_.warn(fmt::format(
      "{} {} by sample {} of position {} {} ({} such calls so far): {}",
      call.to_environment ? "a turn for the environment" : "a call of the tool",
      Printable(call.name, 60), id.sample, id.position, what, tools_failed_, reply.problem));
}

std::vector<SampleRunner::Given> SampleRunner::TakeRounds() {
  std::vector<Given> all;
  for (const auto& [id, waiting] : waiting_) {
    if (!waiting.round->done()) continue;
    const turns::ToolRound::Outcome outcome = waiting.round->Finish(options_.turns->options);
    Given given{id, {}, outcome.over, outcome.memory.ToText()};
    if (given.over) {
      all.push_back(std::move(given));
      continue;
    }
    auto tokens = options_.turns->text.Tokens(waiting.round->calls(), outcome.texts);
    if (!tokens.ok()) {
      // A text that the template or the tokenizer refuses.
      const std::vector<std::string> instead(outcome.texts.size(),
                                             "error: the tool's text cannot be shown");
      tokens = options_.turns->text.Tokens(waiting.round->calls(), instead);
    }
    if (tokens.ok()) given.tokens = std::move(*tokens);
    all.push_back(std::move(given));
  }
  return all;
}

std::vector<SampleRunner::Given> SampleRunner::Share(std::vector<Given> given) {
  if (group_.size() == 1) return given;
  WireWriter out;
  if (leads()) {
    out.Pod(left_);
    for (const Given& one : given)
      out.I64(one.id.position).I64(one.id.sample).Pod(one.over).List(one.tokens);
  }
  const std::string text = ShareBytes(group_, out.bytes(), options_.device).front();
  if (leads()) return given;
  WireReader in(text);
  bool whole = in.Pod(&left_);
  while (whole && !in.AtEnd()) {
    Given& one = given.emplace_back();
    int64_t sample = 0;
    whole =
        in.I64(&one.id.position) && in.I64(&sample) && in.Pod(&one.over) && in.List(&one.tokens);
    one.id.sample = static_cast<int>(sample);
  }
  if (!whole) throw Error(StatusCode::kInternal, "the first rank sent malformed words of tools");
  return given;
}

void SampleRunner::GoOn(Given given) {
  auto waiting = waiting_.extract(given.id);
  rollout::Completion& done = waiting.mapped().done;
  done.tool_memory = std::move(given.memory);
  if (given.over) return End(std::move(done));
  const Running& running = running_.at(given.id);
  const auto size = std::ssize(given.tokens);
  // A response ends with a token of the model's own, so that its reward stands on one.
  if (size == 0 || std::ssize(done.tokens) + size >= running.sampling.max_tokens) {
    done.finish = rollout::FinishReason::kLength;
    End(std::move(done));
    return;
  }
  desk::Partial so_far = PartialOf(done);
  desk::Partial more;
  more.tokens = std::move(given.tokens);
  if (!so_far.log_probs.empty()) more.log_probs.assign(static_cast<size_t>(size), 0.0F);
  more.spans = {{0, engine_.weight_version()}};
  more.given = {{0, size}};
  so_far.Append(more);
  Begin(given.id, running.prompt, running.sampling, std::move(so_far));
}

void SampleRunner::EndTurn(rollout::Completion done) {
  if (options_.turns != nullptr && done.finish == rollout::FinishReason::kStop) {
    std::vector<turns::ToolCall> calls =
        options_.turns->rule.Next(done.tokens, done.given, running_.at(IdOf(done)).environment);
    if (!calls.empty()) {
      Waiting& waiting = waiting_[IdOf(done)];
      if (leads()) {
        const Json& extra_info = running_.at(IdOf(done)).prompt->extra_info;
        waiting.round = std::make_unique<turns::ToolRound>(
            std::move(calls), ValueOrThrow(turns::ToolMemory::Parse(done.tool_memory)),
            turns::ToolsOf(extra_info, turns::NamesOf(options_.turns->tools)));
      }
      waiting.done = std::move(done);
      return;
    }
  }
  End(std::move(done));
}

void SampleRunner::End(rollout::Completion done) {
  const desk::SampleId id = IdOf(done);
  const Running running = running_.extract(id).mapped();
  if (!leads()) {
    ended_.push_back({id, {}, {}});
    return;
  }
  RunSample sample{id, {}, PartialOf(done)};
  sample.response = ResponseOf(std::move(done), id.position, *running.prompt, options_.tokenizer);
  if (!sample.response.error.empty()) {
    ended_.push_back(std::move(sample));
    return;
  }
  rewards::RewardSample asked =
      SampleToVerify(sample.response, *running.prompt, options_.tokenizer == nullptr);
  asked.id = ++scored_;
  scoring_[scored_] = std::move(sample);
  rewards_->Submit(std::move(asked), rewards::CollectLimit(*options_.reward, std::ssize(scoring_)));
}

std::optional<desk::Partial> SampleRunner::SoFar(const desk::SampleId& id) const {
  if (const auto waiting = waiting_.find(id); waiting != waiting_.end())
    return PartialOf(waiting->second.done);
  return engine_.SoFar(static_cast<uint64_t>(id.position), id.sample);
}

std::optional<desk::Partial> SampleRunner::Take(const desk::SampleId& id) {
  running_.erase(id);
  if (const auto waiting = waiting_.extract(id)) {
    std::erase_if(calls_, [&](const auto& call) { return call.second.first == id; });
    return PartialOf(waiting.mapped().done);
  }
  return engine_.Take(static_cast<uint64_t>(id.position), id.sample);
}

void SampleRunner::Conclude(const desk::SampleId& id) {
  const auto found = running_.find(id);
  if (found == running_.end()) return;  // it is whole
  if (auto waiting = waiting_.extract(id)) {
    std::erase_if(calls_, [&](const auto& call) { return call.second.first == id; });
    waiting.mapped().done.finish = rollout::FinishReason::kLength;
    return End(std::move(waiting.mapped().done));
  }
  auto so_far = engine_.Take(static_cast<uint64_t>(id.position), id.sample);
  if (!so_far) return;  // it comes with the next step
  Running running = found->second;
  const bool ends_with_given = !so_far->given.empty() && so_far->given.back().end == so_far->size();
  running.sampling.max_tokens = std::max<int64_t>(1, so_far->size() + (ends_with_given ? 1 : 0));
  Begin(id, running.prompt, running.sampling, std::move(*so_far));
}

void SampleRunner::Forget(const desk::SampleId& id) {
  (void)Take(id);
  engine_.Forget(static_cast<uint64_t>(id.position), id.sample);
  const auto is_it = [&](const RunSample& sample) { return sample.id == id; };
  std::erase_if(scoring_, [&](const auto& one) { return is_it(one.second); });
  std::erase_if(ended_, is_it);
}

void SampleRunner::TakeResult(rewards::RewardResult result) {
  auto scored = scoring_.extract(result.id);
  if (!scored) return;  // of a sample that was forgotten
  Response& response = scored.mapped().response;
  TakeScore(std::move(result), &response);
  const bool adds =
      options_.turns != nullptr && options_.turns->options.add_tool_rewards && !response.failed();
  if (adds) response.score += response.tools.reward();
  ended_.push_back(std::move(scored.mapped()));
}

std::vector<RunSample> SampleRunner::Poll() {
  if (!scoring_.empty()) HearScores(rewards_->Poll());
  return std::exchange(ended_, {});
}

std::vector<RunSample> SampleRunner::Collect(const std::function<void()>& meanwhile) {
  if (rewards_ != nullptr) {
    const auto limit =
        rewards::CollectLimit(*options_.reward, static_cast<int64_t>(scoring_.size()));
    HearScores(rewards_->Collect(limit, meanwhile));
    while (!lost_scores_.empty() && !left_) {
      std::this_thread::sleep_for(kToolPatience);
      HearScores({});
    }
  }
  return std::exchange(ended_, {});
}

void SampleRunner::EachScoring(const std::function<void(const RunSample&)>& look) const {
  for (const auto& [number, sample] : scoring_) look(sample);
}

}  // namespace keel::trainer::rl
