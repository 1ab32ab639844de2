#include "trainer/inputs/lm_inputs.h"

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "trainer/config/config_data.h"

namespace keel::trainer {

namespace {

// Of each rank that tokenizes into the cache: they share what is to be done, so threads of their
// own are of use to a rank that is alone on its node, and in no one's way otherwise.
int CacheThreads(const Config& c) {
  if (c.trainer.threads_per_rank > 0) return static_cast<int>(c.trainer.threads_per_rank);
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 8u));
}

}  // namespace

Result<RunData<Dataset>> LoadLmData(const Config& c, const ModelSource& model) {
  KEEL_RETURN_IF_ERROR(CheckPositions(model.config, c.data.max_length, "data.max_length"));
  DatasetOptions options;
  options.sft = c.trainer.task == TaskKind::kSft;
  options.max_length = c.data.max_length;
  options.truncation = c.data.truncation;
  options.vocab_size = model.config.vocab_size;
  options.keys = {c.data.text_key, c.data.prompt_key, c.data.response_key, c.data.messages_key};
  options.packing = c.data.packing;
  options.cache.folder = c.data.cache_dir.value_or("");
  options.cache.threads = CacheThreads(c);
  options.cache.deadline_seconds = c.trainer.deadline_seconds;
  KEEL_ASSIGN_OR_RETURN(const std::vector<DataSource> sources, SourcesOf(c));
  return LoadBoth<Dataset>(c, [&](const std::vector<std::string>& files) {
    const bool mixed = !sources.empty() && &files == &c.data.train_files;
    return mixed ? Dataset::LoadSources(sources, options, model.text)
                 : Dataset::Load(files, options, model.text);
  });
}

}  // namespace keel::trainer
