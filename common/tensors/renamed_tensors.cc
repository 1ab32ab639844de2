#include "common/tensors/renamed_tensors.h"

namespace keel {
namespace {

using Part = RenamedTensors::Part;

constexpr Part kGptNeox[] = {{"gpt_neox", "model"},
                             {"embed_in", "embed_tokens"},
                             {"attention.query_key_value", "self_attn.query_key_value"},
                             {"attention.dense", "self_attn.o_proj"},
                             {"mlp.dense_h_to_4h", "mlp.up_proj"},
                             {"mlp.dense_4h_to_h", "mlp.down_proj"},
                             {"final_layer_norm", "norm"},
                             {"embed_out", "lm_head"}};
constexpr Part kGpt2[] = {{"transformer", "model"},
                          {"wte", "embed_tokens"},
                          {"wpe", "embed_positions"},
                          {"h", "layers"},
                          {"ln_1", "input_layernorm"},
                          {"attn.c_attn", "self_attn.query_key_value"},
                          {"attn.c_proj", "self_attn.o_proj"},
                          {"ln_2", "post_attention_layernorm"},
                          {"mlp.c_fc", "mlp.up_proj"},
                          {"mlp.c_proj", "mlp.down_proj"},
                          {"ln_f", "norm"}};
constexpr Part kGptNeo[] = {{"transformer", "model"},
                            {"wte", "embed_tokens"},
                            {"wpe", "embed_positions"},
                            {"h", "layers"},
                            {"ln_1", "input_layernorm"},
                            {"attn.attention.q_proj", "self_attn.q_proj"},
                            {"attn.attention.k_proj", "self_attn.k_proj"},
                            {"attn.attention.v_proj", "self_attn.v_proj"},
                            {"attn.attention.out_proj", "self_attn.o_proj"},
                            {"ln_2", "post_attention_layernorm"},
                            {"mlp.c_fc", "mlp.up_proj"},
                            {"mlp.c_proj", "mlp.down_proj"},
                            {"ln_f", "norm"}};
constexpr Part kGptJ[] = {{"transformer", "model"},
                          {"wte", "embed_tokens"},
                          {"h", "layers"},
                          {"ln_1", "input_layernorm"},
                          {"attn.q_proj", "self_attn.q_proj"},
                          {"attn.k_proj", "self_attn.k_proj"},
                          {"attn.v_proj", "self_attn.v_proj"},
                          {"attn.out_proj", "self_attn.o_proj"},
                          {"mlp.fc_in", "mlp.up_proj"},
                          {"mlp.fc_out", "mlp.down_proj"},
                          {"ln_f", "norm"}};
constexpr Part kPhi[] = {{"self_attn.dense", "self_attn.o_proj"},
                         {"mlp.fc1", "mlp.up_proj"},
                         {"mlp.fc2", "mlp.down_proj"},
                         {"final_layernorm", "norm"}};
// A layer's final_layer_norm is that of its feed-forward.
constexpr Part kOpt[] = {{"decoder.embed_tokens", "embed_tokens"},
                         {"decoder.embed_positions", "embed_positions"},
                         {"decoder.final_layer_norm", "norm"},
                         {"decoder.layers", "layers"},
                         {"self_attn_layer_norm", "input_layernorm"},
                         {"self_attn.out_proj", "self_attn.o_proj"},
                         {"final_layer_norm", "post_attention_layernorm"},
                         {"fc1", "mlp.up_proj"},
                         {"fc2", "mlp.down_proj"}};
constexpr Part kGraniteHybrid[] = {{"shared_mlp.output_linear", "mlp.down_proj"}};
constexpr Part kHunyuan[] = {{"self_attn.query_layernorm", "self_attn.q_norm"},
                             {"self_attn.key_layernorm", "self_attn.k_norm"}};
constexpr Part kVaultGemma[] = {{"pre_feedforward_layernorm", "post_attention_layernorm"}};
constexpr Part kStarcoder2[] = {{"mlp.c_fc", "mlp.up_proj"}, {"mlp.c_proj", "mlp.down_proj"}};

struct Family {
  std::string_view model_type;
  std::span<const Part> parts;
};
constexpr Family kFamilies[] = {{"gpt2", kGpt2},
                                {"gpt_bigcode", kGpt2},
                                {"gpt_neo", kGptNeo},
                                {"gpt_neox", kGptNeox},
                                {"gptj", kGptJ},
                                {"granitemoehybrid", kGraniteHybrid},
                                {"hunyuan_v1_dense", kHunyuan},
                                {"opt", kOpt},
                                {"phi", kPhi},
                                {"starcoder2", kStarcoder2},
                                {"vaultgemma", kVaultGemma}};

// The first place where `from` stands as whole parts between dots.
void Replace(std::string_view from, std::string_view to, std::string* name) {
  for (size_t at = name->find(from); at != std::string::npos; at = name->find(from, at + 1)) {
    const size_t end = at + from.size();
    if ((at != 0 && (*name)[at - 1] != '.') || (end != name->size() && (*name)[end] != '.'))
      continue;
    name->replace(at, from.size(), to);
    return;
  }
}

}  // namespace

RenamedTensors::RenamedTensors(std::string_view model_type) {
  for (const Family& family : kFamilies)
    if (family.model_type == model_type) parts_ = family.parts;
}

std::string RenamedTensors::ModelName(std::string_view file_name) const {
  std::string name(file_name);
  for (const Part& part : parts_) Replace(part.file, part.model, &name);
  return name;
}

std::string RenamedTensors::FileName(std::string_view model_name) const {
  std::string name(model_name);
  for (const Part& part : parts_) Replace(part.model, part.file, &name);
  return name;
}

}  // namespace keel
