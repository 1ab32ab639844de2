// SampleCut: which tokens of a store are sample i.
//
// A sample is one or more pieces, each of one document (of the stream, one of all): a piece of n
// tokens has n - 1 inputs, each of which predicts the token behind it. Two pieces of one document
// share a token, the last target of one and the first input of the next, so that every token but a
// document's first is a target once.
//
//   none      a piece is a document; those of pre-training that are longer than max_length are cut
//             into several samples, those of SFT are treated as data.truncation says
//   stream    the store's tokens, cut every max_length inputs
//   wrapped   the inputs of all documents one after another, cut every max_length
//   best_fit  the pieces of `none`, packed into bins of max_length inputs (tokens/best_fit.h)
//
// Immutable, thread-safe. Memory: 16 bytes a piece for none, 28 for best_fit, none for the others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/hash.h"
#include "common/status.h"
#include "trainer/data/rows/choices.h"
#include "trainer/data/sample.h"
#include "trainer/data/tokens/best_fit.h"
#include "trainer/data/tokens/token_store.h"

namespace keel::trainer {

struct CutOptions {
  Packing packing = Packing::kStream;
  bool learns_all = true;    // pre-training: masks count for nothing, and no document is left out
  int64_t max_length = 512;  // positions of a sample's inputs
  Truncation truncation = Truncation::kError;  // of documents, unless learns_all or wrapped
  int64_t vocab_size = 0;                      // larger ids are refused when they are read
  std::string name;                            // of what the store was read from, for messages
};

class SampleCut {
 public:
  SampleCut() = default;
  // kInvalidData names the first document that is too long where truncation says so.
  static Result<SampleCut> Make(std::shared_ptr<const TokenStore> store, const CutOptions& options);

  int64_t size() const { return size_; }
  int64_t skipped() const { return skipped_; }    // documents left out: too long, or none learnt
  int64_t unlearnt() const { return unlearnt_; }  // of these, those of which nothing is learnt
  int64_t cut() const { return cut_; }            // documents of which a part is left
  // i in [0, size()). Errors as TokenStore::Read; kInvalidData for an id outside the vocabulary.
  Result<Sample> Read(int64_t i) const;
  // Of sample i, without its tokens.
  int64_t inputs(int64_t i) const;
  Result<int64_t> targets(int64_t i) const;

  const TokenStore& store() const { return *store_; }
  const CutOptions& options() const { return options_; }
  // Tokens of sample i, where it has one piece; of none and stream.
  struct Piece {
    int64_t begin;
    int64_t length;  // tokens
  };
  std::vector<Piece> Pieces(int64_t i) const;

 private:
  Status CutDocuments();
  Result<bool> Teaches(const Piece& piece) const;

  std::shared_ptr<const TokenStore> store_;
  CutOptions options_;
  int64_t size_ = 0;
  int64_t skipped_ = 0;
  int64_t unlearnt_ = 0;
  int64_t cut_ = 0;
  std::vector<Piece> pieces_;  // of none and best_fit
  Bins bins_;                  // of best_fit
};

}  // namespace keel::trainer
