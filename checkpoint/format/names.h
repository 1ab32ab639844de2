// The names of everything in a run directory, and what they prove.
//
//   global_step_40/                        a committed checkpoint
//   .tmp-40-<save id>/                     a save in progress
//   .old-40-<save id>/                     the commit that save <save id> of the same step replaces
//   .trash-40-<save id>/                   un-published, being deleted
// A save id is 16 random hex digits and 8 that follow from them, so that a directory's name alone
// shows that it is ours to collect; see docs/formats/checkpoint.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace keel::checkpoint {

inline constexpr std::string_view kTrackerName = "latest_checkpointed_iteration.txt";
inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kIndexName = "index.bin";
inline constexpr std::string_view kPinName = "pinned";  // in a step's directory; see pin.h
inline constexpr std::string_view kRecordsName = "checkpoints.jsonl";
// Of adapters beside a model, as PEFT has them: what describes them, the file of their weights, and
// what the names in it begin with.
inline constexpr std::string_view kAdapterConfigName = "adapter_config.json";
inline constexpr std::string_view kAdapterWeightsName = "adapter_model.safetensors";
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";
inline constexpr std::string_view kRunIdName = "run_id";
inline constexpr std::string_view kLockName = ".keel-lock";

std::string StepDirectory(int64_t step);                           // "global_step_40"
std::optional<int64_t> ParseStepDirectory(std::string_view name);  // no sign, no leading zero

enum class ScratchKind { kTemporary, kReplaced, kTrash };
struct Scratch {
  ScratchKind kind = ScratchKind::kTemporary;
  int64_t step = 0;
  std::string save_id;
};
std::string ScratchDirectory(ScratchKind kind, int64_t step, std::string_view save_id);
// "global_step_40.set-aside-<save id>": what had the name before that save, and may not go.
std::string SetAsideDirectory(int64_t step, std::string_view save_id);
bool IsSetAside(std::string_view name);  // such a one
// Nothing for names that we did not make.
std::optional<Scratch> ParseScratchDirectory(std::string_view name);

// From 64 random bits.
std::string MakeSaveId(uint64_t random);
bool IsSaveId(std::string_view text);

// "actor/model/rank_00003.safetensors"; part > 0 (a rank with several boxes of one tensor) adds
// "_1".
std::string ShardFileName(std::string_view scope, int rank, int part);

// The directories that files of these relative paths need, parents before children.
std::vector<std::string> DirectoriesOf(std::span<const std::string> paths);

// A relative path of plain components: not empty, no "", ".", "..", no control characters.
Status CheckRelativePath(std::string_view path, std::string_view what);

}  // namespace keel::checkpoint
