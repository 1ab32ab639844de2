#include "tools/ckpt/gguf_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint/format/safetensors.h"
#include "checkpoint/hf/hf_check.h"
#include "checkpoint/hf/hf_model_dir.h"
#include "checkpoint/hf/whole_directory.h"
#include "common/json.h"
#include "common/text.h"
#include "model/config/hf_config.h"
#include "model/config/hf_tensors.h"
#include "model/gguf/dequantize.h"
#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_file.h"
#include "model/gguf/gguf_names.h"
#include "model/gguf/gguf_rope.h"
#include "model/gguf/gguf_tokenizer.h"
#include "tools/ckpt/stored_floats.h"

namespace keel::tools {

namespace {

constexpr int64_t kPieceValues = int64_t{1} << 21;
constexpr int64_t kHeaderAlignment = 8;  // as the format's own library does
constexpr int64_t kMostRopeFactors = 1 << 16;
constexpr const char* kWeights = "model.safetensors";

// A tensor on its way.
struct Moved {
  model::GgufTensor from;
  model::HfPlace to;
};

// All that is known before anything is written.
struct Plan {
  model::GgufFile file;
  model::GgufTokenizer tokenizer;
  Json config, generation;
  model::HfConfig model;
  DType dtype = DType::kBF16;
  std::vector<Moved> tensors;
};

Status ReadWhole(const File& file, const model::GgufTensor& tensor, int64_t at,
                 std::span<std::byte> to, std::string_view where) {
  KEEL_ASSIGN_OR_RETURN(const int64_t read, file.ReadAt(tensor.offset + at, to));
  if (read == std::ssize(to)) return Status::Ok();
  return Status(StatusCode::kInvalidData, fmt::format("{}: became shorter while tensor {} was read",
                                                      where, Printable(tensor.name)));
}

// Empty where there is no tensor of this name.
Result<std::vector<float>> ReadFactors(const File& in, const model::GgufFile& file,
                                       std::string_view name) {
  const model::GgufTensor* const tensor = model::FindTensor(file, name);
  if (tensor == nullptr) return std::vector<float>();
  const std::string& where = file.metadata.where();
  if (tensor->shape.elements() > kMostRopeFactors) {
    return Status(StatusCode::kInvalidData, fmt::format("{}: tensor {} has {} values", where, name,
                                                        tensor->shape.elements()));
  }
  std::vector<std::byte> bytes(static_cast<size_t>(tensor->bytes));
  KEEL_RETURN_IF_ERROR(ReadWhole(in, *tensor, 0, bytes, where));
  std::vector<float> values(static_cast<size_t>(tensor->shape.elements()));
  model::Dequantize(tensor->type, bytes, values);
  return values;
}

Result<model::GgufRopeFactors> ReadRopeFactors(const File& in, const model::GgufFile& file) {
  model::GgufRopeFactors factors;
  KEEL_ASSIGN_OR_RETURN(factors.scaled, ReadFactors(in, file, model::kRopeFactors));
  KEEL_ASSIGN_OR_RETURN(factors.longs, ReadFactors(in, file, model::kLongRopeFactors));
  KEEL_ASSIGN_OR_RETURN(factors.shorts, ReadFactors(in, file, model::kShortRopeFactors));
  return factors;
}

DType DTypeFor(const std::vector<Moved>& tensors, const GgufImportOptions& options) {
  if (options.dtype) return *options.dtype;
  // Vectors, such as norms, and routers are float32 in every file.
  for (const Moved& tensor : tensors) {
    if (tensor.from.shape.size() < 2 || tensor.to.router || model::IsQuantized(tensor.from.type) ||
        tensor.from.type == model::GgmlType::kBF16) {
      continue;
    }
    return DType::kF32;
  }
  return DType::kBF16;
}

Status CheckVocabulary(const Plan& plan) {
  const auto tokens = static_cast<int64_t>(plan.tokenizer.tokenizer["model"]["vocab"].size());
  if (tokens <= plan.model.vocab_size) return Status::Ok();
  return plan.file.metadata.Wrong("tokenizer.ggml.tokens",
                                  fmt::format("{} tokens, and the model's embedding has {} rows",
                                              tokens, plan.model.vocab_size));
}

Status PlanModel(const File& in, const GgufImportOptions& options, Plan* plan) {
  const std::string& where = plan->file.metadata.where();
  KEEL_ASSIGN_OR_RETURN(const model::GgufRopeFactors factors, ReadRopeFactors(in, plan->file));
  KEEL_ASSIGN_OR_RETURN(model::GgufConfig config, model::ReadGgufConfig(plan->file, factors));
  for (const model::GgufTensor& tensor : plan->file.tensors) {
    KEEL_ASSIGN_OR_RETURN(std::vector<model::HfPlace> places,
                          model::HfPlacesOf(tensor, config, where));
    for (model::HfPlace& place : places) {
      if (place.mixed_head_rows > 0 && tensor.shape[0] % place.mixed_head_rows != 0) {
        return Status(
            StatusCode::kInvalidData,
            fmt::format("{}: tensor {}: {} rows, which is no multiple of a head's {}", where,
                        Printable(tensor.name), tensor.shape[0], place.mixed_head_rows));
      }
      model::GgufTensor part = model::PartAt(place, tensor);
      plan->tensors.push_back({std::move(part), std::move(place)});
    }
  }
  plan->dtype = DTypeFor(plan->tensors, options);
  plan->config = std::move(config.config);
  plan->config["torch_dtype"] = plan->dtype == DType::kF32 ? "float32" : "bfloat16";
  plan->generation = std::move(config.generation);
  KEEL_ASSIGN_OR_RETURN(plan->model,
                        model::ParseHfConfig(plan->config, where + ": as config.json"));
  return CheckVocabulary(*plan);
}

// Writes a tensor's values in Hugging Face's order, so many rows at a time.
class TensorWriter {
 public:
  TensorWriter(const File& in, File& out, DType dtype, std::string_view where)
      : in_(in), out_(out), dtype_(dtype), where_(where) {}

  Status Write(const Moved& tensor, int64_t* at) {
    const model::GgufTensor& from = tensor.from;
    const int64_t rows = from.shape.size() == 1 ? 1 : from.shape[0];
    // One dim has no rows: of a mixed one, each value is a row by itself.
    const int64_t width = from.shape.elements() / rows;
    const int64_t mixed = tensor.to.mixed_head_rows;
    if (mixed > 0 && from.shape.size() == 1) return WriteMixedVector(tensor, at);
    int64_t step = std::max<int64_t>(1, kPieceValues / width);
    if (mixed > 0) step = (step + mixed - 1) / mixed * mixed;  // whole heads
    // A single row above that is cut at blocks.
    if (rows == 1) return WriteVector(tensor, at);
    for (int64_t row = 0; row < rows; row += step) {
      const int64_t count = std::min(step, rows - row);
      KEEL_RETURN_IF_ERROR(Read(tensor, row * width, count * width));
      if (mixed > 0) Unmix(tensor.to, row, count, width);
      KEEL_RETURN_IF_ERROR(Flush(from, at));
    }
    return Status::Ok();
  }

 private:
  // Values `first` to `first + count`, which are whole blocks, to values_.
  Status Read(const Moved& tensor, int64_t first, int64_t count) {
    const model::GgufTensor& from = tensor.from;
    const model::GgmlBlock block = model::BlockOf(from.type);
    bytes_.resize(static_cast<size_t>(count / block.values * block.bytes));
    values_.resize(static_cast<size_t>(count));
    KEEL_RETURN_IF_ERROR(ReadWhole(in_, from, first / block.values * block.bytes, bytes_, where_));
    model::Dequantize(from.type, bytes_, values_);
    if (tensor.to.one_added)
      for (float& value : values_) value -= 1;
    return Status::Ok();
  }
  Status WriteVector(const Moved& tensor, int64_t* at) {
    const int64_t all = tensor.from.shape.elements();
    for (int64_t first = 0; first < all; first += kPieceValues) {
      KEEL_RETURN_IF_ERROR(Read(tensor, first, std::min(kPieceValues, all - first)));
      KEEL_RETURN_IF_ERROR(Flush(tensor.from, at));
    }
    return Status::Ok();
  }
  Status WriteMixedVector(const Moved& tensor, int64_t* at) {
    const int64_t all = tensor.from.shape.elements();
    KEEL_RETURN_IF_ERROR(Read(tensor, 0, all));
    Unmix(tensor.to, 0, all, 1);
    return Flush(tensor.from, at);
  }
  void Unmix(const model::HfPlace& place, int64_t first, int64_t rows, int64_t width) {
    mixed_.resize(values_.size());
    mixed_.swap(values_);
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t source = model::GgufRow(place, first + row) - first;
      std::memcpy(values_.data() + row * width, mixed_.data() + source * width,
                  static_cast<size_t>(width) * sizeof(float));
    }
  }
  // values_ to the file at `*at`, which moves on.
  Status Flush(const model::GgufTensor& from, int64_t* at) {
    const auto bytes = stored_.As(dtype_, values_);
    if (!bytes) {
      return Status(StatusCode::kInvalidData,
                    fmt::format("{}: tensor {}: has a value that is not finite as {}", where_,
                                Printable(from.name), DTypeName(dtype_)));
    }
    KEEL_RETURN_IF_ERROR(out_.WriteAt(*at, *bytes));
    *at += std::ssize(*bytes);
    return Status::Ok();
  }

  const File& in_;
  File& out_;
  DType dtype_;
  std::string_view where_;
  std::vector<std::byte> bytes_;
  std::vector<float> values_, mixed_;
  StoredFloats stored_;
};

// The header, then the check of all names and shapes on what is so far a file of zeros, then the
// values.
Status WriteWeights(const File& in, const Plan& plan, FileSystem& out, const std::string& directory,
                    const GgufImportOptions& options) {
  std::vector<checkpoint::SafetensorsPart> parts;
  int64_t bytes = 0, total = 0;
  for (const Moved& tensor : plan.tensors) {
    parts.push_back({tensor.to.name, plan.dtype, tensor.from.shape, {}});
    bytes += tensor.from.shape.elements() * DTypeSize(plan.dtype);
    total += tensor.from.bytes;
  }
  KEEL_ASSIGN_OR_RETURN(const std::string header, checkpoint::BuildSafetensorsHeader(
                                                      parts, {{"format", "pt"}}, kHeaderAlignment));
  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                        out.Create(fmt::format("{}/{}", directory, kWeights), {}));
  KEEL_RETURN_IF_ERROR(file->WriteAt(0, std::as_bytes(std::span(header))));
  KEEL_RETURN_IF_ERROR(file->Truncate(std::ssize(header) + bytes));
  {
    KEEL_ASSIGN_OR_RETURN(const checkpoint::HfModelDir written,
                          checkpoint::HfModelDir::Open(out, directory));
    KEEL_RETURN_IF_ERROR(checkpoint::CheckTensors(
        written, model::TensorsOf(plan.model, model::Head::kVocabulary),
        plan.file.metadata.where() +
            ": the tensors, by the names of a Hugging Face folder, are "
            "not those of the model that its keys describe (" +
            plan.model.Digest() + "; a key that is left out counts as llama.cpp has it)"));
  }
  TensorWriter writer(in, *file, plan.dtype, plan.file.metadata.where());
  int64_t at = std::ssize(header);
  int64_t done = 0;
  for (const Moved& tensor : plan.tensors) {
    KEEL_RETURN_IF_ERROR(writer.Write(tensor, &at));
    done += tensor.from.bytes;
    if (options.progress) options.progress(done, total);
  }
  KEEL_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

Status WriteDocuments(const Plan& plan, FileSystem& out, const std::string& directory,
                      bool tokenizer_only) {
  const auto write = [&](const char* name, const std::string& text) {
    return WriteFileDurably(out, fmt::format("{}/{}", directory, name), text);
  };
  if (!tokenizer_only) {
    KEEL_RETURN_IF_ERROR(write("config.json", plan.config.dump(2) + "\n"));
    KEEL_RETURN_IF_ERROR(write("generation_config.json", plan.generation.dump(2) + "\n"));
  }
  KEEL_RETURN_IF_ERROR(write("tokenizer.json", plan.tokenizer.tokenizer.dump() + "\n"));
  KEEL_RETURN_IF_ERROR(write("tokenizer_config.json", plan.tokenizer.config.dump(2) + "\n"));
  if (plan.tokenizer.chat_template.empty()) return Status::Ok();
  return write("chat_template.jinja", plan.tokenizer.chat_template);
}

}  // namespace

Result<GgufImported> ImportGguf(const FileSystem& source, const std::string& file, FileSystem& out,
                                const std::string& name, const GgufImportOptions& options,
                                Logger& log) {
  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<File> in, source.Open(file));
  KEEL_ASSIGN_OR_RETURN(model::GgufFile read, model::ReadGguf(*in, source.Describe(file)));
  // First of all: parts behind the first have no vocabulary.
  if (!options.tokenizer_only) KEEL_RETURN_IF_ERROR(model::CheckWholeModel(read.metadata));
  KEEL_ASSIGN_OR_RETURN(model::GgufTokenizer tokenizer, model::ReadGgufTokenizer(read.metadata));
  Plan plan{std::move(read), std::move(tokenizer), {}, {}, {}, DType::kBF16, {}};
  if (!options.tokenizer_only) KEEL_RETURN_IF_ERROR(PlanModel(*in, options, &plan));
  const auto fill = [&](const std::string& directory) -> Status {
    KEEL_RETURN_IF_ERROR(WriteDocuments(plan, out, directory, options.tokenizer_only));
    return options.tokenizer_only ? Status::Ok() : WriteWeights(*in, plan, out, directory, options);
  };
  KEEL_RETURN_IF_ERROR(checkpoint::MakeWholeDirectory(out, name, "an import", log, fill));
  GgufImported imported;
  imported.dtype = plan.dtype;
  imported.tokens = static_cast<int64_t>(plan.tokenizer.tokenizer["model"]["vocab"].size());
  for (const Moved& tensor : plan.tensors) {
    ++imported.tensors;
    imported.values += tensor.from.shape.elements();
  }
  return imported;
}

}  // namespace keel::tools
