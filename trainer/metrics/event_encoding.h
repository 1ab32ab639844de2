// TensorBoard's events as bytes: protocol buffers of tensorboard/compat/proto/{event,summary}.proto
// and the records that hold them. Pure, torch-free.
//
// A record is the payload's length (8 bytes, little-endian), a masked CRC-32C of these, the
// payload, and a masked CRC-32C of that.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keel::trainer {

// CRC-32C (Castagnoli), not masked.
uint32_t Crc32c(std::string_view bytes);
// rotated right by 15 bits, plus a constant, as records store it.
uint32_t MaskedCrc32c(std::string_view bytes);

std::string EventRecord(std::string_view event);

// Payloads. `wall_time` is in seconds since 1970.
std::string FileVersionEvent(double wall_time);
// What a reader has of `step` and later, of this file and of those before it, is done again.
std::string SessionStartEvent(double wall_time, int64_t step);
// Each with its own name, in their order; as float, which is all that a scalar of TensorBoard has.
std::string ScalarsEvent(double wall_time, int64_t step,
                         std::span<const std::pair<std::string, double>> scalars);
// In up to 30 buckets of equal width from the least to the greatest value. What is not finite is
// left out.
std::string HistogramEvent(double wall_time, int64_t step, std::string_view name,
                           std::span<const double> values);
// Markdown, of the text dashboard.
std::string TextEvent(double wall_time, int64_t step, std::string_view name, std::string_view text);

}  // namespace keel::trainer
