// What --model names: a Hugging Face directory, a step of a run, or adapters (LoRA), which are a
// directory as PEFT writes it or a step of a run that trained some, beside a model that they name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/progress.h"
#include "common/status.h"
#include "common/tensors/dtype.h"
#include "common/tensors/shard_table.h"
#include "trainer/inputs/adapter_files.h"
#include "trainer/inputs/model_source.h"
#include "trainer/run/rank_agreement.h"

namespace keel::tools {

struct NamedModel {
  std::string path;  // as it was given
  bool is_step = false;
  std::string base;  // the directory of the model that adapters stand beside; else ""
  // What is known of it: of adapters that a run has trained.
  std::optional<trainer::AdapterBase> base_is = {};
  DType dtype = DType::kF32;  // of the weights there
  trainer::ModelSource source;

  bool has_adapters() const { return !base.empty(); }
};

struct NamedModelOptions {
  std::string key = "--model";  // what named it, for messages
  std::string base = {};        // where the model of adapters lies, if not where they say; else ""
  bool todays_date = true;
};

// Reads all but weights. kUsage for a base of what has no adapters.
Result<NamedModel> OpenNamedModel(const std::string& path, const NamedModelOptions& options);

// Fills `own` and, of adapters, `base` (WeightStore::Which) on the host; of a step they have
// model.dtype. Whether the base is what was trained beside is for CheckBaseDigest to say. `bar`
// hears of what is read; may be null.
Status ReadNamedWeights(const NamedModel& model, const ShardTable& own, const ShardTable& base,
                        Progress* bar);
// The adapters alone.
Status ReadNamedAdapters(const NamedModel& model, const ShardTable& own, Progress* bar = nullptr);

// kConfig unless `found`, the digest of the base in model.base_is->dtype, is the one that the
// adapters' run had.
Status CheckBaseDigest(const NamedModel& model, uint64_t found);

// Of the weights, for ranks to compare.
Result<trainer::SharedFacts> WeightFacts(const NamedModel& model);

}  // namespace keel::tools
