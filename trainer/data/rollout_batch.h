// RolloutBatch: a step's prompts and the responses to them. Of a run's ranks, rank 0 has it.
//
// Also the form in which responses are dumped a step a file, and replayed from such a file: one
// JSON object a response. Between ranks they travel as response_wire.h says. Torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "common/token_range.h"
#include "trainer/algorithms/packed.h"
#include "turns/tool_use.h"

namespace keel::trainer::rl {

struct Response {
  int64_t position = 0;  // of its prompt in the run: the number of prompts that came before
  int64_t row = 0;       // of the prompt in the data
  int sample = 0;        // which of the prompt's n
  std::string data_source;
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;    // an EOS that was sampled is the last
  std::vector<float> log_probs;   // as the rollout gave them; 0 of given tokens
  std::vector<TokenRange> given;  // tokens that the policy did not choose: what tools said
  turns::ToolUse tools;
  std::string finish;          // "stop", "length", "error"
  int64_t weight_version = 0;  // of the weights that chose the first token
  double score = 0;
  std::optional<double> verified;       // the verifier's score, where a penalty was added to it
  std::map<std::string, double> extra;  // of the verifier
  std::string answer;                   // of the verifier; "" when it does not say; as text
  std::string error;                    // of generation or of the verifier; "" is none
  double baseline = 0;                  // ReMax: score of the prompt's greedy response
  int64_t baseline_tokens = 0;          // ReMax: of that response
  std::string baseline_error;           // ReMax: of that response's verifier
  int64_t consumed = 0;                 // prompts that its step took; 0: as many as it kept
  std::string text;                     // for people; on rank 0 alone, where it is asked for

  // Without a score, or without the baseline that its score is compared with, and why.
  bool failed() const { return !error.empty() || !baseline_error.empty(); }
  const std::string& problem() const { return error.empty() ? baseline_error : error; }

  Json ToJson() const;
  // kInvalidData names what is missing.
  static Result<Response> FromJson(const Json& json, const std::string& where);
};

// A number of a response: its score by the name "reward", that of the verifier, before penalties,
// by "score", or what the verifier gave beside it; 0 of a response that has none. Throws
// Error(kInvalidData) where there is no such number; `key` of the configuration asked for it.
double NamedValue(const Response& response, const std::string& name, const char* key);

struct RolloutBatch {
  std::vector<Response> responses;  // by position, then sample
  std::vector<int64_t> boundaries;  // [S + 1] over all response tokens
  std::vector<uint8_t> mask;        // [N], tokens to learn from: none that was given
  // [N], the mask, and what it would be of responses that are left out of the loss alone: their
  // scores count in their groups.
  std::vector<uint8_t> compared;
  // [S], 0 of those that are left out of their groups, too: their scores say nothing.
  std::vector<uint8_t> scored;

  // From responses in any order.
  static RolloutBatch Make(std::vector<Response> responses);
  // Nothing is learnt from response s. `still_compared`: its score counts in its group.
  void LeaveOut(size_t s, bool still_compared);
  // Of the mask only `left` [N] is.
  void Reject(const std::vector<uint8_t>& left);
  PackedView packed() const { return {boundaries, mask}; }
  PackedView packed_groups() const { return {boundaries, compared}; }
  int64_t prompt_tokens() const;
  int64_t response_tokens() const { return boundaries.back(); }
  // Positions that differ: verl's uids.
  std::vector<int64_t> groups() const;
  std::vector<double> scores() const;
  std::vector<double> scores_that_count() const;  // of those that are scored
  std::vector<float> rollout_log_probs() const;   // [N]
};

// What a step's dump must hold to be trained on.
struct DumpShape {
  int64_t vocab_size = 0;  // of the model
  int64_t prompts = 0;     // data.train_batch_size
  int64_t samples = 0;     // rollout.n, of each prompt
  bool log_probs = false;  // what the rollout thought of its tokens is learnt with
};

// One object a line; makes the folder. An error names the file, which is then not there.
Status WriteDump(const std::string& path, const RolloutBatch& batch);
// kInvalidData names the line, or what the file as a whole lacks.
Result<RolloutBatch> ReadDump(const std::string& path, const DumpShape& shape);

}  // namespace keel::trainer::rl
