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
constexpr Part kGraniteHybrid[] = {{"shared_mlp.output_linear", "mlp.down_proj"}};
constexpr Part kHunyuan[] = {{"self_attn.query_layernorm", "self_attn.q_norm"},
                             {"self_attn.key_layernorm", "self_attn.k_norm"}};
constexpr Part kVaultGemma[] = {{"pre_feedforward_layernorm", "post_attention_layernorm"}};
constexpr Part kStarcoder2[] = {{"mlp.c_fc", "mlp.up_proj"}, {"mlp.c_proj", "mlp.down_proj"}};

struct Family {
  std::string_view model_type;
  std::span<const Part> parts;
};
constexpr Family kFamilies[] = {{"gpt_neox", kGptNeox},
                                {"granitemoehybrid", kGraniteHybrid},
                                {"hunyuan_v1_dense", kHunyuan},
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
