#include "trainer/data/rows/row_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "common/json_builder.h"
#include "common/text.h"

namespace keel::trainer {

namespace {

struct Telling {
  std::string_view key;
  std::string_view advice;
};

constexpr std::string_view kRenderAhead =
    "ChatML, a row of text, and a template that has no word of it show no such thing: give the "
    "model a chat template that does (data.chat_template), render the row ahead and give input_ids "
    "and labels, or leave it out";
constexpr std::string_view kNoMedia =
    "this release reads text alone: give no such rows or messages";
constexpr std::string_view kNoPadding =
    "beside a list under this row's keys: give ids without padding";
constexpr std::string_view kOneSequence =
    "a row's tokens attend to each other as one sequence: give a row to each";
constexpr std::string_view kGiveLabels =
    "what is not to be learnt is -100 in labels, beside input_ids";

constexpr std::string_view kEarlierTurns = "give earlier turns as messages";

constexpr std::string_view kSystemMessage =
    "the system's text is read as a message: {\"role\": \"system\"} before the others";

// What a chat template shows the model beside role and content.
constexpr auto kTellingInText = std::to_array<Telling>({
    {"system", kSystemMessage},
    {"system_prompt", kSystemMessage},
    {"tools", kRenderAhead},
    {"functions", kRenderAhead},
    {"history", kEarlierTurns},
    {"tool_calls", kRenderAhead},
    {"tool_call_id", kRenderAhead},
    {"function_call", kRenderAhead},
    {"reasoning_content", kRenderAhead},
    {"reasoning", kRenderAhead},
    {"thinking", kRenderAhead},
    {"chat_template", kRenderAhead},
    {"chat_template_kwargs", kRenderAhead},
    {"enable_thinking", kRenderAhead},
    {"image", kNoMedia},
    {"images", kNoMedia},
    {"video", kNoMedia},
    {"videos", kNoMedia},
    {"audio", kNoMedia},
    {"audios", kNoMedia},
    {"weight", kGiveLabels},
    {"train", kGiveLabels},
    {"training", kGiveLabels},
    {"trainable", kGiveLabels},
    {"loss", kGiveLabels},
    {"loss_weight", kGiveLabels},
    {"train_on_turn", kGiveLabels},
    {"train_detail", kGiveLabels},
    {"masked", kGiveLabels},
    {"ignore_loss", kGiveLabels},
    {"attention_mask", "it is read beside input_ids alone: give these, or leave it out"},
    {"position_ids", "it is read beside input_ids alone: give these, or leave it out"},
    {"labels", "it is read beside input_ids alone: give these, or leave it out"},
});

// What other trainers read beside ids to the same end as labels.
constexpr auto kTellingInIds = std::to_array<Telling>({
    {"loss_mask", kGiveLabels},
    {"response_mask", kGiveLabels},
    {"completion_mask", kGiveLabels},
    {"assistant_masks", kGiveLabels},
    {"chosen_labels", "chosen_input_ids hold the answer alone, all of which is learnt"},
    {"rejected_labels", "rejected_input_ids hold the answer alone, all of which is learnt"},
    {"pixel_values", kNoMedia},
    {"prompt_attention_mask", kNoPadding},
    {"response_attention_mask", kNoPadding},
    {"chosen_attention_mask", kNoPadding},
    {"rejected_attention_mask", kNoPadding},
    {"cu_seqlens", kOneSequence},
    {"seq_lens", kOneSequence},
    {"seq_lengths", kOneSequence},
    {"sequence_ids", kOneSequence},
    {"segment_ids", kOneSequence},
    {"seq_idx", kOneSequence},
});

// Nothing was said with it: {"tools": []}, {"reasoning_content": ""}.
bool IsEmpty(const Json& value) {
  return value.is_null() || value == "" ||
         ((value.is_array() || value.is_object()) && value.empty());
}

// What says of a message that it is learnt, as it would be without; of a row some of these words
// are a figure or the name of a split.
bool IsLearntAnyhow(std::string_view key, const Json& value, bool of_message) {
  const bool says_not = key == "masked" || key == "ignore_loss";
  const bool of_messages_alone = says_not || key == "training" || key == "trainable" ||
                                 key == "loss" || key == "train_on_turn" || key == "train_detail";
  if (of_messages_alone && !of_message) return true;
  if (says_not) return value == 0 || value == false;
  const bool says_so =
      of_messages_alone || key == "weight" || key == "loss_weight" || key == "train";
  return says_so && (value == 1 || value == true);
}

template <size_t kCount>
const Telling* Find(const std::array<Telling, kCount>& list, std::string_view key) {
  const auto found = std::find_if(list.begin(), list.end(),
                                  [&](const Telling& entry) { return entry.key == key; });
  return found == list.end() ? nullptr : &*found;
}

}  // namespace

bool RowNotes::Tells(std::string_view key) {
  return Find(kTellingInIds, key) != nullptr || Find(kTellingInText, key) != nullptr;
}

Status RowNotes::Look(const Json& row, const std::vector<std::string_view>& read, Form form,
                      const std::string& where, std::string_view prefix) {
  KEEL_RETURN_IF_ERROR(RefuseSetApart(row, read));
  const bool of_message = prefix.ends_with("[].");
  for (const auto& [key, value] : row.items()) {
    if (IsEmpty(value)) continue;
    if (std::find(read.begin(), read.end(), key) != read.end()) continue;
    if (key == "label" && value == false && value.is_boolean() && row.contains("completion")) {
      return Status(StatusCode::kInvalidData,
                    fmt::format("{}: label: false, beside a completion as KTO's rows have it, says "
                                "that it is a bad answer, which would be learnt: leave such rows "
                                "out",
                                where));
    }
    const Telling* telling = Find(kTellingInIds, key);
    if (telling == nullptr && form == Form::kText) telling = Find(kTellingInText, key);
    if (telling != nullptr && !IsLearntAnyhow(key, value, of_message)) {
      return Status(StatusCode::kInvalidData,
                    fmt::format("{}: {}{} changes what is learnt, and is not read here; {}", where,
                                prefix, key, telling->advice));
    }
    Count(std::string(prefix) + key);
  }
  return Status::Ok();
}

void RowNotes::CountOthers(const Json& row, const std::vector<std::string_view>& read) {
  for (const auto& [key, value] : row.items())
    if (!IsEmpty(value) && std::find(read.begin(), read.end(), key) == read.end()) Count(key);
}

void RowNotes::CountUnshown(const Json& row, const std::vector<std::string_view>& read,
                            std::string_view prefix) {
  for (const auto& [key, value] : row.items()) {
    const Telling* telling = Find(kTellingInText, key);
    if (telling == nullptr || IsEmpty(value)) continue;
    const std::string_view advice = telling->advice;
    const bool is_shown = advice == kRenderAhead || advice == kSystemMessage ||  //
                          advice == kEarlierTurns;
    if (is_shown && std::find(read.begin(), read.end(), key) == read.end())
      Count(std::string(prefix) + key);
  }
}

Status RowNotes::RefuseSetApart(const Json& row, const std::vector<std::string_view>& read) {
  for (const auto& [key, value] : row.items()) {
    if (std::find(read.begin(), read.end(), key) == read.end()) continue;
    if (const std::string why = WhySetApart(value); !why.empty())
      return Status(StatusCode::kInvalidData, why);
  }
  return Status::Ok();
}

Status RowNotes::RefuseMedia(const Json& row, Form form, const std::string& where) {
  for (const auto& [key, value] : row.items()) {
    if (IsEmpty(value)) continue;
    const Telling* telling = Find(kTellingInIds, key);
    if (telling == nullptr && form == Form::kText) telling = Find(kTellingInText, key);
    if (telling == nullptr || telling->advice != kNoMedia) continue;
    return Status(StatusCode::kInvalidData, fmt::format("{}: {}: {}", where, key, kNoMedia));
  }
  return Status::Ok();
}

void RowNotes::CountTextArguments() {
  if (std::exchange(last_text_arguments_, rows_) != rows_) ++text_arguments_;
}

void RowNotes::CountUnscored(const std::string& why) {
  if (unscored_++ > 0) return;
  first_unscored_ = rows_ - 1;
  why_unscored_ = why;
}

void RowNotes::Add(const RowNotes& part) {
  if (unscored_ == 0 && part.unscored_ > 0) {
    first_unscored_ = rows_ + part.first_unscored_;
    why_unscored_ = part.why_unscored_;
  }
  unscored_ += part.unscored_;
  rows_ += part.rows_;
  cut_ += part.cut_;
  unended_ += part.unended_;
  text_arguments_ += part.text_arguments_;
  parts_shown_ = parts_shown_ || part.parts_shown_;
  for (const auto& [key, count] : part.counts_) counts_[key] += count;
  for (const auto& [key, count] : part.lost_) lost_[key] += count;
  for (const auto& [role, count] : part.unlearnt_roles_) unlearnt_roles_[role] += count;
}

Json RowNotes::ToJson() const {
  Json keys = Json::object();
  for (const auto& [key, count] : counts_) keys[key] = count;
  Json json = {{"rows", rows_}, {"keys", std::move(keys)}};
  if (parts_shown_) json["parts_shown"] = true;
  if (cut_ > 0) json["cut"] = cut_;
  if (unended_ > 0) json["unended"] = unended_;
  if (text_arguments_ > 0) json["text_arguments"] = text_arguments_;
  if (!lost_.empty()) json["lost"] = lost_;
  if (!unlearnt_roles_.empty()) json["unlearnt_roles"] = unlearnt_roles_;
  if (unscored_ > 0) {
    json["unscored"] = {{"rows", unscored_}, {"first", first_unscored_}, {"why", why_unscored_}};
  }
  return json;
}

Result<RowNotes> RowNotes::FromJson(const Json& json, std::string_view where) {
  RowNotes keys;
  if (!json.is_object() || !json.contains("keys") || !json["keys"].is_object())
    return Status(StatusCode::kInvalidData, fmt::format("{}: expected rows and keys", where));
  KEEL_ASSIGN_OR_RETURN(keys.rows_, GetInt(json, "rows", where));
  for (const auto& item : json["keys"].items()) {
    KEEL_ASSIGN_OR_RETURN(keys.counts_[item.key()], GetInt(json["keys"], item.key(), where));
  }
  keys.parts_shown_ = json.contains("parts_shown");
  if (json.contains("cut")) {
    KEEL_ASSIGN_OR_RETURN(keys.cut_, GetInt(json, "cut", where));
  }
  if (json.contains("unended")) {
    KEEL_ASSIGN_OR_RETURN(keys.unended_, GetInt(json, "unended", where));
  }
  if (json.contains("text_arguments")) {
    KEEL_ASSIGN_OR_RETURN(keys.text_arguments_, GetInt(json, "text_arguments", where));
  }
  if (const auto unscored = json.find("unscored"); unscored != json.end()) {
    KEEL_ASSIGN_OR_RETURN(keys.unscored_, GetInt(*unscored, "rows", where));
    KEEL_ASSIGN_OR_RETURN(keys.first_unscored_, GetInt(*unscored, "first", where));
    KEEL_ASSIGN_OR_RETURN(keys.why_unscored_, GetString(*unscored, "why", where));
  }
  for (auto& [name, counts] :
       {std::pair("lost", &keys.lost_), std::pair("unlearnt_roles", &keys.unlearnt_roles_)}) {
    const auto found = json.find(name);
    if (found == json.end()) continue;
    for (const auto& item : found->items()) {
      KEEL_ASSIGN_OR_RETURN((*counts)[item.key()], GetInt(*found, item.key(), where));
    }
  }
  return keys;
}

namespace {

// "a (3), b (1)".
std::string NamesOf(const std::map<std::string, int64_t>& counts) {
  constexpr size_t kMostNamed = 20;
  std::vector<std::string> names;
  for (const auto& [key, count] : counts) {
    if (names.size() == kMostNamed) {
      names.push_back(fmt::format("and {} more", counts.size() - kMostNamed));
      break;
    }
    names.push_back(fmt::format("{} ({})", Printable(key, 60), count));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

void RowNotes::CountLost(const Json& object, Lost lost, std::string_view prefix) {
  for (const auto& [key, value] : object.items())
    if (!LostIn(value, lost).empty()) ++lost_[fmt::format("{}{}", prefix, key)];
}

std::string LostIn(const Json& value, Lost lost) {
  if (lost == Lost::kNumbersToo && value.is_number_float() && !std::isfinite(value.get<double>()))
    return fmt::format("{}", value.get<double>());
  if (!value.is_structured()) return "";
  if (const auto type = value.is_object() ? value.find("$arrow") : value.end(); type != value.end())
    return type->is_string() ? type->get<std::string>() : type->dump();
  for (const Json& item : value)
    if (std::string what = LostIn(item, lost); !what.empty()) return what;
  return "";
}

std::string RowNotes::Warning(const std::string& path) const {
  std::vector<std::string> said;
  if (!counts_.empty()) {
    said.push_back(fmt::format("keys that nothing reads, with their number in {} rows: {}", rows_,
                               NamesOf(counts_)));
  }
  if (!lost_.empty()) {
    said.push_back(
        fmt::format("values that JSON has nothing for, which become {{\"$arrow\": type}}, or null "
                    "where they are "
                    "no numbers, with their number in {} rows: {}",
                    rows_, NamesOf(lost_)));
  }
  if (cut_ > 0)
    said.push_back(CutWarning(cut_, "data.max_prompt_length or data.max_response_length"));
  if (parts_shown_) {
    said.emplace_back(
        "the chat template reads no lists of parts: messages whose content is one stand in the "
        "text as Python prints it, which is what transformers gives, too; give them as text, or a "
        "template that reads parts (data.chat_template)");
  }
  if (unended_ > 0) {
    said.push_back(fmt::format(
        "the chat template writes no special token behind an answer of {} of {} rows: what is "
        "learnt of it has no end, and who learns from such answers alone never stops; give a "
        "template that ends them (data.chat_template)",
        unended_, rows_));
  }
  if (text_arguments_ > 0) {
    said.push_back(fmt::format(
        "the arguments of calls in {} of {} rows are JSON in a string, which the chat template "
        "writes as a string, encoded twice, as transformers has it do; give them as objects, as "
        "keel serve shows them to it",
        text_arguments_, rows_));
  }
  if (!unlearnt_roles_.empty()) {
    said.push_back(
        fmt::format("roles whose messages are not learnt: {}; those of the role assistant are",
                    NamesOf(unlearnt_roles_)));
  }
  if (unscored_ > 0) {
    said.push_back(fmt::format(
        "the answers to {} of {} rows get no score, since the reward's rule cannot read "
        "their ground truth, the first to row {} ({}): reward.on_error says what "
        "becomes of them",
        unscored_, rows_, first_unscored_, Printable(why_unscored_, 160)));
  }
  return said.empty() ? "" : fmt::format("{}: {}", path, fmt::join(said, "; "));
}

std::string CutWarning(int64_t rows, std::string_view limits) {
  return fmt::format(
      "{} rows are longer than {} and were cut, as data.truncation says: what was cut off is not "
      "learnt",
      rows, limits);
}

}  // namespace keel::trainer
