#include "model/tokenizer/pipeline/further_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "common/text.h"

namespace keel::model {

Result<FurtherTokens> ReadAddedTokensFile(const Json& file, const std::vector<std::string>& special,
                                          std::string where) {
  FurtherTokens further{std::move(where), {}};
  for (const auto& [content, id] : file.items()) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
        id.get<int64_t>() >= Vocabulary::kMaxId) {
      return Status(
          StatusCode::kInvalidData,
          fmt::format("{}: \"{}\" has {}, expected an id from 0 to {}", further.where,
                      Printable(content, 60), Printable(id.dump(), 60), Vocabulary::kMaxId - 1));
    }
    AddedToken token{content, static_cast<int32_t>(id.get<int64_t>())};
    token.special = std::ranges::find(special, content) != special.end();
    token.normalized = !token.special;
    further.tokens.push_back(std::move(token));
  }
  std::ranges::sort(further.tokens, {}, &AddedToken::id);
  return further;
}

Status AddFurther(const FurtherTokens& further, const Vocabulary& vocabulary,
                  std::string_view where, std::vector<AddedToken>* added) {
  int32_t next = vocabulary.count();
  for (const AddedToken& own : *added) next = std::max(next, own.id + 1);
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
  return Status::Ok();
}

}  // namespace keel::model
