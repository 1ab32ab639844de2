#include "serve/openai_service.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "common/text.h"
#include "serve/chat_page.h"
#include "serve/growing_choice.h"

namespace keel::serve {

namespace {

using Clock = std::chrono::steady_clock;
// How long a client may be gone before its sequences are.
constexpr std::chrono::milliseconds kLook{200};

struct Route {
  std::string_view path, method;
};
constexpr std::string_view kModels = "/v1/models";
constexpr std::array<Route, 6> kRoutes = {{{"/", "GET"},
                                           {"/health", "GET"},
                                           {"/metrics", "GET"},
                                           {kModels, "GET"},
                                           {"/v1/completions", "POST"},
                                           {"/v1/chat/completions", "POST"}}};

int64_t SecondsSince1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

uint64_t Random64() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

HttpReply ReplyOf(const Refusal& refusal) {
  HttpReply reply{.status = refusal.status, .body = Written(ErrorAnswer(refusal))};
  if (refusal.retry_after_s > 0)
    reply.headers.emplace_back("Retry-After", std::to_string(refusal.retry_after_s));
  return reply;
}

Refusal RefusalOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidData:
      return {.status = 400, .message = status.message()};
    case StatusCode::kBusy:
      return {.status = 429, .message = status.message(), .retry_after_s = 1};
    case StatusCode::kUnavailable:
      return {.status = 503, .message = status.message(), .retry_after_s = 10};
    case StatusCode::kDeadlineExceeded:
      return {.status = 504, .message = status.message()};
    default:
      return {.status = 500, .message = status.message()};
  }
}

// All choices of one answer, as pieces come in, with its bookkeeping.
class Gathering {
 public:
  Gathering(const OpenAiRequest& request, const ModelWords& words, RequestQueue& queue,
            ServeMetrics& metrics, std::shared_ptr<Answer> answer, std::chrono::seconds timeout)
      : queue_(queue), metrics_(metrics), answer_(std::move(answer)), timeout_(timeout) {
    const auto samples = static_cast<int>(answer_->work().samples());
    for (int i = 0; i < samples; ++i) growing_.emplace_back(request, answer_->work(), words, i);
    left_ = samples;
    for (const auto& prompt : answer_->work().prompts) usage_.prompt_tokens += std::ssize(prompt);
  }
  Gathering(const Gathering&) = delete;
  ~Gathering() {
    if (left_ == 0) return;
    queue_.Cancel(answer_);
    metrics_.CountCancelled();
  }

  // Waits, and calls `take` with what each piece adds, until all is there. Not ok: the answer ends
  // without its end. kCancelled: nobody is there to take it.
  template <typename Take>
  Status Run(HttpClient& client, const Take& take) {
    while (left_ > 0) {
      for (const Piece& piece : answer_->Wait(kLook)) {
        if (usage_.completion_tokens == 0 && !piece.tokens.empty())
          metrics_.ObserveFirstToken(SecondsSince(start_));
        usage_.completion_tokens += std::ssize(piece.tokens);
        const Choice added = growing_[static_cast<size_t>(piece.number)].Add(piece);
        if (piece.last()) --left_;
        KEEL_RETURN_IF_ERROR(piece.error);
        if (!take(added)) return {StatusCode::kCancelled, "the client is gone"};
      }
      if (client.gone()) return {StatusCode::kCancelled, "the client is gone"};
      if (left_ > 0 && Clock::now() - start_ > timeout_) {
        return {StatusCode::kDeadlineExceeded,
                fmt::format("the answer was not whole within {} s (--request-timeout)",
                            timeout_.count())};
      }
    }
    metrics_.ObserveWhole(SecondsSince(start_));
    return Status::Ok();
  }
  const Usage& usage() const { return usage_; }
  std::vector<Choice> choices() const {
    std::vector<Choice> all;
    for (const GrowingChoice& one : growing_) all.push_back(one.all());
    return all;
  }

 private:
  RequestQueue& queue_;
  ServeMetrics& metrics_;
  const std::shared_ptr<Answer> answer_;
  const std::chrono::seconds timeout_;
  const Clock::time_point start_ = Clock::now();
  std::vector<GrowingChoice> growing_;
  int64_t left_ = 0;
  Usage usage_;
};

}  // namespace

OpenAiService::OpenAiService(OpenAiOptions options, const ModelWords& words, RequestQueue& queue,
                             ServeMetrics& metrics)
    : options_(std::move(options)),
      words_(words),
      queue_(queue),
      metrics_(metrics),
      created_(SecondsSince1970()) {}

void OpenAiService::Count(const std::string& asked, int status) {
  const std::string path = IsTheModel(asked) ? std::string(kModels) : asked;
  const bool known = std::any_of(kRoutes.begin(), kRoutes.end(),
                                 [&](const Route& route) { return route.path == path; });
  metrics_.CountResponse(known ? path : "other", status);
}

bool OpenAiService::IsTheModel(std::string_view path) const {
  return path == fmt::format("{}/{}", kModels, options_.name);
}

std::string OpenAiService::Written(const Refusal& refusal) {
  return serve::Written(ErrorAnswer(refusal));
}

HttpReply OpenAiService::Handle(const HttpRequest& request, HttpClient& client) {
  const bool is_model = IsTheModel(request.path);
  const std::string_view path = is_model ? kModels : std::string_view(request.path);
  const auto route = std::find_if(kRoutes.begin(), kRoutes.end(),
                                  [&](const Route& one) { return one.path == path; });
  if (route == kRoutes.end()) {
    return ReplyOf({.status = 404,
                    .message = fmt::format("no such path: {}", Printable(request.path)),
                    .code = "not_found"});
  }
  if (request.method != route->method && !(request.method == "HEAD" && route->method == "GET")) {
    HttpReply reply =
        ReplyOf({.status = 405, .message = fmt::format("{} takes {}", route->path, route->method)});
    reply.headers.emplace_back("Allow", std::string(route->method));
    return reply;
  }
  if (request.path == "/") {
    return {.content_type = "text/html; charset=utf-8",
            .body = std::string(ChatPage()),
            .headers = {{"Content-Security-Policy",
                         "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; "
                         "style-src 'unsafe-inline'; form-action 'none'; frame-ancestors 'none'"},
                        {"X-Content-Type-Options", "nosniff"}}};
  }
  if (request.path == "/health") {
    return ending_ ? HttpReply{.status = 503, .body = R"({"status":"ending"})"}
                   : HttpReply{.body = R"({"status":"ok"})"};
  }
  if (request.path == "/metrics") {
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
            .body = metrics_.Text(queue_.open_samples(), connections_ ? connections_() : 0)};
  }
  if (path == kModels) {
    const Json list = ModelList(options_.name, created_, words_.max_model_len());
    return {.body = serve::Written(is_model ? list["data"][0] : list)};
  }
  const auto endpoint =
      request.path == "/v1/completions" ? Endpoint::kCompletions : Endpoint::kChat;
  return Generate(endpoint, request.body, client);
}

std::optional<Refusal> OpenAiService::WorkOf(const OpenAiRequest& request, Work* out) const {
  Work& work = *out;
  const bool chat = request.endpoint == Endpoint::kChat;
  const char* const input = chat ? "messages" : "prompt";
  const auto refused = [](const Status& status, const char* param, const char* code = "") {
    Refusal refusal = RefusalOf(status);
    if (refusal.status == 400) {
      refusal.param = param;
      refusal.code = code;
    }
    return refusal;
  };
  const auto bad = [&](std::string message, const char* param, const char* code = "") {
    return refused(Status(StatusCode::kInvalidData, std::move(message)), param, code);
  };
  work.n = request.n;
  work.sampling = request.sampling;
  work.sampling.seed = request.seed ? *request.seed : Random64();
  if (!words_.has_text() && !work.sampling.stop.empty())
    return bad("stop: the model has no tokenizer; use stop_token_ids", "stop");
  // 1. The tokens of what is given.
  const auto add = [&](Result<std::vector<int32_t>> ids) -> std::optional<Refusal> {
    if (!ids.ok()) return refused(ids.status(), input);
    work.prompts.push_back(*std::move(ids));
    return {};
  };
  if (chat) {
    auto ids = words_.EncodeChat(request.messages, request.tools);
    if (!ids.ok()) return refused(ids.status(), input);
    if (!*ids) {
      return bad(
          "tools: the model's chat template shows none of them to this conversation: leave "
          "them out, or serve a model whose template does",
          "tools");
    }
    work.prompts.push_back(**std::move(ids));
  }
  for (const OpenAiRequest::Prompt& prompt : request.prompts) {
    const auto* const ids = std::get_if<std::vector<int32_t>>(&prompt);
    if (auto refusal =
            add(ids != nullptr ? *ids : words_.EncodeText(std::get<std::string>(prompt))))
      return refusal;
  }
  const int64_t room = words_.max_model_len();
  const int64_t least = request.max_tokens == 0 ? 0 : 1;
  int64_t longest = 0;
  for (const std::vector<int32_t>& ids : work.prompts) {
    if (ids.empty()) return bad("the prompt has no tokens", input);
    for (const int32_t id : ids) {
      if (id < 0 || id >= words_.vocab_size()) {
        return bad(fmt::format("the prompt's token {} is outside the vocabulary of {}", id,
                               words_.vocab_size()),
                   input);
      }
    }
    longest = std::max<int64_t>(longest, std::ssize(ids));
  }
  for (const int32_t id : work.sampling.stop_token_ids) {
    if (id < 0 || id >= words_.vocab_size()) {
      return bad(fmt::format("stop_token_ids: {} is outside the vocabulary of {}", id,
                             words_.vocab_size()),
                 "stop_token_ids");
    }
  }
  // 2. The room for them, and for what is asked for.
  const bool too_long = longest + least > room;
  if (too_long || (request.max_tokens && *request.max_tokens > room - longest)) {
    return bad(fmt::format("the prompt has {} tokens and {} are asked for; the model has room "
                           "for {}",
                           longest, request.max_tokens ? *request.max_tokens : 1, room),
               too_long ? input : "max_tokens", "context_length_exceeded");
  }
  // As OpenAI's: 16 tokens, or for a conversation what the model has room for.
  const int64_t most = chat ? room - longest : 16;
  work.sampling.max_tokens = request.max_tokens.value_or(std::min(most, room - longest));
  // What nobody asked for need not be had.
  while (!request.max_tokens && work.sampling.max_tokens > 1 &&
         !words_.CheckLengths(longest, work.sampling.max_tokens).ok())
    work.sampling.max_tokens /= 2;
  work.sampling.likeliest = request.likeliest;
  work.sampling.continues_prompt =
      !chat || request.messages.back().value("role", Json()) == "assistant";
  work.sampling.prompt_log_probs = request.echo && (request.log_probs || least == 0);
  work.shows_calls = !request.tools.is_null() && words_.tool_format().has_value();
  if (work.shows_calls) work.tools = request.tools;
  const auto problems = work.sampling.Validate();
  if (!problems.empty()) return bad(fmt::format("{}", fmt::join(problems, "; ")), "");
  const Status fits = words_.CheckLengths(longest, work.sampling.max_tokens);
  if (fits.ok()) return {};
  return refused(fits, words_.CheckLengths(longest, least).ok() ? "max_tokens" : input,
                 "context_length_exceeded");
}

HttpReply OpenAiService::Generate(Endpoint endpoint, const std::string& body, HttpClient& client) {
  // 1. What is asked.
  OpenAiRequest request;
  if (const auto refusal = ReadOpenAiRequest(endpoint, body, &request)) return ReplyOf(*refusal);
  if (!request.model.empty() && request.model != options_.name) {
    return ReplyOf({.status = 404,
                    .message = fmt::format("no model {}: this server has {}",
                                           Printable(request.model), options_.name),
                    .param = "model",
                    .code = "model_not_found"});
  }
  Work work;
  if (const auto refusal = WorkOf(request, &work)) return ReplyOf(*refusal);

  // 2. In the queue.
  const auto answer = queue_.Submit(std::move(work));
  if (!answer.ok()) return ReplyOf(RefusalOf(answer.status()));
  for (const auto& prompt : (*answer)->work().prompts)
    metrics_.CountPromptTokens(std::ssize(prompt));
  const AnswerHead head{
      endpoint,
      fmt::format("{}-{:016x}", endpoint == Endpoint::kChat ? "chatcmpl" : "cmpl", Random64()),
      SecondsSince1970(), options_.name};

  // 3. What becomes of it.
  return request.stream ? AnswerInParts(head, request, *answer)
                        : AnswerWhole(head, request, *answer, client);
}

HttpReply OpenAiService::AnswerWhole(const AnswerHead& head, const OpenAiRequest& request,
                                     const std::shared_ptr<Answer>& answer, HttpClient& client) {
  Gathering gathering(request, words_, queue_, metrics_, answer, options_.request_timeout);
  const Status status = gathering.Run(client, [](const Choice&) { return true; });
  if (status.code() == StatusCode::kCancelled)
    return ReplyOf({.status = kClientClosedRequest, .message = status.message()});
  if (!status.ok()) return ReplyOf(RefusalOf(status));
  AnswerHead named = head;
  named.weights = answer->weights();
  return {.body = serve::Written(WholeAnswer(named, gathering.choices(), gathering.usage()))};
}

HttpReply OpenAiService::AnswerInParts(const AnswerHead& head, const OpenAiRequest& request,
                                       const std::shared_ptr<Answer>& answer) {
  // Made here, so that an answer whose stream is never begun is cancelled, too.
  const auto gathering = std::make_shared<Gathering>(request, words_, queue_, metrics_, answer,
                                                     options_.request_timeout);
  HttpReply reply{.content_type = "text/event-stream", .headers = {{"Cache-Control", "no-store"}}};
  reply.stream = [named = head, gathering, answer,
                  include_usage = request.include_usage](HttpClient& client) mutable {
    bool begun = false;
    // Whose words follow, once it is known which weights choose them.
    const auto begin = [&] {
      begun = true;
      named.weights = answer->weights();
      const int64_t samples = named.endpoint == Endpoint::kChat ? answer->work().samples() : 0;
      for (int i = 0; i < samples; ++i)
        if (!client.Write(Event(RoleChunk(named, i)))) return false;
      return true;
    };
    const Status status = gathering->Run(client, [&](const Choice& added) {
      if (!begun && !begin()) return false;
      if (added.text.empty() && added.finish.empty() && added.scores.empty() && added.calls.empty())
        return true;
      return client.Write(Event(Chunk(named, added)));
    });
    if (!status.ok()) {
      // The status of HTTP is out: the error is an event, and the end that a client knows is
      // missing.
      if (status.code() != StatusCode::kCancelled)
        client.Write(Event(ErrorAnswer(RefusalOf(status))));
      return false;
    }
    if (include_usage && !client.Write(Event(UsageChunk(named, gathering->usage())))) return false;
    return client.Write(kLastEvent);
  };
  return reply;
}

}  // namespace keel::serve
