// Files of rows for tests of prompts and of preferences.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer_kind.h"
#include "trainer/data/prompt_data.h"

namespace keel::trainer::rl {

class RlDataTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& text, const std::string& name = "rows.jsonl") {
    const std::string path = ::testing::TempDir() + "keel_" + std::to_string(getpid()) + "_" + name;
    std::ofstream(path, std::ios::binary) << text;
    paths_.push_back(path);
    return path;
  }
  Result<PromptSet> Load(const std::string& text, PromptOptions options = Options()) {
    return PromptSet::Load({Write(text)}, options, *tokenizer_);
  }
  static PromptOptions Options() {
    PromptOptions options;
    options.vocab_size = 259;
    options.max_prompt_length = 100;
    return options;
  }
  void TearDown() override {
    for (const std::string& path : paths_) unlink(path.c_str());
  }

  std::unique_ptr<model::Tokenizer> tokenizer_ = model::MakeTokenizer(model::TokenizerKind::kBytes);
  std::vector<std::string> paths_;
};

// A folder of its own for shards, which small parts fill.
inline TokenCache SmallParts() {
  static int count = 0;
  TokenCache cache;
  cache.folder = fmt::format("{}keel_{}_cache{}", ::testing::TempDir(), getpid(), ++count);
  cache.part_bytes = 300;
  return cache;
}

}  // namespace keel::trainer::rl
