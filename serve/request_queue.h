// RequestQueue: between the threads that talk HTTP and the one that runs the engine. Torch-free.
//
// An HTTP thread submits a request's samples and waits on its Answer for what they become; the
// engine's thread takes what was submitted or cancelled between two steps, and hands out what grew.
// All of it is thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "rollout/sampling.h"

namespace keel::serve {

// What one request asks of the engine: `n` samples of each prompt. Sample `s` of prompt `p` is its
// sample number p * n + s. Its tokens are a function of the prompt, of `sampling` with its seed,
// and of (p, s), whatever else is computed.
struct Work {
  std::vector<std::vector<int32_t>> prompts;
  int n = 1;
  rollout::SamplingParams sampling;
  bool shows_calls = false;  // texts keep the special tokens that mark calls of tools
  Json tools = {};           // schemas by which calls are read

  int64_t samples() const { return std::ssize(prompts) * n; }
};

// What one sample has become since the last piece of it.
struct Piece {
  int number = 0;                     // of the sample
  std::string text = {};              // which stays as it is, whatever follows
  std::vector<int32_t> tokens = {};   // text may lag behind them
  std::vector<float> log_probs = {};  // of the tokens
  // In their places, and in the first piece in those of the prompt's tokens from its second on, as
  // `sampling` asks for them.
  std::vector<std::vector<rollout::ScoredToken>> likeliest = {};
  std::vector<float> prompt_log_probs = {};
  std::vector<std::vector<rollout::ScoredToken>> prompt_likeliest = {};
  std::string finish = {};  // "stop", "length"; "" while it goes on
  Status error = {};        // not ok: the sample has ended with it
  bool last() const { return !finish.empty() || !error.ok(); }
};

// One request's answer as it grows.
class Answer {
 public:
  explicit Answer(Work work) : work_(std::move(work)) {}
  const Work& work() const { return work_; }

  // HTTP's side. What has come since the last call; after `patience` nothing.
  std::vector<Piece> Wait(std::chrono::milliseconds patience);
  // Of the weights that all of it comes from; "" before the first piece, and where they have none.
  std::string weights() const;

  // The engine's.
  void Put(Piece piece);
  // Before the first piece.
  void set_weights(const std::string& name);
  bool begun() const;  // a piece was put

 private:
  const Work work_;
  mutable std::mutex mutex_;
  std::condition_variable grew_;
  std::vector<Piece> pieces_;
  std::string weights_;
  bool begun_ = false;
};

class RequestQueue {
 public:
  // At most so many samples may be open, running or waiting.
  explicit RequestQueue(int64_t most_samples) : most_(most_samples) {}

  // HTTP's side. kInvalidData: more samples than can ever be open. kBusy: too many are open now.
  // kUnavailable: closed.
  Result<std::shared_ptr<Answer>> Submit(Work work);
  // Nobody waits for the answer any more. Harmless after its end.
  void Cancel(const std::shared_ptr<Answer>& answer);
  // No request is taken from here on.
  void Close();

  // The engine's. What came since the last call, in its order; waits for something to come for as
  // long as `patience`. An answer that was cancelled before it was taken is in neither list.
  struct News {
    std::vector<std::shared_ptr<Answer>> submitted, cancelled;
  };
  News Take(std::chrono::milliseconds patience);
  // So many samples of taken answers have ended, cancelled ones among them.
  void Ended(int64_t samples);

  int64_t open_samples() const;

 private:
  const int64_t most_;
  mutable std::mutex mutex_;
  std::condition_variable came_;
  News news_;
  int64_t open_ = 0;
  bool closed_ = false;
};

}  // namespace keel::serve
