// HfModelDir: the weights of a Hugging Face model directory as a source of whole tensors.
//
// Reads model.safetensors, or model.safetensors.index.json and the shards that it names, from a
// directory that is trusted in nothing. The tensors have their canonical names: what the files of
// a family fuse (fused_tensors.h, by the config.json beside them) is here in its parts, and of a
// model of texts and images (part_names.h) the text part alone, as a directory of that part would
// have it. Immutable once opened; reads are thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/hf/fused_tensors.h"
#include "checkpoint/hf/part_names.h"
#include "common/files/file_system.h"
#include "common/status.h"
#include "common/tensors/model_tensors.h"
#include "common/tensors/shard_table.h"

namespace keel::checkpoint {

struct HfReadOptions {
  std::vector<std::string> allow_missing;  // patterns of tensors that the directory may lack
  bool finite = false;  // a value that is not finite is kInvalidData, by the tensor's name
  int threads = 2;      // that read
};

class HfModelDir {
 public:
  // `directory` is relative to `fs` ("." for its root); `fs` must outlive this.
  static Result<HfModelDir> Open(const FileSystem& fs, std::string directory);
  // Of adapters as PEFT writes them beside a model of `model_type`: adapter_model.safetensors,
  // whose names begin with "base_model.model.", which they have not here.
  static Result<HfModelDir> OpenAdapters(const FileSystem& fs, std::string directory,
                                         std::string_view model_type);

  // Whole tensors, no views.
  const ShardTable& source() const { return source_; }
  // The files that hold them, by their names in the directory.
  const std::vector<std::string>& files() const { return files_; }
  // Tensors of the files that are no text's, by the part that they are of: how many. They are not
  // in source().
  const std::map<std::string, int64_t>& left_aside() const { return left_aside_; }
  // The names of those that no part of a model of texts and images has: neither are they, and
  // CheckTensors refuses them.
  const std::vector<std::string>& strangers() const { return strangers_; }
  // The same directory in the model's own names (own_names.h), with the parts of each stack that is
  // there in its place. kInvalidData names a stack that has another shape, or that is there beside
  // one of its parts.
  Result<HfModelDir> AsTensorsOf(const ModelTensors& model) const;
  // For messages: the directory's name.
  std::string where() const { return fs_->Describe(directory_); }
  // How messages should call a tensor: as the files do, or would; one that is a part of a fused one
  // by its own name and by that.
  std::string NameInFiles(std::string_view tensor) const;
  // Where a tensor's values lie in its file. kNotFound.
  struct Location {
    std::string file;
    int64_t begin = 0;
    DType dtype = DType::kF32;
    Dims shape;
  };
  Result<Location> Locate(std::string_view tensor) const;
  // Says whether two of the tensors have one dtype and shape, and the same bytes, which this reads.
  Result<bool> SameValues(std::string_view a, std::string_view b) const;

  // Fills the views of `destination`, dense or strided, reading only the byte ranges that they
  // need. F64, F32, BF16 and F16 are converted to the destination's F32 or BF16 (round to nearest
  // even); any other difference of dtype is an error. kInvalidData lists all tensors that are
  // missing or of another shape before anything is written. What of the directory the destination
  // does not want is for CheckTensors (hf_check.h) to judge, which knows the whole model.
  Status ReadInto(const ShardTable& destination, const HfReadOptions& options) const;

 private:
  struct Place {
    int file = 0;
    int64_t begin = 0;
  };
  HfModelDir(const FileSystem& fs, std::string directory)
      : fs_(&fs), directory_(std::move(directory)) {}
  std::string PathOf(std::string_view file) const;
  Status ReadNames();
  // Adds a file's tensors, but those that `places` (tensor to file), which is empty where there is
  // no index, has in another one.
  Status AddFile(const std::string& name, const std::map<std::string, std::string>& places);

  const FileSystem* fs_;
  std::string directory_;
  std::string prefix_;  // of every name in the files
  FusedTensors fused_;
  PartNames part_names_;
  bool newer_names_ = false;  // see PartNames::NameInFiles
  // What the files call a tensor whose own name is another one.
  std::map<std::string, std::string, std::less<>> names_in_files_;
  std::map<std::string, std::string, std::less<>> file_of_;  // of each tensor, the first one
  std::map<std::string, int64_t> left_aside_;
  std::vector<std::string> strangers_;
  std::vector<std::string> files_;
  ShardTable source_;
  std::vector<Place> places_;  // beside source_.tensors()
};

}  // namespace keel::checkpoint
