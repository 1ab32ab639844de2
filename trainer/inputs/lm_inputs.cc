#include "trainer/inputs/lm_inputs.h"

#include <string>
#include <vector>

#include "trainer/config/config_data.h"

namespace keel::trainer {

Result<RunData<Dataset>> LoadLmData(const Config& c, const ModelSource& model) {
  KEEL_RETURN_IF_ERROR(
      CheckPositions(model::LongestTrained(model.config), c.data.max_length, "data.max_length"));
  DatasetOptions options;
  options.sft = c.trainer.task == TaskKind::kSft;
  options.max_length = c.data.max_length;
  options.truncation = c.data.truncation;
  options.vocab_size = model.config.vocab_size;
  options.keys = {c.data.text_key, c.data.prompt_key, c.data.response_key, c.data.messages_key};
  options.packing = c.data.packing;
  options.cache = CacheOf(c);
  KEEL_ASSIGN_OR_RETURN(const std::vector<DataSource> sources, SourcesOf(c));
  return LoadBoth<Dataset>(c, [&](const std::vector<std::string>& files) {
    const bool mixed = !sources.empty() && &files == &c.data.train_files;
    return mixed ? Dataset::LoadSources(sources, options, model.text)
                 : Dataset::Load(files, options, model.text);
  });
}

}  // namespace keel::trainer
