// ServeMetrics: what /metrics says, in Prometheus' text format. Thread-safe, torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace keel::serve {

// Of the engine, as its thread last saw it.
struct EngineGauges {
  int64_t running = 0;  // sequences
  int64_t waiting = 0;
  int64_t held_blocks = 0;  // of the KV cache
  int64_t num_blocks = 0;
  int64_t steps = 0;
  int64_t preemptions = 0;
  int64_t generated_tokens = 0;
  int64_t computed_tokens = 0;  // of prompts and responses
  int64_t found_tokens = 0;     // of prompts, in the prefix cache
};

class ServeMetrics {
 public:
  explicit ServeMetrics(std::string model) : model_(std::move(model)) {}

  void Set(const EngineGauges& gauges);
  void CountResponse(const std::string& path, int status);
  void CountCancelled();
  // The checkpoint whose weights answer from now on, and how many were passed over so far.
  void SetCheckpoint(int64_t step);
  void SetSkippedCheckpoints(int64_t count);
  void CountPromptTokens(int64_t tokens);
  void ObserveFirstToken(double seconds);
  void ObserveWhole(double seconds);

  std::string Text(int64_t open_samples, int64_t open_connections) const;

 private:
  struct Sum {
    int64_t count = 0;
    double seconds = 0;
  };

  const std::string model_;
  mutable std::mutex mutex_;
  EngineGauges gauges_;
  std::map<std::pair<std::string, int>, int64_t> responses_;
  int64_t cancelled_ = 0;
  std::optional<int64_t> checkpoint_step_;
  int64_t checkpoints_ = 0, skipped_checkpoints_ = 0;
  int64_t prompt_tokens_ = 0;
  Sum first_token_, whole_;
};

}  // namespace keel::serve
