// RunIdentity: whose a run directory is, and which of its checkpoints are that run's.
//
// The file `run_id` names the run that owns the directory, each manifest the run that saved it. A
// checkpoint of another run is never taken for one of this run's: not resumed from, counted,
// removed or replaced, unless somebody says so.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/run/catalog.h"
#include "common/files/file_system.h"
#include "common/status.h"

namespace keel::checkpoint {

// In the place of a run's id in what `keel ckpt import-hf` makes: of no run, so that any run may
// begin with it.
inline constexpr std::string_view kImportedRunId = "import";

// Returns what the file `run_id` says; "" where there is none, or nothing in it. kConfig: what is
// there can be no run's id.
Result<std::string> ReadRunId(const FileSystem& fs);

// Says whether the run `run_id` has not saved it, and it was not imported either.
bool IsForeign(const Manifest& manifest, std::string_view run_id);

// The id of a directory that has no file `run_id`, as a copy without it, a target of `keel ckpt
// reshard`, or one whose file was deleted: that of its checkpoints, where all that can be read, and
// are of any run, agree. "" when there is none. kConfig names them when they do not agree, unless
// `adopt`, of which messages speak by the name of its setting: then the newest one's.
Result<std::string> IdOfCheckpoints(const FileSystem& fs, std::span<const CatalogEntry> entries,
                                    bool adopt, std::string_view adopt_setting);

// kConfig names a checkpoint of the run `run_id` that has no role of that name: another kind of
// program saved it, and this one could neither load nor replace it.
Status CheckRole(const FileSystem& fs, std::span<const CatalogEntry> entries,
                 std::string_view run_id, const std::string& role);

// "global_step_16 (run 0123), global_step_20 (run 4567) and 3 more".
std::string NameWithRuns(std::span<const CatalogEntry* const> entries);

}  // namespace keel::checkpoint
