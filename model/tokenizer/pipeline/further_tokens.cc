#include "model/tokenizer/pipeline/further_tokens.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "common/text.h"

namespace keel::model {

namespace {

int32_t NextId(const Vocabulary& vocabulary, const std::vector<AddedToken>& added) {
  int32_t next = vocabulary.count();
  for (const AddedToken& own : added) next = std::max(next, own.id + 1);
  return next;
}

// With the vocabulary's id, or the next one.
void Append(AddedToken token, const Vocabulary& vocabulary, std::vector<AddedToken>* added) {
  token.id = vocabulary.IdOf(token.content).value_or(NextId(vocabulary, *added));
  added->push_back(std::move(token));
}

Status CheckTwoFiles(const FurtherTokens& further, const Vocabulary& vocabulary,
                     std::string_view where, const std::vector<AddedToken>& added) {
  // Those of the vocabulary have their ids, and are found in texts once they are added.
  const auto lacking = [&](const std::vector<std::string>& names, bool in_vocabulary) {
    std::set<std::string> lacks;
    for (const std::string& name : names) {
      const bool there = std::ranges::find(added, name, &AddedToken::content) != added.end();
      if (!there && (in_vocabulary || !vocabulary.IdOf(name))) lacks.insert(name);
    }
    return lacks;
  };
  std::set<std::string> of_both = lacking(further.of_first, false);
  const std::set<std::string> of_second = lacking(further.of_second, false);
  const bool each = !of_both.empty() && !of_second.empty();
  of_both.insert(of_second.begin(), of_second.end());
  const std::set<std::string> disputed = lacking(further.disputed, true);
  if ((!each || of_both.size() < 2) && disputed.empty()) return Status::Ok();
  of_both.insert(disputed.begin(), disputed.end());
  return Status(
      StatusCode::kInvalidData,
      fmt::format("{}: name tokens that {} does not have as added tokens, and not the same: "
                  "{}; versions of transformers give them other ids. What "
                  "AutoTokenizer.from_pretrained(DIR).save_pretrained(OUT) writes, by the version "
                  "that the model was trained with, has them in one file",
                  further.two_files, where,
                  Printable(fmt::format("{}", fmt::join(of_both, ", ")), 300)));
}

}  // namespace

Result<std::optional<AddedToken>> ReadNamedToken(const Json& json, std::string_view where) {
  AddedToken token;
  if (json.is_string()) {
    token.content = json.get<std::string>();
    token.special = true;
    return std::optional(token);
  }
  if (!json.is_object() || !json.contains("content") || !json["content"].is_string())
    return std::optional<AddedToken>();
  token.content = json["content"].get<std::string>();
  const auto flag = [&](const char* key, bool fallback, bool* to) -> Status {
    *to = fallback;
    if (!json.contains(key)) return Status::Ok();
    KEEL_ASSIGN_OR_RETURN(*to, GetBool(json, key, where));
    return Status::Ok();
  };
  KEEL_RETURN_IF_ERROR(flag("special", false, &token.special));
  KEEL_RETURN_IF_ERROR(flag("single_word", false, &token.single_word));
  KEEL_RETURN_IF_ERROR(flag("lstrip", false, &token.lstrip));
  KEEL_RETURN_IF_ERROR(flag("rstrip", false, &token.rstrip));
  KEEL_RETURN_IF_ERROR(flag("normalized", !token.special, &token.normalized));
  return std::optional(token);
}

Result<std::vector<AddedToken>> ReadAddedTokensFile(const Json& file,
                                                    const std::vector<std::string>& special,
                                                    std::string_view where) {
  std::vector<AddedToken> tokens;
  for (const auto& [content, id] : file.items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
        id.get<int64_t>() >= Vocabulary::kMaxId) {
      return Status(
          StatusCode::kInvalidData,
          fmt::format("{}: \"{}\" has {}, expected an id from 0 to {}", where,
                      Printable(content, 60), Printable(id.dump(), 60), Vocabulary::kMaxId - 1));
    }
    AddedToken token{content, static_cast<int32_t>(id.get<int64_t>())};
    token.special = std::ranges::find(special, content) != special.end();
    token.normalized = !token.special;
    tokens.push_back(std::move(token));
  }
  std::ranges::sort(tokens, {}, &AddedToken::id);
  return tokens;
}

Status AddFurther(const FurtherTokens& further, const Vocabulary& vocabulary,
                  std::string_view where, std::vector<AddedToken>* added) {
  int32_t next = NextId(vocabulary, *added);
  for (const AddedToken& token : further.tokens) {
    const auto own = std::ranges::find(*added, token.content, &AddedToken::content);
    std::optional<int32_t> known = vocabulary.IdOf(token.content);
    if (own != added->end()) known = own->id;
    const auto taken = std::ranges::find(*added, token.id, &AddedToken::id);
    const bool free = own == added->end() && taken == added->end();
    if (token.id != known.value_or(next) || (!known && (!free || vocabulary.Has(next)))) {
      return Status(
          StatusCode::kInvalidData,
          fmt::format("{}: has \"{}\" as {}, but {} {} {}: the files belong to different "
                      "tokenizers; leave out the one that is not the model's",
                      further.where, Printable(token.content, 60), token.id, where,
                      known ? "has it as" : "lacks it, and its next id is", known.value_or(next)));
    }
    if (own != added->end()) continue;  // with the flags that its own file gives it
    added->push_back(token);
    next = std::max(next, token.id + 1);
  }
  for (const AddedToken& token : further.declared) {
    const auto own = std::ranges::find(*added, token.content, &AddedToken::content);
    if (own == added->end()) {
      Append(token, vocabulary, added);
    } else {
      // Another id is refused by those who know the whole tokenizer. One that was special is left
      // out of texts for good.
      const AddedToken was = std::exchange(*own, token);
      own->id = was.id;
      own->special = was.special || token.special;
    }
  }
  return Status::Ok();
}

Status AddNamed(const FurtherTokens& further, const Vocabulary& vocabulary, std::string_view where,
                std::vector<AddedToken>* added) {
  KEEL_RETURN_IF_ERROR(CheckTwoFiles(further, vocabulary, where, *added));
  for (const auto* tokens : {&further.named, &further.extra}) {
    for (const AddedToken& token : *tokens) {
      const auto own = std::ranges::find(*added, token.content, &AddedToken::content);
      if (own == added->end()) {
        Append(token, vocabulary, added);
      } else if (tokens == &further.named && !further.has_decoder) {
        own->special = true;
      }
    }
  }
  return Status::Ok();
}

}  // namespace keel::model
