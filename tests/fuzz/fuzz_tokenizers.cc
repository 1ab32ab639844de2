// The files of tokenizers that anyone may have written, and texts of any bytes.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "common/text.h"
#include "model/tokenizer/files/sentencepiece_file.h"
#include "model/tokenizer/files/tekken_file.h"
#include "model/tokenizer/files/tiktoken_file.h"
#include "model/tokenizer/files/tokenizer_json.h"
#include "model/tokenizer/stream_decoder.h"
#include "tests/fuzz/targets.h"

namespace keel::fuzz {

namespace {

// Limits of a pattern are the one thing that a tokenizer that was accepted may say of a text.
template <typename Work>
void UnlessTooHard(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    KEEL_REQUIRE(error.status().code() == StatusCode::kInvalidData);
  }
}

void EncodeAndDecode(const model::Tokenizer& tokenizer, std::string_view text) {
  const model::Encoding encoding = tokenizer.EncodeWithOffsets(text);
  KEEL_REQUIRE(encoding.ids == tokenizer.Encode(text));
  KEEL_REQUIRE(encoding.ids.size() == encoding.offsets.size());
  for (const ByteRange& range : encoding.offsets)
    KEEL_REQUIRE(range.begin >= 0 && range.begin <= range.end && range.end <= std::ssize(text));
  for (const int32_t id : encoding.ids) KEEL_REQUIRE(id >= 0 && id < tokenizer.vocab_size());
  const model::DecodeOptions options{.skip_special_tokens = false};
  const std::string decoded = tokenizer.Decode(encoding.ids, options);
  KEEL_REQUIRE(FindNotUtf8(decoded) == std::string::npos);
  model::StreamDecoder stream(tokenizer, options);
  std::string streamed;
  for (const int32_t id : encoding.ids) streamed += stream.Push(id);
  KEEL_REQUIRE(streamed + stream.Finish() == decoded);
  (void)tokenizer.Encode(text, {.add_special_tokens = true});
  (void)tokenizer.Decode(std::vector<int32_t>{-1, INT32_MAX, 0});
}

void Use(const Result<std::unique_ptr<model::Tokenizer>>& tokenizer) {
  if (!tokenizer.ok()) return RequireNames(tokenizer.status());
  for (const std::string_view text :
       {"", "ab ba\n  12<s>", "Gr\u00fc\u00dfe \u4e2d\u6587 \U0001f44d", "\xff\xc3 a\xe4\xb8"})
    UnlessTooHard([&] { EncodeAndDecode(**tokenizer, text); });
}

// The seeds, which a reader must take: what is near them is then near to something.
template <typename Read>
std::vector<std::string> Taken(std::vector<std::string> seeds, const Read& read) {
  for (const std::string& seed : seeds) {
    const auto result = read(seed);
    if (!result.ok()) std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
    KEEL_REQUIRE(result.ok());
  }
  return seeds;
}

Result<std::unique_ptr<model::Tokenizer>> Open(const Result<model::TokenizerDocument>& document) {
  if (!document.ok()) return document.status();
  const std::string json = document->json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return model::ParseTokenizerJson(json, "fuzz", document->names);
}

Result<std::unique_ptr<model::Tokenizer>> OpenJson(std::string_view bytes) {
  return model::ParseTokenizerJson(bytes, "fuzz");
}
Result<std::unique_ptr<model::Tokenizer>> OpenTekken(std::string_view bytes) {
  return Open(model::ReadTekken(bytes, "fuzz"));
}
Result<std::unique_ptr<model::Tokenizer>> OpenTiktoken(std::string_view bytes) {
  return Open(model::ReadTiktoken(bytes, {{"tokenizer_class", "QWenTokenizer"}}, "fuzz"));
}
Result<std::unique_ptr<model::Tokenizer>> OpenSentencePiece(std::string_view bytes) {
  return Open(model::ReadSentencePiece(bytes, Json::object(), "fuzz"));
}

// A protocol buffer's fields: of bytes, and of a number below 128.
std::string Field(int number, const std::string& bytes) {
  return std::string(1, static_cast<char>(number << 3 | 2)) +
         std::string(1, static_cast<char>(bytes.size())) + bytes;
}
std::string Field(int number, char value) {
  return std::string(1, static_cast<char>(number << 3)) + std::string(1, value);
}
std::string Piece(const std::string& text, char kind) {
  const std::string score("\x15\0\0\x80\xbf", 5);  // -1
  return Field(1, Field(1, text) + score + Field(3, kind));
}

}  // namespace

void FuzzTokenizer(std::string_view bytes) { Use(OpenJson(bytes)); }
void FuzzTekken(std::string_view bytes) { Use(OpenTekken(bytes)); }
void FuzzTiktoken(std::string_view bytes) { Use(OpenTiktoken(bytes)); }
void FuzzSentencePiece(std::string_view bytes) { Use(OpenSentencePiece(bytes)); }

std::vector<std::string> TokenizerSeeds() {
  return Taken(
      {
          R"({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{"id": 5, "content":
        "<s>", "single_word": false, "lstrip": true, "rstrip": false, "normalized": false, "special":
        true}], "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type":
        "Replace", "pattern": {"Regex": " +"}, "content": " "}]}, "pre_tokenizer": {"type": "Sequence",
        "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?\\p{L}+"}, "behavior":
        "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false, "use_regex":
        false}]}, "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id":
        "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens":
        {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}}}, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "unk_token": null, "fuse_unk": false, "byte_fallback": false,
        "ignore_merges": true, "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4}, "merges":
        ["a b", ["Ġ", "ab"]]}})",
          R"({"added_tokens": [{"id": 0, "content": "<unk>", "special": true, "normalized": true}],
        "normalizer": {"type": "Prepend", "prepend": "▁"}, "pre_tokenizer": {"type": "Metaspace",
        "replacement": "▁", "prepend_scheme": "first", "split": false}, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"},
        "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ",
        "start": 1, "stop": 0}]}, "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true,
        "byte_fallback": true, "vocab": {"<unk>": 0, "<0x41>": 1, "<0xFF>": 2, "a": 3, "▁": 4,
        "▁a": 5}, "merges": ["▁ a"]}})",
      },
      OpenJson);
}

std::vector<std::string> TekkenSeeds() {
  // Mistral's order: all bytes by rank, then what is merged.
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string vocab;
  for (size_t byte = 0; byte < 256; ++byte) {
    const std::string text = {kLetters[byte >> 2], kLetters[(byte & 3) << 4], '=', '='};
    vocab += R"({"rank":)" + std::to_string(byte) + R"(,"token_bytes":")" + text + "\"},";
  }
  return Taken({R"({"config": {"pattern": "\\p{N}| ?\\p{L}+|\\s+", "num_vocab_tokens": 257,
             "default_vocab_size": 260, "default_num_special_tokens": 3, "version": "v3"},
             "special_tokens": [{"rank": 1, "token_str": "<s>", "is_control": true}], "vocab": [)" +
                vocab + R"({"rank":256,"token_bytes":"YWI="}]})"},
               OpenTekken);
}

std::vector<std::string> TiktokenSeeds() {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string lines;
  for (size_t byte = 0; byte < 256; ++byte) {
    lines += {kLetters[byte >> 2], kLetters[(byte & 3) << 4], '=', '=', ' '};
    lines += std::to_string(byte) + "\n";
  }
  return Taken({lines + "YWI= 256\nYWJh 257\n"}, OpenTiktoken);
}

std::vector<std::string> SentencePieceSeeds() {
  std::string pieces = Piece("<unk>", 2) + Piece("<s>", 3) + Piece("</s>", 3);
  for (const char* text : {"<0x00>", "<0x41>", "<0xFF>"}) pieces += Piece(text, 6);
  for (const char* text : {"▁", "a", "b", "ab", "▁ab"}) pieces += Piece(text, 1);
  return Taken({pieces + Piece("[X]", 4) + Field(2, Field(3, '\2')) +
                Field(3, Field(3, '\1') + Field(4, '\0'))},
               OpenSentencePiece);
}

}  // namespace keel::fuzz
