// Prompts for RL with what is needed to score their answers, the same on every rank. Torch-free.
//
// They are RowRecords (row_records.h): in the memory of each process, or on the disk and mapped.
// Which prompt comes when is SampleOrder's (trainer/data/sample_order.h) business: the state of a
// run is the number of prompts all ranks have consumed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/hash.h"
#include "common/json.h"
#include "common/status.h"
#include "rewards/reward_options.h"
#include "trainer/data/row_records.h"
#include "trainer/data/rows/choices.h"
#include "trainer/data/rows/text_rules.h"
#include "trainer/data/token_input.h"

namespace keel::trainer::rl {

// What verl appends to GSM8K's questions (examples/data_preprocess/gsm8k.py): the strict rule looks
// for the "####" that it asks for.
inline constexpr const char* kGsm8kInstruction =
    "Let's think step by step and output the final answer after \"####\".";

struct PromptOptions {
  int64_t max_prompt_length = 512;  // tokens
  bool limit_is_models = false;     // it is what the model has room for: no key raises it
  Truncation truncation = Truncation::kError;
  bool filter_overlong_prompts = false;  // leave them out, whatever `truncation` says
  int64_t vocab_size = 0;                // of the model: larger ids are refused
  // What scores the answers, of rewards that are rules: with kAuto a row whose source has none is
  // refused. Rows whose ground truth one of them cannot read are counted, or refused.
  std::vector<rewards::RewardType> rules;
  bool refuse_unscored = false;  // reward.on_error: stop
  // Appended, after a space, to the text of rows of question and answer; "": nothing. null:
  // kGsm8kInstruction where strict_gsm8k(data source) says that the answer is looked for by "####",
  // unless the question speaks of that already; what it says follows from the source's rule
  // (rewards::RuleOfDataSource) alone.
  std::optional<std::string> question_instruction;
  std::function<bool(const std::string& source)> strict_gsm8k;
  std::string prompt_key = "prompt";
  std::string answer_key = "answer";
  std::string source_key = "data_source";
  // Of a row's own bound on its responses, in tokens; nothing: rows have none.
  std::optional<std::string> max_response_key;
  // One of which a row with extra_info.interaction_kwargs is for; none: nobody asks.
  std::vector<std::string> environments;
  TokenCache cache;
};

struct Prompt {
  int64_t id = 0;  // its place among all rows of the files; the group's uid within a step
  std::vector<int32_t> tokens;
  std::string text;  // the prompt as text, for verifiers and dumps; "" where ids alone are known
  std::string data_source;
  Json ground_truth;
  Json extra_info = Json::object();
  int64_t max_tokens = 0;  // of its responses, if the row says so; 0: it does not
};

// Reads JSON Lines. A row is, in this order of preference:
//   verl's: data_source, prompt (messages or text), ability, reward_model {style, ground_truth},
//     extra_info;
//   Keel's: prompt (messages or text) and answer or ground_truth; data_source, extra_info if given;
//   GSM8K's: question and answer; the data source is openai/gsm8k if none is given. An instruction
//     is appended to the question, see PromptOptions.
// In each the prompt may be a list of token ids, or stand under input_ids, with an attention_mask
// beside it or none; a text under the prompt's key is then for verifiers alone.
// Text is taken as it stands; messages go through the chat template, with an answer opened, or gone
// on with where the last is the assistant's, and with the row's tools, chat_template_kwargs and
// enable_thinking. So does a question of a model with a template of its own.
// Immutable but for SplitOff, and thread-safe; copies share what they hold.
class PromptSet {
 public:
  // Errors: kNotFound with the path; kInvalidData with file:line, what was expected, what was
  // found.
  // Several processes may call it at once with the same cache; it is not collective.
  static Result<PromptSet> Load(const std::vector<std::string>& files, const PromptOptions& options,
                                const TextRules& rules);
  // Moves a share of the prompts, chosen by hash of (seed, id), into a set of its own.
  PromptSet SplitOff(double share, uint64_t seed);

  // kInvalidData where no answer to any prompt can get a score by `rules`, with what the first
  // lacks; ok of an empty set, and without rules.
  Status CheckSomeScored(const std::vector<rewards::RewardType>& rules) const;

  int64_t size() const { return rows_.size(); }
  // Throws Error(kDataLoss) with the file where a shard is not what it was when it was loaded.
  Prompt Get(int64_t index) const;
  int64_t skipped_rows() const { return rows_.skipped_rows(); }
  // Returns what of the files was not read, a sentence a file.
  const std::vector<std::string>& warnings() const { return rows_.warnings(); }
  // Tells whether a resumed run has the same prompts, answers and order, wherever they lie.
  const Digest128& digest() const { return digest_; }
  // The digest of what verifiers are given beside that: the prompts as text, and extra_info.
  const Digest128& verifiers_digest() const { return verifiers_digest_; }
  // PromptOptions::vocab_size.
  int64_t vocab_size() const { return vocab_size_; }

 private:
  Status Seal();

  ChosenRecords rows_;
  Digest128 digest_, verifiers_digest_;
  int64_t vocab_size_ = 0;
};

}  // namespace keel::trainer::rl
