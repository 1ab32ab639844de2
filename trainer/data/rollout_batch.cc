#include "trainer/data/rollout_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "common/json_builder.h"
#include "common/text.h"
#include "rewards/reward_functions.h"
#include "trainer/data/rows/row_reader.h"

namespace keel::trainer::rl {

namespace {

Status CheckIds(const Response& response, int64_t vocab_size, const std::string& where) {
  if (response.prompt.empty()) return Malformed(where, "prompt_ids: no tokens");
  for (const std::vector<int32_t>* tokens : {&response.prompt, &response.tokens}) {
    for (const int32_t token : *tokens) {
      if (token >= 0 && token < vocab_size) continue;
      return Malformed(where, fmt::format("token {} is outside the model's vocabulary of {}: the "
                                          "responses are those of another model",
                                          token, vocab_size));
    }
  }
  return Status::Ok();
}

// All responses have log-probabilities, or none; where they are learnt with, all. They lie one
// behind the other, so that a response without its own would shift those of the next.
Status CheckLogProbs(const std::vector<Response>& responses, bool needed, const std::string& path) {
  const auto lacks = [](const Response& r) { return r.log_probs.size() != r.tokens.size(); };
  const auto without = std::find_if(responses.begin(), responses.end(), lacks);
  if (without == responses.end()) return Status::Ok();
  if (!needed && std::all_of(responses.begin(), responses.end(),
                             [&](const Response& r) { return lacks(r) || r.tokens.empty(); })) {
    return Status::Ok();
  }
  return Malformed(path, fmt::format("position {}, sample {} has no rollout_log_probs: dump with "
                                     "actor_rollout_ref.rollout.calculate_log_probs, or replay "
                                     "without algorithm.rollout_correction",
                                     without->position, without->sample));
}

}  // namespace

Json Response::ToJson() const {
  Json json = {{"position", position},
               {"row", row},
               {"sample", sample},
               {"data_source", data_source},
               {"prompt_ids", prompt},
               {"response_ids", tokens},
               {"rollout_log_probs", log_probs},
               {"finish_reason", finish},
               {"weight_version", weight_version},
               {"score", score},
               {"extra", extra},
               {"baseline", baseline},
               {"output", text}};
  if (!given.empty()) {
    json["given"] = Json::array();
    for (const TokenRange& range : given) json["given"].push_back({range.begin, range.end});
  }
  if (!tools.empty()) json["tools"] = tools.ToJson();
  if (verified) json["verified"] = *verified;
  if (consumed > 0) json["consumed"] = consumed;
  if (!answer.empty()) json["answer"] = answer;
  if (!error.empty()) json["error"] = error;
  if (!baseline_error.empty()) json["baseline_error"] = baseline_error;
  return json;
}

Result<Response> Response::FromJson(const Json& json, const std::string& where) {
  Response r;
  try {
    // Whole numbers are none that the library would make whole, or small enough.
    KEEL_ASSIGN_OR_RETURN(r.position, GetInt(json, "position", where));
    KEEL_ASSIGN_OR_RETURN(r.row, GetInt(json, "row", where));
    KEEL_ASSIGN_OR_RETURN(const int64_t sample, GetInt(json, "sample", where));
    if (sample < 0 || sample > std::numeric_limits<int>::max())
      return Malformed(where, fmt::format("sample: {} is no number of a sample", sample));
    r.sample = static_cast<int>(sample);
    r.data_source = json.at("data_source").get<std::string>();
    for (const auto& [key, ids] :
         {std::pair{"prompt_ids", &r.prompt}, std::pair{"response_ids", &r.tokens}}) {
      if (!json.contains(key)) return Malformed(where, fmt::format("expected the key {}", key));
      KEEL_ASSIGN_OR_RETURN(TokenRow read, ReadIds(json, {key, "", "", ""}, where));
      *ids = std::move(read.tokens);
    }
    r.log_probs = json.at("rollout_log_probs").get<std::vector<float>>();
    r.finish = json.at("finish_reason").get<std::string>();
    KEEL_ASSIGN_OR_RETURN(r.weight_version, GetInt(json, "weight_version", where));
    r.score = json.at("score").get<double>();
    if (json.contains("verified")) r.verified = json.at("verified").get<double>();
    if (json.contains("consumed")) {
      KEEL_ASSIGN_OR_RETURN(r.consumed, GetInt(json, "consumed", where));
    }
    r.extra = json.at("extra").get<std::map<std::string, double>>();
    r.baseline = json.at("baseline").get<double>();
    r.text = json.at("output").get<std::string>();
    for (const auto& [begin, end] : json.value("given", std::vector<std::pair<int64_t, int64_t>>()))
      r.given.push_back({begin, end});
    if (json.contains("tools")) {
      KEEL_ASSIGN_OR_RETURN(r.tools, turns::ToolUse::FromJson(json["tools"]));
    }
    r.answer = json.value("answer", "");
    r.error = json.value("error", "");
    r.baseline_error = json.value("baseline_error", "");
  } catch (const Json::exception& error) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: not a dumped response: {}", where, error.what()));
  }
  if (!r.log_probs.empty() && r.log_probs.size() != r.tokens.size()) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: {} tokens, but {} rollout_log_probs", where, r.tokens.size(),
                              r.log_probs.size()));
  }
  if (const char* problem = ProblemOf(r.given, std::ssize(r.tokens)))
    return Status(StatusCode::kInvalidData, fmt::format("{}: given: {}", where, problem));
  return r;
}

double NamedValue(const Response& response, const std::string& name, const char* key) {
  if (name == rewards::kWholeReward) return response.score;
  if (response.failed()) return 0;  // nothing was given
  const auto found = response.extra.find(name);
  if (found != response.extra.end()) return found->second;
  if (name == rewards::kWholeScore) return response.verified.value_or(response.score);
  std::vector<std::string> known = {std::string(rewards::kWholeReward),
                                    std::string(rewards::kWholeScore)};
  for (const auto& [other, value] : response.extra) known.push_back(Printable(other, 60));
  throw Error(StatusCode::kInvalidData,
              fmt::format("{}: the verifier gave no number {} for row {}; expected one for each, "
                          "there are: {}",
                          key, name, response.row, fmt::join(known, ", ")));
}

RolloutBatch RolloutBatch::Make(std::vector<Response> responses) {
  RolloutBatch batch;
  std::sort(responses.begin(), responses.end(), [](const Response& a, const Response& b) {
    return std::tie(a.position, a.sample) < std::tie(b.position, b.sample);
  });
  batch.responses = std::move(responses);
  batch.boundaries.push_back(0);
  for (const Response& r : batch.responses)
    batch.boundaries.push_back(batch.boundaries.back() + static_cast<int64_t>(r.tokens.size()));
  batch.mask.assign(static_cast<size_t>(batch.boundaries.back()), 1);
  for (size_t s = 0; s < batch.responses.size(); ++s) {
    const auto first = batch.mask.begin() + batch.boundaries[s];
    for (const TokenRange& range : batch.responses[s].given)
      std::fill(first + range.begin, first + range.end, uint8_t{0});
  }
  batch.compared = batch.mask;
  batch.scored.assign(batch.responses.size(), 1);
  return batch;
}

void RolloutBatch::LeaveOut(size_t s, bool still_compared) {
  const auto clear = [&](std::vector<uint8_t>& tokens) {
    std::fill(tokens.begin() + boundaries[s], tokens.begin() + boundaries[s + 1], uint8_t{0});
  };
  clear(mask);
  if (still_compared) return;
  clear(compared);
  scored[s] = 0;
}

void RolloutBatch::Reject(const std::vector<uint8_t>& left) {
  for (size_t t = 0; t < mask.size(); ++t) {
    if (mask[t] == 0 || left[t] != 0) continue;
    mask[t] = compared[t] = 0;
  }
}

int64_t RolloutBatch::prompt_tokens() const {
  int64_t tokens = 0;
  for (const Response& r : responses) tokens += static_cast<int64_t>(r.prompt.size());
  return tokens;
}

std::vector<int64_t> RolloutBatch::groups() const {
  std::vector<int64_t> groups;
  for (const Response& r : responses) groups.push_back(r.position);
  return groups;
}

std::vector<double> RolloutBatch::scores() const {
  std::vector<double> scores;
  for (const Response& r : responses) scores.push_back(r.score);
  return scores;
}

std::vector<double> RolloutBatch::scores_that_count() const {
  std::vector<double> scores;
  for (size_t s = 0; s < responses.size(); ++s)
    if (scored[s] != 0) scores.push_back(responses[s].score);
  return scores;
}

std::vector<float> RolloutBatch::rollout_log_probs() const {
  std::vector<float> all;
  for (const Response& r : responses) all.insert(all.end(), r.log_probs.begin(), r.log_probs.end());
  return all;
}

Status WriteDump(const std::string& path, const RolloutBatch& batch) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::filesystem::create_directories(folder, error);
  if (error) {
    return Status(StatusCode::kIo, fmt::format("{}: the folder {} cannot be made: {}", path,
                                               folder.string(), error.message()));
  }
  std::string text;
  for (const Response& r : batch.responses)
    text += r.ToJson().dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  errno = 0;
  if (out) out.write(text.data(), static_cast<std::streamsize>(text.size())).flush();
  if (out) return Status::Ok();
  const Status failed = Status::FromErrno(errno, "write", path);
  std::filesystem::remove(path, error);
  return failed;
}

Result<RolloutBatch> ReadDump(const std::string& path, const DumpShape& shape) {
  std::vector<Response> responses;
  std::map<int64_t, std::set<int>> samples;  // by position
  const auto take = [&](const Json& json, const std::string& where) -> Status {
    for (const Json& member : json)
      if (const std::string why = WhySetApart(member); !why.empty())
        return Status(StatusCode::kInvalidData, why);
    KEEL_ASSIGN_OR_RETURN(Response response, Response::FromJson(json, where));
    KEEL_RETURN_IF_ERROR(CheckIds(response, shape.vocab_size, where));
    if (!samples[response.position].insert(response.sample).second) {
      return Malformed(where, fmt::format("position {}, sample {} stands twice", response.position,
                                          response.sample));
    }
    responses.push_back(std::move(response));
    return Status::Ok();
  };
  KEEL_RETURN_IF_ERROR(ReadJsonLines(path, InputKind::kRegularFile, take));
  // What is missing of a file that was cut off would be a smaller batch.
  const bool whole = static_cast<int64_t>(samples.size()) == shape.prompts &&
                     std::all_of(samples.begin(), samples.end(), [&](const auto& group) {
                       return static_cast<int64_t>(group.second.size()) == shape.samples;
                     });
  if (!whole) {
    return Malformed(path,
                     fmt::format("{} responses to {} prompts, expected {} to each of {}: the "
                                 "file is cut off, or was written with another "
                                 "data.train_batch_size or rollout.n",
                                 responses.size(), samples.size(), shape.samples, shape.prompts));
  }
  KEEL_RETURN_IF_ERROR(CheckLogProbs(responses, shape.log_probs, path));
  return RolloutBatch::Make(std::move(responses));
}

}  // namespace keel::trainer::rl
