#include "trainer/data/preference_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "common/enum_names.h"
#include "trainer/data/rows/chat_rows.h"
#include "trainer/data/rows/row_forms.h"

namespace keel::trainer::rl {

namespace {

// Stream of the draws that decide which pairs are set apart.
constexpr uint64_t kPairSplitStream = 0x70616972;

using Tokens = std::vector<int32_t>;

// The messages that stand before an answer say the same as the prompt, or they would be dropped.
Status CheckLeadIn(const Json& row, const PreferenceOptions& options, const std::string& key,
                   const RowContext& context) {
  const Json& messages = row[key];
  if (messages.size() == 1 || !row.contains(options.prompt_key)) return Status::Ok();
  const Json& prompt = row[options.prompt_key];
  const Json before(messages.begin(), messages.end() - 1);
  const bool same =
      prompt.is_string() ? before.size() == 1 && SaidIn(before[0]) == prompt : before == prompt;
  if (same) return Status::Ok();
  return Malformed(
      context.where,
      fmt::format("{}: the {} messages before the answer are not those of {}: give the "
                  "whole conversation there, and the last answer alone here",
                  key, before.size(), options.prompt_key));
}

// The answer of messages behind the prompt's, as the template writes it.
Result<Tokens> ReadMessages(const Json& row, const PreferenceOptions& options,
                            const std::string& key, const RowContext& context) {
  const Json& messages = row[key];
  // Of a conversation that begins with the prompt's messages what follows them is the answer.
  const Json& prompt = row[options.prompt_key];
  Json both = prompt;
  const bool leads =
      messages.size() > prompt.size() && std::equal(prompt.begin(), prompt.end(), messages.begin());
  for (size_t i = leads ? prompt.size() : 0; i < messages.size(); ++i) both.push_back(messages[i]);
  KEEL_ASSIGN_OR_RETURN(const Chat chat, ReadChat(both, row, context, key));
  return ChatAnswer(chat, prompt.size(), context);
}

// The same under ChatML, where prompts may be text: the last message alone is an answer.
Result<Tokens> ReadChatMlAnswer(const Json& row, const PreferenceOptions& options,
                                const std::string& key, const RowContext& context) {
  KEEL_RETURN_IF_ERROR(ReadChat(row[key], row, context, key).status());
  KEEL_RETURN_IF_ERROR(CheckLeadIn(row, options, key, context));
  return EncodeMore(SaidIn(row[key].back()) + "<|im_end|>", context);
}

// An answer's tokens behind a prompt, the end mark included.
Result<Tokens> ReadAnswer(const Json& row, const PreferenceOptions& options, const std::string& key,
                          const Tokens& before, const RowContext& context) {
  const std::string& where = context.where;
  if (IsIdList(row[key])) {
    KEEL_ASSIGN_OR_RETURN(TokenRow ids, ReadIds(row, {key, "", "", ""}, where));
    return std::move(ids.tokens);
  }
  Tokens tokens;
  if (row[key].is_array()) {
    if (row[key].empty()) return Malformed(where, key + ": expected messages, found none");
    const Json& last = row[key].back();
    KEEL_ASSIGN_OR_RETURN(const std::string role, GetString(last, "role", where + ": " + key));
    if (role != "assistant")
      return Malformed(
          where, fmt::format("{}: the last message is the {}'s, not the assistant's", key, role));
    const bool chat = AsksInMessages(context.rules);
    if (chat && !AreMessages(row[options.prompt_key])) {
      return Malformed(where, fmt::format("{}: messages behind a prompt of ids: give all three as "
                                          "messages, or as ids",
                                          key));
    }
    KEEL_ASSIGN_OR_RETURN(tokens, chat ? ReadMessages(row, options, key, context)
                                       : ReadChatMlAnswer(row, options, key, context));
  } else {
    KEEL_ASSIGN_OR_RETURN(const std::string text, GetString(row, key, where));
    const auto prompt = row.find(options.prompt_key);
    KEEL_ASSIGN_OR_RETURN(
        tokens, prompt != row.end() && prompt->is_string()
                    ? EncodeAnswer(prompt->get_ref<const std::string&>(), before, text, context)
                    : EncodeMore(text, context));
    EndText(context.rules, &tokens);
  }
  if (tokens.empty()) return Malformed(where, key + ": the answer is empty");
  return tokens;
}

// Where one of the three is of messages, and the model has a template of its own, so are the
// others: a prompt of text is the user's, an answer of text the assistant's.
const Json& AsMessages(const Json& row, const PreferenceOptions& options, const TextRules& rules,
                       Json* changed) {
  const std::pair<const std::string&, const char*> parts[] = {{options.prompt_key, "user"},
                                                              {options.chosen_key, "assistant"},
                                                              {options.rejected_key, "assistant"}};
  const auto any = [&](bool (*is)(const Json&)) {
    return std::any_of(std::begin(parts), std::end(parts),
                       [&](const auto& part) { return is(row[part.first]); });
  };
  if (!AsksInMessages(rules) || !any(AreMessages) ||
      !any([](const Json& value) { return value.is_string(); }))
    return row;
  *changed = row;
  for (const auto& [key, role] : parts) {
    if (row[key].is_string())
      (*changed)[key] = Json::array({ChatMessage(role, row[key].get<std::string>())});
  }
  return *changed;
}

bool Says(const Json& message, const Json& text) {
  const auto content = message.find("content");
  if (content == message.end()) return false;
  return content->is_array() && content->size() == 1 && content->front().is_object()
             ? content->front().value("text", Json()) == text
             : *content == text;
}

// A text as the prompt of two conversations: the prompt is what these have in common, as with TRL.
// The text has to be one of its messages, or it would be dropped without a word.
Result<const Json*> WithTheConversations(const Json& row, const PreferenceOptions& options,
                                         const RowContext& context, Json* changed) {
  const auto prompt = row.find(options.prompt_key);
  if (!AsksInMessages(context.rules) || prompt == row.end() || !prompt->is_string() ||
      !AreMessages(row[options.chosen_key]) || !AreMessages(row[options.rejected_key]))
    return &row;
  Json bare = row;
  bare.erase(options.prompt_key);
  Json prompted;
  const Json& found =
      WithPrompt(bare, options.prompt_key, options.chosen_key, options.rejected_key, &prompted);
  if (!found.contains(options.prompt_key)) return &row;  // the answers alone
  const Json& shared = found[options.prompt_key];
  if (std::none_of(shared.begin(), shared.end(),
                   [&](const Json& message) { return Says(message, *prompt); })) {
    return Malformed(
        context.where,
        fmt::format("{0} is a text, and none of the {1} messages that {2} and {3} "
                    "begin with: leave {0} out, or give the answers alone",
                    options.prompt_key, shared.size(), options.chosen_key, options.rejected_key));
  }
  *changed = found;
  return changed;
}

// Prompt, chosen and rejected.
struct Triple {
  Tokens prompt, chosen, rejected;
};

bool BeginsWith(const Tokens& tokens, const Tokens& beginning) {
  return tokens.size() > beginning.size() &&
         std::equal(beginning.begin(), beginning.end(), tokens.begin());
}

constexpr const char* kReadyIds[] = {"prompt_input_ids", "chosen_input_ids", "rejected_input_ids"};
constexpr const char* kReadyMasks[] = {"prompt_attention_mask", "chosen_attention_mask",
                                       "rejected_attention_mask"};

// Rows as TRL's tokenizing leaves them.
Result<Triple> ReadReadyIds(const Json& row, const RowContext& context) {
  std::vector<std::string_view> read(std::begin(kReadyIds), std::end(kReadyIds));
  read.insert(read.end(), std::begin(kReadyMasks), std::end(kReadyMasks));
  KEEL_RETURN_IF_ERROR(context.notes.Look(row, read, RowNotes::Form::kIds, context.where));
  Triple triple;
  Tokens* const parts[] = {&triple.prompt, &triple.chosen, &triple.rejected};
  for (size_t i = 0; i < std::size(parts); ++i) {
    if (!row.contains(kReadyIds[i])) {
      return Malformed(context.where, fmt::format("expected the keys {}, found no {}",
                                                  fmt::join(kReadyIds, ", "), kReadyIds[i]));
    }
    KEEL_ASSIGN_OR_RETURN(TokenRow ids,
                          ReadIds(row, {kReadyIds[i], kReadyMasks[i], "", ""}, context.where));
    if (ids.tokens.empty())
      return Malformed(context.where, fmt::format("{}: no tokens", kReadyIds[i]));
    *parts[i] = std::move(ids.tokens);
  }
  // TRL up to 0.11 put the prompt in front of both answers: it would be learnt from, twice.
  if (BeginsWith(triple.chosen, triple.prompt) && BeginsWith(triple.rejected, triple.prompt)) {
    return Malformed(context.where,
                     "chosen_input_ids and rejected_input_ids both begin with prompt_input_ids; "
                     "expected the answers alone");
  }
  return triple;
}

// Prompt, chosen and rejected under their keys.
Status CheckHasAll(const Json& row, const PreferenceOptions& options, const std::string& where) {
  if (row.is_object() && !row.contains(options.prompt_key) && row.contains(options.chosen_key) &&
      row.contains(options.rejected_key)) {
    return Malformed(
        where, fmt::format("no {0}, and none can be told from {1} and {2}, which are "
                           "the same, of two kinds, or begin with no common message: give {0}, or "
                           "leave the row out",
                           options.prompt_key, options.chosen_key, options.rejected_key));
  }
  if (!row.is_object() || !row.contains(options.prompt_key)) {
    return Malformed(
        where, fmt::format("expected an object with {}, {} and {}, or with {}", options.prompt_key,
                           options.chosen_key, options.rejected_key, fmt::join(kReadyIds, ", ")));
  }
  for (const std::string* key : {&options.chosen_key, &options.rejected_key}) {
    if (row.contains(*key)) continue;
    return Malformed(where,
                     fmt::format("expected the keys prompt, chosen and rejected, found no {}; "
                                 "data.*_key name others",
                                 *key));
  }
  return Status::Ok();
}

Result<Triple> ReadPair(const Json& given, const PreferenceOptions& options,
                        const RowContext& context) {
  Json standard, prompted, shared, turned;
  const Json& found = WithPrompt(StandardRow(given, "messages", &standard), options.prompt_key,
                                 options.chosen_key, options.rejected_key, &prompted);
  if (found.is_object() && found.contains(kReadyIds[0])) return ReadReadyIds(found, context);
  KEEL_RETURN_IF_ERROR(CheckHasAll(found, options, context.where));
  KEEL_ASSIGN_OR_RETURN(const Json* const whole,
                        WithTheConversations(found, options, context, &shared));
  const Json& row = AsMessages(*whole, options, context.rules, &turned);
  const bool ids = IsIdList(row[options.prompt_key]);
  std::vector<std::string_view> read = {options.prompt_key, options.chosen_key,
                                        options.rejected_key};
  if (ids) read.push_back("attention_mask");  // the prompt's
  const auto more = ChatKeys(context.rules);
  read.insert(read.end(), more.begin(), more.end());
  KEEL_RETURN_IF_ERROR(context.notes.Look(
      row, read, ids ? RowNotes::Form::kIds : RowNotes::Form::kText, context.where));
  Triple triple;
  // Answers that are messages are messages of their own, whoever said the last one of the prompt.
  const bool messages =
      AreMessages(row[options.chosen_key]) || AreMessages(row[options.rejected_key]);
  KEEL_ASSIGN_OR_RETURN(triple.prompt,
                        PromptTokens(row, options.prompt_key, context,
                                     messages ? Follows::kAnother : Follows::kMoreOfIt));
  KEEL_ASSIGN_OR_RETURN(triple.chosen,
                        ReadAnswer(row, options, options.chosen_key, triple.prompt, context));
  KEEL_ASSIGN_OR_RETURN(triple.rejected,
                        ReadAnswer(row, options, options.rejected_key, triple.prompt, context));
  return triple;
}

// Of the bytes of a record.
// 1: a text beside conversations was their only prompt; 2: an answer went on with the prompt's
// last; 3: an answer of text was tokenized by itself.
constexpr int64_t kPairVersion = 4;

TokenRow Join(const Tokens& prompt, const Tokens& answer) {
  TokenRow row;
  row.tokens.reserve(prompt.size() + answer.size());
  row.tokens.assign(prompt.begin(), prompt.end());
  row.tokens.insert(row.tokens.end(), answer.begin(), answer.end());
  row.learn.reserve(row.tokens.size());
  row.learn.assign(prompt.size(), 0);
  row.learn.resize(row.tokens.size(), 1);
  return row;
}

void PutPair(const Triple& triple, WireWriter* record) {
  for (const Tokens* tokens : {&triple.prompt, &triple.chosen, &triple.rejected})
    record->Count(tokens->size()).Pods(*tokens);
}

Result<PreferencePair> PairOf(int64_t row, std::span<const std::byte> bytes) {
  WireReader in(bytes);
  const auto take = [&](Tokens* tokens) {
    uint64_t count = 0;
    return in.U64(&count) && in.Pods(count, tokens);
  };
  Triple triple;
  if (!take(&triple.prompt) || !take(&triple.chosen) || !take(&triple.rejected) || !in.AtEnd())
    return Status(StatusCode::kInvalidData, "a record that is no pair");
  return PreferencePair{row, Join(triple.prompt, triple.chosen),
                        Join(triple.prompt, triple.rejected)};
}

// False where the row is left out for its length.
Result<bool> Shorten(const PreferenceOptions& options, const RowContext& context, Triple* triple) {
  auto& [prompt, chosen, rejected] = *triple;
  const auto prompt_limit = static_cast<size_t>(options.max_prompt_length);
  const auto answer_limit = static_cast<size_t>(options.max_response_length);
  const size_t answer = std::max(chosen.size(), rejected.size());
  if (prompt.size() <= prompt_limit && answer <= answer_limit) return true;
  if (options.truncation == Truncation::kSkip) return false;
  if (options.truncation == Truncation::kError) {
    return Malformed(context.where,
                     fmt::format("a prompt of {} and an answer of {} tokens, more than "
                                 "data.max_prompt_length {} or data.max_response_length {}; "
                                 "raise them, or set data.truncation to left, right or skip",
                                 prompt.size(), answer, prompt_limit, answer_limit));
  }
  context.notes.CountCut();
  if (prompt.size() > prompt_limit) {
    if (options.truncation == Truncation::kLeft)
      prompt.erase(prompt.begin(), prompt.end() - options.max_prompt_length);
    prompt.resize(prompt_limit);
  }
  chosen.resize(std::min(chosen.size(), answer_limit));
  rejected.resize(std::min(rejected.size(), answer_limit));
  return true;
}

Json SettingsOf(const PreferenceOptions& options) {
  return {{"pairs", kPairVersion},
          {"max_prompt_length", options.max_prompt_length},
          {"max_response_length", options.max_response_length},
          {"truncation", NameOf(options.truncation)},
          {"vocab_size", options.vocab_size},
          {"prompt_key", options.prompt_key},
          {"chosen_key", options.chosen_key},
          {"rejected_key", options.rejected_key}};
}

Sample SampleOf(const TokenRow& row, int64_t id) { return {row.tokens, row.learn, {0}, id}; }

}  // namespace

Result<PreferenceSet> PreferenceSet::Load(const std::vector<std::string>& files,
                                          const PreferenceOptions& options,
                                          const TextRules& rules) {
  RecordRule rule;
  rule.settings = SettingsOf(options);
  rule.make = [&](const Json& row, const RowContext& context, WireWriter* record) -> Result<bool> {
    KEEL_ASSIGN_OR_RETURN(Triple triple, ReadPair(row, options, context));
    KEEL_ASSIGN_OR_RETURN(const bool stays, Shorten(options, context, &triple));
    if (!stays) return false;
    for (const Tokens* tokens : {&triple.prompt, &triple.chosen, &triple.rejected})
      KEEL_RETURN_IF_ERROR(CheckTokens(*tokens, options.vocab_size, context.where));
    PutPair(triple, record);
    return true;
  };
  KEEL_ASSIGN_OR_RETURN(RowRecords records, OpenRecords(files, rule, rules, options.cache));
  if (records.size() == 0) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("no preference pair in {} ({} rows left out)", fmt::join(files, ", "),
                              records.skipped_rows()));
  }
  PreferenceSet set;
  set.rows_ = ChosenRecords(std::move(records));
  KEEL_RETURN_IF_ERROR(set.Seal());
  return set;
}

PreferencePair PreferenceSet::Get(int64_t index) const {
  const RowRecords::Record record = ValueOrThrow(rows_.Get(index));
  return ValueOrThrow(PairOf(record.row, record.bytes));
}

PreferenceSet PreferenceSet::SplitOff(double share, uint64_t seed) {
  PreferenceSet apart;
  apart.rows_ = ValueOrThrow(rows_.SplitOff(share, seed, kPairSplitStream));
  ThrowIfError(Seal());
  ThrowIfError(apart.Seal());
  return apart;
}

Status PreferenceSet::Seal() {
  Hasher128 hasher;
  KEEL_RETURN_IF_ERROR(rows_.ForEach([&](int64_t id, std::span<const std::byte> bytes) -> Status {
    KEEL_ASSIGN_OR_RETURN(const PreferencePair pair, PairOf(id, bytes));
    for (const TokenRow* row : {&pair.chosen, &pair.rejected}) {
      const auto length = static_cast<int64_t>(row->tokens.size());
      hasher.Update(std::as_bytes(std::span(&length, 1)));
      hasher.Update(std::as_bytes(std::span(row->tokens)));
      hasher.Update(std::as_bytes(std::span(row->learn)));
    }
    return Status::Ok();
  }));
  digest_ = hasher.Finish();
  return Status::Ok();
}

PreferenceBatch MakePreferenceBatch(const PreferenceSet& data,
                                    const std::function<int64_t(int64_t)>& at, int64_t cursor,
                                    int64_t count, const BatchOptions& options) {
  PreferenceBatch step;
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < count; ++i) {
    chosen.push_back(at(cursor + i));
    const PreferencePair pair = data.Get(chosen.back());
    ++step.pairs;
    step.chosen_tokens += std::count(pair.chosen.learn.begin() + 1, pair.chosen.learn.end(), 1);
    step.tokens +=
        static_cast<int64_t>(pair.chosen.tokens.size() + pair.rejected.tokens.size()) - 2;
  }
  step.microbatches = MakeMicroBatches(count, options, [&](int64_t position, MicroBatch& batch) {
    const PreferencePair pair = data.Get(chosen[static_cast<size_t>(position)]);
    AppendSample(batch, SampleOf(pair.chosen, pair.id), options.max_length);
    AppendSample(batch, SampleOf(pair.rejected, pair.id), options.max_length);
  });
  return step;
}

}  // namespace keel::trainer::rl
