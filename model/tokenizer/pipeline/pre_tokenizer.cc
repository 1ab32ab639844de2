#include "model/tokenizer/pipeline/pre_tokenizer.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "model/tokenizer/pipeline/normalizer.h"
#include "model/tokenizer/pipeline/split.h"
#include "model/tokenizer/text/byte_alphabet.h"
#include "model/tokenizer/text/unicode.h"
#include "model/tokenizer/text/utf8.h"

namespace keel::model {

namespace {

constexpr std::string_view kBytePattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Splits the text piece by piece; `find` appends the matches of one, from its begin.
template <typename Find>
void SplitPieces(PreTokens* tokens, PatternScratch* scratch, SplitRule rule, const Find& find) {
  scratch->pieces.clear();
  for (const Span& piece : tokens->pieces) {
    scratch->matches.clear();
    find(piece, &scratch->matches);
    SplitPiece(rule, piece, scratch->matches, &scratch->pieces);
  }
  std::swap(tokens->pieces, scratch->pieces);
}

class SplitPreTokenizer final : public PreTokenizer {
 public:
  SplitPreTokenizer(Pattern pattern, SplitRule rule) : pattern_(std::move(pattern)), rule_(rule) {}
  void Apply(PreTokens* tokens, PatternScratch* scratch) const override {
    const std::string& text = tokens->text.text();
    SplitPieces(tokens, scratch, rule_, [&](const Span& piece, std::vector<Span>* matches) {
      pattern_.FindAll(piece.Of(text), scratch, matches);
    });
  }

 private:
  Pattern pattern_;
  SplitRule rule_;
};

// The class of a character, for pre-tokenizers that need no expression: 0 is none, and each
// character of another class is a match, or each run of the same class.
class ClassPreTokenizer final : public PreTokenizer {
 public:
  using Classify = int (*)(uint32_t code_point);
  ClassPreTokenizer(Classify classify, bool runs, SplitRule rule)
      : classify_(classify), runs_(runs), rule_(rule) {}
  void Apply(PreTokens* tokens, PatternScratch* scratch) const override {
    const std::string& text = tokens->text.text();
    SplitPieces(tokens, scratch, rule_, [&](const Span& piece, std::vector<Span>* matches) {
      int last = 0;
      for (size_t at = 0; at < piece.size();) {
        const CodePoint c = CodePointAt(text, piece.begin + at);
        const int now = classify_(c.value);
        if (now != 0 && runs_ && now == last) {
          matches->back().end = at + c.length;
        } else if (now != 0) {
          matches->push_back({at, at + c.length});
        }
        last = now;
        at += c.length;
      }
    });
  }

 private:
  Classify classify_;
  bool runs_;
  SplitRule rule_;
};

// Rewrites the text piece by piece; `body` writes one piece.
void RewritePieces(PreTokens* tokens,
                   const std::function<void(Span, AlignedText::Rewrite*)>& body) {
  AlignedText::Rewrite rewrite(&tokens->text);
  for (Span& piece : tokens->pieces) {
    const size_t begin = rewrite.size();
    body(piece, &rewrite);
    piece = {begin, rewrite.size()};
  }
  rewrite.Finish();
}

// ByteLevel's add_prefix_space.
class SpacePreTokenizer final : public PreTokenizer {
 public:
  void Apply(PreTokens* tokens, PatternScratch*) const override {
    const std::string& text = tokens->text.text();
    RewritePieces(tokens, [&](Span piece, AlignedText::Rewrite* rewrite) {
      if (piece.size() > 0 && text[piece.begin] != ' ') rewrite->Put(" ", piece.begin);
      rewrite->Keep(piece);
    });
  }
};

class SpellPreTokenizer final : public PreTokenizer {
 public:
  void Apply(PreTokens* tokens, PatternScratch*) const override {
    const std::string& text = tokens->text.text();
    RewritePieces(tokens, [&](Span piece, AlignedText::Rewrite* rewrite) {
      for (size_t at = piece.begin; at < piece.end; ++at) {
        rewrite->Put(alphabet_.CharacterOf(static_cast<unsigned char>(text[at])), at);
      }
    });
  }

 private:
  ByteAlphabet alphabet_;
};

enum class Prefix { kNever, kFirst, kAlways };
constexpr auto NamesOf(Prefix) {
  using enum Prefix;
  return EnumNames<Prefix>({{kNever, "never"}, {kFirst, "first"}, {kAlways, "always"}});
}

class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  MetaspacePreTokenizer(std::string mark, Prefix prefix)
      : mark_(std::move(mark)), prefix_(prefix) {}
  void Apply(PreTokens* tokens, PatternScratch*) const override {
    const std::string& text = tokens->text.text();
    RewritePieces(tokens, [&](Span piece, AlignedText::Rewrite* rewrite) {
      if (piece.size() > 0 && Prefixes(*tokens, piece)) rewrite->Put(mark_, piece.begin);
      size_t kept = piece.begin;
      for (size_t at = piece.begin; at < piece.end; ++at) {
        if (text[at] != ' ') continue;
        rewrite->Keep({kept, at});
        rewrite->Put(mark_, at);
        kept = at + 1;
      }
      rewrite->Keep({kept, piece.end});
    });
  }

 private:
  bool Prefixes(const PreTokens& tokens, Span piece) const {
    if (prefix_ == Prefix::kNever) return false;
    const std::string_view bytes = piece.Of(tokens.text.text());
    if (bytes.starts_with(' ') || bytes.starts_with(mark_)) return false;
    // First is each piece that the text's first character has become a part of.
    return prefix_ == Prefix::kAlways || tokens.text.IsOfFirst(piece.begin);
  }

  std::string mark_;
  Prefix prefix_;
};

SplitBehavior ReadBehavior(const Component& component, std::string_view key,
                           std::string_view fallback) {
  const std::string name = component.String(key, fallback);
  const auto behavior = ParseName<SplitBehavior>(name);
  if (!behavior) component.Refuse(fmt::format("the behavior is none of the five of Split"));
  return *behavior;
}

void AddMetaspace(const Component& component, PreTokenizers* all) {
  component.RefuseOtherKeys(
      {"replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"});
  const std::string mark = component.String("replacement");
  if (mark.empty() || Utf8Length(mark[0]) != mark.size()) {
    component.Refuse("the replacement must be one character");
  }
  auto prefix = ParseName<Prefix>(component.String("prepend_scheme", "always"));
  if (!prefix) component.Refuse("prepend_scheme must be always, first or never");
  // Files from before prepend_scheme say the same by a flag.
  if (!component.Bool("add_prefix_space", true)) {
    if (component.Find("prepend_scheme") != nullptr && prefix != Prefix::kNever) {
      component.Refuse("add_prefix_space is false, but prepend_scheme is not never");
    }
    prefix = Prefix::kNever;
  }
  all->steps.push_back(std::make_unique<MetaspacePreTokenizer>(mark, *prefix));
  if (component.Bool("split", true)) {
    all->steps.push_back(
        std::make_unique<SplitPreTokenizer>(ValueOrThrow(Pattern::Literal(mark, component.where())),
                                            SplitRule{SplitBehavior::kMergedWithNext, false}));
  }
}

void AddByteLevel(const Component& component, PreTokenizers* all) {
  component.RefuseOtherKeys({"add_prefix_space", "trim_offsets", "use_regex"});
  if (component.Bool("add_prefix_space", true)) {
    all->steps.push_back(std::make_unique<SpacePreTokenizer>());
  }
  if (component.Bool("use_regex", true)) {
    all->steps.push_back(std::make_unique<SplitPreTokenizer>(
        ValueOrThrow(Pattern::Regex(kBytePattern, component.where())), SplitRule{}));
  }
  all->spells_bytes = true;
}

void AddClasses(const Component& component, PreTokenizers* all) {
  const std::string& type = component.type();
  const auto add = [&](ClassPreTokenizer::Classify classify, bool runs, SplitRule rule) {
    all->steps.push_back(std::make_unique<ClassPreTokenizer>(classify, runs, rule));
  };
  if (type == "Digits") {
    component.RefuseOtherKeys({"individual_digits"});
    const bool single = component.Bool("individual_digits", false);
    add([](uint32_t c) { return IsUnicodeNumber(c) ? 1 : 0; }, false,
        {single ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false});
  } else if (type == "Punctuation") {
    component.RefuseOtherKeys({"behavior"});
    add([](uint32_t c) { return IsUnicodePunctuation(c) ? 1 : 0; }, false,
        {ReadBehavior(component, "behavior", "Isolated"), false});
  } else if (type == "Whitespace") {
    component.RefuseOtherKeys({});
    // Runs of words and runs of what is neither word nor space; spaces are left out.
    add([](uint32_t c) { return IsUnicodeWord(c)    ? 1
                                : IsUnicodeSpace(c) ? 0
                                                    : 2; }, true,
        {SplitBehavior::kRemoved, true});
  } else {
    component.RefuseOtherKeys({});
    add([](uint32_t c) { return IsUnicodeSpace(c) ? 1 : 0; }, false,
        {SplitBehavior::kRemoved, false});
  }
}

void Add(const Component& component, PreTokenizers* all) {
  const std::string& type = component.type();
  if (type == "Sequence") {
    component.RefuseOtherKeys({"pretokenizers"});
    for (const Component& part : component.List("pretokenizers")) Add(part, all);
    return;
  }
  // Spelling is put off to the last step only: what comes after it reads the spelt text.
  if (all->spells_bytes) {
    all->steps.push_back(std::make_unique<SpellPreTokenizer>());
    all->spells_bytes = false;
  }
  if (type == "Split") {
    component.RefuseOtherKeys({"pattern", "behavior", "invert"});
    const SplitRule rule{ReadBehavior(component, "behavior", ""), component.Bool("invert", false)};
    all->steps.push_back(std::make_unique<SplitPreTokenizer>(ReadPattern(component), rule));
  } else if (type == "ByteLevel") {
    AddByteLevel(component, all);
  } else if (type == "Metaspace") {
    AddMetaspace(component, all);
  } else if (type == "Digits" || type == "Punctuation" || type == "Whitespace" ||
             type == "WhitespaceSplit") {
    AddClasses(component, all);
  } else {
    component.RefuseType("pre-tokenizer",
                         "Sequence, Split, ByteLevel, Digits, Metaspace, Punctuation, Whitespace "
                         "and WhitespaceSplit");
  }
}

}  // namespace

PreTokenizers MakePreTokenizers(const Component& component) {
  PreTokenizers all;
  Add(component, &all);
  return all;
}

}  // namespace keel::model
