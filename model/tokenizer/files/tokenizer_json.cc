#include "model/tokenizer/files/tokenizer_json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "common/hash.h"
#include "common/json.h"
#include "common/text.h"
#include "model/tokenizer/pipeline/bpe.h"
#include "model/tokenizer/pipeline/pipeline.h"

namespace keel::model {

namespace {

namespace dom = simdjson::dom;

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr size_t kMaxDepth = 64;

// The vocabulary and the merges have hundreds of thousands of entries: they are read as simdjson
// has them. All else is small, and becomes the project's own Json.
class TokenizerJsonReader {
 public:
  explicit TokenizerJsonReader(std::string_view where) : where_(where) {}

  TokenizerFile Read(std::string_view bytes) {
    if (bytes.size() > kMaxFileBytes) {
      Refuse(fmt::format("it has {} bytes; up to {} are read", bytes.size(), kMaxFileBytes));
    }
    Check(parser_.allocate(bytes.size() + 1, kMaxDepth), "the file");
    dom::element root;
    Check(parser_.parse(bytes.data(), bytes.size(), true).get(root), "the file");
    dom::object file;
    if (root.get(file) != simdjson::SUCCESS) Refuse("a JSON object is expected");
    RefuseOtherKeys(file,
                    {"version", "truncation", "padding", "added_tokens", "normalizer",
                     "pre_tokenizer", "post_processor", "decoder", "model"},
                    "the file");

    TokenizerFile read;
    PipelineParts& parts = read.parts;
    if (const auto padding = FindAs<dom::object>(file, "padding", "the file", "an object")) {
      if (const auto pad = FindAs<std::string_view>(*padding, "pad_token", "padding", "a string"))
        read.pad_token = *pad;
    }
    std::string version;
    if (const auto element = Find(file, "version")) version = simdjson::minify(*element);
    if (!version.empty() && version != "\"1.0\"") {
      Refuse(fmt::format("it has the version {}; \"1.0\" is read", Printable(version)));
    }
    parts.bpe = ReadModel(file);
    parts.added = ReadAddedTokens(file);
    WithComponent(file, "normalizer",
                  [&](const Component& c) { parts.normalizer = MakeNormalizer(c); });
    WithComponent(file, "pre_tokenizer",
                  [&](const Component& c) { parts.pre_tokenizers = MakePreTokenizers(c); });
    WithComponent(file, "post_processor",
                  [&](const Component& c) { parts.post_processor = MakePostProcessor(c); });
    WithComponent(file, "decoder", [&](const Component& c) {
      parts.decoders = MakeDecoders(c);
      parts.spaces = false;
    });
    return read;
  }

 private:
  [[noreturn]] void Refuse(std::string_view problem) const {
    throw Error(StatusCode::kInvalidData, fmt::format("{}: {}", where_, problem));
  }
  void Check(simdjson::error_code code, std::string_view what) const {
    if (code == simdjson::SUCCESS) return;
    Refuse(fmt::format("{} is not read as JSON: {}", what, simdjson::error_message(code)));
  }

  // Nothing when the key is absent or null.
  static std::optional<dom::element> Find(const dom::object& object, std::string_view key) {
    dom::element element;
    if (object.at_key(key).get(element) != simdjson::SUCCESS || element.is_null()) {
      return std::nullopt;
    }
    return element;
  }
  template <typename T>
  std::optional<T> FindAs(const dom::object& object, std::string_view key, std::string_view what,
                          std::string_view type) const {
    const auto element = Find(object, key);
    if (!element) return std::nullopt;
    T value;
    if (element->get(value) != simdjson::SUCCESS) {
      Refuse(fmt::format("{}: {} must be {}", what, key, type));
    }
    return value;
  }
  bool Flag(const dom::object& object, std::string_view key, std::string_view what) const {
    return FindAs<bool>(object, key, what, "true or false").value_or(false);
  }
  void RefuseOtherKeys(const dom::object& object, const std::vector<std::string_view>& keys,
                       std::string_view what) const {
    std::vector<std::string_view> seen;
    for (const auto field : object) {
      if (std::ranges::find(keys, field.key) == keys.end()) {
        Refuse(
            fmt::format("{} has a key \"{}\" that Keel does not know", what, Printable(field.key)));
      }
      if (std::ranges::find(seen, field.key) != seen.end()) {
        Refuse(fmt::format("{} has the key \"{}\" twice", what, Printable(field.key)));
      }
      seen.push_back(field.key);
    }
  }

  template <typename Body>
  void WithComponent(const dom::object& file, std::string_view key, const Body& body) const {
    const auto element = Find(file, key);
    if (!element) return;
    const Json json = ValueOrThrow(ParseJson(simdjson::minify(*element), where_));
    body(Component(json, fmt::format("{}: {}", where_, key)));
  }

  std::vector<AddedToken> ReadAddedTokens(const dom::object& file) const {
    std::vector<AddedToken> tokens;
    const auto list = FindAs<dom::array>(file, "added_tokens", "the file", "a list");
    if (!list) return tokens;
    for (const dom::element element : *list) {
      const std::string what = fmt::format("added_tokens[{}]", tokens.size());
      dom::object object;
      if (element.get(object) != simdjson::SUCCESS) Refuse(what + " must be an object");
      RefuseOtherKeys(object,
                      {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"},
                      what);
      const auto content = FindAs<std::string_view>(object, "content", what, "a string");
      const auto id = FindAs<int64_t>(object, "id", what, "an id");
      if (!content || !id) Refuse(what + " must have content and id");
      if (*id < 0 || *id >= Vocabulary::kMaxId) {
        Refuse(fmt::format("{}: the id {} is not from 0 to {}", what, *id, Vocabulary::kMaxId - 1));
      }
      AddedToken token{std::string(*content), static_cast<int32_t>(*id)};
      token.single_word = Flag(object, "single_word", what);
      token.lstrip = Flag(object, "lstrip", what);
      token.rstrip = Flag(object, "rstrip", what);
      token.normalized = Flag(object, "normalized", what);
      token.special = Flag(object, "special", what);
      tokens.push_back(std::move(token));
    }
    return tokens;
  }

  std::unique_ptr<Bpe> ReadModel(const dom::object& file) const {
    const auto model = FindAs<dom::object>(file, "model", "the file", "an object");
    if (!model) Refuse("it has no model");
    const auto type = FindAs<std::string_view>(*model, "type", "model", "a string");
    // Files from before 0.8 do not name the type; only BPE has merges.
    if (type ? *type != "BPE" : !Find(*model, "merges")) {
      Refuse(fmt::format("the model \"{}\" is not supported; BPE is",
                         type ? Printable(*type) : std::string()));
    }
    RefuseOtherKeys(
        *model,
        {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
         "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"},
        "model");
    if (const auto dropout = FindAs<double>(*model, "dropout", "model", "a number");
        dropout && *dropout != 0) {
      Refuse("model.dropout is not 0: the same text would have other ids each time");
    }
    for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const auto affix = FindAs<std::string_view>(*model, key, "model", "a string");
      if (affix && !affix->empty()) Refuse(fmt::format("model.{} is not supported", key));
    }
    Vocabulary vocabulary = ReadVocabulary(*model);
    BpeOptions options;
    options.ignore_merges = Flag(*model, "ignore_merges", "model");
    options.byte_fallback = Flag(*model, "byte_fallback", "model");
    options.fuse_unk = Flag(*model, "fuse_unk", "model");
    if (const auto unk = FindAs<std::string_view>(*model, "unk_token", "model", "a string")) {
      options.unk = vocabulary.IdOf(*unk);
      if (!options.unk) {
        Refuse(fmt::format("model.unk_token \"{}\" is not in the vocabulary", Printable(*unk)));
      }
    }
    auto bpe = std::make_unique<Bpe>(std::move(vocabulary), options);
    ReadMerges(*model, bpe.get());
    return bpe;
  }

  Vocabulary ReadVocabulary(const dom::object& model) const {
    const auto vocab = FindAs<dom::object>(model, "vocab", "model", "an object of ids by token");
    if (!vocab) Refuse("model has no vocab");
    Vocabulary vocabulary;
    vocabulary.Expect(vocab->size());
    for (const auto field : *vocab) {
      int64_t id = 0;
      if (field.value.get(id) != simdjson::SUCCESS) {
        Refuse(fmt::format("model.vocab: the id of \"{}\" is no integer", Printable(field.key)));
      }
      ThrowIfError(vocabulary.Add(field.key, id).WithContext(where_));
    }
    ThrowIfError(vocabulary.Index().WithContext(where_));
    return vocabulary;
  }

  // "a b", or ["a", "b"] since 0.20, which lets tokens have spaces.
  void ReadMerges(const dom::object& model, Bpe* bpe) const {
    const auto merges = FindAs<dom::array>(model, "merges", "model", "a list");
    if (!merges) Refuse("model has no merges");
    bpe->ReserveMerges(merges->size());
    size_t index = 0;
    for (const dom::element merge : *merges) {
      std::array<std::string_view, 2> parts;
      std::string_view both;
      dom::array pair;
      bool good = false;
      if (merge.get(both) == simdjson::SUCCESS) {
        const size_t space = both.find(' ');
        good = space != std::string_view::npos && both.find(' ', space + 1) == both.npos;
        if (good) parts = {both.substr(0, space), both.substr(space + 1)};
      } else if (merge.get(pair) == simdjson::SUCCESS) {
        good = pair.size() == 2 && pair.at(0).get(parts[0]) == simdjson::SUCCESS &&
               pair.at(1).get(parts[1]) == simdjson::SUCCESS;
      }
      if (!good) {
        Refuse(fmt::format("model.merges[{}] is neither \"a b\" nor [\"a\", \"b\"]", index));
      }
      ThrowIfError(bpe->AddMerge(parts[0], parts[1]).WithContext(where_));
      ++index;
    }
  }

  std::string where_;
  dom::parser parser_;
};

// The id of a name, among added tokens and the vocabulary.
std::optional<int32_t> IdOfName(const PipelineParts& parts, const std::optional<std::string>& name,
                                std::string_view key, std::string_view where) {
  if (!name) return std::nullopt;
  for (const AddedToken& token : parts.added) {
    if (token.content == *name) return token.id;
  }
  const auto id = parts.bpe->vocabulary().IdOf(*name);
  if (!id) {
    throw Error(StatusCode::kInvalidData,
                fmt::format("{}: the {} \"{}\" is none of its tokens; name one that it has in "
                            "tokenizer_config.json",
                            where, key, Printable(*name)));
  }
  return id;
}

// `changed`: what other files than added_tokens.json add or change.
Digest128 DigestOf(std::string_view bytes, const SpecialNames& names, const FurtherTokens& further,
                   const std::vector<AddedToken>& changed) {
  Hasher128 hasher;
  const auto update = [&](std::string_view part) {
    const auto size = static_cast<uint64_t>(part.size());
    hasher.Update(std::as_bytes(std::span(&size, 1)));
    hasher.Update(std::as_bytes(std::span(part)));
  };
  update(bytes);
  for (const auto* name : {&names.bos, &names.eos, &names.pad}) update(name->value_or(""));
  for (const AddedToken& token : further.tokens) {
    update(token.content);
    update(fmt::format("{} {}", token.id, token.special));
  }
  for (const AddedToken& token : changed) {
    update(token.content);
    update(fmt::format("{} {} {} {} {} {}", token.id, token.special, token.single_word,
                       token.lstrip, token.rstrip, token.normalized));
  }
  return hasher.Finish();
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> ParseTokenizerJson(std::string_view bytes,
                                                      std::string_view where,
                                                      const SpecialNames& names,
                                                      const FurtherTokens& further) {
  KEEL_ASSIGN_OR_RETURN(TokenizerFile file, ReadTokenizerJson(bytes, where));
  return MakeTokenizer(std::move(file), bytes, where, names, further);
}

Result<TokenizerFile> ReadTokenizerJson(std::string_view bytes, std::string_view where) {
  try {
    return TokenizerJsonReader(where).Read(bytes);
  } catch (const std::exception& e) {
    return StatusOf(e);
  }
}

Result<std::unique_ptr<Tokenizer>> MakeTokenizer(TokenizerFile file, std::string_view bytes,
                                                 std::string_view where, const SpecialNames& names,
                                                 const FurtherTokens& further) {
  try {
    PipelineParts parts = std::move(file.parts);
    std::vector<AddedToken> known = parts.added;
    known.insert(known.end(), further.tokens.begin(), further.tokens.end());
    ThrowIfError(AddFurther(further, parts.bpe->vocabulary(), where, &parts.added));
    parts.bos = IdOfName(parts, names.bos, "bos_token", where);
    parts.eos = IdOfName(parts, names.eos, "eos_token", where);
    parts.pad = IdOfName(parts, names.pad, "pad_token", where);
    ThrowIfError(AddNamed(further, parts.bpe->vocabulary(), where, &parts.added));
    std::vector<AddedToken> changed;
    std::ranges::copy_if(parts.added, std::back_inserter(changed), [&](const AddedToken& token) {
      return std::ranges::find(known, token) == known.end();
    });
    parts.digest = DigestOf(bytes, names, further, changed);
    return MakePipelineTokenizer(std::move(parts), where);
  } catch (const std::exception& e) {
    return StatusOf(e);
  }
}

}  // namespace keel::model
