// keel serve: OpenAI's API over the rollout engine.
//
// The main thread runs the engine; HttpService's threads read requests, make tokens of them and
// wait for their answers.

#include "tools/serve/serve_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "common/log.h"
#include "common/text.h"
#include "rollout/engine.h"
#include "serve/openai_service.h"
#include "serve/request_queue.h"
#include "serve/serve_metrics.h"
#include "tools/inference/asked_facts.h"
#include "tools/inference/inference_model.h"
#include "tools/inference/step_weights.h"
#include "tools/serve/next_weights.h"
#include "tools/serve/run_watch.h"
#include "tools/serve/serve_loop.h"
#include "tools/serve/serve_orders.h"
#include "trainer/data/rows/chat_rules.h"
#include "turns/tool_calls.h"

namespace keel::tools {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLook{300};  // between two looks into a run
constexpr std::chrono::seconds kLastWords{10};   // at least, for clients to take what is answered

// Tokenizer and chat template are immutable, and the engine's limits do not change.
class Words final : public serve::ModelWords {
 public:
  Words(const InferenceModel& model, const rollout::Engine& engine)
      : model_(model), engine_(engine) {
    const auto& chat = model.source().text.chat;
    if (chat == nullptr || chat->chatml) return;
    tool_format_ = turns::FormatOf((chat->with_tools ? *chat->with_tools : chat->chat).source());
  }
  Result<std::vector<int32_t>> EncodeText(const std::string& text) const override {
    return Caught([&] { return model_.text().Encode(text, "prompt"); });
  }
  Result<std::optional<std::vector<int32_t>>> EncodeChat(const Json& messages,
                                                         const Json& tools) const override {
    return Caught([&] { return model_.text().EncodeChat(messages, tools, "request"); });
  }
  Status CheckLengths(int64_t prompt, int64_t response) const override {
    return engine_.CheckLengths(prompt, response);
  }
  TokenText TextOf(int32_t token, bool first) const override {
    if (!has_text()) return {};
    const model::Tokenizer& tokenizer = *model_.text().tokenizer();
    std::string bytes = tokenizer.BytesOf(token);
    if (first && FindNotUtf8(bytes) == std::string_view::npos)
      bytes = tokenizer.Decode(std::span(&token, 1), {.skip_special_tokens = false});
    return {std::move(bytes), tokenizer.IsSpecial(token)};
  }
  std::string TextOf(const std::vector<int32_t>& tokens) const override {
    return has_text() ? model_.text().tokenizer()->Decode(tokens) : std::string();
  }
  std::optional<turns::ToolFormat> tool_format() const override { return tool_format_; }
  bool has_text() const override { return model_.text().tokenizer() != nullptr; }
  int64_t vocab_size() const override { return model_.config().vocab_size; }
  int64_t max_model_len() const override { return engine_.options().max_model_len; }

 private:
  // A text that a tokenizer cannot split is thrown.
  template <typename Work>
  static std::invoke_result_t<Work> Caught(const Work& work) {
    try {
      return work();
    } catch (const std::exception& error) {
      return StatusOf(error);
    }
  }

  const InferenceModel& model_;
  const rollout::Engine& engine_;
  std::optional<turns::ToolFormat> tool_format_;
};

// What the other ranks do.
void Follow(InferenceModel& model, rollout::Engine& engine, NextWeights& next) {
  while (const auto bytes = model.relay().ReceiveBytes()) {
    Do(ValueOrThrow(Unpacked(*bytes)), engine, next);
    if (!engine.idle()) engine.Step();
  }
  model.Leave();
}

std::string LastPart(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

std::string NameOf(const ServeArguments& a) {
  return a.name.empty() ? LastPart(a.run.empty() ? a.model : a.run) : a.name;
}

// Which checkpoint of a run is served: it is chosen, and stays where it is until it has been read.
//
// One that cannot be read, and may be the next time, is tried RunWatch::kReads times before an
// older one is, and manifests are looked at as often. The loop of a run that is followed goes on
// from there.
class FirstStep {
 public:
  FirstStep(const ServeArguments& arguments, RunWatch& watch, Logger& log)
      : a_(arguments), watch_(watch), log_(log) {}

  // As InferenceOptions::choose. Waits for the first one of a run that is followed.
  std::string Choose(const Status& last) {
    if (!last.ok()) Failed(last);
    for (;; std::this_thread::sleep_for(kLook)) {
      const auto found = Look();
      if (watch_.in_doubt() && ++doubts_ < RunWatch::kReads) continue;
      if (!found) {
        Wait();
        continue;
      }
      auto lease = watch_.Hold(*found);
      if (!lease.ok()) continue;  // retention was faster, or is at it
      lease_ = *std::move(lease);
      chosen_ = *found;
      return chosen_.path;
    }
  }
  // It is in memory.
  const RunStep& Loaded() {
    lease_.reset();
    watch_.Serve(chosen_);
    return chosen_;
  }

 private:
  void Failed(const Status& why) {
    watch_.Refuse(chosen_, why);
    if (++tries_[chosen_.digest] % RunWatch::kReads == 0) watch_.PutOff(chosen_);
    std::this_thread::sleep_for(kLook);
  }
  // There is none; what was put off is tried again by who has the time.
  void Wait() {
    if (!a_.follow) {
      throw Error(StatusCode::kNotFound,
                  fmt::format("--run {}: no checkpoint that can be served; --follow waits for "
                              "the first one",
                              a_.run));
    }
    watch_.CallBack();
    if (!std::exchange(waits_, true)) log_.Info("waiting for the first checkpoint of {}", a_.run);
  }
  // A run that is followed need not have begun, and its folder is looked at again.
  std::optional<RunStep> Look() {
    auto found = watch_.Look({});
    if (!a_.follow || found.ok() || !RunWatch::MayPass(found.status()))
      return ValueOrThrow(std::move(found));
    if (found.status().code() != StatusCode::kNotFound) watch_.SayOnce(found.status().ToString());
    return {};
  }

  const ServeArguments& a_;
  RunWatch& watch_;
  Logger& log_;
  RunStep chosen_;
  checkpoint::Lease lease_;
  std::map<std::string, int> tries_;  // by digest
  int doubts_ = 0;                    // looks in which the newest was not known
  bool waits_ = false;
};

void Lead(const ServeArguments& a, InferenceModel& model, rollout::Engine& engine,
          NextWeights& next, Logger& log, RunWatch* watch, const RunStep* first) {
  const Words words(model, engine);
  serve::RequestQueue queue(a.max_num_seqs + a.max_waiting);
  serve::ServeMetrics metrics(NameOf(a));
  // Before anybody can look.
  if (first != nullptr) metrics.SetCheckpoint(first->step);
  if (watch != nullptr) metrics.SetSkippedCheckpoints(watch->skipped());
  serve::OpenAiService openai({NameOf(a), a.request_timeout}, words, queue, metrics);
  serve::HttpService http(
      a.http, serve::OpenAiService::OpenPaths(),
      [&](const serve::HttpRequest& request, serve::HttpClient& client) {
        return openai.Handle(request, client);
      },
      serve::OpenAiService::Written,
      [&](const std::string& path, int status) { openai.Count(path, status); });
  openai.set_connections([&] { return http.open_connections(); });
  ThrowIfError(http.Start());
  fmt::print("serving {} at http://{}:{}\n", NameOf(a),
             a.http.host.find(':') == std::string::npos ? a.http.host : "[" + a.http.host + "]",
             http.port());
  std::fflush(stdout);

  // 1. Until the end is asked for.
  std::string weights = first != nullptr ? first->Fingerprint() : "";
  if (first == nullptr && IsCheckpoint(a.model)) weights = LastPart(a.model);
  ServeLoop loop({model, engine, next, queue, metrics, log, a.follow ? watch : nullptr}, weights);
  if (a.follow) watch->Start(kLook);
  Clock::time_point end = Clock::now();
  const Status status = Guarded([&] {
    while (!*a.stop) loop.Once();

    // 2. What runs may end.
    log.Info("the end is asked for: {} samples have {} s to end", queue.open_samples(),
             a.grace.count());
    openai.set_ending();
    queue.Close();
    http.StopAccepting();
    end = Clock::now() + a.grace;
    while (queue.open_samples() > 0 && Clock::now() < end) loop.Once();
    return Status::Ok();
  });

  // 3. What does not, has ended.
  queue.Close();
  const int64_t left = queue.open_samples();
  loop.FailAll(status.ok() ? Status(StatusCode::kUnavailable, "the server has ended") : status);
  const auto patience = std::max<Clock::duration>(end - Clock::now(), kLastWords);
  const int64_t cut = http.Join(std::chrono::ceil<std::chrono::milliseconds>(patience));
  if (cut > 0) log.Warning("connections cut, whose clients had not taken all in time: {}", cut);
  ThrowIfError(status);
  if (left > 0) log.Warning("{} samples did not end in time", left);
  model.relay().SendEnd();
  model.Leave();
  log.Info("ended");
}

}  // namespace

void Serve(const ServeArguments& a) {
  if (const auto problems = a.http.Validate(); !problems.empty())
    throw Error(StatusCode::kUsage, fmt::format("{}", fmt::join(problems, "; ")));
  Logger log{LogOptions{}};
  InferenceOptions how{
      .path = a.model, .base = a.base, .dtype = a.dtype, .device = a.device, .env = a.env};
  how.asked = EngineFacts(a.max_num_seqs, a.cache_megabytes);
  how.asked["--max-model-len"] = fmt::format("{}", a.max_model_len);
  std::unique_ptr<RunWatch> watch;
  std::optional<FirstStep> first;
  if (!a.run.empty()) {
    watch = ValueOrThrow(RunWatch::Open(
        a.run, a.follow, [&log](const std::string& warning) { log.Warning("{}", warning); }));
    first.emplace(a, *watch, log);
    how.choose = [&first](const Status& last) { return first->Choose(last); };
    how.copies = a.follow ? 2 : 1;
  }
  InferenceModel model(how);
  *a.loaded = true;
  rollout::EngineOptions options;
  options.scheduler.max_num_seqs = a.max_num_seqs;
  options.kv_cache_bytes = a.cache_megabytes << 20;
  options.enforce_eager = a.enforce_eager;
  options.max_model_len = a.max_model_len;
  options.logprobs_mode = rollout::LogProbsMode::kRaw;
  if (model.leads()) options.warn = [&log](const std::string& text) { log.Warning("{}", text); };
  rollout::Engine engine = model.MakeEngine(options);
  NextWeights next(model, engine);
  if (!model.leads()) return Follow(model, engine, next);
  Lead(a, model, engine, next, log, watch.get(), first ? &first->Loaded() : nullptr);
}

}  // namespace keel::tools
