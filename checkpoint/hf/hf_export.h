// HfExport: the weights of one Hugging Face model from a checkpoint, a buffer at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/chunk_digest.h"
#include "checkpoint/read/step_reader.h"
#include "common/files/file_system.h"
#include "common/status.h"

namespace keel::checkpoint {

struct HfExportOptions {
  int64_t max_shard_bytes =
      int64_t{5'000'000'000};                // of one weights file; more make an index and shards
  int64_t buffer_bytes = int64_t{32} << 20;  // of tensors in memory at a time
  int threads = 2;                           // that read and verify
  bool adapters = false;                     // as PEFT writes them, in one file: weight_files.h

  std::vector<std::string> Validate() const;  // every problem, as sentences
};

struct ExportedFile {
  std::string name;  // "model.safetensors"
  ChunkedDigest digest;
};

// Writes the weights of `scope` ("actor/model") into the existing directory `directory` of `out`,
// each file durable, and verifies what it reads. `config` is the text of config.json: with
// tie_word_embeddings, lm_head.weight is left out, as transformers does. Adapters of a family whose
// files fuse the weights that they stand beside are kInvalidData. Memory: buffer_bytes, and a chunk
// a thread.
Result<std::vector<ExportedFile>> ExportWeights(const StepReader& reader, std::string_view scope,
                                                std::string_view config, FileSystem& out,
                                                const std::string& directory,
                                                const HfExportOptions& options);

}  // namespace keel::checkpoint
