// Configurations of small GGUF files, and what is said where they are refused.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/gguf/gguf_config.h"
#include "tests/model/gguf/gguf_builder.h"

namespace keel::model::testing {

inline Result<GgufConfig> ConfigOf(const GgufBuilder& gguf, const GgufRopeFactors& factors = {}) {
  const std::string bytes = gguf.Build();
  return ReadGgufConfig(ValueOrThrow(ReadGguf(BytesFile(bytes), "a.gguf")), factors);
}

inline std::string ConfigError(const GgufBuilder& gguf, const GgufRopeFactors& factors = {}) {
  const auto config = ConfigOf(gguf, factors);
  EXPECT_EQ(config.status().code(), StatusCode::kInvalidData);
  return config.status().message();
}

// A model of 12 layers' metadata and embedding, without a vocabulary.
inline GgufBuilder TinyOf(const std::string& architecture) {
  GgufBuilder gguf;
  gguf.Text("general.architecture", architecture);
  const auto key = [&](const char* name) { return architecture + "." + name; };
  gguf.Int(key("block_count"), 12);
  gguf.Int(key("context_length"), 64);
  gguf.Int(key("embedding_length"), 8);
  gguf.Int(key("feed_forward_length"), 16);
  gguf.Int(key("attention.head_count"), 2);
  gguf.Int(key("attention.key_length"), 6);
  gguf.Float(key("attention.layer_norm_rms_epsilon"), 1e-6f);
  gguf.Tensor("token_embd.weight", {8, 4}, std::vector<float>(32, 0.5f));
  return gguf;
}

}  // namespace keel::model::testing
