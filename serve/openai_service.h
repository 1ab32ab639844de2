// OpenAiService: what each path of the server answers. Torch-free; thread-safe.
//
//   POST /v1/completions, /v1/chat/completions    GET /v1/models, /health, /metrics, / (a chat
//   page)
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "serve/http_service.h"
#include "serve/model_words.h"
#include "serve/openai_answer.h"
#include "serve/openai_request.h"
#include "serve/request_queue.h"
#include "serve/serve_metrics.h"

namespace keel::serve {

struct OpenAiOptions {
  std::string name;  // the model's, which requests must name if they name any
  std::chrono::seconds request_timeout{600};
};

class OpenAiService {
 public:
  // All must outlive this.
  OpenAiService(OpenAiOptions options, const ModelWords& words, RequestQueue& queue,
                ServeMetrics& metrics);

  HttpReply Handle(const HttpRequest& request, HttpClient& client);
  // Counts a response; for HttpService's listener.
  void Count(const std::string& path, int status);
  static std::string Written(const Refusal& refusal);
  // Paths that need no key.
  static std::vector<std::string> OpenPaths() { return {"/", "/health"}; }
  // /metrics says how many there are, /health that there will be no more.
  void set_connections(std::function<int64_t()> count) { connections_ = std::move(count); }
  void set_ending() { ending_ = true; }

 private:
  bool IsTheModel(std::string_view path) const;  // /v1/models/NAME
  HttpReply Generate(Endpoint endpoint, const std::string& body, HttpClient& client);
  std::optional<Refusal> WorkOf(const OpenAiRequest& request, Work* out) const;
  HttpReply AnswerWhole(const AnswerHead& head, const OpenAiRequest& request,
                        const std::shared_ptr<Answer>& answer, HttpClient& client);
  HttpReply AnswerInParts(const AnswerHead& head, const OpenAiRequest& request,
                          const std::shared_ptr<Answer>& answer);

  const OpenAiOptions options_;
  const ModelWords& words_;
  RequestQueue& queue_;
  ServeMetrics& metrics_;
  const int64_t created_;
  std::function<int64_t()> connections_;
  std::atomic<bool> ending_{false};
};

}  // namespace keel::serve
