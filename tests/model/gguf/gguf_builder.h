// The bytes of GGUF files, right or wrong.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/files/file_system.h"
#include "model/gguf/gguf_file.h"

namespace keel::model::testing {

// A file of these bytes.
class BytesFile : public File {
 public:
  explicit BytesFile(std::string_view bytes) : bytes_(bytes) {}
  Status WriteAt(int64_t, std::span<const std::byte>) override { return Closed(); }
  Result<int64_t> ReadAt(int64_t offset, std::span<std::byte> data) const override {
    const int64_t count = std::clamp<int64_t>(std::ssize(bytes_) - offset, 0, std::ssize(data));
    if (count > 0) std::memcpy(data.data(), bytes_.data() + offset, static_cast<size_t>(count));
    return count;
  }
  Status Truncate(int64_t) override { return Closed(); }
  Status Sync() override { return Closed(); }
  Status Close() override { return Closed(); }
  Result<int64_t> Size() const override { return std::ssize(bytes_); }

 private:
  static Status Closed() { return Status(StatusCode::kIo, "read only"); }
  std::string_view bytes_;
};

template <typename Number>
std::string Bytes(Number number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof(number));
}
inline std::string LengthAnd(std::string_view text) {
  return Bytes<uint64_t>(text.size()) + std::string(text);
}

struct GgufBuilder {
  uint32_t version = 3;
  std::vector<std::string> keys;     // each whole, as it stands in the file
  std::vector<std::string> tensors;  // the entries
  std::string data;

  void Key(std::string_view name, GgufType type, const std::string& value) {
    keys.push_back(LengthAnd(name) + Bytes(type) + value);
  }
  void Drop(std::string_view name) {
    std::erase_if(keys, [&](const std::string& key) { return key.starts_with(LengthAnd(name)); });
  }
  void Int(std::string_view name, uint32_t value) { Key(name, GgufType::kUint32, Bytes(value)); }
  void Float(std::string_view name, float value) { Key(name, GgufType::kFloat32, Bytes(value)); }
  void Bool(std::string_view name, bool value) {
    Key(name, GgufType::kBool, std::string(1, value ? 1 : 0));
  }
  void Text(std::string_view name, std::string_view value) {
    Key(name, GgufType::kString, LengthAnd(value));
  }
  void Array(std::string_view name, GgufType type, uint64_t count, const std::string& values) {
    Key(name, GgufType::kArray, Bytes(type) + Bytes(count) + values);
  }
  void Texts(std::string_view name, const std::vector<std::string>& values) {
    std::string all;
    for (const std::string& value : values) all += LengthAnd(value);
    Array(name, GgufType::kString, values.size(), all);
  }
  template <typename Number>
  void Numbers(std::string_view name, GgufType type, const std::vector<Number>& values) {
    std::string all;
    for (const Number value : values) all += Bytes(value);
    Array(name, type, values.size(), all);
  }
  // `dims`: the fastest first, as in the file.
  void Entry(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
             uint64_t offset) {
    std::string entry = LengthAnd(name) + Bytes(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) entry += Bytes(dim);
    tensors.push_back(entry + Bytes(type) + Bytes(offset));
  }
  // Of float32, at the next aligned place.
  void Tensor(std::string_view name, const std::vector<uint64_t>& dims,
              const std::vector<float>& values) {
    data.resize((data.size() + 31) / 32 * 32);
    Entry(name, dims, 0, data.size());
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
  std::string Build() const {
    std::string file =
        "GGUF" + Bytes(version) + Bytes<uint64_t>(tensors.size()) + Bytes<uint64_t>(keys.size());
    for (const std::string& key : keys) file += key;
    for (const std::string& tensor : tensors) file += tensor;
    file.resize((file.size() + 31) / 32 * 32);
    return file + data;
  }
};

// A Llama of one layer's metadata and embedding, with a vocabulary of three tokens.
inline GgufBuilder TinyGguf() {
  GgufBuilder gguf;
  gguf.Text("general.architecture", "llama");
  gguf.Int("llama.block_count", 1);
  gguf.Int("llama.context_length", 64);
  gguf.Int("llama.embedding_length", 8);
  gguf.Int("llama.feed_forward_length", 16);
  gguf.Int("llama.attention.head_count", 2);
  gguf.Int("llama.attention.head_count_kv", 1);
  gguf.Float("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  gguf.Float("llama.rope.freq_base", 10000);
  gguf.Text("tokenizer.ggml.model", "gpt2");
  gguf.Text("tokenizer.ggml.pre", "gpt-2");
  gguf.Texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<end>"});
  gguf.Numbers<int32_t>("tokenizer.ggml.token_type", GgufType::kInt32, {1, 1, 1, 3});
  gguf.Texts("tokenizer.ggml.merges", {"a b"});
  gguf.Int("tokenizer.ggml.eos_token_id", 3);
  gguf.Text("tokenizer.chat_template", "{{ messages }}");
  gguf.Tensor("token_embd.weight", {8, 4}, std::vector<float>(32, 0.5f));
  return gguf;
}

}  // namespace keel::model::testing
