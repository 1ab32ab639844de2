// What is fuzzed: the readers of files that a run has not written itself, or not lately, and the
// rules that score what a model has written.
//
// A target takes any bytes. It must not crash, read outside them or use more memory than they
// justify; what it accepts must keep the promises that it asserts. The sanitizers see the first, a
// broken promise aborts. libFuzzer drives the targets by the program `fuzz_<name>` (preset fuzz);
// replay_test.cc runs them on the corpus and on simple mutations of it, with any compiler.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace keel::fuzz {

struct Target {
  std::string_view name;
  void (*run)(std::string_view bytes);
  // Valid inputs, or nearly, to start from.
  std::vector<std::string> (*seeds)();
  // Words of the format, for mutations.
  std::vector<std::string_view> words;
};

std::span<const Target> Targets();
// Writes the seeds of each as files `folder`/<target>/<number>. Says what fails.
bool WriteSeeds(const std::string& folder);

// Ends the program, saying what was promised and where.
void Require(bool kept, const char* promise, const char* file, int line);
// An error names the file, which is "fuzz".
void RequireNames(const Status& error);
#define KEEL_REQUIRE(promise) ::keel::fuzz::Require((promise), #promise, __FILE__, __LINE__)

void FuzzSafetensors(std::string_view bytes);
void FuzzManifest(std::string_view bytes);
void FuzzIndex(std::string_view bytes);
void FuzzConfig(std::string_view bytes);
void FuzzJson(std::string_view bytes);
void FuzzAnswers(std::string_view bytes);
void FuzzRows(std::string_view bytes);
void FuzzChatTemplate(std::string_view bytes);
void FuzzGguf(std::string_view bytes);
void FuzzShard(std::string_view bytes);
void FuzzMegatron(std::string_view bytes);
void FuzzTokenizer(std::string_view bytes);
void FuzzTekken(std::string_view bytes);
void FuzzTiktoken(std::string_view bytes);
void FuzzSentencePiece(std::string_view bytes);

std::vector<std::string> SafetensorsSeeds();
std::vector<std::string> ManifestSeeds();
std::vector<std::string> IndexSeeds();
std::vector<std::string> ConfigSeeds();
std::vector<std::string> JsonSeeds();
std::vector<std::string> AnswersSeeds();
std::vector<std::string> RowsSeeds();
std::vector<std::string> ChatTemplateSeeds();
std::vector<std::string> GgufSeeds();
std::vector<std::string> ShardSeeds();
std::vector<std::string> MegatronSeeds();
std::vector<std::string> TokenizerSeeds();
std::vector<std::string> TekkenSeeds();
std::vector<std::string> TiktokenSeeds();
std::vector<std::string> SentencePieceSeeds();

}  // namespace keel::fuzz
