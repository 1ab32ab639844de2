// What Keel's workers of the benchmarks have in common: the protocol of bench/peers/README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <sstream>
#include <string>

#include "common/json.h"

namespace keel::bench {

// One line of JSON on standard output.
void Answer(const Json& json);

// What a command does with the words behind its name; its answer is a line.
using Commands = std::map<std::string, std::function<Json(std::istringstream& words)>>;
// Answers lines from standard input until quit or its end; an unknown command with an error.
void Serve(const Commands& commands);

// The config.json that the driver names. Throws keel::Error.
Json ReadConfig(const std::string& path);

// Processor time of this process so far, which other processes do not stretch.
double CpuSeconds();

// A line of /proc/self/status in kilobytes, such as "VmRSS:", as bytes.
int64_t StatusBytes(const std::string& key);
// Adds "rss_bytes" and "peak_rss_bytes" of this process, as the kernel counts them.
Json WithMemory(Json json);

// Token p of sequence n where sequences are numbered as if they had `length` + 1 tokens: every
// worker of every side makes the same ones for itself.
int64_t MadeToken(int64_t n, int64_t p, int64_t length, int64_t vocabulary);

}  // namespace keel::bench
