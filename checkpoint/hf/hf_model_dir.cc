#include "checkpoint/hf/hf_model_dir.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "checkpoint/format/names.h"
#include "checkpoint/hf/own_names.h"
#include "checkpoint/hf/weight_files.h"
#include "common/files/downloaded.h"
#include "common/json.h"
#include "common/parallel_for.h"
#include "common/tensors/float_convert.h"
#include "common/tensors/transfer_plan.h"
#include "common/text.h"

namespace keel::checkpoint {
namespace {

constexpr std::string_view kConfig = "config.json";
constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;
constexpr int64_t kSlabBytes = int64_t{8} << 20;
constexpr int64_t kPrefetchSlabs = 3;  // announced to the disk ahead of being read

// A part of one transfer whose source bytes are read in one go.
struct Slab {
  const std::string* tensor = nullptr;
  int file = 0;
  int64_t begin = 0;    // of the first element that is read, in the file
  int64_t bytes = 0;    // up to the end of the last one
  Box box;              // global coordinates
  Dims source_strides;  // elements
  DType from = DType::kF32;
  DType to = DType::kF32;
  Box destination_box;
  StridedView destination;
};

bool IsDense(const Dims& size, const Dims& strides) {
  int64_t expected = 1;
  for (int d = size.size() - 1; d >= 0; --d) {
    if (size[d] != 1 && strides[d] != expected) return false;
    expected *= size[d];
  }
  return true;
}

// Where the slab's first element goes.
std::byte* Target(const Slab& slab) {
  int64_t offset = 0;
  for (int d = 0; d < slab.box.dims(); ++d) {
    offset += (slab.box.offset[d] - slab.destination_box.offset[d]) * slab.destination.strides[d];
  }
  return slab.destination.data + offset * DTypeSize(slab.to);
}

void Convert(const Slab& slab, const std::byte* source) {
  const int64_t from_size = DTypeSize(slab.from);
  const int64_t to_size = DTypeSize(slab.to);
  std::byte* const target = Target(slab);
  const int dims = slab.box.dims();
  const int64_t inner = dims == 0 ? 1 : slab.box.size[dims - 1];
  const int64_t source_step = dims == 0 ? 0 : slab.source_strides[dims - 1] * from_size;
  const int64_t target_step = dims == 0 ? 0 : slab.destination.strides[dims - 1] * to_size;
  Dims at = Dims::Filled(std::max(0, dims - 1), 0);
  for (;;) {
    int64_t source_at = 0;
    int64_t target_at = 0;
    for (int d = 0; d < at.size(); ++d) {
      source_at += at[d] * slab.source_strides[d] * from_size;
      target_at += at[d] * slab.destination.strides[d] * to_size;
    }
    for (int64_t i = 0; i < inner; ++i) {
      ConvertElement(source + source_at + i * source_step, slab.from,
                     target + target_at + i * target_step, slab.to);
    }
    int d = at.size() - 1;
    while (d >= 0 && ++at[d] == slab.box.size[d]) at[d--] = 0;
    if (d < 0) return;
  }
}

// Cuts a transfer into slabs along its first dim that is longer than 1.
void AppendSlabs(const Slab& whole, int64_t tensor_begin, const Dims& shape,
                 std::vector<Slab>* slabs) {
  const int64_t element = DTypeSize(whole.from);
  int cut = 0;
  while (cut < whole.box.dims() - 1 && whole.box.size[cut] == 1) ++cut;
  const int64_t rows = whole.box.dims() == 0 ? 1 : whole.box.size[cut];
  const int64_t row_bytes = whole.box.dims() == 0 ? element : whole.source_strides[cut] * element;
  const int64_t step = std::max<int64_t>(1, kSlabBytes / std::max<int64_t>(1, row_bytes));
  for (int64_t row = 0; row < rows; row += step) {
    Slab slab = whole;
    if (slab.box.dims() > 0) {
      slab.box.offset[cut] += row;
      slab.box.size[cut] = std::min(step, rows - row);
    }
    int64_t first = 0;
    int64_t last = 0;
    for (int d = 0; d < shape.size(); ++d) {
      first += slab.box.offset[d] * slab.source_strides[d];
      last += (slab.box.offset[d] + slab.box.size[d] - 1) * slab.source_strides[d];
    }
    slab.begin = tensor_begin + first * element;
    slab.bytes = (last - first + 1) * element;
    slabs->push_back(slab);
  }
}

Status ReadSlab(const File& file, const std::string& where, const Slab& slab, bool finite,
                std::vector<std::byte>* buffer) {
  const bool dense = slab.bytes == slab.box.elements() * DTypeSize(slab.from);
  const bool straight =
      slab.from == slab.to && dense && IsDense(slab.box.size, slab.destination.strides);
  std::byte* into = straight ? Target(slab) : nullptr;
  if (!straight) {
    if (static_cast<int64_t>(buffer->size()) < slab.bytes)
      buffer->resize(static_cast<size_t>(slab.bytes));
    into = buffer->data();
  }
  KEEL_ASSIGN_OR_RETURN(const int64_t got,
                        file.ReadAt(slab.begin, std::span(into, static_cast<size_t>(slab.bytes))));
  if (got != slab.bytes) {
    return Status(StatusCode::kInvalidData, fmt::format("{}: ends at byte {}, expected {}", where,
                                                        slab.begin + got, slab.begin + slab.bytes));
  }
  if (finite && !AllFinite(into, slab.bytes / DTypeSize(slab.from), slab.from)) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format(
            "{}: {} has values that are not finite (NaN, infinity, or beyond the range of float32)",
            where, Printable(*slab.tensor)));
  }
  if (straight) return Status::Ok();
  if (slab.from == slab.to) {
    CopyBox(slab.box, slab.box, {into, slab.source_strides}, slab.destination_box, slab.destination,
            DTypeSize(slab.from));
  } else {
    Convert(slab, into);
  }
  return Status::Ok();
}

}  // namespace

std::string HfModelDir::PathOf(std::string_view file) const {
  return directory_ == "." ? std::string(file) : fmt::format("{}/{}", directory_, file);
}

Status HfModelDir::AddFile(const std::string& name,
                           const std::map<std::string, std::string>& places) {
  KEEL_ASSIGN_OR_RETURN(const SafetensorsHeader header, ReadSafetensorsHeader(*fs_, PathOf(name)));
  const int id = static_cast<int>(files_.size());
  files_.push_back(name);
  std::set<std::string_view> wanted;
  for (const auto& [tensor, file] : places) {
    if (file == name) wanted.insert(tensor);
  }
  for (SafetensorsTensor tensor : header.tensors) {
    wanted.erase(tensor.name);
    if (!tensor.name.starts_with(prefix_)) {
      return Status(StatusCode::kInvalidData,
                    fmt::format("{}: holds {}, whose name does not begin with {}",
                                fs_->Describe(PathOf(name)), Printable(tensor.name), prefix_));
    }
    tensor.name.erase(0, prefix_.size());
    // One that the index does not mention is there all the same: whoever reads the file has it.
    const std::string where = fs_->Describe(PathOf(name));
    using Kind = PartNames::Place::Kind;
    const PartNames::Place place = part_names_.Find(tensor.name);
    const auto [first, alone] = file_of_.try_emplace(tensor.name, name);
    if (!alone && place.kind != Kind::kText) continue;  // which is left aside, or named, already
    if (place.kind == Kind::kOther) ++left_aside_[place.name];
    if (place.kind == Kind::kNone) strangers_.push_back(tensor.name);
    if (place.kind != Kind::kText) continue;
    // transformers takes that of the later file, and the index may name the other.
    if (!alone) {
      return Status(
          StatusCode::kInvalidData,
          fmt::format("{}: holds {}, and so does {}: which of the two is meant is for its "
                      "owner to say: leave it out of one of them",
                      where, Printable(tensor.name), Printable(first->second)));
    }
    newer_names_ |= part_names_.Newer(tensor.name);
    SafetensorsTensor of_text = tensor;
    of_text.name = place.name;
    KEEL_ASSIGN_OR_RETURN(const std::vector<SafetensorsTensor> parts, fused_.Split(of_text, where));
    for (const SafetensorsTensor& part : parts) {
      if (source_.Find(part.name) >= 0) {
        return Status(StatusCode::kInvalidData,
                      fmt::format("{}: holds {}, which is the same tensor of the model as {}: "
                                  "which of the two is meant is for its owner to say: leave out "
                                  "the other",
                                  where, Printable(tensor.name), NameInFiles(part.name)));
      }
      const Status added = source_.Add({part.name, part.dtype, part.shape}, Box::Whole(part.shape));
      if (!added.ok()) {
        return Status(StatusCode::kInvalidData, fmt::format("{}: {}", where, added.message()));
      }
      if (parts.size() == 1 && !fused_.names().empty())
        names_in_files_[part.name] = prefix_ + tensor.name;
      places_.push_back({id, part.begin});
    }
  }
  if (!wanted.empty()) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: lacks tensors that {} places there: {}",
                              Printable(fs_->Describe(PathOf(name))), kWeightsIndexName,
                              Printable(fmt::format("{}", fmt::join(wanted, ", ")), 2000)));
  }
  return Status::Ok();
}

// A directory without a config.json has the canonical tensors.
Status HfModelDir::ReadNames() {
  const std::string path = PathOf(kConfig);
  const Result<std::string> text = ReadDownloadedOrEmpty(*fs_, path, kMaxConfigBytes);
  if (text.status().code() == StatusCode::kNotFound) return Status::Ok();
  KEEL_RETURN_IF_ERROR(text.status());
  KEEL_ASSIGN_OR_RETURN(fused_, FusedTensors::Of(*text, fs_->Describe(path)));
  KEEL_ASSIGN_OR_RETURN(part_names_, PartNames::Of(*text, fs_->Describe(path)));
  return Status::Ok();
}

std::string HfModelDir::NameInFiles(std::string_view tensor) const {
  const std::string fused = fused_.FusedNameOf(tensor);
  if (!fused.empty()) return fmt::format("{} (rows of {})", tensor, fused);
  const auto other = names_in_files_.find(tensor);
  if (other != names_in_files_.end()) return other->second;
  return prefix_ + part_names_.NameInFiles(fused_.names().FileName(tensor), newer_names_);
}

Result<HfModelDir> HfModelDir::OpenAdapters(const FileSystem& fs, std::string directory,
                                            std::string_view model_type) {
  HfModelDir adapters(fs, std::move(directory));
  adapters.prefix_ = kAdapterPrefix;
  adapters.fused_ = FusedTensors::NamesAlone(model_type);
  KEEL_RETURN_IF_ERROR(adapters.AddFile(std::string(kAdapterWeightsName), {}));
  return adapters;
}

Result<HfModelDir> HfModelDir::Open(const FileSystem& fs, std::string directory) {
  HfModelDir model(fs, std::move(directory));
  KEEL_RETURN_IF_ERROR(model.ReadNames());
  KEEL_ASSIGN_OR_RETURN(const WeightFiles files, FindWeightFiles(fs, model.directory_));
  for (const std::string& name : files.names)
    KEEL_RETURN_IF_ERROR(model.AddFile(name, files.places));
  return model;
}

Result<HfModelDir> HfModelDir::AsTensorsOf(const ModelTensors& model) const {
  const std::map<std::string, std::string> own_names = OwnNames(source_, model);
  const auto own_name = [&](const std::string& name) -> const std::string& {
    const auto it = own_names.find(name);
    return it == own_names.end() ? name : it->second;
  };
  std::map<std::string_view, const ModelTensors::Stack*> stacks;
  for (const ModelTensors::Stack& stack : model.may_stack) {
    stacks.emplace(stack.name, &stack);
  }
  const bool stacked =
      std::any_of(source_.tensors().begin(), source_.tensors().end(),
                  [&](const TensorInfo& there) { return stacks.contains(own_name(there.name)); });
  if (!stacked && own_names.empty()) return *this;
  std::map<std::string_view, const Dims*> shapes;
  for (const TensorInfo& needed : model.needed) shapes.emplace(needed.name, &needed.shape);
  HfModelDir out = *this;
  out.source_ = ShardTable();
  out.places_.clear();
  for (const auto& [name, own] : own_names) out.names_in_files_[own] = name;
  for (size_t i = 0; i < source_.tensors().size(); ++i) {
    const TensorInfo& there = source_.tensors()[i];
    Place place = places_[i];
    const auto add = [&](const std::string& name, const Dims& shape) -> Status {
      if (out.source_.Find(name) >= 0) {
        return Status(StatusCode::kInvalidData,
                      fmt::format("{}: has {} both by itself and in one tensor with others of its "
                                  "layer: leave one out",
                                  where(), name));
      }
      out.places_.push_back(place);
      return out.source_.Add({name, there.dtype, shape}, Box::Whole(shape));
    };
    const auto found = stacks.find(own_name(there.name));
    if (found == stacks.end()) {
      KEEL_RETURN_IF_ERROR(add(own_name(there.name), there.shape));
      continue;
    }
    const ModelTensors::Stack& stack = *found->second;
    if (!(there.shape == stack.shape)) {
      return Status(StatusCode::kInvalidData,
                    fmt::format("{}: {} is {}, expected {}", where(), there.name,
                                there.shape.ToString(), stack.shape.ToString()));
    }
    for (const std::string& part : stack.parts) {
      const Dims& shape = *shapes.at(part);
      KEEL_RETURN_IF_ERROR(add(part, shape));
      place.begin += shape.elements() * DTypeSize(there.dtype);
    }
  }
  return out;
}

Result<HfModelDir::Location> HfModelDir::Locate(std::string_view tensor) const {
  const int at = source_.Find(tensor);
  if (at < 0)
    return Status(StatusCode::kNotFound, fmt::format("{}: has no tensor {}", where(), tensor));
  const TensorInfo& info = source_.tensors()[static_cast<size_t>(at)];
  const Place& place = places_[static_cast<size_t>(at)];
  return Location{files_[static_cast<size_t>(place.file)], place.begin, info.dtype, info.shape};
}

Result<bool> HfModelDir::SameValues(std::string_view a, std::string_view b) const {
  const std::string_view names[] = {a, b};
  std::unique_ptr<File> files[2];
  Location places[2];
  for (int i = 0; i < 2; ++i) {
    KEEL_ASSIGN_OR_RETURN(places[i], Locate(names[i]));
    KEEL_ASSIGN_OR_RETURN(files[i], fs_->Open(PathOf(places[i].file)));
  }
  if (places[0].dtype != places[1].dtype || !(places[0].shape == places[1].shape)) return false;
  const int64_t bytes = places[0].shape.elements() * DTypeSize(places[0].dtype);
  std::vector<std::byte> buffers[2];
  for (int64_t done = 0; done < bytes; done += kSlabBytes) {
    const int64_t part = std::min(kSlabBytes, bytes - done);
    for (int i = 0; i < 2; ++i) {
      buffers[i].resize(static_cast<size_t>(part));
      KEEL_ASSIGN_OR_RETURN(const int64_t got,
                            files[i]->ReadAt(places[i].begin + done, buffers[i]));
      if (got != part) {
        return Status(
            StatusCode::kInvalidData,
            fmt::format("{}: ends at byte {}, expected {}", fs_->Describe(PathOf(places[i].file)),
                        places[i].begin + done + got, places[i].begin + bytes));
      }
    }
    if (buffers[0] != buffers[1]) return false;
  }
  return true;
}

Status HfModelDir::ReadInto(const ShardTable& destination, const HfReadOptions& options) const {
  // 1. Plan.
  TransferOptions transfer_options;
  transfer_options.allow_missing = options.allow_missing;
  transfer_options.allow_dtype_change = true;
  const Result<TransferPlan> plan =
      PlanTransfer(std::span(&source_, 1), std::span(&destination, 1), transfer_options);
  const std::string where = fs_->Describe(directory_);
  if (!plan.ok()) return plan.status().WithContext(where);
  std::vector<Slab> slabs;
  std::set<std::string> impossible;
  for (const Transfer& transfer : plan->transfers) {
    if (transfer.box.empty()) continue;
    const Shard& from = source_.shards()[static_cast<size_t>(transfer.source_shard)];
    const Shard& to = destination.shards()[static_cast<size_t>(transfer.destination_shard)];
    const TensorInfo& saved = source_.tensor_of(from);
    Slab slab;
    slab.tensor = &saved.name;
    const Place& place = places_[static_cast<size_t>(from.tensor)];
    slab.file = place.file;
    slab.box = transfer.box;
    slab.source_strides = ContiguousStrides(saved.shape);
    slab.from = saved.dtype;
    slab.to = destination.tensor_of(to).dtype;
    slab.destination_box = to.box;
    slab.destination = to.view;
    if (!CanConvert(slab.from, slab.to)) {
      impossible.insert(
          fmt::format("{} ({} to {})", saved.name, DTypeName(slab.from), DTypeName(slab.to)));
    }
    AppendSlabs(slab, place.begin, saved.shape, &slabs);
  }
  if (!impossible.empty()) {
    return Status(StatusCode::kInvalidData, fmt::format("{}: cannot convert the dtype of: {}",
                                                        where, fmt::join(impossible, ", ")));
  }

  // 2. Read in file order.
  std::sort(slabs.begin(), slabs.end(), [](const Slab& a, const Slab& b) {
    return std::pair(a.file, a.begin) < std::pair(b.file, b.begin);
  });
  std::map<int, std::unique_ptr<File>> open;
  for (const Slab& slab : slabs) {
    if (open.contains(slab.file)) continue;
    KEEL_ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                          fs_->Open(PathOf(files_[static_cast<size_t>(slab.file)])));
    open.emplace(slab.file, std::move(file));
  }
  const int workers = std::max(1, options.threads);
  std::vector<std::vector<std::byte>> buffers(static_cast<size_t>(workers));
  return ParallelFor(static_cast<int64_t>(slabs.size()), workers, [&](int64_t i, int worker) {
    const Slab& slab = slabs[static_cast<size_t>(i)];
    if (i + kPrefetchSlabs < static_cast<int64_t>(slabs.size())) {
      const Slab& later = slabs[static_cast<size_t>(i + kPrefetchSlabs)];
      open.at(later.file)->Prefetch(later.begin, later.bytes);
    }
    return ReadSlab(*open.at(slab.file),
                    fs_->Describe(PathOf(files_[static_cast<size_t>(slab.file)])), slab,
                    options.finite, &buffers[static_cast<size_t>(worker)]);
  });
}

}  // namespace keel::checkpoint
