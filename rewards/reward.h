// What a verifier is given and what it says. Torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"

namespace keel::rewards {

struct RewardSample {
  int64_t id = 0;  // of the caller's choosing; comes back with the result
  std::string data_source;
  std::string prompt;
  std::string response;  // without the end mark; may hold bytes that are no UTF-8
  // Instead of the response, and beside what text the row has of its prompt, where no tokenizer
  // turns ids into text.
  std::vector<int32_t> prompt_ids, response_ids;
  // Of a response that called tools: what they gave, call by call.
  std::optional<std::vector<double>> turn_rewards;
  Json ground_truth;  // text, number or object, as the rule wants it
  Json extra_info = Json::object();
};

// Either a score or an error: a verifier that failed has said nothing about the response.
struct RewardResult {
  int64_t id = 0;
  double score = 0;
  std::map<std::string, double> extra;  // further values by name: "acc", "format"
  // What the verifier took for the response's answer, in one form for equal ones; "" when it found
  // none, or does not say. The vote of maj@n.
  std::string answer;
  std::string error;  // "" when the sample was verified
  bool gone = false;  // of an error: the program ended under it, or nobody served the address
  bool ok() const { return error.empty(); }
};

// Scores batches. One object belongs to one thread at a time. Verify returns a result for each
// sample, in their order, within the verifier's own time limit, and never throws for what a sample
// holds.
class Verifier {
 public:
  virtual ~Verifier() = default;
  virtual std::vector<RewardResult> Verify(std::span<const RewardSample> samples) = 0;
  // Whether it can be asked at all, tried before the first Verify: kConfig says what to do where
  // the program cannot be started, or nobody answers at the address.
  virtual Status Start() { return Status::Ok(); }
  // Of any thread: a Start or Verify under way gives up soon, and so does every later one.
  virtual void Cancel() {}
};

}  // namespace keel::rewards
