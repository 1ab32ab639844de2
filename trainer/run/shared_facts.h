// What a configuration, a program and a machine add to what ranks of one job must have alike.
#pragma once

#include <ATen/ATen.h>

#include "trainer/config/config.h"
#include "trainer/inputs/model_description.h"
#include "trainer/run/rank_agreement.h"

namespace keel::trainer {

// Of all ranks: the program's build, the kind of device, every key of the configuration but for
// those of a node.
SharedFacts FactsOfRun(const LoadedConfig& loaded, at::Device device);
// Of the desk and its workers: these, the model and its tokenizer.
SharedFacts WorkerFacts(const LoadedConfig& loaded, at::Device device,
                        const ModelDescription& model);
// What decides how a rank on a host rounds, and may differ; nothing of a GPU.
SharedFacts RoundingFacts(at::Device device, at::ScalarType dtype);

}  // namespace keel::trainer
