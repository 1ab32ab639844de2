#include "model/config/hf_tensors.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "model/config/family_table.h"
#include "model/decoder.h"
#include "parallel/groups/process_group.h"

namespace keel::model {
namespace {

std::map<std::string, Dims> Shapes(const std::vector<TensorInfo>& tensors) {
  std::map<std::string, Dims> shapes;
  for (const TensorInfo& tensor : tensors) shapes.emplace(tensor.name, tensor.shape);
  EXPECT_EQ(shapes.size(), tensors.size());
  return shapes;
}

// The torch-free list, and what the decoder declares, are the same tensors.
TEST(HfTensors, AreThoseOfTheDecoder) {
  const auto alone = parallel::MakeSingleGroup("alone");
  int seen = 0;
  for (const FamilyTable& table : Families()) {
    const Family family = table.family;
    for (int variant = 0; variant < 16; ++variant) {
      HfConfig config;
      config.family = family;
      config.hidden_size = 24;
      config.intermediate_size = 40;
      config.num_hidden_layers = 2;
      config.num_attention_heads = 6;
      config.num_key_value_heads = 2;
      config.head_dim = 8;
      config.vocab_size = 37;
      config.max_position_embeddings = 16;
      config.tie_word_embeddings = (variant & 1) != 0;
      config.attention_bias = (variant & 2) != 0;
      config.output_bias = config.mlp_bias = (variant & 4) != 0;
      if (family == Family::kQwen3Moe || family == Family::kMixtral) {
        config.moe = {.experts = 3, .top_k = 2, .width = 10};
        if (family == Family::kQwen3Moe) config.dense_ffn = {true, false};
      }
      if (family == Family::kGlm4Moe || family == Family::kMiniMaxM2) {
        config.moe = {.experts = 4, .top_k = 2, .width = 10, .choice_bias = true};
        config.qk_norm = (variant & 2) == 0;
        if (family == Family::kGlm4Moe) {
          config.moe.shared_width = 20;
          config.moe.shared_gated = false;
          config.dense_ffn = {true, false};
        }
      }
      if (family >= Family::kQwen3Next && family <= Family::kQwen35Moe) {
        config.delta = {2, 6, 4, 5, 3, family == Family::kQwen3Next};
        config.recurrent = {true, false};
        if (family != Family::kQwen35)
          config.moe = {.experts = 3, .top_k = 2, .width = 10, .shared_width = 7};
        if (family == Family::kQwen3Next) config.dense_ffn = {false, true};
      }
      if (family == Family::kGptOss)
        config.moe = {.experts = 3, .top_k = 2, .width = 10, .kind = ExpertKind::kClamped};
      if (family >= Family::kDeepseekV2 && family <= Family::kYoutu) {
        config.num_key_value_heads = config.num_attention_heads;
        config.latent = {(variant & 4) != 0 ? 5 : 0, 6, 4, 2, 8};
      }
      if (family == Family::kGptNeox) config.num_key_value_heads = config.num_attention_heads;
      config.parallel_residual = (variant & 2) != 0;
      DecoderOptions options;
      options.value_head = (variant & 8) != 0;
      const Decoder decoder(config, parallel::TensorParallel{alone.get(), false}, options);
      const ModelTensors tensors =
          TensorsOf(config, options.value_head ? Head::kValue : Head::kVocabulary);
      std::map<std::string, Dims> declared;
      for (const parallel::Parameter* parameter : decoder.parameters()) {
        for (const parallel::ParameterPiece& piece : parameter->pieces)
          declared.emplace(piece.name, piece.shape);
      }
      const std::map<std::string, Dims> listed = Shapes(tensors.needed);
      ASSERT_EQ(listed.size(), declared.size());
      for (const auto& [name, shape] : declared) {
        ASSERT_TRUE(listed.contains(name)) << name;
        EXPECT_TRUE(listed.at(name) == shape) << name;
        ++seen;
      }
      if (!options.value_head) {
        int64_t parameters = 0;
        for (const auto& [name, shape] : listed)
          if (!name.ends_with("e_score_correction_bias")) parameters += shape.elements();
        EXPECT_EQ(parameters, config.NumParameters());
      }
    }
  }
  EXPECT_GT(seen, 900);
}

}  // namespace
}  // namespace keel::model
