// keel chat: a conversation, line by line.

#include "tools/inference/chat_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <utility>

#include "common/terminal.h"
#include "common/text.h"
#include "model/tokenizer/stream_decoder.h"
#include "rollout/engine.h"
#include "tools/inference/answer_stream.h"
#include "tools/inference/asked_facts.h"
#include "tools/inference/inference_model.h"
#include "tools/inference/input_rows.h"

namespace keel::tools {

namespace {

constexpr size_t kLongestLine = size_t{1} << 20;

// The messages so far. A turn that failed leaves no trace in it.
class Conversation {
 public:
  explicit Conversation(std::string system) : system_(std::move(system)) { Reset(); }

  void Reset() {
    messages_ = Json::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  }
  // With what the user says last.
  Json With(const std::string& said) const {
    Json messages = messages_;
    messages.push_back({{"role", "user"}, {"content", said}});
    return messages;
  }
  void Take(Json asked, const std::string& answer) {
    messages_ = std::move(asked);
    // Bytes that are no characters go into the template as what they are read as.
    const Json content =
        Json::parse(Json(answer).dump(-1, ' ', false, Json::error_handler_t::replace));
    messages_.push_back({{"role", "assistant"}, {"content", content}});
  }

 private:
  std::string system_;
  Json messages_;
};

void Show(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) < text.size() || std::fflush(stdout) != 0)
    throw Error(Status::FromErrno(errno, "write", "standard output"));
}

// The answer to one turn, shown as it grows.
Result<std::string> Answer(const std::vector<int32_t>& prompt, uint64_t turn,
                           const ChatArguments& a, InferenceModel& model, rollout::Engine& engine) {
  KEEL_RETURN_IF_ERROR(engine.CheckLengths(std::ssize(prompt), 1));
  model.relay().Send({prompt});
  engine.Add({turn, 0, prompt, a.sampling});
  AnswerStream stream(a.sampling.stop);
  model::StreamDecoder decoder(*model.text().tokenizer());
  std::string text;  // of the first `decoded` tokens
  size_t decoded = 0;
  std::vector<rollout::Completion> done;
  while (!engine.idle()) {
    done = engine.Step();
    if (!done.empty()) break;
    const std::vector<int32_t> tokens = engine.SoFar(turn, 0).value_or(rollout::Partial()).tokens;
    for (; decoded < tokens.size(); ++decoded) text += decoder.Push(tokens[decoded]);
    Show(stream.Grow(text));
  }
  if (done.empty()) return Status(StatusCode::kInternal, "the engine ended without an answer");
  KEEL_RETURN_IF_ERROR(done.front().error);
  const std::string answer = done.front().text.value_or("");
  Show(stream.End(answer) + "\n");
  return answer;
}

// What the other ranks do.
void Follow(InferenceModel& model, rollout::Engine& engine, const ChatArguments& a) {
  for (uint64_t turn = 0;; ++turn) {
    const auto prompts = model.relay().Receive();
    if (!prompts) break;
    engine.Add({turn, 0, prompts->at(0), a.sampling});
    while (!engine.idle()) engine.Step();
  }
  model.Leave();
}

// False at the end of the input.
bool ReadLine(bool asks, std::string* line) {
  if (asks) Show("> ");
  return static_cast<bool>(std::getline(std::cin, *line));
}

}  // namespace

void Chat(const ChatArguments& a) {
  if (const auto problems = a.sampling.Validate(); !problems.empty())
    throw Error(StatusCode::kUsage, fmt::format("{}", fmt::join(problems, "; ")));
  InferenceModel model({.path = a.model,
                        .base = a.base,
                        .dtype = a.dtype,
                        .device = a.device,
                        .env = a.env,
                        .asked = FactsOf(a.sampling)});
  rollout::EngineOptions options;
  options.scheduler.max_num_seqs = 1;
  options.calculate_log_probs = false;
  rollout::Engine engine = model.MakeEngine(options);
  if (!model.leads()) return Follow(model, engine, a);
  // What is missing, or what the template refuses, is said before anybody types.
  Conversation conversation(a.system);
  ThrowIfError(model.text().EncodeChat(conversation.With("."), Json(), a.model).status());

  const bool person = ::isatty(STDIN_FILENO) == 1;
  uint64_t turn = 0;
  Status last;  // of the last line, which ends a program that is fed by another
  for (std::string line; ReadLine(person, &line);) {
    const std::string said(Trim(line));
    if (said.empty()) continue;
    if (said == "/exit") break;
    if (said == "/reset") {
      conversation.Reset();
      continue;
    }
    const auto answer = [&]() -> Result<std::string> {
      if (said.size() > kLongestLine) {
        return Status(StatusCode::kInvalidData,
                      fmt::format("a line of {} bytes, at most {}", said.size(), kLongestLine));
      }
      if (FindNotUtf8(said) != std::string::npos)
        return Status(StatusCode::kInvalidData, "the line is not UTF-8");
      Json asked = conversation.With(said);
      KEEL_ASSIGN_OR_RETURN(const auto prompt,
                            model.text().EncodeChat(asked, Json(), "standard input"));
      const uint64_t number = turn++;
      KEEL_ASSIGN_OR_RETURN(std::string text, Answer(prompt.value(), number, a, model, engine));
      conversation.Take(std::move(asked), text);
      return text;
    }();
    last = answer.status();
    if (last.ok()) continue;
    WriteStderr(fmt::format("keel: {}; /reset begins anew\n", PrintableLines(last.message())));
  }
  model.relay().SendEnd();
  model.Leave();
  if (!person) ThrowIfError(last);
}

}  // namespace keel::tools
