#include "model/tokenizer/pipeline/normalizer.h"

#include <optional>
#include <utility>
#include <vector>

#include "model/tokenizer/text/unicode.h"
#include "model/tokenizer/text/unicode_forms.h"
#include "model/tokenizer/text/utf8.h"

namespace keel::model {

namespace {

class FormNormalizer final : public Normalizer {
 public:
  explicit FormNormalizer(UnicodeForm form) : normalizer_(form) {}
  void Apply(AlignedText* text, PatternScratch*) const override { normalizer_.Apply(text); }

 private:
  UnicodeNormalizer normalizer_;
};

// What is put in place of a match comes from the last byte of the match.
class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void Apply(AlignedText* text, PatternScratch* scratch) const override {
    std::vector<Span> matches;
    pattern_.FindAll(text->text(), scratch, &matches);
    if (matches.empty()) return;
    const size_t size = text->text().size();
    AlignedText::Rewrite rewrite(text);
    size_t kept = 0;
    for (const Span& match : matches) {
      rewrite.Keep({kept, match.begin});
      // What an empty match puts in belongs to the character before it, where there is one.
      if (match.end > 0) rewrite.Put(content_, match.end - 1);
      if (match.end == 0 && size > 0) rewrite.PutBefore(content_);
      kept = match.end;
    }
    rewrite.Keep({kept, size});
    rewrite.Finish();
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(std::string content) : content_(std::move(content)) {}
  void Apply(AlignedText* text, PatternScratch*) const override {
    if (text->text().empty()) return;
    AlignedText::Rewrite rewrite(text);
    rewrite.Put(content_, 0);
    rewrite.Keep({0, text->text().size()});
    rewrite.Finish();
  }

 private:
  std::string content_;
};

class StripNormalizer final : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  void Apply(AlignedText* text, PatternScratch*) const override {
    const std::string& bytes = text->text();
    Span kept{0, bytes.size()};
    size_t last = 0;  // the end of the last character that is no space
    bool leading = true;
    for (size_t at = 0; at < bytes.size();) {
      const CodePoint c = CodePointAt(bytes, at);
      if (!IsUnicodeSpace(c.value)) {
        if (leading && left_) kept.begin = at;
        leading = false;
        last = at + c.length;
      }
      at += c.length;
    }
    if (leading) {
      if (left_ || right_) kept = {0, 0};
    } else if (right_) {
      kept.end = last;
    }
    if (kept.size() == bytes.size()) return;
    AlignedText::Rewrite rewrite(text);
    rewrite.Keep(kept);
    rewrite.Finish();
  }

 private:
  bool left_;
  bool right_;
};

class LowercaseNormalizer final : public Normalizer {
 public:
  void Apply(AlignedText* text, PatternScratch*) const override {
    const std::string& bytes = text->text();
    AlignedText::Rewrite rewrite(text);
    std::string lower;
    for (size_t at = 0; at < bytes.size();) {
      const CodePoint c = CodePointAt(bytes, at);
      lower.clear();
      AppendLowercase(c.value, &lower);
      rewrite.Put(lower, at);
      at += c.length;
    }
    rewrite.Finish();
  }
};

class SequenceNormalizer final : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<std::unique_ptr<Normalizer>> parts)
      : parts_(std::move(parts)) {}
  void Apply(AlignedText* text, PatternScratch* scratch) const override {
    for (const auto& part : parts_) part->Apply(text, scratch);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

std::optional<UnicodeForm> FormOf(std::string_view type) {
  if (type == "NFC") return UnicodeForm{.compose = true};
  if (type == "NFKC") return UnicodeForm{.compose = true, .compatibility = true};
  if (type == "NFD") return UnicodeForm{};
  if (type == "NFKD") return UnicodeForm{.compatibility = true};
  return std::nullopt;
}

}  // namespace

Pattern ReadPattern(const Component& component) {
  const Json* pattern = component.Find("pattern");
  if (pattern != nullptr && pattern->is_object() && pattern->size() == 1) {
    const auto entry = pattern->begin();
    if (entry.value().is_string()) {
      const auto text = entry.value().get<std::string>();
      if (entry.key() == "Regex") return ValueOrThrow(Pattern::Regex(text, component.where()));
      if (entry.key() == "String") return ValueOrThrow(Pattern::Literal(text, component.where()));
    }
  }
  component.Refuse("pattern must be {\"String\": text} or {\"Regex\": expression}");
}

std::unique_ptr<Normalizer> MakeNormalizer(const Component& component) {
  if (component.type() == "Sequence") {
    component.RefuseOtherKeys({"normalizers"});
    std::vector<std::unique_ptr<Normalizer>> parts;
    for (const Component& part : component.List("normalizers")) {
      parts.push_back(MakeNormalizer(part));
    }
    return std::make_unique<SequenceNormalizer>(std::move(parts));
  }
  if (const auto form = FormOf(component.type())) {
    component.RefuseOtherKeys({});
    return std::make_unique<FormNormalizer>(*form);
  }
  if (component.type() == "Replace") {
    component.RefuseOtherKeys({"pattern", "content"});
    return std::make_unique<ReplaceNormalizer>(ReadPattern(component), component.String("content"));
  }
  if (component.type() == "Prepend") {
    component.RefuseOtherKeys({"prepend"});
    // With which `tokenizers` loses its place.
    if (component.String("prepend").empty()) component.Refuse("prepend is empty");
    return std::make_unique<PrependNormalizer>(component.String("prepend"));
  }
  if (component.type() == "Strip") {
    component.RefuseOtherKeys({"strip_left", "strip_right"});
    return std::make_unique<StripNormalizer>(component.Bool("strip_left"),
                                             component.Bool("strip_right"));
  }
  if (component.type() == "Lowercase") {
    component.RefuseOtherKeys({});
    return std::make_unique<LowercaseNormalizer>();
  }
  component.RefuseType("normalizer",
                       "Sequence, NFC, NFKC, NFD, NFKD, Replace, Prepend, Strip and Lowercase");
}

}  // namespace keel::model
