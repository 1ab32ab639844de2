#include "model/config/quantization.h"

#include <fmt/format.h>

#include "common/text.h"

namespace keel::model {

namespace {

constexpr const char* kKey = "quantization_config";
constexpr int64_t kLargestBlock = int64_t{1} << 20;

// Of a list [rows, columns].
bool ReadBlock(const Json& block, Quantization* q) {
  if (!block.is_array() || block.size() != 2) return false;
  for (const Json& size : block)
    if (!size.is_number_integer() || size < 1 || size > kLargestBlock) return false;
  q->block_rows = block[0];
  q->block_columns = block[1];
  return true;
}

// The blocks of compressed-tensors: of the groups of matrices, all of which are read alike.
bool ReadGroups(const Json& config, Quantization* q) {
  const auto groups = config.find("config_groups");
  if (groups == config.end() || groups->is_null()) return true;
  if (!groups->is_object()) return false;
  std::optional<Json> block;
  for (const Json& group : *groups) {
    const Json weights = group.is_object() ? group.value("weights", Json()) : Json();
    if (!weights.is_object()) return false;
    const Json of_group = weights.value("block_structure", Json());
    if (block && *block != of_group) return false;
    block = of_group;
  }
  return !block || block->is_null() || ReadBlock(*block, q);
}

std::string TextOf(const Json& map, const char* key) {
  const auto found = map.find(key);
  return found != map.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

std::string QuantizationNames() {
  return "fp8, mxfp4 and compressed-tensors of format float-quantized";
}

Result<std::optional<Quantization>> ReadQuantization(const Json& config, std::string_view where) {
  if (!config.is_object()) return std::optional<Quantization>();
  // A model of texts and images may have it beside its text's keys.
  const auto in = [](const Json& map) {
    const auto there = map.find(kKey);
    return there == map.end() || there->is_null() ? nullptr : &*there;
  };
  const Json* found = in(config);
  if (const auto text = config.find("text_config");
      found == nullptr && text != config.end() && text->is_object())
    found = in(*text);
  if (found == nullptr) return std::optional<Quantization>();
  const auto wrong = [&](std::string_view key, const std::string& what) {
    return Status(StatusCode::kInvalidData, fmt::format("{}: {}{}: {}", where, kKey, key, what));
  };
  if (!found->is_object()) return wrong("", "expected a map");
  const std::string method = TextOf(*found, "quant_method");
  Quantization q;
  q.name = method;
  if (method == "mxfp4") {
    q.method = Quantization::Method::kMxfp4;
    return std::optional(q);
  }
  if (method == "compressed-tensors") {
    const std::string format = TextOf(*found, "format");
    if (format != "float-quantized") {
      return wrong(".format",
                   fmt::format("expected float-quantized, found \"{}\"", Printable(format, 80)));
    }
    if (!ReadGroups(*found, &q)) {
      return wrong(".config_groups",
                   "expected maps of weights, all of the same block_structure where they have one");
    }
    return std::optional(q);
  }
  if (method != "fp8") {
    return wrong(".quant_method", fmt::format("expected {}, found \"{}\"", QuantizationNames(),
                                              Printable(method, 80)));
  }
  if (const std::string fmt_name = TextOf(*found, "fmt"); !fmt_name.empty() && fmt_name != "e4m3")
    return wrong(".fmt", fmt::format("expected e4m3, found \"{}\"", Printable(fmt_name, 80)));
  if (const auto block = found->find("weight_block_size");
      block != found->end() && !block->is_null() && !ReadBlock(*block, &q))
    return wrong(".weight_block_size", "expected a list of rows and columns, or null");
  return std::optional(q);
}

}  // namespace keel::model
