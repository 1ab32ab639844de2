// What encoding a text needs beside the tokenizer, kept from one text to the next.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "model/tokenizer/pipeline/bpe.h"
#include "model/tokenizer/pipeline/pattern.h"
#include "model/tokenizer/pipeline/piece_cache.h"

namespace keel::model {

// What one call of Encode needs beside the tokenizer; kept for the next one.
struct EncodeScratch {
  PatternScratch patterns;
  PieceCache pieces;
  std::vector<Symbol> symbols;
  std::vector<Span> pieces_of_text;
  std::string spelled;
};

// Hands scratches out to threads and takes them back.
class EncodeScratchPool {
 public:
  class Lease {
   public:
    explicit Lease(EncodeScratchPool* pool) : pool_(pool), scratch_(pool->Take()) {}
    ~Lease() {
      std::lock_guard lock(pool_->mutex_);
      pool_->free_.push_back(std::move(scratch_));
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    EncodeScratch* get() { return scratch_.get(); }

   private:
    EncodeScratchPool* pool_;
    std::unique_ptr<EncodeScratch> scratch_;
  };

 private:
  std::unique_ptr<EncodeScratch> Take() {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        auto scratch = std::move(free_.back());
        free_.pop_back();
        return scratch;
      }
    }
    return std::make_unique<EncodeScratch>();
  }
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> free_;
};

}  // namespace keel::model
