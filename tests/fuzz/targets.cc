#include "tests/fuzz/targets.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace keel::fuzz {

std::span<const Target> Targets() {
  static const Target kTargets[] = {
      {"safetensors",
       FuzzSafetensors,
       SafetensorsSeeds,
       {"\"dtype\"", "\"shape\"", "\"data_offsets\"", "__metadata__", "BF16", "F32", "[", "]", "{",
        "}", "9223372036854775807", "-1", "1e3", "0.5"}},
      {"manifest",
       FuzzManifest,
       ManifestSeeds,
       {"\"files\"", "\"size\"", "\"digest\"", "\"sequence\"", "\"step\"", "\"path\"", "../", "//",
        "null", "true", "9223372036854775808", "-1", "\"format_version\"", "\"2.0\"", "\\u0000"}},
      {"index", FuzzIndex, IndexSeeds, {}},
      {"config",
       FuzzConfig,
       ConfigSeeds,
       {"&a", "*a", "<<: ", "!!str", "? ", "- ", "|", ">", "%YAML 1.1", "---", "...", "[[[[",
        "{a: {", "\t", "010", ".nan", "~", "\xef\xbb\xbf"}},
      {"json",
       FuzzJson,
       JsonSeeds,
       {"[[[[[[[[", "]]]]]]]]", "{\"a\":", "\"a\":1,\"a\":2", "1e999", "-0", "\\ud800", "\\u0000",
        "NaN", "18446744073709551615", "\xff"}},
      {"answers",
       FuzzAnswers,
       AnswersSeeds,
       {"\\frac",  "\\sqrt[", "\\boxed{", "\\text{", "{",        "}",         "\\{",
        "\\left(", "^",       "((((",     "9e99",    "1,000",    "####",      "%",
        "\\%",     "deg",     " cm",      "1/0",     "<answer>", "</answer>", "\xe2\x88\x92"}},
      {"rows",
       FuzzRows,
       RowsSeeds,
       {"input_ids", "attention_mask", "labels", "-100", "[]", "null", "\"tools\":[1]", "\n",
        "[[1]]", "9223372036854775808", "1.0", "true", "\\u0000", "assistant", "prompt",
        "\"answer\":1", "\xef\xbb\xbf", "\xe9"}},
      {"chattemplate",
       FuzzChatTemplate,
       ChatTemplateSeeds,
       {"{%",
        "%}",
        "{{",
        "}}",
        "{#",
        "-%}",
        "{% endif %}",
        "{% endfor %}",
        " | ",
        " is ",
        "**",
        "~",
        "[::-1]",
        "loop.",
        "namespace(",
        "(((((",
        "9223372036854775807",
        "|tojson",
        "{% set x = [x, x] %}",
        " in ",
        "' * 9999",
        "{% generation %}",
        "\\u0000",
        "\xe9"}},
      {"gguf",
       FuzzGguf,
       GgufSeeds,
       {"GGUF", "tokenizer.ggml.", "llama.", "general.alignment", "token_embd.weight", "blk.0.",
        "attn_q.weight", "rope_freqs.weight", "rope_factors_long.weight", "qwen2", "qwen2moe",
        "phi3", "granite", "olmo2", "attention.sliding_window", "deepseek-llm"}},
      {"shard", FuzzShard, ShardSeeds, {}},
      {"megatron", FuzzMegatron, MegatronSeeds, {}},
      {"tokenizer",
       FuzzTokenizer,
       TokenizerSeeds,
       {"\"type\":",
        "\"Sequence\"",
        "\"ByteLevel\"",
        "\"Metaspace\"",
        "\"Digits\"",
        "\"Regex\"",
        "\"String\"",
        "(?:a*)*",
        "\\\\p{",
        "[[",
        "{9999}",
        "\"lstrip\": true",
        "\"normalized\": true",
        "\"single_word\": true",
        "\"NFKC\"",
        "\"Lowercase\"",
        "\"MergedWithNext\"",
        "\"invert\": true",
        "\\u0000",
        "\\ud800",
        "99999999999",
        "-1"}},
      {"tekken",
       FuzzTekken,
       TekkenSeeds,
       {"\"rank\"", "\"token_bytes\"", "default_vocab_size", "default_num_special_tokens", "-1",
        "9223372036854775807", "null", "\"pattern\"", "(((", "===="}},
      {"tiktoken",
       FuzzTiktoken,
       TiktokenSeeds,
       {"\n", " ", "=", "\r\n", "-1", "4294967296", "AA=="}},
      {"sentencepiece",
       FuzzSentencePiece,
       SentencePieceSeeds,
       {"\n", "\x12", "\x1a", "\xff\xff\xff\xff\x0f"}}};
  return kTargets;
}

bool WriteSeeds(const std::string& folder) {
  for (const Target& target : Targets()) {
    const std::filesystem::path into = std::filesystem::path(folder) / target.name;
    std::error_code error;
    std::filesystem::create_directories(into, error);
    int number = 0;
    for (const std::string& seed : target.seeds()) {
      const std::filesystem::path path = into / std::to_string(number++);
      std::ofstream file(path, std::ios::binary);
      if (file.write(seed.data(), std::ssize(seed)).flush()) continue;
      std::fprintf(stderr, "%s cannot be written\n", path.c_str());
      return false;
    }
  }
  return true;
}

void Require(bool kept, const char* promise, const char* file, int line) {
  if (kept) return;
  std::fprintf(stderr, "%s:%d: not kept: %s\n", file, line, promise);
  std::abort();
}

void RequireNames(const Status& error) {
  if (error.message().starts_with("fuzz")) return;
  std::fprintf(stderr, "an error that does not name the file: %s\n", error.ToString().c_str());
  std::abort();
}

}  // namespace keel::fuzz
