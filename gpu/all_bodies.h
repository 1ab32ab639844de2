// The table of all bodies for one launcher.
#pragma once

#include "gpu/adamw.h"
#include "gpu/gated_unit.h"
#include "gpu/kernel_table.h"
#include "gpu/paged_attention.h"
#include "gpu/rms_norm.h"
#include "gpu/rotation.h"
#include "gpu/row_sum.h"
#include "gpu/tensor_digest.h"
#include "gpu/token_choice.h"
#include "gpu/vocab_softmax.h"

namespace keel::gpu {

template <class Launcher>
KernelTable TableOf() {
  KernelTable table;
  AddRmsNormTo<Launcher>(table);
  AddGatedUnitTo<Launcher>(table);
  AddRotationTo<Launcher>(table);
  AddPagedAttentionTo<Launcher>(table);
  AddAdamWTo<Launcher>(table);
  AddVocabSoftmaxTo<Launcher>(table);
  AddRowSumTo<Launcher>(table);
  AddTensorDigestTo<Launcher>(table);
  AddTokenChoiceTo<Launcher>(table);
  return table;
}

}  // namespace keel::gpu
