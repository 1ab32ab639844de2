// How a forward computes.
#pragma once

namespace keel::parallel {

// Whose kernels multiply a forward's rows and attend to them, and in which order sums over ranks
// are made. The backward is the same of all.
enum class Arithmetic {
  kTraining,        // the fastest for many rows
  kGeneration,      // generation's, which on a CPU give a row bits of its own (row_product.h)
  kBatchInvariant,  // generation's, so that a row has bits of its own on a GPU and over ranks, too
};

}  // namespace keel::parallel
