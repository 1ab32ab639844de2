// What a task counts trainer.total_epochs in.
#pragma once

namespace keel::trainer {

enum class EpochUnit {
  kSamples,       // each is taken so often: the last step takes what is left
  kWholeBatches,  // of data.train_batch_size samples, to the nearest number of them
  kSteps,         // likewise, but a step may take more samples than a batch, which do not count
};

}  // namespace keel::trainer
