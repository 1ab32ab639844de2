#include "model/layout_fit.h"

#include <fmt/format.h>

namespace keel::model {

std::vector<std::string> LayoutProblems(const HfConfig& config, const LayoutWish& wish) {
  std::vector<std::string> problems;
  const auto divides = [&](int64_t value, const char* name) {
    if (value % wish.tp != 0) {
      problems.push_back(fmt::format("{} {} is not divisible by tensor_model_parallel_size {}",
                                     name, value, wish.tp));
    }
  };
  divides(config.num_attention_heads, "num_attention_heads");
  if (!wish.forward_only || config.num_key_value_heads == 0 ||
      wish.tp % config.num_key_value_heads != 0)
    divides(config.num_key_value_heads, "num_key_value_heads");
  divides(config.intermediate_size, "intermediate_size");
  if (config.num_hidden_layers < wish.stages) {
    problems.push_back(
        fmt::format("num_hidden_layers {} is less than pipeline_model_parallel_size {}",
                    config.num_hidden_layers, wish.stages));
  }
  return problems;
}

}  // namespace keel::model
