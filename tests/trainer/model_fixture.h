// The models of tests/oracles/make_model_fixtures.py, as tests read them.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "checkpoint/hf/fused_tensors.h"
#include "common/json.h"
#include "model/config/hf_config.h"
#include "tests/support/safetensors_fixture.h"
#include "trainer/engine/train_engine.h"

namespace keel::trainer {

using Tensors = std::map<std::string, at::Tensor>;

inline std::string FixtureDirectory() {
  const char* value = std::getenv("KEEL_FIXTURES");
  return value != nullptr ? value : "build/release/fixtures";
}

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Fixture {
  model::HfConfig config;
  Tensors weights;
  Tensors reference;
  Json summary;
};

// By their canonical names, as the reference has them.
inline Tensors Unfused(const Tensors& files, const std::string& config) {
  const auto fused = ValueOrThrow(checkpoint::FusedTensors::Of(config, "config.json"));
  Tensors weights;
  for (const auto& [name, tensor] : files) {
    const checkpoint::SafetensorsTensor whole{name, DType::kF32, Dims(tensor.sizes()), 0, 0};
    int64_t row = 0;
    for (const auto& part : ValueOrThrow(fused.Split(whole, "model.safetensors"))) {
      weights[part.name] = part.name == name ? tensor : tensor.narrow(0, row, part.shape[0]);
      row += part.shape.size() > 0 ? part.shape[0] : 0;
    }
  }
  return weights;
}

inline Fixture LoadFixture(const std::string& name) {
  const std::string directory = FixtureDirectory() + "/" + name;
  Fixture fixture;
  const std::string config = directory + "/hf/config.json";
  fixture.config =
      ValueOrThrow(model::ParseHfConfig(ValueOrThrow(ParseJson(ReadText(config), config)), config));
  for (const auto& entry : std::filesystem::directory_iterator(directory + "/hf")) {
    if (entry.path().extension() == ".safetensors") {
      fixture.weights.merge(keel::testing::ReadSafetensors(entry.path()));
    }
  }
  fixture.weights = Unfused(fixture.weights, ReadText(config));
  // A copy under another name shares no weights: v4 spellings refer to the same reference values.
  fixture.reference = keel::testing::ReadSafetensors(directory + "/reference.safetensors");
  fixture.summary = ValueOrThrow(ParseJson(ReadText(directory + "/reference.json"), name));
  return fixture;
}

inline StridedView WholeView(const at::Tensor& tensor) {
  StridedView view;
  view.data = static_cast<std::byte*>(tensor.data_ptr());
  view.strides = Dims(tensor.strides());
  return view;
}

// Copies whole tensors into the shards of a table.
inline void Fill(const ShardTable& table, const Tensors& whole) {
  for (const Shard& shard : table.shards()) {
    const TensorInfo& info = table.tensor_of(shard);
    const auto it = whole.find(info.name);
    ASSERT_NE(it, whole.end()) << info.name;
    ASSERT_EQ(Dims(it->second.sizes()), info.shape) << info.name;
    CopyBox(shard.box, Box::Whole(info.shape), WholeView(it->second), shard.box, shard.view,
            DTypeSize(info.dtype));
  }
}

}  // namespace keel::trainer
