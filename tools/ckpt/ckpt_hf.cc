// keel ckpt import-hf and export-hf: from and to Hugging Face directories.

#include <fmt/format.h>

#include <ostream>

#include "checkpoint/format/names.h"
#include "checkpoint/hf/hf_export_directory.h"
#include "checkpoint/hf/part_names.h"
#include "checkpoint/read/step_reader.h"
#include "checkpoint/run/catalog.h"
#include "checkpoint/tools/hf_import.h"
#include "common/clock.h"
#include "common/files/downloaded.h"
#include "common/json_builder.h"
#include "common/log.h"
#include "model/config/hf_config.h"
#include "model/config/hf_tensors.h"
#include "model/config/text_part.h"
#include "tools/ckpt/ckpt_commands.h"
#include "tools/ckpt/ckpt_paths.h"
#include "tools/counted_reads.h"
#include "tools/interruptible_reads.h"
#include "trainer/inputs/adapter_files.h"
#include "trainer/inputs/text_part_weights.h"

namespace keel::tools {

namespace {

constexpr int64_t kMaxConfig = int64_t{16} << 20;

struct ImportedModel {
  model::HfConfig config;
  std::string text_json;  // config.json of the text part of a model of texts and images
  std::vector<std::string> notes;
};

// Also finds out that the model cannot be trained.
Result<ImportedModel> ReadModel(const FileSystem& source) {
  std::string where = source.Describe("config.json");
  KEEL_ASSIGN_OR_RETURN(const std::string text, ReadDownloaded(source, "config.json", kMaxConfig));
  KEEL_ASSIGN_OR_RETURN(Json json, ParsePythonJson(text, where));
  ImportedModel found;
  KEEL_ASSIGN_OR_RETURN(auto part, model::TextPartOf(json, where));
  if (part) {
    KEEL_ASSIGN_OR_RETURN(found.notes.emplace_back(), trainer::SettleTextPart(source, &*part));
    json = std::move(part->json);
    found.text_json = json.dump(2) + "\n";
    where += ": text_config";
  }
  KEEL_ASSIGN_OR_RETURN(found.config, model::ParseHfConfig(json, where));
  KEEL_ASSIGN_OR_RETURN(found.notes.emplace_back(),
                        trainer::FurtherLayersNote(source, found.config));
  const int64_t vocabulary = found.config.vocab_size;
  KEEL_RETURN_IF_ERROR(model::CheckSpecialIds(json, vocabulary, where));

  const char* const generation = "generation_config.json";
  const auto settings = ReadDownloaded(source, generation, kMaxConfig);
  if (settings.status().code() == StatusCode::kNotFound) return found;
  KEEL_RETURN_IF_ERROR(settings.status());
  KEEL_ASSIGN_OR_RETURN(const Json ids, ParsePythonJson(*settings, source.Describe(generation)));
  KEEL_RETURN_IF_ERROR(model::CheckSpecialIds(ids, vocabulary, source.Describe(generation)));
  return found;
}

// The modules of a model of texts and images have other names than its text part's, which a run
// knows alone: PEFT would find none of the adapters' there, and go on without a word.
Status CheckBaseOfAdapters(const checkpoint::StepReader& reader, const std::string& role) {
  const std::string path = fmt::format("{}/huggingface/{}", role, checkpoint::kAdapterConfigName);
  if (reader.manifest().Find(path) == nullptr) return Status::Ok();
  KEEL_ASSIGN_OR_RETURN(const std::string text, reader.ReadText(path));
  KEEL_ASSIGN_OR_RETURN(const trainer::AdapterConfig adapters,
                        trainer::ParseAdapterConfig(text, path));
  if (adapters.base.empty()) return Status::Ok();
  const auto base = OpenPosixFileSystem(adapters.base, false, LinkPolicy::kFollow);
  const auto config = base.ok() ? ReadDownloaded(**base, "config.json", kMaxConfig)
                                : Result<std::string>(base.status());
  if (!config.ok()) return Status::Ok();  // it has gone, and nobody can say
  const auto names = checkpoint::PartNames::Of(*config, (*base)->Describe("config.json"));
  if (!names.ok() || !names->several()) return Status::Ok();
  return Status(StatusCode::kInvalidData,
                fmt::format("the adapters stand beside the text part of {}, a model of texts and "
                            "images, where PEFT would find none of them: keel ckpt merge-adapter "
                            "makes a whole model of the step",
                            adapters.base));
}

// Of a role's weights, as they lie there.
int64_t WeightBytes(const checkpoint::Manifest& manifest, const std::string& role) {
  int64_t bytes = 0;
  for (const checkpoint::ManifestFile& file : manifest.files)
    if (file.path.starts_with(role + "/model/")) bytes += file.size;
  return bytes;
}

// Of all weight files of a Hugging Face directory; 0 where it cannot be listed.
int64_t SourceBytes(const FileSystem& fs) {
  int64_t bytes = 0;
  const auto entries = fs.List(".");
  if (!entries.ok()) return 0;
  for (const FileInfo& entry : *entries)
    if (entry.name.ends_with(".safetensors")) bytes += entry.size;
  return bytes;
}

}  // namespace

int CkptExportHf(const CkptExportOptions& options, std::ostream& out, std::ostream& err) {
  if (const Status usable = CheckTarget(options.output); !usable.ok()) return Fail(usable, err);
  const auto place = OpenStep(options.step);
  if (!place.ok()) return Fail(place.status(), err);
  Progress bar(BytesBar("export", 0));
  InterruptibleReads reads(*place->fs);
  CountedReads files(reads, bar);
  const auto reader = checkpoint::StepReader::Open(files, place->directory);
  if (!reader.ok()) return Fail(reader.status(), err);
  const Status names = CheckBaseOfAdapters(*reader, options.role);
  if (!names.ok()) return Fail(names, err);
  bar.SetTotal(WeightBytes(reader->manifest(), options.role));
  // The export appears under its own name in the directory above it.
  const auto target = OpenParentOf(options.output);
  if (!target.ok()) return Fail(target.status(), err);
  checkpoint::HfExportOptions exports;
  exports.max_shard_bytes = options.max_shard_mb * 1'000'000;
  exports.threads = Cores();
  Logger log({});
  const Status status = checkpoint::ExportHuggingFace(*reader, options.role, *target->parent,
                                                      target->name, exports, log);
  bar.Done();
  if (!status.ok()) return Fail(status, err);
  out << fmt::format("exported {} of {} to {}\n", options.role, Shown(place->directory),
                     Shown(target->path));
  return 0;
}

int CkptImportHf(const CkptImportOptions& options, std::ostream& out, std::ostream& err) {
  if (const Status usable = CheckTarget(options.run); !usable.ok()) return Fail(usable, err);
  const auto source = OpenPosixFileSystem(options.source, false, LinkPolicy::kFollow);
  if (!source.ok()) return Fail(source.status(), err);
  const auto read = ReadModel(**source);
  if (!read.ok()) return Fail(read.status(), err);
  InterruptibleReads reads(**source);  // goes after what is taken back
  const FolderToFill folder(options.run);
  const auto run = OpenPosixFileSystem(options.run, true);
  if (!run.ok()) return Fail(run.status(), err);
  const Status latest = CheckIsLatest(**run, options.run, options.step, "imported");
  if (!latest.ok()) return Fail(latest, err);
  checkpoint::HfImportOptions imports;
  imports.config_digest = read->config.Digest();  // which a trainer of this model compares
  imports.role = options.role;
  imports.step = options.step;
  imports.config_json = read->text_json;
  imports.threads = Cores();
  LogOptions quiet;
  quiet.level = LogLevel::kWarning;
  Logger log(quiet);
  const ModelTensors model = model::TensorsOf(
      read->config, options.role == "critic" ? model::Head::kValue : model::Head::kVocabulary);
  Progress bar(BytesBar("read", SourceBytes(**source)));
  const CountedReads files(reads, bar);
  const auto saved =
      checkpoint::ImportHuggingFace(files, model, **run, SystemClock(), log, imports);
  bar.Done();
  if (!saved.ok()) return Fail(saved.status(), err);
  for (const std::string& note : read->notes)
    if (!note.empty()) out << note << "\n";
  out << fmt::format("imported {} as {}/{}: {}\n", Shown(options.source), Shown(options.run),
                     checkpoint::StepDirectory(options.step), HumanBytes(saved->total_bytes));
  return 0;
}

}  // namespace keel::tools
