#include "trainer/data/rows/chat_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <optional>
#include <utility>

#include "common/byte_range.h"
#include "common/guarded.h"
#include "common/text.h"
#include "trainer/data/rows/chat_messages.h"
#include "trainer/data/rows/chat_rules.h"

namespace keel::trainer {

namespace {

const ChatRules& RulesOf(const RowContext& context) {
  return context.rules.chat != nullptr ? *context.rules.chat : *ChatMlRules();
}

bool HasParts(const Json& messages) {
  return std::any_of(messages.begin(), messages.end(), [](const Json& message) {
    const auto content = message.find("content");
    return content != message.end() && content->is_array();
  });
}

// Whether a template has written a list of parts down as it would any other value: as Python prints
// a list of maps, or of texts.
bool ShowsParts(std::string_view text, const Json& messages) {
  if (text.find("'type': 'text'") != std::string_view::npos) return true;
  return std::any_of(messages.begin(), messages.end(), [&](const Json& message) {
    const auto content = message.find("content");
    if (content == message.end() || !content->is_array() || content->empty()) return false;
    const Json& first = content->front();
    return first.is_string() && text.find("['" + first.get<std::string>()) != text.npos;
  });
}

bool IsAnswer(const Json& message) { return message["role"] == "assistant"; }

// How a part of the conversation ends.
enum class Ending { kPlain, kOpened, kContinued };

// Whether `word` stands in a template for itself: "thinking" does not in enable_thinking. As a
// member, it is read of something: "m.word", "m['word']", "'word' in m".
enum class Stands { kAnywhere, kAsMember };
bool HasWord(std::string_view source, std::string_view word, Stands how = Stands::kAnywhere) {
  const auto goes_on = [&](size_t at) {
    return at < source.size() &&
           (source[at] == '_' || std::isalnum(static_cast<unsigned char>(source[at])) != 0);
  };
  for (size_t at = source.find(word); at != std::string_view::npos;
       at = source.find(word, at + 1)) {
    const char before = at > 0 ? source[at - 1] : ' ';
    const bool member = before == '.' || before == '\'' || before == '"';
    if (goes_on(at + word.size())) continue;
    if (how == Stands::kAsMember ? member : !(at > 0 && goes_on(at - 1))) return true;
  }
  return false;
}

constexpr std::string_view kOpensAnother =
    "the chat template, which has no add_generation_prompt, opens another answer behind the last "
    "one, and that would be learnt: give one that does not (data.chat_template), or rows of ids";

// One conversation's renderings.
class Rendering {
 public:
  Rendering(const Chat& chat, const RowContext& context)
      : chat_(chat),
        context_(context),
        rules_(RulesOf(context)),
        has_parts_(HasParts(chat.messages)) {}

  // The first `count` messages.
  Result<model::RenderedChat> Render(size_t count, Ending ending) const {
    model::ChatRequest request;
    request.messages = Json::array();
    for (size_t i = 0; i < count; ++i) request.messages.push_back(chat_.messages[i]);
    request.tools = chat_.tools;
    request.documents = chat_.documents;
    request.extra = chat_.arguments;
    request.add_generation_prompt = ending == Ending::kOpened;
    request.continue_final_message = ending == Ending::kContinued;
    request.clock = ClockOf(rules_);
    Result<model::RenderedChat> rendered = Template().Render(request);
    if (!rendered.ok()) return rendered.status().WithContext(context_.where);
    if (has_parts_ && ShowsParts(rendered->text, request.messages)) context_.notes.NotePartsShown();
    return rendered;
  }

  // What the model is shown before it goes on.
  Result<std::string> Prompt(size_t count, Follows follows) const {
    const bool goes_on =
        follows == Follows::kMoreOfIt && count > 0 && IsAnswer(chat_.messages[count - 1]);
    KEEL_ASSIGN_OR_RETURN(model::RenderedChat prompt,
                          Render(count, goes_on ? Ending::kContinued : Ending::kOpened));
    return std::move(prompt.text);
  }

  // The parts of `whole`, which is all messages rendered, that answers from message `first` on are.
  Result<std::vector<ByteRange>> Answers(const model::RenderedChat& whole, size_t first) const {
    std::vector<size_t> wanted;
    for (size_t i = first; i < chat_.messages.size(); ++i)
      if (IsAnswer(chat_.messages[i])) wanted.push_back(i);
    if (rules_.train_on == TrainOn::kLast && wanted.size() > 1)
      wanted.erase(wanted.begin(), wanted.end() - 1);
    if (wanted.empty()) return std::vector<ByteRange>();
    return whole.has_generation_blocks ? Marked(whole, wanted) : Between(whole, wanted);
  }

  // Whether `whole`, which ends with an answer, ends with more than that: some templates open the
  // next answer whether or not they are asked to, as they do in `prompt`, which is what precedes
  // this one. With another question behind it that end is not there.
  bool OpensAnother(const std::string& whole, const std::string& prompt) const {
    const model::ChatTemplate& used = Template();
    if (HasWord(used.source(), "add_generation_prompt")) return false;
    Chat asked = chat_;
    asked.messages.push_back(ChatMessage("user", "x"));
    const auto more = Rendering(asked, context_).Render(asked.messages.size(), Ending::kPlain);
    if (!more.ok()) return false;
    const auto end =
        std::mismatch(whole.begin(), whole.end(), more->text.begin(), more->text.end());
    const std::string_view rest(end.first, whole.end());
    return !Trim(rest).empty() && rest.size() <= whole.size() - prompt.size() &&
           std::string_view(prompt).ends_with(rest);
  }

 private:
  const model::ChatTemplate& Template() const {
    const bool tools = !chat_.tools.is_null() && rules_.with_tools;
    return tools ? *rules_.with_tools : rules_.chat;
  }

  // Blocks do not say whose they are: those of earlier answers are in what precedes the first that
  // is wanted, where all of the others come behind it.
  Result<std::vector<ByteRange>> Marked(const model::RenderedChat& whole,
                                        const std::vector<size_t>& wanted) const {
    const bool all =
        std::none_of(chat_.messages.begin(),
                     chat_.messages.begin() + static_cast<std::ptrdiff_t>(wanted[0]), IsAnswer);
    if (all) return whole.assistant;
    KEEL_ASSIGN_OR_RETURN(const model::RenderedChat before, Render(wanted[0], Ending::kPlain));
    size_t earlier = 0;
    if (whole.text.starts_with(before.text)) {
      const auto from = static_cast<int64_t>(before.text.size());
      while (earlier < whole.assistant.size() && whole.assistant[earlier].end <= from) ++earlier;
    } else {
      // With an answer behind them earlier ones may lose what was thought, which they begin with.
      earlier = before.assistant.size();
      if (whole.assistant.size() <= earlier) return BlocksCannotBeTold(wanted[0]);
      for (size_t i = 0; i < earlier; ++i)
        if (!Of(before, i).ends_with(Of(whole, i))) return BlocksCannotBeTold(wanted[0]);
    }
    return std::vector<ByteRange>(whole.assistant.begin() + static_cast<std::ptrdiff_t>(earlier),
                                  whole.assistant.end());
  }

  static std::string_view Of(const model::RenderedChat& chat, size_t block) {
    const ByteRange& range = chat.assistant[block];
    return std::string_view(chat.text).substr(static_cast<size_t>(range.begin),
                                              static_cast<size_t>(range.end - range.begin));
  }

  Result<std::vector<ByteRange>> Between(const model::RenderedChat& whole,
                                         const std::vector<size_t>& wanted) const {
    std::vector<ByteRange> ranges;
    // Whether the last answer could be told where an earlier one cannot.
    const auto last_is_told = [&](size_t answer) {
      return answer != wanted.back() && Between(whole, {wanted.back()}).ok();
    };
    for (const size_t answer : wanted) {
      const Result<model::RenderedChat> opened = Render(answer, Ending::kOpened);
      if (answer == 0 && !opened.ok()) return BeginsWithAnswer(opened.status());
      KEEL_ASSIGN_OR_RETURN(const auto before, opened);
      std::string_view until = whole.text;
      model::RenderedChat with;
      if (answer + 1 < chat_.messages.size()) {
        KEEL_ASSIGN_OR_RETURN(with, Render(answer + 1, Ending::kPlain));
        until = with.text;
      }
      if (!until.starts_with(before.text)) return OpenedOtherwise(answer, last_is_told(answer));
      if (!whole.text.starts_with(until)) return EndedOtherwise(answer, last_is_told(answer));
      if (answer + 1 == chat_.messages.size() && OpensAnother(whole.text, before.text))
        return Malformed(context_.where, std::string(kOpensAnother));
      ranges.push_back(
          {static_cast<int64_t>(before.text.size()), static_cast<int64_t>(until.size())});
    }
    return ranges;
  }

  Status BeginsWithAnswer(const Status& why) const {
    return Malformed(
        context_.where,
        fmt::format("the first message is the assistant's, and the template cannot be asked what "
                    "it writes before one ({}): begin with a system's or user's message, give a "
                    "template with {{% generation %}} blocks (data.chat_template), or rows of "
                    "input_ids and labels",
                    why.message()));
  }

  Status BlocksCannotBeTold(size_t answer) const {
    return Malformed(
        context_.where,
        fmt::format("which {{% generation %}} blocks are the answer of message {} cannot be told: "
                    "the template writes the answers before it otherwise when they stand alone; "
                    "give one that does not (data.chat_template), or rows of input_ids and labels",
                    answer + 1));
  }

  Status OpenedOtherwise(size_t answer, bool last_is_told) const {
    return CannotBeTold(answer,
                        "the template writes the messages before it, with an answer opened, "
                        "otherwise when they stand alone",
                        last_is_told);
  }

  Status EndedOtherwise(size_t answer, bool last_is_told) const {
    return CannotBeTold(answer,
                        "the template writes the messages up to it otherwise when they stand alone",
                        last_is_told);
  }

  Status CannotBeTold(size_t answer, std::string_view why, bool last_is_told) const {
    return Malformed(
        context_.where,
        fmt::format("which tokens are the answer of message {} cannot be told: {}; {}give a "
                    "template with {{% generation %}} blocks (data.chat_template), or rows of "
                    "input_ids and labels",
                    answer + 1, why, last_is_told ? "set data.train_on to last, " : ""));
  }

  const Chat& chat_;
  const RowContext& context_;
  const ChatRules& rules_;
  const bool has_parts_;
};

// The text of a conversation, where a model is asked with an answer opened, or "" where its
// template refuses it.
std::string Shown(const Chat& chat, const RowContext& context) {
  const Rendering rendering(chat, context);
  const size_t count = chat.messages.size();
  if (context.shows_what_it_can) {
    auto prompt = rendering.Prompt(count, Follows::kMoreOfIt);
    return prompt.ok() ? *std::move(prompt) : "";
  }
  const auto shown = rendering.Render(count, Ending::kPlain);
  return shown.ok() ? shown->text : "";
}

// Refuses, or counts where the model is only asked, what would change the text if the template had
// a word of it: {"tool_calls": ...} under one that writes contents alone, and a row's tools where
// the text is the same without them. Other members that no text has are counted; ids that tie a
// result to its call are no part of what is said.
Status CheckShown(const Chat& chat, bool own_tools, const RowContext& context,
                  const std::string& key) {
  const ChatRules& rules = RulesOf(context);
  const bool tools = !chat.tools.is_null() && rules.with_tools;
  const std::string& source = (tools ? *rules.with_tools : rules.chat).source();
  const auto hidden = [&](const std::string& name) {
    const auto& reasoning = model::kReasoningFields;
    if (std::find(reasoning.begin(), reasoning.end(), name) != reasoning.end()) {
      // A template is shown it under its own name and the two that templates read. The words may
      // stand for an argument, too.
      return !HasWord(source, name, Stands::kAsMember) &&
             !HasWord(source, reasoning[0], Stands::kAsMember) &&
             !HasWord(source, reasoning[1], Stands::kAsMember);
    }
    return name != "role" && name != "content" && name != "tool_call_id" && !HasWord(source, name);
  };
  Chat without = chat;
  std::vector<std::pair<std::string, Json>> members;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    for (const auto& [name, value] : chat.messages[i].items()) {
      if (!hidden(name)) continue;
      without.messages[i].erase(name);
      members.emplace_back(name, value);
    }
  }
  const bool asks_tools = own_tools && !chat.tools.is_null();
  if (members.empty() && !asks_tools) return Status::Ok();
  const std::string shown = Shown(chat, context);
  if (shown.empty()) return Status::Ok();  // whoever renders it is told why
  const auto look = [&](const std::string& name, const Json& value, const std::string& prefix) {
    if (context.shows_what_it_can) {
      context.notes.CountUnshown(Json{{name, value}}, {}, prefix);
      return Status::Ok();
    }
    return context.notes.Look(Json{{name, value}}, {}, RowNotes::Form::kText, context.where,
                              prefix);
  };
  // A template may write whole messages down without a word of what is in them.
  if (!members.empty() && shown == Shown(without, context)) {
    for (const auto& [name, value] : members) KEEL_RETURN_IF_ERROR(look(name, value, key + "[]."));
  }
  if (!asks_tools) return Status::Ok();
  without = chat;
  without.tools = Json();
  return shown == Shown(without, context) ? look("tools", chat.tools, "") : Status::Ok();
}

// OpenAI's calls hold their arguments as JSON in a string, which a template that writes arguments
// as JSON encodes once more, as transformers has it do too. `text` is the prompt with what
// `follows`, or all of the conversation. Rendered again until the first row that shows it.
void CountTextArguments(const Chat& chat, const std::string& text, std::optional<Follows> follows,
                        const RowContext& context) {
  auto parsed = WithParsedArguments(chat.messages, text);
  if (!parsed) return;
  if (!context.notes.has_text_arguments()) {
    Chat given = chat;
    given.messages = *std::move(parsed);
    const Rendering rendering(given, context);
    const size_t count = given.messages.size();
    if (follows) {
      const auto prompt = rendering.Prompt(count, *follows);
      if (!prompt.ok() || *prompt == text) return;
    } else {
      const auto whole = rendering.Render(count, Ending::kPlain);
      if (!whole.ok() || whole->text == text) return;
    }
  }
  context.notes.CountTextArguments();
}

// Messages of a misspelt role, or of another trainer's, are shown and not learnt, which nobody
// would see: but where the template marks them as the model's.
void CountUnlearntRoles(const Chat& chat, const model::RenderedChat& whole, size_t first,
                        RowNotes& notes) {
  const auto is_marked = [&](const Json& message) {
    return std::any_of(whole.assistant.begin(), whole.assistant.end(), [&](const ByteRange& block) {
      const auto size = static_cast<size_t>(block.end - block.begin);
      return whole.text.substr(static_cast<size_t>(block.begin), size).find(SaidIn(message)) !=
             std::string::npos;
    });
  };
  for (size_t i = first; i < chat.messages.size(); ++i) {
    const auto role = chat.messages[i]["role"].get<std::string>();
    if (!IsKnownRole(role) && !is_marked(chat.messages[i])) notes.CountUnlearntRole(role);
  }
}

Result<model::Encoding> Encode(const std::string& text, const RowContext& context) {
  model::Encoding encoding;
  const Status encoded = Guarded([&]() -> Status {
    // Spaces are an answer's, too.
    encoding = context.rules.tokenizer->EncodeWithOffsets(text, {.trims_offsets = false});
    return Status::Ok();
  });
  KEEL_RETURN_IF_ERROR(encoded.WithContext(context.where));
  return encoding;
}

// One past the last token of [begin, end) that belongs to an answer: white space behind a special
// token is the template's, which nobody generates.
size_t EndOfAnswer(std::string_view text, const model::Encoding& encoding, size_t begin, size_t end,
                   const model::Tokenizer& tokenizer) {
  size_t last = end;
  while (last > begin) {
    const ByteRange& range = encoding.offsets[last - 1];
    const std::string_view piece =
        text.substr(static_cast<size_t>(range.begin), static_cast<size_t>(range.end - range.begin));
    if (!Trim(piece).empty()) break;
    --last;
  }
  return last > begin && tokenizer.IsSpecial(encoding.ids[last - 1]) ? last : end;
}

// What ends the answer whose tokens are [begin, end), and is itself none of them: some templates
// write an end only behind what another message follows, so that it is in no text up to the answer.
// end where nothing does.
size_t WithEndBehind(const model::Encoding& encoding, size_t begin, size_t end,
                     const model::Tokenizer& tokenizer) {
  if (begin == end || tokenizer.IsSpecial(encoding.ids[end - 1])) return end;
  return end < encoding.ids.size() && encoding.ids[end] == tokenizer.eos() ? end + 1 : end;
}

}  // namespace

std::vector<std::string_view> ChatKeys(const TextRules& rules) {
  if (!AsksInMessages(rules)) return {};
  return {"tools", "documents", "chat_template_kwargs", "enable_thinking"};
}

bool AsksInMessages(const TextRules& rules) {
  return rules.chat != nullptr ? !rules.chat->chatml : rules.chat_unusable;
}

Json ChatMessage(std::string_view role, std::string_view text) {
  return {{"role", role}, {"content", text}};
}

std::string SaidIn(const Json& message) {
  const auto content = message.find("content");
  if (content == message.end()) return "";
  if (content->is_string()) return content->get<std::string>();
  std::string said;
  if (content->is_array())
    for (const Json& part : *content)
      said += (part.is_string() ? part : part.at("text")).get<std::string>();
  return said;
}

Result<Chat> ReadChat(const Json& messages, const Json& row, const RowContext& context,
                      const std::string& key) {
  const std::string where = context.where + ": " + key;
  if (!messages.is_array() || messages.empty())
    return Malformed(where, "expected a list of messages");
  if (context.rules.tokenizer == nullptr) return EncodeText("", context).status();
  if (!context.rules.no_chat.empty()) {
    return Malformed(context.where, fmt::format("{}, but {}; or render them ahead and give "
                                                "input_ids",
                                                key, context.rules.no_chat));
  }
  Chat chat;
  chat.messages = context.from_table ? WithoutNulls(messages) : WithoutNullMembers(messages);
  const ChatRules& rules = RulesOf(context);
  // Lists that were joined are numbered otherwise than the row's.
  const auto list = row.find(key);
  const bool own = list != row.end() && list->is_array() && list->size() == messages.size();
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const Json& message = chat.messages[i];
    const std::string which = own ? fmt::format("{}[{}]", where, i) : where;
    KEEL_RETURN_IF_ERROR(rules.chatml ? CheckChatMlMessage(message, context, key, which)
                                      : CheckMessage(message, which));
  }
  chat.arguments = rules.arguments;
  if (rules.chatml) return chat;
  KEEL_ASSIGN_OR_RETURN(chat.tools, ReadColumn(row, "tools", Json::value_t::array, context));
  const bool own_tools = !chat.tools.is_null();
  if (!own_tools) chat.tools = context.tools.value_or(rules.tools);
  if (!chat.tools.is_null() && !rules.no_tools.empty())
    return Malformed(context.where, fmt::format("{} with tools, but {}", key, rules.no_tools));
  KEEL_ASSIGN_OR_RETURN(chat.documents,
                        ReadColumn(row, "documents", Json::value_t::array, context));
  KEEL_ASSIGN_OR_RETURN(const Json arguments,
                        ReadColumn(row, "chat_template_kwargs", Json::value_t::object, context));
  if (!arguments.is_null()) chat.arguments.update(arguments);
  if (const auto thinking = row.find("enable_thinking");
      thinking != row.end() && !thinking->is_null()) {
    if (!thinking->is_boolean())
      return Malformed(context.where, "enable_thinking: expected true or false");
    chat.arguments["enable_thinking"] = *thinking;
  }
  KEEL_RETURN_IF_ERROR(CheckShown(chat, own_tools, context, key));
  return chat;
}

Result<std::vector<int32_t>> ChatPrompt(const Chat& chat, const RowContext& context,
                                        Follows follows) {
  KEEL_ASSIGN_OR_RETURN(const std::string text,
                        Rendering(chat, context).Prompt(chat.messages.size(), follows));
  CountTextArguments(chat, text, follows, context);
  return EncodeMore(text, context);
}

Result<TokenRow> ChatText(const Chat& chat, const RowContext& context) {
  KEEL_ASSIGN_OR_RETURN(const model::RenderedChat whole,
                        Rendering(chat, context).Render(chat.messages.size(), Ending::kPlain));
  CountTextArguments(chat, whole.text, std::nullopt, context);
  TokenRow row;
  KEEL_ASSIGN_OR_RETURN(row.tokens, EncodeMore(whole.text, context));
  row.learn.assign(row.tokens.size(), 0);
  return row;
}

Result<TokenRow> ChatRow(const Chat& chat, size_t first, const RowContext& context) {
  const Rendering rendering(chat, context);
  KEEL_ASSIGN_OR_RETURN(const model::RenderedChat whole,
                        rendering.Render(chat.messages.size(), Ending::kPlain));
  KEEL_ASSIGN_OR_RETURN(const std::vector<ByteRange> answers, rendering.Answers(whole, first));
  CountUnlearntRoles(chat, whole, first, context.notes);
  CountTextArguments(chat, whole.text, std::nullopt, context);
  KEEL_ASSIGN_OR_RETURN(const model::Encoding encoding, Encode(whole.text, context));
  TokenRow row;
  row.tokens = encoding.ids;
  row.learn.assign(row.tokens.size(), 0);
  const model::Tokenizer& tokenizer = *context.rules.tokenizer;
  // A token that an answer's first byte lies in is the answer's, as transformers' masks have it.
  size_t token = 0;
  bool ends = true;
  for (const ByteRange& answer : answers) {
    const auto& offsets = encoding.offsets;
    while (token < offsets.size() && offsets[token].end <= answer.begin) ++token;
    size_t begin = token;
    while (token < offsets.size() && offsets[token].begin < answer.end) ++token;
    size_t end = token;
    if (!whole.has_generation_blocks) {
      // White space behind a special token of the prompt may be part of that.
      if (begin < end && offsets[begin].begin < answer.begin &&
          tokenizer.IsSpecial(row.tokens[begin]))
        ++begin;
      end = EndOfAnswer(whole.text, encoding, begin, end, tokenizer);
      end = WithEndBehind(encoding, begin, end, tokenizer);
      ends = ends && (begin == end || tokenizer.IsSpecial(row.tokens[end - 1]));
    }
    for (size_t i = begin; i < end; ++i) row.learn[i] = 1;
  }
  // (Bytes have no token of a template's.)
  if (!ends && context.rules.tokenizer_name != "bytes") context.notes.CountUnended();
  return row;
}

Result<std::vector<int32_t>> ChatAnswer(const Chat& chat, size_t prompt_size,
                                        const RowContext& context) {
  const Rendering rendering(chat, context);
  KEEL_ASSIGN_OR_RETURN(const model::RenderedChat whole,
                        rendering.Render(chat.messages.size(), Ending::kPlain));
  CountTextArguments(chat, whole.text, std::nullopt, context);
  KEEL_ASSIGN_OR_RETURN(const std::string prompt, rendering.Prompt(prompt_size, Follows::kAnother));
  if (!whole.text.starts_with(prompt)) {
    return Malformed(context.where,
                     "the conversation with its answer does not begin as the prompt by itself, "
                     "with an answer opened: the template writes the two otherwise; give "
                     "prompt_input_ids, chosen_input_ids and rejected_input_ids");
  }
  if (!whole.has_generation_blocks && rendering.OpensAnother(whole.text, prompt))
    return Malformed(context.where, std::string(kOpensAnother));
  std::string text = whole.text;
  const bool marked = whole.has_generation_blocks && !whole.assistant.empty();
  if (marked) {
    const auto end = static_cast<size_t>(whole.assistant.back().end);
    if (end > prompt.size()) text.resize(end);
  }
  // As a part of the conversation, which a tokenizer that begins texts with a space tells from a
  // text; by itself where a token of the conversation would have some of both.
  KEEL_ASSIGN_OR_RETURN(const std::vector<int32_t> before, EncodeMore(prompt, context));
  KEEL_ASSIGN_OR_RETURN(model::Encoding encoding, Encode(text, context));
  size_t begin = before.size();
  if (encoding.ids.size() < begin ||
      !std::equal(before.begin(), before.end(), encoding.ids.begin())) {
    begin = 0;
    text.erase(0, prompt.size());
    KEEL_ASSIGN_OR_RETURN(encoding, Encode(text, context));
  }
  size_t end = encoding.ids.size();
  if (!marked) end = EndOfAnswer(text, encoding, begin, end, *context.rules.tokenizer);
  return std::vector<int32_t>(encoding.ids.begin() + static_cast<std::ptrdiff_t>(begin),
                              encoding.ids.begin() + static_cast<std::ptrdiff_t>(end));
}

}  // namespace keel::trainer
