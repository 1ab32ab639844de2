#include "tools/launch/verdict.h"

#include <tuple>

#include "common/json.h"

namespace keel::tools {

namespace {

// A store refuses values of megabytes, and nobody reads that far.
constexpr size_t kLongestMessage = size_t{1} << 14;

Json ToJson(const Failure& failure) {
  std::string message = failure.message.substr(0, kLongestMessage);
  if (message.size() < failure.message.size()) message += " ...";
  return {{"blame", static_cast<int>(failure.blame)},
          {"exit_code", failure.exit_code},
          {"what", failure.what},
          {"message", message},
          {"output", failure.output}};
}

Result<Failure> FailureFrom(const Json& json, const std::string& where) {
  Failure failure;
  KEEL_ASSIGN_OR_RETURN(const int64_t blame, GetInt(json, "blame", where));
  KEEL_ASSIGN_OR_RETURN(const int64_t exit_code, GetInt(json, "exit_code", where));
  KEEL_ASSIGN_OR_RETURN(failure.what, GetString(json, "what", where));
  KEEL_ASSIGN_OR_RETURN(failure.message, GetString(json, "message", where));
  KEEL_ASSIGN_OR_RETURN(failure.output, GetString(json, "output", where));
  failure.blame = static_cast<Blame>(blame);
  failure.exit_code = static_cast<int>(exit_code);
  return failure;
}

// A rank's message may hold any bytes.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

bool WorthRestarting(int code) {
  return code != 64 && code != 65 && code != 66 && code != 75 && code != 78;
}

std::string NodeEnd::ToText() const {
  Json json = {{"order", order}, {"last", last}};
  if (failure) json["failure"] = ToJson(*failure);
  return Dump(json);
}

Result<NodeEnd> NodeEnd::FromText(const std::string& text) {
  const std::string where = "a node's end";
  KEEL_ASSIGN_OR_RETURN(const Json json, ParseJson(text, where));
  NodeEnd end;
  KEEL_ASSIGN_OR_RETURN(end.order, GetInt(json, "order", where));
  KEEL_ASSIGN_OR_RETURN(end.last, GetBool(json, "last", where));
  if (json.contains("failure")) {
    KEEL_ASSIGN_OR_RETURN(end.failure, FailureFrom(json["failure"], where));
  }
  return end;
}

std::string Verdict::ToText() const {
  Json json = {{"exit_code", exit_code}, {"restart", restart}, {"awaited", awaited}};
  if (cause) json["cause"] = ToJson(*cause);
  return Dump(json);
}

Result<Verdict> Verdict::FromText(const std::string& text) {
  const std::string where = "the verdict of node 0";
  KEEL_ASSIGN_OR_RETURN(const Json json, ParseJson(text, where));
  Verdict verdict;
  KEEL_ASSIGN_OR_RETURN(const int64_t exit_code, GetInt(json, "exit_code", where));
  verdict.exit_code = static_cast<int>(exit_code);
  KEEL_ASSIGN_OR_RETURN(verdict.restart, GetBool(json, "restart", where));
  for (const Json& node : json.value("awaited", Json::array())) {
    if (!node.is_number_integer())
      return Status(StatusCode::kInvalidData, where + ": awaited: expected numbers of nodes");
    verdict.awaited.push_back(node.get<int>());
  }
  if (json.contains("cause")) {
    KEEL_ASSIGN_OR_RETURN(verdict.cause, FailureFrom(json["cause"], where));
  }
  return verdict;
}

Verdict Decide(std::span<const NodeEnd> nodes, int attempt, int max_restarts) {
  Verdict verdict;
  const NodeEnd* guilty = nullptr;
  bool last = attempt >= max_restarts;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeEnd& node = nodes[i];
    last = last || node.last;
    if (node.lost) verdict.awaited.push_back(static_cast<int>(i));
    if (!node.failure) continue;
    if (guilty == nullptr || std::tuple(node.failure->blame, node.order) <
                                 std::tuple(guilty->failure->blame, guilty->order)) {
      guilty = &node;
    }
  }
  if (guilty == nullptr) return verdict;
  verdict.cause = guilty->failure;
  verdict.exit_code = guilty->failure->exit_code;
  verdict.restart = !last && WorthRestarting(verdict.exit_code);
  if (!verdict.restart) verdict.awaited.clear();
  return verdict;
}

}  // namespace keel::tools
