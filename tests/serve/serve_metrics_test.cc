#include "serve/serve_metrics.h"

#include <gtest/gtest.h>

namespace keel::serve {
namespace {

TEST(ServeMetricsTest, TextOfPrometheus) {
  ServeMetrics metrics("a \"b\"\\\n");
  metrics.Set({.running = 3, .held_blocks = 7, .num_blocks = 9, .generated_tokens = 11});
  metrics.CountResponse("/health", 200);
  metrics.CountResponse("/health", 200);
  metrics.CountResponse("other", 404);
  metrics.CountCancelled();
  metrics.ObserveWhole(1.5);
  metrics.ObserveWhole(0.5);
  const std::string text = metrics.Text(4, 2);
  for (const char* line :
       {"keel_serve_info{model=\"a \\\"b\\\"\\\\\\n\"} 1\n", "keel_serve_sequences_running 3\n",
        "keel_serve_kv_blocks_held 7\n", "keel_serve_kv_blocks 9\n", "keel_serve_connections 2\n",
        "keel_serve_generated_tokens_total 11\n", "keel_serve_samples_open 4\n",
        "keel_serve_responses_total{path=\"/health\",status=\"200\"} 2\n",
        "keel_serve_responses_total{path=\"other\",status=\"404\"} 1\n",
        "keel_serve_cancelled_total 1\n", "keel_serve_request_seconds_sum 2.000000\n",
        "keel_serve_request_seconds_count 2\n", "# TYPE keel_serve_request_seconds summary\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
}

}  // namespace
}  // namespace keel::serve
