#include "tools/ckpt/hf_dequantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint/format/safetensors.h"
#include "checkpoint/hf/hf_check.h"
#include "checkpoint/hf/weight_files.h"
#include "checkpoint/hf/whole_directory.h"
#include "common/files/downloaded.h"
#include "common/files/template_files.h"
#include "common/json_builder.h"
#include "common/tensors/float_convert.h"
#include "common/tensors/narrow_floats.h"
#include "common/text.h"
#include "model/config/hf_config.h"
#include "model/config/hf_tensors.h"
#include "model/config/quantization.h"
#include "model/config/text_part.h"
#include "tools/ckpt/stored_floats.h"

namespace keel::tools {

namespace {

using checkpoint::SafetensorsTensor;
using model::Quantization;

constexpr const char* kConfig = "config.json";
constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;
constexpr int64_t kMaxOtherBytes = int64_t{1} << 30;
constexpr int64_t kMostValues = int64_t{1} << 21;
constexpr int64_t kHeaderMultiple = 8;
constexpr int64_t kGroup = 32;  // values of MXFP4 with one scale, in 16 bytes

// A tensor of the source, in the file that has it.
struct Source {
  const File* file = nullptr;
  std::string where;  // of the file
  SafetensorsTensor tensor;
};

// One that is written: copied, or made of two.
struct Target {
  std::string name;
  DType dtype = DType::kBF16;
  Dims shape;
  const Source* values = nullptr;
  const Source* scales = nullptr;  // null: copied
};

// All that is known before anything is written.
struct Work {
  Json config;
  Quantization quantization;
  model::HfConfig model;
  std::map<std::string, std::unique_ptr<File>> files;  // by name
  std::map<std::string, Source> tensors;               // by name
  std::map<std::string, std::vector<Target>> targets;  // by file
  Dequantized counts;
};

Status Wrong(const Source& source, const std::string& what) {
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: {}: {}", source.where, Printable(source.tensor.name), what));
}

Status ReadPart(const Source& source, int64_t at, std::span<std::byte> to) {
  KEEL_ASSIGN_OR_RETURN(const int64_t got, source.file->ReadAt(source.tensor.begin + at, to));
  if (got == std::ssize(to)) return Status::Ok();
  return Wrong(source, "the file became shorter while it was read");
}

bool IsFloat(const SafetensorsTensor& tensor) {
  return CanConvert(tensor.dtype, DType::kF32) || tensor.narrow == "F8_E8M0";
}

// A tensor of numbers, as fp32.
Result<std::vector<float>> ReadFloats(const Source& source) {
  const SafetensorsTensor& tensor = source.tensor;
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
  KEEL_RETURN_IF_ERROR(ReadPart(source, 0, bytes));
  std::vector<float> values(static_cast<size_t>(tensor.shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    if (tensor.narrow == "F8_E8M0") {
      values[i] = Float8E8M0ToFloat(static_cast<uint8_t>(bytes[i]));
    } else if (tensor.dtype == DType::kF32) {
      std::memcpy(&values[i], &bytes[4 * i], sizeof(float));
    } else {
      ConvertElement(&bytes[i * static_cast<size_t>(DTypeSize(tensor.dtype))], tensor.dtype,
                     reinterpret_cast<std::byte*>(&values[i]), DType::kF32);
    }
  }
  return values;
}

// 1. What there is.
Status ReadConfig(const FileSystem& source, Work* work) {
  const std::string where = source.Describe(kConfig);
  KEEL_ASSIGN_OR_RETURN(const std::string text, ReadDownloaded(source, kConfig, kMaxConfigBytes));
  KEEL_ASSIGN_OR_RETURN(work->config, ParsePythonJson(text, where));
  KEEL_ASSIGN_OR_RETURN(const auto quantization, model::ReadQuantization(work->config, where));
  if (!quantization) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("{}: has no quantization_config: its weights can be used as they are", where));
  }
  work->quantization = *quantization;
  work->config.erase("quantization_config");
  if (const auto inner = work->config.find("text_config");
      inner != work->config.end() && inner->is_object())
    inner->erase("quantization_config");
  Json own = work->config;
  KEEL_ASSIGN_OR_RETURN(auto part, model::TextPartOf(own, where));
  if (part) own = std::move(part->json);
  KEEL_ASSIGN_OR_RETURN(work->model, model::ParseHfConfig(own, where));
  return Status::Ok();
}

Status ReadHeaders(const FileSystem& source, Work* work) {
  KEEL_ASSIGN_OR_RETURN(const checkpoint::WeightFiles files,
                        checkpoint::FindWeightFiles(source, "."));
  for (const std::string& name : files.names) {
    KEEL_ASSIGN_OR_RETURN(work->files[name], source.Open(name));
    const File* const file = work->files[name].get();
    const std::string where = source.Describe(name);
    KEEL_ASSIGN_OR_RETURN(
        const checkpoint::SafetensorsHeader header,
        checkpoint::ReadSafetensorsHeader(*file, where, checkpoint::NarrowFloats::kAsBytes));
    for (const SafetensorsTensor& tensor : header.tensors) {
      const auto [there, added] =
          work->tensors.try_emplace(tensor.name, Source{file, where, tensor});
      if (!added) return Wrong(there->second, fmt::format("{} has it, too", where));
    }
  }
  return Status::Ok();
}

// 2. What is made of it. The name without its ending, where it has that.
std::optional<std::string> Stem(const std::string& name, std::string_view ending) {
  if (!name.ends_with(ending)) return std::nullopt;
  return name.substr(0, name.size() - ending.size());
}

const Source* Find(const Work& work, const std::string& name) {
  const auto found = work.tensors.find(name);
  return found == work.tensors.end() ? nullptr : &found->second;
}

// The scales of a matrix of 8 bits.
const Source* ScalesOf(const Work& work, const std::string& weight) {
  for (const char* ending : {"_scale_inv", "_scale"})
    if (const Source* scales = Find(work, weight + ending)) return scales;
  return nullptr;
}

bool IsScaleOfWeights(const Work& work, const std::string& name) {
  if (work.quantization.method == Quantization::Method::kMxfp4) {
    const auto stem = Stem(name, "_scales");
    return stem && Find(work, *stem + "_blocks") != nullptr;
  }
  for (const char* ending : {"_scale_inv", "_scale"}) {
    const auto weight = Stem(name, ending);
    const Source* of = weight ? Find(work, *weight) : nullptr;
    if (of != nullptr && of->tensor.narrow == "F8_E4M3") return true;
  }
  return false;
}

bool IsScaleOfActivations(const std::string& name) {
  return name.ends_with(".input_scale") || name.ends_with(".activation_scale") ||
         name.ends_with(".k_scale") || name.ends_with(".v_scale");
}

int64_t Blocks(int64_t size, int64_t block) { return (size + block - 1) / block; }

// Which scale an element of a matrix has: [rows, columns] of scales, each of a block.
struct ScaleGrid {
  int64_t columns = 1;  // of scales
  int64_t block_rows = 1, block_columns = 1;
};

Result<ScaleGrid> GridOf(const Quantization& q, const Source& values, const Source& scales) {
  const Dims& shape = values.tensor.shape;
  const Dims& given = scales.tensor.shape;
  const int64_t rows = shape[0], columns = shape[1];
  const auto is = [&](int64_t a, int64_t b) {
    return given.size() == 2 && given[0] == a && given[1] == b;
  };
  if (q.block_rows > 0 && is(Blocks(rows, q.block_rows), Blocks(columns, q.block_columns)))
    return ScaleGrid{given[1], q.block_rows, q.block_columns};
  if (given.elements() == 1) return ScaleGrid{1, rows, columns};
  if (q.block_rows == 0 && (is(rows, 1) || (given.size() == 1 && given[0] == rows)))
    return ScaleGrid{1, 1, columns};
  return Wrong(scales, fmt::format("scales {} do not fit the weight {}{}", given.ToString(),
                                   shape.ToString(),
                                   q.block_rows > 0 ? fmt::format(" in blocks of {} x {}",
                                                                  q.block_rows, q.block_columns)
                                                    : ""));
}

Result<Target> TargetOfBytes(const Work& work, const Source& values) {
  const SafetensorsTensor& tensor = values.tensor;
  const Source* const scales = ScalesOf(work, tensor.name);
  if (tensor.narrow != "F8_E4M3" || tensor.shape.size() != 2) {
    return Wrong(values, fmt::format("{}{}: expected a matrix of F8_E4M3", tensor.narrow,
                                     tensor.shape.ToString()));
  }
  if (scales == nullptr)
    return Wrong(values, fmt::format("there is no {0}_scale_inv or {0}_scale", tensor.name));
  if (!IsFloat(scales->tensor)) return Wrong(*scales, "expected numbers in a float format");
  KEEL_RETURN_IF_ERROR(GridOf(work.quantization, values, *scales).status());
  return Target{tensor.name, DType::kBF16, tensor.shape, &values, scales};
}

Result<Target> TargetOfBlocks(const Work& work, const std::string& stem, const Source& values) {
  const Dims& shape = values.tensor.shape;
  const Source* const scales = Find(work, stem + "_scales");
  if (scales == nullptr) return Wrong(values, fmt::format("there is no {}_scales", stem));
  const Dims& given = scales->tensor.shape;
  const bool fits = shape.size() == 4 && shape[3] == kGroup / 2 && given.size() == 3 &&
                    given[0] == shape[0] && given[1] == shape[1] && given[2] == shape[2] &&
                    values.tensor.dtype == DType::kU8 && scales->tensor.dtype == DType::kU8;
  if (!fits) {
    return Wrong(values, fmt::format("blocks {} with scales {}: expected bytes [experts, rows, "
                                     "groups, {}] and [experts, rows, groups]",
                                     shape.ToString(), given.ToString(), kGroup / 2));
  }
  return Target{stem, DType::kBF16, {shape[0], shape[2] * kGroup, shape[1]}, &values, scales};
}

Status MakeTargets(const FileSystem& source, DType dtype, Work* work) {
  std::map<const File*, std::string> names;
  for (const auto& [name, file] : work->files) names[file.get()] = name;
  for (const auto& [name, values] : work->tensors) {
    if (IsScaleOfWeights(*work, name)) continue;
    if (IsScaleOfActivations(name)) {
      ++work->counts.left_out;
      continue;
    }
    Target target{name, values.tensor.dtype, values.tensor.shape, &values, nullptr};
    const bool mxfp4 = work->quantization.method == Quantization::Method::kMxfp4;
    if (const auto stem = Stem(name, "_blocks"); mxfp4 && stem) {
      KEEL_ASSIGN_OR_RETURN(target, TargetOfBlocks(*work, *stem, values));
    } else if (mxfp4 && !values.tensor.narrow.empty()) {
      return Wrong(values,
                   fmt::format("is {}, and quantization_config says mxfp4", values.tensor.narrow));
    } else if (!values.tensor.narrow.empty()) {
      KEEL_ASSIGN_OR_RETURN(target, TargetOfBytes(*work, values));
    }
    if (target.scales != nullptr) {
      target.dtype = dtype;
      ++work->counts.quantized;
    }
    ++work->counts.tensors;
    work->targets[names[values.file]].push_back(std::move(target));
  }
  if (work->counts.quantized > 0) return Status::Ok();
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: quantization_config says {}, and no tensor of the weights is "
                            "quantized so",
                            source.Describe(kConfig), Printable(work->quantization.name, 80)));
}

// 3. The values.
class ValueWriter {
 public:
  ValueWriter(const Work& work, File& out, int64_t at,
              const std::function<void(int64_t bytes)>& written)
      : work_(work), out_(out), at_(at), written_(written) {}

  Status Write(const Target& target) {
    if (target.scales == nullptr) return Copy(target);
    return work_.quantization.method == Quantization::Method::kMxfp4 ? WriteBlocks(target)
                                                                     : WriteBytes(target);
  }

 private:
  Status Put(std::span<const std::byte> bytes) {
    KEEL_RETURN_IF_ERROR(out_.WriteAt(at_, bytes));
    at_ += std::ssize(bytes);
    written_(std::ssize(bytes));
    return Status::Ok();
  }
  Status Copy(const Target& target) {
    const int64_t all = target.values->tensor.bytes();
    for (int64_t done = 0; done < all;) {
      bytes_.resize(static_cast<size_t>(std::min(kMostValues, all - done)));
      KEEL_RETURN_IF_ERROR(ReadPart(*target.values, done, bytes_));
      KEEL_RETURN_IF_ERROR(Put(bytes_));
      done += std::ssize(bytes_);
    }
    return Status::Ok();
  }
  // values_ in the target's dtype.
  Status PutValues(const Target& target) {
    const auto bytes = stored_.As(target.dtype, values_);
    if (!bytes) {
      return Wrong(*target.values,
                   fmt::format("has a value that is not finite as {}", DTypeName(target.dtype)));
    }
    return Put(*bytes);
  }
  Status WriteBytes(const Target& target) {
    KEEL_ASSIGN_OR_RETURN(const std::vector<float> scales, ReadFloats(*target.scales));
    KEEL_ASSIGN_OR_RETURN(const ScaleGrid grid,
                          GridOf(work_.quantization, *target.values, *target.scales));
    const int64_t rows = target.shape[0], columns = target.shape[1];
    const int64_t step = std::max<int64_t>(1, kMostValues / std::max<int64_t>(1, columns));
    for (int64_t row = 0; row < rows; row += step) {
      const int64_t count = std::min(step, rows - row);
      bytes_.resize(static_cast<size_t>(count * columns));
      values_.resize(bytes_.size());
      KEEL_RETURN_IF_ERROR(ReadPart(*target.values, row * columns, bytes_));
      for (int64_t i = 0; i < count; ++i) {
        const float* const of_row = scales.data() + (row + i) / grid.block_rows * grid.columns;
        for (int64_t j = 0; j < columns; ++j) {
          const auto at = static_cast<size_t>(i * columns + j);
          values_[at] =
              Float8E4M3ToFloat(static_cast<uint8_t>(bytes_[at])) * of_row[j / grid.block_columns];
        }
      }
      KEEL_RETURN_IF_ERROR(PutValues(target));
    }
    return Status::Ok();
  }
  // An expert at a time, transposed.
  Status WriteBlocks(const Target& target) {
    const int64_t experts = target.shape[0], columns = target.shape[1], rows = target.shape[2];
    const int64_t groups = columns / kGroup;
    bytes_.resize(static_cast<size_t>(rows * columns / 2));
    std::vector<std::byte> scales(static_cast<size_t>(rows * groups));
    for (int64_t e = 0; e < experts; ++e) {
      KEEL_RETURN_IF_ERROR(ReadPart(*target.values, e * std::ssize(bytes_), bytes_));
      KEEL_RETURN_IF_ERROR(ReadPart(*target.scales, e * std::ssize(scales), scales));
      values_.resize(static_cast<size_t>(rows * columns));
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t half = 0; half < columns / 2; ++half) {
          const auto pair =
              static_cast<uint8_t>(bytes_[static_cast<size_t>(row * columns / 2 + half)]);
          const float scale = Float8E8M0ToFloat(
              static_cast<uint8_t>(scales[static_cast<size_t>(row * groups + 2 * half / kGroup)]));
          values_[static_cast<size_t>(2 * half * rows + row)] = kFloat4E2M1[pair & 15] * scale;
          values_[static_cast<size_t>((2 * half + 1) * rows + row)] =
              kFloat4E2M1[pair >> 4] * scale;
        }
      }
      KEEL_RETURN_IF_ERROR(PutValues(target));
    }
    return Status::Ok();
  }

  const Work& work_;
  File& out_;
  int64_t at_;
  const std::function<void(int64_t bytes)>& written_;
  std::vector<std::byte> bytes_;
  std::vector<float> values_;
  StoredFloats stored_;
};

int64_t BytesOf(const std::vector<Target>& targets) {
  int64_t bytes = 0;
  for (const Target& target : targets) bytes += target.shape.elements() * DTypeSize(target.dtype);
  return bytes;
}

Result<std::string> HeaderOf(const std::vector<Target>& targets) {
  std::vector<checkpoint::SafetensorsPart> parts;
  for (const Target& target : targets)
    parts.push_back({target.name, target.dtype, target.shape, {}});
  return checkpoint::BuildSafetensorsHeader(parts, {{"format", "pt"}}, kHeaderMultiple);
}

// 4. The directory. All names and shapes are checked on files that hold zeros so far.
class DirectoryWriter {
 public:
  DirectoryWriter(const FileSystem& source, const Work& work, FileSystem& out,
                  const std::string& directory, const DequantizeOptions& options)
      : source_(source), work_(work), out_(out), directory_(directory), options_(options) {}

  Status Write() {
    KEEL_RETURN_IF_ERROR(WriteDocuments());
    KEEL_RETURN_IF_ERROR(WriteIndex());
    std::map<std::string, std::unique_ptr<File>> files;
    std::map<std::string, int64_t> begins;
    int64_t total = 0;
    for (const auto& [name, targets] : work_.targets) {
      KEEL_ASSIGN_OR_RETURN(const std::string header, HeaderOf(targets));
      KEEL_ASSIGN_OR_RETURN(files[name], out_.Create(Path(name), {}));
      KEEL_RETURN_IF_ERROR(files[name]->WriteAt(0, std::as_bytes(std::span(header))));
      KEEL_RETURN_IF_ERROR(files[name]->Truncate(std::ssize(header) + BytesOf(targets)));
      begins[name] = std::ssize(header);
      total += BytesOf(targets);
    }
    KEEL_RETURN_IF_ERROR(
        checkpoint::OpenTensors(out_, directory_,
                                model::TensorsOf(work_.model, model::Head::kVocabulary))
            .status()
            .WithContext(source_.Describe(".")));
    int64_t done = 0;
    const std::function<void(int64_t)> written = [&](int64_t bytes) {
      done += bytes;
      if (options_.progress) options_.progress(done, total);
    };
    for (const auto& [name, targets] : work_.targets) {
      ValueWriter writer(work_, *files[name], begins[name], written);
      for (const Target& target : targets) KEEL_RETURN_IF_ERROR(writer.Write(target));
      KEEL_RETURN_IF_ERROR(files[name]->Sync());
      KEEL_RETURN_IF_ERROR(files[name]->Close());
    }
    return Status::Ok();
  }

 private:
  std::string Path(std::string_view name) const { return fmt::format("{}/{}", directory_, name); }

  // config.json, and what is no weight, byte for byte.
  Status WriteDocuments() {
    Json config = work_.config;
    const char* const dtype = options_.dtype == DType::kF32 ? "float32" : "bfloat16";
    config[config.contains("dtype") ? "dtype" : "torch_dtype"] = dtype;
    KEEL_RETURN_IF_ERROR(WriteFileDurably(out_, Path(kConfig), config.dump(2) + "\n"));
    KEEL_ASSIGN_OR_RETURN(const auto entries, source_.List("."));
    constexpr auto kOfWeights =
        std::to_array<std::string_view>({".safetensors", ".safetensors.index.json", ".bin", ".pt",
                                         ".pth", ".gguf", ".h5", ".msgpack", ".onnx"});
    for (const FileInfo& entry : entries) {
      const bool weights =
          std::any_of(kOfWeights.begin(), kOfWeights.end(),
                      [&](std::string_view end) { return entry.name.ends_with(end); });
      if (entry.kind != FileKind::kFile || weights || entry.name == kConfig ||
          entry.size > kMaxOtherBytes)
        continue;
      KEEL_ASSIGN_OR_RETURN(const std::string content,
                            ReadFile(source_, entry.name, kMaxOtherBytes));
      KEEL_RETURN_IF_ERROR(WriteFileDurably(out_, Path(entry.name), content));
    }
    KEEL_ASSIGN_OR_RETURN(const std::vector<std::string> templates, MoreTemplateFiles(source_));
    for (const std::string& name : templates) {
      KEEL_ASSIGN_OR_RETURN(const std::string content, ReadFile(source_, name, kMaxOtherBytes));
      KEEL_RETURN_IF_ERROR(WriteModelText(out_, directory_, name, content));
    }
    return Status::Ok();
  }
  Status WriteIndex() {
    if (work_.files.contains(std::string(checkpoint::kWeightsName))) return Status::Ok();
    Json map = Json::object();
    int64_t total = 0;
    for (const auto& [name, targets] : work_.targets) {
      for (const Target& target : targets) map[target.name] = name;
      total += BytesOf(targets);
    }
    const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
    return WriteFileDurably(out_, Path(checkpoint::kWeightsIndexName), index.dump(2) + "\n");
  }

  const FileSystem& source_;
  const Work& work_;
  FileSystem& out_;
  const std::string& directory_;
  const DequantizeOptions& options_;
};

}  // namespace

Result<Dequantized> DequantizeHf(const FileSystem& source, FileSystem& out, const std::string& name,
                                 const DequantizeOptions& options, Logger& log) {
  Work work;
  KEEL_RETURN_IF_ERROR(ReadConfig(source, &work));
  KEEL_RETURN_IF_ERROR(ReadHeaders(source, &work));
  KEEL_RETURN_IF_ERROR(MakeTargets(source, options.dtype, &work));
  const auto fill = [&](const std::string& directory) {
    return DirectoryWriter(source, work, out, directory, options).Write();
  };
  KEEL_RETURN_IF_ERROR(checkpoint::MakeWholeDirectory(out, name, "dequantizing", log, fill));
  work.counts.method = work.quantization.name;
  return work.counts;
}

}  // namespace keel::tools
