#include "checkpoint/hf/hf_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/tensors/float_convert.h"
#include "common/tensors/transfer_check.h"

namespace keel::checkpoint {
namespace {

constexpr size_t kMostNames = 10;  // of a kind, in a message

// Of GPTQ, AWQ, bitsandbytes and those of eight bits, in files whose config.json does not say it.
bool IsOfQuantized(std::string_view name) {
  constexpr std::string_view kEnds[] = {".qweight",      ".qzeros",           ".weight_packed",
                                        ".weight_scale", ".weight_scale_inv", ".absmax"};
  return std::any_of(std::begin(kEnds), std::end(kEnds),
                     [name](std::string_view end) { return name.ends_with(end); });
}

}  // namespace

Status CheckTensors(const HfModelDir& directory, const ModelTensors& model) {
  return CheckTensors(
      directory, model,
      directory.where() + ": the weights are not those that its config.json describes");
}

Status CheckTensors(const HfModelDir& directory, const ModelTensors& model,
                    std::string_view described) {
  const ShardTable& found = directory.source();
  TransferProblems faults(kMostNames);
  std::set<std::string_view> known;
  for (const TensorInfo& wanted : model.needed) {
    known.insert(wanted.name);
    const int at = found.Find(wanted.name);
    if (at < 0) {
      const bool may_lack = std::find(model.may_lack.begin(), model.may_lack.end(), wanted.name) !=
                            model.may_lack.end();
      if (!may_lack) faults.Add(TransferProblems::kMissing, directory.NameInFiles(wanted.name));
      continue;
    }
    const TensorInfo& there = found.tensors()[static_cast<size_t>(at)];
    if (!(there.shape == wanted.shape)) {
      faults.Add("tensors of another shape",
                 fmt::format("{} is {}, expected {}", directory.NameInFiles(wanted.name),
                             there.shape.ToString(), wanted.shape.ToString()));
    } else if (!CanConvert(there.dtype, wanted.dtype)) {
      faults.Add("tensors of a dtype that is no weight's",
                 fmt::format("{} is {}, expected F32, BF16, F16 or F64",
                             directory.NameInFiles(wanted.name), DTypeName(there.dtype)));
    }
  }
  for (const ModelTensors::Copy& copy : model.may_copy) {
    if (found.Find(copy.name) < 0 || found.Find(copy.original) < 0) continue;
    known.insert(copy.name);
    KEEL_ASSIGN_OR_RETURN(const bool same, directory.SameValues(copy.name, copy.original));
    if (same) continue;
    faults.Add("tensors that should be copies, and are not",
               fmt::format("{0} differs from {1}, to which config.json ties it: to "
                           "tie_word_embeddings: true some transformers compute with {1} alone (4) "
                           "and some with both (5); set it to false for the head that is there, or "
                           "take {0} out of the files",
                           directory.NameInFiles(copy.name), directory.NameInFiles(copy.original)));
  }
  const char* const kStrange = "tensors that the model has no place for";
  bool quantized = false;
  for (const TensorInfo& there : found.tensors()) {
    quantized |= IsOfQuantized(there.name);
    if (known.contains(there.name) || MatchesAny(model.may_add, there.name)) continue;
    faults.Add(kStrange, directory.NameInFiles(there.name));
  }
  for (const std::string& name : directory.strangers()) faults.Add(kStrange, name);
  if (faults.empty()) return Status::Ok();
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: {}. {}", described, faults.ToStatus().message(),
                            quantized ? "They are quantized: keel ckpt dequantize-hf makes "
                                        "those of fp8 and mxfp4 usable, with the "
                                        "quantization_config that says how; else give the model "
                                        "that they were made of"
                                      : "Correct whichever is wrong"));
}

Result<HfModelDir> OpenTensors(const FileSystem& fs, std::string directory,
                               const ModelTensors& model) {
  KEEL_ASSIGN_OR_RETURN(const HfModelDir opened, HfModelDir::Open(fs, std::move(directory)));
  KEEL_ASSIGN_OR_RETURN(HfModelDir whole, opened.AsTensorsOf(model));
  KEEL_RETURN_IF_ERROR(CheckTensors(whole, model));
  return whole;
}

}  // namespace keel::checkpoint
