// Data files that anyone may have written: packed or not, rows of every task, plain text.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "model/tokenizer/tokenizer_kind.h"
#include "tests/fuzz/targets.h"
#include "trainer/data/dataset.h"
#include "trainer/data/preference_data.h"
#include "trainer/data/prompt_data.h"

namespace keel::fuzz {

namespace {

constexpr int64_t kVocabulary = 300;

void RequireTokens(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) KEEL_REQUIRE(token >= 0 && token < kVocabulary);
}

// A refusal names the file and is no bug of ours.
template <typename Set>
bool Accepted(const Result<Set>& set, const std::string& path) {
  if (set.ok()) return true;
  KEEL_REQUIRE(set.status().code() == StatusCode::kInvalidData);
  KEEL_REQUIRE(set.status().message().find(path) != std::string::npos);
  return false;
}

void LoadSamples(const std::string& path, const trainer::TextRules& rules, bool sft) {
  trainer::DatasetOptions options;
  options.sft = sft;
  options.max_length = 16;
  options.truncation = trainer::Truncation::kLeft;
  options.vocab_size = kVocabulary;
  const auto data = trainer::Dataset::Load({path}, options, rules);
  if (!Accepted(data, path)) return;
  for (int64_t i = 0; i < data->size(); ++i) {
    const trainer::Sample sample = data->Get(i);
    RequireTokens(sample.tokens);
    KEEL_REQUIRE(sample.learn.size() == sample.tokens.size());
    KEEL_REQUIRE(data->targets(i) <= data->inputs(i));
  }
}

void LoadPrompts(const std::string& path, const trainer::TextRules& rules) {
  trainer::rl::PromptOptions prompts;
  prompts.vocab_size = kVocabulary;
  const auto set = trainer::rl::PromptSet::Load({path}, prompts, rules);
  if (!Accepted(set, path)) return;
  for (int64_t i = 0; i < set->size(); ++i) RequireTokens(set->Get(i).tokens);
}

void LoadPairs(const std::string& path, const trainer::TextRules& rules) {
  trainer::rl::PreferenceOptions options;
  options.vocab_size = kVocabulary;
  const auto set = trainer::rl::PreferenceSet::Load({path}, options, rules);
  if (!Accepted(set, path)) return;
  for (int64_t i = 0; i < set->size(); ++i) {
    const trainer::rl::PreferencePair pair = set->Get(i);
    for (const trainer::TokenRow* row : {&pair.chosen, &pair.rejected}) {
      RequireTokens(row->tokens);
      KEEL_REQUIRE(row->learn.size() == row->tokens.size());
    }
  }
}

}  // namespace

void FuzzRows(std::string_view bytes) {
  static const std::string base =
      std::filesystem::temp_directory_path() / ("keel_fuzz_rows." + std::to_string(::getpid()));
  const auto tokenizer = model::MakeTokenizer(model::TokenizerKind::kBytes);
  const trainer::TextRules text(*tokenizer);
  trainer::TextRules ids;
  ids.ids_only = "there is no tokenizer";
  for (const char* end : {".jsonl", ".txt"}) {
    const std::string path = base + end;
    std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
    LoadSamples(path, text, true);
    LoadSamples(path, text, false);
    LoadSamples(path, ids, true);
    if (end == std::string_view(".jsonl")) {
      LoadPrompts(path, text);
      LoadPrompts(path, ids);
      LoadPairs(path, text);
      LoadPairs(path, ids);
    }
    ::unlink(path.c_str());
  }
}

std::vector<std::string> RowsSeeds() {
  using namespace std::string_literals;
  return {
      R"({"input_ids":[0,5,6,7,0],"attention_mask":[0,1,1,1,0],"labels":[-100,-100,6,7,-100],)"
      R"("position_ids":[1,0,1,2,1]})",
      R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a",)"
      R"("tool_calls":null}],"tools":[],"id":7})",
      R"({"prompt":"a","response":"b"})"
      "\n"
      R"({"question":"c","answer":"d"})"
      "\n"
      R"({"text":"e"})",
      R"({"prompt":[1,2],"attention_mask":[0,1],"answer":"4","data_source":"gsm8k","extra_info":{}})",
      R"({"prompt":[{"role":"user","content":"q"}],"reward_model":{"ground_truth":"x"}})",
      R"({"prompt_input_ids":[7,8],"prompt_attention_mask":[1,1],"chosen_input_ids":[1],)"
      R"("rejected_input_ids":[2]})",
      R"({"prompt":"p","chosen":[{"role":"user","content":"p"},{"role":"assistant","content":"a"}],)"
      R"("rejected":"b"})",
      "plain text of \xC3\xA9l\xC3\xA9ments\r\n",
      // {"text":"abc abc abc abc"} packed by gzip and by zstd.
      "\037\213\010\000\000\000\000\000\002\003\253\126\052\111\255\050\121\262\122\112"
      "\114\112\126\100\302\112\265\134\000\124\376\061\020\033\000\000\000"s,
      "\050\265\057\375\004\130\265\000\000\200\173\042\164\145\170\164\042\072\042\141"
      "\142\143\040\042\175\012\001\000\033\356\013\070\017\175\256"s,
      "PAR1\0\x15\x04"s,
  };
}

}  // namespace keel::fuzz
