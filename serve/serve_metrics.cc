#include "serve/serve_metrics.h"

#include <fmt/format.h>

#include <iterator>

namespace keel::serve {

namespace {

// A label's value, as the format wants it.
std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

void ServeMetrics::Set(const EngineGauges& gauges) {
  const std::lock_guard lock(mutex_);
  gauges_ = gauges;
}

void ServeMetrics::CountResponse(const std::string& path, int status) {
  const std::lock_guard lock(mutex_);
  ++responses_[{path, status}];
}

void ServeMetrics::CountCancelled() {
  const std::lock_guard lock(mutex_);
  ++cancelled_;
}

void ServeMetrics::SetCheckpoint(int64_t step) {
  const std::lock_guard lock(mutex_);
  checkpoint_step_ = step;
  ++checkpoints_;
}

void ServeMetrics::SetSkippedCheckpoints(int64_t count) {
  const std::lock_guard lock(mutex_);
  skipped_checkpoints_ = count;
}

void ServeMetrics::CountPromptTokens(int64_t tokens) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += tokens;
}

void ServeMetrics::ObserveFirstToken(double seconds) {
  const std::lock_guard lock(mutex_);
  ++first_token_.count;
  first_token_.seconds += seconds;
}

void ServeMetrics::ObserveWhole(double seconds) {
  const std::lock_guard lock(mutex_);
  ++whole_.count;
  whole_.seconds += seconds;
}

std::string ServeMetrics::Text(int64_t open_samples, int64_t open_connections) const {
  const std::lock_guard lock(mutex_);
  std::string out;
  const auto head = [&](const char* name, const char* type, const char* help) {
    fmt::format_to(std::back_inserter(out), "# HELP keel_serve_{} {}\n# TYPE keel_serve_{} {}\n",
                   name, help, name, type);
  };
  const auto one = [&](const char* name, const char* type, const char* help, int64_t value) {
    head(name, type, help);
    fmt::format_to(std::back_inserter(out), "keel_serve_{} {}\n", name, value);
  };
  const auto sum = [&](const char* name, const char* help, const Sum& value) {
    head(name, "summary", help);
    fmt::format_to(std::back_inserter(out), "keel_serve_{}_sum {:.6f}\nkeel_serve_{}_count {}\n",
                   name, value.seconds, name, value.count);
  };
  head("info", "gauge", "The model that is served.");
  fmt::format_to(std::back_inserter(out), "keel_serve_info{{model={}}} 1\n", Quoted(model_));
  head("responses_total", "counter", "Responses by path and HTTP status.");
  for (const auto& [key, count] : responses_) {
    fmt::format_to(std::back_inserter(out),
                   "keel_serve_responses_total{{path={},status=\"{}\"}} {}\n", Quoted(key.first),
                   key.second, count);
  }
  one("cancelled_total", "counter", "Requests whose client left, or whose time ran out.",
      cancelled_);
  if (checkpoint_step_) {
    one("checkpoint_step", "gauge", "Step of the checkpoint that is served.", *checkpoint_step_);
    one("checkpoints_total", "counter", "Checkpoints taken up, the first included.", checkpoints_);
    one("checkpoints_skipped_total", "counter",
        "Checkpoints that were damaged, or of another model.", skipped_checkpoints_);
  }
  one("connections", "gauge", "Open connections.", open_connections);
  one("samples_open", "gauge", "Samples asked for that have not ended.", open_samples);
  one("sequences_running", "gauge", "Sequences that the engine computes.", gauges_.running);
  one("sequences_waiting", "gauge", "Sequences that wait for room in the engine.", gauges_.waiting);
  one("kv_blocks", "gauge", "Blocks of the KV cache.", gauges_.num_blocks);
  one("kv_blocks_held", "gauge", "Blocks that sequences hold.", gauges_.held_blocks);
  one("engine_steps_total", "counter", "Forwards.", gauges_.steps);
  one("preemptions_total", "counter", "Sequences whose blocks were taken back.",
      gauges_.preemptions);
  one("prompt_tokens_total", "counter", "Tokens of prompts that were taken.", prompt_tokens_);
  one("generated_tokens_total", "counter", "Tokens that were generated.", gauges_.generated_tokens);
  one("computed_tokens_total", "counter", "Tokens of prompts and responses that were computed.",
      gauges_.computed_tokens);
  one("prefix_cache_tokens_total", "counter",
      "Tokens of samples' prompts that were found, not computed: of a prompt with n samples n "
      "times.",
      gauges_.found_tokens);
  sum("first_token_seconds", "From a request to its first token.", first_token_);
  sum("request_seconds", "From a request to the end of its answer.", whole_);
  return out;
}

}  // namespace keel::serve
