// keel config import-verl: a run of verl's main_ppo as a Keel configuration.
#pragma once

#include "trainer/foreign/foreign_import.h"

namespace keel::trainer::foreign {

// Of verl's merged YAML, a part of it, or a script that launches `verl.trainer.main_ppo` with
// Hydra's overrides. kConfig: the text is none of these.
Result<Imported> ImportVerl(const ImportRequest& request, const options::Schema& schema);

}  // namespace keel::trainer::foreign
