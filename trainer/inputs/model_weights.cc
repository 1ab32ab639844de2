#include "trainer/inputs/model_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "checkpoint/format/names.h"
#include "checkpoint/hf/hf_check.h"
#include "checkpoint/hf/hf_model_dir.h"
#include "common/files/file_system.h"
#include "common/hash.h"
#include "model/config/adapter_tensors.h"
#include "model/config/family_table.h"

namespace keel::trainer {

Result<std::string> WeightsFingerprint(const std::string& directory) {
  constexpr int64_t kPage = 4096, kPages = 64, kBeginning = 64 * kPage;
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, false, LinkPolicy::kFollow));
  KEEL_ASSIGN_OR_RETURN(const auto weights, checkpoint::HfModelDir::Open(*fs, "."));
  std::vector<std::string> names = weights.files();
  std::sort(names.begin(), names.end());
  Hasher128 hasher;
  std::vector<std::byte> buffer(kBeginning);
  for (const std::string& name : names) {
    KEEL_ASSIGN_OR_RETURN(const auto file, fs->Open(name));
    KEEL_ASSIGN_OR_RETURN(const int64_t size, file->Size());
    const std::string head = fmt::format("{}:{};", name, size);
    hasher.Update(std::as_bytes(std::span(head)));
    const auto add = [&](int64_t offset, int64_t bytes) -> Status {
      const auto into = std::span(buffer).first(static_cast<size_t>(bytes));
      KEEL_ASSIGN_OR_RETURN(const int64_t got, file->ReadAt(offset, into));
      hasher.Update(into.first(static_cast<size_t>(got)));
      return Status::Ok();
    };
    KEEL_RETURN_IF_ERROR(add(0, kBeginning));
    for (int64_t page = 1; page <= kPages; ++page)
      KEEL_RETURN_IF_ERROR(add(std::max<int64_t>(0, size - kPage) * page / kPages, kPage));
  }
  return hasher.Finish().ToHex();
}

Status ImportWeights(const std::string& directory, const model::HfConfig& config, model::Head head,
                     const ShardTable& table) {
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, false, LinkPolicy::kFollow));
  return ImportWeights(*fs, config, head, table);
}

Status ImportWeights(FileSystem& directory, const model::HfConfig& config, model::Head head,
                     const ShardTable& table) {
  const ModelTensors model = model::TensorsOf(config, head);
  KEEL_ASSIGN_OR_RETURN(const auto weights, checkpoint::OpenTensors(directory, ".", model));
  checkpoint::HfReadOptions options;
  options.allow_missing = model.may_lack;
  options.finite = true;
  return weights.ReadInto(table, options);
}

Result<checkpoint::HfModelDir> OpenAdapterWeights(const FileSystem& fs,
                                                  const model::HfConfig& config) {
  KEEL_ASSIGN_OR_RETURN(auto adapters, checkpoint::HfModelDir::OpenAdapters(
                                           fs, ".", model::FamilyOf(config.family).model_type));
  ModelTensors wanted;
  wanted.needed = model::AdapterTensorsOf(config);
  KEEL_RETURN_IF_ERROR(CheckTensors(
      adapters, wanted,
      fmt::format("{}: the tensors are not those of adapters that {} describes",
                  fs.Describe(checkpoint::kAdapterWeightsName), checkpoint::kAdapterConfigName)));
  return adapters;
}

Status ImportAdapters(const std::string& directory, const model::HfConfig& config,
                      const ShardTable& table) {
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, false, LinkPolicy::kFollow));
  KEEL_ASSIGN_OR_RETURN(const auto adapters, OpenAdapterWeights(*fs, config));
  checkpoint::HfReadOptions options;
  options.finite = true;
  return adapters.ReadInto(table, options);
}

Result<std::string> AdapterFingerprint(const std::string& directory) {
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, false, LinkPolicy::kFollow));
  const std::string name(checkpoint::kAdapterWeightsName);
  KEEL_ASSIGN_OR_RETURN(const auto file, fs->Open(name));
  KEEL_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  Hasher128 hasher;
  std::vector<std::byte> buffer(size_t{1} << 20);
  for (int64_t at = 0; at < size;) {
    KEEL_ASSIGN_OR_RETURN(const int64_t got, file->ReadAt(at, buffer));
    if (got == 0) break;
    hasher.Update(std::span(buffer).first(static_cast<size_t>(got)));
    at += got;
  }
  return hasher.Finish().ToHex();
}

}  // namespace keel::trainer
