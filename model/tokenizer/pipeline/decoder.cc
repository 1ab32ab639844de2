#include "model/tokenizer/pipeline/decoder.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "common/text.h"
#include "model/tokenizer/pipeline/normalizer.h"
#include "model/tokenizer/text/byte_alphabet.h"
#include "model/tokenizer/text/utf8.h"

namespace keel::model {

namespace {

// A step that works on whole tokens: it holds the parts of one together until its end.
class WholeTokenStep : public DecodeStep {
 public:
  explicit WholeTokenStep(std::unique_ptr<DecodeStep> next) : next_(std::move(next)) {}
  void Push(std::string_view token, bool last) final {
    if (last && held_.empty()) {
      OnToken(token);
      return;
    }
    held_ += token;
    if (last) OnToken(std::exchange(held_, {}));
  }
  void Finish() final {
    OnEnd();
    next_->Finish();
  }

 protected:
  virtual void OnToken(std::string_view token) = 0;
  virtual void OnEnd() {}
  DecodeStep& next() { return *next_; }

 private:
  std::unique_ptr<DecodeStep> next_;
  std::string held_;
};

class ByteLevelDecoder final : public Decoder {
 public:
  std::unique_ptr<DecodeStep> Start(std::unique_ptr<DecodeStep> next) const override {
    return std::make_unique<Step>(&alphabet_, std::move(next));
  }

 private:
  // All tokens become one: bytes that are parts of one character may come from several.
  class Step final : public WholeTokenStep {
   public:
    Step(const ByteAlphabet* alphabet, std::unique_ptr<DecodeStep> next)
        : WholeTokenStep(std::move(next)), alphabet_(alphabet) {}

   private:
    void OnToken(std::string_view token) override {
      alphabet_->Read(token, &bytes_);
      Emit(bytes_.size() - UnfinishedTail(bytes_), false);
    }
    void OnEnd() override { Emit(bytes_.size(), true); }
    void Emit(size_t size, bool last) {
      if (size == 0 && !last) return;
      std::string text;
      AppendLossy(std::string_view(bytes_).substr(0, size), &text);
      bytes_.erase(0, size);
      next().Push(text, last);
    }
    const ByteAlphabet* alphabet_;
    std::string bytes_;
  };
  ByteAlphabet alphabet_;
};

class ReplaceDecoder final : public Decoder {
 public:
  ReplaceDecoder(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  std::unique_ptr<DecodeStep> Start(std::unique_ptr<DecodeStep> next) const override {
    return std::make_unique<Step>(this, std::move(next));
  }

 private:
  class Step final : public WholeTokenStep {
   public:
    Step(const ReplaceDecoder* decoder, std::unique_ptr<DecodeStep> next)
        : WholeTokenStep(std::move(next)), decoder_(decoder) {}

   private:
    void OnToken(std::string_view token) override {
      matches_.clear();
      // In an empty token nothing is found, not even what matches nothing.
      if (!token.empty()) decoder_->pattern_.FindAll(token, &scratch_, &matches_);
      std::string text;
      size_t kept = 0;
      for (const Span& match : matches_) {
        text += token.substr(kept, match.begin - kept);
        text += decoder_->content_;
        kept = match.end;
      }
      text += token.substr(kept);
      next().Push(text, true);
    }
    const ReplaceDecoder* decoder_;
    PatternScratch scratch_;
    std::vector<Span> matches_;
  };
  Pattern pattern_;
  std::string content_;
};

class ByteFallbackDecoder final : public Decoder {
 public:
  std::unique_ptr<DecodeStep> Start(std::unique_ptr<DecodeStep> next) const override {
    return std::make_unique<Step>(std::move(next));
  }

 private:
  // Whether a run of bytes is text or not is known at its end only: all of it, or none.
  class Step final : public WholeTokenStep {
   public:
    using WholeTokenStep::WholeTokenStep;

   private:
    void OnToken(std::string_view token) override {
      if (const auto byte = FallbackByte(token)) {
        bytes_ += *byte;
        return;
      }
      OnEnd();
      next().Push(token, true);
    }
    void OnEnd() override {
      if (bytes_.empty()) return;
      const std::string bytes = std::exchange(bytes_, {});
      if (FindNotUtf8(bytes) == std::string_view::npos) {
        next().Push(bytes, true);
        return;
      }
      for (size_t i = 0; i < bytes.size(); ++i) next().Push("\xEF\xBF\xBD", true);
    }
    std::string bytes_;
  };
};

class FuseDecoder final : public Decoder {
 public:
  std::unique_ptr<DecodeStep> Start(std::unique_ptr<DecodeStep> next) const override {
    return std::make_unique<Step>(std::move(next));
  }

 private:
  class Step final : public DecodeStep {
   public:
    explicit Step(std::unique_ptr<DecodeStep> next) : next_(std::move(next)) {}
    void Push(std::string_view token, bool) override { next_->Push(token, false); }
    void Finish() override {
      next_->Push({}, true);
      next_->Finish();
    }

   private:
    std::unique_ptr<DecodeStep> next_;
  };
};

struct StripRule {
  std::string content;  // one character
  int64_t start = 0;    // at most so many of it are taken from the start of a token
  int64_t stop = 0;     // and from its end
};

class StripDecoder final : public Decoder {
 public:
  explicit StripDecoder(StripRule rule) : rule_(std::move(rule)) {}
  std::unique_ptr<DecodeStep> Start(std::unique_ptr<DecodeStep> next) const override {
    return std::make_unique<Step>(&rule_, std::move(next));
  }

 private:
  // The start of a token can be taken from its first parts as they come; for the end the whole
  // token is needed.
  class Step final : public DecodeStep {
   public:
    Step(const StripRule* rule, std::unique_ptr<DecodeStep> next)
        : rule_(rule), next_(std::move(next)) {}
    void Push(std::string_view token, bool last) override {
      while (taken_ < rule_->start && token.starts_with(rule_->content)) {
        token.remove_prefix(rule_->content.size());
        ++taken_;
      }
      if (!token.empty()) taken_ = rule_->start;
      if (rule_->stop == 0) {
        next_->Push(token, last);
      } else {
        held_ += token;
        if (last) next_->Push(WithoutEnd(), true);
      }
      if (last) {
        taken_ = 0;
        held_.clear();
      }
    }
    void Finish() override { next_->Finish(); }

   private:
    std::string_view WithoutEnd() const {
      std::string_view token = held_;
      for (int64_t i = 0; i < rule_->stop && token.ends_with(rule_->content); ++i) {
        token.remove_suffix(rule_->content.size());
      }
      return token;
    }
    const StripRule* rule_;
    std::unique_ptr<DecodeStep> next_;
    int64_t taken_ = 0;
    std::string held_;
  };
  StripRule rule_;
};

// Marks become spaces, except in the first token of a text, which is what the tokenizer put there.
class MetaspaceDecoder final : public Decoder {
 public:
  MetaspaceDecoder(std::string mark, bool prefixed) : mark_(std::move(mark)), prefixed_(prefixed) {}
  std::unique_ptr<DecodeStep> Start(std::unique_ptr<DecodeStep> next) const override {
    return std::make_unique<Step>(this, std::move(next));
  }

 private:
  class Step final : public WholeTokenStep {
   public:
    Step(const MetaspaceDecoder* decoder, std::unique_ptr<DecodeStep> next)
        : WholeTokenStep(std::move(next)), decoder_(decoder) {}

   private:
    void OnToken(std::string_view token) override {
      std::string text;
      while (!token.empty()) {
        const size_t mark = std::min(token.find(decoder_->mark_), token.size());
        text += token.substr(0, mark);
        token.remove_prefix(mark);
        if (token.empty()) break;
        if (!first_ || !decoder_->prefixed_) text += ' ';
        token.remove_prefix(decoder_->mark_.size());
      }
      first_ = false;
      next().Push(text, true);
    }
    const MetaspaceDecoder* decoder_;
    bool first_ = true;
  };
  std::string mark_;
  bool prefixed_;
};

std::string OneCharacter(const Component& component, std::string_view key) {
  std::string text = component.String(key);
  if (text.empty() || Utf8Length(text[0]) != text.size()) {
    component.Refuse(std::string(key) + " must be one character");
  }
  return text;
}

std::unique_ptr<Decoder> MakeDecoder(const Component& component) {
  const std::string& type = component.type();
  if (type == "ByteLevel") {
    component.RefuseOtherKeys({"add_prefix_space", "trim_offsets", "use_regex"});
    return std::make_unique<ByteLevelDecoder>();
  }
  if (type == "Replace") {
    component.RefuseOtherKeys({"pattern", "content"});
    return std::make_unique<ReplaceDecoder>(ReadPattern(component), component.String("content"));
  }
  if (type == "ByteFallback") {
    component.RefuseOtherKeys({});
    return std::make_unique<ByteFallbackDecoder>();
  }
  if (type == "Fuse") {
    component.RefuseOtherKeys({});
    return std::make_unique<FuseDecoder>();
  }
  if (type == "Strip") {
    component.RefuseOtherKeys({"content", "start", "stop"});
    StripRule rule{OneCharacter(component, "content"), component.Int("start"),
                   component.Int("stop")};
    if (rule.start < 0 || rule.stop < 0) component.Refuse("start and stop must not be negative");
    return std::make_unique<StripDecoder>(std::move(rule));
  }
  if (type == "Metaspace") {
    component.RefuseOtherKeys(
        {"replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"});
    const bool prefixed = component.Bool("add_prefix_space", true) &&
                          component.String("prepend_scheme", "always") != "never";
    return std::make_unique<MetaspaceDecoder>(OneCharacter(component, "replacement"), prefixed);
  }
  component.RefuseType("decoder",
                       "Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip and Metaspace");
}

}  // namespace

std::optional<char> FallbackByte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned int byte = 0;
  const char* digits = token.data() + 3;
  const auto [end, error] = std::from_chars(digits, digits + 2, byte, 16);
  if (error != std::errc() || end != digits + 2) return std::nullopt;
  return static_cast<char>(byte);
}

std::vector<std::unique_ptr<Decoder>> MakeDecoders(const Component& component) {
  std::vector<std::unique_ptr<Decoder>> decoders;
  if (component.type() != "Sequence") {
    decoders.push_back(MakeDecoder(component));
    return decoders;
  }
  component.RefuseOtherKeys({"decoders"});
  for (const Component& part : component.List("decoders")) {
    for (auto& decoder : MakeDecoders(part)) decoders.push_back(std::move(decoder));
  }
  return decoders;
}

}  // namespace keel::model
