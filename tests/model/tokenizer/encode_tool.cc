// What the oracle tests ask of a tokenizer: JSON Lines of {"text": ...} on standard input, and for
// each a line with ids, offsets in bytes, the ids with special tokens, and texts decoded whole and
// id by id.
//
//   encode_tool DIR [--bench FILE]
#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "common/json.h"
#include "model/tokenizer/files/open_tokenizer.h"
#include "model/tokenizer/stream_decoder.h"

namespace keel::model {
namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string Streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  StreamDecoder decoder(tokenizer, {.skip_special_tokens = false});
  std::string text;
  for (const int32_t id : ids) text += decoder.Push(id);
  return text + decoder.Finish();
}

Json Answer(const Tokenizer& tokenizer, const std::string& text) {
  const Encoding encoding = tokenizer.EncodeWithOffsets(text);
  Json answer;
  answer["ids"] = tokenizer.Encode(text);
  if (answer["ids"] != Json(encoding.ids)) answer["error"] = "ids with offsets are others";
  Json offsets = Json::array();
  for (const ByteRange& range : encoding.offsets) offsets.push_back({range.begin, range.end});
  answer["offsets"] = std::move(offsets);
  answer["special"] = tokenizer.Encode(text, {.add_special_tokens = true});
  answer["text"] = tokenizer.Decode(encoding.ids, {.skip_special_tokens = false});
  answer["plain"] = tokenizer.Decode(encoding.ids);
  if (Streamed(tokenizer, encoding.ids) != answer["text"]) answer["error"] = "streamed otherwise";
  return answer;
}

void Bench(const Tokenizer& tokenizer, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  for (int round = 0; round < 5; ++round) {
    const double start = Seconds();
    const size_t count = tokenizer.Encode(text).size();
    const double seconds = Seconds() - start;
    fmt::print("{} bytes, {} ids, {:.2f} MB/s\n", text.size(), count,
               static_cast<double>(text.size()) / 1e6 / seconds);
  }
}

int Main(int argc, char** argv) {
  if (argc < 2) return 64;
  const double start = Seconds();
  const auto tokenizer = OpenTokenizer(argv[1]);
  if (!tokenizer.ok()) {
    fmt::print(stderr, "{}\n", tokenizer.status().ToString());
    return 65;
  }
  if (argc == 4) {
    fmt::print("loaded in {:.3f} s\n", Seconds() - start);
    Bench(**tokenizer, argv[3]);
    return 0;
  }
  for (std::string line; std::getline(std::cin, line);) {
    const Json row = ValueOrThrow(ParseJson(line, "standard input"));
    Json answer;
    try {
      answer = Answer(**tokenizer, row["text"].get<std::string>());
    } catch (const Error& error) {
      answer["error"] = error.status().message();
    }
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace keel::model

int main(int argc, char** argv) { return keel::model::Main(argc, argv); }
