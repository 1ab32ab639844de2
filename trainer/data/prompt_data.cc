#include "trainer/data/prompt_data.h"

#include <fmt/format.h>

#include "rewards/reward_rules.h"
#include "trainer/data/chat_rows.h"
#include "trainer/data/row_forms.h"
#include "trainer/data/row_reader.h"
#include "trainer/data/split.h"

namespace keel::trainer::rl {

namespace {

// Stream of the draws that decide which prompts are set apart.
constexpr uint64_t kPromptSplitStream = 0x70726f6d7074;

constexpr const char* kIds = "input_ids";
constexpr const char* kMask = "attention_mask";
constexpr const char* kPositions = "position_ids";

// Ids under `key` or text to be encoded; what the prompt reads as, where that can be told.
Status ReadPrompt(const Json& row, const std::string& key, const RowContext& context,
                  Prompt& prompt) {
  if (row.contains(kIds)) {
    KEEL_ASSIGN_OR_RETURN(TokenRow ids, ReadIds(row, {kIds, kMask, "", kPositions}, context.where));
    if (ids.tokens.empty()) return Malformed(context.where, "the prompt is empty");
    prompt.tokens = std::move(ids.tokens);
  } else {
    KEEL_ASSIGN_OR_RETURN(prompt.tokens, PromptTokens(row, key, context));
  }
  if (row.contains(key) && row[key].is_string()) {
    prompt.text = row[key].get<std::string>();
  } else if (context.rules.tokenizer != nullptr) {
    prompt.text = context.rules.tokenizer->Decode(prompt.tokens);
  }
  return Status::Ok();
}

// Every key that some form of rows has; which of them are read depends on the others.
Status LookAtKeys(const Json& row, const PromptOptions& options, const RowContext& context) {
  const bool ids =
      row.contains(kIds) || (row.contains(options.prompt_key) && IsIdList(row[options.prompt_key]));
  std::vector<std::string_view> read = {options.prompt_key, options.answer_key, options.source_key,
                                        "question",         "answer",           "ground_truth",
                                        "reward_model",     "ability",          "extra_info"};
  if (ids) read.insert(read.end(), {kMask, kIds, kPositions});
  if (options.max_response_key) read.push_back(*options.max_response_key);
  const auto chat = ChatKeys(context.rules);
  read.insert(read.end(), chat.begin(), chat.end());
  return context.unread.Look(row, read, ids ? UnreadKeys::Form::kIds : UnreadKeys::Form::kText,
                             context.where);
}

// A row of question and answer, as the model is asked: with the instruction, and in a message where
// the model is one that answers messages.
Json Asked(const Json& row, const PromptOptions& options, const std::string& source,
           const TextRules& rules) {
  if (!row["question"].is_string()) return row;
  const auto question = row["question"].get<std::string>();
  // Data that were prepared as verl's say it already.
  const bool wanted = options.strict_gsm8k && options.strict_gsm8k(source) &&
                      question.find("####") == std::string::npos;
  const std::string instruction =
      options.question_instruction.value_or(wanted ? kGsm8kInstruction : "");
  const std::string text = instruction.empty() ? question : question + " " + instruction;
  Json asked = row;
  asked["question"] = AsksInMessages(rules) ? Json::array({ChatMessage("user", text)}) : Json(text);
  return asked;
}

Result<Prompt> ReadPromptRow(const Json& given, const PromptOptions& options,
                             const RowContext& context) {
  Json standard;
  const Json& row = StandardRow(given, "messages", &standard);
  const std::string& where = context.where;
  if (!row.is_object()) return Malformed(where, "expected an object a line");
  KEEL_RETURN_IF_ERROR(LookAtKeys(row, options, context));
  Prompt prompt;
  std::string answer_key = options.answer_key;
  const bool keyed = row.contains(options.prompt_key) || row.contains(kIds);
  if (keyed) {
    KEEL_RETURN_IF_ERROR(ReadPrompt(row, options.prompt_key, context, prompt));
  } else if (row.contains("question") && row.contains("answer")) {
    prompt.data_source = "openai/gsm8k";
    if (row.contains(options.source_key)) {
      KEEL_ASSIGN_OR_RETURN(prompt.data_source, GetString(row, options.source_key, where));
    }
    KEEL_RETURN_IF_ERROR(ReadPrompt(Asked(row, options, prompt.data_source, context.rules),
                                    "question", context, prompt));
    answer_key = "answer";
  } else {
    return Malformed(where,
                     fmt::format("expected the key {} (or input_ids) with {}, ground_truth or "
                                 "reward_model, or question with answer; data.prompt_key and "
                                 "data.answer_key name others",
                                 options.prompt_key, answer_key));
  }
  if (keyed && row.contains("reward_model")) {
    const Json& model = row["reward_model"];
    if (!model.is_object() || !model.contains("ground_truth"))
      return Malformed(where, "reward_model: expected an object with ground_truth");
    prompt.ground_truth = model["ground_truth"];
  } else if (row.contains(answer_key)) {
    prompt.ground_truth = row[answer_key];
  } else if (row.contains("ground_truth")) {
    prompt.ground_truth = row["ground_truth"];
  } else {
    return Malformed(where,
                     fmt::format("no {}, ground_truth or reward_model.ground_truth: nothing to "
                                 "score an answer by; data.answer_key names another key",
                                 answer_key));
  }
  if (row.contains(options.source_key)) {
    KEEL_ASSIGN_OR_RETURN(prompt.data_source, GetString(row, options.source_key, where));
  }
  if (row.contains("extra_info") && !row["extra_info"].is_null()) {
    if (!row["extra_info"].is_object()) return Malformed(where, "extra_info: expected an object");
    prompt.extra_info = row["extra_info"];
  }
  if (options.max_response_key && row.contains(*options.max_response_key)) {
    const Json& most = row[*options.max_response_key];
    if (!most.is_number_integer() || most.get<double>() < 1 || most.get<double>() > INT32_MAX) {
      return Malformed(where, fmt::format("{}: expected a number of tokens from 1 on, not {}",
                                          *options.max_response_key, most.dump()));
    }
    prompt.max_tokens = most.get<int64_t>();
  }
  return prompt;
}

}  // namespace

Result<PromptSet> PromptSet::Load(const std::vector<std::string>& files,
                                  const PromptOptions& options, const TextRules& rules) {
  PromptSet set;
  set.vocab_size_ = options.vocab_size;
  int64_t rows = 0;
  const auto take = [&](const Json& row, const RowContext& context) -> Status {
    const std::string& where = context.where;
    KEEL_ASSIGN_OR_RETURN(Prompt prompt, ReadPromptRow(row, options, context));
    prompt.id = rows++;
    KEEL_RETURN_IF_ERROR(CheckTokens(prompt.tokens, options.vocab_size, where));
    if (options.need_known_source && !rewards::RuleOfDataSource(prompt.data_source)) {
      return Malformed(where,
                       fmt::format("{} '{}' has no rule: set reward.type, or name one of the "
                                   "known sources",
                                   options.source_key, prompt.data_source));
    }
    const auto length = static_cast<int64_t>(prompt.tokens.size());
    if (length > options.max_prompt_length) {
      if (options.filter_overlong_prompts || options.truncation == Truncation::kSkip) {
        ++set.skipped_rows_;
        return Status::Ok();
      }
      if (options.truncation == Truncation::kError) {
        return Malformed(
            where, fmt::format("a prompt of {} tokens, more than data.max_prompt_length {}; raise "
                               "it, set data.filter_overlong_prompts, or set data.truncation to "
                               "left, right or skip",
                               length, options.max_prompt_length));
      }
      if (options.truncation == Truncation::kLeft)
        prompt.tokens.erase(prompt.tokens.begin(), prompt.tokens.end() - options.max_prompt_length);
      prompt.tokens.resize(static_cast<size_t>(options.max_prompt_length));
    }
    prompt.tokens.shrink_to_fit();  // all rows of the files stay in memory
    prompt.text.shrink_to_fit();
    set.prompts_.push_back(std::move(prompt));
    return Status::Ok();
  };
  for (const std::string& path : files)
    KEEL_RETURN_IF_ERROR(ReadJsonRows(path, rules, &set.warnings_, take));
  if (set.prompts_.empty()) {
    return Status(StatusCode::kInvalidData, fmt::format("no prompt in {} ({} rows left out)",
                                                        fmt::join(files, ", "), set.skipped_rows_));
  }
  set.Seal();
  return set;
}

PromptSet PromptSet::SplitOff(double share, uint64_t seed) {
  PromptSet apart;
  apart.vocab_size_ = vocab_size_;
  apart.prompts_ = keel::trainer::SplitOff(&prompts_, share, seed, kPromptSplitStream);
  Seal();
  apart.Seal();
  return apart;
}

void PromptSet::Seal() {
  Hasher128 hasher, verifiers;
  for (const Prompt& prompt : prompts_) {
    const auto length = static_cast<int64_t>(prompt.tokens.size());
    hasher.Update(std::as_bytes(std::span(&prompt.id, 1)));
    hasher.Update(std::as_bytes(std::span(&length, 1)));
    hasher.Update(std::as_bytes(std::span(prompt.tokens)));
    const std::string answer =
        prompt.data_source + '\0' +
        prompt.ground_truth.dump(-1, ' ', false, Json::error_handler_t::replace) + '\0';
    hasher.Update(std::as_bytes(std::span(answer)));
    if (prompt.max_tokens > 0) hasher.Update(std::as_bytes(std::span(&prompt.max_tokens, 1)));
    const std::string read =
        Json{prompt.text, prompt.extra_info}.dump(-1, ' ', false, Json::error_handler_t::replace);
    verifiers.Update(std::as_bytes(std::span(read)));
  }
  digest_ = hasher.Finish();
  verifiers_digest_ = verifiers.Finish();
}

}  // namespace keel::trainer::rl
