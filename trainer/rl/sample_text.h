// A validation's answer as people read it. Pure, torch-free.
#pragma once

#include <string>

#include "trainer/data/rollout_batch.h"

namespace keel::trainer::rl {

// Score, prompt and response as Markdown. What the model wrote stands in blocks of code, made
// printable and cut, so that nothing of it is taken for markup.
std::string SampleMarkdown(const Response& response, const std::string& prompt);

// Score, prompt and response as three lines for the console, each of a bounded length: what is cut
// out of a long one is its middle. Nothing that the model wrote moves the cursor or ends a line.
std::string SampleLines(const Response& response, const std::string& prompt);

}  // namespace keel::trainer::rl
