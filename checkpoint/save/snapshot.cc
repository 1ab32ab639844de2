#include "checkpoint/save/snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "common/hash.h"
#include "common/tensors/tensor_digest.h"

namespace keel::checkpoint {
namespace {

constexpr size_t kNoRange = std::numeric_limits<size_t>::max();

// Of a shard, the memory of what is written of it.
StridedView ViewOfPart(const Shard& shard, const PlannedShard& part, int64_t element_size) {
  StridedView view = shard.view;
  if (view.data == nullptr) return view;
  int64_t elements = 0;
  for (int d = 0; d < shard.box.dims(); ++d)
    elements += (part.box.offset[d] - shard.box.offset[d]) * view.strides[d];
  view.data += elements * element_size;
  return view;
}

}  // namespace

Snapshot::Snapshot(const SaveRequest& request, bool may_change, SourceFence& fence)
    : request_(request), may_change_(may_change), fence_(fence) {
  const bool model = request.contents.model || request.contents.hf_model;
  for (size_t r = 0; r < request.roles.size(); ++r) {
    for (const bool optimizer : {false, true}) {
      first_range_.push_back(ranges_.size());
      if (optimizer ? !request.contents.optimizer : !model) continue;
      const RoleState& role = request.roles[r];
      const ShardTable& table = optimizer ? role.optimizer : role.model;
      for (size_t i = 0; i < table.shards().size(); ++i) {
        const Shard& shard = table.shards()[i];
        Range range{static_cast<int>(r), optimizer, static_cast<int>(i)};
        if (!shard.box.empty()) {
          int64_t extent = 1;
          for (int d = 0; d < shard.box.dims(); ++d)
            extent += (shard.box.size[d] - 1) * shard.view.strides[d];
          range.begin = shard.view.data;
          range.end = range.begin + extent * DTypeSize(table.tensor_of(shard).dtype);
        }
        range.compared = !optimizer && !shard.box.empty() &&
                         role.shared.contains(KeyOf(table.tensor_of(shard), shard.box));
        ranges_.push_back(range);
      }
    }
  }
  changed_.store(kNoRange);
  if (!may_change_) return;
  std::vector<SourceFence::Range> held;
  held.reserve(ranges_.size());
  for (Range& range : ranges_) {
    range.sampled = RoleOf(range).arrived == nullptr;
    if (range.sampled) range.sample = SampleOf(range);
    held.push_back({range.begin, range.end});
  }
  fence_.Arm(std::move(held));
}

Snapshot::~Snapshot() { ReleaseAll(); }

// Three places of 64 bytes: an optimizer step changes every element of a tensor, or nearly.
uint64_t Snapshot::SampleOf(const Range& range) {
  constexpr int64_t kBytes = 64;
  std::array<std::byte, 3 * kBytes> sample{};
  const int64_t size = range.end - range.begin;
  if (size <= static_cast<int64_t>(sample.size())) {
    return Hash64(
        std::string_view(reinterpret_cast<const char*>(range.begin), static_cast<size_t>(size)));
  }
  const std::array<int64_t, 3> places = {0, size / 2, size - kBytes};
  for (size_t i = 0; i < places.size(); ++i)
    std::memcpy(sample.data() + i * kBytes, range.begin + places[i], kBytes);
  return Hash64(std::string_view(reinterpret_cast<const char*>(sample.data()), sample.size()));
}

const RoleState& Snapshot::RoleOf(const Range& range) const {
  return request_.roles[static_cast<size_t>(range.role)];
}

const ShardTable& Snapshot::TableOf(const Range& range) const {
  const RoleState& role = RoleOf(range);
  return range.optimizer ? role.optimizer : role.model;
}

const Shard& Snapshot::ShardOf(const Range& range) const {
  return TableOf(range).shards()[static_cast<size_t>(range.shard)];
}

const TensorInfo& Snapshot::TensorOf(const Range& range) const {
  return TableOf(range).tensor_of(ShardOf(range));
}

std::vector<FileToWrite> Snapshot::FilesOf(const SavePlan& plan, int rank) {
  std::vector<FileToWrite> files;
  pieces_.clear();
  digest_ = 0;
  for (Range& range : ranges_) range.needed = false;
  for (const PlannedFile& planned : plan.files) {
    if (planned.rank != rank) continue;
    const auto role = std::find_if(request_.roles.begin(), request_.roles.end(),
                                   [&](const RoleState& one) { return one.name == planned.role; });
    const bool optimizer = planned.kind != FileRole::kModel;
    const ShardTable& table = optimizer ? role->optimizer : role->model;
    const size_t first = first_range_[static_cast<size_t>(2 * (role - request_.roles.begin())) +
                                      (optimizer ? 1 : 0)];
    const bool stable = !may_change_ || (optimizer ? role->optimizer_stable : role->model_stable);
    FileToWrite file;
    file.path = planned.path;
    file.header = planned.header;
    file.pieces.reserve(planned.shards.size());
    std::vector<Piece>& pieces = pieces_.emplace_back();
    for (const PlannedShard& one : planned.shards) {
      const auto source = static_cast<size_t>(one.source);
      const Shard& shard = table.shards()[source];
      const int64_t element_size = DTypeSize(plan.tensor_of(one).dtype);
      file.pieces.push_back(
          {one.box.size, ViewOfPart(shard, one, element_size), element_size, stable});
      pieces.push_back({first + source, one.box});
      ranges_[first + source].needed = true;
    }
    files.push_back(std::move(file));
  }
  return files;
}

Status Snapshot::ReleaseRest() {
  for (size_t i = 0; i < ranges_.size(); ++i) {
    if (ranges_[i].needed) continue;
    if (ranges_[i].compared) {
      KEEL_RETURN_IF_ERROR(cancelled());
      KEEL_RETURN_IF_ERROR(Arrived(&ranges_[i]));
    }
    Released(i);
  }
  return Status::Ok();
}

void Snapshot::ReleasePieces() {
  for (size_t i = 0; may_change_ && i < ranges_.size(); ++i) {
    if (ranges_[i].needed) fence_.Release(i);
  }
}

Status Snapshot::Arrived(size_t file, size_t piece) {
  return Arrived(&ranges_[pieces_[file][piece].range]);
}

Status Snapshot::Arrived(Range* range) {
  const auto& arrived = RoleOf(*range).arrived;
  if (arrived == nullptr) return Status::Ok();
  const Status status = arrived(range->begin, range->end - range->begin);
  if (!status.ok())
    return status.WithContext(
        fmt::format("step {}: {} on its way to host memory", request_.step, TensorOf(*range).name));
  if (!range->sampled) range->sample = SampleOf(*range);
  range->sampled = true;
  return Status::Ok();
}

// Of the piece, not of its shard: the rows of a box that is cut are written by several of its
// holders, and their parts add up to the whole. A sample taken afterwards tells whether the memory
// was left alone meanwhile.
void Snapshot::AddToDigest(const Piece& piece) {
  const Range& range = ranges_[piece.range];
  if (range.optimizer || RoleOf(range).name != request_.digest_role) return;
  const Shard& shard = ShardOf(range);
  const TensorInfo& tensor = TensorOf(range);
  digest_ += DigestWeight(tensor.name) *
             BoxDigest(tensor.shape, tensor.dtype, piece.box, shard.box, shard.view);
}

void Snapshot::Released(size_t file, size_t piece) {
  AddToDigest(pieces_[file][piece]);
  Released(pieces_[file][piece].range);
}

// Of a range that is compared the whole is digested, however many of its rows were copied. A rank
// writes one piece of a range at most, so that one thread comes here with it.
void Snapshot::Released(size_t index) {
  Range& range = ranges_[index];
  const bool read = range.needed || range.compared;
  if (range.compared) range.values = DigestOf(TensorOf(range), ShardOf(range));
  if (!may_change_) return;
  if (read && range.sampled && SampleOf(range) != range.sample) {
    size_t none = kNoRange;
    changed_.compare_exchange_strong(none, index);
  }
  fence_.Release(index);
}

std::vector<CopyDigest> Snapshot::CopyDigests() const {
  std::vector<CopyDigest> copies;
  for (const Range& range : ranges_) {
    if (!range.compared) continue;
    const TensorInfo& tensor = TensorOf(range);
    copies.push_back({tensor.name, KeyOf(tensor, ShardOf(range).box), range.values});
  }
  return copies;
}

void Snapshot::Cancel(Status why) {
  const std::lock_guard lock(why_mutex_);
  if (cancelled_.load()) return;
  why_cancelled_ = std::move(why);
  cancelled_.store(true);
}

Status Snapshot::cancelled() const {
  if (!cancelled_.load()) return Status::Ok();
  const std::lock_guard lock(why_mutex_);
  return why_cancelled_;
}

Status Snapshot::CheckUnchanged() const {
  const size_t index = changed_.load();
  if (index == kNoRange) return Status::Ok();
  const Range& range = ranges_[index];
  return Status(StatusCode::kInternal,
                fmt::format("step {}: the memory of {} {} changed while it was being copied: "
                            "something wrote to it before its copy was made, without waiting for "
                            "that (wait_copied() or guard() of the Python module)",
                            request_.step, TensorOf(range).name, ShardOf(range).box.ToString()));
}

}  // namespace keel::checkpoint
