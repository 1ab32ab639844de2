#include "trainer/config/config_data.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "trainer/config/config.h"

namespace keel::trainer {

Result<std::vector<DataSource>> SourcesOf(const Config& config) {
  std::vector<DataSource> sources;
  for (size_t i = 0; i < config.data.sources.size(); ++i) {
    const Json& entry = config.data.sources[i];
    const auto refuse = [&](const std::string& text) {
      return Status(StatusCode::kConfig, fmt::format("data.sources[{}]: {}", i, text));
    };
    DataSource source;
    for (const auto& [key, value] : entry.items()) {
      if (key == "path" && value.is_string()) {
        source.path = value.get<std::string>();
      } else if (key == "weight" && value.is_number()) {
        source.weight = value.get<double>();
      } else {
        return refuse(fmt::format("{}: expected path: a string, and weight: a number", key));
      }
    }
    if (source.path.empty()) return refuse("path is missing");
    if (!(source.weight > 0) || !std::isfinite(source.weight) || source.weight > 1e9)
      return refuse(fmt::format("weight is {}, expected a number above 0", source.weight));
    sources.push_back(std::move(source));
  }
  double sum = 0;
  for (const DataSource& source : sources) sum += source.weight;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].weight / sum >= 1e-6) continue;
    return Status(StatusCode::kConfig,
                  fmt::format("data.sources[{}]: weight {} is less than a millionth of all weights "
                              "together",
                              i, sources[i].weight));
  }
  return sources;
}

std::vector<std::string> ValidateSources(const Config& c) {
  std::vector<std::string> problems;
  const bool lm = c.trainer.task == TaskKind::kPretrain || c.trainer.task == TaskKind::kSft;
  const auto lm_alone = [&](bool given, const char* key) {
    if (given && !lm)
      problems.push_back(fmt::format("{} is of trainer.task pretrain and sft alone", key));
  };
  lm_alone(!c.data.sources.empty(), "data.sources");
  lm_alone(c.data.packing.has_value(), "data.packing");
  if (c.data.cache_dir && c.data.cache_dir->empty())
    problems.push_back("data.cache_dir is empty: name a folder, or write null");
  if (c.data.sources.empty()) {
    if (c.data.train_files.empty())
      problems.push_back("data.train_files is empty: name at least one file");
    return problems;
  }
  const auto sources = SourcesOf(c);
  if (!sources.ok()) problems.push_back(sources.status().message());
  if (!c.data.train_files.empty())
    problems.push_back("data.train_files and data.sources are both given: give one");
  if (c.data.val_split > 0) {
    problems.push_back(
        "data.val_split would take other shares of data.sources than their weights: give "
        "data.val_files");
  }
  if (c.trainer.total_epochs) {
    problems.push_back(
        "trainer.total_epochs: each of data.sources has epochs of its own; give "
        "trainer.total_training_steps");
  }
  return problems;
}

}  // namespace keel::trainer
