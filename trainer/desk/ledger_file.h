// The bytes of a ledger in a checkpoint: rollout/ledger.bin. The format, version 4, is described in
// docs/formats/ledger.md; 1 to 3 are read. Torch-free.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"
#include "trainer/desk/ledger.h"

namespace keel::trainer::desk {

inline constexpr const char* kLedgerPath = "rollout/ledger.bin";

std::string EncodeLedger(const Ledger& ledger);
// Responses are without row, data_source and prompt. kInvalidData for bytes that EncodeLedger did
// not make; DeskProtocol::Make looks at what they say.
Result<Ledger> DecodeLedger(std::string_view bytes);

}  // namespace keel::trainer::desk
