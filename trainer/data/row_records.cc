#include "trainer/data/row_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/files/spilled_bytes.h"
#include "trainer/data/rows/row_reader.h"
#include "trainer/data/split.h"
#include "trainer/data/tokenize.h"
#include "trainer/data/tokens/shard_folder.h"

namespace keel::trainer {

namespace {

// Of a part in memory, but for a record that is larger: no more than this is ever moved as it
// grows.
constexpr size_t kMemoryPartBytes = size_t{4} << 20;
// What ForEach holds at a time, but for a record that is larger.
constexpr int64_t kStretchBytes = int64_t{1} << 20;

// What holds the records of a file that is read.
class GrowingRecords : public RecordPart {
 public:
  virtual bool HasRoom(size_t bytes) const = 0;
  virtual Status Add(std::span<const std::byte> record) = 0;
  virtual Status Close() = 0;
};

class MemoryRecords final : public GrowingRecords {
 public:
  MemoryRecords() { bytes_.reserve(kMemoryPartBytes); }
  bool HasRoom(size_t bytes) const override {
    return bytes_.empty() || bytes_.size() + bytes <= kMemoryPartBytes;
  }
  Status Add(std::span<const std::byte> record) override {
    bytes_.insert(bytes_.end(), record.begin(), record.end());
    begins_.push_back(std::ssize(bytes_));
    return Status::Ok();
  }
  Status Close() override {
    bytes_.shrink_to_fit();
    begins_.shrink_to_fit();
    return Status::Ok();
  }

  int64_t records() const override { return std::ssize(begins_) - 1; }
  int64_t Begin(int64_t record) const override { return begins_[static_cast<size_t>(record)]; }
  Status Read(int64_t begin, std::span<std::byte> bytes) const override {
    std::copy_n(bytes_.begin() + begin, bytes.size(), bytes.begin());
    return Status::Ok();
  }

 private:
  std::vector<std::byte> bytes_;
  std::vector<int64_t> begins_ = {0};
};

// On the disk: where each begins is held, eight bytes a record.
class SpilledRecords final : public GrowingRecords {
 public:
  explicit SpilledRecords(const std::string& folder) : bytes_(folder) {}
  bool HasRoom(size_t) const override { return true; }
  Status Add(std::span<const std::byte> record) override {
    begins_.push_back(begins_.back() + std::ssize(record));
    return bytes_.Append(record);
  }
  Status Close() override {
    begins_.shrink_to_fit();
    return Status::Ok();
  }

  int64_t records() const override { return std::ssize(begins_) - 1; }
  int64_t Begin(int64_t record) const override { return begins_[static_cast<size_t>(record)]; }
  Status Read(int64_t begin, std::span<std::byte> bytes) const override {
    return bytes_.Read(begin, bytes);
  }

 private:
  SpilledBytes bytes_;
  std::vector<int64_t> begins_ = {0};
};

class ShardRecords final : public RecordPart {
 public:
  explicit ShardRecords(std::shared_ptr<const ShardFile> shard) : shard_(std::move(shard)) {}
  int64_t records() const override { return shard_->documents(); }
  int64_t Begin(int64_t record) const override { return shard_->Begin(record); }
  Status Read(int64_t begin, std::span<std::byte> bytes) const override {
    return shard_->ReadBytes(begin, bytes);
  }

 private:
  const std::shared_ptr<const ShardFile> shard_;
};

// A record is stored behind the place of its row within its part.
Result<int64_t> PlaceOf(std::span<const std::byte> stored) {
  int64_t place = 0;
  if (WireReader(stored).I64(&place)) return place;
  return Status(StatusCode::kInvalidData, "a record that is cut off");
}

}  // namespace

void RowRecords::Append(std::shared_ptr<const RecordPart> part, int64_t rows) {
  const int64_t records = part->records();
  if (records > 0) parts_.push_back({std::move(part), records_, rows_});
  records_ += records;
  rows_ += rows;
}

Result<RowRecords::Record> RowRecords::Get(int64_t index) const {
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), index,
                       [](int64_t at, const Placed& placed) { return at < placed.first_record; });
  const Placed& placed = *std::prev(after);
  const int64_t at = index - placed.first_record;
  const int64_t begin = placed.part->Begin(at);
  Record record;
  record.bytes.resize(static_cast<size_t>(placed.part->Begin(at + 1) - begin));
  KEEL_RETURN_IF_ERROR(placed.part->Read(begin, record.bytes));
  KEEL_ASSIGN_OR_RETURN(const int64_t place, PlaceOf(record.bytes));
  record.row = placed.first_row + place;
  record.bytes.erase(record.bytes.begin(), record.bytes.begin() + sizeof(place));
  return record;
}

Status RowRecords::ForEach(
    const std::function<Status(int64_t index, int64_t row, std::span<const std::byte> bytes)>& take)
    const {
  std::vector<std::byte> stretch;
  for (const Placed& placed : parts_) {
    const RecordPart& part = *placed.part;
    for (int64_t first = 0, end = 0; first < part.records(); first = end) {
      const int64_t begin = part.Begin(first);
      end = first + 1;
      while (end < part.records() && part.Begin(end + 1) - begin <= kStretchBytes) ++end;
      stretch.resize(static_cast<size_t>(part.Begin(end) - begin));
      KEEL_RETURN_IF_ERROR(part.Read(begin, stretch));
      for (int64_t i = first; i < end; ++i) {
        const int64_t from = part.Begin(i);
        const auto stored = std::span<const std::byte>(stretch).subspan(
            static_cast<size_t>(from - begin), static_cast<size_t>(part.Begin(i + 1) - from));
        KEEL_ASSIGN_OR_RETURN(const int64_t place, PlaceOf(stored));
        KEEL_RETURN_IF_ERROR(
            take(placed.first_record + i, placed.first_row + place, stored.subspan(sizeof(place))));
      }
    }
  }
  return Status::Ok();
}

Status ChosenRecords::ForEach(
    const std::function<Status(int64_t row, std::span<const std::byte> bytes)>& take) const {
  size_t next = 0;  // of those chosen
  return records_.ForEach(
      [&](int64_t index, int64_t row, std::span<const std::byte> bytes) -> Status {
        if (chosen_) {
          if (next == chosen_->size() || (*chosen_)[next] != index) return Status::Ok();
          ++next;
        }
        return take(row, bytes);
      });
}

Result<ChosenRecords> ChosenRecords::SplitOff(double share, uint64_t seed, uint64_t stream) {
  struct Numbered {
    int64_t id;  // of its row
    int64_t index;
  };
  std::vector<Numbered> stay;
  stay.reserve(static_cast<size_t>(size()));
  size_t next = 0;
  KEEL_RETURN_IF_ERROR(ForEach([&](int64_t row, std::span<const std::byte>) {
    stay.push_back({row, chosen_ ? (*chosen_)[next] : std::ssize(stay)});
    ++next;
    return Status::Ok();
  }));
  const std::vector<Numbered> apart = keel::trainer::SplitOff(&stay, share, seed, stream);
  const auto indices = [](const std::vector<Numbered>& from) {
    std::vector<int64_t> list;
    list.reserve(from.size());
    for (const Numbered& one : from) list.push_back(one.index);
    return list;
  };
  ChosenRecords other;
  other.records_ = records_;
  other.chosen_ = indices(apart);
  other.apart_ = true;
  chosen_ = indices(stay);
  return other;
}

const std::vector<std::string>& ChosenRecords::warnings() const {
  static const std::vector<std::string> none;
  return apart_ ? none : records_.warnings();
}

class RowRecords::Opening {
 public:
  Opening(const RecordRule& rule, const TextRules& rules, const TokenCache& cache)
      : rule_(rule), rules_(rules), cache_(cache) {}

  Status Add(const std::string& path) {
    if (!cache_.folder.empty()) return AddCached(path);
    if (!cache_.spill.empty()) return AddRows(path);
    std::error_code error;
    if (const auto bytes = std::filesystem::file_size(path, error); !error) bytes_ += bytes;
    return AddRows(path);
  }

  RowRecords Finish() {
    if (bytes_ > kMuchText) opened_.warnings_.push_back(MuchTextWarning(bytes_));
    return std::move(opened_);
  }

 private:
  Status AddCached(const std::string& path) {
    TokenizeOptions options;
    options.plan.rows.rules = rules_;
    options.plan.records = &rule_;
    options.plan.part_bytes = cache_.part_bytes;
    options.threads = cache_.threads;
    options.deadline_seconds = cache_.deadline_seconds;
    KEEL_ASSIGN_OR_RETURN(const TokenPlan plan, MakeTokenPlan({path}, options.plan));
    const std::string at = (std::filesystem::path(cache_.folder) / plan.digest.ToHex()).string();
    KEEL_RETURN_IF_ERROR(Tokenize(plan, at, options).status());
    KEEL_ASSIGN_OR_RETURN(const ShardFolder folder, ShardFolder::Open(at));
    for (const auto& shard : folder.shards) {
      KEEL_ASSIGN_OR_RETURN(const Json made, shard->Made());
      KEEL_ASSIGN_OR_RETURN(const int64_t rows, GetInt(made, "rows", at));
      opened_.Append(std::make_shared<ShardRecords>(shard), rows);
    }
    const auto& warnings = folder.index.warnings;
    opened_.warnings_.insert(opened_.warnings_.end(), warnings.begin(), warnings.end());
    return Status::Ok();
  }

  std::shared_ptr<GrowingRecords> MakePart() const {
    if (!cache_.spill.empty()) return std::make_shared<SpilledRecords>(cache_.spill);
    return std::make_shared<MemoryRecords>();
  }

  Status AddRows(const std::string& path) {
    std::shared_ptr<GrowingRecords> part = MakePart();
    int64_t rows = 0;  // of the part
    const auto close = [&]() -> Status {
      KEEL_RETURN_IF_ERROR(part->Close());
      opened_.Append(std::move(part), std::exchange(rows, 0));
      return Status::Ok();
    };
    WireWriter record, stored;
    RowNotes notes;
    const auto take = [&](const Json& row, const RowContext& context) -> Status {
      record.Clear();
      stored.Clear();
      KEEL_ASSIGN_OR_RETURN(const bool stays, rule_.make(row, context, &record));
      if (stays && !part->HasRoom(sizeof(rows) + record.bytes().size())) {
        KEEL_RETURN_IF_ERROR(close());
        part = MakePart();
      }
      stored.I64(rows++).Raw(record.bytes());
      return stays ? part->Add(std::as_bytes(std::span(stored.bytes()))) : Status::Ok();
    };
    KEEL_RETURN_IF_ERROR(ReadJsonRows(path, std::nullopt, rules_, &notes, take));
    KEEL_RETURN_IF_ERROR(close());
    if (std::string warning = notes.Warning(path); !warning.empty())
      opened_.warnings_.push_back(std::move(warning));
    return Status::Ok();
  }

  const RecordRule& rule_;
  const TextRules& rules_;
  const TokenCache& cache_;
  RowRecords opened_;
  uintmax_t bytes_ = 0;
};

Result<RowRecords> OpenRecords(const std::vector<std::string>& files, const RecordRule& rule,
                               const TextRules& rules, const TokenCache& cache) {
  RowRecords::Opening opening(rule, rules, cache);
  for (const std::string& path : files) KEEL_RETURN_IF_ERROR(opening.Add(path));
  return opening.Finish();
}

}  // namespace keel::trainer
