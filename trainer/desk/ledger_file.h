// The bytes of a ledger in a checkpoint: rollout/ledger.bin. The format, version 3, is described in
// docs/formats/ledger.md; 1 and 2 are read. Torch-free.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"
#include "trainer/desk/ledger.h"

namespace keel::trainer::desk {

std::string EncodeLedger(const Ledger& ledger);
// Responses are without row, data_source and prompt. kInvalidData for bytes that EncodeLedger did
// not make; DeskProtocol::Make looks at what they say.
Result<Ledger> DecodeLedger(std::string_view bytes);

}  // namespace keel::trainer::desk
