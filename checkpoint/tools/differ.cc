#include "checkpoint/tools/differ.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "checkpoint/read/box_stream.h"
#include "common/hash.h"
#include "common/memory/page_memory.h"
#include "common/tensors/float_convert.h"

namespace keel::checkpoint {
namespace {

using Kind = TensorDifference::Kind;

// A part of a tensor that is compared at a time.
struct Slab {
  size_t tensor = 0;  // index into the tensors of the scope that both sides have
  Box box;
  std::pair<int, int64_t> place;  // in A: file and byte, the order of reading
};

struct Common {
  IndexTensor a, b;
  TensorDifference difference;  // filled as slabs are compared
};

bool SameBoxes(const StepReader& a, const IndexTensor& in_a, const StepReader& b,
               const IndexTensor& in_b) {
  if (in_a.box_count != in_b.box_count) return false;
  for (int64_t i = 0; i < in_a.box_count; ++i) {
    if (!(a.index().box(in_a.first_box + i).box == b.index().box(in_b.first_box + i).box))
      return false;
  }
  return true;
}

// True when the chunks that hold bytes [begin, end) of a file have equal digests on both sides, at
// the same place: then these bytes are equal.
bool ProvedEqual(const Index& a, int file_a, const Index& b, int file_b, int64_t begin,
                 int64_t end) {
  const IndexFile in_a = a.file(file_a);
  const IndexFile in_b = b.file(file_b);
  for (int64_t c = begin / a.chunk_bytes(); c * a.chunk_bytes() < end; ++c) {
    if (a.chunk(in_a, c) != b.chunk(in_b, c)) return false;
  }
  return true;
}

double ValueOf(const std::byte* element, DType dtype) {
  if (dtype == DType::kF64) {
    double value = 0;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, element, sizeof bits);
  return dtype == DType::kBF16 ? BFloat16ToFloat(bits) : Float16ToFloat(bits);
}

bool IsFloat(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 ||
         dtype == DType::kF16;
}

// Compares the values of one slab, dense on both sides, and adds what it finds.
class SlabComparison {
 public:
  SlabComparison(const Box& box, DType dtype, TensorDifference* found)
      : box_(box), dtype_(dtype), size_(static_cast<size_t>(DTypeSize(dtype))), found_(*found) {}

  void Run(const std::byte* a, const std::byte* b) {
    const int64_t elements = box_.elements();
    if (std::memcmp(a, b, static_cast<size_t>(elements) * size_) == 0) return;
    const int64_t row = box_.dims() == 0 ? 1 : box_.size[box_.dims() - 1];
    const size_t row_bytes = static_cast<size_t>(row) * size_;
    Dims at = box_.offset;  // of the row's first element
    for (int64_t done = 0; done < elements; done += row, a += row_bytes, b += row_bytes) {
      if (std::memcmp(a, b, row_bytes) != 0) CompareRow(a, b, row, at);
      for (int d = box_.dims() - 2; d >= 0; --d) {
        if (++at[d] < box_.offset[d] + box_.size[d]) break;
        at[d] = box_.offset[d];
      }
    }
  }

 private:
  void CompareRow(const std::byte* a, const std::byte* b, int64_t row, const Dims& at) {
    int64_t first = -1;
    int64_t last = -1;
    for (int64_t i = 0; i < row; ++i, a += size_, b += size_) {
      if (std::memcmp(a, b, size_) == 0) continue;
      if (first < 0) first = i;
      last = i;
      ++found_.differing;
      if (IsFloat(dtype_)) CompareValues(ValueOf(a, dtype_), ValueOf(b, dtype_), at, i);
    }
    Extend(at, first, last);
  }

  void CompareValues(double a, double b, const Dims& at, int64_t i) {
    if (std::isnan(a) || std::isnan(b)) {
      found_.nan_against_number += std::isnan(a) != std::isnan(b);
      return;
    }
    const double apart = a == b ? 0 : std::abs(a - b);  // infinities of one sign are equal
    if (found_.max_abs && apart <= *found_.max_abs) return;
    found_.max_abs = apart;
    found_.at = at;
    if (at.size() > 0) found_.at[at.size() - 1] += i;
  }

  // Makes the box around all differences hold elements [first, last] of the row at `at`.
  void Extend(const Dims& at, int64_t first, int64_t last) {
    Box row{at, Dims::Filled(at.size(), 1)};
    if (at.size() > 0) {
      row.offset[at.size() - 1] += first;
      row.size[at.size() - 1] = last - first + 1;
    }
    if (found_.box.dims() == 0) found_.box = row;
    for (int d = 0; d < at.size(); ++d) {
      const int64_t begin = std::min(found_.box.offset[d], row.offset[d]);
      const int64_t end =
          std::max(found_.box.offset[d] + found_.box.size[d], row.offset[d] + row.size[d]);
      found_.box.offset[d] = begin;
      found_.box.size[d] = end - begin;
    }
  }

  const Box& box_;
  const DType dtype_;
  const size_t size_;
  TensorDifference& found_;
};

class Differ {
 public:
  Differ(const StepReader& a, const StepReader& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options), budget_(std::max<int64_t>(options.buffer_bytes, 16)) {}

  Result<DiffReport> Run() {
    std::set<std::string> scopes;
    for (const Index* index : {&a_.index(), &b_.index()}) {
      for (int s = 0; s < index->scopes(); ++s) scopes.emplace(index->scope_name(s));
    }
    if (!options_.scope.empty()) {
      if (!scopes.contains(options_.scope)) {
        return Status(StatusCode::kNotFound,
                      fmt::format("neither checkpoint has '{}'; there are: {}", options_.scope,
                                  fmt::join(scopes, ", ")));
      }
      scopes = {options_.scope};
    }
    for (const std::string& scope : scopes) KEEL_RETURN_IF_ERROR(CompareScope(scope));
    if (options_.scope.empty()) KEEL_RETURN_IF_ERROR(CompareFiles());
    return std::move(report_);
  }

 private:
  std::map<std::string_view, IndexTensor> TensorsOf(const Index& index, const std::string& scope) {
    std::map<std::string_view, IndexTensor> tensors;
    const int id = index.FindScope(scope);
    if (id < 0) return tensors;
    const auto [first, count] = index.tensor_range(id);
    for (int64_t t = first; t < first + count; ++t) {
      const IndexTensor tensor = index.tensor(t);
      tensors.emplace(tensor.name, tensor);
    }
    return tensors;
  }

  Status CompareScope(const std::string& scope) {
    const auto in_a = TensorsOf(a_.index(), scope);
    const auto in_b = TensorsOf(b_.index(), scope);
    std::vector<Common> common;
    std::vector<TensorDifference> differences;
    for (const auto& [name, tensor] : in_a) {
      TensorDifference one;
      one.scope = scope;
      one.a = tensor.Info();
      const auto found = in_b.find(name);
      if (found == in_b.end()) {
        one.kind = Kind::kOnlyInA;
        differences.push_back(std::move(one));
        continue;
      }
      one.b = found->second.Info();
      ++report_.tensors_in_both;
      if (!(one.a == one.b)) {
        one.kind = Kind::kOtherType;
        differences.push_back(std::move(one));
      } else {
        common.push_back({tensor, found->second, std::move(one)});
      }
    }
    for (const auto& [name, tensor] : in_b) {
      if (in_a.contains(name)) continue;
      TensorDifference one;
      one.kind = Kind::kOnlyInB;
      one.scope = scope;
      one.b = tensor.Info();
      differences.push_back(std::move(one));
    }
    KEEL_RETURN_IF_ERROR(CompareValues(scope, common));
    for (Common& one : common) {
      if (one.difference.differing > 0) differences.push_back(std::move(one.difference));
    }
    const auto name_of = [](const TensorDifference& one) {
      return one.a.name.empty() ? one.b.name : one.a.name;
    };
    std::sort(differences.begin(), differences.end(),
              [&](const auto& x, const auto& y) { return name_of(x) < name_of(y); });
    std::move(differences.begin(), differences.end(), std::back_inserter(report_.tensors));
    return Status::Ok();
  }

  // What has to be read of the tensors, in the order in which it lies in A's files.
  std::vector<Slab> PlanSlabs(const std::vector<Common>& common) {
    std::vector<Slab> slabs;
    for (size_t t = 0; t < common.size(); ++t) {
      const auto& [in_a, in_b, difference] = common[t];
      const int64_t size = DTypeSize(in_a.dtype);
      const size_t before = slabs.size();
      if (SameBoxes(a_, in_a, b_, in_b)) {
        for (int64_t i = 0; i < in_a.box_count; ++i) {
          const IndexBox box_a = a_.index().box(in_a.first_box + i);
          const IndexBox box_b = b_.index().box(in_b.first_box + i);
          const bool aligned =
              a_.index().chunk_bytes() == b_.index().chunk_bytes() && box_a.begin == box_b.begin;
          int64_t begin = box_a.begin;
          for (Box& slab : CutIntoSlabs(box_a.box, std::max<int64_t>(1, budget_ / size))) {
            const int64_t end = begin + slab.elements() * size;
            if (!aligned ||
                !ProvedEqual(a_.index(), box_a.file, b_.index(), box_b.file, begin, end)) {
              slabs.push_back({t, std::move(slab), {box_a.file, begin}});
            }
            begin = end;
          }
        }
      } else {
        // A tensor without elements need have no boxes.
        const IndexBox first = in_a.box_count > 0 ? a_.index().box(in_a.first_box) : IndexBox();
        for (Box& slab : CutIntoSlabs(Box::Whole(in_a.shape), std::max<int64_t>(1, budget_ / size)))
          slabs.push_back({t, std::move(slab), {first.file, first.begin}});
      }
      report_.equal_by_digest += slabs.size() == before;
    }
    std::stable_sort(slabs.begin(), slabs.end(),
                     [](const Slab& x, const Slab& y) { return x.place < y.place; });
    return slabs;
  }

  Status CompareValues(const std::string& scope, std::vector<Common>& common) {
    const std::vector<Slab> slabs = PlanSlabs(common);
    if (slabs.empty()) return Status::Ok();
    if (memory_a_ == nullptr) {
      memory_a_ = AllocatePages(budget_);
      memory_b_ = AllocatePages(budget_);
      if (memory_a_ == nullptr || memory_b_ == nullptr)
        return Status(StatusCode::kUnavailable, "no memory for the buffers of a comparison");
    }
    for (size_t first = 0; first < slabs.size();) {
      ShardTable table_a, table_b;
      std::vector<std::pair<size_t, int64_t>> placed;  // slab, offset in the buffers
      int64_t used = 0;
      for (; first < slabs.size(); ++first) {
        const Slab& slab = slabs[first];
        const TensorInfo& tensor = common[slab.tensor].difference.a;
        const int64_t bytes = slab.box.elements() * DTypeSize(tensor.dtype);
        if (used + bytes > budget_) break;
        const Dims dense = ContiguousStrides(slab.box.size);
        KEEL_RETURN_IF_ERROR(table_a.Add(tensor, slab.box, {memory_a_.get() + used, dense}));
        KEEL_RETURN_IF_ERROR(table_b.Add(tensor, slab.box, {memory_b_.get() + used, dense}));
        placed.emplace_back(first, used);
        used += bytes;
      }
      for (const auto& [reader, table] : {std::pair(&a_, &table_a), std::pair(&b_, &table_b)}) {
        const ReadRequest request{scope, table, {}};
        KEEL_ASSIGN_OR_RETURN(const ReadStats stats,
                              reader->Read(std::span(&request, 1), options_.threads));
        report_.bytes_read += stats.bytes;
      }
      for (const auto& [s, offset] : placed) {
        TensorDifference& found = common[slabs[s].tensor].difference;
        SlabComparison(slabs[s].box, found.a.dtype, &found)
            .Run(memory_a_.get() + offset, memory_b_.get() + offset);
      }
    }
    return Status::Ok();
  }

  Status CompareFiles() {
    std::map<std::string_view, std::pair<const ManifestFile*, const ManifestFile*>> files;
    const auto plain = [](const ManifestFile& file) {
      return file.role != FileRole::kModel && file.role != FileRole::kOptimizer;
    };
    for (const ManifestFile& file : a_.manifest().files) {
      if (plain(file)) files[file.path].first = &file;
    }
    for (const ManifestFile& file : b_.manifest().files) {
      if (plain(file)) files[file.path].second = &file;
    }
    for (const auto& [path, sides] : files) {
      const auto& [in_a, in_b] = sides;
      std::string what;
      if (in_a == nullptr || in_b == nullptr) {
        what = in_b == nullptr ? "only in A" : "only in B";
      } else {
        KEEL_ASSIGN_OR_RETURN(const bool same, SameFile(*in_a, *in_b));
        if (!same) what = "differs";
      }
      if (!what.empty()) report_.files.push_back({std::string(path), what});
    }
    return Status::Ok();
  }

  Result<bool> SameFile(const ManifestFile& in_a, const ManifestFile& in_b) {
    if (in_a.size != in_b.size) return false;
    if (a_.manifest().chunk_bytes == b_.manifest().chunk_bytes) return in_a.digest == in_b.digest;
    // Digests in chunks of different sizes say nothing of each other.
    Digest128 whole[2];
    for (const auto& [reader, digest] : {std::pair(&a_, &whole[0]), std::pair(&b_, &whole[1])}) {
      Hasher128 hasher;
      KEEL_RETURN_IF_ERROR(reader->StreamFile(in_a.path, [&](std::span<const std::byte> bytes) {
        hasher.Update(bytes);
        return Status::Ok();
      }));
      *digest = hasher.Finish();
      report_.bytes_read += in_a.size;
    }
    return whole[0] == whole[1];
  }

  const StepReader& a_;
  const StepReader& b_;
  const DiffOptions& options_;
  const int64_t budget_;
  PageMemory memory_a_, memory_b_;
  DiffReport report_;
};

}  // namespace

std::string TensorDifference::ToString() const {
  const auto type = [](const TensorInfo& tensor) {
    return fmt::format("{}{}", DTypeName(tensor.dtype), tensor.shape.ToString());
  };
  switch (kind) {
    case Kind::kOnlyInA:
      return fmt::format("{}: {}: only in A, {}", scope, a.name, type(a));
    case Kind::kOnlyInB:
      return fmt::format("{}: {}: only in B, {}", scope, b.name, type(b));
    case Kind::kOtherType:
      return fmt::format("{}: {}: {} in A, {} in B", scope, a.name, type(a), type(b));
    case Kind::kValues:
      break;
  }
  std::string text = fmt::format("{}: {} {}: {} of {} elements differ, in {}", scope, a.name,
                                 type(a), differing, a.shape.elements(), box.ToString());
  if (max_abs) text += fmt::format("; max |A-B| = {:.6g} at {}", *max_abs, at.ToString());
  if (nan_against_number > 0) text += fmt::format("; {} NaN against a number", nan_against_number);
  return text;
}

Result<DiffReport> DiffCheckpoints(const StepReader& a, const StepReader& b,
                                   const DiffOptions& options) {
  return Differ(a, b, options).Run();
}

}  // namespace keel::checkpoint
