// The keys of `trainer`, and what of them does not go with the rest.
#pragma once

#include <string>
#include <vector>

namespace keel::options {
class Schema;
}

namespace keel::trainer {

struct Config;

// The keys of `trainer`.
void AddTrainerOptions(Config& config, options::Schema& schema);
// What of length, resume, retention and trace does not fit together, as sentences that name the
// keys.
std::vector<std::string> ValidateTrainer(const Config& config);

}  // namespace keel::trainer
