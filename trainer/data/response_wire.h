// The bytes in which responses travel between the ranks of one job. Torch-free.
//
// What all ranks are told is what they share: which response it is, its tokens and
// log-probabilities, which make micro-batches and ratios, its score and errors, which make
// advantages and verdicts. Not sent is what every rank has, the prompt and its row; the text and
// the verifier's answer are for people, and go to the rank that writes them.
//
// Version 2, little-endian. Responses: uint8 version, uint64 count, then for each: int64 position,
// int32 sample, int64 weight version, double score, uint32 tokens, uint32 log-probabilities (as
// many, or 0), uint32 numbers of the verifier, int32 and float of these, for each number its name
// and a double, then the finish reason and the error, uint32 given ranges, of each two int64, and
// uint8: 1 where tools were used, then calls, errors, timeouts and truncated as int64, uint32
// rewards, each a double. Version 1 ends with the error. Texts, of version 1: uint8 version, uint64
// count, then for each its text and its answer. A text is its size as uint32, then its bytes,
// whatever these are. Between ranks both ends are the same program, so that the version guards
// against a mistake; the ledger of a checkpoint may hold an older one.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "trainer/data/rollout_batch.h"

namespace keel::trainer::rl {

std::string EncodeResponses(std::span<const Response> responses);
// In their order; without row, data_source, prompt, text and answer. kInvalidData for bytes that
// EncodeResponses did not make: torn, longer, of another version. What they claim is not believed:
// no more memory is taken than in proportion to the bytes.
Result<std::vector<Response>> DecodeResponses(std::string_view bytes);
// Likewise, of this version or of one before it.
Result<std::vector<Response>> DecodeStoredResponses(std::string_view bytes);

std::string EncodeTexts(std::span<const Response> responses);
// Into text and answer of the same responses. kInvalidData also for another count.
Status DecodeTexts(std::string_view bytes, std::span<Response> responses);

}  // namespace keel::trainer::rl
