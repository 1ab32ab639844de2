// keel config import-trl: a run of `trl sft`, `trl dpo` or `trl grpo` as a Keel configuration.
#pragma once

#include <optional>

#include "trainer/foreign/foreign_import.h"
#include "trainer/foreign/trl_keys.h"

namespace keel::trainer::foreign {

// Of a YAML file as `trl sft --config` takes it, or of a script with the command. The method is
// what is given, or what the command says. kConfig: neither says it, or the text is neither.
Result<Imported> ImportTrl(const ImportRequest& request, std::optional<TrlMethod> method,
                           const options::Schema& schema);

}  // namespace keel::trainer::foreign
