#include "tools/ckpt/adapter_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint/format/names.h"
#include "checkpoint/hf/hf_check.h"
#include "checkpoint/hf/hf_model_dir.h"
#include "checkpoint/hf/weight_files.h"
#include "checkpoint/hf/whole_directory.h"
#include "common/files/template_files.h"
#include "common/kernels/cpu_decode.h"
#include "common/parallel_for.h"
#include "common/tensors/float_convert.h"
#include "common/tensors/tensor_digest.h"
#include "model/config/adapter_tensors.h"
#include "model/config/hf_tensors.h"
#include "tools/ckpt/stored_floats.h"
#include "tools/inference/step_weights.h"
#include "trainer/inputs/adapter_files.h"
#include "trainer/inputs/model_source.h"

namespace keel::tools {

namespace {

constexpr int64_t kBlockBytes = int64_t{4} << 20;
constexpr int64_t kMaxOtherBytes = int64_t{1} << 30;

// A matrix in host memory, fp32.
struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<float> values;
};

// 1. The adapters, by the names of their tensors.
Result<std::map<std::string, Matrix>> ReadAdapters(const NamedModel& model) {
  const std::vector<TensorInfo> tensors = model::AdapterTensorsOf(model.source.config);
  // A step gives them as it has them.
  const DType there = model.is_step ? model.dtype : DType::kF32;
  std::vector<std::vector<std::byte>> bytes;
  ShardTable table;
  for (const TensorInfo& tensor : tensors) {
    bytes.emplace_back(static_cast<size_t>(tensor.shape.elements() * DTypeSize(there)));
    KEEL_RETURN_IF_ERROR(table.Add({tensor.name, there, tensor.shape}, Box::Whole(tensor.shape),
                                   {bytes.back().data(), ContiguousStrides(tensor.shape)}));
  }
  KEEL_RETURN_IF_ERROR(ReadNamedAdapters(model, table));
  std::map<std::string, Matrix> matrices;
  for (size_t i = 0; i < tensors.size(); ++i) {
    Matrix& matrix = matrices[tensors[i].name];
    matrix = {tensors[i].shape[0], tensors[i].shape[1], {}};
    matrix.values.resize(static_cast<size_t>(tensors[i].shape.elements()));
    ToFloats(bytes[i], there, matrix.values);
  }
  return matrices;
}

// 2. Whether the base is the one beside which they were trained: the digest of its values as that
// run had them, rows by rows.
Status CheckBase(const NamedModel& model, const checkpoint::HfModelDir& base,
                 const ModelTensors& tensors) {
  if (!model.base_is) return Status::Ok();
  uint64_t digest = 0;
  std::vector<std::byte> bytes;
  for (const TensorInfo& tensor : tensors.needed) {
    const DType dtype =
        model::IsConstant(model.source.config, tensor.name) ? DType::kF32 : model.base_is->dtype;
    const int64_t rows = tensor.shape[0];
    const int64_t row_bytes =
        std::max<int64_t>(1, tensor.shape.elements() / std::max<int64_t>(1, rows)) *
        DTypeSize(dtype);
    const int64_t each = std::max<int64_t>(1, kBlockBytes / row_bytes);
    for (int64_t row = 0; row < rows; row += each) {
      Box part = Box::Whole(tensor.shape);
      part.offset[0] = row;
      part.size[0] = std::min(each, rows - row);
      bytes.resize(static_cast<size_t>(part.size[0] * row_bytes));
      const StridedView view{bytes.data(), ContiguousStrides(part.size)};
      ShardTable one;
      KEEL_RETURN_IF_ERROR(one.Add({tensor.name, dtype, tensor.shape}, part, view));
      KEEL_RETURN_IF_ERROR(base.ReadInto(one, {}));
      digest += DigestWeight(tensor.name) * BoxDigest(tensor.shape, dtype, part, part, view);
    }
  }
  return CheckBaseDigest(model, digest);
}

// 3. The files.
Status CopyFile(const FileSystem& from, const std::string& name, File& to,
                const std::function<void(int64_t)>& copied) {
  KEEL_ASSIGN_OR_RETURN(const auto file, from.Open(name));
  std::vector<std::byte> block(static_cast<size_t>(kBlockBytes));
  for (int64_t at = 0;;) {
    KEEL_ASSIGN_OR_RETURN(const int64_t got, file->ReadAt(at, block));
    if (got == 0) return Status::Ok();
    KEEL_RETURN_IF_ERROR(to.WriteAt(at, std::span(block).first(static_cast<size_t>(got))));
    at += got;
    copied(got);
  }
}

Matrix Transposed(const Matrix& matrix) {
  Matrix out = {matrix.columns, matrix.rows, {}};
  out.values.resize(matrix.values.size());
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t column = 0; column < matrix.columns; ++column)
      out.values[static_cast<size_t>(column * matrix.rows + row)] =
          matrix.values[static_cast<size_t>(row * matrix.columns + column)];
  }
  return out;
}

// W[row, row + rows) += scale B A, in the file that `file` is.
Status AddRows(File& file, const checkpoint::HfModelDir::Location& weight, const Matrix& a,
               const Matrix& b, float scale, int64_t row, int64_t rows) {
  const int64_t columns = a.columns;
  const int64_t at = weight.begin + row * columns * DTypeSize(weight.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(rows * columns * DTypeSize(weight.dtype)));
  KEEL_ASSIGN_OR_RETURN(const int64_t got, file.ReadAt(at, bytes));
  if (got != std::ssize(bytes)) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: the file became shorter while it was read", weight.file));
  }
  std::vector<float> values(static_cast<size_t>(rows * columns));
  ToFloats(bytes, weight.dtype, values);
  std::vector<float> product(values.size());
  kernels::MatMul<float>(b.values.data() + row * a.rows, rows, a.rows, a.values.data(), columns, 0,
                         columns, product.data());
  for (size_t i = 0; i < values.size(); ++i) values[i] += scale * product[i];
  StoredFloats stored;
  const auto merged = stored.As(weight.dtype, values);
  if (!merged) {
    return Status(StatusCode::kInvalidData, fmt::format("{}: a merged value is not finite as {}",
                                                        weight.file, DTypeName(weight.dtype)));
  }
  return file.WriteAt(at, *merged);
}

class DirectoryWriter {
 public:
  DirectoryWriter(const NamedModel& model, const FileSystem& base,
                  const checkpoint::HfModelDir& weights, FileSystem& out,
                  const std::string& directory, const MergeOptions& options)
      : model_(model),
        base_(base),
        weights_(weights),
        out_(out),
        directory_(directory),
        options_(options) {}

  Result<int64_t> Write(const std::map<std::string, Matrix>& adapters) {
    KEEL_RETURN_IF_ERROR(CopyDocuments());
    std::map<std::string, std::unique_ptr<File>> files;
    KEEL_RETURN_IF_ERROR(CopyWeights(&files));
    int64_t merged = 0;
    const auto scale = static_cast<float>(model_.source.config.adapter.scale());
    for (const auto& [name, a] : adapters) {
      constexpr std::string_view kEnd = ".lora_A.weight";
      if (!name.ends_with(kEnd)) continue;
      const std::string weight = name.substr(0, name.size() - kEnd.size()) + ".weight";
      KEEL_ASSIGN_OR_RETURN(const auto where, weights_.Locate(weight));
      if (where.dtype == DType::kF64) {
        return Status(StatusCode::kInvalidData,
                      fmt::format("{}: {} is F64: expected F32, BF16 or F16", where.file, weight));
      }
      File& file = *files.at(where.file);
      const Matrix& b = adapters.at(model::AdapterNamesOf(weight).b);
      // The file's matrix may be W^T, to which A^T B^T is added.
      KEEL_RETURN_IF_ERROR(model_.source.config.Layer(0).input_rows
                               ? Merge(file, where, Transposed(b), Transposed(a), scale)
                               : Merge(file, where, a, b, scale));
      ++merged;
    }
    for (const auto& [name, file] : files) {
      KEEL_RETURN_IF_ERROR(file->Sync());
      KEEL_RETURN_IF_ERROR(file->Close());
    }
    KEEL_RETURN_IF_ERROR(out_.SyncDirectory(directory_));
    return merged;
  }

 private:
  std::string Path(std::string_view name) const { return fmt::format("{}/{}", directory_, name); }

  // What is no weight, byte for byte: the base's, but for what stands beside the adapters of
  // tokenizer and templates.
  Status CopyDocuments() {
    KEEL_ASSIGN_OR_RETURN(auto texts, TextsOf(base_, IsDocument));
    std::string folder = model_.path;
    if (model_.is_step) {
      KEEL_ASSIGN_OR_RETURN(folder, ModelFolderOf(model_.path));
    }
    KEEL_ASSIGN_OR_RETURN(const auto beside,
                          OpenPosixFileSystem(folder, false, LinkPolicy::kFollow));
    KEEL_ASSIGN_OR_RETURN(auto own, TextsOf(*beside, [](const FileInfo& entry) {
                            return trainer::MakesText(entry.name);
                          }));
    // A tokenizer takes the place of all that makes texts, and a template that of the templates.
    const bool tokenizer = trainer::HasTokenizer(folder);
    const bool chat = own.contains("chat_template.jinja");
    std::erase_if(texts, [&](const auto& text) {
      const bool of_chat =
          text.first.starts_with("chat_template.") || text.first.starts_with(kMoreTemplates);
      return (tokenizer && trainer::MakesText(text.first)) || (chat && of_chat);
    });
    if (tokenizer || chat) {
      own.merge(texts);
      texts.swap(own);
    }
    for (const auto& [name, text] : texts)
      KEEL_RETURN_IF_ERROR(WriteModelText(out_, directory_, name, text));
    return Status::Ok();
  }

  static bool IsDocument(const FileInfo& entry) {
    constexpr auto kOfWeights = std::to_array<std::string_view>(
        {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"});
    const bool other_index =
        entry.name.ends_with(".index.json") && entry.name != checkpoint::kWeightsIndexName;
    return entry.size <= kMaxOtherBytes && !other_index &&
           entry.name != checkpoint::kAdapterConfigName &&
           std::none_of(kOfWeights.begin(), kOfWeights.end(),
                        [&](std::string_view end) { return entry.name.ends_with(end); });
  }

  // The files of `fs` that are wanted, and its further templates, by name.
  template <typename Wanted>
  static Result<std::map<std::string, std::string>> TextsOf(const FileSystem& fs,
                                                            const Wanted& wanted) {
    std::map<std::string, std::string> texts;
    KEEL_ASSIGN_OR_RETURN(const auto entries, fs.List("."));
    for (const FileInfo& entry : entries) {
      if (entry.kind != FileKind::kFile || !wanted(entry)) continue;
      KEEL_ASSIGN_OR_RETURN(texts[entry.name], ReadFile(fs, entry.name, kMaxOtherBytes));
    }
    KEEL_ASSIGN_OR_RETURN(const std::vector<std::string> templates, MoreTemplateFiles(fs));
    for (const std::string& name : templates) {
      KEEL_ASSIGN_OR_RETURN(texts[name], ReadFile(fs, name, kMaxOtherBytes));
    }
    return texts;
  }

  Status CopyWeights(std::map<std::string, std::unique_ptr<File>>* files) {
    int64_t total = 0, done = 0;
    for (const std::string& name : weights_.files()) {
      KEEL_ASSIGN_OR_RETURN(const FileInfo info, base_.Stat(name));
      total += info.size;
    }
    for (const std::string& name : weights_.files()) {
      KEEL_ASSIGN_OR_RETURN((*files)[name], out_.Create(Path(name), {}));
      KEEL_RETURN_IF_ERROR(CopyFile(base_, name, *(*files)[name], [&](int64_t bytes) {
        done += bytes;
        if (options_.progress) options_.progress(done, total);
      }));
    }
    return Status::Ok();
  }

  Status Merge(File& file, const checkpoint::HfModelDir::Location& weight, const Matrix& a,
               const Matrix& b, float scale) {
    const int64_t row_bytes = std::max<int64_t>(1, a.columns * DTypeSize(weight.dtype));
    const int64_t each = std::max<int64_t>(1, kBlockBytes / row_bytes);
    return ParallelFor((b.rows + each - 1) / each, options_.threads, [&](int64_t block, int) {
      const int64_t row = block * each;
      return AddRows(file, weight, a, b, scale, row, std::min(each, b.rows - row));
    });
  }

  const NamedModel& model_;
  const FileSystem& base_;
  const checkpoint::HfModelDir& weights_;
  FileSystem& out_;
  const std::string& directory_;
  const MergeOptions& options_;
};

}  // namespace

Result<int64_t> MergeAdapters(const NamedModel& model, const FileSystem& base, FileSystem& out,
                              const std::string& name, const MergeOptions& options, Logger& log) {
  const ModelTensors tensors = model::TensorsOf(model.source.config, model::Head::kVocabulary);
  KEEL_ASSIGN_OR_RETURN(const auto weights, checkpoint::OpenTensors(base, ".", tensors));
  KEEL_RETURN_IF_ERROR(CheckBase(model, weights, tensors));
  KEEL_ASSIGN_OR_RETURN(const auto adapters, ReadAdapters(model));
  int64_t merged = 0;
  const auto fill = [&](const std::string& directory) -> Status {
    KEEL_ASSIGN_OR_RETURN(
        merged, DirectoryWriter(model, base, weights, out, directory, options).Write(adapters));
    return Status::Ok();
  };
  KEEL_RETURN_IF_ERROR(checkpoint::MakeWholeDirectory(out, name, "merging", log, fill));
  return merged;
}

}  // namespace keel::tools
