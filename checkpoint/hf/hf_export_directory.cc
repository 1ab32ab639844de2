#include "checkpoint/hf/hf_export_directory.h"

#include <fmt/format.h>

#include "checkpoint/format/names.h"
#include "checkpoint/hf/hf_weights.h"
#include "checkpoint/hf/whole_directory.h"
#include "common/files/template_files.h"

namespace keel::checkpoint {

Status ExportHuggingFace(const StepReader& reader, const std::string& role, FileSystem& out,
                         const std::string& name, const HfExportOptions& options, Logger& log) {
  const std::string prefix = role + "/huggingface/";
  const std::string config_path = prefix + "config.json";
  if (reader.manifest().Find(config_path) == nullptr)
    log.Warning("the checkpoint holds no {}: the export will lack it", config_path);
  KEEL_ASSIGN_OR_RETURN(const std::string names, ConfigTextOf(reader, role));

  HfExportOptions how = options;
  how.adapters = reader.manifest().Find(fmt::format("{}{}", prefix, kAdapterConfigName)) != nullptr;
  const auto fill = [&](const std::string& directory) -> Status {
    // Tokenizer and configuration: the small files beside the weights.
    for (const ManifestFile& file : reader.manifest().files) {
      if (file.role != FileRole::kDocument || !file.path.starts_with(prefix)) continue;
      const std::string plain = file.path.substr(prefix.size());
      const bool more = plain.starts_with(fmt::format("{}/", kMoreTemplates));
      if (!more && plain.find('/') != std::string::npos) continue;
      // With it transformers would look for a whole model there.
      if (how.adapters && plain == "config.json") continue;
      KEEL_ASSIGN_OR_RETURN(const std::string text, reader.ReadText(file.path));
      KEEL_RETURN_IF_ERROR(WriteModelText(out, directory, plain, text));
    }
    return ExportWeights(reader, role + "/model", names, out, directory, how).status();
  };
  return MakeWholeDirectory(out, name, "an export", log, fill);
}

}  // namespace keel::checkpoint
