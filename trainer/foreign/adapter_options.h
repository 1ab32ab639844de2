// Adapters (LoRA) as other trainers ask for them, and what Keel's configuration says of the same.
#pragma once

#include <string>

#include "common/json.h"
#include "common/status.h"
#include "trainer/foreign/translation.h"

namespace keel::trainer::foreign {

struct AskedAdapters {
  double rank = 0;
  double alpha = 0;
  bool rank_stabilized = false;
  Json targets;      // a name or a list, PEFT's or Megatron's names; null: all-linear
  Json excluded;     // likewise; null: none
  Json path;         // of a directory to go on from; null: none
  std::string from;  // the key that asks for them, for comments
};

// A name or a list of modules, as PEFT has them; Megatron's, whose matrices are several of these,
// are taken apart. Null says nothing. kConfig for an expression, and for other names of Megatron's.
// A Conversion (key_table.h).
Result<Json> AsModules(const Json& names);

// Says in `translation` what is asked for; nothing with a rank of 0 and no path.
void TakeAdapters(const AskedAdapters& asked, Translation* translation);

}  // namespace keel::trainer::foreign
