"""The mutants: each removes one rule of the checkpoint subsystem from a copy of the source.

`old` stands exactly once in `file`; `new` takes its place and still compiles. `tests` are the programs,
with a filter of their cases, of which at least one must fail; NAME_device_paths is the program NAME with
KEEL_DEVICE_PATHS=1, NAME_device_paths_aten with KEEL_DEVICE_PATHS=aten, NAME_pretend_gpu on a pretend GPU. See run.py.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    rule: str  # that holds in the source and not in the mutant
    file: str
    old: str
    new: str
    tests: tuple[tuple[str, str], ...]


CUT = ("checkpoint_crash_test", "*/a_newer_step:*/keep_one")
REPLACE = ("checkpoint_crash_test", "*/the_same_step_again__keep_one")
SIMULATION = ("simulation_test", "*EverySeed")
PROTOCOL = ("commit_protocol_test", "*")
DAMAGE = ("checkpoint_damage_test", "*")
RETENTION = ("retention_pass_test", "*")
ASYNC = ("async_save_test", "*")
JOB = ("checkpointer_test", "*")
DISK = ("disk_error_test", "*/a_newer_step:*/keep_one")
RESUME = ("disk_error_test", "*Resume*")

COMMITTER = "checkpoint/commit/committer.cc"
PROTOCOL_CC = "checkpoint/save/commit_protocol.cc"
SAVER = "checkpoint/save/saver.cc"
STAGING = "checkpoint/save/snapshot_writer.cc"
WRITER = "checkpoint/save/file_writers.cc"
READER = "checkpoint/read/step_reader.cc"
RETENTION_CC = "checkpoint/commit/retention.cc"
LOADER = "checkpoint/load/loader.cc"
FILES = "common/files/file_system.cc"

DURABILITY = [
    Mutant(
        "payload-not-synced", "a rank's file is fsynced before it is reported",
        WRITER, "  KEEL_RETURN_IF_ERROR(file->Sync());\n", "", (CUT,),
    ),
    Mutant(
        "small-files-not-synced", "manifest, index and documents are fsynced before the rename",
        FILES, "  KEEL_RETURN_IF_ERROR(file->Sync());\n  return file->Close();\n", "  return file->Close();\n", (CUT,),
    ),
    Mutant(
        "directories-not-synced", "the directories of a step are fsynced before the rename",
        COMMITTER, "    KEEL_RETURN_IF_ERROR(fs_.SyncDirectory(fmt::format(\"{}/{}\", temporary, directory)));\n", "", (CUT,),
    ),
    Mutant(
        "temporary-not-synced", "the names of manifest and index are durable before the rename",
        COMMITTER, "  KEEL_RETURN_IF_ERROR(fs_.SyncDirectory(temporary));\n", "", (CUT,),
    ),
    Mutant(
        "rename-not-synced", "a step is announced only when its name is durable",
        COMMITTER, "  KEEL_RETURN_IF_ERROR(fs_.SyncDirectory(kRoot));\n  KEEL_FAIL_POINT(\"commit.synced\");\n",
        "  KEEL_FAIL_POINT(\"commit.synced\");\n", (("committer_test", "*"),),
    ),
    Mutant(
        "renamed-before-the-manifest", "the manifest is the last file of a step, before its rename",
        COMMITTER,
        "  KEEL_RETURN_IF_ERROR(\n      WriteFileDurably(fs_, fmt::format(\"{}/{}\", temporary, kManifestName), manifest.Serialize()));\n"
        "  KEEL_FAIL_POINT(\"commit.manifest\");\n",
        "  if (fs_.Stat(StepDirectory(manifest.step)).ok()) {\n    KEEL_RETURN_IF_ERROR(WriteFileDurably(\n"
        "        fs_, fmt::format(\"{}/{}\", temporary, kManifestName), manifest.Serialize()));\n  } else {\n"
        "    KEEL_RETURN_IF_ERROR(fs_.Rename(temporary, StepDirectory(manifest.step), kNoReplace));\n"
        "    KEEL_RETURN_IF_ERROR(fs_.SyncDirectory(kRoot));\n"
        "    return WriteFileDurably(fs_, fmt::format(\"{}/{}\", StepDirectory(manifest.step), kManifestName),\n"
        "                            manifest.Serialize());\n  }\n", (CUT, SIMULATION),
    ),
    Mutant(
        "tracker-before-the-commit", "the tracker never names a step that is not committed",
        SAVER, "  KEEL_FAIL_POINT(\"publish.guard\");\n",
        "  KEEL_RETURN_IF_ERROR(WriteTracker(fs_, running->snapshot.request().step));\n", (SIMULATION,),
    ),
    Mutant(
        "a-tracker-names-what-is-gone", "the tracker never names a step that is gone",
        "checkpoint/run/tracker.cc", "  const std::optional<int64_t> named = ReadTracker(fs);\n", "  const std::optional<int64_t> named = step - 1;\n",
        (("retention_pass_test", "RetentionPass.TheTrackerNeverNamesWhatIsGone"),),
    ),
    Mutant(
        "tracker-written-in-place", "the tracker is replaced as a whole",
        "checkpoint/run/tracker.cc", "  return ReplaceFileDurably(fs, kTrackerName, fmt::format(\"{}\\n\", step));\n",
        "  (void)fs.Remove(kTrackerName);\n  return WriteFileDurably(fs, kTrackerName, fmt::format(\"{}\\n\", step));\n",
        (SIMULATION,),
    ),
    Mutant(
        "an-error-of-fsync-is-ignored", "a file whose fsync failed is lost, whatever the next one says",
        WRITER, "  KEEL_RETURN_IF_ERROR(file->Sync());\n  KEEL_RETURN_IF_ERROR(file->Close());\n",
        "  (void)file->Sync();\n  (void)file->Close();\n", (("disk_error_test", "*AtEverySyncAndClose*/keep_one"),),
    ),
]  # fmt: skip

PROTOCOL_RULES = [
    Mutant(
        "published-without-a-vote", "nothing is published unless every rank reported that it is written",
        PROTOCOL_CC, "  if (!failure_.ok()) return Finish({Do(Action::Kind::kAbort)}, failure_);\n", "", (PROTOCOL, SIMULATION),
    ),
    Mutant(
        "last-rank-not-heard", "every rank is heard, the last one too",
        PROTOCOL_CC, "  if (next_ < world_) {\n", "  if (next_ < world_ - 1) {\n", (PROTOCOL, SIMULATION),
    ),
    Mutant(
        "failure-not-told", "every rank hears of a failed save",
        PROTOCOL_CC, "  actions->push_back(Send(kEveryPeer, Message::kOutcome, status));\n", "  (void)actions;\n", (PROTOCOL, SIMULATION),
    ),
    Mutant(
        "failed-save-stays", "a failed save leaves nothing",
        PROTOCOL_CC, "        actions.push_back(Do(Action::Kind::kAbort));\n", "", (PROTOCOL, DISK),
    ),
    Mutant(
        "waits-for-ever", "every wait ends by its deadline",
        SAVER, "    patience *= 2;\n  }\n", "  }\n  patience = std::chrono::hours(24 * 365);\n", (SIMULATION,),
    ),
    Mutant(
        "impatient-followers", "the others wait for rank 0 longer than it waits for a peer, to hear its finding",
        SAVER, "    patience *= 2;\n", "    patience /= 2;\n", (ASYNC,),
    ),
    Mutant(
        "small-syncs-do-not-count", "a disk that answers slowly does not stand still",
        SAVER, "      watched_(fs, [this] { progress_.Move(); }),\n", "      watched_(fs, [] {}),\n", (ASYNC,),
    ),
    Mutant(
        "lost-lock-publishes", "who lost the run directory publishes nothing",
        "checkpoint/run/run_lock.cc", "  if (same && holder.ok() && *holder == ", "  if (true || *holder == ", (ASYNC,),
    ),
    Mutant(
        "left-lock-passes", "nor does it when the other one has left again",
        "checkpoint/run/run_lock.cc", "*holder == line_", "(*holder == holder_ || holder->empty())", (ASYNC,),
    ),
    Mutant(
        "no-lock", "one run at a time in a directory",
        "checkpoint/checkpointer.cc", "  KEEL_ASSIGN_OR_RETURN(lock, RunLock::Take(fs, \"run \" + options.run_id, clock));\n", "", (JOB,),
    ),
]  # fmt: skip

AFTER_A_CRASH = [
    Mutant(
        "debris-stays", "what a dead run left is removed by the next start",
        COMMITTER, "    KEEL_FAIL_POINT(\"commit.debris\");\n", "    continue;\n", (CUT,),
    ),
    Mutant(
        "half-tracker-stays", "half-written small files are removed too",
        COMMITTER, "    if (IsHalfWrittenText(info)) {\n", "    if (IsHalfWrittenText(info) && info.name.empty()) {\n", (CUT,),
    ),
    Mutant(
        "debris-removed-unsettled", "names are made durable before what they hid is removed",
        COMMITTER, "    KEEL_RETURN_IF_ERROR(fs_.SyncDirectory(kRoot));\n  }\n  for (const FileInfo& info : names) {\n",
        "  }\n  for (const FileInfo& info : names) {\n", (("committer_test", "*"),),
    ),
    Mutant(
        "withdrawn-step-removed", "a step whose withdrawal is not durable is left whole",
        COMMITTER, "  if (temporary == withdrawn_) {\n", "  if (temporary == withdrawn_ && temporary.empty()) {\n", (("committer_test", "*"),),
    ),
    Mutant(
        "replaced-not-restored", "a step that was moved aside for a save that died gets its name back",
        COMMITTER, "  const Status restored = fs_.Rename(replaced, final_name, kNoReplace);\n",
        "  const Status restored(StatusCode::kAlreadyExists, final_name);\n", (("committer_test", "*"),),
    ),
    Mutant(
        "replaced-in-two-steps", "a step and what takes its place exchange their names at one instant",
        COMMITTER, "  Result<std::string> replaced = obstacle.kind == Obstacle::Kind::kReplaceable\n", "  Result<std::string> replaced = manifest.step < 0\n", (("committer_test", "*"),),
    ),
    Mutant(
        "replaced-unproven", "a step goes only when the one in its place was read back",
        COMMITTER,
        "  const VerifyReport report = VerifyCheckpoint(fs_, directory, 1, true);\n",
        "  const VerifyReport report;\n", (("committer_test", "*"),),
    ),
    Mutant(
        "cut-line-takes-the-next", "a record begins a line, where the one before was cut off too",
        "checkpoint/format/records.cc", "*got == 1 && last != '\\n'", "*got > 1", (("checkpoint_formats_test", "Records.*"),),
    ),
]  # fmt: skip

RETENTION_RULES = [
    Mutant(
        "prune-compares-other-rows", "prune compares values of the same validation rows alone",
        "tools/ckpt/ckpt_prune.cc", "    } else if (!trainer::JudgedAlike(rows, trainer::JudgedByOf(fs, entry->directory))) {\n", "    } else if (rows.contains(\"\")) {\n",
        (("e2e_retention", "Retention.test_prune_compares_values_of_the_same_rows"),),
    ),
    Mutant(
        "removed-before-proof", "nothing goes unless a newer one that stays was verified",
        RETENTION_CC, "  if (report.problems.empty()) {\n", "  if (true) {\n", (RETENTION,),
    ),
    Mutant(
        "passed-over-counts-as-kept", "what a load has passed over does not stand for a checkpoint that is kept",
        "checkpoint/checkpointer.cc", "self.saver.NoteDamaged(one.directory);", "(void)one;", (RETENTION,),
    ),
    Mutant(
        "unsound-counts-as-kept", "nor does one that lacks a file",
        RETENTION_CC, "    if (!AllSound(fs, kept, known, log)) continue;\n", "", (RETENTION,),
    ),
    Mutant(
        "removed-in-place", "a removal takes the name away first",
        RETENTION_CC, "  KEEL_RETURN_IF_ERROR(fs.Rename(directory, trash, FileSystem::RenameMode::kNoReplace));\n",
        "  (void)RemoveTree(fs, directory + \"/actor\");\n  KEEL_RETURN_IF_ERROR(fs.Rename(directory, trash, FileSystem::RenameMode::kNoReplace));\n",
        (("checkpoint_crash_test", "*/keep_one"), RETENTION),
    ),
    Mutant(
        "removed-unsettled", "the name is durably gone before the files go",
        RETENTION_CC, "  KEEL_RETURN_IF_ERROR(fs.SyncDirectory(\".\"));\n", "", (("checkpoint_crash_test", "*/keep_one"), RETENTION),
    ),
    Mutant(
        "newest-removed", "the newest is never among those that go",
        RETENTION_CC, "  const auto latest = static_cast<size_t>(std::max(1, *policy.keep_latest));\n",
        "  const auto latest = static_cast<size_t>(std::max(1, *policy.keep_latest)) - 1;\n", (("retention_test", "*"), RETENTION),
    ),
    Mutant(
        "pins-ignored", "what is pinned stays",
        RETENTION_CC, "    if (i < latest || one.pinned || periodic) kept.insert(one.step);\n",
        "    if (i < latest || periodic) kept.insert(one.step);\n", (("retention_test", "*"), RETENTION),
    ),
    Mutant(
        "best-ignored", "the best by the metric stay",
        RETENTION_CC, "    kept.insert(measured[i].step);\n", "", (("retention_test", "*"), RETENTION),
    ),
    Mutant(
        "lease-ignored", "what is being read stays",
        RETENTION_CC, "  KEEL_ASSIGN_OR_RETURN(const Lease lease, LeaseForRemoval(fs, directory));\n", "", (RETENTION,),
    ),
    Mutant(
        "foreign-files-removed", "a directory that holds somebody's file stays",
        RETENTION_CC, "    if (!foreign->empty()) {\n", "    if (!foreign->empty() && foreign->front().empty()) {\n", (RETENTION,),
    ),
    Mutant(
        "other-runs-removed", "checkpoints of other runs neither count nor go",
        RETENTION_CC, "    if (!entry.manifest || entry.manifest->run_id != request.run_id) continue;\n",
        "    if (!entry.manifest) continue;\n", (RETENTION,),
    ),
    Mutant(
        "not-read-back", "with one to keep, the new one is read back before the old one goes",
        SAVER, "      !request.keep_older && NeedsProof(fs_, entries, Retention(), request.step, request.metric);\n",
        "      false;\n", (JOB, ASYNC, RETENTION),
    ),
    Mutant(
        "documents-not-read-back", "what rank 0 writes for all is read back too",
        "checkpoint/save/step_publisher.cc",
        "    KEEL_RETURN_IF_ERROR(MakeSureOf(*step, document.path, digest));\n", "", (JOB,),
    ),
    Mutant(
        "whole-model-not-read-back", "the model that rank 0 assembles is read back too",
        "checkpoint/save/step_publisher.cc", "      KEEL_RETURN_IF_ERROR(MakeSureOf(*step, path, file.digest));\n", "", (JOB,),
    ),
    Mutant(
        "index-not-read-back", "the index is read back too",
        "checkpoint/save/step_publisher.cc",
        "  KEEL_RETURN_IF_ERROR(MakeSureOf(*step, name, digest));\n", "", (JOB,),
    ),
    Mutant(
        "damage-announced", "what does not verify right after its commit is withdrawn",
        COMMITTER,
        "  KEEL_RETURN_IF_ERROR(\n      CheckPublished(fs_, manifest).WithContext(\"it does not verify right after its commit\"));\n",
        "", (JOB,),
    ),
    Mutant(
        "proven-but-older", "what is proven but too old to let others go does not stand for the newest",
        RETENTION_CC, "    if (sequence > newest && known->proven", "    if (known->proven", (RETENTION,),
    ),
    Mutant(
        "damaged-goes-when-replaced", "what is damaged stays for people to look at, also when its step is saved again",
        COMMITTER, "  if (!report.problems.empty())\n    return (report.unproven", "  if (report.problems.empty() && false)\n    return (report.unproven", (("committer_test", "*"),),
    ),
    Mutant(
        "pinned-while-replaced", "a pin that comes while a step is replaced counts",
        COMMITTER, "    if (pinned) kept_because = ", "    if (pinned && false) kept_because = ", (("committer_test", "*"),),
    ),
    Mutant(
        "set-aside-for-nothing", "what was set aside for a save that died comes back",
        COMMITTER, "      KEEL_RETURN_IF_ERROR(RestoreSetAside(scratch->step, scratch->save_id));\n", "      (void)0;\n",
        (("committer_test", "*"),),
    ),
    Mutant(
        "a-new-id-for-an-unread-one", "a run's id that cannot be read is not made anew",
        "checkpoint/run/run_identity.cc",
        "  if (text.status().code() == StatusCode::kNotFound) return std::string();\n  KEEL_RETURN_IF_ERROR(text.status());\n",
        "  if (!text.ok()) return std::string();\n", (JOB,),
    ),
    Mutant(
        "others-taken-for-own", "a run goes on from its own checkpoints",
        "checkpoint/load/load_candidates.cc", "    if (!run_id_.empty() && IsForeign(*entry.manifest, run_id_)) {\n",
        "    if (false) {\n", (("catalog_test", "RunIdentity*"),),
    ),
    Mutant(
        "a-lost-id-made-anew", "a directory whose id is lost goes on as the run that saved what is there",
        "checkpoint/checkpointer.cc",
        "  KEEL_ASSIGN_OR_RETURN(options.run_id, IdOfCheckpoints(fs, entries, options.adopt_foreign,\n"
        "                                                        options.names.adopt_foreign));\n", "",
        (("catalog_test", "RunIdentity*"),),
    ),
    Mutant(
        "below-what-was-not-read", "a commit is newer than one that could not be read when it came",
        "checkpoint/run/catalog.cc", "return newest + kBeyondUnread;", "return newest + 1;", (("catalog_test", "*"),),
    ),
    Mutant(
        "let-go-before-it-is-copied", "state is held until it is copied, also where no thread can be had",
        "checkpoint/save/file_writers.h", "  int reading_ = 1;\n", "  int reading_ = 0;\n",
        (("file_writers_test", "*WithoutThreads*"),),
    ),
    Mutant(
        "a-link-is-no-step", "a step that is a link is spoken of, not passed over",
        "checkpoint/run/catalog.cc", "    if (!step || (info.kind != FileKind::kDirectory && !link)) continue;\n",
        "    if (!step || info.kind != FileKind::kDirectory) continue;\n", (("catalog_test", "*"),),
    ),
]  # fmt: skip

READING = [
    Mutant(
        "nothing-is-loaded-and-it-goes-on", "a load that allow_missing leaves not one tensor of is refused",
        "checkpoint/load/load_report.cc", "    if (any || !unlike) continue;\n", "    if (any || unlike) continue;\n",
        (("load_test", "Load.OfWeights*"),),
    ),
    Mutant(
        "a-longer-document", "a document is as long as the manifest lists it",
        "checkpoint/read/step_reader.cc", "  Result<std::string> text = ReadFile(*fs_, full, listed->size);\n", "  Result<std::string> text = ReadFile(*fs_, full, int64_t{1} << 40);\n",
        (("load_test", "LoaderTest.ADocumentIsReadUpToTheSizeThatTheManifestLists"),),
    ),
    Mutant(
        "slot-before-it-is-taken", "what a rank hands on stays until all who need it have copied it",
        "checkpoint/load/block_ring.cc",
        "    if (near(peer)) taken = std::min(taken, TakenBy(peer));\n", "",
        (("block_ring_test", "BlockRing.BlocksArriveThroughFewSlots"), ("shared_reader_test", "*"), ("load_test", "*")),
    ),
    Mutant(
        "last-block-before-the-digest", "nobody has all of a chunk that was not verified",
        "checkpoint/load/shared_reader.cc",
        "    if (at / block_bytes_ != last) hand_on(at / block_bytes_);\n", "    hand_on(at / block_bytes_);\n    slot = nullptr;\n",
        (("shared_reader_test", "*"),),
    ),
    Mutant(
        "chunks-not-verified", "every chunk's digest is compared",
        READER, "  if (actual == expected) return scratch->other_header", "  if (actual == expected || size > 0) return scratch->other_header", (DAMAGE,),
    ),
    Mutant(
        "index-not-verified", "the index is the manifest's",
        READER, "  if (digest != manifest_.index_digest) {\n", "  if (digest != manifest_.index_digest && manifest_.step < 0) {\n", (DAMAGE,),
    ),
    Mutant(
        "headers-not-compared", "the index says of tensors what the files' headers say",
        READER, "return scratch->other_header ? CompareHeader(id.file) : Status::Ok();", "return Status::Ok();", (DAMAGE,),
    ),
    Mutant(
        "documents-not-verified", "documents are the manifest's",
        READER, "  if (digest != listed->digest) {\n", "  if (digest != listed->digest && listed->size < 0) {\n", (DAMAGE,),
    ),
    Mutant(
        "sizes-not-verified", "a file has the size that the manifest says",
        READER, "  if (found == listed) return Status::Ok();\n", "  if (found >= listed) return Status::Ok();\n", (DAMAGE,),
    ),
    Mutant(
        "manifest-not-verified", "the manifest's own digest is compared",
        "checkpoint/format/manifest.cc", "  if (actual != OwnDigest(text)) {\n", "  if (actual.empty()) {\n", (DAMAGE,),
    ),
    Mutant(
        "other-steps-manifest", "a directory's name is its manifest's step",
        "checkpoint/format/manifest.cc", "      step && *step != manifest.step) {\n", "      step && *step < 0) {\n", (DAMAGE,),
    ),
    Mutant(
        "saved-with-holes", "a save covers every element exactly once",
        "common/tensors/transfer_plan.cc", "    KEEL_RETURN_IF_ERROR(CheckWritten(info.shape, boxes, info.name));\n", "",
        (("transfer_plan_test", "*"),),
    ),
    Mutant(
        "loaded-with-holes", "a load covers every element exactly once",
        "checkpoint/read/read_plan.cc", "  return CheckFilled(wanted.box, parts, saved.name, may_lack);\n",
        "  return !parts.empty() || may_lack;\n", (("read_schedule_test", "ReadPlan.*"),),
    ),
    Mutant(
        "moved-with-holes", "a sync or an import covers every element exactly once",
        "common/tensors/transfer_plan.cc",
        "      KEEL_RETURN_IF_ERROR(\n          CheckFilled(shard.box, parts, name, MatchesAny(options.allow_missing, name)).status());\n",
        "      (void)parts;\n", (("transfer_plan_test", "*"),),
    ),
    Mutant(
        "applied-before-the-vote", "nothing live changes before all ranks have verified",
        LOADER, "  record->read_s = watch.Lap();\n", "  record->read_s = watch.Lap();\n  if (mine.ok()) attempt->Apply();\n",
        (RESUME, DAMAGE),
    ),
    Mutant(
        "read-into-place", "what is read stays beside the live state until it is verified",
        LOADER, "            tensor, shard.box, {base + at, ContiguousStrides(shard.box.size)}, shard.replica));\n",
        "            tensor, shard.box, shard.view, shard.replica));\n    (void)base;\n", (RESUME, DAMAGE),
    ),
    Mutant(
        "older-one-without-a-word", "a resume that falls back says why",
        LOADER, "    record.skipped.push_back({directory, status.message()});\n",
        "", (DAMAGE,),
    ),
    Mutant(
        "starts-from-nothing", "with checkpoints of which none is valid a run does not start from nothing",
        "checkpoint/load/load_candidates.cc", "  if (skipped->empty()) return", "  if (skipped->size() < 1000) return", (DAMAGE,),
    ),
    Mutant(
        "no-memory-taken-for-damage", "what this process lacks the means to read is not damaged",
        READER, "  if (status.code() == StatusCode::kExhausted || status.code() == StatusCode::kCancelled)\n", "  if (status.code() == StatusCode::kCancelled)\n",
        (RESUME,),
    ),
    Mutant(
        "newest-by-number", "the newest is what was committed last, not the highest number",
        "checkpoint/run/catalog.cc", "e.manifest ? e.manifest->sequence : 0, e.step", "0, e.step", (JOB,),
    ),
    Mutant(
        "remembered-by-name", "a manifest that was read before counts only while the same file is there",
        "checkpoint/run/catalog.cc", "file.ok() && file->inode == then.inode && file->size == then.size &&\n        file->changed_ns == then.changed_ns",
        "file.ok()", (("catalog_test", "*"),),
    ),
]  # fmt: skip

SNAPSHOT = [
    Mutant(
        "no-fence", "the optimizer waits for what a save still needs",
        "checkpoint/save/snapshot.cc", "  fence_.Arm(std::move(held));\n", "", (ASYNC, SIMULATION),
    ),
    Mutant(
        "released-unread", "memory is given free only when it was copied",
        STAGING, "    const FileToWrite& file = files_[file_];\n",
        "    const FileToWrite& file = files_[file_];\n    for (size_t i = 0; hooks_.released && i < file.pieces.size(); ++i) hooks_.released(file_, i);\n",
        (ASYNC, SIMULATION),
    ),
    Mutant(
        "reckless-writes-unnoticed", "a write that did not ask makes the save fail",
        "checkpoint/save/snapshot.cc", "  if (read && range.sampled && SampleOf(range) != range.sample) {\n",
        "  if (ranges_[index].sampled && index > ranges_.size()) {\n", (ASYNC,),
    ),
    Mutant(
        "digest-of-the-file", "the digest is of the bytes in memory, before they are written",
        STAGING, "  Status FlushSlot() {\n    HashCopied();\n", "  Status FlushSlot() {\n    HashCopied();\n    if (fill_ > 64) slot()[fill_ - 1] ^= std::byte{1};\n",
        (JOB,),
    ),
    Mutant(
        "slots-of-freed-memory", "a pool that cannot grow keeps only slots of memory that is there",
        STAGING, "    slots.reserve(wanted);\n    blocks.reserve(blocks.size() + 1);\n", "", (("out_of_memory_test", "*"),),
    ),
    Mutant(
        "direct-files-padded", "a file written in blocks is cut to its size",
        WRITER, "    KEEL_RETURN_IF_ERROR(file->Truncate(size));\n", "", (JOB,),
    ),
    Mutant(
        "over-while-under-way", "a piece is written, and its memory free, only when its write is over",
        WRITER, "    KEEL_RETURN_IF_ERROR(lane->Begin(fs_, *file, item));\n    return true;\n",
        "    KEEL_RETURN_IF_ERROR(lane->Begin(fs_, *file, item));\n    return lane->full();\n",
        (("checkpoint_crash_test", "*writes_under_way*"),),
    ),
    Mutant(
        "short-write-taken-for-all", "the rest of a short write is written too",
        "common/files/io_uring_queue.cc", "          Submit(*write);  // the rest of a short write\n", "          End(*write, Status::Ok());\n",
        (("file_system_test", "*Uring*"),),
    ),
]  # fmt: skip

DESK = ("desk_test", "DeskSimulation.NoSample*")
KV = ("rollout_base_test", "SchedulerTest.RandomLoads*")
DESK_CC = "trainer/desk/desk_protocol.cc"

# The first four are what the desks of other trainers do.
ASYNCHRONOUS_RL = [
    Mutant(
        "desk-forgets-a-lost-workers-samples", "what a lost worker had goes to others",
        DESK_CC, "    leased_.erase(leases_.at(lease).id);\n    leases_.erase(lease);\n", "    leases_.erase(lease);\n", (DESK,),
    ),
    Mutant(
        "desk-trusts-a-late-word", "the word of a worker that was given up changes nothing",
        DESK_CC, "  return found != leases_.end() && found->second.worker == worker ? &found->second : nullptr;\n",
        "  return leases_.empty() || worker < 0 ? nullptr : found != leases_.end() ? &found->second : &leases_.begin()->second;\n",
        (DESK,),
    ),
    Mutant(
        "desk-saves-the-cursor", "a ledger says what is trained, not what was begun",
        DESK_CC, "  KEEL_RETURN_IF_ERROR(desk.CheckLedger());\n",
        "  KEEL_RETURN_IF_ERROR(desk.CheckLedger());\n"
        "  if (auto& begun = desk.ledger_.samples; !begun.empty()) {\n"
        "    desk.ledger_.frontier = begun.rbegin()->first.position + 1;\n    begun.clear();\n  }\n",
        (DESK,),
    ),
    Mutant(
        "desk-version-before-the-proof", "a version is a worker's once it serves it",
        DESK_CC, "  ledger_.versions[version] = steps;\n",
        "  ledger_.versions[version] = steps;\n  for (auto& [number, worker] : workers_) worker.version = worker.version_floor = version;\n",
        (DESK,),
    ),
    Mutant(
        "desk-age-unbounded", "weights that are too old begin nothing",
        DESK_CC, "  return wanted || Due(sample.id.position) - steps <= options_.max_staleness;\n", "  return true;\n", (DESK,),
    ),
    Mutant(
        "desk-back-to-older-weights", "a response that newer weights began is not gone on with by older ones",
        DESK_CC, "  if (has_tokens && known->second.partial.spans.back().version > worker.version) return false;\n", "", (DESK,),
    ),
    Mutant(
        "desk-hears-twice", "tokens that are said twice count once",
        DESK_CC, "  if (from < have) return false;  // said before\n", "", (DESK,),
    ),
    Mutant(
        "desk-first-takes-all", "samples are dealt out fairly",
        DESK_CC, "  return std::min(share, worker.capacity) - std::ssize(worker.leases);\n",
        "  return std::max(share, worker.capacity) - std::ssize(worker.leases);\n",
        (("desk_test", "DeskProtocolTest.WhoServesFirstLeavesOthersTheirShare"),),
    ),
    Mutant(
        "push-unfenced", "weights that are on their way to workers are not overwritten",
        "trainer/rl/generation/weight_publisher.cc", "  const Stopwatch watch;\n  push_.wait();\n", "  const Stopwatch watch;\n",
        (("e2e_split", "Split.test_a_recorded_run_is_replayed_bit_for_bit_by_any_workers"),),
    ),
    Mutant(
        "desk-forgets-the-turns-end", "a worker generates no more of a sample than its weights are to choose",
        DESK_CC, "    Assignment assignment{next_lease_++, sample.id, {}, sample.turn.until};\n",
        "    Assignment assignment{next_lease_++, sample.id, {}, kToTheEnd};\n",
        (("e2e_split", "Split.test_a_deterministic_run_is_the_same_with_any_workers"),),
    ),
    Mutant(
        "a-token-behind-a-gift", "behind what a tool gave weights choose no more tokens than they are to",
        "trainer/rl/generation/rollout_rank.cc", "  GiveBack();\n  runner_->Generate();\n", "  runner_->Generate();\n",
        (("e2e_multi_turn", "Environments.test_a_deterministic_run_is_the_same_beside_its_validations"),),
    ),
    Mutant(
        "desk-forgets-versions-in-flight", "a version of which a word may be under way is known",
        DESK_CC, "  for (const auto& [id, lease] : leases_) oldest = std::min(oldest, lease.version);\n", "", (DESK,),
    ),
    Mutant(
        "desk-forgets-what-was-taken", "a position that was taken out of turn is not trained again after a resume",
        DESK_CC, "  KEEL_RETURN_IF_ERROR(desk.CheckLedger());\n",
        "  KEEL_RETURN_IF_ERROR(desk.CheckLedger());\n  desk.ledger_.taken.clear();\n", (DESK,),
    ),
    Mutant(
        "desk-puts-off-without-a-limit", "what would become too old is waited for",
        "trainer/desk/step_order.cc", "    if (rest[i] < ledger_.steps + 1 + static_cast<int64_t>(i) / options_.batch) return {};\n", "", (DESK,),
    ),
    Mutant(
        "desk-begins-more-than-fits", "no more is begun than can be trained in its time",
        DESK_CC, "return has_tokens || order().Fits(sample.id.position, steps, load.limits);", "return true;", (DESK,),
    ),
    Mutant(
        "desk-waits-for-what-is-stuck", "a response that takes too long is ended",
        DESK_CC, "      ended.push_back(number);\n", "", (DESK,),
    ),
    Mutant(
        "desk-waits-for-who-is-stuck", "a worker that brings no token of what it was asked to end is given up",
        DESK_CC, "      overdue.stuck.insert(lease.worker);\n", "",
        (("desk_test", "DeskProtocolTest.AResponseThatTakesTooLongIsEnded"),),
    ),
    Mutant(
        "kept-kv-is-found", "what weights of several versions computed is for its own sequence alone",
        "rollout/block_manager.cc", "if (!prefix_caching_ || table->mixed) return;", "if (!prefix_caching_) return;", (KV,),
    ),
    Mutant(
        "kept-kv-before-the-first-token", "a sequence whose first token is of new weights has nothing of older ones",
        "rollout/scheduler.cc", "    if (sequence->generated() == 0) {\n      unbegun", "    if (false) {\n      unbegun", (KV,),
    ),
]  # fmt: skip

EXACT = ("e2e_resume", "ResumeSingle.test_is_bit_exact_wherever_it_was_stopped")
OTHER_DATA = ("e2e_resume", "ResumeSingle.test_other_data_or_another_order_is_refused")
DIVERGING = ("e2e_retention", "Retention.test_a_diverging_run_keeps_what_came_before")
PPO = ("e2e_rl", "Resume.test_ppo_with_critic_reference_and_kl_controller")
RUN_STATE = "trainer/run/run_state.cc"


def dropped(key, what, tests):
    """An integer of the run's state that is saved and does not come back."""
    where = "data" if key == "samples_consumed" else "trainer"
    old = f'KEEL_ASSIGN_OR_RETURN(state.{key}, GetCount({where}, "{key}", {where}_name));\n'
    if key == "consecutive_skips":
        old = f'KEEL_ASSIGN_OR_RETURN(state.{key},\n                        GetCount({where}, "{key}", {where}_name));\n'
    return Mutant(f"state-{key.replace('_', '-')}", f"{what} come back", RUN_STATE, "  " + old, "", tests)


# Each entry of what a run goes on with, left out in turn.
TRAINING_STATE = [
    Mutant(
        "state-weights", "the weights come back",
        "trainer/run/task_runner.cc", "  request.allow_missing = c_.actor_rollout_ref.actor.checkpoint.load_allow_missing;\n",
        "  request.contents.model = false;\n", (EXACT,),
    ),
    Mutant(
        "state-exp-avg", "Adam's first moment is saved and comes back",
        "trainer/engine/optimizer.cc", "  states.push_back({\"exp_avg\", on_host(exp_avg_)});\n", "", (EXACT,),
    ),
    Mutant(
        "state-exp-avg-sq", "Adam's second moment is saved and comes back",
        "trainer/engine/optimizer.cc", "  states.push_back({\"exp_avg_sq\", on_host(exp_avg_sq_)});\n", "", (EXACT,),
    ),
    Mutant(
        "state-masters", "the fp32 masters of bf16 weights are saved and come back",
        "trainer/engine/optimizer.cc", "  if (has_masters()) states.push_back({\"master\", on_host(masters_)});\n", "",
        (("e2e_resume", "ResumeBfloat16.test_is_bit_exact_wherever_it_was_stopped"),),
    ),
    dropped("step", "the step, and with it the learning rate,", (EXACT,)),
    dropped("optimizer_steps", "the updates that Adam corrects its bias by", (EXACT,)),
    dropped("samples_consumed", "the samples that were read", (EXACT,)),
    dropped("tokens_consumed", "the tokens that were read", (EXACT,)),
    dropped("skipped_steps", "the updates that were skipped", (DIVERGING,)),
    dropped("consecutive_skips", "the updates that were skipped in a row", (DIVERGING,)),
    Mutant(
        "state-order-of-data", "other data, another seed or another order is refused",
        RUN_STATE, "  if (!(saved == identity)) {\n", "  if (saved.samples < 0) {\n", (OTHER_DATA,),
    ),
    Mutant(
        "state-reference", "another reference is refused",
        RUN_STATE, "  KEEL_ASSIGN_OR_RETURN(state.ref_digest, GetHex64(trainer, \"ref_digest\", trainer_name));\n", "",
        (("e2e_rl", "Refusals.test_another_reference_is_not_taken_for_the_old_one"),),
    ),
    Mutant(
        "state-critic", "the critic is saved and comes back",
        "trainer/rl/role_engines.cc", "  if (critic_) saved.push_back({\"critic\", critic_.get()});\n", "", (PPO,),
    ),
    Mutant(
        "state-kl-controller", "the adaptive KL coefficient comes back",
        "trainer/rl/rl_task.cc", "  ThrowIfError(kl_.Restore(rl.kl_controller));\n", "", (PPO,),
    ),
    Mutant(
        "state-critic-updates", "the updates of the critic's Adam come back",
        "trainer/rl/rl_task.cc", "  critic_steps_ = rl.critic_optimizer_steps;\n", "", (PPO,),
    ),
    Mutant(
        "state-updates-of-moments-alone", "moments bring the number of their updates, without `extra` too",
        "trainer/run/task_runner.cc", "    if (!request.contents.extra) state.optimizer_steps = OptimizerSteps(*record);\n", "",
        (("e2e_resume", "ResumeInParts.test_moments_without_the_position_go_on_as_they_were"),),
    ),
    Mutant(
        "state-weight-version", "the version of the rollout's weights comes back",
        "trainer/rl/rl_task.cc", "  saved_version_ = rl.version;\n", "", (PPO,),
    ),
]  # fmt: skip

# What ranks, and the starts of a run, must have in common.
IN_COMMON = [
    Mutant(
        "facts-not-compared", "ranks that were started with different things are refused",
        "trainer/run/job_connection.cc", "  ThrowIfError(AgreeOnFacts(*coordinator_, facts, deadline_));\n", "",
        (("e2e_ranks_agree", "SameStart.test_learning_rate"),),
    ),
    Mutant(
        "data-not-compared", "the content of the data is compared, not its path",
        "trainer/run/task_runner.cc", "      fmt::format(\"{} samples with digest {}\", identity_.samples, identity_.digest);\n", "      fmt::format(\"{} samples\", identity_.samples);\n",
        (("e2e_ranks_agree", "SameStart.test_training_data_under_another_path"),),
    ),
    Mutant(
        "replicas-not-compared", "copies of weights are compared before a save",
        "trainer/run/task_runner_steps.cc", "    trainer::CheckReplicas(*role.engine, role.name, job_.context(), when);\n", "    (void)role, (void)when;\n",
        (("e2e_ranks_agree", "Drift.test_a_flipped_bit_ends_the_run_before_it_is_saved"),),
    ),
    Mutant(
        "folder-not-compared", "ranks that save to different folders are refused",
        "trainer/run/run_folder.cc", "  if (trainer().save_freq > 0) {\n", "  if (false) {\n",
        (("e2e_ranks_agree", "SameStart.test_folders_that_are_not_one"),),
    ),
    Mutant(
        "changes-not-said", "a resume says what has changed since the save",
        "trainer/run/task_runner.cc", "    SayWhatChanged(record->documents);\n", "",
        (("e2e_resume", "ResumeSingle.test_what_changed_since_the_save_is_said"),),
    ),
    Mutant(
        "room-not-checked", "a model that no machine holds is refused before it is made",
        "trainer/run/task_runner.cc", "  CheckRoom();\n  job_.MakeHostKernels();\n", "  job_.MakeHostKernels();\n",
        (("e2e_memory", "Memory.test_a_model_that_no_machine_holds_is_refused_at_the_start"),),
    ),
    Mutant(
        "templates-not-said", "a resume says that the chat template is another",
        "trainer/run/task_runner.cc", "    facts_[\"content of \" + std::filesystem::path(document.path).filename().string()] =\n", "    SharedFacts()[\"content of \" + std::filesystem::path(document.path).filename().string()] =\n",
        (("e2e_resume", "ResumeSingle.test_another_chat_template_is_said"),),
    ),
    Mutant(
        "other-rows-compared", "what was judged by other validation rows is not compared",
        "trainer/run/judged_by.cc", "    return found == other.end() || found->second == content.second;\n", "    return found == other.end() || !found->second.empty();\n",
        (("e2e_retention", "Retention.test_values_of_other_rows_are_not_compared"),),
    ),
    Mutant(
        "a-worker-alone-ends-the-run", "what one worker lacks that others have is its own",
        "trainer/desk/desk.cc", "      if (of_the_run && (worker.hello || !greeted_))\n", "      if (of_the_run)\n",
        (("desk_test", "DeskTest.WhatAWorkerLacksThatOthersHaveIsItsOwn"),),
    ),
    Mutant(
        "validation-goes-on", "a validation gives way to the save that was asked for",
        "trainer/run/lm_task.cc", "    left = job_.StopWanted();\n", "",
        (("e2e_fail_points", "Limits.test_a_validation_that_is_under_way_is_left_for_the_save"),),
    ),
    Mutant(
        "blocks-of-any-answer", "of several answers' blocks the last one's are those behind the others",
        "trainer/data/rows/chat_rows.cc", "        if (!Of(before, i).ends_with(Of(whole, i))) return BlocksCannotBeTold(wanted[0]);\n", "        (void)i;\n",
        (("data_test", "ChatRowsTest.BlocksOfTheLastAnswerAreThoseBehindTheEarlierOnes"),),
    ),
    Mutant(
        "rejected-tokens-bound", "M2PO bounds the tokens that are left",
        "trainer/algorithms/rollout_correction.cc", "    if (keep[t] == 0) return;\n", "",
        (("advantages_test", "RolloutCorrectionTest.TheLargestSquaresGoUntilTheirMeanIsSmall"),),
    ),
    Mutant(
        "bypass-rejects-nothing", "bypassed, an update rejects by the ratio of its own policy",
        "trainer/algorithms/rejection.cc", "    if (k1) kept = kept.logical_and(found.ge(std::log(rule.lower)));\n", "",
        (("rl_losses_test", "RlReferenceTest.PolicyLosses"),),
    ),
    Mutant(
        "end-of-an-answer-left-out", "an end that only another message brings is learnt",
        "trainer/data/rows/chat_rows.cc", "encoding.ids[end] == tokenizer.eos() ? end + 1 : end;", "encoding.ids[end] == tokenizer.eos() ? end : end;",
        (("data_test", "ChatRowsTest.AnEndThatOnlyAnotherMessageBringsIsLearntAndAMissingOneSaid"),),
    ),
    Mutant(
        "rotations-respelt", "an export spells rotations as its source",
        "model/config/hf_config.cc", "  if (source.contains(\"rope_parameters\")) return;\n", "  if (!source.contains(\"rope_parameters\")) return;\n",
        (("model_config_test", "HfConfig.AnExportSpellsRotationsAsItsSource"),),
    ),
]  # fmt: skip

HEADS = ("model_config_test", "HeadSplit.*")
HEADS_CC = "model/config/head_split.cc"

# How a model is dealt out over tensor-parallel ranks.
SPLIT = [
    Mutant(
        "half-a-group", "a rank has the query heads of its key/value heads, and no others",
        HEADS_CC, "    split.heads = {split.kv_heads.begin * group, split.kv_heads.size * group};\n",
        "    split.heads = DealtOut(config.num_attention_heads, tp, rank);\n", (HEADS,),
    ),
    Mutant(
        "head-of-another", "where ranks hold the same key/value head, its query heads are dealt out over them",
        HEADS_CC, "  split.heads.begin += head * group;\n", "  split.heads.begin += rank * group / split.kv_holders;\n", (HEADS,),
    ),
    Mutant(
        "a-rank-with-nothing", "a layout that leaves a rank without a head is refused",
        "model/config/layout_fit.cc", "  if (config.num_attention_heads < wish.tp) {\n", "  if (config.num_attention_heads < 0) {\n",
        (("model_config_test", "LayoutFit.*"),),
    ),
    Mutant(
        "gradients-of-holders-not-summed", "the gradients of a key/value head are summed over the ranks that hold it",
        "parallel/gradients/grad_buffer.cc", "    SumOverNeighbours(shared_, context_.tp(), {holders_.index, holders_.count});\n", "",
        (("e2e_resume", "ResumeElsewhereUnevenly.test_any_layout_to_any_other"),),
    ),
    Mutant(
        "rope-overwrites-its-input", "both halves of a head are read before one is written",
        "model/ops/ops.cc", "dims(0).to(at::kFloat, /*non_blocking=*/false, true)", "dims(0).to(at::kFloat)",
        (("model_ops_test_device_paths_aten", "Ops.Rope*"),),
    ),
]  # fmt: skip

MOVED = ("e2e_pretend_gpu", "Offload.test_is_bit_equal_and_resumes_into_a_run_without_and_back")
RESIDENCY_CC = "trainer/engine/residency.cc"

# What a host would forgive, and a GPU does not.
ON_DEVICE = [
    Mutant(
        "one-abort-after-another", "groups are aborted together",
        "parallel/groups/operation_watch.cc", "ends.push_back(std::async(abort));", "ends.push_back(std::async(std::launch::deferred, abort));",
        (("process_group_test", "OperationWatchTest.GroupsAreAbortedTogether"),),
    ),
    Mutant(
        "load-not-waited", "a step computes with weights after they have come from the host",
        RESIDENCY_CC, "  if (ticket >= 0) ThrowIfError(cuda_->WaitCopy(ticket).WithContext(\"load\"));\n", "", (MOVED,),
    ),
    Mutant(
        "offload-not-waited", "memory of the device is given up after its copy to the host",
        RESIDENCY_CC, "  ThrowIfError(cuda_->WaitCopy(ticket).WithContext(\"copy to the host\"));\n", "", (MOVED,),
    ),
    Mutant(
        "host-writes-the-device", "the host touches memory of a device by the device's copies alone",
        RESIDENCY_CC, "        ticket = cuda_->CopyToDevice(device, host, static_cast<size_t>(piece.bytes));\n",
        "        CopyBytes(device, host, piece.bytes);\n", (MOVED,),
    ),
    Mutant(
        "update-not-held", "an update on a device comes after the copies of a save that read what it writes",
        RESIDENCY_CC, "  if (ticket >= 0) cuda_->HoldStreamFor(ticket);\n", "  static_cast<void>(ticket);\n",
        (("residency_test", "*BackgroundSavesBesideACopyEngine*"),),
    ),
    Mutant(
        "elsewhere-each-time", "memory that comes back is where it was",
        "parallel/groups/tensor_memory.cc", "  if (pages_ == nullptr) pages_ = PagesFor(", "  pages_ = PagesFor(",
        (("process_group_test", "TensorMemory.*"),),
    ),
]  # fmt: skip

# Who speaks between the turns of a response.
TURNS = [
    Mutant(
        "nobody-answers-and-it-goes-on", "a response whose environment has failed ends",
        "turns/tool_round.cc", "outcome.over = !reply->ok() || reply->done;", "outcome.over = reply->done;",
        (("turns_test", "ToolRoundTest.AnEnvironmentThatFails*"),),
    ),
    Mutant(
        "the-end-is-given-twice", "the token that ends a turn is the model's, and is not given again",
        "turns/turn_text.cc", "  answer_end_ = behind->substr(0, end == std::string::npos ? 0 : end);\n", "  static_cast<void>(end);\n",
        (("turns_test", "UserTextTest.*"),),
    ),
]  # fmt: skip

# A step's batch, of which each rank has what it learns from.
BATCH = [
    Mutant(
        "a-constant-is-left-out", "constants of a model are saved and sent with its weights",
        "parallel/gradients/weight_store.cc", "for (const auto* some : {&parameters_, &frozen_, &constants_})", "for (const auto* some : {&parameters_, &frozen_})",
        (("grad_buffer_test", "WeightStore.ConstantsAreFp32AndGoWithTheOthers"),),
    ),
    Mutant(
        "the-bias-counts", "the bias of a router chooses, and does not count",
        "model/ops/router.cc", "    routing.weights = scores.gather(1, routing.experts);\n", "    routing.weights = by.gather(1, routing.experts);\n",
        (("moe_test", "Router.*"),),
    ),
    Mutant(
        "what-heads-share-is-one-ranks", "what all heads share learns from all of them",
        "model/decoder_block.cc", "declare.Whole(name + \".weight\", {rows, config.hidden_size}, true);",
        "declare.Whole(name + \".weight\", {rows, config.hidden_size}, false);",
        (("transformers_oracle_test", "*deepseek_v3*"),),
    ),
    Mutant(
        "every-rank-adds-the-bias", "what is added to a sum over ranks is added once",
        "model/decoder_block.cc", "moe->adds_down_bias = mine.begin == 0;", "moe->adds_down_bias = true;",
        (("transformers_oracle_test", "*gpt_oss_tp*"),),
    ),
    Mutant(
        "a-sink-beside-a-window-learns-nothing", "sinks learn from layers with a window, too",
        "model/ops/exact_attention.cc", "x.options.sinks->gradient.sub_(", "x.options.sinks->gradient.clone().sub_(",
        (("model_ops_test", "ExactAttention.EqualsItsDefinitionForwardAndBackward"),),
    ),
    Mutant(
        "a-sample-goes-on-with-another-state", "samples of one prompt go on with its state",
        "rollout/scheduler.cc", "        plan->state_copies.push_back({work.sequence->table.state, other->table.state});\n", "        static_cast<void>(plan);\n",
        (("rollout_engine_test", "EngineTest.NothingAroundARequestChangesIt"),),
    ),
    Mutant(
        "a-slot-keeps-what-another-text-left", "a text begins without a state",
        "model/ops/delta_rule.cc", "      if (s.past == 0) std::fill_n(state, shape.state_size(), 0.0f);\n", "",
        (("delta_rule_test", "DeltaRuleOps.StatesOfGenerationGiveTheBitsOfTraining"),),
    ),
    Mutant(
        "a-beginning-is-found-without-its-state", "no beginning of a text is found again where layers have states",
        "rollout/block_manager.cc", "prefix_caching_(prefix_caching && states == 0)", "prefix_caching_(prefix_caching)",
        (("rollout_engine_test", "EngineTest.NothingAroundARequestChangesIt"),),
    ),
    Mutant(
        "a-norm-of-values-learns-from-one-rank", "the norm of values learns from the heads of all ranks",
        "model/decoder_block.cc", "declare.Whole(\"linear_attn.norm.weight\", {delta.value_dim}, true);", "declare.Whole(\"linear_attn.norm.weight\", {delta.value_dim}, false);",
        (("transformers_oracle_test", "*qwen3_5_tp2*"),),
    ),
    Mutant(
        "what-adapters-have-whole-learns-from-one-rank", "an adapter's part that each rank has whole learns from all of them",
        "model/layers/adapter_parameters.cc", "whole.gradient_sum_over = WholeSum(true);", "whole.gradient_sum_over = WholeSum(false);",
        (("layout_matrix_test", "*tp2*_adapters"),),
    ),
    Mutant(
        "the-scale-of-adapters-is-left-out", "what an adapter adds is scaled",
        "parallel/tensor/adapted_linear.cc", ".add_(z.mul_(adapter.scale));", ".add_(z);",
        (("parallel_layers_test", "AdaptedLinearTest.ValueAndGradients"),),
    ),
    Mutant(
        "a-frozen-input-stops-what-is-computed-again", "adapters of the first layer learn, though nothing before them does",
        "model/decoder.cc", ".requires_grad_(recompute || options_.stages > 1);", ".requires_grad_(options_.stages > 1);",
        (("layout_matrix_test", "*tp3*recompute*_adapters"),),
    ),
    Mutant(
        "the-reference-has-the-adapters", "the reference of a run with adapters is the model without them",
        "trainer/rl/learn/experience.cc", "const BaseOnly base(roles.ref == roles.actor ? roles.ref : nullptr);", "const BaseOnly base(nullptr);",
        (("e2e_adapters", "Rl.test_placements_and_layouts_of_one_run"),),
    ),
    Mutant(
        "a-base-that-was-given-back-is-not-sent-again", "a rollout whose memory was given back gets the base again",
        "trainer/sync/rollout_model.cc", "released until the next update\");\n  base_there_ = false;\n", "released until the next update\");\n",
        (("e2e_adapters", "Rl.test_placements_and_layouts_of_one_run"),),
    ),
    Mutant(
        "adapters-of-another-base", "adapters of a step are used beside the model that they were trained beside",
        "tools/inference/named_model.cc", "if (found == model.base_is->digest) return Status::Ok();", "if (found != 0) return Status::Ok();",
        (("e2e_adapters", "Resume.test_another_base_is_not_taken_for_the_old_one"),),
    ),
    Mutant(
        "what-stands-beside-follows", "a feed-forward beside attention reads what comes into the block",
        "model/layers/block.cc", "y_ = norm.used() ? norm.Forward(stream_.x) : input_;", "y_ = norm.used() ? norm.Forward(stream_.x + mixed_) : input_;",
        (("transformers_oracle_test", "*gpt_neox_tp1*"),),
    ),
    Mutant(
        "generation-leaves-a-part-out", "what stands beside attention is added in generation, too",
        "model/layers/block.cc", "    AddInto(pass_.projected, pass_.beside);\n", "",
        (("transformers_oracle_test", "GreedyOracle.GreedyTokensOfEveryFamily"),),
    ),
    Mutant(
        "a-bias-of-norms-learns-from-one-rank", "with sequence parallelism biases of norms learn from the tokens of all ranks",
        "model/decoder_block.cc", 'declare.Whole(fmt::format("{}.bias", name), {hidden}, sp);', 'declare.Whole(fmt::format("{}.bias", name), {hidden}, false);',
        (("transformers_oracle_test", "*gpt_neox_tp2*"),),
    ),
    Mutant(
        "positions-learn-from-one-rank", "with sequence parallelism learned positions learn from the tokens of all ranks",
        "model/decoder.cc", "table.gradient_sum_over = WholeSum(tp.sequence_parallel);", "table.gradient_sum_over = WholeSum(false);",
        (("transformers_oracle_test", "*gpt2_tp2_pp2_sp*"),),
    ),
    Mutant(
        "positions-of-the-first-rank", "with sequence parallelism each rank adds its own tokens' positions",
        "model/decoder.cc", "mine.narrow(0, tp_.group->rank() * x.size(0), x.size(0));", "mine.narrow(0, 0, x.size(0));",
        (("transformers_oracle_test", "*gpt2_tp2_pp2_sp*"),),
    ),
    Mutant(
        "rate-of-a-moment-in-fp32", "what a moment takes of a gradient is 1 - beta, rounded once",
        "common/kernels/cpu_kernels.cc", "beta2_rest(static_cast<float>(1 - step.beta2))", "beta2_rest(1.0f - static_cast<float>(step.beta2))",
        (("common_test", "CpuKernelsTest.AdamWHas*"),),
    ),
    Mutant(
        "moments-of-turned-matrices", "what the optimizer keeps of a matrix is saved as its file has the matrix",
        "trainer/engine/optimizer.cc", "view.strides = p.StridesOf(piece, box.size);", "view.strides = ContiguousStrides(box.size);",
        (("transformers_oracle_test", "*gpt2_tp1_pp1*"),),
    ),
    Mutant(
        "adapters-have-keels-names", "adapters beside a model whose files have other names are read by these",
        "checkpoint/hf/fused_tensors.cc", "  names.names_ = RenamedTensors(model_type);\n", "  static_cast<void>(model_type);\n",
        (("e2e_adapters", "Files.test_every_form_says_what_pytorch_does"),),
    ),
    Mutant(
        "rejected-tokens-still-count", "what a correction rejects counts in no rank's loss",
        "trainer/rl/learn/batch_share.cc",
        "  for (size_t s = 0; s < policy.size(); ++s) outline_.responses[s].policy_tokens = policy[s];\n", "",
        (("rl_validation_test", "BatchShareTest.ValuesOfTokensGoToWhoHoldsThem"),),
    ),
    Mutant(
        "one-share-for-all", "each data-parallel rank gets its own responses",
        "trainer/rl/learn/batch_share.cc", "shares[static_cast<size_t>(context.dp_rank())]);", "shares[0]);",
        (("rl_validation_test", "BatchShareTest.EachRankHasWhatItLearnsFromAndNothingElse"),),
    ),
    Mutant(
        "shards-of-two-files", "a file that is written over while it is tokenized makes no shard",
        "trainer/data/tokenize.cc", "    KEEL_RETURN_IF_ERROR(CheckUnchanged(plan_, part.file));\n", "",
        (("data_test", "TokenizeTest.AFileThatIsWrittenOverMeanwhileMakesNoShards"),),
    ),
]  # fmt: skip

BODIES = "gpu_bodies_test"

# What a GPU computes, as its bodies say it.
KERNELS = [
    Mutant(
        "a-norm-without-its-mean", "the gradient of a norm takes off its part along the vector",
        "gpu/rms_norm.h", " - h * mean);\n", ");\n", ((BODIES, "RmsNormKernel.*"),),
    ),
    Mutant(
        "a-lane-for-all-columns", "a lane sums the gradient of columns that no other lane sums",
        "gpu/rms_norm.h", "sums[i * P + k] += gradient * h;", "sums[0 * P + k] += gradient * h;", ((BODIES, "RmsNormKernel.*"),),
    ),
    Mutant(
        "the-second-half-reads-the-first", "both halves of a head are read before one is written",
        "gpu/rotation.h", "Store(&second, y * c.at[k] + x * turn);", "Store(&second, y * c.at[k] + Load(first) * turn);",
        ((BODIES, "RotationKernel.*"),),
    ),
    Mutant(
        "halves-change-places", "the cache has a key's halves where the row has them",
        "gpu/rotation.h", "StorePack(key, low);", "StorePack(key, high);",
        ((BODIES, "RotationKernel.WritesKeys*"),),
    ),
    Mutant(
        "nowhere-is-somewhere", "a token whose slot is nowhere leaves the cache as it is",
        "gpu/rotation.h", "a.kv.keys != nullptr && a.kv.slots[row] >= 0;", "a.kv.keys != nullptr;",
        ((BODIES, "RotationKernel.WritesKeys*"),),
    ),
    Mutant(
        "nobody-writes", "sequences that fill up a recorded step write nothing",
        "model/ops/decode_plan.cc", "numbers.Add(blocks.empty() ? -1 :", "numbers.Add(blocks.empty() ? 0 :",
        (("rollout_engine_test_pretend_gpu", "ReplayedGeneration.SequencesOfNobody*"),),
    ),
    Mutant(
        "replayed-where-they-were", "a recorded step is of the places that weights and cache have now",
        "rollout/decode_graphs.cc", "  if (Addresses() != addresses_) graphs_.clear();\n", "",
        (("rollout_engine_test_pretend_gpu", "ReplayedGeneration.WhatHasMoved*"),),
    ),
    Mutant(
        "a-token-sees-the-next", "a token attends to none behind it",
        "gpu/paged_attention.h", "Least(begin + kAttentionPart, position + 1)}", "Least(begin + kAttentionPart, position + 2)}",
        ((BODIES, "PagedAttentionKernel.*"),),
    ),
    Mutant(
        "parts-of-one-size", "parts of a softmax are joined relative to one maximum",
        "gpu/vocab_softmax.h", "  return {maximum, x.sum + y.sum, x.weighted + y.weighted};", "  return {maximum, x.sum + b.sum, x.weighted + y.weighted};",
        ((BODIES, "VocabSoftmaxKernel.*"),),
    ),
    Mutant(
        "a-piece-is-lost", "all pieces of a row are summed",
        "gpu/row_sum.h", "int64_t place = start + kRowPiece; place", "int64_t place = start + 2 * kRowPiece; place",
        ((BODIES, "RowSumKernel.*"),),
    ),
]  # fmt: skip

BITS = (("rollout_engine_test", "EngineTest.LogProbabilitiesAreTheTrainersToTheBit"),)

AS_GENERATED = [
    Mutant(
        "training-attends-its-own-way", "a training that is to have generation's bits attends as generation does",
        "model/layers/attention_layer.cc", "attended = pass.prompts ?", "attended = false ?", BITS,
    ),
    Mutant(
        "a-factor-of-eight-bits", "a factor is not rounded to the dtype of what it multiplies",
        "parallel/tensor/scale.h", "at::mul_out(x, x, at::scalar_tensor(factor, at::kDouble));", "x.mul_(factor);", BITS,
    ),
    Mutant(
        "the-choice-has-the-say", "with batch_invariant a rollout says of a token what the trainer says",
        "rollout/output_sampler.cc", "    SayAsTrainer(logits, first_row, outputs);\n", "    return;\n", BITS,
    ),
    Mutant(
        "ranks-sum-in-any-order", "training sums over ranks in the order in which generation does",
        "parallel/tensor/regions.cc", "  if (fixed_order) return Region<SummedInOrder, Same>::apply(x, &group);\n",
        "  (void)fixed_order;\n",
        (("rollout_engine_test", "EngineTpTest.LogProbabilitiesAreTheTrainersToTheBit"),),
    ),
]  # fmt: skip

METRICS = [
    Mutant(
        "another-starts-lines-stay", "a run has the lines of metrics that its checkpoint was saved with",
        "trainer/metrics/metrics_history.cc", "    if (start.StandsOn(rewind->sequence) || !history.TakeBack(*rewind)) break;\n", "    break;\n",
        (("metrics_file_test", "MetricsFileTest.*"),),
    ),
    Mutant(
        "what-came-later-is-taken-back", "a start is taken back for checkpoints that were saved before it alone",
        "trainer/metrics/metrics_history.cc", "    if (start.StandsOn(rewind->sequence) || !history.TakeBack(*rewind)) break;\n",
        "    if (!history.TakeBack(*rewind)) break;\n",
        (("metrics_file_test", "MetricsFileTest.*"),),
    ),
]  # fmt: skip

INTERCHANGE = [
    Mutant(
        "want-of-descriptors-is-damage", "what a save replaced is not set aside because this process cannot look at it",
        "checkpoint/commit/committer.cc",
        "  if (manifest.status().code() == StatusCode::kExhausted) return manifest.status();\n"
        "  if (report.unproven == StatusCode::kExhausted)\n"
        "    return Status(StatusCode::kExhausted, \"it cannot be looked at now: \" + report.problems.front());\n", "",
        (("disk_error_test", "*AtEveryCallOfASave/the_same_step_again"),),
    ),
    Mutant(
        "anothers-folder-is-taken-over", "a folder of another kind of program is refused",
        "checkpoint/checkpointer.cc", "      KEEL_RETURN_IF_ERROR(self.CheckRoles());\n", "",
        (("catalog_test", "RunIdentity.AFolderOf*"),),
    ),
    Mutant(
        "an-earlier-step-is-the-newest", "no command commits an earlier step than the folder has",
        "tools/ckpt/ckpt_paths.cc", "    if (!entry.manifest || entry.step <= step) continue;\n    return Status(StatusCode::kUsage,\n",
        "    continue;\n    return Status(StatusCode::kUsage,\n",
        (("ckpt_commands_test", "CkptCommands.Reshard*"),),
    ),
    Mutant(
        "the-indexs-shard-counts", "a tensor that two shards hold is refused",
        "checkpoint/hf/hf_model_dir.cc", "    if (!alone) {\n", "    if (!alone && !places.contains(tensor.name)) {\n",
        (("hf_model_dir_test", "HfModelDir.ATensorOf*"),),
    ),
]  # fmt: skip

MUTANTS = AS_GENERATED + METRICS + INTERCHANGE + IN_COMMON + SPLIT + TURNS + ON_DEVICE + KERNELS + DURABILITY + PROTOCOL_RULES + AFTER_A_CRASH + RETENTION_RULES + READING + SNAPSHOT + TRAINING_STATE + BATCH + ASYNCHRONOUS_RL
