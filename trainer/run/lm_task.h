// Pre-training and SFT: the task that learns to predict tokens of given texts.
#pragma once

#include <memory>

#include "trainer/data/sample.h"
#include "trainer/inputs/model_description.h"
#include "trainer/run/job.h"
#include "trainer/run/run_course.h"
#include "trainer/run/task.h"

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

// All must outlive the task.
std::unique_ptr<Task> MakeLmTask(Job& job, RunCourse& course, LmInputs& inputs);

}  // namespace keel::trainer
