#include "checkpoint/format/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <utility>

#include "common/text.h"
#include "common/wire.h"

namespace keel::checkpoint {
namespace {

// The records of index.bin, all of them multiples of 8 bytes. Do not reorder.
constexpr std::array<char, 8> kMagic = {'K', 'E', 'E', 'L', 'I', 'D', 'X', '\n'};

struct HeaderRecord {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t reserved;
  int64_t chunk_bytes;
  int64_t scope_count;
  int64_t file_count;
  int64_t tensor_count;
  int64_t box_count;
  int64_t chunk_count;
  int64_t string_bytes;
};
static_assert(sizeof(HeaderRecord) == IndexRecordBytes::kHeader);

struct ScopeRecord {
  int64_t name_offset;
  int64_t name_size;
  int64_t first_tensor;
  int64_t tensor_count;
};
static_assert(sizeof(ScopeRecord) == IndexRecordBytes::kScope);

struct FileRecord {
  int64_t path_offset;
  int64_t path_size;
  int64_t size;
  int64_t first_chunk;
  int64_t chunk_count;
};
static_assert(sizeof(FileRecord) == IndexRecordBytes::kFile);

struct TensorRecord {
  int64_t name_offset;
  int64_t name_size;
  uint32_t scope;
  uint8_t dtype;
  uint8_t dims;
  uint16_t reserved;
  int64_t shape[kMaxDims];
  int64_t first_box;
  int64_t box_count;
};
static_assert(sizeof(TensorRecord) == IndexRecordBytes::kTensor);

struct BoxRecord {
  uint32_t file;
  uint32_t reserved;
  int64_t begin;
  int64_t bytes;
  int64_t offset[kMaxDims];
  int64_t size[kMaxDims];
};
static_assert(sizeof(BoxRecord) == IndexRecordBytes::kBox);

struct ChunkRecord {
  uint64_t low;
  uint64_t high;
};
static_assert(sizeof(ChunkRecord) == IndexRecordBytes::kChunk);

template <typename Record>
Record At(const std::string& bytes, int64_t start, int64_t i) {
  Record record;
  std::memcpy(&record, bytes.data() + start + i * static_cast<int64_t>(sizeof(Record)),
              sizeof(Record));
  return record;
}

Status Refuse(std::string_view where, std::string_view what) {
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: {}", where, Printable(what, std::string_view::npos)));
}

bool Inside(int64_t offset, int64_t size, int64_t total) {
  return offset >= 0 && size >= 0 && offset <= total && size <= total - offset;
}

Dims ToDims(const int64_t* values, int count) {
  return Dims(std::span(values, static_cast<size_t>(count)));
}

}  // namespace

Result<Index> Index::Parse(std::string bytes, std::string_view where) {
  Index index;
  index.bytes_ = std::move(bytes);
  KEEL_RETURN_IF_ERROR(index.Check(where));
  KEEL_RETURN_IF_ERROR(index.CheckTensors(where));
  return index;
}

Status Index::Check(std::string_view where) {
  const int64_t total = static_cast<int64_t>(bytes_.size());
  if (total < static_cast<int64_t>(sizeof(HeaderRecord))) {
    return Refuse(where, fmt::format("{} bytes are too few for an index", total));
  }
  const HeaderRecord header = At<HeaderRecord>(bytes_, 0, 0);
  if (header.magic != kMagic) return Refuse(where, "is not an index file of Keel");
  if (header.version != kIndexVersion) {
    return Refuse(
        where, fmt::format("index version {}, this build reads {}", header.version, kIndexVersion));
  }
  if (header.chunk_bytes <= 0 || header.chunk_bytes > (int64_t{1} << 30)) {
    return Refuse(where, fmt::format("chunk size {} is not in 1..2^30", header.chunk_bytes));
  }
  chunk_bytes_ = header.chunk_bytes;
  int64_t at = sizeof(HeaderRecord);
  const auto section = [&](int64_t count, int64_t record, int64_t* count_out, int64_t* at_out) {
    if (count < 0 || count > (total - at) / record) return false;
    *count_out = count;
    *at_out = at;
    at += count * record;
    return true;
  };
  if (!section(header.scope_count, sizeof(ScopeRecord), &scope_count_, &scopes_at_) ||
      !section(header.file_count, sizeof(FileRecord), &file_count_, &files_at_) ||
      !section(header.tensor_count, sizeof(TensorRecord), &tensor_count_, &tensors_at_) ||
      !section(header.box_count, sizeof(BoxRecord), &box_count_, &boxes_at_) ||
      !section(header.chunk_count, sizeof(ChunkRecord), &chunk_count_, &chunks_at_) ||
      !section(header.string_bytes, 1, &string_bytes_, &strings_at_) || at != total) {
    return Refuse(where, fmt::format("the sections do not fill the {} bytes of the file", total));
  }

  int64_t next_tensor = 0;
  for (int64_t i = 0; i < scope_count_; ++i) {
    const auto scope = At<ScopeRecord>(bytes_, scopes_at_, i);
    if (!Inside(scope.name_offset, scope.name_size, string_bytes_) ||
        scope.first_tensor != next_tensor ||
        !Inside(scope.first_tensor, scope.tensor_count, tensor_count_)) {
      return Refuse(where, fmt::format("scope {} is out of range", i));
    }
    next_tensor += scope.tensor_count;
    if (i > 0 && scope_name(static_cast<int>(i) - 1) >= scope_name(static_cast<int>(i))) {
      return Refuse(where, fmt::format("scope {} is out of order", i));
    }
  }
  if (next_tensor != tensor_count_) return Refuse(where, "the scopes do not hold all tensors");

  int64_t next_chunk = 0;
  for (int64_t i = 0; i < file_count_; ++i) {
    const auto record = At<FileRecord>(bytes_, files_at_, i);
    if (!Inside(record.path_offset, record.path_size, string_bytes_) || record.size < 0 ||
        record.size > (int64_t{1} << 60) || record.first_chunk != next_chunk ||
        record.chunk_count != ChunkCount(record.size, chunk_bytes_) ||
        !Inside(record.first_chunk, record.chunk_count, chunk_count_)) {
      return Refuse(where, fmt::format("file {} is out of range", i));
    }
    next_chunk += record.chunk_count;
    if (i > 0 && file(static_cast<int>(i) - 1).path >= file(static_cast<int>(i)).path) {
      return Refuse(where, fmt::format("file {} is out of order", i));
    }
  }
  if (next_chunk != chunk_count_) return Refuse(where, "the files do not hold all chunks");
  return Status::Ok();
}

Status Index::CheckTensors(std::string_view where) const {
  int64_t next_box = 0;
  int64_t scope = 0;
  int64_t scope_end = scope_count_ > 0 ? At<ScopeRecord>(bytes_, scopes_at_, 0).tensor_count : 0;
  std::string_view previous;
  for (int64_t i = 0; i < tensor_count_; ++i) {
    bool first_of_scope = i == 0;
    while (i >= scope_end) {
      const auto next = At<ScopeRecord>(bytes_, scopes_at_, ++scope);
      scope_end = next.first_tensor + next.tensor_count;
      first_of_scope = true;
    }
    const auto record = At<TensorRecord>(bytes_, tensors_at_, i);
    if (!Inside(record.name_offset, record.name_size, string_bytes_) || record.scope != scope ||
        record.dtype > static_cast<uint8_t>(DType::kU64) || record.dims > kMaxDims ||
        record.first_box != next_box || !Inside(record.first_box, record.box_count, box_count_)) {
      return Refuse(where, fmt::format("tensor {} is out of range", i));
    }
    next_box += record.box_count;
    const IndexTensor tensor = this->tensor(i);
    const Result<int64_t> elements = CheckedElements(tensor.shape);
    if (!elements.ok())
      return elements.status().WithContext(fmt::format("{}: tensor '{}'", where, tensor.name));
    if (!first_of_scope && previous >= tensor.name) {
      return Refuse(where, fmt::format("tensor '{}' is out of order", tensor.name));
    }
    previous = tensor.name;
    const int64_t element_size = DTypeSize(tensor.dtype);
    for (int64_t b = 0; b < tensor.box_count; ++b) {
      const auto raw = At<BoxRecord>(bytes_, boxes_at_, tensor.first_box + b);
      if (raw.file >= static_cast<uint64_t>(file_count_) ||
          !Inside(raw.begin, raw.bytes, file(static_cast<int>(raw.file)).size)) {
        return Refuse(where,
                      fmt::format("box {} of tensor '{}' lies outside its file", b, tensor.name));
      }
      const Box one = box(tensor.first_box + b).box;
      bool inside = one.dims() == tensor.shape.size();
      for (int d = 0; inside && d < one.dims(); ++d) {
        inside = Inside(one.offset[d], one.size[d], tensor.shape[d]);
      }
      const Result<int64_t> count =
          inside ? CheckedElements(one.size) : Result<int64_t>(int64_t{-1});
      if (!inside || !count.ok() || *count > raw.bytes / element_size ||
          *count * element_size != raw.bytes) {
        return Refuse(where,
                      fmt::format("box at {} of size {} of tensor '{}' does not fit its shape {}",
                                  one.offset.ToString(), one.size.ToString(), tensor.name,
                                  tensor.shape.ToString()));
      }
    }
  }
  if (next_box != box_count_) return Refuse(where, "the tensors do not hold all boxes");
  return Status::Ok();
}

std::string_view Index::String(int64_t offset, int64_t size) const {
  return std::string_view(bytes_).substr(static_cast<size_t>(strings_at_ + offset),
                                         static_cast<size_t>(size));
}

IndexFile Index::file(int i) const {
  const auto record = At<FileRecord>(bytes_, files_at_, i);
  return {String(record.path_offset, record.path_size), record.size, record.first_chunk,
          record.chunk_count};
}

Digest128 Index::chunk(const IndexFile& file, int64_t i) const {
  const auto record = At<ChunkRecord>(bytes_, chunks_at_, file.first_chunk + i);
  return {record.low, record.high};
}

std::vector<Digest128> Index::chunks(const IndexFile& file) const {
  std::vector<Digest128> all;
  all.reserve(static_cast<size_t>(file.chunk_count));
  for (int64_t i = 0; i < file.chunk_count; ++i) all.push_back(chunk(file, i));
  return all;
}

std::string_view Index::scope_name(int scope) const {
  const auto record = At<ScopeRecord>(bytes_, scopes_at_, scope);
  return String(record.name_offset, record.name_size);
}

int Index::FindScope(std::string_view name) const {
  for (int i = 0; i < scopes(); ++i) {
    if (scope_name(i) == name) return i;
  }
  return -1;
}

std::pair<int64_t, int64_t> Index::tensor_range(int scope) const {
  const auto record = At<ScopeRecord>(bytes_, scopes_at_, scope);
  return {record.first_tensor, record.tensor_count};
}

IndexTensor Index::tensor(int64_t i) const {
  const auto record = At<TensorRecord>(bytes_, tensors_at_, i);
  return {String(record.name_offset, record.name_size),
          static_cast<int>(record.scope),
          static_cast<DType>(record.dtype),
          ToDims(record.shape, record.dims),
          record.first_box,
          record.box_count};
}

int64_t Index::FindTensor(int scope, std::string_view name, int64_t hint) const {
  auto [low, count] = tensor_range(scope);
  const int64_t end = low + count;
  if (hint >= low && hint < end && tensor(hint).name == name) return hint;
  while (count > 0) {
    const int64_t half = count / 2;
    if (tensor(low + half).name < name) {
      low += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return low < end && tensor(low).name == name ? low : -1;
}

int64_t Index::box_begin(int64_t i) const { return At<BoxRecord>(bytes_, boxes_at_, i).begin; }

int Index::box_file(int64_t i) const {
  return static_cast<int>(At<BoxRecord>(bytes_, boxes_at_, i).file);
}

IndexBox Index::box(int64_t i) const {
  const auto record = At<BoxRecord>(bytes_, boxes_at_, i);
  // The number of dims is the tensor's; unused places hold -1.
  int dims = 0;
  while (dims < kMaxDims && record.size[dims] >= 0) ++dims;
  return {Box{ToDims(record.offset, dims), ToDims(record.size, dims)},
          static_cast<int>(record.file), record.begin, record.bytes};
}

std::vector<std::string> Index::TensorsIn(int file, int64_t begin, int64_t end) const {
  std::vector<std::string> names;
  for (int64_t t = 0; t < tensor_count_; ++t) {
    const IndexTensor one = tensor(t);
    for (int64_t b = one.first_box; b < one.first_box + one.box_count; ++b) {
      const IndexBox place = box(b);
      if (place.file == file && place.begin < end && begin < place.begin + place.bytes) {
        names.emplace_back(one.name);
        break;
      }
    }
  }
  return names;
}

void IndexBuilder::AddFile(std::string path, ChunkedDigest digest) {
  files_.push_back({std::move(path), std::move(digest)});
}

namespace {

Status IndexBug(const Box& box, std::string_view tensor, std::string_view path,
                std::string_view what) {
  return Status(StatusCode::kInternal,
                fmt::format("index: {} of '{}' in {}: {}", box.ToString(), tensor, path, what));
}

}  // namespace

int IndexBuilder::AddTensor(std::string_view scope, const TensorInfo& tensor, size_t boxes) {
  const auto [id, is_new] =
      tensor_ids_.emplace(std::string(scope).append(1, '\0').append(tensor.name), tensors_.size());
  if (is_new) tensors_.push_back({std::string(scope), tensor, {}});
  PendingTensor& known = tensors_[id->second];
  if (problem_.ok() && !(known.tensor == tensor)) {
    problem_ = Status(
        StatusCode::kInternal,
        fmt::format("index: '{}' of {}: another shape or dtype than before", tensor.name, scope));
  }
  if (boxes > 0) known.boxes.reserve(known.boxes.size() + boxes);
  return static_cast<int>(id->second);
}

void IndexBuilder::AddBox(int tensor, const Box& box, std::string_view path, int64_t begin) {
  // Boxes come file by file.
  if (paths_.empty() || paths_[last_path_] != path) {
    const auto [at, added] =
        path_ids_.emplace(std::string(path), static_cast<uint32_t>(paths_.size()));
    if (added) paths_.emplace_back(path);
    last_path_ = at->second;
  }
  tensors_[static_cast<size_t>(tensor)].boxes.push_back({box, last_path_, begin});
}

Result<std::string> IndexBuilder::Build() {
  KEEL_RETURN_IF_ERROR(problem_);
  std::sort(files_.begin(), files_.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  std::sort(tensors_.begin(), tensors_.end(), [](const PendingTensor& a, const PendingTensor& b) {
    return std::tie(a.scope, a.tensor.name) < std::tie(b.scope, b.tensor.name);
  });
  tensor_ids_.clear();  // of the order before
  WireWriter out;
  const std::string strings = AddRecords(out);
  KEEL_RETURN_IF_ERROR(AddBoxRecords(out));
  for (const PendingFile& file : files_) {
    for (const Digest128& digest : file.digest.chunks)
      out.Pod(ChunkRecord{digest.low, digest.high});
  }
  out.Raw(strings);
  return std::move(out).Take();
}

std::string IndexBuilder::AddRecords(WireWriter& out) const {
  std::string strings;
  std::vector<FileRecord> files;
  std::vector<ScopeRecord> scopes;
  std::vector<TensorRecord> tensors;
  const auto intern = [&strings](std::string_view text) {
    const int64_t at = static_cast<int64_t>(strings.size());
    strings += text;
    return at;
  };
  int64_t chunk_count = 0;
  for (const PendingFile& file : files_) {
    const int64_t count = static_cast<int64_t>(file.digest.chunks.size());
    files.push_back({intern(file.path), static_cast<int64_t>(file.path.size()), file.digest.size,
                     chunk_count, count});
    chunk_count += count;
  }
  int64_t box_count = 0;
  const std::string* scope = nullptr;
  for (const PendingTensor& one : tensors_) {
    if (one.boxes.empty()) continue;
    if (scope == nullptr || *scope != one.scope) {
      scopes.push_back({intern(one.scope), static_cast<int64_t>(one.scope.size()),
                        static_cast<int64_t>(tensors.size()), 0});
    }
    scope = &one.scope;
    TensorRecord record{};
    record.name_offset = intern(one.tensor.name);
    record.name_size = static_cast<int64_t>(one.tensor.name.size());
    record.scope = static_cast<uint32_t>(scopes.size() - 1);
    record.dtype = static_cast<uint8_t>(one.tensor.dtype);
    record.dims = static_cast<uint8_t>(one.tensor.shape.size());
    std::copy(one.tensor.shape.begin(), one.tensor.shape.end(), record.shape);
    record.first_box = box_count;
    record.box_count = static_cast<int64_t>(one.boxes.size());
    tensors.push_back(record);
    ++scopes.back().tensor_count;
    box_count += record.box_count;
  }
  HeaderRecord header{};
  header.magic = kMagic;
  header.version = kIndexVersion;
  header.chunk_bytes = chunk_bytes_;
  header.scope_count = static_cast<int64_t>(scopes.size());
  header.file_count = static_cast<int64_t>(files.size());
  header.tensor_count = static_cast<int64_t>(tensors.size());
  header.box_count = box_count;
  header.chunk_count = chunk_count;
  header.string_bytes = static_cast<int64_t>(strings.size());
  out.Reserve(sizeof header + scopes.size() * sizeof(ScopeRecord) +
              files.size() * sizeof(FileRecord) + tensors.size() * sizeof(TensorRecord) +
              static_cast<size_t>(box_count) * sizeof(BoxRecord) +
              static_cast<size_t>(chunk_count) * sizeof(ChunkRecord) + strings.size());
  out.Pod(header).Pods(scopes).Pods(files).Pods(tensors);
  return strings;
}

Status IndexBuilder::AddBoxRecords(WireWriter& out) {
  constexpr int64_t kNoFile = -1;
  std::vector<int64_t> file_of_path;
  for (const std::string& path : paths_) {
    const auto file =
        std::lower_bound(files_.begin(), files_.end(), path,
                         [](const PendingFile& one, const std::string& p) { return one.path < p; });
    const bool there = file != files_.end() && file->path == path;
    file_of_path.push_back(there ? file - files_.begin() : kNoFile);
  }
  for (PendingTensor& one : tensors_) {
    std::sort(one.boxes.begin(), one.boxes.end(), [](const PendingBox& a, const PendingBox& b) {
      return std::lexicographical_compare(a.box.offset.begin(), a.box.offset.end(),
                                          b.box.offset.begin(), b.box.offset.end());
    });
    for (const PendingBox& pending : one.boxes) {
      const auto bug = [&](std::string_view what) {
        return IndexBug(pending.box, one.tensor.name, paths_[pending.path], what);
      };
      const int64_t file = file_of_path[pending.path];
      if (file == kNoFile) return bug("unknown file");
      const int64_t bytes = pending.box.elements() * DTypeSize(one.tensor.dtype);
      if (!Inside(pending.begin, bytes, files_[static_cast<size_t>(file)].digest.size))
        return bug("lies outside the file");
      BoxRecord box{};
      box.file = static_cast<uint32_t>(file);
      box.begin = pending.begin;
      box.bytes = bytes;
      std::fill(std::begin(box.offset), std::end(box.offset), -1);
      std::fill(std::begin(box.size), std::end(box.size), -1);
      std::copy(pending.box.offset.begin(), pending.box.offset.end(), box.offset);
      std::copy(pending.box.size.begin(), pending.box.size.end(), box.size);
      out.Pod(box);
    }
    one.boxes = {};
  }
  return Status::Ok();
}

}  // namespace keel::checkpoint
