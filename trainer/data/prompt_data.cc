#include "trainer/data/prompt_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "common/enum_names.h"
#include "common/text.h"
#include "rewards/reward_rules.h"
#include "trainer/data/rows/chat_rows.h"
#include "trainer/data/rows/chat_rules.h"
#include "trainer/data/rows/row_forms.h"
#include "trainer/data/rows/row_reader.h"
#include "turns/tools_file.h"

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

// Which of a row's keys its prompt and its ground truth are; "" where it has none.
struct PromptKeys {
  std::string prompt;
  std::string truth;
  bool asks = false;             // a question, and not options.prompt_key
  bool in_reward_model = false;  // the truth is the ground_truth of what stands there
};
PromptKeys KeysOf(const Json& row, const PromptOptions& options) {
  const bool keyed = row.contains(options.prompt_key) || row.contains(kIds);
  PromptKeys keys;
  if (keyed) keys.prompt = row.contains(kIds) ? kIds : options.prompt_key;
  keys.asks = !keyed && row.contains("question") && row.contains("answer");
  if (keys.asks) keys.prompt = "question";
  const std::string answer = keyed ? options.answer_key : "answer";
  keys.in_reward_model = keyed && row.contains("reward_model");
  if (keys.in_reward_model) {
    keys.truth = "reward_model";
  } else if (row.contains(answer)) {
    keys.truth = answer;
  } else if (row.contains("ground_truth")) {
    keys.truth = "ground_truth";
  }
  return keys;
}

Status LookAtKeys(const Json& row, const PromptKeys& keys, const PromptOptions& options,
                  const RowContext& context) {
  const bool ids = keys.prompt == kIds || (!keys.prompt.empty() && IsIdList(row[keys.prompt]));
  std::vector<std::string_view> read = {keys.prompt, keys.truth, options.source_key, "ability",
                                        "extra_info"};
  // Ids may have their text beside them, as what it reads as.
  if (ids) read.insert(read.end(), {options.prompt_key, kMask, kPositions});
  if (options.max_response_key) read.push_back(*options.max_response_key);
  const auto chat = ChatKeys(context.rules);
  read.insert(read.end(), chat.begin(), chat.end());
  return context.notes.Look(row, read, ids ? RowNotes::Form::kIds : RowNotes::Form::kText,
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

// A verifier would compare answers with a ground truth that is not there. What is lost of the rest
// that it is given is named.
Status LookForLost(const Prompt& prompt, const RowContext& context) {
  const std::string lost = LostIn(prompt.ground_truth, Lost::kNumbersToo);
  if (!lost.empty()) {
    return Malformed(context.where, fmt::format("the ground truth holds {}, which is not read: "
                                                "give it as text or a number",
                                                Printable(lost, 60)));
  }
  context.notes.CountLost(prompt.extra_info, Lost::kNumbersToo, "extra_info.");
  return Status::Ok();
}

// The schemas of those of the run's tools that the row selects; nothing: it has all. Names that the
// run has no tool of count as keys that nothing reads.
Result<std::optional<Json>> SelectedTools(const Json& row, const RowContext& context) {
  const auto extra_info = row.find("extra_info");
  if (extra_info == row.end() || !extra_info->is_object()) return std::optional<Json>();
  const auto selection = turns::SelectionOf(*extra_info);
  if (!selection.ok()) return Malformed(context.where, selection.status().message());
  if (selection->empty()) return std::optional<Json>();
  Json schemas = Json::array();
  const Json none = Json::array();
  const Json* all = context.rules.chat == nullptr ? &none : &context.rules.chat->tools;
  for (const std::string& name : *selection) {
    const auto named = [&](const Json& tool) { return tool["function"]["name"] == name; };
    const auto tool = std::find_if(all->begin(), all->end(), named);
    if (tool != all->end()) {
      schemas.push_back(*tool);
    } else {
      context.notes.Count(fmt::format("extra_info.tool_selection[{}]", name));
    }
  }
  return all->empty() ? std::optional<Json>() : std::optional(std::move(schemas));
}

Result<Prompt> ReadPromptRow(const Json& given, const PromptOptions& options,
                             const RowContext& any) {
  Json standard;
  const Json& row = StandardRow(given, "messages", &standard);
  const std::string& where = any.where;
  if (!row.is_object()) return Malformed(where, "expected an object a line");
  const PromptKeys keys = KeysOf(row, options);
  KEEL_RETURN_IF_ERROR(LookAtKeys(row, keys, options, any));
  RowContext context = any;
  KEEL_ASSIGN_OR_RETURN(context.tools, SelectedTools(row, any));
  Prompt prompt;
  if (keys.prompt.empty()) {
    return Malformed(where,
                     fmt::format("expected the key {} (or input_ids) with {}, ground_truth or "
                                 "reward_model, or question with answer; data.prompt_key and "
                                 "data.answer_key name others",
                                 options.prompt_key, options.answer_key));
  }
  if (!keys.asks) {
    KEEL_RETURN_IF_ERROR(ReadPrompt(row, options.prompt_key, context, prompt));
  } else {
    prompt.data_source = "openai/gsm8k";
    if (row.contains(options.source_key)) {
      KEEL_ASSIGN_OR_RETURN(prompt.data_source, GetString(row, options.source_key, where));
    }
    KEEL_RETURN_IF_ERROR(ReadPrompt(Asked(row, options, prompt.data_source, context.rules),
                                    "question", context, prompt));
  }
  if (keys.truth.empty()) {
    return Malformed(where,
                     fmt::format("no {}, ground_truth or reward_model.ground_truth: nothing to "
                                 "score an answer by; data.answer_key names another key",
                                 options.answer_key));
  }
  prompt.ground_truth = row[keys.truth];
  if (keys.in_reward_model) {
    const Json& model = row[keys.truth];
    if (!model.is_object() || !model.contains("ground_truth"))
      return Malformed(where, "reward_model: expected an object with ground_truth");
    prompt.ground_truth = model["ground_truth"];
  }
  if (row.contains(options.source_key)) {
    KEEL_ASSIGN_OR_RETURN(prompt.data_source, GetString(row, options.source_key, where));
  }
  if (row.contains("extra_info") && !row["extra_info"].is_null()) {
    if (!row["extra_info"].is_object()) return Malformed(where, "extra_info: expected an object");
    prompt.extra_info = row["extra_info"];
    const auto chosen = turns::EnvironmentOf(prompt.extra_info, options.environments);
    if (!chosen.ok()) return Malformed(where, chosen.status().message());
  }
  if (options.max_response_key && row.contains(*options.max_response_key)) {
    const Json& most = row[*options.max_response_key];
    if (!most.is_number_integer() || most.get<double>() < 1 || most.get<double>() > INT32_MAX) {
      return Malformed(where, fmt::format("{}: expected a number of tokens from 1 on, not {}",
                                          *options.max_response_key, most.dump()));
    }
    prompt.max_tokens = most.get<int64_t>();
  }
  KEEL_RETURN_IF_ERROR(LookForLost(prompt, context));
  return prompt;
}

// Of the bytes of a record.
constexpr int64_t kPromptVersion = 2;

std::string DumpOf(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A prompt as a record, in the pieces that the digests are of.
struct PromptRecord {
  int64_t max_tokens = 0;
  std::vector<int32_t> tokens;
  // The data source and the ground truth, each with a zero behind it. JSON has none.
  std::string_view answer;
  // As JSON; or, of ids that read as no UTF-8, the bytes.
  std::string_view text;
  bool text_is_json = true;
  std::string_view extra_info;  // as JSON

  bool Take(std::span<const std::byte> bytes) {
    WireReader in(bytes);
    uint64_t count = 0;
    int64_t is_json = 0;
    if (!in.I64(&max_tokens) || !in.U64(&count) || !in.Pods(count, &tokens) || !in.View(&answer) ||
        !in.I64(&is_json) || !in.View(&text) || !in.View(&extra_info) || !in.AtEnd())
      return false;
    text_is_json = is_json != 0;
    return answer.ends_with('\0');
  }
};

void PutPrompt(const Prompt& prompt, WireWriter* record) {
  const bool is_json = FindNotUtf8(prompt.text) == std::string::npos;
  record->I64(prompt.max_tokens).Count(prompt.tokens.size()).Pods(prompt.tokens);
  record->Text(prompt.data_source + '\0' + DumpOf(prompt.ground_truth) + '\0');
  record->I64(is_json ? 1 : 0).Text(is_json ? DumpOf(prompt.text) : prompt.text);
  record->Text(DumpOf(prompt.extra_info));
}

Result<PromptRecord> TakeRecord(std::span<const std::byte> bytes) {
  PromptRecord record;
  if (record.Take(bytes)) return record;
  return Status(StatusCode::kInvalidData, "a record that is no prompt");
}

Result<Json> ParseRecord(std::string_view text) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_discarded()) return json;
  return Status(StatusCode::kInvalidData, "a record of a prompt with a part that is no JSON");
}

Result<Prompt> PromptOf(const RowRecords::Record& stored) {
  KEEL_ASSIGN_OR_RETURN(PromptRecord record, TakeRecord(stored.bytes));
  Prompt prompt;
  prompt.id = stored.row;
  prompt.max_tokens = record.max_tokens;
  prompt.tokens = std::move(record.tokens);
  const std::string_view answer = record.answer.substr(0, record.answer.size() - 1);
  const size_t truth = answer.rfind('\0') + 1;
  if (truth > 0) prompt.data_source = answer.substr(0, truth - 1);
  KEEL_ASSIGN_OR_RETURN(prompt.ground_truth, ParseRecord(answer.substr(truth)));
  if (record.text_is_json) {
    KEEL_ASSIGN_OR_RETURN(const Json text, ParseRecord(record.text));
    if (text.is_string()) prompt.text = text.get<std::string>();
  } else {
    prompt.text = record.text;
  }
  KEEL_ASSIGN_OR_RETURN(prompt.extra_info, ParseRecord(record.extra_info));
  return prompt;
}

// False where the row is left out for its length.
Result<bool> Shorten(const PromptOptions& options, const RowContext& context, Prompt* prompt) {
  const auto length = static_cast<int64_t>(prompt->tokens.size());
  if (length <= options.max_prompt_length) return true;
  if (options.filter_overlong_prompts || options.truncation == Truncation::kSkip) return false;
  if (options.truncation == Truncation::kError) {
    const std::string limit =
        options.limit_is_models
            ? fmt::format("the {} that the model has room for;", options.max_prompt_length)
            : fmt::format("data.max_prompt_length {}; raise it,", options.max_prompt_length);
    return Malformed(context.where,
                     fmt::format("a prompt of {} tokens, more than {} set "
                                 "data.filter_overlong_prompts, or set data.truncation to "
                                 "left, right or skip",
                                 length, limit));
  }
  context.notes.CountCut();
  if (options.truncation == Truncation::kLeft)
    prompt->tokens.erase(prompt->tokens.begin(), prompt->tokens.end() - options.max_prompt_length);
  prompt->tokens.resize(static_cast<size_t>(options.max_prompt_length));
  return true;
}

// What the first of the rules that cannot read a prompt's ground truth says.
Status CheckTruth(const Prompt& prompt, const std::vector<rewards::RewardType>& rules) {
  for (const rewards::RewardType rule : rules) {
    KEEL_RETURN_IF_ERROR(rewards::CheckGroundTruth(rule, prompt.data_source, prompt.ground_truth));
  }
  return Status::Ok();
}

// Nothing has been generated yet: better said here than by the first batch.
Status CheckScored(const Prompt& prompt, const PromptOptions& options, const RowContext& context) {
  for (const rewards::RewardType rule : options.rules) {
    if (rule == rewards::RewardType::kAuto && !rewards::RuleOfDataSource(prompt.data_source)) {
      return Malformed(context.where,
                       fmt::format("{} '{}' has no rule: set reward.type, or name one of the "
                                   "known sources",
                                   options.source_key, prompt.data_source));
    }
  }
  const Status read = CheckTruth(prompt, options.rules);
  if (read.ok()) return read;
  if (options.refuse_unscored) return Malformed(context.where, read.message());
  context.notes.CountUnscored(read.message());
  return Status::Ok();
}

Json RuleNames(const PromptOptions& options) {
  Json names = Json::array();
  for (const rewards::RewardType rule : options.rules) names.push_back(NameOf(rule));
  return names;
}

// Which questions get an instruction is for a function to say, of what it says of each rule's data.
Json StrictSources(const PromptOptions& options) {
  Json sources = Json::array();
  if (!options.strict_gsm8k) return sources;
  if (options.strict_gsm8k("")) sources.push_back("");
  for (const rewards::RewardType rule : rewards::RewardRules()) {
    const std::string name(NameOf(rule));
    if (options.strict_gsm8k(name)) sources.push_back(name);
  }
  return sources;
}

Json SettingsOf(const PromptOptions& options) {
  const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(); };
  return {{"environments", options.environments},
          {"prompts", kPromptVersion},
          {"max_prompt_length", options.max_prompt_length},
          {"truncation", NameOf(options.truncation)},
          {"filter_overlong_prompts", options.filter_overlong_prompts},
          {"vocab_size", options.vocab_size},
          {"rules", RuleNames(options)},
          {"refuse_unscored", options.refuse_unscored},
          {"question_instruction", or_null(options.question_instruction)},
          {"strict_gsm8k", StrictSources(options)},
          {"prompt_key", options.prompt_key},
          {"answer_key", options.answer_key},
          {"source_key", options.source_key},
          {"max_response_key", or_null(options.max_response_key)}};
}

}  // namespace

Result<PromptSet> PromptSet::Load(const std::vector<std::string>& files,
                                  const PromptOptions& options, const TextRules& rules) {
  RecordRule rule;
  rule.settings = SettingsOf(options);
  rule.make = [&](const Json& row, const RowContext& context, WireWriter* record) -> Result<bool> {
    KEEL_ASSIGN_OR_RETURN(Prompt prompt, ReadPromptRow(row, options, context));
    KEEL_RETURN_IF_ERROR(CheckTokens(prompt.tokens, options.vocab_size, context.where));
    KEEL_RETURN_IF_ERROR(CheckScored(prompt, options, context));
    KEEL_ASSIGN_OR_RETURN(const bool stays, Shorten(options, context, &prompt));
    if (stays) PutPrompt(prompt, record);
    return stays;
  };
  PromptSet set;
  set.vocab_size_ = options.vocab_size;
  KEEL_ASSIGN_OR_RETURN(RowRecords records, OpenRecords(files, rule, rules, options.cache));
  if (records.size() == 0) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("no prompt in {} ({} rows left out)", fmt::join(files, ", "),
                              records.skipped_rows()));
  }
  set.rows_ = ChosenRecords(std::move(records));
  KEEL_RETURN_IF_ERROR(set.Seal());
  return set;
}

Status PromptSet::CheckSomeScored(const std::vector<rewards::RewardType>& rules) const {
  if (size() == 0) return Status::Ok();
  Status first;
  for (int64_t i = 0; i < size(); ++i) {
    const Status read = CheckTruth(Get(i), rules);
    if (read.ok()) return read;
    if (i == 0) first = read;
  }
  return Status(StatusCode::kInvalidData,
                fmt::format("the reward's rule cannot read the ground truth of any of {} prompts, "
                            "so that no answer gets a score ({}): give another reward.type, or "
                            "rows that hold what this one reads",
                            size(), first.message()));
}

Prompt PromptSet::Get(int64_t index) const {
  return ValueOrThrow(PromptOf(ValueOrThrow(rows_.Get(index))));
}

PromptSet PromptSet::SplitOff(double share, uint64_t seed) {
  PromptSet apart;
  apart.vocab_size_ = vocab_size_;
  apart.rows_ = ValueOrThrow(rows_.SplitOff(share, seed, kPromptSplitStream));
  ThrowIfError(Seal());
  ThrowIfError(apart.Seal());
  return apart;
}

Status PromptSet::Seal() {
  Hasher128 hasher, verifiers;
  const auto add = [](Hasher128& to, std::string_view text) {
    to.Update(std::as_bytes(std::span(text)));
  };
  KEEL_RETURN_IF_ERROR(rows_.ForEach([&](int64_t row, std::span<const std::byte> bytes) -> Status {
    KEEL_ASSIGN_OR_RETURN(const PromptRecord record, TakeRecord(bytes));
    const auto length = std::ssize(record.tokens);
    hasher.Update(std::as_bytes(std::span(&row, 1)));
    hasher.Update(std::as_bytes(std::span(&length, 1)));
    hasher.Update(std::as_bytes(std::span(record.tokens)));
    add(hasher, record.answer);
    if (record.max_tokens > 0) hasher.Update(std::as_bytes(std::span(&record.max_tokens, 1)));
    // A list of the text and extra_info, as JSON.
    add(verifiers, "[");
    add(verifiers, record.text_is_json ? record.text : DumpOf(std::string(record.text)));
    add(verifiers, ",");
    add(verifiers, record.extra_info);
    add(verifiers, "]");
    return Status::Ok();
  }));
  digest_ = hasher.Finish();
  verifiers_digest_ = verifiers.Finish();
  return Status::Ok();
}

}  // namespace keel::trainer::rl
