#include "trainer/data/tokenize.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "common/files/file_system.h"
#include "common/parallel_for.h"
#include "common/process/program_id.h"
#include "common/text.h"
#include "trainer/data/files/data_file.h"
#include "trainer/data/rows/ready_ids.h"
#include "trainer/data/tokens/shard_writer.h"

namespace keel::trainer {

namespace {

constexpr const char* kPlanName = "plan.json";
constexpr const char* kFolderLock = ".lock";
constexpr int64_t kMostPlanBytes = int64_t{64} << 20;
constexpr std::chrono::milliseconds kPoll{50};

std::string PartName(size_t part) { return fmt::format("part-{:05}.tokens", part); }
std::string LockName(size_t part) { return fmt::format(".lock-{:05}", part); }
std::string TemporaryName(size_t part) { return fmt::format(".tmp-part-{:05}", part); }
std::string Holder() { return fmt::format("keel, process {}", ::getpid()); }

bool IsThere(const FileSystem& files, const std::string& name) { return files.Stat(name).ok(); }

class Tokenizing {
 public:
  Tokenizing(const TokenPlan& plan, const std::string& folder, FileSystem& files,
             const TokenizeOptions& options)
      : plan_(plan), folder_(folder), files_(files), options_(options) {
    for (const TokenPart& part : plan_.parts) progress_.total_bytes += part.bytes;
    progress_.total_parts = static_cast<int64_t>(plan_.parts.size());
    const bool narrow = options_.plan.vocab_size > 0 && options_.plan.vocab_size <= 0x10000;
    id_bytes_ = options_.plan.records != nullptr ? kRecordIdBytes : narrow ? 2 : 4;
    tokenizer_ = NameTokenizer(options_.plan.rows.rules);
  }

  Result<ShardFolderIndex> Run() {
    // 1. The folder is this plan's, and finished, or it becomes so. One that is refused is left as
    // it is: who works in a folder makes the lock's file first, so that where there is none after
    // the look nobody has changed what was seen.
    if (IsThere(files_, kShardFolderName)) return Finished();
    if (const Status refused = CheckFolder(); !refused.ok() && !IsThere(files_, kFolderLock))
      return refused;
    KEEL_RETURN_IF_ERROR(WithFolderLock([&] { return AgreeOnPlan(); }));
    // 2. Whatever parts nobody else has; then those that others had begun and left.
    std::vector<size_t> parts(plan_.parts.size());
    for (size_t i = 0; i < parts.size(); ++i) parts[i] = i;
    KEEL_ASSIGN_OR_RETURN(std::vector<size_t> others, Make(parts));
    Waiting waiting(*this);
    while (!others.empty()) {
      const size_t before = others.size();
      KEEL_ASSIGN_OR_RETURN(others, Make(others));
      if (others.empty()) break;
      KEEL_RETURN_IF_ERROR(waiting.Look(others, others.size() < before));
    }
    // 3. The index, by the first who comes.
    KEEL_RETURN_IF_ERROR(WithFolderLock([&] { return Publish(); }));
    return Finished();
  }

 private:
  // Watches whether the parts of others grow.
  class Waiting {
   public:
    explicit Waiting(const Tokenizing& t) : t_(t), watch_(*t.options_.clock) {}

    Status Look(const std::vector<size_t>& parts, bool progress) {
      int64_t bytes = 0;
      for (const size_t part : parts) {
        const auto info = t_.files_.Stat(TemporaryName(part));
        if (info.ok()) bytes += info->size;
      }
      if (progress || bytes != bytes_) watch_ = Stopwatch(*t_.options_.clock);
      bytes_ = bytes;
      if (watch_.Elapsed() > t_.options_.deadline_seconds) {
        return Status(
            StatusCode::kDeadlineExceeded,
            fmt::format("{}: another process holds {} and has written nothing for {:.0f} s; end "
                        "it, or raise the deadline",
                        t_.files_.Describe(PartName(parts.front())),
                        t_.files_.Describe(LockName(parts.front())), t_.options_.deadline_seconds));
      }
      t_.options_.clock->SleepFor(kPoll);
      return Status::Ok();
    }

   private:
    const Tokenizing& t_;
    Stopwatch watch_;
    int64_t bytes_ = 0;
  };

  template <typename Work>
  Status WithFolderLock(const Work& work) {
    const Stopwatch watch(*options_.clock);
    for (;;) {
      const auto lock = files_.Lock(kFolderLock, Holder());
      if (lock.ok()) return work();
      if (lock.status().code() != StatusCode::kBusy) return lock.status();
      if (watch.Elapsed() > options_.deadline_seconds)
        return Status(StatusCode::kDeadlineExceeded, lock.status().message());
      options_.clock->SleepFor(kPoll);
    }
  }

  Status AnotherPlan() const {
    return Status(StatusCode::kAlreadyExists,
                  fmt::format("{} holds tokens of other files, or of the same by another tokenizer "
                              "or other settings (or they were changed since): choose another "
                              "folder, or remove this one",
                              Printable(folder_)));
  }

  Result<ShardFolderIndex> Finished() const {
    KEEL_ASSIGN_OR_RETURN(ShardFolderIndex index, ReadShardFolderIndex(folder_));
    if (index.plan != plan_.document) return AnotherPlan();
    return index;
  }

  std::string PlanText() const { return plan_.document.dump(1) + "\n"; }

  // Whether the folder is finished, of this plan, or empty.
  Status CheckFolder() const {
    if (IsThere(files_, kShardFolderName)) return Status::Ok();
    if (IsThere(files_, kPlanName)) {
      KEEL_ASSIGN_OR_RETURN(const std::string theirs, ReadFile(files_, kPlanName, kMostPlanBytes));
      return theirs == PlanText() ? Status::Ok() : AnotherPlan();
    }
    KEEL_ASSIGN_OR_RETURN(const std::vector<FileInfo> there, files_.List("."));
    for (const FileInfo& file : there) {
      // The second is of who was killed while he wrote it.
      if (file.name != kFolderLock && file.name != ReplacementOf(kPlanName)) {
        return Status(StatusCode::kAlreadyExists,
                      fmt::format("{} is not empty, and no folder of token shards: it has {}; "
                                  "choose another",
                                  Printable(folder_), Printable(file.name)));
      }
    }
    return Status::Ok();
  }

  Status AgreeOnPlan() {
    KEEL_RETURN_IF_ERROR(CheckFolder());
    if (IsThere(files_, kShardFolderName) || IsThere(files_, kPlanName)) return Status::Ok();
    return ReplaceFileDurably(files_, kPlanName, PlanText());
  }

  // Makes those of `parts` that are not there and that nobody else makes; returns what others do.
  Result<std::vector<size_t>> Make(const std::vector<size_t>& parts) {
    std::vector<uint8_t> done(parts.size());
    KEEL_RETURN_IF_ERROR(
        ParallelFor(std::ssize(parts), options_.threads, [&](int64_t i, int) -> Status {
          const auto at = static_cast<size_t>(i);
          KEEL_ASSIGN_OR_RETURN(const bool there, MakePart(parts[at]));
          done[at] = there ? 1 : 0;
          if (there) Count(parts[at]);
          return Status::Ok();
        }));
    std::vector<size_t> others;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (done[i] == 0) others.push_back(parts[i]);
    }
    return others;
  }

  void Count(size_t part) {
    const std::lock_guard lock(progress_mutex_);
    ++progress_.parts;
    progress_.bytes += plan_.parts[part].bytes;
    if (options_.progress) options_.progress(progress_);
  }

  // False when another has it.
  Result<bool> MakePart(size_t part) {
    if (IsThere(files_, PartName(part))) return true;
    const auto lock = files_.Lock(LockName(part), Holder());
    if (!lock.ok()) {
      if (lock.status().code() == StatusCode::kBusy) return false;
      return lock.status();
    }
    // Between the look and the lock another may have made it.
    if (IsThere(files_, PartName(part))) return true;
    const std::string temporary = TemporaryName(part);
    if (IsThere(files_, temporary)) KEEL_RETURN_IF_ERROR(files_.Remove(temporary));
    const Status written = WritePart(part, temporary);
    if (!written.ok()) {
      (void)files_.Remove(temporary);
      return written;
    }
    KEEL_RETURN_IF_ERROR(
        files_.Rename(temporary, PartName(part), FileSystem::RenameMode::kNoReplace));
    KEEL_RETURN_IF_ERROR(files_.SyncDirectory("."));
    return true;
  }

  Status WritePart(size_t number, const std::string& temporary) {
    const TokenPart& part = plan_.parts[number];
    KEEL_ASSIGN_OR_RETURN(ShardWriter writer,
                          ShardWriter::Create(files_, temporary, id_bytes_, tokenizer_.digest));
    RowNotes notes;
    int64_t rows = 0;
    const Status read = ReadPart(part, part.range, &notes, &rows, &writer);
    // Else the shard of this plan, which others take, would be of another file.
    KEEL_RETURN_IF_ERROR(CheckUnchanged(plan_, part.file));
    if (!read.ok()) return NameLine(part, read);
    const Json made = {{"program", fmt::format("keel {}", ProgramVersion())},
                       {"plan", plan_.digest.ToHex()},
                       {"part", number},
                       {"rows", rows},
                       {"unread", notes.ToJson()}};
    return writer.Finish(made).status();
  }

  // Counts rows; what they become goes to `writer`, where there is one.
  Status ReadPart(const TokenPart& part, const std::optional<LineRange>& range, RowNotes* notes,
                  int64_t* rows, ShardWriter* writer) const {
    const std::string& path = plan_.files[part.file];
    const PlanOptions& plan = options_.plan;
    if (plan.records != nullptr) {
      WireWriter record;
      return ReadJsonRows(path, range, plan.rows.rules, notes,
                          [&](const Json& row, const RowContext& context) -> Status {
                            record.Clear();
                            record.I64((*rows)++);
                            KEEL_ASSIGN_OR_RETURN(const bool stays,
                                                  plan.records->make(row, context, &record));
                            if (!stays || writer == nullptr) return Status::Ok();
                            return writer->AddRecord(std::as_bytes(std::span(record.bytes())));
                          });
    }
    return ReadSomeRows(path, range, plan.rows, notes,
                        [&](const TokenRow& row, const std::string& where) -> Status {
                          if (plan.vocab_size > 0)
                            KEEL_RETURN_IF_ERROR(CheckTokens(row.tokens, plan.vocab_size, where));
                          ++*rows;
                          if (writer == nullptr) return Status::Ok();
                          const Status added = writer->Add(row.tokens, row.learn);
                          return added.ok() ? added : added.WithContext(where);
                        });
  }

  // What is wrong with a row is said with its line in the file. A part counts from its own first,
  // so that no part need be read for another: those before it are counted now.
  Status NameLine(const TokenPart& part, const Status& wrong) const {
    if (!part.range || part.range->begin == 0 || wrong.code() != StatusCode::kInvalidData)
      return wrong;
    LineRange range = *part.range;
    KEEL_ASSIGN_OR_RETURN(DataFile before,
                          DataFile::OpenRange(plan_.files[part.file], 0, range.begin));
    std::string line;
    for (;;) {
      KEEL_ASSIGN_OR_RETURN(const bool more, before.ReadLine(&line));
      if (!more) break;
      ++range.first_line;
    }
    RowNotes notes;
    int64_t rows = 0;
    const Status again = ReadPart(part, range, &notes, &rows, nullptr);
    return again.ok() ? wrong : again;
  }

  Status Publish() {
    if (IsThere(files_, kShardFolderName)) return Status::Ok();
    ShardFolderIndex index;
    index.tokenizer = tokenizer_.name;
    index.tokenizer_digest = tokenizer_.digest;
    index.id_bytes = id_bytes_;
    index.plan = plan_.document;
    std::vector<RowNotes> notes(plan_.files.size());
    for (size_t i = 0; i < plan_.parts.size(); ++i) {
      const std::string path = (std::filesystem::path(folder_) / PartName(i)).string();
      KEEL_ASSIGN_OR_RETURN(const auto shard, ShardFile::Open(path));
      KEEL_ASSIGN_OR_RETURN(const Json made, shard->Made());
      KEEL_ASSIGN_OR_RETURN(const std::string digest, GetString(made, "plan", path));
      KEEL_ASSIGN_OR_RETURN(const int64_t part, GetInt(made, "part", path));
      if (digest != plan_.digest.ToHex() || part != static_cast<int64_t>(i)) return AnotherPlan();
      KEEL_ASSIGN_OR_RETURN(const int64_t rows, GetInt(made, "rows", path));
      KEEL_ASSIGN_OR_RETURN(const RowNotes keys,
                            RowNotes::FromJson(made.value("unread", Json()), path));
      notes[plan_.parts[i].file].Add(keys);
      index.rows += rows;
      const ShardHeader& header = shard->header();
      index.largest_id = std::max(index.largest_id, header.largest_id);
      index.shards.push_back({PartName(i), header.tokens, header.documents,
                              ShardLayout::Of(header).file_bytes, header.header});
    }
    for (size_t i = 0; i < notes.size(); ++i) {
      if (std::string warning = notes[i].Warning(plan_.files[i]); !warning.empty())
        index.warnings.push_back(std::move(warning));
    }
    KEEL_RETURN_IF_ERROR(ReplaceFileDurably(files_, kShardFolderName, index.ToJson()));
    // Whoever still waits for one of these finds all parts there.
    for (size_t i = 0; i < plan_.parts.size(); ++i) (void)files_.Remove(LockName(i));
    (void)files_.Remove(kPlanName);
    return Status::Ok();
  }

  const TokenPlan& plan_;
  const std::string& folder_;
  FileSystem& files_;
  const TokenizeOptions& options_;
  uint32_t id_bytes_ = 4;
  TokenizerName tokenizer_;
  std::mutex progress_mutex_;
  TokenizeProgress progress_;
};

}  // namespace

Result<ShardFolderIndex> Tokenize(const TokenPlan& plan, const std::string& folder,
                                  const TokenizeOptions& options) {
  KEEL_ASSIGN_OR_RETURN(const auto files, OpenPosixFileSystem(folder, true));
  return Tokenizing(plan, folder, *files, options).Run();
}

}  // namespace keel::trainer
