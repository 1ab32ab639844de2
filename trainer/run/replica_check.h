// Whether ranks that hold copies of the same weights hold the same bits.
//
// Copies are made equal once and then trained apart: norms on every tensor-parallel rank, a tied
// embedding on the first and the last stage, all weights on every data-parallel rank. A bit that
// flips in one of them, or a core that computes wrongly, makes them drift, and a checkpoint would
// hold one of the versions.
#pragma once

#include <cstdint>
#include <string_view>

#include "parallel/groups/context.h"
#include "trainer/engine/train_engine.h"

namespace keel::trainer {

// Throws Error(kDataLoss) on every rank when copies differ: which tensors, on which ranks and
// hosts. `when` is for the message: "before the save of step 12". Reads the weights where they are
// (of a GPU through host memory), moves none, and sends 8 bytes where all is well. Collective over
// all ranks of `context`, the engine's.
void CheckReplicas(TrainEngine& engine, std::string_view role, parallel::ParallelContext& context,
                   std::string_view when);

}  // namespace keel::trainer
