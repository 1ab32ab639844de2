// Settings that somebody gives and nothing reads: what they are of is switched off elsewhere. A run
// goes on with them, since launch scripts carry whole sets of keys from one run to the next, and
// says so. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "common/options/schema.h"

namespace keel::trainer {

struct Config;

// Keys that are read where something is on, and nowhere else.
struct Switch {
  std::string with;  // what must be on, in words: "trainer.task: rl"
  bool (*on)(const Config& config);
  std::vector<std::string> keys;  // one that ends in a dot: all below it

  bool Has(const std::string& path) const;
};

// The widest come first: a key that is below several is said with the first that is off. Where a
// key beside another is refused (ValidateConfig), it is not here.
const std::vector<Switch>& Switches();

// A sentence for each switch that is off while keys of it are not at their defaults: which, where
// they were given, and what the switch is. `schema` is bound to `config`.
std::vector<std::string> IdleSettings(const Config& config, const options::Schema& schema);

}  // namespace keel::trainer
