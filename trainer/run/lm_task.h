// Pre-training and SFT: the task that learns to predict tokens of given texts.
#pragma once

#include "trainer/data/sample.h"
#include "trainer/inputs/model_description.h"
#include "trainer/run/job.h"

namespace keel::trainer {

// Opens what the task learns from. Throws keel::Error: bad input ends the run before any
// connection. Not collective; what it returns lives as long as this.
class LmInputs {
 public:
  virtual ~LmInputs() = default;

  virtual const ModelDescription& OpenModel() = 0;
  // Then samples that this model can learn from.
  struct Samples {
    const SampleSet& train;
    const SampleSet& val;
  };
  virtual Samples LoadSamples() = 0;
};

// From data to the last step. Collective over all ranks. Throws keel::Error.
RunEnd RunLmTask(Job& job, LmInputs& inputs);

}  // namespace keel::trainer
