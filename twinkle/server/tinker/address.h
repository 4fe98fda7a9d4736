// Finds whose request of which number a body is, without keeping the body: the members model_id and
// seq_id of its outermost object, or message, wherever they stand in it.
#pragma once
#include <memory>

#include "twinkle/server/http/message.h"

namespace twinkle::server::tinker {

enum class Form { kJson, kProtobuf };  // the latter as of Tinker's forward_backward

// What it finds in a body of the one form is one of the other with these alone, and where both are
// protobuf, forward_only, too, if it stands before them. It ends where it has both, where the body
// is none, and where a model_id is longer than 4096 bytes. Of a member that comes twice the first
// counts; JSON's null is none, and its seq_id is none for a protobuf unless that can hold it.
std::shared_ptr<Finder> address_finder(Form body, Form found);

}  // namespace twinkle::server::tinker
