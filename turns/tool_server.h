// ToolServer: one tool or environment of a run, as something that answers: another program, or an
// HTTP service. docs/tools.md shows the protocol. Torch-free.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/json.h"
#include "common/status.h"
#include "turns/tools_file.h"

namespace keel::turns {

struct ToolRequest {
  int64_t id = 0;
  bool to_environment = false;
  std::string tool;  // or environment
  Json arguments = Json::object();
  Json state;  // that the tool's last reply to this sample held; null before the first
  // Of the row, for this tool: extra_info.tools_kwargs; for an environment: interaction_kwargs.
  Json create_kwargs = Json::object();
  Json extra_info = Json::object();  // of the row
};

// Either a response or an error. An error that is not the tool's own is one of two sentences, since
// the model is shown it, and what it is shown must not depend on how fast who was; `problem` says
// to people what happened. A good reply has one, too, where the tool said more than it.
struct ToolReply {
  int64_t id = 0;
  std::string response;
  std::optional<double> reward;
  std::optional<Json> state;  // for its next call
  bool done = false;          // of an environment: it has nothing more to say
  std::string error;
  bool timed_out = false;
  bool gone = false;  // the program ended under the call, or nobody served the address
  std::string problem;
  bool ok() const { return error.empty(); }
};

// {"id", "tool", "arguments", "state", "create_kwargs", "extra_info"}, or {"id", "interaction",
// "text", "state", "interaction_kwargs", "extra_info"}; on one line.
std::string RequestText(const ToolRequest& request);
// {"id", "response", "reward"?, "state"?, "done"?} or {"id", "error", ...}. kInvalidData for
// another id than `id`, no response of one that is not done, a reward that fp32 does not hold,
// or a state of more than 1 MiB.
Result<ToolReply> ParseReply(std::string_view text, int64_t id);

// One object belongs to one thread at a time.
class ToolServer {
 public:
  virtual ~ToolServer() = default;
  // Whether it can be asked at all: kConfig says what to do where not.
  virtual Status Start() = 0;
  // Within the tool's time limit; never throws for what the tool says. Nothing is asked twice,
  // since a call may have done something.
  ToolReply Call(const ToolRequest& request);
  // Of any thread: a call under way gives up soon, and so does every later one.
  virtual void Cancel() = 0;

 private:
  virtual Result<ToolReply> Ask(const ToolRequest& request) = 0;
};

// Throws Error(kConfig) where the URL is none.
std::unique_ptr<ToolServer> MakeToolServer(const ToolSpec& tool);

}  // namespace keel::turns
