// The keys of data, what data.sources says, and what does not go with it.
#pragma once

#include <string>
#include <vector>

#include "common/status.h"
#include "trainer/data/data_source.h"

namespace keel::options {
class Schema;
}

namespace keel::trainer {

struct Config;

// The keys of `data`.
void AddDataOptions(Config& config, options::Schema& schema);

// data.sources; empty where train_files are given. kConfig names the entry that is none.
Result<std::vector<DataSource>> SourcesOf(const Config& config);
// What of files, sources, packing and cache does not fit together, as sentences that name the keys.
std::vector<std::string> ValidateSources(const Config& config);

}  // namespace keel::trainer
