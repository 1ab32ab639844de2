#include "trainer/inputs/lm_inputs.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "trainer/config/config_data.h"

namespace keel::trainer {

namespace {

// kInvalidData where no sample has a token to learn: packings that cut rows leave none out for it.
Status CheckTeaches(const Dataset& data, const char* what) {
  for (int64_t i = 0; i < data.size(); ++i)
    if (data.targets(i) > 0) return Status::Ok();
  if (data.size() == 0) return Status::Ok();
  return Status(
      StatusCode::kInvalidData,
      fmt::format("{}: none of the {} samples has a token that is learnt: they are of rows without "
                  "an answer, or blocks that data.packing cut out of prompts",
                  what, data.size()));
}

}  // namespace

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
  const auto load = [&](const std::vector<std::string>& files) {
    const bool mixed = !sources.empty() && &files == &c.data.train_files;
    return mixed ? Dataset::LoadSources(sources, options, model.text)
                 : Dataset::Load(files, options, model.text);
  };
  KEEL_ASSIGN_OR_RETURN(RunData<Dataset> data, LoadBoth<Dataset>(c, load));
  if (!options.sft) return data;
  KEEL_RETURN_IF_ERROR(CheckTeaches(data.train, "the data to train on"));
  KEEL_RETURN_IF_ERROR(
      CheckTeaches(data.val, c.data.val_files.empty() ? "data.val_split" : "data.val_files"));
  return data;
}

}  // namespace keel::trainer
