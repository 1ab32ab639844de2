#include "model/gguf/gguf_pre_tokenizer.h"

#include <string>
#include <vector>

namespace keel::model {

namespace {

// The patterns are those of the models' own tokenizer.json files: they are what a vocabulary was
// counted with, and say nothing without it. Characters outside ASCII are spelt as \x{...}.
constexpr const char* kLlama3 =
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})re"
    R"re(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr const char* kQwen2 = R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})re"
                               R"re(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr const char* kQwen35 =
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})re"
    R"re(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr const char* kSeedCoder =
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})re"
    R"re(| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)re";
// Words of upper and lower case apart; o200k also takes a contraction's end to the word.
constexpr const char* kTekken =
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)re"
    R"re(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)re"
    R"re(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
constexpr const char* kO200k =
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)re"
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)?)re"
    R"re(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)re"
    R"re((?i:'s|'t|'re|'ve|'m|'ll|'d)?)re"
    R"re(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";
// DeepSeek splits step by step: line ends, letters of the alphabets that it names, punctuation,
// white space at the end, CJK.
constexpr const char* kDeepSeekLetters =
    R"re(\s?[)re"
    R"re(A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293})re"
    R"re(\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-)re"
    R"re(\x{38a}\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-)re"
    R"re(\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-)re"
    R"re(\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18})re"
    R"re(-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d})re"
    R"re(\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6})re"
    R"re(-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4})re"
    R"re(\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124})re"
    R"re(\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-)re"
    R"re(\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee})re"
    R"re(\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787})re"
    R"re(\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-)re"
    R"re(\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb})re"
    R"re(\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943})re"
    R"re(]+)re";
constexpr const char* kDeepSeekPunctuation =
    R"re(\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+)re";
constexpr const char* kDeepSeekCjk = R"re([\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+)re";
constexpr const char* kDeepSeekV3Cjk =
    R"re([\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+)re";
constexpr const char* kDeepSeekV3Words =
    R"re([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)re"
    R"re(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";

struct Known {
  std::string_view name;
  bool nfc = false;  // the normalizer
  std::vector<const char*> splits;
  bool gpt2 = false;            // ByteLevel splits, too, as GPT-2 did
  const char* after = nullptr;  // a split of what the bytes' spelling gave
  bool ignore_merges = false;
  bool adds_bos = false;
};

const std::vector<Known>& KnownNames() {
  static const std::vector<Known> known = {
      {"gpt-2", false, {}, true},
      {"phi-2", false, {}, true},
      {"olmo", false, {}, true},
      {"exaone4", false, {}, true},
      {"mpt", true, {}, true},
      {"smollm", false, {"\\p{N}"}, true},
      {"starcoder", false, {"\\p{N}"}, true},
      {"refact", false, {"\\p{N}"}, true},
      {"command-r", true, {"\\p{N}"}, true},
      {"falcon", false, {"[\\p{P}$+<=>^~|`]+"}, true, "[0-9][0-9][0-9]"},
      {"llama-bpe", false, {kLlama3}, false, nullptr, true, true},
      {"llama3", false, {kLlama3}, false, nullptr, true, true},
      {"llama-v3", false, {kLlama3}, false, nullptr, true, true},
      {"dbrx", false, {kLlama3}},
      {"smaug-bpe", false, {kLlama3}},
      {"seed-coder", false, {kSeedCoder}},
      {"qwen2", true, {kQwen2}},
      {"qwen35", true, {kQwen35}},
      {"tekken", false, {kTekken}, false, nullptr, true, true},
      {"gpt-4o", false, {kO200k}},
      {"deepseek-llm",
       false,
       {"[\r\n]", kDeepSeekLetters, kDeepSeekPunctuation, "\\s+$", kDeepSeekCjk, "\\p{N}+"}},
      {"deepseek-coder", false, {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", kDeepSeekCjk, "\\p{N}"}},
      {"deepseek-v3", false, {"\\p{N}{1,3}", kDeepSeekV3Cjk, kDeepSeekV3Words}},
  };
  return known;
}

Json Split(const char* pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

}  // namespace

std::optional<GgufPreTokenizer> GgufPreTokenizerOf(std::string_view name) {
  for (const Known& known : KnownNames()) {
    if (known.name != name) continue;
    GgufPreTokenizer parts;
    if (known.nfc) parts.normalizer = {{"type", "NFC"}};
    Json steps = Json::array();
    for (const char* pattern : known.splits) steps.push_back(Split(pattern));
    steps.push_back({{"type", "ByteLevel"},
                     {"add_prefix_space", false},
                     {"trim_offsets", true},
                     {"use_regex", known.gpt2}});
    if (known.after != nullptr) steps.push_back(Split(known.after));
    parts.pre_tokenizer =
        steps.size() == 1 ? steps[0] : Json{{"type", "Sequence"}, {"pretokenizers", steps}};
    parts.ignore_merges = known.ignore_merges;
    parts.adds_bos = known.adds_bos;
    return parts;
  }
  return std::nullopt;
}

std::string GgufPreTokenizerNames() {
  std::string names;
  for (const Known& known : KnownNames()) {
    if (!names.empty()) names += ", ";
    names += known.name;
  }
  return names;
}

}  // namespace keel::model
