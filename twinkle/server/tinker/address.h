// Finds whose request of which number a body is, without keeping the body: the members model_id and
// seq_id of its outermost object, or message, wherever they stand in it.
#pragma once
#include <memory>

#include "twinkle/server/http/message.h"

namespace twinkle::server::tinker {

// Of a protobuf as of Tinker's forward_backward, else of JSON. What it finds is a body of the same
// kind with these alone, forward_only too where a protobuf has that before them. It ends where it
// has both, where the body is none, and where a model_id is longer than 4096 bytes. Of a member
// that comes twice the first counts; JSON's null is none.
std::shared_ptr<Finder> address_finder(bool is_protobuf);

}  // namespace twinkle::server::tinker
