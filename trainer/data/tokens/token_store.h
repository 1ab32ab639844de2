// TokenStore: documents of token ids, one after another, wherever they lie: in memory, in shards,
// in files of other programs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/hash.h"
#include "common/status.h"

namespace keel::trainer {

// Immutable and thread-safe. A token is named by its place among the tokens of all documents.
class TokenStore {
 public:
  virtual ~TokenStore() = default;

  virtual int64_t documents() const = 0;
  // Where document d begins, d in [0, documents()]; of documents() it is the number of tokens. No
  // document is empty.
  virtual int64_t Begin(int64_t document) const = 0;
  // Tokens [begin, begin + ids.size()) and whether each is learnt; a span that is empty is not
  // filled. kDataLoss and kInvalidData name the file that is not what it was, or not what it says.
  virtual Status Read(int64_t begin, std::span<int32_t> ids, std::span<uint8_t> learn) const = 0;
  // No token is there that is not learnt.
  virtual bool learns_all() const = 0;
  // Of the documents, their ids and masks.
  virtual Digest128 digest() const = 0;

  int64_t tokens() const { return Begin(documents()); }
  // The document that token `place` is of; place in [0, tokens()).
  int64_t DocumentOf(int64_t place) const;
};

// Five bytes a token, eight a document.
class MemoryTokens final : public TokenStore {
 public:
  void Add(std::span<const int32_t> ids, std::span<const uint8_t> learn);
  void LearnAll();

  int64_t documents() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t Begin(int64_t document) const override { return begins_[static_cast<size_t>(document)]; }
  Status Read(int64_t begin, std::span<int32_t> ids, std::span<uint8_t> learn) const override;
  bool learns_all() const override { return learns_all_; }
  Digest128 digest() const override;

  std::span<const int32_t> ids() const { return ids_; }
  std::span<const uint8_t> learn() const { return learn_; }

 private:
  std::vector<int32_t> ids_;
  std::vector<uint8_t> learn_;
  std::vector<int64_t> begins_ = {0};
  bool learns_all_ = true;
};

// Stores one after another, as one.
class JoinedTokens final : public TokenStore {
 public:
  explicit JoinedTokens(std::vector<std::shared_ptr<const TokenStore>> stores);

  int64_t documents() const override { return first_document_.back(); }
  int64_t Begin(int64_t document) const override;
  Status Read(int64_t begin, std::span<int32_t> ids, std::span<uint8_t> learn) const override;
  bool learns_all() const override;
  Digest128 digest() const override;

 private:
  std::vector<std::shared_ptr<const TokenStore>> stores_;
  std::vector<int64_t> first_token_, first_document_;  // of each store, and their sums
};

}  // namespace keel::trainer
