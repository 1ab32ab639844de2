#include "checkpoint/hf/other_model_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "checkpoint/format/names.h"

namespace keel::checkpoint {
namespace {

bool IsShard(std::string_view name) {
  return name.starts_with("model-") && name.ends_with(".safetensors");
}

bool IsPickle(std::string_view name) {
  return (name.starts_with("pytorch_model") && name.ends_with(".bin")) || name.ends_with(".pth") ||
         name.ends_with(".pt");
}

bool IsSafetensors(std::string_view name) { return name.ends_with(".safetensors"); }

bool IsGguf(std::string_view name) { return name.ends_with(".gguf"); }

}  // namespace

std::string WayFromOtherFiles(const FileSystem& fs, std::string_view directory) {
  const Result<std::vector<FileInfo>> listed = fs.List(directory.empty() ? "." : directory);
  if (!listed.ok()) return "";
  if (listed->empty()) return "; it is empty: download the model there";
  const auto find = [&](auto is) -> std::string {
    const auto found = std::find_if(listed->begin(), listed->end(),
                                    [&](const FileInfo& file) { return is(file.name); });
    return found == listed->end() ? "" : found->name;
  };
  const auto has = [&](std::string_view name) {
    return !find([&](std::string_view other) { return other == name; }).empty();
  };
  if (has(kAdapterConfigName)) {
    return fmt::format(
        "; {} says that these are adapters (LoRA) beside another model: training goes on from them "
        "with that model and actor_rollout_ref.model.lora_adapter_path, and keel ckpt "
        "merge-adapter makes a whole model of both",
        kAdapterConfigName);
  }
  if (has("snapshots")) {
    return "; snapshots/ says that this is an entry of a hub's cache: the model is in a folder "
           "below that";
  }
  if (const std::string name = find(IsGguf); !name.empty()) {
    return fmt::format("; keel ckpt import-gguf makes a model directory of {}", name);
  }
  if (const std::string name = find(IsShard); !name.empty()) {
    return fmt::format(
        "; {} is there, but not model.safetensors.index.json, which says what is in which file: "
        "download that, too",
        name);
  }
  if (has("consolidated.safetensors")) {
    return "; consolidated.safetensors is Mistral's own format, with names of its own: download "
           "model.safetensors, or model.safetensors.index.json and the files that it names, too";
  }
  if (const std::string name = find(IsSafetensors); !name.empty()) {
    return fmt::format("; {} is there: if it is the whole model, rename it to model.safetensors",
                       name);
  }
  if (const std::string name = find(IsPickle); !name.empty()) {
    return fmt::format(
        "; {} is PyTorch's own format: transformers' "
        "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(OUT) writes safetensors",
        name);
  }
  return "";
}

}  // namespace keel::checkpoint
