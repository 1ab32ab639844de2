#include "turns/tool_server.h"

#include <fmt/format.h>

#include <cmath>
#include <exception>
#include <limits>
#include <utility>

#include "common/guarded.h"
#include "common/process/program_files.h"
#include "common/programs/http_client.h"
#include "common/programs/line_process.h"
#include "common/text.h"

namespace keel::turns {

namespace {

constexpr size_t kMostStateBytes = size_t{1} << 20;
constexpr size_t kLongestError = 300;  // bytes

using std::chrono::steady_clock;

// "tool calc", for messages.
std::string NamedKind(const ToolSpec& tool) {
  return fmt::format("{} {}", tool.is_environment ? "environment" : "tool",
                     Printable(tool.name, 60));
}

class CommandTool : public ToolServer {
 public:
  explicit CommandTool(const ToolSpec& tool)
      : timeout_(tool.timeout), program_(NamedKind(tool), "its timeout_seconds", tool.command) {
    // One that ended comes back as what ranks have compared, or not at all.
    program_.SetCheck(
        [name = NamedKind(tool), command = tool.command, begun = ProgramFileDigests(tool.command)] {
          const std::string file = FirstChanged(begun, ProgramFileDigests(command));
          if (file.empty()) return;
          throw Error(StatusCode::kConfig,
                      fmt::format("{}: the content of {} has changed since the run began: put the "
                                  "old one back, or start again",
                                  name, file));
        });
  }
  Status Start() override { return program_.Start(); }
  void Cancel() override { program_.Cancel(); }

 private:
  Result<ToolReply> Ask(const ToolRequest& request) override {
    std::optional<ToolReply> reply;
    LineExchange exchange;
    exchange.text = RequestText(request) + "\n";
    exchange.deadline = steady_clock::now() + timeout_;
    exchange.open = [&] { return !reply.has_value(); };
    exchange.missing = [] { return std::string("1 of 1 replies"); };
    bool again = false;
    exchange.take = [&](std::string_view line) -> Status {
      if (reply ? ParseReply(line, request.id).ok() : RepeatsLast(line)) {
        again = true;
        return Status::Ok();
      }
      if (reply)
        return Status(StatusCode::kInvalidData,
                      program_.Describe() + ": more than a reply to a call");
      KEEL_ASSIGN_OR_RETURN(reply, ParseReply(line, request.id));
      return Status::Ok();
    };
    KEEL_RETURN_IF_ERROR(Guarded([&] { return program_.Exchange(exchange); }));
    answered_ = request.id;
    if (again)
      reply->problem = program_.Describe() + ": a second reply to a call, which is passed over";
    return std::move(*reply);
  }

  // Whether the line answers the call before this one once more. It may come at any time, so that
  // whose call it would fail, if it did, would be a matter of chance.
  bool RepeatsLast(std::string_view line) const {
    return answered_ && ParseReply(line, *answered_).ok();
  }

  const std::chrono::milliseconds timeout_;
  LineProcess program_;
  std::optional<int64_t> answered_;  // the call that was answered last
};

HttpOptions AddressOf(const ToolSpec& tool) {
  const std::string keys = NamedKind(tool) + ": config.";
  ThrowIfError(CheckHttpUrl(*tool.url, keys + "url"));
  HttpOptions options{*tool.url, tool.ca_file, keys};
  options.once = true;
  return options;
}

class HttpTool : public ToolServer {
 public:
  explicit HttpTool(const ToolSpec& tool)
      : name_(NamedKind(tool)), timeout_(tool.timeout), client_(AddressOf(tool)) {}
  Status Start() override {
    const Status reached = client_.Connect(steady_clock::now() + timeout_);
    if (reached.ok()) return reached;
    return Status(StatusCode::kConfig,
                  fmt::format("{}: {}: start the service before the run, or correct its url", name_,
                              reached.message()));
  }
  void Cancel() override { client_.Cancel(); }

 private:
  Result<ToolReply> Ask(const ToolRequest& request) override {
    KEEL_ASSIGN_OR_RETURN(const std::string text,
                          client_.Post(RequestText(request), steady_clock::now() + timeout_));
    return ParseReply(text, request.id);
  }

  const std::string name_;
  const std::chrono::milliseconds timeout_;
  HttpClient client_;
};

}  // namespace

std::string RequestText(const ToolRequest& request) {
  // Rows of Parquet have null for what a row has not.
  const Json kwargs = request.create_kwargs.is_null() ? Json::object() : request.create_kwargs;
  if (request.to_environment) {
    return Json{{"id", request.id},
                {"interaction", request.tool},
                {"text", request.arguments.value("text", "")},
                {"state", request.state},
                {"interaction_kwargs", kwargs},
                {"extra_info", request.extra_info}}
        .dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return Json{
      {"id", request.id},       {"tool", request.tool},    {"arguments", request.arguments},
      {"state", request.state}, {"create_kwargs", kwargs}, {"extra_info", request.extra_info}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<ToolReply> ParseReply(std::string_view text, int64_t id) {
  const std::string where = "the tool's reply";
  const auto bad = [&](const std::string& what) {
    return Status(StatusCode::kInvalidData, where + ": " + what);
  };
  const auto parsed = ParseJson(text, where);
  if (!parsed.ok()) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("{}; no JSON: '{}'", parsed.status().message(), Printable(text, 100)));
  }
  const Json& json = *parsed;
  if (!json.is_object()) return bad("expected an object with id and response");
  ToolReply reply;
  KEEL_ASSIGN_OR_RETURN(reply.id, GetInt(json, "id", where));
  if (reply.id != id)
    return bad(fmt::format("id {}, which was not asked for; expected {}", reply.id, id));
  if (json.contains("done") && !json["done"].is_null()) {
    KEEL_ASSIGN_OR_RETURN(reply.done, GetBool(json, "done", where));
  }
  if (json.contains("error") && !json["error"].is_null()) {
    const Json& error = json["error"];
    reply.error =
        Printable(error.is_string() ? error.get<std::string>() : error.dump(), kLongestError);
    if (reply.error.empty()) reply.error = "the tool reported an error without a text";
  } else if (!reply.done || json.contains("response")) {
    KEEL_ASSIGN_OR_RETURN(reply.response, GetString(json, "response", where));
  }
  if (json.contains("reward") && !json["reward"].is_null()) {
    KEEL_ASSIGN_OR_RETURN(reply.reward, GetDouble(json, "reward", where));
    if (!(std::abs(*reply.reward) <= std::numeric_limits<float>::max()))
      return bad("its reward is no number within fp32");
  }
  if (json.contains("state")) {
    if (json["state"].dump(-1, ' ', false, Json::error_handler_t::replace).size() > kMostStateBytes)
      return bad(fmt::format("a state of more than {} bytes", kMostStateBytes));
    reply.state = json["state"];
  }
  return reply;
}

ToolReply ToolServer::Call(const ToolRequest& request) {
  Status status;
  try {
    auto reply = Ask(request);
    if (reply.ok()) return std::move(*reply);
    status = reply.status();
  } catch (const std::exception& error) {
    status = Status(StatusCode::kInternal, error.what());
  }
  ToolReply failed;
  failed.id = request.id;
  failed.timed_out = status.code() == StatusCode::kDeadlineExceeded;
  failed.gone = status.code() == StatusCode::kUnavailable;
  failed.error = failed.timed_out ? "the tool gave no answer in time" : "the tool failed";
  failed.problem = status.message();
  return failed;
}

std::unique_ptr<ToolServer> MakeToolServer(const ToolSpec& tool) {
  if (tool.url) return std::make_unique<HttpTool>(tool);
  return std::make_unique<CommandTool>(tool);
}

}  // namespace keel::turns
