// keel serve: OpenAI's API over the rollout engine.
//
// The main thread runs the engine; HttpService's threads read requests, make tokens of them and
// wait for their answers. Between two steps rank 0 takes what came in, tells the other ranks, and
// all do the same to their engines.

#include "tools/serve_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "common/log.h"
#include "model/tokenizer/stream_decoder.h"
#include "rollout/engine.h"
#include "serve/openai_service.h"
#include "serve/request_queue.h"
#include "serve/serve_metrics.h"
#include "tools/answer_stream.h"
#include "tools/inference_model.h"
#include "tools/serve_orders.h"

namespace keel::tools {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kIdle{50};  // after which an idle engine looks at `stop`
constexpr std::chrono::seconds kLastWords{10};  // for clients to take what is answered

// Tokenizer and chat template are immutable, and the engine's limits do not change.
class Words final : public serve::ModelWords {
 public:
  Words(const InferenceModel& model, const rollout::Engine& engine)
      : model_(model), engine_(engine) {}
  Result<std::vector<int32_t>> EncodeText(const std::string& text) const override {
    return Caught([&] { return model_.text().Encode(text, "prompt"); });
  }
  Result<std::vector<int32_t>> EncodeChat(const Json& messages, const Json& tools) const override {
    return Caught([&] { return model_.text().EncodeChat(messages, tools, "messages"); });
  }
  Status CheckLengths(int64_t prompt, int64_t response) const override {
    return engine_.CheckLengths(prompt, response);
  }
  std::string TextOf(int32_t token) const override {
    if (!has_text()) return {};
    return model_.text().tokenizer()->Decode(std::span(&token, 1), {.skip_special_tokens = false});
  }
  bool has_text() const override { return model_.text().tokenizer() != nullptr; }
  int64_t vocab_size() const override { return model_.config().vocab_size; }
  int64_t max_model_len() const override { return engine_.options().max_model_len; }

 private:
  // A text that a tokenizer cannot split is thrown.
  template <typename Work>
  static Result<std::vector<int32_t>> Caught(const Work& work) {
    try {
      return work();
    } catch (const std::exception& error) {
      return StatusOf(error);
    }
  }

  const InferenceModel& model_;
  const rollout::Engine& engine_;
};

void Do(const ServeOrders& orders, rollout::Engine& engine) {
  for (const auto& [id, sample] : orders.take) engine.Take(id, sample);
  for (const rollout::Request& request : orders.add) engine.Add(request);
}

// What the other ranks do.
void Follow(InferenceModel& model, rollout::Engine& engine) {
  while (const auto bytes = model.relay().ReceiveBytes()) {
    Do(ValueOrThrow(Unpacked(*bytes)), engine);
    if (!engine.idle()) engine.Step();
  }
  model.Leave();
}

// Rank 0's: from the queue to the engine, and back.
class EngineLoop {
 public:
  EngineLoop(InferenceModel& model, rollout::Engine& engine, serve::RequestQueue& queue,
             serve::ServeMetrics& metrics, Logger& log)
      : model_(model), engine_(engine), queue_(queue), metrics_(metrics), log_(log) {}

  // One step, or a wait for something to do.
  void Once() {
    const ServeOrders orders = OrdersOf(queue_.Take(engine_.idle() ? kIdle : kIdle * 0));
    if (!orders.empty() || !engine_.idle()) {
      model_.relay().SendBytes(Packed(orders));
      Do(orders, engine_);
      if (!engine_.idle()) Step();
    }
    const rollout::EngineStats stats = engine_.stats();
    metrics_.Set({stats.running, stats.waiting, stats.held_blocks, stats.num_blocks, stats.steps,
                  stats.preemptions, stats.generated_tokens, stats.computed_tokens,
                  stats.found_tokens});
  }
  // All that has not ended ends with this.
  void FailAll(const Status& why) {
    // What was never taken into the engine.
    const ServeOrders orders = OrdersOf(queue_.Take(kIdle * 0));
    for (auto& [key, running] : running_)
      running.answer->Put({.number = running.number, .error = why});
    queue_.Ended(std::ssize(running_));
    running_.clear();
  }

 private:
  using Key = std::pair<uint64_t, int>;
  struct Running {
    Running(std::shared_ptr<serve::Answer> whose, int which, const model::Tokenizer* tokenizer)
        : answer(std::move(whose)), number(which), stream(answer->work().sampling.stop) {
      if (tokenizer != nullptr) decoder.emplace(*tokenizer);
    }
    std::shared_ptr<serve::Answer> answer;
    int number;
    AnswerStream stream;
    std::optional<model::StreamDecoder> decoder;
    std::string text;  // of the first `handed` tokens, as far as it is certain
    size_t handed = 0;
  };

  ServeOrders OrdersOf(const serve::RequestQueue::News& news) {
    ServeOrders orders;
    for (const auto& answer : news.cancelled) {
      for (auto at = running_.begin(); at != running_.end();) {
        if (at->second.answer != answer) {
          ++at;
          continue;
        }
        orders.take.push_back(at->first);
        at = running_.erase(at);
        queue_.Ended(1);
      }
    }
    for (const auto& answer : news.submitted) {
      const serve::Work& work = answer->work();
      for (size_t prompt = 0; prompt < work.prompts.size(); ++prompt, ++next_id_) {
        for (int sample = 0; sample < work.n; ++sample) {
          running_.try_emplace({next_id_, sample}, answer,
                               static_cast<int>(prompt) * work.n + sample,
                               model_.text().tokenizer());
          // As keel generate draws for a file of these prompts.
          orders.add.push_back({.prompt_id = next_id_,
                                .sample = sample,
                                .prompt = work.prompts[prompt],
                                .sampling = work.sampling,
                                .draws_as = prompt});
        }
      }
    }
    return orders;
  }

  void Step() {
    std::vector<rollout::Completion> done;
    const Status status = Guarded([&] {
      done = engine_.Step();
      return Status::Ok();
    });
    if (!status.ok()) return Recover(status);
    for (const rollout::Completion& completion : done) End(completion);
    for (auto& [key, running] : running_) {
      const auto partial = engine_.SoFar(key.first, key.second);
      if (partial && partial->tokens.size() > running.handed) Grow(running, *partial);
    }
  }

  // Alone, the engine goes on without what it had. The other ranks may be anywhere.
  void Recover(const Status& status) {
    log_.Error("a step of the engine failed, and {} samples with it: {}", running_.size(),
               status.ToString());
    for (const auto& [key, running] : running_) engine_.Take(key.first, key.second);
    FailAll(status);
    if (model_.ranks() > 1 || ++failures_in_a_row_ >= 3) throw Error(status);
  }

  serve::Piece PieceOf(Running& running, const std::vector<int32_t>& tokens,
                       const std::vector<float>& log_probs) {
    serve::Piece piece{.number = running.number};
    const auto from = static_cast<std::ptrdiff_t>(running.handed);
    piece.tokens.assign(tokens.begin() + from, tokens.end());
    piece.log_probs.assign(log_probs.begin() + from, log_probs.end());
    running.handed = tokens.size();
    return piece;
  }

  void Grow(Running& running, const rollout::Partial& partial) {
    serve::Piece piece = PieceOf(running, partial.tokens, partial.log_probs);
    if (running.decoder) {
      for (const int32_t token : piece.tokens) running.text += running.decoder->Push(token);
      piece.text = running.stream.Grow(running.text);
    }
    running.answer->Put(std::move(piece));
  }

  void End(const rollout::Completion& completion) {
    failures_in_a_row_ = 0;
    const auto at = running_.find({completion.prompt_id, completion.sample});
    if (at == running_.end()) return;
    Running& running = at->second;
    serve::Piece piece{.number = running.number};
    if (completion.error.ok()) {
      piece = PieceOf(running, completion.tokens, completion.log_probs);
      piece.text = running.stream.End(completion.text.value_or(""));
      piece.finish = rollout::FinishReasonName(completion.finish);
    } else {
      piece.error = completion.error;
    }
    running.answer->Put(std::move(piece));
    running_.erase(at);
    queue_.Ended(1);
  }

  InferenceModel& model_;
  rollout::Engine& engine_;
  serve::RequestQueue& queue_;
  serve::ServeMetrics& metrics_;
  Logger& log_;
  std::map<Key, Running> running_;
  uint64_t next_id_ = 0;
  int failures_in_a_row_ = 0;
};

std::string NameOf(const ServeArguments& a) {
  if (!a.name.empty()) return a.name;
  std::string path = a.model;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

void Lead(const ServeArguments& a, InferenceModel& model, rollout::Engine& engine) {
  Logger log{LogOptions{}};
  const Words words(model, engine);
  serve::RequestQueue queue(a.max_num_seqs + a.max_waiting);
  serve::ServeMetrics metrics(NameOf(a));
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
  EngineLoop loop(model, engine, queue, metrics, log);
  const Status status = Guarded([&] {
    while (!*a.stop) loop.Once();

    // 2. What runs may end.
    log.Info("the end is asked for: {} samples have {} s to end", queue.open_samples(),
             a.grace.count());
    openai.set_ending();
    queue.Close();
    http.StopAccepting();
    const auto end = Clock::now() + a.grace;
    while (queue.open_samples() > 0 && Clock::now() < end) loop.Once();
    return Status::Ok();
  });

  // 3. What does not, has ended.
  queue.Close();
  const int64_t left = queue.open_samples();
  loop.FailAll(status.ok() ? Status(StatusCode::kUnavailable, "the server has ended") : status);
  http.Join(kLastWords);
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
  InferenceModel model({a.model, a.dtype, a.device, a.env});
  rollout::EngineOptions options;
  options.scheduler.max_num_seqs = a.max_num_seqs;
  options.kv_cache_bytes = a.cache_megabytes << 20;
  options.max_model_len = a.max_model_len;
  options.logprobs_mode = rollout::LogProbsMode::kRaw;
  rollout::Engine engine = model.MakeEngine(options);
  if (!model.leads()) return Follow(model, engine);
  Lead(a, model, engine);
}

}  // namespace keel::tools
